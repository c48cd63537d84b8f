"""Reductions and places of the largest: special numbers as in numpy, nothing to do, long sums."""

import numpy as np
import pytest
from family_checks import computed
from kernel_runs import Kernels, targets

from pyc_mlir.pipelines.kernels.families.reduce import (
    REDUCTIONS,
    Argmax,
    Columns,
    FullReduce,
)
from pyc_mlir.pipelines.target.target import Target

AVX2, AVX512 = Target.named("cpu-avx2"), Target.named("cpu-avx512")
WAYS = {
    "memory": {"at_once": 4},
    "registers": {"registers": True, "at_once": 4},
    "dynamic": {"outer": "o", "reduced": "n", "columns": "c", "strip": 16},
}


@pytest.fixture(scope="module", params=targets(__name__), ids=lambda t: t.name)
def kernels(request):
    made = {
        "argmax": Argmax("m", "n", chunk=64),
        "argmax_known": Argmax(10, 150, chunk=64),
        **{f"{n}_rows": FullReduce(n, "m", "n", chunk=128) for n in REDUCTIONS},
    }
    for name in REDUCTIONS:
        for way, others in WAYS.items():
            sizes = {"outer": 2, "reduced": 11, "columns": 37, **others}
            made[f"{name}_{way}"] = Columns(name, **sizes)
    return Kernels(request.param, [k.kernel(n) for n, k in made.items()])


def follows_numpy(got, operation, x, keepdims, apart):
    exact = computed(f"reduce_{operation}", x, axes=(1,), keepdims=keepdims).value
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    assert np.allclose(got, exact, rtol=1e-5, atol=apart, equal_nan=True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_special_numbers_of_columns_follow_numpy(kernels, name, way):
    """A column each: NaN first, inside and in the last column, infinities, both, all equal."""
    x = np.random.default_rng(3).normal(size=(2, 11, 37)).astype(np.float32)
    x[0, 0, 0] = x[0, 5, 1] = x[1, 10, 36] = np.nan
    x[0, 3, 2] = x[0, 4, 3] = np.inf
    x[0, 5, 3] = x[0, :, 4] = -np.inf
    x[0, :, 5] = 1e30
    x[1, :, 0] = -100.0
    follows_numpy(kernels.run(f"{name}_{way}", x), name, x, keepdims=False, apart=1e-6)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_special_numbers_of_rows_follow_numpy(kernels, name):
    """A row each: NaN at the start, in the middle and at the end, infinities, both, all equal."""
    x = np.random.default_rng(3).normal(size=(8, 333)).astype(np.float32)
    x[0, 0] = x[1, 200] = x[2, 332] = np.nan
    x[3, 5] = x[4, 6] = np.inf
    x[4, 300] = x[5, :] = -np.inf
    x[6, :] = 1e30
    follows_numpy(kernels.run(f"{name}_rows", x), name, x, keepdims=True, apart=1e-5)


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


@pytest.mark.parametrize(("name", "sign"), [("argmax", 1), ("argmax", -1), ("argmax_known", 1)])
def test_places_of_special_numbers_follow_numpy(kernels, name, sign):
    x = sign * special()
    got = kernels.run(name, x)
    assert got.dtype == np.int64 and np.array_equal(got, np.argmax(x, 1))


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 5000])
def test_each_place_is_found(kernels, columns):
    """A falling row with a peak at each end, in the middle and around the edges of chunks."""
    for place in {p for p in (0, 1, 15, 16, 63, 64, columns // 2, columns - 1) if p < columns}:
        x = np.arange(columns, 0, -1, dtype=np.float32)[None].repeat(3, 0)
        x[1, place] = 1e6
        assert kernels.run("argmax", x).tolist() == [0, place, 0]


@pytest.mark.parametrize(
    ("name", "shape", "result"),
    [
        ("sum_dynamic", (2, 0, 5), np.zeros((2, 5))),
        ("max_dynamic", (2, 0, 5), np.full((2, 5), -np.inf)),
        ("sum_rows", (2, 0), np.zeros((2, 1))),
        ("max_rows", (1, 0), np.full((1, 1), -np.inf)),
        ("sum_dynamic", (2, 4, 0), np.zeros((2, 0))),
        ("sum_dynamic", (0, 4, 3), np.zeros((0, 3))),
        ("argmax", (0, 7), np.zeros(0)),
    ],
)
def test_nothing_to_reduce_gives_the_identity(kernels, name, shape, result):
    got = kernels.run(name, np.zeros(shape))
    assert got.shape == result.shape and np.array_equal(got, result)


def test_a_long_sum_keeps_its_bound(kernels):
    """Numbers of one sign and size, where adding one after the other would be far off."""
    x = np.full((1, 3_000_000), 0.1, np.float32)
    want = computed("reduce_sum", x, axes=(1,), keepdims=True)
    assert (np.abs(kernels.run("sum_rows", x) - want.value) <= want.tolerance).all()


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.full
def test_strips_change_no_bit(target):
    """Workgroups share out no part of a sum."""
    x = np.random.default_rng(1).normal(size=(1, 100, 200)).astype(np.float32)
    cuts = {f"strip_{s}": Columns("sum", 1, 100, 200, strip=s) for s in (16, 48, 4096)}
    run = Kernels(target, [k.kernel(n) for n, k in cuts.items()])
    first, *others = (run.run(n, x) for n in cuts)
    assert all(np.array_equal(first, other) for other in others)
