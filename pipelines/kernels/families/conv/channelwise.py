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
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.kernels.families.bytes import RESULTS, after_sums, bias_of, is_shifted
from pyc_mlir.pipelines.kernels.families.window import (
    PIXELS_OF_RESULT,
    ChannelSlice,
    ConvAxis,
    Piece,
    TileRun,
    axes_of,
    find,
    fits,
    operands,
    pieces,
    pixels_of,
    taps_at,
)
from pyc_mlir.pipelines.kernels.knobs import KernelKnobs, knob, known, one_of, shares
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand, in_type
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.narrow import BOUNDS, NARROW, Narrow, Whole
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.stored import floats
from pyc_mlir.pipelines.kernels.lang.values import (
    Index,
    Mask,
    Scalar,
    Vector,
    add,
    arith,
    fma,
    int_vector,
    least,
    maximum,
    vector,
)
from pyc_mlir.pipelines.kernels.match import Feed, KernelOffer, MatrixView, longest
from pyc_mlir.pipelines.kernels.nest import Finish, cores_for, share
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
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
class Geometry(KernelKnobs, family="window"):
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

    def misfit(self) -> str:
        """Return what was expected of the parts."""
        return "" if fits(self.channels, self.parts) else "parts that are all channels"

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
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of an image of the result."""
        return self.rows.outputs, self.columns.outputs

    @property
    def taps(self) -> int:
        """Positions of the window."""
        return self.rows.kernel * self.columns.kernel

    @property
    def is_covered(self) -> bool:
        """True where every window meets the image."""
        axes = (self.rows, self.columns)
        return all(
            any(a.meets(o, t) for t in range(a.kernel)) for a in axes for o in range(a.outputs)
        )

    @property
    def sources(self) -> list[Operand]:
        """The operand x, or one for each part."""
        image = (self.images, self.rows.size, self.columns.size)
        return operands(image, self.channels, self.parts)

    @property
    def result(self) -> Operand:
        """The operand y."""
        return Operand("y", (self.images, *self.outputs, self.channels), "out")

    @property
    def matrix_rows(self) -> Dim:
        """The rows of the epilogue's matrix."""
        return pixels_of(self.images, self.outputs)

    @property
    def pixels(self) -> int:
        """Positions of the result, in all images."""
        return known(self.images) * self.outputs[0] * self.outputs[1]

    def refusal(self, target: Target) -> str:
        """Return why no kernel for the target has this register tile, or ""."""
        if reason := refuse_narrow(target):
            return reason
        if self.columns.kernel > _TAPS:
            return f"window: expected at most {_TAPS} taps in a row, got {self.columns.kernel}"
        if self.width > _width(target, self.columns):
            most = _width(target, self.columns)
            return f"window: expected at most {most} outputs, got {self.width}"
        return ""


@dataclass(frozen=True)
class Rule:
    """The reduction under a window: `start`, then `step(sum, number, tap)`, `finish`.

    `step` gets the weights of the tap's place (None without weights), `finish` the number of taps
    that met the image.
    """

    start: float
    step: Callable[[Vector, Vector, Any], Vector]
    finish: Callable[[Vector, Scalar], Vector] | None = None


WEIGHTED = Rule(0.0, lambda total, x, w: fma(x, w, total))
LARGEST = Rule(-math.inf, lambda total, x, w: maximum(x, total))
MEAN_OF_MET = Rule(0.0, lambda total, x, w: add(total, x), lambda total, count: total / count)


