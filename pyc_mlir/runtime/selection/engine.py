"""Experiments: trials that are asked for and told of, the rule for what follows, and policies.

    trial = bandit.ask()                  # which arm to take, and why
    changes = bandit.tell(trial, seconds) # what serves from now on, where that changes

An *arm* is one of several verified ways to compute the same; the *incumbent* is the one in use. The
tuner and the lanes measure in sessions, the selector measures calls in service. All of them decide
by ratios of neighbouring times (`verdict.py`) and by the rule here:

- promotion: an arm takes the incumbent's place when the paired test says that it is faster;
- drift: `IN_A_ROW` windows above `DRIFT` times the incumbent's own baseline;
- quarantine: a fault or a wrong answer bars an arm for good;
- rollback: what drifted or is barred gives way to the last good one.

An experiment reads no clock and draws from the generator that it is given, so that the same seconds
lead to the same trials.

`Paired` is PyC's own policy. The incumbent serves, and others are tried next to a timed call of it:
load makes neighbouring calls slow together, so only the ratio of a pair counts. The time that tries
lose is a bounded share of all time; a slower arm rests for a while. `Thompson` and `Ucb`, to
compare with, take each call's logarithm of seconds as a reward and know no pairs, budget or drift
(Thompson, 1933; Auer, Cesa-Bianchi and Fischer, 2002).
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from pyc_mlir.runtime.selection.verdict import LEAST_PAIRS, Pairs

# Why an arm is taken: it serves; it is timed as the mate of the next call; it is tried.
SERVE, PAIR, EXPLORE = "serve", "pair", "explore"
# Kinds of changes.
PROMOTED, DROPPED, DRIFTED = "promoted", "dropped", "drifted"
REBASED, QUARANTINED = "rebased", "quarantined"
# A window above this share of the baseline is drift, if so many in a row are. Windows are judged by
# a low quantile, since load makes calls slower, never faster.
DRIFT, IN_A_ROW, LOW_QUANTILE = 1.2, 2, 0.1
# A pair this many times slower is bad; so many of them drop an arm.
_BAD, _MOST_BAD = 2.0, 3
# The calls that a try is assumed to lose before there was one: of an arm of which nothing is
# known, and beyond what is expected of another one.
_UNKNOWN, _UNSURE = 4.0, 0.5
# More than any ratio that is expected of an arm.
_NO_IDEA = 1e6
# In the first calls less may be lost.
_FIRST_CALLS, _FIRST_SHARE = 200, 0.02
# The incumbent's mean seconds, as a share of its baseline, from which the last good arm is tried.
_SUSPECT = 1.5
# The deviation of log seconds that the bandits of the books assume.
_SPREAD = 0.3


@dataclass(frozen=True, slots=True)
class Trial:
    """The arm of a call, why it is taken, and with what probability.

    arm: its number; 0 is the one that the owner started with. repeat: how many further calls take
    the arm without asking. timed: the experiment is told the seconds.
    """

    arm: int
    why: str = SERVE
    probability: float = 1.0
    repeat: int = 0
    timed: bool = True


@dataclass(frozen=True)
class Change:
    """A change of what serves, or of what may: its kind, the arms before and after, the numbers."""

    kind: str
    before: int
    after: int
    why: str
    numbers: Mapping[str, float] = field(default_factory=dict)


class Bandit(Protocol):
    """The choice among arms in one context."""

    incumbent: int

    def ask(self) -> Trial:
        """Return the arm of the next call."""
        ...

    def tell(self, trial: Trial, seconds: float) -> Sequence[Change]:
        """Take the seconds of a timed call; return what follows."""
        ...

    def drop(self, arm: int, why: str) -> Sequence[Change]:
        """Never take an arm again: it failed or answered wrongly."""
        ...

    def state(self) -> dict[str, Any]:
        """Return all that was learned, as JSON data."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `state` returned. Raises KeyError, TypeError or ValueError for others."""
        ...


class Policy(Protocol):
    """A way to choose."""

    @property
    def name(self) -> str:
        """The name in files and logs."""
        ...

    def start(self, arms: int, draws: random.Random, expected: Sequence[float] = ()) -> Bandit:
        """Return the bandit of a context with so many arms.

        expected: of each arm, its seconds by those of the first; 0 where nothing is known.
        """
        ...


def quantile(seconds: Sequence[float], share: float) -> float:
    """Return the least value that `share` of the values do not exceed (nearest rank)."""
    return sorted(seconds)[max(math.ceil(share * len(seconds)), 1) - 1]


def low_quantile(seconds: Sequence[float]) -> float:
    """Return the quantile that windows are judged by."""
    return quantile(seconds, LOW_QUANTILE)


