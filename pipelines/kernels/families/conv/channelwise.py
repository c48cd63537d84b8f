"""The kernel families of windows that keep channels apart, NHWC: ``depthwise``, ``pool``, of bytes.

A convolution of each channel with its own window, and the largest number or the mean of each
window. Vectors span channels. A register tile is some neighbouring outputs of one row by one
vector; each number of x is loaded once for a row of taps, whatever outputs it belongs to. Borders
are left out tap by tap (`window.py`).

``int8_depthwise`` is the same on bytes that are widened to f32 where they are loaded. Products of
bytes and their sums over a window are whole numbers below 2^24, which f32 holds: the sums are
exact. ``int8_pool`` takes the largest byte, a byte in each lane. A tap beyond the image takes the
nearest place on it there, which the window has too: the maximum stays.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import numpy as np

from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.kernels.families.bytes import RESULTS, bias_of, find_bytes
from pyc_mlir.pipelines.kernels.families.window import (
    ChannelSlice,
    ConvAxis,
    Images,
    MetTaps,
    OpenRow,
    Piece,
    Segment,
    TileRun,
    WindowKnobs,
    axes_of,
    find,
    taps_at,
)
from pyc_mlir.pipelines.kernels.knobs import KernelKnobs, knob, known, one_of, shares
from pyc_mlir.pipelines.kernels.lang import values as ops
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand, WindowCount, in_type
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.narrow import BOUNDS, NARROW, Narrow
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, Mask, Scalar, Vector
from pyc_mlir.pipelines.kernels.match import Feed, KernelOffer, MatrixView, longest
from pyc_mlir.pipelines.kernels.nest import Finish, cores_for, share
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

_WIDTH = 8
_TAPS = 16  # they are unrolled along a row
# The largest whole number up to which f32 holds all.
_EXACT = 1 << 24
# Bytes in a lane of f32, which costs count.
_IN_A_LANE = 4


def _width(target: Target, columns: ConvAxis) -> int:
    """Return the outputs of a tile: with a row of weights and two numbers of x they fit."""
    return max(1, min(_WIDTH, target.vector_registers - columns.kernel - 2))


@dataclass(frozen=True)
class Geometry(WindowKnobs, family="window"):
    """x[images, rows, columns, channels] under a window; `width` outputs are one register tile.

    x may lie in `parts`.
    """

    images: Dim
    rows: ConvAxis
    columns: ConvAxis
    channels: int
    width: int = knob(8, lambda k, _: range(1, min(_WIDTH, max(1, k.outputs[1])) + 1))
    workgroups: int = knob(1, lambda k, target: shares(target, known(k.images) * k.outputs[0]))
    parts: tuple[ChannelSlice, ...] = ()

    @staticmethod
    def on(
        target: Target,
        images: Dim,
        rows: ConvAxis,
        columns: ConvAxis,
        channels: int,
        parts: tuple[ChannelSlice, ...] = (),
    ) -> "Geometry":
        """Choose the knobs for a target's registers and cores."""
        made = Geometry(images, rows, columns, channels)
        read = known(images) * rows.size * columns.size
        cores = cores_for(target, 0.0, 4 * channels * (read + made.pixels))
        return replace(made, width=_width(target, columns), workgroups=cores, parts=parts)

    @property
    def is_covered(self) -> bool:
        """True where every window meets the image."""
        return all(
            _covers(a) if a.name else any(a.meets(o, t) for t in range(a.kernel))
            for a in (self.rows, self.columns)
            for o in range(a.outputs)
        )

    @staticmethod
    def of(target: Target, found: Images) -> "Geometry":
        """Choose the knobs for a window that a group begins with."""
        window = (found.images, found.rows, found.columns, found.channels, found.parts)
        return Geometry.on(target, *window)

    def refusal(self, target: Target) -> str:
        """Refuse long rows of taps, and tiles that do not fit the registers with them."""
        if self.columns.kernel > _TAPS:
            return f"window: expected at most {_TAPS} taps in a row, got {self.columns.kernel}"
        most = _width(target, self.columns)
        return (
            f"window: expected at most {most} outputs, got {self.width}"
            if self.width > most
            else ""
        )


@dataclass(frozen=True)
class Rule:
    """The reduction under a window: `start`, then `step(sum, number, tap)`, `finish`.

    `step` gets the weights of the tap's place (None without weights), `finish` the number of taps
    that met the image.
    """

    start: float
    step: Callable[[Vector, Vector, Any], Vector]
    finish: Callable[[Vector, Scalar], Vector] | None = None


