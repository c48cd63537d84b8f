"""Deciding whether two programs compute the same: the engines in order, from cheap to dear.

1. Equal nodes of one graph: ``structural``. 2. Names of elements (names.py): ``index``. 3. Integers
tried in all values, or refuted by some (refute.py). 4. Towers of finite fields (fields.py):
``probabilistic``, and by steps between paired nodes: ``algebraic``. 5. Balls (refute.py) refute. 6.
z3 (solver.py) is asked for what is left: ``solver``. A result of the fields alone never refutes: a
hash, the sign of a root or a rounded constant may be the cause.

A step holds between nodes that are proved already: nodes of both programs whose fingerprints agree
are read, in order, as normal forms over the nearest such nodes, then over farther ones, which know
more of each other.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import is_float
from pyc_mlir.pipelines.driver.base import Relation
from pyc_mlir.pipelines.pyc.equivalence import fields, floats
from pyc_mlir.pipelines.pyc.equivalence.algebra import ProofAlgebra
from pyc_mlir.pipelines.pyc.equivalence.answers import (
    Answer,
    Counterexample,
    Proof,
    Step,
    Trial,
    Unknown,
)
from pyc_mlir.pipelines.pyc.equivalence.names import ElementNames, along
from pyc_mlir.pipelines.pyc.equivalence.nodes import (
    EXACT,
    VALUE,
    Graph,
    NotComparable,
    Program,
    TermNode,
    decomposed,
    evaluated,
)
from pyc_mlir.pipelines.pyc.equivalence.refute import has_balls, refuted, tried
from pyc_mlir.pipelines.pyc.equivalence.solver import solved
from pyc_mlir.pipelines.pyc.equivalence.terms import Poly, Terms, TooManyProducts

TRIALS = 3
# The sign of a root is a coin in each trial: more of them.
_WITH_ROOTS, _FEW_ROOTS, _SEVERAL = 7, 20, 64
# Attempts at a trial that meets a division by zero.
_ATTEMPTS = 3
# Two hashes of 64 bits are equal by accident, at least, as often.
_HASHES = 2.0**-64
# Nodes that are proved step by step.
_MOST_STEPS = 4_000
# How many proved nodes are passed by on each way, in turn, and nodes that are looked at.
_REACH = (0, 2, 5)
_CONE = 96


def decide(
    first: Program,
    second: Program,
    graph: Graph,
    *,
    relation: Relation = Relation.ROUNDED,
    seed: int = 0,
    trials: int = TRIALS,
    explains: bool = True,
    solves: bool = False,
) -> Answer:
    """Return whether both programs are equal, by `relation` or a stronger equality.

    seed, trials: of the fields. explains: measure safety in floats, and look for steps. solves: ask
    z3 where the other engines have no answer, which takes up to seconds.
    """
    if first.input_types != second.input_types or first.output_types != second.output_types:
        told = [", ".join(map(str, types)) or "none" for p in (first, second)
                for types in (p.input_types, p.output_types)]  # fmt: skip
        sides = f"({told[0]}) to ({told[1]}), and ({told[2]}) to ({told[3]})"
        return Unknown(f"the programs have other types: {sides}")
    if not first.outputs:
        return Unknown("the programs have no results to compare")
    engines = _Engines(first, second, graph, relation, seed, trials, explains)
    try:
        found = engines.answer()
    except NotComparable as error:
        found = Unknown(str(error))
    except (MemoryError, RecursionError) as error:
        found = Unknown(f"too large: {type(error).__name__}")
    if isinstance(found, Unknown) and solves:
        found = engines.by_solver() or found
    if isinstance(found, Proof) and explains and found.relation > Relation.BITS:
        return replace(found, floats=floats.cases(first, second, seed))
    return found


@dataclass
class _Engines:
    """One comparison. plain: both programs in primitive ops."""

    first: Program
    second: Program
    graph: Graph
    relation: Relation
    seed: int
    trials: int
    explains: bool
    plain: tuple[Program, Program] = ()  # type: ignore[assignment]

    def answer(self) -> Answer:
        """Ask each engine in turn."""
        given = first, second = self.first, self.second
        if all(a is b for a, b in zip(first.outputs, second.outputs, strict=True)):
            return self._proof(Relation.BITS, "structural")
        reason = ""
        try:
            if self._agree(given, ElementNames(), "names"):
                return self._proof(Relation.BITS, "index")
        except NotComparable as error:
            reason = str(error)
        if (found := tried(first, second, self.seed, self.relation)) is not None:
            if isinstance(found, Counterexample):
                return found
            return self._proof(Relation.BITS, "exhaustive")
        plain = self.plain = decomposed(first, self.graph), decomposed(second, self.graph)
        pairs = zip(plain[0].outputs, plain[1].outputs, strict=True)
        leaves = {node: i for i, node in enumerate(plain[0].inputs)}
        if not _has_floats(plain) and _same_forms(pairs, leaves):
            return self._proof(Relation.BITS, "algebraic")
        if self.relation is Relation.BITS:
            return Unknown(reason or "the programs do different operations")
        if self._agree(plain, ElementNames(), "names"):
            return self._proof(Relation.REALS, "index")
        return self._by_fields()

    def by_solver(self) -> Answer | None:
        """Ask z3 whether all bits are equal; only integers refute a weaker equality.

        Composites of floats stand for their references, whose bits may be others than those of the
        ops that they decompose to.
        """
        sides = self.first, self.second
        floating = _has_floats(sides)
        if not floating:
            sides = decomposed(sides[0], self.graph), decomposed(sides[1], self.graph)
        found = solved(*sides, not floating or self.relation is Relation.BITS)
        return self._proof(Relation.BITS, "solver") if found is True else found or None

    def _proof(self, relation: Relation, kind: str, **more: Any) -> Proof:
        types = tuple(map(str, self.first.input_types))
        return Proof(relation, kind, types, (digest(self.first), digest(self.second)), **more)

    def _agree(self, programs: tuple[Program, Program], engine: ElementNames, *key: Any) -> bool:
        """Return whether both programs have the same results under an interpreter."""
        kept = self.graph.kept_of(*key)
        sides = [kept.evaluated(p, engine.step) for p in programs]
        return all(map(_equal, *sides))

    def _by_fields(self) -> Answer:
        """Try exact constants, then those that they are the roundings of."""
        plain = self.plain
        nodes = [*plain[0].nodes, *plain[1].nodes]
        levels, count = fields.height(nodes), self.trials
        if any(n.name in ("sqrt", "rsqrt", "pow") for n in nodes):
            elements = sum(t.elements for t in plain[0].output_types)
            count = max(count, _WITH_ROOTS if elements >= _SEVERAL else _FEW_ROOTS)
        for rounded in (False, True):
            relation = Relation.ROUNDED if rounded else Relation.REALS
            if relation > self.relation:
                break
            done: list[Trial] = []
            while len(done) < count and (trial := self._trial(levels, len(done), rounded)):
                done.append(trial)
            if len(done) < count:
                continue
            if not floats.agree(*plain, self.graph, self.seed, rounded):
                return Unknown("the fields agree, and f64 does not: the sign of a root may differ")
            bound = max(_HASHES, float(np.prod([1.0 / t.primes[-1] for t in done])))
            found = self._proof(relation, "probabilistic", trials=tuple(done), bound=bound)
            if not self.explains or len(nodes) > _MOST_STEPS:
                return found
            steps, missing = self._steps(levels, rounded)
            return replace(found, kind="algebraic", steps=steps) if missing == "" else found
        refutation = refuted(*plain, self.seed, self.relation >= Relation.ROUNDED)
        if refutation is not None:
            return refutation
        why = "the fields do not agree, and no arguments are known that differ"
        if not has_balls():
            why += "; install python-flint (the extra `prove`), which looks for a counterexample"
        return Unknown(why, (self._steps(levels, False)[1] or "") if self.explains else "")

    def _trial(self, levels: int, number: int, rounded: bool) -> Trial | None:
        """Return a trial in which both programs agree. Raises NotComparable after attempts."""
        last: NotComparable | None = None
        for attempt in range(_ATTEMPTS):
            trial = Trial(fields.tower(levels, number), 1000 * self.seed + 10 * number + attempt)
            engine = fields.Field(trial.primes, trial.seed, rounded)
            try:
                return trial if self._agree(self.plain, engine, trial, rounded) else None
            except NotComparable as error:
                last = error
        assert last is not None
        raise last

    def _steps(self, levels: int, rounded: bool) -> tuple[tuple[Step, ...], str | None]:
        """Prove the nodes of the second program from those of the first, in order.

        The steps, and the node of the second program where they end; "" where all results are
        proved, None where no residues are known.
        """
        prints: dict[TermNode, bytes] = {}
        engine = fields.Field(fields.tower(levels, 0), self.seed, rounded)

        def step(node: TermNode, operands: list[Any]) -> Any:
            value = engine.step(node, operands)
            if node.name != VALUE:
                total = along(value.lanes, range(value.lanes.ndim - 1))
                prints[node] = total.tobytes() + str(value.type).encode()
            return value

        try:
            for side in self.plain:
                evaluated(side, step)
        except NotComparable:
            return (), None
        return _swept(*self.plain, prints, self.graph, rounded)


def _has_floats(programs: Sequence[Program]) -> bool:
    return any(is_float(n.type.dtype) for p in programs for n in (*p.inputs, *p.nodes))


def _equal(a: Any, b: Any) -> bool:
    if a is b or a.type != b.type:
        return a is b
    if not isinstance(a, fields.Residues) or not isinstance(b, fields.Residues):
        return np.array_equal(a.lanes, b.lanes)
    flags = a.flags
    if not np.array_equal(flags, b.flags):
        return False
    depth = max(a.depth, b.depth)
    pairs = zip(a.levels[depth:], b.levels[depth:], strict=True)
    return all(np.array_equal(np.where(flags, 0, x), np.where(flags, 0, y)) for x, y in pairs)


def digest(given: Program) -> str:
    """Return what identifies a program: its ops, parameters and constants."""
    numbers: dict[TermNode, int] = {}
    state = hashlib.blake2b(digest_size=16)
    for node in (*given.inputs, *given.nodes):
        if node in numbers:
            continue
        numbers[node] = len(numbers)
        operands = [numbers[o] for o in node.operands]
        kept: list[Any] = sorted(node.params.items())
        content = b""
        if node.name == "constant":
            array = np.asarray(node.params["value"])
            kept, content = [("shape", array.shape)], np.ascontiguousarray(array).tobytes()
        if node.name == EXACT:
            kept = [("fractions", node.type.shape), *map(str, node.params["fractions"].flat)]
        state.update(f"{node.name} {operands} {kept} {node.type}".encode() + content)
    state.update(str([numbers[o] for o in given.outputs]).encode())
    return state.hexdigest()


def _swept(
    first: Program, second: Program, prints: Mapping[TermNode, Any], graph: Graph, rounded: bool
) -> tuple[tuple[Step, ...], str]:
    """Prove nodes with equal fingerprints in order; return the steps, and the node without one."""
    partners: dict[Any, TermNode] = {}
    for node in first.nodes:
        if node in prints:
            partners.setdefault(prints[node], node)
    places = [{n: i for i, n in enumerate(p.nodes)} for p in (first, second)]
    classes: dict[TermNode, int] = {node: i for i, node in enumerate(first.nodes)}
    steps: list[Step] = []
    for node in second.nodes:
        partner = partners.get(prints.get(node, object()))
        if node in places[0] or partner is None:
            continue
        found = _proved(partner, node, classes, rounded)
        if found is None:
            continue
        rule, cut = found
        classes[node] = classes[partner]
        numbers = tuple(sorted(places[0][c] for c in cut if c in places[0]))
        names = graph.place(partner), graph.place(node)
        steps.append(Step(rule, *names, places[0][partner], places[1][node], numbers))
    for a, b in zip(first.outputs, second.outputs, strict=True):
        if a is not b and classes.get(b) != classes[a]:
            return tuple(steps), graph.place(b)
    return tuple(steps), ""


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
        if _same_forms([(a, b)], leaves, rounded):
            return "normal form", frozenset(leaves)
    return None


def _same_forms(
    pairs: Iterable[tuple[TermNode, TermNode]],
    leaves: Mapping[TermNode, int],
    rounded: bool = False,
) -> bool:
    """Return whether both nodes of each pair have one normal form over leaves."""
    terms = Terms(exact=True)

    def form(node: TermNode) -> Poly:
        return ProofAlgebra(terms, leaves, rounded).general(node, node.type.shape)

    try:
        return all(form(a) == form(b) for a, b in pairs)
    except (TooManyProducts, ZeroDivisionError, RecursionError):
        return False


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
    cones: list[dict[TermNode, None]] = []
    for root in (a, b):  # the nearest first, as far as `_CONE`
        cone, level = dict[TermNode, None](), list(root.operands)
        while level and len(cone) < _CONE:
            cone.update(dict.fromkeys(level))
            level = [o for n in level for o in n.operands if o not in cone]
        cones.append(cone)
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
