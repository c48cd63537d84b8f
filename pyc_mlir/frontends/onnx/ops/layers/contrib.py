"""Operators of onnxruntime's own domain, `com.microsoft`, by its ContribOperators.md.

`SimplifiedLayerNormalization`, which onnxruntime writes into ONNX's domain, is one of them.
"""

import math
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.frontends.frame.errors import unsupported
from pyc_mlir.frontends.frame.shaping import merge, reshape_to, swap_last, take
from pyc_mlir.frontends.onnx.frame.handler import Node, node
from pyc_mlir.frontends.onnx.ops.layers.quantization import rounded_to

_F32, _I32, _UI8 = DTYPES["f32"], DTYPES["i32"], DTYPES["ui8"]


def contrib(*names: str) -> Any:
    """Enter a handler under names of the domain `com.microsoft`."""
    return node(*(f"com.microsoft.{name}" for name in names))


@contrib("SimplifiedLayerNormalization")
def simplified_layer_norm(n: Node) -> Any:
    """pyc.rmsnorm over the dimensions from `axis` on."""
    axis = n.attr("axis", -1) % n.type().rank
    if n.wants(1):
        raise unsupported("the output `inv_std_var`: expected only the normalized values")
    return n.b.rmsnorm(n.x(0), n.x(1), axis=axis, epsilon=n.attr("epsilon", 1e-5))


