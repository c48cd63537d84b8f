"""The suite `faults`: what goes wrong around a program in service, and the code that answers it.

Each row injects one fault, calls the service during and after it, compares every answer, and looks
for its code among the errors that callers got and the events of the log. A fault that must not be
seen at all has no code.
"""

import gc
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import pyc_mlir
from pyc_mlir import Program, PycError, ReasonCode, Service, Shadow, Targets, TensorSpec
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.signature import flat
from pyc_mlir.measure.records import Record, record
from pyc_mlir.runtime.program import serving
from pyc_mlir.serve.batching import Batcher, Waiting
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, suite
from pyc_mlir.util.children import run as run_child

X = np.arange(6, dtype=np.float32).reshape(2, 3)
_SPEC = TensorSpec("f32", 2, 3)


@dataclass
class Seen:
    """The codes that callers and the log saw, and the right and wrong answers."""

    codes: set[str] = field(default_factory=set)
    right: int = 0
    wrong: int = 0

    def call(self, service: Callable[..., Any], added: Sequence[float] = (1.0,)) -> None:
        """Call and compare: the answer must be one of the sums."""
        try:
            answer = service(X)
        except PycError as error:
            self.codes.add(error.code.name)
            return
        self.answered(any(np.array_equal(answer, X + np.float32(a)) for a in added))

    def answered(self, right: bool) -> None:
        """Count an answer."""
        self.right += right
        self.wrong += not right

    def log(self, service: Service) -> None:
        """Take the codes of the log and of the health."""
        reasons = (r for e in service.log() for r in e.reasons)
        self.codes |= {r.code for r in (*reasons, *service.health().reasons)}


@dataclass(frozen=True, eq=False)
class Fault:
    """One row: its name, the code that must answer it ("" for none), and how it is made."""

    name: str
    code: str
    make: Callable[["Programs", Path], Seen]


class Programs:
    """Artifacts that answer x + 1, x + 2 and the second with another plan."""

    def __init__(self) -> None:
        self.one, self.two = (self._added(n) for n in (1.0, 2.0))

    def _added(self, number: float) -> Artifact:
        n = np.float32(number)
        return pyc_mlir.compile(lambda x: x + n, [_SPEC], also_modes=["memory_first"]).artifact


@suite("faults", 5)
def run(bench: SuiteRun) -> Iterator[Record]:
    """Inject faults around programs in service; tell the code of each, and wrong answers."""
    missed, programs = [], Programs()
    for fault in FAULTS:
        times = [_injected(fault, programs) for _ in range(bench.rounds)]
        yield from _records(fault, times)
        met = [t for t in times if is_met(fault, t)]
        missed += [fault.name] * (len(met) < len(times))
        note(f"{fault.name}: {fault.code or 'unseen'} in {len(met)} of {len(times)}: {times[-1]}")
    if missed:
        note(f"not answered as they must be: {', '.join(missed)}")
    bench.failed = bool(missed)


def is_met(fault: Fault, seen: Seen) -> bool:
    """Return whether a fault was answered by its code, and no answer was wrong."""
    return not seen.wrong and (fault.code in seen.codes if fault.code else not seen.codes)


def _injected(fault: Fault, programs: Programs) -> Seen:
    with TemporaryDirectory() as folder:
        try:
            return fault.make(programs, Path(folder))
        finally:
            gc.collect()


def _records(fault: Fault, times: Sequence[Seen]) -> Iterator[Record]:
    met = sum(is_met(fault, t) for t in times)
    named = f"{fault.name}: {fault.code or 'not seen by callers'}"
    yield record(named, "pyc", "answered so", "times", met, of=len(times))
    for what in ("right", "wrong"):
        total = sum(getattr(t, what) for t in times)
        yield record(named, "pyc", f"{what} answers", "answers", total)


