"""Solve a problem of selection: prices on memory over time, and exact choices at those prices.

    selection = select(problem, work=30_000_000)

1. `reduce` joins what must be chosen together.
2. Each byte at each time has a price, at first 0. `Messages` chooses at those prices; prices rise
   where the choice uses more than the limit and fall where it uses less (a subgradient step of the
   Lagrangian dual, with Polyak's length).
3. Every choice on the way is repaired to fit the limit and improved one group at a time; the best
   of them is kept.

Work is counted, so that equal problems give equal selections on every machine.

Sources: Held, Wolfe, Crowder, "Validation of subgradient optimization" (1974); the reduction and
the messages name theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.packing.work import Budget, Exhausted
from pyc_mlir.pipelines.memory.selection.descent import Descent
from pyc_mlir.pipelines.memory.selection.messages import Messages
from pyc_mlir.pipelines.memory.selection.problem import Floats, Ints, Problem
from pyc_mlir.pipelines.memory.selection.reduction import Reduced, reduce
from pyc_mlir.pipelines.memory.selection.usage import Usage

# Sweeps between two steps of the prices; steps without a better bound until steps get shorter, by
# this factor; the least length, below which prices start again from the best ones.
_SWEEPS, _PATIENCE, _SHORTER, _LEAST = 2, 15, 0.7, 1e-3


@dataclass(frozen=True, eq=False)
class Selection:
    """A way for each node, i64[nodes]; its cost; a bound below which no choice's cost lies.

    work: that was done, in microseconds of a 3 GHz core or so. groups: that were chosen among.
    """

    choice: Ints
    cost: float
    bound: float
    work: int
    groups: int


def select(
    problem: Problem, work: int, start: Ints | None = None, stop: Callable[[], bool] = lambda: False
) -> Selection:
    """The best choice found within so much work that keeps the limit at every time.

    start: a choice of the nodes that is no worse than the result. stop: asked now and then whether
    to end sooner; the result then depends on it.

    Raises PycError: BUDGET_IMPOSSIBLE where no choice within the limit was found.
    """
    reduced = reduce(problem)
    usage = Usage.of(problem, reduced)
    budget = Budget(work, stop)
    search = _Search(reduced, usage, budget)
    try:
        search.first()
        search.run()
    except Exhausted:
        pass
    found = None if search.best is None else reduced.expand(search.best)
    if start is not None and (found is None or problem.cost(start) <= problem.cost(found)):
        found = start if problem.feasible(start) else found
    if found is None or not problem.feasible(found):
        raise PycError(
            ReasonCode.BUDGET_IMPOSSIBLE,
            f"selection: expected a choice below {problem.limit:.0f} bytes at every time, got none "
            f"within {work} units of work; raise the limit",
        )
    return Selection(found, problem.cost(found), search.bound, budget.spent, len(reduced.costs))


class _Search:
    """The best choice so far, in groups, and the prices."""

    def __init__(self, reduced: Reduced, usage: Usage, budget: Budget) -> None:
        self.reduced, self.usage, self.budget = reduced, usage, budget
        self.best: Ints | None = None
        self.cost, self.bound = np.inf, -np.inf
        self._tried: set[bytes] = set()

    def first(self) -> None:
        """A choice of few bytes: below the limit if that is easy, whatever it costs."""
        held = self.usage.price(np.ones(self.usage.times))
        starts = self.usage.start
        choice = [
            int(np.lexsort((cost, held[starts[g] : starts[g + 1]]))[0])
            for g, cost in enumerate(self.reduced.costs)
        ]
        self.offer(np.array(choice, np.int64), self.budget.count)

    def offer(self, choice: Ints, spend: Callable[[float], None] | None = None) -> None:
        """Repair and improve a choice; keep it if it is the best. Raises Exhausted."""
        name = choice.tobytes()
        if name in self._tried:
            return
        self._tried.add(name)
        walk = Descent(self.reduced, self.usage, choice, spend or self.budget.spend)
        try:
            if walk.repair():
                self._keep(walk)
                walk.improve()
        finally:
            self._keep(walk)

    def _keep(self, walk: Descent) -> None:
        if walk.excess <= 0 and walk.cost < self.cost:
            self.best, self.cost = walk.choice.copy(), walk.cost

    def run(self) -> None:
        """Move the prices until the work is spent. Raises Exhausted."""
        messages = Messages(self.reduced, self.budget.spend)
        at = best = np.zeros(self.usage.times)
        length, stalled = 1.0, 0
        while True:
            bound, choice = self._choose(messages, at)
            self.offer(choice)
            if bound > self.bound:
                self.bound, best, stalled = bound, at, 0
            else:
                stalled += 1
            if stalled > _PATIENCE:
                length, stalled = length * _SHORTER, 0
            if length < _LEAST:
                at, length = best, 1.0
            over = self.usage.of_choice(choice) - self.usage.limit
            over[(at <= 0) & (over < 0)] = 0.0
            norm = float((over * over).sum())
            if norm == 0 and not at.any() and self.cost <= bound + 1e-6 * abs(bound):
                return
            at = np.maximum(0.0, at + length * self._missing(bound) / max(norm, 1.0) * over)

    def _choose(self, messages: Messages, at: Floats) -> tuple[float, Ints]:
        """The bound and a choice at these prices."""
        priced = np.concatenate(self.reduced.costs) + self.usage.price(at)
        costs = np.split(priced, self.usage.start[1:-1])
        bound = max(messages.sweep(costs) for _ in range(_SWEEPS))
        return bound - self.usage.limit * float(at.sum()), messages.choose(costs)

    def _missing(self, bound: float) -> float:
        """How far the bound may rise: to the best cost known, at most to twice its own size."""
        known = max(abs(self.bound), 1.0)
        target = min(self.cost, self.bound + known)
        return max(target - bound, 0.01 * known)
