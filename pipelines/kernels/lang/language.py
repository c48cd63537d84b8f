"""The parts of the kernel language that emit code: memory, loops, tails.

A kernel is a Python function of a `Build` and one `Memory` for each operand. Running it once
builds the kernel's code at the current insertion point, by MLIR's typed builders (scf, vector,
memref); `carrier.py` provides that point. Loops are context managers (``with k.range(n) as i``)
or decorated functions where values are carried from one turn to the next (``@k.loop``).

A row of `n` numbers is walked by `k.each` and `k.fold` in vectors: blocks of several vectors
first, single ones then, and a tail under a mask. The function that they decorate gets `Lanes`,
that is a position and maybe a mask; loads and stores at `Lanes` heed the mask, so that a kernel
says nothing about tails. Vector width comes from the target.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.kernels.lang.values import (
    Condition,
    Index,
    IndexLike,
    Ints,
    Mask,
    Scalar,
    Vector,
    across_lanes,
    arith,
    f32_vector,
    int_vector,
    llvm,
    narrowed,
    tree,
    vector,
    where,
    widened,
)
from pyc_mlir.pipelines.streams.ir import dialect, ir
from pyc_mlir.pipelines.target.target import Target

memref = dialect("memref")
scf = dialect("scf")
stream = dialect("stream")
# The element types of memory, as MLIR makes them. Vectors are of f32; i64 holds indices, i8 bytes
# with or without a sign. Numbers of f16 and bf16 are converted where they are loaded and stored.
HALVES = ("f16", "bf16")
BYTES = ("i8", "ui8")
ELEMENTS: Mapping[str, Callable[[], Any]] = {
    "f32": lambda: ir.F32Type.get(),
    "f16": lambda: ir.F16Type.get(),
    "bf16": lambda: ir.BF16Type.get(),
    "i8": lambda: ir.IntegerType.get_signless(8),
    "ui8": lambda: ir.IntegerType.get_signless(8),
    "i16": lambda: ir.IntegerType.get_signless(16),
    "i32": lambda: ir.IntegerType.get_signless(32),
    "i64": lambda: ir.IntegerType.get_signless(64),
}
# Bytes of a number in memory.
SIZES = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1, "ui8": 1, "i16": 2, "i32": 4, "i64": 8}
LINE = 16  # f32 in a cache line
# Vectors of AVX2 and AVX-512: kernels for others do without what x86 alone has.
_X86_LANES = (8, 16)


@dataclass(frozen=True)
class Lanes:
    """One vector's place in the last dimension: where it starts, and which lanes exist."""

    start: Index
    mask: Mask | None = None

    def moved(self, by: IndexLike) -> "Lanes":
        """Return the same lanes of a place further on."""
        return Lanes(self.start + by, self.mask)


Place = Lanes | Index | int


