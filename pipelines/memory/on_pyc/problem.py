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
from pyc_mlir.pipelines.memory.planner.problem import Buffer, PlannedTask, PlanningProblem
from pyc_mlir.pipelines.pyc.graph import BlockGraph
from pyc_mlir.pipelines.pyc.rewriting import definition_of
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
        """The function's place and name, for messages."""
        name = ir.StringAttr(self.function.attributes["sym_name"]).value
        return f"{self.function.location}: @{name}"


def read_function(function: ir.Operation, target: Target | None = None) -> PycFunction:
    """Return the planning problem of `function`, with costs on `target` (else the default one).

    Raises PycError, located: PASS_FAILED for a dynamic size, UNSUPPORTED_OP for an op that is not
    of the pyc dialect and for control flow.
    """
    blocks = function.regions[0].blocks
    if len(blocks) != 1:
        raise PycError(
            ReasonCode.UNSUPPORTED_OP,
            f"{function.location}: expected a function of one block to plan memory for, "
            f"got {len(blocks)}",
        )
    graph = BlockGraph(function)
    _check(function, graph)
    target = target or Target.named("cpu")
    model = CostModel(target)
    outside = {n for n in range(len(graph.values)) if graph.makers[n] is None}
    outside.update(graph.reads[-1])
    ops, tasks = [], []
    for i, op in enumerate(graph.ops[:-1]):
        made = graph.makes[i]
        if graph.name(i) == "constant":
            outside.add(made)
            continue
        reads = tuple(dict.fromkeys(graph.reads[i]))
        # What leaves the function is computed once.
        again = made not in outside
        in_place = tuple((made, n) for n in reads if again and _may_overwrite(graph, i, n))
        seconds = _seconds(graph, i, reads, model)
        name = op.name.removeprefix("pyc.")
        ops.append(op)
        tasks.append(PlannedTask(name, reads, (made,), seconds, again, in_place))
    buffers = (
        Buffer(graph.type(n).nbytes, target.alignment, pinned=n in outside)
        for n in range(len(graph.values))
    )
    problem = PlanningProblem(tuple(tasks), tuple(buffers))
    problem.check()
    return PycFunction(function, problem, tuple(ops), tuple(graph.values))


def uses_of(op: ir.Operation) -> Iterator[tuple[ir.Operation, int]]:
    """Yield the operands of `op` and of every op inside its regions, as (op, place)."""
    for place in range(len(op.operands)):
        yield op, place
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from uses_of(inner.operation)


def _check(function: ir.Operation, graph: BlockGraph) -> None:
    """Raise PycError unless every op is of the pyc dialect, or a cast, and every size is known."""
    for argument in function.regions[0].blocks[0].arguments:
        _check_static(argument, function)
    for op in graph.ops[:-1]:
        if not op.name.startswith("pyc.") and op.name != _CAST:
            raise PycError(
                ReasonCode.UNSUPPORTED_OP,
                f"{op.location}: expected an op of the pyc dialect, got {op.name}; plan memory "
                "before the program is lowered",
            )
        _check_static(op.results[0], op)


def _check_static(value: ir.Value, op: ir.Operation) -> None:
    type_ = from_mlir(value.type, f"{op.location}: {op.name}")
    if not type_.is_static:
        raise PycError(
            ReasonCode.PASS_FAILED,
            f"{op.location}: {op.name}: expected static sizes to plan memory, got {type_}; "
            "run pyc-infer-shapes with the shapes of the arguments first",
        )


def _seconds(graph: BlockGraph, i: int, reads: tuple[int, ...], model: CostModel) -> float:
    """Return the roofline of an op: a group reads what it captures and writes its result."""
    op, definition, out = graph.ops[i], graph.definitions[i], graph.type(graph.makes[i])
    traffic = sum(graph.type(n).nbytes for n in reads) + out.nbytes
    if definition is None:
        flops = sum(map(_flops, _members(op))) if len(op.regions) else 0
    else:
        inputs, params = [graph.type(n) for n in graph.operands[i]], graph.params(i)
        flops = definition.flops(inputs, out, **params)
        traffic = definition.traffic(inputs, out, **params)
    return model.roofline(flops, traffic).seconds


def _may_overwrite(graph: BlockGraph, i: int, read: int) -> bool:
    """Return whether the result of an op may take the bytes of what it reads, which then dies."""
    op, operand, result = graph.ops[i], graph.type(read), graph.type(graph.makes[i])
    if (operand.elements, operand.nbytes) != (result.elements, result.nbytes):
        return False
    if len(op.regions):
        return _pointwise_in(op, graph.values[read], result.elements)
    if graph.name(i) == "update_slice":
        return graph.operands[i][0] == read and graph.operands[i].count(read) == 1
    return op.name == _CAST or graph.has(i, _IN_PLACE)


def _members(group: ir.Operation) -> list[ir.Operation]:
    return [op.operation for op in group.regions[0].blocks[0].operations][:-1]


def _flops(op: ir.Operation) -> int:
    definition = definition_of(op)
    if definition is None:
        return 0
    inputs = [from_mlir(v.type) for v in op.operands]
    return definition.flops(inputs, from_mlir(op.results[0].type), **params_of(definition, op))


def _pointwise_in(group: ir.Operation, value: ir.Value, elements: int) -> bool:
    """Return whether a group reads of `value` only the element that it writes.

    True if all that depends on `value` is elementwise and as large as the result: an anchor,
    which reads other places too, must not come behind it.
    """
    dependent: set[Any] = {value}
    for op in _members(group):
        if not any(v in dependent for v in op.operands):
            continue
        definition = definition_of(op)
        pointwise = definition is not None and definition.has(Trait.ELEMENTWISE)
        if not pointwise or from_mlir(op.results[0].type).elements != elements:
            return False
        dependent.add(op.results[0])
    return True
