"""Carry out a plan on IREE's stream IR: order, waves, recomputed copies; later the offsets.

`apply_plan` edits one ``stream.async.execute`` in place, before IREE schedules allocations;
`replace_packs` answers the ``stream.resource.pack`` that this leaves, whose lifetimes now follow
the plan's order. Plans were validated before: what does not fit here is a fault of ours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import gcd
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.planner.layout import ArenaLayout, layout_of_slices
from pyc_mlir.pipelines.memory.planner.problem import Instance, SchedulePlan, TaskStep
from pyc_mlir.pipelines.memory.stream_problem import StreamRegion, is_scalar
from pyc_mlir.pipelines.streams.ir import (
    CONCURRENT,
    DISPATCH,
    UNTIED,
    constant_of,
    find,
    group,
    index_constant,
    ir,
    is_resource,
    operations,
    resources,
    size_value,
    ties,
)
from pyc_mlir.pipelines.streams.sizes import ByteSize, Ranges, aligned_size, factors_of, size_of

# (first step, last step, bytes) of each slice; bytes that are few enough -> (offset of each slice,
# bytes of the arena).
Slice = tuple[int, int, int]
Packer = Callable[[Sequence[Slice], int], tuple[list[int], int]]
# Pairs (written, read) of bindings that share storage, for each dispatch in the plan's order.
Shared = Sequence[tuple[tuple[int, int], ...]]
_CONSTANT = "stream.async.constant"
_CMD_DISPATCH = "stream.cmd.dispatch"
# The group of a ``stream.cmd.dispatch`` that holds the offset of each binding.
_BINDING_OFFSETS = 4


def apply_plan(region: StreamRegion, plan: SchedulePlan) -> None:
    """Rewrite the region's body to run `plan`; `region` must not be used afterwards."""
    block = region.execute.regions[0].blocks[0]
    end = operations(block)[-1]
    _hoist_scalars(block)
    _open_waves(block)
    ops = {
        # A recomputed copy is a clone of the task's own op.
        step: op.clone(ip=ir.InsertionPoint(end)).operation if step.copy else op
        for step in plan.steps
        for op in [region.ops[step.task]]
    }
    made = _results(region, ops)
    for step in plan.steps:
        for place, buffer in region.operands[step.task]:
            copy = plan.sources.get((step, buffer), 0)
            ops[step].operands[place] = made.get((buffer, copy), region.values[buffer])
        ops[step].move_before(end)
    for place, buffer in region.leaving:
        end.operands[place] = region.values[buffer]
    for wave in plan.waves:
        concurrent = [ops[step] for step in wave if ops[step].name != _CONSTANT]
        for step in wave:
            # IREE uploads constants of the region itself, and drops those inside of a wave.
            if ops[step].name == _CONSTANT and concurrent:
                ops[step].move_before(concurrent[0])
        if len(concurrent) > 1:
            _close_wave(concurrent)


def _results(region: StreamRegion, ops: dict[TaskStep, Any]) -> dict[Instance, Any]:
    return {
        (buffer, step.copy): result
        for step, op in ops.items()
        for buffer, result in zip(
            region.problem.tasks[step.task].writes, resources(op.results), strict=True
        )
    }


def _hoist_scalars(block: Any) -> None:
    """Move arithmetic first: no task makes numbers, so every order of the tasks may use them."""
    for op in operations(block)[:-1]:
        inner = operations(op.regions[0].blocks[0]) if op.name == CONCURRENT else [op]
        for candidate in inner:
            if is_scalar(candidate):
                first = next(o for o in operations(block) if not is_scalar(o))
                if candidate != first:
                    candidate.move_before(first)


def _open_waves(block: Any) -> None:
    for wave in [op for op in operations(block) if op.name == CONCURRENT]:
        body = wave.regions[0].blocks[0]
        for argument, operand in zip(body.arguments, group(wave, 0), strict=True):
            argument.replace_all_uses_with(operand)
        *inner, end = operations(body)
        for op in inner:
            op.move_before(wave)
        for result, value in zip(wave.results, resources(end.operands), strict=True):
            result.replace_all_uses_with(value)
        wave.erase()


def _close_wave(ops: Sequence[Any]) -> None:
    """Wrap neighbouring ops in one ``stream.async.concurrent`` that yields all their results."""
    results = [r for op in ops for r in resources(op.results)]
    captured = list(dict.fromkeys(v for op in ops for v in resources(op.operands)))
    place = {value: i for i, value in enumerate(captured)}
    tied = {result: place[operand] for op in ops for result, operand in ties(op)}
    sizes = [size_value(v) for v in captured], [size_value(v) for v in results]
    index = ir.IndexType.get()
    attributes = {
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(captured), *map(len, sizes)]),
        "tied_operands": ir.ArrayAttr.get(
            [ir.IntegerAttr.get(index, tied.get(r, UNTIED)) for r in results]
        ),
    }
    with ir.InsertionPoint(ops[0]), ops[0].location as location:
        wave = ir.Operation.create(
            CONCURRENT,
            results=[r.type for r in results],
            operands=[*captured, *sizes[0], *sizes[1]],
            attributes=attributes,
            regions=1,
        )
        body = wave.regions[0].blocks.append(
            *[v.type for v in captured], arg_locs=[location] * len(captured)
        )
        for result, outer in zip(results, wave.results, strict=True):
            result.replace_all_uses_with(outer)
    inner = dict(zip(captured, body.arguments, strict=True))
    for op in ops:
        body.append(op)
        for place in [i for i in range(len(op.operands)) if is_resource(op.operands[i])]:
            op.operands[place] = inner[op.operands[place]]
    with ir.InsertionPoint(body), location:
        ir.Operation.create("stream.yield", operands=[*results, *sizes[1]])