def drifted(lows: Sequence[float], baseline: float) -> list[float]:
    """Return the last windows' low quantiles by the baseline where they are drift; none else."""
    ratios = [low / baseline for low in lows[-IN_A_ROW:]]
    return ratios if len(ratios) == IN_A_ROW and min(ratios) > DRIFT else []


def _are_seconds(value: float) -> bool:
    return value > 0.0 and math.isfinite(value)


@dataclass
class _Arm(Pairs):
    """An arm's pairs with the incumbent.

    baseline: the arm's own low quantile of seconds when it came to serve; 0 if not known. loss: the
    share of a call that a try has lost in the mean. expected: seconds by those of the owner's arm,
    0 if not known. rested: the turn of its last try.
    """

    expected: float = 0.0
    bad: int = 0
    dropped: str = ""
    baseline: float = 0.0
    rested: int = 0
    loss: float = 0.0

    def add(self, ratio: float) -> None:
        """Count a ratio of seconds."""
        super().add(ratio)
        self.loss += (max(ratio - 1, 0.0) - self.loss) / self.pairs

    def forget(self) -> None:
        """Forget all pairs, but for what they let expect."""
        if self.pairs:
            self.expected = math.exp(self.mean)
        self.pairs, self.mean, self.squares, self.bad, self.rested = 0, 0.0, 0.0, 0, 0
        self.loss = 0.0


