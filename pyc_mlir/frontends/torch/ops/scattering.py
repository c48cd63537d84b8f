"""Writing at indices, and sorting: compositions whose work grows with the product of two sizes.

A write of n values into an axis of `size` compares each place with each index, a sort each element
with each other one. That is exact, and fits what models do: experts, queries of detectors,
gradients of embeddings. Beyond `_MOST` comparisons it is refused.
"""

from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.ops.movement import START as BEGIN
from pyc_mlir.dialects.types import BOOL, DTYPES, I64, is_float
from pyc_mlir.frontends.frame.errors import unsupported
from pyc_mlir.frontends.frame.shaping import expand_to, product, reshape_to, take, whole
from pyc_mlir.frontends.frame.sizes import Extent
from pyc_mlir.frontends.torch.frame.handler import Node, aten
from pyc_mlir.frontends.torch.ops.indexing import linear_index

_MOST = 1 << 28


def _require_affordable(*extents: Extent) -> None:
    count = product(extents)
    if isinstance(count, int) and count > _MOST:
        raise unsupported(f"{count} comparisons of places with indices: expected at most {_MOST}")


@aten("index_put.default", "_unsafe_index_put.default")
def index_put(n: Node) -> Any:
    """x with values written, or added, at integer indices into its leading dimensions."""
    b, x = n.b, n.x()
    given = n.xs("indices")
    rank, dims = n.rank(), n.dims()
    if any(v is not None and b.type_of(v).dtype == BOOL for v in given):
        return _masked_put(n, given)
    places = [i for i, v in enumerate(given) if v is not None]
    if places[-1] - places[0] + 1 != len(places):
        raise unsupported("indices with a whole dimension between: expected them side by side")
    index = linear_index(b, [given[i] for i in places], [dims[i] for i in places])
    shape, first, last = b.dims(index), places[0], places[-1] + 1
    before, after = dims[:first], dims[last:]
    values = expand_to(b, n.x("values", n.dtype), (*before, *shape, *after))
    # What is indexed goes first: [places, the rest].
    turn = (*range(first, last), *range(first), *range(last, rank))
    moved = range(first, first + len(shape))
    turn_values = (
        *moved,
        *range(first),
        *range(first + len(shape), rank - len(places) + len(shape)),
    )
    rows, count, width = product(dims[first:last]), product(shape), product((*before, *after))
    flat = reshape_to(b, b.transpose(x, permutation=turn), (rows, width))
    values = reshape_to(b, b.transpose(values, permutation=turn_values), (count, width))
    _require_affordable(rows, count)
    out = _put_rows(n, flat, reshape_to(b, index, (count,)), values)
    out = reshape_to(b, out, tuple(dims[i] for i in turn))
    return b.transpose(out, permutation=tuple(turn.index(i) for i in range(rank)))


def _masked_put(n: Node, given: list[Any]) -> Any:
    """x with one value wherever a mask of its leading dimensions holds."""
    b, x = n.b, n.x()
    mask = given[0]
    if len(given) != 1 or product(n.dims("values")) != 1 or n.arg("accumulate", False):
        raise unsupported(
            "a boolean mask with several values, whose places depend on the data: expected one "
            "value; use `torch.where`"
        )
    dims = b.dims(mask)
    mask = reshape_to(b, mask, (*dims, *(1,) * (n.rank() - len(dims))))
    value = reshape_to(b, n.x("values", n.dtype), ())
    return b.select(mask, value, x)


def _put_rows(n: Node, x: Any, index: Any, values: Any) -> Any:
    """x [rows, width] with values [count, width] at index [count]; the last one counts."""
    b = n.b
    places = b.reshape(b.iota_like(x, 0), shape=(-1, 1))
    here = b.compare(places, b.reshape(index, shape=(1, -1)), predicate="eq")
    if n.arg("accumulate", False):
        return b.add(x, b.matmul(b.cast(here, dtype=n.dtype), values))
    last, found = _last(b, here)
    return b.select(b.expand_dims(found, 1), b.gather(values, last, axis=0), x)


