"""Scattering rows, in pointwise ops and reductions alone.

Few updates, or a dynamic number of them, are compared with each row. More are sorted by their rows,
stably: each row finds its last update by a binary search, and what is combined is scanned first.
"""

from collections.abc import Callable, Sequence

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ops.reduction import COMBINATIONS
from pyc_mlir.dialects.types import I64, accumulator
from pyc_mlir.pipelines.linalg.base.dims import LoweredDim
from pyc_mlir.pipelines.linalg.base.lowering import LoweredTensor, Lowering, compare_index, lowers
from pyc_mlir.pipelines.linalg.base.structured import PARALLEL, REDUCTION, fill, generic, pointwise
from pyc_mlir.pipelines.linalg.ops.contraction import rounded
from pyc_mlir.pipelines.linalg.ops.creation import as_index, index_as, loop_index
from pyc_mlir.pipelines.linalg.ops.ordering import COUNTED, argsort
from pyc_mlir.pipelines.linalg.scalar import scalar


@lowers("scatter")
def scatter(
    lowering: Lowering,
    name: str,
    x: LoweredTensor,
    indices: LoweredTensor,
    updates: LoweredTensor,
    *,
    reduction: str,
) -> LoweredTensor:
    """Compare few updates, or a dynamic number, with each row; sort more of them first."""
    rows = lowering.require_equal(indices.dims[0], updates.dims[0], "scatter: updates")
    for i in range(1, x.rank):
        lowering.require_equal(x.dims[i], updates.dims[i], f"scatter: dimension {i} of the updates")
    if LoweredDim(0) in (*x.dims, rows):
        return x
    places = _wrapped(lowering, indices, x.dims[0])
    if rows.static is None or rows.static <= COUNTED:
        if reduction == "none":
            last = _last_of_all(lowering, places, x.dims[0])
            return _replaced(lowering, x, updates, last, lambda v: v)
        return _combined_with_all(lowering, x, places, updates, reduction)
    order = argsort(lowering, "argsort", places, axis=0, descending=False, count=-1)
    lowering.value(order)  # Emitted here: it is read inside of bodies.
    last = _last_sorted(lowering, places, order, x.dims[0], rows.static)
    if reduction == "none":
        return _replaced(lowering, x, updates, last, lambda v: _taken(lowering, order, v))
    sums = _scanned(lowering, places, order, updates, rows.static, reduction)
    return _combined(lowering, x, sums, last, reduction)


def _wrapped(lowering: Lowering, indices: LoweredTensor, size: LoweredDim) -> LoweredTensor:
    """i64: rows counted from 0; the number of rows for those that there are none of."""
    count = lowering.size(size)

    def body(index: ir.Value, _: ir.Value) -> ir.Value:
        at = as_index(index, indices.dtype)
        negative = compare_index("slt", at, lowering.number(0))
        at = scalar.select(negative, lowering.arith("addi", at, count), at)
        inside = scalar.emit(
            "arith.andi",
            compare_index("sge", at, lowering.number(0)),
            compare_index("slt", at, count),
        )
        return index_as(scalar.select(inside, at, count), I64)

    return pointwise(lowering, [(indices, [0])], indices.dims, I64, body)


def _taken(lowering: Lowering, vector: LoweredTensor, at: ir.Value) -> ir.Value:
    """Return the index that a vector of indices holds at a place."""
    element = scalar.emit(
        "tensor.extract", lowering.value(vector), at, result=lowering.element(I64)
    )
    return as_index(element)


