"""Deciding whether two programs compute the same: the engines in order, from cheap to dear.

1. Equal nodes of one graph: ``structural``. 2. Names of elements (fields/elements.py): ``index``.
3. Integers tried in all values, or refuted by some (integers.py). 4. Towers of finite fields
(fields/interpreter.py): ``probabilistic``, and by steps between paired nodes (local.py):
``algebraic``. 5. Balls (balls.py) refute. 6. z3 (solver.py) is asked for what is left: ``solver``.
A result of the fields alone never refutes: a hash, the sign of a root or a rounded constant may be
the cause.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import is_float
from pyc_mlir.pipelines.driver.base import Relation
from pyc_mlir.pipelines.pyc.equivalence import floats
from pyc_mlir.pipelines.pyc.equivalence.answers import (
    Answer,
    Counterexample,
    Proof,
    Trial,
    Unknown,
)
from pyc_mlir.pipelines.pyc.equivalence.balls import is_available, refuted
from pyc_mlir.pipelines.pyc.equivalence.fields import arithmetic, reductions, towers  # noqa: F401  (two of them fill the table of rules)
from pyc_mlir.pipelines.pyc.equivalence.fields import lanes as hashes
from pyc_mlir.pipelines.pyc.equivalence.fields.elements import ElementNames
from pyc_mlir.pipelines.pyc.equivalence.fields.interpreter import Field, Residues, height
from pyc_mlir.pipelines.pyc.equivalence.fields.kept import kept_of
from pyc_mlir.pipelines.pyc.equivalence.fields.programs import (
    EXACT,
    Graph,
    NotComparable,
    Program,
    decomposed,
    describe,
    evaluated,
)
from pyc_mlir.pipelines.pyc.equivalence.integers import tried
from pyc_mlir.pipelines.pyc.equivalence.local import same_integers, sweep
from pyc_mlir.pipelines.pyc.equivalence.solver import solved
from pyc_mlir.pipelines.pyc.terms.nodes import VALUE, TermNode

TRIALS = 3
# The sign of a root is a coin in each trial: more of them.
_WITH_ROOTS, _FEW_ROOTS, _SEVERAL = 7, 20, 64
# Attempts at a trial that meets a division by zero.
_ATTEMPTS = 3
# Two hashes of 64 bits are equal by accident, at least, as often.
_HASHES = 2.0**-64
# Nodes that are proved step by step.
_MOST_STEPS = 4_000


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
        sides = [f"({describe(p.input_types)}) to ({describe(p.output_types)})"
                 for p in (first, second)]  # fmt: skip
        return Unknown(f"the programs have other types: {sides[0]}, and {sides[1]}")
    if not first.outputs:
        return Unknown("the programs have no results to compare")
    engines = _Engines(first, second, graph, relation, seed, trials)
    try:
        found = engines.answer(explains)
    except NotComparable as error:
        found = Unknown(str(error))
    except (MemoryError, RecursionError) as error:
        found = Unknown(f"too large: {type(error).__name__}")
    if isinstance(found, Unknown) and solves:
        found = engines.by_solver() or found
    if isinstance(found, Proof) and explains and found.relation > Relation.BITS:
        return replace(found, floats=floats.cases(first, second, seed))
    return found


class _Engines:
    """One comparison."""

    def __init__(
        self, first: Program, second: Program, graph: Graph,
        relation: Relation, seed: int, trials: int,
    ) -> None:  # fmt: skip
        self.given = (first, second)
        self.graph = graph
        self.relation = relation
        self.seed = seed
        self.trials = trials

    def answer(self, explains: bool) -> Answer:
        """Ask each engine in turn."""
        first, second = self.given
        if all(a is b for a, b in zip(first.outputs, second.outputs, strict=True)):
            return self.proof(Relation.BITS, "structural")
        reason = ""
        try:
            if _same(*self._run(self.given, ElementNames(), "names")):
                return self.proof(Relation.BITS, "index")
        except NotComparable as error:
            reason = str(error)
        if (found := tried(first, second, self.seed, self.relation)) is not None:
            if isinstance(found, Counterexample):
                return found
            return self.proof(Relation.BITS, "exhaustive")
        plain = decomposed(first, self.graph), decomposed(second, self.graph)
        floating = any(is_float(n.type.dtype) for p in plain for n in (*p.inputs, *p.nodes))
        if not floating and same_integers(*plain):
            return self.proof(Relation.BITS, "algebraic")
        if self.relation is Relation.BITS:
            return Unknown(reason or "the programs do different operations")
        if _same(*self._run(plain, ElementNames(), "names")):
            return self.proof(Relation.REALS, "index")
        return self._by_fields(plain, explains)

    def by_solver(self) -> Answer | None:
        """Ask z3 whether all bits are equal; only integers refute a weaker equality.

        Composites of floats stand for their references, whose bits may be others than those of the
        ops that they decompose to.
        """
        sides, nodes = self.given, [n for p in self.given for n in (*p.inputs, *p.nodes)]
        floating = any(is_float(n.type.dtype) for n in nodes)
        if not floating:
            sides = decomposed(sides[0], self.graph), decomposed(sides[1], self.graph)
        found = solved(*sides, not floating or self.relation is Relation.BITS)
        return self.proof(Relation.BITS, "solver") if found is True else found or None

    def proof(self, relation: Relation, kind: str, **more: Any) -> Proof:
        """Return a proof of the given programs."""
        first, second = self.given
        types = tuple(map(str, first.input_types))
        return Proof(relation, kind, types, (digest(first), digest(second)), **more)

    def _run(
        self, programs: Sequence[Program], engine: ElementNames, *key: Any
    ) -> tuple[list[Any], list[Any]]:
        kept = kept_of(self.graph, *key)
        values = [kept.evaluated(p, engine.step) for p in programs]
        a, b = ([v[o] for o in p.outputs] for v, p in zip(values, programs, strict=True))
        return a, b

    def _by_fields(self, plain: tuple[Program, Program], explains: bool) -> Answer:
        """Try exact constants, then those that are meant."""
        nodes = [*plain[0].nodes, *plain[1].nodes]
        levels = height(nodes)
        roots = any(n.name in ("sqrt", "rsqrt", "pow") for n in nodes)
        count = self.trials
        if roots:
            elements = sum(t.elements for t in plain[0].output_types)
            count = max(count, _WITH_ROOTS if elements >= _SEVERAL else _FEW_ROOTS)
        for rounded in (False, True):
            relation = Relation.ROUNDED if rounded else Relation.REALS
            if relation > self.relation:
                break
            done = self._trials(plain, levels, count, rounded)
            if done is None:
                continue
            if not floats.agree(*plain, self.graph, self.seed, rounded):
                return Unknown("the fields agree, and f64 does not: the sign of a root may differ")
            bound = max(_HASHES, float(np.prod([1.0 / t.primes[-1] for t in done])))
            found = self.proof(relation, "probabilistic", trials=done, bound=bound)
            return self._in_steps(found, plain, levels, rounded) if explains else found
        refutation = refuted(*plain, self.seed, self.relation >= Relation.ROUNDED)
        if refutation is not None:
            return refutation
        swept = self._swept(plain, levels, False) if explains else None
        pair = "" if swept is None else swept.missing
        why = "the fields do not agree, and no arguments are known that differ"
        if not is_available():
            why += "; install python-flint (the extra `prove`), which looks for a counterexample"
        return Unknown(why, pair)

    def _trials(
        self, plain: tuple[Program, Program], levels: int, count: int, rounded: bool
    ) -> tuple[Trial, ...] | None:
        """Return the trials if all agree."""
        done = []
        for number in range(count):
            trial = self._trial(plain, levels, number, rounded)
            if trial is None:
                return None
            done.append(trial)
        return tuple(done)

    def _trial(
        self, plain: tuple[Program, Program], levels: int, number: int, rounded: bool
    ) -> Trial | None:
        last: NotComparable | None = None
        for attempt in range(_ATTEMPTS):
            trial = Trial(towers.tower(levels, number), 1000 * self.seed + 10 * number + attempt)
            try:
                sides = self._run(plain, Field(trial.primes, trial.seed, rounded), trial, rounded)
            except NotComparable as error:
                last = error
                continue
            return trial if _same(*sides) else None
        assert last is not None
        raise last

    def _in_steps(
        self, found: Proof, plain: tuple[Program, Program], levels: int, rounded: bool
    ) -> Proof:
        if len(plain[0].nodes) + len(plain[1].nodes) > _MOST_STEPS:
            return found
        swept = self._swept(plain, levels, rounded)
        if swept is None or not swept.is_proof:
            return found
        return replace(found, kind="algebraic", steps=swept.steps)

    def _swept(self, plain: tuple[Program, Program], levels: int, rounded: bool) -> Any:
        """Pair the nodes by their residues, and prove them in order."""
        prints: dict[TermNode, bytes] = {}
        engine = Field(towers.tower(levels, 0), self.seed, rounded)

        def step(node: TermNode, operands: list[Any]) -> Any:
            value = engine.step(node, operands)
            if node.name != VALUE:
                prints[node] = _fingerprint(value)
            return value

        try:
            for side in plain:
                evaluated(side, step)
        except NotComparable:
            return None
        return sweep(*plain, prints, self.graph, rounded)


def _same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Return whether all values are equal, element by element."""
    return all(map(_equal, first, second))


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if a.type != b.type:
        return False
    if not isinstance(a, Residues) or not isinstance(b, Residues):
        return np.array_equal(a.lanes, b.lanes)
    flags = [x.minus if x.minus is not None else np.zeros(x.levels[-1].shape, bool) for x in (a, b)]
    if not np.array_equal(flags[0], flags[1]):
        return False
    depth = max(a.depth, b.depth)
    pairs = zip(a.levels[depth:], b.levels[depth:], strict=True)
    return all(np.array_equal(np.where(flags[0], 0, x), np.where(flags[0], 0, y)) for x, y in pairs)


def _fingerprint(value: Any) -> bytes:
    total = hashes.along(value.lanes, range(value.lanes.ndim - 1))
    return total.tobytes() + str(value.type).encode()


def digest(given: Program) -> str:
    """Return what identifies a program: its ops, parameters and constants."""
    numbers: dict[TermNode, int] = {}
    state = hashlib.blake2b(digest_size=16)
    for node in (*given.inputs, *given.nodes):
        if node in numbers:
            continue
        numbers[node] = len(numbers)
        operands = [numbers[o] for o in node.operands]
        kept = sorted(node.params.items())
        content = b""
        if node.name == "constant":
            array = np.asarray(node.params["value"])
            kept, content = [("shape", array.shape)], np.ascontiguousarray(array).tobytes()
        if node.name == EXACT:
            kept = [("fractions", node.type.shape), *map(str, node.params["fractions"].flat)]
        state.update(f"{node.name} {operands} {kept} {node.type}".encode() + content)
    state.update(str([numbers[o] for o in given.outputs]).encode())
    return state.hexdigest()
