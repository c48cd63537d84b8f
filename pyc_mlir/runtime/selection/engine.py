"""Experiments: trials that are asked for and told of, and the rule for what follows from them.

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
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

# Why an arm is taken: it serves; it is timed as the mate of the next call; it is tried.
SERVE, PAIR, EXPLORE = "serve", "pair", "explore"
# Kinds of changes.
PROMOTED, DROPPED, DRIFTED = "promoted", "dropped", "drifted"
REBASED, QUARANTINED = "rebased", "quarantined"
# A window above this share of the baseline is drift, if so many in a row are. Windows are judged by
# a low quantile, since load makes calls slower, never faster.
DRIFT, IN_A_ROW, LOW_QUANTILE = 1.2, 2, 0.1


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
