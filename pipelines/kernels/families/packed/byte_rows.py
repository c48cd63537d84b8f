"""Rows by weights of few bits in sums of bytes, for models that allow it.

The rows are rounded block by block of the depth to bytes, q = round(x 127 / max |x|), into scratch
memory that stays in the second-level cache: four bytes of each row of a register tile lie side by
side. Weights are taken out of their words as bytes without a
sign, so that one `vpdpbusd` adds four products; what the sign is worth is minus half the range of a
weight times the sum of the block's bytes, with which the sums begin. A block's sum becomes f32 and
is scaled by both its scales. A row with an infinity or NaN in it comes out infinite or NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.kernels.families.int8.dot import QUAD, VNNI, Dot, IntVector
from pyc_mlir.pipelines.kernels.families.packed.weights import Blocks
from pyc_mlir.pipelines.kernels.lang.carrier import Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import InKernel
from pyc_mlir.pipelines.kernels.lang.values import (
    Index,
    Scalar,
    Vector,
    across_lanes,
    arith,
    fma,
    int_constant,
    int_vector,
    least,
    math,
    maximum,
    tree,
    vector,
    where,
)
from pyc_mlir.pipelines.kernels.shared.grid import share
from pyc_mlir.pipelines.kernels.shared.tile import bottom
from pyc_mlir.pipelines.streams.ir import ir

# Rows that are rounded at a time, and those of a register tile: sums as integers and as f32.
ROWS, HEIGHT = 88, 11
_STEPS = 127
_AHEAD = 5  # blocks
_NIBBLES = 0x0F0F0F0F


@dataclass(frozen=True)
class RoundedRows:
    """Scratch memory of rows: their bytes, a step for each block, and what sums begin with."""

    blocks: Blocks
    workgroups: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The results of the kernel that nobody reads."""
        count = self.workgroups * ROWS * self.blocks.count
        return (
            Operand("bytes", (self.workgroups * ROWS * self.blocks.depth,), "out", "i8"),
            Operand("steps", (count,), "out"),
            Operand("starts", (count,), "out", "i32"),
        )


def fits(blocks: Blocks, lanes: int) -> bool:
    """Return whether blocks are whole vectors, as the rounding needs them."""
    return blocks.depth % blocks.block == 0 and blocks.block % lanes == 0 and lanes % 8 == 0


