"""Recomputation: run a task again so that its result need not be kept over the peak.

Comes in: an `Expansion` (an order) and a budget in live bytes. Goes out: one with more steps and a
smaller peak, at few added seconds. Greedy, as in XLA's rematerialization: of the storages that are
live at the peak and idle there, compute the one again right before its next use that takes most
bytes off the excess over the budget for each added second. A run's operands that have died by then
are computed again as well (chains), or kept. Recomputations that turn out to be superfluous can be
taken back, dear ones first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pyc_mlir.pipelines.memory.planner.problem import Expansion, Instance, TaskStep
from pyc_mlir.pipelines.memory.planner.storage import Storages, profile, storages

# One unit of work is one step of one evaluated expansion, some 20 microseconds.
DEFAULT_WORK = 100_000
CANDIDATE_WORK = 10
# What is looked at: storages at the peak, tasks of a chain, operands kept for it, ways evaluated.
CONSIDERED = 32
LONGEST_CHAIN = 16
MOST_KEPT = 4
VERIFIED = 6
# A sweep lowers the peak by at least this share in each round.
FINENESS = 48


@dataclass(frozen=True)
class Recomputed:
    """The expansion that was reached: `peak` in live bytes, and the work that it took."""

    expansion: Expansion
    peak: int
    work: int


@dataclass(frozen=True)
class _Candidate:
    """One way to compute a storage again: run `chain` before step `before`.

    `reads` says which instance each of the chain's runs reads, None for one that the chain writes.
    `kept` are storages of operands, each with the step from which on it is kept.
    """

    chain: tuple[int, ...]
    before: int
    reads: dict[tuple[int, int], int | None]
    kept: tuple[tuple[int, int], ...]
    seconds: float


def peak_of(expansion: Expansion) -> int:
    """Return the peak of an expansion in live bytes."""
    return _View(expansion).peak


def rematerialize(
    expansion: Expansion,
    *,
    budget: int,
    max_seconds: float = float("inf"),
    work_limit: int = DEFAULT_WORK,
) -> Recomputed:
    """Recompute until the peak is at most `budget` live bytes, or nothing helps any more.

    The total stays at most `max_seconds`. When the budget is not met, the answer is the given
    expansion: a sweep finds out how far down one can come.
    """
    start = view = _View(expansion)
    work = 0
    while view.peak > budget and work <= work_limit:
        following, spent = _step(view, budget, max_seconds)
        work += spent
        if following is None:
            break
        view = following
    if view.peak > budget:
        return Recomputed(expansion, start.peak, work)
    return Recomputed(view.expansion, view.peak, work)


def sweep(
    expansion: Expansion,
    *,
    max_seconds: float = float("inf"),
    floor: int = 0,
    work_limit: int = DEFAULT_WORK,
) -> Iterator[Recomputed]:
    """Yield ever smaller peaks, each from the one before, to `floor` or until nothing helps.

    More work only adds to the results.
    """
    peak = peak_of(expansion)
    work = 0
    while peak > floor and work <= work_limit:
        budget = max(floor, peak - max(1, peak // FINENESS))
        found = rematerialize(
            expansion, budget=budget, max_seconds=max_seconds, work_limit=DEFAULT_WORK
        )
        work += found.work
        if found.peak > budget:
            return
        expansion, peak = found.expansion, found.peak
        yield found


class _View:
    """An expansion with what the search asks of it. Step i stands at position i."""

    def __init__(self, expansion: Expansion) -> None:
        self.expansion = expansion
        self.model: Storages = storages(expansion.derived)
        self.profile = profile(self.model, range(len(expansion.steps)))
        self.peak = self.profile.peak

    @cached_property
    def during(self) -> np.ndarray:
        return np.asarray(self.profile.during, dtype=np.int64)

    @cached_property
    def lone(self) -> list[bool]:
        """True where each storage is one buffer (nothing updates it in place)."""
        counts = [0] * len(self.model.size)
        for s in self.model.of:
            counts[s] += 1
        return [c == 1 for c in counts]

    @cached_property
    def updated(self) -> dict[int, int]:
        """The step that spoils each buffer which one updates."""
        return {o: i for i, t in enumerate(self.expansion.derived.tasks) for _, o in t.tied}

    @cached_property
    def runs(self) -> dict[int, list[Instance]]:
        found: dict[int, list[Instance]] = {}
        for instance in self.expansion.instances:
            found.setdefault(instance[0], []).append(instance)
        return found

    def excess(self, budget: int) -> int:
        return int(np.maximum(self.during - budget, 0).sum())

    def again(self, i: int) -> bool:
        task, buffers = self.expansion.derived.tasks[i], self.expansion.problem.buffers
        writes = self.expansion.problem.tasks[self.expansion.steps[i].task].writes
        free = not any(buffers[b].pinned or buffers[b].lives_to_end for b in writes)
        return task.recomputable and not task.tied and free


def _step(view: _View, budget: int, max_seconds: float) -> tuple[_View | None, int]:
    """Find the best single recomputation at the peak, and the work; None when there is none."""
    at = int(view.during.argmax())
    left = max_seconds - view.expansion.seconds
    scored = []
    candidates = list(_candidates(view, at))
    for number, candidate in enumerate(candidates):
        gain = _gain(view, candidate, budget)
        if gain > 0 and candidate.seconds <= left:
            scored.append((-gain / max(candidate.seconds, 1e-12), number, candidate))
    spent = CANDIDATE_WORK * len(candidates)
    for _, _, candidate in sorted(scored, key=lambda item: item[:2])[:VERIFIED]:
        following = _applied(view.expansion, candidate)
        spent += len(following.steps)
        if following.seconds > max_seconds or not following.legal:
            continue
        found = _View(following)
        if found.excess(budget) < view.excess(budget):
            return found, spent
    return None, spent


def _candidates(view: _View, at: int) -> Iterator[_Candidate]:
    """Yield candidates for fewer bytes at step `at`: chains of growing length by idle storage."""
    model, tasks = view.model, view.expansion.derived.tasks
    here = set(model.touches[at])
    idle = [
        s
        for s, group in enumerate(model.touchers)
        if model.size[s] and group and group[0] < at < group[-1] and s not in here
    ]
    buffer_of = {s: b for b, s in enumerate(model.of)}
    for s in sorted(idle, key=lambda s: (-model.size[s], s))[:CONSIDERED]:
        writer = model.touchers[s][0]
        if not view.lone[s] or model.stays[s] or not view.again(writer):
            continue
        if buffer_of[s] not in tasks[writer].writes:
            continue
        before = next(i for i in model.touchers[s] if i > at)
        for small in (0, model.size[s] // 4):
            yield from _deepening(view, writer, before, small)


def _deepening(view: _View, writer: int, before: int, small: int) -> Iterator[_Candidate]:
    length = 0
    for depth in range(LONGEST_CHAIN):
        candidate = _chain(view, writer, before, depth, small)
        if candidate is None:
            continue
        if len(candidate.chain) <= length or len(candidate.kept) > MOST_KEPT:
            return
        length = len(candidate.chain)
        yield candidate


def _chain(view: _View, writer: int, before: int, depth: int, small: int) -> _Candidate | None:
    """Run `writer` again before step `before`, dead operands up to `depth` levels too.

    Operands of up to `small` bytes are kept rather than computed again.
    """
    chain: list[int] = []
    chained: set[int] = set()
    reads: dict[tuple[int, int], int | None] = {}
    kept: dict[int, int] = {}

    def visit(i: int, level: int) -> bool:
        step = view.expansion.steps[i]
        if step.task in chained:
            return True
        if len(chain) >= LONGEST_CHAIN or not view.again(i):
            return False
        for b in dict.fromkeys(view.expansion.problem.tasks[step.task].reads):
            used = view.expansion.sources.get((step, b), 0)
            live = _readable(view, b, before)
            if live is not None:
                reads[i, b] = live
                continue
            source = view.expansion.numbers[b, used]
            maker = view.expansion.derived.writer.get(source)
            deeper = level < depth and view.model.size[view.model.of[source]] > small
            if maker is not None and deeper and visit(maker, level + 1):
                reads[i, b] = None
            elif view.updated.get(source, before) >= before:
                reads[i, b] = used
                kept[view.model.of[source]] = view.model.touchers[view.model.of[source]][-1] + 1
            else:
                return False
        chain.append(i)
        chained.add(step.task)
        return True

    if not visit(writer, 0):
        return None
    seconds = sum(view.expansion.derived.tasks[i].seconds for i in chain)
    derived = view.expansion.derived
    # The first run becomes superfluous where all of its readers come behind.
    if all(i >= before for b in derived.tasks[writer].writes for i in derived.readers[b]):
        seconds -= view.expansion.derived.tasks[writer].seconds
    return _Candidate(tuple(chain), before, reads, tuple(kept.items()), seconds)


def _readable(view: _View, b: int, before: int) -> int | None:
    """Return a copy of buffer `b` that can be read at step `before` without being kept for it."""
    model, expansion = view.model, view.expansion
    for instance in view.runs[b]:
        number = expansion.numbers[instance]
        s = model.of[number]
        maker = expansion.derived.writer.get(number)
        if view.updated.get(number, before) < before or (maker is not None and maker >= before):
            continue
        outside = not model.size[s] or maker is None
        if outside or model.stays[s] or model.touchers[s][-1] >= before:
            return instance[1]
    return None


def _gain(view: _View, candidate: _Candidate, budget: int) -> int:
    """Estimate the bytes that leave the excess: the storage's gap less the chain's needs."""
    model, tasks = view.model, view.expansion.derived.tasks
    target, end = candidate.chain[-1], candidate.before
    first = min([target, *(start for _, start in candidate.kept)])
    change = np.zeros(end - first, dtype=np.int64)
    held = view.profile.before[end]
    for b in tasks[target].writes:
        group = model.touchers[model.of[b]]
        if group and group[-1] >= end:
            size = model.size[model.of[b]]
            change[max(i for i in group if i < end) + 1 - first :] -= size
            held -= size
    for s, start in candidate.kept:
        change[start - first :] += model.size[s]
        held += model.size[s]
    window = view.during[first:end]
    gain = np.maximum(window - budget, 0) - np.maximum(window + change - budget, 0)
    extra = 0
    for i in candidate.chain:
        held += sum(model.size[model.of[b]] for b in tasks[i].writes)
        extra += max(0, held - budget)
    return int(gain.sum()) - extra


def _applied(expansion: Expansion, candidate: _Candidate) -> Expansion:
    """Run the chain again in the expansion; later readers of its last run read the new copy."""
    counts: dict[int, int] = {}
    for step in expansion.steps:
        counts[step.task] = max(counts.get(step.task, 0), step.copy + 1)
    fresh: dict[int, TaskStep] = {}
    for i in candidate.chain:
        task = expansion.steps[i].task
        fresh[i] = TaskStep(task, counts[task])
        counts[task] += 1
    sources = dict(expansion.sources)
    of_task = {expansion.steps[i].task: fresh[i] for i in candidate.chain}
    for (i, b), copy in candidate.reads.items():
        source = of_task[expansion.problem.writer[b]].copy if copy is None else copy
        if source:
            sources[fresh[i], b] = source
    target = expansion.steps[candidate.chain[-1]]
    replaced = set(expansion.problem.tasks[target.task].writes)
    for step in expansion.steps[candidate.before :]:
        for b in replaced.intersection(expansion.problem.tasks[step.task].reads):
            if sources.get((step, b), 0) == target.copy:
                sources[step, b] = fresh[candidate.chain[-1]].copy
    steps = expansion.steps
    inserted = tuple(fresh[i] for i in candidate.chain)
    steps = (*steps[: candidate.before], *inserted, *steps[candidate.before :])
    return replace(expansion, steps=steps, sources=sources).tidied()


def taken_back(expansion: Expansion, *, budget: int, at_most: int = 64) -> Expansion:
    """Leave out runs that the budget does not need: the dearest `at_most` are tried."""
    tasks = expansion.problem.tasks
    again = sorted(
        (s for s in expansion.steps if s.copy),
        key=lambda s: (-tasks[s.task].seconds, s.task, -s.copy),
    )
    found = expansion
    for step in again[:at_most]:
        smaller = found.without(step)
        if smaller.legal and peak_of(smaller) <= budget:
            found = smaller
    return found.tidied()
