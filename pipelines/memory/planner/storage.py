"""Live bytes of tasks in an order or in waves, with buffers grouped into storages.

A tied update keeps its operand's storage, so buffers that are tied form one storage; it lives from
the first task that touches it to the last one. Sizes count in whole multiples of the alignment (of
the greatest divisor of all alignments), as the packer does; a storage that a pinned buffer belongs
to lies outside the arena and counts 0 bytes. A result may moreover take over the storage of an
operand that dies at the very same task (`swaps`): the bytes of both are then counted once.

The live bytes between two tasks depend on the set of tasks that have run alone, not on their order:
this is what the searches in schedule.py rest on.

Tasks of one wave may overlap in time: they start together, so all that any of them touches is live
at once. `group` puts tasks of an order into waves, `choose_reuse` says who takes over what.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from pyc_mlir.pipelines.memory.planner.problem import PlanningProblem


@dataclass(frozen=True)
class Storages:
    """A problem by storages: who touches each, how long it stays, what could be taken over."""

    of: tuple[int, ...]
    size: tuple[int, ...]
    stays: tuple[bool, ...]
    touches: tuple[tuple[int, ...], ...]
    touchers: tuple[tuple[int, ...], ...]
    swaps: tuple[tuple[tuple[int, int], ...], ...]
    predecessors: tuple[frozenset[int], ...]

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """The tasks that have to follow each task, ascending."""
        found: list[list[int]] = [[] for _ in self.predecessors]
        for t, before in enumerate(self.predecessors):
            for p in before:
                found[p].append(t)
        return tuple(tuple(f) for f in found)

    @cached_property
    def lower_bound(self) -> int:
        """Bytes that some task needs in every order: what it touches, reuse granted."""
        return max((self.need(t) for t in range(len(self.touches))), default=0)

    def need(self, task: int) -> int:
        """Return the bytes that are live while `task` runs, whatever the order."""
        every = {operand for _, operand in self.swaps[task]}
        return sum(self.size[s] for s in self.touches[task]) - self.saved(task, every)

    def saved(self, task: int, dying: Iterable[int]) -> int:
        """Return the bytes that reuse saves at `task` when the storages `dying` end there."""
        return sum(self.size[s] for s in matched(self.swaps[task], dying, self.size))

    def dying(self, task: int, when: Sequence[int]) -> list[int]:
        """Return the storages that end at `task`: nothing beside or behind it touches them."""
        return [
            s
            for s in self.touches[task]
            if not self.stays[s]
            and all(t == task or when[t] < when[task] for t in self.touchers[s])
        ]


def storages(problem: PlanningProblem, reuse: bool = True) -> Storages:
    """Return the storages of `problem`; without `reuse` only ties take one over."""
    # Kept with the problem, as its cached properties are: every part of the planner asks for them.
    known: dict[bool, Storages] = vars(problem).setdefault("storages", {})
    if reuse not in known:
        known[reuse] = _storages(problem, reuse)
    return known[reuse]


def _storages(problem: PlanningProblem, reuse: bool) -> Storages:
    of = tied_groups(problem)
    count = max(of, default=-1) + 1
    size, outside, stays = [0] * count, [False] * count, [False] * count
    granule = gcd(*(b.alignment for b in problem.buffers if not b.pinned)) or 1
    for b, buffer in enumerate(problem.buffers):
        size[of[b]] = max(size[of[b]], -(-buffer.size // granule) * granule)
        outside[of[b]] |= buffer.pinned
        stays[of[b]] |= buffer.lives_to_end
    touches = [tuple(dict.fromkeys(of[b] for b in (*t.reads, *t.writes))) for t in problem.tasks]
    touches = [tuple(s for s in group if not outside[s]) for group in touches]
    touchers: list[list[int]] = [[] for _ in range(count)]
    for t, group in enumerate(touches):
        for s in group:
            touchers[s].append(t)
    sizes = tuple(0 if o else n for n, o in zip(size, outside, strict=True))
    swaps = [()] * len(touches)
    if reuse:
        swaps = [_swaps(problem, t, of, sizes, stays, touchers) for t in range(len(touches))]
    return Storages(
        of,
        sizes,
        tuple(stays),
        tuple(touches),
        tuple(tuple(t) for t in touchers),
        tuple(swaps),
        problem.predecessors,
    )


def tied_groups(problem: PlanningProblem) -> tuple[int, ...]:
    """Return the storage of each buffer: ties join a result to its operand, joined before."""
    of = list(range(len(problem.buffers)))
    for task in problem.tasks:
        for result, operand in task.tied:
            of[result] = of[operand]
    dense = {s: i for i, s in enumerate(dict.fromkeys(of))}
    return tuple(dense[s] for s in of)


def _swaps(
    problem: PlanningProblem,
    t: int,
    of: Sequence[int],
    size: Sequence[int],
    stays: Sequence[bool],
    touchers: Sequence[Sequence[int]],
) -> tuple[tuple[int, int], ...]:
    """Return the pairs (born, taken) of task `t`: equal sizes, so that each saves as much."""
    born = {of[b] for b in problem.tasks[t].writes if touchers[of[b]][:1] == [t]}
    updated = {of[b] for b in problem.tasks[t].writes} - born
    pairs = [(of[result], of[operand]) for result, operand in problem.tasks[t].in_place]
    return tuple(
        (result, operand)
        for result, operand in dict.fromkeys(pairs)
        if result in born
        and operand not in born | updated
        and size[result] == size[operand] > 0
        and not stays[operand]
    )


def matched(
    pairs: Sequence[tuple[int, int]], dying: Iterable[int], size: Sequence[int]
) -> dict[int, int]:
    """Match results with the `dying` operands they take over: most bytes, first pairs first.

    The results that can be matched together form a matroid, so taking the largest first and
    augmenting (Kuhn, 1955) saves the most.
    """
    dying = set(dying)
    options: dict[int, list[int]] = {}
    for result, operand in pairs:
        if operand in dying:
            options.setdefault(result, []).append(operand)
    owner: dict[int, int] = {}
    for result in sorted(options, key=lambda r: -size[r]):
        _place(result, options, owner, set())
    return {result: operand for operand, result in owner.items()}


def _place(
    result: int, options: Mapping[int, Sequence[int]], owner: dict[int, int], tried: set[int]
) -> bool:
    """Give a result one of its `options`; their owners may move on to another of their own."""
    for operand in options[result]:
        if operand in tried:
            continue
        tried.add(operand)
        if operand not in owner or _place(owner[operand], options, owner, tried):
            owner[operand] = result
            return True
    return False


def live_bytes(
    model: Storages, waves: Iterable[Sequence[int]], when: Sequence[int], live: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield the bytes that are live during each of `waves`, which follow one another, and after it.

    `when` orders all tasks: those of a wave have a number that no other task has. `live` is what is
    live before the first wave. Only what touches the same storages is looked at.
    """
    size, stays, touches, touchers = model.size, model.stays, model.touches, model.touchers
    ends: dict[int, tuple[int, int]] = {}
    for wave in waves:
        now, during, ending = when[wave[0]], live, []
        for s in touches[wave[0]] if len(wave) == 1 else {s for t in wave for s in touches[t]}:
            if s in ends:
                first, last = ends[s]
            else:
                at = [when[t] for t in touchers[s]]
                first, last = ends[s] = min(at), max(at)
            if first == now:
                during += size[s]
            if last == now and not stays[s]:
                ending.append(s)
        live = during
        for s in ending:
            live -= size[s]
        for t in wave:
            if model.swaps[t] and ending:
                dying = ending if len(wave) == 1 else model.dying(t, when)
                during -= model.saved(t, dying)
        yield during, live


