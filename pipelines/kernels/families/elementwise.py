"""The kernel families ``elementwise`` and ``int8_elementwise``: y = program(x, reads...).

Each number alone, in large parts. Such a kernel is as fast as memory: what counts is that it reads
and writes in order, in parts that are large and contiguous, and that results far larger than the
caches go past them.

``int8_elementwise`` is the same to or from quantized tensors: what lies between them and is no
product, as dequantization, residual additions, quantization, also by a scale that is known at run
time only. Bytes become f32 where they are loaded, exactly; the program is the group's own, in f32;
a result of bytes is rounded and cut as the group says, four vectors at once (`narrow.py`). Where
each byte of the result depends on one byte of x alone, as between an activation's quantized ends,
the kernel computes the 256 results first and looks them up.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from pyc_mlir.dialects.opdef import Trait, has
from pyc_mlir.dialects.types import DTYPES, TensorType
from pyc_mlir.pipelines.kernels.knobs import UNROLLS, KernelKnobs, knob, known, parts_of
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand, in_type
from pyc_mlir.pipelines.kernels.lang.language import HALVES, LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.narrow import BOUNDS, NARROW, Narrow, has_tables
from pyc_mlir.pipelines.kernels.lang.pointwise import InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, Vector, least
from pyc_mlir.pipelines.kernels.match import (
    Feed,
    KernelOffer,
    MatchedProgram,
    MatrixView,
    find,
    sources,
)
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import F32, Input, Work, WorkOp, float_type, nominal

# Numbers of a workgroup where the size is not known, and those that one core does alone.
_PART = 1 << 16
_ALONE = 1 << 15
_STREAMED_OF_L3 = 1
# Below so many numbers a dispatch costs more than its work: of floats, and of bytes.
_WORTH_FLOATS, _WORTH_BYTES = 1 << 15, 1 << 10
# Shorter rows leave most of a vector empty; IREE's code runs across them.
_NARROW = 8
_BYTES = tuple(BOUNDS)
_BOUNDS = {DTYPES[n]: n for n in BOUNDS}
# Operations of f32 in whose time a byte is looked up.
_LOOKING_FLOPS = 4
# Whole numbers below it are exact in f32.
_EXACT = 1 << 24


@dataclass(frozen=True)
class Elementwise(KernelKnobs, family="elementwise"):
    """The knobs of y[rows, columns] = program(x[rows, columns], reads...).

    A workgroup has `rows_part` rows of `columns_part` columns (a multiple of 16); `unroll` is how
    many vectors a block has. `streaming` writes past the caches; rows must then start at a
    multiple of 16 numbers. All memory is of `dtype`.
    """

    rows: Dim
    columns: Dim
    program: Pointwise
    rows_part: int = knob(1, lambda k, target: parts_of(target, k.rows))
    columns_part: int = knob(_PART, lambda k, target: _columns_to_try(k, target), multiple=LINE)
    unroll: int = knob(4, UNROLLS)
    streaming: bool = knob(False, (False, True))
    dtype: str = "f32"

    def _misfit(self) -> str:
        aligned = isinstance(self.columns, int) and self.columns % LINE == 0
        wrong = self.streaming and self.rows != 1 and not aligned
        return "columns in lines of 16 for streaming" if wrong else ""

    @staticmethod
    def on(
        target: Target, rows: Dim, columns: Dim, program: Pointwise, dtype: str = "f32"
    ) -> "Elementwise":
        """Choose the knobs: a part for each core where there is work for more than one."""
        rows_part, columns_part = _parts(target.cores, rows, columns)
        streaming = False
        if isinstance(rows, int) and isinstance(columns, int):
            large = (
                2 if dtype in HALVES else 4
            ) * rows * columns >= _STREAMED_OF_L3 * target.l3_bytes
            streaming = large and (rows == 1 or columns % LINE == 0)
        unroll = (2 if target.vector_registers >= 32 else 1) if program.heavy else 4
        parts = (rows_part, columns_part, unroll, streaming)
        return Elementwise(rows, columns, program, *parts, dtype)

    def operands(self) -> tuple[Operand, ...]:
        """Return x, the program's reads, y."""
        shape = (self.rows, self.columns)
        reads = self.program.operands("read", *shape)
        return in_type((Operand("x", shape), *reads, Operand("y", shape, "out")), self.dtype)

    def _in_place(self) -> tuple[tuple[str, str], ...]:
        reads = enumerate(self.program.reads)
        alike = (f"read{n}" for n, read in reads if read.is_alike(self.rows))
        return tuple(("y", name) for name in ("x", *alike))

    def _cut(self) -> tuple[tuple[Dim, int], ...]:
        return (self.columns, self.columns_part), (self.rows, self.rows_part)

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        x, y = memory["x"], memory["y"]

        def work(streaming: bool) -> None:
            start, length = self._share_of_columns(k, x.shape[1])
            held = InKernel.of(k, self.program, "read", memory)
            with k.range(*self._part(k, 1)) as i:
                apply = held.row(i)

                @k.blocks(length, self.unroll)
                def _(places: Sequence[Lanes]) -> None:
                    moved = (at.moved(start) for at in places)
                    made = ((at, apply(x.load(i, at), at)) for at in moved)
                    self._store(k, y, i, made, streaming)

        k.streaming(y, self.streaming, work)

    def _store(
        self, k: Build, y: Memory, i: Index, made: Iterator[tuple[Lanes, Vector]], streaming: bool
    ) -> None:
        """Store neighbouring vectors of row `i`, each once it is made."""
        for at, value in made:
            y.store(value, i, at, streaming=streaming and at.mask is None)

    def _share_of_columns(self, k: Build, columns: Index) -> tuple[Index, Index]:
        count, part = columns.number, self.columns_part
        if count is not None and count <= part:
            return Index.of(0), columns
        start = k.workgroup(0) * part
        whole = count is not None and count % part == 0
        return start, Index.of(part) if whole else least(columns - start, part)


