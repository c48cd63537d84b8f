"""Give every result of a program memory of its own, and leave arguments as they are.

Two results that are one value come out of value numbering as one buffer, and a result that is an
argument as the argument itself; a write into one would then change the other. And IREE takes
arguments as its own: it writes a part of one in place if nothing reads it afterwards. Comes in
three times: the module before IREE's first phase, where `keep_returned_arguments` keeps arguments
that are returned apart from their results; at the end of phase `flow`, where `keep_arguments`
reads each argument once more at the end, so that IREE copies it before it writes; and after IREE
has elided copies (versions.py, `to_async`), where `separate_results` copies each result whose
memory is there already. All copies are part of the memory plan. The entry with an arena
(arena_entry.py) needs the last ones only for results that take no buffer.
"""

from collections.abc import Sequence
from typing import Any

from pyc_mlir.iree.barriers import dynamic_sizes
from pyc_mlir.pipelines.streams.ir import (
    EXECUTE,
    UNTIED,
    find,
    group,
    ir,
    maker,
    number_of,
    operations,
    resources,
    storage_of,
    ties,
)

BARRIER = "util.optimization_barrier"
ARGUMENT = "hal.tensor.import"
_RETURNS = ("func.return", "util.return")
_AWAIT, _EXPORT, _IMPORT = "stream.timepoint.await", "stream.tensor.export", "stream.tensor.import"
# Ops whose first resource is the memory of their result; a wait's results are its operands.
_HANDED_ON = (BARRIER, "stream.resource.transients")
_STUB = "iree.abi.stub"


def keep_returned_arguments(module: Any) -> int:
    """Put a barrier behind each returned argument of `module`, which no phase has changed yet.

    Else IREE folds the result to the argument's buffer view. Returns the number of barriers.
    """
    returns = [op for name in _RETURNS for op in find(module, name)]
    return sum(_keep(op, i) for op in returns for i in range(len(op.operands)))


def _keep(returned: Any, number: int) -> bool:
    value = returned.operands[number]
    if maker(value) is not None or not isinstance(value.type, ir.RankedTensorType):
        return False
    if value.owner != value.owner.region.blocks[0]:
        return False
    returned.context.get_dialect_descriptor("util")
    returned.context.get_dialect_descriptor("flow")
    with ir.InsertionPoint(returned), returned.location:
        sizes = dynamic_sizes(value)
        kept = _op(BARRIER, [value], value.type)
        if sizes:
            # IREE asks for sizes, and sees none through a barrier.
            kept = _op("flow.tensor.tie_shape", [kept, *sizes], value.type)
    returned.operands[number] = kept
    return True


def keep_arguments(module: Any) -> int:
    """Put a barrier that reads each argument at the end of its function; the number of barriers.

    `module` is at the end of phase `flow`. IREE elides its copy of a value that is written in place
    where that is the last use; the barriers go once it has decided (`separate_results`).
    """
    stubs = [f for f in find(module, "util.func") if _STUB in f.attributes]
    return sum(_read_last(f, returned) for f in stubs for returned in find(f, "util.return"))


def _read_last(function: Any, returned: Any) -> int:
    start = operations(function.regions[0].blocks[0])
    arguments = [op.results[0] for op in start if op.name == ARGUMENT]
    with ir.InsertionPoint(returned), returned.location:
        for value in arguments:
            _op(BARRIER, [value], value.type)
    return len(arguments)


def separate_results(module: Any) -> int:
    """Copy results whose memory is an argument's or another result's; the number of copies.

    `module` is IREE's stream IR at the end of its async passes.
    """
    copies = 0
    for function in find(module, "util.func"):
        if _STUB in function.attributes:
            copies += sum(_separate(op) for op in find(function, "util.return"))
            for barrier in find(function, BARRIER):
                _drop(barrier)
    return copies


def _separate(returned: Any) -> int:
    taken: set[Any] = set()
    shared: list[int] = []
    for number, value in enumerate(returned.operands):
        export = maker(value)
        if export is None or export.name != _EXPORT:
            continue
        memory = _memory(export.operands[0])
        if memory in taken or _is_given(memory):
            shared.append(number)
        taken.add(memory)
    if shared:
        _copy(returned, shared)
    return len(shared)


def _memory(value: Any) -> Any:
    """Return the value whose memory a resource has."""
    while True:
        value = storage_of(value)
        op = maker(value)
        if op is not None and op.name == _AWAIT:
            value = op.operands[number_of(value)]
        elif op is not None and op.name in _HANDED_ON:
            value = op.operands[0]
        else:
            return value


def _is_given(memory: Any) -> bool:
    """Return whether memory is an argument's, as a caller sees it: not a buffer for a result."""
    op = maker(memory)
    return op is not None and op.name == _IMPORT and str(op.operands[0].type) == "!hal.buffer_view"


def _copy(returned: Any, numbers: Sequence[int]) -> None:
    """Return copies of these results, made at the end of the last execution region."""
    exports: list[Any] = [maker(returned.operands[n]) for n in numbers]
    sources = [e.operands[0] for e in exports]
    sizes = [e.operands[len(e.operands) - 1] for e in exports]
    with returned.location, ir.InsertionPoint(returned):
        region = _last_region(returned, [*sources, *sizes])
        if region is None:
            region = _new_region(exports[0])
        values, done = _with_copies(region, sources, sizes)
        count = len(values)
        awaited = ir.Operation.create(
            _AWAIT,
            results=[v.type for v in values],
            operands=[*values, *sizes, done],
            attributes={"operandSegmentSizes": ir.DenseI32ArrayAttr.get([count, count, 1])},
        )
        for number, export, value in zip(numbers, exports, awaited.results, strict=True):
            copied = export.clone(ip=ir.InsertionPoint(returned))
            copied.operands[0] = value
            returned.operands[number] = copied.results[0]
    for export in dict.fromkeys(exports):
        if not list(export.results[0].uses):
            export.erase()


