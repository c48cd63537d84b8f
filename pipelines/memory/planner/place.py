"""A schedule with offsets: waves of steps become live intervals, which are packed into a
`SchedulePlan`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum, lcm

import numpy as np

from pyc_mlir.pipelines.memory.planner.intervals import Intervals, Ints
from pyc_mlir.pipelines.memory.planner.pack import pack
from pyc_mlir.pipelines.memory.planner.problem import (
    Expansion,
    Instance,
    PlanningProblem,
    SchedulePlan,
    TaskStep,
)


def place(
    expansion: Expansion,
    waves: Sequence[Sequence[int]],
    reused: Mapping[int, int],
    *,
    work_limit: int,
    seed: int = 0,
    strict: bool = False,
) -> SchedulePlan:
    """Pack the derived problem's tasks in `waves`, with its buffers `reused` as {written: read}.

    Predicted are the seconds of each wave's longest task, one wave after the other. `strict` lets
    the limit end the greedy orders too (`pack`).
    """
    problem, steps, instances = expansion.problem, expansion.steps, expansion.instances
    stepped = tuple(tuple(steps[i] for i in wave) for wave in waves)
    pairs = {instances[written]: instances[read] for written, read in reused.items()}
    lives = lifetimes(problem, stepped, expansion.sources, pairs)
    packing = pack(lives.intervals, work_limit=work_limit, seed=seed, strict=strict)
    return SchedulePlan(
        waves=stepped,
        offsets=lives.offsets(packing.offsets),
        arena_bytes=packing.arena_bytes,
        lower_bound=packing.lower_bound,
        seconds=fsum(max(problem.tasks[s.task].seconds for s in wave) for wave in stepped),
        sources=dict(expansion.sources),
        reused=pairs,
    )


Waves = Sequence[Sequence[TaskStep]]
Sources = Mapping[tuple[TaskStep, int], int]


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """The storages of the arena: interval `i` holds the instances `members[i]`."""

    intervals: Intervals
    members: tuple[tuple[Instance, ...], ...]

    @cached_property
    def lower_bound(self) -> int:
        """The greatest sum of live bytes in a wave, in whole multiples of the alignment."""
        return self.intervals.lower_bound

    def offsets(self, packed: Ints) -> dict[Instance, int]:
        """Return the offset of each instance, from the offsets of its storage."""
        return {
            instance: offset
            for members, offset in zip(self.members, packed.tolist(), strict=True)
            for instance in members
        }


def lifetimes(
    problem: PlanningProblem,
    waves: Waves,
    sources: Sources | None = None,
    reused: Mapping[Instance, Instance] | None = None,
) -> Lifetimes:
    """Return the intervals of a schedule. Some step must write every copy that is read."""
    lives = instance_lives(problem, waves, sources or {})
    of = _Storages(problem, waves, sources or {}, reused or {})
    groups: dict[Instance, list[Instance]] = {}
    for instance in lives:
        groups.setdefault(of(instance), []).append(instance)
    rows, members = [], []
    for group in groups.values():
        buffers = [problem.buffers[b] for b, _ in group]
        size = max(b.size for b in buffers)
        if size and not any(b.pinned for b in buffers):
            spans = [lives[i] for i in group]
            lower, upper = min(s[0] for s in spans), max(s[1] for s in spans)
            rows.append((lower, upper, size, lcm(*(b.alignment for b in buffers))))
            members.append(tuple(group))
    table = np.array(rows, np.int64).reshape(-1, 4)
    return Lifetimes(Intervals(*table.T.copy()), tuple(members))


def instance_lives(
    problem: PlanningProblem, waves: Waves, sources: Sources
) -> dict[Instance, tuple[int, int]]:
    """Return the waves [first, past) in which each instance, pinned ones included, is used.

    A pinned buffer that nothing writes is there from wave 0.
    """
    first: dict[Instance, int] = {}
    past: dict[Instance, int] = {}
    for w, wave in enumerate(waves):
        for step in wave:
            task = problem.tasks[step.task]
            written = [instance_written(problem, step, b) for b in task.writes]
            for instance in (
                *written,
                *(instance_read(problem, sources, step, b) for b in task.reads),
            ):
                first.setdefault(instance, w)
                past[instance] = w + 1
    for instance in past:
        if problem.buffers[instance[0]].lives_to_end:
            past[instance] = len(waves)
        if instance[0] not in problem.writer:
            first[instance] = 0
    return {instance: (first[instance], past[instance]) for instance in first}


def instance_written(problem: PlanningProblem, step: TaskStep, buffer: int) -> Instance:
    """Return the instance of `buffer` that `step` writes."""
    return buffer, 0 if problem.buffers[buffer].pinned else step.copy


def instance_read(
    problem: PlanningProblem, sources: Sources, step: TaskStep, buffer: int
) -> Instance:
    """Return the instance of `buffer` that `step` reads."""
    return buffer, 0 if problem.buffers[buffer].pinned else sources.get((step, buffer), 0)


class _Storages:
    """The storages of instances: a disjoint-set forest of ties and reuse."""

    def __init__(
        self,
        problem: PlanningProblem,
        waves: Waves,
        sources: Sources,
        reused: Mapping[Instance, Instance],
    ) -> None:
        self.parent: dict[Instance, Instance] = {}
        for result, operand in reused.items():
            self.join(result, operand)
        for wave in waves:
            for step in wave:
                for result, operand in problem.tasks[step.task].tied:
                    self.join(
                        instance_written(problem, step, result),
                        instance_read(problem, sources, step, operand),
                    )

    def __call__(self, instance: Instance) -> Instance:
        while (parent := self.parent.get(instance, instance)) != instance:
            self.parent[instance] = self.parent.get(parent, parent)
            instance = parent
        return instance

    def join(self, result: Instance, operand: Instance) -> None:
        """Put both into one storage."""
        a, b = self(result), self(operand)
        if a != b:
            self.parent[a] = b
