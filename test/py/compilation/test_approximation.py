"""Approximate products under `max_error`: what is chosen, promised, checked and turned down."""

from typing import Any

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir import nn
from pyc_mlir.compilation.approximation import APPROXIMATE, EXACT
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.numerics.approximation import (
    ATTRIBUTE,
    BF16,
    INT8,
    INT16,
    WAYS,
    Approximation,
)
from pyc_mlir.frontends.mlir_text import parse_mlir
from pyc_mlir.pipelines.choices.choices import Recipe
from pyc_mlir.pipelines.choices.contract import ROUNDING, STRICT, Contract
from pyc_mlir.pipelines.choices.evidence import AllowedError, NotOffered
from pyc_mlir.pipelines.kernels.families.approximate_forms import best_form, needed_share
from pyc_mlir.pipelines.kernels.families.bytes import MADD
from pyc_mlir.runtime.counts import ApproximationCounts
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program

DRAW = np.random.default_rng(0)
WIDTH, ROWS = 256, 64
W = [DRAW.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32) for _ in range(4)]
X = [pyc_mlir.TensorSpec("f32", ROWS, WIDTH)]


def product(x: Any) -> Any:
    return x @ W[0]


def layers(x: Any) -> Any:
    for w in W:
        x = nn.relu(x @ w) * 1.5
    return x


def compiled(function: Any, contract: Contract, **options: Any) -> Program:
    device = Device("local-sync")
    return pyc_mlir.compile(function, X, contract=contract, device=device, cache=None, **options)


def chosen(program: Program) -> list[str]:
    return [d.chosen for d in program.artifact.decisions if d.site.pass_name == APPROXIMATE]


def share(program: Program, function: Any, x: np.ndarray) -> float:
    """Return the greatest error of a call, as a share of the result's greatest element."""
    exact = function(x.astype(np.float64))
    return float(np.abs(program(x) - exact).max() / np.abs(exact).max())


def inputs(kind: str, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(ROWS, WIDTH)).astype(np.float32)
    if kind == "outliers":
        x[draw.random(x.shape) < 0.003] *= 300
    if kind == "outlier columns":
        x[:, draw.integers(WIDTH, size=2)] *= 1000
    if kind == "scales":
        x *= np.exp(draw.normal(0, 5, (ROWS, 1))).astype(np.float32)
    if kind == "zeros":
        x[draw.random(ROWS) < 0.5] = 0
    return x


def counts(program: Program) -> ApproximationCounts:
    found = program.stats().approximations
    assert found is not None
    return found


KINDS = ("plain", "outliers", "outlier columns", "scales", "zeros")


@pytest.mark.parametrize("contract", [Contract(), Contract(max_error=ROUNDING)])
def test_without_a_number_nothing_is_approximate(contract: Contract) -> None:
    assert chosen(compiled(product, contract)) == []


def test_a_small_number_leaves_all_products_exact() -> None:
    program = compiled(layers, Contract(max_error=1e-4))
    assert set(chosen(program)) == {EXACT}
    decision = next(d for d in program.artifact.decisions if d.site.pass_name == APPROXIMATE)
    (left_out,) = [e for e in decision.evidence if isinstance(e, NotOffered)]
    assert set(left_out.names) <= set(WAYS)
    assert "max_error is 0.0001" in left_out.why


@pytest.mark.parametrize("function", [product, layers])
def test_errors_stay_within_the_promise(function: Any) -> None:
    limit = 0.08
    program = compiled(function, Contract(max_error=limit))
    taken = chosen(program)
    assert set(taken) & set(WAYS), taken
    for kind in KINDS:
        for seed in range(4):
            assert share(program, function, inputs(kind, seed)) <= limit, (kind, seed)
    assert counts(program).tiles


def test_bounds_stand_in_the_decision_and_the_report() -> None:
    program = compiled(product, Contract(max_error=0.08))
    (decision,) = [d for d in program.artifact.decisions if d.site.pass_name == APPROXIMATE]
    bound = next(e for e in decision.evidence if isinstance(e, AllowedError))
    assert bound.way == decision.chosen
    assert 0 < bound.needed < bound.allowed <= 0.08
    report = str(program.artifact.contract_report["max_error"])
    assert "1 products are approximate, 100.0 % of the arithmetic" in report


