"""Threads that help: the same bits as without them, and nothing that is left behind."""

import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir import Device, PycError
from pyc_mlir.runtime import pool
from pyc_mlir.runtime.pool import POOL, usable_threads

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
def eager(monkeypatch):
    """Helpers that take time as others do, also on a busy machine."""
    POOL.stop()
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    yield
    POOL.stop()


def refuse(*_):
    raise PermissionError


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


def test_idle_helpers_sleep(artifact):
    program = pyc_mlir.load(artifact, Device("local", 2))
    program(X)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.02


def test_one_thread_has_no_helpers():
    code = (
        "import threading, numpy as np, pyc_mlir\n"
        "x = np.ones((64, 64), np.float32)\n"
        "p = pyc_mlir.compile(lambda x: x @ x, [x])\n"
        "assert (p(x) == 64).all() and p.device.threads == 1, p.device\n"
        "assert not [t for t in threading.enumerate() if 'helper' in t.name]\n"
    )
    environment = {**os.environ, "PYC_THREADS": "1"}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, timeout=120).returncode == 0
    )


def test_threads_that_may_be_used():
    assert usable_threads({"PYC_THREADS": "5"}) == 5
    assert 1 <= usable_threads({}) <= len(os.sched_getaffinity(0))
    with pytest.raises(PycError, match="PYC_THREADS: expected a number from 1 on, got 'two'"):
        usable_threads({"PYC_THREADS": "two"})


def helpers():
    return [t for t in threading.enumerate() if t.name.startswith("pyc-helper")]
