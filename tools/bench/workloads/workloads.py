"""Workloads: named programs with their inputs and expected results.

`WORKLOADS` is a table of builders, so that a suite pays only for what it runs. The reference is
computed in float64 by numpy, independently of every candidate: the encoder's own function on
float64 arrays, ONNX's reference evaluator on a model whose weights were widened.
"""

import functools
from collections.abc import Callable, Mapping
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from pyc_mlir.tools.bench.peers.workload import BenchWorkload, evaluate_wide
from pyc_mlir.tools.bench.workloads.encoder import (
    BASE,
    TINY,
    EncoderShape,
    encoder_block,
    encoder_onnx,
    encoder_weights,
)

# The trained demo models are data that is installed with the command lines.
_MODELS = "pyc_mlir.tools.demo"
_DEMO_BATCHES = (1, 64, 360)


def encoder(name: str, shape: EncoderShape) -> BenchWorkload:
    """Make an encoder block on one seeded sequence."""
    weights = encoder_weights(shape)
    x = np.random.default_rng(1).normal(0, 1, (shape.seq, shape.width)).astype(np.float32)
    wide = {key: w.astype(np.float64) for key, w in weights.items()}
    return BenchWorkload(
        name,
        encoder_block(shape, weights),
        (x,),
        lambda: (encoder_block(shape, wide)(x.astype(np.float64)),),
        onnx=lambda: encoder_onnx(shape, weights),
    )


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
        onnx=path.read_bytes,
    )


ENCODER = "encoder block, seq 128"
TINY_ENCODER = "tiny encoder block"
# Cheapest first.
WORKLOADS: Mapping[str, Callable[[], BenchWorkload]] = {
    TINY_ENCODER: functools.partial(encoder, TINY_ENCODER, TINY),
    **{
        f"digits {kind}, batch {batch}": functools.partial(digits, kind, batch)
        for kind in ("mlp", "cnn")
        for batch in _DEMO_BATCHES
    },
    ENCODER: functools.partial(encoder, ENCODER, BASE),
}
# What the project publishes figures of.
PUBLISHED = tuple(name for name in WORKLOADS if name != TINY_ENCODER)
