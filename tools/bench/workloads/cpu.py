"""The workloads of `latency --suite cpu`: a table, each in two sizes.

A row names the class of its program, one maker, its sizes and tiny ones for tests. The program is a
function in numpy style whose weights are constants; peers get it through `peers_graph`. All f32.
The first 25 rows are matrix products, MLPs, rows, columns, elementwise work and convolutions; then
come transformer blocks and the demo models, and `CALL`, which does next to nothing: what a call
costs by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir import nn
from pyc_mlir.frontends.python.specs import leaves, spec
from pyc_mlir.tools.bench.workloads import blocks as cpu_blocks
from pyc_mlir.tools.bench.workloads.case import Weights
from pyc_mlir.tools.bench.workloads.encoder import EncoderShape, encoder_block, encoder_weights
from pyc_mlir.tools.bench.workloads.workloads import Workload, digits

# Classes whose numbers the project's goals are about, then those that are only reported.
GOAL_CLASSES = ("gemm", "mlp", "rows", "columns", "elementwise", "encoder")
CLASSES = (*GOAL_CLASSES, "convolution", "decoder", "demo", "call")
CALL = "call of nothing"
_SEED = 1


@dataclass(frozen=True)
class Row:
    """A workload: `make(name, *sizes)`."""

    kind: str
    make: Callable[..., Workload]
    sizes: tuple[Any, ...]
    tiny: tuple[Any, ...]


def make(name: str, tiny: bool = False) -> Workload:
    """The workload of that name, at its tiny sizes for tests."""
    row = ROWS[name]
    return row.make(name, *(row.tiny if tiny else row.sizes))


def case(name: str, function: Any, *shapes: tuple[int, ...], types: Any = None) -> Workload:
    """`function` on seeded arguments of those shapes; on float64 arrays it is the reference."""
    draw = Weights(_SEED)
    inputs = tuple(draw.activations(*shape) for shape in shapes)

    def reference() -> list[np.ndarray]:
        wide = (a.astype(np.float64) for a in inputs)
        return [np.asarray(result) for _, result in leaves(function(*wide))]

    return Workload(name, function, inputs, reference, types=types)


def _gemm(name: str, m: int, k: int, n: int) -> Workload:
    weight = Weights().matrix(k, n)
    return case(name, lambda x: x @ weight, (m, k))


def gemm_gelu(name: str, m: int, k: int, n: int) -> Workload:
    """The product of x [m, k] with weights [k, n], a bias and gelu behind it."""
    draw = Weights()
    weight, bias = draw.matrix(k, n), draw.vector(n)
    return case(name, lambda x: nn.gelu(x @ weight + bias), (m, k))


def _gemm_arguments(name: str, *shapes: tuple[int, ...]) -> Workload:
    return case(name, lambda x, y: x @ y, *shapes)


def _mlp(name: str, batch: int, widths: tuple[int, ...]) -> Workload:
    return case(name, cpu_blocks.mlp(widths), (batch, widths[0]))


def _dynamic_mlp(name: str, batch: int, widths: tuple[int, ...]) -> Workload:
    types = (spec(np.float32, ("batch", widths[0])),)
    return case(name, cpu_blocks.mlp(widths), (batch, widths[0]), types=types)


def _layernorm(name: str, rows: int, columns: int) -> Workload:
    draw = Weights()
    scale, bias = draw.vector(columns, 1.0), draw.vector(columns)
    return case(name, lambda x: nn.layernorm(x, scale, bias), (rows, columns))


def _softmax(name: str, *shape: int) -> Workload:
    return case(name, nn.softmax, shape)


def _sum(name: str, axis: int, *shape: int) -> Workload:
    return case(name, lambda x: np.sum(x, axis=axis), shape)


def _transpose(name: str, *shape: int) -> Workload:
    return case(name, lambda x: x.transpose(1, 0), shape)


def _convolution(name: str, block: Any, layout: str, size: int, channels: int) -> Workload:
    pixels = (size, size)
    shape = (1, channels, *pixels) if layout == "NCHW" else (1, *pixels, channels)
    return case(name, block(channels, layout), shape)


def _chain(name: str, elements: int) -> Workload:
    return case(name, cpu_blocks.chain, (elements,))


def _add_relu(name: str, elements: int) -> Workload:
    return case(name, lambda x, y: nn.relu(x + y), (elements,), (elements,))


def _encoder(name: str, *sizes: int) -> Workload:
    shape = EncoderShape(*sizes)
    return case(name, encoder_block(shape, encoder_weights(shape)), (shape.seq, shape.width))


def _prefill(name: str, *sizes: int) -> Workload:
    shape = EncoderShape(*sizes)
    return case(name, cpu_blocks.decoder(shape), (shape.seq, shape.width))


def _decode(name: str, past: int, *sizes: int) -> Workload:
    shape = EncoderShape(1, *sizes)
    cache = (shape.heads, past, shape.depth)
    return case(name, cpu_blocks.decoder(shape), (1, shape.width), cache, cache)


def _digits(name: str, kind: str, batch: int) -> Workload:
    return digits(kind, batch)


def _call(name: str, elements: int) -> Workload:
    return case(name, lambda x, y: x + y, (elements,), (elements,))


_M = 1 << 20
_SMALL_MLP, _LARGE_MLP, _TINY_MLP = (784, 512, 512, 10), (1024, 4096, 1024), (12, 20, 8)
_CONV, _RESIDUAL = cpu_blocks.convolution, cpu_blocks.residual
_TINY_GEMM, _TINY_ROWS = (6, 20, 18), (5, 33)

ROWS: Mapping[str, Row] = {
    "gemm 512": Row("gemm", _gemm, (512,) * 3, _TINY_GEMM),
    "gemm 1024": Row("gemm", _gemm, (1024,) * 3, _TINY_GEMM),
    "gemm 2048": Row("gemm", _gemm, (2048,) * 3, _TINY_GEMM),
    "gemm + bias + gelu 1024": Row("gemm", gemm_gelu, (1024,) * 3, _TINY_GEMM),
    "gemv 1x4096x4096": Row("gemm", _gemm, (1, 4096, 4096), (1, 20, 18)),
    "gemm 128x768x3072": Row("gemm", _gemm, (128, 768, 3072), _TINY_GEMM),
    "gemm 1024, both arguments": Row(
        "gemm", _gemm_arguments, ((1024, 1024),) * 2, ((6, 20), (20, 18))
    ),
    "batched gemm 12x128x64x128": Row(
        "gemm", _gemm_arguments, ((12, 128, 64), (12, 64, 128)), ((2, 6, 4), (2, 4, 8))
    ),
    "mlp 784-512-512-10, batch 64": Row("mlp", _mlp, (64, _SMALL_MLP), (4, _TINY_MLP)),
    "mlp 784-512-512-10, batch 1": Row("mlp", _mlp, (1, _SMALL_MLP), (1, _TINY_MLP)),
    "mlp 1024-4096-1024, batch 64": Row("mlp", _mlp, (64, _LARGE_MLP), (4, _TINY_MLP)),
    "mlp 1024-4096-1024, batch 1": Row("mlp", _mlp, (1, _LARGE_MLP), (1, _TINY_MLP)),
    "mlp 1024-4096-1024, dynamic batch, at 1": Row(
        "mlp", _dynamic_mlp, (1, _LARGE_MLP), (1, _TINY_MLP)
    ),
    "encoder block, seq 128": Row("encoder", _encoder, (128, 768, 12, 3072), (9, 16, 2, 32)),
    "layernorm 4096x1024": Row("rows", _layernorm, (4096, 1024), _TINY_ROWS),
    "softmax 4096x1024": Row("rows", _softmax, (4096, 1024), _TINY_ROWS),
    "sum over axis 1 of 4096x4096": Row("rows", _sum, (1, 4096, 4096), (1, 5, 33)),
    "sum over axis 0 of 4096x4096": Row("columns", _sum, (0, 4096, 4096), (0, 5, 33)),
    "convolution 3x3, 56x56x64, NCHW": Row(
        "convolution", _convolution, (_CONV, "NCHW", 56, 64), (_CONV, "NCHW", 6, 4)
    ),
    "convolution 3x3, 56x56x64, NHWC": Row(
        "convolution", _convolution, (_CONV, "NHWC", 56, 64), (_CONV, "NHWC", 6, 4)
    ),
    "residual block, NCHW": Row(
        "convolution", _convolution, (_RESIDUAL, "NCHW", 56, 64), (_RESIDUAL, "NCHW", 6, 4)
    ),
    "residual block, NHWC": Row(
        "convolution", _convolution, (_RESIDUAL, "NHWC", 56, 64), (_RESIDUAL, "NHWC", 6, 4)
    ),
    "chain of 10, 16M elements": Row("elementwise", _chain, (16 * _M,), (77,)),
    "add + relu, 16M elements": Row("elementwise", _add_relu, (16 * _M,), (77,)),
    "transpose 4096x4096": Row("elementwise", _transpose, (4096, 4096), _TINY_ROWS),
    "vit block, seq 197": Row("encoder", _encoder, (197, 768, 12, 3072), (9, 16, 2, 32)),
    "gpt block, prefill 128": Row("decoder", _prefill, (128, 768, 12, 3072), (9, 16, 2, 32)),
    "gpt block, decode 1, cache 128": Row("decoder", _decode, (128, 768, 12, 3072), (8, 16, 2, 32)),
    "digits mlp, batch 64": Row("demo", _digits, ("mlp", 64), ("mlp", 2)),
    "digits cnn, batch 64": Row("demo", _digits, ("cnn", 64), ("cnn", 2)),
    CALL: Row("call", _call, (4,), (4,)),
}
