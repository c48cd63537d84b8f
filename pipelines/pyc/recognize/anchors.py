"""Walks that guesses are made with: down to the values that an anchor computes from, and up."""

from collections.abc import Iterator

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.types import is_float
from pyc_mlir.pipelines.pyc.terms.algebra import meant
from pyc_mlir.pipelines.pyc.terms.nodes import VIEWS, TermGraph, TermNode

# How many ops a walk visits.
_REACH = 24


def peeled(node: TermNode, through: Trait = VIEWS) -> TermNode:
    """Return the node without conversions and views around it."""
    return stages(node, through)[-1]


def stages(node: TermNode, through: Trait = VIEWS) -> list[TermNode]:
    """Return the node, and what is left as each conversion and view around it goes."""
    found = [node]
    while found[-1].has(through):
        found.append(found[-1].operands[0])
    return found


def unscaled(node: TermNode) -> tuple[TermNode, float]:
    """The node without conversions and factors that are one number, and the factor."""
    factor = 1.0
    while True:
        numbers = [number(o) for o in node.operands]
        if node.name == "cast" and is_float(node.operands[0].type.dtype):
            node = node.operands[0]
        elif node.name == "neg":
            node, factor = node.operands[0], -factor
        elif node.name == "mul" and (numbers[1] is not None or numbers[0] is not None):
            at = 0 if numbers[1] is not None else 1
            factor *= numbers[1 - at] or 0.0
            node = node.operands[at]
        elif node.name == "div" and numbers[1]:
            factor /= numbers[1]
            node = node.operands[0]
        else:
            return node, factor


def number(node: TermNode) -> float | None:
    """The number that a constant means; None for what is none."""
    return None if node.number is None else meant(node.number, node.type.dtype)


def followers(anchor: TermNode, graph: TermGraph) -> list[TermNode]:
    """The ops that compute from an anchor, last first, as far as one composite may reach."""
    found: dict[TermNode, None] = {}
    pending = list(graph.of(anchor))
    while pending and len(found) < _REACH:
        node = pending.pop(0)
        if node in found or not node.has(Trait.ELEMENTWISE | VIEWS):
            continue
        found[node] = None
        pending.extend(graph.of(node))
    return graph.ordered(found)[::-1]


def arguments(node: TermNode) -> Iterator[TermNode]:
    """The values that alone, with numbers, determine a function's argument; the nearest first."""
    walked = [n for n in walk(node, Trait.ARITHMETIC, _REACH) if n.number is None]
    for cut in walked:
        if is_float(cut.type.dtype) and _depends_only_on(node, cut):
            yield cut


def walk(node: TermNode, through: Trait, limit: int, also: tuple[str, ...] = ()) -> list[TermNode]:
    """Return `node` and what such ops compute it from, nearest first, at most `limit`."""
    found: dict[TermNode, None] = {}
    pending = [node]
    while pending and len(found) < limit:
        top = pending.pop(0)
        if top in found:
            continue
        found[top] = None
        if top.has(through) or top.name in also:
            pending.extend(top.operands)
    return list(found)


def _depends_only_on(node: TermNode, cut: TermNode) -> bool:
    """Whether arithmetic of `cut` and of numbers gives `node`; each op is looked at once."""
    seen: set[TermNode] = set()
    pending = [node]
    while pending:
        top = pending.pop()
        if top is cut or top.number is not None or top in seen:
            continue
        if len(seen) == _REACH or not top.has(Trait.ARITHMETIC):
            return False
        seen.add(top)
        pending.extend(top.operands)
    return True
