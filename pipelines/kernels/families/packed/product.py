"""Products of f32 with weights of few bits, which are unpacked on the way: knobs and code.

y[rows, columns] = epilogue(x w), w as `block_matmul` says. A word of the packed weights holds
neighbouring numbers of one column along the depth; two shifts take one out with its sign, and a
conversion makes it f32. With AVX-512 a shift and a table of sixteen numbers do the same for 4 bits.
One row is bound by memory: sums of a block are scaled at its end. Of a few rows a tile shares what
was unpacked in registers, each weight scaled at once. Of many, panels are unpacked to scratch
memory, where the tiles of `gemm` run over them. Or all rows are rounded to bytes (`byte_rows.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyc_mlir.pipelines.kernels.families.gemm import Depth, Gemm, Product, Strip
from pyc_mlir.pipelines.kernels.families.int8.dot import VNNI, has_dot
from pyc_mlir.pipelines.kernels.families.packed.byte_rows import ByteRows, RoundedRows, fits
from pyc_mlir.pipelines.kernels.families.packed.weights import (
    WORD,
    BlockPoints,
    Blocks,
    BlockScales,
    BlockWords,
)
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory, llvm
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import (
    Index,
    Vector,
    arith,
    f32_vector,
    fma,
    int_constant,
    int_vector,
)
from pyc_mlir.pipelines.kernels.shared.grid import cores_for, known, share
from pyc_mlir.pipelines.kernels.shared.tile import bottom
from pyc_mlir.pipelines.kernels.shared.unpacked import Scratch
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.target import Target

_TALL = 6
_TABLE_BITS, _TABLE_BYTES = 4, 64
# What four bits stand for, as a number with a sign.
_SIGNED = tuple(float(n if n < 8 else n - 16) for n in range(16))


@dataclass(frozen=True)
class PackedProduct:
    """The knobs: `height` rows by `vectors` of columns are one register tile of several rows.

    More rows are tiles of `tall` rows by a panel, of which `deep` numbers of the depth are unpacked
    at a time. Or, `rounds`, all rows are rounded to bytes. `shifted`: zero points are given;
    without them they are half the range. `table`: numbers of 4 bits are looked up in a register.
    `workgroups` cuts the panels.
    """

    rows: Dim
    blocks: Blocks
    shifted: bool = False
    epilogue: Pointwise = NOTHING
    height: int = 12
    vectors: int = 2
    workgroups: int = 1
    tall: int = 6
    deep: int = 1024
    table: bool = False
    rounds: bool = False

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        blocks = self.blocks
        sizes = (blocks.columns, blocks.depth, self.height, self.vectors, self.workgroups)
        sizes = (*sizes, self.tall, self.deep)
        whole = blocks.bits in (4, 8) and blocks.block % blocks.per_word == 0
        if self.rows == 0 or min(sizes) < 1 or not whole or blocks.depth % blocks.per_word:
            raise no_kernel("packed", "sizes of at least 1, blocks and depth in words", self)
        if self.deep % blocks.per_word or (self.table and blocks.bits != _TABLE_BITS):
            raise no_kernel("packed", "`deep` in words, a table of numbers of 4 bits", self)
        if self.rounds and (self.shifted or not fits(blocks, LINE)):
            raise no_kernel("packed", "whole blocks without zero points to round rows", self)

    @staticmethod
    def on(target: Target, rows: Dim, blocks: Blocks, **others: Any) -> "PackedProduct":
        """Choose the knobs for a target's registers and cores; `others` are further fields."""
        lanes, many = target.vector_bytes // 4, target.vector_registers >= 32
        blocks = replace(blocks, panel=(4 if many else 2) * max(lanes, 8))
        height, vectors = (12, 2) if many else (5, 2)
        wide = blocks.panel // lanes
        tall = min(_TALL, (target.vector_registers - wide - 1) // wide)
        deep = Gemm.on(target, "m", blocks.columns, blocks.depth).depth_block
        deep = -(-deep // blocks.per_word) * blocks.per_word
        table = blocks.bits == _TABLE_BITS and has_table(target)
        made = PackedProduct(
            rows, blocks, height=height, vectors=vectors, tall=tall, deep=deep, table=table
        )
        cores = cores_for(target, made.flops, blocks.bits * blocks.depth * blocks.columns / 8)
        shares = max(1, min(cores, blocks.words.full))
        return replace(made, **{"workgroups": shares, **others})

    def rounding(self) -> "PackedProduct":
        """Return the knobs of the same product with rounded rows.

        Their tiles, and so the panels, are a line wide.
        """
        return replace(self, blocks=replace(self.blocks, panel=LINE), rounds=True)

    @property
    def flops(self) -> float:
        """Operations of the product."""
        return 2.0 * known(self.rows) * self.blocks.columns * self.blocks.depth

    @property
    def many(self) -> bool:
        """True where there may be more rows than a tile that unpacks in registers has."""
        return not isinstance(self.rows, int) or self.rows > self.height

    @property
    def scratch(self) -> Scratch:
        """Memory of an unpacked panel over a block of the depth."""
        return Scratch(
            min(self.deep, self.blocks.depth) * self.blocks.panel, 0, (1, self.workgroups)
        )

    @property
    def _scratch(self) -> tuple[Operand, ...]:
        if self.rounds:
            return RoundedRows(self.blocks, self.workgroups).operands
        return (self.scratch.operand,) if self.many else ()

    @property
    def product(self) -> Gemm:
        """The product of many rows by unpacked panels."""
        blocks = self.blocks
        return Gemm(
            *(self.rows, blocks.columns, blocks.depth, self.epilogue, self.tall, blocks.panel),
            depth_block=self.deep,
            strip=blocks.panel,
            workgroups=(1, self.workgroups),
        )

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x, w, scale, [point], the epilogue's, y, [scratch]."""
        blocks, result = self.blocks, (self.rows, self.blocks.columns)
        taken = [
            Operand("x", (self.rows, blocks.depth)),
            Operand("w", (blocks.words.size,), dtype="i32", layout=BlockWords(blocks)),
            Operand("scale", (blocks.scales.size,), layout=BlockScales(blocks)),
        ]
        if self.shifted:
            points = BlockPoints(blocks)
            taken.append(Operand("point", (blocks.scales.size,), dtype="i8", layout=points))
        taken += self.epilogue.operands("e", *result)
        taken.append(Operand("y", result, "out"))
        taken += self._scratch
        return Kernel(name, tuple(taken), lambda size: (1, self.workgroups), self._body)

    def _body(self, k: Build, x: Memory, w: Memory, scale: Memory, *others: Memory) -> None:
        count = len(self._scratch)
        *reads, y = others[: len(others) - count]
        scratch = others[len(others) - count :]
        point = reads.pop(0) if self.shifted else None
        epilogue = InKernel(k, self.epilogue, tuple(reads))
        Unpacking(k, self, x, w, scale, point, y, epilogue, scratch).build()


@dataclass(frozen=True)
class _Panel:
    """Columns that are computed together: the first, the offsets of words and scales, the width."""

    column: Index
    words: Index
    scales: Index
    width: int
    last: bool = False


@dataclass(frozen=True)
class Unpacking:
    """One kernel under construction: panels, then tiles of rows, then blocks of the depth."""

    k: Build
    knobs: PackedProduct
    x: Memory
    w: Memory
    scale: Memory
    point: Memory | None
    y: Memory
    epilogue: InKernel
    scratch: Sequence[Memory]

    def build(self) -> None:
        """Compute this workgroup's columns, in the way of so many rows."""
        k, knobs = self.k, self.knobs
        rows = k.size(knobs.rows)
        if knobs.rounds:
            taken = (self.x, self.w, self.scale, self.y, self.epilogue, self.scratch)
            ByteRows(k, knobs.blocks, knobs.workgroups, *taken).build(rows)
        elif rows.number is None:
            with k.when(rows < knobs.height + 1):
                self._few()
            with k.when(Index.of(knobs.height) < rows):
                self._many()
        elif knobs.many:
            self._many()
        else:
            self._few()

    def _many(self) -> None:
        """Run the tiles of a product over panels that are unpacked one after the other."""
        knobs, (scratch,) = self.knobs, self.scratch
        at, _ = knobs.scratch.own(self.k)
        PanelProduct(
            *(self.k, knobs.product, self.x, scratch, self.y, self.epilogue),
            unpack=self._unpack,
            at=at,
        ).build()

    def _unpack(self, strip: Strip, depth: Depth, at: Index) -> None:
        """Write the weights of a panel over a block of the depth, as f32, from `at` on."""
        k, blocks, width, (held,) = self.k, self.knobs.blocks, strip.width, self.scratch
        words, scales = blocks.words, blocks.scales
        start, scale = (
            (p.edge * p.depth if strip.last else strip.first * (p.depth * width))
            for p in (words, scales)
        )
        panel = _Panel(Index.of(0), Index.of(start), Index.of(scale), width, strip.last)
        tile = _Tile(self, panel, Index.of(0), 0, 0, width // k.lanes, single=False)
        per, length = blocks.per_word, blocks.block // blocks.per_word
        first = depth.start // per
        with k.range(depth.length // per) as word:
            factors, points = tile.scales_at((first + word) // length)
            for n, row in enumerate(tile.numbers(first + word, points)):
                for v, (number, factor) in enumerate(zip(row, factors, strict=True)):
                    place = at + (word * per + n) * width + v * k.lanes
                    held.store(number * factor, place)

    def _few(self) -> None:
        """Compute this workgroup's panels, the narrower last one in the last workgroup."""
        k, knobs = self.k, self.knobs
        words, scales = knobs.blocks.words, knobs.blocks.scales
        if words.full:
            first, end = share(k, 1, knobs.workgroups, Index.of(words.full))
            with k.range(first, end) as n:
                width = words.panel
                at = (n * width, n * (words.depth * width), n * (scales.depth * width))
                self._rows(_Panel(*at, width))
        if words.last_width:
            with k.when(k.workgroup(1).equals(knobs.workgroups - 1)):
                edge = Index.of(words.edge)
                at = (edge, edge * words.depth, edge * scales.depth)
                self._rows(_Panel(*at, words.last_width, last=True))

    def _rows(self, panel: _Panel) -> None:
        """Compute all rows: a single one in a way of its own."""
        k, rows = self.k, self.k.size(self.knobs.rows)
        if rows.number == 1:
            self._tile(panel, Index.of(0), 1, single=True)
        elif rows.number is not None:
            self._tiles(panel, rows)
        else:
            with k.when(rows.equals(1)):
                self._tile(panel, Index.of(0), 1, single=True)
            with k.when(Index.of(1) < rows):
                self._tiles(panel, rows)

    def _tiles(self, panel: _Panel, rows: Index) -> None:
        k, height = self.k, self.knobs.height
        with k.range(rows // height) as n:
            self._tile(panel, n * height, height)
        for start, rest, condition in bottom(rows, height):
            if condition is None:
                self._tile(panel, start, rest)
            else:
                with k.when(condition):
                    self._tile(panel, start, rest)

    def _tile(self, panel: _Panel, start: Index, height: int, single: bool = False) -> None:
        """Compute `height` rows of a panel, some of its vectors at a time; a single row all."""
        places = self._places(panel)
        step = len(places) if single else self.knobs.vectors
        for first in range(0, len(places), step):
            self._vectors(panel, start, height, first, places[first : first + step], single)

    def _vectors(
        self,
        panel: _Panel,
        start: Index,
        height: int,
        first: int,
        places: Sequence[Lanes],
        single: bool,
    ) -> None:
        k, blocks = self.k, self.knobs.blocks
        tile = _Tile(self, panel, start, height, first, len(places), single)
        zeros = [k.vector(0.0)] * (height * len(places))
        length = blocks.block // blocks.per_word
        whole = blocks.words.depth // length
        sums = k.loop(0, whole, 1, zeros)(lambda b, *kept: tile.block(b, length, kept))
        if rest := blocks.words.depth - whole * length:
            sums = tile.block(Index.of(whole), rest, sums)
        for row in range(height):
            apply = self.epilogue.row(start + row)
            for v, at in enumerate(places):
                self.y.store(apply(sums[row * len(places) + v], at), start + row, at)

    def _places(self, panel: _Panel) -> list[Lanes]:
        """Return the places of a panel's vectors in a row of the result, masked in the last."""
        k, words = self.k, self.knobs.blocks.words
        starts = range(0, panel.width, k.lanes)
        if not panel.last:
            return [Lanes(panel.column + v) for v in starts]
        left = words.columns - words.edge
        masked = [k.tail(Index.of(v), Index.of(left)) for v in starts if v < left]
        return [Lanes(panel.column + at.start, at.mask) for at in masked]


@dataclass(frozen=True)
class _Tile:
    """`height` rows from `start` on by `vectors` of a panel, from number `first` on."""

    kernel: Unpacking
    panel: _Panel
    start: Index
    height: int
    first: int
    vectors: int
    single: bool

    def block(self, number: Index, words: int, sums: Sequence[Vector]) -> list[Vector]:
        """Add the products of a block's first words to the sums."""
        k = self.k
        scales, points = self.scales_at(number)
        length = self.blocks.block // self.blocks.per_word

        def step(word: Index, *kept: Vector) -> list[Vector]:
            return self._word(number * length + word, kept, scales, points)

        if not self.single:
            return k.loop(0, words, 1, sums)(step)
        own = k.loop(0, words, 1, [k.vector(0.0)] * self.vectors)(step)
        return [fma(a, s, total) for a, s, total in zip(own, scales, sums, strict=True)]

    @property
    def k(self) -> Build:
        """The builder."""
        return self.kernel.k

    @property
    def blocks(self) -> Blocks:
        """The weights."""
        return self.kernel.knobs.blocks

    def scales_at(self, number: Index) -> tuple[list[Vector], list[Vector | None]]:
        """Return the scales of a block, and what is added to its numbers."""
        k, panel = self.k, self.panel
        at = panel.scales + number * panel.width + self.first * k.lanes
        places = [at + v * k.lanes for v in range(self.vectors)]
        return [self.kernel.scale.load(p) for p in places], [self._point(p) for p in places]

    def _point(self, at: Index) -> Vector | None:
        """Return what is added to the numbers of a block, whole numbers; None for nothing."""
        point, lanes = self.kernel.point, self.k.lanes
        if point is None:
            return None
        narrow = point.load_as(ir.VectorType.get([lanes], ir.IntegerType.get_signless(8)), at)
        whole = arith.addi(arith.extsi(int_vector(lanes), narrow), int_constant(1, lanes))
        return Vector(arith.sitofp(f32_vector(lanes), whole))

    def numbers(self, word: Index, points: Sequence[Vector | None]) -> Iterator[list[Vector]]:
        """Yield the numbers in a word of each column, one along the depth after the other."""
        k, blocks = self.k, self.blocks
        start = self.panel.words + word * self.panel.width + self.first * k.lanes
        kind = int_vector(k.lanes)
        held = [self.kernel.w.load_as(kind, start + v * k.lanes) for v in range(self.vectors)]
        for n in range(blocks.per_word):
            yield [self._number(w, n, p) for w, p in zip(held, points, strict=True)]

    def _word(
        self,
        word: Index,
        sums: Sequence[Vector],
        scales: Sequence[Vector],
        points: Sequence[Vector | None],
    ) -> list[Vector]:
        """Add the products of the numbers in a word of each column."""
        k, kernel, made = self.k, self.kernel, list(sums)
        for n, row_of_numbers in enumerate(self.numbers(word, points)):
            depth = word * self.blocks.per_word + n
            factors = [
                kernel.x.number(self.start + row, depth).across(k.lanes)
                for row in range(self.height)
            ]
            for v, weight in enumerate(row_of_numbers):
                weight = weight if self.single else weight * scales[v]
                for row in range(self.height):
                    at = row * self.vectors + v
                    made[at] = fma(weight, factors[row], made[at])
        return made

    def _number(self, words: Any, n: int, point: Vector | None) -> Vector:
        """Return number `n` of each word, as f32."""
        lanes, bits = self.k.lanes, self.blocks.bits
        if self.kernel.knobs.table:
            if n:
                words = arith.shrui(words, int_constant(n * bits, lanes))
            made = looked_up(_SIGNED, words)
        else:
            if up := WORD - bits - n * bits:
                words = arith.shli(words, int_constant(up, lanes))
            whole = arith.shrsi(words, int_constant(WORD - bits, lanes))
            made = Vector(arith.sitofp(f32_vector(lanes), whole))
        return made if point is None else made + point


@dataclass(frozen=True, kw_only=True)
class PanelProduct(Product):
    """A product of f32 whose B is one unpacked panel of a block of the depth, from `at` on."""

    unpack: Callable[[Strip, Depth, Index], None]
    at: Index

    def _rows(self, strip: Strip, depth: Depth) -> None:
        self.unpack(strip, depth, self.at)
        super()._rows(strip, depth)

    def _offset(self, strip: Strip, panel: Index, depth: Depth) -> Index:
        return self.at

    def _next_panel(self, start: Index, at: Index) -> None:
        """Ask for nothing: the next panel is not unpacked yet."""


def can_round(knobs: PackedProduct, target: Target) -> bool:
    """Return whether many rows may be rounded to bytes: whole blocks, and four products a lane."""
    return not knobs.shifted and fits(knobs.blocks, LINE) and has_dot(target, VNNI)


def has_table(target: Target) -> bool:
    """Return whether the CPU looks up sixteen numbers of f32 in a register (AVX-512)."""
    return target.vector_bytes == _TABLE_BYTES


def looked_up(table: Sequence[float], places: Any) -> Vector:
    """Return the numbers of a table of sixteen at the lowest four bits of each lane."""
    kind, lanes = f32_vector(len(table)), len(table)
    numbers = [ir.FloatAttr.get(ir.F32Type.get(), number) for number in table]
    held = arith.constant(kind, ir.DenseElementsAttr.get(numbers, kind))
    name = "llvm.x86.avx512.permvar.sf.512"
    return Vector(llvm.call_intrinsic(f32_vector(lanes), name, [held, places], [], []))
