"""A linalg program in one arena: every allocation becomes a view at the planner's offset.

Comes in: functions of linalg on static tensors (after ``convert-pyc-to-linalg``). Goes out: the
same functions on memrefs, without an allocation: results are written to arguments, and what is
needed in between lies in one ``memref<Nxi8>``, the last argument. First MLIR's one-shot
bufferization, then the planner core that also plans IREE's programs, on the program's own order.
Run by MLIR's own execution engine, as tests do, it is a proof without IREE that the core's plans
can be carried out."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir, passmanager
from pyc_mlir.pipelines.choices.choices import Alternative
from pyc_mlir.pipelines.driver.base import PassContext, option
from pyc_mlir.pipelines.linalg.convert_to_linalg import require_no_pyc
from pyc_mlir.pipelines.memory.planner.place import step_lives
from pyc_mlir.pipelines.memory.planner.planner import plan
from pyc_mlir.pipelines.memory.planner.problem import (
    Buffer,
    PlannedTask,
    PlanningProblem,
    SchedulePlan,
)
from pyc_mlir.pipelines.memory.pyc_problem import ARENA_BYTES, LOWER_BOUND, integer, mark, site_of
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.pipelines.target.cost import Cost

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
        touched = [tuple(dict.fromkeys(self._visit(op))) for op in top]
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

    def _visit(self, op: ir.Operation) -> Iterator[int]:
        if op.name == ALLOC:
            yield from self._allocate(op)
            return
        used = [self.base[v] for v in op.operands if v in self.base]
        if op.name in _VIEWS:
            self._view(op)
            return
        kinds = (ir.MemRefType, ir.UnrankedMemRefType)
        makes = any(isinstance(r.type, kinds) for r in op.results)
        keeps = op.name not in _ACCESSES and not op.name.startswith("linalg.")
        if used and (makes or keeps):
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
        body = (inner.operation for inner in op.regions[0].blocks[0].operations)
        inside = {b for inner in body for b in self._visit(inner)}
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


def _is_parallel(op: ir.Operation) -> bool:
    kinds = {str(a) for a in ir.ArrayAttr(op.attributes["iterator_types"])}
    return kinds <= {"#linalg.iterator_type<parallel>"}


def _is_plain(type_: ir.MemRefType) -> bool:
    """Return whether a type is row-major from the first element, in the default memory space."""
    is_identity = type_.affine_map == ir.AffineMap.get_identity(type_.rank)
    return is_identity and type_.memory_space is None


# On the arguments that the pass adds: where a result goes, and the arena.
RESULT, ARENA = "bufferize.result", "pyc.arena"
BUFFERIZE = (
    "builtin.module(one-shot-bufferize{bufferize-function-boundaries=true "
    "function-boundary-type-conversion=identity-layout-map},"
    "buffer-results-to-out-params{modify-public-functions=true hoist-static-allocs=true "
    "add-result-attr=true})"
)
# What one op makes for another to write into; bufferization lets every user share it.
_DESTINATIONS = ("tensor.empty", "linalg.fill")


@dataclass(frozen=True)
class BufferizeArena:
    """Bufferize linalg functions and put every allocation into one arena, at planned offsets."""

    name: ClassVar[str] = "pyc-bufferize-arena"
    arena: Literal["argument", "alloc"] = option(
        "argument", "where the arena comes from: a last argument, or one allocation"
    )

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Bufferize and plan every function. Raises PycError, located, for what is not understood.

        The module is then half converted: it must not be used.
        """
        require_no_pyc(module)
        seen: Counter[str] = Counter()
        # Ids come from what functions compute; afterwards none of them returns anything.
        sites = [site_of(self.name, function, seen) for function in functions_of(module)]
        for function in functions_of(module):
            _require_static(function)
            _keep_arguments(function)
            _own_destinations(function)
            _own_results(function)
        passmanager.PassManager.parse(BUFFERIZE, module.context).run(module.operation)
        counts = {"allocations": 0, "allocated bytes": 0, "arena bytes": 0}
        for function, site in zip(functions_of(module), sites, strict=True):
            read = read_allocations(function, context.target.alignment)
            found = plan(read.problem)
            reason = (
                f"{len(read.allocs)} allocations of {_apart(read)} bytes in {found.arena_bytes}, "
                f"where {found.lower_bound} are live at once"
            )
            cost = Cost(workspace_bytes=found.arena_bytes)
            context.choices.choose(site, [Alternative("arena", cost, reason)])
            self._place(read, found, context.target.alignment)
            counts["allocations"] += len(read.allocs)
            counts["allocated bytes"] += _apart(read)
            counts["arena bytes"] += found.arena_bytes
        return counts

    def _place(self, read: Allocations, found: SchedulePlan, alignment: int) -> None:
        attributes = read.function.attributes
        attributes[ARENA_BYTES] = integer(found.arena_bytes)
        attributes[LOWER_BOUND] = integer(found.lower_bound)
        if not read.allocs:
            return
        block = read.function.regions[0].blocks[0]
        lives = step_lives(read.problem, found)
        slots = {offset: i for i, offset in enumerate(sorted(set(found.offsets.values())))}
        with ir.InsertionPoint.at_block_begin(block), read.function.location:
            arena = self._arena(read.function, block, found.arena_bytes, alignment)
            for number, alloc in enumerate(read.allocs):
                offset = found.offsets.get((number, 0), 0)
                view = _view(arena, offset, alloc)
                if (number, 0) in lives:
                    mark(view, slots.get(offset, 0), offset, lives[number, 0])
                alloc.results[0].replace_all_uses_with(view.results[0])
        for alloc in read.allocs:
            alloc.erase()

    def _arena(
        self, function: ir.Operation, block: ir.Block, size: int, alignment: int
    ) -> ir.Value:
        """Return the arena: a new last argument, or an allocation at the insertion point."""
        type_ = ir.MemRefType.get([size], ir.IntegerType.get_signless(8))
        if self.arena == "alloc":
            return _allocated(block, type_, alignment)
        signature = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        inputs = [*signature.inputs, type_]
        marked = ir.DictAttr.get({ARENA: ir.UnitAttr.get()})
        known = _argument_attributes(function)
        function.attributes["arg_attrs"] = ir.ArrayAttr.get([*known, marked])
        function.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(inputs, list(signature.results))
        )
        return block.add_argument(type_, function.location)


