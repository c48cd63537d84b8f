"""How are many matrices multiplied whose right side is known at run time only? C = epilogue(A B).

The operands' dimensions come in any order: b, c, d, ... are batches, m rows, n columns, k the
depth. ``left="bmck", right="bnck", result="bcmn"`` multiplies the heads c of an attention layer,
queries by transposed keys, as they lie in what a projection made. Without a batch it is one
product. A workgroup copies a panel of B to its stack, transposed where the depth lies last, and
runs all its register tiles over it; the copy is as fast as memory and read height rows at a time.

`BatchGemm` holds the knobs; `BatchGemm.on` chooses them for a target.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.grid import cores_for, cut_batch, known
from pyc_mlir.pipelines.kernels.language import Build, Lanes, Memory, Place
from pyc_mlir.pipelines.kernels.pointwise import InKernel, Pointwise
from pyc_mlir.pipelines.kernels.tile import Tile, bottom, local, transpose
from pyc_mlir.pipelines.kernels.values import Index, Scalar, Vector, least
from pyc_mlir.pipelines.target import Target

STACK = 32 << 10
NOTHING = Pointwise()
_HEIGHT = 6
_UNROLL = 4
_ROWS_FOR_A_COPY = 24
_DEEP = 16  # a panel's depth is a multiple of it: the lanes of any target
_DEPTH_IN_PLACE = 512


@dataclass(frozen=True)
class BatchGemm:
    """The knobs of result[.., rows, columns] = left[.., rows, depth] right[.., depth, columns].

    `batch` are the sizes of the letters of `result` other than m and n, in their order there; an
    operand that lacks one of them is the same for all of it. `result` ends with n, `right` with n
    or k. `height` and `panel` are rows and columns of the register tile; `depth_block` is what is
    summed before C is written; `local` copies B's panels of that depth to the stack. `epilogue`
    sees the result as a matrix whose rows are all its dimensions but the last one. `workgroups`
    cuts the batch, rows and columns.
    """

    batch: tuple[Dim, ...]
    rows: Dim
    columns: Dim
    depth: Dim
    left: str = "bmk"
    right: str = "bkn"
    result: str = "bmn"
    epilogue: Pointwise = NOTHING
    height: int = _HEIGHT
    panel: int = 64
    depth_block: int = 128
    unroll: int = _UNROLL
    local: bool = True
    workgroups: tuple[int, int, int] = (1, 1, 1)

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        counts = (self.height, self.panel, self.depth_block, self.unroll, *self.workgroups)
        dims = (*self.batch, self.rows, self.columns, self.depth)
        if min((*counts, *(d for d in dims if isinstance(d, int)))) < 1:
            raise _refusal("sizes, tile and workgroups of at least 1", self)
        letters = self.letters
        wrong = (
            len(letters) != len(self.batch)
            or sorted(self.result) != sorted(f"{letters}mn")
            or not _covers(self.left, "mk", letters)
            or not _covers(self.right, "kn", letters)
        )
        if wrong or self.result[-1] != "n" or self.right[-1] not in "kn":
            raise _refusal(
                "left of m, k and batches, right of k, n and batches, ending with k or n, result "
                "of the batches, m and, last, n",
                (self.batch, *self.orders),
            )
        if self.transposed and not self.local:
            raise _refusal("a transposed right side to be local", self.right)
        if self.depth_block % self.unroll:
            raise _refusal("depth_block in multiples of unroll", self.depth_block)
        if self.local and 4 * self.panel * -(-self.depth_block // _DEEP) * _DEEP > STACK:
            raise _refusal(
                f"a local panel of at most {STACK} bytes", (self.panel, self.depth_block)
            )

    @staticmethod
    def on(
        target: Target,
        batch: tuple[Dim, ...],
        sizes: tuple[Dim, Dim, Dim],
        orders: tuple[str, str, str] = ("bmk", "bkn", "bmn"),
        **others: Any,
    ) -> "BatchGemm":
        """The knobs for a target; `sizes` are rows, columns and depth, `others` further fields.

        `orders` are those of left, right and result. B is read in place where it is not transposed
        and is small enough for the first-level cache, or too few rows would share a copy.
        """
        rows, columns, depth = sizes
        panel = (4 if target.vector_registers >= 32 else 2) * target.vector_bytes // 4
        deepest = STACK // (4 * panel) // _DEEP * _DEEP
        parts = -(-depth // deepest) if isinstance(depth, int) else 1
        block = -(-depth // (parts * _UNROLL)) * _UNROLL if isinstance(depth, int) else deepest
        few = isinstance(rows, int) and rows < _ROWS_FOR_A_COPY
        fits = parts == 1 and isinstance(depth, int)
        local = orders[1][-1] == "k" or not (few or fits)
        if not local and isinstance(depth, int):
            block = min(-(-depth // _UNROLL) * _UNROLL, _DEPTH_IN_PLACE)
        knobs = {"panel": panel, "depth_block": block, "local": local}
        knobs["workgroups"] = _cut(target, batch, sizes, panel)
        return BatchGemm(batch, rows, columns, depth, *orders, **{**knobs, **others})

    @property
    def letters(self) -> str:
        """The letters of the batch."""
        return self.result.replace("m", "").replace("n", "")

    @property
    def sizes(self) -> dict[str, Dim]:
        """Every letter's size."""
        own = {"m": self.rows, "n": self.columns, "k": self.depth}
        return {**dict(zip(self.letters, self.batch, strict=True)), **own}

    @property
    def matrix(self) -> tuple[Dim, Dim]:
        """The rows and columns that the epilogue sees: the result as one matrix.

        Rows are the size ``rows_of_c`` where a known number of them cannot be told.
        """
        outer = [self.sizes[x] for x in self.result[:-1]]
        numbers = [d for d in outer if isinstance(d, int)]
        if len(numbers) == len(outer):
            return prod(numbers), self.columns
        return (outer[0] if len(outer) == 1 else "rows_of_c"), self.columns

    @property
    def orders(self) -> tuple[str, str, str]:
        """The letters of left, right and result."""
        return self.left, self.right, self.result

    @property
    def transposed(self) -> bool:
        """Does the depth of `right` lie last?"""
        return self.right[-1] == "k"

    def kernel(self, name: str) -> Kernel:
        """The kernel called `name`: operands a, b, then c."""
        shape = {o: tuple(self.sizes[x] for x in o) for o in self.orders}
        operands = (
            Operand("a", shape[self.left]),
            Operand("b", shape[self.right]),
            *self.epilogue.operands("e", *self.matrix),
            Operand("c", shape[self.result], "out"),
        )
        return Kernel(name, operands, lambda size: self.workgroups, self._body)

    def _body(self, k: Build, a: Memory, b: Memory, *others: Memory) -> None:
        *reads, c = others
        BatchProduct(k, self, a, b, c, InKernel(k, self.epilogue, tuple(reads))).build()


