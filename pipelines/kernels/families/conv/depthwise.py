"""The kernel family ``depthwise``: a convolution of each channel with its own window, NHWC.

See `channelwise.py` for the loops.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.conv.channelwise import WEIGHTED, Channelwise, Geometry
from pyc_mlir.pipelines.kernels.families.conv.images import find
from pyc_mlir.pipelines.kernels.families.conv.sources import pieces
from pyc_mlir.pipelines.kernels.families.conv.window import PIXELS_OF_RESULT, under_taps
from pyc_mlir.pipelines.kernels.families.gemm import contents, random_epilogue, slack
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, Operand, in_type
from pyc_mlir.pipelines.kernels.lang.language import HALVES, Build, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import (
    NOTHING,
    InKernel,
    Pointwise,
    evaluate,
    in_halves,
)
from pyc_mlir.pipelines.kernels.lang.pointwise_ops import stored
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, longest
from pyc_mlir.pipelines.kernels.registry import Arrays, Family
from pyc_mlir.pipelines.kernels.shared.epilogues import layer
from pyc_mlir.pipelines.kernels.variants import knob_space
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work


@dataclass(frozen=True)
class Depthwise:
    """The knobs of y[images, rows, columns, channels] = epilogue(depthwise(x, w[taps, channels])).

    The epilogue's matrix is [images rows columns, channels].
    """

    images: Geometry
    epilogue: Pointwise = NOTHING
    dtype: str = "f32"

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x, w, the epilogue's, then y."""
        images = self.images
        w = Operand("w", (images.taps, images.channels))
        reads = self.epilogue.operands("e", images.matrix_rows, images.channels)
        operands = (*images.sources, w, *reads, images.result)
        return Kernel(
            name,
            in_type(operands, self.dtype),
            lambda size: (images.workgroups,),
            self._body,
            merged=PIXELS_OF_RESULT,
        )

    def _body(self, k: Build, *memory: Memory) -> None:
        x = pieces(memory, self.images.channels, self.images.parts)
        w, *reads, y = memory[len(x) :]
        epilogue = InKernel(k, self.epilogue, tuple(reads))
        Channelwise(k, self.images, WEIGHTED, x, w, y, epilogue).build()


def refusal(knobs: Depthwise, target: Target) -> str:
    """Refuse sums, a row of weights and a number of x that do not fit the registers."""
    return knobs.images.refusal(target)


def cost(knobs: Depthwise, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count each tensor once across memory."""
    images = knobs.images
    pixels = images.pixels(sizes)
    flops = pixels * images.channels * (2.0 * images.taps + knobs.epilogue.flops)
    traffic = images.traffic_bytes(sizes) + 4 * images.taps * images.channels
    traffic += knobs.epilogue.read_bytes(pixels, images.channels)
    traffic //= 2 if knobs.dtype in HALVES else 1
    return CostModel(target).kernel("depthwise", flops, traffic)


def reference(knobs: Depthwise, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact result in f64, and the error that a kernel may have, element by element."""
    images = knobs.images
    x, (w, *reads) = images.given(arrays)
    value: Any = 0.0
    sizes: Any = 0.0
    for tap, met in under_taps(x, images.rows, images.columns, 0.0):
        value, sizes = value + met * w[tap], sizes + np.abs(met) * np.abs(w[tap])
    matrix, shape = value.reshape(-1, images.channels), value.shape
    error = slack(matrix, sizes.reshape(matrix.shape), images.taps)
    exact, bound = evaluate(knobs.epilogue, matrix, reads, error)
    if knobs.dtype in HALVES:
        exact, bound = stored(knobs.dtype, exact, bound)
    return exact.reshape(shape), bound.reshape(shape)


def sample(random: Random, target: Target) -> tuple[Depthwise, list[Arrays]]:
    """Draw knobs and three calls."""
    knobs = Depthwise(Geometry.random(random, target), random_epilogue(random))
    if random.random() < 0.4:
        dtype = random.choice(HALVES)
        epilogue = in_halves(layer(bias=random.random() < 0.5, activation="relu"), dtype)
        knobs = Depthwise(knobs.images, epilogue, dtype)
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _arrays(knobs: Depthwise, random: Random) -> Arrays:
    images, values = knobs.images, np.random.default_rng(random.randrange(1 << 30))
    x = images.random_images(random, values)
    pixels = len(x[0]) * images.outputs[0] * images.outputs[1]
    arrays = [*x, values.normal(size=(images.taps, images.channels))]
    arrays += contents(knobs.epilogue, pixels, images.channels, values)
    return [a.astype(DTYPES[knobs.dtype]) for a in arrays]


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a convolution with a group for each channel, with constant weights."""
    found = find(work, "conv2d")
    if found is None or found.weights is None or found.planar:
        return []
    if not found.groups == found.channels == found.filters:
        return []
    covers, program = longest(work, found.covers, MatrixView(found.result, 3))
    geometry = Geometry.on(
        target, found.images, found.rows, found.columns, found.channels, found.parts
    )
    knobs = Depthwise(geometry, program.program, found.dtype)
    if refusal(knobs, target):
        return []
    feeds = (*found.feeds, Feed(found.weights, (3,)), *program.feeds)
    return [KernelOffer(knobs, covers, feeds, cost(knobs, target, {"n": NOMINAL_DIMENSION}))]


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary the outputs of a register tile, and shares of rows."""
    knobs: Depthwise = offer.knobs
    return knob_space(knobs, knobs.images.to_try(target), lambda made: refusal(made, target))


FAMILY = Family("depthwise", Depthwise, refusal, cost, reference, sample, match, space)
