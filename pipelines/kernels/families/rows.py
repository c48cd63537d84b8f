"""The kernel family ``rows``: softmax and its logarithm, layer and RMS norms, reductions of rows.

Each takes a matrix `x` of `rows` by `columns`, either known or dynamic, works on one row after
another while it is in the first-level cache, and leaves rows to workgroups in contiguous parts.
A pointwise program may run on each number before (while the row is first read) and after.
Knobs are data; `kernel` gives the carrier what to build. Following the two-pass variance of
Chan, Golub and LeVeque (1983): one pass has eight times the error and is no faster, since a row
is in cache.

The bounds follow from the order of the additions: a row of n numbers is summed in `unroll`
vectors, so that n / (unroll * lanes) additions follow each other, and a tree of the rest.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.row_passes import (
    RowPass,
    log_softmax,
    normalize,
    reduce_row,
    softmax,
)
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand, in_type
from pyc_mlir.pipelines.kernels.lang.language import HALVES, Build, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import (
    Index,
    least,
)
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import (
    MatchedProgram,
    MatrixView,
    find,
    longest,
    sources,
)
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.reductions import REDUCTIONS
from pyc_mlir.pipelines.kernels.shared.tile import local
from pyc_mlir.pipelines.kernels.variants import UNROLLS, knob_space, parts_of
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, WorkOp, float_type, nominal

WEIGHTS = {"layernorm": ("scale", "shift"), "rmsnorm": ("scale",)}
# Numbers of a row of f16 or bf16: 24 KB of f32 on the stack, of which IREE allows 32.
WIDENED = 6144
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
    Rows of a half `dtype` have at most `WIDENED` numbers: they are kept in f32 on the stack.
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
    dtype: str = "f32"

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        if self.operation not in OPERATIONS:
            raise no_kernel("row", f"an operation of {', '.join(OPERATIONS)}", self.operation)
        for name in ("rows", "columns", "rows_per_workgroup", "unroll"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise no_kernel("row", f"{name} of at least 1", value)
        if self.ahead < 0:
            raise no_kernel("row", "ahead of at least 0", self.ahead)
        if not math.isfinite(self.epsilon):
            raise no_kernel("row", "a finite epsilon", self.epsilon)
        if self.dtype in HALVES and not (isinstance(self.columns, int) and self.columns <= WIDENED):
            raise no_kernel("row", f"at most {WIDENED} columns of {self.dtype}", self.columns)
        if self.operation in REDUCTIONS:
            if self.in_place:
                raise no_kernel(
                    "row", "a result as large as the input for work in place", self.operation
                )
            if any(read.along for read in self.epilogue.reads):
                raise no_kernel(
                    "row", "an epilogue without columns after a reduction", self.epilogue
                )

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

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: x, the prologue's reads, scale, shift, the epilogue's, y."""
        pairs = tuple(("y", name) for name in self._overwritable())
        return Kernel(name, self._operands(), self._grid, self._body, pairs)

    def _overwritable(self) -> list[str]:
        """Return the inputs whose memory y may be: none is read once y has its own number.

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
            return in_type((Operand("x", shape, "update"), *inputs), self.dtype)
        result = Operand("y", shape[: 2 - reduces], "out")
        return in_type((Operand("x", shape), *inputs, result), self.dtype)

    def _grid(self, size: Callable[[Dim], Index]) -> tuple[Index]:
        return (size(self.rows).ceildiv(self.rows_per_workgroup),)

    def _body(self, k: Build, x: Memory, *others: Memory) -> None:
        rest = iter(others)
        before = InKernel(k, self.prologue, tuple(islice(rest, len(self.prologue.reads))))
        weights = tuple(islice(rest, len(WEIGHTS.get(self.operation, ()))))
        after = InKernel(k, self.epilogue, tuple(islice(rest, len(self.epilogue.reads))))
        y = x if self.in_place else next(rest)
        rows = x.shape[0]
        held = local(k, int(self.columns)) if self.dtype in HALVES else None
        first = k.workgroup() * self.rows_per_workgroup
        with k.range(first, least(first + self.rows_per_workgroup, rows)) as i:
            soon = least(i + self.ahead, rows - 1)
            row = RowPass(k, self, x, y, i, soon, before.row(i), after.row(i), held)
            if self.operation in REDUCTIONS:
                reduce_row(row, self.operation)
            elif self.operation == "softmax":
                softmax(row)
            elif self.operation == "log_softmax":
                log_softmax(row)
            else:
                normalize(row, self.epsilon, *weights)


def refusal(knobs: Rows, target: Target) -> str:
    """Refuse rows that no cache holds: they would be read from memory several times."""
    columns = knobs.columns
    if isinstance(columns, int) and 4 * columns > target.l2_bytes:
        expected = f"expected rows of at most {target.l2_bytes} bytes (L2)"
        return f"{knobs.operation}: {expected}, got {4 * columns}"
    return refuse_narrow(target)


def _flops(operation: str, rows: int, columns: int) -> int:
    """Count the operations that the op itself counts; one a number for reductions."""
    matrix = TensorType((rows, columns), np.dtype(np.float32))
    return matrix.elements if operation in REDUCTIONS else OPS[operation].flops([matrix], matrix)


def cost(knobs: Rows, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count one read of each number and, unless it is reduced, one write."""
    rows, columns = (d if isinstance(d, int) else sizes[d] for d in (knobs.rows, knobs.columns))
    across = 1 if knobs.operation in REDUCTIONS else columns
    flops = _flops(knobs.operation, rows, columns) + knobs.prologue.flops * rows * columns
    flops += knobs.epilogue.flops * rows * across
    traffic = 4 * rows * (columns + across)
    traffic += knobs.prologue.read_bytes(rows, columns) + knobs.epilogue.read_bytes(rows, across)
    traffic //= 2 if knobs.dtype in HALVES else 1
    return CostModel(target).kernel("rows", flops, traffic)


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
    if not isfinite(node.params.get("epsilon", 0.0)):
        return []
    if not _along_rows(node, len(shape)) or 0 in shape or shape[-1] is None:
        return []
    view = MatrixView(shape, len(shape) - 1)
    start = _start(work, anchor, view)
    if start is None or any(v >= len(work.inputs) for v in weights):
        return []
    if any(work.type(v).shape != shape[-1:] for v in weights):
        return []
    own, before = start
    reduces = _operation(node) in REDUCTIONS
    result = MatrixView(node.type.shape, view.cut) if reduces else view
    covers, after = longest(work, anchor + 1, result)
    if not work.closed(covers):
        return []
    dtype = float_type(work, node.operands)
    if dtype in HALVES and shape[-1] > WIDENED:
        return []
    knobs = _knobs(node, view, target, before.program, after.program)
    knobs = replace(knobs, dtype=dtype)
    if refusal(knobs, target):
        return []
    feeds = (Feed(own, (view.cut,)), *before.feeds, *(Feed(v) for v in weights), *after.feeds)
    priced = cost(knobs, target, {"m": nominal(shape[:-1])})
    return [KernelOffer(knobs, covers, feeds, priced)]


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


