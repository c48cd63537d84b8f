"""Add the entry `main$arena`, which takes the memory that `main` would allocate.

    main(inputs...) -> results
    main$arena(inputs..., arena, outputs...) -> results

It is made at the end of IREE's phase `flow`, where dispatches are final: a copy of the function in
which results are written into buffers of the caller (``hal.tensor.alias``) and the scratch
comes from another one (``hal.tensor.transients``). Both functions launch the same dispatches, so
code is generated once. IREE's ``EmplaceTransients`` and ``MaterializeTransientSizeQueries`` do the
rest in the stream phase, after the memory plan, so that the arena has the planned size.

An output can take a buffer where its shape is known before the call: static dimensions, and
dynamic ones that are a dimension of an input. It does take one if `taken` says so: arena_choice.py
leaves it out where IREE would make the value elsewhere and copy it. The shapes travel in the
function's reflection, as ``pyc.outputs``: JSON, for each result its dimensions (a size, or [input,
axis]) or null; ``pyc.buffers`` are the numbers of the results that take buffers, in that order.
``pyc.donations``, which comes with the memory plan, are pairs [input, result]: the input's memory
may be the buffer of the result.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any

from pyc_mlir.iree.own_results import ARGUMENT, BARRIER
from pyc_mlir.iree.session import IreeSession
from pyc_mlir.pipelines.streams.ir import index_constant, ir, maker, operations, ties
from pyc_mlir.pipelines.streams.sizes import Ranges

SUFFIX = "$arena"
OUTPUTS, BUFFERS, DONATIONS = "pyc.outputs", "pyc.buffers", "pyc.donations"
_RESHAPE, _DISPATCH, _ALIAS = "flow.tensor.reshape", "flow.dispatch", "hal.tensor.alias"
# Dimensions of an output: a size, or the input and its axis that have it. None: not known.
Shape = list[int | list[int]] | None


def add_entry(module: Any, function: str, name: str, left_out: Collection[int] = ()) -> str:
    """Add the entry `name` to a module at the end of phase `flow`; why it cannot be, or nothing.

    `left_out` are the numbers of results that take no buffer.
    """
    body = module.regions[0].blocks[0]
    main = function_named(module, function)
    if main is None or "iree.abi.stub" not in main.attributes:
        return "IREE gave the function no entry of its plain ABI"
    if function_named(module, name) is not None:
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


def note_donations(function: Any, pairs: Sequence[tuple[int, int]]) -> None:
    """Have the reflection of an entry say which inputs may give their memory to a result."""
    entries = {a.name: a.attr for a in ir.DictAttr(function.attributes["iree.reflection"])}
    entries[DONATIONS] = ir.StringAttr.get(json.dumps(list(map(list, pairs))))
    function.attributes["iree.reflection"] = ir.DictAttr.get(entries)


def _obstacle(main: Any) -> str:
    """Return why a second entry of `main` cannot be made, or nothing."""
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
    return {OUTPUTS: shapes, BUFFERS: buffers}


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
        user = use.owner.operation
        if user != alias and last.is_before_in_block(_in_block(user, block)):
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


def _in_block(op: Any, block: Any) -> Any:
    """Return the op of `block` in which `op` stands."""
    while op.block != block:
        op = op.parent.operation
    return op


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
    """Return the dimensions of a result, as far as the arguments tell them before the call."""
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
    """Return the op that hands a computed tensor out; None where an argument is handed back."""
    op = maker(value)
    return op if op is not None and op.name == "hal.tensor.export" else None


def function_named(module: Any, name: str) -> Any | None:
    """Return the function of that name, if a module has one."""
    for op in operations(module.regions[0].blocks[0]):
        if op.name == "util.func" and ir.StringAttr(op.attributes["sym_name"]).value == name:
            return op
    return None


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
        found = function_named(session.module, function)
        if found is None or not ranges:
            return
        block = found.regions[0].blocks[0]
        with ir.InsertionPoint.at_block_begin(block):
            for (argument, axis), (low, high) in ranges.items():
                size = _dimension(block.arguments[argument], axis)
                text = f"input{argument}: expected {low} to {high} in dimension {axis}"
                _assert(_compared(_AT_LEAST, size, low), text)
                _assert(_compared(_AT_MOST, size, high), text)
        found.verify()


def _dimension(view: Any, axis: int) -> Any:
    index = ir.IndexType.get()
    attributes = {"index": ir.IntegerAttr.get(index, axis)}
    return ir.Operation.create(
        "hal.buffer_view.dim", results=[index], operands=[view], attributes=attributes
    ).result


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
