"""Reductions, running results, positions of extrema, and normalizations.

Parameters and statistics of normalizations may be wider than x, as autocast makes them: nothing is
rounded before the result, which has the type of x.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects import functions
from pyc_mlir.dialects.types import BOOL, DTYPES, accumulator, is_float
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import prefixes, product, reshape_to
from pyc_mlir.frontends.torch.ops.handler import AtenCall, aten, promoted, pyc_dtype, static_size

_I8 = DTYPES["i8"]


def _reduced(n: AtenCall, name: str, x: Any, axes: Sequence[int] | None = None) -> Any:
    """Reduce along `dim`, all dimensions if none are named; with `keepdim` they stay."""
    axes = n.axes() if axes is None else axes
    return getattr(n.b, f"reduce_{name}")(x, axes=axes, keepdims=_keeps(n))


def _keeps(n: AtenCall) -> bool:
    """Return whether reduced dimensions stay with size 1; a rank-0 operand has none."""
    return bool(n.arg("keepdim", False)) and n.rank() > 0


@promoted("sum.default", "sum.dim_IntList", "prod.default", "prod.dim_int", "mean.default",
          "mean.dim")  # fmt: skip
def total(n: AtenCall, x: Any) -> Any:
    """Build the sum, product or mean, in the element type of the result."""
    return _reduced(n, n.op, x)


@aten("amax.default", "amin.default", "max.default", "min.default")
def extremum(n: AtenCall, x: Any) -> Any:
    """Build the greatest or smallest element; NaN if any is."""
    return n.b.convert(_reduced(n, n.op.removeprefix("a"), _ordered(n.b, x)), n.dtype)


def _ordered(b: Any, x: Any) -> Any:
    """x, whose elements have an order: booleans as i8."""
    return b.cast(x, dtype=_I8) if b.type_of(x).dtype == BOOL else x


@aten("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def some(n: AtenCall, x: Any) -> Any:
    """Build whether any, or all, elements are not zero."""
    b = n.b
    found = _reduced(n, "max" if n.op == "any" else "min", _ordered(b, b.convert(x, BOOL)))
    return b.compare(found, b.scalar(0, found), predicate="gt")


@aten("argmax.default", "argmin.default")
def position(n: AtenCall, x: Any) -> Any:
    """Build the index of the first extremum along `dim`, or in the flattened tensor."""
    b, keys = n.b, _maximal(n, x)
    if n.rank() == 0:
        return b.constant(np.zeros((), np.int64))
    if not n.has("dim"):
        flat = b.argmax(b.reshape(keys, shape=(-1,)), axis=0)
        return flat if not _keeps(n) else b.reshape(flat, shape=(1,) * n.rank())
    return b.argmax(keys, axis=n.axis(), keepdims=_keeps(n))


def _maximal(n: AtenCall, x: Any) -> Any:
    """x so that its maxima are what is looked for: of a minimum, -x (~x for integers)."""
    b, keys = n.b, _ordered(n.b, x)
    if n.op not in ("argmin", "min"):
        return keys
    return b.neg(keys) if is_float(b.type_of(x).dtype) else b.not_(keys)


@aten("max.dim", "min.dim")
def extremum_and_position(n: AtenCall, x: Any) -> Any:
    """Build the extremum along `dim` and its first index."""
    b = n.b
    if n.rank() == 0:
        return x, b.constant(np.zeros((), np.int64))
    axis = n.axis()
    values = b.convert(_reduced(n, n.op, _ordered(b, x), (axis,)), n.dtype)
    return values, b.argmax(_maximal(n, x), axis=axis, keepdims=_keeps(n))


@aten("var.correction", "var_mean.correction", "std.correction", "std_mean.correction")
def variance(n: AtenCall, x: Any, *, correction: float = 1) -> Any:
    """sum((x - mean)^2) / max(0, count - correction), its root for std; with the mean."""
    b, axes, dtype = n.b, n.axes(), n.dtype
    x = b.convert(x, accumulator(dtype))
    centered = b.sub(x, b.reduce_mean(x, axes=axes, keepdims=True))
    squares = _reduced(n, "sum", b.mul(centered, centered))
    count = b.sub(b.count(x, axes), b.scalar(correction, x)) if axes else b.scalar(-correction, x)
    out = b.div(squares, b.maximum(count, b.scalar(0, x)))
    out = b.convert(b.sqrt(out) if n.op.startswith("std") else out, dtype)
    if not n.op.endswith("mean"):
        return out
    return out, b.convert(_reduced(n, "mean", x), dtype)


@promoted("cumsum.default", "cumprod.default")
def running(n: AtenCall, x: Any) -> Any:
    """Build running sums or products along `dim`."""
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


@promoted("linalg_vector_norm.default")
def vector_norm(n: AtenCall, x: Any) -> Any:
    """out = (sum of |x|^ord)^(1/ord); the greatest or smallest |x| for infinite orders."""
    b, dtype, order = n.b, n.dtype, n.static("ord", 2)
    x = b.abs(b.convert(x, accumulator(dtype)))
    if order == math.inf or order == -math.inf:
        out = _reduced(n, "max" if order > 0 else "min", x)
    elif order == 0:
        set_ = b.convert(b.compare(x, b.scalar(0, x), predicate="ne"), b.type_of(x).dtype)
        out = _reduced(n, "sum", set_)
    elif order == 1:
        out = _reduced(n, "sum", x)
    elif order == 2:
        out = b.sqrt(_reduced(n, "sum", b.mul(x, x)))
    else:
        powers = _reduced(n, "sum", b.pow(x, b.scalar(order, x)))
        out = b.pow(powers, b.scalar(1 / order, x))
    return b.convert(out, dtype)


@promoted("logsumexp.default")
def logsumexp(n: AtenCall, x: Any) -> Any:
    """out = m + ln(sum e^(x - m)) with m = max(x), or 0 where that is infinite."""
    b, axes, dtype = n.b, n.axes(), n.dtype
    x = b.convert(x, accumulator(dtype))
    top = b.reduce_max(x, axes=axes, keepdims=True)
    finite = b.compare(b.abs(top), b.scalar(math.inf, x), predicate="lt")
    top = b.select(finite, top, b.scalar(0, x))
    out = b.log(b.reduce_sum(b.exp(b.sub(x, top)), axes=axes, keepdims=True))
    out = b.add(out, top)
    return b.convert(out if _keeps(n) else b.reduce_sum(out, axes=axes), dtype)


@aten("cummax.default", "cummin.default")
def running_extremum(n: AtenCall, x: Any) -> Any:
    """Build the running extremum along `dim`, and the last index so far that has it."""
    b = n.b
    if not n.rank():
        return x, b.constant(np.zeros((), np.int64))
    axis, keys = n.axis(), _ordered(b, x)
    values = b.cumulative(keys, axis=axis, reduction=n.op.removeprefix("cum"))
    # A NaN is no equal of itself.
    new = b.or_(b.compare(keys, values, predicate="eq"), b.compare(keys, keys, predicate="ne"))
    ramp = b.iota_like(x, axis)
    places = b.select(new, ramp, b.scalar(0, ramp))
    return b.convert(values, n.dtype), b.cumulative(places, axis=axis, reduction="max")


@promoted("logcumsumexp.default")
def running_logsumexp(n: AtenCall, x: Any) -> Any:
    """out[i] = ln(e^x[0] + ... + e^x[i]) along `dim`."""
    b = n.b
    return scan(b, x, n.axis(), lambda x, y: functions.logaddexp(b, x, y)) if n.rank() else x


def _computed(n: AtenCall, *names: str) -> np.dtype:
    """Return the type to compute in: of x, or of its sums where a parameter has another type."""
    own = n.type().dtype
    others = {n.type(name).dtype for name in names if n.has(name)} - {own}
    return accumulator(own) if others else own


def _parameter(n: AtenCall, name: str, fill: float, shape: Any, dtype: np.dtype) -> Any:
    """Return a parameter as `dtype`, or one number throughout where none is given."""
    return n.x(name, dtype) if n.has(name) else n.b.constant(np.full(shape, fill, dtype))


def _with_statistics(n: AtenCall, *results: Any) -> tuple[Any, ...]:
    """Return a native form's results in the types that torch gives them."""
    dtypes = [pyc_dtype(r.dtype) for r in n.results]
    return tuple(n.b.convert(r, d) for r, d in zip(results, dtypes, strict=True))


