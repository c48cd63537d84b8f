"""Windows of convolutions and pooling: geometry, layouts, images in parts, what is offered."""

from dataclasses import astuple, replace
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from family_checks import computed, knobs_of
from kernel_runs import Kernels, agrees, any_target
from kernel_works import Group, constant, lone, window

from pyc_mlir import compile, nn, spec
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ops.movement import END, START
from pyc_mlir.dialects.types import tensor
from pyc_mlir.pipelines.kernels.families.bytes import TapRanges
from pyc_mlir.pipelines.kernels.families.conv import direct as convolution
from pyc_mlir.pipelines.kernels.families.conv import winograd
from pyc_mlir.pipelines.kernels.families.conv.channelwise import FAMILY as DEPTHWISE
from pyc_mlir.pipelines.kernels.families.conv.channelwise import POOL, Geometry
from pyc_mlir.pipelines.kernels.families.conv.direct import DirectConv
from pyc_mlir.pipelines.kernels.families.conv.winograd import SIZES, Winograd, matrices
from pyc_mlir.pipelines.kernels.families.window import (
    MOST_PARTS,
    ChannelSlice,
    ConvAxis,
    find_parts,
)
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp
from pyc_mlir.profile.dispatches import groups_of, ops_behind, recorded, report_of
from pyc_mlir.runtime.device import Device

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
        drawn = window(Group(random), (1, 1, 2, 3, 3, 5, 7))
        axis, most = ConvAxis(*astuple(drawn)), random.choice((1, 3, 6, 14))
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
        inside = (o for o in outputs if all(axis.meets(o, t) for t in range(axis.kernel)))
        assert list(inside) == list(axis.interior)


def test_runs_of_taps_are_found_at_the_edges(monkeypatch):
    random = Random(6)
    for _ in range(500):
        axis = ConvAxis(*astuple(window(Group(random), (1, 2, 3, 5, 7))))
        met = [[t for t in range(axis.kernel) if axis.meets(o, t)] for o in range(axis.outputs)]
        found = TapRanges.of(axis)
        if all(met):
            ends = max(m[0] for m in met), min(m[-1] + 1 for m in met)
            assert (found.most, found.least) == ends
        else:
            assert (found.most, found.least) == (axis.kernel, 0)
    # Images of a large batch are one row of a million outputs.
    asked = []
    monkeypatch.setattr(ConvAxis, "meets", lambda self, *at: asked.append(at) is None)
    TapRanges.of(ConvAxis(1 << 20, 3, 1, 1, 1))
    assert len(asked) == 6


@pytest.mark.parametrize("window", [(0,), (4, 5), (4, 3, 0), (4, 3, 1, -1), (4, 3, 1, 0, 0, 2)])
def test_windows_that_fit_no_image_are_refused(window):
    with pytest.raises(PycError, match="a window that fits"):
        ConvAxis(*window)


@pytest.mark.parametrize("groups", [1, 2, 8, 32])
def test_few_channels_of_many_groups_are_computed_together(groups):
    axis = ConvAxis(9, 3, 1, 1, 1)
    knobs = DirectConv.on(AVX512, 1, axis, axis, 64, 96, groups)
    assert knobs.merged == {1: 1, 2: 1, 8: 1, 32: 4}[groups]


@pytest.mark.parametrize("name", ["conv", "winograd"])
@pytest.mark.parametrize("panel", [-32, 0, 8])
def test_panels_of_no_line_are_refused(name, panel):
    (knobs,) = knobs_of(name, AVX512, 0, 1)
    with pytest.raises(PycError, match="`panel`: "):
        replace(knobs, panel=panel)


def test_layouts_say_what_they_take():
    axis = ConvAxis(9, 3, 1, 1, 1)
    assert DirectConv.on(AVX512, 1, axis, axis, 64, 96, 32).layout.shape == (18, 96)
    assert Winograd.on(AVX512, 4, 1, axis, axis, 64, 96).layout.shape == (576, 96)


