"""Simplify pyc programs: identities, constant folding, then MLIR's own canonicalize and CSE.

The rewrites of `identities` run over each function until none applies; dead and repeated ops are
left to the native passes, which know that pyc ops are pure.
"""

from dataclasses import dataclass
from typing import ClassVar

from pyc_mlir.dialects.bindings import ir, passmanager
from pyc_mlir.dialects.irtypes import from_mlir
from pyc_mlir.dialects.pyc import compatible
from pyc_mlir.pipelines.choices import Choices
from pyc_mlir.pipelines.identities import REWRITES, fold_constants
from pyc_mlir.pipelines.pass_base import option
from pyc_mlir.pipelines.rewriting import functions_of, pyc_ops, replace


@dataclass(frozen=True)
class Canonicalize:
    """Fold constants and algebraic identities; remove dead and repeated ops."""

    name: ClassVar[str] = "pyc-canonicalize"
    max_iterations: int = option(10, "rounds over the program at most")
    max_fold_bytes: int = option(1 << 20, "fold a constant larger than its operands up to this")

    def run(self, module: ir.Module, choices: Choices) -> dict[str, int]:
        """Rewrite until nothing changes or the rounds are used up."""
        counts = {"identities": 0, "folded constants": 0, "rounds": 0}
        for _ in range(self.max_iterations):
            changed = sum(self._round(f, counts) for f in functions_of(module))
            counts["rounds"] += 1
            _clean(module)
            if not changed:
                break
        return counts

    def _round(self, function: ir.Operation, counts: dict[str, int]) -> int:
        """One pass over the function, in order, so that folded operands fold their users."""
        changed = 0
        for op in list(pyc_ops(function.regions[0].blocks[0])):
            changed += self._simplify(op, counts)
        return changed

    def _simplify(self, op: ir.Operation, counts: dict[str, int]) -> bool:
        name = op.name[4:]
        with ir.InsertionPoint(op), op.location:
            value = fold_constants(op, self.max_fold_bytes)
            kind = "identities" if value is None else "folded constants"
            for rewrite in REWRITES.get(name, ()):
                value = rewrite(op) if value is None else value
            if value is None or not compatible(from_mlir(op.result.type), from_mlir(value.type)):
                return False
        counts[kind] += 1
        replace(op, value)
        return True


def _clean(module: ir.Module) -> None:
    """Dead ops and common subexpressions, by the native passes.

    The result is verified once, after the whole pass.
    """
    with module.context:
        manager = passmanager.PassManager.parse("builtin.module(func.func(canonicalize,cse))")
        manager.enable_verifier(False)
        manager.run(module.operation)