def mean_of(taps: int) -> Rule:
    """Divide the sum by a fixed number."""
    return Rule(0.0, lambda total, x, w: add(total, x), lambda total, count: total / float(taps))


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
        high = knobs.outputs[0]
        first, end = share(k, 0, knobs.workgroups, k.size(knobs.images) * high)
        with k.range(first, end) as number:
            image, row = (Index.of(0), number)
            if knobs.images != 1:
                image, row = number // high, number % high
            taps = taps_at(knobs.rows, row, Index.of(knobs.rows.size))
            for run in knobs.columns.tiles(knobs.width):
                if run.count == 1:
                    self._tiles(image, row, taps, run, Index.of(run.start))
                else:
                    with k.range(run.count) as tile:
                        self._tiles(image, row, taps, run, tile * run.width + run.start)

    def _tiles(
        self, image: Index, row: Index, taps: tuple[Index, Index], run: TileRun, start: Index
    ) -> None:
        """Compute the same outputs in all channels, a vector of them at a time."""
        for piece in self.x:

            @self.k.each(piece.width, 1)
            def _(at: Lanes, piece: Piece = piece) -> None:
                source = Lanes(at.start + piece.first, at.mask)
                own = Lanes(at.start + piece.start, at.mask)
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
        high, wide = knobs.outputs
        first = (self.image * high + self.row) * wide + self.start
        down = self.taps[1] - self.taps[0]
        for p, total in enumerate(sums):
            if rule.finish is not None:
                along = sum(len(s.taps) for s in self.run.segments if p in s.outputs)
                total = rule.finish(total, (down * along).to_float())
            if kernel.bias is not None:
                total = total + floats(kernel.bias.load_as(int_vector(k.lanes), self.at))
            head = (self.image, self.row, self.start + p)
            kernel.finish.tile([total], [self.at], lambda _, p=p, head=head: (first + p, head))

    def _row_of_taps(self, down: Index, *sums: Vector) -> list[Vector]:
        """Add one row of taps: each number of x once, for all outputs that it belongs to."""
        knobs = self.kernel.knobs
        columns = knobs.columns
        y = self.row * knobs.rows.stride + down * knobs.rows.dilation - knobs.rows.low
        uses: dict[int, list[tuple[int, int]]] = {}
        for segment in self.run.segments:
            for tap in segment.taps:
                for p in segment.outputs:
                    place = p * columns.stride + tap * columns.dilation
                    uses.setdefault(place, []).append((p, tap))
        weights: dict[int, Vector | None] = {}
        made = list(sums)
        for place in sorted(uses):
            # The first of the places is on the image, so that nothing negative is formed.
            x = self.start * columns.stride + place - columns.low
            number = self.x.load(self.image, y, x, self.source)
            if self.kernel.zero is not None:
                number = number - self.kernel.zero
            for p, tap in uses[place]:
                if tap not in weights:
                    w, place = self.kernel.w, down * columns.kernel + tap
                    weights[tap] = None if w is None else w.load(place, self.at)
                made[p] = self.kernel.rule.step(made[p], number, weights[tap])
        return made


class Windowed(KernelKnobs):
    """Knobs of y[images, rows, columns, channels] = epilogue(rule over each window of x).

    The epilogue's matrix is [images rows columns, channels]. A kernel may have `weights`.
    """

    images: Geometry
    epilogue: Pointwise
    dtype: str = "f32"
    weights: tuple[Operand, ...] = ()

    @property
    def rule(self) -> Rule:
        """The reduction of the numbers of a window."""
        return WEIGHTED

    @property
    def flops(self) -> float:
        """Two a tap with weights, one without."""
        images, each = self.images, 2.0 if self.weights else 1.0
        return images.pixels * images.channels * (each * images.taps + self.epilogue.flops)

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x, the weights, the epilogue's, then y."""
        images = self.images
        reads = self.epilogue.operands("e", images.matrix_rows, images.channels)
        taken = in_type((*images.sources, *self.weights, *reads, images.result), self.dtype)
        grid = (images.workgroups,)
        return Kernel(name, taken, lambda size: grid, self._body, merged=PIXELS_OF_RESULT)

    def _body(self, k: Build, *memory: Memory) -> None:
        x = pieces(memory, self.images.channels, self.images.parts)
        *rest, y = memory[len(x) :]
        w = rest.pop(0) if self.weights else None
        finish = Finish(k, InKernel(k, self.epilogue, tuple(rest)), y)
        Channelwise(k, self.images, self.rule, x, w, finish).build()


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

    def misfit(self) -> str:
        """Return what was expected of the images and the result."""
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

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x, w, [zero], [bias], the epilogue's, then y."""
        plain = super().kernel(name)
        x, *others, y = plain.operands
        own = replace(x, dtype="i8" if self.signed else "ui8")
        result = replace(y, dtype=RESULTS[self.result])
        return replace(plain, operands=(own, *others, result))

    def _body(self, k: Build, *memory: Memory) -> None:
        x, w, *rest = memory
        zero = None
        if self.shifted:
            one = ir.VectorType.get([1], ir.IntegerType.get_signless(32))
            zero = floats(rest.pop(0).load_as(one, 0)).lane(0).across(k.lanes)
        bias = rest.pop(0) if self.bias else None
        *reads, y = rest
        narrow = {"f32": None, "i32": Whole()}.get(self.result, self.narrow)
        finish = Finish(k, InKernel(k, self.epilogue, tuple(reads)), y, narrow=narrow)
        own = pieces([x], self.images.channels, ())
        Channelwise(k, self.images, WEIGHTED, own, w, finish, zero, bias).build()


def _refusal(knobs: Any, target: Target) -> str:
    """Refuse sums, a row of weights and a number of x that do not fit the registers."""
    return knobs.images.refusal(target)


