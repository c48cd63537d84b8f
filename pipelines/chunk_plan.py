"""Which ops are worth computing in parts, in how many, and what does that cost?

Comes in: a `Graph`, a target and a mode. Goes out: regions with their alternatives, one for every
number of parts, as data. As in AutoChunk (Zhao et al., 2024) the search goes to where most is live,
looks for a region around one of the values that are live there, pretends that it runs in parts, and
goes on until the place that needs most cannot be lowered: what needs less is left alone. A region
ends in one op whose result is much smaller than what stays inside.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from pyc_mlir.pipelines.chunk_cost import seconds
from pyc_mlir.pipelines.chunk_graph import Graph, Need, Region
from pyc_mlir.pipelines.chunk_regions import RESULT_SHARE, WINDOW, cuts_products, regions
from pyc_mlir.pipelines.cost import Cost
from pyc_mlir.pipelines.target import Target

PARTS = (2, 3, 4, 6, 8, 12)
# Values below this share of the peak are not looked at.
LOOK_SHARE = 0.1
# The simplest region is taken of those that save this share of the value that they are to keep
# inside, or whose need is within `SAME_NEED` of the smallest one.
ENOUGH = 0.6
SAME_NEED = 0.1


@dataclass(frozen=True)
class Preference:
    """What a mode trades.

    slack: added seconds that it accepts, as a share; 2% is below what the model can tell.
    most_parts: code is generated for each part, since slices are fused with what reads them.
    widens: whether a region that still needs most is given up for a larger one.
    """

    slack: float
    most_parts: int = 4
    widens: bool = False
    fastest_first: bool = False


PREFERENCES: Mapping[str, Preference] = {
    "latency_first": Preference(slack=0.02, fastest_first=True),
    "balanced": Preference(slack=0.02),
    "memory_first": Preference(slack=0.08, most_parts=12, widens=True),
}


@dataclass(frozen=True)
class Offer:
    """A region in `parts` parts (1: as it is), with its cost and the bytes needed at its place."""

    parts: int
    cost: Cost
    nbytes: int


@dataclass(frozen=True)
class Candidate:
    """A region and its offers, the preferred one first."""

    region: Region
    offers: tuple[Offer, ...]


def plan(graph: Graph, target: Target, mode: str) -> tuple[Candidate, ...]:
    """The regions worth a choice, in program order, with their offers in the order of `mode`."""
    return tuple(_Planner(graph, target, PREFERENCES[mode]).candidates())


class _Planner:
    """Finds regions where the function needs most, until that place cannot be lowered."""

    def __init__(self, graph: Graph, target: Target, preference: Preference) -> None:
        self.graph, self.target, self.preference = graph, target, preference
        self.chosen: dict[Region, int] = {}
        self.taken: set[int] = set()
        self.tried: set[int] = set()

    def candidates(self) -> Iterator[Candidate]:
        """The regions found, in program order."""
        needs = self.graph.needs({})
        while found := self._next(needs):
            needs = found
        floor = max((need.nbytes for need in needs), default=0)
        for need in needs:
            if need.region is not None:
                yield Candidate(need.region, self._offers(need.region, need.nbytes, floor))

    def _offers(self, region: Region, need: int, floor: int) -> tuple[Offer, ...]:
        """As the mode prefers. Below `floor`, which other places need anyhow, bytes count alike."""
        base = need - _inside(region, self.chosen[region])
        offers = []
        for parts in (1, *self._counts(region)):
            nbytes = base + _inside(region, parts)
            cost = Cost(self._seconds(region, parts), max(floor, nbytes))
            offers.append(Offer(parts, cost, nbytes))
        limit = offers[0].cost.seconds * (1 + self.preference.slack)

        def rank(offer: Offer) -> tuple[float, ...]:
            late = offer.cost.seconds > limit
            if self.preference.fastest_first or late:
                return (late, offer.cost.seconds, offer.parts)
            return (late, offer.cost.workspace_bytes, offer.parts)

        return tuple(sorted(offers, key=rank))

    def _next(self, needs: list[Need]) -> list[Need] | None:
        """The needs with one region more; None when the place that needs most is left as it is."""
        worst = max(needs, key=lambda need: need.nbytes, default=None)
        if worst is None:
            return None
        if worst.region is not None and self.preference.widens:
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

    def _try(self, op: int, worst: Need, needs: list[Need]) -> list[Need] | None:
        """Take a region around `op`, in place of the one it was in, if that lowers the needs."""
        others = {r: n for r, n in self.chosen.items() if op not in r.ops}
        taken = {i for r in others for i in r.ops}
        region = self._around(op, taken, worst)
        if region is None:
            return None
        chosen = {**others, region: self._most(region)}
        lowered = self.graph.needs(chosen)
        if _falling(lowered) >= _falling(needs):
            return None
        self.chosen, self.taken = chosen, taken | set(region.ops)
        return lowered

    def _around(self, op: int, taken: AbstractSet[int], worst: Need) -> Region | None:
        """The simplest region that keeps the result of `op` inside and needs little enough."""
        found: dict[Region, int] = {}
        for end in self._ends(op, taken):
            for region in regions(self.graph, op, end, taken):
                parts = self._most(region)
                if parts > 1:
                    found[region] = self._outside(region) + _inside(region, parts)
        if not found:
            return None
        saving = worst.nbytes - ENOUGH * self._weight(op)
        goal = max(saving, min(found.values()) * (1 + SAME_NEED))
        fitting = [r for r, need in found.items() if need <= goal]
        return min(fitting, key=lambda r: (cuts_products(self.graph, r), len(r.ops), found[r]))

    def _ends(self, op: int, taken: AbstractSet[int]) -> Iterator[int]:
        """Ops behind `op` that may end a region around it, near ones first."""
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
        """Bytes live beside the region: what passes by, what it reads, its result."""
        graph, members = self.graph, set(region.ops)
        live = {graph.storage[r] for i in region.ops for r in graph.nodes[i].reads} - members
        for i in range(region.end):
            if i not in members and any(u > region.end for u in graph.users[i]):
                live.add(graph.storage[i])
        return sum(graph.nodes[i].nbytes for i in {*live, region.end})

    def _weight(self, i: int) -> int:
        return self.graph.nodes[i].nbytes + self.graph.nodes[i].hidden

    def _counts(self, region: Region) -> list[int]:
        """The numbers of equal parts that are offered."""
        most = self.preference.most_parts
        return [n for n in PARTS if region.size % n == 0 and n <= most]

    def _most(self, region: Region) -> int:
        """The most parts that are fast enough; 1 if none are."""
        limit = self._seconds(region, 1) * (1 + self.preference.slack)
        return max(
            (n for n in self._counts(region) if self._seconds(region, n) <= limit), default=1
        )

    def _seconds(self, region: Region, parts: int) -> float:
        return seconds(self.graph, region, parts, self.target)


def _inside(region: Region, parts: int) -> int:
    return -(-region.inside // parts)


def _falling(needs: list[Need]) -> list[int]:
    return sorted((need.nbytes for need in needs), reverse=True)
