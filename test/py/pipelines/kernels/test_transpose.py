"""Transposes: bits, refusals, and which permutations are offered."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from kernel_runs import Kernels, spills, targets
from kernel_works import lone

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels.families.moves import TRANSPOSE as FAMILY
from pyc_mlir.pipelines.kernels.families.moves import Transpose
from pyc_mlir.pipelines.kernels.match import Feed
from pyc_mlir.pipelines.target.target import TARGETS, Target

AVX2, AVX512 = Target.named("cpu-avx2"), Target.named("cpu-avx512")


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
def test_bits_are_kept(target):
    """NaN's bits, infinities and negative zero; no arithmetic touches them."""
    x = np.random.default_rng(3).normal(size=(2, 16, 17)).astype(np.float32)
    x[0, 0, :4] = np.nan, np.inf, -np.inf, -0.0
    got = Kernels(target, [Transpose(2, 16, 17).kernel("k")]).run("k", x)
    assert np.array_equal(got.view(np.int32), x.transpose(0, 2, 1).copy().view(np.int32))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 0},
        {"tile_rows": 8},
        {"tile_columns": 0},
        {"batches": 0},
        {"streaming": True},
        {"rows": "m", "streaming": True},
        {"inner": 24, "streaming": True},
    ],
)
def test_knobs_that_make_no_kernel_are_refused(wrong):
    with pytest.raises(PycError, match="transpose kernel: expected"):
        Transpose(**{"batch": 1, "rows": 20, "columns": 20, **wrong})


def test_narrow_ones_are_left_to_iree():
    assert "sides" in FAMILY.refusal(Transpose(1, 3, 1000), AVX2)
    assert "sides" in FAMILY.refusal(Transpose(1, 8, 1000), AVX512)
    assert "at least 8" in FAMILY.refusal(Transpose(1, 100, 100, 3), AVX2)
    assert "expected a CPU with AVX2" in FAMILY.refusal(Transpose(1, 100, 100), TARGETS["vulkan"])


@pytest.mark.parametrize(
    "shape", [(1, 4096, 4096), (64, 16, 16), ("b", 64, 64), (1, 4096, 500, 64)]
)
def test_the_targets_knobs_are_legal(shape):
    for target in (AVX2, AVX512):
        assert FAMILY.offers(Transpose.on(target, *shape), target)
    assert Transpose.on(AVX2, 1, 4096, 4096).streaming
    assert not Transpose.on(AVX2, 1, 512, 512).streaming


@pytest.mark.parametrize(
    ("shape", "permutation", "cuts", "sizes"),
    [
        ((20, 30), (1, 0), (0, 1), (1, 20, 30, 1)),
        ((2, 20, 30), (0, 2, 1), (1, 2), (2, 20, 30, 1)),
        ((20, 3, 10), (2, 0, 1), (0, 2), (1, 60, 10, 1)),
        ((3, 20, 10), (1, 2, 0), (0, 1), (1, 3, 200, 1)),
        ((2, 12, 128, 64), (0, 2, 1, 3), (1, 2, 3), (2, 12, 128, 64)),
        ((128, 12, 64), (1, 0, 2), (0, 1, 2), (1, 128, 12, 64)),
        ((1, 20, 30), (2, 1, 0), (1, 2), (1, 20, 30, 1)),
        ((20, 1, 30, 1), (2, 1, 3, 0), (0, 2), (1, 20, 30, 1)),
        ((None, 12, 128, 64), (0, 2, 1, 3), (1, 2, 3), ("b", 12, 128, 64)),
        ((None, 20, 30), (0, 2, 1), (1, 2), ("b", 20, 30, 1)),
    ],
)
def test_two_runs_of_dimensions_are_exchanged(shape, permutation, cuts, sizes):
    work = lone("transpose", shape, permutation=permutation)
    offers = FAMILY.match(work, AVX2)
    if sizes[1] < 8:
        assert offers == []
        return
    (offer,) = offers
    assert offer.feeds == (Feed(0, cuts),) and offer.covers == 1 and offer.cost.seconds > 0
    knobs = offer.knobs
    assert (knobs.batch, knobs.rows, knobs.columns, knobs.inner) == sizes


@pytest.mark.parametrize("shape", [(9, 10, 11, 12), (9, 1, 11, 12), (9, 10, 1, 1)])
def test_what_is_offered_equals_numpy(shape):
    """Every permutation of four dimensions: the view that a feed makes of it, exchanged."""
    x = np.arange(np.prod(shape)).reshape(shape)
    found = 0
    for permutation in permutations(range(4)):
        for offer in FAMILY.match(lone("transpose", shape, permutation=permutation), AVX2):
            cuts = (0, *offer.feeds[0].cuts, 4)
            view = x.reshape([int(np.prod(shape[a:b])) for a, b in pairwise(cuts)])
            exact = x.transpose(permutation)
            assert np.array_equal(view.swapaxes(1, 2).reshape(exact.shape), exact)
            found += 1
    assert found


@pytest.mark.parametrize(
    ("shape", "permutation"),
    [
        ((20, 30), (0, 1)),
        ((20, 30, 40), (2, 1, 0)),
        ((20, 1, 30), (1, 0, 2)),
        ((None, 30), (1, 0)),
        ((0, 30), (1, 0)),
    ],
)
def test_other_permutations_are_not(shape, permutation):
    assert FAMILY.match(lone("transpose", shape, permutation=permutation), AVX2) == []


def test_other_types_are_not():
    assert FAMILY.match(lone("transpose", (20, 30), dtype="int32", permutation=(1, 0)), AVX2) == []


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.full
def test_hot_loops_have_no_spill(target, tmp_path):
    shapes = {"blocks": (1, 512, 512), "streamed": (1, 4096, 4096), "copies": (1, 128, 12, 64)}
    made = [Transpose.on(target, *shape).kernel(name) for name, shape in shapes.items()]
    assert spills(target, made, tmp_path) == []
