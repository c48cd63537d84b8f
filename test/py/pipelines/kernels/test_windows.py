"""Windows of convolutions and pooling: geometry, layouts of weights, what is offered."""

from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from kernel_runs import spills, targets
from kernel_works import constant, lone

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels.families.conv import convolution, depthwise, pool, winograd
from pyc_mlir.pipelines.kernels.families.conv.convolution import Conv
from pyc_mlir.pipelines.kernels.families.conv.toom_cook import SIZES, matrices
from pyc_mlir.pipelines.kernels.families.conv.window import Axis, random_axis
from pyc_mlir.pipelines.kernels.families.conv.winograd import Winograd
from pyc_mlir.pipelines.target.target import Target

AVX512 = Target.named("cpu-avx512")
IMAGE = (1, 14, 14, 32)


def conv(x=IMAGE, filters=48, kernel=(3, 3), groups=1, dtype: npt.DTypeLike = np.float32, **params):
    """A convolution as families see it; `x` is NHWC."""
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NHWC"}
    weights = np.zeros((*kernel, x[3] // groups, filters), dtype)
    params = {**window, "groups": groups, **params}
    return constant(lone("conv2d", x, weights.shape, dtype=dtype, **params), 1, weights)


def test_tiles_and_segments_are_the_taps_that_meet_the_image():
    random = Random(5)
    for _ in range(300):
        axis, most = random_axis(random), random.choice((1, 3, 6, 14))
        found, outputs = set(), []
        for run in axis.tiles(most):
            assert run.width <= most
            for tile in range(run.count):
                first = run.start + tile * run.width
                outputs += range(first, first + run.width)
                found |= {
                    (first + o, tap) for s in run.segments for tap in s.taps for o in s.outputs
                }
        assert outputs == list(range(axis.outputs))
        every = ((o, t) for o in range(axis.outputs) for t in range(axis.kernel))
        assert found == {(o, t) for o, t in every if axis.meets(o, t)}


@pytest.mark.parametrize("window", [(0,), (4, 5), (4, 3, 0), (4, 3, 1, -1), (4, 3, 1, 0, 0, 2)])
def test_windows_that_fit_no_image_are_refused(window):
    with pytest.raises(PycError, match="a window that fits"):
        Axis(*window)


@pytest.mark.parametrize("groups", [1, 2, 8, 32])
def test_weights_come_back(groups):
    axis = Axis(9, 3, 1, 1, 1)
    knobs = Conv.on(AVX512, 1, axis, axis, 64, 96, groups)
    w = np.random.default_rng(0).normal(size=(9 * 64 // groups, 96)).astype(np.float32)
    assert np.array_equal(knobs.layout.unpack(knobs.layout.pack(w)), w)
    assert knobs.merged == {1: 1, 2: 1, 8: 1, 32: 4}[groups]


@pytest.mark.parametrize("m", SIZES)
def test_minimal_filtering_is_a_convolution(m):
    parts, random = matrices(m), np.random.default_rng(m)
    x, w = random.normal(size=m + 2), random.normal(size=3)
    made = parts.at @ ((parts.g @ w) * (parts.bt @ x))
    assert np.allclose(made, [x[i : i + 3] @ w for i in range(m)], rtol=0, atol=1e-14)


@pytest.mark.parametrize("m", SIZES)
def test_the_error_of_minimal_filtering_is_what_documents_state(m):
    """In units of a direct sum's error, root mean square: at most 1 for m = 2, 4 for m = 4."""
    random, parts, channels = np.random.default_rng(0), matrices(m), 64
    x = random.normal(size=(300, channels, m + 2, m + 2)).astype(np.float32)
    w = (random.normal(size=(channels, 3, 3)) / 24).astype(np.float32)
    spectrum = np.einsum("pi,cij,qj->cpq", parts.g, w.astype(np.float64), parts.g)
    bt, at, u = (a.astype(np.float32) for a in (parts.bt, parts.at, spectrum))
    v = np.einsum("tcpj,qj->tcpq", np.einsum("pi,tcij->tcpj", bt, x), bt)
    taps = [(i, j) for i in range(3) for j in range(3)]
    views = [x[:, :, i : i + m, j : j + m] for i, j in taps]
    exact = np.zeros((300, m, m))
    for view, (i, j) in zip(views, taps, strict=True):
        exact += np.einsum("tcyx,c->tyx", view.astype(np.float64), w[:, i, j].astype(np.float64))
    sums, direct = np.zeros_like(v[:, 0]), np.zeros(exact.shape, np.float32)
    for c in range(channels):
        sums += u[c] * v[:, c]
        for view, (i, j) in zip(views, taps, strict=True):
            direct += view[:, c] * w[c, i, j]
    made = np.einsum("yp,tpq,xq->tyx", at, sums, at)
    ratio = np.sqrt(np.mean((made - exact) ** 2) / np.mean((direct - exact) ** 2))
    assert ratio < {2: 1.0, 4: 4.0}[m]


def test_a_convolution_is_offered_directly_and_by_filtering():
    work = conv()
    (direct,) = convolution.match(work, AVX512)
    assert (direct.covers, direct.indirect) == (1, False)
    filtered = winograd.match(work, AVX512)
    assert [(o.knobs.m, o.indirect) for o in filtered] == [(2, True), (4, True)]
    assert all(o.cost.constant_bytes > direct.cost.constant_bytes for o in filtered)


@pytest.mark.parametrize(
    "params",
    [
        {"strides": (2, 1)},
        {"dilations": (1, 2)},
        {"kernel": (5, 3)},
        {"kernel": (1, 1), "pads": (0, 0, 0, 0)},
        {"groups": 2},
    ],
)
def test_other_windows_are_not_filtered(params):
    assert winograd.match(conv(**params), AVX512) == []
    assert len(convolution.match(conv(**params), AVX512)) == 1


@pytest.mark.parametrize("images", [1, 3, None])
def test_windows_of_one_position_are_products_over_all_positions(images):
    work = conv((images, 7, 9, 32), kernel=(1, 1), pads=(0, 0, 0, 0))
    (offer,) = convolution.match(work, AVX512)
    assert offer.knobs.rows == Axis(1)
    assert offer.knobs.columns == Axis(63 * (images or 1))
    assert offer.knobs.images == ("n" if images is None else 1)


def test_positions_a_page_apart_get_low_tiles():
    """Else more of them share a set of the first-level cache than it has ways."""
    axis = Axis(14, 3, 1, 1, 1)
    assert Conv.on(AVX512, 1, axis, axis, 512, 64).width == 14
    assert Conv.on(AVX512, 1, axis, axis, 1024, 64).width == 6


def test_what_no_kernel_has():
    for work in (
        conv((1, None, 14, 32)),
        conv((0, 14, 14, 32)),
        conv(dtype=np.float64),
        lone("conv2d", (1, 32, 9, 9), (8, 32, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1),
             dilations=(1, 1), groups=1, layout="NCHW"),
        lone("conv2d", IMAGE, (3, 3, 32, 8), strides=(1, 1), pads=(1, 1, 1, 1),
             dilations=(1, 1), groups=1, layout="NHWC"),
    ):  # fmt: skip
        assert not [*convolution.match(work, AVX512), *winograd.match(work, AVX512)]


def test_a_group_for_each_channel_is_depthwise():
    work = conv(filters=32, groups=32)
    (offer,) = depthwise.match(work, AVX512)
    (direct,) = convolution.match(work, AVX512)
    assert offer.cost.seconds < direct.cost.seconds
    assert depthwise.match(conv(filters=64, groups=32), AVX512) == []


def test_pooling():
    window = {"strides": (2, 2), "pads": (1, 1, 1, 1), "kernel": (3, 3), "layout": "NHWC"}
    (largest,) = pool.match(lone("max_pool2d", IMAGE, dilations=(1, 1), **window), AVX512)
    assert largest.knobs.operation == "max"
    for padded, operation in ((False, "mean"), (True, "padded_mean")):
        work = lone("avg_pool2d", IMAGE, count_include_pad=padded, **window)
        assert [o.knobs.operation for o in pool.match(work, AVX512)] == [operation]


@pytest.mark.parametrize("target", targets(), ids=lambda t: t.name)
def test_register_tiles_do_not_spill(target, tmp_path):
    axis, wide = Axis(28, 3, 1, 1, 1), Axis(56)
    kernels = [
        Conv.on(target, 1, axis, axis, 64, 128).kernel("window"),
        Conv.on(target, 1, Axis(1), wide, 64, 128).kernel("point"),
        Winograd.on(target, 4, 1, axis, axis, 64, 128).kernel("filtered"),
    ]
    for loop in spills(target, kernels, tmp_path):
        # Transforms have more numbers than registers; a product may keep one for a turn or two.
        assert loop.function == "filtered" or 10 * len(loop.spills) <= loop.fmas, loop
