"""Minimal filtering of 3x3 convolutions of stride 1: knobs and code of the family ``winograd``.

y = epilogue(conv2d(x, w)) with constant weights, by F(m x m, 3 x 3) of Lavin and Gray (2016): tiles
of (m + 2)^2 numbers of x are transformed, each of their (m + 2)^2 positions is a product over
channels, and the results are transformed to m x m outputs. That takes 9 m^2 / (m + 2)^2 times fewer
multiplications than a direct convolution: 2.25 for m = 2, 4 for m = 4. Sums are formed in another
order and of other numbers, so that the error differs: it is smaller for m = 2 and about 2.5 times
larger for m = 4 (docs/kernels.md).

A workgroup takes blocks of tiles. It writes a block's transformed tiles to scratch memory,
then goes through panels of filters: for each position a register tile of `height` tiles by a panel,
accumulated over channels as in a product, into scratch memory again, then the outputs.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from pyc_mlir.pipelines.kernels.families.conv.sources import (
    ChannelSlice,
    Piece,
    fits,
    operands,
    pieces,
)
from pyc_mlir.pipelines.kernels.families.conv.toom_cook import (
    SIZES,
    TAPS,
    Spectrum,
    matrices,
)
from pyc_mlir.pipelines.kernels.families.conv.window import (
    PIXELS_OF_RESULT,
    ConvAxis,
    border,
    pixels_of,
)
from pyc_mlir.pipelines.kernels.families.packing import Panels
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Condition, Index, Vector, fma, least
from pyc_mlir.pipelines.kernels.shared.grid import cores_for, known, share
from pyc_mlir.pipelines.target.target import Target


@dataclass(frozen=True)
class Winograd:
    """The knobs of y[images, rows, columns, filters] = epilogue(conv2d(x, w)), w of 3x3.

    `m` is the size of a tile's outputs. A block has `block` tiles, in groups of `height`, which is
    the register tile's; `panel` filters are its width. `workgroups` share out the blocks. x may lie
    in `parts`.
    """

    images: Dim
    rows: ConvAxis
    columns: ConvAxis
    channels: int
    filters: int
    epilogue: Pointwise = NOTHING
    m: int = 2
    height: int = 14
    block: int = 28
    panel: int = 32
    unroll: int = 4
    workgroups: int = 1
    parts: tuple[ChannelSlice, ...] = ()

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        counts = (self.channels, self.filters, self.height, self.unroll, self.workgroups)
        if self.images == 0 or min(counts) < 1 or self.m not in SIZES:
            raise no_kernel("winograd", f"sizes of at least 1, and `m` of {SIZES}", self)
        if self.panel < LINE or self.panel % LINE or self.block % self.height or self.block < 1:
            raise no_kernel("winograd", "panel in lines of 16, block in heights", self)
        if not fits(self.channels, self.parts):
            raise no_kernel("winograd", "parts that are all channels", self)
        for axis in (self.rows, self.columns):
            if (axis.kernel, axis.stride, axis.dilation) != (TAPS, 1, 1):
                raise no_kernel("winograd", "3 taps, stride 1, dilation 1", axis)

    @staticmethod
    def on(
        target: Target,
        m: int,
        images: Dim,
        rows: ConvAxis,
        columns: ConvAxis,
        channels: int,
        filters: int,
        **others: Any,
    ) -> "Winograd":
        """Choose the knobs for a target's registers and caches; `others` are further fields."""
        made = Winograd(images, rows, columns, channels, filters, m=m)
        vectors = max(2, LINE * 4 // target.vector_bytes)
        tall = (target.vector_registers - vectors - 1) // vectors
        tiles = known(images) * made.tiles[0] * made.tiles[1]
        cores = min(cores_for(target, made.flops, 0.0), -(-tiles // tall))
        each = -(-tiles // cores)
        height = -(-each // -(-each // tall))
        # Transformed tiles of a block take half of the second-level cache.
        most = max(1, target.l2_bytes // 2 // (4 * made.positions * made.depth * height))
        groups = min(most, -(-each // height))
        knobs = {
            "height": height,
            "block": height * groups,
            "panel": vectors * target.vector_bytes // 4,
            "workgroups": cores,
        }
        return replace(made, **{**knobs, **others})

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of an image of the result."""
        return self.rows.outputs, self.columns.outputs

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of tiles of an image."""
        return -(-self.rows.outputs // self.m), -(-self.columns.outputs // self.m)

    @property
    def side(self) -> int:
        """Numbers along a side of a tile of x."""
        return self.m + TAPS - 1

    @property
    def positions(self) -> int:
        """Products of a tile for each channel and filter."""
        return self.side**2

    @property
    def flops(self) -> float:
        """Operations of the products of all images."""
        tiles = known(self.images) * self.tiles[0] * self.tiles[1]
        return 2.0 * tiles * self.positions * self.channels * self.filters

    @property
    def panels(self) -> Panels:
        """The layout of the transformed weights."""
        return Panels(self.filters, self.positions * self.channels, self.panel)

    @property
    def layout(self) -> Spectrum:
        """The layout of the weights when compiling."""
        return Spectrum(self.m, self.channels, self.panels)

    @property
    def depth(self) -> int:
        """A row of transformed tiles: channels, and a line so that rows do not share cache sets."""
        return -(-self.channels // LINE) * LINE + LINE

    @property
    def scratch(self) -> tuple[int, int]:
        """Numbers of a workgroup's transformed tiles, and of its sums of a panel."""
        return self.positions * self.block * self.depth, self.positions * self.block * self.panel

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x, w (packed), the epilogue's, y, then scratch."""
        result = (self.images, *self.outputs, self.filters)
        matrix = pixels_of(self.images, self.outputs)
        image = (self.images, self.rows.size, self.columns.size)
        taken = (
            *operands(image, self.channels, self.parts),
            Operand("w", (self.panels.size,), layout=self.layout),
            *self.epilogue.operands("e", matrix, self.filters),
            Operand("y", result, "out"),
            Operand("scratch", (self.workgroups * sum(self.scratch),), "out"),
        )
        return Kernel(
            name, taken, lambda size: (self.workgroups,), self._body, merged=PIXELS_OF_RESULT
        )

    def _body(self, k: Build, *memory: Memory) -> None:
        x = pieces(memory, self.channels, self.parts)
        w, *reads, y, scratch = memory[len(x) :]
        Filtering(k, self, x, w, y, scratch, InKernel(k, self.epilogue, tuple(reads))).build()


@dataclass(frozen=True)
class TilePlace:
    """A tile's image, and where its outputs begin in it."""

    image: Index
    y: Index
    x: Index


@dataclass(frozen=True)
class Filtering:
    """One kernel under construction."""

    k: Build
    knobs: Winograd
    x: tuple[Piece, ...]
    w: Memory
    y: Memory
    scratch: Memory
    epilogue: InKernel

    def build(self) -> None:
        """Compute this workgroup's blocks: transform, multiply, transform back."""
        k, knobs = self.k, self.knobs
        high, wide = knobs.tiles
        tiles = k.size(knobs.images) * (high * wide)
        first, end = share(k, 0, knobs.workgroups, tiles)
        own = k.workgroup() * sum(knobs.scratch)
        with k.range(first, end, knobs.block) as start:
            count = least(end - start, knobs.block)
            with k.range(count) as number:
                self._transform(self._place(start + number), own + number * knobs.depth)
            panels = knobs.panels
            if panels.full:
                with k.range(panels.full) as panel:
                    size = panels.depth * panels.panel
                    block = (own, start, count)
                    self._panel(panel * size, panel * panels.panel, panels.panel, block)
            if panels.last_width:
                offset, filters = panels.edge * panels.depth, Index.of(panels.edge)
                block = (own, start, count)
                self._panel(Index.of(offset), filters, panels.last_width, block, last=True)

    def _place(self, tile: Index) -> TilePlace:
        high, wide = self.knobs.tiles
        row = tile // wide
        y, x = (row, tile % wide)
        image = Index.of(0)
        if self.knobs.images != 1:
            image, y = row // high, row % high
        return TilePlace(image, y * self.knobs.m, x * self.knobs.m)

    def _transform(self, place: TilePlace, at: Index) -> None:
        """Transform one tile of x, for all channels, to scratch[position][tile][channel]."""
        k, knobs = self.k, self.knobs
        conditions = []
        for axis, start in ((knobs.rows, place.y), (knobs.columns, place.x)):
            last = (-(-axis.outputs // knobs.m) - 1) * knobs.m
            if axis.low:
                conditions.append(Index.of(axis.low - 1) < start)
            if last + knobs.side - axis.low > axis.size:
                conditions.append(start < max(0, axis.size + axis.low - knobs.side + 1))
        if not conditions:
            self._channels(place, at, masked=False)
            return
        k.either(
            reduce(Condition.__and__, conditions),
            [],
            lambda: self._channels(place, at, masked=False),
            lambda: self._channels(place, at, masked=True),
        )

    def _channels(self, place: TilePlace, at: Index, masked: bool) -> list[Any]:
        # The vectors of a piece may pass its end, into what the next one then writes.
        for piece in self.x:
            self._piece(piece, place, at + piece.start, masked)
        return []

    def _piece(self, piece: Piece, place: TilePlace, at: Index, masked: bool) -> None:
        k, knobs, side = self.k, self.knobs, self.knobs.side
        bt = matrices(knobs.m).bt
        rows = [border(knobs.rows, place.y, i) for i in range(side)]
        columns = [border(knobs.columns, place.x, i) for i in range(side)]

        @k.each(piece.width, 1)
        def _(lanes: Lanes) -> None:
            source = Lanes(lanes.start + piece.first, lanes.mask)

            def number(i: int, j: int) -> Vector:
                if not masked:
                    y, x = (rows[i].plain, columns[j].plain)
                    return piece.memory.load(place.image, y, x, source)
                y, x = rows[i], columns[j]
                spot = k.only_if(y.inside & x.inside, source)
                return piece.memory.load(place.image, y.clamped, x.clamped, spot)

            tile = [[number(i, j) for i in range(side)] for j in range(side)]
            half = [_combined(bt, column) for column in tile]
            for i in range(side):
                whole = _combined(bt, [half[j][i] for j in range(side)])
                for j, value in enumerate(whole):
                    position = (i * side + j) * knobs.block * knobs.depth
                    self.scratch.store(value, Lanes(at + position + lanes.start))

    def _panel(
        self,
        weights: Index,
        filters: Index,
        width: int,
        block: tuple[Index, Index, Index],
        last: bool = False,
    ) -> None:
        """Compute one panel of filters for a block's tiles: products, then outputs."""
        k, knobs = self.k, self.knobs
        own, start, count = block
        vectors = width // k.lanes
        sums = own + knobs.scratch[0]
        each = knobs.channels * width
        groups = count.ceildiv(knobs.height)
        with k.range(knobs.positions) as position, k.range(groups) as group:
            tiles = position * knobs.block + group * knobs.height
            made = self._product(weights + position * each, own + tiles * knobs.depth, width)
            into = sums + tiles * knobs.panel
            for n, value in enumerate(made):
                row, v = divmod(n, vectors)
                self.scratch.store(value, into + (row * knobs.panel + v * k.lanes))
        with k.range(count) as number:
            place = self._place(start + number)
            for v, lanes in enumerate(self._lanes(filters, width, last)):
                self._outputs(place, sums + number * knobs.panel + v * k.lanes, lanes)

    def _lanes(self, filters: Index, width: int, last: bool) -> list[Lanes]:
        """Return the places of a panel's vectors in the result: in the last panel masked."""
        k, starts = self.k, range(0, width, self.k.lanes)
        if not last:
            return [Lanes(filters + v) for v in starts]
        edge, end = self.knobs.panels.edge, self.knobs.filters
        return [k.tail(Index.of(edge + v), Index.of(end)) for v in starts if edge + v < end]

    def _product(self, weights: Index, tiles: Index, width: int) -> list[Vector]:
        """Multiply a register tile of one position: tiles by filters, over all channels."""
        k, knobs = self.k, self.knobs
        vectors = width // k.lanes

        def step(unroll: int) -> Callable[..., list[Vector]]:
            def steps(at: Index, *kept: Vector) -> list[Vector]:
                made = list(kept)
                for u in range(unroll):
                    start = weights + (at + u) * width
                    parts = [self.w.load(start + v * k.lanes) for v in range(vectors)]
                    for t in range(knobs.height):
                        number = self.scratch.number(tiles + t * knobs.depth + (at + u))
                        one = number.across(k.lanes)
                        for v in range(vectors):
                            n = t * vectors + v
                            made[n] = fma(one, parts[v], made[n])
                return made

            return steps

        zeros = [k.vector(0.0)] * (knobs.height * vectors)
        edge = knobs.channels // knobs.unroll * knobs.unroll
        kept = k.loop(0, edge, knobs.unroll, zeros)(step(knobs.unroll))
        return k.loop(edge, knobs.channels, 1, kept)(step(1))

    def _outputs(self, place: TilePlace, sums: Index, lanes: Lanes) -> None:
        """Store one tile's outputs for one vector of filters, as far as they lie in the result."""
        k, knobs, side = self.k, self.knobs, self.knobs.side
        at = matrices(knobs.m).at
        stride = knobs.block * knobs.panel
        half = []
        for j in range(side):
            column = [self.scratch.load(sums + (i * side + j) * stride) for i in range(side)]
            half.append(_combined(at, column))
        high, wide = knobs.outputs
        for i in range(knobs.m):
            row = _combined(at, [half[j][i] for j in range(side)])
            within = nullcontext() if high % knobs.m == 0 else k.when(place.y + i < high)
            with within:
                for j, value in enumerate(row):
                    y, x = place.y + i, place.x + j
                    there = nullcontext() if wide % knobs.m == 0 else k.when(x < wide)
                    with there:
                        matrix_row = (place.image * high + y) * wide + x
                        made = self.epilogue.row(matrix_row)(value, lanes)
                        self.y.store(made, place.image, y, x, lanes)


def _combined(matrix: np.ndarray, numbers: Sequence[Vector]) -> list[Vector]:
    """Multiply each row of the matrix by the numbers; zeros and ones cost nothing."""
    return [_row(row, numbers) for row in matrix]


def _row(row: np.ndarray, numbers: Sequence[Vector]) -> Vector:
    terms = sorted(
        ((float(c), n) for c, n in zip(row, numbers, strict=True) if c), key=lambda t: t[0] != 1.0
    )
    (factor, total), *rest = terms
    total = total if factor == 1.0 else total * factor
    for factor, number in rest:
        if factor == 1.0:
            total = total + number
        elif factor == -1.0:
            total = total - number
        else:
            total = fma(number, factor, total)
    return total
