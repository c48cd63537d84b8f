"""A bound on what a compiler computes of constants, so that a chain of products ends soon.

A folder takes the work of each op from a budget before it evaluates the op; what is beyond is left
to the program. Bounds on single results do not bound a chain of them.
"""

from collections.abc import Sequence
from typing import Any

from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.types import TensorType

# In units of `OpDef.evaluation_work`: some two seconds of numpy, thrice that for integer products.
MAX_FOLDED_WORK = 1 << 34


class FoldWork:
    """A budget of work on constants; `spent` is the work that was taken."""

    def __init__(self, most: int = MAX_FOLDED_WORK) -> None:
        self._most = most
        self.spent = 0

    def takes(
        self, op: type[OpDef], inputs: Sequence[TensorType], out: TensorType, **params: Any
    ) -> bool:
        """Return whether evaluating an op is within what is left; if so, take it from there.

        A result of dynamic shape takes nothing: only its operands decide how large it is.
        """
        work = op.evaluation_work(inputs, out, **params) if out.is_static else 0
        if self.spent + work > self._most:
            return False
        self.spent += work
        return True
