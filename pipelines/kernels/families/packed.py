"""The kernel family ``packed``: products of f32 with weights of few bits, unpacked on the way.

y[rows, columns] = epilogue(x w), w as `block_matmul` says. A word of the packed weights holds
neighbouring numbers of one column along the depth; two shifts take one out with its sign, and a
conversion makes it f32. With AVX-512 a shift and a table of sixteen numbers do the same for 4 bits.
One row is bound by memory: sums of a block are scaled at its end. Of a few rows a tile shares what
was unpacked in registers, each weight scaled at once. Of many, panels are unpacked to scratch
memory, where the tiles of `gemm` run over them.

Or, for models that allow it, rows are rounded block by block of the depth to bytes,
q = round(x 127 / max |x|), into scratch memory that stays in the second-level cache: four bytes of
each row of a register tile lie side by side. Weights are taken out of their words as bytes without
a sign, so that one `vpdpbusd` adds four products; what the sign is worth is minus half the range of
a weight times the sum of the block's bytes, with which the sums begin. A block's sum becomes f32
and is scaled by both its scales. A row with an infinity or NaN in it comes out infinite or NaN.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels import nest
from pyc_mlir.pipelines.kernels.families.bytes import QUAD, VNNI, Dot, has_dot
from pyc_mlir.pipelines.kernels.families.gemm import Gemm, Product, Strip
from pyc_mlir.pipelines.kernels.knobs import KernelKnobs, knob, known, shares
from pyc_mlir.pipelines.kernels.lang import values as ops
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, Ints, Scalar, Vector
from pyc_mlir.pipelines.kernels.match import Feed, KernelOffer, MatrixView, longest
from pyc_mlir.pipelines.kernels.nest import Depth, Finish, Panel, Panels, Scratch
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, nominal, sizes

WORD = 32
_TALL = 6
_HEIGHTS = (4, 6, 8, 12)  # to try
_TABLE_BITS, _TABLE_BYTES = 4, 64
# What four bits stand for, as a number with a sign.
_SIGNED = tuple(float(n if n < 8 else n - 16) for n in range(16))
# Rows that are rounded at a time, and those of a register tile: sums as integers and as f32.
ROWS, HEIGHT = 88, 11
_STEPS = 127
_AHEAD = 5  # blocks
_NIBBLES = 0x0F0F0F0F
# The order in which the eight numbers of a word are taken out.
_TAKEN = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Blocks:
    """Weights [columns, blocks, bytes] of `depth` numbers of `bits` bits in blocks of `block`."""

    columns: int
    depth: int
    block: int
    bits: int
    panel: int

    @property
    def per_word(self) -> int:
        """The numbers in a word."""
        return WORD // self.bits

    @property
    def count(self) -> int:
        """The number of blocks."""
        return -(-self.depth // self.block)

    @property
    def sign(self) -> int:
        """The highest bit of a number; flipped, it makes the number one with a sign."""
        return 1 << (self.bits - 1)

    @property
    def words(self) -> Panels:
        """The panels of words."""
        return Panels(self.columns, self.depth // self.per_word, self.panel, "i32")

    @property
    def scales(self) -> Panels:
        """The panels of scales, and of zero points."""
        return Panels(self.columns, self.count, self.panel)


@dataclass(frozen=True)
class BlockWords:
    """Packed weights as words, each of neighbouring numbers of a column, less half their range."""

    blocks: Blocks

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weights."""
        blocks = self.blocks
        return blocks.columns, blocks.count, blocks.block * blocks.bits // 8

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the panels of words as i32, flat."""
        blocks = self.blocks
        words = np.ascontiguousarray(array.reshape(blocks.columns, -1)).view("<u4")
        flips = blocks.sign * (((1 << WORD) - 1) // ((1 << blocks.bits) - 1))
        signed = (words[:, : blocks.words.depth] ^ np.uint32(flips)).view(np.int32)
        return blocks.words.pack(signed.T)


@dataclass(frozen=True)
class BlockScales:
    """Scales [columns, blocks] in panels, as f32."""

    blocks: Blocks

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the scales."""
        return self.blocks.columns, self.blocks.count

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the panels, flat."""
        return self.blocks.scales.pack(array.T)


@dataclass(frozen=True)
class BlockPoints(BlockScales):
    """Zero points in panels: what is added to a number of `BlockWords`, less 1, as i8."""

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the panels, flat."""
        added = self.blocks.sign - 1 - array.view(np.uint8).astype(np.int16)
        return replace(self.blocks.scales, dtype="i8").pack(added.T)


