"""Column kernels: NaN and infinities as in numpy, refusals, and what they are offered for."""

import numpy as np
import pytest
from family_checks import computed
from kernel_runs import Kernels, spills, targets
from kernel_works import lone

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels.families.reduce import COLUMNS as FAMILY
from pyc_mlir.pipelines.kernels.families.reduce import REDUCTIONS, Columns
from pyc_mlir.pipelines.kernels.match import Feed
from pyc_mlir.pipelines.target.target import Target

AVX2, AVX512 = Target.named("cpu-avx2"), Target.named("cpu-avx512")
WAYS = {
    "memory": {"at_once": 4},
    "registers": {"registers": True, "at_once": 4},
    "dynamic": {"outer": "o", "reduced": "n", "columns": "c", "strip": 16},
}


def knobs(operation, way):
    return Columns(operation, **{"outer": 2, "reduced": 11, "columns": 37, **WAYS[way]})


@pytest.fixture(scope="module", params=targets(__name__), ids=lambda t: t.name)
def kernels(request):
    return Kernels(
        request.param, [knobs(n, w).kernel(f"{n}_{w}") for n in REDUCTIONS for w in WAYS]
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_special_numbers_follow_numpy(kernels, name, way):
    """A column each: NaN first, inside and in the last column, infinities, both, all equal."""
    x = np.random.default_rng(3).normal(size=(2, 11, 37)).astype(np.float32)
    x[0, 0, 0] = x[0, 5, 1] = x[1, 10, 36] = np.nan
    x[0, 3, 2] = x[0, 4, 3] = np.inf
    x[0, 5, 3] = x[0, :, 4] = -np.inf
    x[0, :, 5] = 1e30
    x[1, :, 0] = -100.0
    exact = computed(f"reduce_{name}", x, axes=(1,), keepdims=False).value
    got = kernels.run(f"{name}_{way}", x)
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    assert np.allclose(got, exact, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_nothing_to_reduce_gives_the_identity(kernels):
    x = np.zeros((2, 0, 5))
    assert np.array_equal(kernels.run("sum_dynamic", x), np.zeros((2, 5)))
    assert np.array_equal(kernels.run("max_dynamic", x), np.full((2, 5), -np.inf))


def test_no_column_is_no_work(kernels):
    assert kernels.run("sum_dynamic", np.zeros((2, 4, 0))).shape == (2, 0)
    assert kernels.run("sum_dynamic", np.zeros((0, 4, 3))).shape == (0, 3)


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.full
def test_strips_change_no_bit(target):
    """What workgroups share out is no part of a sum."""
    x = np.random.default_rng(1).normal(size=(1, 100, 200)).astype(np.float32)
    cuts = {f"strip_{s}": Columns("sum", 1, 100, 200, strip=s) for s in (16, 48, 4096)}
    run = Kernels(target, [k.kernel(n) for n, k in cuts.items()])
    first, *others = (run.run(n, x) for n in cuts)
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize(
    "wrong",
    [
        {"operation": "median"},
        {"columns": 0},
        {"reduced": 0},
        {"at_once": 0},
        {"columns": "c", "registers": True},
        {"strip": 3, "registers": True},
    ],
)
def test_knobs_that_make_no_kernel_are_refused(wrong):
    with pytest.raises(PycError, match="columns kernel: expected"):
        Columns(**{"operation": "sum", "outer": 2, "reduced": 3, "columns": 4, **wrong})


def test_results_beyond_the_registers_are_refused():
    wide = Columns("sum", 1, 8, 64, registers=True)
    assert FAMILY.offers(wide, AVX512)
    assert "registers" in FAMILY.refusal(wide, AVX2)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.parametrize("columns", [1, 3, 64, 300, 1000, 4096, 100_000, "c"])
def test_the_targets_knobs_are_legal(target, columns):
    assert FAMILY.offers(Columns.on(target, "sum", 1, 100, columns), target)


@pytest.mark.parametrize(
    ("shape", "axes", "keepdims", "cuts", "sizes"),
    [
        ((8, 9), (0,), False, (0, 1), (1, 8, 9)),
        ((8, 9), (-2,), True, (0, 1), (1, 8, 9)),
        ((2, 3, 4, 5), (1, 2), False, (1, 3), (2, 12, 5)),
        ((2, 3, 1, 5), (1,), True, (1, 2), (2, 3, 5)),
        ((2, 3, 1, 4, 5), (3, 1), True, (1, 4), (2, 12, 5)),
        ((None, 3, 5), (1,), False, (1, 2), ("o", 3, 5)),
        ((2, None, 5), (1,), False, (1, 2), (2, "n", 5)),
        ((2, 3, None), (1,), True, (1, 2), (2, 3, "c")),
    ],
)
def test_a_reduction_of_the_middle_is_offered(shape, axes, keepdims, cuts, sizes):
    (offer,) = FAMILY.match(lone("reduce_mean", shape, axes=axes, keepdims=keepdims), AVX2)
    assert offer.feeds == (Feed(0, cuts),) and offer.covers == 1 and offer.cost.seconds > 0
    assert (offer.knobs.outer, offer.knobs.reduced, offer.knobs.columns) == sizes
    assert offer.knobs.operation == "mean"


@pytest.mark.parametrize(
    ("shape", "axes", "keepdims"),
    [
        ((8, 9), (1,), False),  # rows
        ((8, 9, 1), (1,), False),
        ((2, 3, 4, 5), (0, 2), False),  # not neighbours
        ((2, 3, None), (1,), False),  # a dynamic dimension moves
        ((1, 4), (0,), False),  # nothing to combine
        ((0, 4), (0,), False),
    ],
)
def test_other_reductions_are_not(shape, axes, keepdims):
    assert FAMILY.match(lone("reduce_sum", shape, axes=axes, keepdims=keepdims), AVX2) == []


@pytest.mark.parametrize(("name", "dtype"), [("reduce_sum", "int32"), ("reduce_prod", "float32")])
def test_other_types_and_products_are_not(name, dtype):
    work = lone(name, (8, 9), dtype=dtype, axes=(0,), keepdims=False)
    assert FAMILY.match(work, AVX2) == []


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.full
def test_hot_loops_have_no_spill(target, tmp_path):
    widths = {"wide": 4096, "narrow": 256, "few": target.vector_bytes}
    made = [
        Columns.on(target, operation, 1, 4096, width).kernel(f"{name}_{operation}")
        for name, width in widths.items()
        for operation in ("sum", "max")
    ]
    assert spills(target, made, tmp_path) == []
