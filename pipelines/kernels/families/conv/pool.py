"""The kernel family ``pool``: the largest number or the mean of each window, NHWC.

See `channelwise.py` for the loops.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES
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
from pyc_mlir.pipelines.kernels.families.conv.window import PIXELS_OF_RESULT, under_taps
from pyc_mlir.pipelines.kernels.families.gemm import contents, random_epilogue, slack
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, in_type
from pyc_mlir.pipelines.kernels.lang.language import HALVES, Build, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import (
    NOTHING,
    InKernel,
    Pointwise,
    evaluate,
    in_halves,
)
from pyc_mlir.pipelines.kernels.lang.pointwise_ops import stored
from pyc_mlir.pipelines.kernels.lang.values import ROUNDING
from pyc_mlir.pipelines.kernels.match.offers import KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, longest
from pyc_mlir.pipelines.kernels.registry import Arrays, Family
from pyc_mlir.pipelines.kernels.shared.epilogues import layer
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


def reference(knobs: Pool, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact result in f64, and the error that a kernel may have, element by element."""
    images = knobs.images
    x, reads = images.given(arrays)
    start = -np.inf if knobs.operation == "max" else 0.0
    views = [met for _, met in under_taps(x, images.rows, images.columns, start)]
    shape = views[0].shape
    error: Any = np.zeros(shape)
    with np.errstate(all="ignore"):
        if knobs.operation == "max":
            value = np.maximum.reduce(views)
        else:
            met = [m for _, m in under_taps(np.ones_like(x), images.rows, images.columns, 0.0)]
            count = np.sum(met, 0) if knobs.operation == "mean" else images.taps
            total, sizes = np.sum(views, 0), np.sum(np.abs(views), 0)
            value = total / count
            error = slack(total, sizes, images.taps) / count + 2 * ROUNDING * np.abs(value)
    matrix = value.reshape(-1, images.channels)
    exact, bound = evaluate(knobs.epilogue, matrix, reads, error.reshape(matrix.shape))
    if knobs.dtype in HALVES:
        exact, bound = stored(knobs.dtype, exact, bound)
    return exact.reshape(shape), bound.reshape(shape)


def sample(random: Random, target: Target) -> tuple[Pool, list[Arrays]]:
    """Draw knobs and three calls."""
    operation = random.choice(OPERATIONS)
    geometry = Geometry.random(random, target, covered=operation != "padded_mean")
    knobs = Pool(operation, geometry, random_epilogue(random))
    if random.random() < 0.4:
        dtype = random.choice(HALVES)
        epilogue = in_halves(layer(bias=random.random() < 0.5, activation="relu"), dtype)
        knobs = Pool(operation, geometry, epilogue, dtype)
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _arrays(knobs: Pool, random: Random) -> Arrays:
    images, values = knobs.images, np.random.default_rng(random.randrange(1 << 30))
    x = images.random_images(random, values)
    pixels = len(x[0]) * images.outputs[0] * images.outputs[1]
    arrays = [*x, *contents(knobs.epilogue, pixels, images.channels, values)]
    return [a.astype(DTYPES[knobs.dtype]) for a in arrays]


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


FAMILY = Family("pool", Pool, refusal, cost, reference, sample, match, space)
