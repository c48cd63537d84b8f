"""Elementwise kernels, of floats and bytes: parts, writes past the caches, what groups become."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_runs import Kernels, targets

from pyc_mlir import Tensor, compile
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES, TensorType
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.nn import silu, softmax
from pyc_mlir.pipelines.kernels.families import elementwise
from pyc_mlir.pipelines.kernels.families.elementwise import (
    FAMILY,
    INT8,
    ByteElementwise,
    Elementwise,
    in_floats,
)
from pyc_mlir.pipelines.kernels.lang.narrow import NARROW, has_tables
from pyc_mlir.pipelines.kernels.lang.pointwise import (
    COLUMN,
    FULL,
    NUMBER,
    ROW,
    Pointwise,
    PointwiseStep,
)
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp
from pyc_mlir.runtime.device import Device, host_cpu

DOUBLE = Pointwise((), (2.0,), (PointwiseStep("mul", (0, 1)),))
ADD_ROW = Pointwise((ROW,), (), (PointwiseStep("add", (0, 1)),))


@pytest.fixture(scope="module", params=targets(__name__), ids=lambda t: t.name)
def kernels(request):
    made = {"any": Elementwise("m", "n", DOUBLE), "rows": Elementwise("m", 33, ADD_ROW)}
    return Kernels(request.param, [knobs.kernel(name) for name, knobs in made.items()])


def test_no_number_is_no_work(kernels):
    assert kernels.run("any", np.zeros((0, 7))).shape == (0, 7)
    assert kernels.run("any", np.zeros((3, 0))).shape == (3, 0)
    assert kernels.run("rows", np.zeros((0, 33)), np.zeros(33)).shape == (0, 33)


def test_knobs_follow_the_target():
    target = Target.named("cpu-avx512")
    small = Elementwise.on(target, 1, 1000, DOUBLE)
    assert small.columns_part >= 1000 and not small.streaming
    large = Elementwise.on(target, 1, target.l3_bytes, DOUBLE)
    assert large.streaming and large.columns_part == -(-target.l3_bytes // target.cores)
    rows = Elementwise.on(target, 4096, 1000, ADD_ROW)
    assert rows.rows_part == 4096 // target.cores and rows.columns_part >= 1000
    assert Elementwise.on(target, "m", "n", DOUBLE).rows_part > 1
    assert FAMILY.offers(large, target)


def test_the_result_may_take_over_what_is_read_at_the_same_place():
    full = Pointwise((FULL, ROW, COLUMN), (), (PointwiseStep("add", (0, 1)),))
    assert Elementwise(4, 8, full).kernel("k").in_place == (("y", "x"), ("y", "read0"))
    row = Elementwise(1, 8, full).kernel("k").in_place
    assert row == (("y", "x"), ("y", "read0"), ("y", "read1"))


@pytest.mark.full
def test_modes_change_no_bit():
    x, y = np.random.default_rng(3).normal(size=(2, 256, 24)).astype(np.float32)
    modes = ("iree", "balanced", "memory_first")
    results = {bytes(np.asarray(compile(chained, [x, y], planner_mode=m)(x, y))) for m in modes}
    assert len(results) == 1


def chained(x, y):
    """Kernels after each other, whose results may take over the memory of what they read."""
    for _ in range(3):
        x = gated(x, y) * y - x
        y = softmax(x + y) + y
    return x


def test_the_price_counts_what_is_read():
    target = Target.named("cpu-avx512")
    one = FAMILY.cost(Elementwise(64, 64, DOUBLE), target, {})
    full = Pointwise((FULL, NUMBER), (), (PointwiseStep("add", (0, 1)),))
    two = FAMILY.cost(Elementwise(64, "n", full), target, {"n": 64})
    assert one.traffic_bytes == 8 * 64 * 64
    assert two.traffic_bytes == 12 * 64 * 64 + 4
    bytes_ = ByteElementwise(64, 64, full, dtypes=("i8", "ui8", "f32"), result="f32")
    assert INT8.cost(bytes_, target, {}).traffic_bytes == 6 * 64 * 64 + 4


SCALE = np.linspace(-1, 1, 24).astype(np.float32)


def gated(x, y):
    """silu(x * scale) * y + 1, then a kernel of another kind."""
    return softmax(silu(x * SCALE) * y + np.float32(1))


def gated_reference(x, y):
    scaled = x.astype(np.float64) * SCALE
    power = np.exp(scaled / (1 + np.exp(-scaled)) * y + 1)
    return power / power.sum(-1, keepdims=True)


class Asked:
    """Takes the family's kernels also where IREE's code is expected to be as good."""

    name = "asked"

    def prefer(self, site, alternatives):
        names = [a.name for a in alternatives]
        return next((n for n in names if n.startswith("elementwise:")), names[0])


def covered(program):
    return [
        d.chosen
        for d in program.artifact.decisions
        if d.chosen is not None and d.chosen.startswith("elementwise:")
    ]


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [(5, 24), (None, 24), (None, 2, 24)], ids=str)
@pytest.mark.full
def test_a_group_of_a_program_becomes_a_kernel(target, shape):
    specs = [TensorSpec("f32", *shape)] * 2
    program = compile(gated, specs, target=target, device=Device("local-sync"), policy=Asked())
    assert covered(program) == ["elementwise:mul+silu+mul+add"]
    for rows in (5,) if shape[0] == 5 else (0, 1, 9):
        x, y = np.random.default_rng(rows).normal(size=(2, rows, *shape[1:])).astype(np.float32)
        assert np.allclose(program(x, y), gated_reference(x, y), rtol=1e-5)


@pytest.mark.parametrize("shape", [(5, 24), (5, 2, 24), (3, 5, 32)], ids=str)
def test_what_is_stretched_over_rows_follows_their_unknown_number(shape):
    ones = (1,) * (len(shape) - 1)
    specs = [TensorSpec("f32", None, *shape), TensorSpec("f32", None, *ones, shape[-1])]
    program = compile(lambda x, y: x * y, specs, device=Device("local-sync"), policy=Asked())
    assert covered(program) == ["elementwise:mul"]
    for number in (0, 1, 9):
        x = np.random.default_rng(number).normal(size=(number, *shape)).astype(np.float32)
        y = x.sum(axis=tuple(range(1, len(shape))), keepdims=True)
        assert np.array_equal(program(x, y), x * y)
    with pytest.raises(PycError) as caught:
        program(x, y[:3])
    assert caught.value.code is ReasonCode.DIMENSION_MISMATCH


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.full
def test_a_program_writes_past_the_caches(target, monkeypatch):
    monkeypatch.setattr(elementwise, "_STREAMED_OF_L3", 0)
    monkeypatch.setattr(elementwise, "_WORTH_FLOATS", 0)
    x, y = np.random.default_rng(1).normal(size=(2, 64, 24)).astype(np.float32)
    program = compile(lambda x, y: x * y, [x, y], target=target, device=Device("local-sync"))
    (decision,) = (d for d in program.artifact.decisions if d.chosen == "elementwise:mul")
    assert "streaming=True" in decision.alternatives[0].reason
    assert np.array_equal(program(x, y), x * y)


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


def saturated(x, dtype):
    """Cast as a program does: to the nearest bound beyond the range."""
    return np.clip(x, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)


def gate(x, dtype, result, cast):
    """A hard-swish between bytes, in the steps of quantizers; its floats."""
    least = np.iinfo(dtype).min
    own = (x.astype(np.int32) - np.int32(13)).astype(np.float32) * np.float32(0.06)
    part = np.clip(own * np.float32(1 / 6) + np.float32(0.5), np.float32(0), np.float32(1))
    part = cast(np.round(part / np.float32(0.004)) + np.float32(least), dtype)
    part = (part.astype(np.int32) - np.int32(least)).astype(np.float32) * np.float32(0.004)
    made = cast(np.round(own * part / np.float32(0.05)) + np.float32(9), result)
    return (made.astype(np.int32) - np.int32(5)).astype(np.float32) * np.float32(0.5)


@pytest.mark.parametrize("shape", [(None, 37), (33, None)], ids=str)
@pytest.mark.parametrize("names", [("ui8", "ui8"), ("i8", "ui8"), ("ui8", "i8")], ids=str)
def test_bytes_of_bytes_are_looked_up(names, shape):
    dtype, result = (DTYPES[n] for n in names)

    def model(x):
        return gate(x, dtype, result, lambda v, kind: v.astype(kind))

    program = compile(model, [TensorSpec(names[0], *shape)], device=Device("local-sync"))
    chosen = [d.chosen for d in program.artifact.decisions if d.chosen.startswith("int8_elem")]
    # The table is a group of its own.
    cpu = host_cpu()
    assert cpu is not None and len(chosen) == 1 + has_tables(Target.named("cpu").on(cpu)), chosen
    values = np.arange(256).astype(dtype)
    for size in (0, 1, 9, 10, 37, 200):
        count = [d or size for d in shape]
        x = np.resize(np.random.default_rng(size).permutation(values), count)
        np.testing.assert_array_equal(program(x), gate(x, dtype, result, saturated))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["i8", "ui8"])
def test_bytes_in_between_have_the_bounds_of_a_cast(name):
    dtype, least = DTYPES[name], np.float32(np.iinfo(DTYPES[name]).min)

    def model(x: Any, cast=lambda v, kind: v.astype(kind)):
        part = cast(np.round(x * np.float32(9)) + least, dtype).astype(np.float32)
        return cast(np.round(part * np.float32(0.7)) + np.float32(3), dtype)

    program = compile(lambda x: model(x), [TensorSpec(FLOAT, 32, 64)])
    assert any(d.chosen.startswith("int8_elementwise:") for d in program.artifact.decisions)
    x = np.random.default_rng(1).normal(size=(32, 64)).astype(np.float32) * 20
    x[0, :5] = [np.inf, -np.inf, 3e38, -3e38, np.nan]

    def cast(v, kind):
        return saturated(np.where(np.isnan(v), 0, v), kind)

    np.testing.assert_array_equal(program(x), model(x, cast))


def test_a_table_is_cheaper_than_its_program():
    steps = tuple(PointwiseStep("mul", (n, 1)) for n in (0, *range(2, 22)))
    program = Pointwise((), (2.0,), steps)
    target = replace(Target.named("cpu-avx512"), host_features=frozenset({"avx512vbmi"}))
    narrow = replace(NARROW, dtype="ui8")
    knobs = ByteElementwise(1, 1 << 20, program, dtypes=("i8",), result="ui8", narrow=narrow)
    assert knobs.is_looked_up(target)
    assert INT8.cost(knobs, target, {}).seconds < INT8.cost(knobs, AVX2, {}).seconds / 2
    for others in ({"result": "f32"}, {"dtypes": ("f32",)}, {"dtypes": ("i8", "f32")}):
        reads = (FULL,) * (len(others.get("dtypes", ())) - 1)
        steps = (PointwiseStep("neg", (0,)),)
        other = replace(knobs, program=Pointwise(reads, (), steps), **others)
        assert not other.is_looked_up(target)


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
