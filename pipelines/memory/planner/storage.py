"""Live bytes of tasks in an order or in waves, with buffers grouped into storages.

A tied update keeps its operand's storage, so buffers that are tied form one storage; it lives from
the first task that touches it to the last one. Sizes count in whole multiples of the alignment (of
the greatest divisor of all alignments), as the packer does; a storage that a pinned buffer belongs
to lies outside the arena and counts 0 bytes. A result may moreover take over the storage of an
operand that dies at the very same task (`swaps`): the bytes of both are then counted once.

The live bytes between two tasks depend on the set of tasks that have run alone, not on their order:
this is what the searches in schedule.py rest on.

Tasks of one wave may overlap in time: they start together, so all that any of them touches is live
at once. `group` puts tasks of an order into waves: a count of open predecessors says who may join,
and the bytes that are live during the tasks that a candidate overtakes change only by storages that
it touches: they are born earlier, or die earlier. So one candidate costs about its degree and a few
vector operations, however wide the graph is. `choose_reuse` says who takes over what.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd

import numpy as np

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
    size, touches, touchers, stays = model.size, model.touches, model.touchers, model.stays
    left: dict[int, int] = {}
    during, before = [], [live]
    for t in tasks:
        freed = 0
        dying = []
        for s in touches[t]:
            rest = left.get(s)
            if rest is None:
                group = touchers[s]
                rest = sum(position[x] >= start for x in group)
                if rest == len(group):
                    live += size[s]
                rest += stays[s]
            left[s] = rest - 1
            if rest == 1:
                freed += size[s]
                dying.append(s)
        saved = model.saved(t, dying) if model.swaps[t] and dying else 0
        during.append(live - saved)
        live -= freed
        before.append(live)
    return LiveBytes(during, before)


# How far behind a wave a task is looked for, in tasks per place in the wave.
LOOK_AHEAD = 16
# In the place of live bytes where no task is left: below every sum.
_NOTHING = np.iinfo(np.int64).min // 2


def group(
    model: Storages, order: Sequence[int], *, concurrency: int, limit: int | None
) -> tuple[tuple[int, ...], ...]:
    """Put independent tasks of the legal `order` in waves of up to `concurrency`.

    A wave takes the first task that is left and then, of those that stand soon behind it, one after
    the other whatever follows nothing that is left and fits; the others keep their order. With a
    `limit` that `order` itself keeps, the waves keep it too: so do the tasks that one overtakes.
    """
    ready = _Ready(model, order)
    live = None if limit is None else _Overtaking(model, order, limit)
    waves: list[tuple[int, ...]] = []
    taken = 0
    while ready.places:
        wave: list[int] = []
        end = bisect_left(ready.places, taken + LOOK_AHEAD * concurrency)
        for place in ready.places[:end]:
            if live is None or live.joins(place, leads=not wave):
                wave.append(place)
            if len(wave) >= concurrency:
                break
        ready.run(wave)
        if live is not None:
            live.close()
        taken += len(wave)
        waves.append(tuple(order[place] for place in wave))
    return tuple(waves)


def wave_profile(model: Storages, waves: Sequence[Sequence[int]]) -> list[int]:
    """Return the live bytes during each wave."""
    live = _Live(model, [t for wave in waves for t in wave])
    found, place = [], 0
    for wave in waves:
        for _ in wave:
            live.add(place)
            place += 1
        found.append(live.joint)
        live.close()
    return found


class _Ready:
    """`places`, ascending, of the tasks that are left and follow none that is left."""

    def __init__(self, model: Storages, order: Sequence[int]) -> None:
        self.order, self.successors = order, model.successors
        self.place = places(order)
        self.waiting = [len(before) for before in model.predecessors]
        self.places = [place for place, t in enumerate(order) if not self.waiting[t]]

    def run(self, wave: Iterable[int]) -> None:
        """Run the tasks at the places `wave`: others may follow them."""
        for place in wave:
            del self.places[bisect_left(self.places, place)]
            for t in self.successors[self.order[place]]:
                self.waiting[t] -= 1
                if not self.waiting[t]:
                    insort(self.places, self.place[t])


class _Live:
    """The bytes that are live in a wave that is being filled, and behind it.

    users: of each storage the places of the tasks left that touch it, ascending.
    joint: bytes that are live during the wave. after: those live behind it.
    inside: the storages that the wave touches.
    """

    def __init__(self, model: Storages, order: Sequence[int]) -> None:
        place = places(order)
        self.model, self.order = model, order
        self.users = [sorted(place[t] for t in group) for group in model.touchers]
        self.joint = self.after = 0
        self.inside: set[int] = set()

    def born(self, place: int) -> int:
        """Return the bytes that no task has touched before this one."""
        model = self.model
        touched = model.touches[self.order[place]]
        return sum(model.size[s] for s in touched if self.unborn(s))

    def unborn(self, s: int) -> bool:
        """Return whether no task has touched the storage yet."""
        return len(self.users[s]) == len(self.model.touchers[s])

    def saved(self, place: int, dying: Sequence[int]) -> int:
        """Return the bytes that the task saves by reuse of the storages `dying` at it."""
        task = self.order[place]
        return self.model.saved(task, dying) if dying and self.model.swaps[task] else 0

    def dying(self, place: int) -> list[int]:
        """Return the storages that no task is left to touch once this one has run."""
        stays, touched = self.model.stays, self.model.touches[self.order[place]]
        return [s for s in touched if len(self.users[s]) == 1 and not stays[s]]

    def joint_with(self, place: int) -> int:
        """Return the bytes that are live during the wave if the task joins it."""
        # What the wave touches as well does not end at this task alone.
        dying = [s for s in self.dying(place) if s not in self.inside]
        return self.joint + self.born(place) - self.saved(place, dying)

    def add(self, place: int) -> None:
        """Add the task to the wave."""
        self.joint = self.joint_with(place)
        freed = sum(self.model.size[s] for s in self.dying(place))
        self.after += self.born(place) - freed
        for s in self.model.touches[self.order[place]]:
            users = self.users[s]
            del users[bisect_left(users, place)]
            self.inside.add(s)

    def close(self) -> None:
        """Close the wave, which is full; another one begins."""
        self.joint = self.after
        self.inside.clear()


class _Overtaking(_Live):
    """The live bytes, moreover, during each task left if all run one by one behind the wave.

    `during` has these bytes by place; `first` is the place of the wave's first task.
    """

    def __init__(self, model: Storages, order: Sequence[int], limit: int) -> None:
        super().__init__(model, order)
        self.limit = limit
        self.during = np.array(profile(model, order).during, np.int64)
        self.first = 0

    def joins(self, place: int, leads: bool) -> bool:
        """Add the task if the wave, and the tasks that it overtakes, stay within the limit.

        One that `leads` the wave overtakes none and has to run somewhere.
        """
        if leads:
            self.first = place
        else:
            alone = self.after + self.born(place) - self.saved(place, self.dying(place))
            if alone > self.limit or self.joint_with(place) > self.limit:
                return False
            overtaken = self._overtaken(place)
            if overtaken.max(initial=_NOTHING) > self.limit:
                return False
            self.during[self.first : place] = overtaken
        self.during[place] = _NOTHING
        self.add(place)
        return True

    def _overtaken(self, place: int) -> np.ndarray:
        """Return live bytes from the wave's first task to `place`, whose task now runs before."""
        model, first = self.model, self.first
        during = self.during[first:place].copy()
        heirs: dict[int, list[int]] = {}
        for s in model.touches[self.order[place]]:
            users, size = self.users[s], model.size[s]
            ahead = bisect_left(users, place)
            ends = ahead == len(users) - 1 and not model.stays[s]
            unborn = self.unborn(s)
            if unborn and (ahead or not ends):
                during[: users[0] - first if ahead else None] += size
            if ends and (ahead or not unborn):
                during[users[ahead - 1] + 1 - first if ahead else 0 :] -= size
            if ends and ahead:
                heirs.setdefault(users[ahead - 1], []).append(s)
        for heir, more in heirs.items():
            touched = model.touches[self.order[heir]]
            dying = [s for s in touched if self.users[s][-1] == heir and not model.stays[s]]
            during[heir - first] += self.saved(heir, dying) - self.saved(heir, dying + more)
        return during


def choose_reuse(
    problem: PlanningProblem, waves: Sequence[Sequence[int]], *, above: float | None = None
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
            for written, read in problem.tasks[t].in_place:
                if pairs.get(model.of[written]) == model.of[read]:
                    chosen.setdefault(written, read)
    return chosen
