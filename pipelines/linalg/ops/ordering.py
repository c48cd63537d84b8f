"""Sorting, in pointwise ops and reductions alone.

Few elements, or a dynamic number of them, are sorted by counting: an element's place is the number
of those that come before it. More are merged: sorted runs in pairs, each element of the result
found by a binary search for how many of its predecessors lie in the first run (Odeh et al., Merge
Path, 2012). The runs are kept as indices, and cut to what is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.types import BOOL, I64, is_float, is_unsigned
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
from pyc_mlir.pipelines.linalg.ops.creation import as_index, index_as, loop_index
from pyc_mlir.pipelines.linalg.ops.movement import transpose
from pyc_mlir.pipelines.linalg.scalar import scalar

# Elements that are sorted by counting.
COUNTED = 32


@lowers("argsort")
def argsort(
    lowering: Lowering, name: str, x: LoweredTensor, *, axis: int, descending: bool, count: int
) -> LoweredTensor:
    """Sort by counting or by merging, along the last axis."""
    axis %= x.rank
    last = x.rank - 1
    order = (*(i for i in range(x.rank) if i != axis), axis)
    rows = x if axis == last else transpose(lowering, "transpose", x, permutation=order)
    size = x.dims[axis]
    if count >= 0 and size.static is None:
        lowering.check("sle", lowering.number(count), lowering.size(size), "argsort: `count`")
    kept = size if count == -1 else LoweredDim(count)
    dims = [*rows.dims[:-1], kept]
    if LoweredDim(0) in (*rows.dims, kept):
        out = lowering.empty(dims, I64)
    elif size.static is None or size.static <= COUNTED:
        out = _counted(lowering, rows, kept, descending)
    else:
        out = reshape(lowering, _merged(lowering, rows, kept.static or 0, descending), dims)
    if axis == last:
        return out
    back = tuple(order.index(i) for i in range(x.rank))
    return transpose(lowering, "transpose", out, permutation=back)


def _before(a: ir.Value, b: ir.Value, dtype: np.dtype, descending: bool) -> ir.Value:
    """Return i1: a comes before b, whatever their places; a NaN is the greatest."""
    a, b = scalar.widen(a, dtype), scalar.widen(b, dtype)
    if descending:
        a, b = b, a
    less = scalar.compare("lt", a, b, unsigned=is_unsigned(dtype) or dtype == BOOL)
    if not is_float(dtype):
        return less
    nan = scalar.compare("unordered", b, b)
    number = scalar.apply("not", [scalar.compare("unordered", a, a)], BOOL)
    return scalar.emit("arith.ori", less, scalar.emit("arith.andi", nan, number))


def _counted(
    lowering: Lowering, x: LoweredTensor, kept: LoweredDim, descending: bool
) -> LoweredTensor:
    """Return each element's place, then the element at each place: two sums over pairs."""
    rank = x.rank
    outer = list(range(rank - 1))
    zeros = fill(lowering, x.dims, I64, 0)
    one, none = (lowering.scalar(v, I64) for v in (1, 0))

    def place(mine: ir.Value, other: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        first = _before(other, mine, x.dtype, descending)
        second = _before(mine, other, x.dtype, descending)
        earlier = compare_index("slt", loop_index(rank), loop_index(rank - 1))
        tie = scalar.emit("arith.andi", scalar.apply("not", [second], BOOL), earlier)
        counts = scalar.emit("arith.ori", first, tie)
        return [scalar.emit("arith.addi", acc, scalar.select(counts, one, none))]

    maps = [[*outer, rank - 1], [*outer, rank], [*outer, rank - 1]]
    kinds = [PARALLEL] * rank + [REDUCTION]
    (places,) = generic(lowering, [x, x], [zeros], maps, kinds, place)
    start = fill(lowering, [*x.dims[:-1], kept], I64, 0)

    def element(at: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        here = scalar.compare("eq", at, index_as(loop_index(rank - 1), I64))
        index = index_as(loop_index(rank), I64)
        return [scalar.emit("arith.addi", acc, scalar.select(here, index, none))]

    maps = [[*outer, rank], [*outer, rank - 1]]
    (out,) = generic(lowering, [places], [start], maps, kinds, element)
    return out


def _merged(lowering: Lowering, x: LoweredTensor, kept: int, descending: bool) -> LoweredTensor:
    """Return i64 [..., 1, kept]: runs of one element, merged in pairs."""
    size = x.dims[-1].static
    assert size is not None
    runs = _Runs(lowering, x, descending, size, 1, None)
    while runs.count > 1:
        length = min(2 * runs.length, kept)
        order = _merge(runs, length)
        runs = replace(runs, count=-(-runs.count // 2), length=length, order=order)
    assert runs.order is not None
    return runs.order


@dataclass(frozen=True, eq=False)
class _Runs:
    """Sorted runs of each row of x: i64 [..., count, length] indices, or None for all in order.

    An index of the size of a row stands for no element, and comes last.
    """

    lowering: Lowering
    x: LoweredTensor
    descending: bool
    count: int
    length: int
    order: LoweredTensor | None

    @property
    def size(self) -> int:
        """Elements of a row."""
        return self.x.dims[-1].static or 0

    @property
    def outer(self) -> list[ir.Value]:
        """The row that a body works on."""
        return [loop_index(i) for i in range(self.x.rank - 1)]

    def index(self, run: ir.Value, place: ir.Value) -> ir.Value:
        """Return the index at a place of a run, which may lie outside."""
        number, arith = self.lowering.number, self.lowering.arith
        inside = compare_index("slt", run, number(self.count))
        if self.order is None:
            return scalar.select(inside, run, number(self.size))
        safe = arith("minsi", run, number(self.count - 1))
        place = arith("minsi", arith("maxsi", place, number(0)), number(self.length - 1))
        held = self.lowering.value(self.order)
        type_ = self.lowering.element(I64)
        index = scalar.emit("tensor.extract", held, *self.outer, safe, place, result=type_)
        return scalar.select(inside, as_index(index), number(self.size))

    def overtakes(self, b: ir.Value, a: ir.Value) -> ir.Value:
        """Return i1: element b of a later run comes before element a of an earlier one."""
        exists = compare_index("slt", b, self.lowering.number(self.size))
        before = _before(self._value(b), self._value(a), self.x.dtype, self.descending)
        return scalar.emit("arith.andi", exists, before)

    def _value(self, index: ir.Value) -> ir.Value:
        safe = self.lowering.arith("minsi", index, self.lowering.number(self.size - 1))
        data = self.lowering.value(self.x)
        type_ = self.lowering.element(self.x.dtype)
        return scalar.emit("tensor.extract", data, *self.outer, safe, result=type_)


def _merge(runs: _Runs, kept: int) -> LoweredTensor:
    """Return i64 [..., half as many runs, kept]: pairs of runs, merged."""
    number, arith = runs.lowering.number, runs.lowering.arith
    rank = runs.x.rank
    runs.lowering.value(runs.x)  # Emitted here: it is read inside of the body.

    def body(_: ir.Value) -> ir.Value:
        pair, k = loop_index(rank - 1), loop_index(rank)
        first = arith("muli", pair, number(2))
        second = arith("addi", first, number(1))
        low = arith("maxsi", arith("subi", k, number(runs.length)), number(0))
        high = arith("minsi", k, number(runs.length))
        for _ in range(runs.length.bit_length()):
            middle = arith("divui", arith("addi", low, high), number(2))
            rest = arith("subi", arith("subi", k, number(1)), middle)
            searching = compare_index("slt", low, high)
            later = runs.overtakes(runs.index(second, rest), runs.index(first, middle))
            moved = scalar.select(later, low, arith("addi", middle, number(1)))
            high = scalar.select(scalar.emit("arith.andi", searching, later), middle, high)
            low = scalar.select(searching, moved, low)
        place = arith("subi", k, low)
        a, b = runs.index(first, low), runs.index(second, place)
        right = compare_index("slt", place, number(runs.length))
        wins = scalar.emit("arith.andi", right, runs.overtakes(b, a))
        spent = compare_index("sge", low, number(runs.length))
        return index_as(scalar.select(scalar.emit("arith.ori", spent, wins), b, a), I64)

    dims = [*runs.x.dims[:-1], LoweredDim(-(-runs.count // 2)), LoweredDim(kept)]
    return pointwise(runs.lowering, [], dims, I64, body)
