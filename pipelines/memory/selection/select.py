"""Solve a problem of selection: prices on memory over time, and exact choices at those prices.

    selection = select(problem, work=30_000_000)

1. `reduce` joins what must be chosen together.
2. Each byte at each time has a price, at first 0. `Messages` chooses at those prices; prices rise
   where the choice uses more than the limit and fall where it uses less (a subgradient step of the
   Lagrangian dual, with Polyak's length).
3. Every choice on the way is repaired to fit the limit and improved one group at a time; the best
   of them is kept.

Work is counted, so that equal problems give equal selections on every machine.

Sources: Held, Wolfe, Crowder, "Validation of subgradient optimization" (1974); Kolmogorov,
"Convergent tree-reweighted message passing for energy minimization" (2006)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.planner.intervals import Exhausted, WorkLimit
from pyc_mlir.pipelines.memory.selection.problem import (
    FORBIDDEN,
    Floats,
    Ints,
    ReducedGroups,
    SelectionProblem,
    Usage,
    reduce,
)

# Work of one step in microseconds of a 3 GHz core, and of an entry of its arrays.
_STEP, _MOVE_ENTRY, _TABLE = 40.0, 5e-3, 4.0
# Moves between two looks at whether a repair is done.
_CHECKED = 8


class Descent:
    """A choice of groups, its bytes over time, and what every candidate would cost.

    spend: is told of work, in microseconds or so.
    """

    def __init__(
        self, reduced: ReducedGroups, usage: Usage, choice: Ints, spend: Callable[[float], None]
    ) -> None:
        self._usage, self._spend = usage, spend
        self._own = np.concatenate(reduced.costs)
        self._group = np.repeat(np.arange(len(reduced.costs)), np.diff(usage.start))
        self._held = -1
        self._near: list[list[tuple[int, Floats]]] = [[] for _ in reduced.costs]
        spend(_STEP + len(reduced.tables) * _TABLE)
        for (a, b), table in sorted(reduced.tables.items()):
            self._near[a].append((b, table))
            self._near[b].append((a, table.T))
        self.choice = choice.copy()
        self.used = usage.of_choice(choice)
        self.costs = self._own.copy()
        for group in range(len(choice)):
            self._of(group)[:] = self._fresh(group)

    def _of(self, group: int) -> Floats:
        return self.costs[self._usage.start[group] : self._usage.start[group + 1]]

    def _fresh(self, group: int) -> Floats:
        start = self._usage.start
        cost = self._own[start[group] : start[group + 1]].copy()
        for other, table in self._near[group]:
            cost += table[:, self.choice[other]]
        return cost

    @property
    def _present(self) -> Ints:
        return self._usage.start[:-1] + self.choice

    @property
    def cost(self) -> float:
        """The cost of the choice."""
        # Costs of tables are counted at both ends.
        present = self._present
        return float((self.costs[present] + self._own[present]).sum() / 2)

    @property
    def excess(self) -> float:
        """The sum over time of bytes above the limit."""
        return float(np.maximum(self.used - self._usage.limit, 0).sum())

    def _move(self, group: int, candidate: int, change: tuple[slice, Floats]) -> None:
        before = int(self.choice[group])
        self.choice[group] = candidate
        times, more = change
        self.used[times] += more
        for other, table in self._near[group]:
            more = table[candidate] - table[before]
            # What is forbidden is so large that taking it off again would leave no digits.
            exact = bool((np.abs(more) < FORBIDDEN / 2).all())
            self._of(other)[:] = self._of(other) + more if exact else self._fresh(other)

    def force(self, group: int, candidate: int) -> bool:
        """Take a candidate, repair and improve; return whether the limit is kept."""
        _, candidate, change = self._tried(int(self._usage.start[group]) + candidate)
        self._move(group, candidate, change)
        self._held = group
        kept = self.repair()
        self._held = -1
        if kept:
            self.improve()
        return kept

    def gains(self) -> Ints:
        """Return candidates that cost less than the present ones, without the limit, best first."""
        gain = self._gain()
        order = np.argsort(gain, kind="stable")
        return order[: int(np.searchsorted(gain[order], -1e-9))]

    def place(self, number: int) -> tuple[int, int]:
        """Return the group and the candidate that have a number."""
        group = int(self._group[number])
        return group, int(number - self._usage.start[group])

    def _gain(self) -> Floats:
        """Return the added cost of each candidate over its group's present one, f64[candidates]."""
        self._spend(_STEP + len(self.costs) * _MOVE_ENTRY)
        return self.costs - self.costs[self._present][self._group]

    def _tried(self, number: int) -> tuple[int, int, tuple[slice, Floats]]:
        group, candidate = self.place(number)
        change = self._usage.change(group, int(self.choice[group]), candidate)
        self._spend(_STEP + len(change[1]) * _MOVE_ENTRY)
        return group, candidate, change

    def repair(self) -> bool:
        """Change candidates until no time is above the limit; whether that was reached.

        Each round ranks all candidates by what they cost more for each byte that they save at times
        above the limit, and takes those in order that lower the excess.
        """
        usage, before = self._usage, np.inf
        while (excess := self.excess) > 0:
            if excess >= before:
                return False
            before = excess
            paid = usage.price((self.used > usage.limit).astype(np.float64))
            saved = paid[self._present][self._group] - paid
            with np.errstate(divide="ignore", invalid="ignore"):
                worth = np.where(saved > 0, self._gain() / saved, np.inf)
            worth[self.costs >= FORBIDDEN] = np.inf
            # Candidates that cost nothing more are ranked by what they save.
            order = np.lexsort((-saved, np.maximum(worth, 0)))
            self._take(order[: int(np.isfinite(worth).sum())])
        return True

    def _take(self, order: Ints) -> None:
        """Take candidates that lower the excess, each group's first one, until there is none."""
        usage, done = self._usage, set[int]()
        for number in order:
            if self._group[number] in done or self._group[number] == self._held:
                continue
            group, candidate, (times, more) = self._tried(number)
            now = self.used[times]
            over = (
                np.maximum(now + more - usage.limit, 0).sum()
                - np.maximum(now - usage.limit, 0).sum()
            )
            if over < 0:
                self._move(group, candidate, (times, more))
                done.add(group)
                if len(done) % _CHECKED == 0 and self.excess <= 0:
                    return

    def improve(self) -> None:
        """Take candidates that cost less and stay within the limit, until there is none."""
        usage, moved = self._usage, True
        while moved:
            moved = False
            for number in self.gains():
                mine = self._of(int(self._group[number]))
                # Moves before this one may have changed what it gains.
                if self.costs[number] >= mine[self.choice[self._group[number]]] - 1e-9:
                    continue
                group, candidate, (times, more) = self._tried(number)
                if not ((more > 0) & (self.used[times] + more > usage.limit)).any():
                    self._move(group, candidate, (times, more))
                    moved = True


