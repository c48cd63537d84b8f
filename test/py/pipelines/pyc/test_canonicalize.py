"""pyc-canonicalize: each rewrite fires on its equation, keeps every bit, and leaves near misses."""

import numpy as np
import pytest
from op_modules import module_of, names_of
from rewrite_examples import (
    BOOL,
    DYNAMIC,
    F32,
    FORMS,
    I32,
    SQUARE,
    C,
    Example,
    N,
    Program,
    X,
    bound,
    full,
    simplified,
    x_row,
)

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS, FoldWork
from pyc_mlir.dialects.types import DTYPES, TensorType, tensor
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.pyc.canonicalize import REWRITES, Canonicalize

LOWEST = np.finfo(np.float32).min


@pytest.fixture(scope="module")
def context() -> ir.Context:
    return new_context()


FIRES = (
    Example("neutral_operand", "maximum", lambda b, f, x: f(x, full(-np.inf))),
    Example("neutral_operand", "minimum", lambda b, f, x: f(x, full(np.inf))),
    Example("neutral_operand", "maximum", lambda b, f, x: f(x, full(-(2**31), I32)), types=(N,)),
    Example("neutral_operand", "add", lambda b, f, x: f(x, full(-0.0))),
    Example("neutral_operand", "sub", lambda b, f, x: f(x, full(0.0))),
    Example("neutral_operand", "mul div pow", lambda b, f, x: f(x, full(1))),
    Example("neutral_operand", "mul", lambda b, f, x: f(x, full(1)), types=(DYNAMIC,)),
    Example("neutral_operand", "mul", lambda b, f, x: f(x, full(1, F32, (1, 3))), types=(DYNAMIC,)),
    Example("neutral_operand", "add sub or xor", lambda b, f, x: f(x, full(0, I32)), types=(N,)),
    Example("neutral_operand", "mul div", lambda b, f, x: f(x, full(1, I32, (3,))), types=(N,)),
    Example("neutral_operand", "and", lambda b, f, x: f(x, full(-1, I32)), types=(N,)),
    Example("neutral_operand", "and", lambda b, f, x: f(x, full(True, BOOL)), types=(C,)),
    Example("neutral_operand", "or", lambda b, f, x: f(x, full(False, BOOL)), types=(C,)),
    Example(
        "constant_to_the_right",
        "add mul maximum minimum",
        lambda b, f, x: b.sub(f(b.constant(full(2)), x), f(x, full(2))),
        left="constant $ sub",
    ),
    Example(
        "constant_to_the_right",
        "and or xor",
        lambda b, f, x: b.sub(f(b.constant(full(2, I32)), x), f(x, full(2, I32))),
        types=(N,),
        left="constant $ sub",
    ),
    Example("same_operands", "maximum minimum", lambda b, f, x: f(x, x)),
    Example("same_operands", "and or", lambda b, f, x: f(x, x), types=(N,)),
    Example("same_operands", "maximum", lambda b, f, x: f(x, x), types=(DYNAMIC,)),
    Example("idempotent", "abs floor ceil round relu", lambda b, f, x: f(f(x)), left="$"),
    Example("idempotent", "abs relu", lambda b, f, x: f(f(x)), types=(N,), left="$"),
    Example("involution", "neg", lambda b, f, x: f(f(x))),
    Example("involution", "neg not", lambda b, f, x: f(f(x)), types=(N,)),
    Example("involution", "not", lambda b, f, x: f(f(x)), types=(C,)),
    Example(
        "known_condition", "select", lambda b, f, x, y: f(full(True, BOOL), x, y), types=(X, X)
    ),
    Example(
        "known_condition", "select", lambda b, f, x, y: f(full(False, BOOL), x, y), types=(X, X)
    ),
    Example("known_condition", "select", lambda b, f, c, x: f(c, x, x), types=(C, X)),
    Example("redundant_cast", "cast", lambda b, f, x: f(x, dtype=F32)),
    Example("redundant_cast", "cast", lambda b, f, x: f(f(x, dtype=DTYPES["f64"]), dtype=F32)),
    Example(
        "composed_transpose",
        "transpose",
        lambda b, f, x: f(f(x, permutation=(1, 0)), permutation=(1, 0)),
    ),
    Example(
        "composed_transpose",
        "transpose",
        lambda b, f, x: f(f(x, permutation=(1, 2, 0)), permutation=(0, 2, 1)),
        types=(tensor("f32", 2, None, 4),),
        left="$",
    ),
    Example(
        "unmoved",
        "transpose",
        lambda b, f, x: f(x, permutation=(0, 2, 3, 1)),
        types=(tensor("f32", None, 5, 1, 1),),
        left="reshape",
    ),
    Example("composed_reshape", "reshape", lambda b, f, x: f(x, shape=(3, 3))),
    Example(
        "composed_reshape", "reshape", lambda b, f, x: f(f(x, shape=(9,)), shape=(1, 9)), left="$"
    ),
    Example("same_shape", "broadcast_to", lambda b, f, x: f(x, shape=(3, 3))),
    Example(
        "same_shape", "slice", lambda b, f, x: f(x, starts=(0, -9), stops=(3, 9), steps=(1, 1))
    ),
    Example("same_shape", "pad", lambda b, f, x: f(x, low=(0, 0), high=(0, 0))),
    Example("even_indices", "gather", lambda b, f, x: f(x, np.array([1, 2])), left="slice"),
    Example(
        "even_indices",
        "gather",
        lambda b, f, x: f(x, np.array([-1, -2, 0], np.int32), axis=1),
        types=(DYNAMIC,),
        left="slice",
    ),
    Example(
        "even_indices",
        "gather",
        lambda b, f, x: f(x, np.array([[0, 2], [4, 6]], np.uint8), axis=-2),
        types=(SQUARE,),
        left="slice reshape",
    ),
    Example(
        "even_indices",
        "gather",
        lambda b, f, x: f(x, np.array(-1), axis=1),
        types=(DYNAMIC,),
        left="slice reshape",
    ),
    Example("empty_part", "concat", lambda b, f, x: f(x, full(0, F32, (3, 0)), axis=1)),
    Example("empty_part", "concat", lambda b, f, x: f(full(0, F32, (0, 3)), x, axis=-2)),
    Example(
        "known_size", "size", lambda b, f, x: f(x, axes=(1,)), types=(DYNAMIC,), left="constant"
    ),
    Example("integer_zero", "mul", lambda b, f, x: f(x, full(0, I32)), types=(N,), left="constant"),
    *FORMS,
)


