"""ONNX ops that are layers of networks, losses or steps of training. Importing enters them all."""

from pyc_mlir.frontends.onnx.ops.layers import (
    activations,
    attention,
    contraction,
    loss,
    normalization,
    optimizers,
    quantization,
    recurrent,
)

__all__ = [
    "activations",
    "attention",
    "contraction",
    "loss",
    "normalization",
    "optimizers",
    "quantization",
    "recurrent",
]
