"""Reductions and argmax as linalg.generic over the reduced loops."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.ops.reduction import COMBINATIONS, Reduction
from pyc_mlir.dialects.types import I64, accumulator, is_float, is_unsigned, lowest
from pyc_mlir.pipelines.linalg.base.dims import LoweredDim
from pyc_mlir.pipelines.linalg.base.lowering import LoweredTensor, Lowering, compare_index, lowers
from pyc_mlir.pipelines.linalg.base.structured import (
    PARALLEL,
    REDUCTION,
    fill,
    generic,
    pointwise,
    reshape,
)
from pyc_mlir.pipelines.linalg.ops.contraction import rounded
from pyc_mlir.pipelines.linalg.ops.creation import index_as, loop_index
from pyc_mlir.pipelines.linalg.scalar import scalar

# By reduction that has no decomposition: what it combines by.
_COMBINED = {
    name: COMBINATIONS[op.combination]
    for name, op in OPS.items()
    if issubclass(op, Reduction) and op.combination
}


def _layout(x: LoweredTensor, axes: Sequence[int]) -> tuple[list[int], list[str]]:
    """Return the loops of the result and the kind of each loop."""
    kept = [i for i in range(x.rank) if i not in axes]
    return kept, [REDUCTION if i in axes else PARALLEL for i in range(x.rank)]


def _keep(
    lowering: Lowering, out: LoweredTensor, x: LoweredTensor, axes: Sequence[int]
) -> LoweredTensor:
    """Give the reduced axes back with size 1."""
    dims = [LoweredDim(1) if i in axes else d for i, d in enumerate(x.dims)]
    return reshape(lowering, out, dims)


@lowers(*_COMBINED)
def reduce(
    lowering: Lowering, name: str, x: LoweredTensor, *, axes: tuple[int, ...], keepdims: bool
) -> LoweredTensor:
    """Reduce from the identity of the operation, in the accumulator's type."""
    axes = tuple(a % x.rank for a in axes)
    combination = _COMBINED[name]
    wide = accumulator(x.dtype)
    kept, iterators = _layout(x, axes)
    dims = [x.dims[i] for i in kept]
    start = fill(lowering, dims, wide, combination.identity(wide))
    combine = scalar.combine(combination.op, wide)

    def body(value: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        return [combine(acc, scalar.widen(value, x.dtype))]

    loops = list(range(x.rank))
    (out,) = generic(lowering, [x], [start], [loops, kept], iterators, body)
    out = rounded(lowering, out, x.dtype)
    return _keep(lowering, out, x, axes) if keepdims else out


@lowers("cumulative")
def cumulative(
    lowering: Lowering, name: str, x: LoweredTensor, *, axis: int, reduction: str
) -> LoweredTensor:
    """Accumulate in steps of 1, 2, 4, ... (Hillis and Steele, 1986); dynamic sizes over pairs."""
    axis %= x.rank
    wide = accumulator(x.dtype)
    combine = scalar.combine(COMBINATIONS[reduction].op, wide)
    size = x.dims[axis].static
    if LoweredDim(0) in x.dims:
        return x
    if size is None:
        start = COMBINATIONS[reduction].identity(wide)
        return rounded(lowering, _of_pairs(lowering, x, axis, combine, start), x.dtype)
    loops = range(x.rank)
    out = x
    if wide != x.dtype:
        out = pointwise(lowering, [(x, loops)], x.dims, wide, lambda v, _: scalar.widen(v, x.dtype))
    step = 1
    while step < size:
        out = _with_earlier(lowering, out, axis, step, combine)
        step *= 2
    return rounded(lowering, out, x.dtype)


def _with_earlier(
    lowering: Lowering,
    x: LoweredTensor,
    axis: int,
    step: int,
    combine: Callable[[ir.Value, ir.Value], ir.Value],
) -> LoweredTensor:
    """out[i] = x[i - step] combined with x[i], where there is one."""
    source = lowering.value(x)

    def body(mine: ir.Value, _: ir.Value) -> ir.Value:
        before = lowering.arith("subi", loop_index(axis), lowering.number(step))
        exists = compare_index("sge", before, lowering.number(0))
        before = lowering.arith("maxsi", before, lowering.number(0))
        at = [before if i == axis else loop_index(i) for i in range(x.rank)]
        other = scalar.emit("tensor.extract", source, *at, result=mine.type)
        return scalar.select(exists, combine(other, mine), mine)

    return pointwise(lowering, [(x, range(x.rank))], x.dims, x.dtype, body)


def _of_pairs(
    lowering: Lowering,
    x: LoweredTensor,
    axis: int,
    combine: Callable[[ir.Value, ir.Value], ir.Value],
    identity: Any,
) -> LoweredTensor:
    """Return a reduction over all elements of the axis, of which the later ones change nothing."""
    rank = x.rank
    start = fill(lowering, x.dims, accumulator(x.dtype), identity)

    def body(value: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        counts = compare_index("sle", loop_index(rank), loop_index(axis))
        return [scalar.select(counts, combine(acc, scalar.widen(value, x.dtype)), acc)]

    maps = [[rank if i == axis else i for i in range(rank)], list(range(rank))]
    (out,) = generic(lowering, [x], [start], maps, [PARALLEL] * rank + [REDUCTION], body)
    return out


@lowers("argmax")
def argmax(
    lowering: Lowering, name: str, x: LoweredTensor, *, axis: int, keepdims: bool
) -> LoweredTensor:
    """Reduce pairs (best value, its index); the order of visits does not matter."""
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
