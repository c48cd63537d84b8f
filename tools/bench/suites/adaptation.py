"""The suites `dynamic` and `tail`: plans for shapes, and a selector under a changing load.

`dynamic`: programs with plans for shapes beside the same program with one plan. Calls have the
shapes of a public trace (`--trace`, a column of sizes; else sizes drawn from a log-normal
distribution with a fixed seed), scaled to each program's range. Both programs are called in turn on
the same inputs; each size's time is the median of its rounds, in seconds of the calling thread,
which computes alone on `local-sync`. `choice` is what the guard costs: a call of a program with
plans whose plan is its general code, above one without.

`tail`: how the slowest calls of a program drift. A script changes the load of ten windows:
processes that only compute are started and ended, and memory is said to be short for a while. Two
programs of the same code are called in turn in each window, one as its owner left it, one with a
selector among its modes and the same code on one thread. `drift` is the 99th percentile of the last
window over that of the first.
"""

import gzip
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from pyc_mlir import TensorSpec, compile, nn
from pyc_mlir.measure.interleave import interleave
from pyc_mlir.measure.records import Record, record
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.runtime.selection.selector import Selector
from pyc_mlir.service.targets import quantile
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, option, suite

_SIZES, _PLANS = 40, 4
_TINY, _BATCHES, _BATCH_SECONDS = 4, 15, 0.02
_ONE, _SEVERAL = "one plan", "plans"


@dataclass(frozen=True)
class Case:
    """A program with one dynamic dimension `n` of a range."""

    name: str
    function: Callable[..., Any]
    spec: TensorSpec
    low: int
    high: int


def cases() -> list[Case]:
    """Return softmax over lengths, a convolution, few-row products, an encoder, a decoder step."""

    def drawn(*shape: int) -> np.ndarray:
        return (np.random.default_rng(0).normal(size=shape) / 16).astype(np.float32)

    w, w1, w2, k = drawn(256, 256), drawn(256, 1024), drawn(1024, 256), drawn(32, 16, 3, 3)
    cache = drawn(64, 256)

    def encoder(x: Any) -> Any:
        q, keys, v = x @ w, x @ w, x @ w
        a = nn.softmax(q @ keys.transpose(0, 2, 1)) @ v
        return a + np.maximum(a @ w1, 0) @ w2

    def decoder(x: Any) -> Any:
        a = nn.softmax((x @ w) @ cache.T) @ cache
        return a + np.maximum(a @ w1, 0) @ w2

    def rows(*dims: int) -> TensorSpec:
        return TensorSpec("f32", "n", *dims)

    return [
        Case("softmax over a length", nn.softmax, TensorSpec("f32", 64, "n"), 8, 1024),
        Case("convolution", lambda x: nn.relu(nn.conv2d(x, k)), rows(16, 28, 28), 1, 16),
        Case("few-row products", lambda x: np.maximum(x @ w1, 0) @ w2, rows(256), 1, 32),
        Case("encoder block", encoder, TensorSpec("f32", 1, "n", 256), 8, 256),
        Case("decoder step", decoder, rows(256), 1, 32),
    ]


@suite(
    "dynamic",
    15,
    option("--trace", type=Path, help="a CSV file of calls, perhaps .gz"),
    option("--column", default="ContextTokens", help="its column of sizes"),
)
def dynamic(bench: SuiteRun) -> Iterator[Record]:
    """Measure programs with plans for shapes beside the same with one dynamic plan."""
    trace = bench.options.trace
    sizes = sizes_of(trace, bench.options.column)
    bench.settings |= {"device": "local-sync", "trace": "none" if trace is None else "public"}
    with TemporaryDirectory() as folder:
        for case in cases()[:1] if bench.quick else cases():
            yield from _planned(case, sizes, bench.rounds, Path(folder))
    yield from _choice(2 if bench.quick else _BATCHES)


