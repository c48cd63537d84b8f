"""The operations of the pyc dialect, a module for each family. Importing this defines them all.

A new family is one module here and one in `pipelines/linalg` for those of its ops that do not
decompose into existing ones.
"""

from pyc_mlir.dialects.ops import (
    attention,
    contraction,
    convolution,
    creation,
    elementwise,
    movement,
    normalization,
    quantized,
    reduction,
    resize,
    selection,
)

__all__ = [
    "attention",
    "contraction",
    "convolution",
    "creation",
    "elementwise",
    "movement",
    "normalization",
    "quantized",
    "reduction",
    "resize",
    "selection",
]
