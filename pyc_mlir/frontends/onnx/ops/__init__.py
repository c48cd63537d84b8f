"""The ONNX ops that can be imported, a module for each family. Importing this enters them all."""

from pyc_mlir.frontends.onnx.ops import (
    activations,
    attention,
    contraction,
    convolution,
    creation,
    elementwise,
    indexing,
    loss,
    movement,
    normalization,
    quantization,
    reduction,
    resize,
    transposed,
)

__all__ = [
    "activations",
    "attention",
    "contraction",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "loss",
    "movement",
    "normalization",
    "quantization",
    "reduction",
    "resize",
    "transposed",
]
