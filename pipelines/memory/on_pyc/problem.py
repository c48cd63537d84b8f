"""From a function of pyc ops to a planning problem, and what may overwrite what.

Comes in: a function whose sizes are all static. Goes out: a `PycFunction`, whose problem has one
task per op (a group is one op) and one buffer per value. Arguments, constants and results lie
outside the arena and are pinned; constants are no tasks. Every op is pure, so every op whose result
does not leave the function may run again. Costs are the roofline of the ops' own counts of flops
and bytes. Nothing is edited here; `plan` carries plans out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.memory.planner.problem import Buffer, PlannedTask, PlanningProblem
from pyc_mlir.pipelines.pyc.rewriting import definition_of, values_read
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target

_CAST = "tensor.cast"
# An element of the result needs of an operand as large only the one at the same place.
_IN_PLACE = Trait.ELEMENTWISE | Trait.VIEW | Trait.REPEATS


@dataclass(frozen=True)
class PycFunction:
    """A problem and what its numbers stand for: `ops` by task, `values` by buffer."""

    function: ir.Operation
    problem: PlanningProblem
    ops: tuple[ir.Operation, ...]
    values: tuple[ir.Value, ...]

    @property
    def where(self) -> str:
        """How the function is called in messages."""
        name = ir.StringAttr(self.function.attributes["sym_name"]).value
        return f"{self.function.location}: @{name}"


def read_function(function: ir.Operation, target: Target | None = None) -> PycFunction:
    """The planning problem of `function`, with costs on `target` (the default one without).

    Raises PycError, located: PASS_FAILED for a dynamic size, UNSUPPORTED_OP for an op that is not
    of the pyc dialect and for control flow.
    """
    return _Reader(function, target or Target.named("cpu")).read()


def uses_of(op: ir.Operation) -> Iterator[tuple[ir.Operation, int]]:
    """The operands of `op` and of every op inside its regions, as (op, place)."""
    for place in range(len(op.operands)):
        yield op, place
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from uses_of(inner.operation)


class _Reader:
    """Walks one function once, numbering values as they come."""

    def __init__(self, function: ir.Operation, target: Target) -> None:
        self.function, self.target = function, target
        self.numbers: dict[ir.Value, int] = {}
        self.values: list[ir.Value] = []
        self.types: list[TensorType] = []
        self.ops: list[ir.Operation] = []
        self.tasks: list[PlannedTask] = []
        self.outside: set[int] = set()

    def read(self) -> PycFunction:
        blocks = self.function.regions[0].blocks
        if len(blocks) != 1:
            raise PycError(
                ReasonCode.UNSUPPORTED_OP,
                f"{self.function.location}: expected a function of one block to plan memory for, "
                f"got {len(blocks)}",
            )
        for value in blocks[0].arguments:
            self.outside.add(self._new(value, self.function))
        *body, end = (op.operation for op in blocks[0].operations)
        self.outside.update(self._leaving(body, end))
        for op in body:
            self._visit(op)
        problem = PlanningProblem(
            tuple(self._settled(t) for t in self.tasks), tuple(self._buffers())
        )
        problem.check()
        return PycFunction(self.function, problem, tuple(self.ops), tuple(self.values))

    def _leaving(self, body: list[ir.Operation], end: ir.Operation) -> Iterator[int]:
        """The numbers that returned values will have: each op makes one value, in order."""
        returned = set(end.operands)
        first = len(self.numbers)
        for i, op in enumerate(body):
            if any(r in returned for r in op.results):
                yield first + i

    def _visit(self, op: ir.Operation) -> None:
        if not op.name.startswith("pyc.") and op.name != _CAST:
            raise PycError(
                ReasonCode.UNSUPPORTED_OP,
                f"{op.location}: expected an op of the pyc dialect, got {op.name}; plan memory "
                "before the program is lowered",
            )
        number = self._new(op.results[0], op)
        if op.name == "pyc.constant":
            self.outside.add(number)
            return
        captured = (self.numbers.get(v) for v in values_read(op))
        reads = tuple(dict.fromkeys(number for number in captured if number is not None))
        in_place = tuple((number, b) for b in reads if self._may_overwrite(op, b))
        seconds = self._seconds(op, reads)
        name = op.name.removeprefix("pyc.")
        self.ops.append(op)
        self.tasks.append(PlannedTask(name, reads, (number,), seconds, True, in_place))

    def _new(self, value: ir.Value, op: ir.Operation) -> int:
        type_ = from_mlir(value.type, f"{op.location}: {op.name}")
        if not type_.is_static:
            raise PycError(
                ReasonCode.PASS_FAILED,
                f"{op.location}: {op.name}: expected static sizes to plan memory, got {type_}; "
                "run pyc-infer-shapes with the shapes of the arguments first",
            )
        self.types.append(type_)
        self.values.append(value)
        return self.numbers.setdefault(value, len(self.numbers))

    def _seconds(self, op: ir.Operation, reads: tuple[int, ...]) -> float:
        """The roofline of an op: a group reads what it captures and writes its result."""
        traffic = sum(self.types[b].nbytes for b in reads) + self.types[-1].nbytes
        parts = _members(op) if op.name == "pyc.group" else [op]
        flops = sum(_flops(part) for part in parts)
        if len(parts) == 1 and (definition := definition_of(op)) is not None:
            inputs = [from_mlir(v.type) for v in op.operands]
            traffic = definition.traffic(inputs, self.types[-1], **params_of(definition, op))
        return CostModel(self.target).roofline(flops, traffic).seconds

    def _may_overwrite(self, op: ir.Operation, buffer: int) -> bool:
        """Whether the result of `op` may take the bytes of `buffer`, which then dies."""
        operand, result = self.types[buffer], self.types[-1]
        if (operand.elements, operand.nbytes) != (result.elements, result.nbytes):
            return False
        value = self.values[buffer]
        if op.name == "pyc.group":
            return _pointwise_in(op, value, result.elements)
        if op.name == "pyc.update_slice":
            return [v for v in op.operands if v == value] == [op.operands[0]]
        return op.name == _CAST or _has(op, _IN_PLACE)

    def _settled(self, task: PlannedTask) -> PlannedTask:
        """What leaves the function is computed once."""
        if task.writes[0] not in self.outside:
            return task
        return PlannedTask(task.name, task.reads, task.writes, task.seconds)

    def _buffers(self) -> Iterator[Buffer]:
        for number, type_ in enumerate(self.types):
            yield Buffer(type_.nbytes, self.target.alignment, pinned=number in self.outside)


def _members(group: ir.Operation) -> list[ir.Operation]:
    return [op.operation for op in group.regions[0].blocks[0].operations][:-1]


def _flops(op: ir.Operation) -> int:
    definition = definition_of(op)
    if definition is None:
        return 0
    inputs = [from_mlir(v.type) for v in op.operands]
    return definition.flops(inputs, from_mlir(op.results[0].type), **params_of(definition, op))


def _has(op: ir.Operation, traits: Trait) -> bool:
    definition = definition_of(op)
    return definition is not None and definition.has(traits)


def _pointwise_in(group: ir.Operation, value: ir.Value, elements: int) -> bool:
    """Whether a group reads of `value` only the element that it writes.

    So it is if all that depends on `value` is elementwise and as large as the result: an anchor,
    which reads other places too, must not come behind it.
    """
    dependent: set[Any] = {value}
    for op in _members(group):
        if not any(v in dependent for v in op.operands):
            continue
        if not _has(op, Trait.ELEMENTWISE) or from_mlir(op.results[0].type).elements != elements:
            return False
        dependent.add(op.results[0])
    return True
