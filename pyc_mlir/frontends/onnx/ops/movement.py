"""Moving elements: transposes, reshapes, joins, slices, gathers."""

from itertools import pairwise
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.ops.movement import START as BEGIN
from pyc_mlir.dialects.types import I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.indexing import extent_value
from pyc_mlir.frontends.importing.shaping import (
    broadcast_extents,
    chain,
    expand_to,
    merge,
    product,
    reshape_to,
    split,
    take,
    vector,
    whole,
)
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize
from pyc_mlir.frontends.onnx.shared.handler import MAX_WRITTEN, OnnxNode, node

_FAR = 2**31 - 1


@node("Identity")
def identity(n: OnnxNode) -> Any:
    """out = x."""
    return n.x()


@node("Dropout")
def dropout(n: OnnxNode) -> Any:
    """out = x; the mask is all true."""
    ratio = float(n.scalar(1, "ratio")) if n.has(1) else 0.5
    if n.has(2) and bool(n.scalar(2, "training_mode")) and ratio:
        raise unsupported("training_mode=true: expected a model exported for inference")
    if not n.wants(1):
        return n.x()
    return n.x(), expand_to(n.b, n.b.constant(np.array(True)), n.dims())


@node("Transpose")
def transpose(n: OnnxNode) -> Any:
    """Make dimension perm[d] of x dimension d of out; reversed by default."""
    rank = n.type().rank
    permutation = tuple(n.attr("perm", range(rank)[::-1]))
    return n.b.transpose(n.x(), permutation=permutation)


@node("Reshape")
def reshape(n: OnnxNode) -> Any:
    """Reshape x; a 0 in the shape copies x's dimension unless `allowzero`."""
    target = list(n.extents(1, "shape"))
    dims = n.dims()
    if not n.attr("allowzero", 0):
        for i, extent in enumerate(target):
            if extent == 0 and i >= len(dims):
                raise PycError(ReasonCode.BAD_MODEL, f"`shape`: entry {i} copies no dimension of x")
            target[i] = dims[i] if extent == 0 else extent
    return reshape_to(n.b, n.x(), target)


@node("Flatten")
def flatten(n: OnnxNode) -> Any:
    """[product of the dimensions before `axis`, product of the others]."""
    dims, axis = n.dims(), n.attr("axis", 1)
    axis = axis + len(dims) if axis < 0 else axis
    return reshape_to(n.b, n.x(), (product(dims[:axis]), product(dims[axis:])))


@node("Squeeze")
def squeeze(n: OnnxNode) -> Any:
    """x without the dimensions `axes`, or without all of size 1."""
    dims = n.dims()
    if n.has(1):
        axes = {a % len(dims) for a in n.ints(1, "axes")}
    elif any(isinstance(d, SymbolicSize) for d in dims):
        raise unsupported("no axes, and a dynamic dimension: expected the axes to be named")
    else:
        axes = {i for i, d in enumerate(dims) if d == 1}
    return reshape_to(n.b, n.x(), [d for i, d in enumerate(dims) if i not in axes])


@node("Unsqueeze")
def unsqueeze(n: OnnxNode) -> Any:
    """x with dimensions of size 1 at `axes` of the result."""
    axes = n.ints(1, "axes")
    rank = n.type().rank + len(axes)
    places = {a % rank for a in axes}
    rest = iter(n.dims())
    return reshape_to(n.b, n.x(), [1 if i in places else next(rest) for i in range(rank)])


@node("Expand")
def expand(n: OnnxNode) -> Any:
    """x and a tensor of the given shape, broadcast together."""
    target = broadcast_extents(n.dims(), n.extents(1, "shape"))
    return expand_to(n.b, n.x(), target)


@node("Tile")
def tile(n: OnnxNode) -> Any:
    """x repeated along each dimension."""
    x = n.x()
    for axis, count in enumerate(n.extents(1, "repeats")):
        if count == 1:
            continue
        dims = n.b.dims(x)
        apart = split(n.b, x, axis, (1, dims[axis]))
        spread = expand_to(n.b, apart, (*dims[:axis], count, *dims[axis:]))
        x = merge(n.b, spread, axis)
    return x


@node("Concat")
def concat(n: OnnxNode) -> Any:
    """Join the inputs one after the other along `axis`."""
    return chain(n.b, n.all(), n.attr("axis"))


@node("Split")
def split_node(n: OnnxNode) -> Any:
    """Split into consecutive pieces along `axis`: of given sizes, or equal (the last smaller)."""
    axis = n.attr("axis", 0) % n.type().rank
    sizes = n.ints(1, "split") if n.has(1) else _equal_parts(n, n.type().shape[axis])
    bounds = np.cumsum([0, *sizes])
    pieces = pairwise(bounds)
    return tuple(take(n.b, n.x(), axis, int(start), int(stop)) for start, stop in pieces)