def sizes_of(trace: Path | None, column: str) -> np.ndarray:
    """Return sizes of calls, in their order. Raises OSError, ValueError for no such column."""
    if trace is None:
        return np.exp(np.random.default_rng(0).normal(6.5, 1.2, 4096)).round() + 1
    text = trace.read_bytes()
    lines = (gzip.decompress(text) if trace.suffix == ".gz" else text).decode().splitlines()
    at = lines[0].split(",").index(column)
    return np.array([float(line.split(",")[at]) for line in lines[1:] if line])


def scaled(sizes: np.ndarray, case: Case) -> list[int]:
    """Return the sizes in the program's range, in the same proportions."""
    share = np.clip(sizes / np.quantile(sizes, 0.99), 0, 1)
    return [max(case.low, round(float(s) * case.high)) for s in share]


def _planned(case: Case, sizes: np.ndarray, rounds: int, folder: Path) -> Iterator[Record]:
    device, calls = Device("local-sync"), scaled(sizes, case)
    trace = folder / "trace.csv"
    trace.write_text("n\n" + "\n".join(map(str, calls)) + "\n")
    options: dict[str, Any] = {"dims": {"n": (case.low, case.high)}, "device": device}
    programs, seconds = dict[str, Program](), {}
    for name, more in ((_ONE, {}), (_SEVERAL, {"plans": _PLANS, "shapes": trace})):
        began = perf_counter()
        programs[name] = compile(case.function, [case.spec], cache=False, **options, **more)
        seconds[name] = perf_counter() - began
    times: dict[str, list[float]] = {name: [] for name in programs}
    for size in np.random.default_rng(1).choice(calls, _SIZES):
        shape = [d if isinstance(d, int) else int(size) for d in case.spec.dims]
        x = to_device(np.random.default_rng(0).normal(size=shape).astype(np.float32), device)
        calls_of = {name: partial(program, x) for name, program in programs.items()}
        found = interleave(calls_of, rounds, warmup=1, clock=thread_time)
        for name, timing in found.items():
            times[name].append(timing.median)
    p95 = {name: quantile(sorted(of), 0.95) for name, of in times.items()}
    each = [a / b for a, b in zip(*times.values(), strict=True)]
    kept = programs[_SEVERAL].shape_plans
    note(f"{case.name}: p95 {p95}, {median(each):.2f} times in the median, plans {kept}")
    for name, program in programs.items():
        yield record(case.name, name, "p95", "s", p95[name])
        yield record(case.name, name, "compile", "s", seconds[name])
        yield record(case.name, name, "file", "B", float(len(program.artifact.vmfb)))
    yield record(case.name, _SEVERAL, "p95 gain", "x", p95[_ONE] / p95[_SEVERAL])
    yield record(case.name, _SEVERAL, "least gain of a size", "x", min(each))
    yield record(case.name, _SEVERAL, "made", "plans", float(len(kept)))


def _choice(rounds: int) -> Iterator[Record]:
    """Measure a call of shapes that were seen, with plans and without, by the same code."""
    device = Device("local-sync")
    x = to_device(np.ones((_TINY,), np.float32), device)
    spec, programs = [TensorSpec("f32", "n")], {}
    for name, plans in ((_ONE, ""), (_SEVERAL, "n=64;n=65:128;n=256;n=512")):
        programs[name] = compile(lambda a: a + 1, spec, plans=plans, device=device, cache=False)
    timings = interleave(
        {name: partial(program, x) for name, program in programs.items()},
        rounds, min_seconds=_BATCH_SECONDS, clock=thread_time,
    )  # fmt: skip
    found = {name: timing.median for name, timing in timings.items()}
    mode = programs[_SEVERAL]._plans.current
    guard = interleave(
        {"": partial(mode.serving, (x,))}, rounds, min_seconds=_BATCH_SECONDS, clock=thread_time
    )[""].median
    gap = found[_SEVERAL] - found[_ONE]
    note(f"choice: {gap * 1e6:.3f} us for shapes that were seen, {guard * 1e6:.3f} us for new ones")
    title = f"add of {_TINY} elements"
    yield from (record(title, name, "call", "s", seconds) for name, seconds in found.items())
    yield record(title, _SEVERAL, "choice, shapes seen before", "s", max(gap, 0.0))
    yield record(title, _SEVERAL, "choice, new shapes (four plans)", "s", guard)