@dataclass(frozen=True)
class PackedProduct(KernelKnobs, family="packed"):
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
    height: int = knob(12, lambda k, _: _heights(k))
    vectors: int = knob(2, lambda k, _: () if k.rows == 1 else (1, 2, 4))
    workgroups: int = knob(1, lambda k, target: shares(target, k.blocks.words.full))
    tall: int = 6
    deep: int = 1024
    table: bool = False
    rounds: bool = False
    lays_out = False

    def _misfit(self) -> str:
        blocks = self.blocks
        whole = blocks.bits in (4, 8) and blocks.block % blocks.per_word == 0
        if min(blocks.columns, blocks.depth) < 1 or not whole or blocks.depth % blocks.per_word:
            return "sizes of at least 1, blocks and depth in words"
        if self.deep % blocks.per_word or (self.table and blocks.bits != _TABLE_BITS):
            return "`deep` in words, a table of numbers of 4 bits"
        rounds = not self.rounds or (not self.shifted and fits(blocks, LINE))
        return "" if rounds else "whole blocks without zero points to round rows"

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
        cores = nest.cores_for(
            target, made.product_flops, blocks.bits * blocks.depth * blocks.columns / 8
        )
        shares = max(1, min(cores, blocks.words.full))
        return replace(made, **{"workgroups": shares, **others})

    @property
    def speed(self) -> str:
        """The kind of kernel whose speed the cost model takes."""
        return "packed.rounded" if self.rounds else "packed"

    def rounding(self) -> "PackedProduct":
        """Return the knobs of the same product with rounded rows.

        Their tiles, and so the panels, are a line wide.
        """
        return replace(self, blocks=replace(self.blocks, panel=LINE), rounds=True)

    @property
    def product_flops(self) -> float:
        """Operations of the product."""
        return 2.0 * known(self.rows) * self.blocks.columns * self.blocks.depth

    @property
    def flops(self) -> float:
        """Operations of the product and of the epilogue."""
        blocks = self.blocks
        each = 2.0 * blocks.depth + self.epilogue.flops
        return known(self.rows) * blocks.columns * each

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
    def product(self) -> Gemm:
        """The product of many rows by unpacked panels."""
        blocks = self.blocks
        return Gemm(
            *(self.rows, blocks.columns, blocks.depth, self.epilogue, self.tall, blocks.panel),
            depth_block=self.deep,
            strip=blocks.panel,
            workgroups=(1, self.workgroups),
        )

    def operands(self) -> tuple[Operand, ...]:
        """Return x, w, scale, [point], what the epilogue reads, y, scratch memory."""
        blocks, result = self.blocks, (self.rows, self.blocks.columns)
        count = self.workgroups * ROWS * blocks.count
        scratch: tuple[Operand, ...] = (self.scratch.operand,) if self.many else ()
        if self.rounds:
            # Bytes of rows, a step for each block, and what sums begin with.
            scratch = (
                Operand("bytes", (self.workgroups * ROWS * blocks.depth,), "out", "i8"),
                Operand("steps", (count,), "out"),
                Operand("starts", (count,), "out", "i32"),
            )
        point = Operand("point", (blocks.scales.size,), dtype="i8", layout=BlockPoints(blocks))
        return (
            Operand("x", (self.rows, blocks.depth)),
            Operand("w", (blocks.words.size,), dtype="i32", layout=BlockWords(blocks)),
            Operand("scale", (blocks.scales.size,), layout=BlockScales(blocks)),
            *(point,) * self.shifted,
            *self.epilogue.operands("e", *result),
            Operand("y", result, "out"),
            *scratch,
        )

    def _grid(self, size: Any) -> tuple[int, int]:
        return 1, self.workgroups

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        epilogue = InKernel.of(k, self.epilogue, "e", memory)
        finish = Finish(k, epilogue, memory["y"])
        if self.rounds:
            ByteRows(k, self.blocks, self.workgroups, memory, finish).build(k.size(self.rows))
        else:
            Unpacking(k, self, memory, finish).build()

    def refusal(self, target: Target) -> str:
        """Refuse a missing instruction, and a tile that does not fit the registers."""
        if self.table and not has_table(target):
            return f"packed: expected a target with a table of f32 in a register, got {target.name}"
        if self.rounds and not can_round(self, target):
            return (
                f"packed: expected a target with sums of four products of bytes, got {target.name}"
            )
        tiles = self.many and not self.rounds
        if tiles and (reason := nest.refuse_tile("packed", self.tall, self.blocks.panel, target)):
            return reason
        needed, most = self.height * self.vectors + 2 * self.vectors, target.vector_registers
        return f"packed: expected at most {most} registers, got {needed}" if needed > most else ""