class Memory:
    """One operand of a kernel: row-major, of a shape known or not; f32 but for `put_index`.

    Memory of f16 or bf16 (`dtype`), held as 16-bit integers, gives and takes f32 too: exactly
    where it is read, rounded once where it is written. That of bytes gives f32.
    """

    __slots__ = ("_lanes", "_value", "dtype", "shape")

    def __init__(self, value: Any, shape: Sequence[Index], lanes: int, dtype: str = "f32") -> None:
        self._value = value
        self._lanes = lanes
        self.dtype = dtype
        self.shape = tuple(shape)

    def load(self, *place: Place) -> Vector:
        """Load the vector at a place, 0 in lanes that the mask excludes (they are not read)."""
        if self.dtype in HALVES:
            return widened(self.ints(*place, bits=16).value, self.dtype)
        if self.dtype in BYTES:
            return self.ints(*place, bits=8).wide(self.dtype == "i8").to_float()
        mask, at = self._find(place)
        kind = f32_vector(self._lanes)
        if mask is None:
            return Vector(vector.load(kind, self._value, at))
        zero = Vector.of(0.0, self._lanes)
        return Vector(vector.maskedload(kind, self._value, at, mask.value, zero.value))

    def store(self, value: Vector, *place: Place, streaming: bool = False) -> None:
        """Write a vector; lanes that the mask excludes keep what the memory holds.

        `streaming` goes past the caches on x86 (elsewhere it is an ordinary store): the place must
        be a multiple of the vector's size from the start of memory that `is_aligned`, and
        `Build.fence` must follow before the kernel ends. See `Build.streaming`.
        """
        mask, at = self._find(place)
        half = self.dtype in HALVES
        held = narrowed(value, self.dtype) if half else value.value
        if streaming and self._lanes in _X86_LANES:
            assert mask is None, "streaming stores write whole vectors"
            size = (2 if half else 4) * self._lanes
            vector.store(held, self._value, at, nontemporal=True, alignment=size)
        elif mask is None:
            vector.store(held, self._value, at)
        else:
            vector.maskedstore(self._value, at, mask.value, held)

    def is_aligned(self) -> Condition:
        """Return whether the memory starts at a multiple of a vector's size.

        IREE places results into larger ones, at any number.
        """
        start = self.address(*[0] * len(self.shape))
        return (start % (4 * self._lanes)).equals(0)

    def address(self, *place: IndexLike) -> Index:
        """Return the address of the number at a place, in bytes."""
        offset = Index.of(0)
        for at, size in zip(place, self.shape, strict=True):
            offset = offset * size + at
        start = Index(memref.extract_aligned_pointer_as_index(self._value))
        return start + offset * SIZES[self.dtype]

    def load_as(self, kind: Any, *place: Place) -> Any:
        """Load the MLIR vector of a type at a place, 0 in lanes that the mask excludes."""
        mask, at = self._find(place)
        if mask is None:
            return vector.load(kind, self._value, at)
        held = ir.VectorType(kind)
        zero = Ints.of(0, held.shape[0], held.element_type.width)
        return vector.maskedload(kind, self._value, at, mask.value, zero.value)

    def ints(self, *place: Place, lanes: int = 0, bits: int = 32) -> Ints:
        """Load integers at a place: as many as f32 are a vector, unless `lanes` says otherwise."""
        return Ints(self.load_as(int_vector(lanes or self._lanes, bits), *place))

    def one(self, *place: Place) -> Ints:
        """Load one integer of 32 bits, into each lane."""
        held = vector.extract(self.ints(*place, lanes=1).value, [], [0])
        return Ints(vector.broadcast(int_vector(self._lanes), held))

    def store_as(self, value: Any, *place: Place, mask: Mask | None = None) -> None:
        """Write an MLIR vector at a place, the lanes of the mask alone where there is one."""
        _, at = self._find(place)
        if mask is None:
            vector.store(value, self._value, at)
        else:
            vector.maskedstore(self._value, at, mask.value, value)

    def number(self, *place: IndexLike) -> Scalar:
        """Load one number."""
        held = memref.load(self._value, self._find(place)[1])
        if self.dtype in HALVES:
            return widened(vector.broadcast(int_vector(1, 16), held), self.dtype).lane(0)
        if self.dtype in BYTES:
            one = Ints(vector.broadcast(int_vector(1, 8), held))
            return one.wide(self.dtype == "i8").to_float().lane(0)
        return Scalar(held)

    def put(self, value: Scalar, *place: IndexLike) -> None:
        """Write one number."""
        held = value.value
        if self.dtype in HALVES:
            held = vector.extract(narrowed(value.across(1), self.dtype), [], [0])
        memref.store(held, self._value, self._find(place)[1])

    def put_index(self, value: IndexLike, *place: IndexLike) -> None:
        """Write a count or a position; the memory is of i64."""
        wide = arith.index_cast(ELEMENTS["i64"](), Index.of(value).value)
        memref.store(wide, self._value, self._find(place)[1])

    def prefetch(self, *place: Place, level: int = 3) -> None:
        """Ask for the cache line at a place; `level` 3 is L1, 2 is L2. Any address is safe."""
        memref.prefetch(self._value, self._find(place)[1], False, level, True)

    def _find(self, place: Sequence[Place]) -> tuple[Mask | None, list[Any]]:
        assert len(place) == len(self.shape), "one position for each dimension"
        last = place[-1]
        lanes = last if isinstance(last, Lanes) else Lanes(Index.of(last))
        heads = [Index.of(p) for p in place[:-1] if not isinstance(p, Lanes)]
        return lanes.mask, [i.value for i in (*heads, lanes.start)]


