"""The import report of a program that was imported whole.

It follows from the structure of the graph alone, as the graph's id does: the same program has the
same report, whatever it was imported from.
"""

from collections.abc import Sequence

from pyc_mlir.artifact.import_report import ISLAND, GraphBreak, ImportReport
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.ir.attributes import params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.dialects.util.index_ranges import CLAMPED

_OURS = "pyc."
_CONSTANT = "pyc.constant"
_WHY = "PyC has no rule for it; torch-mlir lowered it for IREE"


def graph_report(function: ir.Operation) -> ImportReport:
    """Return the report of a function: the ops that a result needs, constants aside, and flops."""
    ops = [op for op in _needed(function) if op.name != _CONSTANT]
    foreign = sum(not op.name.startswith(_OURS) for op in ops)
    flops = [_flops(op) for op in ops]
    known = [f for f in flops if f is not None]
    total = sum(known) if len(known) == len(flops) else None
    islands, attributes = _islands(function, ops), function.attributes
    clamped = ir.IntegerAttr(attributes[CLAMPED]).value if CLAMPED in attributes else 0
    return ImportReport(len(ops), foreign=foreign, flops=total, islands=islands, clamped=clamped)


def _islands(function: ir.Operation, ops: Sequence[ir.Operation]) -> tuple[GraphBreak, ...]:
    """Return the calls of functions that stand for a node of the source, in the graph's order."""
    body = [op.operation for op in function.parent.regions[0].blocks[0].operations]
    marked = [op for op in body if ISLAND in op.attributes]
    made = {ir.StringAttr(op.attributes["sym_name"]).value: op.attributes[ISLAND] for op in marked}
    calls = [op for op in reversed(ops) if op.name == "func.call"]
    names = [ir.FlatSymbolRefAttr(op.attributes["callee"]).value for op in calls]
    return tuple(
        GraphBreak(name, ir.StringAttr(made[name]).value, ReasonCode.UNSUPPORTED_OP, _WHY)
        for name in names
        if name in made
    )


def _needed(function: ir.Operation) -> list[ir.Operation]:
    """Return the ops that the body's terminators need, also in regions, without terminators."""
    found: list[ir.Operation] = []
    for block in function.regions[0].blocks:
        *ops, end = [op.operation for op in block.operations]
        needed = _read_by(end)
        for op in reversed(ops):
            if not needed.isdisjoint(op.results) or not len(op.results):
                needed |= _read_by(op)
                found.append(op)
    return found


def _read_by(op: ir.Operation) -> set[ir.Value]:
    """Return the values that an op reads, and those that ops in its regions read."""
    inner = (o.operation for r in op.regions for b in r.blocks for o in b.operations)
    return set(op.operands).union(*map(_read_by, inner))


def _flops(op: ir.Operation) -> int | None:
    """Count operations by the op's definition; None without one, and for dynamic shapes."""
    definition = OPS.get(op.name.removeprefix(_OURS)) if op.name.startswith(_OURS) else None
    if definition is None:
        return None
    types: list[TensorType] = [from_mlir(v.type) for v in (*op.operands, *op.results)]
    if not all(t.is_static for t in types):
        return None
    return definition.flops(types[:-1], types[-1], **params_of(definition, op))
