"""From IREE's stream IR to planning problems: one per execution region that has memory to plan.

Read between IREE's stream passes (after ``iree-stream-async-transformation-pipeline``): dispatches
are final, every resource has a size in bytes, and values still say who reads what. Each op of a
``stream.async.execute`` becomes a task, ops within a concurrent wave too; each resource becomes a
buffer. What comes from outside or leaves the region is pinned; an op that updates its operand in
place becomes a tie. Nothing is edited here.

Values no longer say all: IREE lets several ops write into parts of one storage, each tied to the
same value, and relies on the order of the text. So a task reads, of every storage, the version
that is there when its turn comes in IREE's order, whichever of its values the op names."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from pyc_mlir.dialects.names import kernel_family
from pyc_mlir.pipelines.memory.planner.problem import Buffer, PlannedTask, PlanningProblem
from pyc_mlir.pipelines.memory.stream_alias import Bodies
from pyc_mlir.pipelines.streams.ir import (
    CONCURRENT,
    DISPATCH,
    EXECUTE,
    FRESH,
    UPDATES,
    constant_of,
    declared_flops,
    dispatched,
    find,
    function_of,
    group,
    in_group,
    ir,
    is_own_memory,
    is_resource,
    leaves,
    operations,
    resources,
    result_sizes,
    source_ids,
    symbol_of,
    ties,
)
from pyc_mlir.pipelines.streams.sizes import ByteSize, Ranges, size_of, unchanged
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target

# Seconds of one op: its symbol and the bytes that it reads and writes.
Estimate = Callable[[str, int], Cost]
# Places of an op's resource operands, and the buffer of each.
Operands = tuple[tuple[int, int], ...]
_TASKS = (DISPATCH, *UPDATES, *FRESH)
# Groups of a dispatch's operands: one value for each resource.
_OFFSETS, _LENGTHS = 3, 5


@dataclass(frozen=True)
class StreamRegion:
    """A planning problem and what its numbers stand for in the IR.

    index: which of the module's execution regions, counted in the order of the text.
    function: whose region it is; empty for an initializer's.
    execute: the region's op. ops: one a task.
    operands: per task its resource operands: which one, and the buffer that it reads.
    leaving: the same of the region's terminator.
    values: per buffer the value that its writer makes.
    waves: IREE's own plan, task numbers of each step.
    exact: every size is known.
    """

    index: int
    function: str
    problem: PlanningProblem
    execute: Any
    ops: tuple[Any, ...]
    operands: tuple[Operands, ...]
    leaving: Operands
    values: tuple[Any, ...]
    waves: tuple[tuple[int, ...], ...]
    exact: bool

    @property
    def can_change(self) -> bool:
        """True where there are two buffers or more to place."""
        return sum(not b.pinned for b in self.problem.buffers) > 1


def read_regions(
    module: Any,
    estimate: Estimate,
    bodies: Bodies,
    alignment: int = 64,
    ranges: Ranges | None = None,
    *,
    every: bool = False,
) -> list[StreamRegion]:
    """Read the regions that a plan can change: all of known ops, two buffers to place.

    With `every` also those with less to place, whose tasks are of interest alone.
    Sizes that are unknown enter the problem as a guess (as the largest where `ranges` of dimensions
    bound them) and clear `exact`. `bodies` tells which results may take over an operand's storage.
    """
    found = []
    with unchanged():
        for index, execute in enumerate(find(module, EXECUTE)):
            reader = _Reader(execute, estimate, bodies, alignment, ranges)
            if all(op.name in _TASKS or is_scalar(op) for op in leaves(reader.block)):
                region = reader.read(index)
                if every or region.can_change:
                    found.append(region)
    return found


def is_scalar(op: Any) -> bool:
    """Return whether it is arithmetic on sizes and offsets, which touches no memory."""
    values = (*op.operands, *op.results)
    return op.name.startswith(("arith.", "util.align")) and not any(map(is_resource, values))


class _Reader:
    """The walk of one region, which numbers values as they come."""

    def __init__(
        self,
        execute: Any,
        estimate: Estimate,
        bodies: Bodies,
        alignment: int,
        ranges: Ranges | None,
    ) -> None:
        self.execute = execute
        self.block = execute.regions[0].blocks[0]
        self._estimate = estimate
        self._bodies = bodies
        self._alignment = alignment
        self._ranges = ranges
        # Buffers: the storage that each is a version of, named by its first version.
        self._numbers: dict[Any, int] = {}
        self._values: list[Any] = []
        self._bytes: list[ByteSize] = []
        self._storage: list[int] = []
        self._latest: dict[int, int] = {}
        self._pinned: set[int] = set()
        self._ops: list[Any] = []
        self._operands: list[Operands] = []
        self._tasks: list[PlannedTask] = []

    def read(self, index: int) -> StreamRegion:
        captured = zip(resources(self.block.arguments), group(self.execute, 1), strict=True)
        for argument, size in captured:
            self._pinned.add(self._new(argument, size))
        outside = resources(group(self.execute, 0))
        shared = {i for i, value in enumerate(outside) if not is_own_memory(value)}
        waves = [self._step(op) for op in operations(self.block)[:-1]]
        leaving = self._reads(operations(self.block)[-1])
        self._pinned.update(self._storage[b] for _, b in leaving)
        self._tasks = _in_order_where_captures_change(self._tasks, self._storage, shared)
        problem = PlanningProblem(
            self._without_unsafe_copies(),
            tuple(map(self._buffer, range(len(self._values)))),
            max((len(w) for w in waves), default=1) or 1,
        )
        problem.check()
        return StreamRegion(
            index,
            function_of(self.execute),
            problem,
            self.execute,
            tuple(self._ops),
            tuple(self._operands),
            leaving,
            tuple(self._values),
            tuple(w for w in waves if w),
            all(size.known for size in self._bytes),
        )

    def _step(self, op: Any) -> tuple[int, ...]:
        if is_scalar(op):
            return ()
        if op.name != CONCURRENT:
            return (self._task(op),)
        body = op.regions[0].blocks[0]
        for argument, operand in zip(body.arguments, group(op, 0), strict=True):
            self._numbers[argument] = self._numbers[operand]
        *inner, end = operations(body)
        tasks = tuple(self._task(o) for o in inner if not is_scalar(o))
        for result, value in zip(op.results, resources(end.operands), strict=True):
            self._numbers[result] = self._numbers[value]
        return tasks

    def _task(self, op: Any) -> int:
        operands = self._reads(op)
        reads = tuple(dict.fromkeys(b for _, b in operands))
        before = {result: self._version(operand) for result, operand in ties(op)}
        made = zip(resources(op.results), result_sizes(op), strict=True)
        writes = tuple(self._new(r, size, before.get(r)) for r, size in made)
        tied = tuple((self._numbers[r], b) for r, b in before.items())
        # An update writes into the operand that it reads: the same bytes, moved once.
        fresh = [self._numbers[r] for r in resources(op.results) if r not in before]
        traffic = sum(self._bytes[b].nominal for b in (*reads, *fresh))
        symbol = symbol_of(op)
        cost = self._estimate(symbol, traffic)
        name = symbol.rpartition("::")[2]
        self._ops.append(op)
        self._operands.append(operands)
        in_place = self._in_place(op, [b for _, b in operands], fresh)
        self._tasks.append(
            PlannedTask(
                name,
                reads,
                writes,
                cost.seconds,
                recomputable=not tied,
                in_place=in_place,
                tied=tied,
                flops=cost.flops,
                traffic_bytes=traffic,
                # Fills and copies are shared by what needs equal ones.
                sources=source_ids(op) if op.name == DISPATCH else (),
            )
        )
        return len(self._tasks) - 1

    def _in_place(self, op: Any, read: list[int], fresh: list[int]) -> tuple[tuple[int, int], ...]:
        """Return pairs (written, read) of buffers that may be one, by the proof from the body.

        A dispatch's bindings are its operands, then the results that update none of them.
        """
        if op.name != DISPATCH or len(ir.ArrayAttr(op.attributes["entry_points"])) != 1:
            return ()
        bindings = [*read, *fresh]
        proven = self._bodies(symbol_of(op))
        fresh_written = [(w, r) for w, r in proven if w >= len(read)]
        pairs = [(bindings[w], r) for w, r in fresh_written if self._reads_all(op, r, read[r])]
        return tuple(
            (written, read[r])
            for written, r in sorted(pairs)
            if read.count(read[r]) == 1 and self._bytes[written] == self._bytes[read[r]]
        )

    def _reads_all(self, op: Any, operand: int, buffer: int) -> bool:
        offset, length = (in_group(op, g, operand) for g in (_OFFSETS, _LENGTHS))
        size = self._bytes[buffer]
        return constant_of(offset) == 0 and size.known and constant_of(length) == size.constant

    def _reads(self, op: Any) -> Operands:
        places = [i for i in range(len(op.operands)) if is_resource(op.operands[i])]
        return tuple((i, self._version(op.operands[i])) for i in places)

    def _version(self, value: Any) -> int:
        """Return the buffer that the storage of `value` holds now."""
        return self._latest[self._storage[self._numbers[value]]]

    def _new(self, value: Any, size: Any, before: int | None = None) -> int:
        """Add a buffer: the first version of a storage, or the one that follows `before`."""
        number = len(self._values)
        storage = number if before is None else self._storage[before]
        self._numbers[value] = number
        self._values.append(value)
        self._bytes.append(size_of(size, self._ranges))
        self._storage.append(storage)
        self._latest[storage] = number
        return number

    def _without_unsafe_copies(self) -> tuple[PlannedTask, ...]:
        """Forbid to run a task twice whose result leaves, or whose memory is updated later."""
        unsafe = {read for task in self._tasks for _, read in task.tied}
        unsafe.update(b for t in self._tasks for b in t.writes if self._is_pinned(b))
        return tuple(
            replace(t, recomputable=False) if unsafe & {*t.reads, *t.writes} else t
            for t in self._tasks
        )

    def _is_pinned(self, number: int) -> bool:
        return self._storage[number] in self._pinned

    def _buffer(self, number: int) -> Buffer:
        size = -(-self._bytes[number].nominal // self._alignment) * self._alignment
        return Buffer(size, self._alignment, pinned=self._is_pinned(number))


def _in_order_where_captures_change(
    tasks: list[PlannedTask], storage: list[int], shared: set[int]
) -> list[PlannedTask]:
    """Keep the order of tasks that touch `shared` memory, if a task updates such memory.

    Two captured values may be one storage, which only the ops outside of the region would tell.
    """
    if not any(storage[read] in shared for task in tasks for _, read in task.tied):
        return tasks
    ordered, last = [], ()
    for number, task in enumerate(tasks):
        if any(storage[b] in shared for b in (*task.reads, *task.writes)):
            ordered.append(replace(task, recomputable=False, after=last))
            last = (number,)
        else:
            ordered.append(task)
    return ordered


# A named linalg op multiplies and adds.
_NAMED_OPS = 2

# How affine maps are printed: a step of more than one, and a sum of two dimensions.
_STRIDED = re.compile(r"d\d+ \* (?!1\b)\d+")
_WINDOW = re.compile(r"d\d+(?: \* \d+)? \+ d\d+")


class DispatchCosts:
    """An estimate by dispatch symbol (``executable::function``) for one module and target.

    Raises PycError (INVALID_IR) for a kernel that declares its operations wrongly.
    """

    def __init__(self, module: Any, target: Target) -> None:
        self._model = CostModel(target)
        functions = dispatched(module)
        self._flops: Mapping[str, int] = {s: _flops(f) for s, f in functions.items()}
        self._kinds: Mapping[str, str] = {s: _kind(f) for s, f in functions.items()}

    def __call__(self, symbol: str, traffic_bytes: int) -> Cost:
        """Return the cost of one run; what is no dispatch only moves bytes."""
        if symbol not in self._flops:
            return self._model.copy(traffic_bytes)
        flops, family = self._flops[symbol], kernel_family(symbol.rpartition("::")[2])
        if family is not None:
            cost = self._model.kernel(family, flops, traffic_bytes)
        else:
            cost = self._model.dispatch(self._kinds[symbol], flops, traffic_bytes)
        return replace(cost, seconds=cost.seconds + self._model.dispatch_seconds)


def _kind(function: Any) -> str:
    """Return the kind of IREE's code, by the linalg op that does most: a row of the cost model."""
    found = [op for op in _linalg(function) if op.operation.regions]
    if not found:
        return "pointwise"
    main = max(found, key=lambda op: _points(op) * _per_point(op))
    maps = _text(main, "indexing_maps")
    strided = _STRIDED.search(maps) is not None
    if "strides" in main.attributes:
        strides = ir.DenseIntElementsAttr(main.attributes["strides"])
        strided = any(int(stride) > 1 for stride in strides)
    reads = len(main.operands) - 1
    if "pooling" in main.name or (_WINDOW.search(maps) and _per_point(main) < 2):
        return "pooling"
    if "conv" in main.name or _WINDOW.search(maps):
        return "convolution.strided" if strided else "convolution"
    if strided:
        return "strided"
    kinds = _text(main, "iterator_types")
    if kinds and "reduction" not in kinds:
        return "pointwise"
    return "contraction" if reads > 1 else "reduction"


