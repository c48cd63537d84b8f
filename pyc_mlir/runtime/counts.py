"""The counts that kernels keep of their own work, which a program returns beside its results.

Functions have one result more than the signature says for each of the manifest's `counts`: three
numbers for each workgroup of a product, as `pipelines/kernels/shared/counts.py` lays them out. An
`Entry` hands them to what takes them here, and the caller does not see them.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pyc_mlir.runtime.array import Array

# As the kernels lay them out.
COUNTS, PLACES = 3, 768
TakeCounts = Callable[[Array], None]


class Tally:
    """Three counts over all calls of one program. Several threads may report."""

    __slots__ = ("_lock", "_totals")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = (0, 0, 0)

    @property
    def totals(self) -> tuple[int, int, int]:
        """The counts so far."""
        return self._totals

    def add(self, found: Array) -> tuple[int, int, int]:
        """Add the counts of a call, which are returned."""
        numbers = found.numpy()
        if not numbers.any():
            return 0, 0, 0
        new = numbers.reshape(-1, COUNTS).sum(axis=0, dtype=np.float64)
        first, second, third = map(int, new)
        with self._lock:
            a, b, c = self._totals
            self._totals = (a + first, b + second, c + third)
        return first, second, third


@dataclass(frozen=True)
class ApproximationCounts:
    """Tiles of approximate products, over all calls, and those that were computed exactly.

    `by_bound`: because their error might have been larger than allowed; `by_sums`: because their
    sums were not those of their operands, which damaged memory explains.
    """

    tiles: int = 0
    by_bound: int = 0
    by_sums: int = 0

    def __str__(self) -> str:
        exact = self.by_bound + self.by_sums
        share = 100 * exact / max(1, self.tiles)
        return (
            f"{self.tiles} tiles, {share:.2f} % computed exactly ({self.by_bound} by their bound, "
            f"{self.by_sums} by their sums)"
        )


class Approximations:
    """The counts of one program's approximate products."""

    __slots__ = ("_tally",)

    def __init__(self) -> None:
        self._tally = Tally()

    @property
    def counts(self) -> ApproximationCounts:
        """The counts so far."""
        return ApproximationCounts(*self._tally.totals)

    def take(self, found: Array) -> None:
        """Add the counts of a call."""
        self._tally.add(found)


def result_type() -> tuple[np.dtype, tuple[int, ...]]:
    """Return the type and the shape of a result that counts."""
    return np.dtype(np.float32), (PLACES,)
