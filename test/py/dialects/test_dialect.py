"""The dialect in MLIR: what verifies, how errors are located, and exact round trips."""

import random
import threading
from io import BytesIO

import numpy as np
import pytest
from conftest import sample
from op_cases import CASES, Case, cases_of, inputs
from op_modules import case_module, ops_of

from pyc_mlir.dialects.ir.bindings import ir, passmanager
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import OP_CLASSES, load, new_context
from pyc_mlir.dialects.opdef import OPS, evaluate
from pyc_mlir.pipelines.text.diagnostics import Diagnostic
from pyc_mlir.pipelines.text.module_text import ModuleText, parse_module

VARIANTS = [(case, False) for case in CASES] + [(case, True) for case in CASES if case.dynamic]


@pytest.fixture(scope="module")
def context() -> ir.Context:
    return new_context()


def bytecode(module: ir.Module) -> bytes:
    out = BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()


@pytest.mark.parametrize("op", sorted(OPS))
@pytest.mark.full
def test_every_case_verifies_and_runs_as_its_reference(op, context):
    for case in cases_of(op):
        arrays = inputs(case)
        want = evaluate(OPS[op], arrays, **case.keywords)
        for dynamic in (False, True)[: 1 + case.dynamic]:
            module = case_module(case, context, dynamic)
            assert module.operation.verify()
            (got,) = interpret(module, arrays)
            assert (got.dtype, got.shape) == (want.dtype, want.shape), case
            assert got.tobytes() == want.tobytes(), case


@pytest.mark.parametrize("op", sorted(OPS))
@pytest.mark.sampled(20)
def test_text_and_bytecode_round_trip_exactly(op, context):
    # Each in a context of its own: a name of a resource that is taken would get a suffix.
    readers = new_context(), new_context()
    variants = [v for v in VARIANTS if v[0].op == op]
    for case, dynamic in sample(variants, 25):
        module = case_module(case, context, dynamic)
        text = str(module)
        from_text = ir.Module.parse(text, readers[0])
        assert str(from_text) == text, case
        from_bytes = ir.Module.parse(bytecode(module), readers[1])
        assert str(from_bytes) == text, case
        again = [interpret(m, inputs(case))[0] for m in (module, from_text, from_bytes)]
        assert len({a.tobytes() for a in again}) == 1, case


def test_default_parameters_are_left_out_of_the_text(context):
    (case,) = [c for c in cases_of("softmax") if not c.params and c.types[0].shape == (3, 7)][:1]
    module = case_module(case, context)
    assert list(ops_of(module)[0].attributes) == []


def test_ops_have_classes_with_documentation():
    assert set(OP_CLASSES) == set(OPS)
    assert all(cls.__doc__ for cls in OP_CLASSES.values())


