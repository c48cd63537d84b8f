"""Norms, activations, products and rotary embedding in onnxruntime's domain, `com.microsoft`.

`SimplifiedLayerNormalization`, which onnxruntime writes into ONNX's domain, is one of them.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.dialects.types import DTYPES, accumulator
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to, merge, reshape_to, swap_last, take
from pyc_mlir.frontends.onnx.ops.layers.contraction import scaled_product
from pyc_mlir.frontends.onnx.ops.microsoft.blocks import unpacked
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, contrib

_UI8 = DTYPES["ui8"]


@contrib("SimplifiedLayerNormalization")
def simplified_layer_norm(n: OnnxNode) -> Any:
    """pyc.rmsnorm over the dimensions from `axis` on."""
    axis = n.attr("axis", -1) % n.type().rank
    if n.wants(1):
        raise unsupported("the output `inv_std_var`: expected only the normalized values")
    return n.b.rmsnorm(n.x(0), n.x(1), axis=axis, epsilon=n.attr("epsilon", 1e-5))


@contrib("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_layer_norm(n: OnnxNode) -> Any:
    """out = layernorm (or rmsnorm) of x + skip + bias; output 3 is that sum."""
    b, simplified = n.b, n.op == "SkipSimplifiedLayerNormalization"
    if n.wants(1) or n.wants(2):
        raise unsupported("the outputs `mean`, `inv_std_var`: expected the first and the last")
    bias = 3 if simplified else 4
    added = [n.x(0), n.x(1), *([n.x(bias)] if n.has(bias) else ())]
    vectors = [n.x(2)]
    if not simplified:
        vectors.append(n.x(3) if n.has(3) else expand_to(b, n.number(0), n.dims(2)))
    norm = b.rmsnorm if simplified else b.layernorm
    return normed_sum(n, added, norm, vectors)


def normed_sum(
    n: OnnxNode, added: Sequence[Any], norm: Callable[..., Any], vectors: Sequence[Any]
) -> tuple[Any, ...]:
    """Return `norm` of a sum along the last axis, two missing outputs, and the sum.

    16-bit floats are added in f32: the sum may leave their range, its norm does not.
    """
    b, dtype = n.b, n.b.type_of(added[0]).dtype
    values, vectors = ([b.convert(v, accumulator(dtype)) for v in g] for g in (added, vectors))
    total = reduce(b.add, values)
    out = norm(total, *vectors, axis=-1, epsilon=n.attr("epsilon", 1e-12))
    return b.convert(out, dtype), None, None, b.convert(total, dtype)


@contrib("BiasGelu", "Gelu", "FastGelu")
def gelu(n: OnnxNode) -> Any:
    """gelu of x + bias; FastGelu by tanh."""
    x = n.b.add(n.x(0), n.x(1)) if n.has(1) else n.x(0)
    return n.b.gelu(x, approximate="tanh" if n.op == "FastGelu" else "none")


@contrib("QuickGelu")
def quick_gelu(n: OnnxNode) -> Any:
    """out = x * sigmoid(alpha x)."""
    b, x = n.b, n.x()
    return b.mul(x, b.sigmoid(b.mul(x, n.number(n.attr("alpha", 1.702)))))


@contrib("FusedMatMul", "TransposeMatMul")
def fused_matmul(n: OnnxNode) -> Any:
    """out = alpha * A' @ B', transposed if requested; transBatch: the rows are the first axis."""
    b, alpha = n.b, n.attr("alpha", 1.0)

    def operand(index: int, name: str) -> Any:
        x, rank = n.x(index), n.type(index).rank
        if n.attr(f"transBatch{name}", 0):
            x = b.transpose(x, permutation=(*range(1, rank - 1), 0, rank - 1))
        return swap_last(b, x) if n.attr(f"trans{name}", 0) else x

    return scaled_product(n, operand(0, "A"), operand(1, "B"), alpha)


@contrib("MatMulNBits")
def matmul_of_few_bits(n: OnnxNode) -> Any:
    """out = x @ w' + bias, w [N, K] of 4 or 8 bits in blocks along K, each with its scale.

    The weights stay packed in the program: two of 4 bits a byte, the lower half first.
    """
    b, bits, block = n.b, n.attr("bits", 4), n.stated("block_size")
    rows, depth = n.stated("N"), n.stated("K")
    if block < 1:
        raise PycError(ReasonCode.BAD_MODEL, f"`block_size`: expected 1 or more, got {block}")
    if bits not in (4, 8) or n.has(4) or n.attr("weight_prepacked", 0):
        raise unsupported(f"{bits} bits, `g_idx` or packed weights: expected 4 or 8 bits in order")
    blocks = -(-depth // block)
    if n.type(1).shape != (rows, blocks, block * bits // 8) or n.type(1).dtype != _UI8:
        raise PycError(ReasonCode.BAD_MODEL, f"`B`: expected {rows} x {blocks} blocks of ui8")
    wide = n.type(2).dtype
    if (not n.has(3) or n.type(3).dtype == _UI8) and n.type(0).dtype == wide == DTYPES["f32"]:
        out = _packed_product(n, bits, (rows, blocks))
        return b.add(out, n.x(5)) if n.has(5) else out
    weight = unpacked(b, n.x(1), bits)
    if n.has(3) and n.type(3).dtype == _UI8:
        packed = b.reshape(n.x(3), shape=(rows, -1))
        point = take(b, unpacked(b, packed, bits), 1, 0, blocks)
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


# That of MatMulNBits which allows products of 8-bit integers.
_INT8_LEVEL = 4


def _packed_product(n: OnnxNode, bits: int, shape: tuple[int, int]) -> Any:
    """Return the product by pyc.block_matmul; zero points are unpacked, a byte each."""
    b = n.b
    accuracy = "int8" if n.attr("accuracy_level", 0) == _INT8_LEVEL else "f32"
    point = b.constant(np.full(shape, 1 << (bits - 1), np.uint8))
    if n.has(3):
        point = unpacked(b, b.reshape(n.x(3), shape=(shape[0], -1)), bits)
        point = take(b, point, 1, 0, shape[1])
    scale = b.reshape(n.x(2), shape=shape)
    return b.block_matmul(n.x(0), n.x(1), scale, point, bits=bits, accuracy=accuracy)


@contrib("RotaryEmbedding")
def rotary_embedding(n: OnnxNode) -> Any:
    """Turn pairs of each head by the angles of their positions. Su et al., 2021.

    x: [batch, length, hidden] or [batch, heads, length, depth]; cos, sin: [positions, depth / 2].
    """
    b, heads = n.b, n.attr("num_heads", 0)
    x, rank = n.x(0), n.type(0).rank
    if n.attr("is_packed_batching", 0):
        raise unsupported("is_packed_batching: expected 0")
    n.attr("scale")
    half, turned = n.type(2).shape[1], n.attr("rotary_embedding_dim", 0)
    if not half:
        raise unsupported("angles of dynamic size: expected static ones")
    if turned and not heads:
        raise PycError(ReasonCode.BAD_MODEL, "`rotary_embedding_dim`: expected `num_heads` with it")
    if rank == 3:
        batch, length, hidden = b.dims(x)
        count = heads or hidden // (2 * half)
        x = b.transpose(reshape_to(b, x, (batch, length, count, -1)), permutation=(0, 2, 1, 3))
    out = rotated(b, x, _angles(n, 2, x), _angles(n, 3, x), bool(n.attr("interleaved", 0)))
    return merge(b, b.transpose(out, permutation=(0, 2, 1, 3)), 2) if rank == 3 else out


def rotated(b: Any, x: Any, cosine: Any, sine: Any, interleaved: bool) -> Any:
    """x [batch, heads, length, depth] with pairs of its first channels turned.

    cosine, sine: [batch or 1, 1, length, pairs]. A pair is neighbours (interleaved), or a channel
    and the one `pairs` after it.
    """
    half, depth = b.type_of(cosine).shape[-1], b.type_of(x).shape[-1]
    if depth is None or 2 * half > depth:
        raise PycError(ReasonCode.BAD_MODEL, f"{depth} channels: expected at least {2 * half}")
    first, rest = take(b, x, 3, 0, 2 * half), take(b, x, 3, 2 * half, depth)
    if interleaved:
        even, odd = (take(b, first, 3, i, 2 * half, 2) for i in (0, 1))
    else:
        even, odd = take(b, first, 3, 0, half), take(b, first, 3, half, 2 * half)
    low, high = (
        accumulated(b, even, lambda x, y, u, v, j=join: j(b.mul(x, u), b.mul(y, v)), odd, *turn)
        for join, turn in ((b.sub, (cosine, sine)), (b.add, (sine, cosine)))
    )
    if interleaved:
        out = merge(b, b.concat(b.expand_dims(low, 4), b.expand_dims(high, 4), axis=4), 3)
    else:
        out = b.concat(low, high, axis=3)
    return out if depth == 2 * half else b.concat(out, rest, axis=3)


def _angles(n: OnnxNode, index: int, x: Any) -> Any:
    """[batch or 1, 1, length, depth / 2] of a table of cosines or sines, at the positions."""
    b = n.b
    if n.type(1).rank == 2 and math.prod(d or 0 for d in n.type(1).shape) != 1:
        places = n.x(1)
    else:
        steps = b.reshape(b.iota_like(x, 2), shape=(1, -1))
        first = b.reshape(b.convert(n.x(1), DTYPES["i64"]), shape=(1, 1))
        places = b.add(steps, first)
    b.declare_indices(places, n.dims(index)[0])
    return b.expand_dims(b.gather(n.x(index), places, axis=0), 1)
