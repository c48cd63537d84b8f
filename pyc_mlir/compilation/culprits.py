"""Find the changes that make something bad, with as few trials as possible.

Comes in: changes in order, and a test of some of them applied together. Goes out: `Culprits`, the
changes that suffice. For one culprit among n that is 3 + ceil(log2 n) tests: nothing applied, all
applied, a bisection of the prefixes, and the culprit alone. Changes may depend on each other: as
long as those found do not suffice, the next one is searched for below the last, in the same way
(the search for a minimal failing set of Zeller and Hildebrandt, "Simplifying and Isolating
Failure-Inducing Input", IEEE TSE 28(2), 2002, with prefixes in place of partitions).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Change = TypeVar("Change", bound=Hashable)
# True: bad; False: good; None: it cannot be told, such as where these do not go together.
Test = Callable[[Sequence[Change]], bool | None]


@dataclass(frozen=True)
class Culprits(Generic[Change]):
    """What makes it bad: `changes`, applied together; for a monotone test none can be left out.

    Where tests could not tell, a change has neighbours that could not be told from it. `tests` is
    how many were asked, `untold` how many of them had no answer.
    """

    changes: tuple[Change, ...]
    tests: int
    untold: int


class NothingToFind(ValueError):
    """The test says nothing of the changes: it is not good without them, or not bad with all."""

    def __init__(self, applied: str, answer: bool | None) -> None:
        super().__init__(applied)
        self.applied, self.answer = applied, answer


def find_culprits(changes: Sequence[Change], is_bad: Test[Change]) -> Culprits[Change]:
    """The changes that make it bad. Raises NothingToFind unless none is good and all are bad."""
    search = _Search(tuple(changes), is_bad)
    for applied, wanted in (("none", False), ("all", True)):
        answer = search.ask(search.changes if wanted else ())
        if answer is not wanted:
            raise NothingToFind(applied, answer)
    found: tuple[Change, ...] = ()
    rest = search.changes
    while rest:
        low, high = search.step(rest, found)
        found, rest = (*rest[low:high], *found), rest[:low]
        if search.ask(found):
            break
    return Culprits(found, len(search.answers), sum(a is None for a in search.answers.values()))


class _Search(Generic[Change]):
    """Asks each question once; changes are applied in their own order."""

    def __init__(self, changes: tuple[Change, ...], is_bad: Test[Change]) -> None:
        self.changes = changes
        self.answers: dict[tuple[Change, ...], bool | None] = {}
        self._is_bad = is_bad

    def ask(self, applied: Sequence[Change]) -> bool | None:
        """Whether it is bad with these."""
        key = tuple(applied)
        if key not in self.answers:
            self.answers[key] = self._is_bad(key)
        return self.answers[key]

    def step(self, rest: Sequence[Change], found: Sequence[Change]) -> tuple[int, int]:
        """Between which prefixes of `rest`, beside what was found, good turns bad.

        All of `rest` is bad and none of it is not; they are next to each other, but for prefixes
        that cannot be told.
        """
        low, high = 0, len(rest)
        untold: set[int] = set()
        while open_ := [k for k in range(low + 1, high) if k not in untold]:
            middle = min(open_, key=lambda k: (abs(2 * k - low - high), k))
            answer = self.ask((*rest[:middle], *found))
            if answer is None:
                untold.add(middle)
            elif answer:
                high = middle
            else:
                low = middle
        return low, high
