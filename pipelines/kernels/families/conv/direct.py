"""The kernel family ``conv``: y = epilogue(conv2d(x, w)), with constant weights w.

A direct convolution (no im2col): a register tile of neighbouring outputs of one row by a panel of
output channels is accumulated over all taps and input channels, the input broadcast, the weights
loaded in vectors from panels [taps][channels][panel] that are packed when compiling. Since x is
only broadcast, its layout is free: NHWC, or NCHW for the input of a network. Borders are left out
tap by tap (`window.py`). Images of f16 or bf16, of which a number takes several instructions, are
widened to f32 first, row by row, in vectors.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyc_mlir.pipelines.kernels import nest
from pyc_mlir.pipelines.kernels.families.window import (
    ChannelSlice,
    ConvAxis,
    MetTaps,
    OpenRow,
    Piece,
    Segment,
    TileRun,
    WindowKnobs,
    find,
    taps_at,
)
from pyc_mlir.pipelines.kernels.knobs import HEIGHTS, PANELS, UNROLLS, cuts, knob, known
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand, in_type
from pyc_mlir.pipelines.kernels.lang.language import HALVES, LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar
from pyc_mlir.pipelines.kernels.match import Feed, KernelOffer, MatrixView, longest
from pyc_mlir.pipelines.kernels.nest import Finish, Panel, Panels, ProductTile, Row
from pyc_mlir.pipelines.kernels.registry import Family, operand_cost
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

_PAGE = 1024  # numbers in 4 KiB


@dataclass(frozen=True)
class Filters:
    """The layout of w[taps channels, filters]: panels, block after block; flat.

    A block is `merged` groups as one: its weights from channels to filters of other groups are 0.
    """

    taps: int
    blocks: int
    merged: int
    panels: Panels

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of w."""
        return self.panels.depth // self.merged, self.blocks * self.panels.columns

    def pack(self, weights: np.ndarray) -> np.ndarray:
        """Return the weights under this layout."""
        each = weights.reshape(self.taps, -1, self.blocks, self.merged, self._filters)
        depth = each.shape[1]
        shape = (self.blocks, self.taps, self.merged, depth, self.merged, self._filters)
        whole = np.zeros(shape, weights.dtype)
        for g in range(self.merged):
            whole[:, :, g, :, g] = each[:, :, :, g].transpose(2, 0, 1, 3)
        matrices = whole.reshape(self.blocks, self.panels.depth, self.panels.columns)
        return np.concatenate([self.panels.pack(w) for w in matrices])

    @property
    def _filters(self) -> int:
        return self.panels.columns // self.merged


