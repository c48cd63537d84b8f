"""Memory plans for pyc functions, written on the IR: order, recomputation and offsets.

Comes in: functions with static sizes. `pyc-plan-memory` leaves the same functions with their ops in
the plan's order, recomputed ops as clones, and on each op where its result lies in the arena and
how long (`pyc.slot`, `pyc.offset`, `pyc.live`). `pyc-remat` only recomputes. It is the same planner
core that plans IREE's programs; here the plan is for reading, for tests, and for running without
IREE (`pyc-bufferize-arena`)."""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Literal

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Site
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.pipelines.choices.policies import DEFAULT_MODE
from pyc_mlir.pipelines.driver.base import PassContext, option
from pyc_mlir.pipelines.memory.planner.place import place
from pyc_mlir.pipelines.memory.planner.planner import PACK_WORK, plan
from pyc_mlir.pipelines.memory.planner.problem import Expansion, PlanningProblem, SchedulePlan
from pyc_mlir.pipelines.memory.planner.remat import Recomputed, peak_of, sweep, taken_back
from pyc_mlir.pipelines.memory.planner.storage import choose_reuse, storages
from pyc_mlir.pipelines.memory.planner.validate import validate
from pyc_mlir.pipelines.memory.pyc_problem import (
    PycFunction,
    annotate,
    read_function,
    reorder,
    site_of,
)
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.pipelines.target.cost import Cost

PLANNED, AS_WRITTEN = "planned", "program-order"


@dataclass(frozen=True)
class PlanMemory:
    """Plan order, recomputation and arena offsets of every function, and annotate the ops."""

    name: ClassVar[str] = "pyc-plan-memory"
    mode: Literal["latency_first", "balanced", "memory_first"] | None = option(
        None, "what to prefer: latency_first, balanced or memory_first; none: the compile's mode"
    )
    budget: int | None = option(None, "bytes that each function's arena may have at most")
    slowdown: float | None = option(None, "seconds that recomputation may add, as a share")

    def __post_init__(self) -> None:
        """Raise PycError (INVALID_PIPELINE) for a negative budget or slowdown."""
        refuse_negative("budget", self.budget)
        refuse_negative("slowdown", self.slowdown)

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Plan every function. Raises PycError, also when a budget cannot be kept."""
        counts = {"buffers": 0, "recomputed": 0, "arena bytes": 0, "bytes in program order": 0}
        seen: Counter[str] = Counter()
        mode = self.mode or context.mode or DEFAULT_MODE
        for function in functions_of(module):
            site = site_of(self.name, function, seen)
            region = read_function(function, context.target)
            written = in_program_order(region.problem)
            chosen = self._choose(region, written, site, mode, context.choices)
            annotate(region, chosen, reorder(region, chosen.steps, chosen.sources))
            counts["buffers"] += len(chosen.offsets)
            counts["recomputed"] += len(chosen.steps) - len(region.ops)
            counts["arena bytes"] += chosen.arena_bytes
            counts["bytes in program order"] += written.arena_bytes
        return counts

    def _choose(
        self, region: PycFunction, written: SchedulePlan, site: Site, mode: str, choices: Choices
    ) -> SchedulePlan:
        """Offer the planner's answer and the program's own order, as far as they are legal."""
        try:
            found = plan(region.problem, mode=mode, budget=self.budget, slowdown=self.slowdown)
        except PycError as error:
            raise PycError(error.code, f"{region.where}: {error.message}") from error
        plans = {PLANNED: found}
        if self.budget is None or written.arena_bytes <= self.budget:
            plans[AS_WRITTEN] = written
        offered = [_alternative(name, p, len(region.ops)) for name, p in plans.items()]
        limit = () if self.budget is None else (f"budget {self.budget} bytes",)
        proven = ("no smaller arena exists",) if found.proven else ()
        evidence = tuple(map(Note, (f"mode {mode}", *limit, *proven)))
        return plans[choices.choose(site, offered, evidence).name]


def refuse_negative(name: str, value: float | None) -> None:
    """Raise PycError (INVALID_PIPELINE) for an option below 0."""
    if value is not None and value < 0:
        raise PycError(ReasonCode.INVALID_PIPELINE, f"`{name}`: expected 0 or more, got {value}")


def in_program_order(problem: PlanningProblem) -> SchedulePlan:
    """Return the plan in program order, with reuse, nothing run again."""
    waves = [(t,) for t in range(len(problem.tasks))]
    expansion = Expansion.of(problem)
    found = place(expansion, waves, choose_reuse(problem, waves), work_limit=PACK_WORK, strict=True)
    validate(problem, found)
    return found


def _alternative(name: str, found: SchedulePlan, tasks: int) -> Alternative:
    cost = Cost(seconds=found.seconds, workspace_bytes=found.arena_bytes)
    again = len(found.steps) - tasks
    return Alternative(
        name,
        cost,
        f"{found.arena_bytes} bytes where {found.lower_bound} are live at once"
        + (f", {again} ops run again" if again else ""),
    )


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
        alternatives = [_recomputation(name, e, peak) for name, e in offered.items()]
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


def _recomputation(name: str, expansion: Expansion, before: int) -> Alternative:
    peak = peak_of(expansion)
    reason = f"peak {before} bytes"
    if name == RECOMPUTE:
        again = len(expansion.steps) - len(expansion.problem.tasks)
        reason = f"peak {before} -> {peak} bytes, {again} ops run again"
    return Alternative(name, Cost(seconds=expansion.seconds, workspace_bytes=peak), reason)
