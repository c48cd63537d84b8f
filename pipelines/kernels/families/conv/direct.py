"""Direct convolutions with constant weights: knobs and code of the kernel family ``conv``.

A direct convolution (no im2col): a register tile of neighbouring outputs of one row by a panel of
output channels is accumulated over all taps and input channels, the input broadcast, the weights
loaded in vectors from panels [taps][channels][panel] that are packed when compiling. Since x is
only broadcast, its layout is free: NHWC, or NCHW for the input of a network. Borders are left out
tap by tap (`window.py`).

`DirectConv` holds the knobs; `DirectConv.on` chooses them for a target.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyc_mlir.pipelines.kernels.families.conv.filters import Filters
from pyc_mlir.pipelines.kernels.families.conv.sources import (
    ChannelSlice,
    Piece,
    channels_of,
    first_held,
    fits,
    operands,
    pieces,
    scratch_of,
    widen,
)
from pyc_mlir.pipelines.kernels.families.conv.window import (
    PIXELS_OF_RESULT,
    ConvAxis,
    Segment,
    TileRun,
    pixels_of,
    taps_at,
)
from pyc_mlir.pipelines.kernels.families.packing import Panels
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand, in_type
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar, Vector, fma, least
from pyc_mlir.pipelines.kernels.shared.grid import cores_for, known, share
from pyc_mlir.pipelines.kernels.shared.tile import local
from pyc_mlir.pipelines.target.target import Target

_PAGE = 1024  # numbers in 4 KiB


@dataclass(frozen=True)
class DirectConv:
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
    width: int = 14
    panel: int = 32
    unroll: int = 4
    workgroups: tuple[int, int] = (1, 1)
    parts: tuple[ChannelSlice, ...] = ()
    dtype: str = "f32"

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        counts = (self.channels, self.filters, self.groups, self.merged, self.width, self.unroll)
        if self.images == 0 or min(*counts, *self.workgroups) < 1:
            raise no_kernel("conv", "sizes, width, unroll and workgroups of at least 1", self)
        if self.panel < LINE or self.panel % LINE:
            raise no_kernel("conv", "panel in lines of 16", self.panel)
        if self.channels % self.groups or self.filters % self.groups or self.groups % self.merged:
            raise no_kernel(
                "conv", "channels and filters in whole groups, groups in whole merged ones", self
            )
        if not fits(self.channels, self.parts) or (self.parts and (self.planar or self.groups > 1)):
            raise no_kernel(
                "conv", "parts that are all channels of NHWC images without groups", self
            )

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
        pitches = channels_of(channels, parts)
        if not made.planar and any(pitch * columns.stride % _PAGE == 0 for pitch in pitches):
            # Positions that lie a page apart meet in one set of the first-level cache.
            vectors = max(4, vectors)
        tall = (target.vector_registers - vectors - 1) // vectors
        panel = vectors * target.vector_bytes // 4
        cores = cores_for(target, made.flops, 4.0 * made.weights)
        made = replace(made, width=tall, panel=panel)
        knobs = {"workgroups": _cut(cores, made, panel)}
        return replace(made, **{**knobs, **others})

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of an image of the result; assumed ones where they are not known."""
        return self.rows.outputs, self.columns.outputs

    @property
    def output_dims(self) -> tuple[Dim, Dim]:
        """Rows and columns of an image of the result, a name where they are not known."""
        return self.rows.output_dim, self.columns.output_dim

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
    def taps(self) -> int:
        """Positions of the window."""
        return self.rows.kernel * self.columns.kernel

    @property
    def blocks(self) -> int:
        """Groups, merged ones taken as one."""
        return self.groups // self.merged

    @property
    def weights(self) -> int:
        """The count of numbers in w."""
        return self.taps * self.channels // self.groups * self.filters

    @property
    def flops(self) -> float:
        """Operations of all images, those of the epilogue left out."""
        return 2.0 * known(self.images) * self.outputs[0] * self.outputs[1] * self.weights

    @property
    def panels(self) -> Panels:
        """The layout of the weights of one block of groups."""
        depth = self.taps * self.channels // self.blocks
        return Panels(self.filters // self.blocks, depth, self.panel, self.dtype)

    @property
    def layout(self) -> Filters:
        """The layout of all weights."""
        return Filters(self.taps, self.blocks, self.merged, self.panels)

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x, w (packed), the epilogue's, then y."""
        image = (self.rows.dim, self.columns.dim)
        x = operands((self.images, *image), self.channels, self.parts)
        if self.planar:
            x = [Operand("x", (self.images, self.channels, *image))]
        result = (self.images, *self.output_dims, self.filters)
        matrix = pixels_of(self.images, self.output_dims)
        taken = (
            *x,
            Operand("w", (self.blocks * self.panels.size,), layout=self.layout),
            *self.epilogue.operands("e", matrix, self.filters),
            Operand("y", result, "out"),
        )
        taken = (*in_type(taken, self.dtype), *scratch_of(self))
        return Kernel(
            name, taken, lambda size: self.workgroups, self._body, merged=PIXELS_OF_RESULT
        )

    def _body(self, k: Build, *memory: Memory) -> None:
        x = pieces(memory, self.channels, self.parts)
        w, *reads, y = memory[len(x) : len(memory) - len(scratch_of(self))]
        held = memory[-1] if scratch_of(self) else None
        Direct(k, self, x, w, y, InKernel(k, self.epilogue, tuple(reads)), held=held).build()


@dataclass(frozen=True)
class FilterPanel:
    """Filters of one register tile: where they start in the result, and in the packed weights."""

    group: Index
    filter: Index
    weights: Index
    width: int
    last: bool = False


@dataclass(frozen=True)
class ConvRow:
    """A row of the result: its image, its number there, and the taps that meet the image."""

    image: Index
    number: Index
    taps: tuple[Index, Index]


@dataclass(frozen=True)
class _Found:
    """The taps of one output, from the first to before the last; as `Segment`."""

    taps: tuple[Index, Index]
    outputs: range = range(1)


def _ends(taps: range) -> tuple[Index, Index]:
    return Index.of(taps.start), Index.of(taps.stop)


@dataclass(frozen=True)
class Direct:
    """One kernel under construction: loops from the outside in, then the register tile."""

    k: Build
    knobs: DirectConv
    x: tuple[Piece, ...]
    w: Memory
    y: Memory
    epilogue: InKernel
    sums: list[Memory] = field(default_factory=list)
    held: Memory | None = None

    def build(self) -> None:
        """Build every block's panels, also the narrower last one, over this share's rows."""
        k, knobs = self.k, self.knobs
        if knobs.epilogue.heavy:
            self.sums.append(local(k, knobs.width * knobs.panel))
        panels = knobs.panels
        first, end = share(k, 1, knobs.workgroups[1], Index.of(panels.full * knobs.blocks))
        if panels.full:
            with k.range(first, end) as number:
                group, panel = number // panels.full, number % panels.full
                start = group * panels.size + panel * (panels.depth * panels.panel)
                filters = group * panels.columns + panel * panels.panel
                self._rows(FilterPanel(group, filters, start, panels.panel))
        if panels.last_width:
            first, end = share(k, 1, knobs.workgroups[1], Index.of(knobs.blocks))
            with k.range(first, end) as group:
                start = group * panels.size + panels.edge * panels.depth
                filters = group * panels.columns + panels.edge
                self._rows(FilterPanel(group, filters, start, panels.last_width, last=True))

    def _rows(self, panel: FilterPanel) -> None:
        """Compute this workgroup's rows of all images."""
        k, knobs = self.k, self.knobs
        high = k.size(knobs.rows.output_dim)
        parts = 1 if knobs.shares_tiles else knobs.workgroups[0]
        first, end = share(k, 0, parts, k.size(knobs.images) * high)
        with k.range(first, end) as number:
            image, row = (
                (Index.of(0), number) if knobs.images == 1 else (number // high, number % high)
            )
            taps = taps_at(knobs.rows, row, k.size(knobs.rows.dim))
            found = ConvRow(image, row, taps)
            if self.held is not None:
                widen(k, knobs, self.x, found, partial(self._row_under, found), self.held)
            self._columns(panel, found)

    def _row_under(self, row: ConvRow, down: Index) -> Index:
        """Return the row of x under a tap of an output row."""
        axis = self.knobs.rows
        return row.number * axis.stride + down * axis.dilation - axis.low

    def _columns(self, panel: FilterPanel, row: ConvRow) -> None:
        """Compute all outputs of a row."""
        if self.knobs.columns.name:
            self._unknown_width(panel, row)
            return
        for run in self.knobs.columns.tiles(self.knobs.width):
            self._run(panel, row, run)

    def _unknown_width(self, panel: FilterPanel, row: ConvRow) -> None:
        """Compute a row of unknown length: full tiles where all taps meet the image, then ones."""
        k, knobs, axis = self.k, self.knobs, self.knobs.columns
        parts = knobs.workgroups[0] if knobs.shares_tiles else 1
        wide, inner = k.size(axis.dim), Index.of(axis.low)
        left = least(inner, wide)
        inside = wide - left
        count = (inside - least(inside, axis.high)) // knobs.width
        full = [Segment(range(axis.kernel), range(knobs.width))]
        with k.range(*share(k, 0, parts, count)) as tile:
            self._tile(panel, row, full, tile * knobs.width + inner, knobs.width)
        # The last workgroup does what is left.
        with nullcontext() if parts == 1 else k.when(k.workgroup(0).equals(parts - 1)):
            for first, end in ((Index.of(0), left), (left + count * knobs.width, wide)):
                with k.range(first, end) as at:
                    self._single(panel, row, at)

    def _single(self, panel: FilterPanel, row: ConvRow, at: Index) -> None:
        """Compute one output whose taps are found while the kernel runs."""
        axis = self.knobs.columns
        taps = taps_at(axis, at, self.k.size(axis.dim))
        self._tile(panel, row, [_Found(taps)], at, 1)

    def _run(self, panel: FilterPanel, row: ConvRow, run: TileRun) -> None:
        """Compute neighbouring tiles; of a single row, this workgroup's share of them."""
        k, knobs = self.k, self.knobs
        parts = knobs.workgroups[0] if knobs.shares_tiles else 1
        if run.count == 1:
            with nullcontext() if parts == 1 else k.when(k.workgroup(0).equals(parts - 1)):
                self._tile(panel, row, run.segments, Index.of(run.start), run.width)
            return
        with k.range(*share(k, 0, parts, Index.of(run.count))) as tile:
            self._tile(panel, row, run.segments, tile * run.width + run.start, run.width)

    def _tile(
        self,
        panel: FilterPanel,
        row: ConvRow,
        segments: Sequence[Segment | _Found],
        start: Index,
        width: int,
    ) -> None:
        """Compute one register tile: outputs `start` and on of a row, by the filters of a panel."""
        k = self.k
        vectors = len(self.places(panel))
        zeros = [k.vector(0.0)] * (width * vectors)

        def over(tap: Index, *sums: Vector) -> list[Vector]:
            kept = list(sums)
            for segment in segments:
                kept = self._segment(panel, row, tap, start, segment, kept)
            return kept

        sums = k.loop(*row.taps, 1, zeros)(over)
        self._finish(panel, row, start, width, sums)

    def _segment(
        self,
        panel: FilterPanel,
        row: ConvRow,
        down: Index,
        start: Index,
        segment: Segment | _Found,
        sums: list[Vector],
    ) -> list[Vector]:
        """Add the taps of one segment in one row of taps."""
        k, knobs = self.k, self.knobs
        depth = knobs.panels.depth // knobs.taps
        vectors = len(self.places(panel))
        y = self._row_under(row, down)
        low, high = segment.outputs.start, segment.outputs.stop
        first, end = segment.taps if isinstance(segment, _Found) else _ends(segment.taps)

        def over(tap: Index, *kept: Vector) -> list[Vector]:
            columns = knobs.columns
            x = (start + low) * columns.stride + tap * columns.dilation - columns.low
            weights = panel.weights + (down * columns.kernel + tap) * (depth * panel.width)
            made = list(kept)
            if self.held is not None:
                # The rows that were widened hold all parts, one after the other.
                whole = Piece(self.held, 0, 0, knobs.channels)
                place = (Index.of(0), first_held(k, knobs) + down, x)
                return self._channels(panel, whole, place, weights, high - low, made)
            for piece in self.x:
                begin = weights + piece.start * panel.width
                made = self._channels(panel, piece, (row.image, y, x), begin, high - low, made)
            return made

        mine = slice(low * vectors, high * vectors)
        made = list(sums)
        made[mine] = k.loop(first, end, 1, sums[mine])(over)
        return made

    def _channels(
        self,
        panel: FilterPanel,
        piece: Piece,
        place: tuple[Index, Index, Index],
        weights: Index,
        outputs: int,
        sums: list[Vector],
    ) -> list[Vector]:
        """Add the channels of one piece under one tap: at `place` for the first of the outputs."""
        k, knobs = self.k, self.knobs
        vectors = len(sums) // outputs
        image, y, x = place
        depth = knobs.panels.depth // knobs.taps
        # What is in one piece may have groups.
        width = piece.width if knobs.parts else depth
        first = panel.group * depth + piece.first

        def step(unroll: int) -> Callable[..., list[Vector]]:
            def steps(at: Index, *kept: Vector) -> list[Vector]:
                made = list(kept)
                for u in range(unroll):
                    start = weights + (at + u) * panel.width
                    loaded = [self.w.load(start + v * k.lanes) for v in range(vectors)]
                    for p in range(outputs):
                        spot = (image, y, x + p * knobs.columns.stride, first + (at + u))
                        one = self._number(piece.memory, *spot).across(k.lanes)
                        for v in range(vectors):
                            n = p * vectors + v
                            made[n] = fma(one, loaded[v], made[n])
                return made

            return steps

        edge = width // knobs.unroll * knobs.unroll
        kept = k.loop(0, edge, knobs.unroll, sums)(step(knobs.unroll))
        return k.loop(edge, width, 1, kept)(step(1))

    def _number(self, memory: Memory, image: Index, y: Index, x: Index, channel: Index) -> Scalar:
        if self.held is not None:
            return (
                memory.number(y, channel, x) if self.knobs.planar else memory.number(y, x, channel)
            )
        if self.knobs.planar:
            return memory.number(image, channel, y, x)
        return memory.number(image, y, x, channel)

    def _finish(
        self, panel: FilterPanel, row: ConvRow, start: Index, width: int, sums: list[Vector]
    ) -> None:
        """Store what the epilogue makes of the sums."""
        k, knobs = self.k, self.knobs
        places = self.places(panel)
        high, wide = (k.size(d) for d in knobs.output_dims)
        first = (row.image * high + row.number) * wide + start
        vectors = len(places)
        if self.sums:
            (kept,) = self.sums
            for n, value in enumerate(sums):
                kept.store(value, Index.of(n * k.lanes))
            with k.range(width) as p:
                apply = self.epilogue.row(first + p)
                for v, at in enumerate(places):
                    value = apply(kept.load((p * vectors + v) * k.lanes), at)
                    self.y.store(value, row.image, row.number, start + p, at)
            return
        for p in range(width):
            apply = self.epilogue.row(first + p)
            for v, at in enumerate(places):
                self.y.store(apply(sums[p * vectors + v], at), row.image, row.number, start + p, at)

    def places(self, panel: FilterPanel) -> list[Lanes]:
        """Return the places of the tile's vectors in a row of filters: in a last panel masked."""
        k, panels = self.k, self.knobs.panels
        starts = range(0, panel.width, k.lanes)
        if not panel.last:
            return [Lanes(panel.filter + v) for v in starts]
        left = panels.columns - panels.edge
        masked = [k.tail(Index.of(v), Index.of(left)) for v in starts if v < left]
        return [Lanes(panel.filter + at.start, at.mask) for at in masked]


def _cut(cores: int, knobs: DirectConv, panel: int) -> tuple[int, int]:
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
