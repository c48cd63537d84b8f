"""The prediction of a call's time: the one record that every tool, report and contract shows.

The compile makes it, for one thread and named sizes of the dynamic dimensions; nothing else adds up
predicted seconds of a whole call.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyc_mlir.util.units import quantity


@dataclass(frozen=True)
class Prediction:
    """The predicted seconds of one call.

    sizes: of the dynamic dimensions, by name, for which it holds; undeclared: those among them
    without a declared range, which count as 64. threads: cores of the call.
    measured: seconds among them that measured rows state; the cost model states the rest, from the
    figures that `basis` names.
    """

    seconds: float
    sizes: Mapping[str, int] = field(default_factory=dict)
    undeclared: tuple[str, ...] = ()
    threads: int = 1
    measured: float = 0.0
    basis: str = ""

    @property
    def where(self) -> str:
        """The threads and sizes: ``1 thread, batch=2``."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        sizes = (
            f"{name}={size}{' (no range is declared)' if name in self.undeclared else ''}"
            for name, size in self.sizes.items()
        )
        return ", ".join((threads, *sizes))

    @property
    def grounds(self) -> str:
        """The parts that are measured and modelled: ``modelled by published figures of `cpu```."""
        by = f" by {self.basis}" if self.basis else ""
        if not self.measured:
            return f"modelled{by}"
        share = self.measured / self.seconds if self.seconds else 0.0
        return f"{share:.0%} measured, the rest modelled{by}"

    def __str__(self) -> str:
        """``2.91 ms a call predicted for 1 thread, batch=2; modelled by ...``, as tools show it."""
        return f"{quantity(self.seconds, 's')} a call predicted for {self.where}; {self.grounds}"
