"""The rule by simulation: recipes that are not faster stay out, drift is found, noise is not."""

from dataclasses import replace

import numpy as np
import pytest

from pyc_mlir.lab.evidence.rows import FOLLOWERS, Implementation, Scope, State
from pyc_mlir.lab.lanes.promotion import (
    ConditionResult,
    OnWorkload,
    Pair,
    PromotionCase,
    Wanted,
    assess,
    measured_enough,
    missing,
    next_step,
    verdicts,
)
from pyc_mlir.runtime.selection.verdict import ALPHA, Rounds

OURS, THEIRS = Implementation("g", {"p": "b"}), Implementation("g", {})
ROUNDS = 15


def pair(rng, ratio: float, session: str, process: int, noise=0.02, between=0.02) -> Pair:
    shift = np.exp(between * rng.standard_normal())
    times = np.exp(noise * rng.standard_normal((4, ROUNDS)))
    rounds = Rounds(ratio * shift * times[0], times[1], ratio * shift * times[2], times[3])
    return Pair(session, "m", process, rounds)


def case(pairs, **changes) -> PromotionCase:
    probes = {p.session_id: 1.01 for p in pairs}
    loads = (OnWorkload("w", tuple(pairs)),)
    return replace(
        PromotionCase(OURS, THEIRS, Scope(), loads, len(pairs), probes=probes), **changes
    )


def promoted(rng, ratio: float, looks: int) -> bool:
    """Whether a recipe is promoted at one of several looks, each with a session more."""
    pairs = [pair(rng, ratio, "s0", n) for n in range(3)]
    for look in range(looks):
        pairs += [pair(rng, ratio, f"s{look + 1}", n) for n in range(3)]
        now = case(pairs, looks=look)
        steps = list(assess(now, verdicts(now)))
        if all(step.met for step in steps):
            return True
    return False


def test_shares_of_the_error_add_up_to_it():
    now = case([])
    shares = [replace(now, looks=n).alpha for n in range(2000)]
    assert shares[0] == ALPHA / 2 and sum(shares) < ALPHA
    assert sum(shares) == pytest.approx(ALPHA, rel=1e-3)


@pytest.mark.parametrize("ratio", [1.0, 0.98])
@pytest.mark.full
def test_recipes_that_gain_too_little_are_not_promoted(ratio):
    """300 recipes of equal speed, or 2 % faster, are looked at six times each."""
    rng = np.random.default_rng(5)
    assert sum(promoted(rng, ratio, 6) for _ in range(300)) <= 3


def test_recipes_that_gain_are_promoted():
    rng = np.random.default_rng(6)
    assert sum(promoted(rng, 0.85, 3) for _ in range(50)) >= 45


def test_what_is_missing_is_told():
    rng = np.random.default_rng(7)
    now = case([pair(rng, 0.5, "s1", n) for n in range(3)], machines=3)
    assert not measured_enough(now)
    steps = tuple(assess(now, {}))
    assert [s.state for s in steps if s.met] == ["candidate", State.VERIFIED]
    reported = "\n".join(map(str, missing(steps)))
    for more in ("2 more processes", "1 more sessions", "1 more machines"):
        assert more in reported
    none = tuple(assess(replace(now, workloads=(), checked=0), {}))
    assert [f.condition for f in missing(none)] == ["results within their tolerance"]


def test_each_step_has_its_own_conditions():
    rng = np.random.default_rng(8)
    pairs = [pair(rng, 0.8, f"s{n % 2}", n) for n in range(8)]
    good = case(pairs)
    judged = verdicts(good)
    assert 1.1 < judged["w"].speedup < 1.3

    def failing(now: PromotionCase, **wanted) -> tuple[str, str]:
        first = next(s for s in assess(now, judged, Wanted(**wanted)) if not s.met)
        return first.state, " ".join(str(f) for f in first.findings if not f.met)

    assert all(s.met for s in assess(good, judged))
    assert failing(replace(good, faults=("wrong: x",)))[0] == State.VERIFIED
    assert failing(replace(good, machines=2))[0] == State.MEASURED
    assert failing(good, arena_bytes=5)[0] == State.SHADOW
    assert failing(good, least=1.5)[0] == State.PROMOTED
    assert "rollback" in failing(replace(good, stale=True))[1]
    assert "0 of 2 sessions" in failing(replace(good, probes={}))[1]
    other = (*good.workloads, OnWorkload("v", (), target=False))
    state, reported = failing(replace(good, workloads=other))
    assert state == State.MEASURED and "processes on workload v: no, 0 of 5" in reported


@pytest.mark.full
def test_a_finding_reads():
    assert str(ConditionResult("a", False, "1 of 2", "1 more")) == "a: no, 1 of 2; needed: 1 more"
    assert str(ConditionResult("a", True, "2 of 2", "1 more")) == "a: yes, 2 of 2"


BASE = 1e-3


def window(rng, slower: float = 1.0, count: int = 200, disturbed: float = 0.3) -> float:
    """The low quantile of calls of which a share is disturbed by load, as services see them."""
    times = BASE * slower * np.exp(0.03 * np.abs(rng.standard_normal(count)))
    times *= np.where(rng.random(count) < disturbed, 1 + 3 * rng.random(count), 1.0)
    return float(np.quantile(times, 0.1))


def test_noise_suspends_nothing():
    rng = np.random.default_rng(1)
    for _ in range(200):
        windows = [window(rng, disturbed=0.6) for _ in range(50)]
        assert next_step(State.PROMOTED, BASE, windows) is None


@pytest.mark.parametrize("slower", [1.3, 2.0])
def test_drift_is_found_after_two_windows(slower):
    rng = np.random.default_rng(2)
    for _ in range(100):
        windows = [*(window(rng) for _ in range(5)), window(rng, slower)]
        assert next_step(State.PROMOTED, BASE, windows) is None
        step = next_step(State.PROMOTED, BASE, [*windows, window(rng, slower)])
        assert step is not None and step.state == State.SUSPENDED and "drift" in step.reason


def test_every_step_is_a_legal_transition_and_none_promotes():
    rng = np.random.default_rng(3)
    for state in FOLLOWERS:
        for _ in range(200):
            windows = (BASE * rng.uniform(0.5, 3, rng.integers(0, 6))).tolist()
            step = next_step(state, BASE, windows, int(rng.random() < 0.05))
            assert step is None or step.state in FOLLOWERS[state]
            assert step is None or step.state != State.PROMOTED
    step = next_step(State.SHADOW, BASE, (), faults=1)
    assert step is not None and step.state == State.QUARANTINED
