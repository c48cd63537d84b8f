"""Run a pyc program on arrays, with the tolerance of each result by rounding analysis.

The values are those of the numpy references; the deviations follow rounding.py, op by op. What the
references compute may be limited, in work and bytes, by no clock: each op's work is taken from the
budget before the op is evaluated, so that equal programs get equally far on every machine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.attributes import params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.ir.interpreter import check_unstretched, op_definition, walk
from pyc_mlir.dialects.numerics.approximation import Approximation
from pyc_mlir.dialects.numerics.rounding import (
    KERNELS,
    RULES,
    Rule,
    Uncertain,
    composed,
    leaves_range,
)
from pyc_mlir.dialects.opdef import OpDef, Trait, unrounded
from pyc_mlir.dialects.types import TensorType

# What an op takes besides its elements, in units of `OpDef.evaluation_work` (0.1 ns): its value and
# its deviation are dozens of calls of numpy.
OP_WORK = 4_000_000
# How often elements are gone through, for the value and its deviation; and what an operation takes
# of products, which are three, by BLAS (`any_order`).
_PASSES, _OPERATION = 4, 0.6


class OverBudget(Exception):
    """The references would take more than the budget has left."""


class ReferenceBudget:
    """A budget of `work` in units of `OpDef.evaluation_work`; no op takes more than `bytes`.

    The bytes are those of an op's operands and result. `spent` is the work that was taken.
    """

    def __init__(self, work: int, bytes_: int) -> None:
        self._work, self._bytes = work, bytes_
        self.spent = 0

    @property
    def left(self) -> int:
        """The work that may still be taken."""
        return self._work - self.spent

    def take(self, op: type[OpDef], operands: Sequence[TensorType], params: dict[str, Any]) -> None:
        """Take the work of an op and of its deviation. Raises OverBudget.

        Operands are of known sizes. A result whose size only values decide takes nothing.
        """
        out = op.infer(*operands, **params)
        work, size = OP_WORK, 0
        if out.is_static:
            flops = op.flops(operands, out, **params)
            work += int(_OPERATION * flops)
            work += _PASSES * (op.evaluation_work(operands, out, **params) - flops)
            size = op.traffic(operands, out, **params)
        if size > self._bytes:
            raise OverBudget(f"an op takes {size} bytes, and may take {self._bytes}")
        if work > self.left:
            raise OverBudget(f"more work than {self._work} units of 0.1 ns")
        self.spent += work


class UncertainBuilder(Builder):
    """Computes each op with its reference, and the deviation of its result by a rule.

    A composite op has the deviation of its decomposition, and what a kernel in its place may be off
    besides. An op without a rule, which a family from outside may bring, leaves nothing to compare:
    its deviation is infinite.
    """

    def __init__(
        self, budget: ReferenceBudget | None = None, rules: Mapping[str, Rule] = RULES
    ) -> None:
        """Take the work of each op from a budget, if there is one."""
        self._budget, self._rules = budget, rules

    def emit(self, op: type[OpDef], operands: Sequence[Uncertain], params: dict[str, Any]) -> Any:
        """Return the reference's value with its deviation. Raises OverBudget."""
        if self._budget is not None:
            self._budget.take(op, [self.type_of(o) for o in operands], params)
        exact, dtype = unrounded(op, [o.value for o in operands], **params)
        with np.errstate(all="ignore"):
            value = exact.astype(dtype, copy=False)
            if (rule := self._rules.get(op.name)) is not None:
                deviation = rule(value, *operands, **params)
            else:
                parts = op.decompose and op.decompose(self, *operands, **params)
                deviation = np.asarray(np.inf if parts is None else parts.deviation)
                if op.has(Trait.ELEMENTWISE):
                    deviation = composed(value, deviation, operands)
                if (more := KERNELS.get(op.name)) is not None:
                    deviation = deviation + more(value, *operands, **params)
            # What a conversion rounds is its operand.
            exact = operands[0].value if op.has(Trait.CONVERTS) else exact
            lost = np.isnan(deviation) | leaves_range(exact, deviation, dtype)
        known = np.where(lost, np.inf, deviation)
        return Uncertain(value, np.broadcast_to(known, value.shape))

    def constant(self, value: np.ndarray) -> Uncertain:
        """Return the array, exactly."""
        return Uncertain.exact(np.asarray(value))

    def type_of(self, value: Uncertain) -> TensorType:
        """Return the type of the array."""
        return TensorType(value.value.shape, value.value.dtype)


def interpret_uncertain(
    module: ir.Module,
    inputs: Sequence[np.ndarray],
    *,
    function: str = "main",
    budget: ReferenceBudget | None = None,
    rules: Mapping[str, Rule] = RULES,
    observe: Callable[[ir.Operation, Sequence[Uncertain], Uncertain], None] | None = None,
) -> list[Uncertain]:
    """Run a pyc function on arrays, which are taken as exact.

    A product that may be approximate has the deviation that it is allowed besides its own.
    rules: those of numpy's own operations (`NUMPY_RULES`) in place of the references'.
    observe: gets each op with its operands and its result.

    Raises PycError: as `interpret`, and INVALID_IR for dynamic sizes that do not fit together;
    OverBudget if there is a budget.
    """
    builder = UncertainBuilder(budget, rules)

    def step(op: ir.Operation, operands: list[Uncertain]) -> Uncertain:
        definition = op_definition(op)
        out = builder.build(definition, *operands, **params_of(definition, op))
        check_unstretched(op, [o.value.shape for o in operands], out.value.shape)
        approximation, off = Approximation.read(op), out.deviation
        if approximation is not None:
            off = np.hypot(off, approximation.deviation(out.value))
        reached = approximation is not None or any(o.approximate for o in operands)
        out = Uncertain(out.value, off, reached)
        if observe is not None:
            observe(op, operands, out)
        return out

    return walk(module, [Uncertain.exact(a) for a in inputs], step, function)
