"""The memory that candidates of groups use over time: `Usage`, in bytes, and its price.

Each candidate of a group uses bytes in several intervals, one or more for each node of the group.
Candidates of all groups are numbered through; times are those at which an interval begins or ends.
"""

from dataclasses import dataclass

import numpy as np

from pyc_mlir.pipelines.memory.selection.problem import Floats, Ints, SelectionProblem
from pyc_mlir.pipelines.memory.selection.reduction import ReducedGroups


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
