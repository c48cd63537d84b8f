"""From a function of pyc ops to a planning problem, and from a plan back to the function.

Comes in: a function whose sizes are all static. Goes out: a `PycFunction`, whose problem has one
task per op (a group is one op) and one buffer per value. Arguments, constants and results lie
outside the arena and are pinned; constants are no tasks. Every op is pure, so every op whose result
does not leave the function may run again. Costs are the roofline of the ops' own counts of flops
and bytes. `reorder` runs the steps of a plan in the function, with a clone for every copy, and
`annotate` writes on each op what the plan says of its result."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.pipelines.choices.choices import Decision, Site
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.memory.planner.place import lifetimes, of_plan, step_lives
from pyc_mlir.pipelines.memory.planner.planner import plan
from pyc_mlir.pipelines.memory.planner.problem import (
    Buffer,
    PlannedTask,
    PlanningProblem,
    SchedulePlan,
    TaskStep,
)
from pyc_mlir.pipelines.memory.selection.sites import Candidate, SiteCandidates, Sites
from pyc_mlir.pipelines.pyc.constants import (
    Constants,
    constants_of,
    forms_of_kernel,
    forms_of_model,
    size_of,
)
from pyc_mlir.pipelines.pyc.graph import BlockGraph
from pyc_mlir.pipelines.pyc.groups import Members
from pyc_mlir.pipelines.pyc.rewriting import definition_of
from pyc_mlir.pipelines.pyc.select_kernels import KernelVariants, is_stored, legal_offers
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

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
    operations = [op.operation for op in block.operations]
    end = operations[-1]
    marks = [op.attributes[RECOMPUTED] for op in operations if RECOMPUTED in op.attributes]
    fresh = max((ir.IntegerAttr(mark).value for mark in marks), default=0) + 1
    made: dict[tuple[int, int], ir.Value] = {}
    ops = []
    constants = [op for op in operations if op.name == "pyc.constant"]
    pending = {op.results[0]: op for op in constants}
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
    lives = step_lives(region.problem, plan)
    slots = {offset: slot for slot, offset in enumerate(sorted(set(plan.offsets.values())))}
    for step, op in zip(plan.steps, ops, strict=True):
        instance = (region.problem.tasks[step.task].writes[0], step.copy)
        if (offset := plan.offsets.get(instance)) is not None:
            mark(op, slots[offset], offset, lives[instance])
        else:
            for name in (SLOT, OFFSET, LIVE):  # what an earlier plan said
                if name in op.attributes:
                    del op.attributes[name]
    attributes = region.function.attributes
    attributes[ARENA_BYTES] = integer(plan.arena_bytes)
    attributes[LOWER_BOUND] = integer(plan.lower_bound)


def mark(op: ir.Operation, slot: int, offset: int, live: Sequence[int]) -> None:
    """Write where the result of `op` lies, and when."""
    op.attributes[SLOT] = integer(slot)
    op.attributes[OFFSET] = integer(offset)
    op.attributes[LIVE] = ir.DenseI64ArrayAttr.get(list(live))


# What the planner may do for the steps: the plan that a compile makes in the end is another one.
_WORK = 20_000


def read_sites(
    function: ir.Operation, context: PassContext, decisions: Sequence[Decision]
) -> Sites:
    """Return the sites of a function, each with the candidate that the decisions name.

    Raises PycError as `read_function`: for dynamic sizes and control flow.
    """
    region = read_function(function, context.target)
    found = plan(region.problem, mode="balanced", work_limit=_WORK)
    steps = {step.task: w for w, wave in enumerate(found.waves) for step in wave}
    names = list(FAMILIES) if context.kernels.families is None else list(context.kernels.families)
    chosen = {d.site.key: d.chosen for d in decisions if d.site.pass_name == SELECT}
    ids, sites = OpIds(function), []
    model, fixed = CostModel(context.target), 0.0
    for task, op in enumerate(region.ops):
        members = Members.of(op)
        if members is None or is_stored(work := members.work()):
            continue
        key = f"{SELECT}:{ids[op]}"
        fixed += model.dispatch_seconds
        if key not in chosen:
            fixed += model.work(work).seconds
            continue
        offers, _ = legal_offers(members, work, context, names)
        variants = KernelVariants(work, context.target, offers)
        constants = constants_of(members, work, ids)
        candidates = list(_candidates(variants, constants, work, chosen[key]))
        now = next(i for i, candidate in enumerate(candidates) if candidate.name == chosen[key])
        sites.append(SiteCandidates(key, steps[task], tuple(candidates), now))
    return Sites(tuple(sites), _live(region, found), fixed)


def _candidates(
    variants: KernelVariants, constants: Constants, work: Work, now: str
) -> Iterator[Candidate]:
    """Yield IREE's code, and kernels; one that is taken on request only where it is chosen."""
    iree = variants.iree
    assert iree.cost is not None
    yield Candidate(
        iree.name, iree.cost.seconds, 0, forms_of_model(constants, range(len(work.inputs)))
    )
    names = dict.fromkeys((*(n for n, (_, o) in variants.offers.items() if o.worth), now))
    for name in names:
        found = variants.found(name)
        if found is None:
            continue
        _, offer = found
        cost = variants.priced(name, offer).cost
        assert cost is not None
        scratch = sum(map(size_of, offer.knobs.kernel("k").results[1:]))
        yield Candidate(name, cost.seconds, scratch, forms_of_kernel(offer, constants, work))


def _live(region: PycFunction, found: SchedulePlan) -> tuple[int, ...]:
    expansion, waves, reused = of_plan(region.problem, found)
    lives = lifetimes(expansion.derived, waves, reused).intervals
    used = np.zeros(len(found.waves) + 1, np.int64)
    np.add.at(used, lives.lower, lives.size)
    np.add.at(used, lives.upper, -lives.size)
    return tuple(int(size) for size in np.cumsum(used)[:-1])
