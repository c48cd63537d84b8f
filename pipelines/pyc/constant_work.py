"""The constants of a program: their bytes, and what IREE would compute of them while it compiles.

IREE evaluates every op whose operands are constants, without a bound, unless it is told to leave
them to the start of the program.
"""

from collections.abc import Iterable

from pyc_mlir.dialects.ir.attributes import array_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.pipelines.pyc.rewriting import definition_of, functions_of, params_of, pyc_ops


def constant_work(module: ir.Module) -> int:
    """Return the work of the ops of constants alone, in units of `OpDef.evaluation_work`."""
    return sum(_Known().work(f.regions[0].blocks[0]) for f in functions_of(module))


def constant_bytes(module: ir.Module, alignment: int) -> int:
    """Return the bytes of all constants of a pyc module that have to be stored, each aligned."""
    ops = [op for f in functions_of(module) for op in pyc_ops(f.regions[0].blocks[0])]
    values = (op.attributes["value"] for op in ops if op.name == "pyc.constant")
    return stored_bytes(values, alignment)


def lowered_constants(module: ir.Module) -> list[ir.Operation]:
    """Return the constants of a module in linalg, also those within other ops."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "arith.constant":
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def stored_bytes(values: Iterable[ir.Attribute], alignment: int) -> int:
    """Return the bytes of those constants that have to be stored, each aligned."""
    # A repeated element, whose view has no strides, is computed in place.
    stored = (a.nbytes for a in map(array_of, values) if any(a.strides))
    return sum(-(-size // alignment) * alignment for size in stored)


class _Known:
    """The values of a function that do not depend on its arguments."""

    def __init__(self) -> None:
        self.values: set[ir.Value] = set()

    def work(self, block: ir.Block) -> int:
        """Return the work of a block's known ops; their results join the known values."""
        total = 0
        for op in block.operations:
            operation = op.operation
            for region in operation.regions:
                total += sum(map(self.work, region.blocks))
            if not self._is_known(operation):
                continue
            self.values.update(operation.results)
            total += _work_of(operation)
        return total

    def _is_known(self, op: ir.Operation) -> bool:
        if op.name == "pyc.constant":
            return True
        ends = [block.operations[len(block.operations) - 1] for r in op.regions for block in r]
        read = [*op.operands, *(v for end in ends for v in end.operands)]
        return bool(len(op.results)) and bool(read) and all(v in self.values for v in read)


def _work_of(op: ir.Operation) -> int:
    """Return the work of one pyc op; 0 for groups, whose body was counted, and for constants."""
    found = definition_of(op)
    if found is None or found.name == "constant":
        return 0
    out, *given = (from_mlir(v.type) for v in (op.result, *op.operands))
    static = all(t.is_static for t in (out, *given))
    return found.evaluation_work(given, out, **params_of(found, op)) if static else 0
