"""Sorting, scattering and selecting, in pointwise ops and reductions alone.

Few elements are sorted by counting: an element's place is the number of those that come before it.
More are merged: sorted runs in pairs, each element of the result found by a binary search for how
many of its predecessors lie in the first run (Odeh et al., Merge Path, 2012). The runs are kept as
indices, and cut to what is asked for. A dynamic number of elements is merged in a loop.

Few updates of a scatter are compared with each row. Others are sorted by their rows, stably: each
row finds its own by binary searches.

How many elements are selected by values is read on the host, as a result's size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ops.reduction import COMBINATIONS
from pyc_mlir.dialects.types import BOOL, DTYPES, I64, accumulator, is_float, is_unsigned
from pyc_mlir.pipelines.linalg import scalar
from pyc_mlir.pipelines.linalg.functions import Number, read, repeated, select
from pyc_mlir.pipelines.linalg.lowering import LoweredDim, LoweredTensor, Lowering, lowers
from pyc_mlir.pipelines.linalg.movement import transpose
from pyc_mlir.pipelines.linalg.reduction import cumulative, reduce
from pyc_mlir.pipelines.linalg.structured import fill, generic, pointwise, reshape

# Elements that are sorted by counting.
COUNTED = 32
_F32 = DTYPES["f32"]


@lowers("argsort")
def argsort(
    b: Lowering, x: LoweredTensor, *, axis: int, descending: bool, count: int
) -> LoweredTensor:
    """Sort by counting or by merging, along the last axis."""
    axis %= x.rank
    last = x.rank - 1
    order = (*(i for i in range(x.rank) if i != axis), axis)
    rows = x if axis == last else transpose(b, x, permutation=order)
    size = x.dims[axis]
    if count >= 0 and size.static is None:
        b.check("le", b.index_of(count), b.count(size), "argsort: `count`")
    kept = size if count == -1 else LoweredDim(count)
    dims = [*rows.dims[:-1], kept]
    if LoweredDim(0) in (*rows.dims, kept):
        out = b.empty(dims, I64)
    elif size.static is None:
        out = _merged_in_turns(b, rows, kept, descending)
    elif size.static <= COUNTED:
        out = _counted(b, rows, kept, descending)
    else:
        runs = _Runs(b, rows, descending, size.static, 1, None)
        while runs.count > 1:
            length = min(2 * runs.length, kept.static or 0)
            merged = _merge(runs, length)
            runs = replace(runs, count=-(-runs.count // 2), length=length, order=merged)
        assert runs.order is not None
        out = reshape(b, runs.order, dims)
    if axis == last:
        return out
    back = tuple(order.index(i) for i in range(x.rank))
    return transpose(b, out, permutation=back)


def _before(a: ir.Value, b: ir.Value, dtype: np.dtype, descending: bool) -> Number:
    """Return i1: a comes before b, whatever their places; a NaN is the greatest."""
    x, y = Number(scalar.widen(a, dtype)), Number(scalar.widen(b, dtype))
    if descending:
        x, y = y, x
    less = x.compare("lt", y, signed=not is_unsigned(dtype) and dtype != BOOL)
    if not is_float(dtype):
        return less
    nan = y.compare("unordered", y)
    return less | (nan & _not(x.compare("unordered", x)))


def _not(bit: Number) -> Number:
    return Number(scalar.apply("not", [bit.value], BOOL))


def _counted(b: Lowering, x: LoweredTensor, kept: LoweredDim, descending: bool) -> LoweredTensor:
    """Return each element's place, then the element at each place: two sums over pairs."""
    rank = x.rank
    outer = list(range(rank - 1))
    zeros = fill(b, x.dims, I64, 0)
    one, none = (Number(b.scalar(v, I64)) for v in (1, 0))

    def place(mine: ir.Value, other: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        first = _before(other, mine, x.dtype, descending)
        second = _before(mine, other, x.dtype, descending)
        earlier = b.loop(rank).compare("lt", b.loop(rank - 1))
        counts = first | (_not(second) & earlier)
        return [(Number(acc) + counts.where(one, none)).value]

    maps = [[*outer, rank - 1], [*outer, rank], [*outer, rank - 1]]
    (places,) = generic(b, [x, x], [zeros], maps, place)
    start = fill(b, [*x.dims[:-1], kept], I64, 0)

    def element(at: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        here = Number(at).compare("eq", b.loop(rank - 1).word())
        return [(Number(acc) + here.where(b.loop(rank).word(), none)).value]

    maps = [[*outer, rank], [*outer, rank - 1]]
    (out,) = generic(b, [places], [start], maps, element)
    return out


@dataclass(frozen=True, eq=False)
class _Runs:
    """Sorted runs of each row of x: i64 [..., count, length] indices, or None for all in order.

    An index of the size of a row stands for no element, and comes last.
    """

    b: Lowering
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
    def outer(self) -> list[Number]:
        """The row that a body works on."""
        return self.b.loops(0, self.x.rank - 1)

    def index(self, run: Number, place: Number) -> Number:
        """Return the index at a place of a run, which may lie outside."""
        inside = run.compare("lt", self.count)
        if self.order is None:
            return inside.where(run, self.size)
        safe = run.at_most(self.count - 1)
        place = place.at_least(0).at_most(self.length - 1)
        held = read(self.b.value(self.order), *self.outer, safe, place)
        return inside.where(self.b.at(held.value), self.size)

    def overtakes(self, b: Number, a: Number) -> Number:
        """Return i1: element b of a later run comes before element a of an earlier one."""
        exists = b.compare("lt", self.size)
        data = self.b.value(self.x)
        x, y = (read(data, *self.outer, i.at_most(self.size - 1)).value for i in (b, a))
        return exists & _before(x, y, self.x.dtype, self.descending)


def _merge(runs: _Runs, kept: int) -> LoweredTensor:
    """Return i64 [..., half as many runs, kept]: pairs of runs, merged."""
    rank, length = runs.x.rank, runs.length
    runs.b.value(runs.x)  # Emitted here: it is read inside of the body.

    def body(_: ir.Value) -> ir.Value:
        pair, k = runs.b.loops(rank - 1, rank + 1)
        first = pair * 2
        second = first + 1
        low, high = (k - length).at_least(0), k.at_most(length)
        for _ in range(length.bit_length()):
            middle = (low + high) // 2
            rest = k - 1 - middle
            searching = low.compare("lt", high)
            later = runs.overtakes(runs.index(second, rest), runs.index(first, middle))
            moved = later.where(low, middle + 1)
            high = (searching & later).where(middle, high)
            low = searching.where(moved, low)
        place = k - low
        a, b = runs.index(first, low), runs.index(second, place)
        right = place.compare("lt", length)
        wins = right & runs.overtakes(b, a)
        spent = low.compare("ge", length)
        return (spent | wins).where(b, a).word().value

    dims = [*runs.x.dims[:-1], LoweredDim(-(-runs.count // 2)), LoweredDim(kept)]
    return pointwise(runs.b, [], dims, I64, body)


def bits_of(b: Lowering, size: Number) -> Number:
    """Return how many bits a size has: 0 for 0."""
    zeros = size.word().make("math.ctlz")
    return b.at((zeros.constant(64) - zeros).value)


def _search(
    b: Lowering, steps: Number, low: Number, high: Number, right: Callable[[Number], Number]
) -> Number:
    """Return the first place from `low` up that has nothing to its right; `steps` halve a range."""

    def halve(_: ir.Value, *ends: ir.Value) -> list[ir.Value]:
        low, high = (Number(v, b.number) for v in ends)
        middle = (low + high) // 2
        open_, more = low.compare("lt", high), right(middle)
        moved, lowered = more.where(middle + 1, low), more.where(high, middle)
        return [open_.where(moved, low).value, open_.where(lowered, high).value]

    return Number(repeated(steps.value, halve, low.value, high.value)[0], b.number)


def _merged_in_turns(
    b: Lowering, x: LoweredTensor, kept: LoweredDim, descending: bool
) -> LoweredTensor:
    """Merge runs of 1, 2, 4, ... elements of each row, as many times as its size at hand needs.

    The loop starts from nothing, since IREE 3.13 reads what a loop carries in at the begin of the
    memory that it shares with other values.
    """
    rank, size, data = x.rank, b.count(x.dims[-1]), b.value(x)

    def merged(turn: ir.Value, source: ir.Value) -> list[ir.Value]:
        steps = b.index_of(1) + Number(turn)
        length = b.index_of(1) << Number(turn)
        fresh = Number(turn).compare("eq", b.index_of(0))

        def body(_: ir.Value) -> ir.Value:
            *outer, place = b.loops(0, rank)

            def index(at: Number) -> Number:
                at = at.at_least(0).at_most(size - 1)
                return fresh.where(at, b.at(read(source, *outer, at).value))

            def overtakes(later: Number, earlier: Number) -> Number:
                one, other = (read(data, *outer, i).value for i in (later, earlier))
                return _before(one, other, x.dtype, descending)

            first = place // (length * 2) * (length * 2)
            second = (first + length).at_most(size)
            k, end = place - first, (second + length).at_most(size)

            def right(middle: Number) -> Number:
                return _not(overtakes(index(second + (k - 1 - middle)), index(first + middle)))

            low, high = (k - (end - second)).at_least(0), k.at_most(second - first)
            low = _search(b, steps, low, high, right)
            mine, other = first + low, second + (k - low)
            wins = other.compare("lt", end) & (
                mine.compare("ge", second) | overtakes(index(other), index(mine))
            )
            return wins.where(index(other), index(mine)).word().value

        return [b.value(pointwise(b, [], x.dims, I64, body))]

    turns = bits_of(b, (size - 1).at_least(0)).value
    (order,) = repeated(turns, merged, b.value(b.empty(x.dims, I64)))
    sorted_ = size.compare("gt", 1)

    def element(_: ir.Value) -> ir.Value:
        at = b.loops(0, rank)
        return sorted_.where(read(order, *at), at[-1].word()).value

    return pointwise(b, [], [*x.dims[:-1], kept], I64, element)


@lowers("scatter")
def scatter(
    b: Lowering, x: LoweredTensor, indices: LoweredTensor, updates: LoweredTensor, *, reduction: str
) -> LoweredTensor:
    """Compare few updates with each row; sort others first, and those that are combined."""
    rows = b.require_equal(indices.dims[0], updates.dims[0], "scatter: updates")
    for i in range(1, x.rank):
        b.require_equal(x.dims[i], updates.dims[i], f"scatter: dimension {i} of the updates")
    if LoweredDim(0) in (*x.dims, rows):
        return x
    places = _wrapped(b, indices, x.dims[0])
    if reduction == "none" and rows.static is not None and rows.static <= COUNTED:
        return _updated(b, x, updates, _last_of_all(b, places, x.dims[0]), lambda v: v)
    order = argsort(b, places, axis=0, descending=False, count=-1)
    b.value(order)  # Emitted here: it is read inside of bodies.
    keys = pointwise(
        b, [(order, [0])], [rows], I64, lambda i, _: _taken(b, places, b.at(i)).word().value
    )
    last = _last_sorted(b, keys, x.dims[0])
    if reduction == "none":
        return _updated(b, x, updates, last, lambda v: _taken(b, order, v))
    return _combined(b, x, updates, order, keys, last, reduction)


def _wrapped(b: Lowering, indices: LoweredTensor, size: LoweredDim) -> LoweredTensor:
    """i64: rows counted from 0; the number of rows for those that there are none of."""
    count = b.count(size)

    def body(index: ir.Value, _: ir.Value) -> ir.Value:
        at = b.at(index, indices.dtype)
        at = at.compare("lt", 0).where(at + count, at)
        inside = at.compare("ge", 0) & at.compare("lt", count)
        return inside.where(at, count).word().value

    return pointwise(b, [(indices, [0])], indices.dims, I64, body)


def _taken(b: Lowering, vector: LoweredTensor, at: Number) -> Number:
    at = at.at_most(b.count(vector.dims[0]) - 1).at_least(0)
    return b.at(read(b.value(vector), at).value)


def _last_of_all(b: Lowering, places: LoweredTensor, size: LoweredDim) -> LoweredTensor:
    """Return i64 [rows of x]: the last update of each row, -1 for none."""
    start = fill(b, [size], I64, -1)

    def body(place: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        here = Number(place).compare("eq", b.loop(0).word())
        later = Number(acc).at_least(b.loop(1).word())
        return [here.where(later, Number(acc)).value]

    (out,) = generic(b, [places], [start], [[1], [0]], body)
    return out


def _last_sorted(
    b: Lowering, keys: LoweredTensor, size: LoweredDim, below: bool = False
) -> LoweredTensor:
    """Return i64 [rows of x]: the last of each row's sorted updates, or of all below; -1: none."""
    b.value(keys)  # Emitted here: it is read inside of the body.
    count = b.count(keys.dims[0])
    steps = bits_of(b, count)

    def body(_: ir.Value) -> ir.Value:
        row = b.loop(0)

        def right(place: Number) -> Number:
            return _taken(b, keys, place).compare("lt" if below else "le", row)

        last = _search(b, steps, b.index_of(0), count, right) - 1
        if below:
            return last.word().value
        found = last.compare("ge", 0) & _taken(b, keys, last).compare("eq", row)
        return found.where(last, -1).word().value

    return pointwise(b, [], [size], I64, body)


def _updated(
    b: Lowering,
    x: LoweredTensor,
    rows: LoweredTensor,
    last: LoweredTensor,
    row_of: Callable[[Number], Number],
) -> LoweredTensor:
    """Return x, with row `row_of(last)` of `rows` where there is a last one."""
    source, places = b.value(rows), b.value(last)

    def body(old: ir.Value, _: ir.Value) -> ir.Value:
        # Read, as an operand it would be computed again for each element of a row.
        at = b.at(read(places, b.loop(0)).value)
        some = at.compare("ge", 0)
        row = some.where(row_of(at.at_least(0)), 0)
        new = read(source, row, *b.loops(1, x.rank))
        return select(some.value, new.value, old)

    return pointwise(b, [(x, range(x.rank))], x.dims, x.dtype, body)


def _combined(
    b: Lowering, x: LoweredTensor, updates: LoweredTensor, order: LoweredTensor,
    keys: LoweredTensor, last: LoweredTensor, reduction: str,
) -> LoweredTensor:  # fmt: skip
    """Return x, combined with the updates of each row one by one, from the first on."""
    source, ends = b.value(updates), b.value(last)
    first = b.value(_last_sorted(b, keys, x.dims[0], below=True))
    combine = scalar.combine(COMBINATIONS[reduction].op, accumulator(x.dtype))

    def body(old: ir.Value, _: ir.Value) -> ir.Value:
        row, *rest = b.loops(0, x.rank)
        low, high = (b.at(read(v, row).value) + 1 for v in (first, ends))

        def step(turn: ir.Value, acc: ir.Value) -> list[ir.Value]:
            new = read(source, _taken(b, order, low + Number(turn, b.number)), *rest).value
            return [combine(acc, scalar.widen(new, x.dtype))]

        (out,) = repeated((high - low).at_least(0).value, step, scalar.widen(old, x.dtype))
        return scalar.narrow(out, x.dtype)

    return pointwise(b, [(x, range(x.rank))], x.dims, x.dtype, body)


@lowers("range")
def range_(b: Lowering, n: LoweredTensor) -> LoweredTensor:
    """Return the loop index."""
    length = b.at(read(b.value(n)).value).at_least(0)
    return pointwise(b, [], [b.atom(length)], I64, lambda _: b.loop(0).word().value)


@lowers("nonzero")
def nonzero(b: Lowering, x: LoweredTensor) -> LoweredTensor:
    """Count the true elements up to each one, and search for where each count is reached."""
    size = b.count(x.dims[0])
    ones = pointwise(b, [(x, [0])], x.dims, I64, lambda v, _: scalar.cast(v, BOOL, I64))
    counts = b.value(cumulative(b, ones, axis=0, reduction="add"))
    total = reduce(b, ones, axes=(0,), keepdims=False, name="reduce_sum")
    length, steps = b.atom(b.at(read(b.value(total)).value)), bits_of(b, size)

    def body(_: ir.Value) -> ir.Value:
        place = b.loop(0)

        def right(middle: Number) -> Number:
            return b.at(read(counts, middle.at_most(size - 1)).value).compare("le", place)

        return _search(b, steps, b.index_of(0), size, right).word().value

    return pointwise(b, [], [length], I64, body)


@lowers("suppress")
def suppress(
    b: Lowering, boxes: LoweredTensor, groups: LoweredTensor, *, overlap: float
) -> LoweredTensor:
    """Strike out what the first box overlaps with too much, then the second if it stays, ..."""
    b.require_equal(boxes.dims[0], groups.dims[0], "suppress: boxes and groups")
    dims, data = boxes.dims[:1], b.value(boxes)

    def edge(place: int) -> LoweredTensor:
        at = b.index_of(place)
        return pointwise(b, [], dims, _F32, lambda _: read(data, b.loop(0), at).value)

    edges = [edge(i) for i in range(4)]
    values = [b.value(v) for v in (*edges, groups)]

    def struck(turn: ir.Value, stays: ir.Value) -> list[ir.Value]:
        first = Number(turn, b.number)
        fresh = first.compare("eq", 0)

        def body(*elements: ir.Value) -> ir.Value:
            *mine, group, left, _ = map(Number, elements)
            *other, same = (read(v, first) for v in values)
            near = _overlapping(mine, other, overlap) & group.compare("eq", same)
            struck = near & (fresh | read(stays, first)) & b.loop(0).compare("gt", first)
            return select(struck.value, b.scalar(False, BOOL), (fresh | left).value)

        inputs = [(v, [0]) for v in (*edges, groups, LoweredTensor(BOOL, dims, stays))]
        return [b.value(pointwise(b, inputs, dims, BOOL, body))]

    # From nothing, as sorting.
    (stays,) = repeated(b.size(dims[0]), struck, b.value(b.empty(dims, BOOL)))
    return LoweredTensor(BOOL, dims, stays)


def _overlapping(mine: Sequence[Number], other: Sequence[Number], overlap: float) -> Number:
    """Return i1: both boxes have an area, and share more than `overlap` of their union."""

    def shared(low: int) -> Number:
        high = low + 1
        return mine[high].at_most(other[high]) - mine[low].at_least(other[low])

    def area(box: Sequence[Number]) -> Number:
        return (box[1] - box[0]) * (box[3] - box[2])

    both = shared(0).at_least(0.0) * shared(2).at_least(0.0)
    own, others = area(mine), area(other)
    ratio = both / (own + others - both)
    return own.compare("gt", 0.0) & others.compare("gt", 0.0) & ratio.compare("gt", overlap)
