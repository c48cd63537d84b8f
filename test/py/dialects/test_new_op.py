"""A new op is one class: its traits take it through every pass, and no table names it."""

import subprocess
import sys

# Ops are registered with MLIR when the dialect is first imported: hence a process of its own.
PROGRAM = '''
import numpy as np

from pyc_mlir.dialects import functions
from pyc_mlir.dialects.ops.elementwise import FLOAT, Elementwise
from pyc_mlir.dialects.opdef import OpDef, Trait


class Softplus(Elementwise, name="softplus", operands="x"):
    """out = log(1 + exp(x))."""

    allowed = FLOAT

    @staticmethod
    def reference(x):
        return np.log1p(np.exp(x.astype(np.float64)))

    @staticmethod
    def decompose(b, x):
        return functions.log1p(b, b.exp(x))


class Centered(OpDef, name="centered", operands="x", traits=Trait.ALIGNED | Trait.OVERWRITES):
    """out = x - mean(x) along the last dimension."""

    anchor = "row"
    cost_family = "rows"

    @staticmethod
    def infer(x):
        return x

    @staticmethod
    def reference(x):
        wide = x.astype(np.float64)
        return wide - wide.mean(-1, keepdims=True)

    @staticmethod
    def decompose(b, x):
        return b.sub(x, b.reduce_mean(x, axes=(-1,), keepdims=True))


import pyc_mlir

TEXT = """
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>) -> tensor<8x32xf32> {
  %0 = "pyc.matmul"(%x, %w) : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %1 = "pyc.softplus"(%0) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %2 = "pyc.centered"(%1) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %3 = "pyc.neg"(%2) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  func.return %3 : tensor<8x32xf32>
}
"""
program = pyc_mlir.compile(TEXT)
x, w = (np.random.default_rng(0).normal(size=s).astype(np.float32) for s in ((8, 16), (16, 32)))
out = program(x, w)
expected = Softplus.reference(x @ w)
expected = expected.mean(-1, keepdims=True) - expected
np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-4, atol=1e-5)
print(*sorted({d.chosen for d in program.artifact.decisions if d.site.pass_name == "pyc-fuse"}))
'''


def test_an_op_of_one_class_compiles_and_fuses():
    """An elementwise op ends a product's group, and a row op starts one."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fuse:centered+neg", "fuse:matmul+softplus"]
