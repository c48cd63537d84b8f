"""Quantized operators of onnxruntime's domain, computed as its CPU provider does."""

from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import chain, swap_last
from pyc_mlir.frontends.onnx.ops.images.convolution import averaged
from pyc_mlir.frontends.onnx.ops.layers.quantization import dynamically, rounded_to
from pyc_mlir.frontends.onnx.ops.microsoft.attention import attended
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, contrib

_F32, _I32, _UI8 = DTYPES["f32"], DTYPES["i32"], DTYPES["ui8"]


@contrib("QLinearAdd", "QLinearMul")
def qlinear_binary(n: OnnxNode) -> Any:
    """Build the quantized sum or product of two quantized tensors: (x, scale, zero point) each."""
    b = n.b

    def shifted(index: int) -> Any:
        x = b.cast(n.x(index), dtype=_I32)
        return b.sub(x, b.cast(n.x(index + 2), dtype=_I32)) if n.has(index + 2) else x

    left, right, out = n.x(1), n.x(4), n.x(6)
    if n.op == "QLinearMul":
        whole = b.cast(b.mul(shifted(0), shifted(3)), dtype=_F32)
        total = b.mul(whole, b.div(b.mul(left, right), out))
        if n.has(7):  # onnxruntime rounds this after the zero point was added.
            total = b.add(total, b.cast(n.x(7), dtype=_F32))
        return rounded_to(b, total, None, n.type(0).dtype)
    parts = [
        b.mul(b.cast(shifted(i), dtype=_F32), b.div(scale, out))
        for i, scale in ((0, left), (3, right))
    ]
    total = b.add(*parts)
    return rounded_to(b, total, n.x(7) if n.has(7) else None, n.type(0).dtype)


@contrib("QGemm")
def qgemm(n: OnnxNode) -> Any:
    """alpha * A' @ B' + C of quantized matrices; quantized, or f32 without an output scale."""
    b = n.b

    def matrix(index: int, transposed: bool) -> Any:
        x = b.cast(n.x(index), dtype=_I32)
        point = b.cast(n.x(index + 2), dtype=_I32)
        if b.type_of(point).rank == 1 and b.type_of(point).shape != (1,):
            point = b.align(point, 0 if transposed else 1, 2)
        x = b.sub(x, point)
        return swap_last(b, x) if transposed else x

    lhs, rhs = matrix(0, bool(n.attr("transA", 0))), matrix(3, bool(n.attr("transB", 0)))
    whole = b.matmul(lhs, rhs)
    whole = b.add(whole, n.x(6)) if n.has(6) else whole
    scale = b.mul(n.x(1), n.x(4))
    alpha = n.attr("alpha", 1.0)
    scale = scale if alpha == 1.0 else b.mul(scale, b.scalar(alpha, scale))
    if not n.has(7):
        return b.mul(b.cast(whole, dtype=_F32), scale)
    out = b.mul(b.cast(whole, dtype=_F32), b.div(scale, n.x(7)))
    return rounded_to(b, out, n.x(8) if n.has(8) else None, n.type(8).dtype if n.has(8) else _UI8)


@contrib("MatMulIntegerToFloat", "DynamicQuantizeMatMul")
def matmul_to_float(n: OnnxNode) -> Any:
    """out = (a - a_zero) @ (b - b_zero) * a_scale * b_scale + bias, f32; products in i32.

    DynamicQuantizeMatMul quantizes a, which is f32, by its own range first.
    """
    b = n.b
    if n.op == "DynamicQuantizeMatMul":
        left, left_scale, left_point = dynamically(b, n.x(0))
        scale, point, bias = n.x(2), n.x(3) if n.has(3) else None, 4
    else:
        left, left_scale, left_point = n.x(0), n.x(2), n.x(4) if n.has(4) else None
        scale, point, bias = n.x(3), n.x(5) if n.has(5) else None, 6
    whole = b.matmul(_less(b, left, left_point), _less(b, n.x(1), point))
    factor = b.mul(_one(b, left_scale), _one(b, scale))
    out = b.mul(b.cast(whole, dtype=_F32), factor)
    return b.add(out, n.x(bias)) if n.has(bias) else out


def _one(b: Any, x: Any) -> Any:
    """Return a parameter of one element as a scalar, one for each column as it is."""
    return b.reshape(x, shape=()) if b.type_of(x).shape == (1,) else x


