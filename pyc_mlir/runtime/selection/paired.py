"""PyC's policy: the incumbent serves, and others are tried next to a timed call of it.

Load makes neighbouring calls slow together, so only the logarithm of a pair's ratio counts. The
time that tries lose is a bounded share of all time. An arm takes the incumbent's place when the
upper bound of its mean ratio is below 1; one whose lower bound is above 1 rests. Two windows of the
incumbent's calls above 1.2 times its own baseline are drift: the last good arm serves again
(`lab/lanes/service.py` follows the same rule for recipes).
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pyc_mlir.runtime.selection.policy import (
    DRIFTED,
    DROPPED,
    EXPLORE,
    PAIR,
    PROMOTED,
    QUARANTINED,
    REBASED,
    SERVE,
    Change,
    Pull,
)

# The spread of log ratios that is assumed before any was seen, and for how many pairs it counts.
_SPREAD, _STRENGTH = 0.1, 2.0
# Standard errors of a bound, and pairs that a promotion needs.
_ERRORS, _LEAST_PAIRS = 2.0, 4
# A pair this many times slower is bad; so many of them drop an arm.
_BAD, _MOST_BAD = 2.0, 3
_MOST_RATIO = 1.6
# The calls that a try is assumed to lose before there was one: of an arm of which nothing is
# known, and beyond what is expected of another one.
_UNKNOWN, _UNSURE = 4.0, 0.5
# More than any ratio that is expected of an arm.
_NO_IDEA = 1e6
# In the first calls less may be lost.
_FIRST_CALLS, _FIRST_SHARE = 200, 0.02
# A window above this share of the baseline is drift, if so many in a row are; recipes of lanes
# follow the same rule. Windows are judged by a low quantile, since load makes calls slower, never
# faster.
DRIFT, IN_A_ROW = 1.2, 2
LOW_QUANTILE = 0.1
# The incumbent's mean seconds, as a share of its baseline, from which the last good arm is tried.
_SUSPECT = 1.5


def low_quantile(seconds: Sequence[float]) -> float:
    """Return the low quantile that windows are judged by."""
    return sorted(seconds)[max(math.ceil(LOW_QUANTILE * len(seconds)) - 1, 0)]


@dataclass
class _Arm:
    """The pairs of an arm with the incumbent: their number, mean log ratio, squared deviations.

    baseline: the arm's own low quantile of seconds when it came to serve; 0 if not known. loss: the
    share of a call that a try has lost in the mean. Ratios count up to `_MOST_RATIO`, since load
    makes single calls many times slower. expected: seconds by those of the owner's arm, 0 if not
    known.
    """

    expected: float = 0.0
    pairs: int = 0
    mean: float = 0.0
    squares: float = 0.0
    bad: int = 0
    dropped: str = ""
    baseline: float = 0.0
    rested: int = 0
    loss: float = 0.0

    def add(self, ratio: float) -> None:
        """Count a ratio of seconds (Welford's recurrence on its logarithm)."""
        self.pairs += 1
        self.loss += (max(ratio - 1, 0.0) - self.loss) / self.pairs
        ratio = math.log(min(max(ratio, 1 / _MOST_RATIO), _MOST_RATIO))
        delta = ratio - self.mean
        self.mean += delta / self.pairs
        self.squares += delta * (ratio - self.mean)

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        variance = (_STRENGTH * _SPREAD**2 + self.squares) / (self.pairs + _STRENGTH - 1)
        return math.sqrt(variance / max(self.pairs, 1))

    def forget(self) -> None:
        """Forget all pairs, but for what they let expect."""
        if self.pairs:
            self.expected = math.exp(self.mean)
        self.pairs, self.mean, self.squares, self.bad, self.rested = 0, 0.0, 0.0, 0, 0
        self.loss = 0.0


@dataclass
class PairedBandit:
    """The state of the policy in one context; see the module."""

    share: float
    every: int
    sample: int
    window: int
    rest: int
    arms: list[_Arm]
    incumbent: int = 0
    good: list[int] = field(default_factory=list)
    calls: int = 0
    spent: float = 0.0
    lost: float = 0.0
    since: int = 0
    turns: int = 0
    low: list[float] = field(default_factory=list)
    strikes: int = 0
    mate: float = 0.0
    typical: float = 0.0
    tried: int = -1
    woken: bool = False

    def choose(self) -> Pull:
        """Return the arm of the next call."""
        self.calls += 1
        self.since += 1
        wait = self._wait()
        if self.tried >= 0 and self.mate > 0.0:
            return Pull(self.tried, EXPLORE, 1.0 / wait)
        if self.since >= wait - 1 and (arm := self._next()) >= 0:
            self.tried, self.mate, self.since = arm, 0.0, 0
            return Pull(self.incumbent, PAIR)
        self.tried = -1
        repeat = max(min(self.sample - 1, wait - 2 - self.since), 0)
        if len(self.arms) < 2 or self.since >= wait:
            repeat = self.sample - 1
        self.calls += repeat
        self.since += repeat
        self.spent += repeat * self.typical
        return Pull(self.incumbent, SERVE, 1.0 - 1.0 / wait, repeat)

    def _wait(self) -> int:
        """Return the calls from one try to the next: half while an arm is hardly known."""
        for number, arm in enumerate(self.arms):
            if arm.pairs < _LEAST_PAIRS and not arm.dropped and number != self.incumbent:
                return max(self.every // 2, 2)
        return self.every

    def _next(self) -> int:
        """Return the arm to try, or -1 where none is worth it or the budget is spent."""
        self.turns += 1
        self._suspect()
        best, found = math.inf, -1
        for number, arm in enumerate(self.arms):
            if number == self.incumbent or arm.dropped:
                continue
            if arm.pairs:
                score = arm.mean - _ERRORS * arm.error
                if score > 0 and self.turns - arm.rested < self.rest:
                    continue
            else:
                # Untried arms come before others, in the order of what is expected of them.
                score = (arm.expected or _NO_IDEA) - 2 * _NO_IDEA
            if score < best and self._affords(arm):
                best, found = score, number
        return found

    def _suspect(self) -> None:
        """Begin anew with the last good arm, once, where the one that serves became slow."""
        base = self.arms[self.incumbent].baseline
        if self.good and base and not self.woken and self.typical > _SUSPECT * base:
            self.arms[self.good[-1]].forget()
            self.woken = True

    def _affords(self, arm: _Arm) -> bool:
        expected = max(arm.expected - 1, 0.0) + _UNSURE if arm.expected else _UNKNOWN
        expected = arm.loss if arm.pairs else expected
        share = min(self.share, _FIRST_SHARE) if self.calls <= _FIRST_CALLS else self.share
        return self.lost + expected * self.typical <= share * self.spent

    def observe(self, pull: Pull, seconds: float) -> Sequence[Change]:
        """Take the seconds of a timed call."""
        if not (seconds > 0.0 and math.isfinite(seconds)):
            return ()
        self.spent += seconds
        if pull.why == EXPLORE:
            return self._tried(pull.arm, seconds)
        if pull.arm != self.incumbent:
            return ()
        self.typical = seconds if not self.typical else 0.9 * self.typical + 0.1 * seconds
        if pull.why == PAIR:
            self.mate = seconds
        self.low.append(seconds)
        return self._windowed() if len(self.low) >= self.window else ()

    def _tried(self, number: int, seconds: float) -> Sequence[Change]:
        mate, self.tried, self.mate = self.mate, -1, 0.0
        arm = self.arms[number]
        if mate <= 0.0 or arm.dropped or number == self.incumbent:
            return ()
        self.lost += max(seconds - mate, 0.0)
        arm.add(seconds / mate)
        arm.bad += int(seconds >= _BAD * mate)
        arm.rested = self.turns
        if arm.bad >= _MOST_BAD and arm.mean > math.log(_BAD) / 2:
            arm.dropped = f"{arm.bad} pairs at {_BAD:g} times the incumbent or more"
            ratio = {"ratio": math.exp(arm.mean)}
            return (Change(DROPPED, number, self.incumbent, arm.dropped, ratio),)
        upper = arm.mean + _ERRORS * arm.error
        if arm.pairs < _LEAST_PAIRS or upper >= 0.0:
            return ()
        why = f"{arm.pairs} pairs with a ratio of {math.exp(arm.mean):.3f}"
        numbers = {"ratio": math.exp(arm.mean), "upper": math.exp(upper), "pairs": arm.pairs}
        return (self._serve(number, PROMOTED, why, numbers),)

    def _serve(self, number: int, kind: str, why: str, numbers: Mapping[str, float]) -> Change:
        """Let an arm take the incumbent's place."""
        before, new = self.incumbent, self.arms[number]
        moved = new.mean if new.pairs else 0.0
        for other in self.arms:
            other.mean -= moved
        self.arms[before].forget()
        if kind == PROMOTED:
            # The pairs say as much of the one that was left.
            self.arms[before].pairs, self.arms[before].mean = new.pairs, -moved
            self.arms[before].squares = new.squares
            self.good = [n for n in self.good if n not in (before, number)] + [before]
        new.forget()
        self.incumbent, self.low, self.strikes, self.tried = number, [], 0, -1
        self.woken = False
        return Change(kind, before, number, why, numbers)

    def _windowed(self) -> Sequence[Change]:
        """Judge a window of the incumbent's calls by its own baseline."""
        low = low_quantile(self.low)
        self.low = []
        arm = self.arms[self.incumbent]
        if not arm.baseline:
            arm.baseline = low
            return ()
        ratio = low / arm.baseline
        self.strikes = self.strikes + 1 if ratio > DRIFT else 0
        if self.strikes < IN_A_ROW:
            return ()
        why = f"{IN_A_ROW} windows in a row at {ratio:.2f} of its own baseline"
        return self._left(DRIFTED, why, {"ratio": ratio})

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
        self.strikes = 0
        return (Change(REBASED, self.incumbent, self.incumbent, why, numbers),)

    def remove(self, arm: int, why: str) -> Sequence[Change]:
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
        return asdict(self)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `state` returned; what is under way is not resumed. Raises ValueError."""
        arms = [_Arm(**arm) for arm in state["arms"]]
        incumbent, good = int(state["incumbent"]), [int(n) for n in state["good"]]
        if len(arms) != len(self.arms) or not all(
            n in range(len(arms)) for n in (incumbent, *good)
        ):
            raise ValueError(f"expected the state of {len(self.arms)} arms, got {len(arms)}")
        if arms[incumbent].dropped:
            raise ValueError("expected an incumbent that may serve")
        self.arms, self.incumbent, self.good = arms, incumbent, good
        for name in ("calls", "since", "turns"):
            setattr(self, name, int(state[name]))
        for name in ("spent", "lost", "typical"):
            setattr(self, name, float(state[name]))


@dataclass(frozen=True)
class Paired:
    """The policy of this module.

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
        made = [_Arm(e) for e in expected or [0.0] * arms]
        return PairedBandit(self.share, self.every, self.sample, self.window, self.rest, made)
