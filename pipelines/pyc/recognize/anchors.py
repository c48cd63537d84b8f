"""Walks that guesses are made with: down to the values that an anchor computes from, and up."""

from collections.abc import Collection, Iterator

from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.ops.elementwise import Elementwise
from pyc_mlir.dialects.types import is_float
from pyc_mlir.pipelines.pyc.terms.algebra import meant
from pyc_mlir.pipelines.pyc.terms.nodes import TermGraph, TermNode

# How many ops a walk visits.
_REACH = 24
# Arithmetic, casts and roots: what guesses look through.
ARITHMETIC = frozenset({"add", "sub", "mul", "div", "pow", "neg", "cast", "sqrt", "rsqrt"})
_VIEWS = frozenset({"cast", "reshape", "broadcast_to"})


def is_elementwise(node: TermNode) -> bool:
    """Whether an op works on each element alone."""
    definition = OPS.get(node.name)
    return definition is not None and issubclass(definition, Elementwise)


def peeled(node: TermNode, names: frozenset[str] = _VIEWS) -> TermNode:
    """The node without conversions and views around it."""
    while node.name in names:
        node = node.operands[0]
    return node


def stages(node: TermNode, names: frozenset[str] = _VIEWS) -> list[TermNode]:
    """The node, and what is left as each conversion and view around it goes."""
    found = [node]
    while found[-1].name in names:
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
        if node in found or not (is_elementwise(node) or node.name in _VIEWS):
            continue
        found[node] = None
        pending.extend(graph.of(node))
    return graph.ordered(found)[::-1]


def arguments(node: TermNode) -> Iterator[TermNode]:
    """The values that alone, with numbers, determine a function's argument; the nearest first."""
    walked = [n for n in walk(node, ARITHMETIC, _REACH) if n.number is None]
    for cut in walked:
        if is_float(cut.type.dtype) and _depends_only_on(node, cut):
            yield cut


def walk(node: TermNode, through: Collection[str], limit: int) -> list[TermNode]:
    """`node` and what it is computed from by ops of these names, nearest first, at most `limit`."""
    found: dict[TermNode, None] = {}
    pending = [node]
    while pending and len(found) < limit:
        top = pending.pop(0)
        if top in found:
            continue
        found[top] = None
        if top.name in through:
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
        if len(seen) == _REACH or top.name not in ARITHMETIC:
            return False
        seen.add(top)
        pending.extend(top.operands)
    return True