def _equal_parts(n: OnnxNode, size: int | None) -> list[int]:
    count = n.attr("num_outputs", len(n.proto.output))
    if count != len(n.proto.output):
        raise unsupported(f"{count} parts: expected one for each of {len(n.proto.output)} outputs")
    if size is None:
        raise unsupported("a dynamic dimension without `split`: expected sizes")
    part = -(-size // count)
    return [max(0, min(part, size - i * part)) for i in range(count)]


@node("Slice")
def slice_node(n: OnnxNode) -> Any:
    """x[start:end:step] along `axes`; with bounds of dynamic sizes a gather of those places."""
    starts, ends = n.extents(1, "starts"), n.extents(2, "ends")
    rank = n.type().rank
    axes = n.ints(3, "axes") if n.has(3) else tuple(range(len(starts)))
    steps = n.ints(4, "steps") if n.has(4) else (1,) * len(starts)
    from_, to, by = (list(v) for v in whole(rank))
    x = n.x()
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        place = axis % rank
        if isinstance(end, SymbolicSize) and end == n.dims()[place] and step > 0:
            end = END
        if isinstance(start, SymbolicSize) or isinstance(end, SymbolicSize):
            x = _between(n, x, place, start, end, step)
        else:
            from_[place], to[place] = _start(start, step), _stop(end, step)
            by[place] = step
    return n.b.slice(x, starts=tuple(from_), stops=tuple(to), steps=tuple(by))


def _between(n: OnnxNode, x: Any, axis: int, start: Extent, end: Extent, step: int) -> Any:
    """x[start:end:step] along `axis`, whose bounds lie in x; one of them is a dynamic size."""
    if step <= 0:
        raise unsupported(f"a slice from {start} to {end} by {step}: expected a step above 0")
    start, end = (_from_the_start(v, n.dims()[axis]) for v in (start, end))
    b, count = n.b, end - start
    index = vector(b, max(count, 0) if isinstance(count, int) else count)
    index = b.add(index, extent_value(b, start)) if start != 0 else index
    return b.gather(x, index if step == 1 else take(b, index, 0, 0, END, step), axis=axis)


def _from_the_start(bound: Extent, size: Extent) -> Extent:
    """Return a bound as a place from 0 on, for one that may count from the end."""
    if not isinstance(bound, SymbolicSize):
        whole = size if bound >= _FAR else 0
        return whole if abs(bound) >= _FAR else bound + (size if bound < 0 else 0)
    if not bound.is_length and not (-bound).is_length:
        raise unsupported(f"a bound of {bound}: expected a size that is never negative")
    return bound if bound.is_length else size + bound


# pyc's bounds read the extreme i64 values as "omitted", which for the wrong sign of the step
# means the opposite end: move those one step inward. Anything past i32 stands for an extreme.


def _start(value: int, step: int) -> int:
    if value >= _FAR:
        return END - 1 if step > 0 else END
    return (BEGIN if step > 0 else BEGIN + 1) if value <= -_FAR else value


def _stop(value: int, step: int) -> int:
    if value >= _FAR:
        return END if step > 0 else END - 1
    return (BEGIN + 1 if step > 0 else BEGIN) if value <= -_FAR else value


@node("Pad")
def pad(n: OnnxNode) -> Any:
    """Pad by pyc.pad (negative pads cut) for constants; other modes gather known indices."""
    rank = n.type().rank
    pads = n.ints(1, "pads")
    axes = n.ints(3, "axes") if n.has(3) else tuple(range(rank))
    if len(pads) != 2 * len(axes):
        raise PycError(ReasonCode.BAD_MODEL, f"`pads`: expected {2 * len(axes)} entries")
    low, high = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        low[axis % rank], high[axis % rank] = pads[i], pads[len(axes) + i]
    mode = n.attr("mode", "constant")
    if mode != "constant":
        return _pad_by_index(n, low, high, mode)
    x = _cut(n, low, high)
    low, high = ([max(0, p) for p in side] for side in (low, high))
    pads = {"low": tuple(low), "high": tuple(high)}
    known = not n.has(2) or isinstance(n.operands[2], np.ndarray)
    value = n.scalar(2, "constant_value") if known and n.has(2) else 0
    # pyc.pad has a float, which not every 64-bit integer is.
    if not known or (isinstance(value, int) and int(float(value)) != value):
        inside = n.b.constant(np.array(True))
        inside = n.b.pad(expand_to(n.b, inside, n.b.dims(x)), **pads, value=0.0)
        return n.b.select(inside, n.b.pad(x, **pads, value=0.0), n.b.reshape(n.x(2), shape=()))
    return n.b.pad(x, **pads, value=float(value))


def _cut(n: OnnxNode, low: list[int], high: list[int]) -> Any:
    """x without what negative pads take away."""
    if min(*low, *high, 0) == 0:
        return n.x()
    from_ = tuple(max(0, -p) for p in low)
    to = tuple(p if p < 0 else END for p in high)
    return n.b.slice(n.x(), starts=from_, stops=to, steps=(1,) * len(low))


def _pad_by_index(n: OnnxNode, low: list[int], high: list[int], mode: str) -> Any:
    """edge, reflect and wrap: for each axis the indices that numpy's pad gives."""
    x = n.x()
    modes = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}
    if mode not in modes or min(*low, *high, 0) < 0:
        raise unsupported(f"mode {mode!r} with pads {low}, {high}")
    for axis, (before, after) in enumerate(zip(low, high, strict=True)):
        size = n.type().shape[axis]
        if not before and not after:
            continue
        if size is None:
            raise unsupported(f"mode {mode!r} on a dynamic dimension: expected a static one")
        if size + before + after > MAX_WRITTEN:
            raise unsupported(f"mode {mode!r} with more than {MAX_WRITTEN} indices along an axis")
        index = np.pad(np.arange(size), (before, after), mode=mode)  # type: ignore[call-overload]
        x = n.b.gather(x, n.b.constant(index.astype(np.int64)), axis=axis)
    return x


