"""The kernel families ``batch_gemm`` and ``gemv``: C = epilogue(A B) of two run-time matrices.

Single products, of batches, heads of an attention layer: `Contraction` says where rows and columns
lie.

``batch_gemm`` goes tile by tile. A workgroup copies a panel of B to its stack, transposed where the
depth lies last, and runs all its register tiles over it. Small matrices are read in place, without
a copy.

``gemv`` is for few rows of A; B is read once, as it is. Such products are as fast as B comes from
memory, so it is read in the order in which it lies. Row by row, it adds `at_once` of its rows to C
at a time, C's row in the first-level cache. Transposed, as many of its rows as there are lanes give
one vector of C: sums of products along the depth, turned at the end. A few rows of A share what was
read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels import nest
from pyc_mlir.pipelines.kernels.families.gemm import is_narrow, is_packed, wide_panel
from pyc_mlir.pipelines.kernels.knobs import (
    HEIGHTS,
    PANELS,
    UNROLLS,
    KernelKnobs,
    below,
    cuts,
    knob,
    known,
    up_to,
)
from pyc_mlir.pipelines.kernels.lang import values as ops
from pyc_mlir.pipelines.kernels.lang.carrier import Operand, in_type
from pyc_mlir.pipelines.kernels.lang.language import HALVES, LINE, Build, Lanes, Memory, Place
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Lettered, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar, Vector
from pyc_mlir.pipelines.kernels.match import Contraction, KernelOffer, find_product
from pyc_mlir.pipelines.kernels.nest import Depth, Finish, ProductTile, Row, local
from pyc_mlir.pipelines.kernels.registry import Family
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

STACK = 32 << 10
_HEIGHT, _UNROLL = 6, 4
_ROWS_FOR_A_COPY = 24
_DEEP = 16  # a panel's depth is a multiple of it: the lanes of any target
_DEPTH_IN_PLACE = 512
_ANY_DEPTH = 1 << 30
_BLOCKS = (32, 64, 128, 256, 512)  # of the depth, to try
ROWS = 6  # of gemv
_STREAMED = 4
_UNIT = 64  # columns that workgroups do not cut
_STRIP_BYTES = 16 << 10
_STRIPS = (512, 1024, 2048, 4096, 8192)  # to try
_STRIP_LEAST = 1024  # shorter runs are not worth a prefetcher's start


@dataclass(frozen=True)
class BatchMatrix:
    """One matrix within an operand, at a place of the batch."""

    memory: Memory
    order: str
    batch: Mapping[str, Index]

    def at(self, **place: Place) -> list[Place]:
        """Return a position from those of the matrix's two letters."""
        known: dict[str, Place] = {**self.batch, **place}
        return [known[x] for x in self.order]

    def indices(self, **place: Index) -> list[Index]:
        """Return the same for one number."""
        known = {**self.batch, **place}
        return [known[x] for x in self.order]

    def row(self, **place: Index) -> Lettered:
        """Return a row as an epilogue knows it, all dimensions but the last one taken as rows."""
        number, letters = Index.of(0), {**self.batch, **place}
        for letter, size in zip(self.order[:-1], self.memory.shape, strict=False):
            number = number * size + letters[letter]
        return Lettered(number, letters)


@dataclass(frozen=True)
class Matrices:
    """The three matrices of one place of the batch."""

    a: BatchMatrix
    b: BatchMatrix
    c: BatchMatrix


