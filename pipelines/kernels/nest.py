"""The nest of product kernels: shares of a grid, panels of columns, tiles of rows, the depth.

A product kernel is a nest of these loops around a register tile: `for_panels` over packed columns,
`for_tiles` over rows, `Depth` blocks, and `ProductTile`, whose numbers come from any memory and are
multiplied in any way. `Finish` stores what an epilogue makes of its sums. What differs between
families is what they give to these.

A workgroup that another core takes over costs a wake-up of some microseconds, so that small work
stays together. Sizes that are not known count with the nominal dimension where work is weighed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.kernels.knobs import known
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory, Place
from pyc_mlir.pipelines.kernels.lang.narrow import Narrow
from pyc_mlir.pipelines.kernels.lang.pointwise import InKernel, Lettered, Pointwise
from pyc_mlir.pipelines.kernels.lang.tiles import local_memory
from pyc_mlir.pipelines.kernels.lang.values import (
    Condition,
    Index,
    Scalar,
    Vector,
    add,
    fma,
    least,
    tree,
)
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target

_TILES_A_SHARE = 8
_BATCH_SHARES_A_CORE = 8
# Fused multiply-adds that must not wait for each other: latency times the units of current cores.
CHAINS = 8
_MOST_ROWS, _LEAST_TILES = 240, 8


def cores_for(target: Target, flops: float, read_bytes: float) -> int:
    """Return the cores that a kernel should have: one, or all of the target's."""
    return CostModel(target).cores_for(flops, read_bytes)


