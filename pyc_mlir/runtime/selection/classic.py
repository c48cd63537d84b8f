"""Thompson sampling and UCB over seconds, to compare PyC's policy with.

Both take each call's logarithm of seconds as a reward and know no pairs, budget or drift
(Thompson, 1933; Auer, Cesa-Bianchi and Fischer, 2002).
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyc_mlir.runtime.selection.policy import (
    EXPLORE,
    QUARANTINED,
    SERVE,
    Change,
    Pull,
)

_SPREAD = 0.3


@dataclass
class ClassicBandit:
    """The mean log seconds of each arm; the subclass says which arm comes next."""

    count: int
    draws: random.Random
    incumbent: int = 0
    calls: int = 0
    pulls: list[int] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pulls, self.means = [0] * self.count, [0.0] * self.count

    def score(self, arm: int) -> float:
        """Return what is least for the arm to take; each was pulled."""
        raise NotImplementedError

    def choose(self) -> Pull:
        """Return the arm of the next call: each once, then the one of the least score."""
        self.calls += 1
        left = [arm for arm in range(self.count) if arm not in self.removed]
        untried = [arm for arm in left if not self.pulls[arm]]
        arm = untried[0] if untried else min(left, key=self.score)
        return Pull(arm, SERVE if arm == self.incumbent else EXPLORE, 1.0 / len(left))

    def observe(self, pull: Pull, seconds: float) -> Sequence[Change]:
        """Take the seconds of a call."""
        if not (seconds > 0.0 and math.isfinite(seconds)):
            return ()
        arm = pull.arm
        self.pulls[arm] += 1
        self.means[arm] += (math.log(seconds) - self.means[arm]) / self.pulls[arm]
        known = [a for a in range(self.count) if self.pulls[a] and a not in self.removed]
        self.incumbent = min(known, key=self.means.__getitem__, default=self.incumbent)
        return ()

    def remove(self, arm: int, why: str) -> Sequence[Change]:
        """Never take an arm again, unless no other is left."""
        if len(self.removed) < self.count - 1 and arm not in self.removed:
            self.removed.append(arm)
        left = [a for a in range(self.count) if a not in self.removed]
        before = self.incumbent
        self.incumbent = before if before in left else min(left, key=self.means.__getitem__)
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


class ThompsonBandit(ClassicBandit):
    """Draw a mean for each arm from what is believed of it; take the least."""

    def score(self, arm: int) -> float:
        """Return a draw of the arm's mean."""
        return self.draws.gauss(self.means[arm], _SPREAD / math.sqrt(self.pulls[arm]))


class UcbBandit(ClassicBandit):
    """Take the arm of the lowest confidence bound."""

    def score(self, arm: int) -> float:
        """Return the lower bound of the arm's mean."""
        width = math.sqrt(2 * math.log(max(self.calls, 2)) / self.pulls[arm])
        return self.means[arm] - _SPREAD * width


@dataclass(frozen=True)
class Thompson:
    """Thompson sampling."""

    name: str = "thompson"

    def start(
        self, arms: int, draws: random.Random, expected: Sequence[float] = ()
    ) -> ThompsonBandit:
        """Return the bandit of a context with so many arms; nothing is expected of them."""
        return ThompsonBandit(arms, draws)


@dataclass(frozen=True)
class Ucb:
    """Upper confidence bounds (UCB1), here lower ones of seconds."""

    name: str = "ucb"

    def start(self, arms: int, draws: random.Random, expected: Sequence[float] = ()) -> UcbBandit:
        """Return the bandit of a context with so many arms; nothing is expected of them."""
        return UcbBandit(arms, draws)
