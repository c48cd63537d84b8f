"""Compute regions in parts, so that large intermediates never exist as a whole.

Comes in: functions of pyc ops. Goes out: the same, with some regions repeated for equal parts of
one dimension in which all their ops run: slices of what comes in, clones of the ops (marked
``pyc.chunk = "i/n"``), and the parts joined again. Attention over heads at a time, a feed-forward
block over rows at a time. After AutoChunk (Zhao et al., 2024); FlashAttention (Dao et al., 2022)
does the same inside one kernel. Images are cut into rows: parts of convolutions and poolings
overlap, and what they share is computed for each (Alwani et al., 2016). Every element is computed
by the same ops from the same elements. Functions with dynamic sizes or control flow are left alone.

The plan is regions with an offer for each number of parts. The search goes to where most is live,
looks for a region around one of the values that are live there, pretends that it runs in parts, and
goes on until the place that needs most cannot be lowered: what needs less is left alone. A region
ends in one op whose result is much smaller than what stays inside.

The cost of parts: an op takes the time of its arithmetic and that of its traffic, one after
another, as CPUs overlap little of the two where weights stream. Values that fit into the last cache
cost less to move than those that do not, so parts may be cheaper than the whole; what is read whole
(weights) is read for each part; each dispatch has a fixed cost; parts too small to occupy all cores
compute more slowly. Elementwise ops are taken as fused into what makes their operands.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache
from typing import ClassVar, Literal

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder, create
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Site
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.pipelines.driver.base import PassContext, Relation, option, require_target
from pyc_mlir.pipelines.pyc.chunk.dims import Rows, operand_rows, part_params
from pyc_mlir.pipelines.pyc.chunk.graph import (
    PARTS,
    RESULT_SHARE,
    WINDOW,
    ChunkGraph,
    ItemMemory,
    Region,
    cuts_products,
    has_windows,
    is_static,
    regions,
    rows_of,
    shares,
)
from pyc_mlir.pipelines.pyc.fuse import reads_parts
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target

# On a clone: which part it computes, of how many.
PART = "pyc.chunk"
KEEP = "keep"
# Attention is a product, a softmax and a product.
HIDDEN_DISPATCHES = 3


def seconds(graph: ChunkGraph, region: Region, parts: int, target: Target) -> float:
    """Return the predicted seconds of the whole region in `parts` parts."""
    members, model = set(region.ops), CostModel(target)
    total, share = 0.0, shares(graph, region, parts)
    for i, dim in zip(region.ops, region.dims, strict=True):
        node, call = graph.nodes[i], graph.call(i)
        nbytes = _traffic(graph, i, dim, members, share, model)
        size = max(call.out.elements, node.hidden // call.out.dtype.itemsize)
        flops = call.definition.flops(call.inputs, call.out, **call.params) * share[i]
        dispatches = HIDDEN_DISPATCHES if node.hidden else 1
        if any(_melts(graph, r, i, members) for r in node.reads):
            dispatches = 0
        total += parts * model.part(flops, nbytes, size * share[i], dispatches)
    return total


def _traffic(
    graph: ChunkGraph,
    i: int,
    dim: int,
    members: set[int],
    share: Mapping[int, float],
    model: CostModel,
) -> float:
    """Return the traffic in bytes of one part of op `i`; scores are written and read twice."""
    node, call = graph.nodes[i], graph.call(i)
    total = 4 * model.weighed(node.hidden * share[i])
    for operand, type_, at in zip(node.operands, call.inputs, graph.along(i, dim), strict=True):
        if operand is None or not _melts(graph, operand, i, members):
            # Of what comes from outside, as much as of the result.
            of = 1.0 if at is None else share.get(-1 if operand is None else operand, share[i])
            total += model.weighed(type_.nbytes * of)
    if not any(_melts(graph, i, user, members) for user in graph.users[i]):
        total += model.weighed(call.out.nbytes * share[i])
    return total


def _melts(graph: ChunkGraph, made: int, user: int, members: set[int]) -> bool:
    """Return whether a value never reaches memory: its one user is elementwise, of its size."""
    if not {made, user} <= members or graph.users[made] != [user]:
        return False
    same = graph.call(made).out.shape == graph.call(user).out.shape
    return same and graph.has(user, Trait.ELEMENTWISE)


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
class Preference:
    """The trade-off of a mode, and what a search may try.

    slack: added seconds that it accepts, as a share; 2% is below the model's resolution.
    most_parts: code is generated for each part, since slices are fused with their readers.
    """

    slack: float
    most_parts: int = 4
    fastest_first: bool = False


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

    @property
    def name(self) -> str:
        """The name of the alternative."""
        return KEEP if self.parts == 1 else f"split:{self.parts}"


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
    allowed = [p for p in PREFERENCES.values() if p.slack <= preferred.slack]
    limits = dict.fromkeys(replace(p, fastest_first=False) for p in allowed)
    searches = [(most, widens) for most in limits for widens in (False, True)]
    predicted = cache(lambda region, parts: seconds(graph, region, parts, target))
    # What kernels by minimal filtering take as scratch memory, unknown here: their tiles and sums.
    scratch = 0 if mode == "memory_first" else target.l2_bytes * target.cores
    found = (_Planner(graph, predicted, preferred, *search, scratch).found() for search in searches)
    candidates, _ = min(found, key=lambda found: found[1])
    return candidates


@dataclass
class _Planner:
    """Finds regions where the function needs most, until that place cannot be lowered.

    predicted: seconds of a region in so many parts.
    limits: what the search tries; what is offered in the end follows `preference`.
    widens: whether a region that still needs most is given up for a larger one.
    scratch: bytes that a region with windows must save at least, beside the share `SURE`.
    """

    graph: ChunkGraph
    predicted: Callable[[Region, int], float]
    preference: Preference
    limits: Preference
    widens: bool
    scratch: int = 0
    chosen: dict[Region, int] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    tried: set[int] = field(default_factory=set)

    def found(self) -> tuple[tuple[ChunkRegion, ...], int]:
        """Return the regions found, in program order, and the peak if preferred offers hold."""
        needs = self.graph.needs({})
        while lowered := self._next(needs):
            needs = lowered
        self.chosen = {region: self._most(region, self.preference) for region in self.chosen}
        needs = self.graph.needs(self.chosen)
        floor = max((need.nbytes for need in needs), default=0)
        candidates = tuple(
            ChunkRegion(need.region, self._offers(need.region, need.nbytes, floor))
            for need in needs
            if need.region is not None
        )
        return candidates, floor

    def _offers(self, region: Region, need: int, floor: int) -> tuple[ChunkOffer, ...]:
        """Return offers as the mode prefers. Below `floor`, needed anyhow, bytes are equal."""
        base = need - region.inside_of(self.chosen[region])
        offers = []
        for parts in (1, *_counts(region, self.preference.most_parts)):
            nbytes = base + region.inside_of(parts)
            cost = Cost(self.predicted(region, parts), max(floor, nbytes))
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

    def _most(self, region: Region, limits: Preference) -> int:
        """Return the most parts that are fast enough; 1 if none are."""
        longest = self.predicted(region, 1) * (1 + limits.slack)
        counts = _counts(region, limits.most_parts)
        return max((n for n in counts if self.predicted(region, n) <= longest), default=1)


def _counts(region: Region, most: int) -> list[int]:
    return [n for n in PARTS if region.size % n == 0 and n <= most]


def _falling(needs: list[ItemMemory]) -> list[int]:
    return sorted((need.nbytes for need in needs), reverse=True)


@dataclass(frozen=True)
class Chunk:
    """Compute regions with large intermediates in equal parts, where that lowers the peak."""

    name: ClassVar[str] = "pyc-chunk"
    relation: ClassVar[Relation] = Relation.REALS
    mode: Literal["latency_first", "balanced", "memory_first"] | None = option(
        None, "what to prefer: latency_first, balanced or memory_first; none: the compile's mode"
    )
    target: str = option("", "the target that costs are for; empty: the compile's")

    def __post_init__(self) -> None:
        """Raise PycError (INVALID_PIPELINE) for a target that does not exist."""
        require_target(self.target)

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Choose for every region of every function; for none where PyC plans no memory."""
        counts = {"regions": 0, "in parts": 0, "parts": 0}
        mode = self.mode or context.mode
        if mode is None:
            return counts
        target = Target.named(self.target) if self.target else context.target
        seen: Counter[str] = Counter()
        for function in functions_of(module):
            if not is_static(function):
                continue
            graph = ChunkGraph(function, reads_parts(replace(context, target=target)))
            candidates = plan(graph, target, mode)
            ids = OpIds(function, seen) if candidates else None
            chosen = [
                (c.region, self._choose(graph, c, ids, context.choices, Note(f"mode {mode}")))
                for c in candidates
                if ids
            ]
            for region, parts in chosen:
                counts["regions"] += 1
                if parts > 1:
                    apply(graph, region, parts)
                    counts["in parts"] += 1
                    counts["parts"] += parts
        return counts

    def _choose(
        self, graph: ChunkGraph, found: ChunkRegion, ids: OpIds, choices: Choices, evidence: Note
    ) -> int:
        """Return the number of parts: 1 to keep the region as it is."""
        op = graph.ops[found.region.end]
        site = Site(self.name, ids[op], str(op.location), ids.by_type[op])
        offers = {o.name: o for o in found.offers}
        whole = offers[KEEP]
        alternatives = []
        rounds = "; rows of products, whose sums may be rounded otherwise"
        for name, offer in offers.items():
            each = found.region.size // offer.parts
            reason = f"{whole.nbytes} -> {offer.nbytes} bytes here, {each} at a time"
            if offer.parts == 1:
                reason = f"{whole.nbytes} bytes here"
            elif cuts_products(graph, found.region):
                reason += rounds
            alternatives.append(Alternative(name, offer.cost, reason))
        ops = "+".join(graph.name(i) for i in found.region.ops)
        grounds = (evidence, Note(f"region {ops}"))
        return offers[choices.choose(site, alternatives, grounds).name].parts