def _last(b: Any, here: Any) -> tuple[Any, Any]:
    """Along the last axis of an i1 tensor: the index of the last true one, and whether any is."""
    axis = b.type_of(here).rank - 1
    numbers = b.cast(here, dtype=DTYPES["i8"])
    starts, stops, steps = (list(v) for v in whole(axis + 1))
    starts[axis], stops[axis], steps[axis] = END, BEGIN, -1
    turned = b.slice(numbers, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))
    size = b.size(here, axis)
    first = b.argmax(turned, axis=axis)
    last = b.sub(b.sub(size, b.constant(np.array(1, np.int64))), first)
    found = b.reduce_max(numbers, axes=(axis,))
    return last, b.compare(found, b.scalar(0, found), predicate="gt")


@aten("scatter.src", "scatter.value", "scatter_add.default", "scatter_reduce.two",
      "scatter.reduce")  # fmt: skip
def scatter(n: Node) -> Any:
    """x with ``x[..., index[..., k], ...]`` replaced by, or joined with, ``src[..., k, ...]``."""
    b, x, axis = n.b, n.x(), n.axis()
    if n.rank() == 0:
        raise unsupported("a scatter into a rank-0 tensor: expected rank 1 or more")
    how = n.arg("reduce", "add" if n.op == "scatter_add" else None)
    index, rank = n.x("index"), n.rank()
    others = [i for i in range(rank) if i != axis]
    shape = n.dims("index")
    source = n.x("value" if n.has("value") else "src", n.dtype)
    source = _shrunk(b, source, shape) if b.type_of(source).rank else expand_to(b, source, shape)
    high = _missing(n.dims(), shape, axis)
    if any(high):
        # -1 is no place.
        low = (0,) * rank
        index = b.pad(index, low=low, high=high, value=-1.0)
        source = b.pad(source, low=low, high=high)
        shape = b.dims(index)
    turn = (*others, axis)
    x, index, source = (b.transpose(v, permutation=turn) for v in (x, index, source))
    _require_affordable(product(shape), n.dims()[axis])
    places = b.reshape(b.iota_like(x, rank - 1), shape=(*(1,) * (rank - 1), -1, 1))
    here = b.compare(places, b.expand_dims(b.convert(index, I64), rank - 1), predicate="eq")
    out = _joined(n, x, source, here, how)
    back = tuple(turn.index(i) for i in range(rank))
    return b.transpose(out, permutation=back)


def _missing(dims: tuple[Extent, ...], shape: tuple[Extent, ...], axis: int) -> tuple[int, ...]:
    """How much shorter an index is than x along the dimensions other than `axis`."""
    high = []
    for i, (size, have) in enumerate(zip(dims, shape, strict=True)):
        if i == axis or size == have:
            high.append(0)
        elif isinstance(size, int) and isinstance(have, int):
            high.append(size - have)
        else:
            raise unsupported("an index that is smaller than x in a dynamic dimension")
    return tuple(high)


def _shrunk(b: Any, source: Any, shape: tuple[Extent, ...]) -> Any:
    """The leading part of `source` that `shape` covers."""
    for axis, size in enumerate(shape):
        if b.dims(source)[axis] != size:
            if not isinstance(size, int):
                raise unsupported("a source that is larger than a dynamic index")
            source = take(b, source, axis, 0, size)
    return source


def _joined(n: Node, x: Any, source: Any, here: Any, how: str | None) -> Any:
    """x [..., size] with source [..., count] where `here` [..., size, count] holds."""
    b, axis = n.b, n.rank()
    spread = b.expand_dims(source, axis - 1)
    if how is None:
        last, found = _last(b, here)
        return b.select(found, _along(b, source, last), x)
    identity = {"add": 0, "sum": 0, "mean": 0, "prod": 1, "multiply": 1, "amax": None, "amin": None}
    if how == "mean" and not is_float(n.dtype):
        raise unsupported("a mean of integers: expected floats")
    if n.dtype == BOOL:
        raise unsupported("a reduction of booleans: expected numbers")
    low = identity[how]
    if low is None:
        info = np.finfo if is_float(n.dtype) else np.iinfo
        bound = info(n.dtype).min if how == "amax" else info(n.dtype).max
        low = (-np.inf if how == "amax" else np.inf) if is_float(n.dtype) else bound
    parts = b.select(here, spread, b.scalar(low, source))
    reduce = {
        "add": b.reduce_sum, "sum": b.reduce_sum, "mean": b.reduce_sum, "prod": b.reduce_prod,
        "multiply": b.reduce_prod, "amax": b.reduce_max, "amin": b.reduce_min,
    }[how]  # fmt: skip
    total = reduce(parts, axes=(axis,))
    if how == "mean":
        count = b.reduce_sum(b.cast(here, dtype=n.dtype), axes=(axis,))
        own = b.scalar(1 if n.arg("include_self", True) else 0, x)
        total = b.add(total, b.mul(x, own))
        counted = b.add(count, own)
        none = b.compare(count, b.scalar(0, x), predicate="eq")
        return b.select(none, x, b.div(total, b.maximum(counted, b.scalar(1, x))))
    if n.arg("include_self", True):
        join = {"add": b.add, "sum": b.add, "prod": b.mul, "multiply": b.mul}
        join |= {"amax": b.maximum, "amin": b.minimum}
        return join[how](x, total)
    _, found = _last(b, here)
    return b.select(found, total, x)


