"""Find composites that are spelled out in primitive ops, and put the composite op in their place.

Comes in: canonical pyc ops with what is known of their shapes, from any front end. Goes out: the
same, with softmax, norms, activations and attention as single ops, so that they get kernels, parts
and fusion as those that a model names. An anchor (an exponential, the root of a variance, erf)
gives guesses; a guess counts if its ops compute what the composite's own decomposition computes
(algebra.py): confirmed by construction. docs/design-notes/recognize.md states what is equal.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.pipelines.choices.evidence import NotOffered
from pyc_mlir.pipelines.driver.base import PassContext, Relation
from pyc_mlir.pipelines.pyc.recognize.activations import activations
from pyc_mlir.pipelines.pyc.recognize.attention import attentions
from pyc_mlir.pipelines.pyc.recognize.batch_norms import batch_norms
from pyc_mlir.pipelines.pyc.recognize.candidates import Candidate, Match, confirmed, is_own
from pyc_mlir.pipelines.pyc.recognize.cost import costs
from pyc_mlir.pipelines.pyc.recognize.integers import integers
from pyc_mlir.pipelines.pyc.recognize.norms import norms
from pyc_mlir.pipelines.pyc.recognize.softmax import softmaxes
from pyc_mlir.pipelines.pyc.rewriting import (
    as_type,
    defining_op,
    functions_of,
    replace,
)
from pyc_mlir.pipelines.pyc.terms.nodes import TermGraph, TermNode, read_graph

KEEP = "keep"
Guesses = Callable[[TermNode, TermGraph], Iterator[Candidate]]
# Attention is guessed from softmax ops, and the logarithm of softmax: in a second round.
ROUNDS: tuple[tuple[Guesses, ...], ...] = (
    (norms, batch_norms, softmaxes, activations),
    (softmaxes, attentions),
)


@dataclass(frozen=True)
class Recognize:
    """Replace composites that are spelled out in primitive ops by the composite ops."""

    name: ClassVar[str] = "pyc-recognize"

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Choose for each match; the counts are those of the composites that were made."""
        made: Counter[str] = Counter()
        seen: list[Counter[str]] = [Counter() for _ in ROUNDS]
        integer_ids: Counter[str] = Counter()
        for function in functions_of(module):
            made.update(_integers(function, integer_ids, context))
            kept: set[ir.Operation] = set()
            for guesses, ids_seen in zip(ROUNDS, seen, strict=True):
                found = plan(read_graph(function), guesses)
                matches = [m for m in found if _op(m.root) not in kept]
                ids = OpIds(function, ids_seen) if matches else None
                chosen = [m for m in matches if ids and _is_chosen(m, ids, context)]
                kept.update(_op(m.root) for m in matches if m not in chosen)
                replaced: dict[TermNode, ir.Value] = {}
                for match in chosen:
                    made[match.candidate.name] += 1
                    replaced[match.root] = _apply(match, replaced)
        return {"composites": made.total(), **dict(sorted(made.items()))}


def _integers(function: ir.Operation, seen: Counter[str], context: PassContext) -> list[str]:
    """Choose for each product that can be one of integers; the names of those that were made."""
    ids: OpIds | None = None
    made = []
    for match in integers(function):
        ids = ids or OpIds(function, seen)
        site = Site(Recognize.name, ids[match.root], str(match.root.location))
        offers = [Alternative(match.name, None, match.reason), Alternative(KEEP, None, "floats")]
        evidence: tuple[NotOffered, ...] = ()
        if context.compares and not match.same:
            offers = offers[1:]
            reason = f"{match.reason}; the contract bounds the error"
            evidence = (NotOffered((match.name,), reason),)
        if context.choices.choose(site, offers, evidence).name == match.name:
            makers = [defining_op(v) for v in match.root.operands]
            with ir.InsertionPoint(match.root), match.root.location:
                replace(match.root, match.build(), Relation.ERROR, match.name)
            _erase_unused(makers)
            made.append(match.name)
    return made


def _erase_unused(ops: list[ir.Operation | None]) -> None:
    """Erase ops that nothing reads, and what then nothing reads."""
    while ops:
        op = ops.pop()
        if op is not None and not any(True for r in op.results for _ in r.uses):
            ops += [m for v in dict.fromkeys(op.operands) if (m := defining_op(v)) not in ops]
            op.erase()


def plan(graph: TermGraph, guesses: tuple[Guesses, ...]) -> list[Match]:
    """Return matches that share no op, the first of each anchor, in the order of their roots."""
    found: list[Match] = []
    taken: set[TermNode] = set()
    for anchor in graph.nodes:
        if anchor in taken:
            continue
        for candidate in (c for guess in guesses for c in guess(anchor, graph)):
            match = confirmed(candidate, graph)
            if match is not None and not taken.intersection(_computing(match)):
                found.append(match)
                taken.update(_computing(match))
                break
    return sorted(found, key=lambda m: graph.place[m.root])


def _computing(match: Match) -> list[TermNode]:
    """Return the ops that no other match may have: those that compute, and the root."""
    return [n for n in match.ops if is_own(n) or n is match.root]


def _op(node: TermNode) -> ir.Operation:
    op = defining_op(node.value)
    assert op is not None
    return op


def _is_chosen(match: Match, ids: OpIds, context: PassContext) -> bool:
    """Ask, unless the contract leaves no choice."""
    root, name = _op(match.root), match.candidate.name
    composite, ops = costs(match, context)
    made = Alternative(name, composite, _reason(match))
    kept = Alternative(KEEP, ops, f"{len(match.ops)} ops as they are")
    evidence: tuple[NotOffered, ...] = ()
    offers = [made, kept]
    if context.compares and not match.as_exact:
        offers = [kept]
        evidence = (NotOffered((name,), f"{_reason(match)}, and the contract bounds the error"),)
    site = Site(Recognize.name, ids[root], str(root.location))
    return context.choices.choose(site, offers, evidence).name == name


def _reason(match: Match) -> str:
    """Return how the composite rounds beside the ops."""
    if match.same:
        return "the same operations"
    guards = ", ".join(sorted(match.guards))
    if match.as_exact:
        return "rounds otherwise, errs no more" + (f"; without {guards}" if guards else "")
    return "may err more" if not guards else f"treats infinities or NaN otherwise: {guards}"


def _apply(match: Match, replaced: Mapping[TermNode, ir.Value]) -> ir.Value:
    """Return the composite at the place of the root; its value.

    `replaced` has the values of earlier matches by their roots: one composite reads another.
    """
    root = _op(match.root)
    makers = [_op(n).location for n in match.ops if n.name != "constant"]
    leaves = [replaced.get(leaf, leaf.value) for leaf in match.candidate.leaves]
    with ir.InsertionPoint(root), ir.Location.fused(makers, context=root.context):
        out = as_type(match.make(IRBuilder(), leaves), from_mlir(root.result.type))
    # Constants of activations are what a model's are rounded from.
    replace(root, out, Relation.ROUNDED, match.candidate.name)
    # What is left behind would count as a reader of what the next round may find.
    for node in reversed(match.ops[:-1]):
        if not any(True for _ in node.value.uses):
            _op(node).erase()
    return out
