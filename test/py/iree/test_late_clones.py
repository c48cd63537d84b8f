"""A result that is returned beside its update keeps the value that it had before."""

import numpy as np

import pyc_mlir
from pyc_mlir.iree.memory import versions

# The third result, a constant, is filled beside the update: IREE makes a wave of the two.
UPDATED = """func.func @main(%x: tensor<7x3x3xi32>)
    -> (tensor<7x3x3xi32>, tensor<1xi32>, tensor<7x3x3xi32>) {
  %0 = "pyc.abs"(%x) : (tensor<7x3x3xi32>) -> tensor<7x3x3xi32>
  %1 = "pyc.constant"() {value = dense<-1> : tensor<4x1x1xi32>} : () -> tensor<4x1x1xi32>
  %2 = "pyc.constant"() {value = dense<[4, 0, 3]> : tensor<3xi64>} : () -> tensor<3xi64>
  %3 = "pyc.update_slice"(%0, %1, %2) :
      (tensor<7x3x3xi32>, tensor<4x1x1xi32>, tensor<3xi64>) -> tensor<7x3x3xi32>
  %4 = "pyc.constant"() {value = dense<3> : tensor<1xi32>} : () -> tensor<1xi32>
  return %3, %4, %0 : tensor<7x3x3xi32>, tensor<1xi32>, tensor<7x3x3xi32>
}"""


def test_a_copy_is_made_before_the_update(monkeypatch):
    """Fails once IREE orders the two itself: no copy is late then, and the workaround may go."""
    moved, advance = [], versions.advance_clones
    monkeypatch.setattr(versions, "advance_clones", lambda m: moved.append(advance(m)) or moved[-1])
    program = pyc_mlir.compile(UPDATED, kernels="iree")
    assert sum(moved) > 0
    x = np.arange(-63, 0, dtype=np.int32).reshape(7, 3, 3)
    for outputs in ({}, {"out": [np.zeros_like(x), np.zeros(1, np.int32), np.zeros_like(x)]}):
        updated, _, kept = program(x, **outputs)
        np.testing.assert_array_equal(kept, np.abs(x))
        assert (updated == -1).sum() == 4 and (updated == np.abs(x)).sum() == 59
