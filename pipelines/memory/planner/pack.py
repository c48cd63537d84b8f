"""Pack intervals: an offset for each, so that the arena is small.

Static memory allocation: intervals that are alive at one time must not overlap in bytes. NP-hard
(Garey and Johnson, 1979, SR2), yet the greatest sum of live bytes is a bound that real instances
mostly reach. First come greedy orders (greedy.py), whatever the limit, so that no simple heuristic
is ever better; an order is given up once it is no better than the best. Then come orders in which
whatever lies at the top moves forward ("squeaky wheel", Joslin and Clements, 1999), and by turns a
search that asks whether a capacity can be kept (`Fit`) and may also prove that it cannot. All of
that goes on until the bound or the capacity is reached or the work is spent; a larger work limit
only continues it, so that the result never gets worse."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import numpy as np

from pyc_mlir.pipelines.memory.planner.greedy import Order, orders, place, place_below
from pyc_mlir.pipelines.memory.planner.intervals import (
    Exhausted,
    Intervals,
    Ints,
    Packing,
    WorkLimit,
    scale,
)

FIXED = np.int64(1) << 60
# How often a deduction may raise offsets: small intervals would rise by their size, time and again.
TURNS = 32


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
        for turn in count():
            floor = np.minimum.reduceat(lowest[self.members], self.of_section)
            late = (lowest > latest) & (lowest < FIXED)
            ends = lowest + self.size
            if (floor > most).any() or (ends[late] > capacity).any():
                return None
            if turn == TURNS or not late.any():
                break
            earliest = np.minimum.reduceat(ends[self.members], self.of_section)
            wrong = lowest[self.whose] > most[self.where]
            above = np.maximum.reduceat(wrong * earliest[self.where], self.of_interval)
            before, lowest = lowest, np.where(late, np.maximum(lowest, above), lowest)
            if (before == lowest).all():
                break
        return PackingState(lowest, left, floor)

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


# Steps of the shortest attempt, above one for each interval.
STEPS = 150
# Weights of few choices against a low place, in mean sizes: from e**-FEW to e**FEW.
FEW = 4.0
# Parts in parts are searched apart down to this depth (each takes a level of recursion).
DEPTH = 100
# The work of building a part, in calls of `deduce`.
BUILD = 3


class _Enough(Exception):
    """The attempt has taken its steps."""


class Fit:
    """The search for one component of intervals with one alignment; `attempt` goes on."""

    def __init__(
        self, intervals: Intervals, random: np.random.Generator, spend: Callable[[float], None]
    ) -> None:
        self.size, self.unit = scale(intervals)
        self.random, self.spend = random, spend
        self.part = PackingPart.of(
            np.arange(len(intervals)), intervals.lower, intervals.upper, self.size
        )
        spend(BUILD * self.part.work)
        first, past, _ = intervals.sections
        load = np.array([intervals.load[a:b].max() for a, b in zip(first, past, strict=True)])
        life = intervals.upper - intervals.lower
        self.features = np.log(np.stack((life, np.maximum(self.size, 1), load)))
        self.offsets = np.zeros(len(intervals), np.int64)

    def attempt(self, capacity: int, length: int) -> bool | None:
        """Return whether all fits below `capacity` bytes: then `offsets` says how, in bytes.

        None: still open after the steps of an attempt of `length` (1 and up).
        """
        self.steps = len(self.size) + STEPS * length
        self._taste()
        self.capacity = capacity // self.unit
        start = self.part.deduce(np.zeros_like(self.part.size), self.part.loads, self.capacity)
        try:
            found = start is not None and self._search(self.part, start, 0)
        except _Enough:
            return None
        if found:
            self.offsets *= self.unit
        return found

    def above(self, capacity: int) -> int:
        """Return the least arena that is larger than `capacity` bytes."""
        return (capacity // self.unit + 1) * self.unit

    def _taste(self) -> None:
        weights = self.random.random(3)
        weights[2] *= self.random.choice([1, 3])
        noise = self.random.choice([0.1, 0.3, 1.0]) * self.random.random(len(self.size))
        self.taste = weights @ self.features + noise
        self.few = self.size.mean() * np.exp(self.random.uniform(-FEW, FEW))

    def _search(self, part: PackingPart, start: PackingState, depth: int) -> bool:
        """Search depth first; write down the offsets of a packing that is found."""
        taken: list[tuple[PackingState, int]] = []
        state: PackingState | None = start
        while True:
            if state is None:
                if not taken:
                    return False
                state, chosen = taken.pop()
                self.spend(part.work)
                state = part.postponed(state, chosen, self.capacity)
                continue
            self.steps -= 1
            if self.steps < 0:
                raise _Enough
            self.spend(2 * part.work)
            chosen = self._choice(part, state)
            taken.append((state, chosen))
            state = part.placed(state, chosen, self.capacity)
            if state is None:
                continue
            pieces = part.pieces(state.lowest)
            if len(pieces) == 1 and (2 * len(pieces[0]) > len(part.size) or depth > DEPTH):
                continue
            if all(self._piece(part, state, piece, depth) for piece in pieces):
                break
            state = None
        for state, chosen in taken:
            self.offsets[part.number[chosen]] = state.lowest[chosen]
        return True

    def _piece(self, part: PackingPart, state: PackingState, piece: Ints, depth: int) -> bool:
        if len(piece) == 1:
            self.offsets[part.number[piece]] = state.lowest[piece]
            return True
        few = PackingPart.of(
            part.number[piece], part.first[piece], part.past[piece], part.size[piece]
        )
        order = np.argsort(part.first[piece], kind="stable")
        self.spend(BUILD * few.work)
        start = few.deduce(state.lowest[piece][order], few.loads, self.capacity)
        return start is not None and self._search(few, start, depth + 1)

    def _choice(self, part: PackingPart, state: PackingState) -> int:
        """Choose the interval to place next: in the section that is low and leaves few choices."""
        lowest, floor = state.lowest, state.floor
        fits = lowest[part.members] == floor[part.which]
        choices = np.add.reduceat(fits, part.of_section, dtype=np.int64)
        section = (floor + self.few * choices).argmin()
        taste = self.taste[part.number]
        rivals = part.members[(part.which == section) & fits]
        chosen = rivals[taste[rivals].argmax()]
        ends = lowest + part.size
        while True:
            under = (part.meets[chosen] & (ends <= lowest[chosen])).nonzero()[0]
            if not len(under):
                return int(chosen)
            under = under[lowest[under] == lowest[under].min()]
            chosen = under[taste[under].argmax()]


def luby(k: int) -> int:
    """1, 1, 2, 1, 1, 2, 4, ...: the k-th length of attempts, from 1."""
    while True:
        power = k.bit_length()
        if k + 1 == 1 << power:
            return 1 << (power - 1)
        k -= (1 << (power - 1)) - 1


DEFAULT_WORK = 200_000
# How many intervals move forward in one promotion.
PROMOTED_AT_ONCE = 8
# Components up to this size are searched as well: in each round that many attempts to reach the
# goal, attempts between it and the best arena, and promotions.
SEARCHED = 1000
GOALS = 2
PROMOTIONS = 4


def pack(
    intervals: Intervals,
    *,
    capacity: int | None = None,
    work_limit: int = DEFAULT_WORK,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
    strict: bool = False,
) -> Packing:
    """Pack `intervals`: as low as the work allows, or just below `capacity` bytes.

    A unit of work is about a microsecond. The limit begins to count for what follows the greedy
    orders: all of them are tried unless the goal is reached. `strict` lets it end them as well, all
    but the first, where many packings are only compared.
    `stop` may end the search early (by a clock, say: the result then depends on the machine).
    Raises PycError (BAD_ARGUMENT) for malformed intervals.
    """
    intervals.check()
    search = _Packer(intervals, capacity, WorkLimit(work_limit, stop), seed, strict)
    if len(intervals):
        search.run()
    bound, arena = intervals.lower_bound, search.arena
    fits = capacity is None or arena <= capacity
    proven = arena <= max(bound, search.floor)
    return Packing(search.offsets, arena, bound, proven, search.budget.spent, fits)


class _Packer:
    """The best offsets so far of all components; the worst component is worked on."""

    def __init__(
        self,
        intervals: Intervals,
        capacity: int | None,
        budget: WorkLimit,
        seed: int,
        strict: bool,
    ) -> None:
        self.budget = budget
        self.goal = max(intervals.lower_bound, capacity or 0)
        self.offsets = np.zeros(len(intervals), np.int64)
        # Those of no size lie at offset 0.
        sized = np.flatnonzero(intervals.size)
        self.components = [
            _Component(intervals, chosen, self.goal, budget, seed, strict)
            for chosen in (sized[c] for c in intervals.take(sized).components())
        ]

    @property
    def arena(self) -> int:
        return max((c.arena for c in self.components), default=0)

    @property
    def floor(self) -> int:
        """The bytes that a search has proven to be needed."""
        return max((c.floor for c in self.components), default=0)

    def run(self) -> None:
        """Improve until the goal or what is proven is reached or the work is spent."""
        try:
            while self.arena > max(self.goal, self.floor):
                next(max(self.components, key=lambda c: c.arena).attempts)
        except Exhausted:
            pass
        for component in self.components:
            self.offsets[component.chosen] = component.offsets


class _Component:
    """Intervals that are connected in time, and the best offsets found for them.

    floor: no smaller arena exists, as a search has shown (0: nothing is shown).
    share: where the search asks next, between the goal (0) and the best arena (1).
    """

    def __init__(
        self,
        every: Intervals,
        chosen: Ints,
        goal: int,
        budget: WorkLimit,
        seed: int,
        strict: bool,
    ) -> None:
        self.intervals, self.size = every.take(chosen), every.padded[chosen]
        self.chosen, self.goal, self.budget = chosen, goal, budget
        self.random = np.random.default_rng(seed)
        self.floor, self.share = 0, 0.5
        self.counted = budget.spend if strict else budget.count
        self.greedy = orders(self.intervals)
        first = next(self.greedy)
        self.order = first.order
        self.offsets = place(self.intervals, first.order, first.best_fit, budget.count)
        self.arena = self._end(self.offsets)
        self.attempts = self._attempts()

    def _end(self, offsets: Ints) -> int:
        return int((offsets + self.size).max())

    def _attempts(self) -> Iterator[None]:
        """Search without end; pause after each attempt. The budget ends what follows the orders."""
        for order in self.greedy:
            # Given up early where it is no better.
            self._keep(order, self.counted, self.arena - 1)
            yield
        if len(self.intervals) > SEARCHED:
            while True:
                self._try(self._promoted())
                yield
        for length in map(luby, count(1)):
            for _ in range(GOALS):
                self._ask(max(self.goal, self.floor), length)
                yield
            while self._ask_between(length):
                yield
            yield
            for _ in range(PROMOTIONS):
                self._try(self._promoted())
                yield

    def _try(self, order: Ints) -> None:
        self._keep(Order("promoted", order, False), self.budget.spend, self.arena)

    def _keep(self, order: Order, spend: Callable[[float], None], limit: int) -> None:
        offsets = place_below(self.intervals, order.order, order.best_fit, spend, limit)
        if offsets is not None:
            self.order, self.offsets, self.arena = order.order, offsets, self._end(offsets)

    def _promoted(self) -> Ints:
        """Return the best order, with intervals that rise above the goal moved to the front."""
        ends = (self.offsets + self.size)[self.order]
        high = np.flatnonzero(ends > self.goal)
        moved = self.random.permutation(high)[:PROMOTED_AT_ONCE]
        rank = np.arange(len(self.order), dtype=np.float64)
        rank[moved] *= self.random.random(len(moved))
        return self.order[np.argsort(rank, kind="stable")]

    def _ask_between(self, length: int) -> bool:
        least = max(self.goal, self.floor)
        between = least + int(self.share * (self.arena - least))
        found = self.arena > least and self._ask(min(between, self.arena - 1), length)
        self.share = max(0.5, 2 * self.share - 1) if found else (1 + self.share) / 2
        return found

    def _ask(self, capacity: int, length: int) -> bool:
        """Search for an arena of `capacity` bytes; keep it, or the proof that there is none."""
        found = self.fit.attempt(capacity, length)
        if found:
            self.offsets = self.fit.offsets.copy()
            self.arena = self._end(self.offsets)
            self.order = np.lexsort((self.intervals.lower, self.offsets))
        elif found is not None and self.exact:
            self.floor = max(self.floor, self.fit.above(capacity))
        return bool(found)

    @property
    def exact(self) -> bool:
        """True where the search decides about these intervals, not about stricter alignments."""
        return bool((self.intervals.alignment == self.intervals.alignment[0]).all())

    @cached_property
    def fit(self) -> Fit:
        """The search where greedy orders miss the goal; the strictest alignment holds for all."""
        few = self.intervals
        alignment = np.full_like(few.alignment, np.lcm.reduce(few.alignment))
        uniform = Intervals(few.lower, few.upper, few.size, alignment)
        return Fit(uniform, self.random, self.budget.spend)