@dataclass(frozen=True)
class ByteRows:
    """One kernel under construction; `scratch` are the memories of `RoundedRows`."""

    k: Build
    blocks: Blocks
    workgroups: int
    x: Memory
    w: Memory
    scale: Memory
    y: Memory
    epilogue: InKernel
    scratch: Sequence[Memory]

    def build(self, rows: Index) -> None:
        """Compute this workgroup's columns of all rows, some rows at a time."""
        if rows.number is not None and rows.number <= ROWS:
            self._block(Index.of(0), rows)
            return
        with self.k.range(0, rows, ROWS) as start:
            self._block(start, least(rows - start, ROWS))

    def _block(self, start: Index, count: Index) -> None:
        k, words = self.k, self.blocks.words
        with k.range(count) as row, k.range(self.blocks.count) as block:
            self._round(start, row, block)
        if words.full:
            first, end = share(k, 1, self.workgroups, Index.of(words.full))
            with k.range(first, end) as n:
                places = [Lanes(n * words.panel + v) for v in range(0, words.panel, k.lanes)]
                self._panel(start, count, n * words.panel, words.panel, places)
        if words.last_width:
            left = words.columns - words.edge
            with k.when(k.workgroup(1).equals(self.workgroups - 1)):
                tails = [k.tail(Index.of(v), Index.of(left)) for v in range(0, left, k.lanes)]
                edge = Index.of(words.edge)
                places = [Lanes(edge + at.start, at.mask) for at in tails]
                self._panel(start, count, edge, words.last_width, places)

    def _tile_at(self, row: Index) -> Index:
        """Return the number of the register tile with a row, over all workgroups."""
        return self.k.workgroup(1) * (ROWS // HEIGHT) + row // HEIGHT

    def _round(self, start: Index, row: Index, block: Index) -> None:
        """Round a block of a row to bytes."""
        k, blocks, lanes = self.k, self.blocks, self.k.lanes
        held, steps, starts = self.scratch
        i8, i32 = (ir.IntegerType.get_signless(n) for n in (8, 32))
        quad = ir.VectorType.get([QUAD], i8)
        first = block * blocks.block
        values = [self.x.load(start + row, first + v) for v in range(0, blocks.block, lanes)]
        greatest = across_lanes(maximum, tree(maximum, [maximum(v, -v) for v in values]))
        size = greatest.across(lanes)
        inverse = where(size > 0.0, k.vector(float(_STEPS)) / size, 0.0)
        wide = [arith.fptosi(int_vector(lanes), self._rounded(v, inverse)) for v in values]
        tile, inner = self._tile_at(row), row % HEIGHT
        for n, whole in enumerate(wide):
            ordered = self._ordered(whole)
            for q in range(0, lanes, QUAD):
                at = (tile * blocks.depth + first + (n * lanes + q)) * HEIGHT + inner * QUAD
                held.store_as(vector.extract_strided_slice(quad, ordered, [q], [QUAD], [1]), at)
        total = tree(_added, wide)
        sum_ = vector.reduction(i32, vector.CombiningKind.ADD, total)
        begin = arith.muli(sum_, arith.constant(i32, -blocks.sign))
        place = (tile * blocks.count + block) * HEIGHT + inner
        steps.put(greatest * (1.0 / _STEPS), place)
        starts.put(Scalar(begin), place)

    def _rounded(self, value: Vector, inverse: Vector) -> Any:
        return math.roundeven((value * inverse).value)

    def _ordered(self, whole: Any) -> Any:
        """Return a vector as bytes, in the order in which the numbers of a word are taken out."""
        lanes = self.k.lanes
        small = arith.trunci(ir.VectorType.get([lanes], ir.IntegerType.get_signless(8)), whole)
        if self.blocks.per_word == QUAD:
            return small
        order = [g + i for g in range(0, lanes, 8) for i in (0, 2, 4, 6, 1, 3, 5, 7)]
        return vector.shuffle(small, small, order)

    def _panel(
        self, start: Index, count: Index, column: Index, width: int, places: Sequence[Lanes]
    ) -> None:
        """Compute the columns of a panel, a vector of them at a time."""
        k = self.k
        for v, at in enumerate(places):
            with k.range(count // HEIGHT) as n:
                self._tile(start, n * HEIGHT, HEIGHT, column, width, v, at)
            for row, rest, needed in bottom(count, HEIGHT):
                if needed is None:
                    self._tile(start, row, rest, column, width, v, at)
                else:
                    with k.when(needed):
                        self._tile(start, row, rest, column, width, v, at)

    def _tile(
        self, start: Index, row: Index, height: int, column: Index, width: int, v: int, at: Lanes
    ) -> None:
        """Compute `height` rows of vector `v` of a panel."""
        k, blocks = self.k, self.blocks
        _, steps, starts = self.scratch
        words, length = blocks.words, blocks.block // blocks.per_word
        scales = column * blocks.scales.depth + v * k.lanes
        packed = column * words.depth + v * k.lanes
        tile = self._tile_at(row)
        # Lower tiles at the bottom may begin within one.
        inner = Index.of(0) if height == HEIGHT else row % HEIGHT

        def block(number: Index, *kept: Vector) -> list[Vector]:
            facts = (tile * blocks.count + number) * HEIGHT + inner
            begin = [self._start(starts, facts + r) for r in range(height)]

            def word(n: Index, *sums: IntVector) -> list[IntVector]:
                first = tile * blocks.depth + number * blocks.block + n * blocks.per_word
                numbers = first * HEIGHT + inner * QUAD
                return self._word(packed + (number * length + n) * width, numbers, sums)

            for n in range(length):  # Lines far apart, which the hardware does not foresee.
                self.w.prefetch(packed + ((number + _AHEAD) * length + n) * width)
            sums = k.loop(0, length, 1, begin)(word)
            scale = self.scale.load(scales + number * width)
            made = []
            for r, (total, before) in enumerate(zip(sums, kept, strict=True)):
                step = steps.number(facts + r).across(k.lanes)
                made.append(fma(total.to_float(), scale * step, before))
            return made

        zeros = [k.vector(0.0)] * height
        for r, total in enumerate(k.loop(0, blocks.count, 1, zeros)(block)):
            place = start + row + r
            self.y.store(self.epilogue.row(place)(total, at), place, at)

    def _start(self, starts: Memory, place: Index) -> IntVector:
        """Return what the sums of a block begin with, in each lane."""
        one = starts.load_as(ir.VectorType.get([1], ir.IntegerType.get_signless(32)), place)
        return IntVector(vector.broadcast(int_vector(self.k.lanes), vector.extract(one, [], [0])))

    def _word(self, place: Index, first: Index, sums: Sequence[IntVector]) -> list[IntVector]:
        """Add the products of the numbers in a word of each column, with those from `first` on."""
        k, blocks, held = self.k, self.blocks, self.scratch[0]
        dot, made = Dot(k, VNNI, signed=False), list(sums)
        kind = int_vector(k.lanes)
        flip = int_constant(_repeated(blocks.sign, blocks.bits), k.lanes)
        whole = arith.xori(self.w.load_as(kind, place), flip)
        parts = [whole]
        if blocks.per_word > QUAD:
            low = int_constant(_NIBBLES, k.lanes)
            parts = [
                arith.andi(p, low) for p in (whole, arith.shrui(whole, int_constant(4, k.lanes)))
            ]
        for i, part in enumerate(parts):
            for r in range(len(made)):
                (own,) = dot.load(held, first + (i * HEIGHT + r) * QUAD)
                # The weights are the operand without a sign.
                made[r] = dot.add(made[r], [part], [IntVector(own)])
        return made


def _added(a: Any, b: Any) -> Any:
    return arith.addi(a, b)


def _repeated(number: int, bits: int) -> int:
    """Return a word with a number of so many bits in each place, as i32."""
    whole = sum(number << at for at in range(0, 32, bits))
    return whole - (1 << 32) if whole >> 31 else whole
