"""Writing at indices, sorting, and elements by their place in the order: medians, searches."""

from typing import Any

import numpy as np

from pyc_mlir.dialects.types import BOOL, DTYPES, I64, accumulator, is_float
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import (
    expand_to,
    product,
    reshape_to,
    scatter_along,
    take,
    take_along,
    top_k,
    wrapped,
)
from pyc_mlir.frontends.importing.sizes import Extent
from pyc_mlir.frontends.torch.ops.handler import AtenCall, aten
from pyc_mlir.frontends.torch.ops.indexing import linear_index

# torch's names of reductions -> pyc.scatter's, and what leaves a number as it is.
_REDUCTIONS = {
    "add": ("add", 0), "sum": ("add", 0), "mean": ("add", 0), "prod": ("mul", 1),
    "multiply": ("mul", 1), "amax": ("max", None), "amin": ("min", None),
}  # fmt: skip


@aten("index_put.default", "_unsafe_index_put.default")
def index_put(n: AtenCall, x: Any, given: list[Any], *, accumulate: bool = False) -> Any:
    """x with values written, or added, at integer indices into dimensions side by side."""
    b, rank, dims = n.b, n.rank(), n.dims()
    if any(v is not None and b.type_of(v).dtype == BOOL for v in given):
        return _masked_put(n, x, given, accumulate)
    places = [i for i, v in enumerate(given) if v is not None]
    if places[-1] - places[0] + 1 != len(places):
        raise unsupported("indices with a whole dimension between: expected them side by side")
    first, last = places[0], places[-1] + 1
    if not accumulate and all(product(b.dims(given[i])) == 1 for i in places):
        for i in places:
            b.declare_indices(given[i], dims[i])
        return _put_in_one_place(n, x, [wrapped(b, given[i], dims[i]) for i in places], first)
    index = linear_index(b, [given[i] for i in places], [dims[i] for i in places])
    shape, before, after = b.dims(index), dims[:first], dims[last:]
    values = expand_to(b, n.x("values", n.dtype), (*before, *shape, *after))
    # What is indexed goes first: [places, the rest].
    turn = (*range(first, last), *range(first), *range(last, rank))
    moved = range(first, first + len(shape))
    others = rank - len(places) + len(shape)
    turned = (*moved, *range(first), *range(first + len(shape), others))
    rows, count, width = product(dims[first:last]), product(shape), product((*before, *after))
    flat = reshape_to(b, b.transpose(x, permutation=turn), (rows, width))
    values = reshape_to(b, b.transpose(values, permutation=turned), (count, width))
    how = "add" if accumulate else "none"
    out = b.scatter(flat, reshape_to(b, index, (count,)), values, reduction=how)
    out = reshape_to(b, out, tuple(dims[i] for i in turn))
    return b.transpose(out, permutation=tuple(turn.index(i) for i in range(rank)))


def _put_in_one_place(n: AtenCall, x: Any, indices: list[Any], first: int) -> Any:
    """x with one place of the dimensions from `first` on replaced, as one number of each index.

    A comparison with the place and a select: one pass over x in its own order, which can work in
    the memory of x. A scatter would bring these dimensions to the front and back again.
    """
    b, dims, last, here = n.b, n.dims(), first + len(indices), None
    for axis, index in enumerate(indices, first):
        ramp = b.iota_like(x, axis)
        same = b.compare(ramp, reshape_to(b, index, ()), predicate="eq")
        here = same if here is None else b.and_(here, same)
    inner = b.type_of(indices[0]).rank
    before, after = dims[:first], dims[last:]
    values = expand_to(b, n.x("values", n.dtype), (*before, *(1,) * inner, *after))
    values = reshape_to(b, values, (*before, *(1,) * len(indices), *after))
    return b.select(here, values, x)


def _masked_put(n: AtenCall, x: Any, given: list[Any], accumulate: bool) -> Any:
    """x with one value wherever a mask of its leading dimensions holds."""
    b, mask = n.b, given[0]
    if len(given) != 1 or product(n.dims("values")) != 1 or accumulate:
        raise unsupported(
            "a boolean mask with several values, whose places depend on the data: expected one "
            "value; use `torch.where`"
        )
    dims = b.dims(mask)
    mask = reshape_to(b, mask, (*dims, *(1,) * (n.rank() - len(dims))))
    return b.select(mask, reshape_to(b, n.x("values", n.dtype), ()), x)


@aten("scatter.src", "scatter.value", "scatter_add.default", "scatter_reduce.two",
      "scatter.reduce", "scatter.value_reduce")  # fmt: skip