def _heights(knobs: PackedProduct) -> list[int]:
    """Return heights to try; none makes few rows of many, which have scratch memory."""
    rows = knobs.rows if isinstance(knobs.rows, int) else max(_HEIGHTS) + 1
    return [] if rows == 1 else [h for h in _HEIGHTS if (rows > h) == knobs.many]


@dataclass(frozen=True)
class Unpacking:
    """One kernel under construction: panels, then tiles of rows, then blocks of the depth."""

    k: Build
    knobs: PackedProduct
    memory: Mapping[str, Memory]
    finish: Finish

    def build(self) -> None:
        """Compute this workgroup's columns, in the way of so many rows."""
        k, knobs = self.k, self.knobs
        rows = k.size(knobs.rows)
        if rows.number is None:
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
        k, knobs, product, memory = self.k, self.knobs, self.knobs.product, self.memory
        tile = product.height * product.panel
        finish = Finish.of(k, knobs.epilogue, memory, memory["y"], tile)
        taken = (k, product, memory["x"], memory["scratch"], finish)
        at, _ = knobs.scratch.own(k)
        PanelProduct(*taken, unpack=self._unpack, at=at).build()

    def _unpack(self, panel: Panel, depth: Depth, at: Index) -> None:
        """Write the weights of a panel over a block of the depth, as f32, from `at` on."""
        k, blocks, width, held = self.k, self.knobs.blocks, panel.width, self.memory["scratch"]
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
        nest.for_panels(self.k, self.knobs.blocks.words, self.knobs.workgroups, self._rows)

    def _rows(self, panel: Panel) -> None:
        """Compute all rows: a single one in a way of its own."""
        k, rows = self.k, self.k.size(self.knobs.rows)
        tile = partial(self._tile, panel)
        if rows.number == 1:
            tile(Index.of(0), 1, single=True)
        elif rows.number is not None:
            nest.for_tiles(k, rows, self.knobs.height, tile)
        else:
            with k.when(rows.equals(1)):
                tile(Index.of(0), 1, single=True)
            with k.when(Index.of(1) < rows):
                nest.for_tiles(k, rows, self.knobs.height, tile)

    def _tile(self, panel: Panel, start: Index, height: int, single: bool = False) -> None:
        """Compute `height` rows of a panel, some of its vectors at a time; a single row all."""
        places = panel.places(self.k)
        step = len(places) if single else self.knobs.vectors
        for first in range(0, len(places), step):
            self._vectors(panel, start, height, first, places[first : first + step], single)

    def _vectors(
        self,
        panel: Panel,
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
        self.finish.tile(sums, places, nest.matrix_rows(start))


@dataclass(frozen=True)
class _Tile:
    """`height` rows from `start` on by `vectors` of a panel, from number `first` on."""

    kernel: Unpacking
    panel: Panel
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
        return [ops.fma(a, s, total) for a, s, total in zip(own, scales, sums, strict=True)]

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
        start = panel.start(self.blocks.scales)
        at = start + number * panel.width + self.first * k.lanes
        places = [at + v * k.lanes for v in range(self.vectors)]
        points: list[Vector | None] = [None] * self.vectors
        if point := self.kernel.memory.get("point"):
            points = [(point.ints(p, bits=8).wide() + 1).to_float() for p in places]
        return [self.kernel.memory["scale"].load(p) for p in places], points

    def numbers(self, word: Index, points: Sequence[Vector | None]) -> Iterator[list[Vector]]:
        """Yield the numbers in a word of each column, one along the depth after the other."""
        k, blocks = self.k, self.blocks
        own = self.panel.start(blocks.words)
        start = own + word * self.panel.width + self.first * k.lanes
        held = [self.kernel.memory["w"].ints(start + v * k.lanes) for v in range(self.vectors)]
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
                kernel.memory["x"].number(self.start + row, depth).across(k.lanes)
                for row in range(self.height)
            ]
            for v, weight in enumerate(row_of_numbers):
                weight = weight if self.single else weight * scales[v]
                for row in range(self.height):
                    at = row * self.vectors + v
                    made[at] = ops.fma(weight, factors[row], made[at])
        return made

    def _number(self, words: Ints, n: int, point: Vector | None) -> Vector:
        bits = self.blocks.bits
        if self.kernel.knobs.table:
            made = looked_up(_SIGNED, words.upper(n * bits) if n else words)
        else:
            up = WORD - bits - n * bits
            made = ((words << up if up else words) >> WORD - bits).to_float()
        return made if point is None else made + point


