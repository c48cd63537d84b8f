"""The kernel family ``winograd``: 3x3 convolutions of stride 1 by minimal filtering, NHWC.

Prices, checks and offers of what `filtering.py` builds.
"""

from collections.abc import Mapping
from dataclasses import replace

from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.conv.filtering import Winograd
from pyc_mlir.pipelines.kernels.families.conv.images import find
from pyc_mlir.pipelines.kernels.families.conv.toom_cook import (
    SIZES,
    TAPS,
)
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, longest
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.grid import known
from pyc_mlir.pipelines.kernels.shared.tile import refuse_tile
from pyc_mlir.pipelines.kernels.variants import HEIGHTS, PANELS, UNROLLS, knob_space, shares
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work


def refusal(knobs: Winograd, target: Target) -> str:
    """Refuse a tile whose sums, row of weights and number of x do not fit the registers."""
    if reason := refuse_narrow(target):
        return reason
    return refuse_tile("winograd", knobs.height, knobs.panel, target)


def cost(knobs: Winograd, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Add the transforms to the products or the weights, whichever takes longer.

    The transformed weights are 16/9 or 4 times those of the model: all layers' together do not stay
    in a cache, so that they count as read from memory.
    """
    images = knobs.images if isinstance(knobs.images, int) else sizes[knobs.images]
    pixels = images * knobs.outputs[0] * knobs.outputs[1]
    tiles = images * knobs.tiles[0] * knobs.tiles[1]
    flops = 2.0 * tiles * knobs.positions * knobs.channels * knobs.filters
    flops += pixels * knobs.filters * knobs.epilogue.flops
    weights = knobs.panels.size
    read = images * knobs.rows.size * knobs.columns.size * knobs.channels
    traffic = 4 * (read + weights + pixels * knobs.filters)
    traffic += knobs.epilogue.read_bytes(pixels, knobs.filters)
    model = CostModel(target)
    made = model.kernel("winograd", flops, traffic)
    computed = model.kernel("winograd", flops, 0).seconds
    transforms = 4.0 * tiles * knobs.positions * knobs.side * (knobs.channels + knobs.filters)
    seconds = max(computed, 4 * weights / model.bandwidth)
    seconds += model.kernel("winograd.transform", transforms, 0).seconds
    return replace(made, seconds=seconds, constant_bytes=4 * weights)


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a 3x3 convolution of stride 1 with constant weights, and what the epilogue can do."""
    found = find(work, "conv2d")
    if found is None or found.weights is None or found.planar or found.groups != 1:
        return []
    if found.dtype != "f32":
        return []
    # A transform of larger weights, or of their products, may overflow.
    if work.inputs[found.weights].magnitude > 1e36 or any(
        (a.kernel, a.stride, a.dilation) != (TAPS, 1, 1) for a in (found.rows, found.columns)
    ):
        return []
    covers, program = longest(work, found.covers, MatrixView(found.result, 3))
    offers = []
    for m in SIZES:
        knobs = Winograd.on(
            target, m, found.images, found.rows, found.columns, found.channels, found.filters,
            epilogue=program.program, parts=found.parts,
        )  # fmt: skip
        if not refusal(knobs, target):
            feeds = (*found.feeds, Feed(found.weights, (3,)), *program.feeds)
            price = cost(knobs, target, {"n": NOMINAL_DIMENSION})
            offers.append(KernelOffer(knobs, covers, feeds, price, indirect=True))
    return offers


_GROUPS = (1, 2, 4, 8)


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Register tiles, blocks of no more memory than the offer's but for one tile, and shares."""
    knobs: Winograd = offer.knobs
    tiles = known(knobs.images) * knobs.tiles[0] * knobs.tiles[1]
    most = max(knobs.block, max(HEIGHTS))
    blocks = {height * groups for height in HEIGHTS for groups in _GROUPS}
    return knob_space(
        knobs,
        {
            "height": HEIGHTS,
            "block": [b for b in blocks if b <= most],
            "panel": PANELS,
            "unroll": UNROLLS,
            "workgroups": shares(target, tiles),
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("winograd", Winograd, refusal, cost, match, space)
