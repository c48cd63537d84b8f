"""Moving elements and making tensors: reshapes, joins, slices, gathers; constants and ranges."""

from typing import Any

import numpy as np
import onnx

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir import divisions
from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.ops.movement import START as BEGIN
from pyc_mlir.dialects.types import I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import (
    broadcast_extents,
    chain,
    cut,
    expand_to,
    extent_value,
    merge,
    product,
    reshape_to,
    show,
    split,
    take,
    vector,
    whole,
    window,
)
from pyc_mlir.frontends.importing.sizes import (
    Extent,
    SymbolicSize,
    SymbolicSizes,
    Untracked,
    bounds,
    divided,
    extremum,
    sizes,
)
from pyc_mlir.frontends.onnx.ops.node import (
    MAX_WRITTEN,
    Extents,
    Ints,
    Number,
    OnnxNode,
    Operand,
    formulas,
    node,
    pyc_dtype,
)

_FAR = 2**31 - 1


@node("Constant")
def constant(
    n: OnnxNode, *,
    value: Any = None, value_float: Any = None, value_floats: Any = None, value_int: Any = None,
    value_ints: Any = None, value_string: Any = None, value_strings: Any = None,
    sparse_value: Any = None,
) -> Any:  # fmt: skip
    """Return the value of whichever attribute is present."""
    numbers = {np.float32: (value_float, value_floats), np.int64: (value_int, value_ints)}
    for dtype, given in numbers.items():
        for number in given:
            if number is not None:
                return np.array(number, dtype)
    if value is None or value.data_type == onnx.TensorProto.STRING:
        name = n.proto.attribute[0].name
        raise unsupported(
            f"`{name}`: expected a dense tensor of numbers", ReasonCode.UNSUPPORTED_DTYPE
        )
    return onnx.numpy_helper.to_array(value)


formulas({
    "Shape": ("The sizes of x from `start` to `end`, known at import.",
              lambda b, x, *, start=0, end=None: sizes(b.dims(x)[start:end])),
    "OptionalGetElement": ("out = x: an optional argument of a program is given.",
                           lambda b, x: x),
    "Transpose": ("Dimension perm[d] of x is dimension d of out; reversed by default.",
                  lambda b, x, *, perm=None: b.transpose(x, permutation=tuple(
                      range(b.type_of(x).rank)[::-1] if perm is None else perm))),
    "Flatten": ("[product of the dimensions before `axis`, product of the others].",
                lambda b, x, *, axis=1: reshape_to(
                    b, x, (product(b.dims(x)[:axis]), product(b.dims(x)[axis:])))),
    "Concat": ("Join the inputs one after the other along `axis`.",
               lambda b, *xs, axis: chain(b, xs, axis)),
})  # fmt: skip


@node("Size")
def size(b: Any, x: Any) -> Any:
    """Return the number of elements of x."""
    total = product(b.dims(x))
    dynamic = isinstance(total, SymbolicSize)
    return SymbolicSizes(np.array(total, object)) if dynamic else np.array(total, np.int64)


@node("ConstantOfShape")
def constant_of_shape(b: Any, shape: Extents, *, value: Any = None) -> Any:
    """Build a tensor full of one value; 0.0 as f32 by default."""
    one = np.float32(0) if value is None else onnx.numpy_helper.to_array(value).reshape(())
    return expand_to(b, b.constant(np.asarray(one)), shape)


@node("Range")
def range_node(n: OnnxNode, start: Operand, limit: Operand, delta: Operand) -> Any:
    """start, start + delta, ... up to but not including limit."""
    if not all(isinstance(v, np.ndarray) for v in n.operands):
        return _dynamic_range(n)
    first, last, step = (n.scalar(i, name) for i, name in enumerate(("start", "limit", "delta")))
    steps = (last - first) / step if step else np.nan
    if not -np.inf < steps <= MAX_WRITTEN:
        raise unsupported(
            f"a range from {first} to {last} by {step}: expected one of at most {MAX_WRITTEN} "
            "elements"
        )
    count = max(0, int(np.ceil(steps)))
    return (first + np.arange(count) * step).astype(start.dtype)


def _dynamic_range(n: OnnxNode) -> Any:
    """Build a range whose length is a dynamic size: a scaled and shifted iota."""
    (start,), (limit,), (delta,) = (n.extents(i, "limits of the range") for i in range(3))
    way = -1 if bounds(delta)[1] < 0 else 1
    try:
        count = divided(way * (limit - start + delta) - 1, way * delta)[0]
    except Untracked as error:
        raise unsupported(
            f"a range from {start} to {limit} by {delta}: expected a step that is never 0 ({error})"
        ) from None
    b = n.b
    ramp = b.mul(vector(b, extremum("max", (0, count))), b.extent(delta))
    return b.convert(b.add(ramp, b.extent(start)), b.type_of(n.x(1)).dtype)


