"""Pack intervals: an offset for each, so that the arena is small.

Static memory allocation: intervals that are alive at one time must not overlap in bytes. NP-hard
(Garey and Johnson, 1979, SR2), yet the greatest sum of live bytes is a bound that real instances
mostly reach. First come greedy orders (greedy.py), whatever the limit, so that no simple heuristic
is ever better; an order is given up once it is no better than the best. Then come orders in which
whatever lies at the top moves forward ("squeaky wheel", Joslin and Clements, 1999), and by turns a
search that asks whether a capacity can be kept (fit.py) and may also prove that it cannot. All of
that goes on until the bound or the capacity is reached or the work is spent; a larger work limit
only continues it, so that the result never gets worse.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import count

import numpy as np

from pyc_mlir.pipelines.memory.packing.fit import Fit, luby
from pyc_mlir.pipelines.memory.packing.greedy import Order, orders, place, place_below
from pyc_mlir.pipelines.memory.packing.intervals import Intervals, Ints, Packing
from pyc_mlir.pipelines.memory.packing.work import Exhausted, WorkLimit

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
    search = _Search(intervals, capacity, WorkLimit(work_limit, stop), seed, strict)
    if len(intervals):
        search.run()
    bound, arena = intervals.lower_bound, search.arena
    fits = capacity is None or arena <= capacity
    proven = arena <= max(bound, search.floor)
    return Packing(search.offsets, arena, bound, proven, search.budget.spent, fits)


class _Search:
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
        self.components = [
            _Component(intervals, chosen, self.goal, budget, seed, strict)
            for chosen in _sized_components(intervals)
        ]

    @property
    def arena(self) -> int:
        """The largest arena of a component."""
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


def _sized_components(intervals: Intervals) -> Iterator[Ints]:
    """Yield components of the intervals that take space; the others lie at offset 0."""
    sized = np.flatnonzero(intervals.size)
    for component in intervals.take(sized).components():
        yield sized[component]


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
            self._try_greedy(order)
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

    def _try_greedy(self, greedy: Order) -> None:
        """Place in an order; keep that if it is better, and else give up early."""
        self._keep(greedy, self.counted, self.arena - 1)

    def _try(self, order: Ints) -> None:
        """Place in `order`; keep that if it is no worse."""
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
        """Ask for less than the best arena: nearer to it after each failure."""
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