def scatter(n: AtenCall, x: Any, *, reduce: str | None, include_self: bool = True) -> Any:
    """x with ``x[..., index[..., k], ...]`` replaced by, or joined with, ``src[..., k, ...]``."""
    b = n.b
    if n.rank() == 0:
        raise unsupported("a scatter into a rank-0 tensor: expected rank 1 or more")
    how = "add" if n.op == "scatter_add" else reduce
    index, shape = n.x("index"), n.dims("index")
    b.declare_indices(index, n.dims()[n.axis()], negative=False)
    source = n.x("value" if n.has("value") else "src", n.dtype)
    source = _shrunk(b, source, shape) if b.type_of(source).rank else expand_to(b, source, shape)

    def put(into: Any, updates: Any, reduction: str) -> Any:
        return scatter_along(b, into, index, updates, n.axis(), reduction)

    if how is None:
        return put(x, source, "none")
    if n.dtype == BOOL or (how == "mean" and not is_float(n.dtype)):
        raise unsupported(f"reduce={how} of {n.dtype}: expected numbers, and floats for a mean")
    reduction, identity = _REDUCTIONS[how]
    if not include_self:
        start = _least(n.dtype, reduction) if identity is None else identity
        x = put(x, expand_to(b, b.scalar(start, x), shape), "none")
    out = put(x, source, reduction)
    if how != "mean":
        return out
    one = expand_to(b, b.scalar(1, x), shape)
    count = put(expand_to(b, b.scalar(int(include_self), x), n.dims()), one, "add")
    return b.div(out, b.maximum(count, b.scalar(1, x)))


def _least(dtype: np.dtype, reduction: str) -> Any:
    """Return the neutral element of a maximum or minimum."""
    if is_float(dtype):
        return -np.inf if reduction == "max" else np.inf
    return np.iinfo(dtype).min if reduction == "max" else np.iinfo(dtype).max


def _shrunk(b: Any, source: Any, shape: tuple[Extent, ...]) -> Any:
    """Return the leading part of `source` that `shape` covers."""
    for axis, size in enumerate(shape):
        if b.dims(source)[axis] != size:
            if not isinstance(size, int):
                raise unsupported("a source that is larger than a dynamic index")
            source = take(b, source, axis, 0, size)
    return source


@aten("masked_scatter.default")
def masked_scatter(n: AtenCall, x: Any, mask: Any) -> Any:
    """x with the elements under the mask replaced by those of `source` in order."""
    b = n.b
    mask = expand_to(b, b.convert(mask, BOOL), n.out_dims)
    x = expand_to(b, x, n.out_dims)
    ones = b.cast(b.reshape(mask, shape=(-1,)), dtype=I64)
    rank = b.cumulative(ones, axis=0, reduction="add")
    place = reshape_to(b, b.sub(rank, b.scalar(1, rank)), n.out_dims)
    source = b.reshape(n.x("source", n.dtype), shape=(-1,))
    return b.select(mask, b.gather(source, b.maximum(place, b.scalar(0, place)), axis=0), x)


@aten("histc.default")
def histogram(n: AtenCall, x: Any, *, bins: int = 100) -> Any:
    """Count the elements in each of `bins` equal parts of [min, max]; none outside of it.

    Of min = max, the least and the greatest element, or one to each side where those are equal.
    """
    b, dtype = n.b, n.dtype
    low, high = float(n.static("min", 0)), float(n.static("max", 0))
    x = b.convert(b.reshape(x, shape=(-1,)), accumulator(dtype))
    first, last = b.scalar(low, x), b.scalar(high, x)
    if low == high:
        first, last = b.reduce_min(x, axes=(0,)), b.reduce_max(x, axes=(0,))
        same, one = b.compare(first, last, predicate="eq"), b.scalar(1, x)
        first, last = (
            b.select(same, moved, end)
            for moved, end in ((b.sub(first, one), first), (b.add(last, one), last))
        )
    width = b.sub(last, first)
    place = b.div(b.mul(b.sub(x, first), b.scalar(bins, x)), width)
    place = b.minimum(b.cast(b.floor(place), dtype=I64), b.constant(np.array(bins - 1)))
    inside = b.and_(b.compare(x, first, predicate="ge"), b.compare(x, last, predicate="le"))
    # Updates of rows that there are not are dropped.
    place = b.select(inside, place, b.constant(np.array(bins)))
    ones = expand_to(b, b.constant(np.ones((), accumulator(dtype))), b.dims(x))
    none = b.constant(np.zeros(bins, accumulator(dtype)))
    return b.convert(b.scatter(none, place, ones, reduction="add"), dtype)


