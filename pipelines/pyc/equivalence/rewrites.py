"""Checking what passes rewrite: replacements and whole passes, against what they declare.

    checker = RewriteChecker()
    run_pipeline(module, HIGH_LEVEL, PassContext(verifier=checker))
    checker.checks                     # a `Check` for each replacement, and for each whole pass

A replacement is compared as two cones: what the op computed, and what takes its place, over the
values that both read. A pass that declares a relation of its own is compared as a whole. Nothing
here runs unless a context has a verifier.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.attributes import definition_of, params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.pipelines.driver.base import Relation
from pyc_mlir.pipelines.pyc.equivalence import floats
from pyc_mlir.pipelines.pyc.equivalence.answers import Answer, Counterexample, Proof, Unknown
from pyc_mlir.pipelines.pyc.equivalence.decide import decide
from pyc_mlir.pipelines.pyc.equivalence.nodes import (
    Graph,
    NotComparable,
    Program,
    TermNode,
    decomposed,
    ordered,
    program,
)
from pyc_mlir.pipelines.pyc.rewriting import (
    Exacts,
    constant_array,
    defining_op,
    functions_of,
    made_by,
    replacements,
)

# Ops of a cone; what lies behind is an argument. One more try looks farther.
_REACH = (12, 64)
_MOST = 512
# Roundings of f64 on the way to a constant that a pass makes, at most.
_ROUNDINGS = 16


@dataclass(frozen=True)
class Check:
    """One rewrite: its name, place and declared relation, and the answer to it.

    before: the op that was replaced, or the pass.
    """

    rewrite: str
    place: str
    relation: Relation
    before: str
    answer: Answer

    @property
    def is_proved(self) -> bool:
        """True for a proof of the declared relation."""
        return isinstance(self.answer, Proof) and self.answer.relation <= self.relation

    @property
    def is_wrong(self) -> bool:
        """True for a counterexample to the declared relation."""
        return isinstance(self.answer, Counterexample)

    def __str__(self) -> str:
        head = f"{self.rewrite} at {self.place}: declared {self.relation.text}\n  {self.before}"
        return f"{head}\n  {str(self.answer).replace(chr(10), chr(10) + '  ')}"


@dataclass
class RewriteChecker:
    """A verifier for `PassContext`: it collects a check for each rewrite."""

    checks: list[Check] = field(default_factory=list)

    @contextmanager
    def around(self, pass_: Any, module: ir.Module) -> Iterator[None]:
        """Check a pass as it runs: whole if it declares a relation, else each replacement."""
        relation = getattr(pass_, "relation", None)
        if relation is None:
            token = replacements.set(self._replaced)
            try:
                yield
            finally:
                replacements.reset(token)
            return
        graph = Graph()
        before = [_read(graph, f) for f in functions_of(module)]
        yield
        after = [_read(graph, f) for f in functions_of(module)]
        for first, second in zip(before, after, strict=False):
            answer = _answer(first, second, graph, relation)
            self.checks.append(Check(pass_.name, "the function", relation, pass_.name, answer))

    def _replaced(
        self, op: ir.Operation, value: ir.Value, relation: Relation, by: str, exacts: Exacts
    ) -> None:
        answer: Answer = Unknown("not read")
        for reach in _REACH:
            graph = Graph()
            try:
                first, second = cones(graph, op.result, value, reach, exacts)
            except (NotComparable, PycError) as error:
                answer = Unknown(str(error))
                continue
            answer = _answer(first, second, graph, Relation.REALS if exacts else relation)
            if exacts and isinstance(answer, Proof):
                answer = _rounded(answer, exacts)
            if isinstance(answer, Proof):
                break
        text = op.name if op.name == "pyc.constant" else str(op)[:200]
        self.checks.append(Check(by, str(op.location), relation, text, answer))


def _read(graph: Graph, function: ir.Operation) -> Program | Unknown:
    try:
        return graph.read(function)
    except NotComparable as error:
        return Unknown(str(error))


def _answer(first: Any, second: Any, graph: Graph, relation: Relation) -> Answer:
    """Decide; a declared error is compared in f64, a declared equality of bits may be weaker."""
    for side in (first, second):
        if isinstance(side, Unknown):
            return side
    if relation is Relation.ERROR:
        found = decide(first, second, graph, explains=False)
        if isinstance(found, Proof):
            return found
        plain = decomposed(first, graph), decomposed(second, graph)
        if first.output_types == second.output_types and floats.agree(*plain, graph, 0, True):
            return Unknown("within the error in f64, which proves nothing")
        return found
    solves = relation is Relation.BITS
    found = decide(first, second, graph, relation=relation, explains=False, solves=solves)
    if relation is Relation.BITS and isinstance(found, Unknown):
        weaker = decide(first, second, graph, explains=False)
        return weaker if isinstance(weaker, Proof | Counterexample) else found
    return found


def _rounded(proof: Proof, exacts: Exacts) -> Answer:
    """Return a proof over exact constants as one of those in the program, if they are the nearest.

    A constant may be half a unit in its last place off, and what `_ROUNDINGS` of f64 make.
    """
    for value, exact in exacts.items():
        found = constant_array(value)
        assert found is not None, "what is rounded is a constant"
        wide = np.longdouble
        high = exact.fractions.astype(np.float64)
        low = (exact.fractions - np.vectorize(Fraction, otypes=[object])(high)).astype(np.float64)
        true = exact.floats.astype(wide) * (high.astype(wide) + low.astype(wide))
        units = np.spacing(np.abs(found)).astype(wide)
        allowed = units / 2 + _ROUNDINGS * np.spacing(np.abs(true.astype(np.float64)))
        apart = np.abs(found.astype(wide) - true)
        if not (apart <= allowed).all():
            worst = float((apart / units).max())
            return Unknown(f"a constant is {worst:.1f} units of its last place from what it rounds")
    return replace(proof, relation=Relation.ROUNDED)


def cones(
    graph: Graph, before: ir.Value, after: ir.Value, reach: int, exacts: Exacts
) -> tuple[Program, Program]:
    """Return what two values are computed from: `reach` ops of the first, then arguments.

    exacts: constants that are read as what they are rounded from.

    Raises NotComparable where sizes vary or the second reads more than `_MOST` ops.
    """
    inside: set[ir.Operation] = set()
    level = [before]
    while level and len(inside) < reach:
        makers = [m for v in level if (m := _maker(v)) is not None]
        inside.update(makers)
        level = [o for m in makers for o in m.operands]
    read = {v for op in inside for v in op.operands if defining_op(v) not in inside}
    borders = {v for v in read if made_by(v, "constant") is None}
    values: dict[ir.Value, TermNode] = {}
    for value, exact in exacts.items():
        given = graph.node(OPS["constant"], (), {"value": exact.floats})
        fractions = graph.exact(exact.fractions, exact.floats.dtype)
        values[value] = graph.node(OPS["mul"], (given, fractions), {})
    inputs: list[TermNode] = []

    def operands(value: ir.Value) -> list[ir.Value]:
        maker = None if value in values or value in borders else _maker(value)
        return [] if maker is None else list(maker.operands)[::-1]

    count = 0
    for value in ordered([before, after], operands):
        maker = _maker(value)
        if value in values:
            continue
        if value in borders or maker is None:
            type_ = from_mlir(value.type)
            if not type_.is_static:
                raise NotComparable("the sizes of its operands vary")
            values[value] = graph.input(len(inputs), type_)
            inputs.append(values[value])
            continue
        count += 1
        if count > _MOST:
            raise NotComparable(f"the cone has more than {_MOST} ops")
        nodes = [values[o] for o in maker.operands]
        definition = definition_of(maker)
        if definition is None:
            made = nodes[0]
        else:
            made = graph.node(definition, nodes, params_of(definition, maker))
        values[value] = made
        graph.places.setdefault(made, str(maker.location))
    return program(inputs, [values[before]]), program(inputs, [values[after]])


def _maker(value: ir.Value) -> ir.Operation | None:
    """Return the pyc op or the cast that makes a value; None for others."""
    op = defining_op(value)
    plain = op is not None and (op.name == "tensor.cast" or definition_of(op) is not None)
    return op if plain else None