@aten("layer_norm.default", "native_layer_norm.default")
def layer_norm(n: AtenCall, x: Any, shape: list[int], *, eps: float = 1e-5) -> Any:
    """pyc.layernorm; with the mean and 1/deviation in the native form."""
    b, rank, dtype = n.b, n.rank(), _computed(n, "weight", "bias")
    axis = rank - len(shape)
    vectors = (_parameter(n, v, fill, shape, dtype) for v, fill in (("weight", 1), ("bias", 0)))
    out = b.layernorm(b.convert(x, dtype), *vectors, axis=axis, epsilon=eps)
    out = b.convert(out, n.dtype)
    if n.op == "layer_norm" or not n.wants(1, 2):
        return out
    _, mean, inverse = _statistics(b, x, tuple(range(axis, rank)), eps)
    return _with_statistics(n, out, mean, inverse)


def _statistics(b: Any, x: Any, axes: tuple[int, ...], epsilon: float) -> tuple[Any, Any, Any]:
    """x - mean, the mean, and 1 / sqrt(variance + epsilon), in the type that sums are kept in."""
    x = b.convert(x, accumulator(b.type_of(x).dtype))
    mean = b.reduce_mean(x, axes=axes, keepdims=True)
    centered = b.sub(x, mean)
    variance = b.reduce_mean(b.mul(centered, centered), axes=axes, keepdims=True)
    return centered, mean, b.rsqrt(b.add(variance, b.scalar(epsilon, x)))


