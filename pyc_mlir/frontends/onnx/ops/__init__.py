"""The ONNX ops that can be imported, a module for each family."""

from pyc_mlir.frontends.onnx.ops import (  # noqa: F401  (importing them enters their handlers)
    attention,
    contraction,
    contrib_layers,
    convolution,
    elementwise,
    images,
    indexing,
    movement,
    normalization,
    quantization,
    recurrent,
)