def _cut(
    target: Target, batch: tuple[Dim, ...], sizes: tuple[Dim, Dim, Dim], panel: int
) -> tuple[int, int, int]:
    """The batch first; what cores are left for take columns, since rows would repeat the copies."""
    rows, columns, depth = map(known, sizes)
    count = prod(map(known, batch))
    flops, read = 2.0 * count * rows * columns * depth, 4.0 * count * depth * (rows + columns)
    cores = cores_for(target, flops, read)
    shares = cut_batch(cores, batch)
    left = cores // shares
    across = max(1, min(left, columns // panel))
    return shares, max(1, min(left // across, rows // _HEIGHT)), across


def _covers(order: str, own: str, letters: str) -> bool:
    """Has an operand its own letters, some of the batch's, and none of them twice?"""
    rest = set(order) - set(own)
    return len(set(order)) == len(order) and set(own) <= set(order) and rest <= set(letters)


@dataclass(frozen=True)
class View:
    """One matrix within an operand, at a place of the batch."""

    memory: Memory
    order: str
    batch: Mapping[str, Index]

    def at(self, **place: Place) -> list[Place]:
        """A position from those of the matrix's two letters."""
        known: dict[str, Place] = {**self.batch, **place}
        return [known[x] for x in self.order]

    def indices(self, **place: Index) -> list[Index]:
        """The same for one number."""
        known = {**self.batch, **place}
        return [known[x] for x in self.order]

    def row(self, **place: Index) -> Index:
        """The number of a row, all dimensions but the last one taken as rows."""
        number = Index.of(0)
        for letter, size in zip(self.order[:-1], self.memory.shape, strict=False):
            number = number * size + {**self.batch, **place}[letter]
        return number


@dataclass(frozen=True)
class Block:
    """A panel of columns over a block of the depth: the places of its vectors, its first column.

    `number` counts blocks of the depth, `blocks` is how many there are.
    """

    places: list[Lanes]
    column: Index
    start: Index
    length: Index
    number: Index
    blocks: Index


@dataclass(frozen=True)
class Matrices:
    """The three matrices of one place of the batch."""

    a: View
    b: View
    c: View


@dataclass(frozen=True)
class BatchProduct:
    """One kernel under construction: loops from the outside in, then the register tile."""

    k: Build
    knobs: BatchGemm
    a: Memory
    b: Memory
    c: Memory
    epilogue: InKernel
    panel: list[Memory] = field(default_factory=list)

    def build(self) -> None:
        """This workgroup's matrices."""
        k, knobs = self.k, self.knobs
        if knobs.local:
            deep = -(-knobs.depth_block // _DEEP) * _DEEP
            self.panel.append(local(k, deep * knobs.panel))
        count = Index.of(1)
        for size in knobs.batch:
            count = count * k.size(size)
        if not knobs.batch:
            return self._matrices({})
        first, end = self._share(0, count)
        with k.range(first, end) as number:
            self._matrices(dict(self._unravel(number)))
        return None

    def _unravel(self, number: Index) -> Iterator[tuple[str, Index]]:
        """A number within the batch as one for each letter, the last one changing fastest."""
        sizes = self.knobs.sizes
        for letter in reversed(self.knobs.letters[1:]):
            yield letter, number % self.k.size(sizes[letter])
            number = number // self.k.size(sizes[letter])
        yield self.knobs.letters[0], number

    def _share(self, dimension: int, count: Index) -> tuple[Index, Index]:
        """This workgroup's part of `count` things."""
        parts = self.knobs.workgroups[dimension]
        if parts == 1:
            return Index.of(0), count
        size = count.ceildiv(parts)
        first = least(self.k.workgroup(dimension) * size, count)
        return first, least(first + size, count)

    def _matrices(self, batch: Mapping[str, Index]) -> None:
        """Full panels, then the narrower last one."""
        k, knobs = self.k, self.knobs
        views = Matrices(
            View(self.a, knobs.left, batch),
            View(self.b, knobs.right, batch),
            View(self.c, knobs.result, batch),
        )
        columns = k.size(knobs.columns)
        full, rest = columns // knobs.panel, columns % knobs.panel
        first, end = self._share(2, full)
        if full.number != 0:
            with k.range(first, end) as panel:
                at = panel * knobs.panel
                self._depth(views, at, [Lanes(at + v) for v in range(0, knobs.panel, k.lanes)])
        if rest.number == 0:
            return
        at = full * knobs.panel
        width = knobs.panel if rest.number is None else rest.number
        places = [self._masked(at + v, columns) for v in range(0, width, k.lanes)]
        mine = k.workgroup(2).equals(knobs.workgroups[2] - 1)
        with k.when(mine if rest.number is not None else mine & (Index.of(0) < rest)):
            self._depth(views, at, places)

    def _masked(self, at: Index, size: Index) -> Lanes:
        """The vector at a column, which may lie behind the last one altogether."""
        return self.k.tail(at if size.number is not None else least(at, size), size)

    def _depth(self, views: Matrices, column: Index, places: list[Lanes]) -> None:
        """Blocks of the depth of a panel, one after the other."""
        k, knobs = self.k, self.knobs
        depth = k.size(knobs.depth)
        blocks = depth.ceildiv(knobs.depth_block)

        def block(number: Index) -> list[Any]:
            start = number * knobs.depth_block
            length = least(depth - start, knobs.depth_block)
            self._panel(views, Block(places, column, start, length, number, blocks))
            return []

        k.loop(0, blocks)(block)

    def _panel(self, views: Matrices, block: Block) -> None:
        """This workgroup's rows over one panel."""
        k, knobs = self.k, self.knobs
        if knobs.local:
            (self._copy_transposed if knobs.transposed else self._copy)(views.b, block)
        rows = k.size(knobs.rows)
        tiles = rows // knobs.height
        first, end = self._share(1, tiles)
        if tiles.number != 0:
            with k.range(first, end) as tile:
                self._tile(views, block, tile * knobs.height, knobs.height)
        mine = k.workgroup(1).equals(knobs.workgroups[1] - 1)
        for row, height, needed in bottom(rows, knobs.height):
            with k.when(mine if needed is None else mine & needed):
                self._tile(views, block, row, height)

    def _copy(self, b: View, block: Block) -> None:
        """B's rows side by side."""
        with self.k.range(block.length) as at:
            for v, place in enumerate(block.places):
                value = b.memory.load(*b.at(k=block.start + at, n=place))
                self.panel[0].store(value, self._spot(block, at, v))

    def _copy_transposed(self, b: View, block: Block) -> None:
        """Squares of registers turned; columns behind the last one are copies of it."""
        k, lanes = self.k, self.k.lanes
        last = k.size(self.knobs.columns) - 1

        def square(at: Index, v: int, place: Lanes) -> None:
            rows = [
                b.memory.load(*b.at(n=least(block.column + (v * lanes + i), last), k=place))
                for i in range(lanes)
            ]
            for i, column in enumerate(transpose(rows)):
                self.panel[0].store(column, self._spot(block, at + i, v))

        whole = block.length // lanes * lanes
        end = block.start + block.length
        for v in range(len(block.places)):
            with k.range(0, whole, lanes) as at:
                square(at, v, Lanes(block.start + at))
            if block.length.number is None or block.length.number % lanes:
                with k.when(whole < block.length):
                    square(whole, v, k.tail(block.start + whole, end))

    def _spot(self, block: Block, at: Index, v: int) -> Index:
        """Where a vector of the panel lies on the stack."""
        lanes = self.k.lanes
        return at * (len(block.places) * lanes) + v * lanes

    def _tile(self, views: Matrices, block: Block, row: Index, height: int) -> None:
        a, b, c = views.a, views.b, views.c

        def left(r: int, at: Index) -> Scalar:
            return a.memory.number(*a.indices(m=row + r, k=block.start + at))

        def right(v: int, at: Index) -> Vector:
            if self.knobs.local:
                return self.panel[0].load(self._spot(block, at, v))
            return b.memory.load(*b.at(k=block.start + at, n=block.places[v]))

        tile = Tile(self.k, height, len(block.places), self.knobs.unroll, left, right)
        rows = [row + r for r in range(height)]
        sums = tile.accumulate(block.length, self._start(c, block, rows))
        self._finish(c, block, rows, sums)

    def _start(self, c: View, block: Block, rows: list[Index]) -> list[Vector]:
        """Zeros in the first block of the depth, what C holds in the others."""
        zeros = [self.k.vector(0.0)] * (len(rows) * len(block.places))
        if block.blocks.number == 1:
            return zeros
        first, held = block.number.equals(0), [(r, p) for r in rows for p in block.places]
        return self.k.either(
            first, zeros, lambda: zeros, lambda: [c.memory.load(*c.at(m=r, n=p)) for r, p in held]
        )

    def _finish(self, c: View, block: Block, rows: list[Index], sums: list[Vector]) -> None:
        """Store; in the last block of the depth what the epilogue makes of the sums."""
        width = len(block.places)

        def store(last: bool) -> list[Any]:
            for number, row in enumerate(rows):
                apply = self.epilogue.row(c.row(m=row)) if last else _as_it_is
                for place, value in zip(block.places, sums[number * width :], strict=False):
                    c.memory.store(apply(value, place), *c.at(m=row, n=place))
            return []

        if block.blocks.number == 1 or not self.knobs.epilogue.steps:
            store(True)
        else:
            done = (block.number + 1).equals(block.blocks)
            self.k.either(done, [], lambda: store(True), lambda: store(False))


def _as_it_is(value: Vector, at: Lanes) -> Vector:
    return value


def _refusal(expected: str, came: object) -> PycError:
    return PycError(
        ReasonCode.BAD_ARGUMENT, f"batch_gemm kernel: expected {expected}, got {came!r}"
    )