@dataclass(frozen=True, kw_only=True)
class PanelProduct(Product):
    """A product of f32 whose B is one unpacked panel of a block of the depth, from `at` on."""

    unpack: Callable[[Panel, Depth, Index], None]
    at: Index

    def _rows(self, strip: Strip, depth: Depth) -> None:
        self.unpack(strip.panel(strip.first), depth, self.at)
        super()._rows(strip, depth)

    def _offset(self, panel: Panel, depth: Depth) -> Index:
        return self.at

    def _next_panel(self, start: Index, at: Index) -> None:
        """Ask for nothing: the next panel is not unpacked yet."""


@dataclass(frozen=True)
class ByteRows:
    """One kernel under construction, with rows rounded to bytes in scratch memory."""

    k: Build
    blocks: Blocks
    workgroups: int
    memory: Mapping[str, Memory]
    finish: Finish

    def build(self, rows: Index) -> None:
        """Compute this workgroup's columns of all rows, some rows at a time."""
        if rows.number is not None and rows.number <= ROWS:
            self._block(Index.of(0), rows)
            return
        with self.k.range(0, rows, ROWS) as start:
            self._block(start, ops.least(rows - start, ROWS))

    def _block(self, start: Index, count: Index) -> None:
        k, words = self.k, self.blocks.words
        with k.range(count) as row, k.range(self.blocks.count) as block:
            self._round(start, row, block)

        def work(panel: Panel) -> None:
            for v, at in enumerate(panel.places(k)):
                nest.for_tiles(k, count, HEIGHT, partial(self._tile, start, panel, v, at))

        nest.for_panels(k, words, self.workgroups, work)

    def _tile_at(self, row: Index) -> Index:
        """Return the number of the register tile with a row, over all workgroups."""
        return self.k.workgroup(1) * (ROWS // HEIGHT) + row // HEIGHT

    def _round(self, start: Index, row: Index, block: Index) -> None:
        k, blocks, lanes, memory = self.k, self.blocks, self.k.lanes, self.memory
        first = block * blocks.block
        values = [memory["x"].load(start + row, first + v) for v in range(0, blocks.block, lanes)]
        greatest = ops.across_lanes(
            ops.maximum, ops.tree(ops.maximum, [ops.maximum(v, -v) for v in values])
        )
        size = greatest.across(lanes)
        inverse = ops.where(size > 0.0, k.vector(float(_STEPS)) / size, 0.0)
        wide = [Vector(ops.math.roundeven((v * inverse).value)).whole() for v in values]
        tile, inner = self._tile_at(row), row % HEIGHT
        for n, whole in enumerate(wide):
            small = whole.cut(8)
            if blocks.per_word > QUAD:
                small = small.part([g + i for g in range(0, lanes, 8) for i in _TAKEN])
            for q in range(0, lanes, QUAD):
                at = (tile * blocks.depth + first + (n * lanes + q)) * HEIGHT + inner * QUAD
                kind = ops.int_vector(QUAD, 8)
                quad = ops.vector.extract_strided_slice(kind, small.value, [q], [QUAD], [1])
                memory["bytes"].store_as(quad, at)
        i32 = ir.IntegerType.get_signless(32)
        begin = ops.arith.muli(ops.tree(ops.add, wide).sum(), ops.arith.constant(i32, -blocks.sign))
        place = (tile * blocks.count + block) * HEIGHT + inner
        memory["steps"].put(greatest * (1.0 / _STEPS), place)
        memory["starts"].put(Scalar(begin), place)

    def _tile(self, start: Index, panel: Panel, v: int, at: Lanes, row: Index, height: int) -> None:
        """Compute `height` rows of vector `v` of a panel."""
        k, blocks = self.k, self.blocks
        steps, starts = self.memory["steps"], self.memory["starts"]
        words, length = blocks.words, blocks.block // blocks.per_word
        width = panel.width
        scales = panel.column * blocks.scales.depth + v * k.lanes
        packed = panel.column * words.depth + v * k.lanes
        tile = self._tile_at(row)
        # Lower tiles at the bottom may begin within one.
        inner = Index.of(0) if height == HEIGHT else row % HEIGHT

        def block(number: Index, *kept: Vector) -> list[Vector]:
            facts = (tile * blocks.count + number) * HEIGHT + inner
            begin = [starts.one(facts + r) for r in range(height)]

            def word(n: Index, *sums: Ints) -> list[Ints]:
                first = tile * blocks.depth + number * blocks.block + n * blocks.per_word
                numbers = first * HEIGHT + inner * QUAD
                return self._word(packed + (number * length + n) * width, numbers, sums)

            for n in range(length):  # Lines far apart, which the hardware does not foresee.
                self.memory["w"].prefetch(packed + ((number + _AHEAD) * length + n) * width)
            sums = k.loop(0, length, 1, begin)(word)
            scale = self.memory["scale"].load(scales + number * width)
            made = []
            for r, (total, before) in enumerate(zip(sums, kept, strict=True)):
                step = steps.number(facts + r).across(k.lanes)
                made.append(ops.fma(total.to_float(), scale * step, before))
            return made

        sums = k.loop(0, blocks.count, 1, [k.vector(0.0)] * height)(block)
        self.finish.tile(sums, [at], nest.matrix_rows(start + row))

    def _word(self, place: Index, first: Index, sums: Sequence[Ints]) -> list[Ints]:
        """Add the products of the numbers in a word of each column, with those from `first` on."""
        k, blocks, made = self.k, self.blocks, list(sums)
        dot = Dot(k, VNNI, signed=False)
        flips = sum(blocks.sign << at for at in range(0, WORD, blocks.bits))
        whole = self.memory["w"].ints(place) ^ flips - (1 << WORD)
        parts = [whole]
        if blocks.per_word > QUAD:
            parts = [whole & _NIBBLES, whole.upper(4) & _NIBBLES]
        for i, part in enumerate(parts):
            for r in range(len(made)):
                own = dot.load(self.memory["bytes"], first + (i * HEIGHT + r) * QUAD)
                # The weights are the operand without a sign.
                made[r] = dot.add(made[r], [part], own)
        return made


def fits(blocks: Blocks, lanes: int) -> bool:
    """Return whether blocks are whole vectors, as the rounding needs them."""
    return blocks.depth % blocks.block == 0 and blocks.block % lanes == 0 and lanes % 8 == 0


def can_round(knobs: PackedProduct, target: Target) -> bool:
    """Return whether many rows may be rounded to bytes: whole blocks, and four products a lane."""
    return not knobs.shifted and fits(knobs.blocks, LINE) and has_dot(target, VNNI)


def has_table(target: Target) -> bool:
    """Return whether the CPU looks up sixteen numbers of f32 in a register (AVX-512)."""
    return target.vector_bytes == _TABLE_BYTES


def looked_up(table: Sequence[float], places: Ints) -> Vector:
    """Return the numbers of a table of sixteen at the lowest four bits of each lane."""
    operands = [Vector.holding(table).value, places.value]
    name, kind = "llvm.x86.avx512.permvar.sf.512", ops.f32_vector(len(table))
    return Vector(ops.llvm.call_intrinsic(kind, name, operands, [], []))


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a product with constant packed weights, and as much of what follows as fits."""
    node = work.nodes[0]
    if node.name != "block_matmul" or refuse_narrow(target):
        return []
    x, weight, scale, point = node.operands
    if not all(work.is_constant(v) for v in (weight, scale, point)):
        return []
    shape, bits = work.type(x).shape, node.params["bits"]
    columns, count, held = (d or 0 for d in work.type(weight).shape)
    rows, depth = sizes(shape[:-1]), shape[-1] or 0
    if rows == 0 or not columns or not count:
        return []
    blocks = Blocks(columns, depth, 8 * held // bits, bits, 16)
    array = work.inputs[point].array
    assert array is not None
    shifted = bool((array() != blocks.sign).any())
    covers, found = longest(work, 1, MatrixView(node.type.shape, node.type.rank - 1))
    try:
        knobs = PackedProduct.on(
            target, rows or "m", blocks, shifted=shifted, epilogue=found.program
        )
    except PycError:
        return []
    if node.params["accuracy"] == "int8" and can_round(knobs, target):
        knobs = knobs.rounding()
    feeds = [Feed.matrix(work, x), Feed(weight, (1, 2)), Feed(scale, (1,))]
    if shifted:
        feeds.append(Feed(point, (1,)))
    own = (*feeds, *found.feeds)
    return FAMILY.offer(knobs, target, covers, own, {"m": nominal(shape[:-1])})


FAMILY = Family("packed", PackedProduct, match)
