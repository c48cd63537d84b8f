"""Indexing with tensors of indices, by linear indices; shared by the handlers.

Along an axis (`take_along`, `scatter_along`) or by vectors of indices (`gather_nd`, `scatter_nd`).
Negative indices count from the end. They work with every builder of this folder.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import I64
from pyc_mlir.frontends.importing.shaping import product, reshape_to, vector
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize


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


def take_along(b: Any, x: Any, indices: Any, axis: int) -> Any:
    """out[i, j, ...] = x[indices[i, j, ...], j, ...] for axis 0 (numpy's take_along_axis)."""
    linear = along(b, indices, b.dims(x), axis)
    return b.gather(b.reshape(x, shape=(-1,)), linear, axis=0)


def scatter_along(
    b: Any, x: Any, indices: Any, updates: Any, axis: int, reduction: str = "none"
) -> Any:
    """x with x[indices[i, j, ...], j, ...] replaced by updates[i, j, ...] for axis 0."""
    dims = b.dims(x)
    linear = b.reshape(along(b, indices, dims, axis), shape=(-1,))
    flat = [b.reshape(v, shape=(-1,)) for v in (x, updates)]
    return reshape_to(b, b.scatter(flat[0], linear, flat[1], reduction=reduction), dims)


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
    rest = dims[batch + depth :]
    rows = reshape_to(b, x, (product(dims[: batch + depth]), *rest))
    return reshape_to(b, b.gather(rows, linear, axis=0), (*places[:-1], *rest))


def scatter_nd(
    b: Any, x: Any, indices: Any, updates: Any, depth: int, reduction: str = "none"
) -> Any:
    """x with x[indices[i, j]] replaced by updates[i, j], or combined with it."""
    dims, places = b.dims(x), b.dims(indices)
    linear = b.reshape(_linear(b, indices, dims[:depth]), shape=(-1,))
    rest = dims[depth:]
    rows = reshape_to(b, x, (product(dims[:depth]), *rest))
    given = reshape_to(b, updates, (product(places[:-1]), *rest))
    return reshape_to(b, b.scatter(rows, linear, given, reduction=reduction), dims)


def top_k(b: Any, x: Any, count: int, axis: int, largest: bool = True) -> tuple[Any, Any]:
    """Return the `count` greatest (or least) elements along `axis`, in order, and i64 indices."""
    axis %= b.type_of(x).rank
    indices = b.argsort(x, axis=axis, descending=largest, count=count)
    return take_along(b, x, indices, axis), indices
