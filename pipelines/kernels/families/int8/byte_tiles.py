"""Products and convolutions of bytes in tile registers: the form ``amx`` of the family ``int8``.

A block is two tiles of pixels by two of filters. Its four tiles of sums start with the bias less
the zero point's share; each chunk of channels under each row of taps adds four products of tiles,
for four loads. The sums then lie on the stack, from where the epilogue takes them pixel by pixel.
Neighbouring tiles overlap where a row of outputs has no whole number of them; what both compute is
the same. The border of a copied image holds the zero point, which adds nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.kernels.families.conv.direct import ConvRow, FilterPanel
from pyc_mlir.pipelines.kernels.families.int8.byte_loops import DirectBytes
from pyc_mlir.pipelines.kernels.families.int8.dot import IntVector
from pyc_mlir.pipelines.kernels.families.int8.narrow import BOUNDS
from pyc_mlir.pipelines.kernels.families.int8.tile_window import TileWindow
from pyc_mlir.pipelines.kernels.lang.language import Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.tiles import (
    COLUMNS,
    ROW_BYTES,
    ROWS,
    TILES,
    Tiles,
    TileShape,
    local_memory,
)
from pyc_mlir.pipelines.kernels.lang.values import Index, Mask, arith, int_vector, least, vector
from pyc_mlir.pipelines.kernels.shared.grid import share
from pyc_mlir.pipelines.streams.ir import ir

_WORD = 4


def tiles_of(width: int, panel: int) -> int:
    """Return how many tile registers a block of pixels by filters takes."""
    high, wide = width // ROWS, panel // COLUMNS
    return high * wide + high + wide


def fits_tiles(width: int, panel: int) -> bool:
    """Return whether a block of pixels by filters is of whole tiles, and has registers."""
    return width % ROWS == 0 and panel % COLUMNS == 0 and tiles_of(width, panel) <= TILES


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
    """One kernel under construction; `loops` has its memory, `copy` that of a padded image."""

    loops: DirectBytes
    window: TileWindow
    height: Index
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
        if window.is_product:
            height = _even(_pixels(loops))
        sums = local_memory(k, knobs.width * knobs.panel, "i32")
        offsets = local_memory(k, knobs.panel, "i32")
        return TiledBytes(loops, window, height, Tiles(k), sums, offsets, copy)

    @property
    def _high(self) -> int:
        """Tiles of pixels in a block."""
        return self.loops.knobs.width // ROWS

    @property
    def _wide(self) -> int:
        """Tiles of filters in a block."""
        return self.loops.knobs.panel // COLUMNS

    def build(self) -> None:
        """Build all panels over this workgroup's pixels, image by image where it has windows."""
        k, knobs = self.loops.k, self.loops.knobs
        sums, left = TileShape(self.height), TileShape(self.height, self.window.chunk)
        right = TileShape(self.window.chunk // _WORD)
        self.tiles.configure(
            [sums] * (self._high * self._wide) + [left] * self._high + [right] * self._wide
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
        count = _pixels(self.loops)
        start = x.address(0, 0, 0, 0)

        def place(tile: Index) -> TilePlace:
            pixel = least(tile * self.height, count - self.height)
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
            row, column = tile // along, least(tile % along * window.height, wide - window.height)
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
        if panels.full:
            shares = share(k, 1, knobs.workgroups[1], Index.of(panels.full))
            with k.range(*shares) as panel:
                start = panel * (panels.depth * panels.panel)
                found = FilterPanel(Index.of(0), panel * panels.panel, start, panels.panel)
                self._panel(found, run)
        if panels.last_width:
            shares = share(k, 1, knobs.workgroups[1], Index.of(1))
            with k.range(*shares):
                edge = Index.of(panels.edge)
                found = FilterPanel(
                    Index.of(0), edge, edge * panels.depth, panels.last_width, last=True
                )
                self._panel(found, run)

    def _panel(self, panel: FilterPanel, run: TileRun) -> None:
        """Compute all pixels by the filters of a panel."""
        k, high = self.loops.k, self._high
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
        for v, at in enumerate(loops.places(panel)):
            offset = loops.offset(row, [range(knobs.columns.kernel)], at)
            self.offsets.store_as(offset.value, Index.of(v * loops.k.lanes))
        return True

    def _block(self, panel: FilterPanel, places: Sequence[TilePlace], shifted: bool) -> None:
        """Compute some tiles of pixels by the filters of a panel."""
        tiles, wide = self.tiles, panel.width // COLUMNS
        for i in range(len(places)):
            for v in range(wide):
                if shifted:
                    tiles.load(self._sum(i, v), self.offsets.address(v * COLUMNS), 0)
                else:
                    tiles.zero(self._sum(i, v))
        self._add_runs(panel, places)
        pitch = panel.width * _WORD
        for i in range(len(places)):
            for v in range(wide):
                held = self.sums.address(i * (ROWS * panel.width) + v * COLUMNS)
                tiles.store(self._sum(i, v), held, pitch)
        for i, place in enumerate(places):
            self._finish(panel, place, i * (ROWS * panel.width))

    def _sum(self, i: int, v: int) -> int:
        return i * self._wide + v

    def _add_runs(self, panel: FilterPanel, places: Sequence[TilePlace]) -> None:
        """Add the products under all taps."""
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
        """Add the products of one chunk."""
        knobs, tiles = self.loops.knobs, self.tiles
        wide, sums = panel.width // COLUMNS, self._high * self._wide
        pitch = knobs.channels * knobs.columns.stride
        dtypes = ("i8" if knobs.signed else "ui8", "i8")
        for i, place in enumerate(places):
            left = sums + i
            tiles.load(left, place.address + source, pitch)
            for v in range(wide):
                right = sums + self._high + v
                if i == 0:
                    words = weights + v * (knobs.panels.depth * COLUMNS)
                    tiles.load(right, self.loops.w.address(words), ROW_BYTES)
                tiles.add_product(self._sum(i, v), left, right, dtypes)

    def _finish(self, panel: FilterPanel, place: TilePlace, held: int) -> None:
        """Store what the epilogue makes of the sums of a tile of pixels."""
        loops, k, knobs = self.loops, self.loops.k, self.loops.knobs
        places, none, kind = loops.places(panel), Index.of(0), int_vector(self.loops.k.lanes)
        count = knobs.panels.columns - knobs.panels.edge if panel.last else None
        with k.range(self.height) as p:
            pixel, first = place.pixel + p, p * panel.width + held
            head = (none, none, pixel)
            sums: list[Any] = [
                IntVector(self.sums.load_as(kind, first + v * k.lanes)) for v in range(len(places))
            ]
            if knobs.result == "i32":
                for total, at in zip(sums, places, strict=True):
                    loops.y.store(total, *head, at)
                return
            apply = loops.epilogue.row(pixel)
            made = [apply(s.to_float(), at) for s, at in zip(sums, places, strict=True)]
            if knobs.result in BOUNDS:
                knobs.narrow.store(k, loops.y, made, head, panel.filter, count)
                return
            for value, at in zip(made, places, strict=True):
                loops.y.store(value, *head, at)

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
        border = self._border()
        with k.range((end - first) * rows.stride + window.reach) as row:
            at, to = first * rows.stride + row, row * window.pitch
            inside = at < rows.size + rows.low
            if rows.low:
                inside = inside & (Index.of(rows.low - 1) < at)
            self._move(own, to, left, border)
            self._move(own, to + (left + length), window.pitch - left - length, border)

            def inner(at: Index = at, to: Index = to) -> list[Any]:
                y = at - rows.low
                self._move(own, to + left, length, lambda lanes: self._bytes(image, y, lanes))
                return []

            def outer(to: Index = to) -> list[Any]:
                self._move(own, to + left, length, border)
                return []

            k.either(inside, [], inner, outer)
        return self.copy.address(own, 0)

    def _bytes(self, image: Index, row: Index, lanes: Lanes) -> Any:
        """Load bytes of a row of an image, from one on."""
        return self._x.load_as(_line("i8"), image, row, 0, lanes)

    def _border(self) -> Callable[[Lanes], Any]:
        """Return what the border of a copy is loaded from: the zero point."""
        i8 = ir.IntegerType.get_signless(8)
        if not self.loops.zero:
            one = arith.constant(i8, 0)
        else:
            one = arith.trunci(i8, vector.extract(self.loops.zero[0].value, [], [0]))
        line = vector.broadcast(_line("i8"), one)
        return lambda _: line

    def _move(self, own: Index, start: Index, count: int, source: Callable[[Lanes], Any]) -> None:
        """Write `count` bytes of a copy, a line at once, from what `source` loads at a place."""
        assert self.copy is not None
        whole = count // ROW_BYTES * ROW_BYTES
        with self.loops.k.range(0, whole, ROW_BYTES) as at:
            self.copy.store_as(source(Lanes(at)), own, start + at)
        if count > whole:
            mask = Mask(vector.constant_mask(_line("i1"), [count - whole]))
            held = source(Lanes(Index.of(whole), mask))
            self.copy.store_as(held, own, start + whole, mask=mask)


def _even(pixels: Index) -> Index:
    """Return the rows of tiles for so many pixels: evenly cut if known, else 16, less of fewer."""
    if pixels.number is not None:
        return pixels.ceildiv(pixels.ceildiv(ROWS))
    # At least 1: no tile has 0 rows.
    return ROWS - least(ROWS - least(pixels, ROWS), ROWS - 1)


def _line(element: str) -> Any:
    return ir.VectorType.get([ROW_BYTES], ir.IntegerType.get_signless(int(element[1:])))


def _pixels(loops: DirectBytes) -> Index:
    k, knobs = loops.k, loops.knobs
    high, wide = (k.size(d) for d in knobs.output_dims)
    return k.size(knobs.images) * high * wide
