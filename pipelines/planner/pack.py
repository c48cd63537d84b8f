"""At which offset does each interval lie, so that the arena is small?

Static memory allocation: intervals that are alive at one time must not overlap in bytes. NP-hard
(Garey and Johnson, 1979, SR2), yet the greatest sum of live bytes is a bound that real instances
mostly reach. First come greedy orders (greedy.py), then orders in which whatever lies at the top
moves forward, then a search in many packings at once (population.py), which also answers
whether a given capacity can be kept. The search goes on until the bound or the capacity is
reached or its work is spent; a larger work limit only continues it, so that the result never gets
worse.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import count

import numpy as np

from pyc_mlir.pipelines.planner.greedy import orders, place
from pyc_mlir.pipelines.planner.intervals import Intervals, Ints, Packing
from pyc_mlir.pipelines.planner.population import Population
from pyc_mlir.pipelines.planner.work import Budget, Exhausted

DEFAULT_WORK = 200_000
# Orders tried by promotion in each round, and how many intervals move forward in one.
PROMOTIONS = 24
PROMOTED_AT_ONCE = 8
# What the population is asked for, between the goal (0) and the best arena so far (1).
SHARES = (0.0, 0.5, 0.0, 0.25)
# How many packings at once; the widths take turns.
WIDTHS = (100, 300)
SEARCHED = 1000


def pack(
    intervals: Intervals,
    *,
    capacity: int | None = None,
    work_limit: int = DEFAULT_WORK,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Packing:
    """Pack `intervals`: as low as the work allows, or just below `capacity` bytes.

    A unit of work is about a microsecond. The first greedy order is finished whatever the limit.
    `stop` may end the search early (by a clock, say: the result then depends on the machine).
    Raises PycError (BAD_ARGUMENT) for malformed intervals.
    """
    intervals.check()
    search = _Search(intervals, capacity, Budget(work_limit, stop), seed)
    if len(intervals):
        search.run()
    bound, arena = intervals.lower_bound, search.arena
    fits = capacity is None or arena <= capacity
    return Packing(search.offsets, arena, bound, arena <= bound, search.budget.spent, fits)


class _Search:
    """The best offsets so far of all components; the worst component is worked on."""

    def __init__(
        self, intervals: Intervals, capacity: int | None, budget: Budget, seed: int
    ) -> None:
        self.budget = budget
        self.goal = max(intervals.lower_bound, capacity or 0)
        self.offsets = np.zeros(len(intervals), np.int64)
        self.components = [
            _Component(intervals, chosen, self.goal, budget, seed)
            for chosen in _sized_components(intervals)
        ]

    @property
    def arena(self) -> int:
        """The largest arena of a component."""
        return max((c.arena for c in self.components), default=0)

    def run(self) -> None:
        """Improve until the goal is reached or the work is spent."""
        try:
            while self.arena > self.goal:
                next(max(self.components, key=lambda c: c.arena).attempts)
        except Exhausted:
            pass
        for component in self.components:
            self.offsets[component.chosen] = component.offsets


def _sized_components(intervals: Intervals) -> Iterator[Ints]:
    """Components of the intervals that take space; the others lie at offset 0."""
    sized = np.flatnonzero(intervals.size)
    for component in intervals.take(sized).components():
        yield sized[component]


class _Component:
    """Intervals that are connected in time, and the best offsets found for them."""

    def __init__(
        self, every: Intervals, chosen: Ints, goal: int, budget: Budget, seed: int
    ) -> None:
        self.intervals, self.size = every.take(chosen), every.padded[chosen]
        self.chosen, self.goal, self.budget = chosen, goal, budget
        self.random = np.random.default_rng(seed)
        self.order, best_fit = next(orders(self.intervals))
        self.offsets = place(self.intervals, self.order, best_fit, budget.count)
        self.arena = self._end(self.offsets)
        self.attempts = self._attempts()

    def _end(self, offsets: Ints) -> int:
        return int((offsets + self.size).max())

    def _attempts(self) -> Iterator[None]:
        """Search without end; pause after each attempt."""
        for order, best_fit in list(orders(self.intervals))[1:]:
            self._try(order, best_fit)
            yield
        for rounds in count():
            for _ in range(PROMOTIONS):
                self._try(self._promoted(), best_fit=False)
                yield
            if len(self.intervals) <= SEARCHED:
                for share in SHARES:
                    self._search(share, WIDTHS[rounds % len(WIDTHS)])
                    yield

    def _try(self, order: Ints, best_fit: bool) -> None:
        """Place in `order`; keep that if it is no worse."""
        offsets = place(self.intervals, order, best_fit, self.budget.spend)
        arena = self._end(offsets)
        if arena <= self.arena:
            self.order, self.offsets, self.arena = order, offsets, arena

    def _promoted(self) -> Ints:
        """The best order, with intervals that rise above the goal moved to somewhere earlier."""
        ends = (self.offsets + self.size)[self.order]
        high = np.flatnonzero(ends > self.goal)
        moved = self.random.permutation(high)[:PROMOTED_AT_ONCE]
        rank = np.arange(len(self.order), dtype=np.float64)
        rank[moved] *= self.random.random(len(moved))
        return self.order[np.argsort(rank, kind="stable")]

    def _search(self, share: float, width: int) -> None:
        """Ask the population for an arena between the goal and the best one."""
        capacity = self.goal + int(share * (self.arena - self.goal))
        offsets = self.population.fit(capacity, width, self.budget.spend)
        if offsets is not None and self._end(offsets) < self.arena:
            self.offsets, self.arena = offsets, self._end(offsets)
            self.order = np.lexsort((self.intervals.lower, offsets))

    @cached_property
    def population(self) -> Population:
        """Made when greedy orders did not reach the goal; the strictest alignment holds for all."""
        few = self.intervals
        alignment = np.full_like(few.alignment, np.lcm.reduce(few.alignment))
        uniform = Intervals(few.lower, few.upper, few.size, alignment)
        return Population(uniform, self.random)
