"""The second entry of a program: `main$arena`, which takes the memory that `main` would allocate.

    main(inputs...) -> results
    main$arena(inputs..., arena, outputs...) -> results

It is made at the end of IREE's phase `flow`, where dispatches are final: a copy of the function in
which each result is written into a buffer of the caller (``hal.tensor.alias``) and the scratch
comes from another one (``hal.tensor.transients``). Both functions launch the same dispatches, so
code is generated once. IREE's `EmplaceTransients` and `MaterializeTransientSizeQueries` do the
rest in the stream phase, after the memory plan, so that the arena has the planned size.

An output takes a buffer where its shape is known before the call: static dimensions, and dynamic
ones that are a dimension of an input. The shapes travel in the function's reflection, as
``pyc.outputs``: JSON, for each result its dimensions (a size, or [input, axis]) or null.
"""

import json
from dataclasses import dataclass
from typing import Any

from pyc_mlir.iree.session import Session
from pyc_mlir.iree.versions import held_bytes
from pyc_mlir.pipelines.stream_ir import find, ir, maker

SITE, MADE, NONE = "arena-entry", "made", "none"
SUFFIX = "$arena"
OUTPUTS = "pyc.outputs"
# A dimension of an output: a size, or the input and its axis that have it.
Dim = int | list[int]


@dataclass
class ArenaEntry:
    """Asks a compile for the second entry of `function`; afterwards, what came of it.

    Where it is not `wanted`, none is made, and only the account is read. `missing` says why there
    is none; `constants_bytes` is the memory that the program holds from its start to its end, None
    where that is not known; `left` counts the scratch allocations that a call of the second entry
    still makes itself. `suspect` is true while the stream phase, which may refuse what was added,
    has not been passed.
    """

    function: str
    wanted: bool = True
    missing: str = ""
    constants_bytes: int | None = None
    left: int = 0
    suspect: bool = False

    @property
    def name(self) -> str:
        """What the second entry is called."""
        return self.function + SUFFIX

    def add(self, session: Session) -> None:
        """Add the entry to a module at the end of phase `flow`, unless it cannot be."""
        if not self.wanted:
            return
        with session.context, ir.Location.unknown():
            self.missing = _add(session.module, self.function, self.name)
        self.suspect = not self.missing

    def read(self, session: Session) -> None:
        """Fill in the account from a module at the end of phase `stream`."""
        self.suspect = False
        body = session.module.regions[0].blocks[0]
        tops = [op.operation for op in body]
        self.constants_bytes = held_bytes(session.module)
        twin = _function(tops, self.name)
        self.left = 0 if twin is None else len(_transient_allocations(twin))


def _add(module: Any, function: str, name: str) -> str:
    """Add the entry; why it cannot be, or nothing."""
    body = module.regions[0].blocks[0]
    tops = [op.operation for op in body]
    main = _function(tops, function)
    if main is None or "iree.abi.stub" not in main.attributes:
        return "IREE gave the function no entry of its plain ABI"
    if _function(tops, name) is not None:
        return f"the module has a function `{name}` of its own"
    if obstacle := _obstacle(main):
        return obstacle
    twin = main.clone(ip=ir.InsertionPoint(body))
    twin.attributes["sym_name"] = ir.StringAttr.get(name)
    block = twin.regions[0].blocks[0]
    arena = block.add_argument(_buffer(), ir.Location.unknown())
    returned = list(block.operations)[-1].operation
    shapes = [_redirect(value, block, arena) for value in returned.operands]
    takes = [a.type for a in block.arguments]
    type_ = ir.FunctionType.get(takes, [v.type for v in returned.operands])
    twin.attributes["function_type"] = ir.TypeAttr.get(type_)
    reflection = {OUTPUTS: ir.StringAttr.get(json.dumps(shapes))}
    twin.attributes["iree.reflection"] = ir.DictAttr.get(reflection)
    for attributes in ("arg_attrs", "res_attrs"):
        if attributes in twin.attributes:
            del twin.attributes[attributes]
    twin.verify()
    return ""


def _obstacle(main: Any) -> str:
    """Why a second entry of `main` cannot be made, or nothing."""
    if len(main.regions[0].blocks) != 1:
        return "the function's control flow has several blocks"
    block = main.regions[0].blocks[0]
    if any("!hal.fence" in str(a.type) for a in block.arguments):
        return "the function has IREE's asynchronous ABI"
    if any(op.operation.name.startswith("scf.") for op in block):
        return "the function has control flow, and allocates where its way leads"
    returned = list(block.operations)[-1].operation.operands
    if not any(_export(v) is not None for v in returned):
        return "the function computes no tensor"
    return ""


def _redirect(value: Any, block: Any, arena: Any) -> list[Dim] | None:
    """Let one result be made in memory of the caller, which a new argument of `block` takes.

    Returns the shape of the result, or None where it takes no buffer; what it needs on the way
    comes from the arena in any case.
    """
    export = _export(value)
    if export is None:
        return None
    tensor, *dims = export.operands
    shape = _shape(tensor, dims)
    with ir.InsertionPoint(export):
        if shape is not None:
            buffer = block.add_argument(_buffer(), ir.Location.unknown())
            groups = ir.DenseI32ArrayAttr.get([1, len(dims), 1, 0])
            tensor = ir.Operation.create(
                "hal.tensor.alias",
                results=[tensor.type],
                operands=[tensor, *dims, buffer],
                attributes={"operandSegmentSizes": groups},
            ).result
        marked = ir.Operation.create(
            "hal.tensor.transients", results=[tensor.type], operands=[tensor, *dims, arena]
        )
    export.operands[0] = marked.result
    return shape


def _shape(tensor: Any, dims: list[Any]) -> list[Dim] | None:
    """The dimensions of a result, as far as the arguments tell them before the call."""
    type_ = ir.RankedTensorType(tensor.type)
    unknown = iter(dims)
    found: list[Dim] = []
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
    """The op that hands a computed tensor out; None where an argument is handed back."""
    op = maker(value)
    return op if op is not None and op.name == "hal.tensor.export" else None


def _function(tops: list[Any], name: str) -> Any | None:
    for op in tops:
        if op.name == "util.func" and ir.StringAttr(op.attributes["sym_name"]).value == name:
            return op
    return None


def _buffer() -> Any:
    return ir.Type.parse("!hal.buffer")


def _transient_allocations(function: Any) -> list[Any]:
    ops = find(function, "stream.resource.alloca")
    return [op for op in ops if "<transient>" in str(op.results[0].type)]