WEIGHTED = Rule(0.0, lambda total, x, w: ops.fma(x, w, total))
LARGEST = Rule(-math.inf, lambda total, x, w: ops.maximum(x, total))
MEAN_OF_MET = Rule(0.0, lambda total, x, w: ops.add(total, x), lambda total, count: total / count)


def mean_of(taps: int) -> Rule:
    """Divide the sum by a fixed number."""
    return Rule(
        0.0, lambda total, x, w: ops.add(total, x), lambda total, count: total / float(taps)
    )


@dataclass(frozen=True)
class Channelwise:
    """One kernel under construction; `w` is [taps, channels] or None.

    Of bytes a `zero` point is taken off what is read, and a `bias` of i32 is added to the sums.
    """

    k: Build
    knobs: Geometry
    rule: Rule
    x: tuple[Piece, ...]
    w: Memory | None
    finish: Finish
    zero: Vector | None = None
    bias: Memory | None = None

    def build(self) -> None:
        """Compute this workgroup's rows of all images."""
        k, knobs = self.k, self.knobs
        high = k.size(knobs.rows.output_dim)
        first, end = share(k, 0, knobs.workgroups, k.size(knobs.images) * high)
        with k.range(first, end) as number:
            image, row = knobs.row_of(number, high)
            taps = taps_at(knobs.rows, row, k.size(knobs.rows.dim))
            if knobs.columns.name:
                self._open_row(image, row, taps)
                return
            for run in knobs.columns.tiles(knobs.width):
                if run.count == 1:
                    self._tiles(image, row, taps, run, Index.of(run.start))
                else:
                    with k.range(run.count) as tile:
                        self._tiles(image, row, taps, run, tile * run.width + run.start)

    def _open_row(self, image: Index, row: Index, taps: tuple[Index, Index]) -> None:
        """Compute a row of unknown length: full tiles where all taps meet the image, then ones."""
        k, width, axis = self.k, self.knobs.width, self.knobs.columns
        size = k.size(axis.dim)
        tiles = OpenRow.of(axis, width, size, k.size(axis.output_dim))
        full = TileRun(0, width, 1, (Segment(range(axis.kernel), range(width)),))
        with k.range(tiles.count) as tile:
            self._tiles(image, row, taps, full, tile * width + tiles.first)
        for ends in tiles.singles:
            with k.range(*ends) as at:
                single = TileRun(0, 1, 1, (MetTaps(taps_at(axis, at, size)),))
                self._tiles(image, row, taps, single, at)

    def _tiles(
        self, image: Index, row: Index, taps: tuple[Index, Index], run: TileRun, start: Index
    ) -> None:
        """Compute the same outputs in all channels, a vector of them at a time."""
        for piece in self.x:

            @self.k.each(piece.width, 1)
            def _(at: Lanes, piece: Piece = piece) -> None:
                source, own = at.moved(piece.first), at.moved(piece.start)
                _Tile(self, piece.memory, image, row, taps, run, start, source, own).build()


