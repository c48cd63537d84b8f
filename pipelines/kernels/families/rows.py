"""The kernel family ``rows``: softmax and its logarithm, layer and RMS norms, reductions of rows.

Each takes a matrix `x` of `rows` by `columns`, either known or dynamic, works on one row after
another while it is in the first-level cache, and leaves rows to workgroups in contiguous parts.
A pointwise program may run on each number before (while the row is first read) and after.
Following the two-pass variance of Chan, Golub and LeVeque (1983): one pass has eight times the
error and is no faster, since a row is in cache.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.kernels.families.reduce import REDUCTIONS
from pyc_mlir.pipelines.kernels.knobs import UNROLLS, KernelKnobs, knob, known, one_of, parts_of
from pyc_mlir.pipelines.kernels.lang import values as ops
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand, in_type
from pyc_mlir.pipelines.kernels.lang.functions import exp_nonpositive, log
from pyc_mlir.pipelines.kernels.lang.language import HALVES, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar, Vector
from pyc_mlir.pipelines.kernels.match import (
    Feed,
    KernelOffer,
    MatchedProgram,
    MatrixView,
    find,
    longest,
    sources,
)
from pyc_mlir.pipelines.kernels.nest import local
from pyc_mlir.pipelines.kernels.registry import Family
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, WorkOp, float_type, nominal

WEIGHTS = {"layernorm": ("scale", "shift"), "rmsnorm": ("scale",)}
# Numbers of a row of f16 or bf16 that are kept: 24 KB of f32 on the stack, of which IREE allows 32.
WIDENED = 6144
EXPONENTIALS = ("softmax", "log_softmax")
OPERATIONS = (*EXPONENTIALS, *WEIGHTS, *REDUCTIONS)
_STREAM_AHEAD = 1536  # numbers: six kilobytes


@dataclass(frozen=True)
class Rows(KernelKnobs, family="rows"):
    """The knobs of a row kernel.

    `operation` is one of `OPERATIONS`. A norm has the operand
    `scale` (and `shift` for layernorm), one number a column. `rows_per_workgroup` cuts the
    matrix, `unroll` is how many vectors a block has, `ahead` how many rows ahead are prefetched
    (0: none). `prologue` makes the numbers of a row
    from x, `epilogue` those of the result (of a reduction: one number a row, no columns to read).
    Rows of a half `dtype` of up to `WIDENED` numbers are kept in f32 on the stack; what is read
    again of longer ones is computed again.
    """

    operation: str = field(metadata=one_of(OPERATIONS))
    rows: Dim
    columns: Dim
    epsilon: float = 1e-5
    rows_per_workgroup: int = knob(64, lambda k, target: parts_of(target, k.rows))
    unroll: int = knob(4, UNROLLS)
    ahead: int = knob(2, (0, 1, 2, 4), least=0)
    prologue: Pointwise = NOTHING
    epilogue: Pointwise = NOTHING
    dtype: str = "f32"
    small = ("scale", "shift")

    def _misfit(self) -> str:
        if not math.isfinite(self.epsilon):
            return "a finite epsilon"
        if self.operation in REDUCTIONS and any(read.along for read in self.epilogue.reads):
            return "an epilogue without columns after a reduction"
        return ""

    @staticmethod
    def on(target: Target, operation: str, rows: Dim, columns: Dim, **others: Any) -> "Rows":
        """Choose the knobs for a target's registers; `others` are further fields.

        exp keeps about a dozen constants in registers, so that with 16 of them one vector at a
        time is all that does not spill. A layernorm's first pass only adds, and the processor
        fetches by itself what is next: without prefetches 4096x1024 took 12 to 25 % less time
        (Zen 4, one core), softmax 20 to 30 % more.
        """
        few = operation in EXPONENTIALS and target.vector_registers < 32
        knobs = {"unroll": 1 if few else 4, "ahead": 0 if operation == "layernorm" else 2}
        return Rows(operation, rows, columns, **{**knobs, **others})

    @property
    def flops(self) -> float:
        """Those of the op, and of the programs."""
        rows, columns = known(self.rows), known(self.columns)
        reduces = self.operation in REDUCTIONS
        matrix = TensorType((rows, columns), np.dtype(np.float32))
        made = matrix.elements if reduces else OPS[self.operation].flops([matrix], matrix)
        across = 1 if reduces else columns
        return made + rows * (self.prologue.flops * columns + self.epilogue.flops * across)

    def operands(self) -> tuple[Operand, ...]:
        """Return x, the prologue's reads, scale, shift, the epilogue's, y."""
        shape = (self.rows, self.columns)
        reduces = self.operation in REDUCTIONS
        inputs = (
            *self.prologue.operands("before", *shape),
            *(Operand(w, (self.columns,)) for w in WEIGHTS.get(self.operation, ())),
            *self.epilogue.operands("after", self.rows, 1 if reduces else self.columns),
        )
        result = Operand("y", shape[: 2 - reduces], "out")
        return in_type((Operand("x", shape), *inputs, result), self.dtype)

    def refusal(self, target: Target) -> str:
        """Refuse rows that no cache holds: they would be read from memory several times."""
        columns = self.columns
        if isinstance(columns, int) and 4 * columns > target.l2_bytes:
            expected = f"expected rows of at most {target.l2_bytes} bytes (L2)"
            return f"{self.operation}: {expected}, got {4 * columns}"
        return ""

    def _in_place(self) -> tuple[tuple[str, str], ...]:
        """Return inputs whose memory y may be: none is read once y has its own number.

        Where y holds what is not the result yet, the epilogue's reads must stay until the end.
        """
        if self.operation in REDUCTIONS:
            return ()
        held = self.operation == "softmax" or bool(self.prologue.steps)
        programs = {"before": self.prologue, "after": NOTHING if held else self.epilogue}
        reads = {f"{p}{n}": r for p, of in programs.items() for n, r in enumerate(of.reads)}
        alike = (name for name, read in reads.items() if read.is_alike(self.rows))
        return tuple(("y", name) for name in ("x", *alike))

    def _cut(self) -> tuple[tuple[Dim, int], ...]:
        return ((self.rows, self.rows_per_workgroup),)

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        x, y = memory["x"], memory["y"]
        before = InKernel.of(k, self.prologue, "before", memory)
        after = InKernel.of(k, self.epilogue, "after", memory)
        weights = [memory[w] for w in WEIGHTS.get(self.operation, ())]

        def rows(held: Memory | None) -> None:
            with k.range(*self._part(k)) as i:
                soon = ops.least(i + self.ahead, x.shape[0] - 1)
                row = RowPass(k, self, x, y, i, soon, before.row(i), after.row(i), held)
                if self.operation in REDUCTIONS:
                    reduce_row(row, self.operation)
                elif self.operation == "softmax":
                    softmax(row)
                elif self.operation == "log_softmax":
                    log_softmax(row)
                else:
                    normalize(row, self.epsilon, *weights)

        most = self.columns if isinstance(self.columns, int) else WIDENED
        if self.dtype not in HALVES or self.operation in REDUCTIONS or most > WIDENED:
            return rows(None)
        held = local(k, most)
        if isinstance(self.columns, int):
            return rows(held)
        k.either(Index.of(WIDENED) < x.shape[1], [], lambda: rows(None), lambda: rows(held))
        return None


@dataclass(frozen=True)
class RowPass:
    """A pass over row `i` of `x` to `y`: the row needed soon, what is done before and after.

    `held` is memory for a row of f32 where x and y are of a half type and the row is not long.
    """

    k: Build
    knobs: Rows
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
        """Read the row's numbers again, or compute them again."""
        return self.kept(at) if self._kept else self.before(self.x.load(self.i, at), at)

    def keep(self, value: Vector, at: Lanes) -> None:
        """Write numbers that are read again, exactly: y's own row holds them, if anything does."""
        if self.held is not None:
            self.held.store(value, at)
        elif self.holds:
            self.y.store(value, self.i, at)

    def kept(self, at: Lanes) -> Vector:
        """Read what `keep` wrote."""
        return self.y.load(self.i, at) if self.held is None else self.held.load(at)

    @property
    def holds(self) -> bool:
        """True where numbers of f32 can be kept for a whole row."""
        return self.held is not None or self.y.dtype not in HALVES

    @property
    def _kept(self) -> bool:
        made = bool(self.knobs.prologue.steps) or self.held is not None
        return made and self.holds and self.knobs.operation not in REDUCTIONS

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
    @row.fold(ops.larger, -math.inf)
    def peak(at: Lanes) -> Any:
        return row.first(at)

    def power(at: Lanes) -> Vector:
        return exp_nonpositive(row.again(at) - peak)

    @row.fold(ops.add, 0.0)
    def total(at: Lanes) -> Any:
        row.fetch(at)
        made = power(at)
        row.keep(made, at)
        return made

    share = 1.0 / total

    @row.each()
    def _(at: Lanes) -> None:
        row.finish((row.kept(at) if row.holds else power(at)) * share, at)


