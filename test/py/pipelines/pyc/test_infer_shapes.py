"""pyc-infer-shapes: what is known of the arguments reaches every op; contradictions are refused."""

import numpy as np
import pytest
from op_cases import CASES, Case, inputs
from op_modules import case_module, module_of, ops_of

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import tensor
from pyc_mlir.frontends.signatures import shapes_text
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.pyc.infer_shapes import InferShapes, parse_shapes

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def context() -> ir.Context:
    return new_context()


def infer(text: str, context: ir.Context, shapes: str = "") -> str:
    """The module after the pass, which leaves it valid."""
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
        InferShapes(shapes).run(module, PassContext())
        assert module.operation.verify()
        return str(module)


NEG = """
func.func @main(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "pyc.neg"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}"""


@pytest.mark.parametrize(
    "text, shapes",
    [
        ("2x3", [(2, 3)]),
        ("2x?,scalar", [(2, None), ()]),
        (" 4 , ?x?x1 ", [(4,), (None, None, 1)]),
        ("0", [(0,)]),
    ],
)
def test_shapes_as_text(text, shapes):
    assert parse_shapes(text) == shapes
    assert parse_shapes(shapes_text(shapes)) == shapes


@pytest.mark.parametrize("text", ["", "2x", "axb", "-1", "2*3", "2x3,", "2.5", "??"])
def test_malformed_shapes_are_refused(text):
    with pytest.raises(PycError, match="expected sizes or \\? joined by x") as caught:
        parse_shapes(text)
    assert caught.value.code is ReasonCode.INVALID_PIPELINE


def test_statistics_count_what_was_refined(context):
    with context, ir.Location.unknown():
        module = ir.Module.parse(NEG)
        assert InferShapes("2x3").run(module, PassContext()) == {"refined": 2}
        assert InferShapes("2x3").run(module, PassContext()) == {"refined": 0}


def test_what_is_declared_better_stays(context):
    text = """
func.func @main(%x: tensor<?xf32>) -> tensor<4xf32> {
  %0 = "pyc.neg"(%x) : (tensor<?xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
    assert infer(text, context).split() == str(ir.Module.parse(text, context)).split()


GROUP = """
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "pyc.group"() ({
    %1 = "pyc.exp"(%x) : (tensor<?xf32>) -> tensor<?xf32>
    %2 = "pyc.neg"(%1) : (tensor<?xf32>) -> tensor<?xf32>
    "pyc.yield"(%2) : (tensor<?xf32>) -> ()
  }) {kind = "elementwise"} : () -> tensor<?xf32>
  return %0 : tensor<?xf32>
}"""


MAIN_SECOND = "func.func @helper(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }"


SQUARES = """
func.func @main(%x: tensor<2x3xf32>) -> tensor<?x?xf32> {
  %0 = "pyc.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<?x?xf32>
  %1 = "pyc.matmul"(%x, %0) : (tensor<2x3xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}"""


@pytest.mark.parametrize(
    ("text", "shapes", "held", "gone"),
    [
        (NEG, "2x?", "(%arg0: tensor<2x?xf32>) -> tensor<2x?xf32>", "?x?"),
        (SQUARES, "", "-> tensor<2x2xf32>", "?"),
        (GROUP, "4", "pyc.group", "?"),
        (MAIN_SECOND + NEG, "2x3", "@main(%arg0: tensor<2x3xf32>)", "?x?"),
        (MAIN_SECOND + NEG, "2x3", "@helper(%arg0: tensor<?xf32>)", "?x?"),
    ],
    ids=["signature", "an op's own rule", "groups and their bodies", "main", "other functions"],
)
def test_what_is_known_reaches(text, shapes, held, gone, context):
    found = infer(text, context, shapes)
    assert held in found and gone not in found


def test_without_a_main_there_is_no_entry(context):
    with pytest.raises(PycError, match="name the entry `main`"):
        infer(MAIN_SECOND + MAIN_SECOND.replace("helper", "other"), context, "4")


@pytest.mark.parametrize(
    "text, shapes, code, message",
    [
        (NEG, "2x3,4", ReasonCode.INVALID_PIPELINE, "expected 1 shapes, got 2"),
        (
            NEG,
            "2",
            ReasonCode.INVALID_IR,
            "argument 0: expected a shape within tensor<\\?x\\?xf32>",
        ),
        (
            NEG.replace("?x?", "4x?"),
            "2x3",
            ReasonCode.INVALID_IR,
            "argument 0: expected a shape within",
        ),
        (
            NEG.replace("-> tensor<?x?xf32>\n", "-> tensor<?x5xf32>\n")
            .replace("tensor<?x?xf32> {", "tensor<?x5xf32> {")
            .replace("return %0 : tensor<?x?xf32>", "return %0 : tensor<?x5xf32>"),
            "2x3",
            ReasonCode.INVALID_IR,
            "pyc.neg: expected a shape within tensor<\\?x5xf32>, got tensor<2x3xf32>",
        ),
    ],
    ids=["count", "rank", "size", "an op that declares another size"],
)
def test_contradictions_are_refused(text, shapes, code, message, context):
    with pytest.raises(PycError, match=message) as caught:
        infer(text, context, shapes)
    assert caught.value.code is code


def test_operands_that_no_longer_fit_are_refused(context):
    text = """
func.func @main(%x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "pyc.add"(%x, %y) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}"""
    with pytest.raises(PycError, match="2 and 3 do not broadcast") as caught:
        infer(text, context, "2,3")
    assert caught.value.code is ReasonCode.INVALID_IR


def test_an_argument_that_another_dialect_reads_is_refused(context):
    text = """
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = tensor.cast %x : tensor<?xf32> to tensor<?xf32>
  return %0 : tensor<?xf32>
}"""
    with pytest.raises(PycError, match=r"argument 0 is used by `tensor\.cast`"):
        infer(text, context, "4")


def test_the_pass_is_a_pipeline_with_an_option(context):
    module = ir.Module.parse(NEG, context)
    run_pipeline(module, "pyc-infer-shapes{shapes=2x3}", PassContext())
    assert "?" not in str(module)


# Of these the length follows from values.
DYNAMIC_CASES = [c for c in CASES if c.dynamic and c.op not in ("range", "nonzero")][::7]


@pytest.mark.parametrize("case", DYNAMIC_CASES, ids=str)
@np.errstate(all="ignore")
def test_dynamic_programs_of_every_op_become_static_and_mean_the_same(case: Case, context):
    arrays = inputs(case)
    with context, ir.Location.unknown():
        module = case_module(case, context, dynamic=True)
        (wanted,) = interpret(module, arrays)
        InferShapes(shapes_text(arrays)).run(module, PassContext())
        assert module.operation.verify()
        assert "?" not in str(module)
        assert interpret(module, arrays)[0].tobytes() == wanted.tobytes()


def test_the_cases_hold_most_ops():
    assert len({c.op for c in DYNAMIC_CASES}) > 45


def test_a_chain_keeps_its_results(context):
    types = [tensor("f32", None, None)]
    with context, ir.Location.unknown():
        module = module_of(
            lambda b, x: b.softmax(b.matmul(x, b.transpose(x, permutation=(1, 0)))), types, context
        )
        before = interpret(module, [X])
        InferShapes("2x3").run(module, PassContext())
        np.testing.assert_array_equal(interpret(module, [X])[0], before[0])
        assert {str(op.result.type) for op in ops_of(module)[:-1]} == {
            "tensor<3x2xf32>",
            "tensor<2x2xf32>",
        }
