"""Control flow without loops and branches: bounded unrolling, selection among branches.

pyc has no loop. A loop whose condition is known at import is unrolled up to `MAX_UNROLLED`
operations; that covers every loop over layers, over a fixed number of steps, and over a
sequence of static length. Other loops are refused with a code.
"""

from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.frontends.hlo.call import Call
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.util.logs import COMPILE, warn

# Operations that all unrolled loops of a program may make, and how many are told.
MAX_UNROLLED, MANY_UNROLLED = 20_000, 1_000


class Loops:
    """The loops of a program: how many operations unrolling has written out so far."""

    def __init__(self) -> None:
        self._steps = self._written = 0

    def step(self, operations: int) -> None:
        """Take one step of a loop. Raises PycError (UNSUPPORTED_ATTRIBUTE) beyond the bound."""
        self._steps += 1
        self._written += max(operations, 1)
        if self._written > MAX_UNROLLED:
            raise unsupported(
                f"loops of more than {MAX_UNROLLED} operations when unrolled, after {self._steps} "
                "steps: expected fewer steps; compile one step and call it in a loop"
            )

    def tell(self) -> None:
        """Warn of many operations (LOOP_UNROLLED), once the program is imported."""
        if self._written > MANY_UNROLLED:
            warn(
                COMPILE,
                ReasonCode.LOOP_UNROLLED.name,
                f"loops: expected at most {MANY_UNROLLED} operations, got {self._written} in "
                f"{self._steps} steps, since each step is written out; compile time and code grow "
                "with them: compile one step and call it in a loop, take fewer steps, or bound the "
                "time by `max_compile_seconds`",
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
