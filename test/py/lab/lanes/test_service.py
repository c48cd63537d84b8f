"""Steps in service, by simulation: drift is found, noise is not, and no step is illegal."""

import numpy as np
import pytest

from pyc_mlir.lab.evidence.rows import Feedback
from pyc_mlir.lab.evidence.states import (
    FOLLOWERS,
    PROMOTED,
    QUARANTINED,
    SHADOW,
    SUSPENDED,
    may_follow,
)
from pyc_mlir.lab.lanes.service import MIN_CALLS, ServiceSpan, next_step

BASE = 1e-3


def window(rng, slower: float = 1.0, count: int = 200, disturbed: float = 0.3) -> ServiceSpan:
    """The low quantile of calls of which a share is disturbed by load, as services see them."""
    times = BASE * slower * np.exp(0.03 * np.abs(rng.standard_normal(count)))
    times *= np.where(rng.random(count) < disturbed, 1 + 3 * rng.random(count), 1.0)
    return ServiceSpan(count, float(np.quantile(times, 0.1)))


def test_noise_suspends_nothing():
    rng = np.random.default_rng(1)
    for _ in range(200):
        windows = [window(rng, disturbed=0.6) for _ in range(50)]
        assert next_step(PROMOTED, BASE, windows) is None


@pytest.mark.parametrize("slower", [1.3, 2.0])
def test_drift_is_found_after_two_windows(slower):
    rng = np.random.default_rng(2)
    for _ in range(100):
        windows = [window(rng) for _ in range(5)]
        windows.append(window(rng, slower))
        assert next_step(PROMOTED, BASE, windows) is None
        windows.append(window(rng, slower))
        step = next_step(PROMOTED, BASE, windows)
        assert step is not None and step.state == SUSPENDED and "drift" in step.reason


def test_a_slow_machine_is_no_drift():
    slow = [ServiceSpan(100, 2 * BASE, slowed=2.0)] * 2
    assert next_step(PROMOTED, BASE, slow) is None
    assert next_step(PROMOTED, BASE, [ServiceSpan(100, 2 * BASE)] * 2) is not None


def test_windows_of_few_calls_say_nothing():
    few = ServiceSpan(MIN_CALLS - 1, 9 * BASE)
    assert next_step(PROMOTED, BASE, [few, few]) is None
    assert next_step(PROMOTED, BASE, [ServiceSpan(100, 9 * BASE), few]) is None


def test_faults_quarantine_at_once():
    step = next_step(SHADOW, BASE, [ServiceSpan(1, BASE, faults=1)])
    assert step is not None and step.state == QUARANTINED


def test_every_step_is_a_legal_transition_and_none_promotes():
    rng = np.random.default_rng(3)
    for state in FOLLOWERS:
        for _ in range(200):
            windows = [
                ServiceSpan(int(rng.integers(0, 300)), BASE * rng.uniform(0.5, 3), 1.0,
                       int(rng.random() < 0.05))
                for _ in range(rng.integers(0, 6))
            ]  # fmt: skip
            step = next_step(state, BASE, windows)
            assert step is None or may_follow(state, step.state)
            assert step is None or step.state != PROMOTED


def test_stored_windows():
    row = Feedback("i", "c", "e", "w", 300, {"p10": 2e-3})
    assert ServiceSpan.of(row) == ServiceSpan(300, 2e-3)
    assert ServiceSpan.of(Feedback("i", "c", "e", "w", 300, {})).count == 0
