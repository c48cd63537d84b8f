"""Rules that turn primitive pyc ops into upstream ops, a module for each family."""

from pyc_mlir.pipelines.linalg.ops import (
    contraction,
    convolution,
    creation,
    elementwise,
    movement,
    ordering,
    power,
    reduction,
    resize,
    scatter,
)

__all__ = [
    "contraction",
    "convolution",
    "creation",
    "elementwise",
    "movement",
    "ordering",
    "power",
    "reduction",
    "resize",
    "scatter",
]
