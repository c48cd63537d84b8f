"""ONNX ops on images and signals. Importing this enters them all."""

from pyc_mlir.frontends.onnx.ops.images import (
    convolution,
    detection,
    folding,
    resize,
    sampling,
    signal,
    transposed,
)

__all__ = ["convolution", "detection", "folding", "resize", "sampling", "signal", "transposed"]
