"""Measuring processes: fresh ones that run compiled programs, and tell what they find line by line.

    outcome = run_job(job, folder, timeout_seconds)

A process ends with its parent, however that ends. It does the job in a file of JSON, imports only
what running needs, and writes lines of JSON. Before each candidate's turn it sends which one it is
about to run, so that its parent knows whose fault a crash or an endless loop is.

    {"at": 0}                                       about to run candidate 0
    {"results": 0, "peak_bytes": 4096}              its results lie in files (kind ``check``)
    {"failed": 0, "reason": "..."}                  it refused to load or to run
    {"nothing": 2e-6, "nothing_cpu": 2e-6}          a call of the program that does nothing
    {"times": 0, "calls": 8, "wall": [...], "cpu": [...]}
    {"done": 12.5}                                  the end, with the CPU seconds of the process
"""

import gc
import json
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.artifact.artifact import read
from pyc_mlir.artifact.signature import flat
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES, dtype_name
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.lab.evidence.rows import COLD, CONSTANTS, WARM
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.util.children import Child, python_command

CHECK, TIME = "check", "time"
ALLOCATOR = "recycling"
_BOOT = "from pyc_mlir.lab.sessions.processes import main; main(sys.argv[1], int(sys.argv[2]))"
_OUTPUT_CHARACTERS = 300
# A process that crashes may take a while to be gone.
_END_SECONDS = 20.0
_TIMEOUT: dict[str, Any] = {"timeout": True}
_MOST_CALLS = 1 << 20
# Calls of the program that does nothing in one sample.
_MANY = 50
Send = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class SessionPlan:
    """How a session is done.

    rounds: samples of each candidate in each process. processes: fresh ones, one after the other.
    constants: ``warm`` (as they are after the last call) or ``cold`` (caches are flushed before
    each call). threads: of the program; 1 runs in the caller's thread. warmup: calls before those
    that count. min_seconds: a warm sample is as many calls as last so long. seed: of data and
    orders. timeout_seconds: for the compile, and for each process. quiet: a machine that is loaded
    or throttled refuses the session (MACHINE_BUSY); else the measurement records it.

    Raises PycError (BAD_ARGUMENT) for numbers that are no plan.
    """

    rounds: int = 15
    processes: int = 3
    constants: str = WARM
    threads: int = 1
    warmup: int = 3
    min_seconds: float = 1e-3
    seed: int = 0
    timeout_seconds: float = 120.0
    quiet: bool = False

    @property
    def device(self) -> str:
        """The kind of the device that programs run on: one thread is the caller's."""
        return "local-sync" if self.threads == 1 else "local"

    def __post_init__(self) -> None:
        least = min(self.rounds, self.processes, self.threads)
        if least < 1 or self.warmup < 0 or self.timeout_seconds <= 0 or self.min_seconds < 0:
            got = f"{self.rounds}, {self.processes}, {self.threads}, {self.timeout_seconds}"
            expected = "one round, process, thread and some seconds at least"
        elif self.constants not in CONSTANTS:
            expected, got = f"constants {' or '.join(CONSTANTS)}", repr(self.constants)
        else:
            return
        raise PycError(ReasonCode.BAD_ARGUMENT, f"measuring plan: expected {expected}, got {got}")


@dataclass(frozen=True)
class StoredArray:
    """An argument of a call: its bytes in a file, which has no name for every type."""

    path: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class MeasureJob:
    """The task of a process: run each candidate once (`CHECK`), or time them in rounds (`TIME`).

    candidates: paths of artifacts. arguments: of every call. plan: how the session is done; seed:
    of this process. flush_bytes: of memory that is written before each call with cold constants.
    calls: of a sample of each candidate; none: as many as last the plan's `min_seconds`. nothing:
    path of an artifact that does next to nothing with the arguments `scalar`: what a call costs by
    itself; empty for none.
    """

    kind: str
    candidates: tuple[str, ...]
    arguments: tuple[StoredArray, ...]
    plan: SessionPlan = field(default_factory=SessionPlan)
    seed: int = 0
    flush_bytes: int = 0
    calls: tuple[int, ...] = ()
    nothing: str = ""
    scalar: tuple[StoredArray, ...] = ()