@pytest.mark.parametrize(
    "op, example", [(op, e) for e in FIRES for op in e.ops.split()], ids=lambda value: str(value)
)
def test_fires(op, example, context):
    module = simplified(bound(op, example), example.types, context)
    assert names_of(module) == [op if name == "$" else name for name in example.left.split()]


def test_every_rewrite_of_every_op_has_an_example():
    given = {(op, e.rewrite) for e in FIRES for op in e.ops.split()}
    assert given == {(op, r.__name__) for op, rules in REWRITES.items() for r in rules}


NEAR_MISSES: dict[str, Program | tuple[Program, tuple[TensorType, ...]]] = {
    "x + 0.0 is not -0.0": lambda b, x: b.add(x, full(0.0)),
    "x - -0.0 is not -0.0": lambda b, x: b.sub(x, full(-0.0)),
    "0 - x": lambda b, x: b.sub(b.constant(full(0.0)), x),
    "1 / x": lambda b, x: b.div(b.constant(full(1.0)), x),
    "x * 0.0 may be NaN": lambda b, x: b.mul(x, full(0.0)),
    "x * -1": lambda b, x: b.mul(x, full(-1.0)),
    "x - x may be NaN": lambda b, x: b.sub(x, x),
    "x / x may be NaN": lambda b, x: b.div(x, x),
    "x ** 0.5": lambda b, x: b.pow(x, full(0.5)),
    "max(x, lowest finite) replaces -inf": lambda b, x: b.maximum(x, full(LOWEST)),
    "a sum over another count": lambda b, x: b.div(b.reduce_sum(x, axes=(1,)), full(9)),
    "a product with 1/3 rounds": lambda b, x: b.mul(b.reduce_sum(x, axes=(1,)), full(1 / 3)),
    "a sum of f16 and its count": (
        lambda b, x: b.div(b.reduce_sum(x, axes=(1,)), full(4, DTYPES["f16"])),
        (tensor("f16", 4, 4),),
    ),
    "a reshape that splits what is reduced": (
        lambda b, x: b.reshape(b.reduce_max(x, axes=(0,)), shape=(2, 2)),
        (tensor("f32", 3, 4),),
    ),
    "rows that something else reads too": (
        lambda b, x: b.add(
            b.reshape(rows := b.exp(b.reshape(x, shape=(4, 3))), shape=(2, 2, 3)),
            b.reduce_sum(rows, axes=(0,)),
        ),
        (tensor("f32", 2, 2, 3),),
    ),
    "a constant that stretches x": (
        lambda b, x: b.add(x, full(2, F32, (3, 3))),
        (tensor("f32", 1, 3),),
    ),
    "a constant that knows more of the shape": (
        lambda b, x: b.add(x, full(2, F32, (3, 3))),
        (DYNAMIC,),
    ),
    "a constant whose zeros differ": (
        lambda b, x: b.maximum(x, np.array([[0.0], [-0.0]], np.float32)),
        (tensor("f32", 2, 3),),
    ),
    "an epsilon in f64": (
        lambda b, x: b.layernorm(x, b.reduce_max(x, axes=(0,)), x_row(b, x), epsilon=1e-3 / 3),
        (tensor("f64", 3, 3),),
    ),
    "x & 1": (lambda b, x: b.and_(x, full(1, I32)), (N,)),
    "x | -1": (lambda b, x: b.or_(x, full(-1, I32)), (N,)),
    "x | true": (lambda b, x: b.or_(x, full(True, BOOL)), (C,)),
    "a constant that is not one value": lambda b, x: b.mul(x, np.array([1, 1, 2], np.float32)),
    "a neutral operand that stretches x": (
        lambda b, x: b.mul(x, full(1, F32, (3, 3))),
        (tensor("f32", 1, 3),),
    ),
    "a neutral operand that knows more of the shape": (
        lambda b, x: b.mul(x, full(1, F32, (3, 3))),
        (DYNAMIC,),
    ),
    "max(x, y)": (lambda b, x, y: b.maximum(x, y), (X, X)),
    "abs(neg(x))": lambda b, x: b.abs(b.neg(x)),
    "floor(round(x))": lambda b, x: b.floor(b.round(x)),
    "relu(abs(x))": lambda b, x: b.relu(b.abs(x)),
    "select of a computed condition": (lambda b, c, x, y: b.select(c, x, y), (C, X, X)),
    "select whose choice is stretched": (
        lambda b, x, y: b.select(full(True, BOOL), x, y),
        (tensor("f32", 3), X),
    ),
    "a narrowing cast and back": lambda b, x: b.cast(b.cast(x, dtype=DTYPES["f16"]), dtype=F32),
    "f16 to bf16 and back": (
        lambda b, x: b.cast(b.cast(x, dtype=DTYPES["bf16"]), dtype=DTYPES["f16"]),
        (tensor("f16", 3, 3),),
    ),
    "an integer cast and back": lambda b, x: b.cast(b.cast(x, dtype=DTYPES["i64"]), dtype=F32),
    "a transpose of equal sizes": lambda b, x: b.transpose(x, permutation=(1, 0)),
    "a transpose of a dimension that may be 1": (
        lambda b, x: b.transpose(x, permutation=(1, 0)),
        (DYNAMIC,),
    ),
    "a reshape to a dynamic shape": (
        lambda b, x: b.reshape(b.reshape(x, shape=(-1,)), shape=(3, -1)),
        (DYNAMIC,),
    ),
    "a slice that keeps the size backwards": lambda b, x: b.slice(
        x, starts=(-1, 0), stops=(-9, 3), steps=(-1, 1)
    ),
    "a slice of a dynamic dimension": (
        lambda b, x: b.slice(x, starts=(0, 0), stops=(9, 3), steps=(1, 1)),
        (DYNAMIC,),
    ),
    "uneven indices": lambda b, x: b.gather(x, np.array([0, 1, 0])),
    "one index twice": lambda b, x: b.gather(x, np.array([1, 1])),
    "an index that is clamped": lambda b, x: b.gather(x, np.array([2, 3])),
    "an index into a dynamic dimension": (lambda b, x: b.gather(x, np.array(0)), (DYNAMIC,)),
    "a pad of one element": lambda b, x: b.pad(x, low=(0, 1), high=(0, 0)),
    "a broadcast": lambda b, x: b.broadcast_to(x, shape=(2, 3, 3)),
    "a concat with something": lambda b, x: b.concat(x, full(0, F32, (3, 1)), axis=1),
    "an empty part that knows more of the shape": (
        lambda b, x: b.concat(x, full(0, F32, (3, 0)), axis=1),
        (DYNAMIC,),
    ),
    "the size of a dynamic dimension": (lambda b, x: b.size(x, 0), (DYNAMIC,)),
    "integer zero of an unknown shape": (
        lambda b, x: b.mul(x, full(0, I32)),
        (tensor("i32", None),),
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_does_not_fire(name, context):
    given = NEAR_MISSES[name]
    program, types = given if isinstance(given, tuple) else (given, (X,))
    with context, ir.Location.unknown():
        before = names_of(module_of(program, types, context))
    assert sorted(names_of(simplified(program, types, context))) == sorted(before)


def test_constants_fold_to_the_reference(context):
    def program(b, x):
        table = b.exp(b.add(full(1.0, F32, (3,)), np.array([1, 2, 3], np.float32)))
        return b.add(x, b.softmax(table))

    assert names_of(simplified(program, (X,), context)) == ["constant", "add"]


@pytest.mark.parametrize("limit, left", [(36, ["constant"]), (35, ["constant", "broadcast_to"])])
def test_constants_that_would_grow_past_the_limit_stay(limit, left, context):
    with context, ir.Location.unknown():
        module = module_of(lambda b: b.broadcast_to(full(2), shape=(3, 3)), (), context)
        counts = Canonicalize(max_fold_bytes=limit).run(module, PassContext())
        assert names_of(module) == left
        assert counts["folded constants"] == (len(left) == 1)


def test_a_chain_of_constants_folds_as_far_as_the_work_goes(context):
    """Each result is as small as what it is made of: only the sum of the work bounds a chain."""

    def chain(b):
        last = np.eye(8, dtype=np.float32)
        for _ in range(10):
            last = b.matmul(last, np.eye(8, dtype=np.float32))
        return last

    one = OPS["matmul"].evaluation_work([SQUARE, SQUARE], SQUARE)
    assert one == 2 * 8**3 + 16 * 3 * 64
    with context, ir.Location.unknown():
        for most, left in ((10 * one, 0), (10 * one - 1, 1), (3 * one, 7), (0, 10)):
            module = module_of(chain, (), context)
            passes = PassContext(folding=FoldWork(most))
            Canonicalize().run(module, passes)
            Canonicalize().run(module, passes)
            assert names_of(module).count("matmul") == left
            np.testing.assert_array_equal(interpret(module, [])[0], np.eye(8))


def test_slow_references_take_more_work():
    x = tensor("f32", 1000)
    assert OPS["erf"].evaluation_work([x], x) > 10 * OPS["exp"].evaluation_work([x], x)


def test_a_constant_that_shrinks_folds_whatever_the_limit(context):
    with context, ir.Location.unknown():
        ramp = np.arange(9, dtype=np.float32)
        module = module_of(lambda b: b.reduce_sum(ramp, axes=(0,)), (), context)
        Canonicalize(max_fold_bytes=0).run(module, PassContext())
        assert names_of(module) == ["constant"]


def test_constants_of_unknown_shape_stay(context):
    text = """
func.func @main() -> tensor<?xf32> {
  %0 = "pyc.constant"() {value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> tensor<?xf32>
  %1 = "pyc.neg"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  return %1 : tensor<?xf32>
}"""
    module = ir.Module.parse(text, context)
    Canonicalize().run(module, PassContext())
    assert names_of(module) == ["constant", "neg"]


def test_folded_results_are_flushed_as_the_device_does(context):
    with context, ir.Location.unknown():
        tiny = np.array([1e-30], np.float32)
        module = module_of(lambda b: b.mul(tiny, tiny * np.float32(1e-10)), (), context)
        Canonicalize().run(module, PassContext())
        np.testing.assert_array_equal(interpret(module, [])[0], [0])


def test_dead_and_repeated_ops_go(context):
    def program(b, x):
        b.tanh(x)
        return b.add(b.exp(x), b.exp(x))

    assert names_of(simplified(program, (X,), context)) == ["exp", "add"]


def test_what_becomes_equal_is_simplified_in_the_same_run(context):
    def program(b, x):
        return b.maximum(b.exp(x), b.exp(x))

    module = simplified(program, (X,), context)
    assert names_of(module) == ["exp"]
    with context:
        assert not any(Canonicalize().run(module, PassContext()).values())


def test_a_rewrite_that_contradicts_what_is_declared_leaves_nothing(context):
    text = """
func.func @main(%x: tensor<3x2xf32>) -> tensor<5x?xf32> {
  %0 = "pyc.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<3x2xf32>) -> tensor<?x?xf32>
  %1 = "pyc.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<?x?xf32>) -> tensor<5x?xf32>
  return %1 : tensor<5x?xf32>
}"""
    module = ir.Module.parse(text, context)
    with context:
        assert not any(Canonicalize().run(module, PassContext()).values())
    assert names_of(module) == ["transpose", "transpose"]


def test_a_better_known_result_is_cast_to_the_declared_type(context):
    text = """
func.func @main(%x: tensor<3x2xf32>) -> tensor<?x?xf32> {
  %0 = "pyc.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<3x2xf32>) -> tensor<?x?xf32>
  %1 = "pyc.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}"""
    module = ir.Module.parse(text, context)
    Canonicalize().run(module, PassContext())
    assert module.operation.verify()
    assert names_of(module) == ["tensor.cast"]


def test_rounds_are_limited(context):
    with context, ir.Location.unknown():

        def program(b, x):
            return b.neg(b.neg(b.neg(b.neg(x))))

        module = module_of(program, (X,), context)
        counts = Canonicalize(max_iterations=1).run(module, PassContext())
        assert counts["rounds"] == 1
        assert Canonicalize().run(module, PassContext())["identities"] + counts["identities"] == 2


def test_a_reshape_to_a_number_has_no_rows(context):
    with context, ir.Location.unknown():
        module = module_of(
            lambda b, x: b.reshape(b.neg(x), shape=()), (tensor("f32", 1, 1),), context
        )
        Canonicalize().run(module, PassContext())
        assert names_of(module) == ["neg", "reshape"]
