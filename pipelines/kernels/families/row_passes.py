"""The passes of a row kernel over one row: softmax, norms and reductions."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.kernels.lang.functions import exp_nonpositive, log
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import (
    Index,
    Scalar,
    Vector,
    add,
    fma,
    larger,
    square_root,
)
from pyc_mlir.pipelines.kernels.shared.reductions import REDUCTIONS

# In numbers; six kilobytes.
_STREAM_AHEAD = 1536


@dataclass(frozen=True)
class RowPass:
    """A pass over row `i` of `x` to `y`: the row needed soon, what is done before and after.

    `held` is memory for a row of f32 where x and y are of a half type.
    """

    k: Build
    knobs: Any  # `Rows`, whose module imports this one
    x: Memory
    y: Memory
    i: Index
    soon: Index
    before: Callable[[Vector, Lanes], Vector]
    after: Callable[[Vector, Lanes], Vector]
    held: Memory | None = None

    @property
    def length(self) -> Index:
        """The count of numbers."""
        return self.x.shape[1]

    def fetch(self, at: Lanes) -> None:
        """Ask for the same place in the row that is needed soon."""
        if self.knobs.ahead:
            self.x.prefetch(self.soon, at.start)

    def stream(self, at: Lanes) -> None:
        """Ask for what lies a page and a half further: rows that are read once follow each other.

        Processors do not prefetch across a page. Measured on sums of 4096x4096 (Zen 4): 5 % less
        time than two rows ahead, 10 % less than nothing.
        """
        if self.knobs.ahead:
            self.x.prefetch(self.i, at.start + _STREAM_AHEAD, level=2)

    def first(self, at: Lanes) -> Vector:
        """Read the row's numbers for the first time; what the prologue made is kept in y."""
        value = self.before(self.x.load(self.i, at), at)
        if self._kept:
            self.keep(value, at)
        return value

    def again(self, at: Lanes) -> Vector:
        """Read the row's numbers again."""
        return self.kept(at) if self._kept else self.x.load(self.i, at)

    def keep(self, value: Vector, at: Lanes) -> None:
        """Write numbers that are read again, exactly: y's own row holds them."""
        if self.held is None:
            self.y.store(value, self.i, at)
        else:
            self.held.store(value, at)

    def kept(self, at: Lanes) -> Vector:
        """Read what `keep` wrote."""
        return self.y.load(self.i, at) if self.held is None else self.held.load(at)

    @property
    def _kept(self) -> bool:
        made = bool(self.knobs.prologue.steps) or self.held is not None
        return made and self.knobs.operation not in REDUCTIONS

    def finish(self, value: Vector, at: Lanes) -> None:
        """Write the result's numbers."""
        self.y.store(self.after(value, at), self.i, at)

    def fold(self, combine: Any, start: float) -> Any:
        """`Build.fold` along the row."""
        return self.k.fold(self.length, combine, start, self.knobs.unroll)

    def each(self) -> Any:
        """`Build.each` along the row."""
        return self.k.each(self.length, self.knobs.unroll)

    def mean_of(self, total: Scalar) -> Scalar:
        """Divide a sum along the row by its length."""
        return total / self.length.to_float()


def softmax(row: RowPass) -> None:
    """y = exp(x - max x) / sum exp(x - max x). A row with a NaN or +inf becomes all NaN."""

    # Passing over NaN is enough: exp carries it into the sum, and so to the whole row.
    @row.fold(larger, -math.inf)
    def peak(at: Lanes) -> Any:
        return row.first(at)

    @row.fold(add, 0.0)
    def total(at: Lanes) -> Any:
        row.fetch(at)
        power = exp_nonpositive(row.again(at) - peak)
        row.keep(power, at)
        return power

    share = 1.0 / total

    @row.each()
    def _(at: Lanes) -> None:
        row.finish(row.kept(at) * share, at)


def log_softmax(row: RowPass) -> None:
    """y = x - max x - log sum exp(x - max x). A row with a NaN or +inf becomes all NaN."""

    @row.fold(larger, -math.inf)
    def peak(at: Lanes) -> Any:
        return row.first(at)

    @row.fold(add, 0.0)
    def total(at: Lanes) -> Any:
        row.fetch(at)
        return exp_nonpositive(row.again(at) - peak)

    share = log(total.across(row.k.lanes))

    @row.each()
    def _(at: Lanes) -> None:
        row.finish(row.again(at) - peak - share, at)


def normalize(row: RowPass, epsilon: float, scale: Memory, shift: Memory | None = None) -> None:
    """y = (x - m) / sqrt(mean (x - m)^2 + epsilon) * scale + shift; without shift, m is 0."""
    centre: Any = 0.0
    if shift is not None:

        @row.fold(add, 0.0)
        def total(at: Lanes) -> Any:
            row.fetch(at)
            return row.first(at)

        centre = row.mean_of(total)

    @row.fold(add, 0.0)
    def squares(at: Lanes) -> Any:
        if shift is None:
            row.fetch(at)
        distance = (row.first(at) if shift is None else row.again(at)) - centre
        return distance * distance

    factor = 1.0 / square_root(row.mean_of(squares) + epsilon)

    @row.each()
    def _(at: Lanes) -> None:
        unit = (row.again(at) - centre) * factor
        if shift is None:
            row.finish(unit * scale.load(at), at)
        else:
            row.finish(fma(unit, scale.load(at), shift.load(at)), at)


def reduce_row(row: RowPass, operation: str) -> None:
    """y[i] = the numbers of row i, combined; max and min are NaN where a number is."""

    @row.fold(*REDUCTIONS[operation])
    def total(at: Lanes) -> Any:
        row.stream(at)
        return row.first(at)

    value = row.mean_of(total) if operation == "mean" else total
    if row.knobs.epilogue.steps:
        start = Lanes(Index.of(0))
        value = row.after(value.across(row.k.lanes), start).lane(0)
    row.y.put(value, row.i)
