"""Views and copies: transposes, reshapes, broadcasts, slices, concatenation, gathers."""

from collections.abc import Sequence

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ops.movement import END, START, slice_length
from pyc_mlir.pipelines.linalg.base import structured as linalg
from pyc_mlir.pipelines.linalg.base.dims import LoweredDim, product
from pyc_mlir.pipelines.linalg.base.lowering import LoweredTensor, Lowering, compare_index, lowers
from pyc_mlir.pipelines.linalg.base.structured import extract, insert, pointwise, sum_of
from pyc_mlir.pipelines.linalg.ops.creation import as_index, loop_index
from pyc_mlir.pipelines.linalg.ops.elementwise import stretched
from pyc_mlir.pipelines.linalg.scalar import scalar


@lowers("transpose")
def transpose(
    lowering: Lowering, name: str, x: LoweredTensor, *, permutation: tuple[int, ...]
) -> LoweredTensor:
    """Return a copy with a permuted index map."""
    dims = [x.dims[p] for p in permutation]
    loops = [permutation.index(i) for i in range(x.rank)]
    return pointwise(lowering, [(x, loops)], dims, x.dtype, lambda v, _: v)


@lowers("reshape")
def reshape(
    lowering: Lowering, name: str, x: LoweredTensor, *, shape: tuple[int, ...]
) -> LoweredTensor:
    """collapse_shape and expand_shape; -1 is the quotient of the sizes."""
    dims = [
        x.dims[-2 - d] if d <= -2 else LoweredDim(d) if d >= 0 else LoweredDim(1) for d in shape
    ]
    total = product(x.dims)
    if -1 in shape:
        dims[shape.index(-1)] = _quotient(lowering, total, product(dims))
    else:
        lowering.require_equal(total, product(dims), "sizes of a reshape")
    return linalg.reshape(lowering, x, dims)


def _quotient(lowering: Lowering, total: LoweredDim, known: LoweredDim) -> LoweredDim:
    """total / known, checked at run time unless exact."""
    exact = total.divide(known)
    if exact is not None:
        return exact
    one = lowering.number(1)
    divisor = lowering.arith("maxsi", lowering.size(known), one)
    quotient = lowering.atom(lowering.arith("divui", lowering.size(total), divisor))
    lowering.require_equal(total, quotient * known, "sizes of a reshape")
    return quotient


@lowers("broadcast_to")
def broadcast_to(
    lowering: Lowering, name: str, x: LoweredTensor, *like: LoweredTensor, shape: tuple[int, ...]
) -> LoweredTensor:
    """Return a copy whose map leaves out the stretched dimensions."""
    aligned = (LoweredDim(1),) * (len(shape) - x.rank) + x.dims
    source = like[0].dims if like else aligned
    dims = [source[i] if d == -1 else LoweredDim(d) for i, d in enumerate(shape)]
    for i, have in enumerate(aligned):
        if have != LoweredDim(1):
            dims[i] = lowering.require_equal(have, dims[i], "broadcast dimensions")
    if tuple(dims) == x.dims:
        return x
    return pointwise(lowering, [stretched(lowering, x, tuple(dims))], dims, x.dtype, lambda v, _: v)


@lowers("pad")
def pad(
    lowering: Lowering,
    name: str,
    x: LoweredTensor,
    *,
    low: tuple[int, ...],
    high: tuple[int, ...],
    value: float,
) -> LoweredTensor:
    """tensor.pad."""
    return linalg.pad(lowering, x, low, high, value)


@lowers("concat")
def concat(
    lowering: Lowering, name: str, lhs: LoweredTensor, rhs: LoweredTensor, *, axis: int
) -> LoweredTensor:
    """Insert into one uninitialized tensor; a part that is a concatenation not yet emitted gives
    its own parts.
    """
    axis %= lhs.rank
    for i, (a, b) in enumerate(zip(lhs.dims, rhs.dims, strict=True)):
        if i != axis:
            lowering.require_equal(a, b, f"dimension {i} of a concat")
    dims = list(lhs.dims)
    dims[axis] = sum_of(lowering, lhs.dims[axis], rhs.dims[axis])
    parts = (*_parts(lowering, lhs, axis), *_parts(lowering, rhs, axis))
    return LoweredTensor(lhs.dtype, tuple(dims), joined=(parts, axis))


def _parts(lowering: Lowering, x: LoweredTensor, axis: int) -> tuple[LoweredTensor, ...]:
    """Return what stands for x in a concatenation along `axis`."""
    if x.joined is None or lowering.is_emitted(x) or x.joined[1] != axis:
        return (x,)
    return x.joined[0]


@lowers("update_slice")
def update_slice(
    lowering: Lowering, name: str, x: LoweredTensor, update: LoweredTensor, starts: LoweredTensor
) -> LoweredTensor:
    """tensor.insert_slice at clamped offsets."""
    for i, (have, want) in enumerate(zip(x.dims, update.dims, strict=True)):
        if have != want and (have.static is None or want.static is None):
            sizes = lowering.size(want), lowering.size(have)
            lowering.check("sle", *sizes, f"update_slice: dimension {i} of the update")
    offsets = [_clamped_start(lowering, x, update, starts, i) for i in range(x.rank)]
    return insert(lowering, update, x, offsets)


