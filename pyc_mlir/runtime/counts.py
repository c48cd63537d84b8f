"""The counts that kernels keep of their own work, which a program returns beside its results.

Faults of hardware under ``detect_faults``, and approximate products under a bound of the error.
Functions have one result more than the signature says for each of the manifest's `counts`: three
numbers for each workgroup of a product, as `pipelines/kernels/counts.py` lays them out. An
`Entry` hands them to what takes them here, and the caller does not see them.
"""

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.runtime.array import Array
from pyc_mlir.runtime.events import FAULT, REFUSED, RunLog

# As the kernels lay them out.
COUNTS, PLACES = 3, 768
# The type and the shape of a result that counts.
COUNTED = np.dtype(np.float32), (PLACES,)
TakeCounts = Callable[[Array], None]


class Tally:
    """Three counts over all calls of one program. Several threads may report."""

    __slots__ = ("_lock", "totals")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.totals = (0, 0, 0)

    def add(self, found: Array) -> tuple[int, int, int]:
        """Add the counts of a call, which are returned."""
        numbers = found.numpy()
        if not numbers.any():
            return 0, 0, 0
        new = numbers.reshape(-1, COUNTS).sum(axis=0, dtype=np.float64)
        first, second, third = map(int, new)
        with self._lock:
            a, b, c = self.totals
            self.totals = (a + first, b + second, c + third)
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


class Approximations(Tally):
    """The counts of one program's approximate products."""

    __slots__ = ()

    @property
    def counts(self) -> ApproximationCounts:
        """The counts so far."""
        return ApproximationCounts(*self.totals)

    def take(self, found: Array) -> None:
        """Add the counts of a call."""
        self.add(found)


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
    """The faults of one program. Several threads may report.

    memory: the loaded program with its constants: bits are summed now and when it is checked.
    """

    __slots__ = ("__weakref__", "_damaged", "_log", "_memory", "_sum", "_tally")

    def __init__(self, log: RunLog, memory: Any = b"") -> None:
        """Sum the bits of `memory`."""
        self._tally = Tally()
        self._log = log
        self._memory, self._sum, self._damaged = memory, _sum_of(memory), False

    @property
    def counts(self) -> FaultCounts:
        """The counts so far."""
        return FaultCounts(*self._tally.totals)

    def check_memory(self) -> None:
        """Sum the bits of the loaded program again; all calls are refused once they differ.

        Raises PycError (FAULT_DETECTED).
        """
        if not self._damaged and _sum_of(self._memory) != self._sum:
            self._damaged = True
            why = "the loaded program is not what it was when it was loaded"
            self._log.add(FAULT, REFUSED, why, ReasonCode.FAULT_DETECTED)
        self._require_sound()

    def _require_sound(self) -> None:
        if self._damaged:
            raise PycError(
                ReasonCode.FAULT_DETECTED,
                "program: expected weights and code as they were loaded, got other bits in memory; "
                "load the program again, and if that does not help, use another machine",
            )

    def take(self, found: Array) -> None:
        """Add the counts of a call. Raises PycError (FAULT_DETECTED) if some tiles stay wrong."""
        self._require_sound()
        _, repaired, lasting = self._tally.add(found)
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


def takers(faults: Faults | None, approximations: Approximations | None) -> tuple[TakeCounts, ...]:
    """Return what takes the counts, in the order in which functions return them."""
    return tuple(counter.take for counter in (faults, approximations) if counter is not None)


def _sum_of(memory: Any) -> int:
    """Return the sum of the bits as integers of 64 bits that wrap: any one flip changes it."""
    numbers = np.frombuffer(memory, np.uint8)
    whole = numbers.size // 8 * 8
    words = numbers[:whole].view(np.uint64).sum(dtype=np.uint64)
    return int(words) + int(numbers[whole:].sum(dtype=np.uint64))


def check_memory(faults: Faults | None, every: float | None = None) -> None:
    """Compare weights and code in memory with what was loaded: a sum of all bits.

    every: seconds between further checks, in a thread that ends with the program; None: this one
    alone. Once memory has changed, calls are refused. A check reads the program once.

    Raises PycError: FAULT_DETECTED if it has changed; UNCHECKABLE_CLAUSE without ``detect_faults``
    in the contract (no `faults`); BAD_ARGUMENT for no number above 0.
    """
    if faults is None:
        raise PycError(
            ReasonCode.UNCHECKABLE_CLAUSE,
            where="check_memory",
            expected="a program compiled under the clause `detect_faults`",
            got="one without it, so that there is nothing to compare with",
            remedy="compile it with Contract(detect_faults=True) or --detect-faults true",
        )
    valid = isinstance(every, int | float) and 0 < every < threading.TIMEOUT_MAX
    if every is not None and not valid:
        message = f"check_memory: expected seconds above 0, got {every!r}"
        raise PycError(ReasonCode.BAD_ARGUMENT, message)
    faults.check_memory()
    if every is not None:
        work = partial(_check_on, weakref.ref(faults), every)
        threading.Thread(target=work, name="pyc-check-memory", daemon=True).start()


def _check_on(known: Callable[[], Faults | None], seconds: float) -> None:
    """Check until memory has changed or the program is gone."""
    while True:
        time.sleep(seconds)
        faults = known()
        if faults is None:
            return
        try:
            faults.check_memory()
        except PycError:
            return
        del faults
