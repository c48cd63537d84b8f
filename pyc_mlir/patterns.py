"""Users' rewrites: a numpy function, and what takes its place, proved equal when registered.

    @pyc_mlir.pattern(replacement=nn.softmax)
    def spelled(x: Tensor["f32", 4, 8]):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    program = pyc_mlir.compile("model.onnx", passes=spelled.passes())

The sizes of the annotations are an example: a place in a program matches at its own sizes and
ranks, where pattern and replacement are proved equal again. Every spelling that is equal matches.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from typing import Any, ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.opdef import OPS, Trait
from pyc_mlir.dialects.types import DTYPES, TensorType, is_float
from pyc_mlir.frontends.python.specs import TensorSpec, annotated_specs
from pyc_mlir.frontends.python.trace import trace
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.pipelines.driver.base import PassContext, Relation, option
from pyc_mlir.pipelines.driver.registry import PASSES
from pyc_mlir.pipelines.pyc.equivalence import floats
from pyc_mlir.pipelines.pyc.equivalence.answers import Proof
from pyc_mlir.pipelines.pyc.equivalence.decide import decide
from pyc_mlir.pipelines.pyc.equivalence.nodes import (
    VALUE,
    Graph,
    NotComparable,
    Program,
    TermNode,
    decomposed,
    program,
)
from pyc_mlir.pipelines.pyc.rewriting import defining_op, functions_of, replace

__all__ = ["Pattern", "Place", "find", "pattern"]

KEEP = "keep"
# Cuts that are tried below one op, and ops between a place's root and its leaves.
_MOST_CUTS, _MOST_OPS = 64, 48
# Ops of which most programs have few: a place has those of its pattern.
_ANCHORS = frozenset({"exp", "log", "erf", "tanh", "sin", "cos", "sqrt", "rsqrt", "pow"})


@dataclass(frozen=True, eq=False)
class Pattern:
    """A registered pattern: its name, both functions, and the proof for the annotated sizes."""

    name: str
    function: Callable[..., Any]
    replacement: Callable[..., Any]
    types: tuple[TensorType, ...]
    relation: Relation
    proof: Proof
    allows_unsafe: bool
    _sides: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    @property
    def anchors(self) -> frozenset[str]:
        """The rare primitive ops of the pattern."""
        graph = Graph()
        own = _traced(self.function, self.types, graph)
        return _anchors(decomposed(own, graph))

    def passes(self) -> str:
        """Return the pipeline for `compile(passes=...)`: this pattern's rewrite, then PyC's own."""
        identity = hashlib.sha256("".join(self.proof.digests).encode()).hexdigest()[:16]
        return f"pyc-patterns{{names={self.name} digest={identity}}},default"

    def fits(self, types: tuple[TensorType, ...], graph: Graph) -> tuple[Program, Program] | None:
        """Return pattern and replacement at other sizes, if they are equal there; else None."""
        if types not in self._sides:
            own = Graph()
            try:
                spelled = _traced(self.function, types, own)
                other = _traced(self.replacement, types, own)
                answer = decide(spelled, other, own, relation=self.relation, explains=False)
            except (PycError, NotComparable, ValueError, TypeError, IndexError):
                self._sides[types] = False
            else:
                self._sides[types] = isinstance(answer, Proof)
        if not self._sides[types]:
            return None
        first, second = (_traced(f, types, graph) for f in (self.function, self.replacement))
        return first, second


# By name, as they were registered.
PATTERNS: dict[str, Pattern] = {}


def pattern(
    function: Callable[..., Any] | None = None,
    *,
    replacement: Callable[..., Any] | str,
    relation: Relation = Relation.ROUNDED,
    allows_unsafe: bool = False,
) -> Any:
    """Register a numpy function as a pattern, and what takes its place: a function or an op's name.

    function: annotated with `Tensor[...]` of static sizes. relation: the weakest equality that
    counts. allows_unsafe: accept a replacement that is worse in floats than the function.

    Raises PycError (BAD_ARGUMENT) without a proof that both are equal, and for a replacement that
    is worse in floats.
    """
    if function is None:
        return lambda given: pattern(
            given, replacement=replacement, relation=relation, allows_unsafe=allows_unsafe
        )
    name = function.__name__
    other = _named(replacement) if isinstance(replacement, str) else replacement
    if not callable(other):
        raise _refused(name, "a function or the name of an op as replacement", repr(replacement))
    specs = annotated_specs(function).values()
    types = tuple(
        TensorType(tuple(d if isinstance(d, int) else None for d in s.dims), s.dtype)
        for s in specs
        if s is not None
    )
    if not types or len(types) != len(specs) or not all(t.is_static for t in types):
        raise _refused(name, 'annotations of static sizes, such as Tensor["f32", 4, 8]', "others")
    made = _made(name, function, other, types, relation, allows_unsafe)
    PATTERNS[name] = made
    return made


def _made(
    name: str,
    function: Callable[..., Any],
    other: Callable[..., Any],
    types: tuple[TensorType, ...],
    relation: Relation,
    allows_unsafe: bool,
) -> Pattern:
    """Return a pattern. Raises PycError (BAD_ARGUMENT) without a proof."""
    graph = Graph()
    try:
        first, second = (_traced(f, types, graph) for f in (function, other))
    except NotComparable as error:
        raise _refused(name, "functions that can be compared", str(error)) from None
    proof = decide(first, second, graph, relation=relation)
    if not isinstance(proof, Proof):
        raise _refused(name, "a replacement that is proved equal", str(proof))
    if not proof.is_safe_in_floats and not allows_unsafe:
        raise _refused(name, "a replacement that is as good in floats", f"another one: {proof}")
    return Pattern(name, function, other, types, relation, proof, allows_unsafe)


# Composites that `pyc-find` knows by name: the ranks of their arguments.
COMPOSITES = {
    "softmax": (2,), "log_softmax": (2,), "layernorm": (2, 1, 1), "rmsnorm": (2, 1),
    "gelu": (2,), "silu": (2,), "sigmoid": (2,),
}  # fmt: skip
_EXAMPLE = (4, 8)
_MOST_EPSILON = 1e-2


def composites(name: str, given: Program) -> list[Pattern]:
    """Return an op of `COMPOSITES` as patterns, one for each way to call it that may stand there.

    Norms have an epsilon, which is a small constant of the program.
    """
    from pyc_mlir import nn

    op = getattr(nn, name)
    types = tuple(TensorType(_EXAMPLE[-r:], DTYPES["f32"]) for r in COMPOSITES[name])
    ways: list[Callable[..., Any]] = [op]
    if "epsilon" in {p.name for p in OPS[name].params}:
        # The small numbers of the program, and the epsilons of its ops.
        small = [n.number for n in given.nodes if n.name == "constant" and n.number is not None]
        small += [n.params["epsilon"] for n in given.nodes if "epsilon" in n.params]
        epsilons = sorted({float(e) for e in small if 0 < e <= _MOST_EPSILON})
        ways = [partial(op, epsilon=e) for e in epsilons]
    elif name == "gelu":
        ways = [partial(op, approximate=a) for a in ("none", "tanh")]
    return [_made(name, way, way, types, Relation.ROUNDED, True) for way in ways]


def _refused(name: str, expected: str, got: str) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, where=f"pattern `{name}`", expected=expected, got=got)


def _named(name: str) -> Callable[..., Any]:
    """Return the function of an op with its default parameters."""
    from pyc_mlir import nn

    found = getattr(nn, name, None)
    if name not in OPS or found is None:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, where="pattern: replacement", expected="an op of `nn`",
            got=repr(name),
        )  # fmt: skip
    return found


def _traced(function: Callable[..., Any], types: Sequence[TensorType], graph: Graph) -> Program:
    specs = [TensorSpec(t.dtype, *(d or 0 for d in t.shape)) for t in types]
    module = trace(function, *specs)
    with module.context:
        return graph.read(entry_function(module))


@dataclass(frozen=True)
class Place:
    """A place where a program computes a pattern: its root, its leaves in the pattern's order.

    where: the location of the root, with the names of the model's nodes. is_done: the replacement
    stands there already.
    """

    pattern: Pattern
    where: str
    type: str
    root: TermNode
    leaves: tuple[TermNode, ...]
    is_done: bool


def find(wanted: Pattern, given: Program, graph: Graph) -> list[Place]:
    """Return the places of a program that compute a pattern, in order; none overlap."""
    found: list[Place] = []
    taken: set[TermNode] = set()
    plain: dict[TermNode, frozenset[str]] = {}
    anchors = wanted.anchors
    for root in reversed(given.nodes):
        if root in taken or root.name in (VALUE, "constant"):
            continue
        place = _place(wanted, root, graph, anchors, plain)
        if place is not None:
            found.append(place)
            taken |= _between(root, place.leaves)
    return found[::-1]


def _place(
    wanted: Pattern, root: TermNode, graph: Graph, anchors: frozenset[str],
    plain: dict[TermNode, frozenset[str]],
) -> Place | None:  # fmt: skip
    count = len(wanted.types)
    for cut in _cuts(root, count):
        if len(cut) != count or root in cut:
            continue
        inside = _between(root, cut)
        own = frozenset().union(*(_own_anchors(n, plain) for n in inside))
        if own != anchors or len(inside) > _MOST_OPS:
            continue
        for leaves in permutations(cut):
            made = _matched(wanted, root, leaves)
            if made is not None:
                where = graph.places.get(root, "").removeprefix("loc(").removesuffix(")")
                return Place(wanted, where, str(root.type), root, leaves, made)
    return None


def _matched(wanted: Pattern, root: TermNode, leaves: Sequence[TermNode]) -> bool | None:
    """Return whether the replacement stands at a place that matches; None where none matches.

    A place matches if it is equal to the pattern and the replacement is as good there in floats.
    """
    types = tuple(leaf.type for leaf in leaves)
    if [t.dtype for t in types] != [t.dtype for t in wanted.types]:
        return None
    own = Graph()
    pair = wanted.fits(types, own)
    if pair is None or pair[0].output_types != (root.type,):
        return None
    try:
        region = _region(root, leaves, own)
    except NotComparable:
        return None
    answer = decide(region, pair[0], own, relation=wanted.relation, explains=False)
    if not isinstance(answer, Proof):
        return None
    if region.outputs == pair[1].outputs:
        return True
    cases = () if wanted.allows_unsafe else floats.cases(region, pair[1], 0)
    return False if dataclasses.replace(answer, floats=cases).is_safe_in_floats else None


def _region(root: TermNode, leaves: Sequence[TermNode], graph: Graph) -> Program:
    """Return what a root computes of leaves, as a program of its own."""
    inputs = [graph.input(i, leaf.type) for i, leaf in enumerate(leaves)]
    made: dict[TermNode, TermNode] = dict(zip(leaves, inputs, strict=True))
    stack = [root]
    while stack:
        node = stack[-1]
        if node in made:
            stack.pop()
        elif node.name == VALUE:
            raise NotComparable("an argument that is no leaf")
        elif missing := [o for o in node.operands if o not in made]:
            stack.extend(missing)
        else:
            operands = [made[o] for o in node.operands]
            made[node] = graph.node(OPS[node.name], operands, node.params)
    return program(inputs, [made[root]])


def _cuts(root: TermNode, count: int) -> Iterator[tuple[TermNode, ...]]:
    """Yield the sets of at most `count` nodes that a root is computed from, the nearest first."""
    pending: list[frozenset[TermNode]] = [frozenset([root])]
    seen = {pending[0]}
    while pending and len(seen) < _MOST_CUTS:
        cut = pending.pop(0)
        yield tuple(sorted(cut, key=id))
        for node in cut:
            reads = [
                o
                for o in node.operands
                if o.number is None and (o.name == "constant" or not o.has(Trait.CREATES))
            ]
            if not reads:
                continue
            wider = frozenset((cut - {node}) | set(reads))
            if len(wider) <= count + 2 and wider not in seen:
                seen.add(wider)
                pending.append(wider)


def _between(root: TermNode, leaves: Sequence[TermNode]) -> set[TermNode]:
    """Return the root and what lies between it and leaves; constants and iotas too."""
    found: set[TermNode] = set()
    pending = [root]
    while pending and len(found) <= _MOST_OPS:
        node = pending.pop()
        if node not in found and node not in leaves:
            found.add(node)
            pending.extend(node.operands)
    return found


def _own_anchors(node: TermNode, known: dict[TermNode, frozenset[str]]) -> frozenset[str]:
    """Return the rare primitive ops of one op."""
    if node not in known:
        graph = Graph()
        if node.name in (VALUE, "constant") or not is_float(node.type.dtype):
            known[node] = frozenset()
        else:
            inputs = [graph.input(i, o.type) for i, o in enumerate(node.operands)]
            single = graph.node(OPS[node.name], inputs, node.params)
            known[node] = _anchors(decomposed(program(inputs, [single]), graph))
    return known[node]


def _anchors(plain: Program) -> frozenset[str]:
    names = {node.name for node in plain.nodes} & _ANCHORS
    # Roots and powers are spelled in several ways.
    roots = {"sqrt", "rsqrt", "pow"}
    names = (names - roots) | ({"root"} if names & roots else set())
    return frozenset((names - {"tanh"}) | ({"exp"} if "tanh" in names else set()))


@dataclass(frozen=True)
class Patterns:
    """Replace what computes a user's pattern by its replacement; each place is a decision."""

    name: ClassVar[str] = "pyc-patterns"
    names: str = option("", "patterns by name, joined by +; empty for all that are registered")
    digest: str = option("", "what the patterns are, so that programs of others are not reused")

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Choose for each place. Raises PycError (INVALID_PIPELINE) for an unknown pattern."""
        names = self.names.split("+") if self.names else list(PATTERNS)
        if missing := [n for n in names if n not in PATTERNS]:
            raise PycError(
                ReasonCode.INVALID_PIPELINE,
                where=self.name,
                expected=f"patterns of this process ({', '.join(PATTERNS) or 'none'})",
                got=", ".join(missing),
                remedy="import the file that registers it",
            )
        pairs = [(PATTERNS[name], f) for name in names for f in functions_of(module)]
        return {"replaced": sum(self._rewrite(wanted, f, context) for wanted, f in pairs)}

    def _rewrite(self, wanted: Pattern, function: ir.Operation, context: PassContext) -> int:
        graph = Graph()
        try:
            given = graph.read(function)
        except NotComparable:
            return 0  # its sizes vary
        made = 0
        places = find(wanted, given, graph)
        ids = OpIds(function) if places else None
        for place in places:
            root = defining_op(graph.values[place.root])
            assert ids is not None and root is not None
            site = Site(self.name, ids[root], str(root.location))
            offers = [Alternative(wanted.name, None, wanted.proof.relation.text),
                      Alternative(KEEP, None, "as it is")]  # fmt: skip
            if place.is_done:
                continue
            if context.choices.choose(site, offers).name == wanted.name:
                _apply(place, root, graph)
                made += 1
        return made


def _apply(place: Place, root: ir.Operation, graph: Graph) -> None:
    """Build the replacement at the root's place."""
    types = tuple(leaf.type for leaf in place.leaves)
    own = Graph()
    spelled = _traced(place.pattern.replacement, types, own)
    leaves = [graph.values[leaf] for leaf in place.leaves]
    values: dict[TermNode, ir.Value] = dict(zip(spelled.inputs, leaves, strict=True))
    with ir.InsertionPoint(root), root.location:
        for node in spelled.nodes:
            if node not in values:
                operands = [values[o] for o in node.operands]
                values[node] = IRBuilder().build(OPS[node.name], *operands, **node.params)
    (out,) = (values[o] for o in spelled.outputs)
    replace(root, out, place.pattern.relation, place.pattern.name)


PASSES.register(Patterns)
