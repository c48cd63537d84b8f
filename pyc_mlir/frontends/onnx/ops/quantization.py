"""Quantized operators of ONNX and onnxruntime, computed as onnxruntime's CPU provider does.

Products are sums of i32. What is quantized is divided (or scaled) in f32, rounded to the nearest
even integer, shifted by the zero point and cut to the range of the element type.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import Signature, signature
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
from pyc_mlir.frontends.onnx.ops.math import leaky
from pyc_mlir.frontends.onnx.ops.node import Maybe, OnnxNode, contrib, formulas, node, pyc_dtype

_F32, _I32, _UI8 = DTYPES["f32"], DTYPES["i32"], DTYPES["ui8"]


def _placed(b: Any, value: Any, axis: int | None, rank: int) -> Any:
    """Return a scale or zero point of a tensor of `rank`: a number, or a vector along `axis`.

    Without an axis a vector stays as it is, and lies along the last one.
    """
    if value is None or b.type_of(value).rank == 0:
        return value
    given = b.type_of(value)
    if given.shape == (1,):
        return b.reshape(value, shape=())
    return value if axis is None or given.rank > 1 else b.align(value, axis % rank, rank)


def _rounded(b: Any, x: Any, zero_point: Any, dtype: np.dtype) -> Any:
    """Convert floats to `dtype`: round to nearest even, shift by a zero point, saturate."""
    out = b.round(x)
    if zero_point is not None:
        out = b.add(out, b.cast(zero_point, dtype=b.type_of(x).dtype))
    return b.cast(out, dtype=dtype)


@dataclass(frozen=True)
class Quantized:
    """A quantized tensor, three inputs that stand for (value - point) * scale; no point is 0."""

    b: Any
    value: Any
    scale: Any
    point: Maybe

    def shifted(self, axis: int | None = None) -> Any:
        """Return value - point as i32; the point may vary along `axis`."""
        b, x = self.b, self.b.convert(self.value, _I32)
        if self.point is None:
            return x
        rank = max(b.type_of(x).rank, 2 if axis == -2 else 0)
        return b.sub(x, b.convert(_placed(b, self.point, axis, rank), _I32))

    def floats(self) -> Any:
        """Return the f32 that the tensor stands for."""
        out = self.b.cast(self.shifted(), dtype=_F32)
        return self.b.mul(out, _placed(self.b, self.scale, None, 1))


@dataclass(frozen=True)
class Pointed(Quantized):
    """A quantized tensor whose zero point must be there."""

    point: Any


@dataclass(frozen=True)
class Format:
    """The scale and the zero point, two inputs, by which a result is quantized."""

    b: Any
    scale: Any
    point: Maybe

    def of(self, x: Any, dtype: np.dtype) -> Any:
        """Return f32 x quantized."""
        scale, point = (_placed(self.b, v, None, 1) for v in (self.scale, self.point))
        return _rounded(self.b, self.b.div(x, scale), point, dtype)


def _spread(b: Any, x: Any, value: Any, axis: int, block: int) -> Any:
    """Broadcast a scale or zero point of x: per tensor, along `axis`, of blocks."""
    own, rank = b.type_of(value), b.type_of(x).rank
    if own.rank == 0 or (own.shape == (1,) and not block):
        return b.reshape(value, shape=())
    axis %= rank
    if not block:
        return b.align(value, axis, rank)
    size = b.type_of(x).shape[axis]
    if size is None:
        raise unsupported("block_size along a dynamic dimension: expected a static one")
    parts = split(b, value, axis, (b.dims(value)[axis], 1))
    dims = list(b.dims(parts))
    dims[axis + 1] = block
    return take(b, merge(b, expand_to(b, parts, dims), axis), axis, 0, size)


@node("QuantizeLinear", "com.microsoft.QuantizeLinear")
def quantize(
    b: Any, x: Any, scale: Any, zero_point: Any = None, *,
    axis: int = 1, block_size: int = 0, output_dtype: int = 0,
) -> Any:  # fmt: skip
    """out = saturate(round(x / scale) + zero_point), per tensor, along `axis` or in blocks."""
    dtype = pyc_dtype(output_dtype) if output_dtype else _UI8
    if zero_point is not None:
        dtype = b.type_of(zero_point).dtype
        zero_point = _spread(b, x, zero_point, axis, block_size)
    if is_float(dtype):
        raise unsupported(f"quantized to {dtype}: expected integers")
    own = b.type_of(x).dtype
    wide = accumulator(own) if is_float(own) else _F32
    scale = b.convert(_spread(b, x, scale, axis, block_size), wide)
    return _rounded(b, b.div(b.convert(x, wide), scale), zero_point, dtype)


@node("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize(
    b: Any, x: Any, scale: Any, zero_point: Any = None, *,
    axis: int = 1, block_size: int = 0, output_dtype: int = 0,
) -> Any:  # fmt: skip
    """out = (x - zero_point) * scale, per tensor, along `axis` or in blocks."""
    scale = _spread(b, x, scale, axis, block_size)
    point = None if zero_point is None else _spread(b, x, zero_point, axis, block_size)
    dtype = b.type_of(scale).dtype
    wide = accumulator(dtype)
    out = b.cast(Quantized(b, x, scale, point).shifted(), dtype=wide)
    out = b.mul(out, b.convert(scale, wide))
    return b.convert(out, pyc_dtype(output_dtype) if output_dtype else dtype)


@node("DynamicQuantizeLinear")
def dynamic_quantize(b: Any, x: Any) -> tuple[Any, Any, Any]:
    """x as ui8, with the scale and zero point that its range, 0 included, has."""
    axes = tuple(range(b.type_of(x).rank))
    low = b.minimum(b.reduce_min(x, axes=axes), 0)
    high = b.maximum(b.reduce_max(x, axes=axes), 0)
    span = b.div(b.sub(high, low), 255)
    scale = b.select(b.eq(low, high), 1, span)
    zero_point = b.cast(b.round(b.div(b.neg(low), scale)), dtype=_UI8)
    return _rounded(b, b.div(x, scale), zero_point, _UI8), scale, zero_point


def _factor(b: Any, left: Any, right: Any, made: Any, axis: int, rank: int) -> Any:
    """left * right / made in f32, the scales of a product; left varies along -2, others `axis`."""
    left, right, made = (
        _placed(b, b.convert(s, _F32), place, rank)
        for s, place in ((left, -2), (right, axis), (made, axis))
    )
    return b.div(b.mul(left, right), made)


@node("MatMulInteger")
def matmul_integer(b: Any, x: Any, y: Any, x_point: Any = None, y_point: Any = None) -> Any:
    """out = (a - a_zero_point) @ (b - b_zero_point), i32."""
    left, right = Quantized(b, x, None, x_point), Quantized(b, y, None, y_point)
    return b.matmul(left.shifted(-2), right.shifted(-1))


@node("QLinearMatMul")
def qlinear_matmul(b: Any, x: Pointed, y: Pointed, scale: Any, point: Any) -> Any:
    """Build the product of quantized matrices, quantized."""
    product = b.matmul(x.shifted(-2), y.shifted(-1))
    rank = b.type_of(product).rank
    factor = _factor(b, x.scale, y.scale, scale, -1, rank)
    scaled = b.mul(b.cast(product, dtype=_F32), factor)
    return _rounded(b, scaled, _placed(b, point, -1, rank), b.type_of(point).dtype)


def _integer_conv(b: Any, x: Quantized, weight: Quantized, group: int, sliding: Sliding) -> Any:
    """Build the i32 convolution of shifted operands; [n, c, h, w]."""
    w = sliding.over_weights(b, x.value, weight.value)
    return conv2d(b, x.shifted(1), weight.shifted(0), w, group)


@node("ConvInteger")
def conv_integer(
    b: Any, x: Any, weight: Any, x_point: Any = None, w_point: Any = None, *,
    group: int = 1, sliding: Sliding,
) -> Any:  # fmt: skip
    """out = the convolution of x - x_zero_point with w - w_zero_point, i32."""
    operands = Quantized(b, x, None, x_point), Quantized(b, weight, None, w_point)
    return from_2d(b, _integer_conv(b, *operands, group, sliding), spatial_rank(b, x))


@node("QLinearConv")
def qlinear_conv(
    b: Any, x: Pointed, weight: Pointed, scale: Any, point: Any, bias: Any = None, *,
    group: int = 1, sliding: Sliding,
) -> Any:  # fmt: skip
    """Build the convolution of quantized operands, plus an i32 bias, quantized."""
    out = _integer_conv(b, x, weight, group, sliding)
    out = out if bias is None else b.add(out, b.align(bias, 1, 4))
    scaled = b.mul(b.cast(out, dtype=_F32), _factor(b, x.scale, weight.scale, scale, 1, 4))
    return from_2d(b, _rounded(b, scaled, point, b.type_of(point).dtype), spatial_rank(b, x.value))


@contrib("QLinearAdd", "QLinearMul")
def qlinear_binary(n: OnnxNode, x: Quantized, y: Quantized, scale: Any, point: Any = None) -> Any:
    """Build the quantized sum or product of two quantized tensors."""
    b, dtype = n.b, n.b.type_of(x.value).dtype
    if n.op == "QLinearAdd":
        parts = [b.mul(b.cast(v.shifted(), dtype=_F32), b.div(v.scale, scale)) for v in (x, y)]
        return _rounded(b, b.add(*parts), point, dtype)
    whole = b.mul(*(b.cast(v.shifted(), dtype=_F32) for v in (x, y)))  # exact, below 2^16
    total = b.mul(whole, b.div(b.mul(x.scale, y.scale), scale))
    if point is not None:  # onnxruntime rounds this after the zero point was added.
        total = b.add(total, b.cast(point, dtype=_F32))
    return _rounded(b, total, None, dtype)


@contrib("QGemm")
def qgemm(
    b: Any, x: Pointed, y: Pointed, bias: Any = None, out_scale: Any = None, out_point: Any = None,
    *, alpha: float = 1.0, transA: int = 0, transB: int = 0,
) -> Any:  # fmt: skip
    """alpha * A' @ B' + C of quantized matrices; quantized, or f32 without an output scale."""
    lhs, rhs = (
        (replace(v, value=swap_last(b, v.value)) if transposed else v).shifted(1)
        for v, transposed in ((x, transA), (y, transB))
    )
    whole = b.matmul(lhs, rhs)
    whole = whole if bias is None else b.add(whole, bias)
    scale = b.mul(x.scale, y.scale)
    scale = scale if alpha == 1.0 else b.mul(scale, alpha)
    if out_scale is None:
        return b.mul(b.cast(whole, dtype=_F32), scale)
    out = b.mul(b.cast(whole, dtype=_F32), b.div(scale, out_scale))
    return _rounded(b, out, out_point, _UI8 if out_point is None else b.type_of(out_point).dtype)


@contrib("MatMulIntegerToFloat")
def matmul_to_float(
    b: Any, x: Any, y: Any, x_scale: Any, y_scale: Any, x_point: Any = None, y_point: Any = None,
    bias: Any = None,
) -> Any:  # fmt: skip
    """out = (a - a_zero) @ (b - b_zero) * a_scale * b_scale + bias, f32; products in i32."""
    left, right = Quantized(b, x, x_scale, x_point), Quantized(b, y, y_scale, y_point)
    factor = b.mul(*(_placed(b, v.scale, None, 1) for v in (left, right)))
    out = b.mul(b.cast(b.matmul(left.shifted(), right.shifted()), dtype=_F32), factor)
    return out if bias is None else b.add(out, bias)


@contrib("DynamicQuantizeMatMul")
def dynamic_matmul(
    b: Any, x: Any, y: Any, y_scale: Any, y_point: Any = None, bias: Any = None
) -> Any:
    """`MatMulIntegerToFloat` of f32 a, which is quantized by its own range first."""
    x, scale, point = dynamic_quantize(b, x)
    return matmul_to_float(b, x, y, scale, y_scale, point, y_point, bias)


@contrib("QAttention")
def qattention(
    n: OnnxNode, x: Any, weight: Any, bias: Any, x_scale: Any, w_scale: Any, mask: Any = None,
    x_point: Any = None, w_point: Any = None, past: Any = None, *,
    form: Form,
) -> Any:  # fmt: skip
    """Build attention over the product of quantized x and weights, plus a bias in f32."""
    product = matmul_to_float(n.b, x, weight, x_scale, w_scale, x_point, w_point, bias)
    return attended(n, product, mask, past, None, form)


def _on_floats(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler of a quantized tensor by that of a node, x and attributes in f32."""

    def handler(n: OnnxNode, x: Quantized, made: Format, **attributes: Any) -> Any:
        return made.of(compute(n, x.floats(), **attributes), n.b.type_of(x.value).dtype)

    given = signature(handler).parameters.values()
    parameters = [p for p in given if p.kind is p.POSITIONAL_OR_KEYWORD]
    parameters += [p for p in signature(compute).parameters.values() if p.kind is p.KEYWORD_ONLY]
    handler.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return handler


