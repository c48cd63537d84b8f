"""A schedule with offsets: waves of tasks become live intervals, which are packed into a plan.

All of it is asked of an expansion's derived problem, in which each run of a task is a task and each
instance a buffer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, lcm

import numpy as np

from pyc_mlir.pipelines.memory.planner.intervals import Intervals
from pyc_mlir.pipelines.memory.planner.pack import pack
from pyc_mlir.pipelines.memory.planner.problem import Expansion, PlanningProblem, SchedulePlan
from pyc_mlir.pipelines.memory.planner.storage import tied_groups

# Tasks by number.
Waves = Sequence[Sequence[int]]


def place(
    expansion: Expansion,
    waves: Waves,
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
    derived, steps, instances = expansion.derived, expansion.steps, expansion.instances
    lives = lifetimes(derived, waves, reused)
    packing = pack(lives.intervals, work_limit=work_limit, seed=seed, strict=strict)
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
