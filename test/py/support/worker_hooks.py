"""Workers that misbehave on purpose, and clocks that go as a test says: for tests of workers."""

from collections.abc import Callable

import pytest

from pyc_mlir.worker import process
from pyc_mlir.worker.compile import WorkerCompile

# What a worker runs in place of `process.BOOT`.
_BOOT = """
import os, signal, time
from pyc_mlir.worker import serve
answer = serve.Server.answer
def hooked(self, request):
{body}
    return answer(self, request)
serve.Server.answer = hooked
serve.main(int(sys.argv[1]))
"""
SLEEPS = "    time.sleep(600)"
ASKED_SLEEPS = """
    asked = request.header["stage"] == "requested" and request.header["do"] == "compile"
    time.sleep(600 * asked)
"""
CRASHES = "    os.kill(os.getpid(), signal.SIGSEGV)"
FAULTY = "    serve.build_here = lambda *_: 1 / 0"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch):
    """Call it with the body of a hook: workers that start from then on have it."""

    def set_hook(body: str) -> None:
        process.end_all()
        monkeypatch.setattr(process, "BOOT", _BOOT.format(body=body))

    process.end_all()
    yield set_hook
    process.end_all()


class Clock:
    """0 as a job begins, then `at`, and `over` once `is_over` says so of the job."""

    def __init__(self, at: float, over: float, is_over: Callable[[WorkerCompile], bool]) -> None:
        self.at, self.over, self.is_over = at, over, is_over
        self.job: WorkerCompile | None = None

    def __call__(self) -> float:
        if self.job is None:
            return 0.0
        return self.over if self.is_over(self.job) else self.at


def second_is_done(job: WorkerCompile) -> bool:
    """Whether the second worker of a job has answered all."""
    return job._second is not None and job._second.done


def with_clock(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """Compiles of this test go by a clock."""

    def make(*arguments: object, **options: object) -> WorkerCompile:
        clock.job = None
        clock.job = WorkerCompile(*arguments, **options, clock=clock)  # pyright: ignore
        return clock.job

    monkeypatch.setattr("pyc_mlir.worker.compile.WorkerCompile", make)