def _allocated(block: ir.Block, type_: ir.MemRefType, alignment: int) -> ir.Value:
    attributes = {
        "alignment": integer(alignment),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 0]),
    }
    made = ir.Operation.create("memref.alloc", results=[type_], attributes=attributes).result
    *_, end = (op.operation for op in block.operations)
    with ir.InsertionPoint(end):
        ir.Operation.create("memref.dealloc", operands=[made])
    return made


def _apart(read: Allocations) -> int:
    return sum(-(-b.size // b.alignment) * b.alignment for b in read.problem.buffers)


def _require_static(function: ir.Operation) -> None:
    values = [(v, function) for b in function.regions[0].blocks for v in b.arguments]
    for op in _nested(function):
        values += [(v, op) for v in op.results]
    for value, op in values:
        if isinstance(value.type, ir.RankedTensorType) and not value.type.has_static_shape:
            raise PycError(
                ReasonCode.PASS_FAILED,
                f"{op.location}: {op.name}: expected static sizes to plan memory, got "
                f"{value.type}; run pyc-infer-shapes with the shapes of the arguments before "
                "the program is lowered",
            )


def _nested(op: ir.Operation) -> Iterator[ir.Operation]:
    for region in op.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                yield inner.operation
                yield from _nested(inner.operation)


def _keep_arguments(function: ir.Operation) -> None:
    """Say that the caller's arrays must not be written: bufferization assumes that they may."""
    arguments = function.regions[0].blocks[0].arguments
    known = _argument_attributes(function)
    read_only = {"bufferization.writable": ir.BoolAttr.get(False)}
    kept = []
    for attributes, value in zip(known, arguments, strict=True):
        entries = {entry.name: entry.attr for entry in ir.DictAttr(attributes)}
        is_tensor = isinstance(value.type, ir.RankedTensorType)
        kept.append(ir.DictAttr.get(entries | read_only if is_tensor else entries))
    if kept:
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(kept)


def _argument_attributes(function: ir.Operation) -> list[ir.Attribute]:
    if "arg_attrs" in function.attributes:
        return list(ir.ArrayAttr(function.attributes["arg_attrs"]))
    return [ir.DictAttr.get({})] * len(function.regions[0].blocks[0].arguments)


def _own_destinations(function: ir.Operation) -> None:
    """Give every use a destination of its own, made right before it.

    Otherwise one fill would be kept for all that begin with zeros, and copied for each. Last ones
    first: the copies of a fill then find a tensor.empty of their own.
    """
    shared = [op for op in _nested(function) if op.name in _DESTINATIONS]
    for op in reversed(shared):
        for use in list(op.results[0].uses):
            user = use.owner.operation
            copy = op.clone(ip=ir.InsertionPoint(_at_top(user, function))).operation
            user.operands[use.operand_number] = copy.results[0]
        op.erase()


def _own_results(function: ir.Operation) -> None:
    """Copy what is returned again: each result has memory of its own.

    MLIR's hoisting of results into arguments crashes on an allocation that is returned twice.
    """
    *_, end = (op.operation for op in function.regions[0].blocks[0].operations)
    segments = {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 1, 0])}
    seen: set[ir.Value] = set()
    for place, value in enumerate(end.operands):
        if value in seen and isinstance(value.type, ir.RankedTensorType):
            with ir.InsertionPoint(end), end.location:
                copy = ir.Operation.create(
                    "bufferization.alloc_tensor", [value.type], [value], attributes=segments
                )
            end.operands[place] = copy.result
        seen.add(value)


def _at_top(op: ir.Operation, function: ir.Operation) -> ir.Operation:
    while op.parent != function:
        op = op.parent.operation
    return op


def _view(arena: ir.Value, offset: int, alloc: ir.Operation) -> ir.Operation:
    index = ir.IndexType.get()
    at = ir.Operation.create(
        "arith.constant", results=[index], attributes={"value": ir.IntegerAttr.get(index, offset)}
    )
    return ir.Operation.create(
        "memref.view", results=[alloc.results[0].type], operands=[arena, at.result]
    )
