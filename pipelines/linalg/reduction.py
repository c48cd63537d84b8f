"""Reductions and argmax as linalg.generic over the reduced loops."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.ops.reduction import COMBINATIONS, Reduction
from pyc_mlir.dialects.types import BOOL, I64, accumulator, is_float, is_unsigned, lowest
from pyc_mlir.pipelines.linalg import scalar
from pyc_mlir.pipelines.linalg.functions import Number, read, select
from pyc_mlir.pipelines.linalg.lowering import LoweredDim, LoweredTensor, Lowering, lowers
from pyc_mlir.pipelines.linalg.products import rounded
from pyc_mlir.pipelines.linalg.structured import fill, generic, pointwise, reshape

# By reduction that has no decomposition: what it combines by.
_COMBINED = {
    name: COMBINATIONS[op.combination]
    for name, op in OPS.items()
    if issubclass(op, Reduction) and op.combination
}


def _keep(b: Lowering, out: LoweredTensor, x: LoweredTensor, axes: Sequence[int]) -> LoweredTensor:
    return reshape(b, out, [LoweredDim(1) if i in axes else d for i, d in enumerate(x.dims)])


@lowers(*_COMBINED)
def reduce(
    b: Lowering, x: LoweredTensor, *, axes: tuple[int, ...], keepdims: bool, name: str
) -> LoweredTensor:
    """Reduce from the identity of the operation, in the accumulator's type."""
    axes = tuple(a % x.rank for a in axes)
    combination = _COMBINED[name]
    wide = accumulator(x.dtype)
    kept = [i for i in range(x.rank) if i not in axes]
    start = fill(b, [x.dims[i] for i in kept], wide, combination.identity(wide))
    combine = scalar.combine(combination.op, wide)

    def body(value: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        return [combine(acc, scalar.widen(value, x.dtype))]

    (out,) = generic(b, [x], [start], [range(x.rank), kept], body)
    out = rounded(b, out, x.dtype)
    return _keep(b, out, x, axes) if keepdims else out


@lowers("cumulative")
def cumulative(b: Lowering, x: LoweredTensor, *, axis: int, reduction: str) -> LoweredTensor:
    """Accumulate in steps of 1, 2, 4, ... (Hillis and Steele, 1986); dynamic sizes in blocks."""
    axis %= x.rank
    wide = accumulator(x.dtype)
    combine = scalar.combine(COMBINATIONS[reduction].op, wide)
    size = x.dims[axis].static
    if LoweredDim(0) in x.dims:
        return x
    if size is None:
        start = COMBINATIONS[reduction].identity(wide)
        return rounded(b, _in_blocks(b, widened(b, x), axis, combine, start), x.dtype)
    return rounded(b, scan(b, widened(b, x), axis, size, combine), x.dtype)


def widened(b: Lowering, x: LoweredTensor) -> LoweredTensor:
    """Return x in the type that its sums are kept in."""
    wide, loops = accumulator(x.dtype), range(x.rank)
    if wide == x.dtype:
        return x
    return pointwise(b, [(x, loops)], x.dims, wide, lambda v, _: scalar.widen(v, x.dtype))


def scan(
    b: Lowering,
    x: LoweredTensor,
    axis: int,
    size: int,
    combine: Callable[[ir.Value, ir.Value], ir.Value],
) -> LoweredTensor:
    """Combine each element along an axis with all before it, in steps of 1, 2, 4, ...

    Hillis and Steele, "Data parallel algorithms", 1986.
    """

    def with_earlier(x: LoweredTensor, step: int) -> LoweredTensor:
        """out[i] = x[i - step] combined with x[i], where there is one."""
        source = b.value(x)

        def body(mine: ir.Value, _: ir.Value) -> ir.Value:
            before = b.loop(axis) - step
            takes = before.compare("ge", 0)
            before = before.at_least(0)
            at = [before if i == axis else b.loop(i) for i in range(x.rank)]
            other = read(source, *at).value
            return select(takes.value, combine(other, mine), mine)

        return pointwise(b, [(x, range(x.rank))], x.dims, x.dtype, body)

    step = 1
    while step < size:
        x = with_earlier(x, step)
        step *= 2
    return x


# Elements that are combined pair by pair.
_BLOCK = 128


def _in_blocks(
    b: Lowering,
    x: LoweredTensor,
    axis: int,
    combine: Callable[[ir.Value, ir.Value], ir.Value],
    identity: Any,
) -> LoweredTensor:
    """Accumulate in blocks, then the blocks' results; those are read where an element is made."""
    block, count = LoweredDim(_BLOCK), b.count(x.dims[axis])
    blocks = b.atom((count + (_BLOCK - 1)) // _BLOCK)
    split = [*x.dims[:axis], blocks, block, *x.dims[axis + 1 :]]
    data, none = b.value(x), b.scalar(identity, x.dtype)

    def part(_: ir.Value) -> ir.Value:
        at = b.loops(0, len(split))
        place = at[axis] * _BLOCK + at[axis + 1]
        found = read(data, *at[:axis], place.at_most(count - 1), *at[axis + 2 :])
        return select(place.compare("lt", count).value, found.value, none)

    own = _of_pairs(b, pointwise(b, [], split, x.dtype, part), axis + 1, combine, identity, "le")
    kept = [i for i in range(len(split)) if i != axis + 1]
    last = b.value(own)

    def whole(_: ir.Value) -> ir.Value:
        at = b.loops(0, len(kept))
        return read(last, *at[: axis + 1], b.index_of(_BLOCK - 1), *at[axis + 1 :]).value

    ends = pointwise(b, [], [split[i] for i in kept], x.dtype, whole)
    before = _of_pairs(b, ends, axis, combine, identity, "lt")
    start = b.value(before)

    def both(_: ir.Value) -> ir.Value:
        at = b.loops(0, x.rank)
        place = at[axis] // _BLOCK
        earlier = read(start, *at[:axis], place, *at[axis + 1 :])
        inner = read(last, *at[:axis], place, at[axis] - place * _BLOCK, *at[axis + 1 :])
        return combine(earlier.value, inner.value)

    return pointwise(b, [], x.dims, x.dtype, both)


def _of_pairs(
    b: Lowering,
    x: LoweredTensor,
    axis: int,
    combine: Callable[[ir.Value, ir.Value], ir.Value],
    identity: Any,
    which: str,
) -> LoweredTensor:
    """Return a reduction over all elements of the axis, of which the later ones change nothing."""
    rank = x.rank
    start = fill(b, x.dims, x.dtype, identity)

    def body(value: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        counts = b.loop(rank).compare(which, b.loop(axis)).value
        return [select(counts, combine(acc, value), acc)]

    maps = [[rank if i == axis else i for i in range(rank)], range(rank)]
    (out,) = generic(b, [x], [start], maps, body)
    return out


@lowers("argmax")
def argmax(b: Lowering, x: LoweredTensor, *, axis: int, keepdims: bool) -> LoweredTensor:
    """Reduce pairs (best value, its index); the order of visits does not matter."""
    axis %= x.rank
    if x.dims[axis].static is None:
        b.check("gt", b.count(x.dims[axis]), 0, f"argmax: size of axis {axis}")
    kept = [i for i in range(x.rank) if i != axis]
    dims = [x.dims[i] for i in kept]
    wide = accumulator(x.dtype)
    best = fill(b, dims, wide, lowest(wide))
    where = fill(b, dims, I64, np.iinfo(np.int64).max)

    def body(value: ir.Value, top: ir.Value, position: ir.Value) -> Sequence[ir.Value]:
        value = scalar.widen(value, x.dtype)
        here = b.loop(axis).word().value
        better = _precedes(value, here, top, position, x.dtype)
        return [select(better, value, top), select(better, here, position)]

    _, out = generic(b, [x], [best, where], [range(x.rank), kept, kept], body)
    return _keep(b, out, x, (axis,)) if keepdims else out


def _precedes(
    value: ir.Value, here: ir.Value, top: ir.Value, position: ir.Value, dtype: np.dtype
) -> ir.Value:
    """value beats top, or equals it at a smaller index; a NaN equals NaNs and beats the rest."""
    new, old = Number(value), Number(top)
    beats = new.compare("gt", old, signed=not is_unsigned(dtype))
    ties = new.compare("eq", old)
    if is_float(dtype):
        nan, top_nan = (v.compare("unordered", v) for v in (new, old))
        beats = beats | (nan & Number(scalar.apply("not", [top_nan.value], BOOL)))
        ties = ties | (nan & top_nan)
    earlier = Number(here).compare("lt", Number(position), signed=True)
    return (beats | (ties & earlier)).value
