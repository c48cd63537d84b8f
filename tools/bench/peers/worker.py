"""One system on one workload with one number of threads, in a process of its own.

    python -m pyc_mlir.tools.bench.peers.worker '{"name": ..., "folder": ..., ...}'

The argument is a `SystemTask` as JSON. The process prepares the system, says on stdout what that
took (one line of JSON), and then, for each line ``N`` on stdin, times N calls in a loop and prints
their seconds. The end of stdin ends it. So that many systems stay warm side by side while one of
them is asked. What libraries print goes to stderr.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import repeat
from pathlib import Path
from typing import IO, Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.tools.bench.peers.prepared import (
    Named,
    PreparedWorkload,
    Spent,
    choose,
    relative_error,
)
from pyc_mlir.tools.bench.peers.systems import System, SystemTask, read_arrays

MISSING = "missing"
FAILED = "failed"
_TRIAL_ROUNDS = 5
_TRIAL_SHARE = 0.4
_REASON_CHARACTERS = 300


@dataclass(frozen=True)
class Ready:
    """A system that waits to be asked.

    `cold_start_seconds`: from the program to its first results, imports excluded, in the first
    setting; `compile_seconds` of it until it could be called (of plain IREE the compile alone),
    `compile_cpu_seconds` of all threads and children. Bytes are the peak of resident memory until
    the first results, what was resident before the cold start (the interpreter, the imports and a
    module's weights) and after it, and how much the first call raised the peak above what was
    resident (None where the system does not let the peak be reset). `call_peak_bytes` is the
    system's own account of a call, `account` that of the whole program by purpose, if it has one,
    `prediction` what the program says of its time.
    """

    setting: str
    tried: dict[str, float]
    max_error: float
    calls: int
    cold_start_seconds: float
    compile_seconds: float
    compile_cpu_seconds: float
    peak_resident_bytes: int
    resident_before_bytes: int
    resident_bytes: int
    first_call_bytes: int | None
    call_peak_bytes: int | None
    account: dict[str, int | None] | None = None
    prediction: str = ""


def environment(threads: int, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that libraries read when they are loaded: the number of threads, by all
    its names.
    """
    count = str(threads)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")
    return {**base, **dict.fromkeys(names, count), "JAX_PLATFORMS": "cpu"}


def hold_to(threads: int) -> None:
    """Keep this process on that many cores: XLA takes its number of threads from them."""
    cores: Iterator[int] = iter(sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, {core for core, _ in zip(cores, range(threads), strict=False)})


def main(task: SystemTask) -> None:
    """Prepare, report, and answer until stdin ends."""
    hold_to(task.threads)
    answers = _own_stdout()
    system: System = import_module(task.module).SUITES[task.suite][task.system]
    try:
        for module in system.imports:
            import_module(module)
    except ModuleNotFoundError as error:
        return _say(answers, {MISSING: str(error.name)})
    try:
        call, ready = prepare(system, task)
    except Exception as error:  # noqa: BLE001  (the boundary of a process: the reason is kept)
        return _say(answers, {FAILED: f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS]})
    _say(answers, asdict(ready))
    for line in sys.stdin:
        _say(answers, _seconds(call, int(line)))


def prepare(system: System, task: SystemTask) -> tuple[Callable[[], object], Ready]:
    """Measure the cold start and every setting's error; return the quickest. Errors propagate."""
    inputs = task.inputs()
    left = system.settings(task, inputs)
    name, first, start = _cold_start(left)
    settings = {name: first, **dict(left)}
    expected = read_arrays(task.folder / "expected.npz")
    errors = [relative_error([*map(np.asarray, p.results())], expected) for p in settings.values()]
    rest = system.rest if task.min_seconds and task.threads > 1 else 0.0
    trial = min(task.rounds, _TRIAL_ROUNDS), task.min_seconds * _TRIAL_SHARE
    chosen = choose(settings, *trial, rest)
    prepared = chosen.prepared
    return prepared.call, Ready(
        setting=chosen.setting,
        tried=dict(chosen.tried),
        max_error=max(errors),
        calls=_calls(prepared.call, task.min_seconds),
        call_peak_bytes=None if prepared.peak_bytes is None else prepared.peak_bytes(),
        account=None if prepared.account is None else dict(prepared.account),
        prediction=prepared.prediction,
        **start,
    )


def _cold_start(left: Named) -> tuple[str, PreparedWorkload, dict[str, Any]]:
    """Call the first setting once; return it with the fields of `Ready` that this gives.

    Raises PycError (TARGET_COMPILE_FAILED) if there is none.
    """
    before = _resident_bytes("VmRSS")
    _reset_peak()  # it counts from here, or where that is forbidden from the start
    start = Spent.so_far()
    name, first = next(left, ("", None))
    if first is None:
        raise PycError(
            ReasonCode.TARGET_COMPILE_FAILED, "expected a setting that compiles, got none"
        )
    ready = Spent.so_far().since(start)
    compiled = first.compiled or ready
    compile_peak = _resident_bytes("VmHWM")
    _give_back()  # else the call would take what the compile left
    loaded = _resident_bytes("VmRSS")
    alone = _reset_peak()
    called = time.perf_counter()
    first.call()
    cold = ready.seconds + time.perf_counter() - called
    call_peak = _resident_bytes("VmHWM")
    fields = {
        "cold_start_seconds": cold,
        "compile_seconds": compiled.seconds,
        "compile_cpu_seconds": compiled.cpu_seconds,
        "peak_resident_bytes": max(compile_peak, call_peak),
        "resident_before_bytes": before,
        "resident_bytes": _resident_bytes("VmRSS"),
        "first_call_bytes": max(call_peak - loaded, 0) if alone else None,
    }
    return name, first, fields


def _reset_peak() -> bool:
    """Let the peak of resident memory count from now on; False where that is forbidden."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _give_back() -> None:
    """Return memory that the C library keeps for later to the system, where it can (glibc)."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _calls(call: Callable[[], object], min_seconds: float) -> int:
    """Double the number of calls until they last `min_seconds`."""
    calls = 1
    while min_seconds and _seconds(call, calls) < min_seconds:
        calls *= 2
    return calls


def _seconds(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in repeat(None, calls):
        call()
    return time.perf_counter() - start


def _resident_bytes(field: str) -> int:
    """Return a field of this process's memory: ``VmRSS`` (now) or ``VmHWM`` (its peak)."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(line[1]) * 1024 for line in lines if line[0] == f"{field}:")


def _own_stdout() -> IO[str]:
    """Keep stdout for answers alone: other output goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _say(answers: IO[str], what: Any) -> None:
    print(json.dumps(what), file=answers, flush=True)


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    main(SystemTask(**{**told, "folder": Path(told["folder"])}))
