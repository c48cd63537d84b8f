"""Reshapes and broadcasts to shapes that hold dynamic sizes; shared by the handlers.

pyc's ops name dynamic sizes by position (``-2 - d`` in reshape, -1 with `like` in broadcast_to);
these functions find the position for a `SymbolicSize`. They work with every builder of `graph`.
"""

from collections.abc import Callable, Sequence
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

    A dynamic entry must be a dimension of x or the only one that is not; else unsupported.
    """
    dims = b.dims(x)
    target = _solved(dims, target)
    free = [axis for axis, d in enumerate(dims) if isinstance(d, SymbolicSize)]
    entries, unknown = [], []
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
    if entries.count(-1) > 1:
        return _gathered(b, x, dims, target)
    return b.reshape(x, shape=tuple(entries))


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


def _gathered(b: Any, x: Any, dims: Sequence[Extent], target: Sequence[Extent]) -> Any:
    """Reshape to several new dynamic sizes: gather each element by its linear index."""
    if -1 in target or product(dims) != product(target):
        raise unsupported(
            f"reshape from {show(dims)} to {show(target)}: expected at most one dynamic size "
            "that is no dimension of the operand"
        )
    index = linear_index(b, target)
    return b.gather(b.reshape(x, shape=(-1,)), index, axis=0)


def linear_index(b: Any, target: Sequence[Extent]) -> Any:
    """i64 of shape `target`, counting 0, 1, 2, ... in row-major order."""
    index = b.constant(np.zeros((1,) * len(target), np.int64))
    for axis, extent in enumerate(target):
        ramp = b.align(vector(b, extent), axis, len(target))
        stride = product(target[axis + 1 :])
        step = b.extent(stride) if isinstance(stride, SymbolicSize) else np.array(stride, np.int64)
        index = b.add(index, b.mul(ramp, step))
    return index


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
