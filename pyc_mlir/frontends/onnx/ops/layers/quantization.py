"""Quantized operators, computed as onnxruntime's CPU provider does.

Products are sums of i32. What is quantized is divided (or scaled) in f32, rounded to the nearest
even integer, shifted by the zero point and cut to the range of the element type.
"""

from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES, accumulator, is_float
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to, merge, split, take
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node, pyc_dtype
from pyc_mlir.frontends.onnx.shared.window import (
    from_2d,
    spatial_rank,
    to_2d,
    weights_window,
    window,
)

_F32, _I32, _UI8 = DTYPES["f32"], DTYPES["i32"], DTYPES["ui8"]
_WIDE = (DTYPES["i32"], DTYPES["ui32"])


def _spread(n: OnnxNode, value: Any) -> Any:
    """Broadcast a scale or zero point of input 0: per tensor, along `axis`, of blocks."""
    b, rank = n.b, n.type(0).rank
    own, block, axis = b.type_of(value).rank, n.attr("block_size", 0), n.attr("axis", 1)
    if own == 0 or (own == 1 and b.type_of(value).shape == (1,) and not block):
        return b.reshape(value, shape=())
    axis %= rank
    if not block:
        return b.align(value, axis, rank)
    parts = split(b, value, axis, (b.dims(value)[axis], 1))
    dims = list(b.dims(parts))
    dims[axis + 1] = block
    size = n.type(0).shape[axis]
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
def quantize(n: OnnxNode) -> Any:
    """out = saturate(round(x / scale) + zero_point), per tensor, along `axis` or in blocks."""
    b = n.b
    target = n.attr("output_dtype", 0)
    dtype = n.type(2).dtype if n.has(2) else pyc_dtype(target) if target else _UI8
    if is_float(dtype):
        raise unsupported(f"quantized to {dtype}: expected integers")
    wide = accumulator(n.type(0).dtype) if is_float(n.type(0).dtype) else _F32
    x, scale = b.convert(n.x(0), wide), b.convert(_spread(n, n.x(1)), wide)
    zero_point = _spread(n, n.x(2)) if n.has(2) else None
    return rounded_to(b, b.div(x, scale), zero_point, dtype)


