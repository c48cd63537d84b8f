"""The kernel family ``half_gemm``: C = epilogue(A B) in f16 or bf16, B a constant, sums in f32.

A and B stay halves in memory. Of many rows, a block of A and one panel of B at a time are widened
to f32 in scratch memory, where the tiles of a product of f32 run over them: each weight is widened
once for up to 240 rows. Of up to `height` rows only A is, and B is read once and widened in
registers. Sums are rounded to the type once, before the epilogue, which rounds after each of its
ops, as the model does.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.gemm import is_packed
from pyc_mlir.pipelines.kernels.families.gemm import refusal as refuse_gemm
from pyc_mlir.pipelines.kernels.families.packing import Panels
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand, in_type
from pyc_mlir.pipelines.kernels.lang.language import HALVES, LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import (
    NOTHING,
    InKernel,
    Pointwise,
)
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar, Vector
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, longest
from pyc_mlir.pipelines.kernels.registry import Family
from pyc_mlir.pipelines.kernels.shared.epilogues import overwritable, store_tile
from pyc_mlir.pipelines.kernels.shared.grid import cores_for, cut_matrix, known, share
from pyc_mlir.pipelines.kernels.shared.tile import ProductTile, bottom, local, partial_sums
from pyc_mlir.pipelines.kernels.shared.unpacked import (
    Scratch,
    UnpackedTiles,
    pitch,
    row_block,
    row_blocks,
)
from pyc_mlir.pipelines.kernels.variants import HEIGHTS, UNROLLS, cuts, knob_space
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, float_type, nominal, sizes

_HEIGHT, _UNROLL = 6, 4
_PAGE = 2048  # halves in 4 KiB


@dataclass(frozen=True)
class HalfGemm:
    """The knobs of C[rows, columns] = epilogue(A[rows, depth] B), all of them of `dtype`.

    `height` and `panel` are the rows and columns of the register tile, `block` the rows that share
    a widened panel; `workgroups` cuts rows and columns. `far`: B comes from memory and is
    prefetched a page ahead where it is read only once.
    """

    rows: Dim
    columns: int
    depth: int
    dtype: str
    epilogue: Pointwise = NOTHING
    height: int = _HEIGHT
    panel: int = 64
    block: int = 120
    unroll: int = _UNROLL
    workgroups: tuple[int, int] = (1, 1)
    far: bool = False

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        counts = (self.columns, self.depth, self.height, self.unroll, *self.workgroups)
        if self.rows == 0 or min(counts) < 1 or self.dtype not in HALVES:
            raise no_kernel("half_gemm", f"sizes of at least 1, and a type of {HALVES}", self)
        if self.panel < LINE or self.panel % LINE or self.block < 1:
            raise no_kernel("half_gemm", "panel in lines of 16, and a block of rows", self)

    @staticmethod
    def on(
        target: Target, rows: Dim, columns: int, depth: int, dtype: str, **others: Any
    ) -> "HalfGemm":
        """Choose the knobs for a target's registers, caches and cores; `others` are fields."""
        vectors = 4 if target.vector_registers >= 32 else 2
        panel = vectors * target.vector_bytes // 4
        flops, read = 2.0 * known(rows) * columns * depth, 2.0 * columns * depth
        cores = cores_for(target, flops, read)
        few = isinstance(rows, int) and rows <= _HEIGHT
        knobs = {
            "panel": panel,
            "block": row_block(target, _HEIGHT, 4 * panel * depth, 4 * pitch(depth)),
            "workgroups": cut_matrix(cores, rows, columns, (_HEIGHT, panel)),
            "far": few and 2 * read >= (target.l3_bytes or target.l2_bytes),
        }
        return HalfGemm(rows, columns, depth, dtype, **{**knobs, **others})

    @property
    def panels(self) -> Panels:
        """The layout of B."""
        return Panels(self.columns, self.depth, self.panel, self.dtype)

    @property
    def few(self) -> bool:
        """True where one tile holds all rows, so that nothing is widened in memory."""
        return isinstance(self.rows, int) and self.rows <= self.height

    @property
    def scratch(self) -> Scratch:
        """The memory of a widened panel, unless rows are few, and of a block of widened rows."""
        most = max(self.block, self.height)
        rows = min(most, self.rows) if isinstance(self.rows, int) else most
        panel = 0 if self.few else self.depth * self.panel
        return Scratch(panel, rows * pitch(self.depth), self.workgroups)

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands a, b (packed), the epilogue's, c, then scratch."""
        result = (self.rows, self.columns)
        taken = in_type(
            (
                Operand("a", (self.rows, self.depth)),
                Operand("b", (self.panels.size,), layout=self.panels),
                *self.epilogue.operands("e", *result),
                Operand("c", result, "out"),
            ),
            self.dtype,
        )
        alike = overwritable(self.epilogue, self.rows, once=True)
        return Kernel(
            name, (*taken, self.scratch.operand), lambda size: self.workgroups, self._body, alike
        )

    def _body(self, k: Build, a: Memory, b: Memory, *others: Memory) -> None:
        *reads, c, scratch = others
        kept = local(k, self.height * self.panel) if self.epilogue.heavy else None
        epilogue = InKernel(k, self.epilogue, tuple(reads))
        HalfProduct(k, self, a, b, c, epilogue, scratch, kept).build()


