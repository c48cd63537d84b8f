"""Does everything fit below a capacity? A search in many unfinished packings at once.

Each packing of the population is built bottom up: the next interval rests at the lowest free
offset, and all gaps below it are final, as in the canonical packings of Moffitt ("MiniMalloc",
ASPLOS 2023). A packing is lost as soon as a section's lowest free offset and the sizes still to
come exceed the capacity. Where MiniMalloc backtracks in one packing, here copies of the surviving
ones take the place of the lost, and equal ones are merged: a step for hundreds of packings is a
handful of vector operations. Each has its own taste (weights of life, size and load, and noise).
When all are lost, the search resumes from a population kept some steps earlier, further back the
more often (Luby et al., 1993). What is left of a packing falls apart in time: the earliest part is
finished first, so that parts do not multiply one another's odds.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from pyc_mlir.pipelines.planner.intervals import Intervals, Ints, scale

# Children tried of each packing; steps between populations kept; losses until fresh tastes.
CHILDREN = 3
STRIDE = 12
LOSSES = 128
# How much a taste changes when its population is resumed.
CHANGE = np.float32(0.3)

Step = tuple[Ints, Ints, Ints]


@dataclass(frozen=True, eq=False)
class Shape:
    """A component's intervals in sections and units; who meets whom and what as 0/1 matrices.

    `crosses` says which intervals live on from each section into the next. `placed` is the offset
    of what needs no place any more: above every free one.
    """

    first: Ints
    size: Ints
    meets: Ints
    covers: Ints
    crosses: Ints
    load: Ints
    room: tuple[Ints, Ints]
    unit: int
    placed: int

    @staticmethod
    def of(intervals: Intervals) -> "Shape":
        """Read the intervals. Sums of sizes have to stay below 2**28 units."""
        first, past, count = intervals.sections
        size, unit = scale(intervals)
        load = intervals.load // unit
        kind = np.int16 if load.max() < 1 << 12 else np.int32
        sections = np.arange(count)[:, None]
        covers = (first <= sections) & (sections < past)
        meets = (first[:, None] < past) & (first < past[:, None])
        np.fill_diagonal(meets, False)
        return Shape(
            first,
            size.astype(kind),
            meets.astype(kind),
            covers.astype(kind),
            (covers & (sections < past - 1)).astype(kind),
            load.astype(kind),
            (covers.nonzero()[1], np.append(0, covers.sum(1).cumsum()[:-1])),
            unit,
            1 << (13 if kind is np.int16 else 29),
        )

    def lowest(self, offset: Ints) -> Ints:
        """The lowest offset of an interval in each section."""
        members, starts = self.room
        return np.minimum.reduceat(offset[members], starts, axis=0)


class Ranges:
    """Maxima over each interval's sections, by the sparse table of Bender and Farach-Colton."""

    def __init__(self, first: Ints, past: Ints, count: int) -> None:
        levels = np.log2(past - first).astype(np.int64)
        self.low = levels * count + first
        self.high = levels * count + past - (1 << levels)
        self.depth = int(levels.max()) + 1

    def __call__(self, rows: Ints) -> Ints:
        """The maximum of `rows` (section by packing) for every interval (by packing)."""
        count, width = rows.shape
        table = np.empty((self.depth, count, width), rows.dtype)
        table[0] = rows
        for k in range(1, self.depth):
            half = 1 << (k - 1)
            table[k] = table[k - 1]
            np.maximum(table[k - 1, :-half], table[k - 1, half:], out=table[k, :-half])
        flat = table.reshape(-1, width)
        return np.maximum(flat[self.low], flat[self.high])


@dataclass(frozen=True, eq=False)
class Packings:
    """Unfinished packings, one a column; `mark` tells them apart.

    offset: the lowest free one of each interval; to_come: sizes left in each section;
    bridges: intervals left that live on from each section into the next.
    """

    offset: Ints
    to_come: Ints
    bridges: Ints
    taste: Ints
    mark: Ints

    def columns(self, chosen: Ints) -> "Packings":
        """Some of them, by number."""
        return Packings(*(getattr(self, f.name)[..., chosen] for f in fields(self)))

    @staticmethod
    def joined(parts: list["Packings"]) -> "Packings":
        """All of several populations."""
        if len(parts) == 1:
            return parts[0]
        names = [f.name for f in fields(Packings)]
        return Packings(*(np.concatenate([getattr(p, n) for p in parts], -1) for n in names))


