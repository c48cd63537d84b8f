"""Images in parts: concatenations and slices of channels that are never stored."""

import numpy as np
import pytest
from kernel_runs import any_target
from kernel_works import lone

from pyc_mlir import compile, nn, spec
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ops.movement import END, START
from pyc_mlir.dialects.types import tensor
from pyc_mlir.pipelines.kernels.families.conv.channelwise import Geometry
from pyc_mlir.pipelines.kernels.families.conv.direct import DirectConv
from pyc_mlir.pipelines.kernels.families.conv.winograd import Winograd
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
    """What dispatches without a window compute that join or take channels."""
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