def places(order: Sequence[int]) -> list[int]:
    """Return the place of each task in an order of all."""
    place = [0] * len(order)
    for i, t in enumerate(order):
        place[t] = i
    return place


@dataclass(frozen=True)
class LiveBytes:
    """Live bytes of a sequence: `during` each task, and `before` it (one more, for the end)."""

    during: list[int]
    before: list[int]

    @property
    def peak(self) -> int:
        """The greatest number of bytes that are live at once."""
        return max(self.during, default=0)


def profile(model: Storages, order: Sequence[int]) -> LiveBytes:
    """Return the live bytes of a whole order of tasks."""
    return run(model, order, 0, places(order), 0)


def run(
    model: Storages, tasks: Sequence[int], start: int, position: Sequence[int], live: int
) -> LiveBytes:
    """Return the live bytes of `tasks`, a permutation of those from position `start` of an order.

    `position` is that order's, `live` the bytes before the first: nothing outside is looked at.
    """
    when = list(position)
    for i, t in enumerate(tasks, start):
        when[t] = i
    found = list(live_bytes(model, [(t,) for t in tasks], when, live))
    return LiveBytes([during for during, _ in found], [live, *(after for _, after in found)])


def wave_profile(model: Storages, waves: Sequence[Sequence[int]]) -> list[int]:
    """Return the live bytes during each wave of a schedule of all tasks."""
    return [during for during, _ in live_bytes(model, waves, _waves_of(waves))]


