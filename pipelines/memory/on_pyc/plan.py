"""Carry out a plan on pyc IR: the order, the recomputed copies, and where each value lies.

`reorder` runs the steps of a plan in a function, with a clone for every copy; `annotate` writes
on each op what the plan says of its result. The plans were validated before.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.pipelines.choices.choices import Site
from pyc_mlir.pipelines.memory.on_pyc.problem import PycFunction, uses_of
from pyc_mlir.pipelines.memory.planner.problem import SchedulePlan, TaskStep

# On a clone: the number of the clone in its function. No two ops share one, so that CSE, which
# compares attributes, keeps every copy.
RECOMPUTED = "pyc.recomputed"
SLOT, OFFSET, LIVE = "pyc.slot", "pyc.offset", "pyc.live"
ARENA_BYTES, LOWER_BOUND = "pyc.arena_bytes", "pyc.lower_bound"

Sources = Mapping[tuple[TaskStep, int], int]


def site_of(pass_name: str, function: ir.Operation, seen: Counter[str]) -> Site:
    """Return the site of planning one function; a module's functions share `seen`."""
    ids = OpIds(function)
    repeat = seen[ids.graph_id]
    seen[ids.graph_id] += 1
    nth = f"#{repeat}" if repeat else ""
    place = str(function.location)
    return Site(pass_name, ids.graph_id + nth, place, f"by-type.{ids.graph_by_type}{nth}")


def integer(value: int) -> ir.IntegerAttr:
    """Return an i64 attribute of the current context."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def reorder(region: PycFunction, steps: Sequence[TaskStep], sources: Sources) -> list[ir.Operation]:
    """Make the function run `steps` in this order; return the op of each.

    A constant stands before the first op that reads it.
    """
    block = region.function.regions[0].blocks[0]
    *_, end = (op.operation for op in block.operations)
    fresh = _last_number(block) + 1
    made: dict[tuple[int, int], ir.Value] = {}
    ops = []
    pending = {op.results[0]: op for op in _constants(block)}
    for step in steps:
        op = region.ops[step.task]
        if step.copy:
            op = op.clone(ip=ir.InsertionPoint(end)).operation
            op.attributes[RECOMPUTED] = integer(fresh)
            fresh += 1
        _rewire(region, op, step, sources, made)
        for inner, place in uses_of(op):
            if inner.operands[place] in pending:
                pending.pop(inner.operands[place]).move_before(end)
        op.move_before(end)
        made[region.problem.tasks[step.task].writes[0], step.copy] = op.results[0]
        ops.append(op)
    return ops


def _constants(block: ir.Block) -> list[ir.Operation]:
    return [op.operation for op in block.operations if op.operation.name == "pyc.constant"]


def _last_number(block: ir.Block) -> int:
    """Return the highest number of a clone so far."""
    marks = [op.operation.attributes for op in block.operations]
    return max((ir.IntegerAttr(m[RECOMPUTED]).value for m in marks if RECOMPUTED in m), default=0)


def _rewire(
    region: PycFunction,
    op: ir.Operation,
    step: TaskStep,
    sources: Sources,
    made: Mapping[tuple[int, int], ir.Value],
) -> None:
    """Give the copies that `step` reads to `op`, which still has those of the first runs."""
    copies = {
        region.values[b]: made[b, copy]
        for b in region.problem.tasks[step.task].reads
        if (copy := sources.get((step, b), 0))
    }
    for inner, place in uses_of(op):
        if inner.operands[place] in copies:
            inner.operands[place] = copies[inner.operands[place]]


def annotate(region: PycFunction, plan: SchedulePlan, ops: Sequence[ir.Operation]) -> None:
    """Write slot, offset and live steps on each op, and the arena's size on the function.

    Slots number the offsets from 0 up; `pyc.live` is the first and the last step that needs the
    value. What lies outside the arena gets none.
    """
    lives: dict[tuple[int, int], list[int]] = {}
    for at, step in enumerate(plan.steps):
        task = region.problem.tasks[step.task]
        lives[task.writes[0], step.copy] = [at, at]
        for b in task.reads:
            if (b, copy := plan.sources.get((step, b), 0)) in lives:
                lives[b, copy][1] = at
    slots = {offset: slot for slot, offset in enumerate(sorted(set(plan.offsets.values())))}
    for step, op in zip(plan.steps, ops, strict=True):
        instance = (region.problem.tasks[step.task].writes[0], step.copy)
        if (offset := plan.offsets.get(instance)) is not None:
            mark(op, slots[offset], offset, lives[instance])
        else:
            _unmark(op)
    attributes = region.function.attributes
    attributes[ARENA_BYTES] = integer(plan.arena_bytes)
    attributes[LOWER_BOUND] = integer(plan.lower_bound)


def mark(op: ir.Operation, slot: int, offset: int, live: Sequence[int]) -> None:
    """Write where the result of `op` lies, and when."""
    op.attributes[SLOT] = integer(slot)
    op.attributes[OFFSET] = integer(offset)
    op.attributes[LIVE] = ir.DenseI64ArrayAttr.get(list(live))


def _unmark(op: ir.Operation) -> None:
    """Forget what an earlier plan said."""
    for name in (SLOT, OFFSET, LIVE):
        if name in op.attributes:
            del op.attributes[name]