# Work of one message in microseconds of a 3 GHz core: calls of numpy, then entries of a table.
_CALL, _ENTRY = 10.0, 1e-3
# Candidates that are forced at most when prices have settled.
_SHAKES = 64
# Rounds of prices for a first choice, and the work of one for each group.
_ROUNDS, _RANK = 40, 5.0
# Sweeps between two steps of the prices; steps without a better bound until steps get shorter, by
# this factor; the least length, below which prices start again from the best ones, and how often
# they do without a better choice.
_SWEEPS, _PATIENCE, _SHORTER, _LEAST, _RESTARTS = 2, 15, 0.7, 1e-3, 2


class Messages:
    """Sequential tree-reweighted message passing between groups (Kolmogorov, 2006).

    A sweep passes over the groups in order and back. Messages along tables move cost between groups
    until the sum of their least costs, a lower bound, rises no more; choosing groups one after
    another by what the messages say then gives a choice that is often the best there is. Messages
    are kept from sweep to sweep while prices change.

    spend: is told of the work of each sweep, in microseconds or so.
    """

    def __init__(self, reduced: ReducedGroups, spend: Callable[[float], None]) -> None:
        self._spend, count = spend, len(reduced.costs)
        self._before: list[list[tuple[int, int, Floats]]] = [[] for _ in range(count)]
        self._after: list[list[tuple[int, int, Floats]]] = [[] for _ in range(count)]
        self._into: list[Floats] = []
        # Each table twice, as each of both reads it: [own candidates, other's], contiguous.
        for number, ((a, b), table) in enumerate(sorted(reduced.tables.items())):
            self._after[a].append((b, 2 * number, np.ascontiguousarray(table)))
            self._before[b].append((a, 2 * number + 1, np.ascontiguousarray(table.T)))
            # What a tells b, then what b tells a.
            self._into += [np.zeros(table.shape[1]), np.zeros(table.shape[0])]
        self._share = [
            1.0 / max(1, len(x), len(y)) for x, y in zip(self._before, self._after, strict=True)
        ]
        entries = sum(table.size for table in reduced.tables.values())
        calls = 2 * len(reduced.tables) + 2 * count
        self.work = (10 + calls) * _CALL + 2 * entries * _ENTRY

    def sweep(self, costs: list[Floats]) -> float:
        """Pass over the groups and back; the lower bound of the sum at these costs."""
        self._spend(self.work)
        groups = range(len(costs))
        for group in groups:
            self._pass(group, costs[group], self._after[group])
        return sum(self._pass(g, costs[g], self._before[g]) for g in reversed(groups))

    def _pass(self, group: int, cost: Floats, to: list[tuple[int, int, Floats]]) -> float:
        """Send messages in one direction; return what they move into the bound."""
        belief, share = self._belief(group, cost), self._share[group]
        bound = 0.0
        mine = share * belief
        for _, number, table in to:
            sent = ((mine - self._into[number ^ 1])[:, None] + table).min(0)
            least = float(sent.min())
            self._into[number] = sent - least
            bound += least
        rest = 1.0 - share * len(to)
        return bound + (rest * float(belief.min()) if rest > 1e-12 else 0.0)

    def _belief(self, group: int, cost: Floats) -> Floats:
        belief = cost.copy()
        for _, number, _ in self._before[group]:
            belief += self._into[number ^ 1]
        for _, number, _ in self._after[group]:
            belief += self._into[number ^ 1]
        return belief

    def choose(self, costs: list[Floats]) -> Ints:
        """Choose group by group: exact costs to those before, messages from those after."""
        choice = np.zeros(len(costs), np.int64)
        for group, cost in enumerate(costs):
            belief = cost.copy()
            for other, _, table in self._before[group]:
                belief += table[:, choice[other]]
            for _, number, _ in self._after[group]:
                belief += self._into[number ^ 1]
            choice[group] = int(belief.argmin())
        return choice