@aten("rms_norm.default")
def rms_norm(n: AtenCall, x: Any, shape: list[int], *, eps: float | None) -> Any:
    """pyc.rmsnorm; without `eps` that of the element type."""
    b, dtype = n.b, _computed(n, "weight")
    epsilon = float(np.finfo(accumulator(dtype)).eps) if eps is None else eps
    scale, axis = _parameter(n, "weight", 1, shape, dtype), n.rank() - len(shape)
    return b.convert(b.rmsnorm(b.convert(x, dtype), scale, axis=axis, epsilon=epsilon), n.dtype)


@aten("batch_norm.default", "_native_batch_norm_legit_no_training.default")
def batch_norm(n: AtenCall, x: Any, *, training: bool = False, eps: float = 1e-5) -> Any:
    """pyc.batchnorm, by the running statistics. Ioffe and Szegedy, 2015."""
    b = n.b
    if training:
        raise unsupported(
            "batch norm in train mode: expected a model in eval mode; call `.eval()` before the "
            "export, or train by `torch.compile(model, backend='pyc')`"
        )
    fills = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}
    dtype = _computed(n, *fills)
    channels = static_size(b, x, 1, "a dynamic number of channels")
    vectors = (_parameter(n, name, fill, channels, dtype) for name, fill in fills.items())
    out = b.convert(b.batchnorm(b.convert(x, dtype), *vectors, axis=1, epsilon=eps), n.dtype)
    return out if n.op == "batch_norm" else (out, None, None)


@aten("group_norm.default", "native_group_norm.default")
def group_norm(n: AtenCall, x: Any, *, eps: float = 1e-5) -> Any:
    """Normalize each group of channels of each sample by itself. Wu and He, 2018."""
    b, dims = n.b, n.dims()
    groups = n.static("num_groups" if n.op == "group_norm" else "group")
    channels = static_size(b, x, 1, "a dynamic number of channels")
    grouped = reshape_to(b, x, (dims[0], groups, product((channels // groups, *dims[2:]))))
    centered, mean, inverse = _statistics(b, grouped, (2,), eps)
    wide = b.type_of(centered).dtype
    out = reshape_to(b, b.mul(centered, inverse), dims)
    for name, apply in (("weight", b.mul), ("bias", b.add)):
        if n.has(name):
            out = apply(out, b.align(n.x(name, wide), 1, len(dims)))
    out = b.convert(out, b.type_of(x).dtype)
    if n.op == "group_norm":
        return out
    return _with_statistics(n, out, *(reshape_to(b, v, (dims[0], groups)) for v in (mean, inverse)))
