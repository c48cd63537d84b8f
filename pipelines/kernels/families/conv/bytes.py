"""The kernel family ``int8``: products and convolutions of bytes, with what follows.

A direct convolution as that of f32 (`direct.py`), whose loops it has, on four channels at a time: a
quad of x is broadcast, and each lane adds its four products with the quad of weights of one filter,
exactly, in i32. Taps beyond the image are left out; what the zero point of x adds follows from sums
of the weights over the taps that are met, a table that is laid out with them. Then a bias in i32,
the numbers as f32, the epilogue, and the conversion to bytes. A product is a convolution of one tap
whose row of pixels is the matrix.

The form ``amx`` takes whole tiles instead. A tile's row is one pixel's bytes under neighbouring
taps of a row, which lie one after the other in NHWC images; its rows are neighbouring outputs. A
padded image is copied with its border first; the border holds the zero point, which adds nothing. A
block is two tiles of pixels by two of filters. Its four tiles of sums start with the bias less the
zero point's share; each chunk of channels under each row of taps adds four products of tiles, for
four loads. The sums then lie on the stack, from where the epilogue takes them pixel by pixel.
Neighbouring tiles overlap where a row of outputs has no whole number of them; what both compute is
the same.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels.families.bytes import (
    AMX,
    FORMS,
    MADD,
    QUAD,
    RESULTS,
    VNNI,
    ByteFilters,
    Dot,
    TapRanges,
    TapSums,
    TileWindow,
    best_dot,
    find_bytes,
    fits_tiles,
    has_dot,
    quad_starts,
)
from pyc_mlir.pipelines.kernels.families.conv.direct import (
    ConvRow,
    Direct,
    DirectConv,
    FilterPanel,
    MetTaps,
    cut_conv,
)
from pyc_mlir.pipelines.kernels.families.window import ConvAxis, Piece, Segment, axes_of
from pyc_mlir.pipelines.kernels.knobs import knob
from pyc_mlir.pipelines.kernels.lang import values as ops
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.narrow import BOUNDS, NARROW, Narrow
from pyc_mlir.pipelines.kernels.lang.tiles import (
    COLUMNS,
    ROW_BYTES,
    ROWS,
    Tiles,
    TileShape,
    local_memory,
)
from pyc_mlir.pipelines.kernels.lang.values import Index, Ints, Mask
from pyc_mlir.pipelines.kernels.match import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.nest import Finish, Panel, Panels, ProductTile, cores_for, share
from pyc_mlir.pipelines.kernels.registry import Family
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_constants import constant
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, sizes

_WORD = 4
# Rows of a product of tiles that take as long as the load of a tile.
_LOADING_ROWS = 8
# Operations of f32 in whose time a sum is converted, and one of a tile stored and loaded before.
_FINISHING_FLOPS = {AMX: 30, VNNI: 15}


@dataclass(frozen=True)
class ByteConv(DirectConv, family="int8"):
    """The knobs of y = epilogue(f32(conv2d(x - zero, w) + bias)), as `DirectConv`.

    `signed`: x is of i8, else of ui8. `shifted`: x has a zero point that is not 0. `bias`: i32 for
    each filter. `result` is the type of y; that of i32 has no epilogue, one of bytes is made by
    `narrow`. `form` is how products are added.
    """

    width: int = 14
    panel: int = knob(32, multiple=LINE)
    unroll: int = 4
    workgroups: tuple[int, int] = (1, 1)
    signed: bool = False
    shifted: bool = False
    bias: bool = False
    result: str = knob("f32", among=RESULTS)
    form: str = knob(MADD, among=FORMS)
    narrow: Narrow = NARROW
    small = ("zero", "sums", "bias")

    def _misfit(self) -> str:
        if expected := super()._misfit():
            return expected
        if self.groups > 1 or self.parts or self.planar:
            return "NHWC images without groups"
        if self.form == AMX:
            known = not self.rows.name and not self.columns.name
            if not fits_tiles(self.width, self.panel) or not (self.window.is_product or known):
                return "a block of whole tiles, and windows over known sizes"
        if (self.window.chunk if self.form == AMX else self.channels) < QUAD:
            return f"{QUAD} channels or more"
        if self.result in BOUNDS and self.narrow.dtype != self.result:
            return f"a conversion to {self.result}"
        return "no epilogue of i32" if self.result == "i32" and self.epilogue.steps else ""

    @staticmethod
    def for_bytes(
        target: Target,
        images: Dim,
        axes: tuple[ConvAxis, ConvAxis],
        channels: int,
        filters: int,
        **others: Any,
    ) -> "ByteConv":
        """Return the knobs for a target's registers and cores; `others` are further fields."""
        form = others.get("form", best_dot(target))
        made = ByteConv(images, *axes, channels, filters, form=form, width=32, panel=32)
        if form != AMX:
            lanes, many = target.vector_bytes // 4, target.vector_registers >= 32
            vectors = 4 if many else 2
            spare = 2 if form == VNNI else 4 if many else 3
            width = (target.vector_registers - spare - vectors) // vectors
            if not made.columns.name:
                width = max(1, min(width, made.columns.outputs))
            made = replace(made, width=width, panel=-(-vectors * lanes // 16) * 16)
        cores = cores_for(target, made.product_flops, float(made.weights))
        return replace(made, **{"workgroups": cut_conv(cores, made, made.panel), **others})

    def refusal(self, target: Target) -> str:
        """Refuse a missing instruction, and a tile beyond the registers."""
        if not has_dot(target, self.form):
            return f"int8: expected a target with the form {self.form}, got {target.name}"
        if self.form == AMX:
            return ""
        vectors, most = self.panel * 4 // target.vector_bytes, target.vector_registers
        registers = self.width * vectors + vectors
        return (
            f"int8: expected at most {most} registers, got {registers}" if registers > most else ""
        )

    @property
    def panels(self) -> Panels:
        """How the words of the weights are cut."""
        return replace(self.filters_layout.panels, panel=self.panel)

    @property
    def filters_layout(self) -> ByteFilters:
        """How the weights are laid out."""
        if self.form != AMX:
            return ByteFilters(self.taps, self.channels, self.filters, self.panel, self.form)
        runs, depth = self.window.runs
        return ByteFilters(runs, depth, self.filters, COLUMNS, self.form, self.window.chunk)

    @property
    def window(self) -> TileWindow:
        """The geometry of the window in tiles."""
        return TileWindow(self.rows, self.columns, self.channels)

    @property
    def is_copied(self) -> bool:
        """True where the kernel copies the image with its border."""
        return self.form == AMX and self.window.is_copied

    @property
    def corrects(self) -> bool:
        """True where a zero point, or that of bytes without a sign, is taken off the sums."""
        return self.shifted or (self.signed and self.form == VNNI)

    def operands(self) -> tuple[Operand, ...]:
        """Return x, w, [zero], [sums], [bias], what the epilogue reads, y, [a copy of x]."""
        (x,) = self.sources
        sums = TapSums(self.rows, self.columns, self.channels, self.filters)
        parts = self.workgroups[0]
        copy = (math.prod(self.workgroups), self.is_copied and self.window.copied_bytes(parts))
        return (
            replace(x, dtype="i8"),
            Operand("w", (self.panels.size,), dtype="i32", layout=self.filters_layout),
            *(Operand("zero", (1,), dtype="i32"),) * self.shifted,
            *(Operand("sums", (sums.size,), dtype="i32", layout=sums),) * self.corrects,
            *(Operand("bias", (self.filters,), dtype="i32"),) * self.bias,
            *self.epilogue.operands("e", self.matrix_rows, self.filters),
            Operand("y", (*self.output_dims, self.filters), "out", RESULTS[self.result]),
            *(Operand("copy", copy, "out", "i8"),) * self.is_copied,
        )

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        narrow = self.narrow if self.result in BOUNDS else None
        tile = self.width * self.panel
        finish = Finish.of(k, self.epilogue, memory, memory["y"], tile, narrow)
        # Bytes with a sign are stored 128 larger.
        more, point = 128 if self.signed and self.form == VNNI else 0, None
        if self.shifted:
            point = memory["zero"].one(0)
            point = point + more if more else point
        elif self.corrects:
            point = Ints.of(more, k.lanes)
        taken = (memory.get("sums"), memory.get("bias"), point)
        loops = DirectBytes(k, self, self.pieces(memory), memory["w"], finish, None, *taken)
        if self.form == AMX:
            TiledBytes.of(loops, memory.get("copy")).build()
        else:
            loops.build()


@dataclass(frozen=True)
class DirectBytes(Direct):
    """The loops of `Direct` over quads of bytes; `zero` is the zero point, if any."""

    knobs: ByteConv
    sums_of_taps: Memory | None
    bias: Memory | None
    zero: Ints | None

    @property
    def zero_sum(self) -> Any:
        """The number that a sum begins with."""
        return Ints.of(0, self.k.lanes)

    def _completed(
        self,
        row: ConvRow,
        segments: Sequence[Segment | MetTaps],
        width: int,
        places: Sequence[Lanes],
        sums: list[Any],
    ) -> list[Any]:
        made: dict[tuple[Any, int], Any] = {}
        for p in range(width):
            met = [s.taps for s in segments if p in s.outputs]
            run = tuple(str(m) if isinstance(m, range) else id(m) for m in met)
            for v, at in enumerate(places):
                if (run, v) not in made:
                    made[run, v] = self.offset(row, met, at)
                if made[run, v] is not None:
                    sums[p * len(places) + v] += made[run, v]
        return self.results(sums)

    def results(self, sums: list[Any]) -> list[Any]:
        """Return sums as the epilogue takes them."""
        return sums if self.knobs.result == "i32" else [total.to_float() for total in sums]

    def offset(self, row: ConvRow, met: list[Any], at: Any) -> Any:
        """Return the addend of a pixel's sums: the bias, less the zero point's share."""
        offset = None if self.bias is None else self.bias.ints(at)
        if self.sums_of_taps is None or self.zero is None:
            return offset
        knobs = self.knobs
        along = TapRanges.of(knobs.columns)
        number = _number(TapRanges.of(knobs.rows), *row.taps) * along.count
        if not met:
            number = number + _number(along, Index.of(0), Index.of(0))
        elif isinstance(met[0], range):
            number = number + _number(along, Index.of(met[0].start), Index.of(met[-1].stop))
        else:
            number = number + _number(along, *met[0])
        share = self.sums_of_taps.ints(at.moved(number * knobs.filters)) * self.zero
        return (self.zero_sum if offset is None else offset) - share

    def _channels(
        self,
        panel: FilterPanel,
        piece: Piece,
        place: tuple[Index, Index, Index],
        weights: Index,
        outputs: int,
        sums: list[Any],
    ) -> list[Any]:
        """Add all quads under one tap, at `place` for the first of the outputs."""
        k, knobs = self.k, self.knobs
        dot = Dot(k, knobs.form, knobs.signed)
        image, y, x = place
        width = panel.panel.width

        def quad(p: int, channel: Index) -> list[Any]:
            return dot.load(piece.memory, image, y, x + p * knobs.columns.stride, channel)

        def right(v: int, at: Index) -> list[Ints]:
            start = weights + at * (width * dot.words)
            return [self.w.ints(start + (n * width + v * k.lanes)) for n in range(dot.words)]

        tile = ProductTile(
            *(k, outputs, len(sums) // outputs, knobs.unroll),
            left=lambda p, at: quad(p, at * QUAD),
            right=right,
            multiply=lambda own, words, total: dot.add(total, own, words),
        )
        starts, whole = quad_starts(knobs.channels), knobs.channels // QUAD
        kept = tile.accumulate(Index.of(whole), sums)
        if len(starts) > whole:
            last = replace(tile, left=lambda p, at: quad(p, Index.of(starts[-1])))
            kept = last.step(Index.of(whole), kept)
        return kept


def _number(ranges: TapRanges, first: Index, end: Index) -> Index:
    """Return the number of the run of taps from `first` to before `end`."""
    if ranges.count == 1:
        return Index.of(0)
    return first * ranges.ends + (end - ranges.least)


@dataclass(frozen=True)
class TilePlace:
    """A tile of pixels: the first one's number in the result, and the address of its bytes of x."""

    pixel: Index
    address: Index


@dataclass(frozen=True)
class TileRun:
    """The tiles of pixels of a workgroup, by number."""

    first: Index
    end: Index
    place: Callable[[Index], TilePlace]


@dataclass(frozen=True)
class TiledBytes:
    """One kernel under construction; `loops` has its memory, `copy` that of a padded image.

    A block is `high` tiles of pixels by `wide` tiles of filters.
    """

    loops: DirectBytes
    high: int
    wide: int
    window: TileWindow
    height: Index
    pixels: Index
    tiles: Tiles
    sums: Memory
    offsets: Memory
    copy: Memory | None

    @staticmethod
    def of(loops: DirectBytes, copy: Memory | None) -> "TiledBytes":
        """Take memory on the stack for what tiles hold; `loops` are those of a `ByteConv`."""
        k, knobs = loops.k, loops.knobs
        window = TileWindow(knobs.rows, knobs.columns, knobs.channels)
        height = Index.of(window.height)
        pixels = math.prod(map(k.size, knobs.output_dims), start=Index.of(1))
        if window.is_product and pixels.number is not None:
            height = pixels.ceildiv(pixels.ceildiv(ROWS))
        elif window.is_product:
            # 16, less of fewer pixels, but at least 1: no tile has 0 rows.
            height = ROWS - ops.least(ROWS - ops.least(pixels, ROWS), ROWS - 1)
        sums = local_memory(k, knobs.width * knobs.panel, "i32")
        offsets = local_memory(k, knobs.panel, "i32")
        tiles = (knobs.width // ROWS, knobs.panel // COLUMNS)
        return TiledBytes(loops, *tiles, window, height, pixels, Tiles(k), sums, offsets, copy)

    def build(self) -> None:
        """Build all panels over this workgroup's pixels, image by image where it has windows."""
        k, knobs = self.loops.k, self.loops.knobs
        sums, left = TileShape(self.height), TileShape(self.height, self.window.chunk)
        right = TileShape(self.window.chunk // _WORD)
        self.tiles.configure(
            [sums] * (self.high * self.wide) + [left] * self.high + [right] * self.wide
        )
        if self.window.is_product:
            self._panels(self._matrix())
        else:
            with k.range(k.size(knobs.images)) as image:
                rows = share(k, 0, knobs.workgroups[0], Index.of(knobs.rows.outputs))
                start = self._copied(image, *rows) if self.copy is not None else None
                self._panels(self._rows(image, rows, start))
        self.tiles.release()

    def _matrix(self) -> TileRun:
        """Return the tiles of a product, of all images."""
        k, knobs, x = self.loops.k, self.loops.knobs, self._x
        count = self.pixels
        start = x.address(0, 0, 0, 0)

        def place(tile: Index) -> TilePlace:
            pixel = ops.least(tile * self.height, count - self.height)
            return TilePlace(pixel, start + pixel * knobs.channels)

        tiles = count.ceildiv(self.height)
        return TileRun(*share(k, 0, knobs.workgroups[0], tiles), place)

    def _rows(self, image: Index, rows: tuple[Index, Index], start: Index | None) -> TileRun:
        """Return the tiles of rows of an image; `start` is the address of a copy of theirs."""
        knobs, window = self.loops.knobs, self.window
        high, wide = knobs.outputs
        along = -(-wide // window.height)
        first, end = rows
        base = self._x.address(image, first * knobs.rows.stride, 0, 0) if start is None else start

        def place(tile: Index) -> TilePlace:
            row, column = (
                tile // along,
                ops.least(tile % along * window.height, wide - window.height),
            )
            pixel = (image * high + (first + row)) * wide + column
            source = row * (knobs.rows.stride * window.pitch)
            return TilePlace(
                pixel, base + (source + column * (knobs.columns.stride * knobs.channels))
            )

        return TileRun(Index.of(0), (end - first) * along, place)

    @property
    def _x(self) -> Memory:
        return self.loops.x[0].memory

    def _panels(self, run: TileRun) -> None:
        """Build every panel of this workgroup, also the narrower last one."""
        k, knobs, panels = self.loops.k, self.loops.knobs, self.loops.knobs.panels
        none = Index.of(0)

        def work(panel: Panel) -> None:
            self._panel(FilterPanel(panel, none, panel.start(panels)), run)

        if panels.full:
            with k.range(*share(k, 1, knobs.workgroups[1], Index.of(panels.full))) as number:
                work(panels.at(number))
        if panels.last_width:
            with k.range(*share(k, 1, knobs.workgroups[1], Index.of(1))):
                work(panels.last())

    def _panel(self, panel: FilterPanel, run: TileRun) -> None:
        k, high = self.loops.k, self.high
        shifted = self._write_offsets(panel)
        count = run.end - run.first
        blocks, rest = count // high, count % high
        if blocks.number != 0:
            with k.range(blocks) as block:
                first = run.first + block * high
                self._block(panel, [run.place(first + i) for i in range(high)], shifted)
        if rest.number != 0:
            with k.range(count - rest, count) as tile:
                self._block(panel, [run.place(run.first + tile)], shifted)

    def _write_offsets(self, panel: FilterPanel) -> bool:
        """Write what each filter's sums start with; False where that is 0."""
        loops, knobs, none = self.loops, self.loops.knobs, Index.of(0)
        if not knobs.bias and not knobs.corrects:
            return False
        row = ConvRow(none, none, (none, Index.of(knobs.rows.kernel)))
        for v, at in enumerate(panel.panel.places(loops.k)):
            offset = loops.offset(row, [range(knobs.columns.kernel)], at)
            self.offsets.store_as(offset.value, Index.of(v * loops.k.lanes))
        return True

    def _block(self, panel: FilterPanel, places: Sequence[TilePlace], shifted: bool) -> None:
        tiles, wide = self.tiles, panel.panel.width // COLUMNS
        for i in range(len(places)):
            for v in range(wide):
                if shifted:
                    tiles.load(i * self.wide + v, self.offsets.address(v * COLUMNS), 0)
                else:
                    tiles.zero(i * self.wide + v)
        self._add_runs(panel, places)
        pitch = panel.panel.width * _WORD
        for i in range(len(places)):
            for v in range(wide):
                held = self.sums.address(i * (ROWS * panel.panel.width) + v * COLUMNS)
                tiles.store(i * self.wide + v, held, pitch)
        for i, place in enumerate(places):
            self._finish(panel, place, i * (ROWS * panel.panel.width))

    def _add_runs(self, panel: FilterPanel, places: Sequence[TilePlace]) -> None:
        k, knobs, window = self.loops.k, self.loops.knobs, self.window
        starts, words = window.starts, window.chunk // _WORD * COLUMNS
        along = window.runs[0] // knobs.rows.kernel
        even = starts[-1] == (len(starts) - 1) * window.chunk
        with k.range(knobs.rows.kernel) as down, k.range(along) as tap:
            source = down * (knobs.rows.dilation * window.pitch)
            source = source + tap * (knobs.columns.dilation * knobs.channels)
            own = panel.weights + (down * along + tap) * (len(starts) * words)
            with k.range(len(starts) if even else len(starts) - 1) as n:
                self._add(panel, places, source + n * window.chunk, own + n * words)
            if not even:
                self._add(panel, places, source + starts[-1], own + (len(starts) - 1) * words)

    def _add(
        self, panel: FilterPanel, places: Sequence[TilePlace], source: Index, weights: Index
    ) -> None:
        knobs, tiles = self.loops.knobs, self.tiles
        wide, sums = panel.panel.width // COLUMNS, self.high * self.wide
        pitch = knobs.channels * knobs.columns.stride
        dtypes = ("i8" if knobs.signed else "ui8", "i8")
        for i, place in enumerate(places):
            left = sums + i
            tiles.load(left, place.address + source, pitch)
            for v in range(wide):
                right = sums + self.high + v
                if i == 0:
                    words = weights + v * (knobs.panels.depth * COLUMNS)
                    tiles.load(right, self.loops.w.address(words), ROW_BYTES)
                tiles.add_product(i * self.wide + v, left, right, dtypes)

    def _finish(self, panel: FilterPanel, place: TilePlace, held: int) -> None:
        """Store what the epilogue makes of the sums of a tile of pixels."""
        loops, k, none = self.loops, self.loops.k, Index.of(0)
        places = panel.panel.places(k)
        # One pixel at a time: the loop that a heavy epilogue asks for is there.
        finish = replace(loops.finish, kept=None)
        with k.range(self.height) as p:
            pixel, first = place.pixel + p, p * panel.panel.width + held
            sums = [self.sums.ints(first + v * k.lanes) for v in range(len(places))]
            own = (pixel, (none, none, pixel))
            finish.tile(loops.results(sums), places, lambda _: own, panel.panel.left)

    def _copied(self, image: Index, first: Index, end: Index) -> Index:
        """Copy the rows under some rows of outputs, with their border; the address of the copy."""
        k, knobs, window = self.loops.k, self.loops.knobs, self.window
        assert self.copy is not None
        rows, columns = knobs.rows, knobs.columns
        own = k.workgroup(0) * knobs.workgroups[1] + k.workgroup(1)
        if knobs.workgroups == (1, 1):
            own = Index.of(0)
        left = columns.low * knobs.channels
        length = columns.size * knobs.channels
        line, zero = ops.int_vector(ROW_BYTES, 8), self.loops.zero
        if zero is None:
            one = ops.arith.constant(line.element_type, 0)
        else:
            one = ops.arith.trunci(line.element_type, ops.vector.extract(zero.value, [], [0]))
        held = ops.vector.broadcast(line, one)

        def border(_: Lanes) -> Any:
            return held

        with k.range((end - first) * rows.stride + window.reach) as row:
            at, to = first * rows.stride + row, row * window.pitch
            inside = at < rows.size + rows.low
            if rows.low:
                inside = inside & (Index.of(rows.low - 1) < at)
            self._move(own, to, left, border)
            self._move(own, to + (left + length), window.pitch - left - length, border)

            def inner(at: Index = at, to: Index = to) -> None:
                def source(lanes: Lanes) -> Any:
                    return self._x.load_as(line, image, at - rows.low, 0, lanes)

                self._move(own, to + left, length, source)

            def outer(to: Index = to) -> None:
                self._move(own, to + left, length, border)

            k.either(inside, [], inner, outer)
        return self.copy.address(own, 0)

    def _move(self, own: Index, start: Index, count: int, source: Callable[[Lanes], Any]) -> None:
        """Write `count` bytes of a copy, a line at once, from what `source` loads at a place."""
        assert self.copy is not None
        whole = count // ROW_BYTES * ROW_BYTES
        with self.loops.k.range(0, whole, ROW_BYTES) as at:
            self.copy.store_as(source(Lanes(at)), own, start + at)
        if count > whole:
            mask = Mask.first(count - whole, ROW_BYTES)
            held = source(Lanes(Index.of(whole), mask))
            self.copy.store_as(held, own, start + whole, mask=mask)


def _cost(knobs: ByteConv, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count each tensor once across memory; the packed weights are constants."""
    own = knobs.at(sizes)
    done = tile_flops(own, own.pixels) if own.form == AMX else own.flops
    share = constant(f"kernel.int8.{own.form}")
    done += share * _FINISHING_FLOPS.get(own.form, 0) * own.pixels * own.filters
    operands = own.kernel("k").operands_of_work
    traffic = sum(o.nbytes for o in operands if o.name not in own.small)
    made = CostModel(target).kernel(f"int8.{own.form}", done, traffic)
    return replace(made, flops=own.flops, constant_bytes=4 * own.panels.size)


def tile_flops(knobs: ByteConv, pixels: int) -> float:
    """Return the operations of whole tiles that take as long as a call.

    A product of tiles takes a cycle for each row, at least those of loading one. The epilogue is
    counted at the speed of f32.
    """
    window = knobs.window
    wide = pixels if window.is_product else knobs.columns.outputs
    height = -(-wide // -(-wide // ROWS))
    tiles = pixels // wide * -(-wide // ROWS) * -(-knobs.filters // COLUMNS)
    products = 2.0 * COLUMNS * ROW_BYTES * max(height, _LOADING_ROWS) * tiles * window.steps
    after = constant("kernel.int8.amx") * knobs.epilogue.flops
    return products + after * pixels * knobs.filters


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Match a product or convolution with constant weights and the ops after it that fit."""
    node, found = work.nodes[0], find_bytes(work)
    if found is None:
        return []
    shape = work.type(found.x).shape
    if node.name == "integer_matmul":
        rows = sizes(shape[:-1])
        if rows == 0:
            return []
        pixels = ConvAxis(rows or NOMINAL_DIMENSION, name="" if rows else "m")
        images, axes, cuts = 1, (ConvAxis(1), pixels), (0, 0, len(shape) - 1)
    else:
        nhwc = node.params["layout"] == "NHWC" and node.params["groups"] == 1
        kernel = work.type(found.weights).shape[:2]
        axes = axes_of(node.params, shape[1:3], kernel) if nhwc else None
        if axes is None:
            return []
        images, cuts = ("n" if shape[0] is None else shape[0]), (1, 2, 3)
        if all(a == ConvAxis(a.size) for a in axes) and isinstance(images, int):
            pixels = ConvAxis(images * axes[0].size * axes[1].size)
            images, axes, cuts = 1, (ConvAxis(1), pixels), (0, 0, 3)
    held = not found.shifted or _is_byte(work, found.zero, work.type(found.x).dtype)
    knobs = _best(target, (images, axes, found.channels, found.filters), found.fields, held)
    if knobs is None:
        return []
    flat = Feed(found.weights, (work.type(found.weights).rank - 1,))
    feeds = found.feeds(Feed(found.x, cuts), flat, sums=knobs.corrects)
    return FAMILY.offer(knobs, target, found.after.covers, feeds)


def _best(
    target: Target, sizes: tuple[Any, Any, int, int], common: Mapping[str, Any], held: bool
) -> ByteConv | None:
    """Return the knobs of the form that is predicted to be the fastest; None if none fits.

    held: the zero point fits a byte, so that a copy's border can hold it.
    """
    made = []
    for form in (best_dot(target), AMX):
        try:
            knobs = ByteConv.for_bytes(target, *sizes, form=form, **common)
        except PycError:
            continue
        if FAMILY.offers(knobs, target) and (held or not knobs.is_copied):
            made.append(knobs)
    unknown = {k: dict.fromkeys(k.kernel("k").sizes, NOMINAL_DIMENSION) for k in made}
    return min(made, key=lambda k: _cost(k, target, unknown[k]).seconds, default=None)


def _is_byte(work: Work, zero: int, dtype: np.dtype) -> bool:
    """Return whether a zero point is known, and a number of the type of x."""
    read = work.inputs[zero].array if work.is_constant(zero) else None
    info = np.iinfo(dtype)
    return read is not None and bool(info.min <= int(read().item()) <= info.max)


FAMILY = Family("int8", ByteConv, match, cost=_cost)
