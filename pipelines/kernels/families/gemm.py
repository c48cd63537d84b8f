"""The kernel family ``gemm``: C = epilogue(A B), with the weights B packed at compile time.

The scheme is that of Goto and van de Geijn (2008) as BLIS has it, without packing A: a register
tile of `height` rows by one panel of B's columns is accumulated over a block of the depth; blocks
of rows stay in the second-level cache while panels stream by, and the next panel is prefetched.
The bottom tile and the rightmost panel may be smaller; the last columns are masked. A few rows
alone read B once, from its first number to its last.

`Gemm` holds the knobs; `Gemm.on` chooses them for a target. `Panels.pack` lays out a constant B,
the kernel of `Gemm.packing` one that is known at run time only.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.packing import PanelPacking, Panels
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar, Vector, least
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, longest
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.epilogues import overwritable, store_tile
from pyc_mlir.pipelines.kernels.shared.grid import cores_for, cut_matrix, known, share
from pyc_mlir.pipelines.kernels.shared.tile import (
    ProductTile,
    bottom,
    local,
    partial_sums,
    refuse_tile,
)
from pyc_mlir.pipelines.kernels.variants import HEIGHTS, PANELS, UNROLLS, cuts, knob_space
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, float_type, is_f32, nominal, sizes

_DEPTH_LIMIT = 1024
_STRIP_COLUMNS = 256
_HEIGHT, _UNROLL = 6, 4
_PAGE = 1024  # numbers in 4 KiB
_BLOCKS = (128, 256, 512, 1024)  # of depth, rows and columns, to try


@dataclass(frozen=True)
class Gemm:
    """The knobs of C[rows, columns] = epilogue(A[rows, depth] B).

    `height` and `panel` are the rows and columns of the register tile; `depth_block`,
    `row_block` and `strip` (columns) are what caches hold at most, in whole tiles, one at least;
    `workgroups` cuts rows and columns. `far`: B comes from memory, not from a cache, and is
    prefetched a page ahead where it is read only once.
    """

    rows: Dim
    columns: int
    depth: int
    epilogue: Pointwise = NOTHING
    height: int = _HEIGHT
    panel: int = 64
    depth_block: int = 1024
    row_block: int = 120
    strip: int = 256
    unroll: int = _UNROLL
    workgroups: tuple[int, int] = (1, 1)
    far: bool = False

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        sizes = (self.columns, self.depth, self.panel, self.height, self.unroll)
        if self.rows == 0 or min(*sizes, self.row_block, self.strip, *self.workgroups) < 1:
            raise no_kernel(
                "gemm", "sizes, tile, blocks, unroll and workgroups of at least 1", self
            )
        if self.panel % LINE:
            raise no_kernel("gemm", "panel in lines of 16", self)
        if self.depth_block % self.unroll:
            raise no_kernel("gemm", "depth_block in multiples of unroll", self.depth_block)

    @staticmethod
    def on(target: Target, rows: Dim, columns: int, depth: int, **others: Any) -> "Gemm":
        """Choose the knobs for a target's registers, caches and cores; `others` are fields."""
        vectors = 4 if target.vector_registers >= 32 else 2
        few = isinstance(rows, int) and rows <= _HEIGHT
        parts = 1 if few else -(-depth // _DEPTH_LIMIT)
        block = -(-depth // (parts * _UNROLL)) * _UNROLL
        row_block = max(1, target.l2_bytes * 15 // 16 // (4 * block * _HEIGHT)) * _HEIGHT
        panel = vectors * target.vector_bytes // 4
        flops, read = 2.0 * known(rows) * columns * depth, 4.0 * columns * depth
        cores = cores_for(target, flops, read)
        knobs = {
            **{"panel": panel, "depth_block": block, "row_block": row_block},
            "strip": max(_STRIP_COLUMNS // panel, 1) * panel,
            "workgroups": cut_matrix(cores, rows, columns, (_HEIGHT, panel)),
            "far": few and 2 * read >= (target.l3_bytes or target.l2_bytes),
        }
        return Gemm(rows, columns, depth, **{**knobs, **others})

    @property
    def panels(self) -> Panels:
        """The layout of B."""
        return Panels(self.columns, self.depth, self.panel)

    def packing(self, transposed: bool = False) -> PanelPacking:
        """Return the kernel that lays out B[depth, columns], or B[columns, depth], at run time."""
        shares = max(1, min(self.workgroups[0] * self.workgroups[1], self.panels.full))
        return PanelPacking(self.columns, self.depth, self.panel, transposed, shares)

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands a, b (packed), the epilogue's, then c."""
        result = (self.rows, self.columns)
        operands = (
            Operand("a", (self.rows, self.depth)),
            Operand("b", (self.panels.size,), layout=self.panels),
            *self.epilogue.operands("e", *result),
            Operand("c", result, "out"),
        )
        once = self.depth <= self.depth_block
        alike = overwritable(self.epilogue, self.rows, once)
        return Kernel(name, operands, lambda size: self.workgroups, self._body, alike)

    def _body(self, k: Build, a: Memory, b: Memory, *others: Memory) -> None:
        *reads, c = others
        Product(k, self, a, b, c, InKernel(k, self.epilogue, tuple(reads))).build()


Spots = list[tuple[Index, Lanes]]


@dataclass(frozen=True)
class Strip:
    """Neighbouring panels of one width: numbers `first` to `end`, the packed offset of panel 0.

    `last` is the one panel that may be narrower than others and is not full.
    """

    first: Index
    end: Index
    width: int
    base: int = 0
    last: bool = False


@dataclass(frozen=True)
class Depth:
    """A block of the depth: where it starts, how long it is, and its number."""

    start: Index
    length: Index
    number: Index


@dataclass(frozen=True)
class Product:
    """One kernel under construction: loops from the outside in, then the register tile.

    `sums` is memory for one tile where the epilogue is `heavy`.
    """

    k: Build
    knobs: Gemm
    a: Memory
    b: Memory
    c: Memory
    epilogue: InKernel
    sums: list[Memory] = field(default_factory=list)

    def build(self) -> None:
        """Compute this workgroup's columns: strips of full panels, then the narrower last panel."""
        k, knobs = self.k, self.knobs
        if knobs.epilogue.heavy:
            self.sums.append(local(k, knobs.height * knobs.panel))
        panels = knobs.panels
        first, end = share(k, 1, knobs.workgroups[1], Index.of(panels.full))
        if panels.full:
            step = max(1, knobs.strip // knobs.panel)
            with k.range(first, end, step) as j:
                self._strip(Strip(j, least(j + step, end), knobs.panel))
        if panels.last_width:
            with k.when(k.workgroup(1).equals(knobs.workgroups[1] - 1)):
                start, base = Index.of(0), panels.edge * knobs.depth
                self._strip(Strip(start, start + 1, panels.last_width, base, last=True))

    def _strip(self, strip: Strip) -> None:
        """Compute blocks of the depth, one after the other."""
        blocks = -(-self.knobs.depth // self.knobs.depth_block)
        if blocks == 1:
            return self._rows(strip, Depth(Index.of(0), Index.of(self.knobs.depth), Index.of(0)))
        with self.k.range(blocks) as number:
            start = number * self.knobs.depth_block
            length = least(Index.of(self.knobs.depth) - start, self.knobs.depth_block)
            self._rows(strip, Depth(start, length, number))
        return None

    def _rows(self, strip: Strip, depth: Depth) -> None:
        """Compute this workgroup's rows: blocks of full tiles, then what is left of the matrix."""
        k, height = self.k, self.knobs.height
        tiles = self.a.shape[0] // height
        first, end = share(k, 0, self.knobs.workgroups[0], tiles)
        step = max(1, self.knobs.row_block // height)
        if tiles.number != 0:
            with (
                k.range(first, end, step) as i,
                k.range(strip.first, strip.end) as panel,
                k.range(i, least(i + step, end)) as tile,
            ):
                self._tile(strip, panel, depth, tile * height, height, tile - i)
        below = bottom(self.a.shape[0], height)
        if not below:
            return
        mine = k.workgroup(0).equals(self.knobs.workgroups[0] - 1)
        with k.when(mine), k.range(strip.first, strip.end) as panel:
            for start, rows, needed in below:
                with nullcontext() if needed is None else k.when(needed):
                    self._tile(strip, panel, depth, start, rows)

    def _tile(
        self,
        strip: Strip,
        panel: Index,
        depth: Depth,
        row: Index,
        height: int,
        turn: Index | None = None,
    ) -> None:
        """Compute one register tile over one block of the depth; `turn` counts for the prefetch."""
        k, knobs = self.k, self.knobs
        places = self._places(strip, panel)
        offset = self._offset(strip, panel, depth)

        def left(r: int, at: Index) -> Scalar:
            return self.a.number(row + r, depth.start + at)

        def right(v: int, at: Index) -> Vector:
            return self.b.load(offset + at * strip.width + v * k.lanes)

        ahead = None
        if turn is not None and not strip.last:
            part = turn * (knobs.depth_block // knobs.unroll * LINE)
            ahead = partial(self._next_panel, offset + knobs.depth * strip.width + part)
        elif knobs.far and knobs.rows == height:
            ahead = partial(self._stream_on, offset, strip.width)
        spots = [(row + r, at) for r in range(height) for at in places]
        parts = partial_sums(knobs.rows, knobs.height, len(places), knobs.unroll)
        tile = ProductTile(k, height, len(places), knobs.unroll, left, right, ahead, parts)
        sums = self._accumulated(tile, strip, panel, depth, spots)
        self._finish(depth, spots, sums, len(places))

    def _offset(self, strip: Strip, panel: Index, depth: Depth) -> Index:
        """Return where the tile's numbers of B begin."""
        return panel * (self.knobs.depth * strip.width) + strip.base + depth.start * strip.width

    def _accumulated(
        self, tile: ProductTile, strip: Strip, panel: Index, depth: Depth, spots: Spots
    ) -> list[Vector]:
        """Return the tile's sums, row by row, with those of the blocks before."""
        return tile.accumulate(depth.length, self._start(depth, spots))

    def _next_panel(self, start: Index, at: Index) -> None:
        """Ask for a tile's part of the next panel, one line for each turn of the loop."""
        self.b.prefetch(start + at * (LINE // self.knobs.unroll), level=2)

    def _stream_on(self, offset: Index, width: int, at: Index) -> None:
        """Ask for what comes a page later, where B is read only once: too far for the core itself.

        Level 1 leaves the caches nearest to the core to the rest. Measured on products of one row
        (Zen 4): 7 % less time where B is larger than the last cache, 14 % more where it is small.
        Half of that cache is where other weights of a program may have pushed B out.
        """
        start = offset + at * width + _PAGE
        for line in range(0, width * self.knobs.unroll, LINE):
            self.b.prefetch(start + line, level=1)

    def _places(self, strip: Strip, panel: Index) -> list[Lanes]:
        """Return the places of the tile's vectors in a row of C: in the last panel masked."""
        knobs, lanes = self.knobs, self.k.lanes
        if not strip.last:
            return [Lanes(panel * knobs.panel + v) for v in range(0, knobs.panel, lanes)]
        left = range(knobs.panels.edge, knobs.columns, lanes)
        return [self.k.tail(Index.of(v), Index.of(knobs.columns)) for v in left]

    def _start(self, depth: Depth, spots: Spots) -> list[Vector]:
        """Return zeros in the first block of the depth, C's contents in the others."""
        zeros = [self.k.vector(0.0)] * len(spots)
        if depth.number.number == 0:
            return zeros
        first = depth.number.equals(0)
        return self.k.either(
            first, zeros, lambda: zeros, lambda: [self.c.load(i, at) for i, at in spots]
        )

    def _finish(self, depth: Depth, spots: Spots, sums: list[Vector], width: int) -> None:
        """Store rows of `width`; in the last block of the depth what the epilogue makes of them."""

        def plain() -> list[Any]:
            for (i, at), value in zip(spots, sums, strict=True):
                self.c.store(value, i, at)
            return []

        def finished() -> list[Any]:
            kept = self.sums[0] if self.sums else None
            store_tile(self.k, self.epilogue, self.c, spots, sums, width, kept)
            return []

        blocks = -(-self.knobs.depth // self.knobs.depth_block)
        if blocks == 1:
            finished()
        else:
            self.k.either(depth.number.equals(blocks - 1), [], finished, plain)


_NARROW = 5


def refusal(knobs: Any, target: Target) -> str:
    """Refuse a tile whose sums, row of B and number of A do not fit the registers."""
    if reason := refuse_narrow(target):
        return reason
    return refuse_tile("gemm", knobs.height, knobs.panel, target)


def cost(knobs: Gemm, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count each matrix once across memory; the packed weights are constants."""
    rows = knobs.rows if isinstance(knobs.rows, int) else sizes[knobs.rows]
    outs = rows * knobs.columns
    flops = outs * (2.0 * knobs.depth + knobs.epilogue.flops)
    read = knobs.epilogue.read_bytes(rows, knobs.columns)
    traffic = 4 * (rows * knobs.depth + knobs.panels.size + outs) + read
    constants = Cost(constant_bytes=4 * knobs.panels.size)
    return CostModel(target).kernel("gemm", flops, traffic) + constants


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a product with constant weights, and as much of what follows as the epilogue can do."""
    node = work.nodes[0]
    if not is_packed(work) or not is_f32(work, node.operands):
        return []
    a, b = (work.type(v) for v in node.operands)
    rows, depth, columns = sizes(a.shape[:-1]), b.shape[-2], b.shape[-1]
    if not depth or not columns or a.shape[-1] != depth or rows == 0:
        return []
    covers, found = longest(work, 1, MatrixView(node.type.shape, node.type.rank - 1))
    knobs = Gemm.on(target, rows or "m", columns, depth, epilogue=found.program)
    if refusal(knobs, target):
        return []
    first, second = node.operands
    weights = Feed(second, (b.rank - 1,))
    feeds = (Feed.matrix(work, first), weights, *found.feeds)
    return [KernelOffer(knobs, covers, feeds, cost(knobs, target, {"m": nominal(a.shape[:-1])}))]


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


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Register tiles, what caches hold of the product, and shares of workgroups."""
    knobs: Gemm = offer.knobs
    rows = knobs.rows if isinstance(knobs.rows, int) else None
    whole = -(-knobs.depth // max(UNROLLS)) * max(UNROLLS)
    return knob_space(
        knobs,
        {
            "height": [h for h in HEIGHTS if rows is None or h <= rows],
            "panel": PANELS,
            "unroll": UNROLLS,
            "depth_block": [*(b for b in _BLOCKS if b < knobs.depth), whole],
            "row_block": [b for b in _BLOCKS if rows is None or b < rows],
            "strip": [s for s in _BLOCKS if s < knobs.columns],
            "workgroups": cuts(target, known(knobs.rows), knobs.panels.full),
            "far": (False, True) if rows is not None and rows <= max(HEIGHTS) else (),
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("gemm", Gemm, refusal, cost, match, space)
