"""The kernel family ``winograd``: 3x3 convolutions of stride 1 by minimal filtering, NHWC.

Prices, checks and offers of what `filtering.py` builds.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.conv.filtering import Winograd
from pyc_mlir.pipelines.kernels.families.conv.images import find
from pyc_mlir.pipelines.kernels.families.conv.sources import (
    channels_of,
    joined,
    random_parts,
)
from pyc_mlir.pipelines.kernels.families.conv.toom_cook import (
    SIZES,
    TAPS,
    largest_terms,
)
from pyc_mlir.pipelines.kernels.families.conv.window import (
    ConvAxis,
    under_taps,
)
from pyc_mlir.pipelines.kernels.families.gemm import contents, random_epilogue
from pyc_mlir.pipelines.kernels.lang.pointwise import evaluate
from pyc_mlir.pipelines.kernels.lang.values import ROUNDING
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, longest
from pyc_mlir.pipelines.kernels.registry import Arrays, Family, refuse_narrow
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


def reference(knobs: Winograd, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact result in f64, and the error that a kernel may have, element by element.

    The bound follows each number through the three transforms and the sums over channels.
    """
    given = [np.asarray(a, np.float64) for a in arrays]
    count = max(1, len(knobs.parts))
    x, (packed, *reads) = joined(given[:count], knobs.parts), given[count:]
    w = knobs.layout.unpack(packed)
    value: Any = 0.0
    for tap, met in under_taps(x, knobs.rows, knobs.columns, 0.0):
        value = value + np.einsum("nhwc,cf->nhwf", met, w[tap])
    sizes = largest_terms(knobs.m, knobs.rows, knobs.columns, np.abs(x), np.abs(w))
    matrix = value.reshape(-1, knobs.filters)
    steps = knobs.channels + 4 * knobs.side + 8
    error = steps * ROUNDING * sizes.reshape(matrix.shape) + 2.0**-100
    exact, bound = evaluate(knobs.epilogue, matrix, reads, error)
    return exact.reshape(value.shape), bound.reshape(value.shape)


_CHANNELS = (1, 3, 8, 16, 17, 40)
_FILTERS = (1, 8, 16, 17, 32, 48, 65)


def sample(random: Random, target: Target) -> tuple[Winograd, list[Arrays]]:
    """Draw knobs, half of the time those that ship for the target, and three calls."""
    rows, columns = (_axis(random) for _ in range(2))
    sizes = (random.choice(_CHANNELS), random.choice(_FILTERS))
    others: dict[str, Any] = {"epilogue": random_epilogue(random)}
    others["parts"] = random_parts(random, sizes[0])
    if random.random() < 0.5:
        height = random.choice((1, 4, 6))
        others |= {"height": height, "block": height * random.choice((1, 3)), "panel": 16}
        others |= {"unroll": random.choice((1, 2)), "workgroups": random.choice((1, 2, 3))}
    images = random.choice((1, 2, "n"))
    knobs = Winograd.on(target, random.choice(SIZES), images, rows, columns, *sizes, **others)
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _axis(random: Random) -> ConvAxis:
    low, high = random.choice(((0, 0), (1, 1), (1, 1), (0, 1), (2, 2)))
    size = max(1, TAPS - low - high) + random.choice((0, 1, 2, 5, 8, 13))
    return ConvAxis(size, TAPS, 1, low, high)


def _arrays(knobs: Winograd, random: Random) -> Arrays:
    images = random.choice((1, 2, 3)) if isinstance(knobs.images, str) else knobs.images
    values = np.random.default_rng(random.randrange(1 << 30))
    image = (images, knobs.rows.size, knobs.columns.size)
    weights = values.normal(size=(TAPS * TAPS * knobs.channels, knobs.filters))
    pixels = images * knobs.outputs[0] * knobs.outputs[1]
    pitches = channels_of(knobs.channels, knobs.parts)
    arrays = [values.normal(size=(*image, pitch)) for pitch in pitches]
    arrays.append(knobs.layout.pack(weights))
    arrays += contents(knobs.epilogue, pixels, knobs.filters, values)
    return [a.astype(np.float32) for a in arrays]


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


FAMILY = Family("winograd", Winograd, refusal, cost, reference, sample, match, space)
