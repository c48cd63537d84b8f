"""Group ops that should become one kernel: `pyc.group` regions with one result.

Anchors (matmul, conv2d, norms, softmax, attention, pooling) take the elementwise ops that follow
them as an epilogue: bias, activation, residual add. A product of two computed values also takes the
transposes around it, which a kernel can do by reading and writing in another order. A convolution
or a pooling takes the concatenations and slices of channels before it that nothing else reads
(`channels.py`). The elementwise ops that remain form clusters.
A group is a proposal: whoever lowers it may take it whole or dissolve it.

Analysis gives a plan, the plan is a choice for each anchor (every legal length of the epilogue is
an alternative), and only `_apply` touches the program.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Site
from pyc_mlir.pipelines.driver.base import PassContext, Relation, option
from pyc_mlir.pipelines.kernels.registry import refuse_narrow
from pyc_mlir.pipelines.pyc.fuse.channels import reads_parts
from pyc_mlir.pipelines.pyc.fuse.graph import FusionGraph
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import MOST_BINDINGS

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
                ReasonCode.INVALID_PIPELINE,
                f"`max-ops`: expected 1 or more, got {self.max_ops}",
            )

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Fuse in every function."""
        groups = fused = 0
        seen: Counter[str] = Counter()
        for function in functions_of(module):
            # Where a kernel joins all parts at once.
            copies = context.kernels.take("concat") and not refuse_narrow(context.target)
            graph = FusionGraph(function, seen, copies, reads_parts(context))
            for group in plan(graph, context.choices, self.max_ops):
                groups += 1
                fused += len(group.members)
        return {"groups": groups, "fused ops": fused}


def plan(graph: FusionGraph, choices: Choices, max_ops: int) -> list[FusionGroup]:
    """Choose the groups of one function and form them."""
    claimed: set[int] = set()
    groups: list[FusionGroup] = []
    anchors = [i for i in range(len(graph.ops)) if graph.anchor(i)]
    starts = [i for i in anchors if i not in graph.channels.unstored]
    starts += [i for i in range(len(graph.ops)) if graph.elementwise[i]]
    for start in starts:
        if start in claimed or graph.is_part(start):
            continue
        kind = graph.anchor(start) or "elementwise"
        members = _choose(graph, start, claimed, choices, max_ops)
        copies = _copies(graph, members)
        claimed.update(set(members) - copies)
        if len(members) > 1:
            groups.append(FusionGroup(kind, members, copies))
    groups.sort(key=lambda g: g.members[-1])
    owned = [_own(graph, group) for group in groups]
    for group, ops in zip(groups, owned, strict=True):
        _apply(graph, group, ops)
    for i in sorted({i for group in groups for i in group.copies}, reverse=True):
        if not any(True for _ in graph.ops[i].result.uses):
            graph.ops[i].erase()
    return groups


def _choose(
    graph: FusionGraph, start: int, claimed: set[int], choices: Choices, max_ops: int
) -> tuple[int, ...]:
    """Offer every legal group that begins at `start`, the largest first, and keeping it alone."""
    reach = _forward(graph, start, claimed, max_ops)
    if graph.anchor(start):
        legal = [reach[:n] for n in graph.closed_prefixes(reach)]
        if graph.names[start] == "matmul":
            legal = _with_transposes(graph, start, legal, claimed)
        elif graph.names[start] == "conv2d":
            legal = _with_layout(graph, start, legal, claimed)
        elif graph.names[start] == "concat":
            legal = _with_parts(graph, start, legal)
        if before := tuple(graph.channels.before(graph, start)):
            legal = [(*before, *g) for g in legal or [(start,)]]
            reach = (*before, *reach)
    else:
        prefixes = (reach[:n] for n in range(len(reach), 1, -1))
        grown = [_with_producers(graph, c, claimed, max_ops) for c in prefixes]
        legal = [c for c in grown if graph.escapes(c) == [c[-1]]]
        if len(reach) == max_ops:
            # Cut off by the limit: a part that has its producers first, as the terms of a sum,
            # which would else be a group, and an input, each.
            legal.sort(key=lambda c: len(c) == max_ops and _lacks(graph, c, claimed))
    if graph.names[start] != "concat":  # Its parts are copied one by one.
        legal = [c for c in legal if graph.inputs(c) <= _MOST_READ]
    if not legal and len(reach) == 1 and not _next(graph, start):
        return (start,)
    # Of groups with one name, which a limit on their size can cause, the first is offered.
    named = {_label(graph, c): c for c in reversed(legal)}
    alternatives = [
        Alternative(name, _cost(graph, start, named[name], reach), "one kernel, one result")
        for name in dict.fromkeys(_label(graph, c) for c in legal)
    ]
    reason = "" if legal else "its result is needed elsewhere, or no elementwise op follows"
    keep = Alternative("keep", _cost(graph, start, (start,), reach), reason)
    op = graph.ops[start]
    site = Site(Fuse.name, graph.ids[op], str(op.location), graph.ids.by_type[op])
    chosen = choices.choose(site, [*alternatives, keep]).name
    return named.get(chosen, (start,))


def _with_transposes(
    graph: FusionGraph, start: int, legal: list[tuple[int, ...]], claimed: set[int]
) -> list[tuple[int, ...]]:
    """Return the groups of a product with transposes that only it needs, the result's first."""
    constant = any(graph.names[p] == "constant" for p in graph.producers[start])
    if constant or len(graph.producers[start]) == 0:
        return legal
    before = tuple(
        p
        for p in dict.fromkeys(graph.producers[start])
        if graph.names[p] == "transpose" and p not in claimed and set(graph.users[p]) == {start}
    )
    groups = [tuple(sorted((*before, *g))) for g in legal or [(start,)] * bool(before)]
    largest = groups[0] if groups else (start,)
    readers = graph.users[largest[-1]]
    if len(readers) == 1 and graph.names[readers[0]] == "transpose":
        groups.insert(0, (*largest, readers[0]))
    return groups


