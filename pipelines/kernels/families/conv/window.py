"""The geometry of a window that slides over an image: which taps meet the image where.

A padded border is never stored: a tap that falls outside adds nothing. Along the width that is
known while the kernel is built (`ConvAxis.segments`), along the height, and where the width is not
known, while it runs (`taps_at`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.lang.carrier import Dim
from pyc_mlir.pipelines.kernels.lang.values import Condition, Index, least


@dataclass(frozen=True)
class ConvAxis:
    """A window along one axis of an image.

    `size` positions, padded by `low` and `high`, are met by `kernel` taps that are `dilation`
    apart; the window moves by `stride`. With a `name` the size is known at run time only: there are
    as many outputs then, and `size` is what costs and shares assume.
    """

    size: int
    kernel: int = 1
    stride: int = 1
    low: int = 0
    high: int = 0
    dilation: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for a window that does not fit the image once.

        Also for an unknown size of which the number of outputs is another one.
        """
        least_ones = (self.size, self.kernel, self.stride, self.dilation)
        if min(least_ones) < 1 or min(self.low, self.high) < 0 or self.outputs < 1:
            expected = "sizes of at least 1, pads of at least 0, a window that fits"
            raise PycError(ReasonCode.BAD_ARGUMENT, f"window: expected {expected}, got {self}")
        if self.name and (self.stride, self.outputs) != (1, self.size):
            expected = "a window of stride 1 with as many outputs for an unknown size"
            raise PycError(ReasonCode.BAD_ARGUMENT, f"window: expected {expected}, got {self}")

    @property
    def dim(self) -> Dim:
        """The size as a kernel's dimension."""
        return self.name or self.size

    @property
    def output_dim(self) -> Dim:
        """The number of outputs as a kernel's dimension."""
        return self.name or self.outputs

    def of(self, size: int) -> "ConvAxis":
        """Return the axis with its size known."""
        return replace(self, size=size, name="")

    @property
    def outputs(self) -> int:
        """The number of positions that the window takes."""
        reach = self.dilation * (self.kernel - 1) + 1
        return (self.size + self.low + self.high - reach) // self.stride + 1

    def source(self, output: int, tap: int) -> int:
        """Return the image's position under a tap; outside of [0, size) it is padding."""
        return output * self.stride + tap * self.dilation - self.low

    def meets(self, output: int, tap: int) -> bool:
        """Return whether the tap falls on the image."""
        return 0 <= self.source(output, tap) < self.size

    @property
    def interior(self) -> range:
        """The outputs all of whose taps fall on the image."""
        first = -(-self.low // self.stride)
        last = (self.size - 1 + self.low - self.dilation * (self.kernel - 1)) // self.stride
        return range(first, max(first, min(last + 1, self.outputs)))

    def segments(self, first: int, count: int) -> list["Segment"]:
        """Cut the taps into runs that meet the image at the same of `count` outputs."""
        found: list[Segment] = []
        for tap in range(self.kernel):
            met = [o for o in range(count) if self.meets(first + o, tap)]
            if not met:
                continue
            outputs = range(met[0], met[-1] + 1)
            last = found[-1] if found else None
            if last and last.outputs == outputs and last.taps.stop == tap:
                found[-1] = Segment(range(last.taps.start, tap + 1), outputs)
            else:
                found.append(Segment(range(tap, tap + 1), outputs))
        return found

    def tiles(self, most: int) -> Iterator["TileRun"]:
        """Yield all outputs in tiles of at most `most`, alike as far as possible, in order.

        Neighbouring tiles of one width whose taps all fall on the image are one run.
        """
        count = -(-self.outputs // most)
        width = -(-self.outputs // count)
        inside = self.interior
        start = 0
        while start < self.outputs:
            size = min(width, self.outputs - start)
            whole = (min(inside.stop, self.outputs) - start) // width if start in inside else 0
            if whole > 0:
                yield TileRun(start, width, whole, (Segment(range(self.kernel), range(width)),))
                start += whole * width
            else:
                yield TileRun(start, size, 1, tuple(self.segments(start, size)))
                start += size


@dataclass(frozen=True)
class Segment:
    """Neighbouring `taps`, and the `outputs` of a tile at which they meet the image."""

    taps: range
    outputs: range


@dataclass(frozen=True)
class TileRun:
    """`count` neighbouring tiles of `width` outputs, the first at `start`."""

    start: int
    width: int
    count: int
    segments: tuple[Segment, ...]


def taps_at(axis: ConvAxis, output: Index, size: Index) -> tuple[Index, Index]:
    """Return the taps, first to before the last, that meet an image of `size` at an output."""
    at = output * axis.stride
    low, high = Index.of(0), Index.of(axis.kernel)
    if axis.low:
        low = (axis.low - least(at, axis.low)).ceildiv(axis.dilation)
    if axis.source(axis.outputs - 1, axis.kernel - 1) >= axis.size:
        end = size + axis.low
        high = least((end - least(at, end)).ceildiv(axis.dilation), axis.kernel)
    return least(low, high), high


@dataclass(frozen=True)
class Border:
    """A position along an axis: as it is, cut to the image, and whether it lies on the image."""

    plain: Index
    clamped: Index
    inside: Condition


def border(axis: ConvAxis, start: Index, offset: int) -> Border:
    """Return the position `offset` behind the start of a window of stride 1 for output `start`."""
    at = start + offset
    clamped = least(at - least(at, axis.low), axis.size - 1)
    inside = at < axis.size + axis.low
    if axis.low:
        inside = inside & (Index.of(axis.low - 1) < at)
    return Border(at - axis.low, clamped, inside)


_PIXELS = "pixels"
# `Kernel.merged`: the pixels are the images, rows and columns of the result.
PIXELS_OF_RESULT = ((_PIXELS, 3),)


def pixels_of(images: Dim, outputs: tuple[Dim, Dim]) -> Dim:
    """Return the positions of the result, an epilogue's rows; a name for unknown ones."""
    known = [d for d in (images, *outputs) if isinstance(d, int)]
    return math.prod(known) if len(known) == 3 else _PIXELS
