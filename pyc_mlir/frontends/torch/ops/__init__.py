"""The ATen operators that can be imported, a module for each family. Importing enters them all."""

from pyc_mlir.frontends.torch.ops import (
    activations,
    attention,
    contraction,
    convolution,
    creation,
    elementwise,
    indexing,
    movement,
    normalization,
    pooling,
    reduction,
    scattering,
)

__all__ = [
    "activations",
    "attention",
    "contraction",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "movement",
    "normalization",
    "pooling",
    "reduction",
    "scattering",
]
