"""The statement of an estimate: seconds with an interval, bytes, and what both rest on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyc_mlir.lab.simulation.evidence import MEASURED, PREDICTED, Price
from pyc_mlir.lab.simulation.residuals import Width


@dataclass(frozen=True)
class SiteEstimate:
    """One kernel of a program: its choice, what it costs, and what the compile's own choice costs.

    site: ``pass:op``. work: the id that rows are found by.
    """

    site: str
    work: str
    choice: str
    price: Price
    before: Price

    @property
    def difference(self) -> float:
        """Seconds more than the program's own choice; below 0 is quicker."""
        return self.price.seconds - self.before.seconds


@dataclass(frozen=True)
class Estimate:
    """Seconds of a call with an interval, and the device memory that the program needs.

    bytes: constants, inputs, transients and outputs; None where that depends on the call.
    exact: whether `bytes` is what a compile by this recipe would state; `why_bytes` says on what
    grounds, or why it may not be. coverage: the share of intervals that hold the measured seconds.
    measured, predicted, overhead: how `seconds` divides. sites: the kernels, in order. notes: what
    was not priced.
    """

    seconds: float
    lo: float
    hi: float
    bytes: int | None
    exact: bool
    why_bytes: str
    coverage: float
    width: Width
    measured: float
    predicted: float
    overhead: float
    sites: tuple[SiteEstimate, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def unknown(self) -> tuple[str, ...]:
        """The works of the kernels that nothing was measured for here, each once."""
        found = (s.work for s in self.sites if s.price.grounds == PREDICTED and s.work)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Total:
    """Sums of prices: seconds by their grounds, and the expected deviation of the whole."""

    measured: float
    predicted: float
    scale: float

    @staticmethod
    def of(prices: Sequence[Price]) -> "Total":
        """Deviations add up as if all kernels erred alike: rows of one session often do."""
        by_grounds = {
            grounds: math.fsum(p.seconds for p in prices if p.grounds == grounds)
            for grounds in (MEASURED, PREDICTED)
        }
        seconds = math.fsum(by_grounds.values())
        spread = math.fsum(abs(p.seconds) * p.scale for p in prices)
        scale = spread / seconds if seconds > 0 else 0.0
        return Total(by_grounds[MEASURED], by_grounds[PREDICTED], scale)
