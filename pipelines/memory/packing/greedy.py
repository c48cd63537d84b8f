"""Place intervals one after another, each as low as it goes: an order decides everything.

The classic heuristic of static memory allocation (TFLite's and IREE's planners sort by size).
Placed intervals are kept sorted by offset in flat arrays, so that one placement is a handful of
vector operations. Many intervals are placed by machine code (native.py).
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from pyc_mlir.pipelines.memory.packing.intervals import MOST_BYTES, Intervals, Ints

NOWHERE = np.int64(MOST_BYTES)
# Above every offset: sums of sizes that are rounded up to alignments.
ANYWHERE = (1 << 63) - 1
# From this many intervals on machine code places them: compiling it costs a tenth of a second.
NATIVE = 400
# What comes first for as many: of made families of 50,000 these reach the bound of three within
# 1.4 seconds (docs/results/pack-orders.json), where all orders to their ends took up to 26.
MANY = ("load, life, first fit", "load, area, best fit")


class Order(NamedTuple):
    """The order in which intervals are placed (by number); `best_fit` takes the tightest gap."""

    name: str
    order: Ints
    best_fit: bool


class Placed:
    """The intervals placed so far, sorted by offset."""

    def __init__(self, capacity: int) -> None:
        self.count = 0
        self.first = np.empty(capacity, np.int32)
        self.past = np.empty(capacity, np.int32)
        self.offset = np.empty(capacity, np.int64)
        self.end = np.empty(capacity, np.int64)

    def lowest(self, first: int, past: int, size: int, align: int, best_fit: bool) -> int:
        """Return the lowest offset (or the tightest gap's) where [first, past) x size is free."""
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
    """Return offsets in bytes of the intervals placed in `order`; `spend` counts the work."""
    offsets = place_below(intervals, order, best_fit, spend)
    assert offsets is not None, "without a limit everything finds a place"
    return offsets


def place_below(
    intervals: Intervals,
    order: Ints,
    best_fit: bool,
    spend: Callable[[float], None],
    limit: int = ANYWHERE,
) -> Ints | None:
    """Run `place`; None as soon as an interval would end above `limit` bytes."""
    if len(order) >= NATIVE:
        from pyc_mlir.pipelines.memory.packing.native import place_natively

        return place_natively(intervals, order, best_fit, spend, limit)
    return place_in_python(intervals, order, best_fit, spend, limit)


def place_in_python(
    intervals: Intervals, order: Ints, best_fit: bool, spend: Callable[[float], None], limit: int
) -> Ints | None:
    """Run `place_below` for few intervals, as the reference for many."""
    first, past = (part.tolist() for part in intervals.sections[:2])
    size, alignment, granule = intervals.padded.tolist(), intervals.alignment, intervals.granule
    placed = Placed(len(intervals))
    offsets = np.zeros(len(intervals), np.int64)
    for b in order.tolist():
        align = int(alignment[b])
        offset = placed.lowest(
            first[b], past[b], size[b], 1 if align == granule else align, best_fit
        )
        spend(20 + placed.count / 250)
        if offset + size[b] > limit:
            return None
        placed.add(first[b], past[b], offset, size[b])
        offsets[b] = offset
    return offsets


def orders(intervals: Intervals) -> Iterator[Order]:
    """Yield the greedy orders, each with first fit and best fit, what mostly packs well first.

    By size (TFLite, IREE), lifetime, both in several mixtures, breadth (TFLite), the load that an
    interval meets (two of minimalloc's), classes of sizes with the longest first or as lanes (what
    boxes come to: Buchsbaum et al., 2003, and idealloc after them), births and deaths.
    """
    size = intervals.padded.astype(np.float64)
    life = (intervals.upper - intervals.lower).astype(np.float64)
    first, past, _ = intervals.sections
    width = (past - first).astype(np.float64)
    born, dead = intervals.lower, intervals.upper
    widest, met = _heaviest(intervals)
    classes = np.floor(np.log2(np.maximum(size, 1)))
    keys = (
        ("size", (-size, -life, born)),
        ("load, life", (-met, -life, -size * life, born)),
        ("classes, life", (-classes, -life, born)),
        ("size x life^0.3", (-size * width**0.3, -size, -life, born)),
        ("size x steps", (-size * width, -size, -life, born)),
        ("area", (-size * life, -size, -life, born)),
        ("classes, lanes", (-classes, _lanes(intervals, classes), born)),
        ("life", (-life, -size, born)),
        ("steps", (-width, -size, -life, born)),
        ("load, area", (-met, -size * life, -life, born)),
        ("breadth", (-met, widest, -size)),
        ("death, last first", (-dead, -size)),
        ("death", (dead, -size)),
        ("birth, largest first", (born, -size)),
        ("birth", (born,)),
    )
    fits = [(f"{name}, {fit} fit", columns) for name, columns in keys for fit in ("first", "best")]
    if len(intervals) >= NATIVE:
        fits.sort(key=lambda fit: MANY.index(fit[0]) if fit[0] in MANY else len(MANY))
    for name, columns in fits:
        yield Order(name, np.lexsort(columns[::-1]), name.endswith("best fit"))


def _heaviest(intervals: Intervals) -> tuple[Ints, Ints]:
    """Return each interval's first section of greatest load, and that load."""
    first, past, count = intervals.sections
    # Loads as ranks, ties to the earlier section: the least rank of a range names its section.
    by_load = np.lexsort((np.arange(count), -intervals.load))
    rank = np.empty(count, np.int64)
    rank[by_load] = np.arange(count)
    level = np.log2(past - first).astype(np.int64)
    least = np.empty(len(intervals), np.int64)
    for k in range(int(level.max(initial=0)) + 1):
        if k:
            half = 1 << (k - 1)
            rank = np.minimum(rank[:-half], rank[half:])
        here = np.flatnonzero(level == k)
        least[here] = np.minimum(rank[first[here]], rank[past[here] - (1 << k)])
    widest = by_load[least]
    return widest, intervals.load[widest]


def _lanes(intervals: Intervals, classes: Ints) -> Ints:
    """Assign lanes of intervals that do not meet within each class: as few as it needs."""
    lane = np.zeros(len(intervals), np.int64)
    free: dict[float, list[int]] = {}
    busy: dict[float, list[tuple[int, int]]] = {}
    used: dict[float, int] = {}
    order = np.argsort(intervals.lower, kind="stable")
    columns = (order, classes[order], intervals.lower[order], intervals.upper[order])
    for b, kind, lower, upper in zip(*(c.tolist() for c in columns), strict=True):
        idle, running = free.setdefault(kind, []), busy.setdefault(kind, [])
        while running and running[0][0] <= lower:
            heappush(idle, heappop(running)[1])
        if not idle:
            idle.append(used.get(kind, 0))
            used[kind] = idle[0] + 1
        lane[b] = heappop(idle)
        heappush(running, (upper, int(lane[b])))
    return lane