def _with_layout(
    graph: FusionGraph, start: int, legal: list[tuple[int, ...]], claimed: set[int]
) -> list[tuple[int, ...]]:
    """Return the groups of a convolution with the transpose to NHWC of an input that only it reads.

    A kernel can read the input as it lies. With many channels each of them is another stream of
    memory, and a kernel by minimal filtering is quicker.
    """
    if not graph.producers[start]:
        return legal
    first = graph.producers[start][0]
    alone = graph.names[first] == "transpose" and graph.users[first] == [start]
    if not alone or first in claimed or graph.operands[start][0] != graph.makes[first]:
        return legal
    channels = (graph.shapes[first] or (None,))[-1]
    if channels is None or channels >= _PLANAR_CHANNELS:
        return legal
    return [(first, *g) for g in legal or [(start,)]]


def _with_parts(
    graph: FusionGraph, start: int, legal: list[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Return the groups of a concatenation with those that it extends: a tree whose root it is.

    One that others need too is copied, if a kernel then joins all parts at once: it need not be
    made for this one, and what else reads it may take the elementwise ops that follow it.
    """
    inner: set[int] = set()
    pending = [start]
    while pending:
        i = pending.pop()
        below = {p for p in graph.producers[i] if graph.extends(p, i)}
        fresh = {p for p in below if p in graph.shared or len(graph.users[p]) == 1} - inner
        inner |= fresh
        pending.extend(fresh)
    before = tuple(sorted(inner))
    return [(*before, *g) for g in legal or [(start,)] * bool(before)]


def _copies(graph: FusionGraph, members: tuple[int, ...]) -> frozenset[int]:
    """Return the concatenations of a group that others need too, and all that these are made of.

    So with the slices of channels in front of a window.
    """
    join = graph.channels.join
    joins = [i for i in members[:-1] if graph.names[i] == "concat" or i in join]
    inside, copies = set(members), set[int]()
    for i in reversed(joins):
        others = i in join and not inside.issuperset(graph.users[i])
        if others or i in graph.shared or not copies.isdisjoint(graph.users[i]):
            copies.add(i)
    return frozenset(copies)


def _next(graph: FusionGraph, start: int) -> list[int]:
    return [u for u in graph.users[start] if graph.elementwise[u]]


def _forward(graph: FusionGraph, start: int, claimed: set[int], max_ops: int) -> tuple[int, ...]:
    """Return `start` and the elementwise ops of its shape that follow from it, in program order.

    Those of an integer product end where the result is quantized: its kernel stores bytes. So does
    that of a pooling of bytes.
    """
    if graph.names[start] == "max_pool2d" and graph.is_narrow(start):
        return (start,)
    shape, of_bytes = graph.shapes[start], graph.names[start].startswith("integer_")
    members = [start]
    frontier = set(graph.users[start])
    while frontier and len(members) < max_ops:
        i = min(frontier)
        frontier.discard(i)
        if graph.elementwise[i] and i not in claimed and graph.shapes[i] == shape:
            members.append(i)
            if not (of_bytes and graph.is_narrow(i)):
                frontier.update(graph.users[i])
    return tuple(members)


def _with_producers(
    graph: FusionGraph, members: tuple[int, ...], claimed: set[int], max_ops: int
) -> tuple[int, ...]:
    """Add the elementwise ops that only these members use."""
    inside = set(members)
    shape = graph.shapes[members[-1]]
    pending = [p for m in members for p in graph.producers[m]]
    while pending and len(inside) < max_ops:
        i = pending.pop()
        free = i not in inside and i not in claimed and graph.elementwise[i]
        if free and graph.shapes[i] == shape and inside.issuperset(graph.users[i]):
            inside.add(i)
            pending.extend(graph.producers[i])
    return tuple(sorted(inside))


def _lacks(graph: FusionGraph, members: tuple[int, ...], claimed: set[int]) -> bool:
    """Return whether a group of the largest size leaves out an op that only it reads."""
    return len(_with_producers(graph, members, claimed, len(members) + 1)) > len(members)


def _label(graph: FusionGraph, members: Sequence[int]) -> str:
    return "fuse:" + "+".join(graph.names[i] for i in members)


def _cost(
    graph: FusionGraph, start: int, group: Sequence[int], reach: Sequence[int]
) -> Cost | None:
    """Return the bytes of intermediates written and read again if `group` is one kernel."""
    inside = set(group[:-1])
    sizes = [graph.sizes[i] for i in {*reach, *group} if i not in inside]
    if None in sizes:
        return None
    return Cost(traffic_bytes=2 * sum(s for s in sizes if s is not None))


def _own(graph: FusionGraph, group: FusionGroup) -> list[ir.Operation]:
    """Return the ops of a group: its members, for copies new ones in front of the last."""
    last = graph.ops[group.members[-1]]
    made = {i: graph.ops[i].clone(ir.InsertionPoint(last)) for i in sorted(group.copies)}
    values = {graph.ops[i].result: copy.result for i, copy in made.items()}
    for copy in made.values():
        _reread(copy, values)
    return [made.get(i, graph.ops[i]) for i in group.members]


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