def _last_of_all(lowering: Lowering, places: LoweredTensor, size: LoweredDim) -> LoweredTensor:
    """Return i64 [rows of x]: the last update of each row, -1 for none."""
    start = fill(lowering, [size], I64, -1)

    def body(place: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        here = scalar.compare("eq", place, index_as(loop_index(0), I64))
        later = scalar.emit("arith.maxsi", acc, index_as(loop_index(1), I64))
        return [scalar.select(here, later, acc)]

    (out,) = generic(lowering, [places], [start], [[1], [0]], [PARALLEL, REDUCTION], body)
    return out


def _last_sorted(
    lowering: Lowering, places: LoweredTensor, order: LoweredTensor, size: LoweredDim, count: int
) -> LoweredTensor:
    """Return i64 [rows of x]: the last of each row's sorted updates; -1 for none."""
    number, arith = lowering.number, lowering.arith

    def key(at: ir.Value) -> ir.Value:
        return _taken(lowering, places, _taken(lowering, order, at))

    def body(_: ir.Value) -> ir.Value:
        row = loop_index(0)
        low, high = number(0), number(count)
        for _ in range(count.bit_length()):
            middle = arith("divui", arith("addi", low, high), number(2))
            open_ = compare_index("slt", low, high)
            safe = arith("minsi", middle, number(count - 1))
            below = compare_index("sle", key(safe), row)
            moved = scalar.select(below, arith("addi", middle, number(1)), low)
            kept = scalar.select(below, high, middle)
            low, high = scalar.select(open_, moved, low), scalar.select(open_, kept, high)
        last = arith("subi", low, number(1))
        safe = arith("maxsi", last, number(0))
        found = scalar.emit(
            "arith.andi",
            compare_index("sge", last, number(0)),
            compare_index("eq", key(safe), row),
        )
        return index_as(scalar.select(found, last, number(-1)), I64)

    return pointwise(lowering, [], [size], I64, body)


def _replaced(
    lowering: Lowering,
    x: LoweredTensor,
    updates: LoweredTensor,
    last: LoweredTensor,
    update_of: Callable[[ir.Value], ir.Value],
) -> LoweredTensor:
    """Return x, or row `update_of(last)` of the updates where there is one."""
    source = lowering.value(updates)

    def body(old: ir.Value, found: ir.Value, _: ir.Value) -> ir.Value:
        at = as_index(found)
        some = compare_index("sge", at, lowering.number(0))
        row = update_of(lowering.arith("maxsi", at, lowering.number(0)))
        rest = [loop_index(i) for i in range(1, x.rank)]
        new = scalar.emit("tensor.extract", source, row, *rest, result=lowering.element(x.dtype))
        return scalar.select(some, new, old)

    loops = range(x.rank)
    return pointwise(lowering, [(x, loops), (last, [0])], x.dims, x.dtype, body)


def _combined_with_all(
    lowering: Lowering,
    x: LoweredTensor,
    places: LoweredTensor,
    updates: LoweredTensor,
    reduction: str,
) -> LoweredTensor:
    """Return a reduction over all updates, of which those of other rows change nothing."""
    from_wide, start = _widened(lowering, x)
    combine = scalar.combine(COMBINATIONS[reduction].op, start.dtype)
    rank = x.rank

    def body(place: ir.Value, update: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        here = scalar.compare("eq", place, index_as(loop_index(0), I64))
        return [scalar.select(here, combine(acc, scalar.widen(update, x.dtype)), acc)]

    maps = [[rank], [rank, *range(1, rank)], list(range(rank))]
    kinds = [PARALLEL] * rank + [REDUCTION]
    (out,) = generic(lowering, [places, updates], [start], maps, kinds, body)
    return from_wide(out)


def _widened(
    lowering: Lowering, x: LoweredTensor
) -> tuple[Callable[[LoweredTensor], LoweredTensor], LoweredTensor]:
    """Return x in the type of its sums, and the way back."""
    wide = accumulator(x.dtype)
    if wide == x.dtype:
        return (lambda out: out), x
    loops = range(x.rank)
    start = pointwise(lowering, [(x, loops)], x.dims, wide, lambda v, _: scalar.widen(v, x.dtype))
    return (lambda out: rounded(lowering, out, x.dtype)), start


def _scanned(
    lowering: Lowering,
    places: LoweredTensor,
    order: LoweredTensor,
    updates: LoweredTensor,
    count: int,
    reduction: str,
) -> LoweredTensor:
    """Return the sorted updates, each combined with those before it that are of the same row.

    In steps of 1, 2, 4, ... (Hillis and Steele, Data parallel algorithms, 1986).
    """
    dtype, wide = updates.dtype, accumulator(updates.dtype)
    combine = scalar.combine(COMBINATIONS[reduction].op, wide)
    source = lowering.value(updates)
    rank = updates.rank
    rest = list(range(1, rank))

    def sorted_(at: ir.Value, _: ir.Value) -> ir.Value:
        indices = [as_index(at), *(loop_index(i) for i in rest)]
        value = scalar.emit("tensor.extract", source, *indices, result=lowering.element(dtype))
        return scalar.widen(value, dtype)

    out = pointwise(lowering, [(order, [0])], updates.dims, wide, sorted_)
    keys = pointwise(
        lowering,
        [(order, [0])],
        order.dims,
        I64,
        lambda at, _: index_as(_taken(lowering, places, as_index(at)), I64),
    )
    step = 1
    while step < count:
        out = _step(lowering, out, keys, step, combine)
        step *= 2
    return out


def _step(
    lowering: Lowering,
    x: LoweredTensor,
    keys: LoweredTensor,
    step: int,
    combine: Callable[[ir.Value, ir.Value], ir.Value],
) -> LoweredTensor:
    """out[m] = x[m - step] combined with x[m], where both are of one row."""
    source, of = lowering.value(x), lowering.value(keys)

    def body(mine: ir.Value, key: ir.Value, _: ir.Value) -> ir.Value:
        before = lowering.arith("subi", loop_index(0), lowering.number(step))
        exists = compare_index("sge", before, lowering.number(0))
        before = lowering.arith("maxsi", before, lowering.number(0))
        rest = [loop_index(i) for i in range(1, x.rank)]
        other = scalar.emit("tensor.extract", source, before, *rest, result=mine.type)
        same = scalar.compare("eq", key, scalar.emit("tensor.extract", of, before, result=key.type))
        takes = scalar.emit("arith.andi", exists, same)
        return scalar.select(takes, combine(other, mine), mine)

    loops = range(x.rank)
    return pointwise(lowering, [(x, loops), (keys, [0])], x.dims, x.dtype, body)


def _combined(
    lowering: Lowering, x: LoweredTensor, sums: LoweredTensor, last: LoweredTensor, reduction: str
) -> LoweredTensor:
    """Return x combined with what was scanned up to the last update of its row."""
    source = lowering.value(sums)
    combine = scalar.combine(COMBINATIONS[reduction].op, sums.dtype)

    def body(old: ir.Value, found: ir.Value, _: ir.Value) -> ir.Value:
        at = as_index(found)
        some = compare_index("sge", at, lowering.number(0))
        row = lowering.arith("maxsi", at, lowering.number(0))
        rest = [loop_index(i) for i in range(1, x.rank)]
        new = scalar.emit("tensor.extract", source, row, *rest, result=lowering.element(sums.dtype))
        both = scalar.narrow(combine(scalar.widen(old, x.dtype), new), x.dtype)
        return scalar.select(some, both, old)

    loops = range(x.rank)
    return pointwise(lowering, [(x, loops), (last, [0])], x.dims, x.dtype, body)
