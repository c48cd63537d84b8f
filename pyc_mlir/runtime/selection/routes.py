"""The route of a cluster of shapes, and what a selector tells of it.

A `Route` is what calls of one cluster may take. `SelectorEvent` is a change, `RouteCount` the
counts of a route, and `Observer` the protocol of what hears of both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyc_mlir.runtime.selection.policy import Bandit, Pull

QUIET, BUSY, TIGHT, WAITING = "quiet", "busy", "tight", "waiting"
SERVED = Pull(0, timed=False)


@dataclass(frozen=True)
class SelectorEvent:
    """A change in one route and context: the arms by name, and why."""

    route: str
    context: str
    kind: str
    before: str
    after: str
    why: str
    numbers: Mapping[str, float]

    def __str__(self) -> str:
        arms = f"{self.before} -> {self.after}"
        return f"{self.route} ({self.context}): {self.kind}, {arms}: {self.why}"


@dataclass(frozen=True)
class RouteCount:
    """The calls of one route: by arm, those that were tries, and the seconds that these lost."""

    route: str
    calls: Mapping[str, int]
    tries: int
    lost_seconds: float
    serving: Mapping[str, str]


class Observer(Protocol):
    """Hears what a selector measures and changes; `lab/lanes/observer.py` keeps it in a database.

    Methods run on the thread of a call, under the selector's lock: none of them may wait.
    """

    def begin(self, selector: Any, program: str) -> Mapping[str, Any]:
        """Return what was learned of the program before, as `Selector.learned` gave it."""
        ...

    def refused(self, arm: str) -> str:
        """Return why an arm may not be taken; empty if it may."""
        ...

    def timed(self, route: str, context: str, arm: str, seconds: float) -> None:
        """Take the seconds of a call of the arm that serves."""
        ...

    def failed(self, route: str, arm: str, why: str) -> None:
        """Take note of an arm that failed or answered wrongly."""
        ...

    def changed(self, event: SelectorEvent) -> None:
        """Take note of a change."""
        ...


class Arenas(Protocol):
    """The pool of a program's arenas, as a selector asks it."""

    waits: int

    def trim(self) -> None:
        """Let go of the memory of arenas that no call works in."""
        ...


class Route:
    """The arms of one cluster of shapes, and which of them calls take.

    least: the arm with the smallest arena, which serves while memory is short; -1 if all are equal.
    """

    __slots__ = (
        *("_ask", "arms", "bandits", "calls", "context", "expected", "least", "left", "name"),
        *("pull", "tries"),
    )

    def __init__(
        self,
        name: str,
        arms: Sequence[str],
        ask: Callable[["Route"], Pull],
        expected: Sequence[float] = (),
    ) -> None:
        self.name, self.arms, self.expected = name, tuple(arms), tuple(expected)
        self.bandits: dict[str, Bandit] = {}
        self.calls = [0] * len(arms)
        self.tries, self.least = 0, -1
        self.context = QUIET
        self.pull, self.left = SERVED, 0
        self._ask = ask

    def next(self) -> Pull:
        """Return the arm of the next call. Several threads may ask."""
        if self.left > 0:
            self.left -= 1
            return self.pull
        return self._ask(self)
