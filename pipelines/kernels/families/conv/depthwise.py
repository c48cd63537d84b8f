"""The kernel family ``depthwise``: a convolution of each channel with its own window, NHWC.

See `channelwise.py` for the loops.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.conv.channelwise import WEIGHTED, Channelwise, Geometry
from pyc_mlir.pipelines.kernels.families.conv.images import find
from pyc_mlir.pipelines.kernels.families.conv.sources import pieces
from pyc_mlir.pipelines.kernels.families.conv.window import PIXELS_OF_RESULT
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, Operand, in_type
from pyc_mlir.pipelines.kernels.lang.language import HALVES, Build, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import (
    NOTHING,
    InKernel,
    Pointwise,
)
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, longest
from pyc_mlir.pipelines.kernels.registry import Family
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


FAMILY = Family("depthwise", Depthwise, refusal, cost, match, space)
