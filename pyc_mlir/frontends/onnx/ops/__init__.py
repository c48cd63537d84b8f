"""The ONNX ops that can be imported, a module for each family. Importing this enters them all."""

from pyc_mlir.frontends.onnx.ops import (
    bits,
    creation,
    data_dependent,
    elementwise,
    images,
    indexing,
    layers,
    microsoft,
    movement,
    reduction,
)

__all__ = [
    "bits",
    "creation",
    "data_dependent",
    "elementwise",
    "images",
    "indexing",
    "layers",
    "microsoft",
    "movement",
    "reduction",
]
