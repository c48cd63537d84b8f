"""Neural network functions that numpy lacks: on traced arrays they record one op of the dialect,
on numpy arrays they compute its reference at once.

    from pyc_mlir import nn
    y = nn.attention(q, k, v, is_causal=True)

Operands of mixed element types are promoted as numpy does; Python numbers are weak. Equations and
shapes stand with the ops in `dialects/ops`. All raise VerificationError (a PycError) for operands
that do not fit.
"""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeGuard

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.builder import NumpyBuilder
from pyc_mlir.dialects.types import BOOL, I64
from pyc_mlir.frontends.python.dims import DynamicDim
from pyc_mlir.frontends.python.numpy_movement import arange as _arange
from pyc_mlir.frontends.python.numpy_movement import as_shape, is_int
from pyc_mlir.frontends.python.numpy_movement import linspace as _linspace
from pyc_mlir.frontends.python.numpy_protocol import result_dtype
from pyc_mlir.frontends.python.source import untraceable, user_point
from pyc_mlir.frontends.python.specs import check_plain, supported_dtype
from pyc_mlir.frontends.python.tracer import TracedArray, Tracer, active

Array = Any
Pair = int | Sequence[int]
Pads = Pair | Sequence[Sequence[int]]


class _Eager(NumpyBuilder):
    """Computes at once; shares `lift` with the tracer."""

    def lift(self, operand: Any, dtype: np.dtype) -> np.ndarray:
        """Return the operand as an array of `dtype`."""
        return np.asarray(operand).astype(dtype, copy=False)


def _builder(*operands: Any) -> Tracer | _Eager:
    check_plain(operands)
    return next((x.tracer for x in operands if isinstance(x, TracedArray)), _Eager())


def _beside(x: Any, other: Any) -> Any:
    """x as a traced array if `other` is one."""
    b = _builder(x, other)
    return b.lift(x, result_dtype(x)) if isinstance(b, Tracer) else x


def _record(op: str, *operands: Any, **params: Any) -> Array:
    """Record one op on operands promoted to their common element type."""
    b, dtype = _builder(*operands), result_dtype(*operands)
    return getattr(b, op)(*(b.lift(x, dtype) for x in operands), **params)


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return _record("relu", x)


def gelu(x: Array, approximate: str = "none") -> Array:
    """x/2 * (1 + erf(x/sqrt 2)); approximate="tanh" uses the tanh formula."""
    return _record("gelu", x, approximate=approximate)


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return _record("silu", x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return _record("sigmoid", x)


def erf(x: Array) -> Array:
    """Return the error function."""
    return _record("erf", x)


def rsqrt(x: Array) -> Array:
    """1 / sqrt(x)."""
    return _record("rsqrt", x)


def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x - max(x)) / sum(exp(x - max(x))) along `axis`."""
    return _record("softmax", x, axis=axis)


def log_softmax(x: Array, axis: int = -1) -> Array:
    """log(softmax(x)) along `axis`."""
    return _record("log_softmax", x, axis=axis)


def layernorm(
    x: Array, scale: Array, bias: Array, *, axis: int = -1, epsilon: float = 1e-5
) -> Array:
    """(x - mean) / sqrt(var + epsilon) * scale + bias over the dimensions from `axis` on."""
    return _record("layernorm", x, scale, bias, axis=axis, epsilon=epsilon)


def rmsnorm(x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5) -> Array:
    """x / sqrt(mean(x^2) + epsilon) * scale over the dimensions from `axis` on."""
    return _record("rmsnorm", x, scale, axis=axis, epsilon=epsilon)


def batchnorm(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    *,
    axis: int = 1,
    epsilon: float = 1e-5,
) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, vectors along `axis`."""
    return _record("batchnorm", x, scale, bias, mean, variance, axis=axis, epsilon=epsilon)


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
) -> Array:
    """softmax(query @ key^T * scale + mask) @ value; `scale` is 1/sqrt(depth) by default.

    [..., s, d], [..., t, d], [..., t, e] -> [..., s, e]. A boolean mask keeps where true. Raises
    PycError (UNTRACEABLE) when the depth is dynamic and no scale is given.
    """
    if scale is None:
        depth = query.shape[-1]
        if isinstance(depth, DynamicDim):
            problem = "nn.attention: the depth is not known while tracing"
            raise untraceable(problem, "give `scale`", "nn.attention")
        scale = 1 / math.sqrt(depth)
    b, dtype = _builder(query, key, value, mask), result_dtype(query, key, value)
    operands = [b.lift(x, dtype) for x in (query, key, value)]
    if mask is not None:
        operands.append(b.lift(mask, BOOL if result_dtype(mask) == BOOL else dtype))
    return b.attention(*operands, scale=float(scale), is_causal=is_causal)