def _waves_of(waves: Sequence[Sequence[int]]) -> list[int]:
    when = [0] * sum(map(len, waves))
    for w, wave in enumerate(waves):
        for t in wave:
            when[t] = w
    return when


# How far behind a wave a task is looked for, in tasks per place in the wave.
LOOK_AHEAD = 16


def group(
    model: Storages, order: Sequence[int], *, concurrency: int, limit: int | None
) -> tuple[tuple[int, ...], ...]:
    """Put independent tasks of the legal `order` in waves of up to `concurrency`.

    A wave takes the first task that is left and then, of those that stand soon behind it, one after
    the other whatever follows nothing that is left and fits; the others keep their order. With a
    `limit` that `order` itself keeps, the waves keep it too: so do the tasks that one overtakes.
    """
    count = len(order)
    # The wave of a task; one that is left runs behind all waves, in its place.
    when = [count + place for place in places(order)]
    waves: list[tuple[int, ...]] = []
    first = taken = live = 0
    while taken < count:
        while when[order[first]] < count:
            first += 1
        wave: list[int] = []
        for place in range(first, min(count, taken + LOOK_AHEAD * concurrency)):
            task = order[place]
            before = model.predecessors[task]
            if when[task] < count or any(when[p] >= len(waves) for p in before):
                continue
            when[task] = len(waves)
            overtaken = ((t,) for t in order[first:place] if when[t] >= count)
            trial = live_bytes(model, ([*wave, task], *overtaken), when, live)
            if wave and limit is not None and any(during > limit for during, _ in trial):
                when[task] = count + place
                continue
            wave.append(task)
            if len(wave) == concurrency:
                break
        taken += len(wave)
        waves.append(tuple(wave))
        ((_, live),) = live_bytes(model, [wave], when, live)
    return tuple(waves)


def choose_reuse(
    problem: PlanningProblem, waves: Sequence[Sequence[int]], *, above: float | None = None
) -> dict[int, int]:
    """Choose the storage that each result takes over: {written: read}.

    With `above`, only in waves that would need more bytes than that without reuse. A result that
    takes over nothing leaves the packer more freedom.
    """
    model, when = storages(problem), _waves_of(waves)
    without = [] if above is None else wave_profile(storages(problem, reuse=False), waves)
    chosen: dict[int, int] = {}
    for w, wave in enumerate(waves):
        if above is not None and without[w] <= above:
            continue
        for t in wave:
            pairs = matched(model.swaps[t], model.dying(t, when), model.size)
            for written, read in problem.tasks[t].in_place:
                if pairs.get(model.of[written]) == model.of[read]:
                    chosen.setdefault(written, read)
    return chosen
