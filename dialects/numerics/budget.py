"""A limit on what references compute for a comparison, counted in work and bytes, by no clock.

Each op's work is taken from the budget before the op is evaluated, so that equal programs get
equally far on every machine.
"""

from collections.abc import Sequence
from typing import Any

from pyc_mlir.dialects.opdef import OpDef
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
