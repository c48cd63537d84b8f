"""The workloads of `latency --suite cpu`: a table, each in two sizes, all f32.

The program is a function in numpy style whose weights are constants; peers get it through
`peers.graph`. The first 25 rows are matrix products, MLPs, rows, columns, elementwise work and
convolutions; then come transformer blocks and the demo models, and `CALL`, which does next to
nothing: what a call costs by itself.
"""

from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir import nn
from pyc_mlir.frontends.python.specs import spec
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.workloads.parts import (
    EncoderShape,
    Row,
    SeededWeights,
    case,
    decoder_block,
    encoder_block,
    encoder_weights,
    made,
    mlp,
)

# Classes whose numbers the project's goals are about, then those that are only reported.
GOAL_CLASSES = ("gemm", "mlp", "rows", "columns", "elementwise", "encoder")
CLASSES = (*GOAL_CLASSES, "convolution", "decoder", "demo", "call")
CALL = "call of nothing"
ENCODER = "encoder block, seq 128"
# The trained demo models are data that is installed with the command lines.
_MODELS = "pyc_mlir.tools.demo"


def make(name: str, tiny: bool = False) -> Workload:
    """Make the workload of that name, at its tiny sizes for tests."""
    return made(ROWS, name, tiny)


def _gemm(m: int, k: int, n: int) -> Workload:
    weight = SeededWeights().matrix(k, n)
    return case(lambda x: x @ weight, (m, k))


def gemm_gelu(m: int, k: int, n: int, name: str = "") -> Workload:
    """Make the product of x [m, k] with weights [k, n], then a bias and gelu."""
    draw = SeededWeights()
    weight, bias = draw.matrix(k, n), draw.vector(n)
    return case(lambda x: nn.gelu(x @ weight + bias), (m, k), name=name)


def _mlp(batch: int, widths: tuple[int, ...], dynamic: bool = False) -> Workload:
    types = (spec(np.float32, ("batch", widths[0])),) if dynamic else None
    return case(mlp(widths), (batch, widths[0]), types=types)


def _layernorm(rows: int, columns: int) -> Workload:
    draw = SeededWeights()
    scale, bias = draw.vector(columns, 1.0), draw.vector(columns)
    return case(lambda x: nn.layernorm(x, scale, bias), (rows, columns))


def _sum(axis: int, *shape: int) -> Workload:
    return case(lambda x: np.sum(x, axis=axis), shape)


def _convolution(layout: str, size: int, channels: int, residual: bool = False) -> Workload:
    """relu(x + conv(relu(conv(x)))) with biases (He et al., 2015; norms folded), or one conv(x)."""
    draw, first = SeededWeights(), layout == "NCHW"

    def window() -> np.ndarray:
        drawn = draw.window(3, channels, channels)
        return np.ascontiguousarray(drawn.transpose(3, 2, 0, 1)) if first else drawn

    weights = [window() for _ in range(1 + residual)]
    biases = [draw.vector(channels) for _ in weights]
    one, *two = (b.reshape(-1, 1, 1) if first else b for b in biases)

    def conv(x: Any, number: int) -> Any:
        return nn.conv2d(x, weights[number], pads=1, layout=layout)

    def block(x: Any) -> Any:
        return nn.relu(x + conv(nn.relu(conv(x, 0) + one), 1) + two[0])

    shape = (1, channels, size, size) if first else (1, size, size, channels)
    return case(block if residual else lambda x: conv(x, 0), shape)


def _chain(elements: int) -> Workload:
    """Compute ten elementwise operations: arithmetic, and one of each kind that costs more."""

    def run(x: Any) -> Any:
        x = np.maximum(x * 1.01 + 0.1, -2.0)
        x = (x - 0.05) * x
        return np.minimum(np.tanh(x) * 0.5 + np.abs(x), 3.0)

    return case(run, (elements,))


def _encoder(*sizes: int) -> Workload:
    shape = EncoderShape(*sizes)
    return case(encoder_block(shape, encoder_weights(shape)), (shape.seq, shape.width))


def _decoder(past: int, *sizes: int) -> Workload:
    shape = EncoderShape(*sizes)
    caches = [(shape.heads, past, shape.depth)] * (2 if past else 0)
    return case(decoder_block(shape, encoder_weights(shape)), (shape.seq, shape.width), *caches)


def digits(kind: str, batch: int) -> Workload:
    """Make a demo model (`mlp` or `cnn`) on seeded images of 16 grey values."""
    with as_file(files(_MODELS) / "models" / f"digits_{kind}.onnx") as found:
        path = Path(found)
    grey = np.random.default_rng(batch).integers(0, 17, (batch, 1, 8, 8)) / 16
    return Workload(f"digits {kind}, batch {batch}", path, (grey.astype(np.float32),))