# Of each window: processes that compute beside, and whether memory is short.
SCRIPT = ((0, False), (0, False), (1, False), (2, False), (2, True)) + ((4, False),) * 5
PLAIN, ADAPTED = "owner's plan", "selector"
_WIDTH, _ROWS = 128, 32


@suite(
    "tail",
    2,
    option("--seconds", type=float, default=6.0, help="of each of the ten windows"),
)
def tail(bench: SuiteRun) -> Iterator[Record]:
    """Measure the drift of the slowest calls under a changing load, with a selector and without."""
    title, length = "four chains of products, load made by a script", bench.options.seconds
    bench.settings |= {"device": "local, 2 threads", "windows": len(SCRIPT)}
    bench.settings["seconds"] = length
    drifts: dict[str, list[float]] = {PLAIN: [], ADAPTED: []}
    for number in range(1 if bench.quick else bench.rounds):
        tails, calls = _scripted(0.5 if bench.quick else length)
        for name, seconds in tails.items():
            drifts[name].append(seconds[-1] / seconds[0])
            shown = ", ".join(f"{s * 1e6:.0f}" for s in seconds)
            note(f"run {number + 1}, {name}: drift {drifts[name][-1]:.2f}; us by window: {shown}")
            yield record(title, name, "p99 of the first window", "s", seconds[0])
            yield record(title, name, "p99 of the last window", "s", seconds[-1])
        note(f"run {number + 1}: calls by arm {calls}")
    for name, values in drifts.items():
        yield record(title, name, "drift", "x", float(np.median(values)))


def _scripted(seconds: float) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Run the script once; return each program's percentile by window, and the calls by arm."""
    device, tight = Device("local", threads=2), [False]
    artifact = _chains(device).artifact
    programs = {name: Program(artifact, device) for name in (PLAIN, ADAPTED)}
    selector = Selector(pressure=lambda: tight[0])
    one = Program(artifact, Device("local-sync"))
    programs[ADAPTED].adapt(selector, builds={"one thread": one})
    x = to_device(np.ones((_ROWS, _WIDTH), np.float32), device)
    _window(programs, x, seconds / 2)
    tails: dict[str, list[float]] = {name: [] for name in programs}
    hogs: list[subprocess.Popen[bytes]] = []
    try:
        for count, tight[0] in SCRIPT:
            while len(hogs) < count:
                hogs.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            while len(hogs) > count:
                hogs.pop().kill()
            for name, times in _window(programs, x, seconds).items():
                tails[name].append(quantile(times, 0.99))
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    (route,) = programs[ADAPTED].stats().routes
    for event in selector.events():
        note(str(event))
    return tails, dict(route.calls)


def _chains(device: Device) -> Program:
    """Four chains of products side by side, which a plan may overlap on two threads."""
    draws = np.random.default_rng(0)
    weights = [draws.normal(size=(_WIDTH, _WIDTH)).astype(np.float32) / 16 for _ in range(4)]

    def chains(x: Any) -> Any:
        return sum(np.tanh(np.tanh(x @ w) @ w.T) @ w for w in weights)

    x = np.ones((_ROWS, _WIDTH), np.float32)
    modes: dict[str, Any] = {"planner_mode": "latency_first", "also_modes": ["memory_first"]}
    return compile(chains, [x], device=device, cache=False, **modes)


def _window(programs: dict[str, Program], x: Any, seconds: float) -> dict[str, list[float]]:
    """Call the programs in turn for so long; return the seconds of each one's calls, sorted."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    end = perf_counter() + seconds
    while perf_counter() < end:
        for name, program in programs.items():
            began = perf_counter()
            program(x)
            found[name].append(perf_counter() - began)
    return {name: sorted(times) for name, times in found.items()}