@dataclass(frozen=True)
class _Tile:
    """Outputs from `start` on of a row, of the channels `at`, which are `source` in memory `x`."""

    kernel: Channelwise
    x: Memory
    image: Index
    row: Index
    taps: tuple[Index, Index]
    run: TileRun
    start: Index
    source: Lanes
    at: Lanes

    def build(self) -> None:
        kernel = self.kernel
        k, knobs, rule = kernel.k, kernel.knobs, kernel.rule
        starts = [k.vector(rule.start)] * self.run.width
        sums = k.loop(*self.taps, 1, starts)(self._row_of_taps)
        _, high, wide = map(k.size, knobs.output_dims)
        first = (self.image * high + self.row) * wide + self.start
        down = self.taps[1] - self.taps[0]
        for p, total in enumerate(sums):
            if rule.finish is not None:
                along = [s.number for s in self.run.segments if p in s.outputs]
                total = rule.finish(total, (down * sum(along, start=Index.of(0))).to_float())
            if kernel.bias is not None:
                total = total + kernel.bias.ints(self.at).to_float()
            head = (self.image, self.row, self.start + p)
            kernel.finish.tile([total], [self.at], lambda _, p=p, head=head: (first + p, head))

    def _row_of_taps(self, down: Index, *sums: Vector) -> list[Vector]:
        """Add one row of taps: each number of x once, for all outputs that it belongs to."""
        knobs = self.kernel.knobs
        columns = knobs.columns
        y = self.row * knobs.rows.stride + down * knobs.rows.dilation - knobs.rows.low
        uses: dict[int, list[tuple[int, int]]] = {}
        for segment in self.run.segments:
            if isinstance(segment, MetTaps):
                return self._taps_of_one(segment, down, y, *sums)
            for tap in segment.taps:
                for p in segment.outputs:
                    place = p * columns.stride + tap * columns.dilation
                    uses.setdefault(place, []).append((p, tap))
        weights: dict[int, Vector | None] = {}
        made = list(sums)
        for place in sorted(uses):
            # The first of the places is on the image, so that nothing negative is formed.
            number = self._number(y, self.start * columns.stride + place - columns.low)
            for p, tap in uses[place]:
                if tap not in weights:
                    weights[tap] = self._weight(down * columns.kernel + tap)
                made[p] = self.kernel.rule.step(made[p], number, weights[tap])
        return made

    def _taps_of_one(self, met: MetTaps, down: Index, y: Index, *sums: Vector) -> list[Vector]:
        """Add the taps of a row that one output meets, which are known while it runs."""
        columns = self.kernel.knobs.columns

        def over(tap: Index, total: Vector) -> list[Vector]:
            x = self.start * columns.stride + tap * columns.dilation - columns.low
            weight = self._weight(down * columns.kernel + tap)
            return [self.kernel.rule.step(total, self._number(y, x), weight)]

        return self.kernel.k.loop(*met.taps, 1, list(sums))(over)

    def _number(self, y: Index, x: Index) -> Vector:
        """Load the numbers at a place of the image."""
        number, zero = self.x.load(self.image, y, x, self.source), self.kernel.zero
        return number if zero is None else number - zero

    def _weight(self, tap: Index) -> Vector | None:
        """Load the weights of a tap, None without."""
        return None if self.kernel.w is None else self.kernel.w.load(tap, self.at)


class Windowed(KernelKnobs):
    """Knobs of y[images, rows, columns, channels] = epilogue(rule over each window of x).

    The epilogue's matrix is [images rows columns, channels]. A kernel may have `weights`.
    """

    images: Geometry
    epilogue: Pointwise
    dtype: str = "f32"
    small = ("zero", "bias")
    merged_dims = WindowKnobs.merged_dims

    @property
    def weights(self) -> tuple[Operand, ...]:
        """The weights, none without."""
        return ()

    @property
    def rule(self) -> Rule:
        """The reduction of the numbers of a window."""
        return WEIGHTED

    @property
    def flops(self) -> float:
        """Two a tap with weights, one without."""
        images, each = self.images, 2.0 if self.weights else 1.0
        return images.pixels * images.channels * (each * images.taps + self.epilogue.flops)

    @property
    def counted(self) -> Self:
        """The same of whole images."""
        return replace(cast(Any, self), images=self.images.counted)

    def refusal(self, target: Target) -> str:
        """Refuse what the geometry refuses."""
        return self.images.refusal(target)

    def operands(self) -> tuple[Operand, ...]:
        """Return x, the weights, what the epilogue reads, then y."""
        images = self.images
        reads = self.epilogue.operands("e", images.matrix_rows, images.channels)
        result = Operand("y", (*images.output_dims, images.channels), "out")
        return in_type((*images.sources, *self.weights, *reads, result), self.dtype)

    def _window_counts(self) -> tuple[WindowCount, ...]:
        return (*self.images.rows.window_counts, *self.images.columns.window_counts)

    def _grid(self, size: Callable[[Dim], Index]) -> tuple[int]:
        return (self.images.workgroups,)

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        finish = Finish(k, InKernel.of(k, self.epilogue, "e", memory), memory["y"])
        taken = (self.images.pieces(memory), memory.get("w"), finish)
        Channelwise(k, self.images, self.rule, *taken).build()


@dataclass(frozen=True)
class Depthwise(Windowed, family="depthwise"):
    """The knobs of a convolution of each channel with its own window, w[taps, channels]."""

    images: Geometry
    epilogue: Pointwise = NOTHING
    dtype: str = "f32"

    @property
    def weights(self) -> tuple[Operand, ...]:
        """The weights."""
        return (Operand("w", (self.images.taps, self.images.channels)),)


@dataclass(frozen=True)
class Pool(Windowed, family="pool"):
    """The knobs of the largest number or the mean of each window.

    `mean` divides by the taps that meet the image, `padded_mean` by all of them.
    """

    operation: str = field(metadata=one_of(("max", "mean", "padded_mean")))
    images: Geometry
    epilogue: Pointwise = NOTHING
    dtype: str = "f32"

    @property
    def rule(self) -> Rule:
        """The reduction of the numbers of a window."""
        if self.operation == "max":
            return LARGEST
        return MEAN_OF_MET if self.operation == "mean" else mean_of(self.images.taps)


