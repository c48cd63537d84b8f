"""The sizes that calls have, and how often: of a trace, or of declared ranges."""

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.shapes.plan import Ranges, is_size

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
    """Return both ends and the powers of two between."""
    powers = (1 << k for k in range(low.bit_length(), high.bit_length() + 1))
    return sorted({low, high, *(p for p in powers if low < p < high)})


def _bad_trace(name: str, expected: str, got: str) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, where=name, expected=expected, got=got)
