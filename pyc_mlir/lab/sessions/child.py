"""A measuring process: loads compiled programs, runs them, writes what it finds line by line.

`main(path, fd)` does the job in a file of JSON (`Job` in processes.py); lines of JSON go to the
file descriptor. The process imports only what running needs. Before each candidate's turn it sends
which one it is about to run, so that its parent knows whose fault a crash or an endless loop is.

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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.artifact.artifact import read
from pyc_mlir.artifact.signature import flat
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program

_MOST_CALLS = 1 << 20
# Calls of the program that does nothing in one sample.
_MANY = 50
Send = Callable[[Mapping[str, Any]], None]


def main(path: str, out: int) -> None:
    """Do the job in a file, and write messages to a file descriptor."""
    job = json.loads(read_file(path))

    def send(message: Mapping[str, Any]) -> None:
        os.write(out, f"{json.dumps(message)}\n".encode())

    (_check if job["kind"] == "check" else _time)(job, send)
    send({"done": time.process_time()})


def _check(job: Mapping[str, Any], send: Send) -> None:
    """Run each candidate once and keep its results."""
    for number, path in enumerate(job["candidates"]):
        send({"at": number})
        # A device of its own counts this candidate's memory alone.
        device = _device(job)
        with _reporting_failure(number, send):
            program = Program(read(path), device)
            arguments = _arguments(job["arguments"], device)
            before = device.memory().live_bytes
            results = flat(program(*arguments))
            peak = device.memory().peak_bytes - before
            for place, result in enumerate(results):
                # The parent knows the types: bf16 has no name in .npy files.
                write_file(f"{path}.{place}", np.ascontiguousarray(result.numpy()).tobytes())
            send({"results": number, "peak_bytes": max(0, peak)})


def _time(job: Mapping[str, Any], send: Send) -> None:
    """Time the candidates in rounds, each round in an order drawn anew."""
    device = _device(job)
    arguments = _arguments(job["arguments"], device)
    nothing = _nothing(job, device)
    cold = job["constants"] == "cold"
    flush = np.zeros(job["flush_bytes"] // 8 if cold else 0, np.int64)
    ready: dict[int, tuple[Callable[[], object], int]] = {}
    for number, path in enumerate(job["candidates"]):
        send({"at": number})
        with _reporting_failure(number, send):
            program = Program(read(path), device)
            run = _bound(program, arguments)
            for _ in range(job["warmup"]):
                run()
            seconds = 0.0 if cold else job["min_seconds"]
            fixed = job["calls"][number] if job["calls"] else 0
            by_cpu = device.kind == "local-sync"
            ready[number] = (run, fixed or _calls_needed(run, seconds, by_cpu))
    times: dict[int, tuple[list[float], list[float]]] = {n: ([], []) for n in ready}
    order, draw = list(ready), Random(job["seed"])
    gc.collect()
    gc.disable()
    for _ in range(job["rounds"]):
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
    if job["nothing"]:
        wall, cpu = np.median([_sample(nothing, _MANY) for _ in range(job["rounds"])], axis=0)
        send({"nothing": wall / _MANY, "nothing_cpu": cpu / _MANY})
    for number, (wall, cpu) in times.items():
        send({"times": number, "calls": ready[number][1], "wall": wall, "cpu": cpu})


def _device(job: Mapping[str, Any]) -> Device:
    given = job["device"]
    threads = None if given["kind"] == "local-sync" else given["threads"]
    return Device(given["kind"], threads, given["allocator"])


def _nothing(job: Mapping[str, Any], device: Device) -> Callable[[], object]:
    """Return a call of the program that does nothing; of nothing at all without one."""
    if not job["nothing"]:
        return lambda: None
    run = _bound(Program(read(job["nothing"]), device), _arguments(job["scalar"], device))
    run()
    return run


def _arguments(stored: Sequence[Mapping[str, Any]], device: Device) -> list[Array]:
    made = []
    for one in stored:
        raw = read_file(one["path"])
        array = np.frombuffer(raw, DTYPES[one["dtype"]]).reshape(one["shape"])
        made.append(to_device(array, device))
    return made


def _bound(program: Program, arguments: Sequence[Array]) -> Callable[[], object]:
    def run() -> object:
        return program(*arguments)

    return run


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