def test_tiles_that_break_the_promise_are_computed_exactly() -> None:
    program, exact = compiled(product, Contract(max_error=0.08)), compiled(product, Contract())
    x = inputs("plain", 1)
    x[0, 0] = 1e6
    found = program(x)
    assert counts(program).by_bound
    assert np.array_equal(found[0], exact(x)[0])


def test_infinities_come_out_as_from_exact_products() -> None:
    program, exact = compiled(product, Contract(max_error=0.08)), compiled(product, Contract())
    x = inputs("plain", 1)
    x[3, 5], x[9, 7] = np.inf, np.nan
    assert np.array_equal(np.isnan(program(x)), np.isnan(exact(x)))


def test_a_recipe_repeats_the_choice_and_may_be_more_exact() -> None:
    program = compiled(layers, Contract(max_error=0.08))
    recipe = Recipe.from_log(program.artifact.decisions)
    again = compiled(layers, Contract(max_error=0.08), recipe=recipe)
    assert chosen(again) == chosen(program)
    exact = {site: EXACT for site in recipe.choices if site.startswith(APPROXIMATE)}
    other = compiled(layers, Contract(max_error=0.08), recipe=Recipe(exact, tolerant=True))
    assert set(chosen(other)) == {EXACT}


def test_samples_that_fail_make_the_products_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    # No product seems to be off by anything, so that the quickest way is taken.
    monkeypatch.setattr(Approximation, "deviation", lambda self, value: np.zeros(value.shape))
    program = compiled(product, Contract(max_error=1e-3))
    (decision,) = [d for d in program.artifact.decisions if d.site.pass_name == APPROXIMATE]
    assert decision.chosen == EXACT
    assert decision.decided_by == "comparison"


def test_strict_programs_are_equal_and_detection_leaves_products_exact() -> None:
    strict = Contract(max_error=0.08, determinism=STRICT)
    one, two = compiled(layers, strict), compiled(layers, strict)
    assert one.artifact.vmfb == two.artifact.vmfb
    assert set(chosen(one)) & set(WAYS)
    assert chosen(compiled(layers, Contract(max_error=0.08, detect_faults=True))) == []


def test_a_discrete_result_is_not_decided_by_approximation() -> None:
    program = compiled(lambda x: np.argmax(x @ W[0], axis=-1), Contract(max_error=0.08))
    assert set(chosen(program)) <= {EXACT}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("depth", [32, 512])
def test_needs_are_upper_estimates(way: str, depth: int) -> None:
    draw = np.random.default_rng(depth)
    a, b = (draw.normal(size=s).astype(np.float32) for s in ((64, depth), (depth, 64)))
    exact = a.astype(np.float64) @ b
    target = make_options(target="cpu").target
    if best_form(target, way) is None or (way == INT8 and best_form(target, way) == MADD):
        pytest.skip(f"this CPU has no instruction for {way}")
    need = needed_share(way, target, a, b, exact)
    step = {INT8: 1 / 127, INT16: 1 / 4095, BF16: 1 / 256}[way]
    assert step < need < 30 * step


MARKED = """func.func @main(%a: tensor<8x64xf32>, %b: tensor<64x64xf32>) -> tensor<8x64xf32> {{
  %r = "pyc.matmul"(%a, %b) {{pyc.approximate = {}}}
    : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  return %r : tensor<8x64xf32>
}}
"""


def test_marks_are_read_and_malformed_ones_refused() -> None:
    from pyc_mlir.dialects.ir.interpreter import entry_function
    from pyc_mlir.dialects.ir.pyc import new_context

    def read(mark: str) -> Approximation | None:
        with new_context() as context:
            module = parse_mlir(MARKED.format(mark), context)
            op = entry_function(module).regions[0].blocks[0].operations[0].operation
            assert ATTRIBUTE in op.attributes
            return Approximation.read(op)

    assert read('{way = "bf16", allowed = 0.25 : f64}') == Approximation(BF16, 0.25)
    for mark in ("3 : i64", '{way = "f8", allowed = 0.25 : f64}', '{way = "int8"}'):
        with pytest.raises(PycError) as error:
            read(mark)
        assert error.value.code is ReasonCode.INVALID_IR
