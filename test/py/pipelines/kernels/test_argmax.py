"""Argmax kernels: ties, NaN and infinities as in numpy, refusals, and what they are offered for."""

import numpy as np
import pytest
from kernel_runs import Kernels, spills, targets
from kernel_works import lone

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels.families.reduce import ARGMAX as FAMILY
from pyc_mlir.pipelines.kernels.families.reduce import Argmax
from pyc_mlir.pipelines.kernels.match import Feed
from pyc_mlir.pipelines.target.target import TARGETS, Target

AVX2 = Target.named("cpu-avx2")


@pytest.fixture(scope="module", params=targets(__name__), ids=lambda t: t.name)
def kernels(request):
    made = {"argmax": Argmax("m", "n", chunk=64), "static": Argmax(10, 150, chunk=64)}
    return Kernels(request.param, [k.kernel(n) for n, k in made.items()])


def special():
    """A row each: NaN first, in a later chunk, twice, last; infinities; all equal; zeros."""
    x = np.random.default_rng(3).normal(size=(10, 150)).astype(np.float32)
    x[0, 0] = x[1, 100] = x[2, 70] = x[2, 149] = x[3, 149] = np.nan
    x[3, 5] = x[4, [80, 81]] = np.inf
    x[5, :] = -np.inf
    x[6, [3, 90]] = -np.inf
    x[7, :] = 4.0
    x[8, :], x[8, 1], x[8, 0] = -1.0, 0.0, -0.0
    x[9, [60, 64, 128]] = 50.0, 50.0, -50.0
    return x


@pytest.mark.parametrize("sign", [1, -1])
def test_special_numbers_follow_numpy(kernels, sign):
    x = sign * special()
    got = kernels.run("argmax", x)
    assert got.dtype == np.int64 and np.array_equal(got, np.argmax(x, 1))


def test_a_known_size_follows_numpy(kernels):
    assert np.array_equal(kernels.run("static", special()), np.argmax(special(), 1))


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 5000])
def test_each_place_is_found(kernels, columns):
    """A falling row with a peak at each end, in the middle and around the edges of chunks."""
    for place in {p for p in (0, 1, 15, 16, 63, 64, columns // 2, columns - 1) if p < columns}:
        x = np.arange(columns, 0, -1, dtype=np.float32)[None].repeat(3, 0)
        x[1, place] = 1e6
        assert kernels.run("argmax", x).tolist() == [0, place, 0]


def test_no_row_is_no_work(kernels):
    assert kernels.run("argmax", np.zeros((0, 7))).shape == (0,)


@pytest.mark.parametrize(
    "wrong",
    [{"columns": 0}, {"rows": 0}, {"chunk": 0}, {"chunk": (1 << 24) + 1}],
)
def test_knobs_that_make_no_kernel_are_refused(wrong):
    with pytest.raises(PycError, match="argmax kernel: expected"):
        Argmax(**{"rows": 4, "columns": 4, **wrong})


@pytest.mark.parametrize(
    ("shape", "axis", "keepdims", "cut", "sizes"),
    [
        ((8, 9), 1, False, 1, (8, 9)),
        ((2, 8, 9), -1, True, 2, (16, 9)),
        ((9,), 0, False, 0, (1, 9)),
        ((8, 9, 1), 1, True, 1, (8, 9)),
        ((None, 9), 1, False, 1, ("m", 9)),
    ],
)
def test_the_last_dimension_is_offered(shape, axis, keepdims, cut, sizes):
    (offer,) = FAMILY.match(lone("argmax", shape, axis=axis, keepdims=keepdims), AVX2)
    assert offer.feeds == (Feed(0, (cut,)),) and offer.covers == 1 and offer.cost.seconds > 0
    assert (offer.knobs.rows, offer.knobs.columns) == sizes


def test_other_axes_types_and_targets_are_not():
    assert FAMILY.match(lone("argmax", (8, 9), axis=0, keepdims=False), AVX2) == []
    assert FAMILY.match(lone("argmax", (0, 9), axis=1, keepdims=False), AVX2) == []
    unknown = lone("argmax", (3, None), axis=1, keepdims=False)
    assert FAMILY.match(unknown, AVX2) == []
    integers = lone("argmax", (8, 9), dtype="int32", axis=1, keepdims=False)
    assert FAMILY.match(integers, AVX2) == []
    assert FAMILY.match(lone("argmax", (8, 9), axis=1, keepdims=False), TARGETS["cuda"]) == []


@pytest.mark.parametrize("name", ["cpu-avx2", "cpu-avx512"])
@pytest.mark.full
def test_hot_loops_have_no_spill(name, tmp_path):
    made = [Argmax(64, 1000).kernel("known"), Argmax("m", "n").kernel("any")]
    assert spills(Target.named(name), made, tmp_path) == []