def cut_matrix(cores: int, rows: Dim, columns: Dim, tile: tuple[int, int]) -> tuple[int, int]:
    """Return shares of rows and of columns for `cores`: rows if each share has many tiles.

    Columns otherwise, so that few or unknown rows are done by all; `tile` is rows and columns of
    the register tile.
    """
    if isinstance(rows, int) and rows >= cores * tile[0] * _TILES_A_SHARE:
        return cores, 1
    panels = known(columns) // tile[1]
    shares = max(1, min(cores, panels))
    left = cores // shares if isinstance(rows, int) else 1
    return max(1, min(left, known(rows) // tile[0])), shares


def cut_batch(cores: int, batch: tuple[Dim, ...]) -> int:
    """Return shares of a batch: all, up to eight a core; one a core of an unknown number.

    Of more, as many as come out even, if any do. A core that is awake takes shares while another
    wakes up: 12 shares in place of 2 took 0.92 of the time of a batched product of 0.22 ms.
    """
    count = prod(d for d in batch if isinstance(d, int))
    if any(isinstance(d, str) for d in batch):
        return cores
    if cores == 1:
        return 1
    most = _BATCH_SHARES_A_CORE * cores
    if count <= most:
        return count
    return next((n for n in range(most, cores - 1, -cores) if count % n == 0), most)


def share(k: Build, dimension: int, parts: int, count: Index) -> tuple[Index, Index]:
    """Return this workgroup's share, of `parts` along a dimension of the grid, of `count`."""
    if parts == 1:
        return Index.of(0), count
    size = count.ceildiv(parts)
    first = least(k.workgroup(dimension) * size, count)
    return first, least(first + size, count)


def local(k: Build, size: int) -> Memory:
    """`size` f32 on the workgroup's stack; IREE allows 32 KB a kernel. Not inside of loops."""
    return local_memory(k, size, "f32")


@dataclass(frozen=True)
class Panels:
    """The cut of the columns of B[depth, columns]: full panels, then a narrower one in lines."""

    columns: int
    depth: int
    panel: int
    dtype: str = "f32"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of B."""
        return self.depth, self.columns

    @property
    def full(self) -> int:
        """Panels of full width."""
        return self.columns // self.panel

    @property
    def edge(self) -> int:
        """Columns in full panels."""
        return self.full * self.panel

    @property
    def last_width(self) -> int:
        """The width of a narrower last panel, in whole cache lines; 0 where there is none."""
        return -(-(self.columns % self.panel) // LINE) * LINE

    @property
    def size(self) -> int:
        """The count of numbers in the packed B."""
        return self.depth * (self.edge + self.last_width)

    def at(self, number: Index) -> "Panel":
        """Return a full panel by its number."""
        return Panel(number, number * self.panel, self.panel)

    def last(self) -> "Panel":
        """Return the narrower last panel."""
        left = self.columns - self.edge
        return Panel(Index.of(self.full), Index.of(self.edge), self.last_width, left)

    def pack(self, b: np.ndarray) -> np.ndarray:
        """Pack B[depth, columns] into panels, each [depth][panel]; zeros pad the last one. Flat."""
        assert b.shape == self.shape
        panels = b[:, : self.edge].reshape(self.depth, self.full, self.panel).transpose(1, 0, 2)
        last = np.zeros((self.depth, self.last_width), b.dtype)
        last[:, : self.columns - self.edge] = b[:, self.edge :]
        return np.concatenate([panels.ravel(), last.ravel()]).astype(DTYPES[self.dtype])


@dataclass(frozen=True)
class Panel:
    """Neighbouring columns that are computed together, the first one `column` of the result.

    `number` counts full panels. The last one is narrower than others: its width is in whole lines,
    of which `left` columns exist.
    """

    number: Index
    column: Index
    width: int
    left: int | None = None

    def start(self, panels: Panels) -> Index:
        """Return where the panel begins in what is packed so."""
        if self.left is not None:
            return Index.of(panels.edge * panels.depth)
        return self.number * (panels.depth * panels.panel)

    def places(self, k: Build) -> list[Lanes]:
        """Return the places of its vectors in a row of the result: in the last panel masked."""
        starts = range(0, self.width, k.lanes)
        if self.left is None:
            return [Lanes(self.column + v) for v in starts]
        left = Index.of(self.left)
        masked = [k.tail(Index.of(v), left) for v in starts if v < self.left]
        return [Lanes(self.column + at.start, at.mask) for at in masked]


def for_panels(k: Build, panels: Panels, parts: int, work: Callable[[Panel], None]) -> None:
    """Do ``work(panel)`` for this workgroup's full panels; the last one does the narrower one.

    `parts` workgroups along the second dimension of the grid share them.
    """
    if panels.full:
        with k.range(*share(k, 1, parts, Index.of(panels.full))) as number:
            work(panels.at(number))
    if panels.last_width:
        with k.when(k.workgroup(1).equals(parts - 1)):
            work(panels.last())


def bottom(rows: Index, height: int) -> list[tuple[Index, int, Condition | None]]:
    """Return tiles below a matrix's full ones: (first row, height, condition or none).

    A known rest is one tile; an unknown one is made of powers of two.
    """
    start, rest = rows // height * height, rows % height
    if rest.number is not None:
        return [(start, rest.number, None)] if rest.number else []
    powers = [1 << p for p in range((height - 1).bit_length())]
    return [
        (start + rest // (2 * p) * (2 * p), p, (rest // p % 2).equals(1)) for p in reversed(powers)
    ]


def for_bottom(k: Build, rows: Index, height: int, work: Callable[[Index, int], None]) -> None:
    """Do ``work(first row, height)`` for the tiles below the full ones."""
    for row, rest, needed in bottom(rows, height):
        with nullcontext() if needed is None else k.when(needed):
            work(row, rest)


def for_tiles(k: Build, rows: Index, height: int, work: Callable[[Index, int], None]) -> None:
    """Do ``work(first row, height)`` for full tiles of rows, then for lower ones at the bottom."""
    full = rows // height
    if full.number != 0:
        with k.range(full) as tile:
            work(tile * height, height)
    for_bottom(k, rows, height, work)


def for_blocks(
    k: Build, rows: Dim, shares: int, block: int, work: Callable[[Index, Index], None]
) -> None:
    """Do ``work(first row, count)`` for each block of this workgroup's share of the rows."""
    first, end = share(k, 0, shares, k.size(rows))
    if isinstance(rows, int) and shares == 1 and rows <= block:
        work(first, end)
        return
    with k.range(first, end, block) as start:
        work(start, least(end - start, block))


@dataclass(frozen=True)
class Depth:
    """A block of the depth: where it starts, how long it is, its number of how many."""

    start: Index
    length: Index
    number: Index
    blocks: Index

    @staticmethod
    def block(number: Index, blocks: Index, depth: Index, size: int) -> "Depth":
        """Return one of the blocks of `size` steps that cut a depth."""
        start = number * size
        return Depth(start, least(depth - start, size), number, blocks)

    def begin(
        self, k: Build, zeros: Sequence[Vector], held: Callable[[], Sequence[Vector]]
    ) -> list[Vector]:
        """Return what sums begin with: zeros in the first block, what is `held` in the others."""
        if self.blocks.number == 1:
            return list(zeros)
        return k.either(self.number.equals(0), zeros, lambda: zeros, held)

    def end(self, k: Build, finish: Callable[[], None], keep: Callable[[], None]) -> None:
        """`finish` in the last block, `keep` sums for the next one in the others."""
        if self.blocks.number == 1:
            finish()
            return
        k.either(self.number.equals(self.blocks - 1), [], finish, keep)
        return None


def for_depth(k: Build, depth: int, block: int, work: Callable[[Depth], None]) -> None:
    """Do ``work(block)`` for the blocks of a known depth, one after the other."""
    blocks = Index.of(-(-depth // block))
    if blocks.number == 1:
        return work(Depth(Index.of(0), Index.of(depth), Index.of(0), blocks))
    with k.range(blocks) as number:
        work(Depth.block(number, blocks, Index.of(depth), block))
    return None


@dataclass(frozen=True)
class ProductTile:
    """Sums of `height` rows and `width` vectors: left(row, k) times right(vector, k) over k.

    `left` gives a number, which is broadcast, or what `multiply(left, right, sum)` takes: a fused
    multiply-add of f32, or a sum of products of bytes. `ahead(k)` is done once in `unroll` steps
    (prefetches). `parts` partial sums are kept of each (see `partial_sums`).
    """

    k: Build
    height: int
    width: int
    unroll: int
    left: Callable[[int, Index], Any]
    right: Callable[[int, Index], Any]
    ahead: Callable[[Index], None] | None = None
    parts: int = 1
    multiply: Callable[[Any, Any, Any], Any] = field(default=fma)

    def accumulate(self, length: Index, sums: Sequence[Any]) -> list[Any]:
        """Add the products over `length` steps to `sums`, row by row."""
        k, count, parts = self.k, self.height * self.width, self.parts
        zeros = [k.vector(0.0)] * (count * (parts - 1))

        def steps(at: Index, *kept: Any) -> list[Any]:
            if self.ahead is not None:
                self.ahead(at)
            values = list(kept)
            for u in range(self.unroll):
                first = u % parts * count
                values[first : first + count] = self.step(at + u, values[first : first + count])
            return values

        whole = length // self.unroll * self.unroll
        kept = k.loop(0, whole, self.unroll, [*sums, *zeros])(steps)
        totals = [tree(add, kept[i::count]) for i in range(count)]
        if length.number is not None and length.number % self.unroll == 0:
            return totals
        return k.loop(whole, length, 1, totals)(lambda at, *kept: self.step(at, kept))

    def step(self, at: Index, sums: Sequence[Any]) -> list[Any]:
        """Add the products of one step."""
        parts = [self.right(v, at) for v in range(self.width)]
        out: list[Any] = []
        for row in range(self.height):
            x = self.left(row, at)
            x = x.across(self.k.lanes) if isinstance(x, Scalar) else x
            kept = sums[row * self.width : (row + 1) * self.width]
            out += [self.multiply(x, part, total) for part, total in zip(parts, kept, strict=True)]
        return out


def partial_sums(rows: Dim, height: int, width: int, unroll: int) -> int:
    """Count the sums that a tile keeps of each number, so that additions need not wait.

    What a matrix of `rows` has in a tile of `height` decides, and not a lower tile at its bottom:
    the order of additions, and with it each bit of a row, does not depend on where the row lies.
    """
    least = min(rows, height) if isinstance(rows, int) else height
    return max(1, min(unroll, CHAINS // (least * width)))


def refuse_tile(family: str, height: int, panel: int, target: Target) -> str:
    """Return why `height` rows by `panel` columns do not fit the registers, or "".

    Sums, one row of the panel and one number of the other side are held at once.
    """
    vectors = panel * 4 // target.vector_bytes
    registers = height * vectors + vectors + 1
    if registers > target.vector_registers:
        return f"{family}: expected at most {target.vector_registers} registers, got {registers}"
    return ""


def overwritable(
    program: Pointwise, rows: Dim, once: bool = True, letters: str = ""
) -> tuple[tuple[str, str], ...]:
    """Return what c may replace: what is read where c is written, if c is written `once`.

    Where the depth is summed in blocks, c holds partial sums before the epilogue reads. `letters`
    are those of c's rows.
    """
    reads = enumerate(program.reads) if once else ()
    return tuple(("c", f"e{n}") for n, read in reads if read.is_alike(rows, letters))


# A row of a result: what the epilogue knows it by, and its place in the result's memory.
Row = tuple[Index | Lettered, Sequence[Place]]


def matrix_rows(start: Index) -> Callable[[Index], Row]:
    """Return the rows of a tile whose result is the matrix itself, from `start` on."""

    def row(r: Index) -> Row:
        return start + r, (start + r,)

    return row


@dataclass(frozen=True)
class Finish:
    """The end of a tile: what the epilogue makes of its sums, as bytes with a `narrow`, stored.

    With `kept`, memory for a tile's sums, the epilogue is a loop over the rows: unrolled, a heavy
    one would be most of the code. The sums wait there, since it may read the result's memory.
    """

    k: Build
    epilogue: InKernel
    y: Memory
    kept: Memory | None = None
    narrow: Narrow | None = None

    @staticmethod
    def of(
        k: Build,
        program: Pointwise,
        memory: Mapping[str, Memory],
        y: Memory,
        tile: int,
        narrow: Narrow | None = None,
    ) -> "Finish":
        """Return the end of tiles of so many sums, with reads ``e0``...; not inside of loops."""
        kept = local(k, tile) if program.heavy else None
        return Finish(k, InKernel.of(k, program, "e", memory), y, kept, narrow)

    def tile(
        self,
        sums: Sequence[Vector],
        places: Sequence[Lanes],
        row: Callable[[Index], Row],
        left: int | None = None,
    ) -> None:
        """Store a tile: rows of vectors at their `places`; of bytes the `left` ones where some."""
        k, width = self.k, len(places)
        count = len(sums) // width
        if self.kept is None:
            for r in range(count):
                self._row(row(Index.of(r)), sums[r * width : (r + 1) * width], places, left)
            return
        for n, value in enumerate(sums):
            self.kept.store(value, Index.of(n * k.lanes))
        with k.range(count) as r:
            at = row(r)
            held = (self.kept.load((r * width + v) * k.lanes) for v in range(width))
            self._row(at, held, places, left)

    def _row(
        self, row: Row, values: Iterable[Vector], places: Sequence[Lanes], left: int | None
    ) -> None:
        number, head = row
        apply = self.epilogue.row(number)
        if self.narrow is None:
            for value, at in zip(values, places, strict=True):
                self.y.store(apply(value, at), *head, at)
            return
        made = [apply(value, at) for value, at in zip(list(values), places, strict=True)]
        mask = places[0].mask if left is None else None
        self.narrow.store(self.k, self.y, made, head, places[0].start, left, mask)


@dataclass(frozen=True)
class Scratch:
    """Memory of each workgroup: an unpacked panel, and what a block of rows needs (`beside`).

    Weights that are stored in another type than f32 are unpacked panel by panel, once for a block
    of rows. It is a further result of the kernel that nobody reads, which the memory plan places.
    """

    panel: int
    beside: int
    workgroups: tuple[int, int]

    @property
    def operand(self) -> Operand:
        """The result of the kernel that nobody reads."""
        count = self.workgroups[0] * self.workgroups[1]
        return Operand("scratch", (count * (self.panel + self.beside),), "out")

    def own(self, k: Build) -> tuple[Index, Index]:
        """Return where this workgroup's panel and what is beside it begin."""
        number = k.workgroup(0) * self.workgroups[1] + k.workgroup(1)
        start = number * (self.panel + self.beside)
        return start, start + self.panel


def pitch(depth: int) -> int:
    """Return the distance of unpacked rows: whole lines, and one more against shared cache sets."""
    return -(-depth // LINE) * LINE + LINE


def row_block(target: Target, height: int, held: int, each: int) -> int:
    """Return the rows of a block, in tiles of `height`, that share what is unpacked.

    The second-level cache holds `held` bytes of a panel and `each` bytes of a row beside it; a
    panel is unpacked for eight tiles at least.
    """
    rows = max(target.l2_bytes * 15 // 16 - held, 0) // each
    return max(min(rows, _MOST_ROWS) // height, _LEAST_TILES) * height
