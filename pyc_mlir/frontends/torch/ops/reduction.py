"""Reductions, running results, and positions of extrema."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pyc_mlir.dialects import functions
from pyc_mlir.dialects.types import BOOL, DTYPES, accumulator, is_float
from pyc_mlir.frontends.importing.shaping import prefixes
from pyc_mlir.frontends.torch.shared.handler import AtenCall, aten

_I8 = DTYPES["i8"]


@aten("sum.default", "sum.dim_IntList", "prod.default", "prod.dim_int")
def total(n: AtenCall) -> Any:
    """Build the sum or product, in the element type of the result."""
    reduce = n.b.reduce_sum if n.op == "sum" else n.b.reduce_prod
    return reduce(n.x("self", n.dtype), axes=n.axes(), keepdims=_keeps(n))


def _keeps(n: AtenCall) -> bool:
    """Return whether reduced dimensions stay with size 1; a rank-0 operand has none."""
    return bool(n.arg("keepdim", False)) and n.rank() > 0


@aten("mean.default", "mean.dim")
def mean(n: AtenCall) -> Any:
    """pyc.reduce_mean."""
    return n.b.reduce_mean(n.x("self", n.dtype), axes=n.axes(), keepdims=_keeps(n))


@aten("amax.default", "amin.default", "max.default", "min.default")
def extremum(n: AtenCall) -> Any:
    """Build the greatest or smallest element; NaN if any is."""
    b, x = n.b, n.x()
    if b.type_of(x).dtype == BOOL:
        x = b.cast(x, dtype=_I8)
    reduce = b.reduce_max if n.op in ("amax", "max") else b.reduce_min
    return b.convert(reduce(x, axes=n.axes(), keepdims=_keeps(n)), n.dtype)


@aten("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def some(n: AtenCall) -> Any:
    """Build whether any, or all, elements are not zero."""
    b = n.b
    x = b.cast(n.x("self", BOOL), dtype=_I8)
    reduce = b.reduce_max if n.op == "any" else b.reduce_min
    found = reduce(x, axes=n.axes(), keepdims=_keeps(n))
    return b.compare(found, b.scalar(0, found), predicate="gt")


@aten("argmax.default", "argmin.default")
def position(n: AtenCall) -> Any:
    """Build the index of the first extremum along `dim`, or in the flattened tensor."""
    b, x = n.b, _ordered(n)
    if n.rank() == 0:
        return b.constant(np.zeros((), np.int64))
    if not n.has("dim"):
        flat = b.argmax(b.reshape(x, shape=(-1,)), axis=0)
        return flat if not _keeps(n) else b.reshape(flat, shape=(1,) * n.rank())
    return b.argmax(x, axis=n.axis(), keepdims=_keeps(n))


def _ordered(n: AtenCall) -> Any:
    """x so that its maxima are what is looked for: of a minimum, -x (~x for integers)."""
    b, x = n.b, n.x()
    dtype = b.type_of(x).dtype
    if dtype == BOOL:
        x = b.cast(x, dtype=_I8)
    if n.op not in ("argmin", "min"):
        return x
    return b.neg(x) if is_float(dtype) else b.not_(x)


@aten("max.dim", "min.dim")
def extremum_and_position(n: AtenCall) -> Any:
    """Build the extremum along `dim` and its first index."""
    b, x = n.b, n.x()
    if n.rank() == 0:
        return x, b.constant(np.zeros((), np.int64))
    axis, keeps = n.axis(), _keeps(n)
    if n.dtype == BOOL:
        x = b.cast(x, dtype=_I8)
    reduce = b.reduce_max if n.op == "max" else b.reduce_min
    values = b.convert(reduce(x, axes=(axis,), keepdims=keeps), n.dtype)
    return values, b.argmax(_ordered(n), axis=axis, keepdims=keeps)


@aten("var.correction", "var_mean.correction", "std.correction", "std_mean.correction")
def variance(n: AtenCall) -> Any:
    """sum((x - mean)^2) / max(0, count - correction), its root for std; with the mean."""
    b, axes, keeps = n.b, n.axes(), _keeps(n)
    dtype = n.dtype
    x = b.convert(n.x(), accumulator(dtype))
    mean = b.reduce_mean(x, axes=axes, keepdims=True)
    centered = b.sub(x, mean)
    squares = b.reduce_sum(b.mul(centered, centered), axes=axes, keepdims=keeps)
    correction = n.arguments.get("correction")
    correction = 1 if correction is None else correction
    count = b.sub(b.count(x, axes), b.scalar(correction, x)) if axes else b.scalar(-correction, x)
    out = b.div(squares, b.maximum(count, b.scalar(0, x)))
    out = b.sqrt(out) if n.op.startswith("std") else out
    out = b.convert(out, dtype)
    if not n.op.endswith("mean"):
        return out
    return out, b.convert(b.reduce_mean(x, axes=axes, keepdims=keeps), dtype)


@aten("cumsum.default", "cumprod.default")
def running(n: AtenCall) -> Any:
    """Build running sums or products along `dim`."""
    x = n.x("self", n.dtype)
    if not n.rank():
        return x
    if n.type().shape[n.axis()] is None and n.op == "cumsum":
        return _triangular(n.b, x, n.axis())
    return scan(n.b, x, n.axis(), n.b.add if n.op == "cumsum" else n.b.mul)


def _triangular(b: Any, x: Any, axis: int) -> Any:
    """Build running sums along a dynamic axis: each result adds the elements up to its own."""
    last = b.type_of(x).rank - 1
    turn = list(range(last + 1))
    turn[axis], turn[last] = turn[last], turn[axis]
    x = b.transpose(x, permutation=tuple(turn))
    ramp = b.reshape(b.iota_like(x, last), shape=(-1,))
    rows, columns = b.expand_dims(ramp, 1), b.expand_dims(ramp, 0)
    upto = b.compare(rows, columns, predicate="le")
    dtype = b.type_of(x).dtype
    if is_float(dtype):
        # Not a product with ones and zeros, which makes NaN of infinities.
        wide = b.expand_dims(b.convert(x, accumulator(dtype)), last + 1)
        out = b.reduce_sum(b.select(upto, wide, b.scalar(0, wide)), axes=(last,))
    else:
        out = b.matmul(x, b.cast(upto, dtype=dtype))
    return b.transpose(b.convert(out, dtype), permutation=tuple(turn))


def scan(b: Any, x: Any, axis: int, op: Callable[[Any, Any], Any]) -> Any:
    """out[i] = x[0] op ... op x[i] along `axis`, which must be static."""
    dtype = b.type_of(x).dtype
    return b.convert(prefixes(b, b.convert(x, accumulator(dtype)), op, axis), dtype)


@aten("linalg_vector_norm.default")
def vector_norm(n: AtenCall) -> Any:
    """out = (sum of |x|^ord)^(1/ord); the greatest or smallest |x| for infinite orders."""
    b, order = n.b, n.static("ord", 2)
    dtype = n.dtype
    x = b.abs(b.convert(n.x("self", dtype), accumulator(dtype)))
    axes, keeps = n.axes(), _keeps(n)
    if order == math.inf or order == -math.inf:
        out = (b.reduce_max if order > 0 else b.reduce_min)(x, axes=axes, keepdims=keeps)
    elif order == 0:
        set_ = b.convert(b.compare(x, b.scalar(0, x), predicate="ne"), b.type_of(x).dtype)
        out = b.reduce_sum(set_, axes=axes, keepdims=keeps)
    elif order == 1:
        out = b.reduce_sum(x, axes=axes, keepdims=keeps)
    elif order == 2:
        out = b.sqrt(b.reduce_sum(b.mul(x, x), axes=axes, keepdims=keeps))
    else:
        powers = b.reduce_sum(b.pow(x, b.scalar(order, x)), axes=axes, keepdims=keeps)
        out = b.pow(powers, b.scalar(1 / order, x))
    return b.convert(out, dtype)


@aten("logsumexp.default")
def logsumexp(n: AtenCall) -> Any:
    """out = m + ln(sum e^(x - m)) with m = max(x), or 0 where that is infinite."""
    b, axes, dtype = n.b, n.axes(), n.dtype
    x = b.convert(n.x("self", dtype), accumulator(dtype))
    top = b.reduce_max(x, axes=axes, keepdims=True)
    finite = b.compare(b.abs(top), b.scalar(math.inf, x), predicate="lt")
    top = b.select(finite, top, b.scalar(0, x))
    out = b.log(b.reduce_sum(b.exp(b.sub(x, top)), axes=axes, keepdims=True))
    out = b.add(out, top)
    if not _keeps(n):
        out = b.reduce_sum(out, axes=axes)
    return b.convert(out, dtype)


@aten("cummax.default", "cummin.default")
def running_extremum(n: AtenCall) -> Any:
    """Build the running extremum along `dim`, and the last index so far that has it."""
    b, x = n.b, n.x()
    if not n.rank():
        return x, b.constant(np.zeros((), np.int64))
    axis, reduction = n.axis(), n.op.removeprefix("cum")
    keys = b.cast(x, dtype=DTYPES["i8"]) if n.dtype == BOOL else x
    values = b.cumulative(keys, axis=axis, reduction=reduction)
    # A NaN is no equal of itself.
    new = b.or_(b.compare(keys, values, predicate="eq"), b.compare(keys, keys, predicate="ne"))
    ramp = b.iota_like(x, axis)
    places = b.select(new, ramp, b.scalar(0, ramp))
    return b.convert(values, n.dtype), b.cumulative(places, axis=axis, reduction="max")


@aten("logcumsumexp.default")
def running_logsumexp(n: AtenCall) -> Any:
    """out[i] = ln(e^x[0] + ... + e^x[i]) along `dim`."""
    b, x = n.b, n.x("self", n.dtype)
    if not n.rank():
        return x

    def join(x: Any, y: Any) -> Any:
        return functions.logaddexp(b, x, y)

    return scan(b, x, n.axis(), join)
