"""Group ops that should become one kernel: `pyc.group` regions with one result.

Anchors (matmul, conv2d, norms, softmax, attention, pooling) take the elementwise ops that follow
them as an epilogue: bias, activation, residual add. A product of two computed values also takes the
transposes around it, which a kernel can do by reading and writing in another order. A convolution
or a pooling takes the concatenations and slices of channels before it: its kernel reads images
whose channels lie in several tensors, or in a part of one (`kernels/families/window.py`).
Where nothing else reads such an image, it is never stored and part of each group that reads it, as
a copy if there are several. The elementwise ops that remain form clusters. A group is a proposal:
whoever lowers it may take it whole or dissolve it.

Analysis gives a plan, the plan is a choice for each anchor (every legal length of the epilogue is
an alternative), and only `_apply` touches the program.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.ops.quantized import BYTES
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Site
from pyc_mlir.pipelines.driver.base import PassContext, Relation, option
from pyc_mlir.pipelines.kernels.families.window import MOST_PARTS, takes_channels
from pyc_mlir.pipelines.kernels.lang.narrow import has_tables
from pyc_mlir.pipelines.kernels.registry import refuse_narrow
from pyc_mlir.pipelines.pyc.graph import BlockGraph
from pyc_mlir.pipelines.pyc.rewriting import functions_of, is_unused
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import MOST_BINDINGS
from pyc_mlir.pipelines.target.work import F32, sizes

_FAMILIES = ("conv", "depthwise", "pool")


def reads_parts(context: PassContext) -> bool:
    """Return whether a compile has kernels that read images in parts."""
    return not refuse_narrow(context.target) and all(map(context.kernels.take, _FAMILIES))


@dataclass(frozen=True)
class Channels:
    """Positions of ops that `join` or take channels of images, and of those that are `unstored`."""

    join: frozenset[int] = frozenset()
    unstored: frozenset[int] = frozenset()

    @staticmethod
    def of(graph: BlockGraph) -> "Channels":
        """Return what moves channels; of it, only windows or what is unstored read the unstored."""
        parts: dict[int, int] = {}
        for i, producers in enumerate(graph.producers):
            if (name := graph.name(i)) not in ("concat", "slice"):
                continue
            result, params = graph.type(graph.makes[i]), graph.params(i)
            shapes = [graph.type(n).shape for n in graph.operands[i]]
            if result.dtype == F32 and takes_channels(name, params, shapes, result.shape):
                parts[i] = sum(parts.get(p, 1) for p in producers) or 1
        found: set[int] = set()
        for i in sorted(parts, reverse=True):
            users = graph.users[i]
            few = parts[i] <= MOST_PARTS and len(users) > 0
            if few and all(u in found or _reads_parts(graph, u, graph.makes[i]) for u in users):
                found.add(i)
        return Channels(frozenset(parts), frozenset(found))

    def before(self, graph: BlockGraph, window: int) -> list[int]:
        """Return the ops that the group of a window has in front of it, in order."""
        found: set[int] = set()
        pending = list(self.unstored.intersection(graph.producers[window]))
        while pending:
            i = pending.pop()
            found.add(i)
            pending.extend(self.join.intersection(graph.producers[i]) - found)
        return sorted(found)


def _reads_parts(graph: BlockGraph, window: int, images: int) -> bool:
    """Return whether a window's kernel reads the images, and of them nothing else."""
    if not graph.has(window, Trait.WINDOW):
        return False
    own, *others = graph.operands[window]
    params = graph.params(window)
    if own != images or images in others or params["layout"] != "NHWC":
        return False
    if not others:
        return True
    channels, filters = (graph.type(n).shape[3] for n in (images, graph.makes[window]))
    groups = params["groups"]
    depthwise = groups == channels == filters
    return graph.is_constant(others[0]) and (groups == 1 or depthwise)


# Of concatenations that get copies of those that they share with others.
_MOST_PARTS = 64