def apply(graph: ChunkGraph, region: Region, parts: int) -> None:
    """Replace a region by its parts, at the place of its last op."""
    end, b, axis = graph.ops[region.end], IRBuilder(), region.dims[-1]
    with ir.InsertionPoint(end):
        values = [_part(graph, region, parts, number) for number in range(parts)]
        with end.location:
            # A balanced tree of concats: parts are joined before the last one is computed.
            while len(values) > 1:
                pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
                values = [b.concat(*p, axis=axis) if len(p) == 2 else p[0] for p in pairs]
    end.result.replace_all_uses_with(values[0])
    for i in reversed(region.ops):
        graph.ops[i].erase()


def _part(graph: ChunkGraph, region: Region, parts: int, number: int) -> ir.Value:
    """Return clones of all ops of the region, on what they need for part `number`."""
    needed = rows_of(graph, region, parts, number)
    # What is there of a value along a dimension, and parts of it.
    whole: dict[tuple[ir.Value, int | None], tuple[ir.Value, Rows]] = {}
    values: dict[tuple[ir.Value, int | None, Rows], ir.Value] = {}
    made = None
    for i, dim in zip(region.ops, region.dims, strict=True):
        op, call, rows = graph.ops[i], graph.call(i), needed[i]
        wanted = operand_rows(call, dim, rows)
        operands = []
        with op.location:
            for operand, at in zip(op.operands, graph.along(i, dim), strict=True):
                key = (operand, at, wanted)
                if key not in values:
                    value, held = whole.get((operand, at), (operand, None))
                    is_there = at is None or held == wanted
                    values[key] = value if is_there else _rows(value, held, at or 0, wanted)
                operands.append(values[key])
            shape = tuple(
                rows[1] - rows[0] if d == dim else n for d, n in enumerate(call.out.shape)
            )
            out = call.out.with_shape(shape)
            made = create(call.definition, operands, part_params(call, dim, out, rows), out)
        made.owner.operation.attributes[PART] = ir.StringAttr.get(f"{number}/{parts}")
        whole[op.result, dim] = (made, rows)
    assert made is not None
    return made


def _rows(value: ir.Value, held: Rows | None, at: int, rows: Rows) -> ir.Value:
    """Return rows of a value, of which `held` are there (None: all)."""
    b = IRBuilder()
    shape = b.type_of(value).shape
    first = held[0] if held else 0
    starts, stops = [0] * len(shape), list(shape)
    starts[at], stops[at] = rows[0] - first, rows[1] - first
    return b.slice(value, starts=tuple(starts), stops=tuple(stops), steps=(1,) * len(shape))