class Population:
    """The search for one component; each `fit` is a new attempt with other tastes."""

    def __init__(self, intervals: Intervals, random: np.random.Generator) -> None:
        self.shape = shape = Shape.of(intervals)
        self.random = random
        first, past, count = intervals.sections
        self.highest = Ranges(first, past, count)
        self.marks = random.integers(1, 1 << 62, len(shape.size))
        self.step_work = 50 + len(shape.size) + len(shape.room[0])
        load = np.where(shape.covers > 0, shape.load[:, None], 0).max(0)
        life = intervals.upper - intervals.lower
        self.features = np.log(np.stack((life, np.maximum(shape.size, 1), np.maximum(load, 1))))

    def fit(self, capacity: int, width: int, spend: Callable[[float], None]) -> Ints | None:
        """Offsets in bytes within `capacity` bytes, or None: nothing was found."""
        limit = min(capacity // self.shape.unit, self.shape.placed // 2)
        packings = self._start(width)
        kept: list[tuple[int, Packings]] = [(0, packings)]
        history: list[Step] = []
        losses = 0
        while len(history) < len(self.shape.size):
            spend(100 + width * self.step_work / 200)
            grown = self._grow(packings, limit, width)
            if grown is not None:
                packings, step = grown
                history.append(step)
                if len(history) % STRIDE == 0:
                    kept.append((len(history), packings))
                continue
            losses += 1
            back = len(history) - STRIDE * (losses & -losses)
            if back < 0 or losses > LOSSES:
                return None
            while kept[-1][0] > back:
                kept.pop()
            del history[kept[-1][0] :]
            packings = self._changed(kept[-1][1])
        return self._offsets(history)

    def _offsets(self, history: list[Step]) -> Ints:
        """The offsets in bytes of the first packing that is finished."""
        offsets = np.zeros(len(self.shape.size), np.int64)
        at = 0
        for parents, chosen, where in reversed(history):
            offsets[chosen[at]] = where[at]
            at = parents[at]
        return offsets * self.shape.unit

    def _start(self, width: int) -> Packings:
        """Empty packings of different tastes."""
        shape, count = self.shape, len(self.shape.size)
        weights = self.random.random((3, width))
        weights[2] *= self.random.choice([1, 3], width)
        noise = self.random.choice([0.1, 0.3, 1.0]) * self.random.random((count, width))
        return Packings(
            np.zeros((count, width), shape.size.dtype),
            np.repeat(shape.load[:, None], width, 1),
            np.repeat(shape.crosses.sum(1, dtype=shape.size.dtype)[:, None], width, 1),
            (self.features.T @ weights + noise).astype(np.float32),
            np.zeros(width, np.int64),
        )

    def _changed(self, kept: Packings) -> Packings:
        """The same packings with tastes that lead elsewhere."""
        change = CHANGE * self.random.random(kept.taste.shape, dtype=np.float32)
        return Packings(kept.offset, kept.to_come, kept.bridges, kept.taste + change, kept.mark)

    def _grow(self, packings: Packings, limit: int, width: int) -> tuple[Packings, Step] | None:
        """Place one interval more in each packing; None when all are lost."""
        parents, chosen = self._candidates(packings, limit)
        where = packings.offset[chosen, parents]
        mark = packings.mark[parents] + self.marks[chosen] * (where.astype(np.int64) + 1)
        fresh = self.random.permutation(np.unique(mark, return_index=True)[1])
        parts, rows, left = [], [], width
        for i in range(0, len(fresh), width):
            part = fresh[i : i + width]
            children = self._children(packings, parents[part], chosen[part], mark[part])
            alive = self._alive(children, limit)[:left]
            if len(alive):
                parts.append(children.columns(alive))
                rows.append(part[alive])
                left -= len(alive)
            if not left:
                break
        if not parts:
            return None
        kept = np.concatenate(rows)
        return Packings.joined(parts), (parents[kept], chosen[kept], where[kept])

    def _children(self, packings: Packings, parents: Ints, chosen: Ints, mark: Ints) -> Packings:
        """Copies of the parents with one interval more: all that it meets go above it."""
        shape = self.shape
        offset = packings.offset[:, parents]
        each = np.arange(len(chosen))
        top = offset[chosen, each] + shape.size[chosen]
        np.maximum(offset, shape.meets[:, chosen] * top, out=offset)
        offset[chosen, each] = shape.placed
        return Packings(
            offset,
            packings.to_come[:, parents] - shape.covers[:, chosen] * shape.size[chosen],
            packings.bridges[:, parents] - shape.crosses[:, chosen],
            packings.taste[:, parents],
            mark,
        )

    def _alive(self, packings: Packings, limit: int) -> Ints:
        """The packings whose sections still have room for what is to come."""
        to_come = packings.to_come
        fits = (self.shape.lowest(packings.offset) + to_come <= limit) | (to_come == 0)
        return fits.all(0).nonzero()[0]

    def _candidates(self, packings: Packings, limit: int) -> tuple[Ints, Ints]:
        """(packing, interval) of the best next intervals: lowest of the earliest part left."""
        parted = (packings.bridges == 0) & (packings.to_come > 0)
        cut = parted.argmax(0)
        offset = np.where(self.shape.first[:, None] <= cut, packings.offset, self.shape.placed)
        fits = offset <= limit - self.highest(packings.to_come)
        wish = np.where((offset <= offset.min(0)) & fits, packings.taste, np.float32(-np.inf))
        columns = np.arange(wish.shape[1])
        parents, chosen = [], []
        for _ in range(CHILDREN):
            best = wish.argmax(0)
            possible = (wish[best, columns] > -np.inf).nonzero()[0]
            wish[best, columns] = -np.inf
            parents.append(possible)
            chosen.append(best[possible])
        return np.concatenate(parents), np.concatenate(chosen)
