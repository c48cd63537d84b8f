"""Reductions of long rows: NaN as in numpy, long sums, what is offered."""

import numpy as np
import pytest
from family_checks import computed
from kernel_runs import Kernels, spills, targets
from kernel_works import lone

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels.families.reduce import FULL_REDUCE as FAMILY
from pyc_mlir.pipelines.kernels.families.reduce import REDUCTIONS, FullReduce
from pyc_mlir.pipelines.kernels.match import Feed
from pyc_mlir.pipelines.target.target import TARGETS, Target

AVX2 = Target.named("cpu-avx2")


@pytest.fixture(scope="module", params=targets(__name__), ids=lambda t: t.name)
def kernels(request):
    made = [FullReduce(name, "m", "n", chunk=128).kernel(name) for name in REDUCTIONS]
    return Kernels(request.param, made)


def exact(name, x):
    return computed(f"reduce_{name}", x, axes=(1,), keepdims=True).value


@pytest.mark.parametrize("name", REDUCTIONS)
def test_special_numbers_follow_numpy(kernels, name):
    """A row each: NaN at the start, in the middle and at the end, infinities, both, all equal."""
    x = np.random.default_rng(3).normal(size=(8, 333)).astype(np.float32)
    x[0, 0] = x[1, 200] = x[2, 332] = np.nan
    x[3, 5] = x[4, 6] = np.inf
    x[4, 300] = x[5, :] = -np.inf
    x[6, :] = 1e30
    got = kernels.run(name, x)
    assert np.array_equal(np.isnan(got), np.isnan(exact(name, x)))
    assert np.allclose(got, exact(name, x), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_nothing_to_reduce_gives_the_identity(kernels):
    assert np.array_equal(kernels.run("sum", np.zeros((2, 0))), np.zeros((2, 1)))
    assert np.array_equal(kernels.run("max", np.zeros((1, 0))), np.full((1, 1), -np.inf))


def test_a_long_sum_keeps_its_bound(kernels):
    """Numbers of one sign and size, where adding one after the other would be far off."""
    x = np.full((1, 3_000_000), 0.1, np.float32)
    want = computed("reduce_sum", x, axes=(1,), keepdims=True)
    assert (np.abs(kernels.run("sum", x) - want.value) <= want.tolerance).all()


@pytest.mark.parametrize(
    "wrong", [{"operation": "median"}, {"numbers": 0}, {"chunk": 0}, {"rows": 0}]
)
def test_knobs_that_make_no_kernel_are_refused(wrong):
    with pytest.raises(PycError, match="full_reduce kernel: expected"):
        FullReduce(**{"operation": "sum", "rows": 4, "numbers": 4, **wrong})


@pytest.mark.parametrize(
    ("shape", "axes", "keepdims", "cut", "sizes"),
    [
        ((20, 30), (0, 1), False, 0, (1, 600)),
        ((20, 30), (1, 0), True, 0, (1, 600)),
        ((2, 20, 30), (1, 2), False, 1, (2, 600)),
        ((2, 1 << 20), (1,), False, 1, (2, 1 << 20)),
        ((2, 20, 30, 1), (1, 2), False, 1, (2, 600)),
        ((None, 20, 30), (1, 2), False, 1, ("m", 600)),
        ((2, None), (1,), True, 1, (2, "n")),
    ],
)
def test_all_numbers_or_the_last_dimensions_are_offered(shape, axes, keepdims, cut, sizes):
    (offer,) = FAMILY.match(lone("reduce_max", shape, axes=axes, keepdims=keepdims), AVX2)
    assert offer.feeds == (Feed(0, (cut,)),) and offer.covers == 1 and offer.cost.seconds > 0
    assert (offer.knobs.rows, offer.knobs.numbers) == sizes


@pytest.mark.parametrize(
    ("shape", "axes"), [((8, 900), (1,)), ((8, 9), (0,)), ((8, 9, 10), (0, 2)), ((8, 0), (0, 1))]
)
def test_other_reductions_are_not(shape, axes):
    assert FAMILY.match(lone("reduce_sum", shape, axes=axes, keepdims=False), AVX2) == []


def test_other_targets_are_not():
    work = lone("reduce_sum", (8, 9), axes=(0, 1), keepdims=False)
    assert FAMILY.match(work, TARGETS["vulkan"]) == []


@pytest.mark.parametrize("name", ["cpu-avx2", "cpu-avx512"])
@pytest.mark.full
def test_hot_loops_have_no_spill(name, tmp_path):
    made = [
        FullReduce("sum", 1, 1 << 20).kernel("known"),
        FullReduce("max", "m", "n").kernel("any"),
    ]
    assert spills(Target.named(name), made, tmp_path) == []