def _parts(cores: int, rows: Dim, columns: Dim) -> tuple[int, int]:
    """Return a workgroup's rows and columns: few rows are cut along columns, others by rows."""
    across = columns if isinstance(columns, int) else NOMINAL_DIMENSION
    if isinstance(rows, int) and rows < cores:
        if not isinstance(columns, int):
            return 1, _PART
        share = columns if rows * columns <= _ALONE else -(-columns // cores)
        return 1, -(-share // LINE) * LINE
    whole = -(-across // LINE) * LINE if isinstance(columns, int) else _PART
    if not isinstance(rows, int):
        return max(1, _PART // across), whole
    return rows if rows * across <= _ALONE else -(-rows // cores), whole


def _columns_to_try(knobs: Elementwise, target: Target) -> set[int]:
    width = knobs.columns if isinstance(knobs.columns, int) else _PART
    return {-(-part // LINE) * LINE for part in parts_of(target, width)}


@dataclass(frozen=True)
class ByteElementwise(Elementwise, family="int8_elementwise"):
    """The knobs of the same with memory of bytes.

    `dtypes` are those of x and the reads, f32 or bytes; one of them or the `result` is of bytes,
    made by `narrow`.
    """

    columns_part: int = knob(_PART, multiple=LINE)
    streaming: bool = False
    dtypes: tuple[str, ...] = ()
    result: str = knob("f32", among=("f32", *BOUNDS))
    narrow: Narrow = NARROW

    def _misfit(self) -> str:
        if not {*self.dtypes} <= {"f32", *BOUNDS} or len(self.dtypes) != 1 + len(
            self.program.reads
        ):
            return "x and each read of f32 or bytes"
        wrong = self.result in BOUNDS and self.narrow.dtype != self.result
        return f"a conversion to {self.result}" if wrong else ""

    def operands(self) -> tuple[Operand, ...]:
        """Return x, the program's reads, y."""
        kinds = zip(super().operands(), (*self.dtypes, self.result), strict=True)
        return tuple(replace(o, dtype=dtype) for o, dtype in kinds)

    def _in_place(self) -> tuple[tuple[str, str], ...]:
        alike = {o.name for o in self.operands() if o.dtype == self.result}
        return tuple(pair for pair in super()._in_place() if pair[1] in alike)

    def is_looked_up(self, target: Target) -> bool:
        """Return whether a byte of y follows from one of x, and the target has quick tables."""
        alone = not any(read.down or read.along for read in self.program.reads)
        return alone and {self.dtypes[0], self.result} <= {*BOUNDS} and has_tables(target)

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        if not self.is_looked_up(k.target):
            return super()._body(k, memory)
        x, y = memory["x"], memory["y"]
        apply = InKernel.of(k, self.program, "read", memory).row(Index.of(0))
        nowhere = Lanes(Index.of(0))
        table = self.narrow.table(k, lambda own: apply(own, nowhere), self.dtypes[0] == "i8")
        start, length = self._share_of_columns(k, x.shape[1])
        with k.range(*self._part(k, 1)) as i:

            @k.blocks(length, min(self.unroll, 4))
            def _(places: Sequence[Lanes]) -> None:
                at = places[0].moved(start)
                own = x.ints(i, at, lanes=len(places) * k.lanes, bits=8)
                y.store_as(table(own).value, i, at.start, mask=at.mask)

        return None

    def _store(
        self, k: Build, y: Memory, i: Index, made: Iterator[tuple[Lanes, Vector]], streaming: bool
    ) -> None:
        """Store vectors once all are made: bytes of up to four at once."""
        if self.result not in BOUNDS:
            return super()._store(k, y, i, iter(list(made)), streaming)
        places, values = zip(*made, strict=True)
        first = places[0]
        return self.narrow.store(k, y, values, (i,), first.start, mask=first.mask)


def _cost(knobs: Elementwise, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count one read and write of each number; a row's last vector counts as a whole one."""
    knobs = knobs.at(sizes)
    rows, columns = known(knobs.rows), known(knobs.columns)
    traffic = sum(o.nbytes for o in knobs.operands())
    if isinstance(knobs, ByteElementwise):
        flops = (knobs.program.flops + 1) * rows * columns
        if knobs.is_looked_up(target):
            flops = _LOOKING_FLOPS * rows * columns
    else:
        lanes = target.vector_bytes // 4
        flops = knobs.program.flops * rows * -(-columns // lanes) * lanes
    return CostModel(target).kernel("elementwise", flops, traffic)


def _match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for as many of the group's first ops as are elementwise on one tensor.

    One of the inputs must have the result's shape. The matrix has as long rows as its reads allow;
    short ones are left to IREE.
    """
    if refuse_narrow(target):
        return []
    for covers in range(len(work.nodes), 0, -1):
        found = next(_programs(work, covers), None) if work.closed(covers) else None
        if found is None:
            continue
        view, matched, feeds = found
        sides = (view.rows or "m", view.columns or "n")
        knobs = Elementwise.on(target, *sides, matched.program, float_type(work, [feeds[0].value]))
        worth = covers == len(work.nodes) and _is_worth(work, knobs)
        return FAMILY.offer(knobs, target, covers, feeds, _nominal(view), worth=worth)
    return []


def _programs(
    work: Work, covers: int
) -> Iterator[tuple[MatrixView, MatchedProgram, tuple[Feed, ...]]]:
    """Yield the first ops of a group as programs: on each of its inputs, as each matrix.

    Those with short rows are left out.
    """
    shape = work.nodes[covers - 1].type.shape
    views = [] if 0 in shape else [MatrixView(shape, cut) for cut in range(max(1, len(shape)))]
    wide = [v for v in views if v.rows == 1 or (v.columns or _NARROW) >= _NARROW]
    for own, view in product(sources(work, 0, covers), wide):
        if found := find(work, 0, covers, own, view):
            yield view, found, (Feed(own, (view.cut,)), *found.feeds)


def _nominal(view: MatrixView) -> dict[str, int]:
    return {"m": nominal(view.shape[: view.cut]), "n": nominal(view.shape[view.cut :])}


def _is_worth(work: Work, knobs: Elementwise) -> bool:
    """Return whether IREE's code is slower.

    Stores past the caches or functions of ours make a difference, and IREE would not compute
    the group within what makes its inputs or reads its result.
    """
    joined = any(has(i.maker, Trait.INDEXED) for i in work.inputs)
    joined |= any(r.startswith("reduce_") or r == "slice" for r in work.readers)
    small = nominal(work.nodes[-1].type.shape) < _WORTH_FLOATS
    return not joined and not small and (knobs.streaming or knobs.program.heavy)


FAMILY = Family("elementwise", Elementwise, _match, cost=_cost)


@dataclass(frozen=True)
class InFloats:
    """A group whose bytes are taken for f32: its ops, the types of its inputs and of its result."""

    work: Work
    dtypes: Mapping[int, str]
    result: str


def in_floats(work: Work) -> InFloats | None:
    """Return a group on bytes and f32 as one on f32 alone; None where that is not the same.

    Casts of bytes to integers and f32 are left out, and so is the last one, to bytes. What is added
    to bytes as integers is added to f32: all are whole numbers below 2^24. Casts of whole
    numbers to bytes in between are the bounds of bytes.
    """
    names = {DTYPES[n]: n for n in ("f32", *_BYTES)}
    last = work.nodes[-1]
    dtypes = {v: names[i.type.dtype] for v, i in enumerate(work.inputs) if i.type.dtype in names}
    result = names.get(last.type.dtype, "")
    narrow = result in BOUNDS and last.name == "cast"
    if not result or (result in BOUNDS and not narrow):
        return None
    floats = _Floats(work)
    dtypes |= dict.fromkeys(floats.bounds.values(), "f32")
    whole = [n for n in work.nodes if not (narrow and n is last)]
    made = last.operands[0] if narrow else work.number_of(len(work.nodes) - 1)
    if not all(floats.take(work.number_of(i), n) for i, n in enumerate(whole)) or not floats.nodes:
        return None
    if floats.values.get(made) != len(floats.inputs) + len(floats.nodes) - 1:
        return None
    return InFloats(Work(tuple(floats.inputs), tuple(floats.nodes), work.readers), dtypes, result)


class _Floats:
    """A group on f32 under construction: `values` are those of the first one, by their numbers.

    `whole` are values that hold whole numbers, with the largest size; `rounded` are values of f32
    that hold whole numbers of any size. `bounds` are the inputs that hold the bounds of bytes,
    where there are casts to bytes before the last op.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.nodes: list[WorkOp] = []
        self.inputs = [replace(i, type=TensorType(i.type.shape, F32)) for i in work.inputs]
        self.bounds: dict[float, int] = {}
        if any(n.name == "cast" and n.type.dtype in _BOUNDS for n in work.nodes[:-1]):
            for bound in sorted({b for pair in BOUNDS.values() for b in pair}):
                self.bounds[bound] = len(self.inputs)
                array = partial(np.full, (), bound, np.float32)
                self.inputs.append(Input(TensorType((), F32), array))
        self.rounded: set[int] = set()
        bytes_ = [DTYPES[n] for n in _BYTES]
        given = enumerate(i.type.dtype for i in work.inputs)
        self.values = {v: v for v, d in given if d == F32 or d in bytes_}
        self.whole = {
            v: 255.0
            for v, i in enumerate(work.inputs)
            if i.type.dtype in bytes_ and not work.is_constant(v)
        }

    def take(self, number: int, node: WorkOp) -> bool:
        """Add the op that makes a value; False for one that f32 does not compute alike."""
        if not node.operands:
            return False
        x = node.operands[0]
        if node.name == "cast" and node.type.dtype in _BOUNDS:
            return self._bound(number, node, x)
        if node.name == "cast" and x in self.whole:
            if node.type.dtype == DTYPES["i32"]:
                self.whole[number] = self.whole[x]
            elif node.type.dtype != F32:
                return False
            self.values[number] = self.values[x]
            return True
        if node.type.dtype != F32 and not self._shift(number, node):
            return False
        if any(v not in self.values for v in node.operands):
            return False
        self.values[number] = self._add(node, [self.values[v] for v in node.operands])
        self._know(number, node)
        return True

    def _add(self, node: WorkOp, operands: Sequence[int]) -> int:
        type_ = TensorType(node.type.shape, F32)
        self.nodes.append(replace(node, operands=tuple(operands), type=type_))
        return len(self.inputs) + len(self.nodes) - 1

    def _know(self, number: int, node: WorkOp) -> None:
        """Note whether a result is of whole numbers."""
        if not self.bounds:
            return
        x, *others = node.operands
        inputs = [self.work.inputs[v] for v in others if self.work.is_constant(v)]
        constants = [source.array() for source in inputs if source.array is not None]
        shifted = node.name == "add" and x in self.rounded and len(constants) == len(others)
        if node.name == "round" or (shifted and all((np.rint(c) == c).all() for c in constants)):
            self.rounded.add(number)

    def _bound(self, number: int, node: WorkOp, x: int) -> bool:
        """Take a cast of whole numbers to bytes as the bounds of these; NaN is 0."""
        if x not in self.rounded:
            return False
        low, high = (self.bounds[b] for b in BOUNDS[_BOUNDS[node.type.dtype]])
        own, zero = self.values[x], self.bounds[0.0]
        if low != zero:
            own = self._kept(node, "eq", own, own, zero)
        held = self._kept(node, "gt", own, low, low)
        held = self._add(replace(node, name="minimum", params={}), [held, high])
        self.values[number], self.whole[number] = held, 255.0
        return True

    def _kept(self, node: WorkOp, predicate: str, own: int, other: int, instead: int) -> int:
        """Add the choice of a value where a comparison with another one holds."""
        params = {"predicate": predicate}
        test = self._add(replace(node, name="compare", params=params), [own, other])
        return self._add(replace(node, name="select", params={}), [test, own, instead])

    def _shift(self, number: int, node: WorkOp) -> bool:
        """Take a constant that is added to whole numbers, or taken from them, as one of f32."""
        if node.name not in ("add", "sub") or node.type.dtype != DTYPES["i32"]:
            return False
        x, other = node.operands
        if x not in self.whole or not self.work.is_constant(other):
            return False
        source = self.work.inputs[other]
        self.whole[number] = self.whole[x] + source.magnitude
        read = source.array
        if self.whole[number] >= _EXACT or read is None:
            return False
        kind = TensorType(source.type.shape, F32)
        self.inputs[other] = Input(kind, lambda: read().astype(np.float32), source.maker)
        self.values[other] = other
        return True


def _match_bytes(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for a whole group of elementwise ops that reads or makes bytes."""
    floats = None if refuse_narrow(target) else in_floats(work)
    if floats is None:
        return []
    programs = _programs(floats.work, len(floats.work.nodes))
    fits = (p for p in programs if all(f.value in floats.dtypes for f in p[2]))
    found = next(fits, None)
    if found is None:
        return []
    view, matched, feeds = found
    dtypes, result = tuple(floats.dtypes[f.value] for f in feeds), floats.result
    if not {*dtypes, result} & BOUNDS.keys():
        return []
    program, narrow = matched.program, NARROW
    if result in BOUNDS:
        program, narrow = Narrow.of(program, result)
        narrow = replace(narrow, finite=False)
    rows, columns = view.rows or "m", view.columns or "n"
    part = _parts(target.cores, rows, columns)
    knobs = ByteElementwise(
        *(rows, columns, program, *part), dtypes=dtypes, result=result, narrow=narrow
    )
    worth = nominal(view.shape) >= _WORTH_BYTES
    return INT8.offer(knobs, target, len(work.nodes), feeds, _nominal(view), worth=worth)


INT8 = Family("int8_elementwise", ByteElementwise, _match_bytes, cost=_cost)