def conv2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    strides: Pair = 1,
    pads: Pads = 0,
    dilations: Pair = 1,
    groups: int = 1,
    layout: str = "NCHW",
) -> Array:
    """2-d convolution; NCHW: weight [f, c/groups, kh, kw], NHWC: weight [kh, kw, c/groups, f].

    `pads` is a number, (vertical, horizontal), ((top, bottom), (left, right)) or (top, left,
    bottom, right); `bias` is [f]. Raises PycError (BAD_ARGUMENT) for a window of another form.
    """
    window = {
        "strides": _pair(strides, "strides"),
        "pads": _pads(pads),
        "dilations": _pair(dilations, "dilations"),
    }
    out = _record("conv2d", x, weight, groups=groups, layout=layout, **window)
    if bias is None:
        return out
    return out + (np.reshape(bias, (-1, 1, 1)) if layout == "NCHW" else bias)


def max_pool2d(
    x: Array,
    kernel: Pair,
    strides: Pair | None = None,
    *,
    pads: Pads = 0,
    dilations: Pair = 1,
    layout: str = "NCHW",
) -> Array:
    """Return the maximum of each window; `strides` is `kernel` by default, padding never wins."""
    window = {"pads": _pads(pads), "dilations": _pair(dilations, "dilations"), "layout": layout}
    size = _pair(kernel, "kernel")
    steps = size if strides is None else _pair(strides, "strides")
    return _record("max_pool2d", x, kernel=size, strides=steps, **window)


def avg_pool2d(
    x: Array,
    kernel: Pair,
    strides: Pair | None = None,
    *,
    pads: Pads = 0,
    count_include_pad: bool = False,
    layout: str = "NCHW",
) -> Array:
    """Return the mean of each window; `strides` is `kernel` by default."""
    window = {"pads": _pads(pads), "count_include_pad": count_include_pad, "layout": layout}
    size = _pair(kernel, "kernel")
    steps = size if strides is None else _pair(strides, "strides")
    return _record("avg_pool2d", x, kernel=size, strides=steps, **window)


def resize(
    x: Array,
    sizes: Pair | None = None,
    *,
    scales: float | Sequence[float] | None = None,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "round_prefer_floor",
    layout: str = "NCHW",
) -> Array:
    """Resize images to `sizes` (rows, columns), or floor(scale * size), by nearest or linear.

    `scales` is a number, or (vertical, horizontal). Raises PycError (BAD_ARGUMENT) for other forms.
    """
    if sizes is None and scales is None:
        raise _malformed("sizes", "sizes or `scales`", None)
    wanted = (-1, -1) if sizes is None else _pair(sizes, "sizes")
    how = {"mode": mode, "coordinates": coordinates, "rounding": rounding, "layout": layout}
    return _record("resize", x, sizes=wanted, scales=_factors(scales), **how)


def _factors(given: float | Sequence[float] | None) -> tuple[float, ...]:
    """(vertical, horizontal), from one number for both; empty for none."""
    if given is None:
        return ()
    pair: Any = (given, given) if isinstance(given, Real) else given
    if not (_is_sequence(pair, 2) and all(isinstance(s, Real) for s in pair)):
        raise _malformed("scales", "a number or (vertical, horizontal)", given)
    return tuple(map(float, pair))


