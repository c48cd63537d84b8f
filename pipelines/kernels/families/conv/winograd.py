"""The kernel family ``winograd``: 3x3 convolutions of stride 1 by minimal filtering, NHWC.

y = epilogue(conv2d(x, w)) with constant weights, by F(m x m, 3 x 3) of Lavin and Gray (2016): tiles
of (m + 2)^2 numbers of x are transformed, each of their (m + 2)^2 positions is a product over
channels, and the results are transformed to m x m outputs. That takes 9 m^2 / (m + 2)^2 times fewer
multiplications than a direct convolution: 2.25 for m = 2, 4 for m = 4. Sums are formed in another
order and of other numbers, so that the error differs: it is smaller for m = 2 and about 2.5 times
larger for m = 4 (docs/kernels.md).

A workgroup takes blocks of tiles. It writes a block's transformed tiles to scratch memory,
then goes through panels of filters: for each position a register tile of `height` tiles by a panel,
accumulated over channels as in a product, into scratch memory again, then the outputs.

The matrices are made from points by Toom and Cook: y = at [(g w) * (bt x)] gives m outputs of a
window of 3 taps on m + 2 numbers; in two dimensions each side is applied to rows and to columns.
The points decide the error (Barabasz et al., 2020): those of F(4, 3) were chosen by measurement,
docs/kernels.md.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, reduce
from math import prod
from typing import Any

import numpy as np

from pyc_mlir.pipelines.kernels import nest
from pyc_mlir.pipelines.kernels.families.window import (
    ChannelSlice,
    ConvAxis,
    Piece,
    WindowKnobs,
    border,
    find,
)
from pyc_mlir.pipelines.kernels.knobs import HEIGHTS, PANELS, UNROLLS, knob, known, shares
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Condition, Index, Scalar, Vector, fma, least
from pyc_mlir.pipelines.kernels.match import Feed, KernelOffer, MatrixView, longest
from pyc_mlir.pipelines.kernels.nest import Panel, Panels, ProductTile
from pyc_mlir.pipelines.kernels.registry import Family, operand_cost
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

TAPS = 3
_POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(1), Fraction(-1), Fraction(2), Fraction(-1, 2)),
}
SIZES = tuple(_POINTS)
_GROUPS = (1, 2, 4, 8)
# Heights for what remains of a number of tiles: a part of the height, so that memory does for it.
_FEW = (1, 2, 3, 4)


@dataclass(frozen=True, eq=False)
class ToomCookMatrices:
    """at [m, m + 2], g [m + 2, 3] and bt [m + 2, m + 2], exact in f64 up to rounding."""

    at: np.ndarray
    g: np.ndarray
    bt: np.ndarray


@lru_cache
def matrices(m: int) -> ToomCookMatrices:
    """Return the matrices of F(m, 3); the last point is infinity."""
    points = _POINTS[m]
    scales = [prod(p - q for q in points if q != p) for p in points]
    at = [[p**i for p in points] + [Fraction(i == m - 1)] for i in range(m)]
    g = [[p**j / s for j in range(TAPS)] for p, s in zip(points, scales, strict=True)]
    g.append([Fraction(j == TAPS - 1) for j in range(TAPS)])
    bt = [[*_polynomial([q for q in points if q != p]), Fraction(0)] for p in points]
    bt.append(_polynomial(list(points)))
    return ToomCookMatrices(
        *(np.array([[float(x) for x in row] for row in rows]) for rows in (at, g, bt))
    )


def _polynomial(roots: list[Fraction]) -> list[Fraction]:
    """Return the coefficients of the polynomial with these roots, lowest power first."""
    made = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *made]
        made = [s - root * c for s, c in zip(shifted, [*made, Fraction(0)], strict=True)]
    return made


@dataclass(frozen=True)
class Spectrum:
    """The layout of w[9 channels, filters]: panel by panel, position by position, transformed."""

    m: int
    channels: int
    panels: Panels

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of w."""
        return TAPS * TAPS * self.channels, self.panels.columns

    def pack(self, weights: np.ndarray) -> np.ndarray:
        """Pack panels, each [positions][channels][panel]; computed in f64, rounded once."""
        g = matrices(self.m).g
        w = weights.astype(np.float64).reshape(TAPS, TAPS, self.channels, -1)
        spectrum = np.einsum("pi,qj,ijcf->pqcf", g, g, w, optimize=True)
        matrix = spectrum.reshape(self.panels.depth, -1).astype(np.float32)
        return self.panels.pack(matrix)


