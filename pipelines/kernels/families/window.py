"""Windows that slide over NHWC images: which taps meet the image where, and the images themselves.

A padded border is never stored: a tap that falls outside adds nothing. Along the width that is
known while the kernel is built (`ConvAxis.segments`), along the height, and where the width is not
known, while it runs (`taps_at`, `OpenRow`).

Channels may lie in several tensors, or in some of the channels of a larger one: a window that reads
a concatenation of channels reads its parts, one that reads a slice of channels reads the tensor
that the slice is of; neither is ever stored. `find` gives the window that a group begins with, from
`Work` to images, axes and feeds. A group may begin with the transpose that makes NHWC of a
network's NCHW input, which the kernel then reads as it lies, or with concatenations and slices of
channels (`find_parts`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Self, cast

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ops.movement import END, START, python_slice
from pyc_mlir.dialects.types import Shape
from pyc_mlir.pipelines.kernels.knobs import KernelKnobs, Sized, known
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand, WindowCount
from pyc_mlir.pipelines.kernels.lang.language import Memory
from pyc_mlir.pipelines.kernels.lang.values import Condition, Index, least
from pyc_mlir.pipelines.kernels.match import Feed
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.pipelines.target.work import Work, WorkOp, float_type

# The code of a kernel grows with them.
MOST_PARTS = 8
_TO_NHWC = (0, 2, 3, 1)
# Names of sizes that are known at run time only.
_SIDES, _POSITIONS, _PIXELS = ("high", "wide"), "positions", "pixels"


@dataclass(frozen=True)
class ConvAxis(Sized):
    """A window along one axis of an image.

    `size` positions, padded by `low` and `high`, are met by `kernel` taps that are `dilation`
    apart; the window moves by `stride`. With a `name` the size is known at run time only, and
    `size` is what costs and shares assume.
    """

    size: int
    kernel: int = 1
    stride: int = 1
    low: int = 0
    high: int = 0
    dilation: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for a window that does not fit the image once."""
        least_ones = (self.size, self.kernel, self.stride, self.dilation)
        if min(least_ones) < 1 or min(self.low, self.high) < 0 or self.outputs < 1:
            expected = "sizes of at least 1, pads of at least 0, a window that fits"
            raise PycError(ReasonCode.BAD_ARGUMENT, f"window: expected {expected}, got {self}")

    @property
    def dim(self) -> Dim:
        """The size as a kernel's dimension."""
        return self.name or self.size

    @property
    def output_dim(self) -> Dim:
        """The number of outputs as a kernel's dimension."""
        if not self.name:
            return self.outputs
        return self.name if (self.stride, self.outputs) == (1, self.size) else f"{self.name}_out"

    @property
    def window_counts(self) -> tuple[WindowCount, ...]:
        """The number of outputs, where it follows from a size that is known at run time only."""
        if self.output_dim in (self.name, self.outputs):
            return ()
        reach = self.reach - self.low - self.high
        return (WindowCount(str(self.output_dim), self.name, reach, self.stride),)

    @property
    def reach(self) -> int:
        """The positions from the first tap to the last one."""
        return self.dilation * (self.kernel - 1) + 1

    def at(self, sizes: Mapping[str, int]) -> Self:
        """Return the axis with its size known."""
        return replace(self, size=sizes[self.name], name="") if self.name else self

    @property
    def outputs(self) -> int:
        """The number of positions that the window takes."""
        return (self.size + self.low + self.high - self.reach) // self.stride + 1

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
        last = (self.size + self.low - self.reach) // self.stride
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

    @property
    def number(self) -> Index:
        """How many taps there are."""
        return Index.of(len(self.taps))


@dataclass(frozen=True)
class MetTaps:
    """The taps of one output, from the first to before the last; as `Segment`."""

    taps: tuple[Index, Index]
    outputs: range = range(1)

    @property
    def number(self) -> Index:
        """How many taps there are."""
        return self.taps[1] - self.taps[0]


@dataclass(frozen=True)
class TileRun:
    """`count` neighbouring tiles of `width` outputs, the first at `start`."""

    start: int
    width: int
    count: int
    segments: tuple[Segment | MetTaps, ...]


