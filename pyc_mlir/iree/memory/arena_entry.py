"""Add the entry `main$arena`, which takes the memory that `main` would allocate.

    main(inputs...) -> results
    main$arena(inputs..., arena, outputs...) -> results

It is made at the end of IREE's phase `flow`, where dispatches are final: a copy of the function in
which results are written into buffers of the caller (``hal.tensor.alias``) and the scratch
comes from another one (``hal.tensor.transients``). Both functions launch the same dispatches, so
code is generated once. IREE's ``EmplaceTransients`` and ``MaterializeTransientSizeQueries`` do the
rest in the stream phase, after the memory plan, so that the arena has the planned size.

An output can take a buffer where its shape is known before the call: static dimensions, and
dynamic ones that are a dimension of an input. It does take one unless IREE would make the value
elsewhere and copy it into the caller's buffer, which is seen on IREE's stream IR. The shapes travel
in the function's reflection, as ``pyc.outputs``: JSON, for each result its dimensions (a size, or
[input, axis]) or null; ``pyc.buffers`` are the numbers of the results that take buffers, in that
order.
``pyc.donations``, which comes with the memory plan, are pairs [input, result]: the input's memory
may be the buffer of the result.

A call of the second entry must never need more memory than one of `main`: after the memory plan,
what a call of each allocates is compared (`calls.py`). Where the second one is not proven to need
at most what the first one does, it is made again without outputs in buffers, and after that not at
all.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pyc_mlir.iree.compiler import IreeSession
from pyc_mlir.iree.diagnostics import CompileError
from pyc_mlir.iree.memory.budget import BudgetNotKept
from pyc_mlir.iree.memory.calls import (
    BUFFERS,
    ArenaEntry,
    EntryRequest,
    entry_of,
    handed_buffers,
)
from pyc_mlir.iree.memory.versions import to_async
from pyc_mlir.iree.rewrites import ARGUMENT, BARRIER
from pyc_mlir.pipelines.streams.ir import (
    constant_of,
    find,
    functions_of,
    index_constant,
    ir,
    maker,
    operations,
    storage_of,
    ties,
)
from pyc_mlir.pipelines.streams.sizes import Ranges

SITE, MADE, NONE = "arena-entry", "made", "none"
_IMPORT, _UPDATE = "stream.tensor.import", "stream.async.update"
_THERE_BEFORE = (_IMPORT, "util.global.load")
_OUTPUTS = "pyc.outputs"
_RESHAPE, _DISPATCH, _ALIAS = "flow.tensor.reshape", "flow.dispatch", "hal.tensor.alias"
# Dimensions of an output: a size, or the input and its axis that have it. None: not known.
Shape = list[int | list[int]] | None
T = TypeVar("T")
# Goes from where `to_async` ends to the end of phase `stream`, and returns what is said of that.
ToStream = Callable[[IreeSession], T]


@dataclass(frozen=True)
class _Refused:
    """An entry that is not to be: why, and whether one without outputs in buffers may be."""

    why: str
    again: bool = False


def make_entry(
    session: IreeSession, request: EntryRequest, to_stream: ToStream[T]
) -> tuple[ArenaEntry, T]:
    """Take a session from the end of phase `flow` to that of `stream`, with the entry or not.

    Returns what came of the request, and what `to_stream` returned for the module that stays.
    Raises as `to_stream` does without the entry.
    """
    start, missing = session.module, ""
    for into_buffers in (True, False) if request.wanted else ():
        made = _tried(session, start, request, into_buffers, to_stream)
        if not isinstance(made, _Refused):
            return made
        missing = made.why
        if not made.again:
            break
    session.use(start)
    to_async(session)
    said = to_stream(session)
    with session.context:
        return replace(entry_of(session.module, request), missing=missing), said


def _tried(
    session: IreeSession,
    start: Any,
    request: EntryRequest,
    into_buffers: bool,
    to_stream: ToStream[T],
) -> tuple[ArenaEntry, T] | _Refused:
    before = len(session.diagnostics)
    try:
        left_out = _add(session, start, request, into_buffers)
        if isinstance(left_out, _Refused):
            return left_out
        said = to_stream(session)
    except BudgetNotKept as error:
        if not error.optional:
            raise
        return _Refused(error.message)
    except CompileError as error:
        # Perhaps the entry is at fault; if not, the compile without it fails too.
        del session.diagnostics[before:]
        # Only IREE's words: a message's location may hold a path, and artifacts carry none.
        errors = [d for d in error.diagnostics if d.severity == "error"]
        return _Refused(f"IREE: {errors[0].message if errors else error.got}")
    with session.context:
        entry = replace(entry_of(session.module, request), left_out=left_out)
    if entry.proven:
        return entry, said
    return _Refused(f"a call of it would need {entry.needs}", again=entry.second is not None)


def _add(
    session: IreeSession, start: Any, request: EntryRequest, into_buffers: bool
) -> tuple[int, ...] | _Refused:
    """Add the entry, without buffers for outputs that IREE would copy there.

    Leaves the session where `to_async` does. Returns the outputs without a buffer.
    """
    second_entries, modes = request.second_entries, request.modes
    left_out: dict[str, set[int]] = {f: set() for f in second_entries}
    with session.context:
        main = functions_of(start).get(request.function)
        if main is not None and not into_buffers:
            results = range(len(operations(main.regions[0].blocks[0])[-1].operands))
            left_out = {f: set(results) for f in second_entries}
    while True:
        session.use(start.clone())
        with session.context, ir.Location.unknown():
            entries = [*second_entries.items(), *((request.function, name) for name in modes)]
            added = [add_entry(session.module, f, name, left_out[f]) for f, name in entries]
        if missing := next(filter(None, added), ""):
            return _Refused(missing)
        to_async(session)
        with session.context:
            copied = copied_outputs(session.module, second_entries)
        if all(copied[f] <= left_out[f] for f in second_entries):
            return tuple(sorted(left_out[request.function]))
        for f in second_entries:
            left_out[f] |= copied[f]


def copied_outputs(module: Any, second_entries: Mapping[str, str]) -> dict[str, set[int]]:
    """Return the results whose value is made elsewhere and then copied into a caller's buffer.

    Read after `to_async`, by function. A copy of what is there before the call (an input, say)
    costs no memory.
    """
    entries, found = handed_buffers(module), dict[str, set[int]]()
    for function, name in second_entries.items():
        (second, buffers), found[function] = entries[name], set()
        for op in find(second, _UPDATE):
            target, size, begin, end, source = (op.operands[i] for i in range(5))
            ends = end == size or constant_of(end) == constant_of(size)
            origin = maker(storage_of(source))
            if constant_of(begin) != 0 or not ends:
                continue
            if origin is not None and origin.name not in _THERE_BEFORE:
                number = buffers.get(maker(storage_of(target)))
                found[function] |= set() if number is None else {number}
    return found


def add_entry(module: Any, function: str, name: str, left_out: Collection[int] = ()) -> str:
    """Add the entry `name` to a module at the end of phase `flow`; why it cannot be, or nothing.

    `left_out` are the numbers of results that take no buffer.
    """
    body = module.regions[0].blocks[0]
    functions = functions_of(module)
    main = functions.get(function)
    if main is None or "iree.abi.stub" not in main.attributes:
        return "IREE gave the function no entry of its plain ABI"
    if name in functions:
        return f"the module has a function `{name}` of its own"
    if obstacle := _obstacle(main):
        return obstacle
    second = main.clone(ip=ir.InsertionPoint(body))
    second.attributes["sym_name"] = ir.StringAttr.get(name)
    block = second.regions[0].blocks[0]
    arena = block.add_argument(_buffer(), ir.Location.unknown())
    returned = operations(block)[-1]
    reflection = _redirect(returned.operands, block, arena, left_out)
    takes = [a.type for a in block.arguments]
    type_ = ir.FunctionType.get(takes, [v.type for v in returned.operands])
    second.attributes["function_type"] = ir.TypeAttr.get(type_)
    found = {key: ir.StringAttr.get(json.dumps(value)) for key, value in reflection.items()}
    second.attributes["iree.reflection"] = ir.DictAttr.get(found)
    for attributes in ("arg_attrs", "res_attrs"):
        if attributes in second.attributes:
            del second.attributes[attributes]
    second.verify()
    return ""


def _obstacle(main: Any) -> str:
    if len(main.regions[0].blocks) != 1:
        return "the function's control flow has several blocks"
    block = main.regions[0].blocks[0]
    if any("!hal.fence" in str(a.type) for a in block.arguments):
        return "the function has IREE's asynchronous ABI"
    if any(op.operation.name.startswith("scf.") for op in block):
        return "the function has control flow, and allocates where its way leads"
    if not any(_export(v) is not None for v in operations(block)[-1].operands):
        return "the function computes no tensor"
    return ""


def _redirect(
    returned: Any, block: Any, arena: Any, left_out: Collection[int]
) -> dict[str, list[Any]]:
    """Let results be made in memory of the caller, which new arguments of `block` take.

    Returns what the reflection says. A value that is returned twice takes two buffers.
    """
    shapes: list[Shape] = []
    buffers: list[int] = []
    exports = _exports(returned)
    made = [_origin(export.operands[0]) for export in exports if export is not None]
    again = len(set(made)) < len(made)
    for number, export in enumerate(exports):
        if export is None:
            shapes.append(None)
            continue
        tensor, *dims = export.operands
        shapes.append(_shape(tensor, dims))
        if shapes[-1] is not None and number not in left_out:
            buffers.append(number)
            _emplace(tensor, dims, export, block)
    end = operations(block)[-1]
    for export in filter(None, exports):
        if again:
            # IREE keeps another copy of what is read after it was handed out.
            export.move_before(end)
        _mark(export, arena)
    return {_OUTPUTS: shapes, BUFFERS: buffers}


def _exports(returned: Any) -> list[Any | None]:
    """Return the export of each result, one of its own; None where an argument is handed back."""
    exports: list[Any | None] = []
    seen: set[Any] = set()
    for number, value in enumerate(returned):
        export = _export(value)
        if export is not None and export in seen:
            export = export.clone(ip=ir.InsertionPoint(export))
            returned[number] = export.results[0]
        seen.add(export)
        exports.append(export)
    return exports


def _emplace(tensor: Any, dims: list[Any], export: Any, block: Any) -> None:
    """Have the value of an output written into a new argument of `block`.

    A dispatch's result is in the buffer from the start, and whoever else reads it reads it there:
    else IREE would make it elsewhere and copy it. An argument that is written in place is copied
    into the buffer first.
    """
    buffer = block.add_argument(_buffer(), ir.Location.unknown())
    made = _origin(tensor)
    maker_ = maker(made)
    static = made == tensor or ir.RankedTensorType(made.type).has_static_shape
    if maker_ is None or maker_.name != _DISPATCH or not static:
        alias = _alias(_unbarred(tensor), dims, buffer, ir.InsertionPoint(export))
        export.operands[0] = alias.result
        return
    import_ = _written_argument(made, maker_)
    if import_ is not None:
        (argument,), sizes = import_.results, list(import_.operands)[1:]
        alias = _alias(argument, sizes, buffer, ir.InsertionPoint(maker_))
        for number, operand in enumerate(maker_.operands):
            if operand == argument:
                maker_.operands[number] = alias.result
        return
    last = maker_
    for op in filter(None, map(maker, dims)):
        last = op if last.is_before_in_block(op) else last
    alias = _alias(made, dims if made == tensor else [], buffer, ir.InsertionPoint(export))
    alias.move_after(last)
    for use in list(made.uses):
        user = inside = use.owner.operation
        while inside.block != block:
            inside = inside.parent.operation
        if user != alias and last.is_before_in_block(inside):
            user.operands[use.operand_number] = alias.result


def _written_argument(made: Any, op: Any) -> Any | None:
    """Return the import of what `op` updates in place to make a value that is read once, if any."""
    before = [operand for result, operand in ties(op) if result == made]
    import_ = maker(before[0]) if before and len(list(made.uses)) == 1 else None
    return import_ if import_ is not None and import_.name == ARGUMENT else None


def _unbarred(tensor: Any) -> Any:
    """Return an argument without the barrier that keeps it apart from its result."""
    op = maker(tensor)
    return tensor if op is None or op.name != BARRIER else op.operands[0]


def _alias(tensor: Any, dims: list[Any], buffer: Any, place: Any) -> Any:
    groups = ir.DenseI32ArrayAttr.get([1, len(dims), 1, 0])
    return ir.Operation.create(
        _ALIAS,
        results=[tensor.type],
        operands=[tensor, *dims, buffer],
        attributes={"operandSegmentSizes": groups},
        ip=place,
    )


def _mark(export: Any, arena: Any) -> None:
    """Take what an output needs on the way from `arena`."""
    tensor, *dims = export.operands
    marked = ir.Operation.create(
        "hal.tensor.transients",
        results=[tensor.type],
        operands=[tensor, *dims, arena],
        ip=ir.InsertionPoint(export),
    )
    export.operands[0] = marked.result


def _origin(tensor: Any) -> Any:
    """Return the value whose elements a tensor has, under whatever shapes."""
    op = maker(tensor)
    while op is not None and op.name == _RESHAPE:
        tensor = op.operands[0]
        op = maker(tensor)
    return tensor


def _shape(tensor: Any, dims: list[Any]) -> Shape:
    type_ = ir.RankedTensorType(tensor.type)
    unknown = iter(dims)
    found: list[int | list[int]] = []
    for axis in range(type_.rank):
        if not type_.is_dynamic_dim(axis):
            found.append(type_.get_dim_size(axis))
            continue
        source = maker(next(unknown))
        if source is None or source.name != "hal.buffer_view.dim":
            return None
        view = source.operands[0]
        if maker(view) is not None:
            return None
        index = ir.IntegerAttr(source.attributes["index"]).value
        found.append([ir.BlockArgument(view).arg_number, index])
    return found


def _export(value: Any) -> Any | None:
    op = maker(value)
    return op if op is not None and op.name == "hal.tensor.export" else None


def _buffer() -> Any:
    return ir.Type.parse("!hal.buffer")


# Checks in the program itself that dimensions keep their declared ranges.
#
# PyC's runtime refuses a call outside with a message of its own, before anything runs
# (signature.py). What else runs the `.vmfb`, such as IREE's tools, meets the same bounds here:
# memory may have been planned for the largest sizes.

# MLIR's numbers of the predicates "unsigned and at most", "... at least".
_AT_MOST, _AT_LEAST = 7, 9


def assert_ranges(session: IreeSession, function: str, ranges: Ranges) -> None:
    """Begin `function`, of a module at the end of phase `flow`, with a check of each range."""
    with session.context, ir.Location.unknown():
        found = functions_of(session.module).get(function)
        if found is None or not ranges:
            return
        block = found.regions[0].blocks[0]
        with ir.InsertionPoint.at_block_begin(block):
            for (argument, axis), (low, high) in ranges.items():
                view = block.arguments[argument]
                index = ir.IndexType.get()
                attributes = {"index": ir.IntegerAttr.get(index, axis)}
                size = ir.Operation.create(
                    "hal.buffer_view.dim", results=[index], operands=[view], attributes=attributes
                ).result
                text = f"input{argument}: expected {low} to {high} in dimension {axis}"
                _assert(_compared(_AT_LEAST, size, low), text)
                _assert(_compared(_AT_MOST, size, high), text)
        found.verify()


def _compared(predicate: int, size: Any, end: int) -> Any:
    attributes = {"predicate": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), predicate)}
    return ir.Operation.create(
        "arith.cmpi",
        results=[ir.IntegerType.get_signless(1)],
        operands=[size, index_constant(end)],
        attributes=attributes,
    ).result


def _assert(holds: Any, text: str) -> None:
    ir.Operation.create("cf.assert", operands=[holds], attributes={"msg": ir.StringAttr.get(text)})
