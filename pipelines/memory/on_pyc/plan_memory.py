"""A memory plan for pyc functions, written on the IR: order, recomputation and offsets.

Comes in: functions with static sizes. Goes out: the same functions with their ops in the plan's
order, recomputed ops as clones, and on each op where its result lies in the arena and how long
(`pyc.slot`, `pyc.offset`, `pyc.live`). It is the same planner core that plans IREE's programs; here
the plan is for reading, for tests, and for running without IREE (`pyc-bufferize-arena`).
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Literal

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Site
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.pipelines.choices.policies import DEFAULT_MODE
from pyc_mlir.pipelines.driver.base import PassContext, option
from pyc_mlir.pipelines.memory.on_pyc.plan import annotate, reorder, site_of
from pyc_mlir.pipelines.memory.on_pyc.problem import PycFunction, read_function
from pyc_mlir.pipelines.memory.planner.expansion import Expansion
from pyc_mlir.pipelines.memory.planner.place import place
from pyc_mlir.pipelines.memory.planner.planner import PACK_WORK, plan
from pyc_mlir.pipelines.memory.planner.problem import PlanningProblem, SchedulePlan
from pyc_mlir.pipelines.memory.planner.reuse import choose
from pyc_mlir.pipelines.memory.planner.validate import validate
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
        return plans[choices.choose(site, offered, self._evidence(found, mode)).name]

    def _evidence(self, found: SchedulePlan, mode: str) -> tuple[Note, ...]:
        limit = () if self.budget is None else (f"budget {self.budget} bytes",)
        proven = ("no smaller arena exists",) if found.proven else ()
        return tuple(map(Note, (f"mode {mode}", *limit, *proven)))


def refuse_negative(name: str, value: float | None) -> None:
    """Raise PycError (INVALID_PIPELINE) for an option below 0."""
    if value is not None and value < 0:
        raise PycError(ReasonCode.INVALID_PIPELINE, f"`{name}`: expected 0 or more, got {value}")


def in_program_order(problem: PlanningProblem) -> SchedulePlan:
    """Return the plan in program order, with reuse, nothing run again."""
    waves = [(t,) for t in range(len(problem.tasks))]
    expansion = Expansion.of(problem)
    found = place(expansion, waves, choose(problem, waves), work_limit=PACK_WORK, strict=True)
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