def _blocks_to_try(knobs: Any, _: Target) -> list[int]:
    """Return blocks of no more memory than the knobs', but for one tile."""
    most = max(knobs.block, max(HEIGHTS))
    return [b for b in {h * groups for h in HEIGHTS for groups in _GROUPS} if b <= most]


@dataclass(frozen=True)
class Winograd(WindowKnobs, family="winograd"):
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
    height: int = knob(14, HEIGHTS)
    block: int = knob(28, _blocks_to_try)
    panel: int = knob(32, PANELS, multiple=LINE)
    unroll: int = knob(4, UNROLLS)
    workgroups: int = knob(1, lambda k, target: shares(target, k.count))
    parts: tuple[ChannelSlice, ...] = ()

    def _misfit(self) -> str:
        if self.m not in SIZES:
            return f"`m` of {SIZES}"
        if self.block % self.height:
            return "block in heights"
        fitting = are_fitting(self.rows, self.columns)
        return super()._misfit() if fitting else "3 taps, stride 1, dilation 1, pads of at most 2"

    def refusal(self, target: Target) -> str:
        """Refuse a tile whose sums, row of weights and number of x do not fit the registers."""
        return nest.refuse_tile("winograd", self.height, self.panel, target)

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
        if not made.is_counted:
            tall -= tall % (4 if tall > 6 else 3)
        cores = min(nest.cores_for(target, made.product_flops, 0.0), -(-made.count // tall))
        each = -(-made.count // cores)
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
    def count(self) -> int:
        """Tiles of all images."""
        return known(self.images) * self.tiles[0] * self.tiles[1]

    @property
    def is_counted(self) -> bool:
        """True where the number of tiles is known."""
        return all(isinstance(d, int) for d in self.output_dims)

    @property
    def few(self) -> int:
        """The height of register tiles that remain of an unknown number; 0 where it is known."""
        return 0 if self.is_counted else max(h for h in _FEW if self.height % h == 0)

    @property
    def product_flops(self) -> float:
        """Operations of the products of all images."""
        return 2.0 * self.count * self.positions * self.channels * self.filters

    @property
    def flops(self) -> float:
        """Operations of the products and of the epilogue."""
        return self.product_flops + self.pixels * self.filters * self.epilogue.flops

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

    def operands(self) -> tuple[Operand, ...]:
        """Return x, w (packed), what the epilogue reads, y, scratch memory."""
        return (
            *self.sources,
            Operand("w", (self.panels.size,), layout=self.layout),
            *self.epilogue.operands("e", self.matrix_rows, self.filters),
            Operand("y", (*self.output_dims, self.filters), "out"),
            Operand("scratch", (self.workgroups * sum(self.scratch),), "out"),
        )

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        epilogue = InKernel.of(k, self.epilogue, "e", memory)
        taken = (memory["w"], memory["y"], memory["scratch"], epilogue)
        Filtering(k, self, self.pieces(memory), *taken).build()


def are_fitting(*axes: ConvAxis) -> bool:
    """Return whether windows have three taps side by side, move by one, and meet the image.

    A window in the padding alone is 0, but rounded sums of its tile are not.
    """
    taps = all((a.kernel, a.stride, a.dilation) == (TAPS, 1, 1) for a in axes)
    return taps and all(max(a.low, a.high) < TAPS for a in axes)


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
        high, wide = self._tiles
        tiles = k.size(knobs.images) * (high * wide)
        first, end = nest.share(k, 0, knobs.workgroups, tiles)
        own = k.workgroup() * sum(knobs.scratch)
        with k.range(first, end, knobs.block) as start:
            count = least(end - start, knobs.block)
            with k.range(count) as number:
                self._transform(self._place(start + number), own + number * knobs.depth)
            panels, block = knobs.panels, (own, start, count)
            if panels.full:
                with k.range(panels.full) as number:
                    self._panel(panels.at(number), block)
            if panels.last_width:
                self._panel(panels.last(), block)

    @property
    def _tiles(self) -> tuple[Index, Index]:
        """Rows and columns of tiles of an image."""
        _, high, wide = (self.k.size(d).ceildiv(self.knobs.m) for d in self.knobs.output_dims)
        return high, wide

    def _place(self, tile: Index) -> TilePlace:
        high, wide = self._tiles
        row, x = tile // wide, tile % wide
        image, y = self.knobs.row_of(row, high)
        return TilePlace(image, y * self.knobs.m, x * self.knobs.m)

    def _transform(self, place: TilePlace, at: Index) -> None:
        """Transform one tile of x, for all channels, to scratch[position][tile][channel]."""
        k, knobs = self.k, self.knobs
        conditions = []
        for axis, start in ((knobs.rows, place.y), (knobs.columns, place.x)):
            last = (-(-axis.outputs // knobs.m) - 1) * knobs.m
            if axis.low:
                conditions.append(Index.of(axis.low - 1) < start)
            if axis.name or last + knobs.side - axis.low > axis.size:
                padded = k.size(axis.dim) + axis.low
                conditions.append(start < padded - least(padded, knobs.side - 1))

        def channels(masked: bool) -> None:
            # The vectors of a piece may pass its end, into what the next one then writes.
            for piece in self.x:
                self._piece(piece, place, at + piece.start, masked)

        if not conditions:
            return channels(masked=False)
        inside = reduce(Condition.__and__, conditions)
        k.either(inside, [], lambda: channels(masked=False), lambda: channels(masked=True))
        return None

    def _piece(self, piece: Piece, place: TilePlace, at: Index, masked: bool) -> None:
        k, knobs, side = self.k, self.knobs, self.knobs.side
        bt = matrices(knobs.m).bt
        high, wide = k.size(knobs.rows.dim), k.size(knobs.columns.dim)
        rows = [border(knobs.rows, high, place.y, i) for i in range(side)]
        columns = [border(knobs.columns, wide, place.x, i) for i in range(side)]

        @k.each(piece.width, 1)
        def _(lanes: Lanes) -> None:
            source = lanes.moved(piece.first)

            def number(i: int, j: int) -> Vector:
                if not masked:
                    y, x = (rows[i].plain, columns[j].plain)
                    return piece.memory.load(place.image, y, x, source)
                y, x = rows[i], columns[j]
                spot = k.only_if(y.inside & x.inside, source)
                return piece.memory.load(place.image, y.clamped, x.clamped, spot)

            tile = [[number(i, j) for i in range(side)] for j in range(side)]
            half = [_products(bt, column) for column in tile]
            for i in range(side):
                whole = _products(bt, [half[j][i] for j in range(side)])
                for j, value in enumerate(whole):
                    position = (i * side + j) * knobs.block * knobs.depth
                    self.scratch.store(value, Lanes(at + position + lanes.start))

    def _panel(self, panel: Panel, block: tuple[Index, Index, Index]) -> None:
        """Compute one panel of filters for a block's tiles: products, then outputs."""
        k, knobs, width = self.k, self.knobs, panel.width
        own, start, count = block
        vectors, weights = width // k.lanes, panel.start(knobs.panels)
        sums = own + knobs.scratch[0]
        each = knobs.channels * width

        def group(position: Index, first: Index, height: int) -> None:
            tiles = position * knobs.block + first
            made = self._product(
                weights + position * each, own + tiles * knobs.depth, height, width
            )
            into = sums + tiles * knobs.panel
            for n, value in enumerate(made):
                row, v = divmod(n, vectors)
                self.scratch.store(value, into + (row * knobs.panel + v * k.lanes))

        few = knobs.few
        whole = count // knobs.height if few else count.ceildiv(knobs.height)
        with k.range(knobs.positions) as position:
            with k.range(whole) as number:
                group(position, number * knobs.height, knobs.height)
            if few:
                with k.range(whole * knobs.height, count, few) as first:
                    group(position, first, few)
        with k.range(count) as number:
            place = self._place(start + number)
            for v, lanes in enumerate(panel.places(k)):
                self._outputs(place, sums + number * knobs.panel + v * k.lanes, lanes)

    def _product(self, weights: Index, tiles: Index, height: int, width: int) -> list[Vector]:
        """Multiply a register tile of one position: tiles by filters, over all channels."""
        k, knobs = self.k, self.knobs

        def left(t: int, at: Index) -> Scalar:
            return self.scratch.number(tiles + t * knobs.depth + at)

        def right(v: int, at: Index) -> Vector:
            return self.w.load(weights + at * width + v * k.lanes)

        def ahead(at: Index) -> None:
            # Those of the next position, or of the next panel, which follow.
            start = weights + (knobs.channels + at) * width
            for line in range(0, width * knobs.unroll, LINE):
                self.w.prefetch(start + line, level=2)

        tile = ProductTile(k, height, width // k.lanes, knobs.unroll, left, right, ahead)
        zeros = [k.vector(0.0)] * (tile.height * tile.width)
        return tile.accumulate(Index.of(knobs.channels), zeros)

    def _outputs(self, place: TilePlace, sums: Index, lanes: Lanes) -> None:
        """Store one tile's outputs for one vector of filters, as far as they lie in the result."""
        k, knobs, side = self.k, self.knobs, self.knobs.side
        at = matrices(knobs.m).at
        stride = knobs.block * knobs.panel
        half = []
        for j in range(side):
            column = [self.scratch.load(sums + (i * side + j) * stride) for i in range(side)]
            half.append(_products(at, column))
        _, high, wide = map(k.size, knobs.output_dims)
        for i in range(knobs.m):
            row = _products(at, [half[j][i] for j in range(side)])
            with self._within(place.y + i, high):
                for j, value in enumerate(row):
                    y, x = place.y + i, place.x + j
                    with self._within(x, wide):
                        matrix_row = (place.image * high + y) * wide + x
                        made = self.epilogue.row(matrix_row)(value, lanes)
                        self.y.store(made, place.image, y, x, lanes)

    def _within(self, at: Index, outputs: Index) -> AbstractContextManager:
        """Do what follows where a tile's output is one of the image's."""
        whole = outputs.number is not None and outputs.number % self.knobs.m == 0
        return nullcontext() if whole else self.k.when(at < outputs)


def _products(matrix: np.ndarray, numbers: Sequence[Vector]) -> list[Vector]:
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


def _cost(knobs: Winograd, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Add the products, the weights and the transforms.

    The transformed weights are 16/9 or 4 times those of the model: all layers' together do not stay
    in a cache, so that they count as read from memory, which few tiles wait for: once, or for each
    block of tiles where they leave the second-level cache in between.
    """
    own, model = knobs.at(sizes), CostModel(target)
    made = operand_cost(own, target, {})
    computed = model.kernel("winograd", own.flops, 0).seconds
    each = own.positions * own.side * (own.channels + own.filters)
    streams = 1 if made.constant_bytes <= target.l2_bytes // 2 else -(-own.count // own.block)
    seconds = computed + streams * made.constant_bytes / model.bandwidth
    seconds += model.kernel("winograd.transform", 4.0 * own.count * each, 0).seconds
    return replace(made, seconds=seconds)


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a 3x3 convolution of stride 1 with constant weights, and what the epilogue can do."""
    found = find(work, "conv2d")
    if found is None or found.weights is None or found.planar or found.groups != 1:
        return []
    if found.dtype != "f32" or not are_fitting(found.rows, found.columns):
        return []
    # A transform of larger weights, or of their products, may overflow.
    if work.inputs[found.weights].magnitude > 1e36:
        return []
    covers, program = longest(work, found.covers, MatrixView(found.result, 3))
    feeds = (*found.feeds, Feed(found.weights, (3,)), *program.feeds)
    window = (found.images, found.rows, found.columns, found.channels, found.filters)
    others: dict[str, Any] = {"epilogue": program.program, "parts": found.parts}
    made = (Winograd.on(target, m, *window, **others) for m in SIZES)
    return [o for knobs in made for o in FAMILY.offer(knobs, target, covers, feeds, indirect=True)]


FAMILY = Family("winograd", Winograd, match, cost=_cost)
