"""The kernel family ``int8_pool``: the largest byte of each window of an image, NHWC.

Vectors are of channels, a byte in each lane. A tap beyond the image takes the nearest place on it,
which the window has too: the maximum stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.kernels.families.conv.window import (
    PIXELS_OF_RESULT,
    ConvAxis,
)
from pyc_mlir.pipelines.kernels.families.int8.family import images_of_window
from pyc_mlir.pipelines.kernels.families.int8.narrow import BOUNDS
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import Index, Mask, arith, least, vector
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow, refuse_target
from pyc_mlir.pipelines.kernels.shared.grid import cores_for, known, share
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

# Bytes in a lane of f32, which costs count.
_IN_A_LANE = 4


@dataclass(frozen=True)
class BytePool:
    """The knobs of y[images, rows, columns, channels] = the largest byte of each window of x.

    `dtype` is ``i8`` or ``ui8``; `workgroups` share the rows of all images.
    """

    images: Dim
    rows: ConvAxis
    columns: ConvAxis
    channels: int
    dtype: str = "ui8"
    workgroups: int = 1

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        if self.dtype not in BOUNDS or min(self.channels, self.workgroups) < 1:
            raise no_kernel("int8_pool", "bytes, channels and workgroups of at least 1", self)
        if not all(_covers(axis) for axis in (self.rows, self.columns)):
            raise no_kernel(
                "int8_pool", "windows without gaps that meet an image of known size", self
            )

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x, then y."""
        images, channels = self.images, self.channels
        operands = (
            Operand("x", (images, self.rows.size, self.columns.size, channels), dtype=self.dtype),
            Operand(
                "y", (images, self.rows.outputs, self.columns.outputs, channels), "out", self.dtype
            ),
        )
        return Kernel(
            name, operands, lambda size: (self.workgroups,), self._body, merged=PIXELS_OF_RESULT
        )

    def _body(self, k: Build, x: Memory, y: Memory) -> None:
        high = self.rows.outputs
        first, end = share(k, 0, self.workgroups, k.size(self.images) * high)
        with k.range(first, end) as number, k.range(self.columns.outputs) as column:
            image, row = number // high, number % high
            down = [_clamped(self.rows, row, tap) for tap in range(self.rows.kernel)]
            along = [_clamped(self.columns, column, tap) for tap in range(self.columns.kernel)]
            places = [(image, y_, x_) for y_ in down for x_ in along]

            def store(lanes: Lanes, image: Index = image, row: Index = row) -> None:
                best = self._largest(k, x, places, lanes)
                y.store_as(best, image, row, column, lanes, mask=lanes.mask)

            bytes_ = k.lanes * _IN_A_LANE
            whole = self.channels // bytes_ * bytes_
            with k.range(0, whole, bytes_) as channel:
                store(Lanes(channel))
            if left := self.channels - whole:
                kind = ir.VectorType.get([bytes_], ir.IntegerType.get_signless(1))
                store(Lanes(Index.of(whole), Mask(vector.constant_mask(kind, [left]))))

    def _largest(
        self, k: Build, x: Memory, places: list[tuple[Index, Index, Index]], lanes: Lanes
    ) -> Any:
        """Return the largest bytes under the taps, an MLIR vector."""
        kind = ir.VectorType.get([k.lanes * _IN_A_LANE], ir.IntegerType.get_signless(8))
        larger = arith.maxsi if self.dtype == "i8" else arith.maxui
        best = None
        for place in places:
            own = x.load_as(kind, *place, lanes)
            best = own if best is None else larger(best, own)
        return best


def _covers(axis: ConvAxis) -> bool:
    """Return whether each window of a known axis is without gaps and meets the image."""
    if axis.name or axis.dilation != 1:
        return False
    ends = (0, axis.outputs - 1)
    return all(any(axis.meets(o, tap) for tap in range(axis.kernel)) for o in ends)


def _clamped(axis: ConvAxis, output: Index, tap: int) -> Index:
    """Return the place under a tap, the nearest one of the image where it is beyond."""
    at = output * axis.stride + tap
    return least(at - least(at, axis.low), axis.size - 1)


refusal = refuse_target


def cost(knobs: BytePool, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count each tensor once across memory, and a maximum a tap."""
    images = knobs.images if isinstance(knobs.images, int) else sizes[knobs.images]
    outputs = images * knobs.rows.outputs * knobs.columns.outputs * knobs.channels
    taps = knobs.rows.kernel * knobs.columns.kernel
    read = images * knobs.rows.size * knobs.columns.size * knobs.channels
    return CostModel(target).kernel("pool", float(taps * outputs) / _IN_A_LANE, read + outputs)


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Match a pooling by maxima of NHWC images of bytes."""
    node = work.nodes[0]
    names = {DTYPES[n]: n for n in BOUNDS}
    if node.name != "max_pool2d" or refuse_narrow(target) or node.type.dtype not in names:
        return []
    shape = work.type(node.operands[0]).shape
    found = images_of_window(shape, node.params, node.params["kernel"])
    if found is None or shape[3] is None:
        return []
    images, (rows, columns) = found
    if not _covers(rows) or not _covers(columns):
        return []
    knobs = BytePool(images, rows, columns, shape[3], names[node.type.dtype])
    count = known(images) * rows.outputs * columns.outputs * shape[3]
    taps = rows.kernel * columns.kernel / _IN_A_LANE
    knobs = replace(knobs, workgroups=cores_for(target, taps * count, float(count)))
    feeds = (Feed(node.operands[0], (1, 2, 3)),)
    return [KernelOffer(knobs, 1, feeds, cost(knobs, target, {"n": NOMINAL_DIMENSION}))]


FAMILY = Family("int8_pool", BytePool, refusal, cost, match)
