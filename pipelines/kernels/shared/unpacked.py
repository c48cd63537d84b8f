"""Multiply rows by a panel of weights that lies unpacked in scratch memory, as f32.

Weights that are stored in another type than f32 (halves, few bits) are unpacked panel by panel,
once for a block of rows; what follows is a product of f32. Scratch memory is a further result of
the kernel that nobody reads, so that the memory plan places it.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import InKernel
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar, Vector, least
from pyc_mlir.pipelines.kernels.shared.epilogues import store_tile
from pyc_mlir.pipelines.kernels.shared.grid import share
from pyc_mlir.pipelines.kernels.shared.tile import ProductTile, bottom, partial_sums
from pyc_mlir.pipelines.target.target import Target

_MOST_ROWS, _LEAST_TILES = 240, 8


def row_block(target: Target, height: int, held: int, each: int) -> int:
    """Return the rows of a block, in tiles of `height`.

    The second-level cache holds `held` bytes of a panel and `each` bytes of a row beside it; a
    panel is unpacked for eight tiles at least.
    """
    rows = max(target.l2_bytes * 15 // 16 - held, 0) // each
    return max(min(rows, _MOST_ROWS) // height, _LEAST_TILES) * height


@dataclass(frozen=True)
class Scratch:
    """Memory of each workgroup: an unpacked panel, and what a block of rows needs (`beside`)."""

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


def row_blocks(
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
class UnpackedTiles:
    """Tiles of C by one panel of `width` numbers for each of `depth`, from `start` on in `panel`.

    `left(r, at)` is a number of row r of the block. `kept` is memory for the sums of a tile where
    the epilogue is heavy.
    """

    k: Build
    height: int
    unroll: int
    depth: int
    left: Callable[[Index, Index], Scalar]
    panel: Memory
    start: Index
    width: int
    c: Memory
    epilogue: InKernel
    kept: Memory | None = None

    def rows(self, first: Index, count: Index, places: Sequence[Lanes]) -> None:
        """Compute `count` rows of C from `first` on: full tiles, then lower ones."""
        k, height = self.k, self.height
        full = count // height
        if full.number != 0:
            with k.range(full) as tile:
                self._tile(first, tile * height, height, places)
        for row, rest, needed in bottom(count, height):
            with nullcontext() if needed is None else k.when(needed):
                self._tile(first, row, rest, places)

    def _tile(self, first: Index, row: Index, height: int, places: Sequence[Lanes]) -> None:
        k, width = self.k, len(places)

        def left(r: int, at: Index) -> Scalar:
            return self.left(row + r, at)

        def right(v: int, at: Index) -> Vector:
            return self.panel.load(self.start + at * self.width + v * k.lanes)

        parts = partial_sums("m", self.height, width, self.unroll)
        tile = ProductTile(k, height, width, self.unroll, left, right, None, parts)
        sums = tile.accumulate(Index.of(self.depth), [k.vector(0.0)] * (height * width))
        spots = [(first + row + r, at) for r in range(height) for at in places]
        store_tile(k, self.epilogue, self.c, spots, sums, width, self.kept)
