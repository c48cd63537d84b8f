"""Windows that keep channels apart, NHWC: depthwise convolution, and maxima or means of windows.

Vectors span channels. A register tile is some neighbouring outputs of one row by one vector; each
number of x is loaded once for a row of taps, whatever outputs it belongs to. Borders are left out
tap by tap (`window.py`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.families.conv.sources import (
    ChannelSlice,
    Piece,
    fits,
    operands,
)
from pyc_mlir.pipelines.kernels.families.conv.window import (
    ConvAxis,
    TileRun,
    pixels_of,
    taps_at,
)
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import InKernel
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar, Vector, add, fma, maximum
from pyc_mlir.pipelines.kernels.registry import refuse_narrow
from pyc_mlir.pipelines.kernels.shared.grid import cores_for, known, share
from pyc_mlir.pipelines.kernels.variants import shares
from pyc_mlir.pipelines.target.target import Target

_WIDTH = 8
# Taps are unrolled along a row.
_TAPS = 16


def _width(target: Target, columns: ConvAxis) -> int:
    """Return the outputs of a tile: with a row of weights and two numbers of x they fit."""
    return max(1, min(_WIDTH, target.vector_registers - columns.kernel - 2))


@dataclass(frozen=True)
class Geometry:
    """x[images, rows, columns, channels] under a window; `width` outputs are one register tile.

    x may lie in `parts`.
    """

    images: Dim
    rows: ConvAxis
    columns: ConvAxis
    channels: int
    width: int = 8
    workgroups: int = 1
    parts: tuple[ChannelSlice, ...] = ()

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        least_ones = (self.channels, self.width, self.workgroups)
        if self.images == 0 or min(least_ones) < 1 or not fits(self.channels, self.parts):
            expected = "sizes, width and workgroups of at least 1, parts that are all channels"
            raise PycError(
                ReasonCode.BAD_ARGUMENT, f"window kernel: expected {expected}, got {self}"
            )

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
        width = _width(target, columns)
        cores = cores_for(target, 0.0, made.traffic_bytes({str(images): known(images)}))
        return replace(made, width=width, workgroups=cores, parts=parts)

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

    def pixels(self, sizes: Mapping[str, int]) -> int:
        """Count the positions of the result, in all images."""
        images = self.images if isinstance(self.images, int) else sizes[self.images]
        return images * self.outputs[0] * self.outputs[1]

    def traffic_bytes(self, sizes: Mapping[str, int]) -> int:
        """x read and y written once."""
        images = self.images if isinstance(self.images, int) else sizes[self.images]
        read = images * self.rows.size * self.columns.size
        return 4 * self.channels * (read + self.pixels(sizes))

    def refusal(self, target: Target) -> str:
        """Return why no kernel for the target has this register tile, or ""."""
        if reason := refuse_narrow(target):
            return reason
        if self.columns.kernel > _TAPS:
            return f"window: expected at most {_TAPS} taps in a row, got {self.columns.kernel}"
        if self.width > _width(target, self.columns):
            return (
                f"window: expected at most {_width(target, self.columns)} outputs, got {self.width}"
            )
        return ""

    def to_try(self, target: Target) -> dict[str, Sequence[int]]:
        """Return values to try of the fields of knobs whose `images` this is."""
        rows = known(self.images) * self.outputs[0]
        widths = [w for w in range(1, _WIDTH + 1) if w <= max(1, self.outputs[1])]
        return {"images.width": widths, "images.workgroups": shares(target, rows)}


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
    """One kernel under construction; `w` is [taps, channels] or None."""

    k: Build
    knobs: Geometry
    rule: Rule
    x: tuple[Piece, ...]
    w: Memory | None
    y: Memory
    epilogue: InKernel

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
            self._channels(piece, image, row, taps, run, start)

    def _channels(
        self,
        piece: Piece,
        image: Index,
        row: Index,
        taps: tuple[Index, Index],
        run: TileRun,
        start: Index,
    ) -> None:
        @self.k.each(piece.width, 1)
        def _(at: Lanes) -> None:
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
        k, knobs, rule = self.kernel.k, self.kernel.knobs, self.kernel.rule
        starts = [k.vector(rule.start)] * self.run.width
        sums = k.loop(*self.taps, 1, starts)(self._row_of_taps)
        high, wide = knobs.outputs
        first = (self.image * high + self.row) * wide + self.start
        down = self.taps[1] - self.taps[0]
        for p, total in enumerate(sums):
            if rule.finish is not None:
                along = sum(len(s.taps) for s in self.run.segments if p in s.outputs)
                total = rule.finish(total, (down * along).to_float())
            value = self.kernel.epilogue.row(first + p)(total, self.at)
            self.kernel.y.store(value, self.image, self.row, self.start + p, self.at)

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
            for p, tap in uses[place]:
                if tap not in weights:
                    weights[tap] = self._weight(down * columns.kernel + tap)
                made[p] = self.kernel.rule.step(made[p], number, weights[tap])
        return made

    def _weight(self, tap: Index) -> Vector | None:
        return None if self.kernel.w is None else self.kernel.w.load(tap, self.at)