@pytest.mark.parametrize("cores", [2, 4, 8])
@pytest.mark.parametrize("filters", [16, 32, 40, 48, 64, 96, 112, 320])
def test_every_core_has_work(filters, cores):
    """Rows of an image, tiles of a single row, or panels, where they come out even."""
    target = replace(AVX512, cores=cores)
    window, point = ConvAxis(112, 3, 1, 1, 1), (ConvAxis(1), ConvAxis(112 * 112))
    for axes in ((window, window), point):
        knobs = DirectConv.on(target, 1, *axes, 96, filters)
        rows, panels = knobs.workgroups
        assert rows * panels == cores
        assert panels == 1 or filters % (knobs.panel * panels) == 0


@pytest.mark.full
def test_where_infinities_reach():
    """As docs/kernels.md states: tiles for minimal filtering, all groups computed together."""
    target, values, axis = any_target(), np.random.default_rng(0), ConvAxis(12, 3, 1, 1, 1)
    made = {
        "direct": DirectConv.on(target, 1, axis, axis, 16, 16),
        "together": DirectConv.on(target, 1, axis, axis, 16, 16, 8),
        "m2": Winograd.on(target, 2, 1, axis, axis, 16, 16),
        "m4": Winograd.on(target, 4, 1, axis, axis, 16, 16),
    }
    assert made["together"].merged > 1
    run = Kernels(target, [knobs.kernel(name) for name, knobs in made.items()])
    for name, knobs in made.items():
        groups = 8 if name == "together" else 1
        x = values.normal(size=(1, 12, 12, 16)).astype(np.float32)
        w = values.normal(size=(3, 3, 16 // groups, 16)).astype(np.float32)
        x[0, 5, 6, 4] = np.inf
        window = {"pads": (1,) * 4, "layout": "NHWC", "groups": groups}
        want = computed("conv2d", x, w, **window)
        exact, got = want.value, run.run(name, x, knobs.layout.pack(w.reshape(-1, 16)))
        if name == "direct":
            agrees(got, exact, want.tolerance)
            continue
        if isinstance(knobs, Winograd):
            rows, columns = np.zeros(12, bool), np.zeros(12, bool)
            for axes, place in ((rows, 5), (columns, 6)):
                for start in range(0, 12, knobs.m):
                    axes[start : start + knobs.m] = start <= place + 1 < start + knobs.m + 2
        else:
            rows, columns = (np.abs(np.arange(12) - p) < 2 for p in (5, 6))
        left = np.broadcast_to(~np.outer(rows, columns)[None, :, :, None], got.shape)
        assert np.isnan(got[~left]).any() and not np.isfinite(got[np.isinf(exact)]).any()
        assert np.allclose(got[left], exact[left], atol=1e-4)


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


def test_filtering_pays_where_its_weights_are_few_beside_the_tiles():
    alone = replace(AVX512, cores=1, peak_flops=AVX512.peak_flops / AVX512.cores)

    def seconds(images, side, channels):
        work = conv((images, side, side, channels), channels)
        (direct,) = convolution.match(work, alone)
        return direct.cost.seconds, min(o.cost.seconds for o in winograd.match(work, alone))

    direct, filtered = seconds(1, 7, 512)
    assert direct < filtered
    for images, side, channels in ((1, 56, 64), (8, 14, 256)):
        direct, filtered = seconds(images, side, channels)
        assert filtered < direct


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
    assert offer.knobs.rows == ConvAxis(1)
    assert offer.knobs.columns == ConvAxis(63 * (images or 1))
    assert offer.knobs.images == ("n" if images is None else 1)


def test_positions_a_page_apart_get_low_tiles():
    """Else more of them share a set of the first-level cache than it has ways."""
    axis = ConvAxis(14, 3, 1, 1, 1)
    assert DirectConv.on(AVX512, 1, axis, axis, 512, 64).width == 14
    assert DirectConv.on(AVX512, 1, axis, axis, 1024, 64).width == 6


def test_what_no_kernel_has():
    for work in (
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
    (offer,) = DEPTHWISE.match(work, AVX512)
    direct, *_ = convolution.match(work, AVX512)
    assert offer.cost.seconds < direct.cost.seconds
    assert DEPTHWISE.match(conv(filters=64, groups=32), AVX512) == []


def test_pooling():
    window = {"strides": (2, 2), "pads": (1, 1, 1, 1), "kernel": (3, 3), "layout": "NHWC"}
    (largest,) = POOL.match(lone("max_pool2d", IMAGE, dilations=(1, 1), **window), AVX512)
    assert largest.knobs.operation == "max"
    for padded, operation in ((False, "mean"), (True, "padded_mean")):
        work = lone("avg_pool2d", IMAGE, count_include_pad=padded, **window)
        assert [o.knobs.operation for o in POOL.match(work, AVX512)] == [operation]


def test_weights_decide_which_kernels_there_are():
    """Read once for all families."""
    read = []

    def weighted(largest):
        work = conv(filters=32)
        array = np.full((3, 3, 32, 32), 0.5, np.float32)
        array[1, 1, 3, 4] = largest
        read.clear()
        given = replace(work.inputs[1], array=lambda: read.append(1) or array)
        work = replace(work, inputs=(work.inputs[0], given))
        families = [*convolution.match(work, AVX512), *winograd.match(work, AVX512)]
        assert len(read) == 1
        return [offer.indirect for offer in families]

    assert weighted(0.5) == weighted(-1e35) == [False, True, True]
    assert weighted(1e37) == weighted(-1e37) == [False]
    assert weighted(np.inf) == weighted(np.nan) == []


def test_groups_computed_together_are_indirect():
    together, apart = convolution.match(conv(x=(1, 14, 14, 64), filters=64, groups=32), AVX512)
    assert together.indirect and together.knobs.merged > 1
    assert not apart.indirect and apart.knobs == replace(together.knobs, merged=1)


def test_the_outputs_of_an_unknown_size_are_that_size_or_follow_from_it():
    assert ConvAxis(20, 3, 1, 1, 1, 1, "wide").output_dim == "wide"
    for stride, low, high in ((1, 0, 0), (2, 1, 1), (1, 2, 1)):
        axis = ConvAxis(20, 3, stride, low, high, 1, "wide")
        (found,) = axis.window_counts
        assert (axis.output_dim, found.name, found.size) == ("wide_out", "wide_out", "wide")
        assert (20 - found.reach) // found.stride + 1 == axis.outputs


RANDOM = np.random.default_rng(3)
AXIS = ConvAxis(9, 3, 1, 1, 1)


def weights(*shape):
    return RANDOM.normal(size=shape, scale=0.1).astype(np.float32)


def taken(start, stop, step=1, rows=(START, END, 1)):
    """The parameters of a slice of NHWC images: of their channels, and of their rows."""
    bounds = ((START, END, 1), rows, (START, END, 1), (start, stop, step))
    return dict(zip(("starts", "stops", "steps"), zip(*bounds, strict=True), strict=True))


def work(*nodes, inputs=((1, 5, 6, 8), (1, 5, 6, 16))):
    """Ops in front of a relu of the last one: (name, operands, params, channels)."""
    made = [WorkOp(n, o, p, tensor("f32", 1, 5, 6, c)) for n, o, p, c in nodes]
    own = len(inputs) + len(made) - 1
    made.append(WorkOp("relu", (own,), {}, made[-1].type))
    return Work(tuple(Input(tensor("f32", *s)) for s in inputs), tuple(made))


JOINED = ("concat", (0, 1), {"axis": 3}, 24)


def test_a_concatenation_is_its_parts():
    found = find_parts(work(JOINED))
    assert found and found.values == (0, 1) and found.covers == 1
    assert found.parts == (ChannelSlice(8, 0, 8), ChannelSlice(16, 0, 16))


def test_a_slice_of_a_concatenation_is_a_part_of_its_parts():
    found = find_parts(work(JOINED, ("slice", (2,), taken(5, -4), 15)))
    assert found and found.values == (0, 1) and found.covers == 2
    assert found.parts == (ChannelSlice(8, 5, 3), ChannelSlice(16, 0, 12))
    found = find_parts(work(JOINED, ("slice", (2,), taken(8, END), 16)))
    assert found and found.values == (1,) and found.parts == (ChannelSlice(16, 0, 16),)


@pytest.mark.parametrize(
    "nodes",
    [
        [("concat", (0, 1), {"axis": 1}, 24)],
        [("slice", (1,), taken(0, 16, 2), 8)],
        [("slice", (1,), taken(3, 3), 0)],
        [("slice", (1,), taken(0, 8, rows=(END, START, -1)), 8)],
        [JOINED] + [("concat", (2 + i, 0), {"axis": 3}, 32 + 8 * i) for i in range(MOST_PARTS)],
    ],
)
def test_what_is_no_part_of_images(nodes):
    assert find_parts(work(*nodes)) is None


def test_no_parts_of_a_lone_op():
    assert find_parts(lone("relu", (1, 5, 6, 8))) is None


@pytest.mark.parametrize(
    "parts",
    [
        (ChannelSlice(8, 0, 8),),
        (ChannelSlice(8, 1, 8), ChannelSlice(8, 0, 8)),
        (ChannelSlice(16, -1, 16),),
    ],
)
def test_parts_that_are_not_all_channels_are_refused(parts):
    for make in (
        lambda: DirectConv(1, AXIS, AXIS, 16, 16, parts=parts),
        lambda: Winograd(1, AXIS, AXIS, 16, 16, parts=parts),
        lambda: Geometry(1, AXIS, AXIS, 16, parts=parts),
    ):
        with pytest.raises(PycError, match="parts that are all channels"):
            make()


def test_groups_and_planes_have_no_parts():
    whole = (ChannelSlice(16, 0, 16),)
    for groups, planar in ((2, False), (1, True)):
        with pytest.raises(PycError, match="NHWC images without groups"):
            DirectConv(1, AXIS, AXIS, 16, 16, groups, planar=planar, parts=whole)


STEM, SQUEEZE, POINT, SPREAD = (
    weights(16, 3, 3, 3),
    weights(24, 16, 1, 1),
    weights(32, 64, 1, 1),
    weights(40, 16, 3, 3),
)
CLOSE, DEEP, SOME, GROUPED = (
    weights(16, 64, 3, 3),
    weights(64, 1, 3, 3),
    weights(8, 24, 1, 1),
    weights(8, 16, 3, 3),
)


def branches(x):
    """Two branches side by side (SqueezeNet, Inception)."""
    return np.concatenate([nn.relu(nn.conv2d(x, SQUEEZE)), nn.conv2d(x, SPREAD, pads=1)], 1)


def network(x):
    """First a concatenation that windows alone read, then one that others need or extend too."""
    x = nn.relu(nn.conv2d(x, STEM, strides=(2, 2), pads=1))
    both = branches(x)
    pooled = nn.max_pool2d(both, kernel=(3, 3), strides=(2, 2))
    deep = nn.conv2d(both, DEEP, pads=1, groups=64)
    close = nn.conv2d(both, CLOSE, pads=1)
    some = nn.conv2d(both[:, 20:44], SOME)
    other = branches(nn.relu(x + 1.0))
    more = np.concatenate([other, close], 1)
    kept = nn.relu(other) * 2.0
    grouped = nn.conv2d(kept[:, :32], GROUPED, pads=1, groups=2)
    return nn.conv2d(pooled, POINT), nn.conv2d(deep, POINT), some, nn.conv2d(more, LAST), grouped


LAST = weights(8, 80, 1, 1)
IMAGES = RANDOM.normal(size=(3, 3, 20, 24)).astype(np.float32)


@pytest.fixture(scope="module")
def wanted():
    any_target()
    return compile(network, [IMAGES], kernels="iree", device=Device("local-sync"))(IMAGES)


def stored(program):
    """Results of dispatches without a window that join or take channels."""
    groups = groups_of(program.artifact.decisions)
    known = [k for k in recorded(report_of(program.artifact)) if not k.is_command]
    reported = (op for k in known for op in ops_behind(k.sources, groups))
    return sorted(t for t in reported if ("concat" in t or "slice" in t) and "2d" not in t)


@pytest.mark.parametrize("batch", [3, "n"])
@pytest.mark.full
def test_only_what_others_read_is_stored(wanted, batch):
    dims = [spec("f32", (batch, 3, 20, 24))]
    program = compile(network, dims, device=Device("local-sync"))
    assert stored(program) == ["concat+relu+mul", "slice"]
    for n in (3, 1) if batch == "n" else (3,):
        for got, want in zip(program(IMAGES[:n]), wanted, strict=True):
            assert np.abs(np.asarray(got) - np.asarray(want)[:n]).max() < 1e-5
