"""Find composites that are spelled out in primitive ops, and put the composite op in their place.

Comes in: canonical pyc ops with what is known of their shapes, from any front end. Goes out: the
same, with softmax, norms, activations and attention as single ops, so that they get kernels, parts
and fusion as those that a model names. An anchor gives guesses (guesses.py); a guess counts if its
ops compute what the composite's own decomposition computes (equivalence/algebra.py), and no other
op needs what lies between: a match is right by construction. The composite and the ops are priced
by the one cost model. docs/design-notes/recognize.md states what is equal.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.ir.pyc import compatible
from pyc_mlir.dialects.opdef import Trait, has
from pyc_mlir.dialects.types import accumulator, is_float
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.pipelines.choices.evidence import NotOffered
from pyc_mlir.pipelines.driver.base import PassContext, Relation
from pyc_mlir.pipelines.pyc.equivalence.algebra import RealAlgebra
from pyc_mlir.pipelines.pyc.equivalence.nodes import (
    MOVED,
    NodeBuilder,
    TermGraph,
    TermNode,
    ordered,
    read_graph,
)
from pyc_mlir.pipelines.pyc.equivalence.terms import SameOperations, Terms, TooManyProducts
from pyc_mlir.pipelines.pyc.recognize.guesses import (
    REGION,
    Candidate,
    activations,
    attentions,
    batch_norms,
    norms,
    softmaxes,
)
from pyc_mlir.pipelines.pyc.recognize.integers import integers
from pyc_mlir.pipelines.pyc.rewriting import as_type, defining_op, functions_of, is_unused, replace
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp, nominal


@dataclass(frozen=True)
class Match:
    """A confirmed candidate.

    ops: those between the leaves and the root, the root last. same: whether the composite does the
    same operations, so that it rounds alike. guards: what the program does about infinities or NaN
    that the composite leaves away (`RealAlgebra`). guarded: whether it keeps a guard against NaN
    behind itself.
    """

    candidate: Candidate
    ops: tuple[TermNode, ...]
    same: bool
    guards: frozenset[str]
    guarded: bool = False

    @property
    def root(self) -> TermNode:
        """The op whose result the composite gives."""
        return self.candidate.root

    def make(self, b: Any, leaves: Sequence[Any]) -> Any:
        """Return the composite, and the guard behind it."""
        out = self.candidate.build(b, *leaves)
        guard = self.candidate.guard
        return guard(b, out, *leaves) if self.guarded and guard is not None else out

    @property
    def as_exact(self) -> bool:
        """True if the composite errs no more than the ops, and is NaN where they are only.

        The composite subtracts after it scales (batch norm), rounds scaled queries in place of
        scores (attention in 16 bits), or cancels where gelu is nearly 0 and the ops, without erf
        and tanh, do not: such a one does not, unless it does the same operations.
        """
        name, dtype = self.candidate.name, self.root.type.dtype
        if self.same:
            return True
        if not self.guards <= {"max guard"}:
            return False
        if name == "gelu":
            return any(op.name in ("erf", "tanh") for op in self.ops)
        narrow = accumulator(dtype) != dtype
        return name != "batchnorm" and not (name == "attention" and narrow)


def confirmed(candidate: Candidate, graph: TermGraph) -> Match | None:
    """Return the match of a candidate; None where it is none."""
    ops = region(candidate, graph)
    if ops is None:
        return None
    # The composite computes in a type no narrower than any of the ops that it replaces.
    dtype = candidate.root.type.dtype
    width = (accumulator(dtype) if has(candidate.name, Trait.WIDE) else dtype).itemsize
    if any(is_float(n.type.dtype) and n.type.dtype.itemsize > width for n in ops):
        return None
    try:
        spelled = candidate.build(NodeBuilder(), *candidate.leaves)
    except VerificationError:
        return None
    root = candidate.root
    if not compatible(spelled.type, root.type) or spelled.type.rank != root.type.rank:
        return None
    terms, shape = Terms(), root.type.shape
    leaves = {leaf: i for i, leaf in enumerate(candidate.leaves)}
    try:
        ours = RealAlgebra(terms, leaves)
        if RealAlgebra(terms, leaves).general(spelled, shape) != ours.general(root, shape):
            return None
        same = [SameOperations(terms, leaves).general(n, shape) for n in (spelled, root)]
    except TooManyProducts:
        return None
    guarded = "nan guard" in ours.guards
    if len(ours.nan_guarded) > (candidate.guard is not None):
        return None
    left = frozenset(ours.guards - {"nan guard"})
    return Match(candidate, ops, same[0] == same[1], left, guarded)


def region(candidate: Candidate, graph: TermGraph) -> tuple[TermNode, ...] | None:
    """Return the ops between leaves and root in order; None where another op needs one.

    Ops that move or convert numbers, or compute indices and conditions, may be needed elsewhere.
    """
    inside: dict[TermNode, None] = {}
    pending = [candidate.root]
    while pending:
        node = pending.pop()
        if node in inside or node in candidate.leaves:
            continue
        if len(inside) == REGION or node.name == "value":
            return None
        inside[node] = None
        pending.extend(node.operands)
    for node in inside:
        shared = node in graph.kept or any(r not in inside for r in graph.of(node))
        if shared and is_own(node) and node is not candidate.root:
            return None
    return tuple(graph.ordered(inside))


def is_own(node: TermNode) -> bool:
    """Return whether an op belongs to one composite alone: it computes numbers."""
    return not node.has(MOVED) and is_float(node.type.dtype)


def costs(match: Match, context: PassContext) -> tuple[Cost, Cost]:
    """Return the costs of the composite, and of the ops: IREE's code, elementwise ops fused."""
    model = CostModel(context.target, context.calibration)
    leaves = match.candidate.leaves
    whole = match.candidate.build(NodeBuilder(), *leaves)
    made = ordered([whole], lambda n: [o for o in n.operands if o not in leaves])
    return _cost(list(made), model), _cost(match.ops, model)


def _cost(ops: Sequence[TermNode], model: CostModel) -> Cost:
    """Return the cost: a dispatch for each chain of elementwise ops and for each other op."""
    total = Cost()
    chains: list[list[TermNode]] = []
    home: dict[TermNode, list[TermNode]] = {}
    for op in ops:
        if op.has(MOVED):
            continue
        before = [home[o] for o in op.operands if o in home]
        fuses = op.has(Trait.ELEMENTWISE) and before and before[-1][-1].has(Trait.ELEMENTWISE)
        chain = before[-1] if fuses and before[-1][-1].type.shape == op.type.shape else []
        if not chain:
            chains.append(chain)
        chain.append(op)
        home[op] = chain
    for chain in chains:
        inputs = list(dict.fromkeys(o for n in chain for o in n.operands if o not in chain))
        numbers = {node: i for i, node in enumerate((*inputs, *chain))}
        nodes = [
            WorkOp(n.name, tuple(numbers[o] for o in n.operands), n.params, n.type) for n in chain
        ]
        work = Work(tuple(Input(n.type) for n in inputs), tuple(nodes))
        total += model.work(work) + Cost(model.dispatch_seconds)
    types = [chain[-1].type for chain in chains[:-1]]
    written = sum(nominal(type_.shape) * type_.dtype.itemsize for type_ in types)
    return total + Cost(workspace_bytes=written)


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
            while makers:
                op = makers.pop()
                if op is not None and is_unused(op):
                    read = map(defining_op, dict.fromkeys(op.operands))
                    makers += [m for m in read if m not in makers]
                    op.erase()
            made.append(match.name)
    return made


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
        if is_unused(op := _op(node)):
            op.erase()
    return out
