"""Choose for which sizes of dynamic dimensions a program gets plans of its own.

    plans = choose_plans(demand, seconds, most)

Comes in: how often calls have certain sizes, and the seconds of a plan at sizes, measured or
predicted. Goes out: the plans, at most so many, that serve the demand in the fewest seconds; what
none of them covers runs the general plan. Rows in the order of their seconds are cut into segments
by dynamic programming, as in optimal one-dimensional quantization (Bruce, 1965): a segment is a
plan for the box around its rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pyc_mlir.pipelines.shapes.demand import Demand, DemandRow
from pyc_mlir.pipelines.shapes.plan import ShapePlan

# The seconds of a call of these sizes by a plan; by the general one for None.
Seconds = Callable[[ShapePlan | None, Mapping[str, int]], float]


@dataclass(frozen=True)
class Chosen:
    """The chosen plans, and the predicted seconds of a mean call with and without them."""

    plans: tuple[ShapePlan, ...] = ()
    seconds: float = 0.0
    general: float = 0.0

    @property
    def gain(self) -> float:
        """The seconds of the general plan divided by those with the plans."""
        return self.general / self.seconds if self.seconds > 0 else 1.0


@dataclass
class _Segments:
    """The best plans of each number, over the rows of a demand."""

    demand: Demand
    seconds: Seconds
    rows: list[DemandRow] = field(init=False)

    def __post_init__(self) -> None:
        sizes, general = self.demand.sizes, self.seconds
        self.rows = sorted(self.demand.rows, key=lambda r: (general(None, sizes(r)), r.low))

    @cached_property
    def general(self) -> list[float]:
        """The weighted seconds of each row by the general plan."""
        return [r.weight * self.seconds(None, self.demand.sizes(r)) for r in self.rows]

    def plan(self, first: int, end: int) -> ShapePlan:
        """Return the plan for the box around rows."""
        rows = self.rows[first:end]
        lows = map(min, zip(*(r.low for r in rows), strict=True))
        highs = map(max, zip(*(r.high for r in rows), strict=True))
        return ShapePlan(dict(zip(self.demand.dims, zip(lows, highs, strict=True), strict=True)))

    def cost(self, first: int, end: int) -> float:
        """Return the weighted seconds of rows by their own plan."""
        plan = self.plan(first, end)
        rows = self.rows[first:end]
        return math.fsum(r.weight * self.seconds(plan, self.demand.sizes(r)) for r in rows)

    def solve(self, most: int) -> list[tuple[float, tuple[ShapePlan, ...]]]:
        """Return, for 0 to `most` plans, the fewest seconds and the plans."""
        count = len(self.rows)
        costs = [
            [self.cost(first, end) for end in range(first + 1, count + 1)] for first in range(count)
        ]
        found = []
        best = [math.fsum(self.general[:end]) for end in range(count + 1)]
        cuts: list[list[int]] = [[-1] * (count + 1)]
        for left in range(most + 1):
            if left:
                best, made = self._one_more(best, costs)
                cuts.append(made)
            found.append((best[count], self._traced(cuts, left)))
        return found

    def _one_more(
        self, before: Sequence[float], costs: Sequence[Sequence[float]]
    ) -> tuple[list[float], list[int]]:
        """Return the fewest seconds up to each row with a plan more, and where its rows begin.

        -1 where the last row has the general plan.
        """
        best, made = [0.0], [-1]
        for end in range(1, len(before)):
            value, cut = best[end - 1] + self.general[end - 1], -1
            for first in range(end):
                candidate = before[first] + costs[first][end - first - 1]
                # Of equal ones the smaller number of plans.
                if candidate < value * (1 - 1e-12):
                    value, cut = candidate, first
            best.append(value)
            made.append(cut)
        return best, made

    def _traced(self, cuts: Sequence[Sequence[int]], left: int) -> tuple[ShapePlan, ...]:
        plans, end = [], len(self.rows)
        while end > 0 and left > 0:
            first = cuts[left][end]
            if first < 0:
                end -= 1
                continue
            plans.append(self.plan(first, end))
            end, left = first, left - 1
        return tuple(reversed(plans))


def choose_plans(demand: Demand, seconds: Seconds, most: int, gain: float = 0.0) -> Chosen:
    """Return at most so many plans that serve the demand in the fewest seconds.

    gain: the share of all seconds that each plan has to save; fewer plans otherwise. Narrow plans
    come first, as the first that covers a call serves it.
    """
    if not demand.rows or most < 1:
        return Chosen()
    found = _Segments(demand, seconds).solve(min(most, len(demand.rows)))
    general = found[0][0]
    each = max(gain, 1e-9) * general
    number = min(range(len(found)), key=lambda k: found[k][0] + k * each)
    total, plans = found[number]
    narrow = sorted(plans, key=lambda p: (len(p.open), _volume(p)))
    return Chosen(tuple(narrow), total, general)


def _volume(plan: ShapePlan) -> float:
    return math.prod(float(high - low + 1) for low, high in plan.ranges.values())
