"""What IREE fuses and cannot generate code for is compiled op by op, and answers as numpy."""

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir.compilation.generate import SITE, UNFUSED
from pyc_mlir.pipelines.choices.choices import FALLBACK

# IREE turns the transpose around the whole reduction, whose values nothing reads.
TURNED_ARGMAX = """func.func @main(%x: tensor<?x3x?xf32>) -> tensor<?x3xi64> {
  %0 = "pyc.argmax"(%x) {axis = 0 : i64, keepdims = false} : (tensor<?x3x?xf32>) -> tensor<3x?xi64>
  %1 = "pyc.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<3x?xi64>) -> tensor<?x3xi64>
  return %1 : tensor<?x3xi64>
}"""


@pytest.mark.full
def test_a_program_that_only_compiles_op_by_op():
    x = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
    program = pyc_mlir.compile(TURNED_ARGMAX)
    np.testing.assert_array_equal(program(x), x.argmax(0).T)
    (decision,) = (d for d in program.artifact.decisions if d.site.pass_name == SITE)
    assert (decision.chosen, decision.decided_by) == (UNFUSED, FALLBACK)
    assert [a.name for a in decision.alternatives][-1] == UNFUSED
    assert decision.evidence[0].startswith("CODEGEN_FALLBACK: aggressive: 'linalg.yield' op")