def test_loading_is_idempotent_and_safe_from_threads():
    contexts = [ir.Context() for _ in range(4)] * 3
    threads = [threading.Thread(target=load, args=(c,)) for c in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(c.is_dialect_loaded("pyc") for c in contexts)


HEAD = "func.func @main(%a: tensor<2x3xf32>, %b: tensor<3x4xf32>, %i: tensor<2xi64>, %p: i32) {\n"
T = "tensor<2x3xf32>"
INVALID = [
    (f'"pyc.relu"() : () -> {T}', "expected 1 operands, got 0"),
    (f'"pyc.relu"(%a, %a) : ({T}, {T}) -> {T}', "expected 1 operands, got 2"),
    (f'"pyc.add"(%a) : ({T}) -> {T}', "expected 2 operands, got 1"),
    (f'"pyc.relu"(%a) : ({T}) -> ()', "expected 1 result, got 0"),
    (f'"pyc.relu"(%a) : ({T}) -> ({T}, {T})', "result"),
    (f'"pyc.relu"(%a) : ({T}) -> tensor<2x4xf32>', "expected a result of type tensor<2x3xf32>"),
    (f'"pyc.relu"(%a) : ({T}) -> tensor<2x3xf16>', "got tensor<2x3xf16>"),
    (f'"pyc.relu"(%a) : ({T}) -> f32', "expected a ranked tensor, got f32"),
    (f'"pyc.relu"(%p) : (i32) -> {T}', "operand 0: expected a ranked tensor, got i32"),
    (f'"pyc.add"(%a, %b) : ({T}, tensor<3x4xf32>) -> {T}', "do not broadcast"),
    (f'"pyc.add"(%a, %i) : ({T}, tensor<2xi64>) -> {T}', "one element type, got ['f32', 'i64']"),
    ('"pyc.exp"(%i) : (tensor<2xi64>) -> tensor<2xi64>', "expected an element type in"),
    (f'"pyc.matmul"(%a, %a) : ({T}, {T}) -> {T}', "inner dimensions differ: [2, 3] @ [2, 3]"),
    (f'"pyc.softmax"(%a) {{axis = 2 : i64}} : ({T}) -> {T}', "`axis`: expected -2..1, got 2"),
    (f'"pyc.softmax"(%a) {{axis = 1 : i32}} : ({T}) -> {T}', "`axis`: expected an i64 integer"),
    (f'"pyc.softmax"(%a) {{axis = "x"}} : ({T}) -> {T}', "`axis`: expected an i64 integer"),
    (f'"pyc.reduce_sum"(%a) : ({T}) -> tensor<2xf32>', "axes"),
    (
        f'"pyc.reduce_sum"(%a) {{axes = array<i64: 0, -2>}} : ({T}) -> tensor<3xf32>',
        "an axis is named twice",
    ),
    (f'"pyc.reduce_sum"(%a) {{axes = [0]}} : ({T}) -> tensor<3xf32>', "expected array<i64: ...>"),
    (f'"pyc.cast"(%a) {{dtype = i17}} : ({T}) -> {T}', "expected an element type in"),
    (f'"pyc.compare"(%a, %a) {{predicate = "<"}} : ({T}, {T}) -> tensor<2x3xi1>', "`predicate`"),
    (f'"pyc.gelu"(%a) {{approximate = "erf"}} : ({T}) -> {T}', "expected 'none' or 'tanh'"),
    (
        f'"pyc.transpose"(%a) {{permutation = array<i64: 0, 0>}} : ({T}) -> {T}',
        "expected an order of 0..1",
    ),
    (
        f'"pyc.reshape"(%a) {{shape = array<i64: 4, 2>}} : ({T}) -> tensor<4x2xf32>',
        "the sizes differ",
    ),
    (f'"pyc.constant"() {{value = 1 : i64}} : () -> {T}', "expected dense elements"),
    (f'"pyc.constant"() {{value = dense<1> : tensor<2xi64>}} : () -> {T}', "tensor<2xi64>"),
    (
        '"pyc.constant"() {value = dense_resource<nothing> : tensor<2xf32>} : () -> tensor<2xf32>',
        "no data for the resource",
    ),
    (
        '"pyc.relu"(%a) : (tensor<2x3xf32>) -> tensor<2x3xf32, "encoded">',
        "expected a tensor without encoding",
    ),
    ('"pyc.group"() ({}) {kind = "x"} : () -> tensor<2xf32>', "one region with one block"),
    (
        f'"pyc.group"() ({{ "pyc.yield"(%a) : ({T}) -> () }}) {{kind = "x"}} : () -> tensor<2xf32>',
        "expected pyc.yield of tensor<2xf32>",
    ),
    ('"pyc.nothing"() : () -> ()', "unregistered operation"),
]


@pytest.mark.parametrize("line, needle", INVALID, ids=[i[1][:40] for i in INVALID])
def test_errors_are_located_and_say_what_was_expected(line, needle, context):
    bound = "" if "-> ()" in line and "yield" not in line else "%r = "
    if "-> (tensor" in line:
        bound = "%r:2 = "
    reported: list[Diagnostic] = []
    source = ModuleText(f"{HEAD}  {bound}{line}\n  return\n}}", "test.mlir")
    assert parse_module(source, context, reported.append) is None
    first = reported[0]
    assert needle in first.message
    assert first.position is not None and (first.position.file, first.position.line) == (
        "test.mlir",
        2,
    )
    if "unregistered" not in needle:
        assert f"pyc.{line.split('pyc.')[1].split(chr(34))[0]}" in first.message


def test_dynamic_results_may_be_declared_less_or_more_precisely(context):
    for operand, result in ((T, "tensor<?x3xf32>"), ("tensor<?x3xf32>", T)):
        text = (
            f'func.func @main(%a: {operand}) {{ %r = "pyc.relu"(%a) : ({operand}) -> {result}\n'
            " return }"
        )
        assert ir.Module.parse(text, context).operation.verify()


WORDS = ["-1", "0", "1", "7", "9223372036854775807", "-9223372036854775808", "1.0", "nan", '"NCHW"']
KINDS = ["{} : i64", "{} : i32", "array<i64: {}>", "array<i64: {}, {}>", "array<i64>", "[{}]"]
OTHERS = ["unit", "i64", "f32", "dense<1> : tensor<2xi64>", "true", '"x"', "1.0 : f64", "@main"]


def fuzzed_params(case: Case, text: str, rng: random.Random) -> str:
    """The op's text with one parameter replaced by an attribute of any kind, or removed."""
    name = rng.choice([p.name for p in OPS[case.op].params])
    kind = rng.choice([*KINDS, *OTHERS])
    value = kind.format(*(rng.choice(WORDS) for _ in range(kind.count("{}"))))
    before, _, after = text.partition(f'"pyc.{case.op}"')
    operands, colon, types = after.partition(" : (")
    return f'{before}"pyc.{case.op}"{operands.split(" {")[0]} {{{name} = {value}}}{colon}{types}'


def fuzzed_types(text: str, rng: random.Random) -> str:
    """One tensor type replaced by another, everywhere or at one place."""
    types = sorted(set(_types_in(text)))
    new = rng.choice(["tensor<f32>", "tensor<?xf32>", "tensor<0x3xi8>", "tensor<2x3x4x5xbf16>"])
    count = rng.choice([-1, 1])
    return text.replace(rng.choice(types), new, count) if types else text


def _types_in(text: str) -> list[str]:
    return [f"tensor<{part.split('>')[0]}>" for part in text.split("tensor<")[1:]]


@pytest.mark.parametrize("op", sorted(OPS))
def test_mutations_verify_or_give_an_error_and_never_an_internal_one(op, context):
    rng = random.Random(op)
    for case in sample(cases_of(op), 8):
        text = str(case_module(case, context))
        for _ in range(12):
            with_params = bool(OPS[op].params) and rng.random() < 0.7
            mutant = fuzzed_params(case, text, rng) if with_params else fuzzed_types(text, rng)
            check_mutant(mutant, context)


def check_mutant(text: str, context: ir.Context) -> None:
    try:
        ir.Module.parse(text, context)
    except ir.MLIRError as error:
        assert "internal error" not in str(error), f"{text}\n{error}"


def test_native_cse_and_dead_code_elimination_know_that_ops_are_pure(context):
    text = (
        f"func.func @main(%a: {T}) -> {T} {{\n"
        f'  %0 = "pyc.relu"(%a) : ({T}) -> {T}\n  %1 = "pyc.relu"(%a) : ({T}) -> {T}\n'
        f'  %2 = "pyc.exp"(%a) : ({T}) -> {T}\n'
        f'  %3 = "pyc.add"(%0, %1) : ({T}, {T}) -> {T}\n  return %3 : {T}\n}}'
    )
    module = ir.Module.parse(text, context)
    passmanager.PassManager.parse("builtin.module(cse,canonicalize)", context).run(module.operation)
    assert [op.name for op in ops_of(module)] == ["pyc.relu", "pyc.add", "func.return"]
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(interpret(module, [x])[0], 2 * x)
