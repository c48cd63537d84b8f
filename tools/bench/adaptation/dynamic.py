"""The suite `dynamic`: programs with plans for shapes beside the same program with one plan.

Calls have the shapes of a public trace (`--trace`, a column of sizes; else sizes drawn from a
log-normal distribution with a fixed seed), scaled to each program's range. Both programs are called
in turn on the same inputs; each size's time is the median of its rounds, in seconds of the calling
thread, which computes alone on `local-sync`. `choice` is what the guard costs: a call of a program
with plans whose plan is its general code, above one without.
"""

import argparse
import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from pyc_mlir import TensorSpec, compile, nn
from pyc_mlir.measure.records import Record, record
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.service.targets import quantile
from pyc_mlir.tools.bench.report.suite import note, parse
from pyc_mlir.tools.cli.common import Parser

SUITE = "dynamic"
ROUNDS = 15
_SIZES, _PLANS = 40, 4
_TINY, _CALLS, _BATCHES = 4, 2000, 15


@dataclass(frozen=True)
class Case:
    """A program with one dynamic dimension `n` of a range."""

    name: str
    function: Callable[..., Any]
    spec: TensorSpec
    low: int
    high: int


def _normal(*shape: int) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=shape) / 16).astype(np.float32)


def cases() -> list[Case]:
    """Return softmax over lengths, a convolution, few-row products, an encoder, a decoder step."""
    w, w1, w2, k = _normal(256, 256), _normal(256, 1024), _normal(1024, 256), _normal(32, 16, 3, 3)
    cache = _normal(64, 256)

    def encoder(x: Any) -> Any:
        q, keys, v = x @ w, x @ w, x @ w
        a = nn.softmax(q @ keys.transpose(0, 2, 1)) @ v
        return a + np.maximum(a @ w1, 0) @ w2

    def decoder(x: Any) -> Any:
        a = nn.softmax((x @ w) @ cache.T) @ cache
        return a + np.maximum(a @ w1, 0) @ w2

    return [
        Case("softmax over a length", nn.softmax, TensorSpec("f32", 64, "n"), 8, 1024),
        Case("convolution", lambda x: nn.relu(nn.conv2d(x, k)), _spec(16, 28, 28), 1, 16),
        Case("few-row products", lambda x: np.maximum(x @ w1, 0) @ w2, _spec(256), 1, 32),
        Case("encoder block", encoder, TensorSpec("f32", 1, "n", 256), 8, 256),
        Case("decoder step", decoder, _spec(256), 1, 32),
    ]


def _spec(*dims: int) -> TensorSpec:
    return TensorSpec("f32", "n", *dims)


def sizes_of(trace: Path | None, column: str) -> np.ndarray:
    """Return sizes of calls, in their order. Raises OSError, ValueError for no such column."""
    if trace is None:
        return np.exp(np.random.default_rng(0).normal(6.5, 1.2, 4096)).round() + 1
    text = trace.read_bytes()
    lines = (gzip.decompress(text) if trace.suffix == ".gz" else text).decode().splitlines()
    at = lines[0].split(",").index(column)
    return np.array([float(line.split(",")[at]) for line in lines[1:] if line])


def _scaled(sizes: np.ndarray, case: Case) -> list[int]:
    """Return the sizes in the program's range, in the same proportions."""
    share = np.clip(sizes / np.quantile(sizes, 0.99), 0, 1)
    return [max(case.low, round(float(s) * case.high)) for s in share]