def shared_bindings(region: StreamRegion, plan: SchedulePlan) -> Shared:
    """Return the bindings that the plan lets share storage. To be read before `apply_plan`."""
    dispatches = [s for s in plan.steps if region.ops[s.task].name == DISPATCH]
    return [tuple(_shared(region, plan, step)) for step in dispatches]


def _shared(region: StreamRegion, plan: SchedulePlan, step: TaskStep) -> list[tuple[int, int]]:
    """Return a dispatch's bindings that share storage: its operands', then its fresh results'."""
    task = region.problem.tasks[step.task]
    updated = {written for written, _ in task.tied}
    bindings = [b for _, b in region.operands[step.task]]
    bindings += [b for b in task.writes if b not in updated]
    return [
        (bindings.index(written), bindings.index(read))
        for written, read in task.in_place
        if plan.reused.get((written, step.copy)) == (read, plan.sources.get((step, read), 0))
    ]


def shared_offsets(execute: Any, shared: Shared) -> dict[Any, Any]:
    """Return the offset and the operand's, as values, for each result that takes over storage.

    `execute` is the region after IREE scheduled allocations. Raises PycError (PASS_FAILED) when its
    dispatches are no longer those of the plan.
    """
    dispatches = find(execute, _CMD_DISPATCH)
    if len(dispatches) != len(shared):
        raise PycError(
            ReasonCode.PASS_FAILED,
            f"memory plan: expected {len(shared)} dispatches in a region, got {len(dispatches)}",
        )
    return {
        group(op, _BINDING_OFFSETS)[written]: group(op, _BINDING_OFFSETS)[read]
        for op, pairs in zip(dispatches, shared, strict=True)
        for written, read in pairs
    }


def replace_packs(
    packs: Sequence[Any],
    packer: Packer,
    alignment: int,
    shared: Mapping[Any, Any],
    enough: int,
    bounds: Ranges,
    at_largest: bool = False,
) -> None:
    """Give the slices of each ``stream.resource.pack`` the packer's offsets.

    `shared` names, by the value of its offset, the slice whose storage a slice takes over: the
    packer sees both as one. It need not search for less than `enough` bytes, the plan's arena.
    Unknown sizes are packed as they are in each call (`_sized_offsets`), or left to IREE, which
    lets equal sizes share; `at_largest` packs the largest values of those that `bounds` bound.
    """
    for pack in packs:
        slices = slices_of(pack, alignment, bounds if at_largest else None)
        pairs = _pairs_of(pack, shared)
        if slices:
            joined, place = _joined(slices, pairs)
            offsets, total = packer(joined, enough)
            numbers = [ByteSize.of(n) for n in (total, *(offsets[p] for p in place))]
            atoms: dict[str, Any] = {}
        elif not group(pack, 0):
            with ir.InsertionPoint(pack), pack.location:
                numbers, atoms = _sized_offsets(pack, packer, alignment, pairs, bounds)
        else:
            continue
        with ir.InsertionPoint(pack), pack.location:
            for result, number in zip(pack.results, numbers, strict=True):
                result.replace_all_uses_with(_emitted(number, atoms))
        pack.erase()


def _sized_offsets(
    pack: Any,
    packer: Packer,
    alignment: int,
    pairs: Mapping[int, int],
    ranges: Ranges,
) -> tuple[list[ByteSize], dict[str, Any]]:
    """Return the arena and the offsets of slices of unknown sizes, and their unknowns by name.

    Slices of one unknown, or of multiples of one sum, are packed by their multiples: whatever the
    unknown is, they lie apart, and as close as the packer gets. One such group lies above the
    other, since which of two unknowns is the larger is not known.
    """
    atoms: dict[str, Any] = {}
    sizes = [aligned_size(value, alignment, atoms, ranges) for value in group(pack, 1)]
    ends = [ir.IntegerAttr(a).value for a in ir.ArrayAttr(pack.attributes["lifetime_intervals"])]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, size in enumerate(sizes):
        groups.setdefault(_unit(size)[1], []).append(i)
    offsets, total = [ByteSize()] * len(sizes), ByteSize()
    for members in groups.values():
        counts = [_unit(sizes[i])[0] for i in members]
        lives = [(ends[2 * i], ends[2 * i + 1], n) for i, n in zip(members, counts, strict=True)]
        within = {i: n for n, i in enumerate(members)}
        alike = {within[i]: within[j] for i, j in pairs.items() if i in within and j in within}
        joined, place = _joined(lives, alike)
        placed, end = packer(joined, 0)
        unit = sizes[members[0]].part(counts[0])
        for i, p in zip(members, place, strict=True):
            offsets[i] = total + unit.times(placed[p])
        total += unit.times(end)
    return [total, *offsets], atoms


