"""Seconds of one kernel: measured where wisdom has rows of here, else predicted and corrected.

Comes in: the sites of a program (`program.py`), wisdom, where "here" is. Goes out: a `Price` for
every alternative of every site. All rows of one program are of one clock and one context, so that
they may be added. A row with warm constants and one with cold constants are mixed by the share of
the program's constants that its last-level cache holds.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyc_mlir.lab.evidence.rows import COLD, WARM
from pyc_mlir.lab.simulation.program import PricedProgram, PricedSite
from pyc_mlir.lab.simulation.residuals import (
    MEASURED_SCALE,
    Residuals,
    environment_of,
    family_of,
)
from pyc_mlir.pipelines.choices.wisdom import Wisdom, WisdomRow
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel

MEASURED, PREDICTED = "measured", "predicted"
# An interval of five or more processes' medians is about so many deviations to each side.
_DEVIATIONS = 2.0


@dataclass(frozen=True)
class Here:
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


@dataclass(frozen=True)
class Prices:
    """Prices the kernels of one program."""

    program: PricedProgram
    wisdom: Wisdom = field(default_factory=Wisdom)
    here: Here = field(default_factory=Here)
    residuals: Residuals = field(default_factory=Residuals)
    overheads: Overheads = field(default_factory=Overheads)

    def of(self, site: PricedSite, choice: str, clock: tuple[str, str] | None) -> Price:
        """Return the price of a choice; `clock` is what `common` gave for the program."""
        rows = () if clock is None else self._rows(site, clock)
        found = {row.constants: row for row in rows if row.choice == choice}
        if found:
            return self._measured(found)
        cost = site.costs.get(choice) or site.costs[choice.partition("[")[0]]
        return self._predicted(cost, family_of(choice))

    def common(self) -> tuple[str, str] | None:
        """Return the clock and context with rows of most sites; CPU time of equals; or None."""
        counts: Counter[tuple[str, str]] = Counter()
        for site in self.program.kernels:
            counts.update({(row.clock, row.context) for row in self._here(site)})
        return max(sorted(counts), key=lambda c: counts[c], default=None)

    @property
    def warm_share(self) -> float:
        """The share of what a call works on that the last-level cache keeps between calls."""
        target, account = self.program.target, self.program.account
        cache = target.l3_bytes or target.l2_bytes
        used = (account.constants or 0) + (account.scratch or 0)
        return min(1.0, cache / used) if used else 1.0

    def _here(self, site: PricedSite) -> Iterable[WisdomRow]:
        known = self.wisdom.about(site.site.pass_name, site.site.op_id, site.site.work)
        here = (self.here.hardware, self.here.toolchain)
        return (row for row in known if (row.hardware, row.toolchain) == here)

    def _rows(self, site: PricedSite, clock: tuple[str, str]) -> list[WisdomRow]:
        """Return a site's rows of one clock and context; of several alike that of most sessions
        last.
        """
        rows = (row for row in self._here(site) if (row.clock, row.context) == clock)
        return sorted(rows, key=lambda row: (row.sessions, row))

    def _measured(self, rows: dict[str, WisdomRow]) -> Price:
        """Return a warm and a cold row mixed by the share of warm constants, or the only one there
        is.
        """
        share = self.warm_share if len(rows) > 1 else float(WARM in rows)
        parts = [(share, rows.get(WARM)), (1.0 - share, rows.get(COLD))]
        used = [(weight, row) for weight, row in parts if row is not None and weight > 0]
        seconds = sum(weight * row.seconds for weight, row in used)
        least = sum(weight * row.lo for weight, row in used)
        most = sum(weight * row.hi for weight, row in used)
        scale = max(math.log(most / least) / (2 * _DEVIATIONS), MEASURED_SCALE)
        own = max(seconds - self.overheads.call_seconds, 0.0)
        told = " and ".join(f"{weight:.0%} {row.constants}" for weight, row in used)
        return Price(own, scale, MEASURED, f"{told} [{self.wisdom.label}]")

    def _predicted(self, cost: Cost, family: str) -> Price:
        """Return the cost model's seconds on the threads of here, times the family's known bias."""
        environment = self.here.environment
        bias = self.residuals.bias(environment, family)
        seconds = bias * on_threads(cost, self.program, self.here.threads)
        why = f"x{bias:.2f} of {family}" if bias != 1 else "cost model"
        scale = self.residuals.spread(environment, family)
        return Price(seconds + self.overheads.dispatch_seconds, scale, PREDICTED, why)


def on_threads(cost: Cost, program: PricedProgram, threads: int) -> float:
    """Predicted seconds on so many threads of what was predicted for all cores of the target.

    What has no operations, or is bound by its traffic, stays as it is.
    """
    model = CostModel(program.target)
    if threads == 0 or not cost.flops or cost.seconds <= model.moving(cost.traffic_bytes):
        return cost.seconds
    busy = min(model.cores, model.cores_for(cost.flops, cost.traffic_bytes))
    return cost.seconds * busy / min(busy, threads)