@dataclass(frozen=True)
class Operands:
    """The memory of a contraction inside a kernel."""

    k: Build
    what: Contraction
    a: Memory
    b: Memory
    c: Memory

    def each(self, parts: int, work: Callable[[Matrices], None]) -> None:
        """`work` on the matrices of this workgroup, one of `parts` along its first dimension."""
        if not self.what.batch:
            return work(self._matrices({}))
        count = Index.of(1)
        for size in self.what.batch:
            count = count * self.k.size(size)
        first, end = nest.share(self.k, 0, parts, count)
        with self.k.range(first, end) as number:
            work(self._matrices(dict(self._unravel(number))))
        return None

    def _matrices(self, batch: Mapping[str, Index]) -> Matrices:
        memories = zip((self.a, self.b, self.c), self.what.orders, strict=True)
        return Matrices(*(BatchMatrix(memory, order, batch) for memory, order in memories))

    def _unravel(self, number: Index) -> Iterator[tuple[str, Index]]:
        """Yield a number within the batch as one for each letter, the last one changing fastest."""
        sizes, letters = self.what.sizes, self.what.letters
        for letter in reversed(letters[1:]):
            yield letter, number % self.k.size(sizes[letter])
            number = number // self.k.size(sizes[letter])
        yield letters[0], number


class _Knobs(KernelKnobs):
    """Knobs of a product of `what`, with an epilogue that sees all its rows as one matrix."""

    what: Contraction
    epilogue: Pointwise
    dtype: str

    @property
    def flops(self) -> float:
        """Those of the product and of the epilogue."""
        out = prod(known(self.what.sizes[x]) for x in self.what.result)
        return self.what.flops + out * self.epilogue.flops

    def operands(self) -> tuple[Operand, ...]:
        """Return a, b, what the epilogue reads, then c."""
        return in_type(self.what.operands(self.epilogue), self.dtype)

    @staticmethod
    def cores(target: Target, what: Contraction, read: int) -> int:
        """Return the cores for products that read so many numbers."""
        flops = 2.0 * prod(map(known, (*what.batch, what.rows, what.columns, what.depth)))
        return nest.cores_for(target, flops, 4.0 * read)

    def _views(self, k: Build, memory: Mapping[str, Memory]) -> Operands:
        return Operands(k, self.what, memory["a"], memory["b"], memory["c"])