def _unit(size: ByteSize) -> tuple[int, tuple[Any, ...]]:
    """Return how many times a size has which sum: its multiples have no common divisor."""
    parts = {**size.terms, "": size.constant}
    count = gcd(*parts.values()) or 1
    return count, tuple(sorted((name, n // count) for name, n in parts.items() if n))


def _emitted(size: ByteSize, atoms: Mapping[str, Any]) -> Any:
    """Emit a size as a value, from those of its unknowns."""
    parts = [index_constant(size.constant)] if size.constant or not size.terms else []
    for name, count in size.terms.items():
        factors = [atoms[f] for f in factors_of(name)] + [index_constant(count)] * (count != 1)
        parts.append(reduce(partial(_made, "arith.muli"), factors))
    return reduce(partial(_made, "arith.addi"), parts)


def _made(name: str, *operands: Any) -> Any:
    return ir.Operation.create(name, [ir.IndexType.get()], list(operands)).result


def slices_of(pack: Any, alignment: int = 64, ranges: Ranges | None = None) -> list[Slice]:
    """Return the slices of a ``stream.resource.pack``, at their largest; none of unknown size."""
    sizes = [size_of(v, ranges).largest for v in group(pack, 1)]
    if group(pack, 0) or any(size is None for size in sizes):
        return []
    ends = [ir.IntegerAttr(a).value for a in ir.ArrayAttr(pack.attributes["lifetime_intervals"])]
    rounded = [-(-(size or 0) // alignment) * alignment for size in sizes]
    return list(zip(ends[::2], ends[1::2], rounded, strict=True))


def _pairs_of(pack: Any, shared: Mapping[Any, Any]) -> dict[int, int]:
    """`shared` by numbers of the pack's slices; its first result is the total."""
    number = {offset: i for i, offset in enumerate(list(pack.results)[1:])}
    return {
        number[written]: number[read]
        for written, read in shared.items()
        if written in number and read in number
    }


def _joined(slices: Sequence[Slice], pairs: Mapping[int, int]) -> tuple[list[Slice], list[int]]:
    """Join slices that share storage; return them, and the number that each slice became.

    Only a slice that begins where the other one ends, and is as large, is joined with it.
    """
    place, joined = [-1] * len(slices), []
    for i in sorted(range(len(slices)), key=lambda i: slices[i][0]):
        first, last, size = slices[i]
        operand = pairs.get(i)
        if operand is not None and slices[operand][1:] == (first, size) and place[operand] >= 0:
            place[i] = place[operand]
            joined[place[i]] = (joined[place[i]][0], last, size)
        else:
            place[i] = len(joined)
            joined.append(slices[i])
    return joined, place


@dataclass(frozen=True)
class WatchedPack:
    """A pack's slices (first step, last step, bytes), who writes each, and a use of its offset.

    The ops in `uses` live until IREE's later passes rewrite them: read the layout right after
    the slices are laid out.
    """

    slices: tuple[Slice, ...]
    writers: tuple[str, ...]
    uses: tuple[tuple[Any, int], ...]

    def layout(self, seconds: float = 0.0) -> ArenaLayout | None:
        """Return the layout; None where an offset is no constant. `seconds` are predicted."""
        offsets = [constant_of(op.operands[place]) for op, place in self.uses]
        known = [offset for offset in offsets if offset is not None]
        if len(known) < len(offsets):
            return None
        return layout_of_slices(self.slices, known, names=self.writers, seconds=seconds)


def watch(execute: Any, pack: Any, alignment: int = 64) -> WatchedPack | None:
    """Remember a pack whose memory the ``stream.cmd.execute`` works in; None for unknown sizes."""
    found = slices_of(pack, alignment)
    if not found:
        return None
    order = {op: i for i, op in enumerate(_inner(execute))}
    slices, writers, uses = [], [], []
    for slice_, offset in zip(found, list(pack.results)[1:], strict=True):
        places = [(use.owner.operation, use.operand_number) for use in offset.uses]
        if places:
            slices.append(slice_)
            uses.append(places[0])
            within = [op for op, _ in places if op in order]
            writers.append(_name(min(within, key=lambda op: order[op], default=None)))
    return WatchedPack(tuple(slices), tuple(writers), tuple(uses))


def _inner(op: Any) -> list[Any]:
    found = []
    for region in op.regions:
        for block in region.blocks:
            for child in operations(block):
                found += [child, *_inner(child)]
    return found


def _name(op: Any | None) -> str:
    """Name the dispatch that an op calls, else what the op does; empty without one."""
    if op is None:
        return ""
    if op.name != _CMD_DISPATCH:
        return op.name.rpartition(".")[2]
    return str(ir.ArrayAttr(op.attributes["entry_points"])[0]).rpartition("@")[2]
