"""The one door of pipelines/ to IREE's MLIR bindings, and what any reader of stream IR asks.

Questions answered: which execution regions does a module have, which resources does an op read,
which does it write, how large are they (as SSA values), and which results update an operand in
place. The forms of the ops follow IREE 3.13's Stream dialect (``StreamOps.td``)."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from iree.compiler import ir

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.names import ids_in

EXECUTE = "stream.async.execute"
CONCURRENT = "stream.async.concurrent"
DISPATCH = "stream.async.dispatch"
# Ops that write a part of their first operand, whose size is their second.
UPDATES = ("stream.async.fill", "stream.async.copy", "stream.async.update")
# Ops that make fresh contents; their last operand is the size.
FRESH = (
    "stream.async.alloca",
    "stream.async.clone",
    "stream.async.constant",
    "stream.async.slice",
    "stream.async.splat",
    "stream.async.transfer",
)
# What `tied_operands` says of a result that has storage of its own.
UNTIED = -1


def dialect(name: str) -> Any:
    """Return the typed builders of a dialect, loaded when asked for: most compiles need none."""
    return import_module(f"iree.compiler.dialects.{name}")


def find(root: Any, name: str) -> list[Any]:
    """Return all ops called `name` under `root`, in the order of the text."""
    found = []

    def visit(op: Any) -> Any:
        if op.name == name:
            found.append(op.operation)
        return ir.WalkResult.ADVANCE

    root.walk(visit)
    return found


def operations(block: Any) -> list[Any]:
    """Return the ops of a block, its terminator included."""
    return [op.operation for op in block.operations]


def functions_of(module: Any) -> dict[str, Any]:
    """Return the functions of a module that have a body, by name."""
    return {name_of(f): f for f in find(module, "util.func") if len(f.regions[0].blocks)}


def maker(value: Any) -> Any | None:
    """Return the op that makes `value`; None for a block's argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def constant_of(value: Any) -> int | None:
    """Return the number that an index is, where it is a constant."""
    op = maker(value)
    if op is None or op.name != "arith.constant":
        return None
    return ir.IntegerAttr(op.attributes["value"]).value


def index_constant(number: int) -> Any:
    """Return an index constant at the current insertion point and location."""
    index = ir.IndexType.get()
    attributes = {"value": ir.IntegerAttr.get(index, number)}
    return ir.Operation.create("arith.constant", results=[index], attributes=attributes).result


def is_resource(value: Any) -> bool:
    """Return whether a type is memory, not a number or a timepoint."""
    return str(value.type).startswith("!stream.resource")


def resources(values: Any) -> list[Any]:
    """Return those of `values` that are memory."""
    return [v for v in values if is_resource(v)]


def group(op: Any, number: int) -> list[Any]:
    """Return one variadic group of operands by `operandSegmentSizes`; -1 is the last."""
    sizes = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    start = sum(sizes[: number % len(sizes)])
    return [op.operands[i] for i in range(start, start + sizes[number])]


def in_group(op: Any, number: int, place: int) -> Any:
    """Return one operand of a variadic group, as `group` counts, without making them all."""
    sizes = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    return op.operands[sum(sizes[: number % len(sizes)]) + place]


def number_of(result: Any) -> int:
    """Return which of its op's results a resource is: resources stand before timepoints."""
    return ir.OpResult(result).result_number


def result_sizes(op: Any) -> list[Any]:
    """Return the sizes of the op's resource results, in bytes, as values."""
    if op.name in (DISPATCH, CONCURRENT, EXECUTE):
        return group(op, _SIZE_GROUPS[op.name])
    if op.name in UPDATES:
        return [op.operands[1]]
    return [op.operands[len(op.operands) - 1]] if op.name in FRESH else []


def size_value(value: Any) -> Any:
    """Return the size of a resource within an execution region, in bytes, as a value."""
    op = maker(value)
    if op is None:
        return in_group(value.owner.owner.operation, 1, ir.BlockArgument(value).arg_number)
    if op.name in _SIZE_GROUPS:
        return in_group(op, _SIZE_GROUPS[op.name], number_of(value))
    return result_sizes(op)[0]


# The last group of an execution region are the timepoints that it awaits.
_SIZE_GROUPS = {DISPATCH: -1, CONCURRENT: -1, EXECUTE: 2}
# Which group of operands `tied_operands` counts in: a dispatch's first one is its workload.
_TIED_GROUPS = {DISPATCH: 1, CONCURRENT: 0, EXECUTE: 0, "flow.dispatch": 1}


def ties(op: Any) -> list[tuple[Any, Any]]:
    """Return pairs (result, operand) that share storage: the op updates the operand in place.

    IREE leaves the list of tied operands empty where no result of a region is tied.
    """
    if op.name in UPDATES:
        return [(op.results[0], op.operands[0])]
    if op.name not in _TIED_GROUPS or "tied_operands" not in op.attributes:
        return []
    operands = group(op, _TIED_GROUPS[op.name])
    numbers = [ir.IntegerAttr(a).value for a in ir.ArrayAttr(op.attributes["tied_operands"])]
    if not numbers:
        return []
    results = (r for r in op.results if str(r.type) != "!stream.timepoint")
    return [(r, operands[n]) for r, n in zip(results, numbers, strict=True) if n != UNTIED]