@contrib("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_layer_norm(n: Node) -> Any:
    """out = layernorm (or rmsnorm) of x + skip + bias; output 3 is that sum."""
    b, simplified = n.b, n.op == "SkipSimplifiedLayerNormalization"
    if n.wants(1) or n.wants(2):
        raise unsupported("the outputs `mean`, `inv_std_var`: expected the first and the last")
    bias = 3 if simplified else 4
    total = b.add(n.x(0), n.x(1))
    total = b.add(total, n.x(bias)) if n.has(bias) else total
    epsilon = n.attr("epsilon", 1e-12)
    if simplified:
        out = b.rmsnorm(total, n.x(2), axis=-1, epsilon=epsilon)
    else:
        zeros = b.mul(n.x(2), n.number(0))
        out = b.layernorm(total, n.x(2), n.x(3) if n.has(3) else zeros, axis=-1, epsilon=epsilon)
    return out, None, None, total


@contrib("BiasGelu", "Gelu", "FastGelu")
def gelu(n: Node) -> Any:
    """gelu of x + bias; FastGelu by tanh."""
    x = n.b.add(n.x(0), n.x(1)) if n.has(1) else n.x(0)
    return n.b.gelu(x, approximate="tanh" if n.op == "FastGelu" else "none")


@contrib("QuickGelu")
def quick_gelu(n: Node) -> Any:
    """out = x * sigmoid(alpha x)."""
    b, x = n.b, n.x()
    return b.mul(x, b.sigmoid(b.mul(x, n.number(n.attr("alpha", 1.702)))))


@contrib("FusedMatMul", "TransposeMatMul")
def fused_matmul(n: Node) -> Any:
    """out = alpha * A' @ B', transposed where asked."""
    if n.attr("transBatchA", 0) or n.attr("transBatchB", 0):
        raise unsupported("transBatchA, transBatchB: expected 0")
    b, alpha = n.b, n.attr("alpha", 1.0)
    flips = [bool(n.attr(name, 0)) for name in ("transA", "transB")]
    lhs, rhs = (swap_last(b, n.x(i)) if flip else n.x(i) for i, flip in enumerate(flips))
    out = b.matmul(lhs, rhs)
    return out if alpha == 1.0 else b.mul(out, n.number(alpha))


@contrib("MatMulNBits")
def matmul_of_few_bits(n: Node) -> Any:
    """out = x @ w' + bias, w [N, K] of 4 or 8 bits in blocks along K, each with its scale.

    The weights stay packed in the program: two of 4 bits a byte, the lower half first.
    """
    b, bits, block = n.b, n.attr("bits", 4), n.attr("block_size")
    rows, depth = n.attr("N"), n.attr("K")
    if bits not in (4, 8) or n.has(4):
        raise unsupported(f"{bits} bits, or `g_idx`: expected 4 or 8 bits in order")
    blocks = -(-depth // block)
    if n.type(1).shape != (rows, blocks, block * bits // 8) or n.type(1).dtype != _UI8:
        raise PycError(ReasonCode.BAD_MODEL, f"`B`: expected {rows} x {blocks} blocks of ui8")
    wide = n.type(2).dtype
    weight = _unpacked(b, n.x(1), bits)
    if n.has(3) and n.type(3).dtype == _UI8:
        packed = b.reshape(n.x(3), shape=(rows, -1))
        point = take(b, _unpacked(b, packed, bits), 1, 0, blocks)
        point = b.cast(b.reshape(point, shape=(rows, blocks, 1)), dtype=wide)
    elif n.has(3):
        point = b.convert(b.reshape(n.x(3), shape=(rows, blocks, 1)), wide)
    else:
        point = b.constant(np.array(1 << (bits - 1), wide))
    scale = b.reshape(n.x(2), shape=(rows, blocks, 1))
    weight = b.mul(b.sub(b.cast(weight, dtype=wide), point), scale)
    weight = take(b, b.reshape(weight, shape=(rows, blocks * block)), 1, 0, depth)
    out = b.matmul(n.x(0), b.transpose(b.convert(weight, n.type(0).dtype), permutation=(1, 0)))
    n.attr("accuracy_level")  # How few bits the products may have.
    return b.add(out, n.x(5)) if n.has(5) else out


def _unpacked(b: Any, x: Any, bits: int) -> Any:
    """Bytes as numbers of `bits` bits along the last axis, the lowest first."""
    if bits == 8:
        return x
    low = b.and_(x, b.constant(np.array(15, np.uint8)))
    high = b.shift_right(x, b.constant(np.array(4, np.uint8)))
    rank = b.type_of(x).rank
    both = b.concat(b.expand_dims(low, rank), b.expand_dims(high, rank), axis=rank)
    return merge(b, both, rank - 1)


@contrib("QLinearAdd", "QLinearMul")
def qlinear_binary(n: Node) -> Any:
    """The sum or product of two quantized tensors, quantized; inputs: (x, scale, zero point)."""
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
def qgemm(n: Node) -> Any:
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


@contrib("RotaryEmbedding")
def rotary_embedding(n: Node) -> Any:
    """Pairs of each head turned by the angles of their positions. Su et al., 2021.

    x: [batch, length, hidden] or [batch, heads, length, depth]; cos, sin: [positions, depth / 2].
    """
    b, heads = n.b, n.attr("num_heads", 0)
    x, rank = n.x(0), n.type(0).rank
    if n.attr("rotary_embedding_dim", 0) or n.attr("is_packed_batching", 0):
        raise unsupported("rotary_embedding_dim, is_packed_batching: expected 0")
    n.attr("scale")
    half = n.type(2).shape[1]
    if half is None:
        raise unsupported("angles of dynamic size: expected static ones")
    if rank == 3:
        batch, length, hidden = b.dims(x)
        count = heads or hidden // (2 * half)
        x = b.transpose(
            reshape_to(b, x, (batch, length, count, 2 * half)), permutation=(0, 2, 1, 3)
        )
    cosine, sine = (_angles(n, i, x) for i in (2, 3))
    if n.attr("interleaved", 0):
        even, odd = (take(b, x, 3, i, 2**63 - 1, 2) for i in (0, 1))
    else:
        even, odd = take(b, x, 3, 0, half), take(b, x, 3, half, 2 * half)
    first = b.sub(b.mul(even, cosine), b.mul(odd, sine))
    second = b.add(b.mul(even, sine), b.mul(odd, cosine))
    if n.attr("interleaved", 0):
        out = merge(b, b.concat(b.expand_dims(first, 4), b.expand_dims(second, 4), axis=4), 3)
    else:
        out = b.concat(first, second, axis=3)
    return merge(b, b.transpose(out, permutation=(0, 2, 1, 3)), 2) if rank == 3 else out


def _angles(n: Node, index: int, x: Any) -> Any:
    """[batch or 1, 1, length, depth / 2] of a table of cosines or sines, at the positions."""
    b = n.b
    if n.type(1).rank == 2 and math.prod(d or 0 for d in n.type(1).shape) != 1:
        places = n.x(1)
    else:
        steps = b.reshape(b.iota_like(x, 2), shape=(1, -1))
        first = b.reshape(b.convert(n.x(1), DTYPES["i64"]), shape=(1, 1))
        places = b.add(steps, first)
    return b.expand_dims(b.gather(n.x(index), places, axis=0), 1)
