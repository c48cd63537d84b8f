"""Recomputation on pyc IR: run ops again instead of keeping their results over the peak.

Comes in: functions with static sizes. Goes out: the same functions in the same order, with clones
of ops right before their late readers. With a budget: the fewest added seconds found that keep the
live bytes within it; without one: the smallest peak found at most `slowdown` slower. The search is
`planner.remat`'s (greedy, as XLA's rematerialization). Peaks are live bytes, in-place reuse
granted; `pyc-plan-memory` also orders and places.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Site
from pyc_mlir.pipelines.driver.base import PassContext, option
from pyc_mlir.pipelines.memory.on_pyc.plan import reorder, site_of
from pyc_mlir.pipelines.memory.on_pyc.plan_memory import refuse_negative
from pyc_mlir.pipelines.memory.on_pyc.problem import PycFunction, read_function
from pyc_mlir.pipelines.memory.planner.expansion import Expansion
from pyc_mlir.pipelines.memory.planner.remat import Recomputed, peak_of, sweep, taken_back
from pyc_mlir.pipelines.memory.planner.storage import storages
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.pipelines.target.cost import Cost

# Added seconds at most, as a share, when neither budget nor slowdown is given.
DEFAULT_SLOWDOWN = 0.08
RECOMPUTE, KEEP = "recompute", "keep"


@dataclass(frozen=True)
class Remat:
    """Run cheap ops again, close to their readers, to lower the peak of live bytes."""

    name: ClassVar[str] = "pyc-remat"
    budget: int | None = option(None, "bytes that may be live at once in each function")
    slowdown: float | None = option(
        None, "added seconds at most, as a share; without a budget 0.08"
    )

    def __post_init__(self) -> None:
        """Raise PycError (INVALID_PIPELINE) for a negative budget or slowdown."""
        refuse_negative("budget", self.budget)
        refuse_negative("slowdown", self.slowdown)

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Recompute in every function. Raises PycError when a budget cannot be kept."""
        counts = {"recomputed": 0, "peak bytes before": 0, "peak bytes": 0}
        seen: Counter[str] = Counter()
        for function in functions_of(module):
            site = site_of(self.name, function, seen)
            region = read_function(function, context.target)
            before = Expansion.of(region.problem)
            chosen = self._choose(region, before, site, context.choices)
            if len(chosen.steps) > len(before.steps):
                reorder(region, chosen.steps, chosen.sources)
            counts["recomputed"] += len(chosen.steps) - len(before.steps)
            counts["peak bytes before"] += peak_of(before)
            counts["peak bytes"] += peak_of(chosen)
        return counts

    def _choose(
        self, region: PycFunction, before: Expansion, site: Site, choices: Choices
    ) -> Expansion:
        peak = peak_of(before)
        found = before if self.budget is not None and peak <= self.budget else self._search(before)
        offered = {}
        if len(found.steps) > len(before.steps):
            offered[RECOMPUTE] = found
        if self.budget is None or peak <= self.budget:
            offered[KEEP] = before
        if self.budget is not None and peak_of(found) > self.budget:
            raise self._refusal(region, found)
        alternatives = [_alternative(name, e, peak) for name, e in offered.items()]
        return offered[choices.choose(site, alternatives).name]

    def _search(self, before: Expansion) -> Expansion:
        """Return the first expansion within the budget, or the one of the smallest peak."""
        slowdown = self.slowdown
        if slowdown is None:
            slowdown = DEFAULT_SLOWDOWN if self.budget is None else float("inf")
        limit = before.seconds * (1 + slowdown) if slowdown < float("inf") else slowdown
        last = Recomputed(before, peak_of(before), 0)
        for last in sweep(before, max_seconds=limit, floor=self.budget or 0):
            if self.budget is not None and last.peak <= self.budget:
                break
        peak = last.peak if self.budget is None else max(self.budget, last.peak)
        return taken_back(last.expansion, budget=peak)

    def _refusal(self, region: PycFunction, smallest: Expansion) -> PycError:
        bound = storages(region.problem).lower_bound
        impossible = self.budget is not None and self.budget < bound
        return PycError(
            ReasonCode.BUDGET_IMPOSSIBLE if impossible else ReasonCode.BUDGET_NOT_FOUND,
            f"{region.where}: expected at most {self.budget} live bytes, "
            + (f"got an op that needs {bound}" if impossible else "found no way")
            + f"; the smallest budget found to be kept is {peak_of(smallest)} bytes, "
            f"at {smallest.seconds:.3g} s predicted",
        )


def _alternative(name: str, expansion: Expansion, before: int) -> Alternative:
    """Return the peaks before and after, and what that costs."""
    peak = peak_of(expansion)
    reason = f"peak {before} bytes"
    if name == RECOMPUTE:
        again = len(expansion.steps) - len(expansion.problem.tasks)
        reason = f"peak {before} -> {peak} bytes, {again} ops run again"
    return Alternative(name, Cost(seconds=expansion.seconds, workspace_bytes=peak), reason)