@dataclass(frozen=True)
class HalfPanel:
    """A panel of B: where its columns of C lie, where it begins in the packed B, its width."""

    places: list[Lanes]
    offset: Index
    width: int
    last: bool = False


@dataclass(frozen=True)
class HalfProduct:
    """One kernel under construction."""

    k: Build
    knobs: HalfGemm
    a: Memory
    b: Memory
    c: Memory
    epilogue: InKernel
    scratch: Memory
    kept: Memory | None

    def build(self) -> None:
        """Compute this workgroup's rows and columns: few rows at once, more in blocks."""
        k, knobs = self.k, self.knobs
        rows = self.a.shape[0]
        if rows.number is None:
            few = rows < knobs.height + 1
            k.either(few, [], lambda: self._few(rows), lambda: self._many())
        elif knobs.few:
            self._few(rows)
        else:
            self._many()

    def _many(self) -> list[Any]:
        """Widen a block of rows, then panel by panel B, and run the tiles over them."""
        k, knobs, held = self.k, self.knobs, self.scratch
        start, _ = knobs.scratch.own(k)

        def block(first: Index, count: Index) -> None:
            left = self._widened(first, count)

            def columns(panel: HalfPanel) -> None:
                @k.each(knobs.depth * panel.width)
                def _(at: Lanes) -> None:
                    held.store(self.b.load(panel.offset + at.start), start + at.start)

                UnpackedTiles(
                    *(k, knobs.height, knobs.unroll, knobs.depth, left),
                    *(held, start, panel.width, self.c, self.epilogue, self.kept),
                ).rows(first, count, panel.places)

            self._panels(columns)

        row_blocks(k, knobs.rows, knobs.workgroups[0], knobs.block, block)
        return []

    def _widened(self, first: Index, count: Index) -> Callable[[Index, Index], Scalar]:
        """Widen rows of A to scratch memory; the function that gives a number of such a row."""
        k, knobs, held = self.k, self.knobs, self.scratch
        start = knobs.scratch.own(k)[1]
        apart = pitch(knobs.depth)
        with k.range(count) as row:
            begin = start + row * apart

            @k.each(knobs.depth)
            def _(at: Lanes) -> None:
                held.store(self.a.load(first + row, at), Lanes(begin + at.start, at.mask))

        return lambda row, at: held.number(start + row * apart + at)

    def _few(self, rows: Index) -> list[Any]:
        """Read B once for all rows; other workgroups along the rows have nothing to do."""
        k, knobs = self.k, self.knobs
        number = self._widened(Index.of(0), rows)

        def columns(panel: HalfPanel) -> None:
            for row, height, needed in bottom(rows, knobs.height + 1):
                with nullcontext() if needed is None else k.when(needed):
                    self._narrow(panel, number, row, height)

        if knobs.workgroups[0] == 1:
            self._panels(columns)
        else:
            with k.when(k.workgroup(0).equals(0)):
                self._panels(columns)
        return []

    def _narrow(
        self,
        panel: HalfPanel,
        number: Callable[[Index, Index], Scalar],
        row: Index,
        height: int,
    ) -> None:
        """Compute a tile of all rows by a panel, which is widened in registers."""
        k, knobs, width = self.k, self.knobs, len(panel.places)

        def left(r: int, at: Index) -> Scalar:
            return number(row + r, at)

        def right(v: int, at: Index) -> Vector:
            return self.b.load(panel.offset + at * panel.width + v * k.lanes)

        def ahead(at: Index) -> None:
            start = panel.offset + at * panel.width + _PAGE
            for line in range(0, panel.width * knobs.unroll, 2 * LINE):
                self.b.prefetch(start + line, level=1)

        parts = partial_sums(height, knobs.height, width, knobs.unroll)
        wanted = ahead if knobs.far else None
        tile = ProductTile(k, height, width, knobs.unroll, left, right, wanted, parts)
        sums = tile.accumulate(Index.of(knobs.depth), [k.vector(0.0)] * (height * width))
        spots = [(row + r, at) for r in range(height) for at in panel.places]
        store_tile(k, self.epilogue, self.c, spots, sums, width, self.kept)

    def _panels(self, work: Any) -> None:
        """Do ``work(panel)`` for this workgroup's full panels, then for the narrower last one."""
        k, knobs, panels = self.k, self.knobs, self.knobs.panels
        if panels.full:
            first, end = share(k, 1, knobs.workgroups[1], Index.of(panels.full))
            with k.range(first, end) as n:
                column = n * panels.panel
                places = [Lanes(column + v) for v in range(0, panels.panel, k.lanes)]
                work(HalfPanel(places, n * (panels.depth * panels.panel), panels.panel))
        if panels.last_width:
            size = Index.of(knobs.columns)
            starts = range(panels.edge, knobs.columns, k.lanes)
            places = [k.tail(Index.of(v), size) for v in starts]
            panel = HalfPanel(
                places, Index.of(panels.edge * panels.depth), panels.last_width, last=True
            )
            with k.when(k.workgroup(1).equals(knobs.workgroups[1] - 1)):
                work(panel)


