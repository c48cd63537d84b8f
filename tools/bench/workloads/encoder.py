"""An encoder block (Vaswani et al., 2017; normalization first) in numpy style.

    x = x + attention(norm(x) Wq, norm(x) Wk, norm(x) Wv) Wo
    y = x + gelu(norm(x) Wup) Wdown            x, y: [seq, width]

Biases everywhere, gelu by the error function. On float64 arrays and weights the same function is
the reference.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir import nn

EPSILON = 1e-5

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class EncoderShape:
    """The sizes of one block: sequence, model width, heads, hidden units of the feed-forward."""

    seq: int
    width: int
    heads: int
    hidden: int

    @property
    def depth(self) -> int:
        """Width of one head."""
        return self.width // self.heads


BASE = EncoderShape(seq=128, width=768, heads=12, hidden=3072)
TINY = EncoderShape(seq=8, width=16, heads=2, hidden=32)


def encoder_weights(shape: EncoderShape, seed: int = 0) -> Weights:
    """Draw f32 weights that keep activations near 1."""
    rng = np.random.default_rng(seed)
    width, hidden = shape.width, shape.hidden
    linear = dict.fromkeys(("query", "key", "value", "out"), (width, width))
    linear |= {"up": (width, hidden), "down": (hidden, width)}
    weights = {}
    for name, (rows, columns) in linear.items():
        weights[f"{name}.weight"] = rng.normal(0, rows**-0.5, (rows, columns))
        weights[f"{name}.bias"] = rng.normal(0, 0.02, columns)
    for name in ("norm1", "norm2"):
        weights[f"{name}.scale"] = rng.normal(1, 0.02, width)
        weights[f"{name}.bias"] = rng.normal(0, 0.02, width)
    return {name: w.astype(np.float32) for name, w in weights.items()}


def layers(shape: EncoderShape, w: Weights) -> tuple[Callable[..., Any], ...]:
    """Return linear(x, name), norm(x, name) and heads(x) of a block, in numpy style."""

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        return nn.layernorm(x, w[f"{name}.scale"], w[f"{name}.bias"], epsilon=EPSILON)

    def heads(x: Any) -> Any:
        return x.reshape(shape.seq, shape.heads, shape.depth).transpose(1, 0, 2)

    return linear, norm, heads


def encoder_block(shape: EncoderShape, w: Weights) -> Callable[[Any], Any]:
    """Return the block as a function of x [seq, width], in numpy style."""
    linear, norm, heads = layers(shape, w)

    def block(x: Any) -> Any:
        normed = norm(x, "norm1")
        query, key, value = (heads(linear(normed, n)) for n in ("query", "key", "value"))
        mixed = nn.attention(query, key, value).transpose(1, 0, 2)
        x = x + linear(mixed.reshape(shape.seq, shape.width), "out")
        return x + linear(nn.gelu(linear(norm(x, "norm2"), "up")), "down")

    return block


def encoder_model(shape: EncoderShape) -> bytes:
    """Return the block as an ONNX model of one input [seq, width]. Needs the package `onnx`."""
    from pyc_mlir.tools.bench.peers.graph import read_graph
    from pyc_mlir.tools.bench.peers.onnx_model import onnx_model

    x = np.zeros((shape.seq, shape.width), np.float32)
    return onnx_model(read_graph(encoder_block(shape, encoder_weights(shape)), [x]))
