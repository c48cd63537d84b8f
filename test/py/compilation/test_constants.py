"""Constants larger than the model's: named by decisions, and never above IREE's plan."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir import nn
from pyc_mlir.api import build
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.compilation import attempts
from pyc_mlir.compilation.attempts import AS_IN_MODEL, AS_KERNELS_READ, HELD_SITE, build_here
from pyc_mlir.compilation.build import CONSTANTS_SITE
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.opdef import MAX_FOLDED_WORK, OPS, FoldWork
from pyc_mlir.dialects.types import tensor
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.iree.compiler import opened, run
from pyc_mlir.iree.foreign import read_entry
from pyc_mlir.iree.memory.calls import held_bytes
from pyc_mlir.pipelines.choices.choices import Alternative, FirstIsBest, Recipe, Site
from pyc_mlir.pipelines.choices.evidence import LargerConstant, NotOffered, Reason
from pyc_mlir.pipelines.pyc import select_kernels
from pyc_mlir.pipelines.pyc.constants import ExchangeRate

RANDOM = np.random.default_rng(5)
FILTERS = (RANDOM.normal(size=(64, 64, 3, 3)) / 24).astype(np.float32)
W = RANDOM.normal(size=(784, 10)).astype(np.float32)
SHAPES = ((1,), (7,), (33,), (128,), (1, 9), (2, 3, 7), (5, 40), (3, 100), (10, 300))


def convolution(x):
    return nn.conv2d(x, FILTERS, pads=(1, 1, 1, 1))


IMAGE = TensorSpec("f32", 1, 64, 28, 28)


def made(model, spec, mode, **options) -> Any:
    return build(model, [spec], make_options(target="cpu-avx2", planner_mode=mode, **options))


def larger(artifact):
    """The larger constants of what was chosen, by site."""
    return {
        d.site.key: e
        for d in artifact.decisions
        for e in d.evidence
        if isinstance(e, LargerConstant) and e.alternative == d.chosen
    }


def test_balanced_names_each_larger_constant_with_its_bytes_and_what_it_saves():
    artifact = made(convolution, IMAGE, "balanced")
    (found,) = larger(artifact).values()
    assert found.alternative.startswith("winograd:conv2d") and found.own_bytes == FILTERS.nbytes
    assert found.nbytes in (FILTERS.nbytes * 16 // 9, FILTERS.nbytes * 4)
    assert found.saves > 0 and found.over and found.worth > 0
    beyond = artifact.account.constants - artifact.reference.constants
    assert beyond == found.nbytes - found.own_bytes
    assert larger(artifacts.from_bytes(artifacts.to_bytes(artifact))) == larger(artifact)


def test_a_price_that_is_too_high_is_named_where_the_quicker_kernel_is_given_up(monkeypatch):
    dear = {"balanced": ExchangeRate(worth=1e6, slack=1e6)}
    monkeypatch.setattr(select_kernels, "RATES", dear)
    artifact = made(convolution, IMAGE, "balanced")
    assert not larger(artifact)
    assert artifact.account.constants == artifact.reference.constants
    left = [e for d in artifact.decisions for e in d.evidence if isinstance(e, LargerConstant)]
    assert left and all(e.saves > 0 and e.alternative != e.over for e in left)


@pytest.mark.parametrize("model, spec", [(convolution, IMAGE), (lambda x: x @ W, None)])
def test_memory_first_is_never_above_the_plan_of_iree(model, spec):
    spec = spec or TensorSpec("f32", 2, 784)
    artifact = made(model, spec, "memory_first")
    assert artifact.account.total() <= artifact.reference.total()
    again = made(model, spec, "memory_first", recipe=Recipe.from_log(artifact.decisions))
    assert again.vmfb == artifact.vmfb and again.decisions == artifact.decisions


def test_the_models_own_constants_are_tried_after_a_setting_without_code(monkeypatch):
    """A failed setting of the first way does not count against the way that comes after it."""
    settings = []

    def build_under(plan: Any, setting: str) -> Any:
        settings.append(setting)
        if len(settings) == 1:
            raise PycError(ReasonCode.TARGET_COMPILE_FAILED, "x: expected y, got: too large")
        return generate(plan, setting)

    generate = attempts.build
    monkeypatch.setattr(attempts, "build", build_under)
    monkeypatch.setattr(attempts, "_above_reference", lambda made: Reason("", "1 byte above"))
    artifact = made(lambda x: x @ W, TensorSpec("f32", 2, 784), "memory_first")
    chosen = {d.site.key: d.chosen for d in artifact.decisions}
    assert chosen[HELD_SITE.key] == AS_IN_MODEL and not larger(artifact)
    assert settings[2] == settings[0], "the preferred setting again"


def test_memory_first_of_open_sizes_holds_no_larger_constant():
    artifact = made(lambda x: x @ W, TensorSpec("f32", None, 784), "memory_first")
    assert artifact.account.total() is None
    assert artifact.account.constants <= artifact.reference.constants and not larger(artifact)
    why = [e for d in artifact.decisions for e in d.evidence if isinstance(e, NotOffered)]
    assert any("larger than the model's" in str(e) for e in why)


def resized(x):
    return nn.resize(x, scales=(1.5, 0.7), mode="linear")


# IREE computes the places of rows once for all; the taps of a resize are the lowering's.
@pytest.mark.parametrize(
    "model, shape",
    [
        (np.sort, (4, 16)),
        (resized, (2, 3, 20, 20)),
        (lambda x: x @ W[:, :1] + np.arange(3.0), (2, 3, 784)),
        *((model, shape) for model in (np.sort, np.argsort) for shape in SHAPES),
    ],
)
@pytest.mark.sampled(5)
def test_constants_that_the_compile_makes_are_those_of_plain_iree(model, shape):
    spec = TensorSpec("f32", *shape)
    artifact = made(model, spec, "memory_first")
    ours, theirs = artifact.account, artifact.reference
    assert ours.total() <= theirs.total()
    chosen = {d.site.key: d.chosen for d in artifact.decisions}
    assert chosen[HELD_SITE.key] == AS_KERNELS_READ, "no second compile"
    options = make_options(target="cpu-avx2", kernels="iree")
    lowered = lower(Job.of(model, [spec], options))
    with opened(lowered.code, options.target) as session:
        run(session, options.target, to="stream")
        assert theirs.constants == held_bytes(session.module)


# Work on constants is bounded: what is beyond is computed when the program is loaded or runs.
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
