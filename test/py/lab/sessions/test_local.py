"""Measuring on this machine: statuses, checks and traces; never how long something took."""

from dataclasses import replace

import numpy as np
import pytest
from suites.simulated import Simulated

from pyc_mlir import nn
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import tensor
from pyc_mlir.lab.evidence.rows import COLD, Status
from pyc_mlir.lab.sessions import local
from pyc_mlir.lab.sessions.local import LocalMeasurer
from pyc_mlir.lab.sessions.processes import ProcessOutcome, SessionPlan
from pyc_mlir.lab.sessions.session import MeasuredChoice, Measurer
from pyc_mlir.lab.sessions.subjects import subject_of_program, subject_of_work
from pyc_mlir.measure import machine
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp

KERNELS = "pyc-select-kernels"
X, W, OUT = tensor("f32", 8, 16), tensor("f32", 16, 32), tensor("f32", 8, 32)
WORK = Work(
    (Input(X), Input(W, lambda: np.zeros((16, 32), np.float32))),
    (
        WorkOp("matmul", (0, 1), {}, OUT),
        WorkOp("relu", (2,), {}, OUT),
    ),
    ("softmax",),
)
OWN, IREE, NONE = (
    MeasuredChoice(),
    MeasuredChoice({KERNELS: "iree"}),
    MeasuredChoice({KERNELS: "no such"}),
)
PLAN = SessionPlan(rounds=3, processes=2, min_seconds=0)


@pytest.fixture(scope="module", autouse=True)
def token(tmp_path_factory):
    """A token of these tests: other tests on this machine may measure meanwhile."""
    patch = pytest.MonkeyPatch()
    patch.setattr(machine, "token_path", lambda: tmp_path_factory.getbasetemp() / "token")
    yield
    patch.undo()


@pytest.fixture(scope="module")
def subject():
    return subject_of_work(WORK)


@pytest.fixture(scope="module")
def measured(subject):
    return LocalMeasurer().measure(subject, [OWN, IREE, NONE], PLAN)


@pytest.mark.full
def test_candidates_of_a_work(measured):
    own, iree, none = measured.results
    assert [r.status for r in measured.results] == [Status.OK, Status.OK, Status.REFUSED]
    assert "no such" in none.reason and not none.processes
    for result in (own, iree):
        assert [p.process for p in result.processes] == [0, 1]
        assert all(len(p.wall) == len(p.cpu) == 3 for p in result.processes)
        assert result.seconds() is not None and result.artifact_key
        assert result.compile_seconds and result.constant_bytes is not None
    (chosen,) = [v for k, v in iree.chosen.items() if k.startswith(KERNELS)]
    assert chosen == "iree" and own.artifact_key != iree.artifact_key


@pytest.mark.full
def test_a_compile_predicts_its_own_time(measured):
    own, iree, none = measured.results
    assert none.predicted is None
    for result in (own, iree):
        found = result.predicted
        assert 0 < found.lo < found.seconds < found.hi and found.measured == 0
        assert found.bytes and found.exact
    assert own.predicted.seconds != iree.predicted.seconds


def test_a_session_says_how_it_was_done(measured):
    assert measured.plan == PLAN and measured.nonce and measured.started <= measured.ended
    assert measured.place.context_facts["threads"] == 1
    for probe in (measured.probe_before, measured.probe_after):
        kinds = ("ratio", "seconds")
        names = {f"{clock}_{kind}" for clock in ("wall", "cpu") for kind in kinds}
        assert set(probe) == {*names, "call_wall_seconds", "call_cpu_seconds"}


def test_cold_constants_are_one_call_a_sample(subject, monkeypatch):
    monkeypatch.setattr(machine, "flush_bytes", lambda: 1 << 20)
    found = LocalMeasurer().measure(
        subject, [OWN], SessionPlan(rounds=2, processes=1, constants=COLD, min_seconds=1.0)
    )
    (times,) = found.results[0].processes
    assert times.calls == 1 and len(times.wall) == 2


@pytest.mark.full
def test_a_wrong_candidate_has_no_times(subject, monkeypatch):
    answers = iter(["result 0[3]: expected 1, got 2", ""])
    monkeypatch.setattr(local.Reference, "problem", lambda self, results: next(answers))
    found = LocalMeasurer().measure(subject, [OWN, IREE], SessionPlan(rounds=2, processes=1))
    assert [r.status for r in found.results] == [Status.WRONG, Status.OK]
    assert "expected 1, got 2" in found.results[0].reason and not found.results[0].processes
    assert len(found.results[1].processes) == 1


def test_a_crash_is_its_candidate_s_alone(subject, monkeypatch):
    run_job, jobs = local.run_job, []

    def crashing(job, folder, seconds):
        jobs.append(job)
        if job.kind == local.TIME and len(job.candidates) > 2:
            return ProcessOutcome(({"at": 0},), failed=0, reason="the process ended by SIGSEGV")
        return run_job(job, folder, seconds)

    monkeypatch.setattr(local, "run_job", crashing)
    found = LocalMeasurer().measure(subject, [OWN, IREE], SessionPlan(rounds=2, processes=1))
    assert [r.status for r in found.results] == [Status.CRASH, Status.OK]
    assert "SIGSEGV" in found.results[0].reason
    assert [p.process for p in found.results[1].processes] == [0]


@pytest.mark.full
def test_a_whole_program_and_choices_by_work():
    def model(x):
        w = np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)
        return nn.softmax(nn.relu(x @ w) @ w)

    program = subject_of_program(model, [np.zeros((4, 16), np.float32)])
    assert program.graph.kind == "program"
    found = LocalMeasurer().measure(
        program, [OWN, IREE], SessionPlan(rounds=2, processes=1, threads=2)
    )
    assert [r.status for r in found.results] == [Status.OK, Status.OK]
    chosen = [v for k, v in found.results[1].chosen.items() if k.startswith(KERNELS)]
    assert len(chosen) == 3 and set(chosen) == {"iree"}
    # Several threads: the caller's CPU time says nothing.
    assert not len(found.results[0].processes[0].cpu)


def test_a_program_with_nothing_to_compare_is_refused():
    always = Work((Input(X),), (WorkOp("log", (0,), {}, X),))
    subject = subject_of_work(always)
    assert subject.arguments is not None
    below = replace(subject, arguments=[-abs(a) for a in subject.arguments], reference=None)
    with pytest.raises(PycError) as error:
        LocalMeasurer().measure(below, [OWN], PLAN)
    assert error.value.code is ReasonCode.NO_ORACLE


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"constants": "hot"}, {"timeout_seconds": 0}])
def test_plans_are_checked(wrong):
    with pytest.raises(PycError) as error:
        SessionPlan(**wrong)
    assert error.value.code is ReasonCode.BAD_ARGUMENT


@pytest.mark.parametrize("candidates", [[], [OWN, MeasuredChoice()]])
def test_candidates_have_names_of_their_own(subject, candidates):
    for measurer in (LocalMeasurer(), Simulated(lambda subject, candidate: 1e-3)):
        assert isinstance(measurer, Measurer)
        with pytest.raises(PycError) as error:
            measurer.measure(subject, candidates, PLAN)
        assert error.value.code is ReasonCode.BAD_ARGUMENT
