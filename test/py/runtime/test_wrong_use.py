"""Bad calls of the API: each ends in a PycError with the right code, and says what was expected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from op_modules import module_of

import pyc_mlir
from pyc_mlir import Contract, Device, PycError, Recipe
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import Builder, IRBuilder, NumpyBuilder
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.types import DTYPES, tensor
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline

X = np.ones((2, 3), np.float32)
I = np.ones((2, 3), np.int32)  # noqa: E741
B = np.ones((2, 3), bool)
F64 = np.ones((2, 3))
IMAGE = np.ones((1, 4, 5, 5), np.float32)
WEIGHT = np.ones((2, 4, 3, 3), np.float32)
V = np.ones(3, np.float32)

BUILDER: dict[str, tuple[Callable[[Builder], Any], str]] = {
    "too few operands": (lambda b: b.add(X), "expected 2 operands, got 1"),
    "too many operands": (lambda b: b.relu(X, X), "expected 1 operands, got 2"),
    "too many optional operands": (
        lambda b: b.attention(X, X, X, X, X, scale=1.0),
        "expected 3 or 4 operands, got 5",
    ),
    "a parameter that is missing": (lambda b: b.reduce_sum(X), "`axes` is missing"),
    "a parameter that does not exist": (lambda b: b.relu(X, slope=0.1), r"got \['slope'\]"),
    "two element types": (lambda b: b.add(X, F64), "one element type"),
    "shapes that do not broadcast": (lambda b: b.add(X, np.ones((2, 4), np.float32)), "3 and 4"),
    "floats of an integer": (lambda b: b.exp(I), "expected an element type in bf16, f16, f32, f64"),
    "bits of a float": (lambda b: b.and_(X, X), "expected an element type in i1"),
    "order of booleans": (lambda b: b.compare(B, B, predicate="lt"), "expected an element type"),
    "sums of booleans": (lambda b: b.add(B, B), "expected an element type"),
    "a type that PyC lacks": (lambda b: b.relu(np.ones(2, np.complex64)), "got complex64"),
    "a predicate that does not exist": (lambda b: b.compare(X, X, predicate="<"), "`predicate`"),
    "a condition that is no boolean": (lambda b: b.select(X, X, X), "condition: expected"),
    "a gelu of another kind": (lambda b: b.gelu(X, approximate="erf"), "'none' or 'tanh'"),
    "inner dimensions": (lambda b: b.matmul(X, X), r"\[2, 3\] @ \[2, 3\]"),
    "a matmul of scalars": (lambda b: b.matmul(np.float32(1), X), "rank 1 or more"),
    "channels": (lambda b: b.conv2d(IMAGE, np.ones((2, 3, 3, 3), np.float32)), "weight has 3"),
    "groups that do not divide": (lambda b: b.conv2d(IMAGE, WEIGHT, groups=3), "of 3 groups"),
    "no groups": (lambda b: b.conv2d(IMAGE, WEIGHT, groups=0), "`groups`: expected >= 1"),
    "strides of 0": (lambda b: b.conv2d(IMAGE, WEIGHT, strides=(0, 1)), "`strides`"),
    "negative pads": (lambda b: b.conv2d(IMAGE, WEIGHT, pads=(0, 0, -1, 0)), "`pads`"),
    "two pads": (lambda b: b.conv2d(IMAGE, WEIGHT, pads=(0, 0)), "`pads`"),
    "dilations of 0": (lambda b: b.conv2d(IMAGE, WEIGHT, dilations=(1, 0)), "`dilations`"),
    "another layout": (lambda b: b.conv2d(IMAGE, WEIGHT, layout="CHWN"), "`layout`: expected"),
    "an image of rank 2": (lambda b: b.max_pool2d(X, kernel=(2, 2)), "rank 4"),
    "a kernel of one size": (lambda b: b.max_pool2d(IMAGE, kernel=(2,)), "`kernel`"),
    "averages of integers": (
        lambda b: b.avg_pool2d(IMAGE.astype(np.int32), kernel=(1, 1)),
        "expected an element type",
    ),
    "an axis outside": (lambda b: b.softmax(X, axis=2), "`axis`: expected -2..1, got 2"),
    "an axis named twice": (lambda b: b.reduce_sum(X, axes=(1, -1)), "named twice"),
    "argmax of nothing": (lambda b: b.argmax(np.ones((0, 2), np.float32), axis=0), "no elements"),
    "a norm's scale": (lambda b: b.rmsnorm(X, np.ones(2, np.float32)), "`scale`: expected shape"),
    "a batchnorm's mean": (
        lambda b: b.batchnorm(X, V, V, np.ones(2, np.float32), V),
        "`mean`: expected shape",
    ),
    "depths of an attention": (lambda b: b.attention(X, IMAGE[0, 0], X, scale=1.0), "depths"),
    "lengths of an attention": (lambda b: b.attention(X, X, X[:1], scale=1.0), "lengths"),
    "a mask of integers": (lambda b: b.attention(X, X, X, I, scale=1.0), "`mask`: expected i1"),
    "a permutation": (lambda b: b.transpose(X, permutation=(0, 0)), "an order of 0..1"),
    "a reshape to another size": (lambda b: b.reshape(X, shape=(4, 2)), "the sizes differ"),
    "a reshape with two unknowns": (lambda b: b.reshape(X, shape=(-1, -1)), "at most one -1"),
    "a reshape that leaves a rest": (lambda b: b.reshape(X, shape=(4, -1)), "the sizes differ"),
    "a reshape by a dimension outside": (lambda b: b.reshape(X, shape=(-5, 2)), "no dimension of"),
    "a broadcast that shrinks": (lambda b: b.broadcast_to(X, shape=(3,)), "to rank 1"),
    "a broadcast that does not fit": (lambda b: b.broadcast_to(X, shape=(2, 4)), "broadcast"),
    "a concat of other sizes": (lambda b: b.concat(X, X[:1], axis=1), "dimension 0 differs"),
    "a concat of other ranks": (lambda b: b.concat(X, V, axis=0), "one rank"),
    "a slice of one bound": (
        lambda b: b.slice(X, starts=(0,), stops=(1,), steps=(1,)),
        "2 entries",
    ),
    "a slice without steps": (
        lambda b: b.slice(X, starts=(0, 0), stops=(END, END), steps=(1, 0)),
        "no zero",
    ),
    "an update that is too large": (
        lambda b: b.update_slice(X, np.ones((3, 3), np.float32), np.zeros(2, np.int64)),
        "does not fit",
    ),
    "an update at three places": (
        lambda b: b.update_slice(X, X, np.zeros(3, np.int64)),
        r"`starts`: expected shape \[2\]",
    ),
    "an update at i32": (
        lambda b: b.update_slice(X, X, np.zeros(2, np.int32)),
        "`starts`: expected element type i64",
    ),
    "a negative pad": (lambda b: b.pad(X, low=(-1, 0), high=(0, 0)), "`low`: expected 2 sizes"),
    "half an integer": (lambda b: b.pad(I, low=(0, 0), high=(1, 1), value=0.5), "0.5 is no int32"),
    "indices that are no integers": (lambda b: b.gather(X, X), "`indices`: expected an integer"),
    "something from nothing": (
        lambda b: b.gather(X[:0], np.zeros(1, np.int64)),
        "no elements to take",
    ),
    "an iota of nothing": (lambda b: b.iota(shape=()), "`axis`: expected"),
    "an iota of an unknown size": (lambda b: b.iota(shape=(-1,)), "needs the operand `like`"),
    "an iota of booleans": (lambda b: b.iota(shape=(2,), dtype=DTYPES["i1"]), "number type"),
}


@pytest.mark.parametrize("name", BUILDER)
def test_builders_refuse(name):
    call, expected = BUILDER[name]
    with pytest.raises(PycError, match=expected) as caught:
        call(NumpyBuilder())
    assert caught.value.code is ReasonCode.INVALID_IR


@pytest.mark.parametrize("name", BUILDER)
def test_ir_builders_refuse_the_same(name):
    call, expected = BUILDER[name]
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body), pytest.raises(PycError, match=expected) as caught:
            call(IRBuilder())  # pyright: ignore[reportArgumentType]
    assert caught.value.code is ReasonCode.INVALID_IR


# compile


def relu(x):
    return np.maximum(x, 0)


GOOD = """
func.func @main(%x: tensor<?x3xf32>) -> tensor<?x3xf32> {
  %0 = "pyc.relu"(%x) : (tensor<?x3xf32>) -> tensor<?x3xf32>
  return %0 : tensor<?x3xf32>
}"""
SPEC = pyc_mlir.spec("f32", (2, 3))

COMPILE: dict[str, tuple[Callable[[Path], Any], ReasonCode, str]] = {
    "another target": (
        lambda p: pyc_mlir.compile(relu, [SPEC], target="tpu"),
        ReasonCode.UNKNOWN_TARGET,
        "expected one of cpu",
    ),
    "a source of another kind": (
        lambda p: pyc_mlir.compile(42),
        ReasonCode.BAD_MODEL,
        "got int",
    ),
    "a file that does not exist": (
        lambda p: pyc_mlir.compile(p / "missing.mlir"),
        ReasonCode.FILE_ACCESS,
        "missing.mlir",
    ),
    "text that does not parse": (
        lambda p: pyc_mlir.compile(GOOD.replace("pyc.relu", "pyc.rleu")),
        ReasonCode.INVALID_IR,
        "rleu",
    ),
    "text that does not verify": (
        lambda p: pyc_mlir.compile(GOOD.replace("-> tensor<?x3xf32>\n", "-> tensor<?x4xf32>\n")),
        ReasonCode.INVALID_IR,
        "expects different type",
    ),
    "too few shapes": (
        lambda p: pyc_mlir.compile(GOOD, []),
        ReasonCode.ARGUMENT_COUNT,
        "expected 1 shapes or arrays, one for each argument, got 0",
    ),
    "a shape that contradicts": (
        lambda p: pyc_mlir.compile(GOOD, [(2, 4)]),
        ReasonCode.INVALID_IR,
        "expected a shape within",
    ),
    "a shape that is none": (
        lambda p: pyc_mlir.compile(GOOD, [(2, -3)]),
        ReasonCode.BAD_ARGUMENT,
        "expected shapes",
    ),
    "a shape that is text": (
        lambda p: pyc_mlir.compile(GOOD, ["2x3"]),
        ReasonCode.BAD_ARGUMENT,
        "expected shapes",
    ),
    "a function without inputs": (
        lambda p: pyc_mlir.compile(relu),
        ReasonCode.BAD_ARGUMENT,
        "expected a spec for `x`",
    ),
    "a function that branches on values": (
        lambda p: pyc_mlir.compile(lambda x: x if x.sum() > 0 else -x, [SPEC]),
        ReasonCode.UNTRACEABLE,
        "Python control flow",
    ),
    "an element type that PyC lacks": (
        lambda p: pyc_mlir.compile(relu, [np.ones(3, np.complex64)]),
        ReasonCode.UNSUPPORTED_DTYPE,
        "complex64",
    ),
    "a clause that cannot be kept": (
        lambda p: pyc_mlir.compile(relu, [SPEC], contract=Contract(max_compile_seconds=1e-3)),
        ReasonCode.COMPILE_TIMEOUT,
        "max_compile_seconds",
    ),
    "a flag that IREE does not know": (
        lambda p: pyc_mlir.compile(relu, [SPEC], iree_flags=["--iree-no-such-flag"]),
        ReasonCode.BAD_ARGUMENT,
        "iree-no-such-flag",
    ),
    "a flag that chooses the target": (
        lambda p: pyc_mlir.compile(relu, [SPEC], iree_flags=["--iree-hal-target-backends=cuda"]),
        ReasonCode.BAD_ARGUMENT,
        "target",
    ),
    "a recipe file that does not exist": (
        lambda p: pyc_mlir.compile(relu, [SPEC], recipe=p / "missing.jsonl"),
        ReasonCode.FILE_ACCESS,
        "missing.jsonl",
    ),
    "a recipe of another program": (
        lambda p: pyc_mlir.compile(relu, [SPEC], recipe=Recipe({"pyc-fuse:gone": "keep"})),
        ReasonCode.RECIPE_MISMATCH,
        "gone",
    ),
    "two functions and no main": (
        lambda p: pyc_mlir.compile(GOOD.replace("main", "a") + GOOD.replace("main", "b"), [(2, 3)]),
        ReasonCode.INVALID_IR,
        "name the entry",
    ),
    "a program file that is none": (
        lambda p: pyc_mlir.load(_written(p / "x.vmfb", b"no program")),
        ReasonCode.BAD_ARTIFACT,
        "expected a .vmfb",
    ),
    "a program file that does not exist": (
        lambda p: pyc_mlir.load(p / "missing.vmfb"),
        ReasonCode.FILE_ACCESS,
        "missing.vmfb",
    ),
    "a device that does not exist": (lambda p: Device("abacus"), ReasonCode.BAD_ARGUMENT, "abacus"),
}


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", COMPILE)
def test_compile_and_load_refuse(name, tmp_path):
    call, code, expected = COMPILE[name]
    with pytest.raises(PycError, match=expected) as caught:
        call(tmp_path)
    assert caught.value.code is code


# Program


@pytest.fixture(scope="module")
def program() -> pyc_mlir.Program:
    """relu(a) + b with a named dimension."""
    spec = pyc_mlir.spec("f32", ("n", 3))
    function = lambda a, b: np.maximum(a, 0) + b  # noqa: E731
    return pyc_mlir.compile(function, [spec, spec], device=Device("local-sync"))


CALLS: dict[str, tuple[tuple[Any, ...], ReasonCode]] = {
    "no arrays": ((), ReasonCode.ARGUMENT_COUNT),
    "too many arrays": ((X, X, X), ReasonCode.ARGUMENT_COUNT),
    "another element type": ((X, F64), ReasonCode.ARGUMENT_DTYPE),
    "an integer": ((X, I), ReasonCode.ARGUMENT_DTYPE),
    "another rank": ((X, V), ReasonCode.ARGUMENT_SHAPE),
    "another size": ((X, X[:, :2]), ReasonCode.ARGUMENT_SHAPE),
    "sizes that disagree": ((X, X[:1]), ReasonCode.DIMENSION_MISMATCH),
    "no array": ((X, None), ReasonCode.BAD_ARGUMENT),
    "text": ((X, "text"), ReasonCode.BAD_ARGUMENT),
}


@pytest.mark.parametrize("name", CALLS)
def test_programs_refuse(name, program):
    arguments, code = CALLS[name]
    before = program.stats()
    with pytest.raises(PycError) as caught:
        program(*arguments)
    assert caught.value.code is code
    after = program.stats()
    assert (after.calls, after.guard_failures) == (before.calls, before.guard_failures + 1)
    np.testing.assert_array_equal(program(X, X), X + X)


def test_nothing_runs_past_a_check_inside_the_program():
    """Sizes that the signature cannot name are checked by the program itself."""

    def function(x, y):
        return np.concatenate([x, x]) + y

    specs = [pyc_mlir.spec("f32", ("n",)), pyc_mlir.spec("f32", ("m",))]
    doubled = pyc_mlir.compile(function, specs, device=Device("local-sync"))
    np.testing.assert_array_equal(doubled(V, np.ones(6, np.float32)), np.full(6, 2, np.float32))
    for size in (3, 5, 7, 12):
        with pytest.raises(PycError, match="must agree") as caught:
            doubled(V, np.ones(size, np.float32))
        assert caught.value.code is ReasonCode.DIMENSION_MISMATCH


EMPTY: dict[str, Callable[..., Any]] = {
    "argmax": lambda b, x: b.argmax(x, axis=0),
    "gather": lambda b, x: b.gather(x, np.zeros(2, np.int64)),
    "gather of unknown many": lambda b, x: b.gather(x, b.iota(x, shape=(-1,))),
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.sampled(2)
def test_nothing_is_taken_from_an_empty_axis(name):
    with new_context() as context, ir.Location.unknown():
        module = module_of(EMPTY[name], [tensor("f32", None)], context)
        compiled = pyc_mlir.compile(str(module), device=Device("local-sync"))
    compiled(V)
    empty = np.ones(0, np.float32)
    if name == "gather of unknown many":
        assert compiled(empty).shape == (0,)
        return
    with pytest.raises(PycError) as caught:
        compiled(empty)
    assert caught.value.code is ReasonCode.DIMENSION_MISMATCH


@pytest.mark.parametrize(
    "pipeline", ["pyc-fuse{max-ops=x}", "pyc-fuze", "pyc-fuse{max=3}", "pyc-fuse("]
)
def test_pipelines_are_refused_before_anything_runs(pipeline):
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(GOOD)
        before = str(module)
        with pytest.raises(PycError) as caught:
            run_pipeline(module, f"pyc-decompose,{pipeline}", PassContext())
        assert caught.value.code is ReasonCode.INVALID_PIPELINE
        assert str(module) == before
