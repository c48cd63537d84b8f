"""Problems of selection: nodes that have candidates, and memory that they need over time.

    minimize    sum of cost[v][s(v)] over nodes + sum of table[s(v), s(w)] over edges
    so that     sum of usage[v][s(v)] over nodes alive at t <= limit, at every time t

A node is alive in a half-open interval of times. The problems of the ASPLOS 2025 contest on
intra-operator parallelism have this form, and so has the choice of kernels and memory plans.

`reduce` makes a problem smaller without changing it:

1. Candidates are dropped that no candidate of some neighbour goes with (arc consistency: Mackworth,
   "Consistency in Networks of Relations", 1977).
2. If each candidate of one node leaves a neighbour one candidate only, the neighbour joins it: both
   are chosen together from then on (as in partitioned boolean quadratic problems: Scholz and
   Eckstein, 2002).

What is left are groups of nodes, whose bytes over time `Usage` counts. In the contest's problems,
whose tables are half forbidden, three of four nodes join a group, and no forbidden pair is left
between groups: any group may then change alone."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode

# Costs from here on forbid what they are the cost of.
FORBIDDEN = 1e15
Floats = np.ndarray
Ints = np.ndarray


@dataclass(frozen=True, eq=False)
class Edge:
    """Two nodes, and the cost of each pair of candidates: f64[of the first node, of the second]."""

    first: int
    second: int
    table: Floats


@dataclass(frozen=True, eq=False)
class SelectionProblem:
    """Nodes by number: costs and usages f64[candidates] each, lives i64[nodes, 2] half-open.

    limit: the most bytes at any time.
    """

    costs: Sequence[Floats]
    usages: Sequence[Floats]
    lives: Ints
    edges: Sequence[Edge]
    limit: float

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for arrays that do not fit each other."""
        sizes = [len(c) for c in self.costs]
        fits = (
            len(self.usages) == len(sizes) == len(self.lives)
            and all(len(u) == n > 0 for u, n in zip(self.usages, sizes, strict=True))
            and all(e.table.shape == (sizes[e.first], sizes[e.second]) for e in self.edges)
        )
        if not fits:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                "selection problem: expected a cost and a usage for each candidate, lives of nodes "
                "and tables of their sizes, got others",
            )

    def cost(self, choice: Ints) -> float:
        """Return the cost of a choice, i64[nodes]; infinite where something forbidden is chosen."""
        parts = [float(c[s]) for c, s in zip(self.costs, choice, strict=True)]
        parts += [float(e.table[choice[e.first], choice[e.second]]) for e in self.edges]
        return float("inf") if max(parts, default=0.0) >= FORBIDDEN else float(sum(parts))

    def use(self, choice: Ints) -> Floats:
        """Return the bytes at each time, f64[times]."""
        used = np.array([u[s] for u, s in zip(self.usages, choice, strict=True)], np.float64)
        change = np.zeros(int(self.lives.max(initial=0)) + 1)
        living = self.lives[:, 0] < self.lives[:, 1]
        np.add.at(change, self.lives[living, 0], used[living])
        np.add.at(change, self.lives[living, 1], -used[living])
        return np.cumsum(change)

    def feasible(self, choice: Ints) -> bool:
        """Return whether a choice has nothing forbidden and stays within the limit."""
        finite = self.cost(choice) < FORBIDDEN
        return finite and bool(self.use(choice).max(initial=0.0) <= self.limit)


@dataclass(frozen=True, eq=False)
class ReducedGroups:
    """Groups by number: costs f64[candidates], tables by pair of groups, the smaller number first.

    candidates: for each node of the problem its group, and its candidate for each of the group's.
    """

    costs: list[Floats]
    tables: dict[tuple[int, int], Floats]
    candidates: list[tuple[int, Ints]]

    def expand(self, choice: Ints) -> Ints:
        """Return the choice of the nodes from that of the groups."""
        return np.array(
            [candidates[choice[group]] for group, candidates in self.candidates], np.int64
        )