def _along(b: Any, x: Any, index: Any) -> Any:
    """x taken at `index` along the last axis, by linear indices."""
    dims = b.dims(x)
    rank = len(dims)
    linear = index
    for axis in range(rank - 1):
        stride = product(dims[axis + 1 :])
        if not isinstance(stride, int):
            stride = b.extent(stride)
        else:
            stride = b.constant(np.array(stride, np.int64))
        linear = b.add(linear, b.mul(b.iota_like(index, axis), stride))
    return b.gather(b.reshape(x, shape=(-1,)), linear, axis=0)


@aten("sort.default", "sort.stable", "topk.default", "argsort.default", "argsort.stable")
def sort(n: Node) -> Any:
    """Values and their indices in order; equal ones keep theirs, NaN is the greatest.

    An element's place is the number of elements before it.
    """
    b, x, rank = n.b, n.x(), n.rank()
    if rank == 0:
        index = b.constant(np.zeros((), np.int64))
        return index if n.op == "argsort" else (x, index)
    axis = n.axis("dim", -1)
    descends = n.arg("largest", True) if n.op == "topk" else n.arg("descending", False)
    size = n.dims()[axis]
    _require_affordable(*n.dims(), size)
    last = rank - 1
    turn = list(range(rank))
    turn[axis], turn[last] = turn[last], turn[axis]
    x = b.transpose(x, permutation=tuple(turn))
    keys = b.cast(x, dtype=DTYPES["i8"]) if b.type_of(x).dtype == BOOL else x
    place = _places(b, keys, descends)
    slots = b.reshape(b.iota_like(x, last), shape=(*(1,) * last, -1, 1))
    if n.op == "topk":
        k = n.arg("k")
        if not isinstance(k, int):
            raise unsupported("a dynamic `k`: expected a static one")
        slots = take(b, slots, last, 0, k)
    index = b.argmax(
        b.cast(b.compare(slots, b.expand_dims(place, last), predicate="eq"), dtype=DTYPES["i8"]),
        axis=rank,
    )
    values = _along(b, x, index)
    values, index = (b.transpose(v, permutation=tuple(turn)) for v in (values, index))
    return index if n.op == "argsort" else (values, index)


def _places(b: Any, x: Any, descends: bool) -> Any:
    """For each element along the last axis, how many come before it."""
    last = b.type_of(x).rank - 1
    mine, other = b.expand_dims(x, last + 1), b.expand_dims(x, last)
    before = b.compare(other, mine, predicate="gt" if descends else "lt")
    same = b.compare(other, mine, predicate="eq")
    if is_float(b.type_of(x).dtype):
        lost = [b.compare(v, v, predicate="ne") for v in (mine, other)]
        one, both = (lost[1], lost[0]) if descends else (lost[0], lost[1])
        before = b.or_(before, b.and_(one, b.not_(both)))
        same = b.or_(same, b.and_(*lost))
    index = b.iota_like(x, last)
    earlier = b.compare(b.expand_dims(index, last), b.expand_dims(index, last + 1), predicate="lt")
    before = b.or_(before, b.and_(same, earlier))
    return b.reduce_sum(b.cast(before, dtype=I64), axes=(last + 1,))
