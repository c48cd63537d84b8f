"""The best order of some consecutive tasks: exact, by a search over sets of tasks that have run.

The live bytes depend on the set alone, so the smallest possible peak is a bottleneck shortest path
through the lattice of down-sets (Dijkstra with max in the place of +). What keeps it small: a task
that stays within the peak reached so far and leaves no more bytes live than before may run at
once, whatever else is to come (as in register sufficiency, Sethi 1975), and a set whose peak is
no better than the order at hand is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from pyc_mlir.pipelines.memory.planner.storage import Storages, matched


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


def solve(
    model: Storages,
    tasks: Sequence[int],
    done: Sequence[bool],
    live: int,
    limit: int,
    work_limit: int,
    floor: int = 0,
) -> Solved:
    """Order `tasks`, which may run once those of `done` have, with a peak below `limit` bytes.

    `live` is what is live before them; a peak below `floor` would be no gain (that of the whole
    cannot be below). The answer is the same for the same arguments.
    """
    return _Search(model, tasks, done, live, limit, work_limit, floor).solve()


class _Search:
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
        """Return what may run after task `k` as well."""
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
