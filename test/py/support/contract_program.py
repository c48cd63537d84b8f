"""The program of the tests of promises: its text, what it is called with, and what it answers."""

import numpy as np

from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.mlir_text import parse_mlir

# Values beyond what samples hold are clipped: only calls can tell a fault there.
TEXT = """func.func @main(%x: tensor<?x8xf32> {pyc.name = "x", pyc.dims = ["n", ""]},
    %w: tensor<8x8xf32> {pyc.name = "w", pyc.dims = ["", ""]}) -> tensor<?x8xf32> {
  %c = "pyc.constant"() {value = dense<500.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "pyc.minimum"(%x, %c) : (tensor<?x8xf32>, tensor<f32>) -> tensor<?x8xf32>
  %1 = "pyc.matmul"(%0, %w) : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
  %2 = "pyc.tanh"(%1) : (tensor<?x8xf32>) -> tensor<?x8xf32>
  return %2 : tensor<?x8xf32>
}
"""
RNG = np.random.default_rng(0)
X, W = (RNG.normal(size=s).astype(np.float32) for s in ((3, 8), (8, 8)))
LARGE = np.full((3, 8), 1000, np.float32)


def reference(*arrays: np.ndarray) -> np.ndarray:
    with new_context() as context:
        return interpret(parse_mlir(TEXT, context), arrays)[0]
