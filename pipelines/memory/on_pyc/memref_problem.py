"""From a bufferized function to a planning problem: which allocations live when.

Comes in: a function on memrefs, one block, static sizes. Goes out: an `Allocations`, whose problem
has a task per top-level op that touches an allocation, in the program's own order, which is kept.
An allocation lives from the first to the last top-level op that touches it or a view of it; what
happens inside a region counts at the op that holds the region, so that a loop is one moment.
Aliases are followed through MLIR's view-like ops, and only ops that are known to keep no pointer
may take one: whatever else touches an allocation is refused, never guessed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.pipelines.memory.planner.problem import Buffer, PlannedTask, PlanningProblem

ALLOC = "memref.alloc"
# Ops whose result is a view of operand 0.
_VIEWS = frozenset(
    f"memref.{name}"
    for name in ("subview", "expand_shape", "collapse_shape", "cast", "reinterpret_cast")
) | {"memref.transpose"}
# The views that hold every element, in the same order.
_WHOLE_VIEWS = frozenset({"memref.expand_shape", "memref.collapse_shape"})
# Ops that read and write the memory of their operands and keep no pointer to it.
_ACCESSES = frozenset(
    {"memref.load", "memref.store", "memref.copy", "memref.dim", "memref.get_global"}
)
# Ops that have run what is in their regions when they are done; others may run it later.
_BODIES = frozenset(
    f"scf.{name}"
    for name in ("for", "if", "while", "forall", "parallel", "execute_region", "index_switch")
)


@dataclass(frozen=True)
class Allocations:
    """The allocations of a function and their problem: `allocs` by buffer number."""

    function: ir.Operation
    problem: PlanningProblem
    allocs: tuple[ir.Operation, ...]


def read_allocations(function: ir.Operation, alignment: int) -> Allocations:
    """Return the problem of all allocations of `function`, those inside regions included.

    Raises PycError, located: UNSUPPORTED_OP for an op that may keep or pass on a pointer and for
    control flow, PASS_FAILED for an allocation without a static size and plain layout.
    """
    return _Reader(function, alignment).read()


def byte_size(type_: ir.MemRefType) -> int:
    """Return the bytes of a static memref; elements of fewer than 8 bits take a byte each."""
    elements = 1
    for size in type_.shape:
        elements *= size
    return elements * _element_bytes(type_.element_type)


def _element_bytes(element: ir.Type) -> int:
    if isinstance(element, ir.IndexType):
        return 8
    return -(-element.width // 8)  # type: ignore[attr-defined]


class _Reader:
    """Finds the allocations behind each value, then who touches them."""

    def __init__(self, function: ir.Operation, alignment: int) -> None:
        self.function, self.alignment = function, alignment
        self.base: dict[ir.Value, int] = {}
        self.whole: set[ir.Value] = set()
        self.allocs: list[ir.Operation] = []

    def read(self) -> Allocations:
        blocks = self.function.regions[0].blocks
        if len(blocks) != 1:
            raise self._refused(self.function, f"a function of one block, got {len(blocks)}")
        top = [op.operation for op in blocks[0].operations]
        touched = [self._touched(op) for op in top]
        last = {b: i for i, used in enumerate(touched) for b in used}
        seen: set[int] = set()
        tasks: list[PlannedTask] = []
        for i, (op, used) in enumerate(zip(top, touched, strict=True)):
            if not used:
                continue
            born = tuple(b for b in used if b not in seen)
            dying = {b for b in used if b in seen and last[b] == i}
            seen.update(born)
            reads = tuple(b for b in used if b not in born)
            in_place = tuple((w, r) for w, r in self._same_place(op) if w in born and r in dying)
            after = (len(tasks) - 1,) if tasks else ()
            tasks.append(PlannedTask(op.name, reads, born, 0.0, False, in_place, (), after))
        types = [ir.MemRefType(op.results[0].type) for op in self.allocs]
        buffers = tuple(Buffer(byte_size(t), self.alignment) for t in types)
        problem = PlanningProblem(tuple(tasks), buffers)
        problem.check()
        return Allocations(self.function, problem, tuple(self.allocs))

    def _touched(self, op: ir.Operation) -> tuple[int, ...]:
        """Return the allocations that `op` and all inside it read or write, in order."""
        return tuple(dict.fromkeys(self._visit(op)))

    def _visit(self, op: ir.Operation) -> Iterator[int]:
        if op.name == ALLOC:
            yield from self._allocate(op)
            return
        used = [self.base[v] for v in op.operands if v in self.base]
        if op.name in _VIEWS:
            self._view(op)
            return
        makes = [r for r in op.results if _is_memory(r.type)]
        if used and (makes or not _keeps_nothing(op)):
            raise self._refused(op, "an op that is known to keep no pointer to what it uses")
        yield from used
        inner = (o.operation for r in op.regions for b in r.blocks for o in b.operations)
        inside = [b for operation in inner for b in self._visit(operation)]
        if inside and not (op.name in _BODIES or op.name.startswith("linalg.")):
            raise self._refused(op, "an op that is known to run its regions at its own place")
        yield from inside

    def _allocate(self, op: ir.Operation) -> Iterator[int]:
        """Yield the number an allocation.

        One that nothing touches has no task, and takes no bytes.
        """
        type_ = ir.MemRefType(op.results[0].type)
        is_number = isinstance(type_.element_type, ir.IntegerType | ir.FloatType | ir.IndexType)
        if not type_.has_static_shape or not _is_plain(type_) or not is_number:
            raise PycError(
                ReasonCode.PASS_FAILED,
                f"{op.location}: expected allocations of numbers, static size and plain layout, "
                f"got "
                f"{type_}; run pyc-infer-shapes with the shapes of the arguments first",
            )
        self.base[op.results[0]] = len(self.allocs)
        self.whole.add(op.results[0])
        self.allocs.append(op)
        if op.parent != self.function:
            # Inside a region it lives as long as the op that holds the region runs.
            yield self.base[op.results[0]]

    def _view(self, op: ir.Operation) -> None:
        source = op.operands[0]
        if source in self.base:
            self.base[op.results[0]] = self.base[source]
            if source in self.whole and op.name in _WHOLE_VIEWS:
                self.whole.add(op.results[0])

    def _same_place(self, op: ir.Operation) -> Iterator[tuple[int, int]]:
        """Yield pairs (written, read) for which `op` reads only the element that it writes next.

        So does an elementwise linalg.generic between whole allocations, under one permutation of
        its loops. Neither may be used a second time: not under another map, and not in the body.
        """
        if op.name != "linalg.generic" or not _is_parallel(op):
            return
        maps = [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
        inputs = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[0]
        bases = [self.base.get(v) for v in op.operands]
        inside = {b for inner in _body(op) for b in self._visit(inner)}
        for w in range(inputs, len(maps)):
            written = bases[w]
            if written is None or bases.count(written) > 1 or not maps[w].is_permutation:
                continue
            for read in dict.fromkeys(bases[:inputs]):
                places = [i for i, b in enumerate(bases) if b == read]
                if read is None or {written, read} & inside or places[-1] >= inputs:
                    continue
                if all(maps[i] == maps[w] and self._is_same(op, i, w) for i in places):
                    yield written, read

    def _is_same(self, op: ir.Operation, i: int, k: int) -> bool:
        """Return whether two operands are whole allocations of one shape and element width."""
        values = op.operands[i], op.operands[k]
        first, second = (ir.MemRefType(v.type) for v in values)
        return (
            all(v in self.whole for v in values)
            and list(first.shape) == list(second.shape)
            and _element_bytes(first.element_type) == _element_bytes(second.element_type)
            and _is_plain(first)
            and _is_plain(second)
        )

    def _refused(self, op: ir.Operation, expected: str) -> PycError:
        return PycError(
            ReasonCode.UNSUPPORTED_OP,
            f"{op.location}: expected {expected}, got {op.name}; the arena takes functions of "
            "linalg and memref ops",
        )


def _body(op: ir.Operation) -> list[ir.Operation]:
    return [inner.operation for inner in op.regions[0].blocks[0].operations]


def _is_parallel(op: ir.Operation) -> bool:
    kinds = {str(a) for a in ir.ArrayAttr(op.attributes["iterator_types"])}
    return kinds <= {"#linalg.iterator_type<parallel>"}


def _is_memory(type_: ir.Type) -> bool:
    return isinstance(type_, ir.MemRefType | ir.UnrankedMemRefType)


def _is_plain(type_: ir.MemRefType) -> bool:
    """Return whether a type is row-major from the first element, in the default memory space."""
    is_identity = type_.affine_map == ir.AffineMap.get_identity(type_.rank)
    return is_identity and type_.memory_space is None


def _keeps_nothing(op: ir.Operation) -> bool:
    return op.name.startswith("linalg.") or op.name in _ACCESSES
