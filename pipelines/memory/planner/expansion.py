"""A problem with some tasks run more than once, as a problem of its own.

Each run has buffers of its own, so ordering, reuse and evaluation need to know nothing about
recomputation: they see the derived problem, whose tasks are the steps and whose buffers are the
instances.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import fsum

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.memory.planner.problem import (
    Buffer,
    Instance,
    PlannedTask,
    PlanningProblem,
    TaskStep,
)

Sources = Mapping[tuple[TaskStep, int], int]


@dataclass(frozen=True)
class Expansion:
    """The steps of `problem` in a legal order, and which copy each reads where that is not 0."""

    problem: PlanningProblem
    steps: tuple[TaskStep, ...]
    sources: Sources = field(default_factory=dict)

    @staticmethod
    def of(problem: PlanningProblem, order: Sequence[int] | None = None) -> "Expansion":
        """Run every task once, in `order` or in the problem's own."""
        numbers = range(len(problem.tasks)) if order is None else order
        return Expansion(problem, tuple(TaskStep(t) for t in numbers))

    @cached_property
    def seconds(self) -> float:
        """Predicted run time of all steps, one after the other."""
        return fsum(self.problem.tasks[step.task].seconds for step in self.steps)

    @cached_property
    def instances(self) -> tuple[Instance, ...]:
        """The origins of the derived problem's buffers; the original ones come first."""
        copies = [
            (b, step.copy)
            for step in self.steps
            if step.copy
            for b in self.problem.tasks[step.task].writes
        ]
        return (*((b, 0) for b in range(len(self.problem.buffers))), *copies)

    @cached_property
    def numbers(self) -> dict[Instance, int]:
        """The derived buffer of each instance."""
        return {instance: i for i, instance in enumerate(self.instances)}

    @cached_property
    def derived(self) -> PlanningProblem:
        """Step i as task i, each instance as a buffer."""
        place = {step.task: i for i, step in enumerate(self.steps) if not step.copy}
        copies = self.instances[len(self.problem.buffers) :]
        buffers = (*self.problem.buffers, *(self._copied(b) for b, _ in copies))
        tasks = tuple(self._task(step, place) for step in self.steps)
        return PlanningProblem(tasks, buffers, self.problem.concurrency)

    @cached_property
    def legal(self) -> bool:
        """True where every step finds what it reads, unspoiled."""
        try:
            self.derived.check()
        except (PycError, KeyError):
            return False
        return True

    def _copied(self, b: int) -> Buffer:
        return replace(self.problem.buffers[b], lives_to_end=False)

    def _task(self, step: TaskStep, place: Mapping[int, int]) -> PlannedTask:
        task = self.problem.tasks[step.task]
        numbers = self.numbers
        read = {b: numbers[b, self.sources.get((step, b), 0)] for b in task.reads}
        written = {b: numbers[b, step.copy] for b in task.writes}
        return replace(
            task,
            reads=tuple(read[b] for b in task.reads),
            writes=tuple(written[b] for b in task.writes),
            in_place=tuple((written[r], read[o]) for r, o in task.in_place),
            tied=tuple((written[r], read[o]) for r, o in task.tied),
            after=tuple(place[t] for t in task.after),
        )

    def reordered(self, order: Iterable[int]) -> "Expansion":
        """Return the same steps, in an order of the derived problem's tasks."""
        return replace(self, steps=tuple(self.steps[i] for i in order))

    def without(self, step: TaskStep) -> "Expansion":
        """`step` left out; what read its results reads those of the run before it (maybe none)."""
        earlier = [s.copy for s in self.steps[: self.steps.index(step)] if s.task == step.task]
        writes = set(self.problem.tasks[step.task].writes)
        sources = {}
        for (reader, b), copy in self.sources.items():
            if reader == step:
                continue
            if b in writes and copy == step.copy:
                copy = earlier[-1] if earlier else copy
            sources[reader, b] = copy
        steps = tuple(s for s in self.steps if s != step)
        return replace(self, steps=steps, sources={k: c for k, c in sources.items() if c})

    def tidied(self) -> "Expansion":
        """Drop runs that nothing reads, if another one is left; copies are counted by place."""
        found = self
        while (unread := found._unread()) is not None:
            found = found._dropped(unread)
        return found._renumbered()

    def _unread(self) -> TaskStep | None:
        runs: dict[int, int] = {}
        for step in self.steps:
            runs[step.task] = runs.get(step.task, 0) + 1
        if len(runs) == len(self.steps):
            return None
        used = {
            (b, self.sources.get((step, b), 0))
            for step in self.steps
            for b in self.problem.tasks[step.task].reads
        }
        for step in reversed(self.steps):
            writes = self.problem.tasks[step.task].writes
            if runs[step.task] > 1 and not any((b, step.copy) in used for b in writes):
                smaller = self._dropped(step)
                if step.copy or smaller._renumbered().legal:
                    return step
        return None

    def _dropped(self, step: TaskStep) -> "Expansion":
        sources = {k: c for k, c in self.sources.items() if k[0] != step}
        return replace(self, steps=tuple(s for s in self.steps if s != step), sources=sources)

    def _renumbered(self) -> "Expansion":
        fresh: dict[TaskStep, TaskStep] = {}
        runs: dict[int, int] = {}
        for step in self.steps:
            fresh[step] = TaskStep(step.task, runs.get(step.task, 0))
            runs[step.task] = fresh[step].copy + 1
        sources = {}
        for step in self.steps:
            for b in self.problem.tasks[step.task].reads:
                writer = self.problem.writer.get(b)
                if writer is None:
                    continue
                source = TaskStep(writer, self.sources.get((step, b), 0))
                if copy := fresh.get(source, source).copy:
                    sources[fresh[step], b] = copy
        return replace(self, steps=tuple(fresh[s] for s in self.steps), sources=sources)
