"""A schedule with offsets: steps in waves and the reuse chosen for them become a `Plan`."""

from collections.abc import Mapping, Sequence
from math import fsum

from pyc_mlir.pipelines.memory.packing.pack import pack
from pyc_mlir.pipelines.memory.planner.expansion import Expansion
from pyc_mlir.pipelines.memory.planner.lifetimes import lifetimes
from pyc_mlir.pipelines.memory.planner.problem import Plan


def place(
    expansion: Expansion,
    waves: Sequence[Sequence[int]],
    reused: Mapping[int, int],
    *,
    work_limit: int,
    seed: int = 0,
) -> Plan:
    """Pack the derived problem's tasks in `waves`, with its buffers `reused` as {written: read}.

    Predicted are the seconds of each wave's longest task, one wave after the other.
    """
    problem, steps, instances = expansion.problem, expansion.steps, expansion.instances
    stepped = tuple(tuple(steps[i] for i in wave) for wave in waves)
    pairs = {instances[written]: instances[read] for written, read in reused.items()}
    lives = lifetimes(problem, stepped, expansion.sources, pairs)
    packing = pack(lives.intervals, work_limit=work_limit, seed=seed)
    return Plan(
        waves=stepped,
        offsets=lives.offsets(packing.offsets),
        arena_bytes=packing.arena_bytes,
        lower_bound=packing.lower_bound,
        seconds=fsum(max(problem.tasks[s.task].seconds for s in wave) for wave in stepped),
        sources=dict(expansion.sources),
        reused=pairs,
    )