def taps_at(axis: ConvAxis, output: Index, size: Index) -> tuple[Index, Index]:
    """Return the taps, first to before the last, that meet an image of `size` at an output."""
    at = output * axis.stride
    low, high = Index.of(0), Index.of(axis.kernel)
    if axis.low:
        low = (axis.low - least(at, axis.low)).ceildiv(axis.dilation)
    if axis.high if axis.name else axis.source(axis.outputs - 1, axis.kernel - 1) >= axis.size:
        end = size + axis.low
        high = least((end - least(at, end)).ceildiv(axis.dilation), axis.kernel)
    return least(low, high), high


@dataclass(frozen=True)
class OpenRow:
    """The outputs of a row of unknown length: `count` full tiles from `first` on, and `singles`.

    All taps of the tiles meet the image; what lies before and behind them is taken one by one.
    """

    first: Index
    count: Index
    singles: tuple[tuple[Index, Index], tuple[Index, Index]]

    @staticmethod
    def of(axis: ConvAxis, width: int, size: Index, outputs: Index) -> "OpenRow":
        """Cut the outputs of an image's row of `size` positions into tiles of `width`."""
        padded = size + axis.low
        inside = (padded - least(padded, axis.reach - 1)).ceildiv(axis.stride)
        end = least(inside, outputs)
        first = least(-(-axis.low // axis.stride), end)
        count = (end - first) // width
        behind = first + count * width
        return OpenRow(first, count, ((Index.of(0), first), (behind, outputs)))


@dataclass(frozen=True)
class Border:
    """A position along an axis: as it is, cut to the image, and whether it lies on the image."""

    plain: Index
    clamped: Index
    inside: Condition


def border(axis: ConvAxis, size: Index, start: Index, offset: int) -> Border:
    """Return the position `offset` behind the start of a window of stride 1 for output `start`."""
    at = start + offset
    clamped = least(at - least(at, axis.low), size - 1)
    inside = at < size + axis.low
    if axis.low:
        inside = inside & (Index.of(axis.low - 1) < at)
    return Border(at - axis.low, clamped, inside)


@dataclass(frozen=True)
class ChannelSlice:
    """`width` channels of a tensor that has `pitch` of them, from `first` on."""

    pitch: int
    first: int
    width: int


@dataclass(frozen=True)
class Piece:
    """The memory of a part; `start` is the number of its first channel in the images."""

    memory: Memory
    first: int
    start: int
    width: int


class WindowKnobs(KernelKnobs):
    """Knobs of a window over x[images, rows, columns, channels], which may lie in `parts`."""

    images: Dim
    rows: ConvAxis
    columns: ConvAxis
    channels: int
    parts: tuple[ChannelSlice, ...] = ()
    # The pixels are the images, rows and columns of the result.
    merged_dims = ((_PIXELS, 3),)

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of an image of the result; assumed ones where they are not known."""
        return self.rows.outputs, self.columns.outputs

    @property
    def output_dims(self) -> tuple[Dim, Dim, Dim]:
        """Images, rows and columns of the result, a name where one is not known."""
        return self.images, self.rows.output_dim, self.columns.output_dim

    @property
    def taps(self) -> int:
        """Positions of the window."""
        return self.rows.kernel * self.columns.kernel

    @property
    def pixels(self) -> int:
        """Positions of the result, in all images."""
        return known(self.images) * self.outputs[0] * self.outputs[1]

    @property
    def matrix_rows(self) -> Dim:
        """The rows of an epilogue's matrix: the positions of the result."""
        sizes = [d for d in self.output_dims if isinstance(d, int)]
        return math.prod(sizes) if len(sizes) == 3 else _PIXELS

    @property
    def counted(self) -> Self:
        """The same of whole images: of parts the channels count that are read."""
        return replace(cast(Any, self), parts=()) if self.parts else self

    @property
    def pitches(self) -> list[int]:
        """The channels of each tensor that the images lie in."""
        return [part.pitch for part in self.parts] or [self.channels]

    @property
    def sources(self) -> list[Operand]:
        """The operand x, or x0 and so on for parts."""
        names = [f"x{i}" for i in range(len(self.parts))] or ["x"]
        image = (self.images, self.rows.dim, self.columns.dim)
        pairs = zip(names, self.pitches, strict=True)
        return [Operand(name, (*image, pitch)) for name, pitch in pairs]

    def pieces(self, memory: Mapping[str, Memory]) -> tuple[Piece, ...]:
        """Return the parts in order, under the memory of `sources`."""
        if not self.parts:
            return (Piece(memory["x"], 0, 0, self.channels),)
        starts = accumulate((p.width for p in self.parts), initial=0)
        return tuple(
            Piece(memory[f"x{i}"], part.first, start, part.width)
            for i, (part, start) in enumerate(zip(self.parts, starts, strict=False))
        )

    def row_of(self, number: Index, high: Index | int) -> tuple[Index, Index]:
        """Return the image and the row in it of a row of all images that are so high."""
        return (Index.of(0), number) if self.images == 1 else (number // high, number % high)

    def _window_counts(self) -> tuple[WindowCount, ...]:
        return (*self.rows.window_counts, *self.columns.window_counts)

    def _misfit(self) -> str:
        inside = all(p.width > 0 and 0 <= p.first <= p.pitch - p.width for p in self.parts)
        whole = not self.parts or sum(p.width for p in self.parts) == self.channels
        return "" if inside and whole else "parts that are all channels"


@dataclass(frozen=True)
class MatchedSources:
    """The parts of the value that the first `covers` ops make, and the inputs that they are of."""

    covers: int
    values: tuple[int, ...]
    parts: tuple[ChannelSlice, ...]


def find_parts(work: Work) -> MatchedSources | None:
    """Find the concatenations and slices of channels that a group begins with; None without any.

    Only the op behind them reads their result, and nothing else reads what they make in between.
    """
    held: dict[int, list[tuple[int, ChannelSlice]]] = {}
    covers = 0
    for node in work.nodes[:-1]:
        made = _parts_of(work, node, held)
        if made is None:
            break
        held[work.number_of(covers)] = made
        covers += 1
    own = work.number_of(covers - 1)
    later = (v for n in work.nodes[covers + 1 :] for v in n.operands)
    if not covers or not work.closed(covers) or own in later:
        return None
    values, parts = zip(*held[own], strict=True)
    return MatchedSources(covers, values, parts) if len(parts) <= MOST_PARTS else None


def _parts_of(
    work: Work, node: WorkOp, held: dict[int, list[tuple[int, ChannelSlice]]]
) -> list[tuple[int, ChannelSlice]] | None:
    """Return the parts of an op's result; None for an op that does more than to take channels."""
    shapes = [work.type(v).shape for v in node.operands]
    if node.type.rank != 4 or not takes_channels(node.name, node.params, shapes, node.type.shape):
        return None
    found: list[tuple[int, ChannelSlice]] = []
    for value, (*_, channels) in zip(node.operands, shapes, strict=True):
        assert channels is not None
        found += held.get(value, [(value, ChannelSlice(channels, 0, channels))])
    return found if node.name == "concat" else _taken(node, found)


def takes_channels(
    name: str, params: Mapping[str, Any], shapes: Sequence[Shape], result: Shape
) -> bool:
    """Return whether an op joins images [n, h, w, c] along c, or takes neighbouring channels."""
    if name not in ("concat", "slice") or len(result) != 4 or not result[3]:
        return False
    if any(s[:3] != result[:3] or not s[3] for s in shapes):
        return False
    if name == "concat":
        return params["axis"] % 4 == 3
    *sides, (_, _, step) = zip(*(params[n] for n in ("starts", "stops", "steps")), strict=True)
    # Sizes that are known are the same behind the slice: with step 1 it then takes all.
    whole = (
        along == 1 and (size is not None or (start in (0, START) and stop == END))
        for (start, stop, along), size in zip(sides, result, strict=False)
    )
    return step == 1 and all(whole)


def _taken(node: WorkOp, parts: list[tuple[int, ChannelSlice]]) -> list[tuple[int, ChannelSlice]]:
    """Return the parts that a slice of channels takes."""
    bounds = python_slice(*(node.params[n][3] for n in ("starts", "stops", "steps")))
    taken = range(sum(p.width for _, p in parts))[bounds]
    found, start = [], 0
    for value, part in parts:
        low, high = max(taken.start - start, 0), min(taken.stop - start, part.width)
        if low < high:
            found.append((value, ChannelSlice(part.pitch, part.first + low, high - low)))
        start += part.width
    return found


@dataclass(frozen=True)
class Images:
    """A window on NHWC images, the first `covers` ops of a group; x is NCHW if `planar`.

    `weights` is the value of a convolution's constant weights [rows, columns, channels, filters];
    `result` the shape of what the window makes. `feeds` are the images, or the tensors that
    `parts` are of.
    """

    images: Dim
    rows: ConvAxis
    columns: ConvAxis
    channels: int
    filters: int
    result: Shape
    covers: int
    feeds: tuple[Feed, ...]
    planar: bool = False
    groups: int = 1
    weights: int | None = None
    parts: tuple[ChannelSlice, ...] = ()
    dtype: str = "f32"

    @property
    def is_flat(self) -> bool:
        """True for a window of one position that takes every position of the image."""
        return all(a == ConvAxis(a.size, name=a.name) for a in (self.rows, self.columns))

    @property
    def is_static(self) -> bool:
        """True where the size of the images is known."""
        return not (self.rows.name or self.columns.name)

    @property
    def flat(self) -> "Images":
        """The same with all positions in one row, of all images where a kernel can count them."""
        positions = self.rows.size * self.columns.size
        if not self.is_static:
            columns = ConvAxis(positions, name=_POSITIONS)
            images = self.images if self.planar else 1
            return self._in_one_row(images, columns, (1, 2, 2) if self.planar else (0, 0, 3))
        if self.planar or isinstance(self.images, str):
            cuts = (1, 2, 2) if self.planar else (1, 1, 3)
            return self._in_one_row(self.images, ConvAxis(positions), cuts)
        return self._in_one_row(1, ConvAxis(self.images * positions), (0, 0, 3))

    def _in_one_row(self, images: Dim, columns: ConvAxis, cuts: tuple[int, ...]) -> "Images":
        feeds = tuple(replace(feed, cuts=cuts) for feed in self.feeds)
        return replace(self, images=images, rows=ConvAxis(1), columns=columns, feeds=feeds)


def find(work: Work, *names: str) -> Images | None:
    """Find the window op of floats that a group begins with, one of `names`; None without a kernel.

    Batches and the sides of images may be dynamic.
    """
    planar = "conv2d" in names and _is_planar(work)
    joined = find_parts(work)
    before = joined.covers if joined else int(planar)
    node = work.nodes[before]
    dtype = float_type(work, node.operands)
    if node.name not in names or node.params["layout"] != "NHWC" or not dtype:
        return None
    if before and node.operands[0] != work.number_of(before - 1):
        return None
    sources = work.nodes[0].operands[:1] if planar else node.operands[:1]
    images, *sides, channels = work.type(node.operands[0]).shape
    kernel = node.params.get("kernel") or work.type(node.operands[1]).shape[:2]
    axes = None if images == 0 else axes_of(node.params, sides, kernel)
    if axes is None:
        return None
    rows, columns = axes
    result = node.type.shape
    filters = result[3]
    if not filters or not channels:
        return None
    found = Images(
        "n" if images is None else images, rows, columns, channels, filters, result, before + 1,
        tuple(Feed(v, (1, 2, 3)) for v in (joined.values if joined else sources)), planar,
        parts=joined.parts if joined else (), dtype=dtype,
    )  # fmt: skip
    if node.name != "conv2d":
        return found
    weights = node.operands[1]
    # Kernels leave out padding, where an infinite weight would make NaN.
    if not work.is_constant(weights) or not math.isfinite(work.inputs[weights].magnitude):
        return None
    return replace(found, groups=node.params["groups"], weights=weights)


def axes_of(
    params: Mapping[str, Any],
    sides: Sequence[int | None],
    kernel: Sequence[int | None],
) -> tuple[ConvAxis, ConvAxis] | None:
    """Return the axes of a window over images with these sides; None where there is no kernel."""
    if None in kernel:
        return None
    pads, dilations, made = params["pads"], params.get("dilations", (1, 1)), []
    for axis, (side, taps) in enumerate(zip(sides, kernel, strict=True)):
        window = (taps or 0, params["strides"][axis], pads[axis], pads[axis + 2], dilations[axis])
        size, name = (NOMINAL_DIMENSION, _SIDES[axis]) if side is None else (side, "")
        try:
            made.append(ConvAxis(size, *window, name))
        except PycError:
            return None
    return made[0], made[1]


def _is_planar(work: Work) -> bool:
    """Return whether the group begins with a transpose to NHWC that only the convolution reads."""
    first = work.nodes[0]
    if first.name != "transpose" or tuple(first.params["permutation"]) != _TO_NHWC:
        return False
    own = work.number_of(0)
    return (
        len(work.nodes) > 1
        and work.nodes[1].operands[0] == own
        and own not in (o for n in work.nodes[2:] for o in n.operands)
    )
