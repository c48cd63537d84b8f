"""Threads that help: the same bits as without them, and nothing that is left behind."""

import errno
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir import Device, PycError
from pyc_mlir.runtime import pool
from pyc_mlir.runtime.pool import POOL, PoolStatistics, usable_threads

X = np.random.default_rng(0).normal(size=(96, 512)).astype(np.float32)
pytestmark = pytest.mark.skipif(not pool.IS_SUPPORTED, reason="no helpers on this system")


def work(x):
    """Products, reductions and elementwise ops: kernels of PyC, and code of IREE."""
    y = pyc_mlir.nn.softmax(x @ x.T)
    return (y @ x).sum(axis=0), (x * 3 + y.sum()).max(axis=1)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    path = tmp_path_factory.mktemp("pool") / "work.vmfb"
    pyc_mlir.compile(work, [X], cache=False).save(path)
    return path


@pytest.fixture
def eager():
    """Helpers that take time as others do, also on a busy machine."""
    policy = POOL._int32(pool._POLICY)
    POOL.stop()
    before, policy[0] = policy[0], os.SCHED_OTHER
    yield
    POOL.stop()
    policy[0] = before


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_the_same_bits_as_without_helpers(artifact, eager, threads):
    expected = pyc_mlir.load(artifact, Device("local-sync"))(X)
    program = pyc_mlir.load(artifact, Device("local", threads))
    POOL.start()
    before = POOL.statistics()
    end = time.monotonic() + 20
    while POOL.statistics().helped < before.helped + 20 and time.monotonic() < end:
        for found, wanted in zip(program(X), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    after = POOL.statistics()
    assert after.jobs > before.jobs and after.helped >= before.helped + 20


def test_several_callers_at_once(artifact, eager):
    expected = pyc_mlir.load(artifact, Device("local-sync"))(X)
    program = pyc_mlir.load(artifact, Device("local", 3))
    POOL.start()
    wrong = []

    def call():
        for _ in range(100):
            found = program(X)
            wrong.extend(
                i for i, (f, w) in enumerate(zip(found, expected, strict=True)) if (f != w).any()
            )

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not wrong and not any(c.is_alive() for c in callers)


def test_helpers_outlive_the_program_whose_code_they_run(artifact):
    first = pyc_mlir.load(artifact, Device("local", 2))
    second = pyc_mlir.load(artifact, Device("local", 2))
    expected = first(X)[0]
    del first
    gc.collect()
    np.testing.assert_array_equal(second(X)[0], expected)
    assert helpers()


def test_the_collector_frees_the_host_while_helpers_start(artifact, eager, monkeypatch):
    first = pyc_mlir.load(artifact, Device("local", 4))
    second = pyc_mlir.load(artifact, Device("local", 4))
    expected = second(X)[0]
    POOL.stop()
    cycle: list[Any] = [first]
    cycle.append(cycle)
    del first, cycle
    set_cores = POOL._set_cores
    monkeypatch.setattr(POOL, "_set_cores", lambda: (gc.collect(), set_cores()))
    POOL.start()
    for _ in range(20):
        np.testing.assert_array_equal(second(X)[0], expected)
    names = [f"pyc-helper-{i + 1}\n" for i in range(POOL._wanted)]
    assert soon(lambda: sorted(helpers()) == names)


def test_a_program_goes_while_its_code_waits_for_helpers(artifact, monkeypatch):
    POOL.stop()
    gc.collect()
    program = pyc_mlir.load(artifact, Device("local", 2))
    join = pool._join
    monkeypatch.setattr(pool, "_join", lambda threads: (time.sleep(1), join(threads)))
    began = time.monotonic()
    for begin in [b for b in POOL._hosts if b != POOL._host]:
        POOL._host = begin  # The one that goes last.
    del program
    gc.collect()
    assert time.monotonic() - began < 0.5
    time.sleep(1.2)


def test_python_does_not_know_helpers(artifact):
    # Under SCHED_IDLE they would have the interpreter's lock as long as others want their core.
    POOL.stop()
    known = len(sys._current_frames()), threading.active_count()
    program = pyc_mlir.load(artifact, Device("local", 2))
    program(X)
    assert helpers() and (len(sys._current_frames()), threading.active_count()) == known


def test_a_system_without_more_threads(artifact, monkeypatch):
    class NoThreads:
        def pthread_create(self, *_):
            return errno.EAGAIN

    POOL.stop()
    monkeypatch.setattr(pool, "_LIBC", NoThreads())
    program = pyc_mlir.load(artifact, Device("local", 2))
    expected = pyc_mlir.load(artifact, Device("local-sync"))(X)[0]
    np.testing.assert_array_equal(program(X)[0], expected)
    assert soon(lambda: not helpers())
    monkeypatch.undo()
    POOL.start()
    assert helpers()


def test_idle_helpers_sleep(artifact):
    program = pyc_mlir.load(artifact, Device("local", 2))
    program(X)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.02


def test_dispatches_of_a_call_are_recorded(artifact):
    program = pyc_mlir.load(artifact, Device("local", 2))
    seconds, rows = POOL.record(lambda: program(X))
    tiles, took, waited = rows.T
    assert len(rows) > 3 and tiles.min() >= 1 and (took > 0).all() and took.sum() < seconds
    assert (waited >= 0).all() and (waited <= took).all()
    # Nothing is recorded of calls outside, nor of programs without helpers.
    program(X)
    alone = pyc_mlir.load(artifact, Device("local-sync"))
    assert not len(POOL.record(lambda: alone(X))[1])
    twice = POOL.record(lambda: (program(X), program(X)))[1]
    assert twice[:, 0].tolist() == [*tiles, *tiles]


def test_records_end_where_their_memory_ends(artifact, monkeypatch):
    program = pyc_mlir.load(artifact, Device("local", 2))
    most = 2
    monkeypatch.setattr(pool, "_BYTES", pool._RECORDS_AT + 32 * (1 + most))
    beyond = POOL._int64(pool._BYTES, 64)
    beyond[:] = -1
    assert len(POOL.record(lambda: program(X))[1]) == most
    assert (beyond == -1).all()


def test_statistics_in_words():
    counts = PoolStatistics(jobs=9, waits=4, wait_seconds=8e-6, helped=20, sleeps=1, turned_off=2)
    assert str(counts) == (
        "9 forks, 4 of them with a wait of 2 us on average, 20 units helped, turned off 2 times"
    )
    assert "with a wait of 0 ns" in str(PoolStatistics(0, 0, 0.0, 0, 0, 0))


def test_one_thread_has_no_helpers():
    code = (
        "import pathlib, numpy as np, pyc_mlir\n"
        "x = np.ones((64, 64), np.float32)\n"
        "p = pyc_mlir.compile(lambda x: x @ x, [x])\n"
        "assert (p(x) == 64).all() and p.device.threads == 1, p.device\n"
        "names = [p.read_text() for p in pathlib.Path('/proc/self/task').glob('*/comm')]\n"
        "assert not [n for n in names if 'helper' in n]\n"
    )
    environment = {**os.environ, "PYC_THREADS": "1"}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, timeout=120).returncode == 0
    )


def test_threads_that_may_be_used():
    assert usable_threads({"PYC_THREADS": "5"}) == 5
    assert 1 <= usable_threads({}) <= len(os.sched_getaffinity(0))
    assert [usable_threads({}, 8, quota) for quota in ("0.5", "2.5", "16")] == [1, 2, 8]
    assert usable_threads({}, 256, "256") == pool.MOST_THREADS
    with pytest.raises(PycError, match="PYC_THREADS: expected a number from 1 on, got 'two'"):
        usable_threads({"PYC_THREADS": "two"})


def soon(holds):
    """Wait for a condition: threads that have returned go from the system some time later."""
    end = time.monotonic() + 20
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


def helpers():
    """Their names."""
    names = [p.read_text() for p in Path("/proc/self/task").glob("*/comm")]
    return [n for n in names if n.startswith("pyc-helper")]
