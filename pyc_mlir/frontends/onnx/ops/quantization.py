"""Quantized operators of ONNX and onnxruntime, computed as onnxruntime's CPU provider does.

Products are sums of i32. What is quantized is divided (or scaled) in f32, rounded to the nearest
even integer, shifted by the zero point and cut to the range of the element type.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES, accumulator, is_float
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import chain, expand_to, merge, split, swap_last, take
from pyc_mlir.frontends.onnx.ops.attention import Form, attended
from pyc_mlir.frontends.onnx.ops.convolution import (
    Sliding,
    average_pool,
    conv2d,
    from_2d,
    spatial_rank,
)
from pyc_mlir.frontends.onnx.ops.elementwise import leaky
from pyc_mlir.frontends.onnx.ops.node import Maybe, OnnxNode, contrib, node, pyc_dtype

_F32, _I32, _UI8 = DTYPES["f32"], DTYPES["i32"], DTYPES["ui8"]


def _spread(b: Any, x: Any, value: Any, axis: int, block: int) -> Any:
    """Broadcast a scale or zero point of x: per tensor, along `axis`, of blocks."""
    own, rank = b.type_of(value), b.type_of(x).rank
    if own.rank == 0 or (own.shape == (1,) and not block):
        return b.reshape(value, shape=())
    axis %= rank
    if not block:
        return b.align(value, axis, rank)
    parts = split(b, value, axis, (b.dims(value)[axis], 1))
    dims = list(b.dims(parts))
    dims[axis + 1] = block
    size = b.type_of(x).shape[axis]
    if size is None:
        raise unsupported("block_size along a dynamic dimension: expected a static one")
    return take(b, merge(b, expand_to(b, parts, dims), axis), axis, 0, size)


def rounded_to(b: Any, x: Any, zero_point: Any, dtype: np.dtype) -> Any:
    """Convert floats to `dtype`: round to nearest even, shift by a zero point, saturate."""
    out = b.round(x)
    if zero_point is not None:
        out = b.add(out, b.cast(zero_point, dtype=b.type_of(x).dtype))
    return b.cast(out, dtype=dtype)


@node("QuantizeLinear", "com.microsoft.QuantizeLinear")
def quantize(
    b: Any, x: Any, scale: Any, zero_point: Any = None, *,
    axis: int = 1, block_size: int = 0, output_dtype: int = 0,
) -> Any:  # fmt: skip
    """out = saturate(round(x / scale) + zero_point), per tensor, along `axis` or in blocks."""
    if zero_point is not None:
        dtype = b.type_of(zero_point).dtype
    else:
        dtype = pyc_dtype(output_dtype) if output_dtype else _UI8
    if is_float(dtype):
        raise unsupported(f"quantized to {dtype}: expected integers")
    own = b.type_of(x).dtype
    wide = accumulator(own) if is_float(own) else _F32
    wide_x = b.convert(x, wide)
    scale = b.convert(_spread(b, x, scale, axis, block_size), wide)
    point = None if zero_point is None else _spread(b, x, zero_point, axis, block_size)
    return rounded_to(b, b.div(wide_x, scale), point, dtype)


@node("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize(
    b: Any, x: Any, scale: Any, zero_point: Any = None, *,
    axis: int = 1, block_size: int = 0, output_dtype: int = 0,
) -> Any:  # fmt: skip
    """out = (x - zero_point) * scale, per tensor, along `axis` or in blocks."""
    scale = _spread(b, x, scale, axis, block_size)
    dtype = b.type_of(scale).dtype
    point = None if zero_point is None else _spread(b, x, zero_point, axis, block_size)
    out, wide = _less(b, x, point), accumulator(dtype)
    product = b.mul(b.cast(out, dtype=wide), b.convert(scale, wide))
    return b.convert(product, pyc_dtype(output_dtype) if output_dtype else dtype)


def _less(b: Any, x: Any, point: Any) -> Any:
    """x - point as i32."""
    x = b.convert(x, _I32)
    return x if point is None else b.sub(x, b.convert(point, _I32))


@node("DynamicQuantizeLinear")
def dynamic_quantize(b: Any, x: Any) -> tuple[Any, Any, Any]:
    """x as ui8, with the scale and zero point that its range, 0 included, has."""
    axes, zero = tuple(range(b.type_of(x).rank)), b.scalar(0, x)
    low = b.minimum(b.reduce_min(x, axes=axes), zero)
    high = b.maximum(b.reduce_max(x, axes=axes), zero)
    span = b.div(b.sub(high, low), 255)
    scale = b.select(b.eq(low, high), 1, span)
    zero_point = b.cast(b.round(b.div(b.neg(low), scale)), dtype=_UI8)
    return rounded_to(b, b.div(x, scale), zero_point, _UI8), scale, zero_point


def _along(b: Any, value: Any, axis: int, rank: int) -> Any:
    """Return a scale or zero point that is one number, or varies along `axis` of `rank`."""
    if value is None:
        return None
    given = b.type_of(value)
    if given.rank == 1 and given.shape != (1,):
        return b.align(value, axis % rank, rank)
    return value if given.rank > 1 else b.reshape(value, shape=())


def _integer_matmul(b: Any, x: Any, y: Any, x_point: Any, y_point: Any) -> Any:
    """Build the i32 product of two shifted operands."""
    lhs = _less(b, x, _along(b, x_point, -2, max(b.type_of(x).rank, 2)))
    rhs = _less(b, y, _along(b, y_point, -1, b.type_of(y).rank))
    return b.matmul(lhs, rhs)


@node("MatMulInteger")
def matmul_integer(b: Any, x: Any, y: Any, x_point: Any = None, y_point: Any = None) -> Any:
    """out = (a - a_zero_point) @ (b - b_zero_point), i32."""
    return _integer_matmul(b, x, y, x_point, y_point)


def _factor(b: Any, left: Any, right: Any, out: Any, axis: int, rank: int) -> Any:
    """left * right / out in f32, the scales of a product."""
    left, right, out = (
        _along(b, b.convert(s, _F32), place, rank)
        for s, place in ((left, -2), (right, axis), (out, axis))
    )
    return b.div(b.mul(left, right), out)


@node("QLinearMatMul")
def qlinear_matmul(
    b: Any, x: Any, x_scale: Any, x_point: Any, y: Any, y_scale: Any, y_point: Any, scale: Any,
    point: Any,
) -> Any:  # fmt: skip
    """Build the product of quantized matrices, quantized."""
    product = _integer_matmul(b, x, y, x_point, y_point)
    rank = b.type_of(product).rank
    scaled = b.mul(b.cast(product, dtype=_F32), _factor(b, x_scale, y_scale, scale, -1, rank))
    return rounded_to(b, scaled, _along(b, point, -1, rank), b.type_of(point).dtype)


def _integer_conv(
    b: Any, x: Any, weight: Any, x_point: Any, w_point: Any, group: int, sliding: Sliding
) -> Any:
    """Build the i32 convolution of shifted operands; [n, c, h, w]."""
    w = sliding.over_weights(b, x, weight)
    lhs = _less(b, x, _along(b, x_point, 1, b.type_of(x).rank))
    rhs = _less(b, weight, _along(b, w_point, 0, b.type_of(weight).rank))
    return conv2d(b, lhs, rhs, w, group)


@node("ConvInteger")
def conv_integer(
    b: Any, x: Any, weight: Any, x_point: Any = None, w_point: Any = None, *,
    group: int = 1, sliding: Sliding,
) -> Any:  # fmt: skip
    """out = the convolution of x - x_zero_point with w - w_zero_point, i32."""
    out = _integer_conv(b, x, weight, x_point, w_point, group, sliding)
    return from_2d(b, out, spatial_rank(b, x))


@node("QLinearConv")
def qlinear_conv(
    b: Any, x: Any, x_scale: Any, x_point: Any, weight: Any, w_scale: Any, w_point: Any,
    scale: Any, point: Any, bias: Any = None, *,
    group: int = 1, sliding: Sliding,
) -> Any:  # fmt: skip
    """Build the convolution of quantized operands, plus an i32 bias, quantized."""
    out = _integer_conv(b, x, weight, x_point, w_point, group, sliding)
    out = out if bias is None else b.add(out, b.align(bias, 1, 4))
    scaled = b.mul(b.cast(out, dtype=_F32), _factor(b, x_scale, w_scale, scale, 1, 4))
    return from_2d(b, rounded_to(b, scaled, point, b.type_of(point).dtype), spatial_rank(b, x))


@contrib("QLinearAdd", "QLinearMul")
def qlinear_binary(
    n: OnnxNode, x: Any, x_scale: Any, x_point: Maybe, y: Any, y_scale: Any, y_point: Maybe,
    scale: Any, point: Any = None,
) -> Any:  # fmt: skip
    """Build the quantized sum or product of two quantized tensors: (x, scale, zero point) each."""
    b, dtype = n.b, n.b.type_of(x).dtype
    if n.op == "QLinearMul":
        whole = b.cast(b.mul(_less(b, x, x_point), _less(b, y, y_point)), dtype=_F32)
        total = b.mul(whole, b.div(b.mul(x_scale, y_scale), scale))
        if point is not None:  # onnxruntime rounds this after the zero point was added.
            total = b.add(total, b.cast(point, dtype=_F32))
        return rounded_to(b, total, None, dtype)
    parts = [
        b.mul(b.cast(_less(b, v, p), dtype=_F32), b.div(s, scale))
        for v, s, p in ((x, x_scale, x_point), (y, y_scale, y_point))
    ]
    return rounded_to(b, b.add(*parts), point, dtype)


@contrib("QGemm")
def qgemm(
    b: Any, x: Any, x_scale: Any, x_point: Any, y: Any, y_scale: Any, y_point: Any,
    bias: Any = None, out_scale: Any = None, out_point: Any = None, *,
    alpha: float = 1.0, transA: int = 0, transB: int = 0,
) -> Any:  # fmt: skip
    """alpha * A' @ B' + C of quantized matrices; quantized, or f32 without an output scale."""

    def matrix(x: Any, point: Any, transposed: int) -> Any:
        point = b.cast(point, dtype=_I32)
        if b.type_of(point).rank == 1 and b.type_of(point).shape != (1,):
            point = b.align(point, 0 if transposed else 1, 2)
        x = _less(b, x, point)
        return swap_last(b, x) if transposed else x

    whole = b.matmul(matrix(x, x_point, transA), matrix(y, y_point, transB))
    whole = whole if bias is None else b.add(whole, bias)
    scale = b.mul(x_scale, y_scale)
    scale = scale if alpha == 1.0 else b.mul(scale, alpha)
    if out_scale is None:
        return b.mul(b.cast(whole, dtype=_F32), scale)
    out = b.mul(b.cast(whole, dtype=_F32), b.div(scale, out_scale))
    return rounded_to(b, out, out_point, _UI8 if out_point is None else b.type_of(out_point).dtype)


@contrib("MatMulIntegerToFloat")
def matmul_to_float(
    b: Any, x: Any, y: Any, x_scale: Any, y_scale: Any, x_point: Any = None, y_point: Any = None,
    bias: Any = None,
) -> Any:  # fmt: skip
    """out = (a - a_zero) @ (b - b_zero) * a_scale * b_scale + bias, f32; products in i32."""
    out = _scaled_product(b, (x, x_scale, x_point), (y, y_scale, y_point))
    return out if bias is None else b.add(out, bias)


@contrib("DynamicQuantizeMatMul")
def dynamic_matmul(
    b: Any, x: Any, y: Any, y_scale: Any, y_point: Any = None, bias: Any = None
) -> Any:
    """`MatMulIntegerToFloat` of f32 a, which is quantized by its own range first."""
    out = _scaled_product(b, dynamic_quantize(b, x), (y, y_scale, y_point))
    return out if bias is None else b.add(out, bias)


def _scaled_product(b: Any, left: tuple[Any, Any, Any], right: tuple[Any, Any, Any]) -> Any:
    """f32 product of two quantized matrices: (x, scale, zero point) each."""
    (x, x_scale, x_point), (y, y_scale, y_point) = left, right
    whole = b.matmul(_less(b, x, _one(b, x_point)), _less(b, y, _one(b, y_point)))
    factor = b.mul(_one(b, x_scale), _one(b, y_scale))
    return b.mul(b.cast(whole, dtype=_F32), factor)


def _one(b: Any, x: Any) -> Any:
    """Return a parameter of one element as a scalar, one for each column as it is."""
    return x if x is None or b.type_of(x).shape != (1,) else b.reshape(x, shape=())


def _float(b: Any, x: Any, scale: Any, point: Any) -> Any:
    """Return a quantized tensor as f32."""
    return b.mul(b.cast(_less(b, x, _one(b, point)), dtype=_F32), _one(b, scale))


def _quantized(b: Any, x: Any, scale: Any, point: Any, dtype: Any) -> Any:
    """Return f32 x by a scale and a zero point."""
    zero = _one(b, point)
    return rounded_to(b, b.div(x, _one(b, scale)), zero, dtype)


def _between(
    b: Any, compute: Callable[[Any], Any], x: Any, given: tuple[Any, Any], made: tuple[Any, Any]
) -> Any:
    """Apply a function of f32 to a quantized tensor; (scale, zero point) before and after."""
    return _quantized(b, compute(_float(b, x, *given)), *made, b.type_of(x).dtype)


@contrib("QLinearSigmoid")
def qlinear_sigmoid(
    b: Any, x: Any, x_scale: Any, x_point: Maybe, scale: Any, point: Any = None
) -> Any:
    """Apply the sigmoid to a quantized tensor."""
    return _between(b, b.sigmoid, x, (x_scale, x_point), (scale, point))


@contrib("QLinearLeakyRelu")
def qlinear_leaky_relu(
    b: Any, x: Any, x_scale: Any, x_point: Maybe, scale: Any, point: Any = None, *,
    alpha: float = 0.01,
) -> Any:  # fmt: skip
    """out = alpha * x where x < 0, else x, of a quantized tensor."""
    return _between(b, lambda x: leaky(b, x, alpha), x, (x_scale, x_point), (scale, point))


@contrib("QLinearSoftmax")
def qlinear_softmax(
    b: Any, x: Any, x_scale: Any, x_point: Maybe, scale: Any, point: Any = None, *,
    axis: int = -1, opset: int,
) -> Any:  # fmt: skip
    """softmax along `axis` of a quantized tensor, quantized; the axes after it too before opset 13.

    Within one unit of onnxruntime's, which takes the exponentials from a table.
    """
    rank = b.type_of(x).rank
    axis %= rank
    if opset < 13 and axis != rank - 1:
        raise unsupported("the softmax of opsets before 13: expected the last axis")
    softmax = partial(b.softmax, axis=axis)
    return _between(b, softmax, x, (x_scale, x_point), (scale, point))


@contrib("QLinearConcat")
def qlinear_concat(b: Any, scale: Any, point: Any, *parts: Any, axis: int) -> Any:
    """Join quantized tensors along `axis`, all by the scale and zero point of the first inputs."""
    if not parts or len(parts) % 3:
        raise PycError(ReasonCode.BAD_MODEL, "expected inputs in threes after the first two")
    first = b.type_of(parts[0])
    floats = [_float(b, *parts[i : i + 3]) for i in range(0, len(parts), 3)]
    made = [_quantized(b, p, scale, point, first.dtype) for p in floats]
    return chain(b, made, axis % first.rank)


@contrib("QLinearWhere")
def qlinear_where(
    b: Any, condition: Any, x: Any, x_scale: Any, x_point: Maybe, y: Any, y_scale: Any,
    y_point: Maybe, scale: Any, point: Any = None,
) -> Any:  # fmt: skip
    """x where the condition holds, else y, both quantized anew."""
    yes, no = (
        _quantized(b, _float(b, *given), scale, point, b.type_of(x).dtype)
        for given in ((x, x_scale, x_point), (y, y_scale, y_point))
    )
    return b.select(condition, yes, no)


@contrib("QLinearGlobalAveragePool", "QLinearAveragePool")
def qlinear_average(
    n: OnnxNode, x: Any, x_scale: Any, x_point: Maybe, scale: Any, point: Any = None, *,
    channels_last: int = 0, count_include_pad: int = 0, sliding: Sliding,
) -> Any:  # fmt: skip
    """Build the mean of all pixels, or of each window, of a quantized image, quantized."""
    if channels_last:
        raise unsupported("channels_last: expected channels first")
    b = n.b
    if n.op == "QLinearGlobalAveragePool":
        axes = tuple(range(2, b.type_of(x).rank))
        mean = partial(b.reduce_mean, axes=axes, keepdims=True)
    else:
        mean = partial(average_pool, b, count_include_pad=count_include_pad, sliding=sliding)
    return _between(b, mean, x, (x_scale, x_point), (scale, point))


@contrib("QAttention")
def qattention(
    n: OnnxNode, x: Any, weight: Any, bias: Any, x_scale: Any, w_scale: Any, mask: Any = None,
    x_point: Any = None, w_point: Any = None, past: Any = None, *,
    form: Form,
) -> Any:  # fmt: skip
    """Build attention over the product of quantized x and weights, plus a bias in f32."""
    product = _scaled_product(n.b, (x, x_scale, x_point), (weight, w_scale, w_point))
    return attended(n, n.b.add(product, bias), mask, past, None, form)