def _knobs(
    node: WorkOp, view: MatrixView, target: Target, before: Pointwise, after: Pointwise
) -> Rows:
    operation, columns = _operation(node), view.columns
    assert columns is not None
    others: dict[str, Any] = {"epsilon": node.params["epsilon"]} if operation in WEIGHTS else {}
    share = min(64, max(1, -(-(view.rows or 64) // target.cores)))
    knobs = Rows.on(target, operation, view.rows or "m", columns, rows_per_workgroup=share)
    return replace(knobs, prologue=before, epilogue=after, **others)


def _along_rows(node: WorkOp, rank: int) -> bool:
    """Return whether an op works along the last dimension alone."""
    axes = node.params["axes"] if "axes" in node.params else (node.params["axis"],)
    return rank > 0 and axes is not None and [a % rank for a in axes] == [rank - 1]


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary vectors of a block, rows that are prefetched ahead, and rows of a workgroup."""
    knobs: Rows = offer.knobs
    rows = knobs.rows if isinstance(knobs.rows, int) else None
    return knob_space(
        knobs,
        {
            "rows_per_workgroup": (1, 4, 16, 64) if rows is None else parts_of(target, rows),
            "unroll": UNROLLS,
            "ahead": (0, 1, 2, 4),
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("rows", Rows, refusal, cost, match, space)
