"""Work on constants is bounded: what is beyond is computed when the program is loaded or runs."""

from collections.abc import Sequence

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir.compilation.attempts import build_here
from pyc_mlir.compilation.build import CONSTANTS_SITE
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.opdef import MAX_FOLDED_WORK, OPS, FoldWork
from pyc_mlir.dialects.types import tensor
from pyc_mlir.iree.foreign import read_entry
from pyc_mlir.pipelines.choices.choices import Alternative, FirstIsBest, Recipe, Site

SYNC = pyc_mlir.Device("local-sync")
# 1.5 GiB: PyC folds no operand as large, IREE would.
LARGE = "tensor<20000x20000xf32>"
SUM = f"""
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{
  %0 = "pyc.constant"() {{value = dense<1.0> : {LARGE}}} : () -> {LARGE}
  %1 = "pyc.exp"(%0) : ({LARGE}) -> {LARGE}
  %2 = "pyc.reduce_mean"(%1) {{axes = array<i64: 0, 1>, keepdims = false}} :
      ({LARGE}) -> tensor<f32>
  %3 = "pyc.add"(%a, %2) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %3 : tensor<4xf32>
}}"""
RAMP = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
LITERAL = str(RAMP.tolist())
KIND = "tensor<8x8xf32>"
FOREIGN = f"""
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%a: {KIND}) -> {KIND} {{
  %c = arith.constant dense<{LITERAL}> : {KIND}
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {KIND}
  %f = linalg.fill ins(%zero : f32) outs(%e : {KIND}) -> {KIND}
  %p = linalg.matmul ins(%c, %c : {KIND}, {KIND}) outs(%f : {KIND}) -> {KIND}
  %g = linalg.generic {{indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}}
      ins(%p : {KIND}) outs(%e : {KIND}) {{
    ^bb0(%x: f32, %o: f32):
      %y = math.tanh %x : f32
      linalg.yield %y : f32
  }} -> {KIND}
  %r = linalg.matmul ins(%a, %g : {KIND}, {KIND}) outs(%f : {KIND}) -> {KIND}
  return %r : {KIND}
}}"""

PRODUCTS = f"""
func.func @main(%a: {KIND}) -> {KIND} {{
  %c = "pyc.constant"() {{value = dense<{LITERAL}> : {KIND}}} : () -> {KIND}
  %p = "pyc.matmul"(%c, %c) : ({KIND}, {KIND}) -> {KIND}
  %g = "pyc.tanh"(%p) : ({KIND}) -> {KIND}
  %r = "pyc.matmul"(%a, %g) : ({KIND}, {KIND}) -> {KIND}
  return %r : {KIND}
}}"""


class AtCompile(FirstIsBest):
    """A policy that lets IREE compute constants whatever it takes."""

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """`compile` at that site."""
        at = site.pass_name == CONSTANTS_SITE
        return "compile" if at else super().prefer(site, alternatives)


def work_of(text: str, **options) -> int:
    return lower(Job.of(text, None, make_options(target="cpu-avx2", **options))).facts.constant_work


def decided(program: pyc_mlir.Program) -> list[str]:
    return [d.chosen for d in program.artifact.decisions if d.site.pass_name == CONSTANTS_SITE]


def test_work_of_a_program():
    large, scalar = tensor("f32", 20000, 20000), tensor("f32")
    exp = OPS["exp"].evaluation_work([large], large)
    mean = OPS["reduce_mean"].evaluation_work([large], scalar, axes=(0, 1), keepdims=False)
    assert work_of(SUM) == exp + mean > MAX_FOLDED_WORK
    of_argument = SUM.replace('"pyc.exp"(%0)', '"pyc.exp"(%w)').replace(
        "main(", f"main(%w: {LARGE}, "
    )
    assert work_of(of_argument) == 0


def test_work_of_a_foreign_module():
    """fill, a product and a pointwise op read constants alone; the last product does not."""
    matmul, tanh = 2 * 8**3 + 16 * 4 * 64, 2 * 64 + 16 * 3 * 64
    fill = 2 * 0 + 16 * 2 * 64
    assert read_entry(FOREIGN.encode()).constant_work == matmul + tanh + fill
    less = FOREIGN.replace("ins(%c, %c", "ins(%a, %c")
    assert read_entry(less.encode()).constant_work == fill


@pytest.mark.parametrize("text", [FOREIGN, PRODUCTS], ids=["foreign", "pyc"])
@pytest.mark.full
def test_it_is_left_to_the_program(text, monkeypatch):
    """The answer is the same wherever the constants are computed; a recipe repeats the place."""
    x, options = np.ones((8, 8), np.float32), {"kernels": "iree", "device": SYNC}
    usual = pyc_mlir.compile(text, **options)
    assert decided(usual) == []
    monkeypatch.setattr("pyc_mlir.compilation.build.MAX_FOLDED_WORK", 100)
    monkeypatch.setattr(FoldWork.__init__, "__defaults__", (100,))
    later = pyc_mlir.compile(text, **options)
    assert decided(later) == ["load"]
    at_compile = pyc_mlir.compile(text, policy=AtCompile(), **options)
    assert decided(at_compile) == ["compile"]
    again = pyc_mlir.compile(text, recipe=Recipe.from_log(at_compile.artifact.decisions), **options)
    assert decided(again) == ["compile"]
    for program in (later, at_compile, again):
        np.testing.assert_array_almost_equal_nulp(program(x), usual(x), 4)


@pytest.mark.full
def test_a_program_that_no_memory_holds_compiles():
    """40 GB of constants: IREE would allocate them while it compiles, and fail.

    The program itself needs them only where IREE keeps them apart from the sum.
    """
    program = SUM.replace("20000", "100000")
    made = build_here(Job.of(program, None, make_options(target="cpu-avx2", kernels="iree")))
    assert [d.chosen for d in made.decisions if d.site.pass_name == CONSTANTS_SITE] == ["load"]
    try:
        pyc_mlir.Program(made, SYNC)
    except PycError as error:
        assert error.code is ReasonCode.OUT_OF_MEMORY
