"""Waves: tasks that may overlap in time without raising the peak.

Comes in: an order, how many tasks a wave may hold, and a limit in bytes. Goes out: waves. Tasks of
one wave start together, so all that any of them touches is live at once.

A wave takes the first task that is left and then, of those that stand soon behind it, one after
the other whatever follows nothing that is left and fits. The others keep their order. So a count
of open predecessors says who may join, and the bytes that are live during the tasks that a
candidate overtakes change only by storages that it touches: they are born earlier, or die earlier.
One candidate costs about its degree and a few vector operations, however wide the graph is."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

import numpy as np

from pyc_mlir.pipelines.memory.planner.problem import PlanningProblem
from pyc_mlir.pipelines.memory.planner.storage import Storages, matched, profile, storages

# How far behind a wave a task is looked for, in tasks per place in the wave.
LOOK_AHEAD = 16
# In the place of live bytes where no task is left: below every sum.
_NOTHING = np.iinfo(np.int64).min // 2


def group(
    model: Storages, order: Sequence[int], *, concurrency: int, limit: int | None
) -> tuple[tuple[int, ...], ...]:
    """Put independent tasks of the legal `order` in waves of up to `concurrency`.

    With a `limit` that `order` itself keeps, the waves keep it too.
    """
    ready = _Ready(model, order)
    live = None if limit is None else _Overtaking(model, order, limit)
    waves: list[tuple[int, ...]] = []
    taken = 0
    while ready.places:
        wave: list[int] = []
        for place in ready.before(taken + LOOK_AHEAD * concurrency):
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
        self.place = _places(order)
        self.waiting = [len(before) for before in model.predecessors]
        self.places = [place for place, t in enumerate(order) if not self.waiting[t]]

    def before(self, end: int) -> list[int]:
        """Return the places before `end` behind which no task has been taken yet."""
        return self.places[: bisect_left(self.places, end)]

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
        place = _places(order)
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
            dying = self._last_used(heir)
            during[heir - first] += self.saved(heir, dying) - self.saved(heir, dying + more)
        return during

    def _last_used(self, place: int) -> list[int]:
        """Return the storages that die at a task that is left, all of them in order."""
        stays, touched = self.model.stays, self.model.touches[self.order[place]]
        return [s for s in touched if self.users[s][-1] == place and not stays[s]]


def _places(order: Sequence[int]) -> list[int]:
    place = [0] * len(order)
    for i, t in enumerate(order):
        place[t] = i
    return place


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