@dataclass(frozen=True, eq=False)
class Selection:
    """A candidate for each node, i64[nodes]; its cost; a bound below which no choice's cost lies.

    work: that was done, in microseconds of a 3 GHz core or so. groups: that were chosen among.
    price: cost of one byte at every time, by the prices at which the bound was found.
    """

    choice: Ints
    cost: float
    bound: float
    work: int
    groups: int
    price: float = 0.0


def select(
    problem: SelectionProblem,
    work: int,
    start: Ints | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Selection:
    """Select the best choice found within so much work that keeps the limit at every time.

    start: a choice of the nodes that is no worse than the result. stop: asked now and then whether
    to end sooner; the result then depends on it.

    Raises PycError: BUDGET_IMPOSSIBLE where no choice within the limit was found.
    """
    reduced = reduce(problem)
    usage = Usage.of(problem, reduced)
    budget = WorkLimit(work, stop)
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
    cost, groups = problem.cost(found), len(reduced.costs)
    return Selection(found, cost, search.bound, budget.spent, groups, search.price)


class _Search:
    """The best choice so far, in groups, and the prices."""

    def __init__(self, reduced: ReducedGroups, usage: Usage, budget: WorkLimit) -> None:
        self.reduced, self.usage, self.budget = reduced, usage, budget
        self.best: Ints | None = None
        self.cost, self.bound, self.price = np.inf, -np.inf, 0.0
        self._tried: set[bytes] = set()

    def first(self) -> None:
        """Choose for few bytes, whatever it costs: each group's least at rising prices.

        Work is counted but does not end this: there is a choice whatever the budget.
        """
        usage, at = self.usage, np.ones(self.usage.times)
        best, least = np.zeros(len(self.reduced.costs), np.int64), np.inf
        for _ in range(_ROUNDS):
            held = np.split(usage.price(at), usage.start[1:-1])
            candidates = [
                np.lexsort((c, h))[0] for c, h in zip(self.reduced.costs, held, strict=True)
            ]
            choice = np.array(candidates, np.int64)
            over = np.maximum(usage.of_choice(choice) / usage.limit - 1.0, 0.0)
            self.budget.count(len(candidates) * _RANK)
            if over.sum() < least:
                best, least = choice, float(over.sum())
            if least <= 0:
                break
            at = at * (1.0 + over / over.max())
        self.offer(best, self.budget.count)

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

    def shake(self) -> None:
        """Force, one at a time, candidates that the limit excludes. Raises Exhausted."""
        tried, found = 0, True
        while found and self.best is not None and tried < _SHAKES:
            found, before = False, self.best
            for number in self._walk(before).gains():
                walk, tried = self._walk(before), tried + 1
                if walk.force(*walk.place(int(number))) and walk.cost < self.cost:
                    self._keep(walk)
                    found = True
                    break
                if tried >= _SHAKES:
                    break

    def _walk(self, choice: Ints) -> Descent:
        return Descent(self.reduced, self.usage, choice, self.budget.spend)

    def _keep(self, walk: Descent) -> None:
        if walk.excess <= 0 and walk.cost < self.cost:
            self.best, self.cost = walk.choice.copy(), walk.cost

    def run(self) -> None:
        """Move the prices until nothing better is found. Raises Exhausted."""
        messages = Messages(self.reduced, self.budget.spend)
        at = best = np.zeros(self.usage.times)
        length, stalled, on_offers = 1.0, 0, 0.0
        restarts, last = 0, np.inf
        while True:
            bound, choice = self._choose(messages, at)
            begun = self.budget.spent
            # Descents may take as much work as messages do.
            if on_offers <= begun - on_offers:
                self.offer(choice)
                on_offers += self.budget.spent - begun
            if bound > self.bound:
                self.bound, best, stalled = bound, at, 0
                self.price = float(at.sum())
            else:
                stalled += 1
            if stalled > _PATIENCE:
                length, stalled = length * _SHORTER, 0
            if length < _LEAST:
                if self.cost >= last and restarts >= _RESTARTS:
                    return
                self.shake()
                restarts = restarts + 1 if self.cost >= last else 0
                at, length, last = best, 1.0, self.cost
            over = self.usage.of_choice(choice) - self.usage.limit
            over[(at <= 0) & (over < 0)] = 0.0
            norm = float((over * over).sum())
            if norm == 0 and not at.any() and self.cost <= bound + 1e-6 * abs(bound):
                return
            at = np.maximum(0.0, at + length * self._missing(bound) / max(norm, 1.0) * over)

    def _choose(self, messages: Messages, at: Floats) -> tuple[float, Ints]:
        priced = np.concatenate(self.reduced.costs) + self.usage.price(at)
        costs = np.split(priced, self.usage.start[1:-1])
        bound = max(messages.sweep(costs) for _ in range(_SWEEPS))
        return bound - self.usage.limit * float(at.sum()), messages.choose(costs)

    def _missing(self, bound: float) -> float:
        """Return how far the bound may rise: to the best cost known, at most twofold."""
        known = max(abs(self.bound), 1.0)
        target = min(self.cost, self.bound + known)
        return max(target - bound, 0.01 * known)
