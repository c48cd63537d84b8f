"""The kernel family ``conv``: y = epilogue(conv2d(x, w)), with constant weights w.

Prices, checks and offers of the direct convolution that `direct.py` builds.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.conv.direct import DirectConv
from pyc_mlir.pipelines.kernels.families.conv.images import find
from pyc_mlir.pipelines.kernels.families.conv.sources import joined, random_parts
from pyc_mlir.pipelines.kernels.families.conv.window import (
    ConvAxis,
    random_axis,
    under_taps,
)
from pyc_mlir.pipelines.kernels.families.gemm import contents, random_epilogue, slack
from pyc_mlir.pipelines.kernels.lang.language import HALVES
from pyc_mlir.pipelines.kernels.lang.pointwise import evaluate, in_halves
from pyc_mlir.pipelines.kernels.lang.pointwise_ops import stored
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, longest
from pyc_mlir.pipelines.kernels.registry import Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.epilogues import layer
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


def reference(knobs: DirectConv, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact result in f64, and the error that a kernel may have, element by element."""
    given = [np.asarray(a, np.float64) for a in arrays]
    count = max(1, len(knobs.parts))
    x, (packed, *reads) = joined(given[:count], knobs.parts), given[count:]
    x = x.transpose(0, 2, 3, 1) if knobs.planar else x
    knobs = _known(
        knobs, dict(zip((knobs.rows.name, knobs.columns.name), x.shape[1:3], strict=True))
    )
    depth, groups = knobs.channels // knobs.groups, knobs.groups
    w = knobs.layout.unpack(packed).reshape(knobs.taps, depth, groups, -1)
    value: Any = 0.0
    sizes: Any = 0.0
    for tap, met in under_taps(x, knobs.rows, knobs.columns, 0.0):
        each = met.reshape(*met.shape[:3], groups, depth)
        value = value + np.einsum("nhwgd,dgf->nhwgf", each, w[tap])
        sizes = sizes + np.einsum("nhwgd,dgf->nhwgf", np.abs(each), np.abs(w[tap]))
    matrix = value.reshape(-1, knobs.filters)
    error = slack(matrix, sizes.reshape(matrix.shape), knobs.taps * depth)
    exact, bound = evaluate(knobs.epilogue, matrix, reads, error)
    if knobs.dtype in HALVES:
        exact, bound = stored(knobs.dtype, exact, bound)
    shape = (x.shape[0], *knobs.outputs, knobs.filters)
    return exact.reshape(shape), bound.reshape(shape)


_CHANNELS = (1, 2, 3, 4, 5, 8, 13, 16, 33)
_FILTERS = (1, 3, 4, 8, 15, 16, 17, 31, 32, 33, 48, 64, 65, 79)


def sample(random: Random, target: Target) -> tuple[DirectConv, list[Arrays]]:
    """Draw knobs, half of the time those that ship for the target, and three calls."""
    groups = random.choice((1, 1, 1, 2, 3, 8))
    rows, columns = (_any_axis(random, name) for name in ("high", "wide"))
    sizes = (groups * random.choice(_CHANNELS), groups * random.choice(_FILTERS), groups)
    others: dict[str, Any] = {
        "epilogue": random_epilogue(random),
        "planar": random.random() < 0.2,
        "workgroups": random.choice(((1, 1), (2, 1), (1, 2), (3, 2))),
    }
    if groups == 1 and not others["planar"]:
        others["parts"] = random_parts(random, sizes[0])
    if random.random() < 0.5:
        others |= {"width": random.choice((1, 3, 6)), "panel": 16, "unroll": random.choice((1, 2))}
    images = random.choice((1, 2, "n"))
    if random.random() < 0.4:
        dtype = random.choice(HALVES)
        epilogue = in_halves(layer(bias=random.random() < 0.5, activation="relu"), dtype)
        others |= {"dtype": dtype, "epilogue": epilogue}
    knobs = DirectConv.on(target, images, rows, columns, *sizes, **others)
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _any_axis(random: Random, name: str) -> ConvAxis:
    axis = random_axis(random)
    alike = axis.stride == 1 and axis.outputs == axis.size
    return replace(axis, name=name) if alike and random.random() < 0.5 else axis


def _arrays(knobs: DirectConv, random: Random) -> Arrays:
    knobs = _known(knobs, {a.name: random.choice((1, 2, 5, 14, 33)) for a in _unknown(knobs)})
    images = random.choice((1, 2, 3)) if isinstance(knobs.images, str) else knobs.images
    values = np.random.default_rng(random.randrange(1 << 30))
    sources = knobs.kernel("k").operands[: max(1, len(knobs.parts))]
    shapes = [[images, *[d for d in o.shape[1:] if isinstance(d, int)]] for o in sources]
    weights = values.normal(size=(knobs.taps * knobs.channels // knobs.groups, knobs.filters))
    pixels = images * knobs.outputs[0] * knobs.outputs[1]
    arrays = [values.normal(size=shape) for shape in shapes]
    arrays.append(knobs.layout.pack(weights.astype(np.float32)))
    arrays += contents(knobs.epilogue, pixels, knobs.filters, values)
    return [a.astype(DTYPES[knobs.dtype]) for a in arrays]


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


FAMILY = Family("conv", DirectConv, refusal, cost, reference, sample, match, space)
