"""Place intervals one after another, each as low as it goes: an order decides everything.

The classic heuristic of static memory allocation (TFLite's and IREE's planners sort by size).
Placed intervals are kept sorted by offset in flat arrays, so that one placement is a handful of
vector operations: 50,000 intervals take seconds, whatever the number of overlapping pairs.
"""

from collections.abc import Callable, Iterator

import numpy as np

from pyc_mlir.pipelines.memory.packing.intervals import MOST_BYTES, Intervals, Ints

NOWHERE = np.int64(MOST_BYTES)


class Placed:
    """The intervals placed so far, sorted by offset."""

    def __init__(self, capacity: int) -> None:
        self.count = 0
        self.first = np.empty(capacity, np.int32)
        self.past = np.empty(capacity, np.int32)
        self.offset = np.empty(capacity, np.int64)
        self.end = np.empty(capacity, np.int64)

    def lowest(self, first: int, past: int, size: int, align: int, best_fit: bool) -> int:
        """The lowest offset (or that of the tightest gap) where [first, past) x size is free."""
        n = self.count
        hit = ((self.first[:n] < past) & (self.past[:n] > first)).nonzero()[0]
        if not len(hit):
            return 0
        below = np.empty(len(hit) + 1, np.int64)
        below[0] = 0
        np.maximum.accumulate(self.end[hit], out=below[1:])
        if align > 1:
            below = -(-below // align) * align
        gaps = self.offset[hit] - below[:-1]
        if not best_fit:
            gap = int((gaps >= size).argmax())
            return int(below[gap] if gaps[gap] >= size else below[-1])
        gaps[gaps < size] = NOWHERE
        gap = int(gaps.argmin())
        return int(below[gap] if gaps[gap] < NOWHERE else below[-1])

    def add(self, first: int, past: int, offset: int, size: int) -> None:
        """Put an interval at an offset where it is free."""
        n = self.count
        at = int(self.offset[:n].searchsorted(offset))
        rows = (
            (self.first, first),
            (self.past, past),
            (self.offset, offset),
            (self.end, offset + size),
        )
        for column, value in rows:
            column[at + 1 : n + 1] = column[at:n]
            column[at] = value
        self.count = n + 1


def place(
    intervals: Intervals, order: Ints, best_fit: bool, spend: Callable[[float], None]
) -> Ints:
    """Offsets in bytes when the intervals are placed in `order`; `spend` is told of the work."""
    first, past = (part.tolist() for part in intervals.sections[:2])
    size, alignment, granule = intervals.padded.tolist(), intervals.alignment, intervals.granule
    placed = Placed(len(intervals))
    offsets = np.zeros(len(intervals), np.int64)
    for b in order.tolist():
        align = int(alignment[b])
        offset = placed.lowest(
            first[b], past[b], size[b], 1 if align == granule else align, best_fit
        )
        placed.add(first[b], past[b], offset, size[b])
        offsets[b] = offset
        spend(20 + placed.count / 250)
    return offsets


def orders(intervals: Intervals) -> Iterator[tuple[Ints, bool]]:
    """The classic orders, the strongest first, each with first fit and best fit where it pays."""
    size = intervals.padded.astype(np.float64)
    life = (intervals.upper - intervals.lower).astype(np.float64)
    first, past, _ = intervals.sections
    width = (past - first).astype(np.float64)
    for best_fit in (False, True):
        for key in (size, size * width**0.3, size * width, width, size * life):
            yield np.lexsort((intervals.lower, -life, -size, -key)), best_fit
        yield np.lexsort((-size, intervals.lower)), best_fit
