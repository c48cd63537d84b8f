"""Choose the regions to compute in parts, and the number of parts of each.

Comes in: a `ChunkGraph`, a target and a mode. Goes out: regions with their alternatives, one for
every number of parts, as data. As in AutoChunk (Zhao et al., 2024) the search goes to where most is
live, looks for a region around one of the values that are live there, pretends that it runs in
parts, and goes on until the place that needs most cannot be lowered: what needs less is left alone.
A region ends in one op whose result is much smaller than what stays inside.
"""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache

from pyc_mlir.pipelines.pyc.chunk.cost import seconds
from pyc_mlir.pipelines.pyc.chunk.graph import ChunkGraph, ItemMemory, Region
from pyc_mlir.pipelines.pyc.chunk.regions import (
    PARTS,
    RESULT_SHARE,
    WINDOW,
    cuts_products,
    has_windows,
    regions,
)
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target

# Values below this share of the peak are not looked at.
LOOK_SHARE = 0.1
# The simplest region is taken of those that save this share of the value that they are to keep
# inside, or whose need is within `SAME_NEED` of the smallest one.
ENOUGH = 0.6
SAME_NEED = 0.1
# A region with windows must save this share of the need: the memory plan reorders, and as a whole
# DenseNet-121 then needs a sixth less than the estimate says.
SURE = 0.2


@dataclass(frozen=True)
class ChunkLimits:
    """The limits of parts: their cost as a share of the region's time, and their number."""

    slack: float
    parts: int


@dataclass(frozen=True)
class Preference:
    """The trade-off of a mode.

    slack: added seconds that it accepts, as a share; 2% is below the model's resolution.
    most_parts: code is generated for each part, since slices are fused with their readers.
    """

    slack: float
    most_parts: int = 4
    fastest_first: bool = False

    @property
    def limits(self) -> ChunkLimits:
        """The limits that it accepts."""
        return ChunkLimits(self.slack, self.most_parts)


PREFERENCES: Mapping[str, Preference] = {
    "latency_first": Preference(slack=0.02, fastest_first=True),
    "balanced": Preference(slack=0.02),
    "memory_first": Preference(slack=0.08, most_parts=12),
}


@dataclass(frozen=True)
class ChunkOffer:
    """A region in `parts` parts (1: as it is), with its cost and the bytes needed at its place."""

    parts: int
    cost: Cost
    nbytes: int


@dataclass(frozen=True)
class ChunkRegion:
    """A region and its offers, the preferred one first."""

    region: Region
    offers: tuple[ChunkOffer, ...]


def plan(graph: ChunkGraph, target: Target, mode: str) -> tuple[ChunkRegion, ...]:
    """Return the regions worth a choice, in program order, their offers as `mode` prefers.

    The search is greedy, and more freedom can end in a worse place. So it is made with all the
    freedom of the mode and with less of it, and what needs least in the end is taken.
    """
    preferred = PREFERENCES[mode]
    limits = dict.fromkeys(p.limits for p in PREFERENCES.values() if p.slack <= preferred.slack)
    searches = [(most, widens) for most in limits for widens in (False, True)]
    predicted = cache(lambda region, parts: seconds(graph, region, parts, target))
    # What kernels by minimal filtering take as scratch memory, unknown here: their tiles and sums.
    scratch = 0 if mode == "memory_first" else target.l2_bytes * target.cores
    found = (_Planner(graph, predicted, preferred, *search, scratch).found() for search in searches)
    return min(found, key=lambda found: found.peak).candidates


@dataclass(frozen=True)
class _Found:
    """The outcome of a search, and the bytes that the function then needs."""

    candidates: tuple[ChunkRegion, ...]
    peak: int


