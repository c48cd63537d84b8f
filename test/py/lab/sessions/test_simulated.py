"""The simulated measurer, and what a measurement says of itself."""

import numpy as np
import pytest
from suites.simulated import Failed, Simulated

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.rows import OK, WRONG, Graph, Workload
from pyc_mlir.lab.sessions.session import MeasuredChoice, MeasuredProgram, Measurer, SessionPlan

SUBJECT = MeasuredProgram(Graph("w1-a", "work", "w1-a", "work", 1), Workload("w1-a"))
DEFAULT, QUICK = MeasuredChoice(), MeasuredChoice({"pyc-select-kernels": "gemm:matmul"})
BAD = MeasuredChoice({"pyc-select-kernels": "bad"})


def cost(subject, candidate):
    if candidate is BAD:
        return Failed(WRONG, "off by 1")
    return 1e-3 if candidate.recipe else 2e-3


def test_times_are_the_costs():
    measured = Simulated(cost).measure(
        SUBJECT, [DEFAULT, QUICK, BAD], SessionPlan(rounds=4, processes=2)
    )
    assert isinstance(Simulated(cost), Measurer)
    assert [r.status for r in measured.results] == [OK, OK, WRONG]
    assert [r.seconds() for r in measured.results] == [2e-3, 1e-3, None]
    own, quick, bad = measured.results
    assert bad.reason == "off by 1" and len(own.processes) == len(quick.processes) == 2
    pairs = zip(quick.processes, own.processes, strict=True)
    assert all((a.per_call() < b.per_call()).all() for a, b in pairs)


def test_noise_is_decided_by_the_seed():
    def times(seed):
        made = Simulated(cost, noise=0.1).measure(SUBJECT, [DEFAULT], SessionPlan(seed=seed))
        return np.concatenate([p.wall for p in made.results[0].processes])

    assert np.array_equal(times(1), times(1))
    assert not np.array_equal(times(1), times(2))


def test_a_later_session_has_other_times_and_another_nonce():
    measurer = Simulated(cost, noise=0.1)
    one, two = (measurer.measure(SUBJECT, [DEFAULT], SessionPlan()) for _ in range(2))
    assert one.nonce != two.nonce
    assert one.results[0].seconds() != two.results[0].seconds()


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"constants": "hot"}, {"timeout_seconds": 0}])
def test_plans_are_checked(wrong):
    with pytest.raises(PycError) as error:
        SessionPlan(**wrong)
    assert error.value.code is ReasonCode.BAD_ARGUMENT


@pytest.mark.parametrize("candidates", [[], [DEFAULT, MeasuredChoice()]])
def test_candidates_have_names_of_their_own(candidates):
    with pytest.raises(PycError) as error:
        Simulated(cost).measure(SUBJECT, candidates, SessionPlan())
    assert error.value.code is ReasonCode.BAD_ARGUMENT