def _batch_cuts(knobs: Any, target: Target) -> list[tuple[int, ...]]:
    what = knobs.what
    across = max(1, known(what.columns) // knobs.panel)
    return cuts(target, prod(map(known, what.batch)), known(what.rows), across)


@dataclass(frozen=True)
class BatchGemm(_Knobs, family="batch_gemm"):
    """The knobs of a product tile by tile.

    `height` and `panel` are rows and columns of the register tile; `depth_block` is what is summed
    before C is written, all of the depth where C is of a half `dtype`; `local` copies B's panels of
    that depth to the stack, as f32. `workgroups` cuts the batch, rows and columns.
    """

    what: Contraction
    epilogue: Pointwise = NOTHING
    height: int = knob(_HEIGHT, lambda k, _: up_to(HEIGHTS, k.what.rows))
    panel: int = knob(64, PANELS)
    depth_block: int = knob(128, lambda k, _: below(_BLOCKS, known(k.what.depth)))
    unroll: int = knob(_UNROLL, UNROLLS)
    local: bool = knob(True, (False, True))
    workgroups: tuple[int, int, int] = knob((1, 1, 1), _batch_cuts)
    dtype: str = "f32"

    def _misfit(self) -> str:
        if self.workgroups[0] > 1 and not self.what.batch:
            return "one share of a product without a batch"
        if self.what.transposed and not self.local:
            return "a transposed right side to be local"
        deep = self.what.depth if isinstance(self.what.depth, int) else _ANY_DEPTH
        if self.dtype in HALVES and deep > self.depth_block:
            return f"one block of the depth for {self.dtype}"
        if self.depth_block % self.unroll:
            return "depth_block in multiples of unroll"
        wide = 4 * self.panel * -(-self.depth_block // _DEEP) * _DEEP > STACK
        return f"a local panel of at most {STACK} bytes" if self.local and wide else ""

    @staticmethod
    def on(target: Target, what: Contraction, **others: Any) -> "BatchGemm":
        """Choose the knobs for a target's registers, caches and cores; `others` are fields.

        B is read in place where it is not transposed and a panel of it fits the first-level cache,
        or too few rows would share a copy.
        """
        panel = wide_panel(target)
        deepest = STACK // (4 * panel) // _DEEP * _DEEP
        few = isinstance(what.rows, int) and what.rows < _ROWS_FOR_A_COPY
        block, in_place = deepest, few
        if isinstance(what.depth, int):
            parts = -(-what.depth // deepest)
            block, in_place = _even(what.depth, parts), few or parts == 1
        copied = what.transposed or not in_place
        if not copied and isinstance(what.depth, int):
            block = _even(what.depth, -(-what.depth // _DEPTH_IN_PLACE))
        if others.get("dtype") in HALVES:
            panel, block, copied = _whole_depth(target, what, panel, copied)
        knobs = {"panel": panel, "depth_block": block, "local": copied}
        return BatchGemm(what, **{**knobs, "workgroups": _cut(target, what, panel), **others})

    def refusal(self, target: Target) -> str:
        """Refuse a register tile that does not fit, or is no whole vectors."""
        if self.panel % (lanes := target.vector_bytes // 4):
            return f"batch_gemm: expected a panel in vectors of {lanes}, got {self.panel}"
        return nest.refuse_tile(self.family, self.height, self.panel, target)

    def _in_place(self) -> tuple[tuple[str, str], ...]:
        what = self.what
        once = isinstance(what.depth, int) and what.depth <= self.depth_block
        return nest.overwritable(self.epilogue, what.matrix[0], once, what.result[:-1])

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        deep = -(-self.depth_block // _DEEP) * _DEEP
        panel = local(k, deep * self.panel) if self.local else None
        finish = Finish(k, InKernel.of(k, self.epilogue, "e", memory), memory["c"])
        product = BatchProduct(k, self, finish, panel)
        self._views(k, memory).each(self.workgroups[0], product.matrices)


def _whole_depth(
    target: Target, what: Contraction, panel: int, copied: bool
) -> tuple[int, int, bool]:
    """Return a panel, a block that holds all of the depth, and whether it is copied.

    Narrower panels hold a greater depth. What no panel on the stack holds is read in place.
    """
    lanes = target.vector_bytes // 4
    if copied and isinstance(what.depth, int):
        depth = -(-what.depth // _DEEP) * _DEEP
        for width in range(panel, 0, -lanes):
            if 4 * width * depth <= STACK:
                return width, depth, True
    whole = what.depth if isinstance(what.depth, int) else _ANY_DEPTH
    return panel, -(-whole // _UNROLL) * _UNROLL, what.transposed


def _even(depth: int, parts: int) -> int:
    return -(-depth // (parts * _UNROLL)) * _UNROLL


def _cut(target: Target, what: Contraction, panel: int) -> tuple[int, int, int]:
    """Cut the batch first; cores that are left take columns, since rows would repeat the copies."""
    count, rows, columns = prod(map(known, what.batch)), known(what.rows), known(what.columns)
    cores = _Knobs.cores(target, what, count * known(what.depth) * (rows + columns))
    shares = nest.cut_batch(cores, what.batch)
    left = cores // shares
    across = max(1, min(left, columns // panel))
    return shares, max(1, min(left // across, rows // _HEIGHT)), across


@dataclass(frozen=True)
class Block:
    """A panel of columns over a block of the depth: the places of its vectors, its first column."""

    places: list[Lanes]
    column: Index
    depth: Depth


@dataclass(frozen=True)
class BatchProduct:
    """One kernel under construction; `panel` is memory for a copied panel of B."""

    k: Build
    knobs: BatchGemm
    finish: Finish
    panel: Memory | None

    def matrices(self, views: Matrices) -> None:
        """Compute full panels, then the narrower last one."""
        k, knobs = self.k, self.knobs
        columns = k.size(knobs.what.columns)
        full, rest = columns // knobs.panel, columns % knobs.panel
        first, end = nest.share(k, 2, knobs.workgroups[2], full)
        if full.number != 0:
            with k.range(first, end) as panel:
                at = panel * knobs.panel
                self._depth(views, at, [Lanes(at + v) for v in range(0, knobs.panel, k.lanes)])
        if rest.number == 0:
            return
        at = full * knobs.panel
        width = knobs.panel if rest.number is None else rest.number
        # A vector may lie behind the last column altogether.
        starts = [at + v for v in range(0, width, k.lanes)]
        if rest.number is None:
            starts = [ops.least(start, columns) for start in starts]
        places = [k.tail(start, columns) for start in starts]
        mine = k.workgroup(2).equals(knobs.workgroups[2] - 1)
        with k.when(mine if rest.number is not None else mine & (Index.of(0) < rest)):
            self._depth(views, at, places)

    def _depth(self, views: Matrices, column: Index, places: list[Lanes]) -> None:
        """Compute blocks of the depth of a panel, one after the other."""
        k, knobs = self.k, self.knobs
        depth = k.size(knobs.what.depth)
        # A depth of 0 is one block without steps: it stores zeros.
        blocks = depth.ceildiv(knobs.depth_block) + (1 - ops.least(depth, 1))

        def block(number: Index) -> list[Any]:
            found = Depth.block(number, blocks, depth, knobs.depth_block)
            self._panel(views, Block(places, column, found))
            return []

        k.loop(0, blocks)(block)

    def _panel(self, views: Matrices, block: Block) -> None:
        k, knobs = self.k, self.knobs
        if self.panel is not None:
            self._copy(views.b, block, self.panel)
        rows = k.size(knobs.what.rows)
        tiles = rows // knobs.height
        first, end = nest.share(k, 1, knobs.workgroups[1], tiles)
        if tiles.number != 0:
            following = self._following(block) if knobs.local else None
            with k.range(first, end) as tile:
                turn = tile - first
                ahead = partial(self._next_panel, views.b, following, turn) if following else None
                self._tile(views, block, tile * knobs.height, knobs.height, ahead)
        mine = k.workgroup(1).equals(knobs.workgroups[1] - 1)
        for row, height, needed in nest.bottom(rows, knobs.height):
            with k.when(mine if needed is None else mine & needed):
                self._tile(views, block, row, height)

    def _following(self, block: Block) -> tuple[Index, Index]:
        """Return the start of the next block: deeper in this panel, or on top of the next one."""
        here = (block.depth.start + self.knobs.depth_block, block.column)
        there = (Index.of(0), block.column + self.knobs.panel)
        if block.depth.blocks.number == 1:
            return there
        last = (block.depth.number + 1).equals(block.depth.blocks)
        start, column = self.k.either(last, here, lambda: there, lambda: here)
        return start, column

    def _next_panel(
        self, b: BatchMatrix, following: tuple[Index, Index], turn: Index, at: Index
    ) -> None:
        """Ask for one line of the next block, which is copied soon; `turn` counts tiles."""
        knobs = self.knobs
        start, column = following
        size = knobs.depth_block * knobs.panel // LINE
        number = turn * (knobs.depth_block // knobs.unroll) + at // knobs.unroll
        number = ops.least(number, size - 1)
        if knobs.what.transposed:
            lines = max(1, knobs.depth_block // LINE)
            place = b.at(n=column + number // lines, k=start + number % lines * LINE)
        else:
            lines = max(1, knobs.panel // LINE)
            place = b.at(k=start + number // lines, n=column + number % lines * LINE)
        b.memory.prefetch(*place, level=2)

    def _copy(self, b: BatchMatrix, block: Block, panel: Memory) -> None:
        """Copy B's rows side by side; of a transposed B, turn squares of registers.

        Columns behind the last one are copies of it.
        """
        k, lanes, length = self.k, self.k.lanes, block.depth.length
        if not self.knobs.what.transposed:
            with k.range(length) as at:
                for v, place in enumerate(block.places):
                    value = b.memory.load(*b.at(k=block.depth.start + at, n=place))
                    panel.store(value, self._spot(block, at, v))
            return
        last = k.size(self.knobs.what.columns) - 1

        def square(at: Index, v: int, place: Lanes) -> None:
            rows = [
                b.memory.load(*b.at(n=ops.least(block.column + (v * lanes + i), last), k=place))
                for i in range(lanes)
            ]
            for i, column in enumerate(ops.transposed(rows)):
                panel.store(column, self._spot(block, at + i, v))

        whole, end = length // lanes * lanes, block.depth.start + length
        for v in range(len(block.places)):
            with k.range(0, whole, lanes) as at:
                square(at, v, Lanes(block.depth.start + at))
            if length.number is None or length.number % lanes:
                with k.when(whole < length):
                    square(whole, v, k.tail(block.depth.start + whole, end))

    def _spot(self, block: Block, at: Index, v: int) -> Index:
        lanes = self.k.lanes
        return at * (len(block.places) * lanes) + v * lanes

    def _tile(
        self,
        views: Matrices,
        block: Block,
        row: Index,
        height: int,
        ahead: Callable[[Index], None] | None = None,
    ) -> None:
        a, b, c = views.a, views.b, views.c

        def left(r: int, at: Index) -> Scalar:
            return a.memory.number(*a.indices(m=row + r, k=block.depth.start + at))

        def right(v: int, at: Index) -> Vector:
            if self.panel is not None:
                return self.panel.load(self._spot(block, at, v))
            return b.memory.load(*b.at(k=block.depth.start + at, n=block.places[v]))

        knobs, width = self.knobs, len(block.places)
        parts = nest.partial_sums(knobs.what.rows, knobs.height, width, knobs.unroll)
        tile = ProductTile(self.k, height, width, knobs.unroll, left, right, ahead, parts)
        spots = [c.at(m=row + r, n=at) for r in range(height) for at in block.places]
        zeros = [self.k.vector(0.0)] * len(spots)
        held = block.depth.begin(self.k, zeros, lambda: [c.memory.load(*spot) for spot in spots])
        sums = tile.accumulate(block.depth.length, held)

        def finish() -> None:
            def own(r: Index) -> Row:
                return c.row(m=row + r), c.at(m=row + r, n=0)[:-1]

            self.finish.tile(sums, block.places, own)

        def keep() -> None:
            for spot, value in zip(spots, sums, strict=True):
                c.memory.store(value, *spot)

        if knobs.epilogue.steps:
            block.depth.end(self.k, finish, keep)
        else:
            finish()


@dataclass(frozen=True)
class Gemv(_Knobs, family="gemv"):
    """The knobs of a product with few rows.

    `at_once` rows of B are added to `strip` columns of C at a time; both are for B row by row.
    `workgroups` cuts the batch and the columns. Of a half `dtype` B must be transposed: else C
    would hold sums.
    """

    what: Contraction
    epilogue: Pointwise = NOTHING
    at_once: int = knob(8, lambda k, _: () if k.what.transposed else (1, 2, 4, 8, 12, 16))
    strip: int = knob(
        4096,
        lambda k, _: () if k.what.transposed else below(_STRIPS, known(k.what.columns)),
        multiple=_UNIT,
    )
    workgroups: tuple[int, int] = knob(
        (1, 1),
        lambda k, target: cuts(
            target, prod(map(known, k.what.batch)), known(k.what.columns) // _UNIT
        ),
    )
    dtype: str = "f32"

    def _misfit(self) -> str:
        what = self.what
        if not isinstance(what.rows, int) or what.rows > ROWS:
            return f"at most {ROWS} rows, a number"
        if self.workgroups[0] > 1 and not what.batch:
            return "one share of a product without a batch"
        if what.transposed and what.left[-1] != "k":
            return "a left side whose depth lies last"
        halves = self.dtype in HALVES and not what.transposed
        return f"a transposed right side of {self.dtype}" if halves else ""

    @staticmethod
    def on(target: Target, what: Contraction, **others: Any) -> "Gemv":
        """Choose the knobs for a target's registers, caches and cores; `others` are fields."""
        rows, columns = known(what.rows), known(what.columns)
        cores = _Knobs.cores(target, what, prod(map(known, (*what.batch, what.depth, columns))))
        shares = nest.cut_batch(cores, what.batch)
        across = max(1, min(cores // shares, columns // _UNIT))
        strip = max(_STRIP_LEAST, _STRIP_BYTES // (4 * rows) // _UNIT * _UNIT)
        at_once = max(1, min(8, target.vector_registers * 5 // 8 // rows))
        knobs = {"at_once": at_once, "strip": strip, "workgroups": (shares, across)}
        return Gemv(what, **{**knobs, **others})

    def _in_place(self) -> tuple[tuple[str, str], ...]:
        what = self.what
        rows, letters = what.matrix[0], what.result[:-1]
        return nest.overwritable(self.epilogue, rows, what.transposed, letters)

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        built = Stream(k, self, InKernel.of(k, self.epilogue, "e", memory))
        work = built.dots if self.what.transposed else built.sums
        self._views(k, memory).each(self.workgroups[0], work)


def is_streamed(what: Contraction, dtype: str) -> bool:
    """Return whether a product has so few rows that tiles of registers would be slower.

    Of halves, rows of B that are added to C would round sums.
    """
    in_order = what.left[-1] == "k" if what.transposed else dtype not in HALVES
    return isinstance(what.rows, int) and what.rows <= _STREAMED and in_order


@dataclass(frozen=True)
class Stream:
    """One kernel under construction."""

    k: Build
    knobs: Gemv
    epilogue: InKernel

    @property
    def rows(self) -> range:
        """The rows of A and C."""
        return range(known(self.knobs.what.rows))

    def _columns(self) -> tuple[Index, Index]:
        columns = self.k.size(self.knobs.what.columns)
        units = columns.ceildiv(_UNIT)
        first, end = nest.share(self.k, 1, self.knobs.workgroups[1], units)
        return ops.least(first * _UNIT, columns), ops.least(end * _UNIT, columns)

    def sums(self, views: Matrices) -> None:
        """Read B row by row: strip after strip of C, all of the depth for each."""
        k, knobs = self.k, self.knobs
        first, end = self._columns()
        depth = k.size(knobs.what.depth)
        whole = depth // knobs.at_once * knobs.at_once
        with k.range(first, end, knobs.strip) as start:
            width = ops.least(end - start, knobs.strip)
            for row in self.rows:

                @k.each(width)
                def _(at: Lanes, row: int = row) -> None:
                    views.c.memory.store(k.vector(0.0), *views.c.at(m=row, n=at.moved(start)))

            with k.range(0, whole, knobs.at_once) as at:
                self._add(views, start, width, [at + i for i in range(knobs.at_once)])
            with k.range(whole, depth) as at:
                self._add(views, start, width, [at])
            self._finish(views, start, width)

    def _add(self, views: Matrices, start: Index, width: Index, depths: Sequence[Index]) -> None:
        """Add some rows of B, times their numbers of A, to a strip of C."""
        a, b, c = views.a, views.b, views.c
        factors = [
            [a.memory.number(*a.indices(m=Index.of(r), k=d)).across(self.k.lanes) for d in depths]
            for r in self.rows
        ]

        @self.k.each(width, unroll=2)
        def _(at: Lanes) -> None:
            place = at.moved(start)
            parts = [b.memory.load(*b.at(k=d, n=place)) for d in depths]
            for row in self.rows:
                value = c.memory.load(*c.at(m=row, n=place))
                for factor, part in zip(factors[row], parts, strict=True):
                    value = ops.fma(part, factor, value)
                c.memory.store(value, *c.at(m=row, n=place))

    def _finish(self, views: Matrices, start: Index, width: Index) -> None:
        """Apply the epilogue while the strip is in the cache."""
        if not self.knobs.epilogue.steps:
            return
        c = views.c
        # The constants of a function fill 16 registers.
        few = self.knobs.epilogue.heavy and self.k.target.vector_registers < 32
        for row in self.rows:
            apply = self.epilogue.row(c.row(m=Index.of(row)))

            @self.k.each(width, unroll=1 if few else 4)
            def _(at: Lanes, row: int = row, apply: Any = apply) -> None:
                place = c.at(m=row, n=at.moved(start))
                c.memory.store(apply(c.memory.load(*place), at.moved(start)), *place)

    def dots(self, views: Matrices) -> None:
        """Read B transposed: a vector of C from as many rows of B, row by row of A."""
        k = self.k
        first, end = self._columns()
        whole = first + (end - first) // k.lanes * k.lanes
        with k.range(first, whole, k.lanes) as start:
            self._group(views, start, Lanes(start))
        if end.number is None or whole.number is None or whole.number < end.number:
            with k.when(whole < end):
                self._group(views, whole, k.tail(whole, end))

    def _group(self, views: Matrices, start: Index, place: Lanes) -> None:
        """Compute one vector of columns; those behind the last one repeat it."""
        last = self.k.size(self.knobs.what.columns) - 1
        columns = [
            ops.least(start + i, last) if place.mask else start + i for i in range(self.k.lanes)
        ]
        for row in self.rows:
            value = self._products(views, row, columns)
            apply = self.epilogue.row(views.c.row(m=Index.of(row)))
            views.c.memory.store(apply(value, place), *views.c.at(m=row, n=place))

    def _products(self, views: Matrices, row: int, columns: Sequence[Index]) -> Vector:
        """Multiply a row of A by some rows of B, as one vector."""
        k, a, b = self.k, views.a, views.b
        depth = k.size(self.knobs.what.depth)

        def step(at: Lanes, kept: Sequence[Vector]) -> list[Vector]:
            x = a.memory.load(*a.at(m=row, k=at))
            rows = (b.memory.load(*b.at(n=n, k=at)) for n in columns)
            return [ops.fma(x, part, total) for part, total in zip(rows, kept, strict=True)]

        whole = depth // k.lanes * k.lanes
        zeros = [k.vector(0.0)] * len(columns)
        sums = k.loop(0, whole, k.lanes, zeros)(lambda at, *kept: step(Lanes(at), kept))
        if depth.number is None or depth.number % k.lanes:
            # One turn under a mask, or none.
            sums = k.loop(whole, depth, k.lanes, sums)(
                lambda at, *kept: step(k.tail(at, depth), kept)
            )
        return ops.tree(ops.add, ops.transposed(sums))


def _match(work: Work, target: Target, streams: bool) -> list[KernelOffer]:
    """Offer a kernel for a product of matrices that are not known when compiling: of few rows, or
    of more.
    """
    found = find_product(work)
    if found is None or is_packed(work) or is_streamed(found.what, found.dtype) != streams:
        return []
    if not streams and is_narrow(found.what.columns):
        return []
    on, family = (Gemv.on, GEMV) if streams else (BatchGemm.on, BATCH_GEMM)
    try:
        knobs = on(target, found.what, epilogue=found.epilogue, dtype=found.dtype)
    except PycError:  # of halves, a depth that no panel on the stack holds
        return []
    return family.offer(knobs, target, found.covers, found.feeds, found.nominal)


BATCH_GEMM = Family("batch_gemm", BatchGemm, partial(_match, streams=False))
GEMV = Family("gemv", Gemv, partial(_match, streams=True))