class _Reducer:
    """Groups while they are joined; a group has the number of one of its nodes."""

    def __init__(self, problem: SelectionProblem) -> None:
        self.costs = [np.array(c) for c in problem.costs]
        self.sizes = [len(c) for c in self.costs]
        # The node's own candidate for each candidate that is left.
        self.own = [np.arange(n) for n in self.sizes]
        self.tables: dict[tuple[int, int], Floats] = {}
        self.near: list[set[int]] = [set() for _ in self.sizes]
        self.joined: list[tuple[int, int, Ints]] = []
        self.gone = np.zeros(len(self.sizes), bool)
        self.queue: deque[tuple[int, int]] = deque()
        self.waits: set[tuple[int, int]] = set()
        for edge in problem.edges:
            self.add(edge.first, edge.second, edge.table)
        for node in range(len(self.sizes)):
            self.keep(node, self.costs[node] < FORBIDDEN)

    def add(self, a: int, b: int, table: Floats) -> None:
        """Add the costs of pairs of two groups; within one they are costs of its candidates."""
        if a == b:
            self.costs[a] = self.costs[a] + np.diag(table)
            self.keep(a, self.costs[a] < FORBIDDEN)
            return
        key, table = ((a, b), table) if a < b else ((b, a), table.T)
        known = self.tables.get(key)
        self.tables[key] = table if known is None else known + table
        self.near[a].add(b)
        self.near[b].add(a)
        self.push(key)

    def push(self, key: tuple[int, int]) -> None:
        if key not in self.waits:
            self.waits.add(key)
            self.queue.append(key)

    def keep(self, node: int, kept: np.ndarray) -> None:
        """Drop candidates. Raises PycError (BUDGET_IMPOSSIBLE) where none is left."""
        if kept.all():
            return
        if not kept.any():
            raise PycError(
                ReasonCode.BUDGET_IMPOSSIBLE,
                f"selection: expected a candidate of node {node} that neighbours allow, got none",
            )
        self.costs[node], self.own[node] = self.costs[node][kept], self.own[node][kept]
        for other in self.near[node]:
            key = (min(node, other), max(node, other))
            table = self.tables[key]
            self.tables[key] = table[kept] if node < other else table[:, kept]
            self.push(key)

    def run(self) -> None:
        while self.queue:
            key = self.queue.popleft()
            self.waits.discard(key)
            if key in self.tables:
                self.look(*key)

    def look(self, a: int, b: int) -> None:
        """Drop a pair's candidates that go with none; join the pair if one decides the other."""
        allowed = self.tables[a, b] < FORBIDDEN
        if allowed.all() and min(allowed.shape) > 1:
            return
        rows, columns = np.asarray(allowed.any(1)), np.asarray(allowed.any(0))
        if not (rows.all() and columns.all()):
            self.keep(a, rows)
            self.keep(b, columns)
            allowed = self.tables[a, b] < FORBIDDEN
        of_a, of_b = bool((allowed.sum(1) == 1).all()), bool((allowed.sum(0) == 1).all())
        if not (of_a or of_b):
            return
        # Where both decide each other, the one with fewer neighbours joins.
        into_a = of_a and (not of_b or len(self.near[a]) >= len(self.near[b]))
        self.join(*((a, b) if into_a else (b, a)))

    def join(self, group: int, node: int) -> None:
        """Make `node`, whose candidate `group` decides, a part of it."""
        table = self.tables[min(group, node), max(group, node)]
        table = table if group < node else table.T
        candidate = (table < FORBIDDEN).argmax(1)
        self.costs[group] = (
            self.costs[group]
            + table[np.arange(len(candidate)), candidate]
            + self.costs[node][candidate]
        )
        own_of = np.full(self.sizes[group], -1)
        own_of[self.own[group]] = self.own[node][candidate]
        self.joined.append((node, group, own_of))
        self.gone[node] = True
        for other in sorted(self.near[node]):
            moved = self.tables.pop((min(node, other), max(node, other)))
            self.near[other].discard(node)
            if other != group:
                moved = moved if node < other else moved.T
                self.add(group, other, moved[candidate])
        self.near[node] = set()
        self.keep(group, self.costs[group] < FORBIDDEN)