class FusionGraph(BlockGraph):
    """A block of which concatenations and slices of channels may be made part by part.

    `users` leaves out what has a copy of such an op.
    """

    def __init__(
        self,
        function: ir.Operation,
        seen: Counter[str] | None = None,
        copies: bool = True,
        windows: bool = True,
        tables: bool = False,
    ) -> None:
        """Read a block; `seen` is shared by the functions of a module, as `OpIds` says.

        `copies`: a concatenation that extends another one, which others need too, has a copy of it,
        and is none of its users. `windows`: kernels of windows read parts of images in place of
        their concatenation: what they take so has a copy of it too. `tables`: a kernel looks up
        what follows from one byte.
        """
        super().__init__(function)
        self.tables = tables
        self.ids = OpIds(function, seen)
        self.names = [self.name(i) for i in range(len(self.ops))]
        results = [self.result(i) for i in range(len(self.ops))]
        self.shapes = [None if t is None else t.shape for t in results]
        self.sizes = [t.nbytes if t is not None and t.is_static else None for t in results]
        self.elementwise = [self.has(i, Trait.ELEMENTWISE) for i in range(len(self.ops))]
        self._axes = {i: self.axis(i) for i, n in enumerate(self.names) if n == "concat"}
        self._parts: dict[int, int] = {}
        for i in self._axes:
            self._parts[i] = sum(self._parts.get(p, 1) for p in self.producers[i])
        self.channels = Channels.of(self) if windows else Channels()
        for i in self.channels.join - self.channels.unstored:
            self.users[i] = [u for u in self.users[i] if u not in self.channels.unstored]
        several = [i for i in self._axes if copies and len(self.users[i]) > 1]
        self.shared = {i for i in several if any(self.extends(i, u) for u in self.users[i])}
        for i in self.shared:
            self.users[i] = [user for user in self.users[i] if not self.extends(i, user)]

    def outside(self, members: Sequence[int]) -> set[int]:
        """Return the values from elsewhere that the members use."""
        return {n for i in members for n in self.reads[i]} - {self.makes[i] for i in members}

    def is_narrow(self, i: int) -> bool:
        """Return whether an op's result is bytes."""
        type_ = self.result(i)
        return type_ is not None and type_.dtype in BYTES

    def is_table(self, members: Sequence[int]) -> bool:
        """Return whether a result of bytes follows from one byte each, and a kernel looks it up."""
        types = map(self.type, self.outside(members))
        wide = [t.dtype for t in types if sizes(t.shape) != 1]
        return self.tables and self.is_narrow(members[-1]) and len(wide) == 1 and wide[0] in BYTES

    def escapes(self, members: Sequence[int]) -> list[int]:
        """Return the members whose results are used outside."""
        inside = set(members)
        return [i for i in members if not self.users[i] or not inside.issuperset(self.users[i])]

    def closed_prefixes(self, members: Sequence[int]) -> list[int]:
        """Return the lengths n > 1 for which only ``members[:n][-1]`` escapes, the largest first.

        The same as `escapes` of every prefix, in one walk: an op's users stand behind it.
        """
        place = {member: n for n, member in enumerate(members)}
        lengths, needed = [], 0
        for n, member in enumerate(members):
            if n > 0 and needed <= n:
                lengths.append(n + 1)
            users = self.users[member]
            if not users or not place.keys() >= set(users):
                break
            needed = max(needed, *(place[u] for u in users))
        return lengths[::-1]

    def extends(self, i: int, user: int) -> bool:
        """Return whether a concatenation of few parts reads another one, along the same axis."""
        if not self.channels.unstored.isdisjoint((i, user)):
            return False
        same = i in self._axes and self._axes[i] == self._axes.get(user)
        return same and self._parts[user] <= _MOST_PARTS

    def is_part(self, i: int) -> bool:
        """Return whether all who read a concatenation join its parts in its place."""
        users = self.users[i]
        return (i in self.shared and not users) or (len(users) == 1 and self.extends(i, users[0]))


