"""Workers on cores of their own, and callers that wait without taking a worker's core."""

import os
import threading

import numpy as np
import pytest

from pyc_mlir.api import compile
from pyc_mlir.runtime.device import Device
from pyc_mlir.util import threads

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setscheduler"), reason="Linux scheduling policies"
)
NORMAL, BATCH = os.SCHED_OTHER, os.SCHED_BATCH


def affinities(before: frozenset[int]) -> list[set[int]]:
    new = sorted(threads.running() - before)
    return [os.sched_getaffinity(t) for t in new if threads._name(t).startswith("iree-worker")]


def test_a_worker_for_every_core_stays_on_its_own():
    cores = sorted(os.sched_getaffinity(0))
    before = threads.running()
    device = Device("local-task", threads=len(cores))
    assert affinities(before) == [{core} for core in cores] or len(cores) == 1
    assert device.threads == len(cores)


def test_another_number_of_workers_may_run_anywhere():
    cores = os.sched_getaffinity(0)
    before = threads.running()
    device = Device("local-task", threads=len(cores) + 1)
    assert not threads.spread(before, len(cores) + 1)
    assert all(found == cores for found in affinities(before))
    assert device.kind == "local-task"


def test_threads_that_never_come_are_not_waited_for_long(monkeypatch):
    monkeypatch.setattr(threads, "_NAMED_WITHIN_SECONDS", 0.01)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert not threads.spread(threads.running(), 3)


def test_a_caller_waits_as_a_batch_thread_and_is_a_normal_one_again():
    seen = []
    call = threads.waiting(lambda *_: seen.append(os.sched_getscheduler(0)))
    call(None, None, None)  # pyright: ignore[reportArgumentType]
    assert seen == [BATCH]
    assert os.sched_getscheduler(0) == NORMAL


def test_a_failing_call_gives_the_policy_back():
    def fail(*_):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        threads.waiting(fail)(None, None, None)  # pyright: ignore[reportArgumentType]
    assert os.sched_getscheduler(0) == NORMAL


def test_a_policy_of_ones_own_is_kept():
    seen = []
    call = threads.waiting(lambda *_: seen.append(os.sched_getscheduler(0)))

    def idle() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        call(None, None, None)  # pyright: ignore[reportArgumentType]
        seen.append(os.sched_getscheduler(0))

    other = threading.Thread(target=idle)
    other.start()
    other.join()
    assert seen == [os.SCHED_IDLE, os.SCHED_IDLE]


def test_where_policies_may_not_change_calls_go_straight_through(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)

    def invoke(*_) -> None: ...

    assert threads.waiting(invoke) is invoke


@pytest.mark.full
def test_programs_answer_the_same_on_spread_workers():
    device = Device("local-task", threads=len(os.sched_getaffinity(0)))
    x = np.arange(600 * 512, dtype=np.float32).reshape(600, 512)
    program = compile(lambda x: (x * 2).sum(axis=1), [x], device=device)
    for _ in range(20):
        np.testing.assert_allclose(program(x), (x.astype(np.float64) * 2).sum(axis=1), rtol=1e-5)
    assert os.sched_getscheduler(0) == NORMAL
