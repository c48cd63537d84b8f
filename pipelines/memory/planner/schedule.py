"""Scheduling: an order of the tasks with the fewest bytes live at once.

Comes in: a `PlanningProblem`. Goes out: a `Schedule`, its peak in live bytes (in-place reuse
counted) and a bound that no order goes below. The best of several list schedules (least growth
first, depth first by Sethi-Ullman labels, each from the inputs on and from the results back), as
XLA's memory scheduler does; then the tasks around the peak are ordered exactly (`_Window`) or moved
away from it, until nothing helps or the work limit is reached. Tasks that are comparable with all
others cut the problem in independent parts; where each part is solved exactly, the order is proven
best."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from random import Random

from pyc_mlir.pipelines.memory.planner.problem import PlanningProblem
from pyc_mlir.pipelines.memory.planner.storage import (
    Storages,
    matched,
    places,
    profile,
    run,
    storages,
)


@dataclass(frozen=True)
class Solved:
    """An `order` below `limit`, None if none was found. No order's peak is below `bound`.

    `work` counts tasks looked at.
    """

    order: tuple[int, ...] | None
    peak: int
    bound: int
    work: int


@dataclass(frozen=True)
class _Local:
    """One task of the window: bit masks over the window's tasks, bytes by storage."""

    needs: int
    rise: int
    ends: tuple[tuple[int, int, int], ...]
    swaps: tuple[tuple[int, int], ...]
    followers: tuple[int, ...]


class _Window:
    """Tasks to be ordered with a peak below `limit` bytes; they may run once those of `done` have.

    `live` is what is live before them; a peak below `floor` would be no gain, since that of the
    problem cannot be lower. The answer is the same for the same arguments.
    """

    def __init__(
        self,
        model: Storages,
        tasks: Sequence[int],
        done: Sequence[bool],
        live: int,
        limit: int,
        work_limit: int,
        floor: int,
    ) -> None:
        self.model, self.tasks, self.live = model, tasks, live
        self.limit, self.work_limit = limit, work_limit
        self.work = 0
        index = {t: k for k, t in enumerate(tasks)}
        self.local = [self._local(t, index, done) for t in tasks]
        self.parent: dict[int, tuple[int, int]] = {}
        self.closed: set[int] = set()
        self.floor = max(floor, *(model.need(t) for t in tasks))

    def _local(self, t: int, index: dict[int, int], done: Sequence[bool]) -> _Local:
        model, rise, ends = self.model, 0, []
        for s in model.touches[t]:
            group = model.touchers[s]
            if group[0] == t:
                rise += model.size[s]
            inside = all(x in index or done[x] for x in group)
            if inside and not model.stays[s]:
                rest = sum(1 << index[x] for x in group if x in index and x != t)
                ends.append((rest, model.size[s], s))
        return _Local(
            sum(1 << index[p] for p in model.predecessors[t] if p in index),
            rise,
            tuple(ends),
            model.swaps[t],
            tuple(index[x] for x in model.successors[t] if x in index),
        )

    def solve(self) -> Solved:
        """Expand sets in order of their peak; the first full one is the best."""
        ready = sum(1 << k for k, item in enumerate(self.local) if not item.needs)
        full = (1 << len(self.tasks)) - 1
        heap = [(self.floor, 0, self.live, 0, ready)]
        self.seen = seen = {0: self.floor}
        while heap:
            peak, depth, live, mask, ready = heappop(heap)
            if peak >= self.limit:
                break
            if mask in self.closed:
                continue
            if self.work > self.work_limit:
                return Solved(None, self.limit, peak, self.work)
            moves, state = self._settle(peak, live, mask, ready)
            depth, live, mask, ready = depth - state[0], *state[1:]
            if mask == full:
                return Solved(self._path(mask), peak, peak, self.work)
            for k, during, after in moves:
                if (high := max(peak, during)) >= self.limit:
                    continue
                following = mask | 1 << k
                if seen.get(following, self.limit) > high:
                    seen[following] = high
                    self.parent[following] = mask, k
                    heappush(
                        heap, (high, depth - 1, after, following, self._ready(following, ready, k))
                    )
        return Solved(None, self.limit, self.limit, self.work)

    def _settle(
        self, peak: int, live: int, mask: int, ready: int
    ) -> tuple[list[tuple[int, int, int]], tuple[int, int, int, int]]:
        """Run what can do no harm; return the moves that are left, and where we got."""
        count = 0
        while True:
            self.closed.add(mask)
            moves = self._moves(mask, live, ready)
            harmless = next((m for m in moves if m[2] <= live and m[1] <= peak), None)
            if harmless is None:
                return moves, (count, live, mask, ready)
            k, _, live = harmless
            following = mask | 1 << k
            if following in self.closed:
                return [], (count, live, mask, ready)
            if self.seen.get(following, self.limit) > peak:
                self.seen[following] = peak
                self.parent[following] = mask, k
            mask, ready, count = following, self._ready(following, ready, k), count + 1

    def _moves(self, mask: int, live: int, ready: int) -> list[tuple[int, int, int]]:
        """(task, live bytes during, after) for each task that may run next."""
        moves = []
        while ready:
            bit = ready & -ready
            ready ^= bit
            k = bit.bit_length() - 1
            item = self.local[k]
            freed, dying = 0, []
            for rest, size, s in item.ends:
                if rest & mask == rest:
                    freed += size
                    dying.append(s)
            high = live + item.rise
            saved = 0
            if item.swaps and dying:
                pairs = matched(item.swaps, dying, self.model.size)
                saved = sum(self.model.size[s] for s in pairs)
            moves.append((k, high - saved, high - freed))
        self.work += len(moves)
        return moves

    def _ready(self, mask: int, ready: int, k: int) -> int:
        ready &= ~(1 << k)
        for x in self.local[k].followers:
            needs = self.local[x].needs
            if needs & mask == needs:
                ready |= 1 << x
        return ready

    def _path(self, mask: int) -> tuple[int, ...]:
        found = []
        while mask:
            mask, k = self.parent[mask]
            found.append(self.tasks[k])
        return tuple(reversed(found))


