"""The plans of one compile: problems that reduce to the same one are planned once.

A problem is reduced to what its plan depends on: the arena's buffers, and what has to come first.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pyc_mlir.pipelines.memory.planner.planner import (
    BudgetRefused,
    PlannerMode,
    plan,
    plan_in_waves,
)
from pyc_mlir.pipelines.memory.planner.problem import (
    Buffer,
    Instance,
    PlannedTask,
    PlanningProblem,
    SchedulePlan,
)
from pyc_mlir.pipelines.memory.planner.storage import tied_groups
from pyc_mlir.pipelines.memory.planner.validate import validate


class SharedPlans:
    """Plans as `planner.plan` and `plan_in_waves` make them, remembered by what they depend on."""

    def __init__(self) -> None:
        self._known: dict[Hashable, SchedulePlan | BudgetRefused] = {}

    def plan(
        self,
        problem: PlanningProblem,
        *,
        mode: str | PlannerMode = "balanced",
        budget: int | None = None,
    ) -> SchedulePlan:
        """Return a plan of `problem` in a mode, or within a budget. Raises as `planner.plan`."""
        key = (mode, budget)
        return self._carried(problem, key, lambda p: plan(p, mode=mode, budget=budget))

    def in_waves(self, problem: PlanningProblem, waves: Sequence[Sequence[int]]) -> SchedulePlan:
        """Plan reuse and offsets for a given schedule. Raises as `plan_in_waves`."""
        key = tuple(map(tuple, waves))
        return self._carried(problem, key, lambda p: plan_in_waves(p, waves))

    def _carried(
        self,
        problem: PlanningProblem,
        key: Hashable,
        planned: Callable[[PlanningProblem], SchedulePlan],
    ) -> SchedulePlan:
        problem.check()
        reduced = ReducedProblem.of(problem)
        known = self._known.get((reduced.problem, key))
        if known is None:
            known = self._known[reduced.problem, key] = _outcome(reduced.problem, planned)
        if isinstance(known, BudgetRefused):
            raise known.with_traceback(None)
        carried = reduced.carried(known)
        validate(problem, carried)
        return carried


def _outcome(
    problem: PlanningProblem, planned: Callable[[PlanningProblem], SchedulePlan]
) -> SchedulePlan | BudgetRefused:
    try:
        return planned(problem)
    except BudgetRefused as refused:
        return refused


@dataclass(frozen=True)
class ReducedProblem:
    """`problem` has the tasks of the given one; `buffers` are its buffers' numbers there."""

    problem: PlanningProblem
    buffers: tuple[int, ...]

    @staticmethod
    def of(problem: PlanningProblem) -> "ReducedProblem":
        """Leave out what lies outside the arena, and what no task touches."""
        return _Reduction(problem).reduced()

    def carried(self, plan: SchedulePlan) -> SchedulePlan:
        """Carry a plan of the reduced problem over to the given one: as good, and as legal."""
        named = self.buffers
        return replace(
            plan,
            offsets={self._instance(i): offset for i, offset in plan.offsets.items()},
            sources={(step, named[b]): copy for (step, b), copy in plan.sources.items()},
            reused={self._instance(w): self._instance(r) for w, r in plan.reused.items()},
        )

    def _instance(self, instance: Instance) -> Instance:
        return self.buffers[instance[0]], instance[1]


class _Reduction:
    def __init__(self, problem: PlanningProblem) -> None:
        self.problem = problem
        of = tied_groups(problem)
        pinned = {of[b] for b, buffer in enumerate(problem.buffers) if buffer.pinned}
        touched = {b for t in problem.tasks for b in (*t.reads, *t.writes)}
        self.outside = {b for b in range(len(problem.buffers)) if of[b] in pinned}
        self.buffers = tuple(sorted(touched - self.outside))
        self.number = {b: i for i, b in enumerate(self.buffers)}

    def reduced(self) -> ReducedProblem:
        tasks = tuple(map(self._task, self.problem.tasks))
        problem = PlanningProblem(
            tasks, tuple(map(self._buffer, self.buffers)), self.problem.concurrency
        )
        tasks = tuple(
            replace(task, after=tuple(sorted(before - implied)))
            for task, before, implied in zip(
                tasks, self.problem.predecessors, problem.predecessors, strict=True
            )
        )
        return ReducedProblem(replace(problem, tasks=tasks), self.buffers)

    def _buffer(self, b: int) -> Buffer:
        return self.problem.buffers[b]

    def _task(self, task: PlannedTask) -> PlannedTask:
        """`task` without what lies outside; `after` is filled in once buffers say the rest."""
        spoils = self.outside.intersection(task.writes) or self._updated.intersection(task.reads)
        return replace(
            task,
            reads=self._kept(task.reads),
            writes=self._kept(task.writes),
            recomputable=task.recomputable and not spoils,
            in_place=self._pairs(task.in_place),
            tied=self._pairs(task.tied),
            after=(),
        )

    @cached_property
    def _updated(self) -> set[int]:
        """Buffers outside that some task updates: a second run would read what is there then."""
        return self.outside & {read for task in self.problem.tasks for _, read in task.tied}

    def _kept(self, buffers: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.number[b] for b in buffers if b in self.number)

    def _pairs(self, pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        number = self.number
        return tuple((number[w], number[r]) for w, r in pairs if w in number and r in number)