@dataclass
class PairedBandit:
    """The state of `Paired` in one context.

    good: arms that served before, the last one last. low: the incumbent's seconds in this window;
    lows: the low quantiles of its windows since it came to serve. mate: seconds of the timed call
    beside the try of `tried`. typical: the incumbent's mean seconds. spent, lost: seconds of all
    calls, and those that tries lost.
    """

    policy: "Paired"
    arms: list[_Arm]
    incumbent: int = 0
    good: list[int] = field(default_factory=list)
    calls: int = 0
    spent: float = 0.0
    lost: float = 0.0
    since: int = 0
    turns: int = 0
    low: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    mate: float = 0.0
    typical: float = 0.0
    tried: int = -1
    woken: bool = False

    def ask(self) -> Trial:
        """Return the arm of the next call."""
        self.calls += 1
        self.since += 1
        # Half the calls from one try to the next while an arm is hardly known.
        unknown = any(
            arm.pairs < LEAST_PAIRS and not arm.dropped and number != self.incumbent
            for number, arm in enumerate(self.arms)
        )
        every, sample = self.policy.every, self.policy.sample
        wait = max(every // 2, 2) if unknown else every
        if self.tried >= 0 and self.mate > 0.0:
            return Trial(self.tried, EXPLORE, 1.0 / wait)
        if self.since >= wait - 1 and (arm := self._next()) >= 0:
            self.tried, self.mate, self.since = arm, 0.0, 0
            return Trial(self.incumbent, PAIR)
        self.tried = -1
        repeat = max(min(sample - 1, wait - 2 - self.since), 0)
        if len(self.arms) < 2 or self.since >= wait:
            repeat = sample - 1
        self.calls += repeat
        self.since += repeat
        self.spent += repeat * self.typical
        return Trial(self.incumbent, SERVE, 1.0 - 1.0 / wait, repeat)

    def _next(self) -> int:
        """Return the arm to try, or -1 where none is worth it or the budget is spent."""
        self.turns += 1
        base = self.arms[self.incumbent].baseline
        if self.good and base and not self.woken and self.typical > _SUSPECT * base:
            # Begin anew with the last good arm, once, where the one that serves became slow.
            self.arms[self.good[-1]].forget()
            self.woken = True
        best, found = math.inf, -1
        for number, arm in enumerate(self.arms):
            if number == self.incumbent or arm.dropped:
                continue
            # Untried arms come before others, in the order of what is expected of them.
            score = (arm.expected or _NO_IDEA) - 2 * _NO_IDEA
            if arm.pairs:
                score = arm.mean - arm.half
                if score > 0 and self.turns - arm.rested < self.policy.rest:
                    continue
            if score < best and self._affords(arm):
                best, found = score, number
        return found

    def _affords(self, arm: _Arm) -> bool:
        expected = max(arm.expected - 1, 0.0) + _UNSURE if arm.expected else _UNKNOWN
        expected = arm.loss if arm.pairs else expected
        share = self.policy.share
        if self.calls <= _FIRST_CALLS:
            share = min(share, _FIRST_SHARE)
        return self.lost + expected * self.typical <= share * self.spent

    def tell(self, trial: Trial, seconds: float) -> Sequence[Change]:
        """Take the seconds of a timed call."""
        if not _are_seconds(seconds):
            return ()
        self.spent += seconds
        if trial.why == EXPLORE:
            return self._tried(trial.arm, seconds)
        if trial.arm != self.incumbent:
            return ()
        self.typical = seconds if not self.typical else 0.9 * self.typical + 0.1 * seconds
        if trial.why == PAIR:
            self.mate = seconds
        self.low.append(seconds)
        return self._windowed() if len(self.low) >= self.policy.window else ()

    def _tried(self, number: int, seconds: float) -> Sequence[Change]:
        mate, self.tried, self.mate = self.mate, -1, 0.0
        arm = self.arms[number]
        if mate <= 0.0 or arm.dropped or number == self.incumbent:
            return ()
        self.lost += max(seconds - mate, 0.0)
        arm.add(seconds / mate)
        arm.bad += int(seconds >= _BAD * mate)
        arm.rested = self.turns
        ratio = math.exp(arm.mean)
        if arm.bad >= _MOST_BAD and arm.mean > math.log(_BAD) / 2:
            arm.dropped = f"{arm.bad} pairs at {_BAD:g} times the incumbent or more"
            return (Change(DROPPED, number, self.incumbent, arm.dropped, {"ratio": ratio}),)
        if not arm.is_faster:
            return ()
        why = f"{arm.pairs} pairs with a ratio of {ratio:.3f}"
        numbers = {"ratio": ratio, "upper": math.exp(arm.mean + arm.half), "pairs": arm.pairs}
        return (self._serve(number, PROMOTED, why, numbers),)

    def _serve(self, number: int, kind: str, why: str, numbers: Mapping[str, float]) -> Change:
        """Let an arm take the incumbent's place."""
        before, new = self.incumbent, self.arms[number]
        moved = new.mean if new.pairs else 0.0
        for other in self.arms:
            other.mean -= moved
        old = self.arms[before]
        old.forget()
        if kind == PROMOTED:
            # The pairs say as much of the one that was left.
            old.pairs, old.mean, old.squares = new.pairs, -moved, new.squares
            self.good = [n for n in self.good if n not in (before, number)] + [before]
        new.forget()
        self.incumbent, self.low, self.lows, self.tried = number, [], [], -1
        self.woken = False
        return Change(kind, before, number, why, numbers)

    def _windowed(self) -> Sequence[Change]:
        """Judge a window of the incumbent's calls by its own baseline."""
        low, self.low = low_quantile(self.low), []
        arm = self.arms[self.incumbent]
        if not arm.baseline:
            arm.baseline = low
            return ()
        self.lows = [*self.lows, low][-IN_A_ROW:]
        ratios = drifted(self.lows, arm.baseline)
        if not ratios:
            return ()
        why = f"{IN_A_ROW} windows in a row at {ratios[-1]:.2f} of its own baseline"
        return self._left(DRIFTED, why, {"ratio": ratios[-1]})

    def _left(self, kind: str, why: str, numbers: Mapping[str, float]) -> Sequence[Change]:
        """Return to the last good arm; where there is none, begin anew with the incumbent."""
        while self.good:
            number = self.good.pop()
            if not self.arms[number].dropped:
                return (self._serve(number, kind, why, numbers),)
        if self.arms[self.incumbent].dropped:
            number = next((n for n, a in enumerate(self.arms) if not a.dropped), self.incumbent)
            return (self._serve(number, kind, why, numbers),)
        for arm in self.arms:
            arm.forget()
            arm.baseline = 0.0
        self.lows = []
        return (Change(REBASED, self.incumbent, self.incumbent, why, numbers),)

    def drop(self, arm: int, why: str) -> Sequence[Change]:
        """Never take an arm again."""
        if self.arms[arm].dropped:
            return ()
        self.arms[arm].dropped = why
        self.tried, self.mate = -1, 0.0
        if arm == self.incumbent:
            return self._left(QUARANTINED, why, {})
        return (Change(QUARANTINED, arm, self.incumbent, why),)

    def state(self) -> dict[str, Any]:
        """Return all that was learned, as JSON data."""
        return {name: value for name, value in asdict(self).items() if name != "policy"}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `state` returned; what is under way is not resumed. Raises ValueError."""
        arms = [_Arm(**arm) for arm in state["arms"]]
        incumbent, good = int(state["incumbent"]), [int(n) for n in state["good"]]
        known = range(len(arms))
        if len(arms) != len(self.arms) or not all(n in known for n in (incumbent, *good)):
            raise ValueError(f"expected the state of {len(self.arms)} arms, got {len(arms)}")
        if arms[incumbent].dropped:
            raise ValueError("expected an incumbent that may serve")
        self.arms, self.incumbent, self.good = arms, incumbent, good
        self.calls, self.since, self.turns = (int(state[n]) for n in ("calls", "since", "turns"))
        self.spent, self.lost = float(state["spent"]), float(state["lost"])
        self.typical = float(state["typical"])


@dataclass(frozen=True)
class Paired:
    """PyC's policy, see the module.

    share: of all time that tries may lose. every: one call in so many is a try, two while an arm is
    hardly known. sample: of the calls that serve, one in so many is timed. window: timed calls that
    drift is judged by. rest: tries after which an arm that was slower is tried again.
    """

    share: float = 0.05
    every: int = 20
    sample: int = 16
    window: int = 50
    rest: int = 200
    name: str = "paired"

    def start(
        self, arms: int, draws: random.Random, expected: Sequence[float] = ()
    ) -> PairedBandit:
        """Return the bandit of a context with so many arms."""
        return PairedBandit(self, [_Arm(expected=e) for e in expected or [0.0] * arms])


@dataclass
class ClassicBandit:
    """The mean log seconds of each arm. score: what is least for the arm to take next."""

    count: int
    score: Callable[["ClassicBandit", int], float]
    incumbent: int = 0
    calls: int = 0
    pulls: list[int] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pulls, self.means = [0] * self.count, [0.0] * self.count

    @property
    def _left(self) -> list[int]:
        return [arm for arm in range(self.count) if arm not in self.removed]

    def ask(self) -> Trial:
        """Return the arm of the next call: each once, then the one of the least score."""
        self.calls += 1
        left = self._left
        untried = [arm for arm in left if not self.pulls[arm]]
        arm = untried[0] if untried else min(left, key=lambda arm: self.score(self, arm))
        return Trial(arm, SERVE if arm == self.incumbent else EXPLORE, 1.0 / len(left))

    def tell(self, trial: Trial, seconds: float) -> Sequence[Change]:
        """Take the seconds of a call."""
        if _are_seconds(seconds):
            arm = trial.arm
            self.pulls[arm] += 1
            self.means[arm] += (math.log(seconds) - self.means[arm]) / self.pulls[arm]
            known = [a for a in self._left if self.pulls[a]]
            self.incumbent = min(known, key=self.means.__getitem__, default=self.incumbent)
        return ()

    def drop(self, arm: int, why: str) -> Sequence[Change]:
        """Never take an arm again, unless no other is left."""
        if len(self.removed) < self.count - 1 and arm not in self.removed:
            self.removed.append(arm)
        if self.incumbent not in self._left:
            self.incumbent = min(self._left, key=self.means.__getitem__)
        return (Change(QUARANTINED, arm, self.incumbent, why),)

    def state(self) -> dict[str, Any]:
        """Return all that was learned, as JSON data."""
        return {"pulls": self.pulls, "means": self.means, "removed": self.removed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `state` returned. Raises ValueError."""
        pulls, means = list(map(int, state["pulls"])), list(map(float, state["means"]))
        if len(pulls) != self.count or len(means) != self.count:
            raise ValueError(f"expected the state of {self.count} arms, got {len(pulls)}")
        self.pulls, self.means = pulls, means
        self.removed = [int(arm) for arm in state["removed"] if int(arm) in range(self.count)]
        self.calls = sum(pulls)


@dataclass(frozen=True)
class Thompson:
    """Thompson sampling: draw a mean for each arm from what is believed of it; take the least."""

    name: str = "thompson"

    def start(
        self, arms: int, draws: random.Random, expected: Sequence[float] = ()
    ) -> ClassicBandit:
        """Return the bandit of a context with so many arms; nothing is expected of them."""
        return ClassicBandit(
            arms, lambda b, arm: draws.gauss(b.means[arm], _SPREAD / math.sqrt(b.pulls[arm]))
        )


@dataclass(frozen=True)
class Ucb:
    """UCB1 with lower bounds of seconds: take the arm of the lowest confidence bound."""

    name: str = "ucb"

    def start(
        self, arms: int, draws: random.Random, expected: Sequence[float] = ()
    ) -> ClassicBandit:
        """Return the bandit of a context with so many arms; nothing is expected of them."""

        def score(b: ClassicBandit, arm: int) -> float:
            return b.means[arm] - _SPREAD * math.sqrt(2 * math.log(max(b.calls, 2)) / b.pulls[arm])

        return ClassicBandit(arms, score)


POLICIES: dict[str, Callable[..., Policy]] = {"paired": Paired, "thompson": Thompson, "ucb": Ucb}
