"""Reading at indices: embeddings, gathers, advanced indexing; writing slices; strides."""

import math
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.types import BOOL, I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import (
    broadcast_extents,
    chain,
    expand_to,
    merge,
    product,
    reshape_to,
    take,
    true_places,
)
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize
from pyc_mlir.frontends.torch.ops.handler import AtenCall, aten, static_size, static_sizes


@aten("embedding.default")
def embedding(b: Any, weight: Any, indices: Any) -> Any:
    """Gather rows of the weights."""
    b.declare_indices(indices, b.dims(weight)[0], negative=False)
    return b.gather(weight, indices, axis=0)


@aten("index_select.default")
def index_select(n: AtenCall, x: Any) -> Any:
    """x taken at `index` along `dim`."""
    b, axis = n.b, n.axis()
    if n.rank() == 0:
        return x
    index = n.x("index")
    b.declare_indices(index, b.dims(x)[axis], negative=False)
    if b.type_of(index).rank == 0:
        index = b.reshape(index, shape=(1,))
    return b.gather(x, index, axis=axis)


@aten("gather.default")
def gather(n: AtenCall, x: Any) -> Any:
    """out[i, j, ...] = x[index[i, j, ...], j, ...] for dim 0, by linear indices into x."""
    b, rank, axis = n.b, n.rank(), n.axis()
    index = n.x("index", I64)
    if rank == 0:
        return expand_to(b, x, n.out_dims)
    dims = b.dims(x)
    b.declare_indices(index, dims[axis], negative=False)
    linear = None
    for i in range(rank):
        place = index if i == axis else b.iota_like(index, i)
        linear = _plus(b, linear, place, product(dims[i + 1 :]))
    return b.gather(b.reshape(x, shape=(-1,)), linear, axis=0)


def _plus(b: Any, total: Any, place: Any, stride: Extent) -> Any:
    """total + place * stride."""
    if stride != 1:
        step = b.extent(stride) if isinstance(stride, SymbolicSize) else np.array(stride, np.int64)
        place = b.mul(place, step)
    return place if total is None else b.add(total, place)


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(b: Any, x: Any, indices: list[Any]) -> Any:
    """numpy's advanced indexing by integers and masks: one gather of linear indices."""
    rank, dims = b.type_of(x).rank, b.dims(x)
    # A mask of several dimensions is an index into each of them.
    masks = [v is not None and b.type_of(v).dtype == BOOL for v in indices]
    groups = (true_places(b, v) if m else [v] for v, m in zip(indices, masks, strict=True))
    indices = [v for group in groups for v in group]
    places = [i for i, v in enumerate(indices) if v is not None]
    if not places:
        return x
    if len(places) == 1:
        b.declare_indices(indices[places[0]], dims[places[0]])
        return b.gather(x, indices[places[0]], axis=places[0])
    first = places[0] if places[-1] - places[0] + 1 == len(places) else 0
    rest = [i for i in range(rank) if i not in places]
    before = [i for i in rest if i < first]
    after = [i for i in rest if i not in before]
    x = b.transpose(x, permutation=(*before, *places, *after))
    linear = linear_index(b, [indices[i] for i in places], [dims[i] for i in places])
    joined = product([dims[i] for i in places])
    x = reshape_to(b, x, (*(dims[i] for i in before), joined, *(dims[i] for i in after)))
    return b.gather(x, linear, axis=len(before))


@aten("nonzero.default")
def nonzero(b: Any, x: Any) -> Any:
    """Return the indices of the elements that are not 0, [number of them, rank]."""
    if not b.dims(x):
        raise unsupported("the places of a scalar: expected a rank of 1 or more")
    mask = x if b.type_of(x).dtype == BOOL else b.compare(x, b.scalar(0, x), predicate="ne")
    return chain(b, [b.expand_dims(row, 1) for row in true_places(b, mask)], 1)


@aten("masked_select.default")
def masked_select(b: Any, x: Any, mask: Any) -> Any:
    """Return the elements where a mask is true, in order, as a vector."""
    dims = broadcast_extents(b.dims(x), b.dims(mask))
    x, mask = (b.reshape(expand_to(b, v, dims), shape=(-1,)) for v in (x, mask))
    return b.gather(x, b.nonzero(mask), axis=0)


def linear_index(b: Any, indices: list[Any], dims: list[Extent]) -> Any:
    """Broadcast indices into several dimensions as one index into their product."""
    linear = None
    for i, (value, dim) in enumerate(zip(indices, dims, strict=True)):
        b.declare_indices(value, dim)
        value = b.convert(value, I64)
        negative = b.compare(value, b.scalar(0, value), predicate="lt")
        size = b.extent(dim) if isinstance(dim, SymbolicSize) else np.array(dim, np.int64)
        value = b.select(negative, b.add(value, size), value)
        linear = _plus(b, linear, value, product(dims[i + 1 :]))
    return linear