def _text(op: Any, name: str) -> str:
    return str(op.attributes[name]) if name in op.attributes else ""


def _linalg(function: Any) -> list[Any]:
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name.startswith("linalg."):
            found.append(op)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return found


def _flops(function: Any) -> int:
    found = (o for o in _linalg(function) if o.operation.regions)
    return declared_flops(function) + sum(_points(op) * _per_point(op) for op in found)


def _points(op: Any) -> int:
    """Count points of the iteration space; of the largest operand if the op names no maps."""
    shapes = [_shape(v.type) for v in op.operands]
    if "indexing_maps" not in op.attributes:
        return max((prod(s) for s in shapes), default=0)
    sizes: dict[int, int] = {}
    maps = [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
    for map_, shape in zip(maps, shapes, strict=True):
        for expression, size in zip(map_.results, shape, strict=False):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    return prod(sizes.values())


def _shape(type_: Any) -> list[int]:
    if not isinstance(type_, ir.RankedTensorType):
        return []
    dynamic = ir.ShapedType.get_dynamic_size()
    return [NOMINAL_DIMENSION if d == dynamic else d for d in type_.shape]


def _per_point(op: Any) -> int:
    if op.name != "linalg.generic":
        return _NAMED_OPS
    body = operations(op.regions[0].blocks[0])
    return sum(o.name.startswith(("arith.", "math.")) for o in body)
