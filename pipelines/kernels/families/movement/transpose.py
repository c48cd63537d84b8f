"""The kernel family ``transpose``: y[b, j, i] = x[b, i, j], or the same for rows of numbers.

`x` is [batch, rows, columns], or [batch, rows, columns, inner] where the last dimension stays.
Single numbers go through registers: as many rows of a square block as a vector has lanes are
loaded, transposed by shuffles (`square.py`) and
stored as rows. Blocks are walked in tiles, so that pages and lines are used up before others are
opened. Rows of `inner` numbers are copied in the order of y.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod

from pyc_mlir.dialects.types import Shape
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import Index, Vector, least
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.square import transposed
from pyc_mlir.pipelines.kernels.variants import knob_space
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, is_f32, sizes

_WIDEST = 16  # f32 in the widest vector, and in a cache line
_SHARE = 4096  # numbers that are worth a workgroup
_TILES = (16, 32, 64, 128, 256)  # sides to try


@dataclass(frozen=True)
class Transpose:
    """The knobs of an exchange of `rows` and `columns`.

    Known sizes are at least 1. A workgroup has a tile of `tile_rows` by `tile_columns` of `batches`
    matrices and goes down x, or (`down` is false) along its rows first. `streaming` writes past
    the caches, for a result far larger than they are: what lies together in y must be known, in
    whole cache lines.
    """

    batch: Dim
    rows: Dim
    columns: Dim
    inner: Dim = 1
    tile_rows: int = 256
    tile_columns: int = 256
    batches: int = 1
    down: bool = True
    streaming: bool = False

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        known = [d for d in self._shape if isinstance(d, int)]
        if min(self.batches, *known, 1) < 1:
            raise no_kernel("transpose", "sizes and parts of at least 1", self)
        tile = (self.tile_rows, self.tile_columns)
        if min(tile) < 1 or any(side % _WIDEST for side in tile):
            raise no_kernel("transpose", f"tiles in multiples of {_WIDEST}", self)
        together = self.rows if self.inner == 1 else self.inner
        if self.streaming and (isinstance(together, str) or together % _WIDEST):
            raise no_kernel(
                "transpose", f"rows or inner in multiples of {_WIDEST} for streaming", together
            )

    @staticmethod
    def on(target: Target, batch: Dim, rows: Dim, columns: Dim, inner: Dim = 1) -> "Transpose":
        """Choose the knobs for a target's caches.

        Blocks go down the longer side; of rows that are copied, the shorter side is the inner
        loop, so that few streams are open. A result beyond the last cache is streamed.
        """
        shape = (batch, rows, columns, inner)
        known = [d for d in shape if isinstance(d, int)]
        if len(known) < len(shape):
            return Transpose(*shape)
        together = known[1] if inner == 1 else known[3]
        large = 4 * prod(known) > target.l3_bytes and together % _WIDEST == 0
        others = {"streaming": large, "batches": max(1, _SHARE // prod(known[1:]))}
        if inner == 1:
            tile, down = (64 if large else 256, 256), large or known[1] >= known[2]
        else:
            down = known[1] < known[2]
            tile = (_WIDEST, 256) if down else (256, _WIDEST)
        return Transpose(*shape, tile_rows=tile[0], tile_columns=tile[1], down=down, **others)

    @property
    def _shape(self) -> tuple[Dim, ...]:
        shape = (self.batch, self.rows, self.columns, self.inner)
        return shape[:3] if self.inner == 1 else shape

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x and y."""
        batch, rows, columns, *inner = self._shape
        x = Operand("x", (batch, rows, columns, *inner))
        y = Operand("y", (batch, columns, rows, *inner), "out")
        return Kernel(name, (x, y), self._grid, self._body)

    def _grid(self, size: Callable[[Dim], Index]) -> tuple[Index, Index]:
        """Return tiles across, and down all matrices: IREE's third dimension has 16 bits."""
        down = size(self.rows).ceildiv(self.tile_rows)
        across = size(self.columns).ceildiv(self.tile_columns)
        return across, down * size(self.batch).ceildiv(self.batches)

    def _body(self, k: Build, x: Memory, y: Memory) -> None:
        k.streaming(y, self.streaming, partial(self._work, k, x, y))

    def _work(self, k: Build, x: Memory, y: Memory, streaming: bool) -> None:
        down = x.shape[1].ceildiv(self.tile_rows)
        first = k.workgroup(1) // down * self.batches
        row = k.workgroup(1) % down * self.tile_rows
        with k.range(first, least(first + self.batches, x.shape[0])) as b:
            tile = TransposeTile(k, self, x, y, b, row, streaming)
            tile.blocks() if self.inner == 1 else tile.copies()


