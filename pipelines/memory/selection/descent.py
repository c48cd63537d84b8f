"""Better choices by changing one group at a time: `Descent`, within the limit of memory.

The cost of every candidate of every group, given the others, is kept up to date. `repair` brings a
choice below the limit where it pays least; `improve` lowers the cost and stays below it.
"""

from collections.abc import Callable

import numpy as np

from pyc_mlir.pipelines.memory.selection.problem import FORBIDDEN, Floats, Ints
from pyc_mlir.pipelines.memory.selection.reduction import ReducedGroups
from pyc_mlir.pipelines.memory.selection.usage import Usage

# Work of one step in microseconds of a 3 GHz core, and of an entry of its arrays.
_STEP, _ENTRY, _TABLE = 40.0, 5e-3, 4.0
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
        """Return the cost of each candidate of a group, given the others."""
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
        self._spend(_STEP + len(self.costs) * _ENTRY)
        return self.costs - self.costs[self._present][self._group]

    def _tried(self, number: int) -> tuple[int, int, tuple[slice, Floats]]:
        """Return the group and candidate of a number, and the change of bytes."""
        group, candidate = self.place(number)
        change = self._usage.change(group, int(self.choice[group]), candidate)
        self._spend(_STEP + len(change[1]) * _ENTRY)
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
