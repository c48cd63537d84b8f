"""Counts that kernels keep of their own work, which a program returns beside its results.

A kernel that counts has one operand more, which it updates: for each workgroup, side by side, as
f32. The program hands it from one such kernel to the next; the caller of the program does not see
it (`pyc_mlir/runtime/counts.py`).
"""

from dataclasses import dataclass
from math import prod

from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Memory
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar

# The counts of one workgroup.
COUNTS = 3
# Workgroups that have a place for their counts.
MOST_WORKGROUPS = 256
_SHAPE = (MOST_WORKGROUPS * COUNTS,)
# Tiles computed again and found equal, tiles repaired, tiles that stay wrong.
FAULTS = Operand("faults", _SHAPE, "update")
# Tiles, those computed exactly because their bound was too large, and because their sums were off.
APPROXIMATIONS = Operand("approximations", _SHAPE, "update")
COUNTED = (FAULTS, APPROXIMATIONS)


def fed_inputs(kernel: Kernel) -> list[Operand]:
    """Return the inputs that take values of a group; the program itself hands on the counts."""
    return [o for o in kernel.inputs if o not in COUNTED]


def most_workgroups(grid: tuple[int, ...]) -> str:
    """Return what is expected of a grid with more workgroups than have counts; "" for others."""
    return f"at most {MOST_WORKGROUPS} workgroups" if prod(grid) > MOST_WORKGROUPS else ""


@dataclass(frozen=True)
class Counter:
    """The counts of one workgroup of a grid of rows and columns."""

    memory: Memory
    slot: Index

    @staticmethod
    def of(k: Build, memory: Memory, rows: int) -> "Counter":
        """Return this workgroup's counts, in a grid of so many `rows`."""
        return Counter(memory, (k.workgroup(0) + k.workgroup(1) * rows) * COUNTS)

    def add(self, what: int, number: Scalar) -> None:
        """Add to a count."""
        at = self.slot + what
        self.memory.put(self.memory.number(at) + number, at)
