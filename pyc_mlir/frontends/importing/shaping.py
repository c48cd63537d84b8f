"""Reshapes and broadcasts to shapes that hold dynamic sizes, and indexing by tensors of indices.

pyc's ops name dynamic sizes by position (``-2 - d`` in reshape, -1 with `like` in broadcast_to);
these functions find the position for a `SymbolicSize`. Indices are linear ones: along an axis
(`take_along`, `scatter_along`) or of vectors (`gather_nd`, `scatter_nd`); negative ones count from
the end. All work with every builder of this folder.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.movement import END, copied
from pyc_mlir.dialects.types import I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize, Untracked, quotient


def product(extents: Sequence[Extent]) -> Extent:
    """Return the product of sizes."""
    out: Extent = 1
    for extent in extents:
        out = extent * out
    return out


def show(extents: Sequence[Extent]) -> str:
    """Format a shape for messages: ``[batch, 12, 64]``."""
    return f"[{', '.join(map(str, extents))}]"


def reshape_to(b: Any, x: Any, target: Sequence[Extent]) -> Any:
    """x under the shape `target`, where at most one entry may be -1 (inferred).

    A dynamic entry is a dimension of x, one of another value, or what remains of the others.
    """
    dims = b.dims(x)
    target = _solved(dims, target)
    free = [axis for axis, d in enumerate(dims) if isinstance(d, SymbolicSize)]
    entries: list[int] = []
    unknown = []
    for i, extent in enumerate(target):
        source = next((a for a in free if dims[a] == extent), None)
        if not isinstance(extent, SymbolicSize):
            entries.append(extent)
        elif source is not None:
            free.remove(source)
            entries.append(copied(source))
        else:
            unknown.append(i)
            entries.append(-1)
    if entries.count(-1) < 2:
        return b.reshape(x, shape=tuple(entries))
    new = [target[i] for i in unknown]
    like = b.of_size(new[0])
    if not set(new) <= set(b.dims(like)):
        like = witness(b, new)
    for i in unknown:
        entries[i] = copied(len(dims) + b.dims(like).index(target[i]))
    return b.reshape(x, like, shape=tuple(entries))


def _solved(dims: Sequence[Extent], target: Sequence[Extent]) -> tuple[Extent, ...]:
    """`target` with its -1 replaced by the size that is left over, where that is known."""
    if -1 not in target:
        return tuple(target)
    others = product([t for t in target if t != -1])
    try:
        missing = quotient(product(dims), others)
    except Untracked:
        return tuple(target)
    return tuple(missing if t == -1 else t for t in target)


def vector(b: Any, extent: Extent) -> Any:
    """i64 [0, 1, ..., extent - 1]."""
    if not isinstance(extent, SymbolicSize):
        return b.iota(shape=(extent,), axis=0, dtype=I64)
    if extent.factor == 1 and len(extent.atoms) == 1:
        return b.atom(extent.atoms[0])
    factors: list[Extent] = [extent.factor, *(SymbolicSize(1, (a,)) for a in extent.atoms)]
    flat = b.reshape(witness(b, factors), shape=(-1,))
    return b.iota(flat, shape=(-1,), axis=0, dtype=I64)


def witness(b: Any, target: Sequence[Extent]) -> Any:
    """Return an i64 tensor of shape `target`: a `like` operand."""
    out = b.constant(np.zeros((1,) * len(target), np.int64))
    for axis, extent in enumerate(target):
        out = b.add(out, b.align(vector(b, extent), axis, len(target)))
    return out


def broadcast_extents(left: Sequence[Extent], right: Sequence[Extent]) -> tuple[Extent, ...]:
    """numpy's rule for two shapes with sizes; a dynamic size wins over an unequal one."""
    rank = max(len(left), len(right))
    pairs = zip(
        [1] * (rank - len(left)) + list(left), [1] * (rank - len(right)) + list(right), strict=True
    )
    return tuple(q if p == 1 or (q != 1 and isinstance(p, SymbolicSize)) else p for p, q in pairs)


def expand_to(b: Any, x: Any, target: Sequence[Extent]) -> Any:
    """x broadcast to exactly `target`."""
    dims = b.dims(x)
    aligned = [1] * (len(target) - len(dims)) + list(dims)
    if list(target) == aligned and len(target) == len(dims):
        return x
    shape = tuple(-1 if isinstance(t, SymbolicSize) else t for t in target)
    foreign = any(
        isinstance(t, SymbolicSize) and t != have for t, have in zip(target, aligned, strict=True)
    )
    like = (witness(b, target),) if foreign else ()
    return b.broadcast_to(x, *like, shape=shape)


def merge(b: Any, x: Any, axis: int) -> Any:
    """x with dimensions `axis` and `axis + 1` as one."""
    dims = b.dims(x)
    both = product(dims[axis : axis + 2])
    return reshape_to(b, x, (*dims[:axis], both, *dims[axis + 2 :]))


def split(b: Any, x: Any, axis: int, parts: Sequence[Extent]) -> Any:
    """x with dimension `axis` as several; their product is its size, one may be -1."""
    dims = b.dims(x)
    return reshape_to(b, x, (*dims[:axis], *parts, *dims[axis + 1 :]))


