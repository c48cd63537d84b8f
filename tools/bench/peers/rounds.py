"""Time the systems on one workload: processes side by side, asked in rounds.

In: a `BenchWorkload` and the systems' names. Out: for each system its `Ready` and a `Timing`, or
the reason why it has none. Every system is warm and waits while one of them is asked for a batch of
calls; each round asks all of them, in an order drawn anew.
"""

import argparse
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.calibrate import Peaks, in_own_process
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.measure.interleave import Timing
from pyc_mlir.measure.processes import environment
from pyc_mlir.measure.records import Record, record
from pyc_mlir.tools.bench.peers import worker
from pyc_mlir.tools.bench.peers.candidates import plain_options
from pyc_mlir.tools.bench.peers.graph import LeastWork, PeerGraph, count_work, read_graph
from pyc_mlir.tools.bench.peers.onnx_model import onnx_model
from pyc_mlir.tools.bench.peers.prepared import REST_SECONDS
from pyc_mlir.tools.bench.peers.worker import FAILED, MISSING, Ready
from pyc_mlir.tools.bench.peers.workload import BenchWorkload
from pyc_mlir.tools.bench.report.suite import SuiteRun, note
from pyc_mlir.util.children import Child

# Libraries tear down their threads; one that hangs is ended.
_END_SECONDS = 20


@dataclass(frozen=True)
class RoundSettings:
    """How to measure: rounds, seconds that a sample lasts at least, threads, sizes.

    `systems` is the module whose table `SYSTEMS` says how each system runs.
    """

    rounds: int
    min_seconds: float
    threads: int
    tiny: bool
    environ: Mapping[str, str]
    systems: str
    seed: int = 0


@dataclass(frozen=True)
class SystemRounds:
    """Systems that ran, and those that did not, with the reason."""

    ready: Mapping[str, Ready]
    timings: Mapping[str, Timing]
    missing: Mapping[str, str]
    failed: Mapping[str, str]


def store(workload: BenchWorkload, folder: Path) -> LeastWork:
    """Write what the processes are given; what the program does at least. Raises PycError."""
    graph = specialized(workload)
    np.savez(folder / "inputs.npz", *workload.inputs)
    np.savez(folder / "expected.npz", *workload.expected)
    store_graph(graph, folder)
    store_linalg(workload.source, workload.specs, folder)
    try:
        (folder / "model.onnx").write_bytes(onnx_model(graph))
    except ModuleNotFoundError as error:
        note(f"no ONNX models without the package `{error.name}`")
    return count_work(graph, workload.inputs)


def store_graph(graph: PeerGraph, folder: Path) -> None:
    """Write what torch and jax build their programs of."""
    (folder / "graph").write_bytes(pickle.dumps(graph))


def store_linalg(source: Any, specs: Sequence[Any], folder: Path) -> None:
    """Write what plain IREE compiles. Raises PycError as the front ends do."""
    lowered = lower(Job.of(source, specs, plain_options()))
    (folder / "linalg").write_bytes(pickle.dumps(lowered))


def specialized(workload: BenchWorkload) -> PeerGraph:
    """Return the program at the sizes of its inputs, unless it is compiled for dynamic ones."""
    graph = read_graph(workload.source, workload.specs)
    if workload.types is not None:
        return graph
    types = tuple(TensorType(a.shape, a.dtype) for a in workload.inputs)
    return replace(graph, arguments=types)


def measure(
    workload: BenchWorkload, key: str, systems: Sequence[str], how: RoundSettings
) -> tuple[LeastWork, SystemRounds]:
    """Time the systems on a workload. Raises PycError."""
    with tempfile.TemporaryDirectory(prefix="pyc-bench-") as name:
        work = store(workload, Path(name))
        return work, compare(key, Path(name), systems, how, workload.tolerance)


def compare(
    key: str, folder: Path, systems: Sequence[str], how: RoundSettings, tolerance: float
) -> SystemRounds:
    """Prepare the systems one after another on what lies in `folder`, then time them in rounds.

    A system whose error is above `tolerance` has failed. Raises PycError where one dies later.
    """
    with ExitStack() as stack:
        started: dict[str, PeerProcess] = {}
        missing: dict[str, str] = {}
        failed: dict[str, str] = {}
        for system in systems:
            worker = stack.enter_context(PeerProcess(system, key, folder, how))
            answer = worker.answer()
            if MISSING in answer:
                missing[system] = f"the package `{answer[MISSING]}` is not installed"
            elif FAILED in answer or _wrong(answer, tolerance):
                failed[system] = answer.get(FAILED) or f"an error of {answer['max_error']:.2g}"
            else:
                worker.ready = Ready(**answer)
                started[system] = worker
                continue
            worker.close()
            note(f"{key}: left out: {system}: {missing.get(system) or failed[system]}")
        timings = _rounds(started, how)
        ready = {system: worker.ready for system, worker in started.items() if worker.ready}
        return SystemRounds(ready, timings, missing, failed)


