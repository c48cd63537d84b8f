"""Blocks of networks for the CPU suite, in numpy style: MLPs, residual and decoder blocks.

Each maker gives a function of arrays whose weights are f32 constants; on float64 arrays the same
function is the reference. The decoder block (Radford et al., 2019; normalization first) is

    x = x + attention(norm(x) Wq, keys, values) Wo,  keys = past ++ norm(x) Wk, values likewise
    y = x + gelu(norm(x) Wup) Wdown                  x, y: [seq, width]; keys: [heads, time, depth]
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pyc_mlir import nn
from pyc_mlir.tools.bench.workloads.case import SeededWeights
from pyc_mlir.tools.bench.workloads.encoder import EncoderShape, encoder_weights, layers

Block = Callable[..., Any]


def mlp(widths: Sequence[int]) -> Block:
    """[batch, widths[0]] -> [batch, widths[-1]]: products with bias, relu between them."""
    draw = SeededWeights()
    pairs = list(pairwise(widths))
    layers = [(draw.matrix(n, m, 2**0.5), draw.vector(m)) for n, m in pairs]

    def run(x: Any) -> Any:
        for weight, bias in layers[:-1]:
            x = nn.relu(x @ weight + bias)
        weight, bias = layers[-1]
        return x @ weight + bias

    return run


def convolution(channels: int, layout: str) -> Block:
    """Make a 3x3 convolution that keeps [1, size, size, channels], or the same in NCHW."""
    weight = _window(SeededWeights(), channels, layout)
    return lambda x: nn.conv2d(x, weight, pads=1, layout=layout)


def residual(channels: int, layout: str) -> Block:
    """relu(x + conv(relu(conv(x)))), with biases (He et al., 2015; norms folded)."""
    draw = SeededWeights()
    first, second = (_window(draw, channels, layout) for _ in range(2))
    biases = [draw.vector(channels) for _ in range(2)]
    one, two = (b.reshape(-1, 1, 1) if layout == "NCHW" else b for b in biases)

    def run(x: Any) -> Any:
        inner = nn.relu(nn.conv2d(x, first, pads=1, layout=layout) + one)
        return nn.relu(x + nn.conv2d(inner, second, pads=1, layout=layout) + two)

    return run


def _window(draw: SeededWeights, channels: int, layout: str) -> np.ndarray:
    made = draw.window(3, channels, channels)
    return made if layout == "NHWC" else np.ascontiguousarray(made.transpose(3, 2, 0, 1))


def decoder(shape: EncoderShape) -> Block:
    """`(x)` -> (y, keys, values) is the prefill; with `past_keys, past_values` it is a decode."""
    linear, norm, heads = layers(shape, encoder_weights(shape))

    def run(x: Any, *past: Any) -> Any:
        normed = norm(x, "norm1")
        query, key, value = (heads(linear(normed, n)) for n in ("query", "key", "value"))
        if past:
            key, value = (
                np.concatenate([p, n], 1) for p, n in zip(past, (key, value), strict=True)
            )
        mixed = nn.attention(query, key, value, is_causal=not past).transpose(1, 0, 2)
        x = x + linear(mixed.reshape(shape.seq, shape.width), "out")
        hidden = nn.gelu(linear(norm(x, "norm2"), "up"), approximate="tanh")
        return x + linear(hidden, "down"), key, value

    return run


def chain(x: Any) -> Any:
    """Compute ten elementwise operations: arithmetic, and one of each kind that costs more."""
    x = np.maximum(x * 1.01 + 0.1, -2.0)
    x = (x - 0.05) * x
    return np.minimum(np.tanh(x) * 0.5 + np.abs(x), 3.0)
