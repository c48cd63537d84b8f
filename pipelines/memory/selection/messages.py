"""Choosing without a limit of memory: sequential tree-reweighted message passing, `Messages`.

A sweep passes over the groups in order and back. Messages along tables move cost between groups
until the sum of their least costs, a lower bound, rises no more; choosing groups one after another
by what the messages say then gives a choice that is often the best there is.

Source: Kolmogorov, "Convergent tree-reweighted message passing for energy minimization" (2006).
"""

from collections.abc import Callable

import numpy as np

from pyc_mlir.pipelines.memory.selection.problem import Floats, Ints
from pyc_mlir.pipelines.memory.selection.reduction import ReducedGroups

# Work of one message in microseconds of a 3 GHz core: calls of numpy, then entries of a table.
_CALL, _ENTRY = 10.0, 1e-3


class Messages:
    """Messages between groups, kept from sweep to sweep while prices change.

    spend: is told of the work of each sweep, in microseconds or so.
    """

    def __init__(self, reduced: ReducedGroups, spend: Callable[[float], None]) -> None:
        self._spend, count = spend, len(reduced.costs)
        self._before: list[list[tuple[int, int, Floats]]] = [[] for _ in range(count)]
        self._after: list[list[tuple[int, int, Floats]]] = [[] for _ in range(count)]
        self._into: list[Floats] = []
        # Each table twice, as each of both reads it: [own ways, other's ways], contiguous.
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
        """Send messages one way; return what they move into the bound."""
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