@node("EyeLike")
def eye_like(b: Any, x: Any, *, dtype: int = 0, k: int = 0) -> Any:
    """Build ones at column = row + k, of the shape of x."""
    made = pyc_dtype(dtype) if dtype else b.type_of(x).dtype
    shifted = b.add(b.iota_like(x, 0), k)
    return b.cast(b.eq(b.iota_like(x, 1), shifted), dtype=made)


@node("OptionalHasElement")
def has_element(b: Any, x: Operand = None) -> Any:
    """Return True for an input that is given, as every argument of a program is."""
    return b.constant(np.array(x is not None))


@node("Dropout")
def dropout(n: OnnxNode, x: Any, ratio: Number = 0.5, training_mode: Number = False) -> Any:
    """out = x; the mask is all true."""
    if training_mode and ratio:
        raise unsupported("training_mode=true: expected a model exported for inference")
    if not n.wants(1):
        return x
    return x, expand_to(n.b, n.b.constant(np.array(True)), n.b.dims(x))


@node("Reshape")
def reshape(b: Any, x: Any, shape: Extents, *, allowzero: int = 0) -> Any:
    """Reshape x; a 0 in the shape copies x's dimension unless `allowzero`."""
    target, dims = list(shape), b.dims(x)
    if not allowzero:
        for i, extent in enumerate(target):
            if extent == 0 and i >= len(dims):
                raise PycError(ReasonCode.BAD_MODEL, f"`shape`: entry {i} copies no dimension of x")
            target[i] = dims[i] if extent == 0 else extent
    # A number that is 0 or -1 when the program runs says what the others leave, too.
    unsure = [i for i, extent in enumerate(target) if extent != -1 and bounds(extent)[0] < 0]
    if len(unsure) + target.count(-1) > 1:
        raise unsupported("`shape` is computed when the model runs: expected one such size at most")
    for i in unsure:
        target[i] = -1
    return reshape_to(b, x, target)


@node("Squeeze")
def squeeze(b: Any, x: Any, axes: Ints = None) -> Any:
    """x without the dimensions `axes`, or without all of size 1."""
    dims = b.dims(x)
    if axes is None and any(isinstance(d, SymbolicSize) for d in dims):
        raise unsupported("no axes, and a dynamic dimension: expected the axes to be named")
    ones = [i for i, d in enumerate(dims) if d == 1]
    gone = ones if axes is None else {a % len(dims) for a in axes}
    return reshape_to(b, x, [d for i, d in enumerate(dims) if i not in gone])


@node("Unsqueeze")
def unsqueeze(b: Any, x: Any, axes: Ints) -> Any:
    """x with dimensions of size 1 at `axes` of the result."""
    dims = b.dims(x)
    rank, rest = len(dims) + len(axes), iter(dims)
    places = {a % rank for a in axes}
    return reshape_to(b, x, [1 if i in places else next(rest) for i in range(rank)])


@node("Expand")
def expand(b: Any, x: Any, shape: Extents) -> Any:
    """x and a tensor of the given shape, broadcast together."""
    return expand_to(b, x, broadcast_extents(b.dims(x), shape))


@node("Tile")
def tile(b: Any, x: Any, repeats: Extents) -> Any:
    """x repeated along each dimension."""
    for axis, count in enumerate(repeats):
        if count != 1:
            dims = b.dims(x)
            apart = split(b, x, axis, (1, dims[axis]))
            x = merge(b, expand_to(b, apart, (*dims[:axis], count, *dims[axis:])), axis)
    return x


@node("Split")
def split_node(
    n: OnnxNode, x: Any, split: Extents = None, *, axis: int = 0, num_outputs: int | None = None
) -> Any:
    """Split into consecutive pieces along `axis`: of given sizes, or equal (the last smaller)."""
    dims, outputs = n.b.dims(x), len(n.proto.output)
    axis %= len(dims)
    if split is None:
        size, count = dims[axis], outputs if num_outputs is None else num_outputs
        if count != outputs:
            raise unsupported(f"{count} parts: expected one for each of {outputs} outputs")
        part = divided(size + count - 1, count)[0]
        left = (extremum("max", (0, size - i * part)) for i in range(count))
        split = [extremum("min", (part, rest)) for rest in left]
    elif (joined := sum(split)) != dims[axis]:
        x = reshape_to(n.b, x, (*dims[:axis], joined, *dims[axis + 1 :]))  # The program compares.
    return cut(n.b, x, axis, split)


