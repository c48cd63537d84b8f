"""Make a problem smaller without changing it: `reduce`.

1. Candidates are dropped that no candidate of some neighbour goes with.
2. If each candidate of one node leaves a neighbour one candidate only, the neighbour joins it: both
   are chosen together from then on.

What is left are groups of nodes. In the contest's problems, whose tables are half forbidden,
three of four nodes join a group, and no forbidden pair is left between groups: any group may then
change alone.

Source: arc consistency (Mackworth, "Consistency in Networks of Relations", 1977); joining as in
the reductions of partitioned boolean quadratic problems (Scholz, Eckstein, 2002).
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.selection.problem import FORBIDDEN, Floats, Ints, SelectionProblem


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
        """Look at each pair until nothing changes."""
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
        told = np.full(self.sizes[group], -1)
        told[self.own[group]] = self.own[node][candidate]
        self.joined.append((node, group, told))
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
    for node, into, told in reversed(work.joined):
        group[node], candidates[node] = group[into], told[candidates[into]]
    left = np.flatnonzero(~work.gone)
    number = {int(g): i for i, g in enumerate(left)}
    return ReducedGroups(
        [work.costs[g] for g in left],
        {(number[a], number[b]): t for (a, b), t in work.tables.items()},
        [(number[int(g)], w) for g, w in zip(group, candidates, strict=True)],
    )
