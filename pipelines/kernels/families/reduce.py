"""The kernel families ``columns``, ``full_reduce`` and ``argmax``: dimensions reduced, and places.

``columns`` reduces a leading or middle dimension, y[o, c] of x[o, :, c]. Rows are read as they lie
in memory, `at_once` of them at a time, combined by a tree and then with what came before: in y's
own row, of which a strip stays in the first-level cache, or in registers where a row is only a few
vectors. Workgroups share out strips of columns and outer indices, never the numbers of one sum: the
order of additions is the knobs'.

``full_reduce`` reduces long rows, up to all numbers of an array. A row is read once, in chunks that
are summed by themselves, so that a sum of n numbers sees about n / chunk + chunk / (unroll * lanes)
roundings one after the other instead of n.

``argmax`` walks a row in chunks: the largest number of a chunk is found first, and only where it
beats all before it, the chunk is searched for its place, in the first-level cache. Numpy's rules
hold: the first of equals, and the first NaN before all numbers. Places within a chunk are counted
in f32, exactly, since a chunk is short.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyc_mlir.pipelines.kernels.knobs import (
    UNROLLS,
    KernelKnobs,
    below,
    knob,
    known,
    one_of,
    parts_of,
)
from pyc_mlir.pipelines.kernels.lang import values as ops
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar, Vector
from pyc_mlir.pipelines.kernels.match import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.registry import Family
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, WorkOp, is_f32, nominal, sizes

# name -> (how two numbers combine, what they start from); a mean is a sum, divided at the end.
REDUCTIONS: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "sum": (ops.add, 0.0),
    "mean": (ops.add, 0.0),
    "max": (ops.maximum, -math.inf),
    "min": (ops.minimum, math.inf),
}


@dataclass(frozen=True)
class ReducedDims:
    """Dimensions `first` to `last` (exclusive) of an operand's shape are reduced."""

    operation: str
    first: int
    last: int

    @property
    def cuts(self) -> tuple[int, int]:
        """The cuts of a feed of [before, reduced, after]."""
        return self.first, self.last


def span(work: Work, node: WorkOp) -> ReducedDims | None:
    """Return the dimensions that a reduction of f32 runs over, where they are neighbours.

    Dimensions of size 1 do not separate others. None for another op, for a type or axes that no
    kernel takes, and where a dynamic dimension of the result stands elsewhere in the operand.
    """
    operation = node.name.removeprefix("reduce_")
    if operation not in REDUCTIONS or not is_f32(work, node.operands):
        return None
    shape = work.type(node.operands[0]).shape
    axes = {a % len(shape) for a in node.params["axes"]}
    wide = [a for a in sorted(axes) if shape[a] != 1]
    if not wide or 0 in shape:
        return None
    first, last = wide[0], wide[-1] + 1
    together = all(i in axes or shape[i] == 1 for i in range(first, last))
    kept = [i for i in range(len(shape)) if node.params["keepdims"] or i not in axes]
    moved = any(shape[i] is None and i != place for place, i in enumerate(kept))
    return ReducedDims(operation, first, last) if together and not moved else None


# Vectors of a row that registers hold next to the rows that are being added.
FEW = 4
_PAGE = 4096  # bytes
_STRIPS = (256, 1024, 2048, 4096, 8192)  # to try
_SHARE = 1 << 15  # numbers that are worth a workgroup


