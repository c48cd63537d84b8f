"""The suite `overhead`: cost of a call through `Program` above IREE's bare invoke."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pyc_mlir.api import compile
from pyc_mlir.measure.interleave import Timing, interleave, timing_records
from pyc_mlir.measure.records import record
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program, serving
from pyc_mlir.tools.bench.report.suite import note, parse

SUITE = "overhead"
ROUNDS = 51
_ELEMENTS = 4


@dataclass(frozen=True)
class CallOverhead:
    """One call, interleaved: through the program, and bare."""

    timings: Mapping[str, Timing]

    @property
    def program_seconds(self) -> float:
        """The median of a call through the program."""
        return self.timings["pyc"].median

    @property
    def bare_seconds(self) -> float:
        """The median of IREE's invoke with a prebuilt argument list."""
        return self.timings["iree"].median

    @property
    def overhead_seconds(self) -> float:
        """The cost of guards, statistics and arrays."""
        return self.program_seconds - self.bare_seconds


def measure_call_overhead(
    program: Program, *args: Array, rounds: int = 31, min_seconds: float = 0.005
) -> CallOverhead:
    """Interleave `program(*args)` with a bare ``VmContext.invoke`` of a prebuilt argument list.

    `args` are arrays on the program's device; a sample lasts at least `min_seconds`.
    """
    calls = {"pyc": lambda: program(*args), "iree": serving(program).bare_call(*args)}
    return CallOverhead(interleave(calls, rounds=rounds, min_seconds=min_seconds))


def run(arguments: Sequence[str]) -> int:
    """Measure a call's cost through Program above IREE's bare invoke: two arguments, local-sync."""
    bench, _ = parse(SUITE, run.__doc__ or "", ROUNDS, arguments)
    device = Device("local-sync")
    numbers = np.arange(_ELEMENTS, dtype=np.float32)
    program = compile(lambda a, b: a + b, [numbers, numbers], device=device)
    a, b = to_device(numbers, device), to_device(numbers, device)
    found = measure_call_overhead(
        program, a, b, rounds=bench.rounds, min_seconds=bench.min_seconds / 10
    )
    title = f"add of {_ELEMENTS} elements"
    over = record(title, "pyc", "above bare invoke", "s", found.overhead_seconds)
    note(f"{title}: {found.overhead_seconds * 1e6:.2f} us above {found.bare_seconds * 1e6:.2f} us")
    bench.store([*timing_records(title, found.timings), over], device="local-sync")
    return 0