def _wrong(answer: Mapping[str, Any], tolerance: float) -> bool:
    """Return True for wrong results: such a system has no latency."""
    return not answer["max_error"] <= tolerance


def _rounds(workers: Mapping[str, "PeerProcess"], how: RoundSettings) -> dict[str, Timing]:
    samples: dict[str, list[float]] = {name: [] for name in workers}
    order, draw = list(workers), random.Random(how.seed)
    for _ in range(how.rounds):
        draw.shuffle(order)
        for name in order:
            if how.min_seconds:
                time.sleep(REST_SECONDS)  # workers of the one before may still spin
            workers[name].ask(1)
            samples[name].append(workers[name].ask(workers[name].calls) / workers[name].calls)
    return {name: Timing(tuple(samples[name]), workers[name].calls) for name in workers}


class PeerProcess:
    """A process of `peers_worker`. As a context it ends with it."""

    def __init__(self, system: str, key: str, folder: Path, how: RoundSettings) -> None:
        command = [sys.executable, "-m", worker.__name__, how.systems, system, key]
        command += [f"--threads={how.threads}", f"--folder={folder}", f"--rounds={how.rounds}"]
        command += [f"--min-seconds={how.min_seconds}", *(["--tiny"] if how.tiny else [])]
        self.ready: Ready | None = None
        environ = environment(how.threads, how.environ)
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
            raise _died(self._process)
        return float(line)

    def close(self) -> None:
        """End the process, which waits for its next line."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._child.wait(_END_SECONDS)


def _died(process: "subprocess.Popen[str]") -> PycError:
    return PycError(
        ReasonCode.RUNTIME_FAILED,
        f"{process.args}: expected an answer, got the end of the process with status "
        f"{process.wait()}; its message stands above",
    )


_ITERATIONS, _QUICK_ITERATIONS = 2_000_000, 20_000
FAILURE, LEFT_OUT = "failure", "left out"
# What records take over from `Ready` as it is.
_OF_READY = (
    "setting",
    "cold_start_seconds",
    "compile_seconds",
    "compile_cpu_seconds",
    "peak_resident_bytes",
    "resident_before_bytes",
    "resident_bytes",
    "first_call_bytes",
    "call_peak_bytes",
)
_MICRO = 1e6


def counts(text: str) -> tuple[int, ...]:
    """Read positive numbers, each once. Raises ArgumentTypeError, and ValueError."""
    numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"expected numbers above 0, got {text!r}")
    return numbers


def fma_and_copies(threads: int, bench: SuiteRun) -> Peaks:
    """Measure the machine's peaks on that many threads now. Raises PycError."""
    iterations = _QUICK_ITERATIONS if bench.quick else _ITERATIONS
    found = in_own_process(threads, iterations, dict(os.environ))
    note(f"{threads} threads: {found.flops / 1e9:.0f} GFLOP/s, {found.bandwidth / 1e9:.1f} GB/s")
    return found


def records_of(
    name: str, kind: str, threads: int, work: LeastWork, found: SystemRounds, peaks: Peaks
) -> list[Record]:
    """Return one record for each system: its latency, or the reason why it has none."""
    rows = list(_records(name, threads, work, found, peaks))
    for system, reason in found.failed.items():
        rows.append(failure(name, system, threads, reason))
    for system, reason in found.missing.items():
        rows.append(failure(name, system, threads, reason, LEFT_OUT))
    return [row | {"class": kind} for row in rows]


def metric(threads: int) -> str:
    """Return the metric of a record; it tells apart records of different numbers of threads."""
    return f"latency, {threads} thread{'s' * (threads > 1)}"


def _records(
    name: str, threads: int, work: LeastWork, found: SystemRounds, peaks: Peaks
) -> Iterator[Record]:
    bound = work.seconds(peaks.flops, peaks.bandwidth)
    for system, timing in found.timings.items():
        spread, ready = timing.spread, found.ready[system]
        note(f"{name}; {threads}: {system} {spread.median * _MICRO:.1f} us ({ready.setting})")
        row = record(name, system, metric(threads), "s", spread.median, p10=spread.p10,
                     p90=spread.p90, min=spread.min, n=spread.n, calls=timing.calls,
                     samples=timing.rounded)  # fmt: skip
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


def failure(name: str, system: str, threads: int, reason: str, metric: str = FAILURE) -> Record:
    """Record why a system has no latency."""
    row = record(name, system, metric, "systems", 1, reason=reason)
    return row | {"system": system, "threads": threads}