def _softmax(n: OnnxNode, x: Any, *, axis: int = -1, opset: int) -> Any:
    rank = n.b.type_of(x).rank
    if opset < 13 and axis % rank != rank - 1:
        raise unsupported("the softmax of opsets before 13: expected the last axis")
    return n.b.softmax(x, axis=axis % rank)


def _average(
    n: OnnxNode, x: Any, *, channels_last: int = 0, count_include_pad: int = 0, sliding: Sliding
) -> Any:
    if channels_last:
        raise unsupported("channels_last: expected channels first")
    if n.op == "QLinearGlobalAveragePool":
        return n.b.reduce_mean(x, axes=tuple(range(2, n.b.type_of(x).rank)), keepdims=True)
    return average_pool(n.b, x, count_include_pad=count_include_pad, sliding=sliding)


formulas({
    f"com.microsoft.{name}": (f"{doc}, of a quantized tensor.", _on_floats(compute))
    for name, doc, compute in (
        ("QLinearSigmoid", "The sigmoid", lambda n, x: n.b.sigmoid(x)),
        ("QLinearLeakyRelu", "out = alpha * x where x < 0, else x",
         lambda n, x, *, alpha=0.01: leaky(n.b, x, alpha)),
        # Within one unit of onnxruntime's, which takes the exponentials from a table.
        ("QLinearSoftmax", "softmax along `axis`, the last one before opset 13", _softmax),
        ("QLinearAveragePool", "The mean of each window", _average),
        ("QLinearGlobalAveragePool", "The mean of all pixels", _average),
    )
})  # fmt: skip


@contrib("QLinearConcat")
def qlinear_concat(b: Any, made: Format, *parts: Any, axis: int) -> Any:
    """Join quantized tensors along `axis`, all by the scale and zero point of the first inputs."""
    if not parts or len(parts) % 3:
        raise PycError(ReasonCode.BAD_MODEL, "expected inputs in threes after the first two")
    first = b.type_of(parts[0])
    floats = [Quantized(b, *parts[i : i + 3]).floats() for i in range(0, len(parts), 3)]
    return chain(b, [made.of(v, first.dtype) for v in floats], axis % first.rank)


@contrib("QLinearWhere")
def qlinear_where(b: Any, condition: Any, x: Quantized, y: Quantized, made: Format) -> Any:
    """x where the condition holds, else y, both quantized anew."""
    dtype = b.type_of(x.value).dtype
    return b.select(condition, *(made.of(v.floats(), dtype) for v in (x, y)))
