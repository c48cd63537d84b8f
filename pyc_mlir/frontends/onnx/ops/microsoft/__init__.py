"""Operators of onnxruntime's own domain, by its ContribOperators.md. Importing enters them all."""

from pyc_mlir.frontends.onnx.ops.microsoft import (
    attention,
    fused,
    grouped_attention,
    layers,
    quantized,
)

__all__ = ["attention", "fused", "grouped_attention", "layers", "quantized"]
