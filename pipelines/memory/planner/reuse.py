"""Reuse in place: results that take over the storage of an operand dying at the same task.

Comes in: a problem and its waves. Goes out: pairs (written, read) of buffers, a subset of what the
tasks allow; each operand is given away once, and only where no other task of its wave, and no
later one, touches its storage. Where several are possible, those that save most bytes at the task.
Ties are not listed: they are not a choice.
"""

from collections.abc import Iterable, Sequence

from pyc_mlir.pipelines.memory.planner.problem import PlanningProblem
from pyc_mlir.pipelines.memory.planner.storage import matched, storages
from pyc_mlir.pipelines.memory.planner.waves import wave_profile


def choose(
    problem: PlanningProblem, waves: Sequence[Sequence[int]], *, above: int | None = None
) -> dict[int, int]:
    """Choose the storage that each result takes over: {written: read}.

    With `above`, only in waves that would need more bytes than that without reuse. A result that
    takes over nothing leaves the packer more freedom.
    """
    model = storages(problem)
    without = [] if above is None else wave_profile(storages(problem, reuse=False), waves)
    last = {t: w for w, wave in enumerate(waves) for t in wave}
    chosen: dict[int, int] = {}
    for w, wave in enumerate(waves):
        if above is not None and without[w] <= above:
            continue
        for t in wave:
            dying = [
                s
                for s in model.touches[t]
                if not model.stays[s] and all(x == t or last[x] < w for x in model.touchers[s])
            ]
            pairs = matched(model.swaps[t], dying, model.size)
            chosen.update(_buffers(problem.tasks[t].in_place, model.of, pairs))
    return chosen


def _buffers(
    allowed: Iterable[tuple[int, int]], of: Sequence[int], pairs: dict[int, int]
) -> dict[int, int]:
    """Return the pairs of storages as pairs of buffers."""
    found: dict[int, int] = {}
    for written, read in allowed:
        if pairs.get(of[written]) == of[read]:
            found.setdefault(written, read)
    return found
