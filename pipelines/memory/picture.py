"""A plan as a picture: buffers of one arena as rectangles of steps and bytes.

Comes in: a problem with its plan, or the bare slices of somebody else's packing. Goes out: a
`ArenaLayout` (layout.py).
"""

from collections.abc import Sequence
from math import gcd

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.layout import ArenaLayout, Rectangle, TaskRun
from pyc_mlir.pipelines.memory.planner.place import instance_lives, instance_read, instance_written
from pyc_mlir.pipelines.memory.planner.problem import Instance, PlanningProblem, SchedulePlan


def layout_of_plan(problem: PlanningProblem, plan: SchedulePlan) -> ArenaLayout:
    """Return the picture of a plan that `validate` accepts."""
    lives = instance_lives(problem, plan.waves, plan.sources)
    placed = sorted(plan.offsets, key=lambda i: (lives[i][0], plan.offsets[i], i))
    numbers = {instance: n for n, instance in enumerate(placed)}
    continued = _continued(problem, plan)
    granule = gcd(*(b.alignment for b in problem.buffers if not b.pinned)) or 1
    rectangles = tuple(
        Rectangle(
            _name(problem, buffer),
            copy,
            lives[buffer, copy][0],
            lives[buffer, copy][1] - 1,
            plan.offsets[buffer, copy],
            -(-problem.buffers[buffer].size // granule) * granule,
            problem.writer.get(buffer),
            copy > 0,
            numbers.get(continued.get((buffer, copy), (-1, 0))),
        )
        for buffer, copy in placed
    )
    runs = tuple(TaskRun(s.task, s.copy, w) for w, wave in enumerate(plan.waves) for s in wave)
    return ArenaLayout(plan.arena_bytes, runs, rectangles, plan.seconds)


def layout_of_slices(
    slices: Sequence[tuple[int, int, int]],
    offsets: Sequence[int],
    *,
    names: Sequence[str] = (),
    runs: Sequence[TaskRun] = (),
    seconds: float = 0.0,
) -> ArenaLayout:
    """Return the picture of bare slices (first step, last step inclusive, bytes) at `offsets`.

    This is all that IREE's own packing says; a slice without a name is called by its number.
    Raises PycError (BAD_ARGUMENT) for unequal lengths or a slice that ends before it begins.
    """
    names = names or [""] * len(slices)
    lengths = {len(slices), len(offsets), len(names)}
    if len(lengths) > 1 or any(first > last for first, last, _ in slices):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"layout: expected slices (first <= last, bytes) with one offset each, got "
            f"{len(slices)} slices and {len(offsets)} offsets: {list(slices)[:3]}",
        )
    rectangles = tuple(
        Rectangle(name or f"slice {i}", 0, first, last, offset, size)
        for i, ((first, last, size), offset, name) in enumerate(
            zip(slices, offsets, names, strict=True)
        )
        if size
    )
    arena = max((r.offset + r.bytes for r in rectangles), default=0)
    return ArenaLayout(arena, tuple(runs), rectangles, seconds)


def _continued(problem: PlanningProblem, plan: SchedulePlan) -> dict[Instance, Instance]:
    """Return the instance whose storage each one continues: by reuse, or because it has to."""
    found = dict(plan.reused)
    for step in plan.steps:
        for result, operand in problem.tasks[step.task].tied:
            written = instance_written(problem, step, result)
            found[written] = instance_read(problem, plan.sources, step, operand)
    return found


def _name(problem: PlanningProblem, buffer: int) -> str:
    """Return the buffer's own name, else one after the task that writes it."""
    given, writer = problem.buffers[buffer].name, problem.writer.get(buffer)
    if given or writer is None:
        return given or f"buffer {buffer}"
    task = problem.tasks[writer]
    return f"{task.name}.{task.writes.index(buffer)}" if len(task.writes) > 1 else task.name