@dataclass(frozen=True)
class Columns(KernelKnobs, family="columns"):
    """The knobs of a reduction over the middle of [outer, reduced, columns].

    `operation` is one of `REDUCTIONS`. A workgroup has `strip`
    columns of `outers` outer indices and takes `at_once` rows at a time, `unroll` vectors a turn.
    `registers` keeps the results in registers: the columns must be known and one strip. Rows are
    not prefetched: the processor follows eight of them by itself.
    """

    operation: str = field(metadata=one_of(REDUCTIONS))
    outer: Dim
    reduced: Dim
    columns: Dim
    strip: int = knob(4096, lambda k, _: below(_STRIPS, k.columns))
    outers: int = knob(1, lambda k, _: () if k.outer == 1 else (1, 4, 16))
    at_once: int = knob(8, (1, 2, 4, 8, 16))
    unroll: int = knob(4, UNROLLS)
    registers: bool = knob(False, (False, True))

    def _misfit(self) -> str:
        wide = isinstance(self.columns, str) or self.columns > self.strip
        return "columns in one strip, to be kept in registers" if self.registers and wide else ""

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

    @property
    def flops(self) -> int:
        """One operation a number."""
        return known(self.outer) * known(self.reduced) * known(self.columns)

    def operands(self) -> tuple[Operand, ...]:
        """Return x and y."""
        x = Operand("x", (self.outer, self.reduced, self.columns))
        return x, Operand("y", (self.outer, self.columns), "out")

    def refusal(self, target: Target) -> str:
        """Refuse results in registers that do not fit them."""
        if self.registers and isinstance(self.columns, int):
            vectors = -(-4 * self.columns // target.vector_bytes)
            if vectors > FEW:
                return f"columns: expected at most {FEW} vectors in registers, got {vectors}"
        return ""

    def _cut(self) -> tuple[tuple[Dim, int], ...]:
        return (self.columns, self.strip), (self.outer, self.outers)

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        with k.range(*self._part(k, 1)) as o:
            panel = ColumnStrip(k, self, memory["x"], memory["y"], o)
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
        width = columns if one else Index.of(strip) if whole else ops.least(columns - first, strip)

        @self.k.blocks(width, self.knobs.unroll)
        def _(block: Sequence[Lanes]) -> None:
            places = [at.moved(first) for at in block]
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


def _match_columns(work: Work, target: Target) -> list[KernelOffer]:
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
    return COLUMNS.offer(knobs, target, 1, [Feed(value, found.cuts)])


COLUMNS = Family("columns", Columns, _match_columns)


@dataclass(frozen=True)
class FullReduce(KernelKnobs, family="full_reduce"):
    """The knobs: a workgroup has `rows_per_workgroup` rows.

    It reads them in chunks of `chunk` numbers, `unroll` vectors a turn; `operation` is one of
    `REDUCTIONS`.
    """

    operation: str = field(metadata=one_of(REDUCTIONS))
    rows: Dim
    numbers: Dim
    rows_per_workgroup: int = knob(1, lambda k, target: parts_of(target, k.rows))
    chunk: int = knob(16384, (1024, 4096, 16384, 65536))
    unroll: int = knob(8, (*UNROLLS, 16))

    @property
    def flops(self) -> int:
        """One operation a number."""
        return known(self.rows) * known(self.numbers)

    def operands(self) -> tuple[Operand, ...]:
        """Return x and y."""
        return Operand("x", (self.rows, self.numbers)), Operand("y", (self.rows, 1), "out")

    def _cut(self) -> tuple[tuple[Dim, int], ...]:
        return (1, 1), (self.rows, self.rows_per_workgroup)

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        x = memory["x"]
        with k.range(*self._part(k, 1)) as i:
            total = self._total(k, x, i)
            mean = self.operation == "mean"
            memory["y"].put(total / x.shape[1].to_float() if mean else total, i, 0)

    def _total(self, k: Build, x: Memory, i: Index) -> Scalar:
        combine, identity = REDUCTIONS[self.operation]

        def chunk(at: Index, width: Index, total: Scalar) -> list[Any]:
            @k.fold(width, combine, identity, self.unroll)
            def more(lanes: Lanes) -> Vector:
                return x.load(i, lanes.moved(at))

            return [combine(total, more)]

        edge = x.shape[1] // self.chunk * self.chunk
        kept = k.loop(0, edge, self.chunk, [Scalar.of(identity)])(
            lambda at, total: chunk(at, Index.of(self.chunk), total)
        )
        rest = x.shape[1] - edge
        return kept[0] if rest.number == 0 else chunk(edge, rest, kept[0])[0]


def _match_full(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for the first op of a group: all dimensions, or the last ones, are reduced.

    Rows that the family ``rows`` takes are left to it. A row is not cut into parts: one kernel
    makes the result.
    """
    node = work.nodes[0]
    found = span(work, node)
    if found is None:
        return []
    shape = work.type(node.operands[0]).shape
    last = shape[-1]
    short = found.first == len(shape) - 1 and last is not None and 4 * last <= target.l2_bytes
    if short or sizes(shape[found.last :]) != 1:
        return []
    before, reduced = shape[: found.first], shape[found.first :]
    rows, numbers = sizes(before), sizes(reduced)
    share = min(64, max(1, _SHARE // nominal(reduced)), -(-nominal(before) // target.cores))
    names = ("m" if rows is None else rows, "n" if numbers is None else numbers)
    knobs = FullReduce(found.operation, *names, rows_per_workgroup=share)
    return FULL_REDUCE.offer(knobs, target, 1, [Feed(node.operands[0], (found.first,))])


FULL_REDUCE = Family("full_reduce", FullReduce, _match_full)


@dataclass(frozen=True)
class Argmax(KernelKnobs, family="argmax"):
    """The knobs: a workgroup has `rows_per_workgroup` rows, a chunk is `chunk` numbers.

    `unroll` vectors are a turn. Up to 2^24 f32 holds every whole number.
    """

    rows: Dim
    columns: Dim
    rows_per_workgroup: int = knob(64, lambda k, target: parts_of(target, k.rows))
    chunk: int = knob(2048, (256, 512, 1024, 2048, 4096, 8192), most=1 << 24)
    unroll: int = knob(4, UNROLLS)

    @property
    def flops(self) -> int:
        """A comparison that heeds NaN takes three."""
        return 3 * known(self.rows) * known(self.columns)

    def operands(self) -> tuple[Operand, ...]:
        """Return x and y."""
        y = Operand("y", (self.rows,), "out", dtype="i64")
        return Operand("x", (self.rows, self.columns)), y

    def _cut(self) -> tuple[tuple[Dim, int], ...]:
        return ((self.rows, self.rows_per_workgroup),)

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        with k.range(*self._part(k)) as i:
            memory["y"].put_index(Search(k, self, memory["x"], i).place(), i)


@dataclass(frozen=True)
class Search:
    """The search of row `i`."""

    k: Build
    knobs: Argmax
    x: Memory
    i: Index

    def place(self) -> Index:
        """Return the place of the number that wins; 0 where all are the identity."""
        columns, chunk = self.x.shape[1], self.knobs.chunk
        edge = columns // chunk * chunk
        found = [Scalar.of(-math.inf), Index(Index.of(0).value)]
        found = self.k.loop(0, edge, chunk, found)(
            lambda start, *found: self._chunk(start, Index.of(chunk), found)
        )
        rest = columns - edge
        return (found if rest.number == 0 else self._chunk(edge, rest, found))[1]

    def _chunk(self, start: Index, width: Index, found: Sequence[Scalar | Index]) -> list:
        """Return the best number and its place once the chunk at `start` is seen."""
        best, place = found
        assert isinstance(best, Scalar) and isinstance(place, Index)

        @self.k.fold(width, ops.maximum, -math.inf, self.knobs.unroll)
        def peak(at: Lanes) -> Vector:
            return self._load(start, at)

        return self.k.either(
            peak.beats(best),
            [best, place],
            lambda: [peak, start + self._find(start, width, peak)],
            lambda: [best, place],
        )

    def _find(self, start: Index, width: Index, peak: Scalar) -> Index:
        """Return the first place of `peak` in a chunk; with a NaN in it, `peak` is NaN."""

        @self.k.fold(width, ops.smaller, math.inf, self.knobs.unroll)
        def first(at: Lanes) -> Vector:
            x = self._load(start, at)
            places = Vector.counting(self.k.lanes) + at.start.to_float()
            return ops.where(x.equals(peak) | x.is_nan(), places, math.inf)

        return first.to_index()

    def _load(self, start: Index, at: Lanes) -> Vector:
        return self.x.load(self.i, at.moved(start))


def _match_argmax(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for the first op of a group, argmax of f32 along the last dimension."""
    node = work.nodes[0]
    if node.name != "argmax" or not is_f32(work, node.operands):
        return []
    shape = work.type(node.operands[0]).shape
    axis = node.params["axis"] % len(shape)
    rows, columns = sizes(shape[:axis]), shape[axis]
    # An empty row has no largest number: IREE's code checks rows of unknown length for that.
    if 0 in shape or sizes(shape[axis + 1 :]) != 1 or columns is None:
        return []
    share = min(64, max(1, -(-nominal(shape[:axis]) // target.cores)))
    knobs = Argmax("m" if rows is None else rows, columns, rows_per_workgroup=share)
    return ARGMAX.offer(knobs, target, 1, [Feed(node.operands[0], (axis,))])


ARGMAX = Family("argmax", Argmax, _match_argmax)
