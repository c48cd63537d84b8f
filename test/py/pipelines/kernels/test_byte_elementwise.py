"""Elementwise groups between quantized tensors: which of them kernels compute, and how."""

import numpy as np
import pytest

from pyc_mlir import Tensor, compile
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.types import DTYPES, TensorType
from pyc_mlir.pipelines.kernels.families.elementwise import INT8, ByteElementwise, in_floats
from pyc_mlir.pipelines.kernels.lang.pointwise import FULL, Pointwise, PointwiseStep
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp

AVX2 = Target.named("cpu-avx2")
BYTES, FLOAT = "ui8", "f32"


def kind(name, *shape):
    return TensorType(shape or (64, 100), DTYPES[name])


def constant(name, value):
    array = np.array(value, DTYPES[name])
    return Input(TensorType((), DTYPES[name]), lambda: array, "constant")


def dequantized(point=7, middle="i32", op="sub"):
    """(f32(i32(x) - point)) * scale of bytes x."""
    inputs = (Input(kind("ui8")), constant(middle, point), constant("f32", 0.5))
    nodes = (
        WorkOp("cast", (0,), {"dtype": DTYPES[middle]}, kind(middle)),
        WorkOp(op, (3, 1), {}, kind(middle)),
        WorkOp("cast", (4,), {"dtype": DTYPES["f32"]}, kind("f32")),
        WorkOp("mul", (5, 2), {}, kind("f32")),
    )
    return Work(inputs, nodes)


def test_bytes_are_taken_for_f32():
    floats = in_floats(dequantized())
    assert floats is not None and floats.result == "f32" and floats.dtypes[0] == "ui8"
    assert [n.name for n in floats.work.nodes] == ["sub", "mul"]
    (offer,) = INT8.match(dequantized(), AVX2)
    assert offer.covers == 4 and offer.knobs.dtypes == ("ui8",)
    assert offer.knobs.program.constants == (7.0, 0.5)


NEAR_MISSES = {
    "numbers beyond those of f32": {"point": 1 << 24},
    "integers of 64 bits": {"middle": "i64"},
    "integers of 16 bits, which overflow": {"middle": "i16"},
    "products of integers": {"op": "mul"},
    "quotients of integers": {"op": "div"},
}


@pytest.mark.parametrize("miss", list(NEAR_MISSES))
def test_other_integers_are_left_to_iree(miss):
    assert INT8.match(dequantized(**NEAR_MISSES[miss]), AVX2) == []


def test_a_group_of_f32_alone_is_no_such_kernel():
    nodes = (WorkOp("mul", (0, 0), {}, kind("f32")),)
    assert INT8.match(Work((Input(kind("f32")),), nodes), AVX2) == []


REFUSED = {
    "sizes": lambda: ByteElementwise(0, 5, Pointwise(), dtypes=("i8",)),
    "types": lambda: ByteElementwise(5, 5, Pointwise(), dtypes=("f64",)),
    "reads": lambda: ByteElementwise(5, 5, Pointwise((FULL,)), dtypes=("i8",)),
    "conversion": lambda: ByteElementwise(5, 5, Pointwise(), dtypes=("i8",), result="ui8"),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_knobs_that_make_no_kernel_are_refused(what):
    with pytest.raises(PycError, match="expected"):
        REFUSED[what]()


def test_a_residual_addition_of_bytes_is_exact():
    a, b, c = np.float32(0.043), np.float32(0.021), np.float32(0.057)

    def model(x: Tensor[BYTES, 40, 100], y: Tensor[BYTES, 40, 100]):
        left = (x.astype(np.int32) - np.int32(131)).astype(np.float32) * a
        total = (left + y.astype(np.int32).astype(np.float32) * b) / c
        return np.clip(np.round(total) + np.float32(12), 0, 255).astype(np.uint8)

    program = compile(model)
    assert any(d.chosen.startswith("int8_elementwise:") for d in program.artifact.decisions)
    pairs = np.random.default_rng(0).integers(0, 256, (2, 40, 100)).astype(np.uint8)
    np.testing.assert_array_equal(program(*pairs), model(*pairs))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["i8", "ui8"])
def test_quantization_takes_the_nearest_bound(name):
    dtype, point = DTYPES[name], np.float32(3)

    def model(x: Tensor[FLOAT, 32, 64]):
        return (np.round(x / np.float32(0.1)) + point).astype(dtype)

    program = compile(model)
    x = np.random.default_rng(1).normal(size=(32, 64)).astype(np.float32) * 20
    x[0, :5] = [np.inf, -np.inf, 3e38, -3e38, 0]
    info = np.iinfo(dtype)
    exact = np.clip(np.round(x / np.float32(0.1)) + point, info.min, info.max).astype(dtype)
    np.testing.assert_array_equal(program(x), exact)


def test_the_program_of_a_kernel_is_the_groups_own():
    steps = (PointwiseStep("sub", (0, 1)), PointwiseStep("mul", (3, 2)))
    (offer,) = INT8.match(dequantized(), AVX2)
    assert offer.knobs.program == Pointwise((), (7.0, 0.5), steps)
