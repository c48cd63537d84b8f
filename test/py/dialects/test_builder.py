"""Builders: inferred types, short forms, the same program as IR and computed at once."""

import numpy as np
import pytest
from op_modules import module_of, ops_of

from pyc_mlir.dialects.errors import PycError, ReasonCode, VerificationError
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import Builder, IRBuilder, NumpyBuilder
from pyc_mlir.dialects.ir.interpreter import flush_subnormals, interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import DTYPES, TensorType, tensor

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def context() -> ir.Context:
    return new_context()


PROGRAMS = {
    "mlp": lambda b, x: b.relu(b.add(b.matmul(x, np.ones((4, 2), np.float32)), b.scalar(-9, x))),
    "expand": lambda b, x: b.expand_dims(x, 1),
    "expand last": lambda b, x: b.expand_dims(x, 2),
    "squeeze": lambda b, x: b.squeeze(b.reduce_max(x, axes=(0,), keepdims=True), 0),
    "align": lambda b, x: b.add(x, b.align(b.reduce_sum(x, axes=(1,)), 0, 2)),
    "size": lambda b, x: b.size(x, 0, 1),
    "count": lambda b, x: b.div(b.reduce_sum(x, axes=(0, 1)), b.count(x, (0, 1))),
    "iota_like": lambda b, x: b.mul(x, b.cast(b.iota_like(x, 0), dtype=DTYPES["f32"])),
    "reserved names": lambda b, x: b.not_(b.and_(*[b.compare(x, x, predicate="eq")] * 2)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dims", [(3, 4), (None, 4), (3, None), (None, None)], ids=str)
def test_both_builders_mean_the_same(name, dims, context):
    program = PROGRAMS[name]
    want = program(NumpyBuilder(), X)
    module = module_of(program, [TensorType(dims, X.dtype)], context)
    (got,) = interpret(module, [X])
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)


def test_known_sizes_are_constants(context):
    for dims, name in (((3, 4), "pyc.constant"), ((None, 4), "pyc.size")):
        module = module_of(lambda b, x: b.size(x, 0), [TensorType(dims, X.dtype)], context)
        assert ops_of(module)[0].name == name


def test_the_builder_knows_only_the_dialects_ops():
    with pytest.raises(AttributeError, match="no op `conv9d`"):
        NumpyBuilder().conv9d(X)
    assert isinstance(IRBuilder(), Builder)


def test_errors_come_before_an_op_is_made(context):
    def broken(b, x):
        with pytest.raises(VerificationError, match="inner dimensions"):
            b.matmul(x, x)
        with pytest.raises(VerificationError, match="expected parameters"):
            b.softmax(x, axes=1)
        with pytest.raises(VerificationError, match="expected 1 operands"):
            b.relu(x, x)
        return x

    module = module_of(broken, [tensor("f32", 3, 4)], context)
    assert [op.name for op in ops_of(module)] == ["func.return"]


def test_the_interpreter_refuses_wrong_counts_and_foreign_ops(context):
    module = module_of(lambda b, x: b.relu(x), [tensor("f32", 3, 4)], context)
    with pytest.raises(PycError) as caught:
        interpret(module, [])
    assert caught.value.code is ReasonCode.ARGUMENT_COUNT
    text = "func.func @main() -> i32 { %0 = arith.constant 1 : i32\n return %0 : i32 }"
    with pytest.raises(PycError) as caught:
        interpret(ir.Module.parse(text, context), [])
    assert caught.value.code is ReasonCode.UNSUPPORTED_OP


def test_the_interpreter_checks_declared_sizes(context):
    text = (
        "func.func @main(%a: tensor<?xf32>) -> tensor<3xf32> {\n"
        '  %0 = "pyc.relu"(%a) : (tensor<?xf32>) -> tensor<3xf32>\n  return %0 : tensor<3xf32>\n}'
    )
    module = ir.Module.parse(text, context)
    assert interpret(module, [X[0, :3]])[0].shape == (3,)
    with pytest.raises(PycError) as caught:
        interpret(module, [X[0]])
    assert caught.value.code is ReasonCode.DIMENSION_MISMATCH


def test_groups_are_transparent_to_the_interpreter(context):
    text = """
func.func @main(%a: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %0 = "pyc.group"() ({
    %1 = "pyc.exp"(%a) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %2 = "pyc.add"(%1, %a) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    "pyc.yield"(%2) : (tensor<3x4xf32>) -> ()
  }) {kind = "cluster"} : () -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}"""
    (got,) = interpret(ir.Module.parse(text, context), [X])
    np.testing.assert_allclose(got, np.exp(X) + X, rtol=1e-6)


def test_the_entry_is_main_or_the_only_function(context):
    one = "func.func @{}(%a: tensor<f32>) -> tensor<f32> {{ return %a : tensor<f32> }}\n"
    zero = np.zeros((), np.float32)
    assert interpret(ir.Module.parse(one.format("f"), context), [zero]) == [0]
    assert interpret(ir.Module.parse(one.format("f") + one.format("main"), context), [zero]) == [0]
    with pytest.raises(PycError, match="name the entry `main`"):
        interpret(ir.Module.parse(one.format("f") + one.format("g"), context), [zero])


def test_denormals_are_flushed_on_request(context):
    tiny = np.array([1e-40, -1e-40, 1.0], np.float32)
    module = module_of(lambda b, x: b.relu(x), [tensor("f32", 3)], context)
    np.testing.assert_array_equal(interpret(module, [tiny])[0], np.maximum(tiny, 0))
    np.testing.assert_array_equal(interpret(module, [tiny], flush_denormals=True)[0], [0, 0, 1])
    halves = np.array([1e-7], np.float16)
    assert flush_subnormals(halves) is halves


def test_numbers_take_the_type_of_the_value_beside_them():
    b, x = NumpyBuilder(), np.array([1.0, -2.0], np.float16)
    assert b.mul(0.5, x).dtype == np.float16
    np.testing.assert_array_equal(b.select(b.lt(x, 0), -1, x), [1, -1])
    with pytest.raises(VerificationError, match="expected a number of ui8, got -1"):
        b.add(x.astype(np.uint8), -1)
