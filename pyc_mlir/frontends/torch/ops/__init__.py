"""The ATen operators that can be imported, a module for each family. Importing enters them all."""

from pyc_mlir.frontends.torch.ops import (  # noqa: F401
    attention,
    contraction,
    convolution,
    creation,
    elementwise,
    indexing,
    movement,
    pooling,
    reduction,
    scattering,
)
