"""The statement of an estimate: seconds with an interval, bytes, what both rest on; as text."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyc_mlir.lab.simulation.program import PricedProgram
from pyc_mlir.lab.simulation.residuals import Width, environment_of
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.util.units import quantity

_SHORT = 48
MEASURED, PREDICTED = "measured", "predicted"


@dataclass(frozen=True)
class ExecutionContext:
    """Whose rows are answers: hashes of hardware and toolchain, and the threads of a call."""

    hardware: str = ""
    toolchain: str = ""
    threads: int = 1

    @property
    def environment(self) -> str:
        """The key of residuals."""
        return environment_of(self.hardware, self.toolchain)


@dataclass(frozen=True)
class Overheads:
    """Seconds besides kernels: of a call, of a dispatch, and of waking the threads of a call.

    call_seconds is part of each measured row of work, which is a call of its own, and of the
    program once. dispatch_seconds is part of each measured row too. join_seconds is what each
    further kernel of a program costs besides, see residuals.py.
    """

    call_seconds: float = 0.0
    dispatch_seconds: float = 0.0
    wake_seconds: float = 0.0
    join_seconds: float = 0.0


@dataclass(frozen=True)
class Price:
    """Seconds of one choice, without the call's own; `scale` is their expected deviation in log.

    grounds: ``measured`` or ``predicted``. why: which rows, or what the prediction rests on.
    """

    seconds: float
    scale: float
    grounds: str
    why: str = ""


def on_threads(cost: Cost, program: PricedProgram, threads: int) -> float:
    """Predicted seconds on so many threads of what was predicted for all cores of the target.

    What has no operations, or is bound by its traffic, stays as it is.
    """
    model = CostModel(program.target)
    if threads == 0 or not cost.flops or cost.seconds <= model.moving(cost.traffic_bytes):
        return cost.seconds
    busy = min(model.cores, model.cores_for(cost.flops, cost.traffic_bytes))
    return cost.seconds * busy / min(busy, threads)


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


def comparison(estimate: Estimate, before: Estimate) -> str:
    """Return the estimate of a recipe beside that of the program as it is."""
    notes = (f"not priced: {note}\n" for note in estimate.notes)
    return "".join((*_head(estimate, before), *_sites(estimate), *notes))


def _head(estimate: Estimate, before: Estimate) -> Iterator[str]:
    for name, one in (("as compiled", before), ("recipe", estimate)):
        held = "unknown" if one.bytes is None else quantity(one.bytes, "B")
        exact = "exact" if one.exact else "not exact"
        yield (
            f"{name:12} {quantity(one.seconds, 's'):>9} ({quantity(one.lo, 's')} to "
            f"{quantity(one.hi, 's')})  {held}, {exact}: {one.why_bytes}\n"
        )
    ratio = estimate.seconds / before.seconds if before.seconds else 1.0
    width = estimate.width
    grounds = (
        f"covers {estimate.coverage:.0%} by {width.rows} programs measured here"
        if width.calibrated
        else f"not calibrated: {width.rows} programs measured here are too few"
    )
    yield f"ratio        {ratio:9.3f}  interval {grounds}\n"
    yield (
        f"rests on     {quantity(estimate.measured, 's')} measured, "
        f"{quantity(estimate.predicted, 's')} predicted, {quantity(estimate.overhead, 's')} of "
        f"the call; {len(estimate.unknown)} works without a row of here\n"
    )


def _sites(estimate: Estimate) -> Iterator[str]:
    """Yield the sites that differ, the largest difference first; how many others there are."""
    differ = [s for s in estimate.sites if s.price != s.before]
    for site in sorted(differ, key=lambda s: (-abs(s.difference), s.site)):
        sign = "+" if site.difference >= 0 else "-"
        before, after = (
            f"{quantity(p.seconds, 's')} {p.grounds}" for p in (site.before, site.price)
        )
        yield (
            f"  {site.site[:_SHORT]:{_SHORT}} {site.choice}: {before} -> {after} "
            f"({sign}{quantity(abs(site.difference), 's')}; {site.price.why})\n"
        )
    yield f"{len(estimate.sites) - len(differ)} of {len(estimate.sites)} kernels are the same\n"