@dataclass(frozen=True)
class Widened:
    """Weights [taps, channels] of i8 as f32."""

    taps: int
    channels: int

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the weights."""
        return self.taps, self.channels

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the numbers as f32."""
        return array.astype(np.float32)


@dataclass(frozen=True)
class ByteDepthwise(Windowed, family="int8_depthwise", speed="depthwise"):
    """The knobs of y = epilogue(f32(depthwise(x - zero, w) + bias)) of bytes x.

    `signed`, `shifted`, `bias`, `result` and `narrow` are as in `ByteConv`.
    """

    images: Geometry
    epilogue: Pointwise = NOTHING
    signed: bool = False
    shifted: bool = False
    bias: bool = False
    result: str = knob("f32", among=RESULTS)
    narrow: Narrow = NARROW
    lays_out = False

    def _misfit(self) -> str:
        fitting = self.result not in BOUNDS or self.narrow.dtype == self.result
        whole = not self.images.parts and fitting
        return "" if whole else f"whole images, a result of {tuple(RESULTS)} that `narrow` makes"

    @property
    def weights(self) -> tuple[Operand, ...]:
        """The weights as f32, [the zero point], [the bias]."""
        layout = Widened(self.images.taps, self.images.channels)
        zero = (Operand("zero", (1,), dtype="i32"),) if self.shifted else ()
        bias = (Operand("bias", (self.images.channels,), dtype="i32"),) if self.bias else ()
        return (Operand("w", layout.shape, layout=layout), *zero, *bias)

    def operands(self) -> tuple[Operand, ...]:
        """Return x, w, [zero], [bias], what the epilogue reads, then y."""
        x, *others, y = super().operands()
        own = replace(x, dtype="i8" if self.signed else "ui8")
        return (own, *others, replace(y, dtype=RESULTS[self.result]))

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        zero = None
        if self.shifted:
            zero = memory["zero"].ints(0, lanes=1).to_float().lane(0).across(k.lanes)
        narrow = {"f32": None, "i32": Narrow("i32")}.get(self.result, self.narrow)
        epilogue = InKernel.of(k, self.epilogue, "e", memory)
        finish = Finish(k, epilogue, memory["y"], narrow=narrow)
        taken = (self.images.pieces(memory), memory["w"], finish, zero, memory.get("bias"))
        Channelwise(k, self.images, WEIGHTED, *taken).build()


