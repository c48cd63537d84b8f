"""Checks in the program itself that dimensions keep their declared ranges.

PyC's runtime refuses a call outside with a message of its own, before anything runs
(signature.py). What else runs the `.vmfb`, such as IREE's tools, meets the same bounds here: memory
may have been planned for the largest sizes.
"""

from typing import Any

from pyc_mlir.iree.memory.arena_entry import function_named
from pyc_mlir.iree.session import IreeSession
from pyc_mlir.pipelines.streams.ir import index_constant, ir
from pyc_mlir.pipelines.streams.sizes import Ranges

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