class Build:
    """The builder of a kernel's function: sizes, the workgroup, loops, conditions and tails."""

    def __init__(self, target: Target, sizes: Mapping[str, Index]) -> None:
        self.target = target
        self.lanes = target.vector_bytes // 4
        self._sizes = dict(sizes)

    def size(self, dim: int | str) -> Index:
        """Return a dimension as an index: a number, or the name of a dynamic one."""
        return Index.of(dim) if isinstance(dim, int) else self._sizes[dim]

    def workgroup(self, dimension: int = 0) -> Index:
        """Return this workgroup's number in the grid."""
        return Index(stream.dispatch_workgroup_id(dimension))

    def vector(self, number: float) -> Vector:
        """Return a constant in each lane."""
        return Vector.of(number, self.lanes)

    @contextmanager
    def range(
        self, start: IndexLike, stop: IndexLike | None = None, step: IndexLike = 1
    ) -> Iterator[Index]:
        """Emit a loop: ``with k.range(n) as i`` or ``with k.range(low, high, step) as i``."""
        low, high = (Index.of(0), start) if stop is None else (Index.of(start), stop)
        op = scf.ForOp(low.value, Index.of(high).value, Index.of(step).value)
        with ir.InsertionPoint(op.body):
            yield Index(op.induction_variable)
            scf.yield_([])

    def loop(
        self, low: IndexLike, high: IndexLike, step: int = 1, carry: Sequence[Any] = ()
    ) -> Callable[[Callable[..., Sequence[Any]]], list[Any]]:
        """Decorate ``f(i, *carried) -> next``: its name then stands for the last `next`, a list.

        A loop that is known to run never or once leaves no loop.
        """
        low, high = Index.of(low), Index.of(high)

        def decorate(body: Callable[..., Sequence[Any]]) -> list[Any]:
            if (
                low.number is not None
                and high.number is not None
                and low.number + step >= high.number
            ):
                return list(body(low, *carry)) if low.number < high.number else list(carry)
            start = [c.value for c in carry]
            op = scf.ForOp(low.value, high.value, Index.of(step).value, start)
            with ir.InsertionPoint(op.body):
                inner = [type(c)(v) for c, v in zip(carry, op.inner_iter_args, strict=True)]
                scf.yield_([v.value for v in body(Index(op.induction_variable), *inner)])
            return [type(c)(v) for c, v in zip(carry, op.results, strict=True)]

        return decorate

    def streaming(self, memory: Memory, wanted: bool, work: Callable[[bool], None]) -> None:
        """Do ``work(streaming)``: past the caches where that is wanted and the memory allows it."""
        if not wanted:
            work(False)
            return

        def past() -> None:
            work(True)
            self.fence()

        self.either(memory.is_aligned(), [], past, lambda: work(False))

    def fence(self) -> None:
        """Make streaming stores seen by other threads before anything that follows."""
        if self.lanes in _X86_LANES:
            llvm.call_intrinsic(None, "llvm.x86.sse.sfence", [], [], [])

    @contextmanager
    def when(self, condition: Condition) -> Iterator[None]:
        """Emit code that runs only if the condition holds."""
        op = scf.IfOp(condition.value)
        with ir.InsertionPoint(op.then_block):
            yield
            scf.yield_([])

    def either(
        self,
        condition: Condition,
        model: Sequence[Any],
        yes: Callable[[], Any],
        no: Callable[[], Any],
    ) -> list[Any]:
        """Return the values of `yes()` where the condition holds, else those of `no()`.

        `model` are values of the kinds that both return; where there are none, both return None.
        """
        op = scf.IfOp(condition.value, [m.value.type for m in model], has_else=True)
        for block, values in ((op.then_block, yes), (op.else_block, no)):
            with ir.InsertionPoint(block):
                scf.yield_([v.value for v in values() or ()])
        return [type(m)(r) for m, r in zip(model, op.results, strict=True)]

    def tail(self, start: Index, size: Index) -> Lanes:
        """Return the vector at `start` in a row of `size` numbers, of which it may pass the end."""
        left = size - start
        if left.number is not None:
            if left.number >= self.lanes:
                return Lanes(start)
            return Lanes(start, Mask.first(left.number, self.lanes))
        return Lanes(start, Mask(vector.create_mask(int_vector(self.lanes, 1), [left.value])))

    def only_if(self, condition: Condition, at: Lanes) -> Lanes:
        """Return the lanes where the condition holds, none elsewhere."""
        mask = Mask(vector.broadcast(int_vector(self.lanes, 1), condition.value))
        return Lanes(at.start, mask if at.mask is None else mask & at.mask)

    def each(self, size: IndexLike, unroll: int = 4) -> Callable[[Callable[[Lanes], None]], None]:
        """Decorate ``f(at)``: it is done for every vector of a row of `size` numbers."""

        def decorate(work: Callable[[Lanes], None]) -> None:
            @self.blocks(size, unroll)
            def _(places: Sequence[Lanes]) -> None:
                for at in places:
                    work(at)

        return decorate

    def blocks(
        self, size: IndexLike, unroll: int = 4
    ) -> Callable[[Callable[[Sequence[Lanes]], None]], None]:
        """Decorate ``f(places)``, for work on `unroll` neighbouring vectors at once, or on one."""

        def decorate(work: Callable[[Sequence[Lanes]], None]) -> None:
            def turn(places: Sequence[Lanes]) -> list[Any]:
                work(places)
                return []

            self.walk(Index.of(size), unroll, [], lambda at, _: turn(at))

        return decorate

    def fold(
        self, size: IndexLike, combine: Callable[[Any, Any], Any], start: float, unroll: int = 4
    ) -> Callable[[Callable[[Lanes], Vector]], Scalar]:
        """Decorate ``f(at) -> Vector``: its name then stands for all numbers of it, combined.

        `unroll` partial results are kept, each of one vector, so that no addition waits for
        another; lanes that do not exist take no part.
        """

        def decorate(term: Callable[[Lanes], Vector]) -> Scalar:
            def turn(at: Sequence[Lanes], kept: Sequence[Vector]) -> list[Vector]:
                if len(at) < len(kept):
                    return [_combined(combine, kept[0], at[0], term), *kept[1:]]
                return [
                    _combined(combine, k, lanes, term) for k, lanes in zip(kept, at, strict=True)
                ]

            zero = [self.vector(start)] * unroll
            return across_lanes(
                combine, tree(combine, self.walk(Index.of(size), unroll, zero, turn))
            )

        return decorate

    def walk(self, size: Index, unroll: int, carry: list[Any], turn: Any) -> list[Any]:
        """Visit a row's vectors: blocks of `unroll` without masks, single ones, then the tail.

        ``turn(places, carried)`` gets the block's `Lanes` and returns what the next turn gets.
        """
        block = self.lanes * unroll
        blocks = size // block * block

        def many(i: Index, *kept: Any) -> Any:
            return turn([Lanes(i + u * self.lanes) for u in range(unroll)], kept)

        carry = self.loop(0, blocks, block, carry)(many)
        if size.number is None:
            # One loop for the rest, always under a mask: it is short.
            rest = self.loop(blocks, size, self.lanes, carry)
            return rest(lambda i, *kept: turn([self.tail(i, size)], kept))
        whole = size // self.lanes * self.lanes
        carry = self.loop(blocks, whole, self.lanes, carry)(lambda i, *kept: turn([Lanes(i)], kept))
        return list(turn([self.tail(whole, size)], carry)) if size.number % self.lanes else carry


def _combined(combine: Any, kept: Vector, at: Lanes, term: Callable[[Lanes], Vector]) -> Vector:
    new = combine(kept, term(at))
    return new if at.mask is None else where(at.mask, new, kept)
