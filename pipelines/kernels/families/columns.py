"""The kernel family ``columns``: a middle or leading dimension reduced, y[o, c] of x[o, :, c].

`x` is [outer, reduced, columns]. Rows are read as they lie in memory, `at_once` of them at a time,
combined by a tree and then with what came before: in y's own row, of which a strip stays in the
first-level cache, or in registers where a row is only a few vectors. Workgroups share out strips
of columns and outer indices, never the numbers of one sum: the order of additions is the knobs'.

Of n rows, `at_once` are added by a tree and n / at_once such sums one after the other, which is
what the bound counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import Index, Vector, least
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.reductions import REDUCTIONS, span
from pyc_mlir.pipelines.kernels.variants import UNROLLS, knob_space
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, sizes

# Vectors of a row that registers hold next to the rows that are being added.
FEW = 4
_PAGE = 4096  # bytes
_STRIPS = (256, 1024, 2048, 4096, 8192)  # to try


@dataclass(frozen=True)
class Columns:
    """The knobs of a reduction over the middle of [outer, reduced, columns].

    `operation` is one of `rows.REDUCTIONS`; known sizes are at least 1. A workgroup has `strip`
    columns of `outers` outer indices and takes `at_once` rows at a time, `unroll` vectors a turn.
    `registers` keeps the results in registers: the columns must be known and one strip. Rows are
    not prefetched: the processor follows eight of them by itself.
    """

    operation: str
    outer: Dim
    reduced: Dim
    columns: Dim
    strip: int = 4096
    outers: int = 1
    at_once: int = 8
    unroll: int = 4
    registers: bool = False

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        if self.operation not in REDUCTIONS:
            raise no_kernel("column", f"an operation of {', '.join(REDUCTIONS)}", self.operation)
        known = [d for d in (self.outer, self.reduced, self.columns) if isinstance(d, int)]
        if min(*known, self.strip, self.outers, self.at_once, self.unroll) < 1:
            raise no_kernel("column", "sizes and parts of at least 1", self)
        if self.registers and (isinstance(self.columns, str) or self.columns > self.strip):
            raise no_kernel("column", "columns in one strip, to be kept in registers", self)

    @staticmethod
    def on(
        target: Target, operation: str, outer: Dim, reduced: Dim, columns: Dim, **others: Any
    ) -> "Columns":
        """Choose the knobs for a target; `others` are further fields."""
        width = columns if isinstance(columns, int) else None
        few = width is not None and 4 * width <= FEW * target.vector_bytes
        # Many short rows are one stream of memory; taken several at a time they are too many.
        narrow = not few and width is not None and 4 * width < _PAGE
        strip = target.l1_bytes // 8
        if width is not None and outer == 1:
            strip = min(strip, max(-(-width // target.cores), _PAGE // 4))
        knobs: dict[str, Any] = {"registers": few, "strip": -(-strip // LINE) * LINE}
        if few and target.vector_registers < 32:
            knobs["at_once"] = 4
        if narrow:
            knobs |= {"at_once": 1, "unroll": 8}
        return Columns(operation, outer, reduced, columns, **{**knobs, **others})

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x and y."""
        x = Operand("x", (self.outer, self.reduced, self.columns))
        y = Operand("y", (self.outer, self.columns), "out")
        return Kernel(name, (x, y), self._grid, self._body)

    def _grid(self, size: Callable[[Dim], Index]) -> tuple[Index, Index]:
        return size(self.columns).ceildiv(self.strip), size(self.outer).ceildiv(self.outers)

    def _body(self, k: Build, x: Memory, y: Memory) -> None:
        first = k.workgroup(1) * self.outers
        with k.range(first, least(first + self.outers, x.shape[0])) as o:
            panel = ColumnStrip(k, self, x, y, o)
            panel.in_registers() if self.registers else panel.in_memory()


