"""Reductions and argmax as linalg.generic over the reduced loops."""

from collections.abc import Sequence

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ops.reduction import highest, lowest
from pyc_mlir.dialects.types import I64, accumulator, is_float, is_unsigned
from pyc_mlir.pipelines.linalg.base.dims import Dim
from pyc_mlir.pipelines.linalg.base.lowering import Lowering, Tensor, lowers
from pyc_mlir.pipelines.linalg.base.structured import PARALLEL, REDUCTION, fill, generic, reshape
from pyc_mlir.pipelines.linalg.ops.contraction import rounded
from pyc_mlir.pipelines.linalg.ops.creation import index_as, loop_index
from pyc_mlir.pipelines.linalg.scalar import scalar

COMBINERS = {
    "reduce_sum": ("add", lambda dtype: 0),
    "reduce_prod": ("mul", lambda dtype: 1),
    "reduce_max": ("maximum", lowest),
    "reduce_min": ("minimum", highest),
}


def _layout(x: Tensor, axes: Sequence[int]) -> tuple[list[int], list[str]]:
    """The loops of the result and the kind of each loop."""
    kept = [i for i in range(x.rank) if i not in axes]
    return kept, [REDUCTION if i in axes else PARALLEL for i in range(x.rank)]


def _keep(lowering: Lowering, out: Tensor, x: Tensor, axes: Sequence[int]) -> Tensor:
    """Give the reduced axes back with size 1."""
    dims = [Dim(1) if i in axes else d for i, d in enumerate(x.dims)]
    return reshape(lowering, out, dims)


@lowers(*COMBINERS)
def reduce(
    lowering: Lowering, name: str, x: Tensor, *, axes: tuple[int, ...], keepdims: bool
) -> Tensor:
    """From the identity of the operation, in the accumulator's type."""
    axes = tuple(a % x.rank for a in axes)
    operation, identity = COMBINERS[name]
    wide = accumulator(x.dtype)
    kept, iterators = _layout(x, axes)
    dims = [x.dims[i] for i in kept]
    start = fill(lowering, dims, wide, identity(wide))
    combine = scalar.combine(operation, wide)

    def body(value: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        return [combine(acc, scalar.widen(value, x.dtype))]

    loops = list(range(x.rank))
    (out,) = generic(lowering, [x], [start], [loops, kept], iterators, body)
    out = rounded(lowering, out, x.dtype)
    return _keep(lowering, out, x, axes) if keepdims else out


@lowers("argmax")
def argmax(lowering: Lowering, name: str, x: Tensor, *, axis: int, keepdims: bool) -> Tensor:
    """The pair (best value, its index); the order in which elements are visited does not matter."""
    axis %= x.rank
    if x.dims[axis].static is None:
        size = lowering.size(x.dims[axis])
        lowering.check("sgt", size, lowering.number(0), f"argmax: size of axis {axis}")
    kept, iterators = _layout(x, (axis,))
    dims = [x.dims[i] for i in kept]
    wide = accumulator(x.dtype)
    best = fill(lowering, dims, wide, lowest(wide))
    where = fill(lowering, dims, I64, np.iinfo(np.int64).max)

    def body(value: ir.Value, top: ir.Value, position: ir.Value) -> Sequence[ir.Value]:
        value = scalar.widen(value, x.dtype)
        here = index_as(loop_index(axis), I64)
        better = _precedes(value, here, top, position, x.dtype)
        return [scalar.select(better, value, top), scalar.select(better, here, position)]

    loops = list(range(x.rank))
    _, out = generic(lowering, [x], [best, where], [loops, kept, kept], iterators, body)
    return _keep(lowering, out, x, (axis,)) if keepdims else out


def _precedes(
    value: ir.Value, here: ir.Value, top: ir.Value, position: ir.Value, dtype: np.dtype
) -> ir.Value:
    """value beats top, or equals it at a smaller index; a NaN equals NaNs and beats the rest."""
    beats = scalar.compare("gt", value, top, unsigned=is_unsigned(dtype))
    ties = scalar.compare("eq", value, top)
    if is_float(dtype):
        nan, top_nan = (scalar.compare("unordered", v, v) for v in (value, top))
        new_nan = scalar.emit("arith.andi", nan, scalar.apply("not", [top_nan], np.dtype(bool)))
        beats = scalar.emit("arith.ori", beats, new_nan)
        ties = scalar.emit("arith.ori", ties, scalar.emit("arith.andi", nan, top_nan))
    earlier = scalar.compare("lt", here, position)
    return scalar.emit("arith.ori", beats, scalar.emit("arith.andi", ties, earlier))