@node("Slice")
def slice_node(
    b: Any, x: Any, starts: Extents, ends: Extents, axes: Ints = None, steps: Ints = None
) -> Any:
    """x[start:end:step] along `axes`; with bounds of dynamic sizes a gather of those places."""
    dims = b.dims(x)
    axes = range(len(starts)) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    from_, to, by = (list(v) for v in whole(len(dims)))
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        place = axis % len(dims)
        if isinstance(end, SymbolicSize) and end == dims[place] and step > 0:
            end = END
        if isinstance(start, SymbolicSize) or isinstance(end, SymbolicSize):
            x = _between(b, x, place, dims[place], start, end, step)
        else:
            from_[place], to[place] = _bound(start, step > 0), _bound(end, step < 0)
            by[place] = step
    return b.slice(x, starts=tuple(from_), stops=tuple(to), steps=tuple(by))


def _between(b: Any, x: Any, axis: int, size: Extent, start: Extent, end: Extent, step: int) -> Any:
    """x[start:end:step] along `axis`."""
    if step <= 0:
        raise unsupported(f"a slice from {start} to {end} by {step}: expected a step above 0")
    start = extremum("max", (0, _from_the_start(start, size)))
    end = extremum("min", (size, _from_the_start(end, size)))
    count = extremum("max", (0, end - start))
    return window(b, x, axis, start, divided(count + step - 1, step)[0], step)


def _from_the_start(bound: Extent, size: Extent) -> Extent:
    """Return a bound as a place from 0 on, for one that may count from the end."""
    if not isinstance(bound, SymbolicSize):
        whole = size if bound >= _FAR else 0
        return whole if abs(bound) >= _FAR else bound + (size if bound < 0 else 0)
    low, high = bounds(bound)
    if low >= 0 or high <= 0:
        return bound if low >= 0 else size + bound
    # The quotient is -1 for a bound that counts from the end, else 0.
    return extremum("min", (size, bound - size * divided(bound, 1 << 62)[0]))


def _bound(value: int, inward: bool) -> int:
    """Return a bound of pyc.slice, which reads the extreme i64 values as "omitted".

    For the wrong sign of the step that means the opposite end: `inward` moves those one step.
    Anything past i32 stands for an extreme.
    """
    if abs(value) < _FAR:
        return value
    return END - inward if value > 0 else BEGIN + (not inward)


@node("Pad")
def pad(
    n: OnnxNode, x: Any, pads: Extents, constant_value: Operand = None, axes: Ints = None, *,
    mode: str = "constant",
) -> Any:  # fmt: skip
    """Pad by pyc.pad (negative pads cut) for constants, join dynamic pads; other modes gather."""
    b, rank = n.b, n.b.type_of(x).rank
    axes = range(rank) if axes is None else axes
    if len(pads) != 2 * len(axes):
        raise PycError(ReasonCode.BAD_MODEL, f"`pads`: expected {2 * len(axes)} entries")
    low, high = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        low[axis % rank], high[axis % rank] = pads[i], pads[len(axes) + i]
    if mode != "constant":
        return _pad_by_index(b, x, low, high, mode)
    known = constant_value is None or isinstance(constant_value, np.ndarray)
    value = n.scalar(2, "constant_value") if known and constant_value is not None else 0
    for axis, ends in enumerate(zip(low, high, strict=True)):
        if SymbolicSize in map(type, ends):
            dims, fill = b.dims(x), b.scalar(value, x) if known else b.reshape(n.x(2), shape=())
            if min(bounds(end)[0] for end in ends) < 0:
                raise unsupported(f"pads {show(ends)}, which may cut: expected none below 0")
            sides = [expand_to(b, fill, (*dims[:axis], e, *dims[axis + 1 :])) for e in ends]
            x, low[axis], high[axis] = chain(b, [sides[0], x, sides[1]], axis), 0, 0
    if min(*low, *high, 0) < 0:
        from_, to = tuple(max(0, -p) for p in low), tuple(p if p < 0 else END for p in high)
        x = b.slice(x, starts=from_, stops=to, steps=(1,) * rank)
    ends = {"low": tuple(max(0, p) for p in low), "high": tuple(max(0, p) for p in high)}
    # pyc.pad has a float, which not every 64-bit integer is.
    if not known or (isinstance(value, int) and int(float(value)) != value):
        inside = b.constant(np.array(True))
        inside = b.pad(expand_to(b, inside, b.dims(x)), **ends, value=0.0)
        return b.select(inside, b.pad(x, **ends, value=0.0), b.reshape(n.x(2), shape=()))
    return b.pad(x, **ends, value=float(value))