@dataclass(frozen=True)
class DirectConv(WindowKnobs, family="conv"):
    """The knobs of y[images, rows, columns, filters] = epilogue(conv2d(x, w)).

    x is [images, rows, columns, channels]; [images, channels, rows, columns] if `planar`. Without
    groups it may lie in `parts`.
    `channels` and `filters` count all `groups`. The epilogue's matrix is [images rows columns,
    filters]. `width` is how many outputs of a row, `panel` how many filters the register tile has;
    `unroll` input channels are one turn of the innermost loop; `workgroups` cuts rows (of
    a single one the tiles) and panels.
    `merged` groups are computed as one, with zeros between them, where they have few filters.
    Of a half `dtype`, the rows of x under the taps are widened to f32 for each row of outputs, and
    weights in registers.
    """

    images: Dim
    rows: ConvAxis
    columns: ConvAxis
    channels: int
    filters: int
    groups: int = 1
    merged: int = 1
    epilogue: Pointwise = NOTHING
    planar: bool = False
    width: int = knob(14, lambda k, _: [w for w in HEIGHTS if k.columns.name or w <= k.outputs[1]])
    panel: int = knob(32, PANELS, multiple=LINE)
    unroll: int = knob(4, UNROLLS)
    workgroups: tuple[int, int] = knob(
        (1, 1),
        lambda k, target: cuts(
            target, known(k.images) * k.outputs[0], k.blocks * max(1, k.panels.full)
        ),
    )
    parts: tuple[ChannelSlice, ...] = ()
    dtype: str = "f32"

    def _misfit(self) -> str:
        if self.channels % self.groups or self.filters % self.groups or self.groups % self.merged:
            return "channels and filters in whole groups, groups in whole merged ones"
        if self.parts and (self.planar or self.groups > 1):
            return "parts that are all channels of NHWC images without groups"
        return super()._misfit()

    def refusal(self, target: Target) -> str:
        """Refuse a tile whose sums, row of weights and number of x do not fit the registers."""
        return nest.refuse_tile("conv", self.width, self.panel, target)

    @staticmethod
    def on(
        target: Target,
        images: Dim,
        rows: ConvAxis,
        columns: ConvAxis,
        channels: int,
        filters: int,
        groups: int = 1,
        planar: bool = False,
        parts: tuple[ChannelSlice, ...] = (),
        **others: Any,
    ) -> "DirectConv":
        """Choose the knobs for a target's registers and cores; `others` are further fields."""
        most = max(1, target.vector_bytes // 4 * groups // filters)
        merged = max(m for m in range(1, min(most, groups) + 1) if groups % m == 0)
        made = DirectConv(
            images, rows, columns, channels, filters, groups, merged, planar=planar, parts=parts
        )
        vectors = max(2, LINE * 4 // target.vector_bytes)
        if not planar and any(pitch * columns.stride % _PAGE == 0 for pitch in made.pitches):
            # Positions that lie a page apart meet in one set of the first-level cache.
            vectors = max(4, vectors)
        tall = (target.vector_registers - vectors - 1) // vectors
        panel = vectors * target.vector_bytes // 4
        cores = nest.cores_for(target, made.product_flops, 4.0 * made.weights)
        made = replace(made, width=tall, panel=panel)
        return replace(made, **{"workgroups": cut_conv(cores, made, panel), **others})

    @property
    def tiles(self) -> int:
        """Register tiles of a row."""
        return -(-self.outputs[1] // self.width)

    @property
    def shares_tiles(self) -> bool:
        """True where workgroups share the tiles of a row: the only one of one image, or of any."""
        unknown = isinstance(self.images, str) and self.tiles >= self.workgroups[0]
        return self.outputs[0] == 1 and (self.images == 1 or unknown)

    @property
    def blocks(self) -> int:
        """Groups, merged ones taken as one."""
        return self.groups // self.merged

    @property
    def weights(self) -> int:
        """The count of numbers in w."""
        return self.taps * self.channels // self.groups * self.filters

    @property
    def product_flops(self) -> float:
        """Operations of all images, those of the epilogue left out."""
        return 2.0 * self.pixels * self.weights

    @property
    def flops(self) -> float:
        """Operations of all images."""
        depth = self.weights // self.filters
        return self.pixels * self.filters * (2.0 * depth + self.epilogue.flops)

    @property
    def panels(self) -> Panels:
        """The layout of the weights of one block of groups."""
        depth = self.taps * self.channels // self.blocks
        return Panels(self.filters // self.blocks, depth, self.panel, self.dtype)

    @property
    def layout(self) -> Filters:
        """The layout of all weights."""
        return Filters(self.taps, self.blocks, self.merged, self.panels)

    @property
    def scratch(self) -> tuple[Operand, ...]:
        """Memory of each workgroup for the rows of x under the taps; none for f32."""
        if self.dtype not in HALVES:
            return ()
        count, pixel = self.workgroups[0] * self.workgroups[1], (self.columns.dim, self.channels)
        row = pixel[::-1] if self.planar else pixel
        return (Operand("scratch", (count * self.rows.kernel, *row), "out"),)

    def operands(self) -> tuple[Operand, ...]:
        """Return x, w (packed), what the epilogue reads, y, [scratch memory]."""
        x = self.sources
        if self.planar:
            images, *image, channels = x[0].shape
            x = [Operand("x", (images, channels, *image))]
        taken = (
            *x,
            Operand("w", (self.blocks * self.panels.size,), layout=self.layout),
            *self.epilogue.operands("e", self.matrix_rows, self.filters),
            Operand("y", (*self.output_dims, self.filters), "out"),
        )
        return (*in_type(taken, self.dtype), *self.scratch)

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        tile = self.width * self.panel
        finish = Finish.of(k, self.epilogue, memory, memory["y"], tile)
        x, held = self.pieces(memory), memory.get("scratch")
        Direct(k, self, x, memory["w"], finish, held).build()


@dataclass(frozen=True)
class FilterPanel:
    """Filters of one register tile: their group, and where they start in the packed weights."""

    panel: Panel
    group: Index
    weights: Index

    @staticmethod
    def of(panels: Panels, panel: Panel, group: Index) -> "FilterPanel":
        """Return a panel of the filters of a group."""
        start = group * panels.size + panel.start(panels)
        filters = replace(panel, column=group * panels.columns + panel.column)
        return FilterPanel(filters, group, start)


@dataclass(frozen=True)
class ConvRow:
    """A row of the result: its image, its number there, and the taps that meet the image."""

    image: Index
    number: Index
    taps: tuple[Index, Index]


@dataclass(frozen=True)
class Direct:
    """One kernel under construction: loops from the outside in, then the register tile.

    `held` is memory for the rows of x under the taps, as f32, where x is of halves.
    """

    k: Build
    knobs: DirectConv
    x: tuple[Piece, ...]
    w: Memory
    finish: Finish
    held: Memory | None

    def build(self) -> None:
        """Build every block's panels, also the narrower last one, over this share's rows."""
        k, knobs, panels = self.k, self.knobs, self.knobs.panels
        if panels.full:
            with k.range(*self._share(1, panels.full * knobs.blocks)) as at:
                self._rows(FilterPanel.of(panels, panels.at(at % panels.full), at // panels.full))
        if panels.last_width:
            with k.range(*self._share(1, knobs.blocks)) as group:
                self._rows(FilterPanel.of(panels, panels.last(), group))

    def _share(self, dimension: int, count: Index | int, cut: bool = True) -> tuple[Index, Index]:
        """Return this workgroup's share of so many; all where they are not `cut`."""
        parts = self.knobs.workgroups[dimension] if cut else 1
        return nest.share(self.k, dimension, parts, Index.of(count))

    def _rows(self, panel: FilterPanel) -> None:
        k, knobs = self.k, self.knobs
        high = k.size(knobs.rows.output_dim)
        rows = k.size(knobs.images) * high
        with k.range(*self._share(0, rows, not knobs.shares_tiles)) as number:
            image, row = knobs.row_of(number, high)
            found = ConvRow(image, row, taps_at(knobs.rows, row, k.size(knobs.rows.dim)))
            if self.held is not None:
                self._widen(found, self.held)
            if knobs.columns.name:
                self._unknown_width(panel, found)
            else:
                for run in knobs.columns.tiles(knobs.width):
                    self._run(panel, found, run)

    def _row_under(self, row: ConvRow, down: Index) -> Index:
        """Return the row of x under a tap of an output row."""
        axis = self.knobs.rows
        return row.number * axis.stride + down * axis.dilation - axis.low

    @property
    def _first_held(self) -> Index:
        """The number of this workgroup's first row in the scratch memory."""
        k, knobs = self.k, self.knobs
        number = k.workgroup(0) * knobs.workgroups[1] + k.workgroup(1)
        return number * knobs.rows.kernel

    def _widen(self, row: ConvRow, held: Memory) -> None:
        """Write the rows of x under the taps of an output row to `held`, parts side by side."""
        k, knobs = self.k, self.knobs
        wide, own = k.size(knobs.columns.dim), self._first_held
        with k.range(*row.taps) as down:
            y, to = self._row_under(row, down), own + down
            if knobs.planar:
                with k.range(knobs.channels) as channel:

                    @k.each(wide)
                    def _(at: Lanes) -> None:
                        value = self.x[0].memory.load(row.image, channel, y, at)
                        held.store(value, to, channel, at)

                return
            with k.range(wide) as column:
                for piece in self.x:

                    @k.each(piece.width)
                    def _(at: Lanes, piece: Piece = piece) -> None:
                        value = piece.memory.load(row.image, y, column, at.moved(piece.first))
                        held.store(value, to, column, at.moved(piece.start))

    def _unknown_width(self, panel: FilterPanel, row: ConvRow) -> None:
        """Compute a row of unknown length: full tiles where all taps meet the image, then ones."""
        k, knobs, axis = self.k, self.knobs, self.knobs.columns
        size = k.size(axis.dim)
        tiles = OpenRow.of(axis, knobs.width, size, k.size(axis.output_dim))
        full = [Segment(range(axis.kernel), range(knobs.width))]
        with k.range(*self._share(0, tiles.count, knobs.shares_tiles)) as tile:
            self._tile(panel, row, full, tile * knobs.width + tiles.first, knobs.width)
        with self._last():
            for ends in tiles.singles:
                with k.range(*ends) as at:
                    self._tile(panel, row, [MetTaps(taps_at(axis, at, size))], at, 1)

    def _last(self) -> AbstractContextManager:
        """Leave what remains of a row that workgroups share to the last one."""
        parts = self.knobs.workgroups[0] if self.knobs.shares_tiles else 1
        return nullcontext() if parts == 1 else self.k.when(self.k.workgroup(0).equals(parts - 1))

    def _run(self, panel: FilterPanel, row: ConvRow, run: TileRun) -> None:
        """Compute neighbouring tiles; of a single row, this workgroup's share of them."""
        if run.count == 1:
            with self._last():
                self._tile(panel, row, run.segments, Index.of(run.start), run.width)
            return
        with self.k.range(*self._share(0, run.count, self.knobs.shares_tiles)) as tile:
            self._tile(panel, row, run.segments, tile * run.width + run.start, run.width)

    def _tile(
        self,
        panel: FilterPanel,
        row: ConvRow,
        segments: Sequence[Segment | MetTaps],
        start: Index,
        width: int,
    ) -> None:
        """Compute one register tile: outputs `start` and on of a row, by the filters of a panel."""
        k, places = self.k, panel.panel.places(self.k)

        def over(tap: Index, *sums: Any) -> list[Any]:
            kept = list(sums)
            for segment in segments:
                kept = self._segment(panel, row, tap, start, segment, kept)
            return kept

        sums = k.loop(*row.taps, 1, [self.zero_sum] * (width * len(places)))(over)
        sums = self._completed(row, segments, width, places, sums)
        _, high, wide = (k.size(d) for d in self.knobs.output_dims)
        first = (row.image * high + row.number) * wide + start

        def at(p: Index) -> Row:
            return first + p, (row.image, row.number, start + p)

        self.finish.tile(sums, places, at, panel.panel.left)

    @property
    def zero_sum(self) -> Any:
        """The number that a sum begins with."""
        return self.k.vector(0.0)

    def _completed(
        self,
        row: ConvRow,
        segments: Sequence[Segment | MetTaps],
        width: int,
        places: Sequence[Lanes],
        sums: list[Any],
    ) -> list[Any]:
        """Return the sums of a tile as numbers of f32."""
        return sums

    def _segment(
        self,
        panel: FilterPanel,
        row: ConvRow,
        down: Index,
        start: Index,
        segment: Segment | MetTaps,
        sums: list[Any],
    ) -> list[Any]:
        k, knobs = self.k, self.knobs
        depth = knobs.panels.depth // knobs.taps
        width = panel.panel.width
        vectors = len(panel.panel.places(k))
        y = self._row_under(row, down)
        low, high = segment.outputs.start, segment.outputs.stop
        ends = segment.taps
        if isinstance(ends, range):
            ends = (Index.of(ends.start), Index.of(ends.stop))

        def over(tap: Index, *kept: Any) -> list[Any]:
            columns = knobs.columns
            x = (start + low) * columns.stride + tap * columns.dilation - columns.low
            weights = panel.weights + (down * columns.kernel + tap) * (depth * width)
            made = list(kept)
            if self.held is not None:
                # The rows that were widened hold all parts, one after the other.
                whole = Piece(self.held, 0, 0, knobs.channels)
                place = (Index.of(0), self._first_held + down, x)
                return self._channels(panel, whole, place, weights, high - low, made)
            for piece in self.x:
                begin = weights + piece.start * width
                made = self._channels(panel, piece, (row.image, y, x), begin, high - low, made)
            return made

        mine = slice(low * vectors, high * vectors)
        made = list(sums)
        made[mine] = k.loop(*ends, 1, sums[mine])(over)
        return made

    def _channels(
        self,
        panel: FilterPanel,
        piece: Piece,
        place: tuple[Index, Index, Index],
        weights: Index,
        outputs: int,
        sums: list[Any],
    ) -> list[Any]:
        """Add the channels of one piece under one tap: at `place` for the first of the outputs."""
        k, knobs = self.k, self.knobs
        image, y, x = place
        depth = knobs.panels.depth // knobs.taps
        # What is in one piece may have groups.
        width = piece.width if knobs.parts else depth
        first = panel.group * depth + piece.first

        def left(p: int, at: Index) -> Scalar:
            column, channel = x + p * knobs.columns.stride, first + at
            if self.held is not None:
                inner = (channel, column) if knobs.planar else (column, channel)
                return piece.memory.number(y, *inner)
            inner = (channel, y, column) if knobs.planar else (y, column, channel)
            return piece.memory.number(image, *inner)

        def right(v: int, at: Index) -> Any:
            return self.w.load(weights + at * panel.panel.width + v * k.lanes)

        tile = ProductTile(k, outputs, len(sums) // outputs, knobs.unroll, left, right)
        return tile.accumulate(Index.of(width), sums)


def cut_conv(cores: int, knobs: DirectConv, panel: int) -> tuple[int, int]:
    """Return shares of rows and of panels: panels if they come out even, rows otherwise.

    A last panel that is narrower makes shares of panels uneven.
    """
    each = knobs.filters // knobs.blocks
    if cores == 1 or (each % panel == 0 and knobs.blocks * each // panel % cores == 0):
        return 1, cores
    rows = known(knobs.images) * knobs.outputs[0]
    if replace(knobs, workgroups=(cores, 1)).shares_tiles:
        rows = max(rows, knobs.tiles)
    return (cores, 1) if rows >= cores else (1, min(cores, knobs.blocks * -(-each // panel)))


def _cost(knobs: DirectConv, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count each tensor once across memory; the packed weights are constants.

    Lanes that the narrowest panel leaves idle are time, but no operations.
    """
    known = knobs.at(sizes)
    made = operand_cost(known, target, {})
    idle = known.blocks * known.panels.size / known.weights
    computed = CostModel(target).kernel("conv", known.flops, 0).seconds
    return replace(made, seconds=max(made.seconds, idle * computed))


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a convolution with constant weights and as much as the epilogue can do.

    Groups computed together add products with zeros, which spread infinities.
    """
    found = find(work, "conv2d")
    if found is None or found.weights is None or (found.parts and found.groups > 1):
        return []
    flat = found.is_flat and found.dtype == "f32"
    if found.is_flat and not flat and found.groups == 1 and not (found.planar or found.parts):
        return []  # a product: `half_gemm`
    seen = found.flat if flat else found
    covers, program = longest(work, found.covers, MatrixView(found.result, 3))
    knobs = DirectConv.on(
        target, seen.images, seen.rows, seen.columns, found.channels, found.filters, found.groups,
        epilogue=program.program, planar=found.planar, parts=found.parts, dtype=found.dtype,
    )  # fmt: skip
    apart = [replace(knobs, merged=1)] if knobs.merged > 1 else []
    feeds = (*seen.feeds, Feed(found.weights, (3,)), *program.feeds)
    # Unknown sides count for the sizes that the knobs were chosen for.
    taken = {axis.name: axis.size for axis in (knobs.rows, knobs.columns) if axis.name}
    return [
        offer
        for k in (knobs, *apart)
        for offer in FAMILY.offer(k, target, covers, feeds, taken, indirect=k.merged > 1)
    ]


FAMILY = Family("conv", DirectConv, match, cost=_cost)
