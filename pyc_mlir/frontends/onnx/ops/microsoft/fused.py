"""Operators that onnxruntime makes of several: activations joined to products, embeddings."""

from typing import Any

from pyc_mlir.dialects import functions
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES, I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to
from pyc_mlir.frontends.onnx.ops.images.convolution import conv
from pyc_mlir.frontends.onnx.ops.layers.contraction import gemm
from pyc_mlir.frontends.onnx.ops.microsoft.blocks import in_blocks, take_last, unpacked
from pyc_mlir.frontends.onnx.ops.microsoft.layers import normed_sum
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, contrib


def _activated(n: OnnxNode, x: Any, name: str, numbers: list[float]) -> Any:
    """Apply an activation by its name in ONNX, with the parameters that it has there."""
    b = n.b

    def number(index: int, default: float) -> Any:
        return b.scalar(numbers[index] if index < len(numbers) else default, x)

    simple = {"Relu": b.relu, "Tanh": b.tanh, "Sigmoid": b.sigmoid}
    if name in simple:
        return simple[name](x)
    if name == "LeakyRelu":
        below = b.compare(x, b.scalar(0, x), predicate="lt")
        return b.select(below, b.mul(x, number(0, 0.01)), x)
    if name == "Clip" and len(numbers) == 2:
        return b.minimum(b.maximum(x, number(0, 0)), number(1, 0))
    if name == "HardSigmoid":
        out = b.add(b.mul(x, number(0, 0.2)), number(1, 0.5))
        return b.minimum(b.maximum(out, b.scalar(0, x)), b.scalar(1, x))
    if name == "Elu":
        below = b.compare(x, b.scalar(0, x), predicate="lt")
        bent = functions.expm1(b, b.minimum(x, b.scalar(0, x)))
        return b.select(below, b.mul(number(0, 1.0), bent), x)
    raise unsupported(f"activation {name!r}: expected Relu, LeakyRelu, Clip, Elu or a sigmoid")


@contrib("FusedConv")
def fused_conv(n: OnnxNode) -> Any:
    """out = activation(Conv(x, w, bias) + z)."""
    out = conv(n)
    out = n.b.add(out, n.x(3)) if n.has(3) else out
    name = n.attr("activation", "")
    numbers = n.attr("activation_params", [])
    return _activated(n, out, name, list(numbers)) if name else out


@contrib("FusedGemm")
def fused_gemm(n: OnnxNode) -> Any:
    """out = activation(Gemm(a, b, c))."""
    out, name = gemm(n), n.attr("activation", "")
    kinds = [f"activation_{kind}" for kind in ("alpha", "beta", "gamma")]
    given = [n.stated(kind, float) for kind in kinds if n.attr(kind) is not None]
    return _activated(n, out, name, given) if name else out


@contrib("EmbedLayerNormalization")
def embed_layer_norm(n: OnnxNode) -> Any:
    """out = layernorm of the embeddings of words, places and segments, [batch, length, hidden].

    Output 1 counts the ones of the mask of each sequence; output 2 is the sum of the embeddings.
    """
    b, ids = n.b, n.x(0)
    places = n.x(8) if n.has(8) else b.reshape(b.iota_like(ids, 1), shape=(1, -1))
    for given, table in ((0, 2), (8, 3), (1, 4)):
        if n.has(given) and n.has(table):
            b.declare_indices(n.x(given), n.dims(table)[0])
    added = [b.gather(n.x(2), ids, axis=0), b.gather(n.x(3), places, axis=0)]
    if n.has(1) and n.has(4):
        added.append(b.gather(n.x(4), n.x(1), axis=0))
    out, _, _, total = normed_sum(n, added, b.layernorm, [n.x(5), n.x(6)])
    n.attr("mask_index_type")  # Whether there is an output 1.
    mask = n.x(7) if n.has(7) else expand_to(b, b.scalar(0, ids), b.dims(ids))
    counts = b.reduce_sum(b.convert(mask, DTYPES["i32"]), axes=(1,), keepdims=False)
    return out, counts, total


@contrib("GatherBlockQuantized")
def gather_quantized_blocks(n: OnnxNode) -> Any:
    """Gather rows of a table of 4 or 8 bits at `indices`: (x - zero point) * scale by blocks.

    data: ui8 [rows, ...], two numbers of 4 bits a byte; the rows alone leave their packed form.
    """
    b, bits, block = n.b, n.attr("bits", 4), n.attr("block_size", 128)
    rank = n.type(0).rank
    axis, along = n.attr("gather_axis", 0) % rank, n.attr("quantize_axis", 1) % rank
    if axis or along != rank - 1 or bits not in (4, 8) or n.type(0).dtype != DTYPES["ui8"]:
        raise unsupported("another table than rows of ui8 with blocks of 4 or 8 bits along them")
    if block < 1:
        raise PycError(ReasonCode.BAD_MODEL, f"`block_size`: expected 1 or more, got {block}")
    b.declare_indices(n.x(1), n.dims(0)[0])
    rows = b.convert(n.x(1), I64)
    numbers, scale = (
        unpacked(b, b.gather(n.x(0), rows, axis=0), bits),
        b.gather(n.x(2), rows, axis=0),
    )
    depth, blocks = b.type_of(numbers).shape[-1], b.type_of(scale).shape[-1]
    if depth is None or blocks != -(-depth // block):
        raise unsupported(f"{blocks} scales of {depth} numbers: expected one for each block")
    wide = b.type_of(scale).dtype
    point: Any = b.scalar(1 << (bits - 1), scale)
    if n.has(3):
        points = unpacked(b, b.gather(n.x(3), rows, axis=0), bits)
        point = in_blocks(b, b.cast(take_last(b, points, blocks), dtype=wide), block, depth)
    numbers = b.sub(b.cast(numbers, dtype=wide), point)
    return b.mul(numbers, in_blocks(b, scale, block, depth))