@dataclass(frozen=True)
class ProcessOutcome:
    """The messages of a process, and how it ended.

    messages: see the module. failed: the number of the candidate during which it ended before its
    job was done, -1 before the first one, None where it was done. timed_out: this process ended it.
    """

    messages: tuple[dict[str, Any], ...]
    failed: int | None = None
    timed_out: bool = False
    reason: str = ""

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the process; 0 if it ended before it reported it."""
        return float(next((m["done"] for m in self.messages if "done" in m), 0.0))


def stored(
    arrays: Sequence[np.ndarray], folder: Path, name: str = "argument"
) -> tuple[StoredArray, ...]:
    """Write arguments as files; return their description for a job."""
    made = []
    for number, array in enumerate(arrays):
        path = folder / f"{name}{number}.bin"
        write_file(path, np.ascontiguousarray(array).tobytes())
        made.append(StoredArray(str(path), dtype_name(array.dtype), array.shape))
    return tuple(made)


def run_job(job: MeasureJob, folder: Path, timeout_seconds: float) -> ProcessOutcome:
    """Do a job in a fresh process.

    timeout_seconds: the longest time without a message before the process is ended.
    """
    path = folder / "job.json"
    write_file(path, json.dumps(to_data(job)).encode())
    reading, writing = os.pipe()
    command = python_command(_BOOT, str(path), str(writing))
    with tempfile.TemporaryFile() as output:
        child = Child(command, stdout=output, stderr=output, pass_fds=(writing,))
        os.close(writing)
        messages: tuple[dict[str, Any], ...] = ()
        try:
            messages = tuple(_messages(reading, timeout_seconds))
        finally:
            os.close(reading)
            timed_out = messages[-1:] == (_TIMEOUT,)
            # It sent its last message.
            child.wait(0.0 if timed_out else _END_SECONDS)
        output.seek(0)
        words = output.read().decode(errors="replace").strip()[-_OUTPUT_CHARACTERS:]
    if any("done" in m for m in messages):
        return ProcessOutcome(messages)
    at, status = (
        next((m["at"] for m in reversed(messages) if "at" in m), -1),
        child.process.returncode,
    )
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    reason = "it sent no message for too long" if timed_out else f"the process ended by {how}"
    return ProcessOutcome(messages, at, timed_out, f"{reason}: {words}" if words else reason)


def _messages(reading: int, timeout_seconds: float) -> Iterator[dict[str, Any]]:
    """Lines until the pipe is closed; `_TIMEOUT` last if none came for so long."""
    left = b""
    end = time.monotonic() + timeout_seconds
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            yield _TIMEOUT
            return
        read = os.read(reading, 1 << 16)
        if not read:
            return
        end = time.monotonic() + timeout_seconds
        *lines, left = (left + read).split(b"\n")
        yield from map(json.loads, lines)


# The child's side.


def main(path: str, out: int) -> None:
    """Do the job in a file, and write messages to a file descriptor."""
    job = from_data(MeasureJob, json.loads(read_file(path)))

    def send(message: Mapping[str, Any]) -> None:
        os.write(out, f"{json.dumps(message)}\n".encode())

    (_check if job.kind == CHECK else _time)(job, send)
    send({"done": time.process_time()})


def _check(job: MeasureJob, send: Send) -> None:
    """Run each candidate once and keep its results."""
    for number, path in enumerate(job.candidates):
        send({"at": number})
        # A device of its own counts this candidate's memory alone.
        device = _device(job.plan)
        with _reporting_failure(number, send):
            program = Program(read(path), device)
            arguments = _arguments(job.arguments, device)
            before = device.memory().live_bytes
            results = flat(program(*arguments))
            peak = device.memory().peak_bytes - before
            for place, result in enumerate(results):
                # The parent knows the types: bf16 has no name in .npy files.
                write_file(f"{path}.{place}", np.ascontiguousarray(result.numpy()).tobytes())
            send({"results": number, "peak_bytes": max(0, peak)})


def _time(job: MeasureJob, send: Send) -> None:
    """Time the candidates in rounds, each round in an order drawn anew."""
    device = _device(job.plan)
    arguments = _arguments(job.arguments, device)
    nothing: Callable[[], object] = lambda: None  # noqa: E731
    if job.nothing:
        nothing = partial(Program(read(job.nothing), device), *_arguments(job.scalar, device))
        nothing()
    cold = job.plan.constants == COLD
    flush = np.zeros(job.flush_bytes // 8 if cold else 0, np.int64)
    ready: dict[int, tuple[Callable[[], object], int]] = {}
    for number, path in enumerate(job.candidates):
        send({"at": number})
        with _reporting_failure(number, send):
            run = partial(Program(read(path), device), *arguments)
            for _ in range(job.plan.warmup):
                run()
            seconds = 0.0 if cold else job.plan.min_seconds
            fixed = job.calls[number] if job.calls else 0
            by_cpu = device.kind == "local-sync"
            ready[number] = (run, fixed or _calls_needed(run, seconds, by_cpu))
    times: dict[int, tuple[list[float], list[float]]] = {n: ([], []) for n in ready}
    order, draw = list(ready), Random(job.seed)
    gc.collect()
    gc.disable()
    for _ in range(job.plan.rounds):
        draw.shuffle(order)
        for number in order:
            send({"at": number})
            run, calls = ready[number]
            if cold:
                _flush(flush, arguments)
                _sample(nothing, 1)
            else:
                # What the candidate before left in the caches is gone after one call.
                run()
            wall, cpu = _sample(run, calls)
            times[number][0].append(wall)
            times[number][1].append(cpu)
    if job.nothing:
        wall, cpu = np.median([_sample(nothing, _MANY) for _ in range(job.plan.rounds)], axis=0)
        send({"nothing": wall / _MANY, "nothing_cpu": cpu / _MANY})
    for number, (wall, cpu) in times.items():
        send({"times": number, "calls": ready[number][1], "wall": wall, "cpu": cpu})


def _device(plan: SessionPlan) -> Device:
    return Device(plan.device, None if plan.threads == 1 else plan.threads, ALLOCATOR)


def _arguments(arrays: Sequence[StoredArray], device: Device) -> list[Array]:
    return [
        to_device(np.frombuffer(read_file(a.path), DTYPES[a.dtype]).reshape(a.shape), device)
        for a in arrays
    ]


@contextmanager
def _reporting_failure(number: int, send: Send) -> Iterator[None]:
    """Report what PyC refuses as the candidate's failure, and go on."""
    try:
        yield
    except (PycError, MemoryError) as error:
        send({"failed": number, "reason": str(error) or "out of memory"})


def _sample(run: Callable[[], object], calls: int) -> tuple[float, float]:
    """Measure the seconds of so many calls, by the wall clock and of this thread."""
    cpu, wall = time.thread_time(), time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - wall, time.thread_time() - cpu


def _calls_needed(run: Callable[[], object], seconds: float, by_cpu: bool) -> int:
    """Return how many calls last so long; doubled as ``timeit`` does.

    by_cpu: the program runs in this thread, whose CPU time no other process adds to.
    """
    calls = 1
    while calls < _MOST_CALLS and _sample(run, calls)[by_cpu] < seconds:
        calls *= 2
    return calls


def _flush(memory: np.ndarray, arguments: Sequence[Array]) -> None:
    """Read and write memory of twice the last cache, then read the arguments.

    In a program a kernel's inputs were just made by the one before; its constants were not. What a
    call needs of Python and of IREE's runtime is there too: the caller calls a program that does
    nothing next.
    """
    memory += 1
    for array in arguments:
        array.numpy().reshape(-1).view(np.uint8).max(initial=0)
