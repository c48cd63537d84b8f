"""The selector's policies on simulated seconds: what they find, what that costs, and drift."""

import json
import random

import numpy as np
import pytest

from pyc_mlir.runtime.selection.engine import (
    DRIFTED,
    DROPPED,
    PROMOTED,
    QUARANTINED,
    REBASED,
    Paired,
    Thompson,
    Trial,
    Ucb,
)

POLICIES = (Paired(), Thompson(), Ucb())


class Simulation:
    """Calls by a bandit whose arms take these seconds, times noise."""

    def __init__(self, policy, seconds, spread=0.01, seed=0):
        self.seconds, self.spread = list(seconds), spread
        self.noise = random.Random(seed)
        self.bandit = policy.start(len(self.seconds), random.Random(seed))
        self.arms, self.changes, self.left = [], [], 0
        self.load = 1.0
        self.spent = self.owner = 0.0

    def run(self, calls):
        for _ in range(calls):
            if self.left:
                self.left -= 1
                trial = Trial(self.arms[-1], timed=False)
            else:
                trial = self.bandit.ask()
                self.left = trial.repeat
            noise = self.load * np.exp(self.noise.gauss(0, self.spread))
            seconds = self.seconds[trial.arm] * noise
            self.spent += seconds
            self.owner += self.seconds[0] * noise
            self.arms.append(trial.arm)
            if trial.timed:
                self.changes += self.bandit.tell(trial, seconds)
        return self

    @property
    def kinds(self):
        return [c.kind for c in self.changes]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_the_best_arm_is_found(policy):
    found = Simulation(policy, [1.0, 1.3, 0.8, 1.1]).run(600)
    assert found.bandit.incumbent == 2
    assert found.arms[-50:].count(2) >= 40


@pytest.mark.parametrize("seed", range(20))
def test_the_first_calls_lose_little(seed):
    draws = random.Random(seed)
    seconds = [1.0, *(draws.uniform(0.7, 1.6) for _ in range(5))]
    first = Simulation(Paired(), seconds, seed=seed).run(200)
    assert first.spent <= 1.03 * first.owner
    later = first.run(1000)
    assert later.seconds[later.bandit.incumbent] <= 1.05 * min(seconds)


def test_what_tries_lose_is_bounded():
    for share in (0.01, 0.05):
        found = Simulation(Paired(share=share), [1.0, 1.9, 1.5, 3.0, 1.2]).run(5000)
        assert found.bandit.incumbent == 0 and not [k for k in found.kinds if k == PROMOTED]
        assert found.spent <= (1 + share) * found.owner


def test_equal_arms_stay_where_they_are():
    promoted = [
        k
        for seed in range(30)
        for k in Simulation(Paired(), [1.0, 1.0, 1.0], 0.05, seed).run(2000).kinds
        if k == PROMOTED
    ]
    assert len(promoted) <= 30, "a promotion between equals costs nothing, but is no habit"


def test_a_bad_arm_is_dropped_after_three_pairs():
    found = Simulation(Paired(share=0.5, rest=1), [1.0, 3.0]).run(3000)
    assert found.kinds == [DROPPED]
    assert found.arms.count(1) == 3


def test_an_arm_that_turns_slow_is_left_within_three_windows():
    policy = Paired(sample=1, window=50)
    found = Simulation(policy, [1.0, 0.7]).run(800)
    assert found.bandit.incumbent == 1
    found.seconds[1] = 1.5
    before = len(found.arms)
    while found.bandit.incumbent == 1 and len(found.arms) < before + 1000:
        found.run(1)
    assert found.bandit.incumbent == 0
    assert len(found.arms) - before <= 3 * 50 * 1.2


def test_a_slower_machine_is_no_drift_of_one_arm():
    found = Simulation(Paired(sample=1, window=50), [1.0, 1.2]).run(400)
    found.load = 1.5
    found.run(400)
    assert found.kinds == [REBASED], "there is no last good one: a new baseline"
    assert found.bandit.incumbent == 0
    found.run(2000)
    assert found.kinds == [REBASED]


def test_pairs_see_through_load():
    found = Simulation(Paired(), [1.0, 0.85])
    for at in range(100):
        found.load = 1.0 + (at % 5)
        found.run(13)
    assert found.bandit.incumbent == 1


def test_removed_arms_never_come_again():
    for policy in POLICIES:
        found = Simulation(policy, [1.0, 0.5, 0.9]).run(400)
        assert found.bandit.incumbent == 1
        (change,) = found.bandit.drop(1, "failed")
        assert (change.kind, change.before) == (QUARANTINED, 1) and change.after != 1
        found.left, at = 0, len(found.arms)
        found.run(600)
        assert 1 not in found.arms[at:]
        assert found.bandit.incumbent == 2
        for arm in (0, 2, 0):
            found.bandit.drop(arm, "failed")
        found.left = 0
        found.run(10)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_a_state_is_taken_up(policy):
    found = Simulation(policy, [1.0, 0.7, 0.9]).run(600)
    state = json.loads(json.dumps(found.bandit.state()))
    again = Simulation(policy, [1.0, 0.7, 0.9])
    again.bandit.restore(state)
    again.run(50)
    assert again.bandit.incumbent == 1 and again.arms.count(1) >= 35
    with pytest.raises(ValueError, match="expected the state of 2 arms"):
        policy.start(2, random.Random(0)).restore(state)
    with pytest.raises((KeyError, TypeError)):
        policy.start(3, random.Random(0)).restore({})


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_seconds_that_are_none_are_left(policy):
    bandit = policy.start(2, random.Random(0))
    for _ in range(50):
        trial = bandit.ask()
        for seconds in (float("nan"), float("inf"), 0.0, -1.0):
            assert bandit.tell(trial, seconds) == ()
    assert bandit.incumbent == 0


def test_a_single_arm_just_serves():
    for policy in POLICIES:
        found = Simulation(policy, [1.0]).run(300)
        assert set(found.arms) == {0} and PROMOTED not in found.kinds


def test_a_lone_drift_returns_and_tries_again():
    found = Simulation(Paired(sample=1), [1.0, 0.7]).run(800)
    found.seconds[1] = 2.0
    found.run(400)
    assert found.bandit.incumbent == 0
    found.seconds[1] = 0.7
    found.run(6000)
    assert found.bandit.incumbent == 1, "it comes back when it is fast again"


def test_drift_returns_to_the_last_good_arm_without_a_try():
    found = Simulation(Paired(share=1e-9, sample=1), [1.0, 2.0])
    found.bandit.incumbent, found.bandit.good = 1, [0]
    found.bandit.arms[1].baseline = 1.0
    found.run(150)
    assert found.kinds == [DRIFTED] and found.bandit.incumbent == 0
    assert found.arms.count(1) <= 100, "two windows"
