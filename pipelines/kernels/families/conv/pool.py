"""The kernel family ``pool``: the largest number or the mean of each window, NHWC.

See `channelwise.py` for the loops.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.conv.channelwise import (
    LARGEST,
    MEAN_OF_MET,
    Channelwise,
    Geometry,
    Rule,
    mean_of,
)
from pyc_mlir.pipelines.kernels.families.conv.images import find
from pyc_mlir.pipelines.kernels.families.conv.sources import pieces
from pyc_mlir.pipelines.kernels.families.conv.window import PIXELS_OF_RESULT
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, in_type
from pyc_mlir.pipelines.kernels.lang.language import HALVES, Build, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import (
    NOTHING,
    InKernel,
    Pointwise,
)
from pyc_mlir.pipelines.kernels.match.offers import KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, longest
from pyc_mlir.pipelines.kernels.registry import Family
from pyc_mlir.pipelines.kernels.variants import knob_space
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

# `mean` divides by the taps that meet the image, `padded_mean` by all of them.
OPERATIONS = ("max", "mean", "padded_mean")


@dataclass(frozen=True)
class Pool:
    """The knobs of y[images, rows, columns, channels] = epilogue(operation of each window of x).

    The epilogue's matrix is [images rows columns, channels].
    """

    operation: str
    images: Geometry
    epilogue: Pointwise = NOTHING
    dtype: str = "f32"

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for an unknown operation."""
        if self.operation not in OPERATIONS:
            expected = f"an operation of {', '.join(OPERATIONS)}"
            raise PycError(
                ReasonCode.BAD_ARGUMENT, f"pool kernel: expected {expected}, got {self.operation!r}"
            )

    @property
    def rule(self) -> Rule:
        """The reduction of the numbers of a window."""
        if self.operation == "max":
            return LARGEST
        return MEAN_OF_MET if self.operation == "mean" else mean_of(self.images.taps)

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x, the epilogue's, then y."""
        images = self.images
        reads = self.epilogue.operands("e", images.matrix_rows, images.channels)
        operands = (*images.sources, *reads, images.result)
        return Kernel(
            name,
            in_type(operands, self.dtype),
            lambda size: (images.workgroups,),
            self._body,
            merged=PIXELS_OF_RESULT,
        )

    def _body(self, k: Build, *memory: Memory) -> None:
        x = pieces(memory, self.images.channels, self.images.parts)
        *reads, y = memory[len(x) :]
        epilogue = InKernel(k, self.epilogue, tuple(reads))
        Channelwise(k, self.images, self.rule, x, None, y, epilogue).build()


def refusal(knobs: Pool, target: Target) -> str:
    """Refuse results and one number of x that do not fit the registers."""
    return knobs.images.refusal(target)


def cost(knobs: Pool, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count each tensor once across memory."""
    images = knobs.images
    pixels = images.pixels(sizes)
    flops = pixels * images.channels * (float(images.taps) + knobs.epilogue.flops)
    traffic = images.traffic_bytes(sizes)
    traffic += knobs.epilogue.read_bytes(pixels, images.channels)
    traffic //= 2 if knobs.dtype in HALVES else 1
    return CostModel(target).kernel("pool", flops, traffic)


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a pooling of f32 and as much of what follows as the epilogue can do."""
    found = find(work, "max_pool2d", "avg_pool2d")
    if found is None:
        return []
    geometry = Geometry.on(
        target, found.images, found.rows, found.columns, found.channels, found.parts
    )
    node = work.nodes[found.covers - 1]
    operation = "max"
    if node.name == "avg_pool2d":
        padded = node.params["count_include_pad"]
        operation = "padded_mean" if padded else "mean"
    if operation != "padded_mean" and not geometry.is_covered:
        return []
    covers, program = longest(work, found.covers, MatrixView(found.result, 3))
    knobs = Pool(operation, geometry, program.program, found.dtype)
    if refusal(knobs, target):
        return []
    feeds = (*found.feeds, *program.feeds)
    return [KernelOffer(knobs, covers, feeds, cost(knobs, target, {"n": NOMINAL_DIMENSION}))]


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary the outputs of a register tile, and shares of rows."""
    knobs: Pool = offer.knobs
    return knob_space(knobs, knobs.images.to_try(target), lambda made: refusal(made, target))


FAMILY = Family("pool", Pool, refusal, cost, match, space)