@contextmanager
def _run_as(program: Program, run: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Let the code behind the guards be another function of itself and its arguments."""
    behind: Any = serving(program)
    before = behind.run
    behind.run = lambda arrays: run(before, arrays)
    try:
        yield
    finally:
        behind.run = before


def _refusing_memory(programs: Programs, folder: Path) -> Seen:
    """Refuse memory for the results of a call."""
    program, seen = Program(programs.one), Seen()

    def fail(before: Any, arrays: Any) -> Any:
        raise MemoryError("no memory for 24 bytes")

    with Service(program) as service:
        with _run_as(program, fail):
            seen.call(service)
        seen.call(service)
        seen.log(service)
    return seen


def _limited_memory(programs: Programs, folder: Path) -> Seen:
    """Limit the memory of a process to little more than it has."""
    path, seen = folder / "p.vmfb", Seen()
    spec = TensorSpec("f32", "n")
    pyc_mlir.compile(lambda x: x + 1, [spec], dims={"n": (1, 1 << 30)}).save(path)
    done = run_child([sys.executable, __file__, "limited", str(path)])
    words = done.stdout.split()
    seen.codes |= set(words[:1])
    seen.answered(words[1:] == ["right"])
    return seen


def _limited(path: str) -> None:
    """Call with 256 MiB under a limit of 64 MiB more, then with little; print code and answer."""
    program = pyc_mlir.load(path)
    program(np.zeros(4, np.float32))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    big = np.zeros(1 << 26, np.float32)
    most = used + big.nbytes + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        program(big)
        print("NONE", end=" ")
    except PycError as error:
        print(error.code.name, end=" ")
    del big
    print("right" if (program(np.zeros(4, np.float32)) == 1).all() else "wrong")


def _memory_pressure(programs: Programs, folder: Path) -> Seen:
    """Let the machine run short of memory: calls take the plan that needs less."""
    program, seen, free = Program(programs.one), Seen(), [1 << 40]
    with Service(program) as service:
        program.switch_below(1 << 20, "memory_first", lambda: free[0])
        for left in (1 << 40, 0, 1 << 40):
            free[0] = left
            seen.call(service)
        seen.log(service)
    return seen


def _dead_worker(programs: Programs, folder: Path) -> Seen:
    """End the thread of a server's worker while it answers."""
    told: dict[Any, Any] = {}
    seen, first = Seen(), [True]
    program = Program(programs.one)

    def call(x: np.ndarray) -> Any:
        if first[0]:
            first[0] = False
            raise SystemExit("a worker that dies")
        return program(x)

    batcher = Batcher(call, told.update, 1, 8, 0)
    requests = [Waiting([X], 0, None, None) for _ in range(3)]
    for waiting in requests:
        batcher.submit(waiting)
    batcher.close()
    for outcome in (told.get(w) for w in requests):
        if isinstance(outcome, PycError):
            seen.codes.add(outcome.code.name)
        else:
            seen.answered(outcome is not None and np.array_equal(flat(outcome)[0], X + 1))
    return seen


def _swapped_for(data: Callable[[bytes], bytes | None]) -> Callable[[Programs, Path], Seen]:
    """Return a fault: the file of a build is changed before it is put in place, None: removed."""

    def make(programs: Programs, folder: Path) -> Seen:
        path, seen = folder / "p.vmfb", Seen()
        Program(programs.two).save(path)
        changed = data(path.read_bytes())
        path.unlink()
        if changed is not None:
            path.write_bytes(changed)
        with Service(programs.one) as service:
            seen.call(service)
            try:
                service.swap(path)
            except PycError as error:
                seen.codes.add(error.code.name)
            seen.call(service)
            seen.answered(service.snapshot().build == 1)
        return seen

    return make


def _clock_jump(programs: Programs, folder: Path) -> Seen:
    """Set the wall clock back and forward by years while calls are judged."""
    seen, real = Seen(), time.time
    targets = Targets(p99_seconds=1.0, error_rate=0.01, window=8)
    try:
        with Service(programs.one, targets=targets, hang_seconds=5.0) as service:
            for days in (0, -3650, 3650, 0):
                time.time = lambda d=days: real() + d * 86400
                for _ in range(16):
                    seen.call(service)
            seen.answered(service.health().state == "ok")
    finally:
        time.time = real
    return seen


def _poisoned_wisdom(programs: Programs, folder: Path) -> Seen:
    """Compile with evidence that is none; the program in place answers on."""
    path, seen = folder / "wisdom.json", Seen()
    path.write_text('{"schema": 1, "rows": [{"seconds": -1e999, "kernel": "../../x"}]}')
    with Service(programs.one) as service:
        try:
            made = pyc_mlir.compile(lambda x: x + 2, [_SPEC], policy="fastest", wisdom=str(path))
            service.swap(made)
        except PycError as error:
            seen.codes.add(error.code.name)
        seen.call(service)
    return seen


def _killed_server(programs: Programs, folder: Path) -> Seen:
    """Kill a server: the next one on the same file answers, and the numbers are whole lines."""
    from pyc_mlir.tools.bench.suites.serve import served

    seen, path, lines = Seen(), folder / "p.vmfb", folder / "numbers.jsonl"
    Program(programs.one).save(path)
    for deadly in (signal.SIGKILL, signal.SIGTERM):
        with served(str(path), "--telemetry", str(lines)) as (process, port):
            seen.answered(_asked(port))
            process.send_signal(deadly)
            process.wait(30)
    for line in lines.read_text().splitlines():
        seen.answered(json.loads(line)["calls"] == 1)
    return seen


def _asked(port: int) -> bool:
    from urllib.request import Request, urlopen

    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X.ravel().tolist()}
    url = f"http://127.0.0.1:{port}/v2/models/p/infer"
    sent = Request(url, json.dumps({"inputs": [tensor]}).encode())
    with urlopen(sent, timeout=30) as reply:
        return json.load(reply)["outputs"][0]["data"] == (X + 1).ravel().tolist()


def _slow_core(programs: Programs, folder: Path) -> Seen:
    """Make the calls of a new build take long: the service returns to the build before."""
    seen, after = Seen(), Program(programs.two)
    targets = Targets(p95_seconds=0.01, window=8)
    with Service(programs.one, targets=targets) as service:
        with _run_as(after, lambda before, a: (time.sleep(0.02), before(a))[1]):
            service.swap(after)
            for _ in range(8):
                seen.call(service, (2.0,))
        seen.call(service, (1.0,))
        seen.log(service)
    return seen