@node("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize(n: OnnxNode) -> Any:
    """out = (x - zero_point) * scale, per tensor, along `axis` or in blocks."""
    b, scale = n.b, _spread(n, n.x(1))
    dtype = b.type_of(scale).dtype
    target = n.attr("output_dtype", 0)
    out = _shifted(b, n.x(0), _spread(n, n.x(2)) if n.has(2) else None)
    wide = accumulator(dtype)
    product = b.mul(b.cast(out, dtype=wide), b.convert(scale, wide))
    return b.convert(product, pyc_dtype(target) if target else dtype)


def _shifted(b: Any, x: Any, zero_point: Any) -> Any:
    """x - zero_point as i32."""
    x = b.convert(x, _I32)
    return x if zero_point is None else b.sub(x, b.convert(zero_point, _I32))


@node("DynamicQuantizeLinear")
def dynamic_quantize(n: OnnxNode) -> Any:
    """x as ui8, with the scale and zero point that its range, 0 included, has."""
    return dynamically(n.b, n.x())


def dynamically(b: Any, x: Any) -> tuple[Any, Any, Any]:
    """f32 x as ui8 by its own range, its scale and its zero point."""
    axes, zero = tuple(range(b.type_of(x).rank)), b.scalar(0, x)
    low = b.minimum(b.reduce_min(x, axes=axes), zero)
    high = b.maximum(b.reduce_max(x, axes=axes), zero)
    span = b.div(b.sub(high, low), b.scalar(255, x))
    scale = b.select(b.compare(low, high, predicate="eq"), b.scalar(1, x), span)
    zero_point = b.cast(b.round(b.div(b.neg(low), scale)), dtype=_UI8)
    return rounded_to(b, b.div(x, scale), zero_point, _UI8), scale, zero_point


def _zero_point(n: OnnxNode, index: int, axis: int, rank: int) -> Any:
    """Return a zero point that is one number, or varies along `axis` of an operand of `rank`."""
    if not n.has(index):
        return None
    given = n.type(index)
    if given.rank == 1 and given.shape != (1,):
        return n.b.align(n.x(index), axis % rank, rank)
    return n.x(index) if given.rank > 1 else n.b.reshape(n.x(index), shape=())


def _integer_matmul(n: OnnxNode, places: tuple[int, int], points: tuple[int, int]) -> Any:
    """Build the i32 product of two shifted operands."""
    a, c = places
    lhs = _shifted(n.b, n.x(a), _zero_point(n, points[0], -2, max(n.type(a).rank, 2)))
    rhs = _shifted(n.b, n.x(c), _zero_point(n, points[1], -1, n.type(c).rank))
    return n.b.matmul(lhs, rhs)


@node("MatMulInteger")
def matmul_integer(n: OnnxNode) -> Any:
    """out = (a - a_zero_point) @ (b - b_zero_point), i32."""
    return _integer_matmul(n, (0, 1), (2, 3))


def _factor(n: OnnxNode, left: int, right: int, out: int, axis: int, rank: int) -> Any:
    """left * right / out in f32, the scales of a product."""
    b = n.b

    def scale(index: int, place: int) -> Any:
        value = b.convert(n.x(index), _F32)
        if b.type_of(value).rank == 1 and b.type_of(value).shape != (1,):
            return b.align(value, place % rank, rank)
        return value if b.type_of(value).rank > 1 else b.reshape(value, shape=())

    return b.div(b.mul(scale(left, -2), scale(right, axis)), scale(out, axis))


@node("QLinearMatMul")
def qlinear_matmul(n: OnnxNode) -> Any:
    """Build the product of quantized matrices, quantized."""
    b = n.b
    product = _integer_matmul(n, (0, 3), (2, 5))
    rank = b.type_of(product).rank
    scaled = b.mul(b.cast(product, dtype=_F32), _factor(n, 1, 4, 6, -1, rank))
    return rounded_to(b, scaled, _zero_point(n, 7, -1, rank), n.type(7).dtype)


def _integer_conv(n: OnnxNode, x: Any, weight: Any, kernel: tuple[int, ...]) -> Any:
    """Build the i32 convolution; [n, c, h, w]."""
    w = window(n, kernel)
    if spatial_rank(n) == 3:
        raise unsupported("3 spatial dimensions: expected 1 or 2")
    return n.b.conv2d(
        to_2d(n.b, x),
        to_2d(n.b, weight),
        strides=w.strides,
        pads=w.pads,
        dilations=w.dilations,
        groups=n.attr("group", 1),
    )


@node("ConvInteger")
def conv_integer(n: OnnxNode) -> Any:
    """out = the convolution of x - x_zero_point with w - w_zero_point, i32."""
    x = _shifted(n.b, n.x(0), _zero_point(n, 2, 1, n.type(0).rank))
    weight = _shifted(n.b, n.x(1), _zero_point(n, 3, 0, n.type(1).rank))
    return from_2d(n.b, _integer_conv(n, x, weight, weights_window(n)), spatial_rank(n))


@node("QLinearConv")
def qlinear_conv(n: OnnxNode) -> Any:
    """Build the convolution of quantized operands, plus an i32 bias, quantized."""
    b = n.b
    x = _shifted(b, n.x(0), _zero_point(n, 2, 1, n.type(0).rank))
    weight = _shifted(b, n.x(3), _zero_point(n, 5, 0, n.type(3).rank))
    out = _integer_conv(n, x, weight, weights_window(n, 3))
    if n.has(8):
        out = b.add(out, b.align(n.x(8), 1, 4))
    scaled = b.mul(b.cast(out, dtype=_F32), _factor(n, 1, 4, 6, 1, 4))
    return from_2d(b, rounded_to(b, scaled, n.x(7), n.type(7).dtype), spatial_rank(n))