@aten("select_scatter.default", "slice_scatter.default")
def write_slice(n: AtenCall, x: Any) -> Any:
    """x with ``x[index]`` or ``x[start:end:step]`` along `dim` replaced by `src`."""
    b, source, axis = n.b, n.x("src", n.dtype), n.axis("dim", 0)
    size = static_size(b, x, axis, "writing into a dynamic dimension")
    around = b.dims(x)[:axis], b.dims(x)[axis + 1 :]
    if n.op == "select_scatter":
        start = n.static("index") % size
        places = range(start, start + 1)
        source = reshape_to(b, source, (*around[0], 1, *around[1]))
    else:
        bounds = slice(n.static("start", 0), min(n.static("end", END), size), n.static("step", 1))
        places = range(*bounds.indices(size))
    if not places:
        return x
    source = expand_to(b, source, (*around[0], len(places), *around[1]))
    if places.step == 1:
        parts = [take(b, x, axis, 0, places.start)] if places.start else []
        parts.append(source)
        parts += [take(b, x, axis, places.stop, END)] if places.stop < size else []
        return chain(b, parts, axis)
    order = np.arange(size)
    order[list(places)] = size + np.arange(len(places))
    return b.gather(b.concat(x, source, axis=axis), b.constant(order), axis=axis)


@aten("diagonal.default")
def diagonal(n: AtenCall, x: Any) -> Any:
    """Take a diagonal of two dimensions as the last dimension: by linear index."""
    b, rank = n.b, n.rank()
    x, places, _ = _diagonal(n, x)
    return b.gather(merge(b, x, rank - 2), b.constant(places), axis=rank - 2)


@aten("diagonal_scatter.default")
def write_diagonal(n: AtenCall, x: Any) -> Any:
    """x with a diagonal of two dimensions replaced by `src`, whose last dimension it is."""
    b, source, rank = n.b, n.x("src", n.dtype), n.rank()
    x, places, turn = _diagonal(n, x)
    dims = b.dims(x)
    size = math.prod(b.type_of(x).shape[-2:])  # pyright: ignore[reportArgumentType]
    order = np.arange(size)
    order[places] = size + np.arange(len(places))
    both = b.concat(merge(b, x, rank - 2), source, axis=rank - 2)
    out = reshape_to(b, b.gather(both, b.constant(order), axis=rank - 2), dims)
    return b.transpose(out, permutation=tuple(turn.index(i) for i in range(rank)))


def _diagonal(n: AtenCall, x: Any) -> tuple[Any, np.ndarray, tuple[int, ...]]:
    """Return x with its two dimensions last, the places of the diagonal in both, the order."""
    pair = n.axis("dim1", 0), n.axis("dim2", 1)
    turn = (*(a for a in range(n.rank()) if a not in pair), *pair)
    x = n.b.transpose(x, permutation=turn)
    what = "a diagonal of dynamic dimensions"
    rows, columns = static_sizes(n.b, x, slice(-2, None), what)
    offset = n.static("offset", 0)
    count = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    first = max(offset, 0) - min(offset, 0) * columns
    return x, np.arange(count) * (columns + 1) + first, turn


@aten("copy.default")
def copy(n: AtenCall) -> Any:
    """`src` in the shape and the element type of x."""
    return expand_to(n.b, n.x("src", n.dtype), n.out_dims)


@aten("as_strided.default", "as_strided_copy.default")
def as_strided(n: AtenCall, x: Any) -> Any:
    """out[i, j, ...] = the element at storage_offset + i stride[0] + j stride[1] + ... of x."""
    b, places = n.b, _places(n)
    flat = reshape_to(b, x, (product(b.dims(x)),))
    first, count = int(places.min(initial=0)), places.size
    if np.array_equal(places.ravel(), np.arange(first, first + count)):
        return reshape_to(b, take(b, flat, 0, first, first + count), n.out_dims)
    return b.gather(flat, b.constant(places), axis=0)


@aten("as_strided_scatter.default")
def as_strided_scatter(n: AtenCall) -> Any:
    """x with the elements of `src` written where `as_strided` would read them."""
    b, places = n.b, _places(n)
    if np.unique(places).size != places.size:
        raise unsupported("places that are written twice: expected strides without overlaps")
    size = math.prod(n.metas["self"].shape)
    if np.array_equal(places.ravel(), np.arange(size)):
        return reshape_to(b, n.x("src"), n.out_dims)
    index = b.constant(places.ravel())
    flat = reshape_to(b, n.x("self"), (size, 1))
    values = reshape_to(b, n.x("src"), (places.size, 1))
    return reshape_to(b, b.scatter(flat, index, values, reduction="none"), n.out_dims)


def _places(n: AtenCall) -> np.ndarray:
    """Return the places in the memory of x, by the index of the result or of `src`."""
    x = n.metas["self"]
    if any(not isinstance(d, int) for d in n.dims()):
        raise unsupported("strides over dynamic dimensions: expected static ones")
    start = int(x.storage_offset())
    if not x.is_contiguous():
        raise unsupported("strides over a tensor that is not contiguous: expected a contiguous one")
    places = np.full((), int(n.static("storage_offset", start)) - start, np.int64)
    for size, stride in zip(n.static("size"), n.static("stride"), strict=True):
        places = places[..., None] + np.arange(size, dtype=np.int64) * stride
    limit = math.prod(x.shape)
    if places.size and (places.min() < 0 or places.max() >= limit):
        raise unsupported(f"places {places.min()} to {places.max()}: expected 0 to below {limit}")
    return places
