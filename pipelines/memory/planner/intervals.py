"""The packing problem: intervals with sizes, as arrays, a bound on the arena, a limit of work.

An interval is alive at the times lower <= t < upper. Only the order of its ends matters, so times
are first replaced by *sections*: one for each birth that follows a death. Sizes are counted in
*units* that every offset may be assumed to be a multiple of: pushing all intervals down makes
each offset a sum of sizes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode

Ints = np.ndarray
# Sizes add up to less, so that no sum of offsets leaves 64 bits.
MOST_BYTES = 1 << 60


@dataclass(frozen=True, eq=False)
class Intervals:
    """Equally long int64 arrays: lives [lower, upper), sizes in bytes, alignments in bytes.

    unit: bytes that every offset is a multiple of, for a part of other intervals; 0: see `granule`.
    """

    lower: Ints
    upper: Ints
    size: Ints
    alignment: Ints
    unit: int = field(default=0, kw_only=True)

    @staticmethod
    def of(rows: Iterable[tuple[int, int, int]], alignment: int = 1) -> "Intervals":
        """Make intervals of (lower, upper, size) that share an alignment.

        Raises PycError (BAD_ARGUMENT) for numbers of more than 64 bits.
        """
        try:
            table = np.array(list(rows), np.int64).reshape(-1, 3)
        except OverflowError:
            raise PycError(
                ReasonCode.BAD_ARGUMENT, "intervals: expected numbers of 64 bits, got a larger one"
            ) from None
        lower, upper, size = table.T.copy()
        return Intervals(lower, upper, size, np.full(len(table), alignment, np.int64))

    def __len__(self) -> int:
        return len(self.size)

    def check(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for an empty life, a negative size or no alignment.

        Likewise for sizes that add up to MOST_BYTES.
        """
        wrong = (self.upper <= self.lower) | (self.size < 0) | (self.alignment < 1)
        if wrong.any():
            i = int(wrong.argmax())
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"interval {i}: expected lower < upper, size >= 0 and alignment >= 1, got "
                f"[{self.lower[i]}, {self.upper[i]}), {self.size[i]} and {self.alignment[i]}",
            )
        total = float(self.size.sum(dtype=np.float64))
        if total >= MOST_BYTES:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"intervals: expected sizes of fewer than {MOST_BYTES} bytes in all, "
                f"got {total:.3g}",
            )

    @cached_property
    def granule(self) -> int:
        """The bytes that every offset is a multiple of: the alignments' greatest divisor."""
        return self.unit or int(np.gcd.reduce(self.alignment[self.size > 0], initial=0)) or 1

    @cached_property
    def padded(self) -> Ints:
        """Sizes rounded up to the granule."""
        return -(-self.size // self.granule) * self.granule

    @cached_property
    def sections(self) -> tuple[Ints, Ints, int]:
        """First section, one past the last, of each interval; and how many sections there are."""
        births = np.unique(self.lower)
        deaths = np.unique(self.upper)
        # Until something dies, a later birth only adds: the earlier times see nothing more.
        follows = np.searchsorted(deaths, births, side="right")
        last = np.append(follows[1:] != follows[:-1], True) if len(births) else np.empty(0, bool)
        ends = births[last]
        first = np.searchsorted(ends, self.lower)
        past = np.searchsorted(ends, self.upper)
        return first.astype(np.int32), past.astype(np.int32), len(ends)

    @cached_property
    def load(self) -> Ints:
        """Padded bytes that are alive in each section."""
        first, past, count = self.sections
        change = np.zeros(count + 1, np.int64)
        np.add.at(change, first, self.padded)
        np.add.at(change, past, -self.padded)
        return change[:count].cumsum()

    @property
    def lower_bound(self) -> int:
        """The greatest sum of bytes alive at one time: no arena is smaller."""
        return int(self.load.max(initial=0))

    def take(self, chosen: Ints) -> "Intervals":
        """Return the chosen intervals, by number."""
        return Intervals(
            self.lower[chosen],
            self.upper[chosen],
            self.size[chosen],
            self.alignment[chosen],
            unit=self.granule,
        )

    def components(self) -> list[Ints]:
        """Return the groups of intervals that share no time with one another, in order of time."""
        order = np.argsort(self.lower, kind="stable")
        if not len(order):
            return []
        reach = np.maximum.accumulate(self.upper[order])
        cuts = np.flatnonzero(self.lower[order][1:] >= reach[:-1]) + 1
        return np.split(order, cuts)

    def arena(self, offsets: Ints) -> int:
        """Return the end of the highest interval, in padded bytes."""
        return int((offsets + self.padded).max(initial=0))


@dataclass(frozen=True, eq=False)
class Packing:
    """Offsets in bytes, one per interval, and what is known of them.

    proven: no packing is smaller, since the arena is the lower bound or a search has ended.
    fits: the arena is no larger than the capacity that was asked for.
    work: how much was searched, in the units of `work.WorkLimit`.
    """

    offsets: Ints
    arena_bytes: int
    lower_bound: int
    proven: bool
    work: int
    fits: bool = True

    @property
    def gap(self) -> float:
        """The distance of the arena above the lower bound, as a share of it."""
        return self.arena_bytes / self.lower_bound - 1 if self.lower_bound else 0.0


def scale(intervals: Intervals) -> tuple[Ints, int]:
    """Return sizes in units, and the bytes of a unit.

    With one alignment for all, the unit is the padded sizes' greatest divisor: bottom-up packings
    have only sums of sizes as offsets. Else it is the granule.
    """
    one = not len(intervals) or bool((intervals.alignment == intervals.alignment[0]).all())
    unit = int(np.gcd.reduce(intervals.padded, initial=0)) if one else intervals.granule
    unit = unit or 1
    return intervals.padded // unit, unit


class Exhausted(Exception):
    """The budget is spent; whoever owns the search returns the best that it has."""


class WorkLimit:
    """A count of work against a limit. A unit is about a microsecond of a 3 GHz core.

    `stop` is asked as well, now and then: a caller with a deadline (whose result then depends on
    the machine) gives a function that looks at a clock.
    """

    def __init__(self, limit: int, stop: Callable[[], bool] = lambda: False) -> None:
        self.limit, self.stop = limit, stop
        self.spent = 0

    def count(self, work: float) -> None:
        """Count `work` units that are done whatever the limit."""
        self.spent += int(work)

    def spend(self, work: float) -> None:
        """Count `work` units. Raises Exhausted when the limit is passed."""
        self.count(work)
        if self.spent >= self.limit or self.stop():
            raise Exhausted
