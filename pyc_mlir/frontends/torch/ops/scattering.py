"""Writing at indices, and sorting: pyc.scatter and pyc.argsort under torch's rules."""

from typing import Any

import numpy as np

from pyc_mlir.dialects.types import BOOL, DTYPES, is_float
from pyc_mlir.frontends.frame.errors import unsupported
from pyc_mlir.frontends.frame.indexing import scatter_along, take_along, wrapped
from pyc_mlir.frontends.frame.shaping import expand_to, product, reshape_to, take
from pyc_mlir.frontends.frame.sizes import Extent
from pyc_mlir.frontends.torch.frame.handler import AtenCall, aten
from pyc_mlir.frontends.torch.ops.indexing import linear_index

# torch's names of reductions -> pyc.scatter's, and what leaves a number as it is.
_REDUCTIONS = {
    "add": ("add", 0), "sum": ("add", 0), "mean": ("add", 0), "prod": ("mul", 1),
    "multiply": ("mul", 1), "amax": ("max", None), "amin": ("min", None),
}  # fmt: skip


@aten("index_put.default", "_unsafe_index_put.default")
def index_put(n: AtenCall) -> Any:
    """x with values written, or added, at integer indices into dimensions side by side."""
    b, x = n.b, n.x()
    given = n.xs("indices")
    rank, dims = n.rank(), n.dims()
    if any(v is not None and b.type_of(v).dtype == BOOL for v in given):
        return _masked_put(n, given)
    places = [i for i, v in enumerate(given) if v is not None]
    if places[-1] - places[0] + 1 != len(places):
        raise unsupported("indices with a whole dimension between: expected them side by side")
    if not n.arg("accumulate", False) and all(product(b.dims(given[i])) == 1 for i in places):
        return _put_in_one_place(n, [wrapped(b, given[i], dims[i]) for i in places], places[0])
    index = linear_index(b, [given[i] for i in places], [dims[i] for i in places])
    shape, first, last = b.dims(index), places[0], places[-1] + 1
    before, after = dims[:first], dims[last:]
    values = expand_to(b, n.x("values", n.dtype), (*before, *shape, *after))
    # What is indexed goes first: [places, the rest].
    turn = (*range(first, last), *range(first), *range(last, rank))
    moved = range(first, first + len(shape))
    others = rank - len(places) + len(shape)
    turned = (*moved, *range(first), *range(first + len(shape), others))
    rows, count, width = product(dims[first:last]), product(shape), product((*before, *after))
    flat = reshape_to(b, b.transpose(x, permutation=turn), (rows, width))
    values = reshape_to(b, b.transpose(values, permutation=turned), (count, width))
    how = "add" if n.arg("accumulate", False) else "none"
    out = b.scatter(flat, reshape_to(b, index, (count,)), values, reduction=how)
    out = reshape_to(b, out, tuple(dims[i] for i in turn))
    return b.transpose(out, permutation=tuple(turn.index(i) for i in range(rank)))


def _put_in_one_place(n: AtenCall, indices: list[Any], first: int) -> Any:
    """x with one place of the dimensions from `first` on replaced, as one number of each index.

    A comparison with the place and a select: one pass over x in its own order, which can work in
    the memory of x. A scatter would bring these dimensions to the front and back again.
    """
    b, x = n.b, n.x()
    dims, last = n.dims(), first + len(indices)
    here = None
    for axis, index in enumerate(indices, first):
        ramp = b.iota_like(x, axis)
        same = b.compare(ramp, reshape_to(b, index, ()), predicate="eq")
        here = same if here is None else b.and_(here, same)
    inner = b.type_of(indices[0]).rank
    before, after = dims[:first], dims[last:]
    values = expand_to(b, n.x("values", n.dtype), (*before, *(1,) * inner, *after))
    values = reshape_to(b, values, (*before, *(1,) * len(indices), *after))
    return b.select(here, values, x)


def _masked_put(n: AtenCall, given: list[Any]) -> Any:
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
    return b.select(mask, reshape_to(b, n.x("values", n.dtype), ()), x)


@aten("scatter.src", "scatter.value", "scatter_add.default", "scatter_reduce.two",
      "scatter.reduce", "scatter.value_reduce")  # fmt: skip
def scatter(n: AtenCall) -> Any:
    """x with ``x[..., index[..., k], ...]`` replaced by, or joined with, ``src[..., k, ...]``."""
    b, x = n.b, n.x()
    if n.rank() == 0:
        raise unsupported("a scatter into a rank-0 tensor: expected rank 1 or more")
    how = n.arg("reduce", "add" if n.op == "scatter_add" else None)
    index, shape = n.x("index"), n.dims("index")
    source = n.x("value" if n.has("value") else "src", n.dtype)
    source = _shrunk(b, source, shape) if b.type_of(source).rank else expand_to(b, source, shape)

    def put(into: Any, updates: Any, reduction: str) -> Any:
        return scatter_along(b, into, index, updates, n.axis(), reduction)

    if how is None:
        return put(x, source, "none")
    if n.dtype == BOOL or (how == "mean" and not is_float(n.dtype)):
        raise unsupported(f"reduce={how} of {n.dtype}: expected numbers, and floats for a mean")
    reduction, identity = _REDUCTIONS[how]
    own = bool(n.arg("include_self", True))
    if not own:
        start = _least(n.dtype, reduction) if identity is None else identity
        x = put(x, expand_to(b, b.scalar(start, x), shape), "none")
    out = put(x, source, reduction)
    if how != "mean":
        return out
    one = expand_to(b, b.scalar(1, x), shape)
    count = put(expand_to(b, b.scalar(int(own), x), n.dims()), one, "add")
    return b.div(out, b.maximum(count, b.scalar(1, x)))


def _least(dtype: np.dtype, reduction: str) -> Any:
    """What a maximum, or a minimum, leaves as it is."""
    if is_float(dtype):
        return -np.inf if reduction == "max" else np.inf
    return np.iinfo(dtype).min if reduction == "max" else np.iinfo(dtype).max


def _shrunk(b: Any, source: Any, shape: tuple[Extent, ...]) -> Any:
    """The leading part of `source` that `shape` covers."""
    for axis, size in enumerate(shape):
        if b.dims(source)[axis] != size:
            if not isinstance(size, int):
                raise unsupported("a source that is larger than a dynamic index")
            source = take(b, source, axis, 0, size)
    return source


@aten("sort.default", "sort.stable", "topk.default", "argsort.default", "argsort.stable")
def sort(n: AtenCall) -> Any:
    """Values and their indices in order; equal ones keep theirs, NaN is the greatest."""
    b, x = n.b, n.x()
    if n.rank() == 0:
        index = b.constant(np.zeros((), np.int64))
        return index if n.op == "argsort" else (x, index)
    axis, count = n.axis("dim", -1), -1
    descending = bool(n.arg("largest", True) if n.op == "topk" else n.arg("descending", False))
    if n.op == "topk":
        count = int(n.static("k"))
    keys = b.cast(x, dtype=DTYPES["i8"]) if b.type_of(x).dtype == BOOL else x
    index = b.argsort(keys, axis=axis, descending=descending, count=count)
    return index if n.op == "argsort" else (take_along(b, x, index, axis), index)
