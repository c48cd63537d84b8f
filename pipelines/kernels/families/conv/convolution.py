"""The kernel family ``conv``: y = epilogue(conv2d(x, w)), with constant weights w.

Prices, checks and offers of the direct convolution that `direct.py` builds.
"""

from collections.abc import Mapping
from dataclasses import replace

from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.conv.direct import DirectConv
from pyc_mlir.pipelines.kernels.families.conv.images import find
from pyc_mlir.pipelines.kernels.families.conv.window import (
    ConvAxis,
)
from pyc_mlir.pipelines.kernels.lang.language import HALVES
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, longest
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.grid import known
from pyc_mlir.pipelines.kernels.shared.tile import refuse_tile
from pyc_mlir.pipelines.kernels.variants import HEIGHTS, PANELS, UNROLLS, cuts, knob_space
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work


def _unknown(knobs: DirectConv) -> list[ConvAxis]:
    """Return the axes whose size is known at run time only."""
    return [axis for axis in (knobs.rows, knobs.columns) if axis.name]


def _known(knobs: DirectConv, sizes: Mapping[str, int]) -> DirectConv:
    """Return the knobs with the sizes of images known."""
    rows, columns = (a.of(sizes[a.name]) if a.name else a for a in (knobs.rows, knobs.columns))
    return replace(knobs, rows=rows, columns=columns)


def refusal(knobs: DirectConv, target: Target) -> str:
    """Refuse a tile whose sums, row of weights and number of x do not fit the registers."""
    if reason := refuse_narrow(target):
        return reason
    return refuse_tile("conv", knobs.width, knobs.panel, target)


def cost(knobs: DirectConv, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count each tensor once across memory; the packed weights are constants.

    Lanes that the narrowest panel leaves idle are time, but no operations.
    """
    knobs = _known(knobs, {axis.name: sizes[axis.name] for axis in _unknown(knobs)})
    images = knobs.images if isinstance(knobs.images, int) else sizes[knobs.images]
    pixels = images * knobs.outputs[0] * knobs.outputs[1]
    depth = knobs.weights // knobs.filters
    flops = pixels * knobs.filters * (2.0 * depth + knobs.epilogue.flops)
    weights = knobs.blocks * knobs.panels.size
    read = images * knobs.rows.size * knobs.columns.size * knobs.channels
    traffic = 4 * (read + weights + pixels * knobs.filters)
    traffic += knobs.epilogue.read_bytes(pixels, knobs.filters)
    size = 2 if knobs.dtype in HALVES else 4
    traffic = traffic * size // 4
    made = CostModel(target).kernel("conv", flops, traffic)
    idle = weights / knobs.weights
    seconds = max(made.seconds, idle * CostModel(target).kernel("conv", flops, 0).seconds)
    return replace(made, seconds=seconds, constant_bytes=size * weights)


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a convolution with constant weights and as much as the epilogue can do.

    Groups computed together add products with zeros, which spread infinities.
    """
    found = find(work, "conv2d", dynamic=True)
    if found is None or found.weights is None or (found.parts and found.groups > 1):
        return []
    flat = found.is_flat and found.dtype == "f32"
    if found.is_flat and not flat and found.groups == 1 and not (found.planar or found.parts):
        return []  # a product: `half_gemm`
    seen = found.flat if flat else found
    covers, program = longest(work, found.covers, MatrixView(found.result, 3))
    knobs = DirectConv.on(
        target, seen.images, seen.rows, seen.columns, found.channels, found.filters, found.groups,
        epilogue=program.program, planar=found.planar, parts=found.parts, dtype=found.dtype,
    )  # fmt: skip
    if refusal(knobs, target):
        return []
    apart = [replace(knobs, merged=1)] if knobs.merged > 1 else []
    feeds = (*seen.feeds, Feed(found.weights, (3,)), *program.feeds)
    taken = dict.fromkeys(knobs.kernel("k").sizes, NOMINAL_DIMENSION)
    taken |= {axis.name: axis.size for axis in _unknown(knobs)}
    return [
        KernelOffer(k, covers, feeds, cost(k, target, taken), indirect=k.merged > 1)
        for k in (knobs, *apart)
    ]


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Register tiles, channels of a turn, and shares of rows and panels.

    Merged groups, which add other numbers, are an offer of their own.
    """
    knobs: DirectConv = offer.knobs
    wide = max(HEIGHTS) if knobs.columns.name else knobs.outputs[1]
    rows = known(knobs.images) * knobs.outputs[0]
    panels = knobs.blocks * max(1, knobs.panels.full)
    return knob_space(
        knobs,
        {
            "width": [w for w in HEIGHTS if w <= wide],
            "panel": PANELS,
            "unroll": UNROLLS,
            "workgroups": cuts(target, rows, panels),
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("conv", DirectConv, refusal, cost, match, space)