# One unit of work is one task looked at, about two microseconds.
DEFAULT_WORK = 150_000
WINDOWS = (16, 32, 64, 128)
# A search that is cut off must not depend on how much work is left: otherwise more work could end
# in another, worse order. Each round may spend four times as much on every search.
PART_WORK = 16_000
WINDOW_WORK = 2_000
RESTARTS = 4


@dataclass(frozen=True)
class Schedule:
    """An order of all tasks, its live bytes at the peak, and the peak that no order goes below."""

    order: tuple[int, ...]
    peak: int
    lower_bound: int
    work: int = 0

    @property
    def proven(self) -> bool:
        """True where no order has a smaller peak."""
        return self.peak == self.lower_bound


def schedule(problem: PlanningProblem, *, work_limit: int = DEFAULT_WORK) -> Schedule:
    """Order the tasks of `problem` so that its peak in live bytes is small.

    Never above the peak of the problem's own order; more work never gives a greater peak; the
    same arguments give the same order.
    """
    return schedules(problem, [work_limit])[0]


def schedules(problem: PlanningProblem, work_limits: Sequence[int]) -> list[Schedule]:
    """Return `schedule`'s answer for each of the ascending `work_limits`, in one search."""
    return _Scheduler(storages(problem), work_limits).run()


class _Scheduler:
    """One order under improvement, the best one so far, and the work that is left."""

    def __init__(self, model: Storages, work_limits: Sequence[int]) -> None:
        self.model = model
        self.limits = list(work_limits)
        self.answers: list[Schedule] = []
        self.left = self.limit = work_limits[-1]
        self.scale = 1
        self.random = Random(0)
        self.bound = model.lower_bound
        own = list(range(len(model.touches)))
        self.best = Schedule(tuple(own), profile(model, own).peak, self.bound)
        self._take(own)

    def run(self) -> list[Schedule]:
        """Try the orders from cheap to dear; stop when the bound is met or the work is done."""
        orders = self._list_orders()
        while not self._finished() and (order := next(orders, None)):
            self.left -= 2 * self._edges()
            if profile(self.model, order).peak < self.peak:
                self._take(order)
        while not self._finished():
            cuts = [(max(self.profile.during[i:j]), i, j) for i, j in parts(self.model, self.order)]
            bound = self.bound
            for peak, i, j in sorted(cuts, reverse=True):
                if peak > bound and not self._finished():
                    bound = max(bound, self._improve(i, j, peak, PART_WORK).bound)
            self.bound = bound
            self._descend()
            for _ in range(RESTARTS):
                self._restart()
            self.scale *= 4
        self.answers += [self._answer()] * (len(self.limits) - len(self.answers))
        return self.answers

    def _restart(self) -> None:
        if self._finished():
            return
        kept = self.best
        self.left -= 2 * self._edges()
        self._take(greedy(self.model, noise=self.random))
        self._descend()
        if self.best is kept:
            self._take(kept.order)

    def _answer(self) -> Schedule:
        return replace(self.best, lower_bound=self.bound, work=self.limit - self.left)

    def _finished(self) -> bool:
        """Return whether to stop; note the answers of the limits that have been passed."""
        while len(self.answers) < len(self.limits):
            if self.limit - self.left < self.limits[len(self.answers)]:
                break
            self.answers.append(self._answer())
        return self.best.peak <= self.bound or self.left <= 0

    def _edges(self) -> int:
        return sum(map(len, self.model.touches))

    def _take(self, order: Sequence[int]) -> None:
        self.order = list(order)
        self.profile = profile(self.model, self.order)
        self.position = places(self.order)
        self._measure()

    def _measure(self) -> None:
        self.peak = self.profile.peak
        if self.peak < self.best.peak:
            self.best = Schedule(tuple(self.order), self.peak, self.bound)

    def _list_orders(self) -> Iterator[Sequence[int]]:
        yield greedy(self.model)
        yield greedy(self.model, backward=True)
        yield depth_first(self.model)
        yield greedy(self.model, newest=True)
        yield greedy(self.model, backward=True, newest=True)

    def _improve(self, i: int, j: int, limit: int, work: int) -> Solved:
        """Order positions i..j below `limit` if that can be."""
        done = [position < i for position in self.position]
        live = self.profile.before[i]
        window = _Window(
            self.model, self.order[i:j], done, live, limit, work * self.scale, self.bound
        )
        answer = window.solve()
        self.left -= answer.work + (j - i)
        if answer.order is not None:
            self._replace(i, answer.order)
        return answer

    def _replace(self, i: int, tasks: Sequence[int]) -> None:
        j = i + len(tasks)
        part = run(self.model, tasks, i, self.position, self.profile.before[i])
        self.order[i:j] = tasks
        self.profile.during[i:j] = part.during
        self.profile.before[i : j + 1] = part.before
        for k in range(i, j):
            self.position[self.order[k]] = k
        self._measure()

    def _descend(self) -> None:
        """Lower the peaks one by one: windows around each, then moves out of it."""
        while not self._finished() and self.peak > self.bound:
            at = self.profile.during.index(self.peak)
            if not (self._windows(at) or self._moves(at)):
                return

    def _windows(self, at: int) -> bool:
        for width in WINDOWS:
            for back in (width // 2, width // 4, 3 * width // 4):
                i = max(0, min(at - back, len(self.order) - width))
                j = min(len(self.order), i + width)
                if self._finished():
                    return False
                if self._improve(i, j, self.peak, WINDOW_WORK).order is not None:
                    return True
            if width >= len(self.order):
                return False
        return False

    def _moves(self, at: int) -> bool:
        """Move a storage's birth behind the peak, or its death before it, with what it takes."""
        for start, tasks in self._moved(at):
            self.left -= 2 * len(tasks)
            if self._finished():
                return False
            part = run(self.model, tasks, start, self.position, self.profile.before[start])
            old = self.profile.during[start : start + len(tasks)]
            if (part.peak, part.during.count(part.peak)) < (max(old), old.count(max(old))):
                self._replace(start, tasks)
                return True
        return False

    def _moved(self, at: int) -> Iterator[tuple[int, list[int]]]:
        model, position = self.model, self.position
        for s in self._idle(at):
            births = [position[t] for t in model.touchers[s] if position[t] < at]
            if len(births) == 1:
                i = births[0]
                yield i, _closure_last(self.order[i : at + 1], self.order[i], model.predecessors)
            deaths = [t for t in model.touchers[s] if position[t] > at]
            j = max(map(position.__getitem__, deaths), default=-1) + 1
            if deaths and not model.stays[s]:
                yield at, _closure_first(self.order[at:j], deaths, model.predecessors)

    def _idle(self, at: int) -> list[int]:
        born: dict[int, int] = {}
        for t in self.order[: at + 1]:
            for s in self.model.touches[t]:
                born[s] = t
        here = set(self.model.touches[self.order[at]])
        self.left -= at
        idle = [
            s
            for s in born
            if s not in here
            and any(self.position[t] > at for t in self.model.touchers[s])
            and self.model.size[s]
        ]
        return sorted(idle, key=lambda s: (-self.model.size[s], s))[:32]


def _closure_last(
    tasks: Sequence[int], first: int, predecessors: Sequence[frozenset[int]]
) -> list[int]:
    """`tasks` with `first` and all that depends on it behind the others."""
    late = {first}
    for t in tasks:
        if predecessors[t] & late:
            late.add(t)
    return [t for t in tasks if t not in late] + [t for t in tasks if t in late]


def _closure_first(
    tasks: Sequence[int], wanted: Sequence[int], predecessors: Sequence[frozenset[int]]
) -> list[int]:
    """`tasks` with `wanted` and all that they depend on before the others."""
    early = set(wanted)
    for t in reversed(tasks):
        if t in early:
            early |= predecessors[t]
    return [t for t in tasks if t in early] + [t for t in tasks if t not in early]


def parts(model: Storages, order: Sequence[int]) -> list[tuple[int, int]]:
    """Cut positions of `order` in parts (first, last + 1) that follow one another in every order.

    A task is a cut when all others are its ancestors or its descendants, that is, when it alone
    has no successor among those up to it and alone no predecessor among those from it on.
    """
    count = len(order)
    position = places(order)
    followed = [0] * (count + 1)
    preceded = [0] * (count + 1)
    for i, t in enumerate(order):
        first = min((position[x] for x in model.successors[t]), default=count)
        followed[i] += 1
        followed[first] -= 1
        last = max((position[p] for p in model.predecessors[t]), default=-1)
        # As long as its last predecessor stands before k, task t is a source of what is from k on.
        preceded[last + 1] += 1
        preceded[i + 1 if i < count else count] -= 1
    sinks = sources = begin = 0
    found = []
    for i in range(count):
        sinks += followed[i]
        sources += preceded[i]
        if sinks == 1 and sources == 1 and i + 1 < count:
            found.append((begin, i + 1))
            begin = i + 1
    return [*found, (begin, count)] if count else []


def greedy(
    model: Storages,
    *,
    backward: bool = False,
    newest: bool = False,
    noise: Random | None = None,
) -> list[int]:
    """List schedule: of the tasks that may run, the one after which the fewest bytes are live.

    `backward` builds the order from its end, where a storage is born with its last reader. Ties go
    to the task that became ready last (`newest`), else to the problem's own order. `noise`
    weighs the bytes of each task anew, for restarts.
    """
    order = _ListSchedule(model, backward, newest, noise).order()
    return order[::-1] if backward else order


class _ListSchedule:
    """A run of tasks one by one; keys of the ready ones are kept up to date in a heap."""

    def __init__(self, model: Storages, backward: bool, newest: bool, noise: Random | None) -> None:
        count = len(model.touches)
        self.model, self.backward, self.newest = model, backward, newest
        self.after = model.predecessors if backward else model.successors
        before = model.successors if backward else model.predecessors
        self.waiting = [len(b) for b in before]
        self.weight = [noise.uniform(0.7, 1.3) if noise else 1.0 for _ in range(count)]
        self.left = [len(group) for group in model.touchers]
        # What stays is live from the start when seen from the end, and never dies from the front.
        self.born = [backward and stay for stay in model.stays]
        self.kept = [stay and not backward for stay in model.stays]
        self.stamp = [0] * count
        self.ran: dict[int, None] = {}

    def order(self) -> list[int]:
        """Return the tasks as they run, from the end on when backward."""
        heap = [self._entry(t) for t, waiting in enumerate(self.waiting) if not waiting]
        heapify(heap)
        while heap:
            t = heappop(heap)[2]
            if t in self.ran:
                continue
            for x in sorted(self._changed_by(t)):
                if x not in self.ran and not self.waiting[x]:
                    heappush(heap, self._entry(x))
        return list(self.ran)

    def _entry(self, t: int) -> tuple[float, int, int]:
        growth = 0
        for s in self.model.touches[t]:
            growth += (not self.born[s]) * self.model.size[s]
            growth -= (self.left[s] == 1 and not self.kept[s]) * self.model.size[s]
        own = -t if self.backward else t
        return growth * self.weight[t], -self.stamp[t] if self.newest else own, t

    def _changed_by(self, t: int) -> set[int]:
        """Run task `t`; return the tasks whose keys may be others now."""
        self.ran[t] = None
        changed: set[int] = set()
        for s in self.model.touches[t]:
            self.left[s] -= 1
            if not self.born[s] or self.left[s] == 1:
                changed.update(self.model.touchers[s])
            self.born[s] = True
        for x in self.after[t]:
            self.waiting[x] -= 1
            if not self.waiting[x]:
                self.stamp[x] = len(self.ran)
                changed.add(x)
        return changed


def depth_first(model: Storages) -> list[int]:
    """Order depth first from the results: the operand of greatest need beyond its result first.

    The labels are Sethi and Ullman's (1970), as if the graph were a tree.
    """
    count = len(model.touches)
    leaves = [
        sum(model.size[s] for s in model.touches[t] if model.touchers[s][0] == t)
        for t in range(count)
    ]
    need = [0] * count

    def surplus(p: int) -> tuple[int, int]:
        return leaves[p] - need[p], p

    for t in range(count):
        held = most = 0
        for p in sorted(model.predecessors[t], key=surplus):
            most = max(most, held + need[p])
            held += leaves[p]
        need[t] = max(most, held + leaves[t])
    results = [t for t in range(count) if not model.successors[t]]
    return _post_order(sorted(results, key=surplus), model.predecessors, surplus)


def _post_order(
    roots: Sequence[int],
    predecessors: Sequence[frozenset[int]],
    key: Callable[[int], tuple[int, int]],
) -> list[int]:
    order: list[int] = []
    entered: set[int] = set()
    stack = [(t, False) for t in reversed(roots)]
    while stack:
        t, leave = stack.pop()
        if leave:
            order.append(t)
        elif t not in entered:
            entered.add(t)
            stack.append((t, True))
            operands = sorted(predecessors[t], key=key, reverse=True)
            stack.extend((p, False) for p in operands if p not in entered)
    return order
