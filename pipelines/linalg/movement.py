"""Views and copies: transposes, reshapes, broadcasts, slices, concatenation, gathers."""

from collections.abc import Sequence
from itertools import chain

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ops.movement import END, START, slice_length
from pyc_mlir.pipelines.linalg import structured as linalg
from pyc_mlir.pipelines.linalg.elementwise import stretched
from pyc_mlir.pipelines.linalg.functions import Number, read
from pyc_mlir.pipelines.linalg.lowering import LoweredDim, LoweredTensor, Lowering, lowers, product
from pyc_mlir.pipelines.linalg.structured import extract, insert, pointwise, sum_of


@lowers("transpose")
def transpose(b: Lowering, x: LoweredTensor, *, permutation: tuple[int, ...]) -> LoweredTensor:
    """Return a copy with a permuted index map."""
    dims = [x.dims[p] for p in permutation]
    loops = [permutation.index(i) for i in range(x.rank)]
    return pointwise(b, [(x, loops)], dims, x.dtype, lambda v, _: v)


@lowers("reshape")
def reshape(
    b: Lowering, x: LoweredTensor, *like: LoweredTensor, shape: tuple[int, ...]
) -> LoweredTensor:
    """collapse_shape and expand_shape; -1 is the quotient of the sizes."""
    named = [*chain(x.dims, *(o.dims for o in like))]
    dims = [named[-2 - d] if d <= -2 else LoweredDim(1 if d == -1 else d) for d in shape]
    total = product(x.dims)
    if -1 in shape:
        known = product(dims)
        quotient = total.divide(known)
        if quotient is None:
            total, known = total.without_shared(known)
            divisor = b.count(known).at_least(1)
            quotient = b.atom(b.count(total) // divisor)
            b.require_equal(total, quotient * known, "sizes of a reshape")
        dims[shape.index(-1)] = quotient
    else:
        b.require_equal(total, product(dims), "sizes of a reshape")
    return linalg.reshape(b, x, dims)


@lowers("broadcast_to")
def broadcast_to(
    b: Lowering, x: LoweredTensor, *like: LoweredTensor, shape: tuple[int, ...]
) -> LoweredTensor:
    """Return a copy whose map leaves out the stretched dimensions."""
    aligned = (LoweredDim(1),) * (len(shape) - x.rank) + x.dims
    source = like[0].dims if like else aligned
    dims = [source[i] if d == -1 else LoweredDim(d) for i, d in enumerate(shape)]
    for i, have in enumerate(aligned):
        if have != LoweredDim(1):
            dims[i] = b.require_equal(have, dims[i], "broadcast dimensions")
    if tuple(dims) == x.dims:
        return x
    return pointwise(b, [stretched(b, x, tuple(dims))], dims, x.dtype, lambda v, _: v)


@lowers("pad")
def pad(
    b: Lowering, x: LoweredTensor, *, low: tuple[int, ...], high: tuple[int, ...], value: float
) -> LoweredTensor:
    """tensor.pad."""
    return linalg.pad(b, x, low, high, value)


@lowers("concat")
def concat(b: Lowering, lhs: LoweredTensor, rhs: LoweredTensor, *, axis: int) -> LoweredTensor:
    """Insert into one uninitialized tensor; a part that is a concatenation not yet emitted gives
    its own parts.
    """
    axis %= lhs.rank
    for i, pair in enumerate(zip(lhs.dims, rhs.dims, strict=True)):
        if i != axis:
            b.require_equal(*pair, f"dimension {i} of a concat")
    dims = list(lhs.dims)
    dims[axis] = sum_of(b, lhs.dims[axis], rhs.dims[axis])
    parts = (*_parts(b, lhs, axis), *_parts(b, rhs, axis))
    return LoweredTensor(lhs.dtype, tuple(dims), joined=(parts, axis))


def _parts(b: Lowering, x: LoweredTensor, axis: int) -> tuple[LoweredTensor, ...]:
    """Return what stands for x in a concatenation along `axis`."""
    if x.joined is None or b.is_emitted(x) or x.joined[1] != axis:
        return (x,)
    return x.joined[0]


@lowers("update_slice")
def update_slice(
    b: Lowering, x: LoweredTensor, update: LoweredTensor, starts: LoweredTensor
) -> LoweredTensor:
    """tensor.insert_slice at clamped offsets."""
    for i, (have, want) in enumerate(zip(x.dims, update.dims, strict=True)):
        if have != want and (have.static is None or want.static is None):
            sizes = b.count(want), b.count(have)
            b.check("le", *sizes, f"update_slice: dimension {i} of the update")
    offsets = [_clamped_start(b, x, update, starts, i) for i in range(x.rank)]
    return insert(b, update, x, offsets)


def _clamped_start(
    b: Lowering, x: LoweredTensor, update: LoweredTensor, starts: LoweredTensor, axis: int
) -> LoweredDim:
    """min(max(starts[axis], 0), size of x - size of update)."""
    have, want = x.dims[axis], update.dims[axis]
    if have == want:
        return LoweredDim(0)
    if starts.array is not None and have.static is not None and want.static is not None:
        return LoweredDim(min(max(int(starts.array[axis]), 0), have.static - want.static))
    element = read(b.value(starts), b.index_of(axis))
    room = b.count(have) - b.count(want)
    return b.atom(b.at(element.value).at_least(0).at_most(room))


@lowers("slice")
def slice_(
    b: Lowering,
    x: LoweredTensor,
    *,
    starts: tuple[int, ...],
    stops: tuple[int, ...],
    steps: tuple[int, ...],
) -> LoweredTensor:
    """tensor.extract_slice; negative steps read backwards through an index computation."""
    bounds = [_bounds(b, *entry) for entry in zip(x.dims, starts, stops, steps, strict=True)]
    offsets, sizes = [first for first, _ in bounds], [size for _, size in bounds]
    if min(steps, default=1) < 0:
        return _backwards(b, x, offsets, sizes, steps)
    if tuple(sizes) == x.dims and all(s == 1 for s in steps):
        return x
    return extract(b, x, offsets, sizes, steps)


def _bounds(
    b: Lowering, size: LoweredDim, start: int, stop: int, step: int
) -> tuple[LoweredDim, LoweredDim]:
    """Return the first index and the length of a Python slice of `size`."""
    omitted = (START, END)
    known = size.static
    if known is not None:
        indices = slice(
            None if start in omitted else start, None if stop in omitted else stop, step
        ).indices(known)
        length = slice_length(known, start, stop, step) or 0
        return LoweredDim(max(indices[0], 0) if length else 0), LoweredDim(length)
    if step == 1 and (start in omitted or start == 0) and stop in omitted:
        return LoweredDim(0), size
    # Bounds are counted from the front and clamped, as Python does.
    least, most = b.index_of(0 if step > 0 else -1), b.count(size)
    if step < 0:
        most = most - 1

    def clamped(bound: int) -> Number:
        counted = b.index_of(bound)
        if bound < 0:
            counted = counted + b.count(size)
        return counted.at_least(least).at_most(most)

    default = (least, most) if step > 0 else (most, least)
    first = default[0] if start in omitted else clamped(start)
    last = default[1] if stop in omitted else clamped(stop)
    length = (last - first).make("arith.ceildivsi", step).at_least(0)
    begin = first.at_least(0)
    return b.atom(begin), b.atom(length)


def _backwards(
    b: Lowering,
    x: LoweredTensor,
    offsets: Sequence[LoweredDim],
    sizes: Sequence[LoweredDim],
    steps: Sequence[int],
) -> LoweredTensor:
    """out[i] = x[offset + i * step], read with tensor.extract."""
    source = b.value(x)
    first = [b.count(o) for o in offsets]
    strides = [b.index_of(s) for s in steps]

    def body(_: ir.Value) -> ir.Value:
        places = zip(first, range(x.rank), strides, strict=True)
        return read(source, *(f + b.loop(i) * s for f, i, s in places)).value

    return pointwise(b, [], sizes, x.dtype, body)


@lowers("gather")
def gather(b: Lowering, x: LoweredTensor, indices: LoweredTensor, *, axis: int) -> LoweredTensor:
    """Read x at a wrapped and clamped index for each element."""
    axis %= x.rank
    dims = [*x.dims[:axis], *indices.dims, *x.dims[axis + 1 :]]
    source = b.value(x)
    size = b.count(x.dims[axis])
    last = size - 1
    taken = product(indices.dims)
    # An axis from which something is taken has elements.
    if x.dims[axis].static is None and taken.static is None:
        some = b.count(taken).at_most(1)
        b.check("le", some, size, "gather: size of the axis and number of indices")
    elif x.dims[axis].static is None and taken.static:
        b.check("gt", size, 0, "gather: size of the axis")
    after = axis + indices.rank

    def body(index: ir.Value, _: ir.Value) -> ir.Value:
        position = b.at(index, indices.dtype)
        position = position.compare("lt", 0).where(position + size, position)
        position = position.at_least(0).at_most(last)
        behind = b.loops(after, after + x.rank - axis - 1)
        return read(source, *b.loops(0, axis), position, *behind).value

    return pointwise(b, [(indices, range(axis, after))], dims, x.dtype, body)
