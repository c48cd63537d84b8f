"""Simplify pyc programs: MLIR's own canonicalize and CSE, identities, constant folding.

Dead and repeated ops are left to the native passes, which know that pyc ops are pure; the rewrites
of `identities` and `normal_forms` run over what they leave, in turns with them, until none applies.
"""

from dataclasses import dataclass
from typing import ClassVar

from pyc_mlir.dialects.ir.bindings import ir, passmanager
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.ir.pyc import compatible
from pyc_mlir.dialects.opdef import FoldWork
from pyc_mlir.dialects.ops.quantized import widens_weights
from pyc_mlir.pipelines.driver.base import PassContext, option
from pyc_mlir.pipelines.pyc.canonicalize.identities import can_fold, fold
from pyc_mlir.pipelines.pyc.canonicalize.normal_forms import KEEPS, REWRITES
from pyc_mlir.pipelines.pyc.rewriting import defining_op, functions_of, pyc_ops, replace


@dataclass(frozen=True)
class Canonicalize:
    """Fold constants and algebraic identities; remove dead and repeated ops."""

    name: ClassVar[str] = "pyc-canonicalize"
    max_iterations: int = option(10, "rounds of rewrites at most")
    max_fold_bytes: int = option(
        1 << 20,
        "fold a constant larger than its operands up to this; dequantized weights of any size",
    )

    keep_bytes: bool = option(False, "leave the conversions of constant bytes as they are")

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Rewrite until nothing applies or the rounds are used up."""
        counts = {"identities": 0, "folded constants": 0, "rounds": 0}
        _clean(module)
        while counts["rounds"] < self.max_iterations:
            if not sum(self._round(f, context.folding, counts) for f in functions_of(module)):
                break
            counts["rounds"] += 1
            _clean(module)
        return counts

    def _round(self, function: ir.Operation, work: FoldWork, counts: dict[str, int]) -> int:
        """Return one pass over the function, in order, so that folded operands fold their users."""
        changed = 0
        for op in list(pyc_ops(function.regions[0].blocks[0])):
            changed += self._simplify(op, work, counts)
        return changed

    def _simplify(self, op: ir.Operation, work: FoldWork, counts: dict[str, int]) -> bool:
        kept = self.keep_bytes and _widens_bytes(op)
        folds = not kept and can_fold(op, self.max_fold_bytes, work)
        rewrites = (fold,) if folds else REWRITES.get(op.name[4:], ())
        if not rewrites:
            return False
        with ir.InsertionPoint(op), op.location:
            done = next(((r, v) for r in rewrites if (v := r(op)) is not None), None)
        if done is None:
            return False
        rewrite, value = done
        if not compatible(from_mlir(op.result.type), from_mlir(value.type)):
            _erase_unused(value)
            return False
        counts["folded constants" if folds else "identities"] += 1
        replace(op, value, KEEPS[rewrite], rewrite.__name__)
        return True


def _widens_bytes(op: ir.Operation) -> bool:
    """Return whether an op converts what may be quantized weights, which pyc-recognize reads."""
    return op.name == "pyc.cast" and widens_weights("cast", from_mlir(op.operands[0].type))


def _erase_unused(value: ir.Value) -> None:
    """Drop what a rewrite has made in vain; a value that was there before has uses."""
    maker = defining_op(value)
    if maker is not None and not list(value.uses):
        maker.erase()


def _clean(module: ir.Module) -> None:
    """Drop dead ops and common subexpressions, by the native passes.

    The result is verified once, after the whole pass.
    """
    with module.context:
        manager = passmanager.PassManager.parse("builtin.module(func.func(canonicalize,cse))")
        manager.enable_verifier(False)
        manager.run(module.operation)