class _Planner:
    """Finds regions where the function needs most, until that place cannot be lowered.

    predicted: seconds of a region in so many parts.
    limits: what the search tries; what is offered in the end follows `preference`.
    widens: whether a region that still needs most is given up for a larger one.
    scratch: bytes that a region with windows must save at least, beside the share `SURE`.
    """

    def __init__(
        self,
        graph: ChunkGraph,
        predicted: Callable[[Region, int], float],
        preference: Preference,
        limits: ChunkLimits,
        widens: bool,
        scratch: int = 0,
    ) -> None:
        self.graph, self.preference, self._seconds = graph, preference, predicted
        self.limits, self.widens, self.scratch = limits, widens, scratch
        self.chosen: dict[Region, int] = {}
        self.taken: set[int] = set()
        self.tried: set[int] = set()

    def found(self) -> "_Found":
        """Return the regions found, in program order, and the peak if preferred offers hold."""
        needs = self.graph.needs({})
        while lowered := self._next(needs):
            needs = lowered
        accepted = self.preference.limits
        self.chosen = {region: self._most(region, accepted) for region in self.chosen}
        needs = self.graph.needs(self.chosen)
        floor = max((need.nbytes for need in needs), default=0)
        candidates = tuple(
            ChunkRegion(need.region, self._offers(need.region, need.nbytes, floor))
            for need in needs
            if need.region is not None
        )
        return _Found(candidates, floor)

    def _offers(self, region: Region, need: int, floor: int) -> tuple[ChunkOffer, ...]:
        """Return offers as the mode prefers. Below `floor`, needed anyhow, bytes are equal."""
        base = need - region.inside_of(self.chosen[region])
        offers = []
        for parts in (1, *_counts(region, self.preference.most_parts)):
            nbytes = base + region.inside_of(parts)
            cost = Cost(self._seconds(region, parts), max(floor, nbytes))
            offers.append(ChunkOffer(parts, cost, nbytes))
        limit = offers[0].cost.seconds * (1 + self.preference.slack)

        def rank(offer: ChunkOffer) -> tuple[float, ...]:
            late = offer.cost.seconds > limit
            if self.preference.fastest_first or late:
                return (late, offer.cost.seconds, offer.parts)
            return (late, offer.cost.workspace_bytes, offer.parts)

        return tuple(sorted(offers, key=rank))

    def _next(self, needs: list[ItemMemory]) -> list[ItemMemory] | None:
        """Return the needs with one region more; None where the worst place is left as it is."""
        worst = max(needs, key=lambda need: need.nbytes, default=None)
        if worst is None:
            return None
        if worst.region is not None and self.widens:
            op = max(worst.region.ops, key=self._weight)
            if lowered := self._try(op, worst, needs):
                return lowered
        own = [] if worst.region is not None else [worst.op]
        for op in sorted({*worst.live, *own}, key=lambda i: (-self._weight(i), i)):
            if op in self.tried | self.taken or self._weight(op) < LOOK_SHARE * worst.nbytes:
                continue
            self.tried.add(op)
            if lowered := self._try(op, worst, needs):
                return lowered
        return None

    def _try(self, op: int, worst: ItemMemory, needs: list[ItemMemory]) -> list[ItemMemory] | None:
        """Take a region around `op`, in place of the one it was in, if that lowers the needs."""
        others = {r: n for r, n in self.chosen.items() if op not in r.ops}
        taken = {i for r in others for i in r.ops}
        region = self._around(op, taken, worst)
        if region is None:
            return None
        chosen = {**others, region: self._most(region, self.limits)}
        lowered = self.graph.needs(chosen)
        if _falling(lowered) >= _falling(needs):
            return None
        saved = worst.nbytes - max(need.nbytes for need in lowered if need.region == region)
        if has_windows(self.graph, region) and saved < max(self.scratch, SURE * worst.nbytes):
            return None
        self.chosen, self.taken = chosen, taken | set(region.ops)
        return lowered

    def _around(self, op: int, taken: AbstractSet[int], worst: ItemMemory) -> Region | None:
        """Return the simplest region that keeps the result of `op` inside and needs little."""
        found: dict[Region, int] = {}
        for end in self._ends(op, taken):
            for region in regions(self.graph, op, end, taken):
                parts = self._most(region, self.limits)
                if parts > 1:
                    found[region] = self._outside(region) + region.inside_of(parts)
        if not found:
            return None
        saving = worst.nbytes - ENOUGH * self._weight(op)
        goal = max(saving, min(found.values()) * (1 + SAME_NEED))
        fitting = [r for r, need in found.items() if need <= goal]
        return min(fitting, key=lambda r: (cuts_products(self.graph, r), len(r.ops), found[r]))

    def _ends(self, op: int, taken: AbstractSet[int]) -> Iterator[int]:
        """Yield ops behind `op` that may end a region around it, near ones first."""
        graph, reached = self.graph, {op}
        largest = self._weight(op)
        for i in range(op, min(op + WINDOW, len(graph.ops))):
            if i != op and reached.isdisjoint(graph.nodes[i].reads):
                continue
            reached.add(i)
            largest = max(largest, self._weight(i))
            result = graph.nodes[i].call
            # A view of what stays inside would keep it alive.
            if i in taken or result is None or graph.storage[i] != i:
                continue
            if result.out.nbytes <= RESULT_SHARE * largest:
                yield i

    def _outside(self, region: Region) -> int:
        """Return the bytes live beside the region: what passes by, what it reads, its result."""
        graph, members = self.graph, set(region.ops)
        live = {graph.storage[r] for i in region.ops for r in graph.nodes[i].reads} - members
        for i in range(region.end):
            if i not in members and any(u > region.end for u in graph.users[i]):
                live.add(graph.storage[i])
        return sum(graph.nodes[i].nbytes for i in {*live, region.end})

    def _weight(self, i: int) -> int:
        return self.graph.nodes[i].nbytes + self.graph.nodes[i].hidden

    def _most(self, region: Region, limits: ChunkLimits) -> int:
        """Return the most parts that are fast enough; 1 if none are."""
        longest = self._seconds(region, 1) * (1 + limits.slack)
        counts = _counts(region, limits.parts)
        return max((n for n in counts if self._seconds(region, n) <= longest), default=1)


def _counts(region: Region, most: int) -> list[int]:
    """Return the numbers of equal parts that are offered."""
    return [n for n in PARTS if region.size % n == 0 and n <= most]


def _falling(needs: list[ItemMemory]) -> list[int]:
    return sorted((need.nbytes for need in needs), reverse=True)
