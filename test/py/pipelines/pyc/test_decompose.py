"""pyc-decompose: composite ops become primitive ones that compute the same."""

import numpy as np
import pytest
from op_cases import Case, cases_of, dynamic_types, inputs
from op_modules import case_module, module_of, names_of, ops_of

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import DTYPES, is_float, tensor
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.pyc.decompose import Decompose

COMPOSITE = sorted(name for name, op in OPS.items() if op.decompose is not None)
# Ops that refuse operands of unknown sizes: packed weights.
STATIC = {"block_matmul"}
# Decompositions round at every step.
RTOL = {"float64": 1e-9, "float32": 1e-4, "float16": 3e-2, "bfloat16": 2e-1}


@pytest.fixture(scope="module")
def context() -> ir.Context:
    return new_context()


def stays(case: Case) -> bool:
    """A matmul of matrices is primitive."""
    return case.op == "matmul" and min(len(o.shape) for o in case.operands) > 1


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("op", COMPOSITE)
@np.errstate(all="ignore")
def test_primitive_ops_compute_the_same(op, dynamic, context):
    cases = [c for c in cases_of(op) if (c.dynamic or not dynamic) and not stays(c)]
    assert cases or (dynamic and op in STATIC)
    for case in cases:
        arrays = inputs(case)
        with context, ir.Location.unknown():
            module = case_module(case, context, dynamic)
            (want,) = interpret(module, arrays)
            declared = str(ops_of(module)[0].result.type)
            assert Decompose().run(module, PassContext())["decomposed"] >= 1, case
            assert module.operation.verify()
            assert str(ops_of(module)[-1].operands[0].type) == declared, case
            left = [OPS[n] for n in names_of(module) if n != "tensor.cast"]
            assert all(d.decompose is None or d.name == "matmul" for d in left), case
            (got,) = interpret(module, arrays)
        assert_equal(got, want, str(case))


def assert_equal(got: np.ndarray, want: np.ndarray, what: str) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    if not is_float(got.dtype):
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    tolerance = RTOL[str(got.dtype)]
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), tolerance, tolerance, err_msg=what
    )


def test_only_the_named_ops_are_replaced(context):
    def program(b, x):
        return b.softmax(b.relu(b.silu(x)))

    with context, ir.Location.unknown():
        module = module_of(program, [tensor("f32", 2, 3)], context)
        run_pipeline(module, "pyc-decompose{only=relu,softmax}", PassContext())
        names = names_of(module)
    assert names[0] == "silu"
    assert not {"relu", "softmax"} & set(names)
    assert "exp" in names


def test_nested_decompositions_end_in_primitive_ops(context):
    """silu -> sigmoid -> exp, neg, add, div."""
    with context, ir.Location.unknown():
        module = module_of(lambda b, x: b.silu(x), [tensor("f32", 3)], context)
        assert Decompose().run(module, PassContext()) == {"decomposed": 2}
        assert set(names_of(module)) == {"neg", "exp", "constant", "add", "div", "mul"}


def test_primitive_programs_stay_as_they_are(context):
    with context, ir.Location.unknown():
        types = [tensor("f32", 2, 3), tensor("f32", 3, 4)]
        module = module_of(lambda b, x, w: b.exp(b.matmul(x, w)), types, context)
        before = str(module)
        assert Decompose().run(module, PassContext()) == {"decomposed": 0}
        assert str(module) == before


@pytest.mark.parametrize("only", ["add", "softmaxx", "softmax,exp", ","])
def test_other_names_are_refused(only, context):
    with context, ir.Location.unknown():
        module = module_of(lambda b, x: b.relu(x), [tensor("f32", 3)], context)
        with pytest.raises(PycError, match="expected composite ops") as caught:
            Decompose(only).run(module, PassContext())
    assert caught.value.code is ReasonCode.INVALID_PIPELINE


def test_ops_inside_groups_are_replaced_there(context):
    text = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.group"() ({
    %1 = "pyc.sigmoid"(%x) : (tensor<4xf32>) -> tensor<4xf32>
    "pyc.yield"(%1) : (tensor<4xf32>) -> ()
  }) {kind = "elementwise"} : () -> tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
        Decompose().run(module, PassContext())
        assert module.operation.verify()
        assert names_of(module) == ["group"]
        assert "pyc.div" in str(module)


def test_new_ops_have_the_place_of_the_old_one(context):
    text = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.sigmoid"(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("model.py":7:3)
  return %0 : tensor<4xf32>
}"""
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
        Decompose().run(module, PassContext())
        assert {str(op.location) for op in ops_of(module)[:-1]} == {'loc("model.py":7:3)'}


@pytest.mark.parametrize("op", ["reduce_mean", "layernorm", "rmsnorm"])
def test_sums_and_squares_of_16_bit_floats_do_not_overflow(op, context):
    x = np.full((2, 300), 1000, np.float16)
    x[:, ::2] = -900
    ones = np.ones(300, np.float16)
    programs = {
        "reduce_mean": lambda b, x: b.reduce_mean(b.abs(x), axes=(1,)),
        "layernorm": lambda b, x: b.layernorm(x, ones, ones),
        "rmsnorm": lambda b, x: b.rmsnorm(x, ones),
    }
    with context, ir.Location.unknown():
        module = module_of(programs[op], [tensor("f16", None, 300)], context)
        (want,) = interpret(module, [x])
        Decompose().run(module, PassContext())
        (got,) = interpret(module, [x])
    assert got.dtype == DTYPES["f16"]
    assert np.all(np.isfinite(got))
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2e-3, atol=1e-6)


def test_the_table_has_dynamic_cases_of_every_composite_op():
    for op in sorted({*COMPOSITE} - STATIC):
        cases = [c for c in cases_of(op) if c.dynamic and not stays(c)]
        assert any(None in t.shape for c in cases for t in dynamic_types(c)), op
