"""Which kernels work along rows? softmax and its logarithm, layer and RMS norms, and reductions.

Each takes a matrix `x` of `rows` by `columns`, either known or dynamic, works on one row after
another while it is in the first-level cache, and leaves rows to workgroups in contiguous parts.
A pointwise program may run on each number before (while the row is first read) and after.
Knobs are data; `kernel` gives the carrier what to build. Following the two-pass variance of
Chan, Golub and LeVeque (1983): one pass has eight times the error and is no faster, since a row
is in cache.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.functions import exp_nonpositive, log
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import (
    Index,
    Scalar,
    Vector,
    add,
    fma,
    larger,
    least,
    square_root,
)
from pyc_mlir.pipelines.kernels.shared.reductions import REDUCTIONS
from pyc_mlir.pipelines.target.target import Target

WEIGHTS = {"layernorm": ("scale", "shift"), "rmsnorm": ("scale",)}
# In numbers; six kilobytes.
_STREAM_AHEAD = 1536
EXPONENTIALS = ("softmax", "log_softmax")
OPERATIONS = (*EXPONENTIALS, *WEIGHTS, *REDUCTIONS)


@dataclass(frozen=True)
class Rows:
    """The knobs of a row kernel.

    `operation` is one of `OPERATIONS`. `columns` must be at least 1. A norm has the operand
    `scale` (and `shift` for layernorm), one number a column. `rows_per_workgroup` cuts the
    matrix, `unroll` is how many vectors a block has, `ahead` how many rows ahead are prefetched
    (0: none). `in_place` overwrites `x`; reductions cannot. `prologue` makes the numbers of a row
    from x, `epilogue` those of the result (of a reduction: one number a row, no columns to read).
    """

    operation: str
    rows: Dim
    columns: Dim
    epsilon: float = 1e-5
    rows_per_workgroup: int = 64
    unroll: int = 4
    ahead: int = 2
    in_place: bool = False
    prologue: Pointwise = NOTHING
    epilogue: Pointwise = NOTHING

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        if self.operation not in OPERATIONS:
            raise _refusal(f"an operation of {', '.join(OPERATIONS)}", self.operation)
        for name in ("rows", "columns", "rows_per_workgroup", "unroll"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise _refusal(f"{name} of at least 1", value)
        if self.ahead < 0:
            raise _refusal("ahead of at least 0", self.ahead)
        if not math.isfinite(self.epsilon):
            raise _refusal("a finite epsilon", self.epsilon)
        if self.operation in REDUCTIONS:
            if self.in_place:
                raise _refusal("a result as large as the input for work in place", self.operation)
            if any(read.along for read in self.epilogue.reads):
                raise _refusal("an epilogue without columns after a reduction", self.epilogue)

    @staticmethod
    def on(target: Target, operation: str, rows: Dim, columns: Dim, **others: Any) -> "Rows":
        """The knobs for a target's registers; `others` are further fields.

        exp keeps about a dozen constants in registers, so that with 16 of them one vector at a
        time is all that does not spill. A layernorm's first pass only adds, and the processor
        fetches by itself what is next: without prefetches 4096x1024 took 12 to 25 % less time
        (Zen 4, one core), softmax 20 to 30 % more.
        """
        few = operation in EXPONENTIALS and target.vector_registers < 32
        knobs = {"unroll": 1 if few else 4, "ahead": 0 if operation == "layernorm" else 2}
        return Rows(operation, rows, columns, **{**knobs, **others})

    def kernel(self, name: str) -> Kernel:
        """The kernel called `name`: x, the prologue's reads, scale, shift, the epilogue's, y."""
        pairs = tuple(("y", name) for name in self._overwritable())
        return Kernel(name, self._operands(), self._grid, self._body, pairs)

    def _overwritable(self) -> list[str]:
        """The inputs whose memory y may be: a number of theirs is not read once y has its own.

        Where y holds what is not the result yet, the epilogue's reads must stay until the end.
        """
        if self.in_place or self.operation in REDUCTIONS:
            return []
        held = self.operation == "softmax" or bool(self.prologue.steps)
        programs = {"before": self.prologue, "after": NOTHING if held else self.epilogue}
        reads = {f"{p}{n}": r for p, of in programs.items() for n, r in enumerate(of.reads)}
        return ["x", *(name for name, read in reads.items() if read.is_alike(self.rows))]

    def _operands(self) -> tuple[Operand, ...]:
        shape = (self.rows, self.columns)
        reduces = self.operation in REDUCTIONS
        inputs = (
            *self.prologue.operands("before", *shape),
            *(Operand(w, (self.columns,)) for w in WEIGHTS.get(self.operation, ())),
            *self.epilogue.operands("after", self.rows, 1 if reduces else self.columns),
        )
        if self.in_place:
            return (Operand("x", shape, "update"), *inputs)
        return (Operand("x", shape), *inputs, Operand("y", shape[: 2 - reduces], "out"))

    def _grid(self, size: Callable[[Dim], Index]) -> tuple[Index]:
        return (size(self.rows).ceildiv(self.rows_per_workgroup),)

    def _body(self, k: Build, x: Memory, *others: Memory) -> None:
        rest = iter(others)
        before = InKernel(k, self.prologue, tuple(islice(rest, len(self.prologue.reads))))
        weights = tuple(islice(rest, len(WEIGHTS.get(self.operation, ()))))
        after = InKernel(k, self.epilogue, tuple(islice(rest, len(self.epilogue.reads))))
        y = x if self.in_place else next(rest)
        rows = x.shape[0]
        first = k.workgroup() * self.rows_per_workgroup
        with k.range(first, least(first + self.rows_per_workgroup, rows)) as i:
            soon = least(i + self.ahead, rows - 1)
            row = Row(k, self, x, y, i, soon, before.row(i), after.row(i))
            if self.operation in REDUCTIONS:
                _reduce(row, self.operation)
            elif self.operation == "softmax":
                _softmax(row)
            elif self.operation == "log_softmax":
                _log_softmax(row)
            else:
                _normalize(row, self.epsilon, *weights)


@dataclass(frozen=True)
class Row:
    """Row `i` of `x` to `y`, the row that is needed soon, and what is done before and after."""

    k: Build
    knobs: Rows
    x: Memory
    y: Memory
    i: Index
    soon: Index
    before: Callable[[Vector, Lanes], Vector]
    after: Callable[[Vector, Lanes], Vector]

    @property
    def length(self) -> Index:
        """How many numbers."""
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
        """The row's numbers, read for the first time; what the prologue made is kept in y."""
        value = self.before(self.x.load(self.i, at), at)
        if self._kept:
            self.y.store(value, self.i, at)
        return value

    def again(self, at: Lanes) -> Vector:
        """The row's numbers, once all of them were read."""
        return (self.y if self._kept else self.x).load(self.i, at)

    @property
    def _kept(self) -> bool:
        return bool(self.knobs.prologue.steps) and self.knobs.operation not in REDUCTIONS

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
        """A sum along the row, divided by its length."""
        return total / self.length.to_float()


def _softmax(row: Row) -> None:
    """y = exp(x - max x) / sum exp(x - max x). A row with a NaN or +inf becomes all NaN."""
    y, i = row.y, row.i

    # Passing over NaN is enough: exp carries it into the sum, and so to the whole row.
    @row.fold(larger, -math.inf)
    def peak(at: Lanes) -> Any:
        return row.first(at)

    @row.fold(add, 0.0)
    def total(at: Lanes) -> Any:
        row.fetch(at)
        power = exp_nonpositive(row.again(at) - peak)
        y.store(power, i, at)
        return power

    share = 1.0 / total

    @row.each()
    def _(at: Lanes) -> None:
        row.finish(y.load(i, at) * share, at)


def _log_softmax(row: Row) -> None:
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


def _normalize(row: Row, epsilon: float, scale: Memory, shift: Memory | None = None) -> None:
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


def _reduce(row: Row, operation: str) -> None:
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


def _refusal(expected: str, came: object) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, f"row kernel: expected {expected}, got {came!r}")
