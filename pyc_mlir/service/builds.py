"""Builds of a program: loaded, compared with the one in place, and warm before they serve."""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.test_vectors import make_inputs
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.runtime.load import load
from pyc_mlir.runtime.program import Program
from pyc_mlir.runtime.selection.selector import Selector

# Codes of calls that fail by a fault of the program or the machine, not of the caller.
FAULTS = frozenset(
    {
        ReasonCode.RUNTIME_FAILED,
        ReasonCode.OUT_OF_MEMORY,
        ReasonCode.WRONG_RESULT,
        ReasonCode.FAULT_DETECTED,
        ReasonCode.DEVICE_UNAVAILABLE,
        ReasonCode.ARENA_TOO_SMALL,
        ReasonCode.INTERNAL_ERROR,
    }
)
FAILED = -1.0
_WARM_CALLS = 2


@dataclass(eq=False)
class Build:
    """A program in place, and its latest calls.

    recent: their seconds, `FAILED` for one that failed. since: when the first of them may have
    begun, on the clock of `perf_counter`. judged_at: the count of calls at which they are judged
    next. slowest: seconds that the p95 of the first window may have, or None.
    distrusted: why its answers are not given out any more. modes_left: plans not tried as fallback.
    selector: chooses among its plans and other builds, if one was given.
    """

    number: int
    program: Program
    recent: deque[float]
    judged_at: int
    slowest: float | None = None
    distrusted: str = ""
    by_reference: bool = False
    modes_left: list[str] = field(default_factory=list)
    selector: Selector | None = None
    calls: int = 0
    since: float = 0.0


@dataclass
class Refusal:
    """Calls are refused until then; None: until another build is put in place."""

    why: str
    until: float | None
    seconds: float


def loaded(program: Program | Artifact | str | Path) -> Program:
    """Return a program on its default device. Raises PycError as `load` does."""
    if isinstance(program, Program):
        return program
    return Program(program) if isinstance(program, Artifact) else load(program)


def warm(program: Program) -> None:
    """Call a program a few times before it serves: on the smallest sizes that it declares."""
    signature = program.signature
    sizes = {name: low for name, (low, _) in signature.ranges.items()}
    if any(name not in sizes for name, _ in signature.undeclared):
        return
    inputs = make_inputs(signature, 0, sizes)
    for _ in range(_WARM_CALLS):
        program(*inputs)
