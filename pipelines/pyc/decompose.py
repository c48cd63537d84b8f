"""Composite pyc ops to primitive ones, by the decomposition that each definition gives.

``softmax(x) -> div(exp(sub(x, max(x))), sum(...))``, and so on until every op is primitive.
"""

from dataclasses import dataclass
from typing import ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.pipelines.driver.base import PassContext, Relation, option
from pyc_mlir.pipelines.pyc.rewriting import (
    definition_of,
    functions_of,
    params_of,
    pyc_ops,
    replace,
)


@dataclass(frozen=True)
class Decompose:
    """Replace composite pyc ops by primitive ones."""

    name: ClassVar[str] = "pyc-decompose"
    only: str = option("", "comma-separated op names; empty for all composite ops")

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Decompose until nothing changes. Raises PycError for an unknown name in `only`."""
        names = composite = {n for n, d in OPS.items() if d.decompose is not None}
        if self.only:
            names = {n.strip() for n in self.only.split(",")}
        if unknown := names - composite:
            raise PycError(
                ReasonCode.INVALID_PIPELINE,
                f"pyc-decompose: `only`: expected composite ops {sorted(composite)}, "
                f"got {sorted(unknown)}",
            )
        count = 0
        for function in functions_of(module):
            pending = True
            while pending:
                ops = list(pyc_ops(function.regions[0].blocks[0]))
                done = [decompose_op(op) for op in ops if op.name.removeprefix("pyc.") in names]
                pending = any(done)
                count += sum(done)
        return {"decomposed": count}


def decompose_op(op: ir.Operation) -> bool:
    """Replace one op by its decomposition. False when it is primitive in its present form."""
    definition = definition_of(op)
    if definition is None or definition.decompose is None:
        return False
    with ir.InsertionPoint(op), op.location:
        out = definition.decompose(IRBuilder(), *op.operands, **params_of(definition, op))
    if out is None:
        return False
    replace(op, out, Relation.REALS, "pyc-decompose")
    return True
