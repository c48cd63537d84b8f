"""The parts of workloads: seeded arrays, catalogues, and blocks of networks in numpy style.

A block is a function of arrays whose weights are f32 constants; on float64 arrays the same function
is the reference. The encoder block (Vaswani et al., 2017; normalization first) is

    x = x + attention(norm(x) Wq, norm(x) Wk, norm(x) Wv) Wo
    y = x + gelu(norm(x) Wup) Wdown            x, y: [seq, width]

with biases everywhere and gelu by the error function.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from pyc_mlir import nn
from pyc_mlir.tools.bench.peers.workload import Workload

Block = Callable[..., Any]
Weights = Mapping[str, np.ndarray]
EPSILON = 1e-5
_INPUT_SEED = 1


@dataclass(frozen=True)
class Row:
    """A workload of a catalogue, `make(*sizes)`: its published sizes, and tiny ones for tests."""

    kind: str
    make: Callable[..., Workload]
    sizes: tuple[Any, ...]
    tiny: tuple[Any, ...]


def made(rows: Mapping[str, Row], name: str, tiny: bool = False) -> Workload:
    """Make the workload of that name of a catalogue."""
    row = rows[name]
    return replace(row.make(*(row.tiny if tiny else row.sizes)), name=name, kind=row.kind)


def case(function: Block, *shapes: tuple[int, ...], types: Any = None, name: str = "") -> Workload:
    """Call `function` on seeded arguments of those shapes."""
    draw = SeededWeights(_INPUT_SEED)
    return Workload(name, function, tuple(draw.activations(*s) for s in shapes), types=types)


class SeededWeights:
    """Seeded f32 arrays, drawn one after another."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def activations(self, *shape: int) -> np.ndarray:
        """Draw from the normal distribution of deviation 1."""
        return self._rng.normal(0, 1, shape).astype(np.float32)

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        """[rows, columns], scaled so that products keep the deviation of their left operand."""
        return self._rng.normal(0, gain * rows**-0.5, (rows, columns)).astype(np.float32)

    def vector(self, size: int, mean: float = 0.0) -> np.ndarray:
        """[size], close to `mean`."""
        return self._rng.normal(mean, 0.02, size).astype(np.float32)

    def window(self, size: int, channels: int, filters: int) -> np.ndarray:
        """[size, size, channels, filters] of a convolution in layout NHWC that a relu follows."""
        gain = (2 / (size * size * channels)) ** 0.5
        return self._rng.normal(0, gain, (size, size, channels, filters)).astype(np.float32)


def stacked(layers: Sequence[Block]) -> Block:
    """Compose the layers one after another, as a function of x."""

    def run(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    return run


def mlp(widths: Sequence[int]) -> Block:
    """[batch, widths[0]] -> [batch, widths[-1]]: products with bias, relu between them."""
    draw = SeededWeights()
    pairs = [(draw.matrix(n, m, 2**0.5), draw.vector(m)) for n, m in pairwise(widths)]

    def run(x: Any) -> Any:
        for weight, bias in pairs[:-1]:
            x = nn.relu(x @ weight + bias)
        weight, bias = pairs[-1]
        return x @ weight + bias

    return run


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

    def split(self, x: Any) -> Any:
        """[seq, width] -> [heads, seq, depth]."""
        return x.reshape(self.seq, self.heads, self.depth).transpose(1, 0, 2)

    def joined(self, x: Any) -> Any:
        """[heads, seq, depth] -> [seq, width]."""
        return x.transpose(1, 0, 2).reshape(self.seq, self.width)


BASE = EncoderShape(seq=128, width=768, heads=12, hidden=3072)
TINY = EncoderShape(seq=8, width=16, heads=2, hidden=32)


def encoder_weights(shape: EncoderShape, seed: int = 0) -> Weights:
    """Draw f32 weights that keep activations near 1."""
    draw, width, hidden = SeededWeights(seed), shape.width, shape.hidden
    linear = dict.fromkeys(("query", "key", "value", "out"), (width, width))
    linear |= {"up": (width, hidden), "down": (hidden, width)}
    weights = {}
    for name, (rows, columns) in linear.items():
        weights[f"{name}.weight"] = draw.matrix(rows, columns)
        weights[f"{name}.bias"] = draw.vector(columns)
    for name in ("norm1", "norm2"):
        weights[f"{name}.scale"] = draw.vector(width, 1.0)
        weights[f"{name}.bias"] = draw.vector(width)
    return weights


def linear(w: Mapping[str, Any], name: str, x: Any) -> Any:
    """Return the product with the bias of that name."""
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


def encoder_block(shape: EncoderShape, w: Weights) -> Block:
    """Return the block as a function of x [seq, width]."""
    block = decoder_block(shape, w, is_causal=False, approximate="none")
    return lambda x: block(x)[0]


def decoder_block(
    shape: EncoderShape, w: Weights, is_causal: bool = True, approximate: str = "tanh"
) -> Block:
    """`(x)` -> (y, keys, values) is the prefill; with `past_keys, past_values` it is a decode.

    As the encoder block (Radford et al., 2019), with keys = past ++ norm(x) Wk, values likewise
    [heads, time, depth].
    """

    def norm(x: Any, name: str) -> Any:
        return nn.layernorm(x, w[f"{name}.scale"], w[f"{name}.bias"], epsilon=EPSILON)

    def run(x: Any, *past: Any) -> Any:
        normed = norm(x, "norm1")
        query, key, value = (shape.split(linear(w, n, normed)) for n in ("query", "key", "value"))
        if past:
            key, value = (
                np.concatenate([p, n], 1) for p, n in zip(past, (key, value), strict=True)
            )
        mixed = nn.attention(query, key, value, is_causal=is_causal and not past)
        x = x + linear(w, "out", shape.joined(mixed))
        hidden = nn.gelu(linear(w, "up", norm(x, "norm2")), approximate=approximate)
        return x + linear(w, "down", hidden), key, value

    return run


def gated_block(shape: EncoderShape) -> Block:
    """Make a decoder block of the newer kind: rmsnorm, causal attention, gated feed-forward.

    x + attention, then x + (silu(n gate) * (n up)) down, of x [seq, width]. Shazeer, 2020.
    """
    draw, width, hidden = SeededWeights(2), shape.width, shape.hidden
    w = {name: draw.matrix(width, width) for name in ("query", "key", "value", "out")}
    w |= {name: draw.matrix(width, hidden) for name in ("gate", "up")}
    w |= {"down": draw.matrix(hidden, width)}
    w |= {name: draw.vector(width, mean=1.0) for name in ("norm1", "norm2")}

    def block(x: Any) -> Any:
        normed = nn.rmsnorm(x, w["norm1"])
        query, key, value = (shape.split(normed @ w[n]) for n in ("query", "key", "value"))
        x = x + shape.joined(nn.attention(query, key, value, is_causal=True)) @ w["out"]
        normed = nn.rmsnorm(x, w["norm2"])
        return x + (nn.silu(normed @ w["gate"]) * (normed @ w["up"])) @ w["down"]

    return block


def encoder_model(shape: EncoderShape) -> bytes:
    """Return the encoder block as an ONNX model x0 -> y0. Needs the package `onnx`."""
    from pyc_mlir.tools.bench.peers.translators import onnx_model

    block = encoder_block(shape, encoder_weights(shape))
    return onnx_model(case(block, (shape.seq, shape.width)).graph())