def _hanging_call(programs: Programs, folder: Path) -> Seen:
    """Keep one call from coming back for a while: others are answered meanwhile."""
    free, seen, program = threading.Event(), Seen(), Program(programs.one)
    first = [True]

    def hang(before: Any, arrays: Any) -> Any:
        if first[0]:
            first[0] = False
            free.wait(10)
        return before(arrays)

    with Service(program, hang_seconds=0.02) as service, _run_as(program, hang):
        thread = threading.Thread(target=seen.call, args=(service,))
        thread.start()
        end = time.monotonic() + 10
        while service.health().state == "ok" and time.monotonic() < end:
            time.sleep(0.005)
        seen.log(service)
        seen.call(service)
        free.set()
        thread.join()
    return seen


def _lost_device(programs: Programs, folder: Path) -> Seen:
    """Let the device refuse every call: a window of failures, then refusals at once."""
    program, seen = Program(programs.one), Seen()

    def fail(before: Any, arrays: Any) -> Any:
        raise PycError(ReasonCode.RUNTIME_FAILED, "the device is gone")

    targets = Targets(error_rate=0.1, window=4, actions=["refuse"], refuse_seconds=0.02)
    with Service(program, targets=targets) as service:
        with _run_as(program, fail):
            for _ in range(6):
                seen.call(service)
        time.sleep(0.04)
        seen.call(service)
    return seen


def _wrong_build(programs: Programs, folder: Path) -> Seen:
    """Swap in a build that computes something else: after the comparison answers are right."""
    seen = Seen()
    shadow = Shadow(lambda x: x + 1, share=1)
    with Service(programs.one, shadow=shadow, fallbacks=["previous"]) as service:
        seen.call(service)
        service.swap(programs.two)
        service(X)  # this one is out before it is compared
        service.drain()
        for _ in range(3):
            seen.call(service)
        seen.log(service)
    return seen


def _full_queue(programs: Programs, folder: Path) -> Seen:
    """Send more requests than the queue holds, and one whose time has passed."""
    free, told, seen = threading.Event(), {}, Seen()
    program = Program(programs.one)
    batcher = Batcher(lambda x: (free.wait(10), program(x))[1], told.update, 1, 2, 0)
    late = [None, 0.0, None, None, None]
    requests = [Waiting([X], 0, deadline, None) for deadline in late]
    for waiting in requests:
        try:
            batcher.submit(waiting)
        except PycError as error:
            seen.codes.add(error.code.name)
    free.set()
    batcher.close()
    for outcome in told.values():
        if not isinstance(outcome, PycError):
            seen.answered(np.array_equal(flat(outcome)[0], X + 1))
    return seen


def _no_room_for_capsules(programs: Programs, folder: Path) -> Seen:
    """Put a file where the folder for capsules of wrong answers should be."""
    (folder / "capsules").write_text("")
    seen, kept = Seen(), folder / "capsules"
    shadow = Shadow(lambda x: x + 1, share=1, capsules=kept)
    with Service(programs.two, shadow=shadow, fallbacks=["reference"]) as service:
        service(X)
        service.drain()
        seen.call(service)
        seen.log(service)
    return seen


def _damaged(data: bytes) -> bytes:
    """Change bytes in the middle of a file."""
    middle = len(data) // 2
    return data[:middle] + bytes(255 - b for b in data[middle : middle + 64]) + data[middle + 64 :]


FAULTS = (
    Fault("an allocation fails", "OUT_OF_MEMORY", _refusing_memory),
    Fault("a process at its limit of memory", "RUNTIME_FAILED", _limited_memory),
    Fault("memory pressure", "MODE_SWITCHED", _memory_pressure),
    Fault("a worker dies", "INTERNAL_ERROR", _dead_worker),
    Fault("a lost file", "FILE_ACCESS", _swapped_for(lambda data: None)),
    Fault("a build cut short", "BAD_ARTIFACT", _swapped_for(lambda data: data[: len(data) // 2])),
    Fault("a damaged build", "BAD_ARTIFACT", _swapped_for(_damaged)),
    Fault("an empty build", "BAD_ARTIFACT", _swapped_for(lambda data: b"")),
    Fault("a clock that jumps", "", _clock_jump),
    Fault("poisoned evidence", "BAD_WISDOM", _poisoned_wisdom),
    Fault("a killed server", "", _killed_server),
    Fault("a slow core", "TARGET_MISSED", _slow_core),
    Fault("a call that hangs", "CALL_HANGS", _hanging_call),
    Fault("a lost device", "SERVICE_REFUSING", _lost_device),
    Fault("a build that answers wrongly", "WRONG_RESULT", _wrong_build),
    Fault("more requests than wait", "SERVER_BUSY", _full_queue),
    Fault("no room for a capsule", "FILE_ACCESS", _no_room_for_capsules),
)

if __name__ == "__main__":
    assert sys.argv[1] == "limited", "the child of `_limited_memory`"
    _limited(sys.argv[2])
    os._exit(0)
