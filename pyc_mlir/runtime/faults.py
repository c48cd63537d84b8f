"""The counts of faults that a program compiled with ``detect_faults`` returns beside its results.

Its functions have one result more than the signature says: for each workgroup of a product, tiles
that were suspected, repaired and that stay wrong (`pipelines/kernels/shared/checksums.py`).
"""

import threading
from dataclasses import dataclass

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.runtime.array import Array
from pyc_mlir.runtime.events import FAULT, RunLog

# As the kernels lay them out.
SUSPECTED, REPAIRED, LASTING = range(3)
COUNTS, PLACES = 3, 768


@dataclass(frozen=True)
class FaultCounts:
    """Tiles of products, over all calls: computed again and found right, repaired, and wrong.

    A suspicion alone is no fault: sums of large numbers that cancel are suspected too, which costs
    the time of computing them again.
    """

    suspected: int = 0
    repaired: int = 0
    lasting: int = 0

    def __str__(self) -> str:
        found = f"{self.repaired} tiles repaired, {self.lasting} lasting"
        return f"{found}, {self.suspected} suspected in vain"


class Faults:
    """The faults of one program. Several threads may report."""

    __slots__ = ("_counts", "_lock", "_log")

    def __init__(self, log: RunLog) -> None:
        self._counts = FaultCounts()
        self._lock = threading.Lock()
        self._log = log

    @property
    def counts(self) -> FaultCounts:
        """The counts so far."""
        return self._counts

    def take(self, found: Array) -> None:
        """Add the counts of a call. Raises PycError (FAULT_DETECTED) if some tiles stay wrong."""
        numbers = found.numpy()
        if not numbers.any():
            return
        suspected, repaired, lasting = map(int, numbers.reshape(-1, COUNTS).sum(axis=0))
        with self._lock:
            before = self._counts
            self._counts = FaultCounts(
                before.suspected + suspected, before.repaired + repaired, before.lasting + lasting
            )
        if repaired:
            tiles = f"{repaired} tiles of products were wrong, and right when computed again"
            self._log.add(FAULT, "repaired", tiles, ReasonCode.FAULT_REPAIRED)
        if lasting:
            raise PycError(
                ReasonCode.FAULT_DETECTED,
                f"program: expected products whose sums are those of their operands, got "
                f"{lasting} tiles that are not, computed three times; the answer was not given "
                "out: load the program again, and if that does not help, use another machine",
            )


def result_type() -> tuple[np.dtype, tuple[int, ...]]:
    """Return the type and the shape of the result that counts."""
    return np.dtype(np.float32), (PLACES,)
