"""A composite that a part of a program may be, and what is known of it once it is confirmed.

Comes in: a `Candidate`, the guess of a module that knows one kind of composite. Goes out: a `Match`
if the ops between its leaves and its root compute what the composite's own decomposition computes,
and no other op needs what lies between. A guess may be wrong; a match is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.pyc import compatible
from pyc_mlir.dialects.opdef import Trait, has
from pyc_mlir.dialects.types import accumulator, is_float
from pyc_mlir.pipelines.pyc.terms.algebra import ExactAlgebra, RealAlgebra
from pyc_mlir.pipelines.pyc.terms.nodes import MOVED, NodeBuilder, TermGraph, TermNode
from pyc_mlir.pipelines.pyc.terms.terms import Terms, TooManyProducts

# Ops between the leaves and the root of a composite, at most.
REGION = 64


@dataclass(frozen=True)
class Candidate:
    """`name` of `leaves`, in place of `root`; `build` makes it from a builder and the leaves.

    `guard` makes of the builder, the composite and the leaves what the program's guard against NaN
    does, for all operands; None where there is none, or it cannot be kept.
    """

    name: str
    root: TermNode
    leaves: tuple[TermNode, ...]
    build: Callable[..., Any]
    guard: Callable[..., Any] | None = None


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
    if ops is None or not _is_wide_enough(candidate, ops):
        return None
    try:
        spelled = candidate.build(NodeBuilder(), *candidate.leaves)
    except VerificationError:
        return None
    root = candidate.root
    if not compatible(spelled.type, root.type) or spelled.type.rank != root.type.rank:
        return None
    terms = Terms()
    try:
        theirs, ours = (RealAlgebra(terms, candidate.leaves) for _ in "ab")
        shape = root.type.shape
        if theirs.whole(spelled, shape) != ours.whole(root, shape):
            return None
        same = [ExactAlgebra(terms, candidate.leaves).whole(n, shape) for n in (spelled, root)]
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


def _is_wide_enough(candidate: Candidate, ops: Sequence[TermNode]) -> bool:
    """Return the composite computes in a type no narrower than any of the ops it replaces."""
    dtype = candidate.root.type.dtype
    floats = [n.type.dtype for n in ops if is_float(n.type.dtype)]
    width = (accumulator(dtype) if has(candidate.name, Trait.WIDE) else dtype).itemsize
    return all(d.itemsize <= width for d in floats)