def reduce(problem: SelectionProblem) -> ReducedGroups:
    """Return the groups of a problem.

    Raises PycError (BUDGET_IMPOSSIBLE) where arc consistency finds that no choice is allowed.
    """
    work = _Reducer(problem)
    work.run()
    candidates: list[Ints] = [np.zeros(0, np.int64)] * len(work.sizes)
    group = np.arange(len(work.sizes))
    for node in np.flatnonzero(~work.gone):
        candidates[node] = work.own[node]
    for node, into, own_of in reversed(work.joined):
        group[node], candidates[node] = group[into], own_of[candidates[into]]
    left = np.flatnonzero(~work.gone)
    number = {int(g): i for i, g in enumerate(left)}
    return ReducedGroups(
        [work.costs[g] for g in left],
        {(number[a], number[b]): t for (a, b), t in work.tables.items()},
        [(number[int(g)], w) for g, w in zip(group, candidates, strict=True)],
    )


@dataclass(frozen=True, eq=False)
class Usage:
    """The entries: one for each candidate and interval in which it uses bytes.

    start: the number of each group's first candidate, i64[groups + 1]. candidate, begin, end, size:
    of each entry, sorted by candidate; first: of each candidate its first entry,
    i64[candidates + 1]. times: their number.
    """

    start: Ints
    candidate: Ints
    begin: Ints
    end: Ints
    size: Floats
    first: Ints
    times: int
    limit: float

    @staticmethod
    def of(problem: SelectionProblem, reduced: ReducedGroups) -> "Usage":
        """Return the usage of a reduced problem's groups."""
        start = np.concatenate([[0], np.cumsum([len(c) for c in reduced.costs])]).astype(np.int64)
        alive = np.flatnonzero(problem.lives[:, 0] < problem.lives[:, 1])
        events = np.unique(problem.lives[alive])
        lives = np.searchsorted(events, problem.lives)
        parts: list[tuple[Ints, Ints, Ints, Floats]] = []
        for node in alive.tolist():
            group, candidates = reduced.candidates[node]
            ones = np.ones(len(candidates), np.int64)
            numbers = np.arange(start[group], start[group + 1])
            used = np.asarray(problem.usages[node], np.float64)[candidates]
            parts.append((numbers, lives[node, 0] * ones, lives[node, 1] * ones, used))
        if not parts:
            none = np.zeros(0, np.int64)
            parts = [(none, none, none, np.zeros(0))]
        candidate, begin, end, size = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        # Nodes of a group that live alike are one entry.
        count = len(events) + 1
        key, inverse = np.unique((candidate * count + begin) * count + end, return_inverse=True)
        size = np.bincount(inverse, size, len(key))
        candidate, begin, end = key // count // count, key // count % count, key % count
        used = size > 0
        first = np.searchsorted(candidate[used], np.arange(start[-1] + 1))
        candidate, begin, end, size = candidate[used], begin[used], end[used], size[used]
        return Usage(start, candidate, begin, end, size, first, max(len(events), 1), problem.limit)

    def of_choice(self, choice: Ints) -> Floats:
        """Return the bytes at each time, f64[times], of a candidate of each group."""
        chosen = np.zeros(int(self.start[-1]), bool)
        chosen[self.start[:-1] + choice] = True
        mine = chosen[self.candidate]
        change = np.bincount(self.begin[mine], self.size[mine], self.times + 1)
        change -= np.bincount(self.end[mine], self.size[mine], self.times + 1)
        return np.cumsum(change)[: self.times]

    def price(self, at: Floats) -> Floats:
        """Return each candidate's price, f64[candidates], at prices of a byte, f64[times]."""
        paid = np.concatenate([[0.0], np.cumsum(at)])
        worth = self.size * (paid[self.end] - paid[self.begin])
        return np.bincount(self.candidate, worth, int(self.start[-1]))

    def change(self, group: int, before: int, after: int) -> tuple[slice, Floats]:
        """Return the times at which a candidate of a group may change bytes, and by how much."""
        first, start = self.first, self.start[group]
        spans = [
            slice(first[start + candidate], first[start + candidate + 1])
            for candidate in (before, after)
        ]
        begin, end, size = (
            np.concatenate([column[span] for span in spans])
            for column in (self.begin, self.end, self.size)
        )
        if not len(begin):
            return slice(0, 0), np.zeros(0)
        size[: spans[0].stop - spans[0].start] *= -1.0
        low, high = int(begin.min()), int(end.max())
        made = np.bincount(begin - low, size, high - low + 1)
        made -= np.bincount(end - low, size, high - low + 1)
        return slice(low, high), np.cumsum(made[:-1])