@dataclass(frozen=True)
class ColumnStrip:
    """The strip of this workgroup at one outer index."""

    k: Build
    knobs: Columns
    x: Memory
    y: Memory
    outer: Index

    def in_registers(self) -> None:
        """Keep one result for each vector of the row, carried over all rows."""
        combine, start = REDUCTIONS[self.knobs.operation]
        width = self.x.shape[2]
        assert width.number is not None
        places = [self.k.tail(Index.of(v), width) for v in range(0, width.number, self.k.lanes)]

        def turn(row: Index, kept: Sequence[Vector], count: int) -> list[Vector]:
            rows = self._rows(row, places, count)
            return [combine(old, new) for old, new in zip(kept, rows, strict=True)]

        kept: list[Any] = [self.k.vector(start)] * len(places)
        for low, high, count in self._groups(Index.of(0)):
            kept = self.k.loop(low, high, count, kept)(
                lambda row, *kept, count=count: turn(row, kept, count)
            )
        for at, value in zip(places, kept, strict=True):
            self.y.store(self._finished(value), self.outer, at)

    def in_memory(self) -> None:
        """Accumulate the results in y, a strip of it in the first-level cache."""
        combine, start = REDUCTIONS[self.knobs.operation]
        count = self.x.shape[1].number
        begun = 0 if count is None else min(count, self.knobs.at_once)
        fresh = self.k.vector(start)
        self._each(lambda at: self._rows(Index.of(0), at, begun) if begun else [fresh for _ in at])
        for low, high, rows in self._groups(Index.of(begun)):
            with self.k.range(low, high, rows) as row:

                def more(
                    places: Sequence[Lanes], row: Index = row, rows: int = rows
                ) -> list[Vector]:
                    new = self._rows(row, places, rows)
                    return [combine(old, n) for old, n in zip(self._kept(places), new, strict=True)]

                self._each(more)
        if self.knobs.operation == "mean":
            self._each(lambda at: [self._finished(total) for total in self._kept(at)])

    def _kept(self, places: Sequence[Lanes]) -> list[Vector]:
        return [self.y.load(self.outer, at) for at in places]

    def _each(self, values: Callable[[Sequence[Lanes]], list[Vector]]) -> None:
        """Store the values of each block of vectors of the strip."""
        columns, strip = self.x.shape[2], self.knobs.strip
        one = columns.number is not None and columns.number <= strip
        first = Index.of(0) if one else self.k.workgroup() * strip
        whole = columns.number is not None and columns.number % strip == 0
        width = columns if one else Index.of(strip) if whole else least(columns - first, strip)

        @self.k.blocks(width, self.knobs.unroll)
        def _(block: Sequence[Lanes]) -> None:
            places = [Lanes(first + at.start, at.mask) for at in block]
            for at, value in zip(places, values(places), strict=True):
                self.y.store(value, self.outer, at)

    def _groups(self, begun: Index) -> list[tuple[Index, Index, int]]:
        """Yield rows from `begun` on as (low, high, rows at a time): whole groups, the rest."""
        count, step = self.x.shape[1], self.knobs.at_once
        edge = begun + (count - begun) // step * step
        if count.number is None:
            return [(begun, edge, step), (edge, count, 1)]
        assert edge.number is not None
        rest = count.number - edge.number
        groups = [(begun, edge, step)] if begun.number != edge.number else []
        return [*groups, (edge, count, rest)] if rest else groups

    def _rows(self, row: Index, places: Sequence[Lanes], count: int) -> list[Vector]:
        """`count` rows from `row` on, combined by a tree at each place, read in memory's order."""
        if count == 1:
            return [self.x.load(self.outer, row, at) for at in places]
        combine, _ = REDUCTIONS[self.knobs.operation]
        half = (count + 1) // 2
        upper = self._rows(row, places, half)
        lower = self._rows(row + half, places, count - half)
        return [combine(a, b) for a, b in zip(upper, lower, strict=True)]

    def _finished(self, total: Vector) -> Vector:
        if self.knobs.operation != "mean":
            return total
        return total / self.x.shape[1].to_float()


def refusal(knobs: Columns, target: Target) -> str:
    """Refuse results in registers that do not fit them."""
    if reason := refuse_narrow(target):
        return reason
    if knobs.registers and isinstance(knobs.columns, int):
        vectors = -(-4 * knobs.columns // target.vector_bytes)
        if vectors > FEW:
            return f"columns: expected at most {FEW} vectors in registers, got {vectors}"
    return ""


def cost(knobs: Columns, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count one read of each number; the results stay in cache until they are complete."""
    dims = (knobs.outer, knobs.reduced, knobs.columns)
    outer, reduced, columns = (d if isinstance(d, int) else sizes[d] for d in dims)
    flops, traffic = outer * reduced * columns, 4 * outer * (reduced + 1) * columns
    return CostModel(target).kernel("columns", flops, traffic)


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for the first op of a group, a reduction of leading or middle dimensions."""
    found = span(work, work.nodes[0])
    if found is None:
        return []
    value = work.nodes[0].operands[0]
    shape = work.type(value).shape
    groups = (shape[: found.first], shape[found.first : found.last], shape[found.last :])
    outer, reduced, columns = (
        d if (d := sizes(g)) is not None else name for g, name in zip(groups, "onc", strict=True)
    )
    if columns == 1:
        return []
    knobs = Columns.on(target, found.operation, outer, reduced, columns)
    if refusal(knobs, target):
        return []
    taken = {n: NOMINAL_DIMENSION for n in "onc"}
    return [KernelOffer(knobs, 1, (Feed(value, found.cuts),), cost(knobs, target, taken))]


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary columns of a strip, rows at once, vectors of a turn, results in registers or memory."""
    knobs: Columns = offer.knobs
    columns = knobs.columns if isinstance(knobs.columns, int) else max(_STRIPS)
    return knob_space(
        knobs,
        {
            "strip": [s for s in _STRIPS if s < columns],
            "outers": () if knobs.outer == 1 else (1, 4, 16),
            "at_once": (1, 2, 4, 8, 16),
            "unroll": UNROLLS,
            "registers": (False, True),
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("columns", Columns, refusal, cost, match, space)