@node("Gather")
def gather(n: OnnxNode) -> Any:
    """x taken at `indices` along `axis`."""
    axis = n.attr("axis", 0)
    n.b.declare_indices(n.x(1), n.dims(0)[axis])
    return n.b.gather(n.x(0), n.x(1), axis=axis)


@node("OneHot")
def one_hot(n: OnnxNode) -> Any:
    """values[1] where the index is the position along a new dimension, else values[0]."""
    b, indices = n.b, n.x(0)
    if n.type(0).dtype != I64:
        indices = b.cast(indices, dtype=I64)
    depth = int(n.scalar(1, "depth"))
    rank = n.type(0).rank + 1
    axis = n.attr("axis", -1) % rank
    count = np.array(depth, np.int64)
    negative = b.compare(indices, np.array(0, np.int64), predicate="lt")
    indices = b.select(negative, b.add(indices, count), indices)
    shape = tuple(depth if i == axis else 1 for i in range(rank))
    here = b.compare(
        b.iota(shape=shape, axis=axis, dtype=I64), b.expand_dims(indices, axis), predicate="eq"
    )
    off, on = (b.reshape(take(b, n.x(2), 0, i, i + 1), shape=()) for i in (0, 1))
    return b.select(here, on, off)


@node("DepthToSpace")
def depth_to_space(n: OnnxNode) -> Any:
    """Move blocks of channels to blocks of pixels, in DCR or CRD order."""
    b, block = n.b, n.attr("blocksize")
    rows_first = n.attr("mode", "DCR") == "DCR"
    parts = (block, block, -1) if rows_first else (-1, block, block)
    x = split(b, n.x(), 1, _channels(n, parts))
    order = (0, 3, 4, 1, 5, 2) if rows_first else (0, 1, 4, 2, 5, 3)
    return merge(b, merge(b, b.transpose(x, permutation=order), 2), 3)


def _channels(n: OnnxNode, parts: tuple[int, ...]) -> tuple[int, ...]:
    """`parts` with -1 replaced, for the (static) channels of x."""
    channels = n.type().shape[1]
    if channels is None:
        raise unsupported("a dynamic number of channels: expected a static one")
    known = -int(np.prod(parts))
    return tuple(channels // known if p == -1 else p for p in parts)


@node("SpaceToDepth")
def space_to_depth(n: OnnxNode) -> Any:
    """Move blocks of pixels to blocks of channels."""
    b, block = n.b, n.attr("blocksize")
    x = n.x()
    for axis in (3, 2):
        size = n.dims()[axis]
        blocks = -1 if isinstance(size, SymbolicSize) else size // block
        x = split(b, x, axis, (blocks, block))
    channels_last = n.attr("mode", "DCR") == "DCR"
    order = (0, 3, 5, 1, 2, 4) if channels_last else (0, 1, 3, 5, 2, 4)
    x = b.transpose(x, permutation=order)
    return merge(b, merge(b, x, 1), 1)


@node("Trilu")
def trilu(n: OnnxNode) -> Any:
    """Keep the upper or lower triangle of the last two dimensions, shifted by k; 0 elsewhere."""
    b, rank = n.b, n.type().rank
    shift = int(n.scalar(1, "k")) if n.has(1) else 0
    rows, columns = (b.iota_like(n.x(), rank - 2), b.iota_like(n.x(), rank - 1))
    edge = b.add(rows, np.array(shift, np.int64))
    keep = b.compare(columns, edge, predicate="ge" if n.attr("upper", 1) else "le")
    zero = n.number(0)
    return b.select(keep, n.x(), zero)