_M = 1 << 20
_SMALL_MLP, _LARGE_MLP, _TINY_MLP = (784, 512, 512, 10), (1024, 4096, 1024), (12, 20, 8)
_TINY_GEMM, _TINY_ROWS, _TINY_BLOCK = (6, 20, 18), (5, 33), (9, 16, 2, 32)


def _products(*shapes: tuple[int, ...]) -> Workload:
    return case(lambda x, y: x @ y, *shapes)


ROWS: Mapping[str, Row] = {
    "gemm 512": Row("gemm", _gemm, (512,) * 3, _TINY_GEMM),
    "gemm 1024": Row("gemm", _gemm, (1024,) * 3, _TINY_GEMM),
    "gemm 2048": Row("gemm", _gemm, (2048,) * 3, _TINY_GEMM),
    "gemm + bias + gelu 1024": Row("gemm", gemm_gelu, (1024,) * 3, _TINY_GEMM),
    "gemv 1x4096x4096": Row("gemm", _gemm, (1, 4096, 4096), (1, 20, 18)),
    "gemm 128x768x3072": Row("gemm", _gemm, (128, 768, 3072), _TINY_GEMM),
    "gemm 1024, both arguments": Row("gemm", _products, ((1024, 1024),) * 2, ((6, 20), (20, 18))),
    "batched gemm 12x128x64x128": Row(
        "gemm", _products, ((12, 128, 64), (12, 64, 128)), ((2, 6, 4), (2, 4, 8))
    ),
    "mlp 784-512-512-10, batch 64": Row("mlp", _mlp, (64, _SMALL_MLP), (4, _TINY_MLP)),
    "mlp 784-512-512-10, batch 1": Row("mlp", _mlp, (1, _SMALL_MLP), (1, _TINY_MLP)),
    "mlp 1024-4096-1024, batch 64": Row("mlp", _mlp, (64, _LARGE_MLP), (4, _TINY_MLP)),
    "mlp 1024-4096-1024, batch 1": Row("mlp", _mlp, (1, _LARGE_MLP), (1, _TINY_MLP)),
    "mlp 1024-4096-1024, dynamic batch, at 1": Row(
        "mlp", _mlp, (1, _LARGE_MLP, True), (1, _TINY_MLP, True)
    ),
    ENCODER: Row("encoder", _encoder, (128, 768, 12, 3072), _TINY_BLOCK),
    "layernorm 4096x1024": Row("rows", _layernorm, (4096, 1024), _TINY_ROWS),
    "softmax 4096x1024": Row(
        "rows", lambda *shape: case(nn.softmax, shape), (4096, 1024), _TINY_ROWS
    ),
    "sum over axis 1 of 4096x4096": Row("rows", _sum, (1, 4096, 4096), (1, 5, 33)),
    "sum over axis 0 of 4096x4096": Row("columns", _sum, (0, 4096, 4096), (0, 5, 33)),
    **{
        f"convolution 3x3, 56x56x64, {layout}": Row(
            "convolution", _convolution, (layout, 56, 64), (layout, 6, 4)
        )
        for layout in ("NCHW", "NHWC")
    },
    **{
        f"residual block, {layout}": Row(
            "convolution", _convolution, (layout, 56, 64, True), (layout, 6, 4, True)
        )
        for layout in ("NCHW", "NHWC")
    },
    "chain of 10, 16M elements": Row("elementwise", _chain, (16 * _M,), (77,)),
    "add + relu, 16M elements": Row(
        "elementwise", lambda n: case(lambda x, y: nn.relu(x + y), (n,), (n,)), (16 * _M,), (77,)
    ),
    "transpose 4096x4096": Row(
        "elementwise", lambda *s: case(lambda x: x.transpose(1, 0), s), (4096, 4096), _TINY_ROWS
    ),
    "vit block, seq 197": Row("encoder", _encoder, (197, 768, 12, 3072), _TINY_BLOCK),
    "gpt block, prefill 128": Row("decoder", _decoder, (0, 128, 768, 12, 3072), (0, *_TINY_BLOCK)),
    "gpt block, decode 1, cache 128": Row(
        "decoder", _decoder, (128, 1, 768, 12, 3072), (8, 1, 16, 2, 32)
    ),
    "digits mlp, batch 64": Row("demo", digits, ("mlp", 64), ("mlp", 2)),
    "digits cnn, batch 64": Row("demo", digits, ("cnn", 64), ("cnn", 2)),
    CALL: Row("call", lambda n: case(lambda x, y: x + y, (n,), (n,)), (4,), (4,)),
}
# Whole models: the demo models at three batch sizes, and an encoder block.
MODELS: Mapping[str, Row] = {
    **{
        f"digits {kind}, batch {batch}": Row("demo", digits, (kind, batch), (kind, batch))
        for kind in ("mlp", "cnn")
        for batch in (1, 64, 360)
    },
    ENCODER: ROWS[ENCODER],
}