def _less(b: Any, x: Any, point: Any) -> Any:
    """x - point as i32."""
    x = b.cast(x, dtype=_I32)
    return x if point is None else b.sub(x, b.cast(_one(b, point), dtype=_I32))


def _float(n: OnnxNode, index: int) -> Any:
    """Return inputs `index` to `index + 2` (x, scale, zero point) as f32."""
    b = n.b
    x = _less(b, n.x(index), n.x(index + 2) if n.has(index + 2) else None)
    return b.mul(b.cast(x, dtype=_F32), _one(b, n.x(index + 1)))


def _quantized(n: OnnxNode, x: Any, scale: int, point: int, dtype: Any) -> Any:
    """f32 x by the scale and zero point of these inputs."""
    b = n.b
    zero = _one(b, n.x(point)) if n.has(point) else None
    return rounded_to(b, b.div(x, _one(b, n.x(scale))), zero, dtype)


@contrib("QLinearSigmoid", "QLinearLeakyRelu")
def qlinear_activation(n: OnnxNode) -> Any:
    """Apply the function to a quantized tensor; inputs: x, scale, zero, new scale, new zero."""
    b, x = n.b, _float(n, 0)
    if n.op == "QLinearSigmoid":
        out = b.sigmoid(x)
    else:
        alpha = b.scalar(n.attr("alpha", 0.01), x)
        out = b.select(b.compare(x, b.scalar(0, x), predicate="lt"), b.mul(x, alpha), x)
    return _quantized(n, out, 3, 4, n.type(0).dtype)


@contrib("QLinearSoftmax")
def qlinear_softmax(n: OnnxNode) -> Any:
    """softmax along `axis` of a quantized tensor, quantized; the axes after it too before opset 13.

    Within one unit of onnxruntime's, which takes the exponentials from a table.
    """
    b, rank = n.b, n.type(0).rank
    axis = n.attr("axis", -1) % rank
    if n.stated("opset") < 13 and axis != rank - 1:
        raise unsupported("the softmax of opsets before 13: expected the last axis")
    return _quantized(n, b.softmax(_float(n, 0), axis=axis), 3, 4, n.type(0).dtype)


@contrib("QLinearConcat")
def qlinear_concat(n: OnnxNode) -> Any:
    """Join quantized tensors along `axis`, all by the scale and zero point of the first inputs."""
    if n.count < 3 or (n.count - 2) % 3:
        raise PycError(ReasonCode.BAD_MODEL, "expected inputs in threes after the first two")
    axis = n.stated("axis") % n.type(2).rank
    parts = [_float(n, i) for i in range(2, n.count, 3)]
    dtype = n.type(2).dtype
    return chain(n.b, [_quantized(n, p, 0, 1, dtype) for p in parts], axis)


@contrib("QLinearWhere")
def qlinear_where(n: OnnxNode) -> Any:
    """x where the condition holds, else y, both quantized anew."""
    dtype = n.type(1).dtype
    yes, no = (_quantized(n, _float(n, i), 7, 8, dtype) for i in (1, 4))
    return n.b.select(n.x(0), yes, no)


@contrib("QLinearGlobalAveragePool", "QLinearAveragePool")
def qlinear_average(n: OnnxNode) -> Any:
    """Build the mean of all pixels, or of each window, of a quantized image, quantized."""
    if n.attr("channels_last", 0):
        raise unsupported("channels_last: expected channels first")
    b, dtype = n.b, n.type(0).dtype
    if n.op == "QLinearGlobalAveragePool":
        axes = tuple(range(2, n.type(0).rank))
        out = b.reduce_mean(_float(n, 0), axes=axes, keepdims=True)
    else:
        out = averaged(n, _float(n, 0))
    return _quantized(n, out, 3, 4, dtype)


@contrib("QAttention")
def qattention(n: OnnxNode) -> Any:
    """Build attention over the product of quantized x and weights, plus a bias in f32."""
    b = n.b
    whole = b.matmul(
        _less(b, n.x(0), n.x(6) if n.has(6) else None),
        _less(b, n.x(1), n.x(7) if n.has(7) else None),
    )
    factor = b.mul(_one(b, n.x(3)), _one(b, n.x(4)))
    packed = b.add(b.mul(b.cast(whole, dtype=_F32), factor), n.x(2))
    return attended(n, packed, mask=5, past=8, bias=None)
