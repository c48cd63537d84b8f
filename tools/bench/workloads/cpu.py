"""The workloads of `latency --suite cpu`: a table, each in two sizes.

A row names the class of its program, one maker, its sizes and tiny ones for tests. The program is a
function in numpy style whose weights are constants; peers get it through `peers.graph`. All f32.
The first 25 rows are matrix products, MLPs, rows, columns, elementwise work and convolutions; then
come transformer blocks and the demo models, and `CALL`, which does next to nothing: what a call
costs by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir import nn
from pyc_mlir.frontends.python.specs import leaves, spec
from pyc_mlir.tools.bench.peers.workload import BenchWorkload, evaluate_wide
from pyc_mlir.tools.bench.workloads import blocks as cpu_blocks
from pyc_mlir.tools.bench.workloads.case import SeededWeights
from pyc_mlir.tools.bench.workloads.encoder import EncoderShape, encoder_block, encoder_weights

# Classes whose numbers the project's goals are about, then those that are only reported.
GOAL_CLASSES = ("gemm", "mlp", "rows", "columns", "elementwise", "encoder")
CLASSES = (*GOAL_CLASSES, "convolution", "decoder", "demo", "call")
CALL = "call of nothing"
ENCODER = "encoder block, seq 128"
# The trained demo models are data that is installed with the command lines.
_MODELS = "pyc_mlir.tools.demo"
_SEED = 1


@dataclass(frozen=True)
class CpuWorkload:
    """A workload: `make(name, *sizes)`."""

    kind: str
    make: Callable[..., BenchWorkload]
    sizes: tuple[Any, ...]
    tiny: tuple[Any, ...]


def make(name: str, tiny: bool = False) -> BenchWorkload:
    """Make the workload of that name, at its tiny sizes for tests."""
    row = ROWS[name]
    return row.make(name, *(row.tiny if tiny else row.sizes))


def case(name: str, function: Any, *shapes: tuple[int, ...], types: Any = None) -> BenchWorkload:
    """Call `function` on seeded arguments of those shapes; its reference runs in float64."""
    draw = SeededWeights(_SEED)
    inputs = tuple(draw.activations(*shape) for shape in shapes)

    def reference() -> list[np.ndarray]:
        wide = (a.astype(np.float64) for a in inputs)
        return [np.asarray(result) for _, result in leaves(function(*wide))]

    return BenchWorkload(name, function, inputs, reference, types=types)


def _gemm(name: str, m: int, k: int, n: int) -> BenchWorkload:
    weight = SeededWeights().matrix(k, n)
    return case(name, lambda x: x @ weight, (m, k))


def gemm_gelu(name: str, m: int, k: int, n: int) -> BenchWorkload:
    """Make the product of x [m, k] with weights [k, n], then a bias and gelu."""
    draw = SeededWeights()
    weight, bias = draw.matrix(k, n), draw.vector(n)
    return case(name, lambda x: nn.gelu(x @ weight + bias), (m, k))


def _gemm_arguments(name: str, *shapes: tuple[int, ...]) -> BenchWorkload:
    return case(name, lambda x, y: x @ y, *shapes)


def _mlp(name: str, batch: int, widths: tuple[int, ...]) -> BenchWorkload:
    return case(name, cpu_blocks.mlp(widths), (batch, widths[0]))


def _dynamic_mlp(name: str, batch: int, widths: tuple[int, ...]) -> BenchWorkload:
    types = (spec(np.float32, ("batch", widths[0])),)
    return case(name, cpu_blocks.mlp(widths), (batch, widths[0]), types=types)


def _layernorm(name: str, rows: int, columns: int) -> BenchWorkload:
    draw = SeededWeights()
    scale, bias = draw.vector(columns, 1.0), draw.vector(columns)
    return case(name, lambda x: nn.layernorm(x, scale, bias), (rows, columns))


def _softmax(name: str, *shape: int) -> BenchWorkload:
    return case(name, nn.softmax, shape)


def _sum(name: str, axis: int, *shape: int) -> BenchWorkload:
    return case(name, lambda x: np.sum(x, axis=axis), shape)


def _transpose(name: str, *shape: int) -> BenchWorkload:
    return case(name, lambda x: x.transpose(1, 0), shape)


def _convolution(name: str, block: Any, layout: str, size: int, channels: int) -> BenchWorkload:
    pixels = (size, size)
    shape = (1, channels, *pixels) if layout == "NCHW" else (1, *pixels, channels)
    return case(name, block(channels, layout), shape)


def _chain(name: str, elements: int) -> BenchWorkload:
    return case(name, cpu_blocks.chain, (elements,))


def _add_relu(name: str, elements: int) -> BenchWorkload:
    return case(name, lambda x, y: nn.relu(x + y), (elements,), (elements,))


def _encoder(name: str, *sizes: int) -> BenchWorkload:
    shape = EncoderShape(*sizes)
    return case(name, encoder_block(shape, encoder_weights(shape)), (shape.seq, shape.width))


def _prefill(name: str, *sizes: int) -> BenchWorkload:
    shape = EncoderShape(*sizes)
    return case(name, cpu_blocks.decoder(shape), (shape.seq, shape.width))


def _decode(name: str, past: int, *sizes: int) -> BenchWorkload:
    shape = EncoderShape(1, *sizes)
    cache = (shape.heads, past, shape.depth)
    return case(name, cpu_blocks.decoder(shape), (1, shape.width), cache, cache)


def digits(kind: str, batch: int) -> BenchWorkload:
    """Make a demo model (`mlp` or `cnn`) on seeded images of 16 grey values."""
    with as_file(files(_MODELS) / "models" / f"digits_{kind}.onnx") as found:
        path = Path(found)
    grey = np.random.default_rng(batch).integers(0, 17, (batch, 1, 8, 8)) / 16
    images = grey.astype(np.float32)
    return BenchWorkload(
        f"digits {kind}, batch {batch}",
        path,
        (images,),
        lambda: evaluate_wide(path.read_bytes(), {"image": images}),
    )


def _digits(name: str, kind: str, batch: int) -> BenchWorkload:
    return digits(kind, batch)


def _call(name: str, elements: int) -> BenchWorkload:
    return case(name, lambda x, y: x + y, (elements,), (elements,))


_M = 1 << 20
_SMALL_MLP, _LARGE_MLP, _TINY_MLP = (784, 512, 512, 10), (1024, 4096, 1024), (12, 20, 8)
_CONV, _RESIDUAL = cpu_blocks.convolution, cpu_blocks.residual
_TINY_GEMM, _TINY_ROWS = (6, 20, 18), (5, 33)

ROWS: Mapping[str, CpuWorkload] = {
    "gemm 512": CpuWorkload("gemm", _gemm, (512,) * 3, _TINY_GEMM),
    "gemm 1024": CpuWorkload("gemm", _gemm, (1024,) * 3, _TINY_GEMM),
    "gemm 2048": CpuWorkload("gemm", _gemm, (2048,) * 3, _TINY_GEMM),
    "gemm + bias + gelu 1024": CpuWorkload("gemm", gemm_gelu, (1024,) * 3, _TINY_GEMM),
    "gemv 1x4096x4096": CpuWorkload("gemm", _gemm, (1, 4096, 4096), (1, 20, 18)),
    "gemm 128x768x3072": CpuWorkload("gemm", _gemm, (128, 768, 3072), _TINY_GEMM),
    "gemm 1024, both arguments": CpuWorkload(
        "gemm", _gemm_arguments, ((1024, 1024),) * 2, ((6, 20), (20, 18))
    ),
    "batched gemm 12x128x64x128": CpuWorkload(
        "gemm", _gemm_arguments, ((12, 128, 64), (12, 64, 128)), ((2, 6, 4), (2, 4, 8))
    ),
    "mlp 784-512-512-10, batch 64": CpuWorkload("mlp", _mlp, (64, _SMALL_MLP), (4, _TINY_MLP)),
    "mlp 784-512-512-10, batch 1": CpuWorkload("mlp", _mlp, (1, _SMALL_MLP), (1, _TINY_MLP)),
    "mlp 1024-4096-1024, batch 64": CpuWorkload("mlp", _mlp, (64, _LARGE_MLP), (4, _TINY_MLP)),
    "mlp 1024-4096-1024, batch 1": CpuWorkload("mlp", _mlp, (1, _LARGE_MLP), (1, _TINY_MLP)),
    "mlp 1024-4096-1024, dynamic batch, at 1": CpuWorkload(
        "mlp", _dynamic_mlp, (1, _LARGE_MLP), (1, _TINY_MLP)
    ),
    ENCODER: CpuWorkload("encoder", _encoder, (128, 768, 12, 3072), (9, 16, 2, 32)),
    "layernorm 4096x1024": CpuWorkload("rows", _layernorm, (4096, 1024), _TINY_ROWS),
    "softmax 4096x1024": CpuWorkload("rows", _softmax, (4096, 1024), _TINY_ROWS),
    "sum over axis 1 of 4096x4096": CpuWorkload("rows", _sum, (1, 4096, 4096), (1, 5, 33)),
    "sum over axis 0 of 4096x4096": CpuWorkload("columns", _sum, (0, 4096, 4096), (0, 5, 33)),
    "convolution 3x3, 56x56x64, NCHW": CpuWorkload(
        "convolution", _convolution, (_CONV, "NCHW", 56, 64), (_CONV, "NCHW", 6, 4)
    ),
    "convolution 3x3, 56x56x64, NHWC": CpuWorkload(
        "convolution", _convolution, (_CONV, "NHWC", 56, 64), (_CONV, "NHWC", 6, 4)
    ),
    "residual block, NCHW": CpuWorkload(
        "convolution", _convolution, (_RESIDUAL, "NCHW", 56, 64), (_RESIDUAL, "NCHW", 6, 4)
    ),
    "residual block, NHWC": CpuWorkload(
        "convolution", _convolution, (_RESIDUAL, "NHWC", 56, 64), (_RESIDUAL, "NHWC", 6, 4)
    ),
    "chain of 10, 16M elements": CpuWorkload("elementwise", _chain, (16 * _M,), (77,)),
    "add + relu, 16M elements": CpuWorkload("elementwise", _add_relu, (16 * _M,), (77,)),
    "transpose 4096x4096": CpuWorkload("elementwise", _transpose, (4096, 4096), _TINY_ROWS),
    "vit block, seq 197": CpuWorkload("encoder", _encoder, (197, 768, 12, 3072), (9, 16, 2, 32)),
    "gpt block, prefill 128": CpuWorkload(
        "decoder", _prefill, (128, 768, 12, 3072), (9, 16, 2, 32)
    ),
    "gpt block, decode 1, cache 128": CpuWorkload(
        "decoder", _decode, (128, 768, 12, 3072), (8, 16, 2, 32)
    ),
    "digits mlp, batch 64": CpuWorkload("demo", _digits, ("mlp", 64), ("mlp", 2)),
    "digits cnn, batch 64": CpuWorkload("demo", _digits, ("cnn", 64), ("cnn", 2)),
    CALL: CpuWorkload("call", _call, (4,), (4,)),
}
# Whole models: the demo models at three batch sizes, and an encoder block.
MODELS: Mapping[str, Callable[[], BenchWorkload]] = {
    **{
        f"digits {kind}, batch {batch}": partial(digits, kind, batch)
        for kind in ("mlp", "cnn")
        for batch in (1, 64, 360)
    },
    ENCODER: partial(make, ENCODER),
}