def _last_region(returned: Any, needed: Sequence[Any]) -> Any | None:
    """Return the last execution region before a return, if all it needs stands before or in it."""
    ops = operations(returned.block)
    regions = [op for op in ops if op.name == EXECUTE]
    if not regions:
        return None
    place = {op: i for i, op in enumerate(ops)}
    last = regions[-1]
    makers = (maker(_awaited(value)) for value in needed)
    known = all(op is None or place.get(op, -1) <= place[last] for op in makers)
    return last if known else None


def _awaited(value: Any) -> Any:
    """Return what an operand of an export is before the host waited for it."""
    op = maker(value)
    while op is not None and op.name in (_AWAIT, *_HANDED_ON):
        value = op.operands[number_of(value)]
        op = maker(value)
    return value


def _new_region(export: Any) -> Any:
    """Make an empty execution region on the device of an export."""
    region = ir.Operation.create(
        EXECUTE,
        results=[ir.Type.parse("!stream.timepoint")],
        attributes={
            **{n: export.attributes[n] for n in ("affinity",) if n in export.attributes},
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 0, 0, 0]),
            "tied_operands": ir.ArrayAttr.get([]),
        },
        regions=1,
    )
    with ir.InsertionPoint(region.regions[0].blocks.append()):
        ir.Operation.create("stream.yield", operands=[])
    return region


def _with_copies(
    region: Any, sources: Sequence[Any], sizes: Sequence[Any]
) -> tuple[list[Any], Any]:
    """Put an execution region in the place of `region` that also copies; the copies, its end."""
    block = region.regions[0].blocks[0]
    end = operations(block)[-1]
    yielded = resources(end.operands)
    captured: dict[Any, Any] = {}
    parts = [group(region, n) for n in range(4)]
    with ir.InsertionPoint(end), region.location:
        made = []
        for value, size in zip(map(_awaited, sources), sizes, strict=True):
            inside = captured.get(value)
            if maker(value) == region:
                inside = yielded[number_of(value)]
            elif inside is None:
                captured[value] = inside = block.add_argument(value.type, region.location)
                parts[0].append(value)
                parts[1].append(size)
            made.append(_op("stream.async.clone", [inside, size, size], value.type))
        kept = [end.operands[i] for i in range(len(end.operands))][len(yielded) :]
        ir.Operation.create("stream.yield", operands=[*yielded, *made, *kept, *sizes])
    end.erase()
    parts[2] += sizes
    attributes = {name: region.attributes[name] for name in region.attributes}
    counts = ir.DenseI32ArrayAttr.get([len(p) for p in parts], region.context)
    attributes["operandSegmentSizes"] = counts
    if len(tied := list(ir.ArrayAttr(attributes["tied_operands"]))):
        none = ir.IntegerAttr.get(ir.IndexType.get(region.context), UNTIED)
        attributes["tied_operands"] = ir.ArrayAttr.get([*tied, *[none] * len(made)], region.context)
    *types, timepoint = [r.type for r in region.results]
    grown = ir.Operation.create(
        EXECUTE,
        results=[*types, *(m.type for m in made), timepoint],
        operands=[v for part in parts for v in part],
        attributes=attributes,
        regions=1,
        ip=ir.InsertionPoint(region),
        loc=region.location,
    )
    block.append_to(grown.regions[0])
    *values, done = grown.results
    for before, after in zip(region.results, [*values[: len(types)], done], strict=True):
        before.replace_all_uses_with(after)
    region.erase()
    return values[len(types) :], done


def _drop(barrier: Any) -> None:
    """Take out a barrier that stood between an argument and results."""
    source = maker(barrier.operands[0])
    if source is not None and source.name == _IMPORT:
        barrier.results[0].replace_all_uses_with(barrier.operands[0])
        barrier.erase()


def _op(name: str, operands: Sequence[Any], type_: Any) -> Any:
    return ir.Operation.create(name, results=[type_], operands=operands).results[0]


# Move copies of a value in front of the op that updates the value in place.
#
# IREE 3.13 copies what is read after an update in place, as a result that is returned beside its
# update. Its scheduling of concurrency then puts the copy behind the wave that holds the update:
# both read the value, and nothing orders the two. The copy is then one of the updated value,
# silently. Comes in: stream IR at the end of the async passes.

_CLONE = "stream.async.clone"


def advance_clones(module: Any) -> int:
    """Move each clone in front of the first op that updates its source; the number of moves."""
    return sum(_advance(op) for region in find(module, EXECUTE) for op in _clones(region))


def _clones(region: Any) -> list[Any]:
    return [op for op in operations(region.regions[0].blocks[0]) if op.name == _CLONE]


def _advance(clone: Any) -> bool:
    memory = storage_of(clone.operands[0])
    before = []
    for op in operations(clone.block):
        if op == clone:
            break
        before.append(op)
    late = [op for op in before if any(_is_update(o, r, clone, memory) for r, o in ties(op))]
    if late:
        clone.move_before(late[0])
    return bool(late)


def _is_update(operand: Any, result: Any, clone: Any, memory: Any) -> bool:
    """Return whether an update in place changes the value that a clone reads.

    The clone reads a value of this memory that was there before the update, not its result.
    """
    source = clone.operands[0]
    return storage_of(operand) == memory and not _comes_from(source, result)


def _comes_from(value: Any, result: Any) -> bool:
    """Return whether a value is a result, or what later updates of it in place gave."""
    while value != result:
        op = maker(value)
        tied = [] if op is None else [o for r, o in ties(op) if r == value]
        if not tied:
            return False
        value = tied[0]
    return True
