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

import numpy as np

from pyc_mlir.pipelines.planner.greedy import orders, place
from pyc_mlir.pipelines.planner.intervals import Intervals, Ints, Packing
from pyc_mlir.pipelines.planner.work import Budget, Exhausted

DEFAULT_WORK = 200_000
# Orders tried by promotion per round of the search, and the share of it that they may take.
PROMOTIONS = 24
PROMOTED_AT_ONCE = 8


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
            _Component(intervals.take(chosen), chosen, self.goal, budget, seed)
            for chosen in intervals.components()
        ]

    @property
    def arena(self) -> int:
        """The largest arena of a component."""
        return max((c.arena for c in self.components), default=0)

    def run(self) -> None:
        """Improve until the goal is reached or the work is spent."""
        try:
            while (worst := max(self.components, key=lambda c: c.arena)).arena > self.goal:
                next(worst.attempts)
        except Exhausted:
            pass
        for component in self.components:
            self.offsets[component.chosen] = component.offsets


class _Component:
    """Intervals that are connected in time, and the best offsets found for them."""

    def __init__(
        self, intervals: Intervals, chosen: Ints, goal: int, budget: Budget, seed: int
    ) -> None:
        self.intervals, self.chosen, self.goal, self.budget = intervals, chosen, goal, budget
        self.random = np.random.default_rng(seed)
        self.order, best_fit = next(orders(intervals))
        self.offsets = place(intervals, self.order, best_fit, budget.count)
        self.arena = intervals.arena(self.offsets)
        self.attempts = self._attempts()

    def _attempts(self) -> Iterator[None]:
        """Search without end; pause after each attempt."""
        for order, best_fit in list(orders(self.intervals))[1:]:
            self._try(order, best_fit)
            yield
        while True:
            for _ in range(PROMOTIONS):
                self._try(self._promoted(), best_fit=False)
                yield

    def _try(self, order: Ints, best_fit: bool) -> None:
        """Place in `order`; keep that if it is no worse."""
        offsets = place(self.intervals, order, best_fit, self.budget.spend)
        arena = self.intervals.arena(offsets)
        if arena <= self.arena:
            self.order, self.offsets, self.arena = order, offsets, arena

    def _promoted(self) -> Ints:
        """The best order, with intervals that rise above the goal moved to somewhere earlier."""
        ends = (self.offsets + self.intervals.padded)[self.order]
        high = np.flatnonzero(ends > self.goal)
        moved = self.random.permutation(high)[:PROMOTED_AT_ONCE]
        rank = np.arange(len(self.order), dtype=np.float64)
        rank[moved] *= self.random.random(len(moved))
        return self.order[np.argsort(rank, kind="stable")]
