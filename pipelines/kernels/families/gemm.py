"""The kernel families ``gemm`` and ``half_gemm``: C = epilogue(A B), B a constant in panels.

``gemm`` multiplies f32 by weights that are packed at compile time. The scheme is that of Goto and
van de Geijn (2008) as BLIS has it, without packing A: a register tile of `height` rows by one panel
of B's columns is accumulated over a block of the depth; blocks of rows stay in the second-level
cache while panels stream by, and the next panel is prefetched. The bottom tile and the rightmost
panel may be smaller; the last columns are masked. A few rows alone read B once, from its first
number to its last.

``half_gemm`` multiplies f16 or bf16, with sums in f32. A and B stay halves in memory. Of many rows,
a block of A and one panel of B at a time are widened to f32 in scratch memory, where the tiles run
over them: each weight is widened once for up to 240 rows. Of up to `height` rows only A is, and B
is read once and widened in registers. Sums are rounded to the type once, before the epilogue, which
rounds after each of its ops, as the model does.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyc_mlir.pipelines.kernels import nest
from pyc_mlir.pipelines.kernels.knobs import (
    HEIGHTS,
    PANELS,
    UNROLLS,
    KernelKnobs,
    below,
    cuts,
    knob,
    known,
    one_of,
    up_to,
)
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand, in_type
from pyc_mlir.pipelines.kernels.lang.language import HALVES, LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar, Vector, least
from pyc_mlir.pipelines.kernels.match import Feed, KernelOffer, MatrixView, longest
from pyc_mlir.pipelines.kernels.nest import (
    Depth,
    Finish,
    Panel,
    Panels,
    ProductTile,
    Scratch,
    row_block,
)
from pyc_mlir.pipelines.kernels.registry import Family
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, float_type, nominal, sizes

_DEPTH_LIMIT = 1024
_STRIP_COLUMNS = 256
_HEIGHT, _UNROLL = 6, 4
_PAGE_BYTES = 4096
_BLOCKS = (128, 256, 512, 1024)  # of depth, rows and columns, to try
_HALF_BLOCKS = (48, 96, 192, 384)  # of rows, to try
_NARROW = 5


def wide_panel(target: Target) -> int:
    """Return the columns of a panel: four vectors, two where there are fewer registers."""
    return (4 if target.vector_registers >= 32 else 2) * target.vector_bytes // 4


def _are_few(rows: Dim, most: int) -> bool:
    return isinstance(rows, int) and rows <= most


class PackedMatrix(KernelKnobs):
    """Knobs of C[rows, columns] = epilogue(A[rows, depth] B), with a constant B in panels."""

    rows: Dim
    columns: int
    depth: int
    epilogue: Pointwise
    height: int
    panel: int
    workgroups: tuple[int, int]
    dtype: str = "f32"

    @staticmethod
    def chosen(target: Target, rows: Dim, columns: int, depth: int, size: int) -> dict[str, Any]:
        """Choose what is chosen alike for numbers of B of any `size` in bytes."""
        panel = wide_panel(target)
        flops, read = 2.0 * known(rows) * columns * depth, float(size) * columns * depth
        cores = nest.cores_for(target, flops, read)
        return {
            "panel": panel,
            "workgroups": nest.cut_matrix(cores, rows, columns, (_HEIGHT, panel)),
            "far": _are_few(rows, _HEIGHT) and 2 * read >= (target.l3_bytes or target.l2_bytes),
        }

    def refusal(self, target: Target) -> str:
        """Refuse a tile whose sums, row of B and number of A do not fit the registers."""
        return nest.refuse_tile(self.speed, self.height, self.panel, target)

    @property
    def panels(self) -> Panels:
        """The layout of B."""
        return Panels(self.columns, self.depth, self.panel, self.dtype)

    @property
    def flops(self) -> float:
        """Those of the product and of the epilogue."""
        return known(self.rows) * self.columns * (2.0 * self.depth + self.epilogue.flops)

    def operands(self) -> tuple[Operand, ...]:
        """Return a, b (packed), what the epilogue reads, then c."""
        result = (self.rows, self.columns)
        operands = (
            Operand("a", (self.rows, self.depth)),
            Operand("b", (self.panels.size,), layout=self.panels),
            *self.epilogue.operands("e", *result),
            Operand("c", result, "out"),
        )
        return in_type(operands, self.dtype)

    def finish(self, k: Build, memory: Mapping[str, Memory]) -> Finish:
        """Return the end of the register tiles."""
        return Finish.of(k, self.epilogue, memory, memory["c"], self.height * self.panel)


def _shares(knobs: Any, target: Target) -> list[tuple[int, ...]]:
    return cuts(target, known(knobs.rows), knobs.panels.full)


@dataclass(frozen=True)
class Gemm(PackedMatrix, family="gemm"):
    """The knobs of a product of f32.

    `height` and `panel` are the rows and columns of the register tile; `depth_block`,
    `row_block` and `strip` (columns) are what caches hold at most, in whole tiles, one at least;
    `workgroups` cuts rows and columns. `far`: B comes from memory, not from a cache, and is
    prefetched a page ahead where it is read only once.
    """

    rows: Dim
    columns: int
    depth: int
    epilogue: Pointwise = NOTHING
    height: int = knob(_HEIGHT, lambda k, _: up_to(HEIGHTS, k.rows))
    panel: int = knob(64, PANELS, multiple=LINE)
    depth_block: int = knob(
        1024, lambda k, _: [*below(_BLOCKS, k.depth), -(-k.depth // max(UNROLLS)) * max(UNROLLS)]
    )
    row_block: int = knob(120, lambda k, _: below(_BLOCKS, k.rows))
    strip: int = knob(256, lambda k, _: below(_BLOCKS, k.columns))
    unroll: int = knob(_UNROLL, UNROLLS)
    workgroups: tuple[int, int] = knob((1, 1), _shares)
    far: bool = knob(False, lambda k, _: (False, True) if _are_few(k.rows, max(HEIGHTS)) else ())

    def _misfit(self) -> str:
        return "depth_block in multiples of unroll" if self.depth_block % self.unroll else ""

    @staticmethod
    def on(target: Target, rows: Dim, columns: int, depth: int, **others: Any) -> "Gemm":
        """Choose the knobs for a target's registers, caches and cores; `others` are fields."""
        parts = 1 if _are_few(rows, _HEIGHT) else -(-depth // _DEPTH_LIMIT)
        block = -(-depth // (parts * _UNROLL)) * _UNROLL
        knobs = PackedMatrix.chosen(target, rows, columns, depth, size=4)
        knobs |= {
            "depth_block": block,
            "row_block": max(1, target.l2_bytes * 15 // 16 // (4 * block * _HEIGHT)) * _HEIGHT,
            "strip": max(_STRIP_COLUMNS // knobs["panel"], 1) * knobs["panel"],
        }
        return Gemm(rows, columns, depth, **{**knobs, **others})

    def _in_place(self) -> tuple[tuple[str, str], ...]:
        return nest.overwritable(self.epilogue, self.rows, self.depth <= self.depth_block)

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        Product(k, self, memory["a"], memory["b"], self.finish(k, memory)).build()


@dataclass(frozen=True)
class Strip:
    """Neighbouring panels, numbers `first` to `end`, of which `panel` makes one."""

    first: Index
    end: Index
    panel: Callable[[Index], Panel]


@dataclass(frozen=True)
class Product:
    """One kernel under construction: loops from the outside in, then the register tile."""

    k: Build
    knobs: Gemm
    a: Memory
    b: Memory
    finish: Finish

    def build(self) -> None:
        """Compute this workgroup's columns: strips of full panels, then the narrower last panel."""
        k, knobs, panels = self.k, self.knobs, self.knobs.panels

        def work(strip: Strip) -> None:
            nest.for_depth(k, knobs.depth, knobs.depth_block, partial(self._rows, strip))

        if panels.full:
            first, end = nest.share(k, 1, knobs.workgroups[1], Index.of(panels.full))
            step = max(1, knobs.strip // knobs.panel)
            with k.range(first, end, step) as j:
                work(Strip(j, least(j + step, end), panels.at))
        if panels.last_width:
            with k.when(k.workgroup(1).equals(knobs.workgroups[1] - 1)):
                work(Strip(Index.of(0), Index.of(1), lambda _: panels.last()))

    def _rows(self, strip: Strip, depth: Depth) -> None:
        """Compute this workgroup's rows: blocks of full tiles, then what is left of the matrix."""
        k, height, rows = self.k, self.knobs.height, self.a.shape[0]
        tiles = rows // height
        first, end = nest.share(k, 0, self.knobs.workgroups[0], tiles)
        step = max(1, self.knobs.row_block // height)
        if tiles.number != 0:
            with (
                k.range(first, end, step) as i,
                k.range(strip.first, strip.end) as number,
                k.range(i, least(i + step, end)) as tile,
            ):
                self._tile(strip.panel(number), depth, tile * height, height, tile - i)
        if not nest.bottom(rows, height):
            return
        mine = k.workgroup(0).equals(self.knobs.workgroups[0] - 1)
        with k.when(mine), k.range(strip.first, strip.end) as number:
            nest.for_bottom(k, rows, height, partial(self._tile, strip.panel(number), depth))

    def _tile(
        self, panel: Panel, depth: Depth, row: Index, height: int, turn: Index | None = None
    ) -> None:
        """Compute one register tile over one block of the depth; `turn` counts for the prefetch."""
        k, knobs, c = self.k, self.knobs, self.finish.y
        places = panel.places(k)
        ahead = None
        if turn is not None and panel.left is None:
            part = turn * (knobs.depth_block // knobs.unroll * LINE)
            start = self._offset(panel, depth) + knobs.depth * panel.width + part
            ahead = partial(self._next_panel, start)
        elif knobs.far and knobs.rows == height:
            ahead = partial(self._stream_on, self._offset(panel, depth), panel.width)
        tile = self._register_tile(panel, depth, row, height, ahead)
        spots = [(row + r, at) for r in range(height) for at in places]

        def begin() -> list[Vector]:
            zeros = [k.vector(0.0)] * len(spots)
            return depth.begin(k, zeros, lambda: [c.load(i, at) for i, at in spots])

        sums = self._accumulated(tile, begin, panel, depth, row)

        def keep() -> None:
            for (i, at), value in zip(spots, sums, strict=True):
                c.store(value, i, at)

        depth.end(k, lambda: self.finish.tile(sums, places, nest.matrix_rows(row)), keep)

    def _register_tile(
        self,
        panel: Panel,
        depth: Depth,
        row: Index,
        height: int,
        ahead: Callable[[Index], None] | None = None,
    ) -> ProductTile:
        """Return the tile of some rows by a panel over a block of the depth."""
        k, knobs, offset = self.k, self.knobs, self._offset(panel, depth)
        width = len(panel.places(k))

        def left(r: int, at: Index) -> Scalar:
            return self.a.number(row + r, depth.start + at)

        def right(v: int, at: Index) -> Vector:
            return self.b.load(offset + at * panel.width + v * k.lanes)

        parts = nest.partial_sums(knobs.rows, knobs.height, width, knobs.unroll)
        return ProductTile(k, height, width, knobs.unroll, left, right, ahead, parts)

    def _offset(self, panel: Panel, depth: Depth) -> Index:
        return panel.start(self.knobs.panels) + depth.start * panel.width

    def _accumulated(
        self,
        tile: ProductTile,
        begin: Callable[[], list[Vector]],
        panel: Panel,
        depth: Depth,
        row: Index,
    ) -> list[Vector]:
        """Return the tile's sums, row by row, with those of the blocks before."""
        return tile.accumulate(depth.length, begin())

    def _next_panel(self, start: Index, at: Index) -> None:
        """Ask for a tile's part of the next panel, one line for each turn of the loop."""
        self.b.prefetch(start + at * (LINE // self.knobs.unroll), level=2)

    def _stream_on(self, offset: Index, width: int, at: Index) -> None:
        """Ask for what comes a page later, where B is read only once: too far for the core itself.

        Level 1 leaves the caches nearest to the core to the rest. Measured on products of one row
        (Zen 4): 7 % less time where B is larger than the last cache, 14 % more where it is small.
        Half of that cache is where other weights of a program may have pushed B out.
        """
        start = offset + at * width + _PAGE_BYTES // 4
        for line in range(0, width * self.knobs.unroll, LINE):
            self.b.prefetch(start + line, level=1)


@dataclass(frozen=True)
class HalfGemm(PackedMatrix, family="half_gemm", speed="gemm"):
    """The knobs of a product of `dtype`, f16 or bf16.

    `height` and `panel` are the rows and columns of the register tile, `block` the rows that share
    a widened panel; `workgroups` cuts rows and columns. `far`: B comes from memory and is
    prefetched a page ahead where it is read only once.
    """

    rows: Dim
    columns: int
    depth: int
    dtype: str = field(metadata=one_of(HALVES))
    epilogue: Pointwise = NOTHING
    height: int = knob(_HEIGHT, lambda k, _: up_to(HEIGHTS, k.rows))
    panel: int = knob(64, multiple=LINE)
    block: int = knob(120, lambda k, _: below(_HALF_BLOCKS, k.rows))
    unroll: int = knob(_UNROLL, UNROLLS)
    workgroups: tuple[int, int] = knob((1, 1), _shares)
    far: bool = False

    @staticmethod
    def on(
        target: Target, rows: Dim, columns: int, depth: int, dtype: str, **others: Any
    ) -> "HalfGemm":
        """Choose the knobs for a target's registers, caches and cores; `others` are fields."""
        knobs = PackedMatrix.chosen(target, rows, columns, depth, size=2)
        held = 4 * knobs["panel"] * depth
        knobs["block"] = row_block(target, _HEIGHT, held, 4 * nest.pitch(depth))
        return HalfGemm(rows, columns, depth, dtype, **{**knobs, **others})

    @property
    def few(self) -> bool:
        """True where one tile holds all rows, so that nothing is widened in memory."""
        return _are_few(self.rows, self.height)

    @property
    def scratch(self) -> Scratch:
        """The memory of a widened panel, unless rows are few, and of a block of widened rows."""
        most = max(self.block, self.height)
        rows = min(most, self.rows) if isinstance(self.rows, int) else most
        panel = 0 if self.few else self.depth * self.panel
        return Scratch(panel, rows * nest.pitch(self.depth), self.workgroups)

    def operands(self) -> tuple[Operand, ...]:
        """Return those of a product, then scratch memory."""
        return (*super().operands(), self.scratch.operand)

    def _in_place(self) -> tuple[tuple[str, str], ...]:
        return nest.overwritable(self.epilogue, self.rows)

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        taken = (memory["a"], memory["b"], self.finish(k, memory), memory["scratch"])
        HalfProduct(k, self, *taken).build()


@dataclass(frozen=True)
class HalfProduct:
    """One kernel under construction."""

    k: Build
    knobs: HalfGemm
    a: Memory
    b: Memory
    finish: Finish
    scratch: Memory

    def build(self) -> None:
        """Compute this workgroup's rows and columns: few rows at once, more in blocks."""
        k, knobs = self.k, self.knobs
        rows = self.a.shape[0]
        if rows.number is None:
            few = rows < knobs.height + 1
            k.either(few, [], lambda: self._few(rows), self._many)
        elif knobs.few:
            self._few(rows)
        else:
            self._many()

    def _many(self) -> None:
        """Widen a block of rows, then panel by panel B, and run the tiles over them."""
        k, knobs, held = self.k, self.knobs, self.scratch
        start, _ = knobs.scratch.own(k)

        def block(first: Index, count: Index) -> None:
            number = self._widened(first, count)

            def columns(panel: Panel) -> None:
                places, offset = panel.places(k), panel.start(knobs.panels)

                @k.each(knobs.depth * panel.width)
                def _(at: Lanes) -> None:
                    held.store(self.b.load(offset + at.start), start + at.start)

                def tile(row: Index, height: int) -> None:
                    def right(v: int, at: Index) -> Vector:
                        return held.load(start + at * panel.width + v * k.lanes)

                    parts = nest.partial_sums("m", knobs.height, len(places), knobs.unroll)
                    self._tile(partial(number, row), right, places, first + row, height, parts)

                nest.for_tiles(k, count, knobs.height, tile)

            nest.for_panels(k, knobs.panels, knobs.workgroups[1], columns)

        nest.for_blocks(k, knobs.rows, knobs.workgroups[0], knobs.block, block)

    def _widened(self, first: Index, count: Index) -> Callable[[Index, int, Index], Scalar]:
        """Widen rows of A to scratch memory; the function of a tile's row that gives a number."""
        k, knobs, held = self.k, self.knobs, self.scratch
        start = knobs.scratch.own(k)[1]
        apart = nest.pitch(knobs.depth)
        with k.range(count) as row:
            begin = start + row * apart

            @k.each(knobs.depth)
            def _(at: Lanes) -> None:
                held.store(self.a.load(first + row, at), Lanes(begin + at.start, at.mask))

        return lambda row, r, at: held.number(start + (row + r) * apart + at)

    def _few(self, rows: Index) -> None:
        """Read B once for all rows; other workgroups along the rows have nothing to do."""
        k, knobs = self.k, self.knobs
        number = self._widened(Index.of(0), rows)

        def columns(panel: Panel) -> None:
            places, offset = panel.places(k), panel.start(knobs.panels)

            def right(v: int, at: Index) -> Vector:
                return self.b.load(offset + at * panel.width + v * k.lanes)

            def ahead(at: Index) -> None:
                start = offset + at * panel.width + _PAGE_BYTES // 2
                for line in range(0, panel.width * knobs.unroll, 2 * LINE):
                    self.b.prefetch(start + line, level=1)

            def tile(row: Index, height: int) -> None:
                parts = nest.partial_sums(height, knobs.height, len(places), knobs.unroll)
                wanted = ahead if knobs.far else None
                self._tile(partial(number, row), right, places, row, height, parts, wanted)

            nest.for_bottom(k, rows, knobs.height + 1, tile)

        mine = knobs.workgroups[0] == 1
        with nullcontext() if mine else k.when(k.workgroup(0).equals(0)):
            nest.for_panels(k, knobs.panels, knobs.workgroups[1], columns)

    def _tile(
        self,
        left: Callable[[int, Index], Scalar],
        right: Callable[[int, Index], Vector],
        places: list[Lanes],
        row: Index,
        height: int,
        parts: int,
        ahead: Callable[[Index], None] | None = None,
    ) -> None:
        """Compute and store one register tile."""
        k, knobs, width = self.k, self.knobs, len(places)
        tile = ProductTile(k, height, width, knobs.unroll, left, right, ahead, parts)
        zeros = [k.vector(0.0)] * (height * width)
        sums = tile.accumulate(Index.of(knobs.depth), zeros)
        self.finish.tile(sums, places, nest.matrix_rows(row))


def _match(work: Work, target: Target, halves: bool) -> list[KernelOffer]:
    """Offer a product with constant weights, and as much of what follows as the epilogue can do.

    Of halves also a 1x1 convolution of every position, NHWC.
    """
    node = work.nodes[0]
    dtype = float_type(work, node.operands) if is_packed(work) or _is_pointwise(work) else ""
    if (dtype not in HALVES) if halves else (dtype != "f32" or node.name != "matmul"):
        return []
    a, b = (work.type(v) for v in node.operands)
    rows, depth, columns = sizes(a.shape[:-1]), b.shape[-2], b.shape[-1]
    if not depth or not columns or a.shape[-1] != depth or rows == 0:
        return []
    covers, found = longest(work, 1, MatrixView(node.type.shape, node.type.rank - 1))
    on = partial(HalfGemm.on, dtype=dtype) if halves else Gemm.on
    knobs = on(target, rows or "m", columns, depth, epilogue=found.program)
    first, second = node.operands
    feeds = (Feed.matrix(work, first), Feed(second, (b.rank - 1,)), *found.feeds)
    family = HALVES_FAMILY if halves else FAMILY
    return family.offer(knobs, target, covers, feeds, {"m": nominal(a.shape[:-1])})


def is_packed(work: Work) -> bool:
    """Return whether it is a product with one constant matrix of more than a few columns."""
    node = work.nodes[0]
    if node.name != "matmul" or not float_type(work, node.operands):
        return False
    a, b = (work.type(v) for v in node.operands)
    constant = work.is_constant(node.operands[1]) and sizes(b.shape[:-2]) == 1
    return constant and 2 <= b.rank <= a.rank and not is_narrow(b.shape[-1])


def is_narrow(columns: int | str | None) -> bool:
    """Return whether there are so few columns that most lanes of a tile would be idle."""
    return isinstance(columns, int) and columns < _NARROW


def _is_pointwise(work: Work) -> bool:
    """Return whether it is a 1x1 convolution of every position, NHWC, with constant weights."""
    node = work.nodes[0]
    if node.name != "conv2d" or node.params["layout"] != "NHWC" or node.params["groups"] != 1:
        return False
    w = work.type(node.operands[1]).shape
    plain = tuple(node.params["strides"]) == (1, 1) and not any(node.params["pads"])
    return plain and w[:2] == (1, 1) and work.is_constant(node.operands[1])


FAMILY = Family("gemm", Gemm, partial(_match, halves=False))
HALVES_FAMILY = Family("half_gemm", HalfGemm, partial(_match, halves=True))