def refusal(knobs: HalfGemm, target: Target) -> str:
    """Refuse a tile whose sums, row of B and number of A do not fit the registers."""
    return refuse_gemm(knobs, target)


def cost(knobs: HalfGemm, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count each matrix once across memory, at two bytes a number."""
    rows = knobs.rows if isinstance(knobs.rows, int) else sizes[knobs.rows]
    outs = rows * knobs.columns
    flops = outs * (2.0 * knobs.depth + knobs.epilogue.flops)
    read = knobs.epilogue.read_bytes(rows, knobs.columns) // 2
    traffic = 2 * (rows * knobs.depth + knobs.panels.size + outs) + read
    made = CostModel(target).kernel("gemm", flops, traffic)
    return made + Cost(constant_bytes=2 * knobs.panels.size)


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a product of halves with constant weights, with as much of the rest as fits."""
    node = work.nodes[0]
    fits = is_packed(work) or _is_pointwise(work)
    dtype = float_type(work, node.operands) if fits else ""
    if dtype not in HALVES:
        return []
    a, b = (work.type(v) for v in node.operands)
    rows, depth, columns = sizes(a.shape[:-1]), b.shape[-2], b.shape[-1]
    if not depth or not columns or a.shape[-1] != depth or rows == 0:
        return []
    covers, found = longest(work, 1, MatrixView(node.type.shape, node.type.rank - 1))
    knobs = HalfGemm.on(target, rows or "m", columns, depth, dtype, epilogue=found.program)
    if refusal(knobs, target):
        return []
    first, second = node.operands
    feeds = (Feed.matrix(work, first), Feed(second, (b.rank - 1,)), *found.feeds)
    return [KernelOffer(knobs, covers, feeds, cost(knobs, target, {"m": nominal(a.shape[:-1])}))]


def _is_pointwise(work: Work) -> bool:
    """Return whether it is a 1x1 convolution of every position, NHWC, with constant weights."""
    node = work.nodes[0]
    if node.name != "conv2d" or node.params["layout"] != "NHWC" or node.params["groups"] != 1:
        return False
    w = work.type(node.operands[1]).shape
    plain = tuple(node.params["strides"]) == (1, 1) and not any(node.params["pads"])
    return plain and w[:2] == (1, 1) and work.is_constant(node.operands[1])


_BLOCKS = (48, 96, 192, 384)


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Register tiles, rows that share a widened panel, and shares of workgroups."""
    knobs: HalfGemm = offer.knobs
    rows = knobs.rows if isinstance(knobs.rows, int) else None
    return knob_space(
        knobs,
        {
            "height": [h for h in HEIGHTS if rows is None or h <= rows],
            "block": [b for b in _BLOCKS if rows is None or b < rows],
            "unroll": UNROLLS,
            "workgroups": cuts(target, known(knobs.rows), knobs.panels.full),
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("half_gemm", HalfGemm, refusal, cost, match, space)