def _clamped_start(
    lowering: Lowering, x: LoweredTensor, update: LoweredTensor, starts: LoweredTensor, axis: int
) -> LoweredDim:
    """min(max(starts[axis], 0), size of x - size of update)."""
    have, want = x.dims[axis], update.dims[axis]
    if have == want:
        return LoweredDim(0)
    if starts.array is not None and have.static is not None and want.static is not None:
        return LoweredDim(min(max(int(starts.array[axis]), 0), have.static - want.static))
    element = scalar.emit(
        "tensor.extract",
        lowering.value(starts),
        lowering.number(axis),
        result=lowering.element(starts.dtype),
    )
    room = lowering.arith("subi", lowering.size(have), lowering.size(want))
    start = lowering.arith("maxsi", as_index(element), lowering.number(0))
    return lowering.atom(lowering.arith("minsi", start, room))


@lowers("slice")
def slice_(
    lowering: Lowering,
    name: str,
    x: LoweredTensor,
    *,
    starts: tuple[int, ...],
    stops: tuple[int, ...],
    steps: tuple[int, ...],
) -> LoweredTensor:
    """tensor.extract_slice; negative steps read backwards through an index computation."""
    bounds = [_bounds(lowering, *entry) for entry in zip(x.dims, starts, stops, steps, strict=True)]
    offsets, sizes = [b[0] for b in bounds], [b[1] for b in bounds]
    if min(steps, default=1) < 0:
        return _backwards(lowering, x, offsets, sizes, steps)
    if tuple(sizes) == x.dims and all(s == 1 for s in steps):
        return x
    return extract(lowering, x, offsets, sizes, steps)


def _bounds(
    lowering: Lowering, size: LoweredDim, start: int, stop: int, step: int
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
    least = lowering.number(0 if step > 0 else -1)
    most = lowering.size(size)
    if step < 0:
        most = lowering.arith("subi", most, lowering.number(1))
    default = (least, most) if step > 0 else (most, least)
    first = default[0] if start in omitted else _clamp(lowering, size, start, least, most)
    last = default[1] if stop in omitted else _clamp(lowering, size, stop, least, most)
    span = lowering.arith("subi", last, first)
    length = lowering.arith("ceildivsi", span, lowering.number(step))
    length = lowering.arith("maxsi", length, lowering.number(0))
    begin = lowering.arith("maxsi", first, lowering.number(0))
    return lowering.atom(begin), lowering.atom(length)


def _clamp(
    lowering: Lowering, size: LoweredDim, bound: int, least: ir.Value, most: ir.Value
) -> ir.Value:
    """Return a slice bound counted from the front and clamped, as Python does."""
    value = lowering.number(bound)
    if bound < 0:
        value = lowering.arith("addi", value, lowering.size(size))
    return lowering.arith("minsi", lowering.arith("maxsi", value, least), most)


def _backwards(
    lowering: Lowering,
    x: LoweredTensor,
    offsets: Sequence[LoweredDim],
    sizes: Sequence[LoweredDim],
    steps: Sequence[int],
) -> LoweredTensor:
    """out[i] = x[offset + i * step], read with tensor.extract."""
    source = lowering.value(x)
    first = [lowering.size(o) for o in offsets]
    strides = [lowering.number(s) for s in steps]

    def body(_: ir.Value) -> ir.Value:
        indices = [
            lowering.arith("addi", f, lowering.arith("muli", loop_index(i), s))
            for i, (f, s) in enumerate(zip(first, strides, strict=True))
        ]
        return scalar.emit("tensor.extract", source, *indices, result=lowering.element(x.dtype))

    return pointwise(lowering, [], sizes, x.dtype, body)


def _require_elements(
    lowering: Lowering, size: ir.Value, dim: LoweredDim, taken: LoweredDim
) -> None:
    """Check that an axis from which something is taken has elements."""
    if dim.static is None and taken.static is None:
        some = lowering.arith("minsi", lowering.size(taken), lowering.number(1))
        lowering.check("sle", some, size, "gather: size of the axis and number of indices")
    elif dim.static is None and taken.static:
        lowering.check("sgt", size, lowering.number(0), "gather: size of the axis")


@lowers("gather")
def gather(
    lowering: Lowering, name: str, x: LoweredTensor, indices: LoweredTensor, *, axis: int
) -> LoweredTensor:
    """Read x at a wrapped and clamped index for each element."""
    axis %= x.rank
    dims = [*x.dims[:axis], *indices.dims, *x.dims[axis + 1 :]]
    source = lowering.value(x)
    size = lowering.size(x.dims[axis])
    zero = lowering.number(0)
    last = lowering.arith("subi", size, lowering.number(1))
    _require_elements(lowering, size, x.dims[axis], product(indices.dims))
    after = axis + indices.rank

    def body(index: ir.Value, _: ir.Value) -> ir.Value:
        position = as_index(index, indices.dtype)
        negative = compare_index("slt", position, zero)
        position = scalar.select(negative, lowering.arith("addi", position, size), position)
        position = lowering.arith("minsi", lowering.arith("maxsi", position, zero), last)
        before = [loop_index(i) for i in range(axis)]
        behind = [loop_index(after + i) for i in range(x.rank - axis - 1)]
        return scalar.emit(
            "tensor.extract", source, *before, position, *behind, result=lowering.element(x.dtype)
        )

    loops = list(range(axis, after))
    return pointwise(lowering, [(indices, loops)], dims, x.dtype, body)
