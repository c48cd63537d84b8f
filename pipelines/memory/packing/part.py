"""Bounds on the offsets of a part's intervals that must end below a capacity.

A part is a set of intervals that are connected in time; the state of a search in it is the lowest
offset that each free interval may have (`FIXED` for those that are placed) and the sizes left in
each section. In a section the free intervals stand on one another, like jobs on one machine whose
release dates are the lowest offsets and whose deadline is the capacity. Two rules follow, both from
one-machine scheduling (Carlier and Pinson, 1989):

- the lowest of a section's lowest offsets plus all sizes left there may not pass the capacity;
- an interval whose lowest offset plus all sizes left in one of its sections pass the capacity is
  not the first there ("not first"): it lies above the earliest end of an interval in that section.
"""

from dataclasses import dataclass

import numpy as np

from pyc_mlir.pipelines.memory.packing.intervals import Intervals, Ints

FIXED = np.int64(1) << 60


@dataclass(frozen=True, eq=False)
class PackingState:
    """lowest: of each interval; left: sizes in each section; floor: of each section, once known."""

    lowest: Ints
    left: Ints
    floor: Ints


@dataclass(frozen=True, eq=False)
class PackingPart:
    """Intervals sorted by first section, and who is where as flat pairs (interval, section).

    number: of each interval in the whole instance. meets: 0/1 matrix, False on the diagonal.
    The pairs come in two orders: sections of interval after interval (`where`, beginning at
    `of_interval`, whose interval is `whose`), and intervals of section after section (`members`,
    beginning at `of_section`, whose section is `which`).
    """

    number: Ints
    first: Ints
    past: Ints
    size: Ints
    meets: Ints
    where: Ints
    whose: Ints
    of_interval: Ints
    members: Ints
    which: Ints
    of_section: Ints

    @staticmethod
    def of(number: Ints, lower: Ints, upper: Ints, size: Ints) -> "PackingPart":
        """Return the part of intervals alive in [lower, upper): sections are counted anew."""
        order = np.argsort(lower, kind="stable")
        lower, upper, size = lower[order], upper[order], size[order]
        first, past, count = Intervals(lower, upper, size, size).sections
        sections = np.arange(count)
        inside = (first[:, None] <= sections) & (sections < past[:, None])
        meets = (first[:, None] < past) & (first < past[:, None])
        np.fill_diagonal(meets, False)
        whose, where = inside.nonzero()
        which, members = inside.T.nonzero()
        of_interval = np.append(0, inside.sum(1).cumsum()[:-1])
        of_section = np.append(0, inside.sum(0).cumsum()[:-1])
        flat = (where, whose, of_interval, members, which, of_section)
        return PackingPart(number[order], first, past, size, meets, *flat)

    @property
    def loads(self) -> Ints:
        """The sum of sizes in each section."""
        return np.add.reduceat(self.size[self.members], self.of_section)

    @property
    def work(self) -> float:
        """The work of one call of `deduce`, in the units of `work.WorkLimit`."""
        return 40 + len(self.where) / 40

    def deduce(self, lowest: Ints, left: Ints, capacity: int) -> PackingState | None:
        """Raise the lowest offsets as far as the rules do it; None when the capacity is passed."""
        most = np.where(left > 0, capacity - left, FIXED)
        latest = np.minimum.reduceat(most[self.where], self.of_interval)
        while True:
            floor = np.minimum.reduceat(lowest[self.members], self.of_section)
            if (floor > most).any():
                return None
            late = (lowest > latest) & (lowest < FIXED)
            if not late.any():
                return PackingState(lowest, left, floor)
            ends = lowest + self.size
            if (ends[late] > capacity).any():
                return None
            earliest = np.minimum.reduceat(ends[self.members], self.of_section)
            wrong = lowest[self.whose] > most[self.where]
            above = np.maximum.reduceat(wrong * earliest[self.where], self.of_interval)
            raised = np.where(late, np.maximum(lowest, above), lowest)
            if (raised == lowest).all():
                return PackingState(lowest, left, floor)
            lowest = raised

    def placed(self, state: PackingState, chosen: int, capacity: int) -> PackingState | None:
        """`chosen` rests at its lowest offset; all free ones that it meets go above it."""
        lowest = state.lowest.copy()
        top = lowest[chosen] + self.size[chosen]
        np.maximum(lowest, top, out=lowest, where=self.meets[chosen])
        lowest[chosen] = FIXED
        left = state.left.copy()
        left[self.first[chosen] : self.past[chosen]] -= self.size[chosen]
        return self.deduce(lowest, left, capacity)

    def postponed(self, state: PackingState, chosen: int, capacity: int) -> PackingState | None:
        """`chosen` does not rest at its lowest offset: it lies on one of those that it meets."""
        over = (state.lowest + self.size)[self.meets[chosen]].min(initial=FIXED)
        if over + self.size[chosen] > capacity:
            return None
        lowest = state.lowest.copy()
        lowest[chosen] = over
        return self.deduce(lowest, state.left, capacity)

    def pieces(self, lowest: Ints) -> list[Ints]:
        """Return what is free, in groups that share no time, the smallest group first."""
        free = np.flatnonzero(lowest < FIXED)
        if not len(free):
            return []
        reach = np.maximum.accumulate(self.past[free])
        cuts = np.flatnonzero(self.first[free][1:] >= reach[:-1]) + 1
        return sorted(np.split(free, cuts), key=len) if len(cuts) else [free]
