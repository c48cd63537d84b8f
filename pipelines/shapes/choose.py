"""Choose for which sizes of dynamic dimensions a program gets plans of its own.

    plans = choose_plans(demand, seconds, most)

Comes in: how often calls have certain sizes, of a trace or of declared ranges, and the seconds of a
plan at sizes, measured or predicted. Goes out: the plans, at most so many, that serve the demand in
the fewest seconds; what none of them covers runs the general plan. Rows in the order of their
seconds are cut into segments by dynamic programming, as in optimal one-dimensional quantization
(Bruce, 1965): a segment is a plan for the box around its rows."""

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.shapes.plan import Ranges, ShapePlan, is_size

# The largest number of rows that are told apart; the rarest neighbours are put together.
MOST_ROWS = 96
# Combinations of the steps of several dimensions, beyond which they grow together.
_MOST_COMBINED = 64
# The column of a trace that counts calls.
COUNT = "count"


@dataclass(frozen=True)
class DemandRow:
    """A box of sizes, in the order of the demand's dimensions, and the share of calls in it."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    weight: float


@dataclass(frozen=True)
class Demand:
    """The sizes that calls have, and how often. Weights add up to 1 unless there is no row."""

    dims: tuple[str, ...] = ()
    rows: tuple[DemandRow, ...] = ()

    @staticmethod
    def of_ranges(ranges: Ranges) -> "Demand":
        """Return the demand of ranges about which nothing else is known: geometric steps alike."""
        dims = tuple(sorted(ranges))
        steps = [_steps(*ranges[name]) for name in dims]
        combined = list(product(*steps)) if dims else []
        if len(combined) > _MOST_COMBINED:
            longest = max(map(len, steps))
            combined = [tuple(s[i * len(s) // longest] for s in steps) for i in range(longest)]
        return Demand.of_sizes(dims, Counter(combined))

    @staticmethod
    def of_sizes(dims: Sequence[str], counts: Mapping[tuple[int, ...], float]) -> "Demand":
        """Return the demand of counted sizes; at most MOST_ROWS rows, by merging rare neighbours.

        Frequent sizes stay rows of their own.
        """
        total = sum(counts.values())
        if not total:
            return Demand(tuple(dims))
        known = sorted(counts, key=lambda sizes: (math.prod(sizes), sizes))
        kept = set(sorted(known, key=lambda s: -counts[s])[: MOST_ROWS // 2])
        rest = sum(counts[s] for s in known if s not in kept)
        rows: list[DemandRow] = []
        group: list[tuple[int, ...]] = []

        def close() -> None:
            if group:
                columns = list(zip(*group, strict=True))
                weight = sum(counts[s] for s in group) / total
                low, high = (tuple(map(end, columns)) for end in (min, max))
                rows.append(DemandRow(low, high, weight))
                group.clear()

        room = max((MOST_ROWS - len(kept)) // 2, 1)
        for sizes in known:
            if sizes in kept:
                close()
                rows.append(DemandRow(sizes, sizes, counts[sizes] / total))
                continue
            group.append(sizes)
            if sum(counts[s] for s in group) * room >= rest:
                close()
        close()
        return Demand(tuple(dims), tuple(rows))

    @staticmethod
    def of_trace(text: str, name: str = "trace") -> "Demand":
        """Read a table of calls: CSV with a header of dimensions, and perhaps a column `count`.

        Raises PycError (BAD_ARGUMENT).
        """
        try:
            header, *lines = csv.reader(io.StringIO(text))
        except (csv.Error, ValueError) as error:
            raise _bad_trace(name, "a table as CSV, with a header", str(error)) from None
        header = [cell.strip() for cell in header]
        if len(set(header)) < len(header) or not set(header) - {COUNT, ""}:
            got = repr(",".join(header)[:80])
            raise _bad_trace(name, "a header that names dimensions, each once", got)
        dims = tuple(n for n in header if n != COUNT)
        counts: Counter[tuple[int, ...]] = Counter()
        for number, cells in enumerate(lines, 2):
            if not cells:
                continue
            row = dict(zip(header, (c.strip() for c in cells), strict=False))
            sound = len(cells) == len(header) and all(map(is_size, row.values()))
            if not sound:
                expected = f"{len(header)} whole numbers in line {number}"
                raise _bad_trace(name, expected, repr(",".join(cells)[:80]))
            counts[tuple(int(row[n]) for n in dims)] += int(row.get(COUNT, 1))
        if not sum(counts.values()):
            raise _bad_trace(name, "lines of calls", "none")
        return Demand.of_sizes(dims, counts)

    def within(self, ranges: Ranges) -> "Demand":
        """Return the part of the demand within ranges; other calls are refused at run time."""
        ends = [ranges.get(name) for name in self.dims]
        inside = tuple(
            row
            for row in self.rows
            if all(
                end is None or (end[0] <= low and high <= end[1])
                for end, low, high in zip(ends, row.low, row.high, strict=True)
            )
        )
        return Demand(self.dims, inside)

    def sizes(self, row: DemandRow) -> dict[str, int]:
        """Return the sizes by which a row is costed: its largest."""
        return dict(zip(self.dims, row.high, strict=True))


def _steps(low: int, high: int) -> list[int]:
    powers = (1 << k for k in range(low.bit_length(), high.bit_length() + 1))
    return sorted({low, high, *(p for p in powers if low < p < high)})


def _bad_trace(name: str, expected: str, got: str) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, where=name, expected=expected, got=got)


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
        return [r.weight * self.seconds(None, self.demand.sizes(r)) for r in self.rows]

    def plan(self, first: int, end: int) -> ShapePlan:
        rows = self.rows[first:end]
        lows = map(min, zip(*(r.low for r in rows), strict=True))
        highs = map(max, zip(*(r.high for r in rows), strict=True))
        return ShapePlan(dict(zip(self.demand.dims, zip(lows, highs, strict=True), strict=True)))

    def cost(self, first: int, end: int) -> float:
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
