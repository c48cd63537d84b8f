"""Time the systems on one workload: processes side by side, asked in rounds.

In: the folder of a program and the systems' names. Out: for each system its `Ready` and a `Timing`,
or the reason why it has none, and records of these. Every system is warm and waits while one of
them is asked for a batch of calls; each round asks all of them, in an order drawn anew.
"""

import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import Ranges
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.interleave import Timing
from pyc_mlir.measure.records import Record, record
from pyc_mlir.tools.bench.peers import worker
from pyc_mlir.tools.bench.peers.candidates import plain_options
from pyc_mlir.tools.bench.peers.graph import LeastWork, PeerGraph
from pyc_mlir.tools.bench.peers.peaks import Peaks, in_own_process
from pyc_mlir.tools.bench.peers.prepared import REST_SECONDS
from pyc_mlir.tools.bench.peers.systems import COMPILED_FOR, SystemTask
from pyc_mlir.tools.bench.peers.translators import onnx_model
from pyc_mlir.tools.bench.peers.worker import FAILED, MISSING, Ready, environment
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, spread_record, threads_of
from pyc_mlir.tools.bench.report.tables import FAILURE, LEFT_OUT
from pyc_mlir.util.children import Child

# Libraries tear down their threads; one that hangs is ended.
_END_SECONDS = 20
_ITERATIONS, _QUICK_ITERATIONS = 2_000_000, 20_000
# What records take over from `Ready` as it is.
_OF_READY = (
    "setting", "cold_start_seconds", "compile_seconds", "compile_cpu_seconds",
    "peak_resident_bytes", "resident_before_bytes", "resident_bytes", "first_call_bytes",
    "call_peak_bytes",
)  # fmt: skip
_MICRO = 1e6


@dataclass(frozen=True)
class SystemRounds:
    """Systems that ran, and those that did not, with the reason."""

    ready: dict[str, Ready] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def store_arrays(folder: Path, inputs: Sequence[Any], expected: Sequence[Any]) -> None:
    """Write the arguments of the call, and what it should answer in float64."""
    np.savez(folder / "inputs.npz", *inputs)
    np.savez(folder / "expected.npz", *expected)


def store_graph(graph: PeerGraph, folder: Path) -> None:
    """Write what torch and jax build their programs of."""
    (folder / "graph").write_bytes(pickle.dumps(graph))


def store_linalg(source: Any, specs: Sequence[Any] | None, folder: Path) -> None:
    """Write what plain IREE compiles. Raises PycError as the front ends do."""
    lowered = lower(Job.of(source, specs, plain_options()))
    (folder / "linalg").write_bytes(pickle.dumps(lowered))


def store_types(
    specs: Sequence[Any] | None, ranges: Ranges | None, folder: Path, cache: Path | None = None
) -> None:
    """Write what a user's model is compiled for: the types of its inputs, ranges of dimensions.

    cache: the folder of a cache that keeps the programs.
    """
    (folder / COMPILED_FOR).write_bytes(pickle.dumps((specs, ranges, cache)))


def store(workload: Workload, folder: Path) -> tuple[LeastWork, Mapping[str, str]]:
    """Write what the processes are given, as `compared` asks for it. Raises PycError."""
    graph = workload.graph()
    store_arrays(folder, workload.arrays, workload.expected)
    store_graph(graph, folder)
    store_linalg(workload.source, workload.specs, folder)
    try:
        (folder / "model.onnx").write_bytes(onnx_model(graph))
    except ModuleNotFoundError as error:
        note(f"no ONNX models without the package `{error.name}`")
    return graph.least_work(workload.arrays), {}


def compared(
    bench: SuiteRun,
    name: str,
    kind: str,
    threads: int,
    systems: Sequence[str],
    write: Callable[[Path], tuple[LeastWork, Mapping[str, str]]],
    *,
    module: str = SystemTask.module,
    key: str = "",
    peaks: Peaks | None = None,
    tolerance: float = float("inf"),
    details: Callable[[Ready], Mapping[str, Any]] = lambda ready: {},
) -> list[Record]:
    """Time the systems on what `write` puts into a folder; return one record for each.

    write: gives the least work of the program, and the systems that cannot read it, with reasons.
    module: has the suite's table of systems. key: what the processes call the workload, else its
    `name`. peaks: of the machine, else the best of before and after. A system whose error is above
    `tolerance` has failed. Raises PycError.
    """
    before = peaks or fma_and_copies(threads, bench)
    with tempfile.TemporaryDirectory(prefix="pyc-bench-") as folder:
        work, unread = write(Path(folder))
        able = [system for system in systems if system not in unread]
        how = (bench.quick, bench.rounds, bench.min_seconds, module, bench.suite)
        task = SystemTask(key or name, Path(folder), threads, *how)
        found = measure(task, able, tolerance)
        found.failed.update(unread)
    after = peaks or fma_and_copies(threads, bench)
    best = Peaks(max(before.flops, after.flops), max(before.bandwidth, after.bandwidth))
    rows = [
        row | dict(details(found.ready[row["system"]]))
        for row in _records(name, threads, work, found, best)
    ]
    for reasons, metric in ((found.failed, FAILURE), (found.missing, LEFT_OUT)):
        rows += [absence(name, s, threads, why, metric) for s, why in reasons.items()]
    return [row | {"class": kind} for row in rows]


