"""Operators of onnxruntime's domain, `com.microsoft`, by its ContribOperators.md.

Norms, products, activations joined to products, embeddings, rotary angles, numbers of few bits.
`SimplifiedLayerNormalization`, which onnxruntime writes into ONNX's domain, is one of them.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.dialects.types import DTYPES, I64, accumulator
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to, merge, reshape_to, swap_last, take
from pyc_mlir.frontends.onnx.ops.convolution import Sliding, conv
from pyc_mlir.frontends.onnx.ops.math import elu, gemm, leaky, scaled_product
from pyc_mlir.frontends.onnx.ops.node import Maybe, OnnxNode, contrib

_UI8 = DTYPES["ui8"]
# That of MatMulNBits which allows products of 8-bit integers.
_INT8_LEVEL = 4


@contrib("SimplifiedLayerNormalization")
def simplified_layer_norm(
    b: Any, x: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5
) -> Any:
    """pyc.rmsnorm over the dimensions from `axis` on."""
    return b.rmsnorm(x, scale, axis=axis % b.type_of(x).rank, epsilon=epsilon)


@contrib("SkipLayerNormalization")
def skip_layer_norm(
    b: Any, x: Any, skip: Any, gamma: Any, beta: Any = None, bias: Any = None, *,
    epsilon: float = 1e-12,
) -> Any:  # fmt: skip
    """out = layernorm of x + skip + bias; output 3 is that sum."""
    beta = expand_to(b, b.scalar(0, x), b.dims(gamma)) if beta is None else beta
    return _normed_sum(b, [x, skip, bias], b.layernorm, [gamma, beta], epsilon)


@contrib("SkipSimplifiedLayerNormalization")
def skip_rms_norm(
    b: Any, x: Any, skip: Any, gamma: Any, bias: Any = None, *, epsilon: float = 1e-12
) -> Any:
    """out = rmsnorm of x + skip + bias; output 3 is that sum."""
    return _normed_sum(b, [x, skip, bias], b.rmsnorm, [gamma], epsilon)


def _normed_sum(
    b: Any, added: Sequence[Any], norm: Callable[..., Any], vectors: Sequence[Any], epsilon: float
) -> tuple[Any, ...]:
    """Return `norm` of a sum along the last axis, two missing outputs, and the sum.

    added: the operands of the sum, None for one that is left out. 16-bit floats are added in f32:
    the sum may leave their range, its norm does not.
    """
    dtype = b.type_of(added[0]).dtype
    added = [v for v in added if v is not None]
    values, vectors = ([b.convert(v, accumulator(dtype)) for v in g] for g in (added, vectors))
    total = reduce(b.add, values)
    out = norm(total, *vectors, axis=-1, epsilon=epsilon)
    return b.convert(out, dtype), None, None, b.convert(total, dtype)


@contrib("EmbedLayerNormalization")
def embed_layer_norm(
    b: Any, ids: Any, segments: Maybe, words: Any, positions: Any, segment_table: Maybe,
    gamma: Any, beta: Any, mask: Any = None, places: Any = None, *,
    epsilon: float = 1e-12, mask_index_type: Any = None,
) -> Any:  # fmt: skip
    """out = layernorm of the embeddings of words, places and segments, [batch, length, hidden].

    Output 1 counts the ones of the mask of each sequence, as `mask_index_type` wants it; output 2
    is the sum of the embeddings.
    """
    ramp = b.reshape(b.iota_like(ids, 1), shape=(1, -1)) if places is None else places
    for given, table in ((ids, words), (places, positions), (segments, segment_table)):
        if given is not None and table is not None:
            b.declare_indices(given, b.dims(table)[0])
    added = [b.gather(words, ids, axis=0), b.gather(positions, ramp, axis=0)]
    if segments is not None and segment_table is not None:
        added.append(b.gather(segment_table, segments, axis=0))
    out, _, _, total = _normed_sum(b, added, b.layernorm, [gamma, beta], epsilon)
    mask = expand_to(b, b.scalar(0, ids), b.dims(ids)) if mask is None else mask
    counts = b.reduce_sum(b.convert(mask, DTYPES["i32"]), axes=(1,), keepdims=False)
    return out, counts, total


@contrib("BiasGelu", "Gelu", "FastGelu")
def gelu(n: OnnxNode, x: Any, bias: Any = None) -> Any:
    """gelu of x + bias; FastGelu by tanh."""
    x = x if bias is None else n.b.add(x, bias)
    return n.b.gelu(x, approximate="tanh" if n.op == "FastGelu" else "none")


@contrib("QuickGelu")
def quick_gelu(b: Any, x: Any, *, alpha: float = 1.702) -> Any:
    """out = x * sigmoid(alpha x)."""
    return b.mul(x, b.sigmoid(b.mul(x, alpha)))


def _activated(b: Any, x: Any, name: str, numbers: Sequence[float]) -> Any:
    """Apply an activation by its name in ONNX, with the parameters that it has there."""
    first, second = [*numbers, None, None][:2]
    if not name:
        return x
    if name in ("Relu", "Tanh", "Sigmoid"):
        return getattr(b, name.lower())(x)
    if name == "LeakyRelu":
        return leaky(b, x, 0.01 if first is None else first)
    if name == "Elu":
        return elu(b, x, 1.0 if first is None else first)
    if name == "Clip" and len(numbers) == 2:
        return b.minimum(b.maximum(x, first), second)
    if name == "HardSigmoid":
        line = b.mul(x, 0.2 if first is None else first)
        out = b.add(line, 0.5 if second is None else second)
        return b.minimum(b.maximum(out, 0), 1)
    raise unsupported(f"activation {name!r}: expected Relu, LeakyRelu, Clip, Elu or a sigmoid")


@contrib("FusedConv")
def fused_conv(
    b: Any, x: Any, weight: Any, bias: Any = None, added: Any = None, *,
    group: int = 1, activation: str = "", activation_params: Sequence[float] = (),
    sliding: Sliding,
) -> Any:  # fmt: skip
    """out = activation(Conv(x, w, bias) + z)."""
    out = conv(b, x, weight, bias, group=group, sliding=sliding)
    out = out if added is None else b.add(out, added)
    return _activated(b, out, activation, activation_params)


@contrib("FusedGemm")
def fused_gemm(
    b: Any, x: Any, y: Any, c: Any = None, *,
    alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0, activation: str = "",
    activation_alpha: float | None = None, activation_beta: float | None = None,
    activation_gamma: float | None = None,
) -> Any:  # fmt: skip
    """out = activation(Gemm(a, b, c))."""
    out = gemm(b, x, y, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    given = (activation_alpha, activation_beta, activation_gamma)
    return _activated(b, out, activation, [v for v in given if v is not None])


@contrib("FusedMatMul", "TransposeMatMul")
def fused_matmul(
    b: Any, x: Any, y: Any, *,
    alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0,
    transBatchB: int = 0,
) -> Any:  # fmt: skip
    """out = alpha * A' @ B', transposed if requested; transBatch: the rows are the first axis."""

    def operand(x: Any, turned: int, batch_last: int) -> Any:
        rank = b.type_of(x).rank
        if batch_last:
            x = b.transpose(x, permutation=(*range(1, rank - 1), 0, rank - 1))
        return swap_last(b, x) if turned else x

    lhs, rhs = operand(x, transA, transBatchA), operand(y, transB, transBatchB)
    return scaled_product(b, lhs, rhs, alpha)


def _unpacked(b: Any, x: Any, bits: int) -> Any:
    """Unpack bytes into numbers of `bits` bits along the last axis, the lowest first."""
    if bits == 8:
        return x
    low = b.and_(x, b.constant(np.array(15, np.uint8)))
    high = b.shift_right(x, b.constant(np.array(4, np.uint8)))
    rank = b.type_of(x).rank
    both = b.concat(b.expand_dims(low, rank), b.expand_dims(high, rank), axis=rank)
    return merge(b, both, rank - 1)


def _take_last(b: Any, x: Any, count: int) -> Any:
    return take(b, x, b.type_of(x).rank - 1, 0, count)


def _in_blocks(b: Any, x: Any, block: int, depth: int) -> Any:
    """Repeat each entry of the last axis `block` times in a row, `depth` in all."""
    rank = b.type_of(x).rank
    wide = expand_to(b, b.expand_dims(x, rank), (*b.dims(x), block))
    return _take_last(b, merge(b, wide, rank - 1), depth)


def _require_block(block: int) -> None:
    if block < 1:
        raise PycError(ReasonCode.BAD_MODEL, f"`block_size`: expected 1 or more, got {block}")


@contrib("MatMulNBits")
def matmul_of_few_bits(
    b: Any, x: Any, packed: Any, scale: Any, points: Any = None, order: Any = None,
    bias: Any = None, *,
    N: int, K: int, block_size: int, bits: int = 4, accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Any:  # fmt: skip
    """out = x @ w' + bias, w [N, K] of 4 or 8 bits in blocks along K, each with its scale.

    The weights stay packed in the program: two of 4 bits a byte, the lower half first.
    """
    _require_block(block_size)
    if bits not in (4, 8) or order is not None or weight_prepacked:
        raise unsupported(f"{bits} bits, `g_idx` or packed weights: expected 4 or 8 bits in order")
    shape = N, -(-K // block_size)
    given = b.type_of(packed)
    if given.shape != (*shape, block_size * bits // 8) or given.dtype != _UI8:
        raise PycError(ReasonCode.BAD_MODEL, f"`B`: expected {N} x {shape[1]} blocks of ui8")
    own, wide = b.type_of(x).dtype, b.type_of(scale).dtype
    bytes_ = points is None or b.type_of(points).dtype == _UI8
    middle = 1 << (bits - 1)

    def unpacked_points() -> Any:
        return take(b, _unpacked(b, b.reshape(points, shape=(N, -1)), bits), 1, 0, shape[1])

    if bytes_ and own == wide == DTYPES["f32"]:
        # Zero points are unpacked, a byte each.
        middles = np.full(shape, middle, np.uint8)
        point = b.constant(middles) if points is None else unpacked_points()
        accuracy = "int8" if accuracy_level == _INT8_LEVEL else "f32"
        scale = b.reshape(scale, shape=shape)
        out = b.block_matmul(x, packed, scale, point, bits=bits, accuracy=accuracy)
        return out if bias is None else b.add(out, bias)
    weight = _unpacked(b, packed, bits)
    if points is None:
        point = b.constant(np.array(middle, wide))
    elif bytes_:
        point = b.cast(b.reshape(unpacked_points(), shape=(*shape, 1)), dtype=wide)
    else:
        point = b.convert(b.reshape(points, shape=(*shape, 1)), wide)
    scale = b.reshape(scale, shape=(*shape, 1))
    weight = b.mul(b.sub(b.cast(weight, dtype=wide), point), scale)
    weight = take(b, b.reshape(weight, shape=(N, shape[1] * block_size)), 1, 0, K)
    out = b.matmul(x, b.transpose(b.convert(weight, own), permutation=(1, 0)))
    return out if bias is None else b.add(out, bias)


@contrib("GatherBlockQuantized")
def gather_quantized_blocks(
    b: Any, table: Any, indices: Any, scales: Any, points: Any = None, *,
    bits: int = 4, block_size: int = 128, gather_axis: int = 0, quantize_axis: int = 1,
) -> Any:  # fmt: skip
    """Gather rows of a table of 4 or 8 bits at `indices`: (x - zero point) * scale by blocks.

    data: ui8 [rows, ...], two numbers of 4 bits a byte; the rows alone leave their packed form.
    """
    rank = b.type_of(table).rank
    legal = gather_axis % rank == 0 and quantize_axis % rank == rank - 1
    if not legal or bits not in (4, 8) or b.type_of(table).dtype != _UI8:
        raise unsupported("another table than rows of ui8 with blocks of 4 or 8 bits along them")
    _require_block(block_size)
    b.declare_indices(indices, b.dims(table)[0])
    rows = b.convert(indices, I64)
    numbers = _unpacked(b, b.gather(table, rows, axis=0), bits)
    scale = b.gather(scales, rows, axis=0)
    depth, blocks = b.type_of(numbers).shape[-1], b.type_of(scale).shape[-1]
    if depth is None or blocks != -(-depth // block_size):
        raise unsupported(f"{blocks} scales of {depth} numbers: expected one for each block")
    wide = b.type_of(scale).dtype
    point: Any = b.scalar(1 << (bits - 1), scale)
    if points is not None:
        own = _take_last(b, _unpacked(b, b.gather(points, rows, axis=0), bits), blocks)
        point = _in_blocks(b, b.cast(own, dtype=wide), block_size, depth)
    numbers = b.sub(b.cast(numbers, dtype=wide), point)
    return b.mul(numbers, _in_blocks(b, scale, block_size, depth))


@contrib("RotaryEmbedding")
def rotary_embedding(
    b: Any, x: Any, positions: Any, cosines: Any, sines: Any, *,
    num_heads: int = 0, rotary_embedding_dim: int = 0, interleaved: int = 0,
    is_packed_batching: int = 0, scale: Any = None,
) -> Any:  # fmt: skip
    """Turn pairs of each head by the angles of their positions. Su et al., 2021.

    x: [batch, length, hidden] or [batch, heads, length, depth]; cos, sin: [positions, depth / 2].
    """
    rank, half = b.type_of(x).rank, b.type_of(cosines).shape[1]
    if is_packed_batching:
        raise unsupported("is_packed_batching: expected 0")
    if not half:
        raise unsupported("angles of dynamic size: expected static ones")
    if rotary_embedding_dim and not num_heads:
        raise PycError(ReasonCode.BAD_MODEL, "`rotary_embedding_dim`: expected `num_heads` with it")
    if rank == 3:
        batch, length, hidden = b.dims(x)
        count = num_heads or hidden // (2 * half)
        x = b.transpose(reshape_to(b, x, (batch, length, count, -1)), permutation=(0, 2, 1, 3))
    cosine, sine = (_angles(b, table, positions, x) for table in (cosines, sines))
    out = rotated(b, x, cosine, sine, bool(interleaved))
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


def _angles(b: Any, table: Any, positions: Any, x: Any) -> Any:
    """[batch or 1, 1, length, depth / 2] of a table of cosines or sines, at the positions."""
    given = b.type_of(positions)
    if given.rank == 2 and math.prod(d or 0 for d in given.shape) != 1:
        places = positions
    else:
        steps = b.reshape(b.iota_like(x, 2), shape=(1, -1))
        first = b.reshape(b.convert(positions, I64), shape=(1, 1))
        places = b.add(steps, first)
    b.declare_indices(places, b.dims(table)[0])
    return b.expand_dims(b.gather(table, places, axis=0), 1)