def _match_depthwise(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a convolution with a group for each channel, with constant weights."""
    found = find(work, "conv2d")
    if found is None or found.weights is None or found.planar:
        return []
    if not found.groups == found.channels == found.filters:
        return []
    covers, program = longest(work, found.covers, MatrixView(found.result, 3))
    feeds = (*found.feeds, Feed(found.weights, (3,)), *program.feeds)
    knobs = Depthwise(Geometry.of(target, found), program.program, found.dtype)
    return FAMILY.offer(knobs, target, covers, feeds)


FAMILY = Family("depthwise", Depthwise, _match_depthwise)


def _match_pool(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a pooling of floats and as much of what follows as the epilogue can do."""
    found = find(work, "max_pool2d", "avg_pool2d")
    if found is None:
        return []
    images = Geometry.of(target, found)
    node, operation = work.nodes[found.covers - 1], "max"
    if node.name == "avg_pool2d":
        operation = "padded_mean" if node.params["count_include_pad"] else "mean"
    if operation != "padded_mean" and not images.is_covered:
        return []
    covers, program = longest(work, found.covers, MatrixView(found.result, 3))
    knobs = Pool(operation, images, program.program, found.dtype)
    return POOL.offer(knobs, target, covers, (*found.feeds, *program.feeds))


POOL = Family("pool", Pool, _match_pool)


def _match_bytes(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a convolution of bytes with a group for each channel, with constant weights."""
    node, found = work.nodes[0], find_bytes(work)
    if node.name != "integer_conv2d" or found is None:
        return []
    (images, *sides, channels), kind = work.type(found.x).shape, work.type(found.weights)
    nhwc = node.params["layout"] == "NHWC" and node.params["groups"] == channels
    axes = axes_of(node.params, sides, kind.shape[:2]) if nhwc else None
    if axes is None or kind.shape[2:] != (1, channels):
        return []
    bias, _ = bias_of(work, found.channels)
    most = axes[0].kernel * axes[1].kernel * 2 * 255 * 128
    if most + (0 if bias is None else work.inputs[bias].magnitude) >= _EXACT:
        return []
    geometry = Geometry.on(target, "n" if images is None else images, *axes, found.channels)
    feeds = found.feeds(Feed(found.x, (1, 2, 3)), Feed(found.weights, (3,)))
    return INT8.offer(ByteDepthwise(geometry, **found.fields), target, found.after.covers, feeds)


INT8 = Family("int8_depthwise", ByteDepthwise, _match_bytes)


@dataclass(frozen=True)
class BytePool(WindowKnobs, family="int8_pool", speed="pool"):
    """The knobs of y[images, rows, columns, channels] = the largest byte of each window of x.

    `dtype` is ``i8`` or ``ui8``; `workgroups` share the rows of all images.
    """

    images: Dim
    rows: ConvAxis
    columns: ConvAxis
    channels: int
    dtype: str = knob("ui8", among=BOUNDS)
    workgroups: int = 1

    def _misfit(self) -> str:
        covered = _covers(self.rows) and _covers(self.columns)
        return "" if covered else "windows without gaps that meet the image"

    @property
    def flops(self) -> float:
        """A maximum a tap, of as many bytes as a lane of f32 holds."""
        return float(self.taps * self.pixels * self.channels) / _IN_A_LANE

    def operands(self) -> tuple[Operand, ...]:
        """Return x, then y."""
        result = Operand("y", (*self.output_dims, self.channels), "out")
        return tuple(replace(o, dtype=self.dtype) for o in (*self.sources, result))

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        x, y = memory["x"], memory["y"]
        images, high, wide = map(k.size, self.output_dims)
        first, end = share(k, 0, self.workgroups, images * high)
        with k.range(first, end) as number, k.range(wide) as column:
            image, row = number // high, number % high
            down = _clamped(self.rows, row, k.size(self.rows.dim))
            along = _clamped(self.columns, column, k.size(self.columns.dim))
            places = [(image, y_, x_) for y_ in down for x_ in along]

            def store(lanes: Lanes, image: Index = image, row: Index = row) -> None:
                best = self._largest(k, x, places, lanes)
                y.store_as(best, image, row, column, lanes, mask=lanes.mask)

            bytes_ = k.lanes * _IN_A_LANE
            whole = self.channels // bytes_ * bytes_
            with k.range(0, whole, bytes_) as channel:
                store(Lanes(channel))
            if left := self.channels - whole:
                store(Lanes(Index.of(whole), Mask.first(left, bytes_)))

    def _largest(
        self, k: Build, x: Memory, places: list[tuple[Index, Index, Index]], lanes: Lanes
    ) -> Any:
        """Return the largest bytes under the taps, an MLIR vector."""
        larger = ops.arith.maxsi if self.dtype == "i8" else ops.arith.maxui
        best = None
        for place in places:
            own = x.ints(*place, lanes, lanes=k.lanes * _IN_A_LANE, bits=8).value
            best = own if best is None else larger(best, own)
        return best


def _covers(axis: ConvAxis) -> bool:
    """Return whether each window of an axis is without gaps and meets the image, of any size."""
    if axis.dilation != 1:
        return False
    if axis.name:
        return axis.low + axis.high < axis.kernel
    ends = (0, axis.outputs - 1)
    return all(any(axis.meets(o, tap) for tap in range(axis.kernel)) for o in ends)


def _clamped(axis: ConvAxis, output: Index, size: Index) -> list[Index]:
    """Return the place under each tap, the nearest one of the image where it is beyond."""
    taps = [output * axis.stride + tap for tap in range(axis.kernel)]
    return [ops.least(at - ops.least(at, axis.low), size - 1) for at in taps]


def _match_byte_pool(work: Work, target: Target) -> list[KernelOffer]:
    """Match a pooling by maxima of NHWC images of bytes."""
    node = work.nodes[0]
    names = {DTYPES[n]: n for n in BOUNDS}
    if node.name != "max_pool2d" or refuse_narrow(target) or node.type.dtype not in names:
        return []
    images, *sides, channels = work.type(node.operands[0]).shape
    nhwc = node.params["layout"] == "NHWC"
    axes = axes_of(node.params, sides, node.params["kernel"]) if nhwc else None
    if axes is None or channels is None or not all(map(_covers, axes)):
        return []
    knobs = BytePool("n" if images is None else images, *axes, channels, names[node.type.dtype])
    count = float(knobs.pixels * channels)
    knobs = replace(knobs, workgroups=cores_for(target, knobs.flops, count))
    return BYTE_POOL.offer(knobs, target, 1, [Feed(node.operands[0], (1, 2, 3))])


BYTE_POOL = Family("int8_pool", BytePool, _match_byte_pool)
