"""Better choices by changing one group at a time: `Descent`, within the limit of memory.

The cost of every way of every group, given the others, is kept up to date. `repair` brings a choice
below the limit where it pays least; `improve` lowers the cost and stays below it.
"""

from collections.abc import Callable

import numpy as np

from pyc_mlir.pipelines.memory.selection.problem import FORBIDDEN, Floats, Ints
from pyc_mlir.pipelines.memory.selection.reduction import Reduced
from pyc_mlir.pipelines.memory.selection.usage import Usage

_STEP = 30.0
# Ways that are tried, of those with the largest gain, before all gains are computed again.
_BATCH = 256


class Descent:
    """A choice of groups, its bytes over time, and what every way would cost.

    spend: is told of work, in microseconds or so.
    """

    def __init__(
        self, reduced: Reduced, usage: Usage, choice: Ints, spend: Callable[[float], None]
    ) -> None:
        self._usage, self._spend = usage, spend
        self._own = np.concatenate(reduced.costs)
        self._group = np.repeat(np.arange(len(reduced.costs)), np.diff(usage.start))
        self._near: list[list[tuple[int, Floats]]] = [[] for _ in reduced.costs]
        for (a, b), table in sorted(reduced.tables.items()):
            self._near[a].append((b, table))
            self._near[b].append((a, table.T))
        self.choice = choice.copy()
        self.used = usage.of_choice(choice)
        self.costs = self._own.copy()
        for group, way in enumerate(choice):
            for other, table in self._near[group]:
                self._of(other)[:] += table[way]

    def _of(self, group: int) -> Floats:
        return self.costs[self._usage.start[group] : self._usage.start[group + 1]]

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

    def _move(self, group: int, way: int, change: Floats) -> None:
        before = int(self.choice[group])
        self.choice[group] = way
        self.used = self.used + change
        for other, table in self._near[group]:
            self._of(other)[:] += table[way] - table[before]

    def _gain(self) -> Floats:
        """What each way would cost more than its group's present one, f64[ways]."""
        return self.costs - self.costs[self._present][self._group]

    def repair(self) -> bool:
        """Change ways until no time is above the limit; whether that was reached."""
        usage, before = self._usage, np.inf
        while (excess := self.excess) > 0:
            if excess >= before:
                return False
            before = excess
            paid = usage.price((self.used > usage.limit).astype(np.float64))
            saved = paid[self._present][self._group] - paid
            with np.errstate(divide="ignore", invalid="ignore"):
                worth = np.where(saved > 0, self._gain() / saved, np.inf)
            # Ways that cost nothing more are ranked by what they save.
            order = np.lexsort((-saved, np.maximum(worth, 0)))
            self._spend(_STEP + len(worth) * 0.1)
            for number in order[:_BATCH]:
                if not np.isfinite(worth[number]) or self.costs[number] >= FORBIDDEN:
                    break
                group = int(self._group[number])
                way = int(number - usage.start[group])
                if way == self.choice[group]:
                    continue
                change = usage.change(group, int(self.choice[group]), way)
                self._spend(_STEP + usage.times * 2e-3)
                after = float(np.maximum(self.used + change - usage.limit, 0).sum())
                if after < excess:
                    self._move(group, way, change)
                    break
        return True

    def improve(self) -> None:
        """Take ways that cost less and keep every time within the limit, until there is none."""
        usage, moved = self._usage, True
        while moved:
            moved = False
            gain = self._gain()
            self._spend(_STEP + len(gain) * 0.1)
            order = np.argsort(gain, kind="stable")
            for number in order[: int(np.searchsorted(gain[order], -1e-9))]:
                group = int(self._group[number])
                way = int(number - usage.start[group])
                # Moves before this one may have changed what it gains.
                mine = self._of(group)
                if mine[way] >= mine[self.choice[group]] - 1e-9:
                    continue
                change = usage.change(group, int(self.choice[group]), way)
                self._spend(_STEP + usage.times * 2e-3)
                if not ((change > 0) & (self.used + change > usage.limit)).any():
                    self._move(group, way, change)
                    moved = True