def _cost(knobs: Any, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count each tensor once across memory."""
    own = knobs.at(sizes)
    own = replace(own, images=replace(own.images, parts=()))
    operands = own.kernel("k").operands_of_work
    traffic = sum(o.nbytes for o in operands if o.name not in ("zero", "bias"))
    return CostModel(target).kernel(own.speed, own.flops, traffic)


def _match_depthwise(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a convolution with a group for each channel, with constant weights."""
    found = find(work, "conv2d")
    if found is None or found.weights is None or found.planar:
        return []
    if not found.groups == found.channels == found.filters:
        return []
    covers, program = longest(work, found.covers, MatrixView(found.result, 3))
    images = Geometry.on(
        target, found.images, found.rows, found.columns, found.channels, found.parts
    )
    feeds = (*found.feeds, Feed(found.weights, (3,)), *program.feeds)
    knobs = Depthwise(images, program.program, found.dtype)
    return FAMILY.offer(knobs, target, covers, feeds)


FAMILY = Family("depthwise", Depthwise, _match_depthwise, _refusal, _cost)


def _match_pool(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a pooling of floats and as much of what follows as the epilogue can do."""
    found = find(work, "max_pool2d", "avg_pool2d")
    if found is None:
        return []
    images = Geometry.on(
        target, found.images, found.rows, found.columns, found.channels, found.parts
    )
    node, operation = work.nodes[found.covers - 1], "max"
    if node.name == "avg_pool2d":
        operation = "padded_mean" if node.params["count_include_pad"] else "mean"
    if operation != "padded_mean" and not images.is_covered:
        return []
    covers, program = longest(work, found.covers, MatrixView(found.result, 3))
    knobs = Pool(operation, images, program.program, found.dtype)
    return POOL.offer(knobs, target, covers, (*found.feeds, *program.feeds))


POOL = Family("pool", Pool, _match_pool, _refusal, _cost)


def _match_bytes(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a convolution of bytes with a group for each channel, with constant weights."""
    node = work.nodes[0]
    if node.name != "integer_conv2d" or not work.is_constant(node.operands[1]):
        return []
    x, weights, zero = node.operands
    (images, *sides, channels), kind = work.type(x).shape, work.type(weights)
    if not channels or kind.shape[2:] != (1, channels) or kind.dtype != DTYPES["i8"]:
        return []
    nhwc = node.params["layout"] == "NHWC" and node.params["groups"] == channels
    axes = axes_of(node.params, sides, kind.shape[:2]) if nhwc else None
    if axes is None:
        return []
    bias, first = bias_of(work, channels)
    most = axes[0].kernel * axes[1].kernel * 2 * 255 * 128
    if most + (0 if bias is None else work.inputs[bias].magnitude) >= _EXACT:
        return []
    after = after_sums(work, first, MatrixView(node.type.shape, 3))
    if after.result == "i32":
        bias = None
    shifted = is_shifted(work, zero)
    geometry = Geometry.on(target, "n" if images is None else images, *axes, channels)
    signed = work.type(x).dtype == DTYPES["i8"]
    given = (after.program, signed, shifted, bias is not None, after.result, after.narrow)
    feeds = [Feed(x, (1, 2, 3)), Feed(weights, (3,))]
    feeds += [Feed(zero)] * shifted
    feeds += [] if bias is None else [Feed(bias)]
    knobs = ByteDepthwise(geometry, *given)
    return INT8.offer(knobs, target, after.covers, (*feeds, *after.feeds))


INT8 = Family("int8_depthwise", ByteDepthwise, _match_bytes, _refusal, _cost)


@dataclass(frozen=True)
class BytePool(KernelKnobs, family="int8_pool", speed="pool"):
    """The knobs of y[images, rows, columns, channels] = the largest byte of each window of x.

    `dtype` is ``i8`` or ``ui8``; `workgroups` share the rows of all images.
    """

    images: Dim
    rows: ConvAxis
    columns: ConvAxis
    channels: int
    dtype: str = knob("ui8", among=BOUNDS)
    workgroups: int = 1

    def misfit(self) -> str:
        """Return what was expected of the windows."""
        covered = all(_covers(axis) for axis in (self.rows, self.columns))
        return "" if covered else "windows without gaps that meet an image of known size"

    @property
    def flops(self) -> float:
        """A maximum a tap, of as many bytes as a lane of f32 holds."""
        taps = self.rows.kernel * self.columns.kernel
        outputs = known(self.images) * self.rows.outputs * self.columns.outputs * self.channels
        return float(taps * outputs) / _IN_A_LANE

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x, then y."""
        x = (self.images, self.rows.size, self.columns.size, self.channels)
        y = (self.images, self.rows.outputs, self.columns.outputs, self.channels)
        operands = (Operand("x", x, dtype=self.dtype), Operand("y", y, "out", self.dtype))
        grid = (self.workgroups,)
        return Kernel(name, operands, lambda size: grid, self._body, merged=PIXELS_OF_RESULT)

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
    taps = axes[0].kernel * axes[1].kernel / _IN_A_LANE
    count = known(knobs.images) * axes[0].outputs * axes[1].outputs * channels
    knobs = replace(knobs, workgroups=cores_for(target, taps * count, float(count)))
    return BYTE_POOL.offer(knobs, target, 1, [Feed(node.operands[0], (1, 2, 3))])


BYTE_POOL = Family("int8_pool", BytePool, _match_byte_pool)
