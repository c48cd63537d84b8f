"""Products of f32 with weights of few bits, unpacked in registers: knobs and code.

y[rows, columns] = epilogue(x w), w as `block_matmul` says. A word of the packed weights holds
neighbouring numbers of one column along the depth; two shifts take one out with its sign, and a
conversion makes it f32. One row is bound by memory: sums of a block are scaled at its end. Of more
rows a tile shares what was unpacked, each weight scaled at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyc_mlir.pipelines.kernels.families.packed.weights import (
    WORD,
    BlockPoints,
    Blocks,
    BlockScales,
    BlockWords,
)
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import (
    Index,
    Vector,
    arith,
    fma,
    int_constant,
    int_vector,
)
from pyc_mlir.pipelines.kernels.shared.grid import cores_for, known, share
from pyc_mlir.pipelines.kernels.shared.tile import bottom
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.target import Target


@dataclass(frozen=True)
class PackedProduct:
    """The knobs: `height` rows by `vectors` of columns are one register tile of several rows.

    `shifted`: zero points are given; without them they are half the range. `workgroups` cuts the
    panels.
    """

    rows: Dim
    blocks: Blocks
    shifted: bool = False
    epilogue: Pointwise = NOTHING
    height: int = 12
    vectors: int = 2
    workgroups: int = 1

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        blocks = self.blocks
        sizes = (blocks.columns, blocks.depth, self.height, self.vectors, self.workgroups)
        whole = blocks.bits in (4, 8) and blocks.block % blocks.per_word == 0
        if self.rows == 0 or min(sizes) < 1 or not whole or blocks.depth % blocks.per_word:
            raise no_kernel("packed", "sizes of at least 1, blocks and depth in words", self)

    @staticmethod
    def on(target: Target, rows: Dim, blocks: Blocks, **others: Any) -> "PackedProduct":
        """Choose the knobs for a target's registers and cores; `others` are further fields."""
        lanes, many = target.vector_bytes // 4, target.vector_registers >= 32
        blocks = replace(blocks, panel=(4 if many else 2) * max(lanes, 8))
        height, vectors = (12, 2) if many else (5, 2)
        made = PackedProduct(rows, blocks, height=height, vectors=vectors)
        cores = cores_for(target, made.flops, blocks.bits * blocks.depth * blocks.columns / 8)
        shares = max(1, min(cores, blocks.words.full))
        return replace(made, **{"workgroups": shares, **others})

    @property
    def flops(self) -> float:
        """Operations of the product."""
        return 2.0 * known(self.rows) * self.blocks.columns * self.blocks.depth

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x, w, scale, [point], the epilogue's, then y."""
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
        return Kernel(name, tuple(taken), lambda size: (1, self.workgroups), self._body)

    def _body(self, k: Build, x: Memory, w: Memory, scale: Memory, *others: Memory) -> None:
        *reads, y = others
        point = reads.pop(0) if self.shifted else None
        epilogue = InKernel(k, self.epilogue, tuple(reads))
        Unpacking(k, self, x, w, scale, point, y, epilogue).build()


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

    def build(self) -> None:
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
        k, kernel, panel = self.k, self.kernel, self.panel
        at = panel.scales + number * panel.width + self.first * k.lanes
        scales = [kernel.scale.load(at + v * k.lanes) for v in range(self.vectors)]
        points = [self._point(at + v * k.lanes) for v in range(self.vectors)]
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

    def _point(self, at: Index) -> Any:
        """Return what is added to the numbers of a block; None for nothing."""
        point, lanes = self.kernel.point, self.k.lanes
        if point is None:
            return None
        narrow = point.load_as(ir.VectorType.get([lanes], ir.IntegerType.get_signless(8)), at)
        return arith.addi(arith.extsi(int_vector(lanes), narrow), int_constant(1, lanes))

    def _word(
        self,
        word: Index,
        sums: Sequence[Vector],
        scales: Sequence[Vector],
        points: Sequence[Any],
    ) -> list[Vector]:
        """Add the products of the numbers in a word of each column."""
        k, kernel, blocks, made = self.k, self.kernel, self.blocks, list(sums)
        start = self.panel.words + word * self.panel.width + self.first * k.lanes
        kind = int_vector(k.lanes)
        held = [kernel.w.load_as(kind, start + v * k.lanes) for v in range(self.vectors)]
        top = WORD - blocks.bits
        for n in range(blocks.per_word):
            depth = word * blocks.per_word + n
            factors = [
                kernel.x.number(self.start + row, depth).across(k.lanes)
                for row in range(self.height)
            ]
            for v in range(self.vectors):
                weight = self._number(held[v], top - n * blocks.bits, points[v])
                if not self.single:
                    weight = weight * scales[v]
                for row in range(self.height):
                    at = row * self.vectors + v
                    made[at] = fma(weight, factors[row], made[at])
        return made

    def _number(self, words: Any, up: int, point: Any) -> Vector:
        """Return one number of each word: `up` bits below the top."""
        lanes = self.k.lanes
        if up:
            words = arith.shli(words, int_constant(up, lanes))
        whole = arith.shrsi(words, int_constant(WORD - self.blocks.bits, lanes))
        whole = whole if point is None else arith.addi(whole, point)
        return Vector(arith.sitofp(ir.VectorType.get([lanes], ir.F32Type.get()), whole))
