"""The kernel family ``batch_gemm``: C = epilogue(A B) of two run-time matrices, tile by tile.

A workgroup copies a panel of B to its stack, transposed where the depth lies last, and runs all
its register tiles over it. Small matrices are read in place, without a copy. Single products, of
batches, heads of an attention layer: `Contraction` says where rows and columns lie.

`BatchGemm` holds the knobs; `BatchGemm.on` chooses them for a target.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.gemm import is_narrow, is_packed
from pyc_mlir.pipelines.kernels.families.gemm import refusal as refuse_tile
from pyc_mlir.pipelines.kernels.families.gemv import is_streamed
from pyc_mlir.pipelines.kernels.families.products import product_cost
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, in_type
from pyc_mlir.pipelines.kernels.lang.language import HALVES, LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar, Vector, least
from pyc_mlir.pipelines.kernels.match.contraction import find
from pyc_mlir.pipelines.kernels.match.offers import KernelOffer
from pyc_mlir.pipelines.kernels.registry import Family
from pyc_mlir.pipelines.kernels.shared.contraction import (
    BatchMatrix,
    Contraction,
    Matrices,
    Operands,
)
from pyc_mlir.pipelines.kernels.shared.epilogues import overwritable
from pyc_mlir.pipelines.kernels.shared.grid import cores_for, cut_batch, known, share
from pyc_mlir.pipelines.kernels.shared.square import transposed
from pyc_mlir.pipelines.kernels.shared.tile import ProductTile, bottom, local, partial_sums
from pyc_mlir.pipelines.kernels.variants import HEIGHTS, PANELS, UNROLLS, cuts, knob_space
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

STACK = 32 << 10
_HEIGHT = 6
_UNROLL = 4
_ROWS_FOR_A_COPY = 24
_DEEP = 16  # a panel's depth is a multiple of it: the lanes of any target
_DEPTH_IN_PLACE = 512
_ANY_DEPTH = 1 << 30
_BLOCKS = (32, 64, 128, 256, 512)  # of the depth, to try


@dataclass(frozen=True)
class BatchGemm:
    """The knobs of a product of `what`, with an epilogue that sees all its rows as one matrix.

    `height` and `panel` are rows and columns of the register tile; `depth_block` is what is summed
    before C is written, all of the depth where C is of a half `dtype`; `local` copies B's panels of
    that depth to the stack, as f32. `workgroups` cuts the batch, rows and columns.
    """

    what: Contraction
    epilogue: Pointwise = NOTHING
    height: int = _HEIGHT
    panel: int = 64
    depth_block: int = 128
    unroll: int = _UNROLL
    local: bool = True
    workgroups: tuple[int, int, int] = (1, 1, 1)
    dtype: str = "f32"

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        if min(self.height, self.panel, self.depth_block, self.unroll, *self.workgroups) < 1:
            raise no_kernel("batch_gemm", "a tile and workgroups of at least 1", self)
        if self.workgroups[0] > 1 and not self.what.batch:
            raise no_kernel("batch_gemm", "one share of a product without a batch", self.workgroups)
        if self.what.transposed and not self.local:
            raise no_kernel("batch_gemm", "a transposed right side to be local", self.what.right)
        deep = self.what.depth if isinstance(self.what.depth, int) else _ANY_DEPTH
        if self.dtype in HALVES and deep > self.depth_block:
            raise no_kernel("batch_gemm", f"one block of the depth for {self.dtype}", self)
        if self.depth_block % self.unroll:
            raise no_kernel("batch_gemm", "depth_block in multiples of unroll", self.depth_block)
        if self.local and 4 * self.panel * -(-self.depth_block // _DEEP) * _DEEP > STACK:
            expected = f"a local panel of at most {STACK} bytes"
            raise no_kernel("batch_gemm", expected, (self.panel, self.depth_block))

    @staticmethod
    def on(target: Target, what: Contraction, **others: Any) -> "BatchGemm":
        """Choose the knobs for a target's registers, caches and cores; `others` are fields.

        B is read in place where it is not transposed and a panel of it fits the first-level cache,
        or too few rows would share a copy.
        """
        panel = (4 if target.vector_registers >= 32 else 2) * target.vector_bytes // 4
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

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands a, b, the epilogue's, then c."""
        operands = in_type(self.what.operands(self.epilogue), self.dtype)
        once = isinstance(self.what.depth, int) and self.what.depth <= self.depth_block
        alike = overwritable(self.epilogue, self.what.matrix[0], once)
        return Kernel(name, operands, lambda size: self.workgroups, self._body, alike)

    def _body(self, k: Build, a: Memory, b: Memory, *others: Memory) -> None:
        *reads, c = others
        BatchProduct(k, self, InKernel(k, self.epilogue, tuple(reads))).build(a, b, c)


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
    """Return blocks that cut the depth into equal parts."""
    return -(-depth // (parts * _UNROLL)) * _UNROLL


def _cut(target: Target, what: Contraction, panel: int) -> tuple[int, int, int]:
    """Cut the batch first; cores that are left take columns, since rows would repeat the copies."""
    count, rows = prod(map(known, what.batch)), known(what.rows)
    columns, depth = known(what.columns), known(what.depth)
    flops, read = 2.0 * count * rows * columns * depth, 4.0 * count * depth * (rows + columns)
    cores = cores_for(target, flops, read)
    shares = cut_batch(cores, what.batch)
    left = cores // shares
    across = max(1, min(left, columns // panel))
    return shares, max(1, min(left // across, rows // _HEIGHT)), across


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
class BatchProduct:
    """One kernel under construction: loops from the outside in, then the register tile."""

    k: Build
    knobs: BatchGemm
    epilogue: InKernel
    panel: list[Memory] = field(default_factory=list)

    def build(self, a: Memory, b: Memory, c: Memory) -> None:
        """Compute this workgroup's matrices."""
        k, knobs = self.k, self.knobs
        if knobs.local:
            deep = -(-knobs.depth_block // _DEEP) * _DEEP
            self.panel.append(local(k, deep * knobs.panel))
        Operands(k, knobs.what, a, b, c).each(knobs.workgroups[0], self._matrices)

    def _matrices(self, views: Matrices) -> None:
        """Compute full panels, then the narrower last one."""
        k, knobs = self.k, self.knobs
        columns = k.size(knobs.what.columns)
        full, rest = columns // knobs.panel, columns % knobs.panel
        first, end = share(k, 2, knobs.workgroups[2], full)
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
        """Load the vector at a column, which may lie behind the last one altogether."""
        return self.k.tail(at if size.number is not None else least(at, size), size)

    def _depth(self, views: Matrices, column: Index, places: list[Lanes]) -> None:
        """Compute blocks of the depth of a panel, one after the other."""
        k, knobs = self.k, self.knobs
        depth = k.size(knobs.what.depth)
        # A depth of 0 is one block without steps: it stores zeros.
        blocks = depth.ceildiv(knobs.depth_block) + (1 - least(depth, 1))

        def block(number: Index) -> list[Any]:
            start = number * knobs.depth_block
            length = least(depth - start, knobs.depth_block)
            self._panel(views, Block(places, column, start, length, number, blocks))
            return []

        k.loop(0, blocks)(block)

    def _panel(self, views: Matrices, block: Block) -> None:
        """Compute this workgroup's rows over one panel."""
        k, knobs = self.k, self.knobs
        if knobs.local:
            (self._copy_transposed if knobs.what.transposed else self._copy)(views.b, block)
        rows = k.size(knobs.what.rows)
        tiles = rows // knobs.height
        first, end = share(k, 1, knobs.workgroups[1], tiles)
        if tiles.number != 0:
            following = self._following(block) if knobs.local else None
            with k.range(first, end) as tile:
                turn = tile - first
                ahead = partial(self._next_panel, views.b, following, turn) if following else None
                self._tile(views, block, tile * knobs.height, knobs.height, ahead)
        mine = k.workgroup(1).equals(knobs.workgroups[1] - 1)
        for row, height, needed in bottom(rows, knobs.height):
            with k.when(mine if needed is None else mine & needed):
                self._tile(views, block, row, height)

    def _following(self, block: Block) -> tuple[Index, Index]:
        """Return the start of the next block: deeper in this panel, or on top of the next one."""
        here = (block.start + self.knobs.depth_block, block.column)
        there = (Index.of(0), block.column + self.knobs.panel)
        if block.blocks.number == 1:
            return there
        last = (block.number + 1).equals(block.blocks)
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
        number = least(number, size - 1)
        if knobs.what.transposed:
            lines = max(1, knobs.depth_block // LINE)
            place = b.at(n=column + number // lines, k=start + number % lines * LINE)
        else:
            lines = max(1, knobs.panel // LINE)
            place = b.at(k=start + number // lines, n=column + number % lines * LINE)
        b.memory.prefetch(*place, level=2)

    def _copy(self, b: BatchMatrix, block: Block) -> None:
        """Copy B's rows side by side."""
        with self.k.range(block.length) as at:
            for v, place in enumerate(block.places):
                value = b.memory.load(*b.at(k=block.start + at, n=place))
                self.panel[0].store(value, self._spot(block, at, v))

    def _copy_transposed(self, b: BatchMatrix, block: Block) -> None:
        """Turn squares of registers; columns behind the last one are copies of it."""
        k, lanes = self.k, self.k.lanes
        last = k.size(self.knobs.what.columns) - 1

        def square(at: Index, v: int, place: Lanes) -> None:
            rows = [
                b.memory.load(*b.at(n=least(block.column + (v * lanes + i), last), k=place))
                for i in range(lanes)
            ]
            for i, column in enumerate(transposed(rows)):
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
        """Return the place of a panel's vector on the stack."""
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
            return a.memory.number(*a.indices(m=row + r, k=block.start + at))

        def right(v: int, at: Index) -> Vector:
            if self.knobs.local:
                return self.panel[0].load(self._spot(block, at, v))
            return b.memory.load(*b.at(k=block.start + at, n=block.places[v]))

        knobs, width = self.knobs, len(block.places)
        parts = partial_sums(knobs.what.rows, knobs.height, width, knobs.unroll)
        tile = ProductTile(self.k, height, width, knobs.unroll, left, right, ahead, parts)
        rows = [row + r for r in range(height)]
        sums = tile.accumulate(block.length, self._start(c, block, rows))
        self._finish(c, block, rows, sums)

    def _start(self, c: BatchMatrix, block: Block, rows: list[Index]) -> list[Vector]:
        """Return zeros in the first block of the depth, C's contents in the others."""
        zeros = [self.k.vector(0.0)] * (len(rows) * len(block.places))
        if block.blocks.number == 1:
            return zeros
        first, held = block.number.equals(0), [(r, p) for r in rows for p in block.places]
        return self.k.either(
            first, zeros, lambda: zeros, lambda: [c.memory.load(*c.at(m=r, n=p)) for r, p in held]
        )

    def _finish(self, c: BatchMatrix, block: Block, rows: list[Index], sums: list[Vector]) -> None:
        """Store; in the last block of the depth what the epilogue makes of the sums."""
        width = len(block.places)

        def store(last: bool) -> list[Any]:
            for number, row in enumerate(rows):
                apply = self.epilogue.row(c.row(m=row)) if last else (lambda value, at: value)
                for place, value in zip(block.places, sums[number * width :], strict=False):
                    c.memory.store(apply(value, place), *c.at(m=row, n=place))
            return []

        if block.blocks.number == 1 or not self.knobs.epilogue.steps:
            store(True)
        else:
            done = (block.number + 1).equals(block.blocks)
            self.k.either(done, [], lambda: store(True), lambda: store(False))


def refusal(knobs: BatchGemm, target: Target) -> str:
    """Refuse a register tile that does not fit, or is no whole vectors."""
    lanes = target.vector_bytes // 4
    if knobs.panel % lanes:
        return f"batch_gemm: expected a panel in vectors of {lanes}, got {knobs.panel}"
    return refuse_tile(knobs, target)


cost = partial(product_cost, "batch_gemm")


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for a product of matrices that are not known when compiling."""
    found = find(work)
    if found is None or is_packed(work) or is_narrow(found.what.columns):
        return []
    if is_streamed(found.what, found.dtype):
        return []
    try:
        knobs = BatchGemm.on(target, found.what, epilogue=found.epilogue, dtype=found.dtype)
    except PycError:  # of halves, a depth that no panel on the stack holds
        return []
    if refusal(knobs, target):
        return []
    return [KernelOffer(knobs, found.covers, found.feeds, cost(knobs, target, found.nominal))]


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Register tiles, blocks of the depth, copies or none, and shares of workgroups."""
    knobs: BatchGemm = offer.knobs
    what = knobs.what
    rows = what.rows if isinstance(what.rows, int) else None
    across = max(1, known(what.columns) // knobs.panel)
    return knob_space(
        knobs,
        {
            "height": [h for h in HEIGHTS if rows is None or h <= rows],
            "panel": PANELS,
            "depth_block": [b for b in _BLOCKS if b < known(what.depth)],
            "unroll": UNROLLS,
            "local": (False, True),
            "workgroups": cuts(target, prod(map(known, what.batch)), known(what.rows), across),
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("batch_gemm", BatchGemm, refusal, cost, match, space)
