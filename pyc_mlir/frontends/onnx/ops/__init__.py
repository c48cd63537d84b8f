"""The ONNX ops that can be imported, a module for each family. Importing this enters them all."""

from pyc_mlir.frontends.onnx.ops import (
    bits,
    contraction,
    creation,
    data_dependent,
    elementwise,
    images,
    indexing,
    layers,
    movement,
    reduction,
)

__all__ = [
    "bits",
    "contraction",
    "creation",
    "data_dependent",
    "elementwise",
    "images",
    "indexing",
    "layers",
    "movement",
    "reduction",
]