@dataclass(frozen=True)
class TransposeTile:
    """This workgroup's tile of matrix `b`, whose first row is `row`."""

    k: Build
    knobs: Transpose
    x: Memory
    y: Memory
    b: Index
    row: Index
    streaming: bool

    def copies(self) -> None:
        """Copy rows of `inner` numbers, as they lie in y (`down`) or in x."""
        spans = [self._span(2), self._span(1)][:: 1 if self.knobs.down else -1]
        with self.k.range(*spans[0]) as first, self.k.range(*spans[1]) as second:
            i, j = (second, first) if self.knobs.down else (first, second)

            @self.k.each(self.x.shape[3])
            def _(at: Lanes) -> None:
                self._put(self.x.load(self.b, i, j, at), j, i, at)

    def blocks(self) -> None:
        """Turn whole blocks, then those at the bottom, at the right and in the corner."""
        lanes = self.k.lanes
        (top, bottom), (left, right) = self._span(1), self._span(2)
        low, side = (self.x.shape[d] // lanes * lanes for d in (1, 2))
        under, beside = low < bottom, side < right
        along, across = (top, least(bottom, low)), (left, least(right, side))
        outer, inner = (across, along) if self.knobs.down else (along, across)
        with self._walk(*outer) as first, self._walk(*inner) as second:
            self._whole(*((second, first) if self.knobs.down else (first, second)))
        if self._ragged(1):
            with self.k.when(under), self._walk(*across) as j:
                self._edge(low, j)
        if self._ragged(2):
            with self.k.when(beside), self._walk(*along) as i:
                self._edge(i, side)
        if self._ragged(1) and self._ragged(2):
            with self.k.when(under & beside):
                self._edge(low, side)

    def _span(self, dimension: int) -> tuple[Index, Index]:
        """Return the start and the end of the tile in rows (1) or columns (2)."""
        size = self.x.shape[dimension]
        step = self.knobs.tile_rows if dimension == 1 else self.knobs.tile_columns
        if size.number is not None and size.number <= step:
            return Index.of(0), size
        first = self.row if dimension == 1 else self.k.workgroup(0) * step
        return first, least(first + step, size)

    def _ragged(self, dimension: int) -> bool:
        size = self.x.shape[dimension].number
        return size is None or size % self.k.lanes > 0

    @contextmanager
    def _walk(self, low: Index, high: Index) -> Iterator[Index]:
        with self.k.range(low, high, self.k.lanes) as at:
            yield at

    def _whole(self, i: Index, j: Index) -> None:
        """Move a square block from registers to registers."""
        block = [self.x.load(self.b, i + r, j) for r in range(self.k.lanes)]
        for c, column in enumerate(transposed(block)):
            self._put(column, j + c, i)

    def _edge(self, i: Index, j: Index) -> None:
        """Move a block of which rows or columns may be missing.

        What is loaded for a missing row is never stored: the last row will do.
        """
        k, (rows, columns) = self.k, self.x.shape[1:3]
        height, width = (rows - i).number, (columns - j).number
        across, along = k.tail(j, columns), k.tail(i, rows)
        block = [k.vector(0.0)] * k.lanes
        for r in range(min(k.lanes, height or k.lanes)):
            row = i + r if height is not None else least(i + r, rows - 1)
            block[r] = self.x.load(self.b, row, across)
        for c, column in enumerate(transposed(block)):
            if width is None:
                with k.when(j + c < columns):
                    self.y.store(column, self.b, j + c, along)
            elif c < width:
                self.y.store(column, self.b, j + c, along)

    def _put(self, value: Vector, *place: Index | Lanes) -> None:
        self.y.store(value, self.b, *place, streaming=self.streaming)


_LEAST_INNER = 8


def refusal(knobs: Transpose, target: Target) -> str:
    """Refuse blocks that are mostly empty and copies of less than a vector: they gain nothing."""
    if reason := refuse_narrow(target):
        return reason
    lanes = target.vector_bytes // 4
    sides = (knobs.rows, knobs.columns) if knobs.inner == 1 else ()
    if any(isinstance(side, int) and side < lanes for side in sides):
        return f"transpose: expected sides of at least {lanes}, got {sides}"
    if isinstance(knobs.inner, int) and 1 < knobs.inner < _LEAST_INNER:
        expected = f"expected rows of at least {_LEAST_INNER}"
        return f"transpose: {expected}, got {knobs.inner}"
    return ""


def cost(knobs: Transpose, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count one read and write of each number."""
    dims = (knobs.batch, knobs.rows, knobs.columns, knobs.inner)
    traffic = 8 * prod(d if isinstance(d, int) else sizes[d] for d in dims)
    return CostModel(target).kernel("transpose", 0, traffic)


@dataclass(frozen=True)
class _Exchange:
    """The groups of an operand's dimensions that change places: cut before, between, after."""

    cuts: tuple[int, int, int]

    def groups(self, shape: Shape) -> tuple[Shape, ...]:
        """batch, rows, columns and inner."""
        a, b, c = self.cuts
        return shape[:a], shape[a:b], shape[b:c], shape[c:]


def exchange(shape: Shape, permutation: tuple[int, ...]) -> _Exchange | None:
    """Find the two runs of neighbouring dimensions that a permutation exchanges; None for more.

    Dimensions of size 1 are nowhere, so that they fit each place.
    """
    order = [p for p in permutation if shape[p] != 1]
    places = sorted(order)
    moved = [i for i, p in enumerate(order) if p != places[i]]
    if not moved:
        return None
    first, end = moved[0], moved[-1] + 1
    turned, straight = order[first:end], places[first:end]
    middle = straight.index(turned[0])
    if turned != straight[middle:] + straight[:middle]:
        return None
    last = straight[-1] + 1
    return _Exchange((straight[0], straight[middle], last))


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for a transpose that exchanges two runs of dimensions."""
    node = work.nodes[0]
    if node.name != "transpose" or not is_f32(work, node.operands):
        return []
    shape, permutation = work.type(node.operands[0]).shape, node.params["permutation"]
    # The size of a dynamic dimension is taken from the same place of the operand.
    moved = any(shape[p] is None and p != i for i, p in enumerate(permutation))
    found = None if moved or 0 in shape else exchange(shape, permutation)
    if found is None:
        return []
    batch, rows, columns, inner = (
        d if (d := sizes(g)) is not None else name
        for g, name in zip(found.groups(shape), "bmnq", strict=True)
    )
    knobs = Transpose.on(target, batch, rows, columns, inner)
    if refusal(knobs, target):
        return []
    cuts = found.cuts if inner != 1 else found.cuts[:2]
    feed = Feed(node.operands[0], cuts)
    return [
        KernelOffer(
            knobs, 1, (feed,), cost(knobs, target, dict.fromkeys("bmnq", NOMINAL_DIMENSION))
        )
    ]


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary tiles and their order, matrices of a workgroup, kinds of stores."""
    knobs: Transpose = offer.knobs
    return knob_space(
        knobs,
        {
            "tile_rows": _TILES,
            "tile_columns": _TILES,
            "batches": () if knobs.batch == 1 else (1, 4, 16),
            "down": (False, True),
            "streaming": (False, True),
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("transpose", Transpose, refusal, cost, match, space)