def _measure(case: Case, sizes: np.ndarray, rounds: int, folder: Path) -> list[Record]:
    device, calls = Device("local-sync"), _scaled(sizes, case)
    trace = folder / "trace.csv"
    trace.write_text("n\n" + "\n".join(map(str, calls)) + "\n")
    options: dict[str, Any] = {"dims": {"n": (case.low, case.high)}, "device": device}
    programs: dict[str, Program] = {}
    seconds = {}
    for name, more in (("one plan", {}), ("plans", {"plans": _PLANS, "shapes": trace})):
        began = perf_counter()
        programs[name] = compile(case.function, [case.spec], cache=False, **options, **more)
        seconds[name] = perf_counter() - began
    drawn = np.random.default_rng(1).choice(calls, _SIZES)
    times: dict[str, list[list[float]]] = {name: [] for name in programs}
    for size in drawn:
        shape = [d if isinstance(d, int) else int(size) for d in case.spec.dims]
        x = to_device(np.random.default_rng(0).normal(size=shape).astype(np.float32), device)
        found: dict[str, list[float]] = {name: [] for name in programs}
        for program in programs.values():
            program(x)
        for _ in range(rounds):
            for name, program in programs.items():
                began = thread_time()
                program(x)
                found[name].append(thread_time() - began)
        for name in programs:
            times[name].append(found[name])
    p95 = {name: quantile(sorted(map(median, t)), 0.95) for name, t in times.items()}
    each = [median(a) / median(b) for a, b in zip(*times.values(), strict=True)]
    kept = programs["plans"].shape_plans
    note(f"{case.name}: p95 {p95}, {median(each):.2f} times in the median, plans {kept}")
    made = []
    for name, program in programs.items():
        made += [
            record(case.name, name, "p95", "s", p95[name]),
            record(case.name, name, "compile", "s", seconds[name]),
            record(case.name, name, "file", "B", float(len(program.artifact.vmfb))),
        ]
    return [
        *made,
        record(case.name, "plans", "p95 gain", "x", p95["one plan"] / p95["plans"]),
        record(case.name, "plans", "least gain of a size", "x", min(each)),
        record(case.name, "plans", "made", "plans", float(len(kept))),
    ]


def _choice(rounds: int) -> list[Record]:
    """Measure a call of shapes that were seen, with plans and without, by the same code."""
    device = Device("local-sync")
    x = to_device(np.ones((_TINY,), np.float32), device)
    spec, programs = [TensorSpec("f32", "n")], {}
    for name, plans in (("one plan", ""), ("plans", "n=64;n=65:128;n=256;n=512")):
        programs[name] = compile(lambda a: a + 1, spec, plans=plans, device=device, cache=False)
    found: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            began = thread_time()
            for _ in range(_CALLS):
                program(x)
            found[name].append((thread_time() - began) / _CALLS)
    mode = programs["plans"]._plans.current
    began = thread_time()
    for _ in range(_CALLS):
        mode.serving((x,))
    guard = (thread_time() - began) / _CALLS
    gap = median(found["plans"]) - median(found["one plan"])
    note(f"choice: {gap * 1e6:.3f} us for shapes that were seen, {guard * 1e6:.3f} us for new ones")
    title = f"add of {_TINY} elements"
    return [
        *(record(title, name, "call", "s", median(t)) for name, t in found.items()),
        record(title, "plans", "choice, shapes seen before", "s", max(gap, 0.0)),
        record(title, "plans", "choice, new shapes (four plans)", "s", guard),
    ]


def run(arguments: Sequence[str]) -> int:
    """Measure programs with plans for shapes beside the same with one dynamic plan."""
    parser = Parser(SUITE)
    parser.add_argument("--trace", type=Path, help="a CSV file of calls, perhaps .gz")
    parser.add_argument("--column", default="ContextTokens", help="its column of sizes")
    bench, known = parse(SUITE, run.__doc__ or "", ROUNDS, arguments, parser)
    return _run(bench, known)


def _run(bench: Any, known: argparse.Namespace) -> int:
    from tempfile import TemporaryDirectory

    sizes = sizes_of(known.trace, known.column)
    found = []
    with TemporaryDirectory() as folder:
        for case in cases()[:1] if bench.quick else cases():
            found += _measure(case, sizes, bench.rounds, Path(folder))
    found += _choice(2 if bench.quick else _BATCHES)
    bench.store(found, device="local-sync", trace="none" if known.trace is None else "public")
    return 0
