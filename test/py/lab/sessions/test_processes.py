"""Measuring processes: what becomes of those that crash, hang or are given nonsense."""

import numpy as np
import pytest

from pyc_mlir.lab.sessions import processes
from pyc_mlir.lab.sessions.processes import CHECK, MeasureJob, run_job, stored

SAYS = """
import json, os, signal, sys, time
def say(**message):
    os.write(int(sys.argv[2]), (json.dumps(message) + "\\n").encode())
"""


@pytest.fixture
def child(monkeypatch):
    """Let processes run another program."""
    return lambda text: monkeypatch.setattr(processes, "_BOOT", SAYS + text)


def test_one_that_crashes_names_its_candidate(child, tmp_path):
    child("say(at=0); say(at=1); print('oh', flush=True); os.kill(os.getpid(), signal.SIGSEGV)")
    found = run_job(MeasureJob(CHECK, (), ()), tmp_path, 60)
    assert (found.failed, found.timed_out) == (1, False)
    assert "SIGSEGV" in found.reason and "oh" in found.reason


def test_one_that_hangs_is_ended(child, tmp_path):
    child("say(at=2); time.sleep(600)")
    found = run_job(MeasureJob(CHECK, (), ()), tmp_path, 1.5)
    assert (found.failed, found.timed_out) == (2, True)


def test_one_that_ends_before_its_first_candidate(child, tmp_path):
    child("raise SystemExit(3)")
    found = run_job(MeasureJob(CHECK, (), ()), tmp_path, 60)
    assert found.failed == -1 and "exit status 3" in found.reason


def test_one_that_is_done_and_then_crashes_is_done(child, tmp_path):
    child("say(at=0); say(done=1.5); os.kill(os.getpid(), signal.SIGKILL)")
    found = run_job(MeasureJob(CHECK, (), ()), tmp_path, 60)
    assert found.failed is None and found.cpu_seconds == 1.5


def test_an_artifact_that_is_none_fails_alone(tmp_path):
    path = tmp_path / "nothing.vmfb"
    path.write_bytes(b"nothing")
    arguments = stored([np.zeros((2, 3), np.float32)], tmp_path)
    found = run_job(MeasureJob(CHECK, (str(path),), arguments), tmp_path, 60)
    assert found.failed is None
    assert [m["failed"] for m in found.messages if "failed" in m] == [0]
