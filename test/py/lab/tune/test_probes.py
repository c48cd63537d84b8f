"""Sessions of known differences: what is measured, stored, read again and judged."""

import numpy as np
import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.sessions.processes import ProcessOutcome, SessionPlan
from pyc_mlir.measure import machine
from pyc_mlir.measure.records import Report
from pyc_mlir.runtime.selection.verdict import Rounds, judge
from pyc_mlir.tools.tune import measuring
from pyc_mlir.tools.tune.measuring import KINDS, ProbeSession, probe_sessions

PLAN = SessionPlan(rounds=9, processes=2)


@pytest.fixture(autouse=True)
def token(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "token_path", lambda: tmp_path / "token")


def made(number: int, noise: float = 0.001) -> ProbeSession:
    """Six processes in which B takes 5 % and C 10 % more."""
    chance = np.random.default_rng(number)

    def clock(calls: int) -> np.ndarray:
        return calls * 1e-4 * np.exp(noise * chance.normal(size=9))

    verdicts = {
        name: judge([Rounds(*map(clock, (calls, KINDS["A"]) * 2)) for _ in range(6)])
        for name, calls in KINDS.items()
        if name != "A"
    }
    return ProbeSession("gemm", number, verdicts, 0.5)


@pytest.mark.full
def test_a_session_has_every_kind_in_every_process():
    (found,) = probe_sessions(1, PLAN, ["softmax"])
    assert set(found.verdicts) == set(measuring.OTHERS)
    assert all((v.processes, v.rounds) == (2, 18) for v in found.verdicts.values())


def test_a_process_that_ends_early_is_an_error(monkeypatch):
    monkeypatch.setattr(
        measuring, "run_job", lambda *a: ProcessOutcome((), failed=0, reason="SIGSEGV")
    )
    with pytest.raises(PycError, match="SIGSEGV") as error:
        list(probe_sessions(1, PLAN, ["softmax"]))
    assert error.value.code is ReasonCode.RUNTIME_FAILED


def test_known_differences_are_found():
    lines = list(measuring.summary([made(n) for n in range(4)]))
    assert lines == [
        "4 sessions, 0 on a disturbed machine",
        "a program against itself: faster 0, slower 0, unclear 4",
        "5 % more: faster 0, slower 4, unclear 0",
        "10 % more: faster 0, slower 4, unclear 0",
    ]


def test_stored_sessions_keep_their_verdicts(tmp_path):
    sessions = [made(n, 0.02) for n in range(3)]
    path = tmp_path / "noise.json"
    measuring.report(sessions, 9, 6).save(path)
    stored = [r for r in Report.load(path).records if r["candidate"] in measuring.OTHERS]
    assert [(r["answer"], r["value"]) for r in stored] == [
        (str(found.answer), float(f"{found.interval.ratio:.5g}"))  # as many digits are stored
        for s in sessions
        for o in measuring.OTHERS
        if (found := s.verdicts[o]) is not None
    ]
    assert {r["workload"] for r in stored} == {f"gemm {n}" for n in range(3)}
    assert not any(
        isinstance(value, str) and len(value) > 80 for r in stored for value in r.values()
    )
