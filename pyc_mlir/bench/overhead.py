"""What does a call through `Program` cost above IREE's bare invoke?"""

from dataclasses import dataclass

from pyc_mlir.bench.measure import interleave
from pyc_mlir.iree.array import Array
from pyc_mlir.program import Program


@dataclass(frozen=True)
class CallOverhead:
    """Median seconds of one call: through the program, bare, and the difference."""

    program_seconds: float
    bare_seconds: float

    @property
    def overhead_seconds(self) -> float:
        """What guards, statistics and arrays cost."""
        return self.program_seconds - self.bare_seconds


def measure_call_overhead(
    program: Program, *args: Array, rounds: int = 31, min_seconds: float = 0.005
) -> CallOverhead:
    """Interleave `program(*args)` with a bare ``VmContext.invoke`` of a prebuilt argument list.

    `args` are arrays on the program's device; a sample lasts at least `min_seconds`.
    """
    timings = interleave(
        {"program": lambda: program(*args), "bare": program.bare_call(*args)},
        rounds=rounds,
        min_seconds=min_seconds,
    )
    return CallOverhead(timings["program"].median, timings["bare"].median)