def _pad_by_index(b: Any, x: Any, low: list[int], high: list[int], mode: str) -> Any:
    """edge, reflect and wrap: for each axis the indices that numpy's pad gives."""
    if mode not in ("edge", "reflect", "wrap") or any(bounds(p)[0] < 0 for p in (*low, *high)):
        raise unsupported(f"mode {mode!r} with pads {show(low)}, {show(high)}")
    for axis, (before, after) in enumerate(zip(low, high, strict=True)):
        size = b.dims(x)[axis]
        if before == 0 == after:
            continue
        if SymbolicSize in map(type, (size, before, after)):
            x = b.gather(x, _turned(b, size, before, after, mode), axis=axis)
            continue
        if size + before + after > MAX_WRITTEN:
            raise unsupported(f"mode {mode!r} with more than {MAX_WRITTEN} indices along an axis")
        index = np.pad(np.arange(size), (before, after), mode=mode)  # type: ignore[call-overload]
        x = b.gather(x, b.constant(index.astype(np.int64)), axis=axis)
    return x


def _turned(b: Any, size: Extent, before: Extent, after: Extent, mode: str) -> Any:
    """Return the same indices for sizes known at run time."""
    length, last = extent_value(b, size), extent_value(b, size - 1)
    place = b.sub(vector(b, size + before + after), extent_value(b, before))
    if mode == "edge":
        return b.minimum(b.maximum(place, 0), last)
    if mode == "wrap":
        return divisions.remainder(b, place, length)
    turn = divisions.remainder(b, place, b.maximum(b.mul(last, 2), 1))
    return b.sub(last, b.abs(b.sub(last, turn)))


@node("Gather")
def gather(b: Any, x: Any, indices: Any, *, axis: int = 0) -> Any:
    """x taken at `indices` along `axis`."""
    b.declare_indices(indices, b.dims(x)[axis])
    return b.gather(x, indices, axis=axis)


@node("OneHot")
def one_hot(b: Any, indices: Any, depth: Number, values: Any, *, axis: int = -1) -> Any:
    """values[1] where the index is the position along a new dimension, else values[0]."""
    rank, depth = b.type_of(indices).rank + 1, int(depth)
    axis %= rank
    indices = b.convert(indices, I64)
    count = np.array(depth, np.int64)
    negative = b.lt(indices, 0)
    indices = b.select(negative, b.add(indices, count), indices)
    shape = tuple(depth if i == axis else 1 for i in range(rank))
    here = b.eq(b.iota(shape=shape, axis=axis, dtype=I64), b.expand_dims(indices, axis))
    off, on = (b.reshape(take(b, values, 0, i, i + 1), shape=()) for i in (0, 1))
    return b.select(here, on, off)


@node("DepthToSpace")
def depth_to_space(b: Any, x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    """Move blocks of channels to blocks of pixels, in DCR or CRD order."""
    channels = b.type_of(x).shape[1]
    if channels is None:
        raise unsupported("a dynamic number of channels: expected a static one")
    block, depth, rows_first = blocksize, channels // blocksize**2, mode == "DCR"
    x = split(b, x, 1, (block, block, depth) if rows_first else (depth, block, block))
    order = (0, 3, 4, 1, 5, 2) if rows_first else (0, 1, 4, 2, 5, 3)
    return merge(b, merge(b, b.transpose(x, permutation=order), 2), 3)


@node("SpaceToDepth")
def space_to_depth(b: Any, x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    """Move blocks of pixels to blocks of channels."""
    dims = b.dims(x)
    for axis in (3, 2):
        x = split(b, x, axis, (dims[axis] // blocksize, blocksize))
    x = b.transpose(x, permutation=(0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return merge(b, merge(b, x, 1), 1)


@node("Trilu")
def trilu(b: Any, x: Any, k: Number = 0, *, upper: int = 1) -> Any:
    """Keep the upper or lower triangle of the last two dimensions, shifted by k; 0 elsewhere."""
    rank = b.type_of(x).rank
    rows, columns = b.iota_like(x, rank - 2), b.iota_like(x, rank - 1)
    edge = b.add(rows, int(k))
    keep = b.compare(columns, edge, predicate="ge" if upper else "le")
    return b.select(keep, x, 0)