@aten("sort.default", "sort.stable", "topk.default", "argsort.default", "argsort.stable")
def sort(n: AtenCall, x: Any, *, descending: bool = False, largest: bool = True) -> Any:
    """Sort values and their indices; equal ones keep their order, NaN is the greatest."""
    b = n.b
    if n.rank() == 0:
        index = b.constant(np.zeros((), np.int64))
        return index if n.op == "argsort" else (x, index)
    axis = n.axis("dim", -1)
    keys = b.cast(x, dtype=DTYPES["i8"]) if b.type_of(x).dtype == BOOL else x
    down = bool(largest if n.op == "topk" else descending)
    index = top_k(b, keys, n.arg("k", -1), axis, down)[1]
    return index if n.op == "argsort" else (take_along(b, x, index, axis), index)


@aten("median.default", "nanmedian.default")
def median(n: AtenCall, x: Any) -> Any:
    """Build the lower median of all elements; NaN if any is, without them for nanmedian."""
    return n.b.squeeze(_median(n, n.b.reshape(x, shape=(-1,)), 0)[0], 0)


@aten("median.dim", "nanmedian.dim", "kthvalue.default")
def ranked(n: AtenCall, x: Any) -> Any:
    """Build the lower median, or the k-th smallest element, along `dim`, and its index.

    NaN is the greatest number. A median is the first NaN if there is one.
    """
    b = n.b
    if not n.rank():
        return x, b.constant(np.zeros((), np.int64))
    axis = n.axis("dim", -1)
    if n.op == "kthvalue":
        order = b.argsort(x, axis=axis, descending=False, count=int(n.static("k")))
        found = _at_end(b, x, order, axis)
    else:
        found = _median(n, x, axis)
    return tuple(reshape_to(b, v, n.out_dims) for v in found)


def _at_end(b: Any, x: Any, order: Any, axis: int) -> tuple[Any, Any]:
    """Return the element of x, with size 1 along `axis`, whose index is last in `order`."""
    last = b.constant(np.array([-1], np.int64))
    index = b.gather(order, b.add(last, b.size(order, axis)), axis=axis)
    return take_along(b, x, index, axis), index


def _median(n: AtenCall, x: Any, axis: int) -> tuple[Any, Any]:
    b, (size, dtype) = n.b, (n.b.type_of(x).shape[axis], n.b.type_of(x).dtype)
    if not size:
        raise unsupported(f"a median of {size or 'a dynamic number of'} elements: expected some")
    middle = (size - 1) // 2
    if not is_float(dtype) or n.op == "median":
        order = b.argsort(x, axis=axis, descending=False, count=middle + 1)
        value, index = _at_end(b, x, order, axis)
    if not is_float(dtype):
        return value, index
    nans = b.cast(b.compare(x, x, predicate="ne"), dtype=I64)
    count = b.reduce_sum(nans, axes=(axis,), keepdims=True)
    none = b.scalar(0, count)
    if n.op == "nanmedian":
        order = b.argsort(x, axis=axis, descending=False, count=-1)
        left = b.sub(b.scalar(size - 1, count), count)
        place = b.maximum(b.div(left, b.scalar(2, count)), none)
        index = take_along(b, order, place, axis)
    else:
        first = b.argmax(nans, axis=axis, keepdims=True)
        index = b.select(b.compare(count, none, predicate="eq"), index, first)
    return take_along(b, x, index, axis), index


@aten("searchsorted.Tensor", "searchsorted.Scalar", "bucketize.Tensor", "bucketize.Scalar")
def search(n: AtenCall) -> Any:
    """Count the elements of the sorted last dimension below each value (right: or equal).

    Counted, not searched for: the sequences that programs search are short.
    """
    b = n.b
    name = "boundaries" if n.op == "bucketize" else "sorted_sequence"
    dtype = n.common_dtype(name, "self")
    edges, values = n.x(name, dtype), n.x("self", dtype)
    if n.has("sorter"):
        edges = take_along(b, edges, n.x("sorter"), b.type_of(edges).rank - 1)
    right = bool(n.arg("right", False)) or n.arg("side") == "right"
    rank = b.type_of(edges).rank
    one = b.expand_dims(values, b.type_of(values).rank)
    edges = b.expand_dims(edges, rank - 1) if rank > 1 else edges
    below = b.compare(edges, one, predicate="le" if right else "lt")
    if is_float(dtype):
        # Every number is below NaN.
        below = b.or_(below, b.compare(one, one, predicate="ne"))
    return b.reduce_sum(b.cast(below, dtype=n.dtype), axes=(b.type_of(below).rank - 1,))
