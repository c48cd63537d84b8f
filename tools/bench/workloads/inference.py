"""Class `inference`: transformers as they are served, weights as constants.

An encoder of several layers (as in `encoder`), and a decoder block of the newer kind: rmsnorm,
causal attention, gated feed-forward (Shazeer, 2020).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pyc_mlir import nn
from pyc_mlir.tools.bench.workloads.case import SeededWeights, SuiteCase, stacked
from pyc_mlir.tools.bench.workloads.encoder import EncoderShape, encoder_block, encoder_weights

LONG = EncoderShape(seq=512, width=768, heads=12, hidden=3072)
GATED = EncoderShape(seq=512, width=768, heads=12, hidden=2048)


def encoder(shape: EncoderShape, layers: int) -> SuiteCase:
    """`layers` encoder blocks, each with weights of its own, on one sequence."""
    blocks = [encoder_block(shape, encoder_weights(shape, seed)) for seed in range(layers)]
    x = SeededWeights(1).activations(shape.seq, shape.width)
    return SuiteCase(f"encoder, {layers} layers", "inference", stacked(blocks), (x,))


def decoder(shape: EncoderShape) -> SuiteCase:
    """Make one decoder block on a whole sequence (prefill)."""
    draw = SeededWeights(2)
    width, hidden = shape.width, shape.hidden
    weights = {name: draw.matrix(width, width) for name in ("query", "key", "value", "out")}
    weights |= {name: draw.matrix(width, hidden) for name in ("gate", "up")}
    weights |= {"down": draw.matrix(hidden, width)}
    weights |= {name: draw.vector(width, mean=1.0) for name in ("norm1", "norm2")}
    x = draw.activations(shape.seq, width)
    return SuiteCase("decoder block", "inference", decoder_block(shape, weights), (x,))


def decoder_block(shape: EncoderShape, w: Mapping[str, np.ndarray]) -> Callable[[Any], Any]:
    """x + attention, then x + (silu(n gate) * (n up)) down, as a function of x [seq, width]."""

    def heads(x: Any) -> Any:
        return x.reshape(shape.seq, shape.heads, shape.depth).transpose(1, 0, 2)

    def block(x: Any) -> Any:
        normed = nn.rmsnorm(x, w["norm1"])
        query, key, value = (heads(normed @ w[n]) for n in ("query", "key", "value"))
        mixed = nn.attention(query, key, value, is_causal=True).transpose(1, 0, 2)
        x = x + mixed.reshape(shape.seq, shape.width) @ w["out"]
        normed = nn.rmsnorm(x, w["norm2"])
        return x + (nn.silu(normed @ w["gate"]) * (normed @ w["up"])) @ w["down"]

    return block
