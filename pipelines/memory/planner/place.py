"""A schedule with offsets: waves of tasks become live intervals, which are packed into a plan.

All of it is asked of an expansion's derived problem, in which each run of a task is a task and each
instance a buffer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, gcd, lcm

import numpy as np

from pyc_mlir.pipelines.memory.planner.intervals import Intervals
from pyc_mlir.pipelines.memory.planner.layout import ArenaLayout, Rectangle, TaskRun
from pyc_mlir.pipelines.memory.planner.pack import pack
from pyc_mlir.pipelines.memory.planner.problem import (
    Expansion,
    Instance,
    PlanningProblem,
    SchedulePlan,
)
from pyc_mlir.pipelines.memory.planner.storage import tied_groups

# Tasks by number.
Waves = Sequence[Sequence[int]]


def place(
    expansion: Expansion,
    waves: Waves,
    reused: Mapping[int, int],
    *,
    work_limit: int,
    strict: bool = False,
) -> SchedulePlan:
    """Pack the derived problem's tasks in `waves`, with its buffers `reused` as {written: read}.

    Predicted are the seconds of each wave's longest task, one wave after the other. `strict` lets
    the limit end the greedy orders too (`pack`).
    """
    derived, steps, instances = expansion.derived, expansion.steps, expansion.instances
    lives = lifetimes(derived, waves, reused)
    packing = pack(lives.intervals, work_limit=work_limit, strict=strict)
    placed = zip(lives.members, packing.offsets.tolist(), strict=True)
    return SchedulePlan(
        waves=tuple(tuple(steps[t] for t in wave) for wave in waves),
        offsets={instances[b]: offset for members, offset in placed for b in members},
        arena_bytes=packing.arena_bytes,
        lower_bound=packing.lower_bound,
        seconds=fsum(max(derived.tasks[t].seconds for t in wave) for wave in waves),
        sources=dict(expansion.sources),
        reused={instances[written]: instances[read] for written, read in reused.items()},
    )


def of_plan(
    problem: PlanningProblem, plan: SchedulePlan
) -> tuple[Expansion, tuple[tuple[int, ...], ...], dict[int, int]]:
    """Return what `place` packed: the expansion, its tasks in waves, its buffers reused."""
    expansion = Expansion(problem, tuple(plan.steps), plan.sources)
    numbers = expansion.numbers
    reused = {numbers[written]: numbers[read] for written, read in plan.reused.items()}
    return expansion, numbered(plan.waves), reused


def numbered(waves: Sequence[Sequence[object]]) -> tuple[tuple[int, ...], ...]:
    """Return waves of tasks that are numbered as they come."""
    numbers = iter(range(sum(map(len, waves))))
    return tuple(tuple(next(numbers) for _ in wave) for wave in waves)


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """The storages of the arena: interval `i` holds the buffers `members[i]`."""

    intervals: Intervals
    members: tuple[tuple[int, ...], ...]


def lifetimes(problem: PlanningProblem, waves: Waves, reused: Mapping[int, int]) -> Lifetimes:
    """Return the intervals of a schedule of all tasks, with ties and reuse."""
    of = tied_groups(problem)
    taken = {of[written]: of[read] for written, read in reused.items()}
    alive = lives(problem, waves)
    groups: dict[int, list[int]] = {}
    for b in alive:
        storage = of[b]
        while storage in taken:
            storage = taken[storage]
        groups.setdefault(storage, []).append(b)
    rows, members = [], []
    for group in groups.values():
        buffers = [problem.buffers[b] for b in group]
        size = max(b.size for b in buffers)
        if size and not any(b.pinned for b in buffers):
            lower, upper = min(alive[b][0] for b in group), max(alive[b][1] for b in group)
            rows.append((lower, upper, size, lcm(*(b.alignment for b in buffers))))
            members.append(tuple(group))
    table = np.array(rows, np.int64).reshape(-1, 4)
    return Lifetimes(Intervals(*table.T.copy()), tuple(members))


def lives(problem: PlanningProblem, waves: Waves) -> dict[int, tuple[int, int]]:
    """Return the waves [first, past) in which each buffer that a task touches is there.

    One that nothing writes is there from wave 0.
    """
    first: dict[int, int] = {}
    past: dict[int, int] = {}
    for w, wave in enumerate(waves):
        for t in wave:
            for b in (*problem.tasks[t].writes, *problem.tasks[t].reads):
                first.setdefault(b, w if b in problem.writer else 0)
                past[b] = len(waves) if problem.buffers[b].lives_to_end else w + 1
    return {b: (first[b], past[b]) for b in first}


def step_lives(problem: PlanningProblem, plan: SchedulePlan) -> dict[Instance, tuple[int, int]]:
    """Return the first and the last step of a plan that touches each instance."""
    expansion, _, _ = of_plan(problem, plan)
    alive = lives(expansion.derived, [(t,) for t in range(len(expansion.steps))])
    return {expansion.instances[b]: (first, past - 1) for b, (first, past) in alive.items()}


def layout_of_plan(problem: PlanningProblem, plan: SchedulePlan) -> ArenaLayout:
    """Return the picture of a plan that `validate` accepts."""
    expansion, waves, continued = of_plan(problem, plan)
    derived, alive = expansion.derived, lives(expansion.derived, waves)
    for task in derived.tasks:
        continued.update(task.tied)
    offsets = {expansion.numbers[i]: offset for i, offset in plan.offsets.items()}
    order = sorted(offsets, key=lambda b: (alive[b][0], offsets[b], expansion.instances[b]))
    numbers = {b: n for n, b in enumerate(order)}
    granule = gcd(*(b.alignment for b in problem.buffers if not b.pinned)) or 1
    rectangles = tuple(
        Rectangle(
            _name(problem, buffer),
            copy,
            alive[b][0],
            alive[b][1] - 1,
            offsets[b],
            -(-derived.buffers[b].size // granule) * granule,
            problem.writer.get(buffer),
            copy > 0,
            numbers.get(continued.get(b, -1)),
        )
        for b in order
        for buffer, copy in [expansion.instances[b]]
    )
    runs = tuple(TaskRun(s.task, s.copy, w) for w, wave in enumerate(plan.waves) for s in wave)
    return ArenaLayout(plan.arena_bytes, runs, rectangles, plan.seconds)


def _name(problem: PlanningProblem, buffer: int) -> str:
    """Return the buffer's own name, else one after the task that writes it."""
    given, writer = problem.buffers[buffer].name, problem.writer.get(buffer)
    if given or writer is None:
        return given or f"buffer {buffer}"
    task = problem.tasks[writer]
    return f"{task.name}.{task.writes.index(buffer)}" if len(task.writes) > 1 else task.name
