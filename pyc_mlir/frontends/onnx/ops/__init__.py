"""The ONNX ops that can be imported, a module for each family."""

from pyc_mlir.frontends.onnx.ops import (  # noqa: F401  (importing them enters their handlers)
    attention,
    contrib_layers,
    convolution,
    images,
    indexing,
    layers,
    math,
    movement,
    quantization,
)
