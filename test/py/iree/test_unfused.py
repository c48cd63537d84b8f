"""What IREE fuses and cannot generate code for is compiled op by op, and answers as numpy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir.compilation.build import FUSION_SITE as SITE
from pyc_mlir.compilation.build import UNFUSED
from pyc_mlir.pipelines.choices.choices import FALLBACK, Alternative, Site

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
    assert str(decision.grounds[0]).startswith("CODEGEN_FALLBACK: aggressive: 'linalg.yield' op")


@dataclass(frozen=True)
class Unfused:
    """Takes the last resort at once."""

    name: str = "unfused"
    planner_modes: tuple[str, ...] = ("latency_first", "balanced", "memory_first")

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        names = [a.name for a in alternatives]
        return UNFUSED if UNFUSED in names else names[0]


def test_constants_that_a_plan_puts_beside_other_work_are_uploaded():
    """IREE drops a constant of an initializer inside of a wave: the product read zeros."""
    w = np.random.default_rng(0).normal(size=(16, 5)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(2, 8, 16)).astype(np.float32)
    program = pyc_mlir.compile(lambda x: np.sort(x @ w), [x], policy=Unfused())
    assert ("iree-fusion", UNFUSED) in {
        (d.site.pass_name, d.chosen) for d in program.artifact.decisions
    }
    np.testing.assert_allclose(program(x), np.sort(x @ w), atol=1e-4)
