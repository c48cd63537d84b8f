"""The protocol of policies that choose, call by call, among implementations of one program.

A `Policy` starts a `Bandit` for each context. The bandit is asked for a `Pull` before a call and is
told the seconds of those that it wants to know. It reads no clock and draws from the generator that
it is given, so that the same seconds lead to the same pulls. Arms are numbered; 0 is the one that
the owner started with.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

# Why an arm is taken: it serves; it is timed as the mate of the next call; it is tried.
SERVE, PAIR, EXPLORE = "serve", "pair", "explore"
# Kinds of changes.
PROMOTED, DROPPED, DRIFTED, REBASED, QUARANTINED = (
    "promoted",
    "dropped",
    "drifted",
    "rebased",
    "quarantined",
)


@dataclass(frozen=True, slots=True)
class Pull:
    """The arm of a call, why it is taken, and with what probability.

    repeat: how many further calls take the arm without asking. timed: the bandit is told seconds.
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
    """The choice in one context."""

    incumbent: int

    def choose(self) -> Pull:
        """Return the arm of the next call."""
        ...

    def observe(self, pull: Pull, seconds: float) -> Sequence[Change]:
        """Take the seconds of a timed call; return what follows."""
        ...

    def remove(self, arm: int, why: str) -> Sequence[Change]:
        """Never take an arm again: it failed or answered wrongly."""
        ...

    def state(self) -> dict[str, Any]:
        """Return all that was learned, as JSON data."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `state` returned. Raises KeyError, TypeError or ValueError for others."""
        ...


class Policy(Protocol):
    """A way to choose. `name` stands in files and logs."""

    @property
    def name(self) -> str:
        """The name of the policy."""
        ...

    def start(self, arms: int, draws: random.Random, expected: Sequence[float] = ()) -> Bandit:
        """Return the bandit of a context with so many arms.

        expected: of each arm, its seconds by those of the first; 0 where nothing is known.
        """
        ...
