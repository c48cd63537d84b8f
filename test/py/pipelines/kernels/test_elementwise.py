"""Elementwise kernels: parts and tails, writes past the caches, what a group of ops becomes."""

import numpy as np
import pytest
from assembly import innermost_loops
from kernel_runs import Kernels, targets

from pyc_mlir.api import compile
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.nn import silu, softmax
from pyc_mlir.pipelines.kernels.families import elementwise
from pyc_mlir.pipelines.kernels.families import elementwise as elementwise_family
from pyc_mlir.pipelines.kernels.families.elementwise import FAMILY, Elementwise
from pyc_mlir.pipelines.kernels.lang.carrier import Carrier
from pyc_mlir.pipelines.kernels.lang.pointwise import (
    COLUMN,
    FULL,
    NUMBER,
    ROW,
    Pointwise,
    PointwiseStep,
)
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import Device

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


@pytest.mark.parametrize(
    "fields",
    [{"rows": 0}, {"unroll": 0}, {"columns_part": 40}, {"columns": 33, "streaming": True}],
)
def test_knobs_that_make_no_kernel_are_refused(fields):
    with pytest.raises(PycError, match="elementwise kernel: expected"):
        Elementwise(**{"rows": 4, "columns": 4, "program": DOUBLE, **fields})


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


@pytest.mark.parametrize("name", ["cpu-avx2", "cpu-avx512"])
@pytest.mark.full
def test_the_targets_knobs_keep_values_in_registers(name, tmp_path):
    target, carrier = Target.named(name), Carrier(Target.named(name))
    made = [
        Elementwise.on(target, 1, 4096, Pointwise((), (), (PointwiseStep(op, (0,)),))).kernel(
            f"row_{op}"
        )
        for op in ("exp", "log", "tanh", "erf", "sigmoid", "silu", "gelu", "gelu_tanh")
    ]
    carrier.add(*made)
    for kernel in made:
        carrier.call(kernel)
    compile_module(carrier.bytecode(), target, [f"--iree-hal-dump-executable-files-to={tmp_path}"])
    loops = innermost_loops(next(tmp_path.glob("*.s")).read_text())
    mine = [loop for loop in loops if loop.function.startswith("row_")]
    assert {loop.function for loop in mine} == {k.name for k in made}
    assert not [loop for loop in mine if loop.spills]


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


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.full
def test_a_program_writes_past_the_caches(target, monkeypatch):
    monkeypatch.setattr(elementwise, "_STREAMED_OF_L3", 0)
    monkeypatch.setattr(elementwise_family, "_WORTH_NUMBERS", 0)
    x, y = np.random.default_rng(1).normal(size=(2, 64, 24)).astype(np.float32)
    program = compile(lambda x, y: x * y, [x, y], target=target, device=Device("local-sync"))
    (decision,) = (d for d in program.artifact.decisions if d.chosen == "elementwise:mul")
    assert "streaming=True" in decision.alternatives[0].reason
    assert np.array_equal(program(x, y), x * y)