def swap_last(b: Any, x: Any) -> Any:
    """x with its last two dimensions exchanged."""
    rank = b.type_of(x).rank
    return b.transpose(x, permutation=(*range(rank - 2), rank - 1, rank - 2))


def take(b: Any, x: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
    """``x[..., start:stop:step, ...]`` along one axis, by Python's rules."""
    from_, to, by = (list(v) for v in whole(b.type_of(x).rank))
    from_[axis], to[axis], by[axis] = start, stop, step
    return b.slice(x, starts=tuple(from_), stops=tuple(to), steps=tuple(by))


def window(b: Any, x: Any, axis: int, start: Extent, length: Extent, step: int = 1) -> Any:
    """`length` elements of x along an axis from `start` on, sizes that it has: a gather."""
    index = vector(b, length)
    if step != 1:
        index = b.mul(index, np.array(step, np.int64))
    return b.gather(x, index if start == 0 else b.add(index, extent_value(b, start)), axis=axis)


def cut(b: Any, x: Any, axis: int, lengths: Sequence[Extent]) -> tuple[Any, ...]:
    """Return consecutive pieces of x along an axis."""
    starts = list(accumulate(lengths, initial=0))
    pieces = []
    for i, (start, length) in enumerate(zip(starts, lengths, strict=False)):
        # The last piece is all that is left.
        known = isinstance(length, int) or i == len(lengths) - 1
        if isinstance(start, int) and known:
            stop = start + length if isinstance(length, int) else END
            pieces.append(take(b, x, axis, start, stop))
        else:
            pieces.append(window(b, x, axis, start, length))
    return tuple(pieces)


def spaced(b: Any, x: Any, axis: int, zeros: int) -> Any:
    """x with `zeros` zeros between neighbours along `axis`."""
    if not zeros or b.dims(x)[axis] == 0:
        return x
    apart = b.expand_dims(x, axis + 1)
    rank = b.type_of(apart).rank
    high = tuple(zeros if i == axis + 1 else 0 for i in range(rank))
    apart = b.pad(apart, low=(0,) * rank, high=high)
    return take(b, merge(b, apart, axis), axis, 0, -zeros)


def whole(rank: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the bounds of a slice that takes everything."""
    return (0,) * rank, (END,) * rank, (1,) * rank


def chain(b: Any, values: Sequence[Any], axis: int) -> Any:
    """Concatenate `values` as a balanced tree."""
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    return b.concat(chain(b, values[:middle], axis), chain(b, values[middle:], axis), axis=axis)


def prefixes(
    b: Any, x: Any, combine: Callable[[Any, Any], Any], axis: int, reverse: bool = False
) -> Any:
    """x[0], x[0] op x[1], ... along `axis`, in log2(n) steps (Hillis and Steele, 1986).

    combine: the earlier and the later operand of an associative op; reverse: from the end.
    """
    size, shift = b.dims(x)[axis], 1
    if isinstance(size, SymbolicSize):
        raise unsupported("running results along a dynamic dimension: expected a static one")
    while shift < size:
        last = size - shift
        both = combine(take(b, x, axis, 0, last), take(b, x, axis, shift, size))
        done = take(b, x, axis, last, size) if reverse else take(b, x, axis, 0, shift)
        x = chain(b, [both, done] if reverse else [done, both], axis)
        shift *= 2
    return x


def extent_value(b: Any, size: Extent) -> Any:
    """Return a size as a rank-0 i64."""
    return (
        b.extent(size) if isinstance(size, SymbolicSize) else b.constant(np.array(size, np.int64))
    )


def wrapped(b: Any, indices: Any, size: Extent) -> Any:
    """i64 indices from the start, for those that may count from the end."""
    indices = b.convert(indices, I64)
    negative = b.lt(indices, 0)
    return b.select(negative, b.add(indices, extent_value(b, size)), indices)


def _times(b: Any, x: Any, factor: Extent) -> Any:
    return x if factor == 1 else b.mul(x, extent_value(b, factor))


def linear_indices(b: Any, dims: Sequence[Extent]) -> Any:
    """i64 [0, 1, 2, ...] in row-major order under the shape `dims`."""
    out = b.constant(np.zeros((1,) * len(dims), np.int64))
    for axis, extent in enumerate(dims):
        place = b.align(vector(b, extent), axis, len(dims))
        out = b.add(out, _times(b, place, product(dims[axis + 1 :])))
    return out


def along(b: Any, indices: Any, dims: Sequence[Extent], axis: int) -> Any:
    """Return linear indices into a tensor of shape `dims`: [i, indices[i, j], ...] for axis 1."""
    linear = _times(b, wrapped(b, indices, dims[axis]), product(dims[axis + 1 :]))
    for other in range(len(dims)):
        if other != axis and b.dims(indices)[other] != 1:
            ramp = b.iota_like(indices, other)
            linear = b.add(linear, _times(b, ramp, product(dims[other + 1 :])))
    return linear


def _unrepeated(b: Any, x: Any, indices: Any, axis: int) -> Any:
    """Return indices without the last dimensions in which they repeat and which x has too."""
    op: Any = getattr(indices, "owner", None)
    dims, shape = b.dims(x), b.dims(indices)
    if getattr(op, "name", "") != "pyc.broadcast_to":
        return indices
    own = b.dims(op.operands[0])
    own, depth = (1,) * (len(shape) - len(own)) + own, len(shape)
    while depth > axis + 1 and own[depth - 1] == 1 and shape[depth - 1] == dims[depth - 1]:
        depth -= 1
    return expand_to(b, reshape_to(b, op.operands[0], own[:depth]), shape[:depth])


def take_along(b: Any, x: Any, indices: Any, axis: int) -> Any:
    """out[i, j, ...] = x[indices[i, j, ...], j, ...] for axis 0 (numpy's take_along_axis)."""
    indices = _unrepeated(b, x, indices, axis)
    dims, depth = b.dims(x), b.type_of(indices).rank
    linear = along(b, indices, dims[:depth], axis)
    return b.gather(_merged(b, x, depth), linear, axis=0)


def scatter_along(
    b: Any, x: Any, indices: Any, updates: Any, axis: int, reduction: str = "none"
) -> Any:
    """x with x[indices[i, j, ...], j, ...] replaced by updates[i, j, ...] for axis 0."""
    indices = _unrepeated(b, x, indices, axis)
    linear = along(b, indices, b.dims(x)[: b.type_of(indices).rank], axis)
    return _scatter_rows(b, x, linear, updates, b.type_of(indices).rank, reduction)


def _merged(b: Any, x: Any, depth: int) -> Any:
    """x with its first `depth` dimensions as one."""
    dims = b.dims(x)
    return reshape_to(b, x, (product(dims[:depth]), *dims[depth:]))


def _scatter_rows(b: Any, x: Any, linear: Any, updates: Any, depth: int, reduction: str) -> Any:
    """x with rows, which its first `depth` dimensions count, replaced, or combined with updates."""
    dims, linear = b.dims(x), b.reshape(linear, shape=(-1,))
    given = _merged(b, updates, b.type_of(updates).rank - len(dims) + depth)
    out = b.scatter(_merged(b, x, depth), linear, given, reduction=reduction)
    return reshape_to(b, out, dims)


def _linear(b: Any, indices: Any, dims: Sequence[Extent]) -> Any:
    """Return linear indices into a tensor of shape `dims` from index vectors [..., len(dims)]."""
    rank = b.type_of(indices).rank
    total = None
    for i, size in enumerate(dims):
        bounds = ((0,) * (rank - 1) + (i,), (2**63 - 1,) * (rank - 1) + (i + 1,), (1,) * rank)
        part = b.slice(indices, **dict(zip(("starts", "stops", "steps"), bounds, strict=True)))
        part = reshape_to(b, part, b.dims(indices)[:-1])
        step = _times(b, wrapped(b, part, size), product(dims[i + 1 :]))
        total = step if total is None else b.add(total, step)
    assert total is not None
    return total


def gather_nd(b: Any, x: Any, indices: Any, depth: int, batch: int = 0) -> Any:
    """out[i, j, ...] = x[indices[i, j]]: vectors of `depth` indices into the first dimensions.

    The first `batch` dimensions of both are the same, and stay.
    """
    dims, places = b.dims(x), b.dims(indices)
    linear = _linear(b, indices, dims[batch : batch + depth])
    for axis in range(batch):
        ramp = b.iota_like(linear, axis)
        linear = b.add(linear, _times(b, ramp, product(dims[axis + 1 : batch + depth])))
    rows = b.gather(_merged(b, x, batch + depth), linear, axis=0)
    return reshape_to(b, rows, (*places[:-1], *dims[batch + depth :]))


def scatter_nd(
    b: Any, x: Any, indices: Any, updates: Any, depth: int, reduction: str = "none"
) -> Any:
    """x with x[indices[i, j]] replaced by updates[i, j], or combined with it."""
    linear = _linear(b, indices, b.dims(x)[:depth])
    return _scatter_rows(b, x, linear, updates, depth, reduction)


def true_places(b: Any, mask: Any) -> list[Any]:
    """Return the places of true elements, in order: for each dimension a vector of indices."""
    dims, places = b.dims(mask), b.nonzero(b.reshape(mask, shape=(-1,)))
    rows = []
    for axis, size in enumerate(dims):
        step = product(dims[axis + 1 :])
        row = places if step == 1 else b.div(places, extent_value(b, step))
        rows.append(row if axis == 0 else b.rem(row, extent_value(b, size)))
    return rows


def top_k(b: Any, x: Any, count: Extent, axis: int, largest: bool = True) -> tuple[Any, Any]:
    """Return the `count` greatest (or least) elements along `axis`, in order, and i64 indices."""
    axis %= b.type_of(x).rank
    if isinstance(count, int):
        indices = b.argsort(x, axis=axis, descending=largest, count=count)
    else:
        indices = window(b, b.argsort(x, axis=axis, descending=largest), axis, 0, count)
    return take_along(b, x, indices, axis), indices
