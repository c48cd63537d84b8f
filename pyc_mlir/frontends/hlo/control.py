"""Control flow without loops and branches: bounded unrolling, selection among branches.

pyc has no loop. A loop whose condition is known at import is unrolled up to `MAX_UNROLLED`
operations; that covers every loop over layers, over a fixed number of steps, and over a
sequence of static length. Other loops are refused with a code.
"""

from typing import Any

import numpy as np

from pyc_mlir.frontends.hlo.call import Call
from pyc_mlir.frontends.importing.errors import unsupported

# Operations that all unrolled loops of a program may make.
MAX_UNROLLED = 20_000


class Loops:
    """The number of operations that unrolling may still write out."""

    def __init__(self) -> None:
        self._left = MAX_UNROLLED

    def step(self, operations: int) -> None:
        """Take one step of a loop. Raises PycError (UNSUPPORTED_ATTRIBUTE) beyond the bound."""
        self._left -= max(operations, 1)
        if self._left < 0:
            raise unsupported(
                f"loops of more than {MAX_UNROLLED} operations when unrolled: expected fewer steps"
            )

    def goes_on(self, condition: Any) -> bool:
        """Return whether a loop takes another step. Raises PycError if import cannot know it."""
        if not isinstance(condition, np.ndarray):
            raise unsupported(
                "a loop whose number of steps is known only when the program runs: expected a "
                "condition that depends on constants and on the steps taken"
            )
        return bool(condition)


def select_branch(call: Call) -> Any:
    """Select among operands 1, 2, ..., the results of branches, by operand 0 (i32).

    An index out of range names the last branch, as XLA's `case` does; jaxprs clamp it before.
    """
    b, which = call.b, call.x(0)
    out = call.x(call.count - 1)
    for i in reversed(range(1, call.count - 1)):
        here = b.compare(which, b.scalar(i - 1, which), predicate="eq")
        out = b.select(here, call.x(i), out)
    return out