def account_of(rows: int, ready: Ready) -> dict[str, Any]:
    """Return the details of a program that says what it needs; `rows` are those of a batch."""
    return {"rows": rows, "account": ready.account, "prediction": ready.prediction}


def absence(name: str, system: str, threads: int, reason: str, metric: str = FAILURE) -> Record:
    """Record why a system has no latency."""
    row = record(name, system, metric, "systems", 1, reason=reason)
    return row | {"system": system, "threads": threads}


def fma_and_copies(threads: int, bench: SuiteRun) -> Peaks:
    """Measure the machine's peaks on that many threads now. Raises PycError."""
    iterations = _QUICK_ITERATIONS if bench.quick else _ITERATIONS
    found = in_own_process(threads, iterations, dict(os.environ))
    note(f"{threads} threads: {found.flops / 1e9:.0f} GFLOP/s, {found.bandwidth / 1e9:.1f} GB/s")
    return found


def measure(task: SystemTask, systems: Sequence[str], tolerance: float) -> SystemRounds:
    """Prepare the systems one after another on what lies in the folder, then time them in rounds.

    Raises PycError where one dies later.
    """
    found = SystemRounds()
    with ExitStack() as stack:
        started: dict[str, PeerProcess] = {}
        for system in systems:
            process = stack.enter_context(PeerProcess(replace(task, system=system)))
            answer = process.answer()
            if MISSING in answer:
                found.missing[system] = f"the package `{answer[MISSING]}` is not installed"
            # A wrong system has no latency.
            elif FAILED in answer or not answer["max_error"] <= tolerance:
                found.failed[system] = (
                    answer.get(FAILED) or f"an error of {answer['max_error']:.2g}"
                )
            else:
                found.ready[system] = process.ready = Ready(**answer)
                started[system] = process
                continue
            process.close()
            why = found.missing.get(system) or found.failed[system]
            note(f"{task.name}: left out: {system}: {why}")
        found.timings.update(_rounds(started, task))
    return found


def _rounds(processes: Mapping[str, "PeerProcess"], task: SystemTask) -> dict[str, Timing]:
    samples: dict[str, list[float]] = {name: [] for name in processes}
    order, draw = list(processes), random.Random(0)
    for _ in range(task.rounds):
        draw.shuffle(order)
        for name in order:
            if task.min_seconds:
                time.sleep(REST_SECONDS)  # workers of the one before may still spin
            process = processes[name]
            process.ask(1)
            samples[name].append(process.ask(process.calls) / process.calls)
    return {name: Timing(tuple(samples[name]), processes[name].calls) for name in processes}


class PeerProcess:
    """A process of `worker`. As a context it ends with it."""

    def __init__(self, task: SystemTask) -> None:
        told = json.dumps({**asdict(task), "folder": str(task.folder)})
        self.ready: Ready | None = None
        environ = environment(task.threads, dict(os.environ))
        command = [sys.executable, "-m", worker.__name__, told]
        self._child = Child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
        self._process = self._child.process

    def __enter__(self) -> "PeerProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def calls(self) -> int:
        """Calls of one sample."""
        assert self.ready is not None, "asked before it was ready"
        return self.ready.calls

    def answer(self) -> dict[str, Any]:
        """Return the process's message once it is prepared; a process that died has failed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {FAILED: f"ended with status {self._process.wait()}"}

    def ask(self, calls: int) -> float:
        """Return seconds of that many calls. Raises PycError (RUNTIME_FAILED) if it died."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(calls, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise PycError(
                ReasonCode.RUNTIME_FAILED,
                f"{self._process.args}: expected an answer, got the end of the process with status "
                f"{self._process.wait()}; its message stands above",
            )
        return float(line)

    def close(self) -> None:
        """End the process, which waits for its next line."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._child.wait(_END_SECONDS)


def _records(
    name: str, threads: int, work: LeastWork, found: SystemRounds, peaks: Peaks
) -> Iterator[Record]:
    bound = work.seconds(peaks.flops, peaks.bandwidth)
    for system, timing in found.timings.items():
        spread, ready = timing.spread, found.ready[system]
        note(f"{name}; {threads}: {system} {spread.median * _MICRO:.1f} us ({ready.setting})")
        metric = f"latency, {threads_of(threads)}"
        more = {"calls": timing.calls, "samples": timing.rounded}
        row = spread_record(name, system, metric, "s", spread, **more)
        yield row | {
            "system": system,
            "threads": threads,
            "median_seconds": spread.median,
            "p10_seconds": spread.p10,
            "p90_seconds": spread.p90,
            "max_error": ready.max_error,
            "roofline_fraction": bound / spread.median,
            "peak_flops": peaks.flops,
            "peak_bandwidth": peaks.bandwidth,
            "flops": work.flops,
            "bytes": work.bytes,
            **{field: getattr(ready, field) for field in _OF_READY},
            "tried": dict(ready.tried),
        }
