"""JAX functions through PyC: `jit`, and `nn` with composites that PyC has one op for.

    import pyc_mlir.jax

    @pyc_mlir.jax.jit
    def model(x):
        return pyc_mlir.jax.nn.softmax(x @ weights)

This package imports jax (the extra `jax`); pyc_mlir itself does not.
"""

from pyc_mlir.jax import nn
from pyc_mlir.jax.function import JaxFunction, jit

__all__ = ["JaxFunction", "jit", "nn"]