def log_softmax(row: RowPass) -> None:
    """y = x - max x - log sum exp(x - max x). A row with a NaN or +inf becomes all NaN."""

    @row.fold(ops.larger, -math.inf)
    def peak(at: Lanes) -> Any:
        return row.first(at)

    @row.fold(ops.add, 0.0)
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

        @row.fold(ops.add, 0.0)
        def total(at: Lanes) -> Any:
            row.fetch(at)
            return row.first(at)

        centre = row.mean_of(total)

    @row.fold(ops.add, 0.0)
    def squares(at: Lanes) -> Any:
        if shift is None:
            row.fetch(at)
        distance = (row.first(at) if shift is None else row.again(at)) - centre
        return distance * distance

    factor = 1.0 / ops.square_root(row.mean_of(squares) + epsilon)

    @row.each()
    def _(at: Lanes) -> None:
        unit = (row.again(at) - centre) * factor
        if shift is None:
            row.finish(unit * scale.load(at), at)
        else:
            row.finish(ops.fma(unit, scale.load(at), shift.load(at)), at)


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


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for the first op that works along rows, with the elementwise ops around it.

    What comes before it must be its prologue; of what follows, as much as an epilogue can do.
    """
    anchor = next((n for n, node in enumerate(work.nodes) if _operation(node)), None)
    if anchor is None or not float_type(work, work.nodes[anchor].operands):
        return []
    node = work.nodes[anchor]
    x, *weights = node.operands
    shape = work.type(x).shape
    # Knobs have finite numbers only.
    if not math.isfinite(node.params.get("epsilon", 0.0)):
        return []
    axes = node.params["axes"] if "axes" in node.params else (node.params["axis"],)
    along = axes is not None and [a % max(len(shape), 1) for a in axes] == [len(shape) - 1]
    if not along or 0 in shape:
        return []
    reduces = _operation(node) in REDUCTIONS
    view = MatrixView(shape, len(shape) - 1, checked=not reduces)
    start = _start(work, anchor, view)
    if start is None or any(v >= len(work.inputs) for v in weights):
        return []
    if any(work.type(v).shape != shape[-1:] for v in weights):
        return []
    own, before = start
    result = MatrixView(node.type.shape, view.cut) if reduces else view
    covers, after = longest(work, anchor + 1, result)
    if not work.closed(covers):
        return []
    dtype = float_type(work, node.operands)
    share = min(64, max(1, -(-(view.rows or 64) // target.cores)))
    knobs = Rows.on(
        target, _operation(node), view.rows or "m", shape[-1] or "c", rows_per_workgroup=share,
        epsilon=node.params.get("epsilon", 1e-5), prologue=before.program, epilogue=after.program,
        dtype=dtype,
    )  # fmt: skip
    feeds = (Feed(own, (view.cut,)), *before.feeds, *(Feed(v) for v in weights), *after.feeds)
    return FAMILY.offer(
        knobs, target, covers, feeds, {"m": nominal(shape[:-1]), "c": nominal(shape[-1:])}
    )


def _operation(node: WorkOp) -> str:
    """Return the operation of row kernels that an op may be, "" for none."""
    operation = node.name.removeprefix("reduce_")
    return operation if operation in OPERATIONS else ""


def _start(work: Work, anchor: int, view: MatrixView) -> tuple[int, MatchedProgram] | None:
    """Return the value that the kernel reads first, and the ops of its prologue."""
    x = work.nodes[anchor].operands[0]
    if anchor == 0:
        return x, MatchedProgram()
    if x != work.number_of(anchor - 1):
        return None
    for own in sources(work, 0, anchor):
        found = find(work, 0, anchor, own, view, stored=False)
        if found is not None:
            return own, found
    return None


FAMILY = Family("rows", Rows, match)