def storage_of(value: Any) -> Any:
    """Return the value that begins the storage of `value`, in execution regions or outside."""
    while True:
        op = maker(value)
        if op is None:
            region = value.owner.owner.operation
            if region.name not in (EXECUTE, CONCURRENT):
                return value
            value = in_group(region, 0, ir.BlockArgument(value).arg_number)
            continue
        if op.name in (EXECUTE, CONCURRENT):
            # What is handed out stands before its sizes.
            value = op.regions[0].blocks[0].operations[-1].operands[number_of(value)]
            continue
        before = [operand for result, operand in ties(op) if result == value]
        if not before:
            return value
        value = before[0]


def symbol_of(op: Any) -> str:
    """``executable::function`` of a dispatch (its first entry point), else the op's own name."""
    if op.name != DISPATCH:
        return op.name
    return str(ir.ArrayAttr(op.attributes["entry_points"])[0]).replace("@", "")


def dispatched(module: Any) -> dict[str, Any]:
    """Return the functions of all executables by their dispatch symbol."""
    return {
        f"{name_of(executable)}::{name_of(function)}": function
        for executable in find(module, "stream.executable")
        for function in find(executable, "func.func")
    }


def name_of(op: Any) -> str:
    """Return the symbol that an op defines."""
    return ir.StringAttr(op.attributes["sym_name"]).value


def function_of(op: Any) -> str:
    """Return the name of the function that an op stands in; empty within an initializer."""
    while op is not None and op.name not in ("util.func", "util.initializer"):
        op = op.parent.operation if op.parent is not None else None
    return name_of(op) if op is not None and op.name == "util.func" else ""


def leaves(block: Any) -> Iterator[Any]:
    """Yield the ops of an execution region without its terminator, waves opened, waves left out."""
    for op in operations(block)[:-1]:
        if op.name == CONCURRENT:
            yield from operations(op.regions[0].blocks[0])[:-1]
        else:
            yield op


def source_ids(op: Any) -> tuple[str, ...]:
    """Return the ids of the pyc ops that an op was made of, in the order of its location."""
    return ids_in(str(op.location))


FLOPS, IN_PLACE = "pyc.flops", "pyc.in_place"


def declared_flops(function: Any) -> int:
    """Return the operations of one run, 0 where nothing is said.

    Raises PycError (INVALID_IR) for an attribute that is no integer of 0 or more.
    """
    if FLOPS not in function.attributes:
        return 0
    flops = _integer(function.attributes[FLOPS])
    if flops is None or flops < 0:
        raise _refused(function, FLOPS, "an integer of 0 or more")
    return flops


def declared_in_place(function: Any, bindings: int) -> frozenset[tuple[int, int]]:
    """Return the pairs (written, read) of a function with so many bindings; none if undeclared.

    Raises PycError (INVALID_IR) for what is no list of pairs of two different bindings.
    """
    if IN_PLACE not in function.attributes:
        return frozenset()
    attribute = function.attributes[IN_PLACE]
    pairs = [_pair(a) for a in attribute] if isinstance(attribute, ir.ArrayAttr) else [None]
    found = frozenset(pair for pair in pairs if pair is not None)
    inside = all(0 <= number < bindings for pair in found for number in pair)
    if None in pairs or not inside or any(written == read for written, read in found):
        expected = f"pairs [written, read] of different bindings below {bindings}"
        raise _refused(function, IN_PLACE, expected)
    return found


def _pair(attribute: Any) -> tuple[int, int] | None:
    numbers = list(map(_integer, attribute)) if isinstance(attribute, ir.ArrayAttr) else []
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        return None
    return numbers[0], numbers[1]


def _integer(attribute: Any) -> int | None:
    return attribute.value if isinstance(attribute, ir.IntegerAttr) else None


def _refused(function: Any, name: str, expected: str) -> PycError:
    symbol = ir.StringAttr(function.attributes["sym_name"]).value
    return PycError(
        ReasonCode.INVALID_IR,
        f"kernel @{symbol}: expected `{name}` to be {expected}, got {function.attributes[name]}",
    )


_PASS_ON = ("stream.async.cast", "stream.async.transfer")


def is_own_memory(value: Any) -> bool:
    """Return True for a resource, outside of execution regions, that is such a buffer."""
    op = maker(value)
    while op is not None and op.name in _PASS_ON:
        value = op.operands[0]
        op = maker(value)
    if op is None or op.name != "stream.tensor.import":
        return False
    buffer = op.operands[0]
    return str(buffer.type) == "!hal.buffer" and isinstance(buffer.owner, ir.Block)