def iota(shape: Any, axis: int = 0, dtype: Any = I64) -> Array:
    """out[..., i, ...] = i along `axis`. While tracing, `shape` may hold dynamic dimensions."""
    wanted, element = as_shape(shape), supported_dtype(dtype, "nn.iota")
    b = active.get() or _Eager()
    dynamic = any(isinstance(d, DynamicDim) for d in wanted)
    like = (b.like(wanted),) if dynamic and isinstance(b, Tracer) else ()
    sizes = tuple(-1 if isinstance(d, DynamicDim) else d for d in wanted)
    return b.iota(*like, shape=sizes, axis=axis, dtype=element)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Array:
    """np.arange, whose end may be a dynamic dimension: then from 0 in steps of 1."""
    if active.get() is None:
        first, last = (0, start) if stop is None else (start, stop)
        return np.arange(first, last, step, dtype=dtype)
    return _arange(start, stop, step, dtype)


def linspace(
    start: Any, stop: Any, num: Any = 50, endpoint: bool = True, dtype: Any = None
) -> Array:
    """np.linspace between numbers or rank-0 arrays; `num` may be a dynamic dimension."""
    if active.get() is None:
        return np.linspace(start, stop, num, endpoint, dtype=dtype)
    return _linspace(start, stop, num, endpoint, dtype=dtype)


def take(x: Array, indices: Array, axis: int = 0) -> Array:
    """Return the entries of x at `indices` along `axis`: numpy's take, ``x[indices]`` for axis 0.

    x may be a captured array of which only the indices are traced (an embedding). Negative indices
    count from the end. Indices out of range are not an error when the program runs: traced indices,
    and all indices into a dynamic dimension, are clamped into range.
    """
    return np.take(_beside(x, indices), indices, axis)


def update_slice(x: Array, update: Array, starts: Any) -> Array:
    """x with the box at `starts` replaced by `update`; the box is clamped to lie inside x.

    `starts` is an integer vector, or a sequence of integers and rank-0 arrays.
    """
    b, dtype = _builder(x, update), result_dtype(x, update)
    return b.update_slice(b.lift(x, dtype), b.lift(update, dtype), _starts(b, starts))


def _starts(b: Tracer | _Eager, starts: Any) -> Array:
    if not isinstance(starts, TracedArray) and isinstance(_builder(*starts), Tracer):
        starts = np.stack([s if isinstance(s, TracedArray) else np.asarray(s) for s in starts])
    return b.lift(starts, I64)


def _pair(value: Pair, name: str) -> tuple[int, ...]:
    """(vertical, horizontal), from one number for both."""
    pair: Any = (value, value) if is_int(value) else value
    if not (_is_sequence(pair, 2) and all(map(is_int, pair))):
        raise _malformed(name, "a number or (vertical, horizontal)", value)
    return tuple(map(int, pair))


def _pads(given: Pads) -> tuple[int, ...]:
    """(top, left, bottom, right)."""
    value: Any = given
    if _is_sequence(value, 2) and all(_is_sequence(side, 2) for side in value):
        (top, bottom), (left, right) = value
        value = (top, left, bottom, right)
    if is_int(value) or _is_sequence(value, 2):
        value = _pair(value, "pads") * 2
    if not (_is_sequence(value, 4) and all(map(is_int, value))):
        forms = "(vertical, horizontal), ((top, bottom), (left, right))"
        raise _malformed("pads", f"a number, {forms} or (top, left, bottom, right)", given)
    return tuple(map(int, value))


def _is_sequence(value: Any, length: int) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (Sequence, np.ndarray)) and len(value) == length


def _malformed(name: str, expected: str, value: Any) -> PycError:
    where = user_point()
    return PycError(
        ReasonCode.BAD_ARGUMENT, f"{where}: `{name}`: expected {expected}, got {value!r}"
    )