_PLANAR_CHANNELS = 16
# Tensors that a group reads at most: one dispatch binds them, and what else comes into it.
_MOST_READ = MOST_BINDINGS - 4


@dataclass(frozen=True)
class FusionGroup:
    """Ops of one block by position, in order; the last one makes the result."""

    kind: str
    members: tuple[int, ...]
    # Members that others need too: the group has a copy of them.
    copies: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Fuse:
    """Group anchors with their elementwise epilogues, and clusters of elementwise ops."""

    name: ClassVar[str] = "pyc-fuse"
    relation: ClassVar[Relation] = Relation.BITS
    max_ops: int = option(32, "ops in a group at most")

    def __post_init__(self) -> None:
        """Raise PycError (INVALID_PIPELINE) for a limit below 1."""
        if self.max_ops < 1:
            raise PycError(
                ReasonCode.INVALID_PIPELINE, f"`max-ops`: expected 1 or more, got {self.max_ops}"
            )

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Fuse in every function."""
        groups = fused = 0
        seen: Counter[str] = Counter()
        for function in functions_of(module):
            # Where a kernel joins all parts at once.
            copies = context.kernels.take("concat") and not refuse_narrow(context.target)
            tables = context.kernels.take("int8_elementwise") and has_tables(context.target)
            graph = FusionGraph(function, seen, copies, reads_parts(context), tables)
            for group in plan(graph, context.choices, self.max_ops):
                groups += 1
                fused += len(group.members)
        return {"groups": groups, "fused ops": fused}


def plan(graph: FusionGraph, choices: Choices, max_ops: int) -> list[FusionGroup]:
    """Choose the groups of one function and form them."""
    planner = _Planner(graph, choices, max_ops)
    starts = [i for i in range(len(graph.ops)) if graph.anchor(i)]
    starts = [i for i in starts if i not in graph.channels.unstored]
    starts += [i for i in range(len(graph.ops)) if graph.elementwise[i]]
    for start in starts:
        if start not in planner.claimed and not graph.is_part(start):
            planner.take(start)
    groups = sorted(planner.groups, key=lambda g: g.members[-1])
    # Their ops: members, for copies new ones in front of the last.
    owned = []
    for group in groups:
        last = graph.ops[group.members[-1]]
        made = {i: graph.ops[i].clone(ir.InsertionPoint(last)) for i in sorted(group.copies)}
        values = {graph.ops[i].result: copy.result for i, copy in made.items()}
        for copy in made.values():
            _reread(copy, values)
        owned.append([made.get(i, graph.ops[i]) for i in group.members])
    for group, ops in zip(groups, owned, strict=True):
        _apply(graph, group, ops)
    for i in sorted({i for group in groups for i in group.copies}, reverse=True):
        if is_unused(graph.ops[i]):
            graph.ops[i].erase()
    return groups


Group = tuple[int, ...]


@dataclass
class _Planner:
    """The groups of one function so far, and the ops that they have claimed."""

    graph: FusionGraph
    choices: Choices
    max_ops: int
    claimed: set[int] = field(default_factory=set)
    groups: list[FusionGroup] = field(default_factory=list)

    def take(self, start: int) -> None:
        """Choose the group that begins at `start`."""
        members = self._chosen(start)
        copies = self._copies(members)
        self.claimed.update(set(members) - copies)
        if len(members) > 1:
            kind = self.graph.anchor(start) or "elementwise"
            self.groups.append(FusionGroup(kind, members, copies))

    def _chosen(self, start: int) -> Group:
        """Offer every legal group that begins at `start`, the largest first, and `start` alone."""
        graph, reach = self.graph, self._forward(start)
        legal = self._of_anchor(start, reach) if graph.anchor(start) else self._of_cluster(reach)
        if graph.names[start] != "concat":  # Its parts are copied one by one.
            legal = [c for c in legal if len(graph.outside(c)) <= _MOST_READ]
        follows = len(reach) > 1 or any(graph.elementwise[u] for u in graph.users[start])
        if not legal and not follows:
            return (start,)
        reach = (*graph.channels.before(graph, start), *reach)
        # Of groups with one name, which a limit on their size can cause, the first is offered.
        named: dict[str, Group] = {}
        for group in legal:
            named.setdefault("fuse:" + "+".join(graph.names[i] for i in group), group)
        alternatives = [
            Alternative(name, self._cost(group, reach), "one kernel, one result")
            for name, group in named.items()
        ]
        reason = "" if legal else "its result is needed elsewhere, or no elementwise op follows"
        keep = Alternative("keep", self._cost((start,), reach), reason)
        op = graph.ops[start]
        site = Site(Fuse.name, graph.ids[op], str(op.location), graph.ids.by_type[op])
        chosen = self.choices.choose(site, [*alternatives, keep]).name
        return named.get(chosen, (start,))

    def _of_anchor(self, start: int, reach: Group) -> list[Group]:
        """Return the groups of an anchor with what follows it, and what stands before it."""
        graph = self.graph
        legal = [reach[:n] for n in graph.closed_prefixes(reach)]
        name = graph.names[start]
        before: Group = ()
        if name == "matmul":
            return self._with_transposes(start, legal)
        if name == "conv2d":
            before = self._planar(start)
        elif name == "concat":
            before = self._parts(start)
        if before:
            legal = [(*before, *g) for g in legal or [(start,)]]
        if channels := graph.channels.before(graph, start):
            legal = [(*channels, *g) for g in legal or [(start,)]]
        return legal

    def _of_cluster(self, reach: Group) -> list[Group]:
        """Return the groups of elementwise ops with one result."""
        graph, most = self.graph, self.max_ops
        prefixes = (reach[:n] for n in range(len(reach), 1, -1))
        grown = [self._with_producers(c, most) for c in prefixes]
        legal = [c for c in grown if graph.escapes(c) == [c[-1]]]
        # What follows a table is a group of its own.
        legal = legal[next((n for n, c in enumerate(legal) if graph.is_table(c)), 0) :]

        def lacks(group: Group) -> bool:
            return len(group) == most and len(self._with_producers(group, most + 1)) > most

        if len(reach) == most:
            # Cut off by the limit: a part that has its producers first, as the terms of a sum,
            # which would else be a group, and an input, each.
            legal.sort(key=lacks)
        return legal

    def _with_transposes(self, start: int, legal: list[Group]) -> list[Group]:
        """Return the groups of a product with transposes that only it needs, the result's first."""
        graph, producers = self.graph, dict.fromkeys(self.graph.producers[start])
        if not producers or any(graph.names[p] == "constant" for p in producers):
            return legal
        alone = [p for p in producers if set(graph.users[p]) == {start} and p not in self.claimed]
        before = [p for p in alone if graph.names[p] == "transpose"]
        groups = [tuple(sorted((*before, *g))) for g in legal or [(start,)] * bool(before)]
        largest = groups[0] if groups else (start,)
        readers = graph.users[largest[-1]]
        if len(readers) == 1 and graph.names[readers[0]] == "transpose":
            groups.insert(0, (*largest, readers[0]))
        return groups

    def _planar(self, start: int) -> Group:
        """Return the transpose to NHWC of the input of a convolution that only it reads.

        A kernel can read the input as it lies. With many channels each of them is another stream of
        memory, and a kernel by minimal filtering is quicker.
        """
        graph = self.graph
        for first in graph.producers[start][:1]:
            alone = graph.names[first] == "transpose" and graph.users[first] == [start]
            channels = (graph.shapes[first] or (None,))[-1]
            few = channels is not None and channels < _PLANAR_CHANNELS
            is_input = graph.operands[start][0] == graph.makes[first]
            if alone and few and is_input and first not in self.claimed:
                return (first,)
        return ()

    def _parts(self, start: int) -> Group:
        """Return the concatenations that one extends: a tree whose root it is.

        One that others need too is copied, if a kernel then joins all parts at once: it need not be
        made for this one, and what else reads it may take the elementwise ops that follow it.
        """
        graph, inner, pending = self.graph, set[int](), [start]
        while pending:
            i = pending.pop()
            below = {p for p in graph.producers[i] if graph.extends(p, i)}
            fresh = {p for p in below if p in graph.shared or len(graph.users[p]) == 1} - inner
            inner |= fresh
            pending.extend(fresh)
        return tuple(sorted(inner))

    def _copies(self, members: Group) -> frozenset[int]:
        """Return the concatenations of a group that others need too, and all these are made of.

        So with the slices of channels in front of a window.
        """
        graph, join = self.graph, self.graph.channels.join
        joins = [i for i in members[:-1] if graph.names[i] == "concat" or i in join]
        inside, copies = set(members), set[int]()
        for i in reversed(joins):
            others = i in join and not inside.issuperset(graph.users[i])
            if others or i in graph.shared or not copies.isdisjoint(graph.users[i]):
                copies.add(i)
        return frozenset(copies)

    def _forward(self, start: int) -> Group:
        """Return `start` and the elementwise ops of its shape that follow, in program order.

        Those of an integer product end where the result is quantized: its kernel stores bytes. So
        does that of a pooling of bytes.
        """
        graph = self.graph
        if graph.names[start] == "max_pool2d" and graph.is_narrow(start):
            return (start,)
        shape, of_bytes = graph.shapes[start], graph.names[start].startswith("integer_")
        members, frontier = [start], set(graph.users[start])
        while frontier and len(members) < self.max_ops:
            i = min(frontier)
            frontier.discard(i)
            if graph.elementwise[i] and i not in self.claimed and graph.shapes[i] == shape:
                members.append(i)
                if not (of_bytes and graph.is_narrow(i)):
                    frontier.update(graph.users[i])
        return tuple(members)

    def _with_producers(self, members: Group, most: int) -> Group:
        """Add the elementwise ops that only these members use, up to `most` in all."""
        graph, inside, shape = self.graph, set(members), self.graph.shapes[members[-1]]
        pending = [p for m in members for p in graph.producers[m]]
        while pending and len(inside) < most:
            i = pending.pop()
            free = i not in inside and i not in self.claimed and graph.elementwise[i]
            if free and graph.shapes[i] == shape and inside.issuperset(graph.users[i]):
                inside.add(i)
                pending.extend(graph.producers[i])
        return tuple(sorted(inside))

    def _cost(self, group: Group, reach: Group) -> Cost | None:
        """Return the bytes of intermediates written and read again if `group` is one kernel."""
        sizes = [self.graph.sizes[i] for i in {*reach, *group}.difference(group[:-1])]
        if None in sizes:
            return None
        return Cost(traffic_bytes=2 * sum(s for s in sizes if s is not None))


def _reread(op: ir.Operation, values: Mapping[ir.Value, ir.Value]) -> None:
    for n, value in enumerate(op.operands):
        if value in values:
            op.operands[n] = values[value]


def _apply(graph: FusionGraph, group: FusionGroup, ops: Sequence[ir.Operation]) -> None:
    """Move the ops into a group at the place of the last one."""
    last = ops[-1]
    pairs = zip(group.members, ops, strict=True)
    values = {graph.ops[i].result: op.result for i, op in pairs if i in group.copies}
    location = ir.Location.fused([op.location for op in ops])
    names = [ir.StringAttr.get(graph.names[i], last.context) for i in group.members]
    with last.context, location:
        made = ir.Operation.create(
            "pyc.group",
            results=[last.result.type],
            attributes={
                "kind": ir.StringAttr.get(group.kind),
                "pyc.fused": ir.ArrayAttr.get(names),
            },
            regions=1,
            ip=ir.InsertionPoint(last),
        )
        body = made.regions[0].blocks.append()
        last.result.replace_all_uses_with(made.result)
        for op in ops:
            body.append(op)
            _reread(op, values)
        with ir.InsertionPoint(body):
            ir.Operation.create("pyc.yield", operands=[last.result])
