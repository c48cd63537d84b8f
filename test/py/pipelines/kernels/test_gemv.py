"""Products of few rows with a matrix known at run time: knobs, NaN, dynamic sizes, spills."""

import numpy as np
import pytest
from assembly import hottest, innermost_loops
from family_checks import computed
from kernel_runs import Kernels, agrees, assembly, targets
from kernel_works import layer

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels.families.batch import Gemv
from pyc_mlir.pipelines.kernels.knobs import decode, encode
from pyc_mlir.pipelines.kernels.match import Contraction
from pyc_mlir.pipelines.target.target import Target

AVX2, AVX512 = Target.named("cpu-avx2"), Target.named("cpu-avx512")


@pytest.mark.parametrize(
    ("what", "knobs"),
    [
        ({"rows": 7}, {}),
        ({"rows": "m"}, {}),
        ({"left": "bkm", "right": "bnk"}, {}),
        ({}, {"strip": 100}),
        ({}, {"at_once": 0}),
        ({}, {"workgroups": (0, 1)}),
        ({"batch": (), "left": "mk", "right": "kn", "result": "mn"}, {"workgroups": (2, 1)}),
    ],
)
def test_knobs_that_make_no_kernel_are_refused(what, knobs):
    with pytest.raises(PycError, match="gemv kernel: expected"):
        Gemv(Contraction(**{"batch": (2,), "rows": 1, "columns": 4, "depth": 4, **what}), **knobs)


def test_the_targets_knobs():
    small = Gemv.on(AVX2, Contraction((), 1, 64, 64, "mk", "kn", "mn"))
    large = Gemv.on(AVX2, Contraction((), 1, 4096, 4096, "mk", "kn", "mn"))
    assert (small.workgroups, large.workgroups) == ((1, 1), (1, 4))
    assert (large.at_once, large.strip) == (8, 4096)
    several = Gemv.on(AVX512, Contraction((8,), 4, 4096, 128, right="bnk"))
    assert several.workgroups == (8, 1)
    assert decode(Gemv, encode(several)) == several


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.parametrize("right", ["bkn", "bnk"])
@pytest.mark.full
def test_sizes_known_at_run_time(target, right):
    """A decoding step: the cache of keys grows; NaN and infinities as in numpy."""
    what = Contraction((2,), 2, "n", "k", right=right)
    knobs = Gemv.on(target, what, epilogue=layer(activation="relu"))
    run, random = Kernels(target, [knobs.kernel("step")]), np.random.default_rng(8)
    for n, k in ((1, 1), (15, 9), (64, 128), (150, 16), (1100, 35)):
        a, b = random.normal(size=(2, 2, k)), random.normal(size=(2, n, k))
        a[1, 0, k // 2], a[0, 1, k // 2], b[0, n // 2, k - 1] = np.nan, np.inf, -np.inf
        b = b if right == "bnk" else b.transpose(0, 2, 1)
        a, b = a.astype(np.float32), b.astype(np.float32)
        want = computed(
            "relu", computed("matmul", a, b.transpose(0, 2, 1) if right == "bnk" else b)
        )
        exact = want.value
        assert np.isnan(exact[1, 0]).all() and not np.isnan(exact[1, 1]).any()
        agrees(run.run("step", a, b), exact, want.tolerance)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.full
def test_no_loop_has_a_spill(target, tmp_path):
    """Needs no such machine: LLVM's assembly is read."""
    gelu = layer(bias=True, activation="gelu")
    kernels = [
        Gemv.on(target, Contraction((), rows, 4096, 4096, "mk", right, "mn"), epilogue=gelu).kernel(
            f"{right}{rows}"
        )
        for right in ("kn", "nk")
        for rows in (1, 3)
    ]
    text = assembly(target, kernels, tmp_path)
    for kernel in kernels:
        assert hottest(text, kernel.name).fmas >= 8
        loops = [loop for loop in innermost_loops(text) if loop.function == kernel.name]
        assert not [loop for loop in loops if loop.spills], kernel.name
