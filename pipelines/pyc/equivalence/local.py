"""Proofs in steps: nodes of both programs whose fingerprints agree are proved equal in order.

Comes in: two programs in primitive ops and a fingerprint for each node. Goes out: the steps that
lead to the results, or the first node without a partner. A step holds between the nodes that are
proved already: both sides are read as normal forms over these (ring.py), first over the nearest,
then over farther ones, which know more of each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.pyc.equivalence.fields.programs import Graph, Program
from pyc_mlir.pipelines.pyc.equivalence.ring import ExactTerms, ProofAlgebra
from pyc_mlir.pipelines.pyc.terms.nodes import VALUE, TermNode
from pyc_mlir.pipelines.pyc.terms.terms import TooManyProducts

# How many proved nodes are passed by on each way, in turn.
_REACH = (0, 2, 5)
_CONE = 96


@dataclass(frozen=True)
class Step:
    """Two nodes that are equal over leaves that were proved before.

    rule: ``same term`` or ``normal form``. left, right: the nodes for people; `a` and `b` their
    numbers among the nodes of the decomposed programs, `cut` those of the leaves in the first.
    """

    rule: str
    left: str
    right: str
    a: int
    b: int
    cut: tuple[int, ...]


@dataclass(frozen=True)
class Sweep:
    """The steps that were proved, and the node of the second program where it ended."""

    steps: tuple[Step, ...]
    missing: str = ""

    @property
    def is_proof(self) -> bool:
        """True if the steps lead to all results."""
        return not self.missing


def sweep(
    first: Program,
    second: Program,
    prints: Mapping[TermNode, Any],
    graph: Graph,
    rounded: bool,
) -> Sweep:
    """Prove the nodes of `second` from those of `first` with equal fingerprints, in order."""
    partners: dict[Any, TermNode] = {}
    for node in first.nodes:
        if node in prints:
            partners.setdefault(prints[node], node)
    places = [{n: i for i, n in enumerate(p.nodes)} for p in (first, second)]
    own = set(first.nodes)
    classes: dict[TermNode, int] = {}
    steps: list[Step] = []
    for node in first.nodes:
        classes[node] = len(classes)
    for node in second.nodes:
        if node in own:
            continue
        partner = partners.get(prints.get(node, object()))
        if partner is None:
            continue
        found = _proved(partner, node, classes, rounded)
        if found is None:
            continue
        rule, cut = found
        classes[node] = classes[partner]
        numbers = tuple(sorted(places[0][c] for c in cut if c in own))
        steps.append(
            Step(rule, graph.place(partner), graph.place(node), places[0][partner],
                 places[1][node], numbers)
        )  # fmt: skip
    for a, b in zip(first.outputs, second.outputs, strict=True):
        if a is not b and classes.get(b) != classes[a]:
            return Sweep(tuple(steps), graph.place(b))
    return Sweep(tuple(steps))


def _proved(
    a: TermNode, b: TermNode, classes: Mapping[TermNode, int], rounded: bool
) -> tuple[str, frozenset[TermNode]] | None:
    """Return the rule and the leaves by which two nodes are equal; None where none is found."""
    if a.type != b.type or VALUE in (a.name, b.name):
        return None
    if _same_operation(a, b, classes):
        return "same term", frozenset(a.operands)
    for reach in _REACH:
        leaves = _cut(a, b, classes, reach)
        terms = ExactTerms()
        try:
            sides = [ProofAlgebra(terms, leaves, rounded).whole(n, a.type.shape) for n in (a, b)]
        except (TooManyProducts, ZeroDivisionError, RecursionError):
            continue
        if sides[0] == sides[1]:
            return "normal form", frozenset(leaves)
    return None


def same_integers(first: Program, second: Program) -> bool:
    """Return whether programs of integers are equal as polynomials of their arguments."""
    leaves = {node: i for i, node in enumerate(first.inputs)}
    terms = ExactTerms()
    try:
        for a, b in zip(first.outputs, second.outputs, strict=True):
            shape = a.type.shape
            sides = [ProofAlgebra(terms, leaves).whole(node, shape) for node in (a, b)]
            if sides[0] != sides[1]:
                return False
    except (TooManyProducts, RecursionError):
        return False
    return True


def _same_operation(a: TermNode, b: TermNode, classes: Mapping[TermNode, int]) -> bool:
    """Return whether both are one operation on operands that are proved equal."""
    return (
        a.name == b.name
        and a.name != "constant"
        and len(a.operands) == len(b.operands)
        and all(
            x.type == y.type and (x is y or (x in classes and classes[x] == classes.get(y)))
            for x, y in zip(a.operands, b.operands, strict=True)
        )
        and repr(sorted(a.params.items())) == repr(sorted(b.params.items()))
    )


def _cut(
    a: TermNode, b: TermNode, classes: Mapping[TermNode, int], reach: int
) -> dict[TermNode, int]:
    """Return the leaves of both sides: nodes of classes that both reach, `reach` of them later."""
    cones = [_cone(node) for node in (a, b)]
    known = [{classes[n] for n in cone if n in classes} for cone in cones]
    shared = known[0] & known[1]
    chosen: set[int] = set()
    for root in (a, b):
        pending = [(o, reach) for o in root.operands]
        seen: dict[TermNode, int] = {}
        while pending:
            node, left = pending.pop()
            if seen.get(node, -1) >= left:
                continue
            seen[node] = left
            is_shared = node.number is None and classes.get(node, -1) in shared
            if is_shared and (left == 0 or not node.operands):
                chosen.add(classes[node])
            else:
                pending.extend((o, left - is_shared) for o in node.operands)
    return {n: classes[n] for cone in cones for n in cone if classes.get(n, -1) in chosen}


def _cone(root: TermNode) -> dict[TermNode, None]:
    """Return the nodes that one is computed from, the nearest first, as far as `_CONE`."""
    found: dict[TermNode, None] = {}
    level = list(root.operands)
    while level and len(found) < _CONE:
        found.update(dict.fromkeys(level))
        level = [o for n in level for o in n.operands if o not in found]
    return found
