"""The door `equivalent`: whether two programs compute the same.

    answer = pyc_mlir.equivalent(softmax_by_hand, "model.onnx")
    if isinstance(answer, Proof): print(answer.relation, answer.kind)

Programs are what `compile` takes: functions in numpy style, ONNX and MLIR files, text, modules.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.frontends.sources import Source
from pyc_mlir.pipelines.driver.base import Relation
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.pyc.equivalence.answers import (
    Answer,
    Counterexample,
    FloatCase,
    Proof,
    Step,
    Trial,
    Unknown,
)
from pyc_mlir.pipelines.pyc.equivalence.decide import TRIALS, decide, digest
from pyc_mlir.pipelines.pyc.equivalence.nodes import Graph, NotComparable, Program

__all__ = [
    "Answer",
    "Counterexample",
    "FloatCase",
    "Proof",
    "Relation",
    "Step",
    "Trial",
    "Unknown",
    "equivalent",
    "equivalent_all",
    "replay",
]

T = TypeVar("T")
_Pair = tuple[Program, Program, Graph] | Proof | Unknown


def equivalent(
    a: Any,
    b: Any,
    *,
    inputs: Sequence[Any] | None = None,
    relation: Relation = Relation.ROUNDED,
    functions: tuple[str, str] = ("main", "main"),
    passes: str = "",
    seed: int = 0,
    trials: int = TRIALS,
) -> Answer:
    """Return a Proof that `a` and `b` compute the same, a Counterexample, or Unknown.

    a, b: as for `compile`; both take the same arguments in order. inputs: for functions without
    annotations their specs or example arrays, and shapes where sizes vary, one an argument.
    relation: the weakest equality that counts. functions: the functions of `a` and of `b`, where a
    module has several. passes: a pipeline that `b` goes through first: ``equivalent(m, m,
    passes="pyc-decompose")`` compares two stages of a compile. seed, trials: of the fields.

    Raises PycError for what cannot be read, and (BAD_ARGUMENT) for other values.
    """
    _check(relation, seed, trials, functions)
    ask = partial(_answer, relation=relation, seed=seed, trials=trials)
    return _each(a, [b], inputs, functions, passes, ask)[0]


def equivalent_all(
    a: Any,
    others: Sequence[Any],
    *,
    inputs: Sequence[Any] | None = None,
    relation: Relation = Relation.ROUNDED,
    seed: int = 0,
    trials: int = TRIALS,
) -> list[Answer]:
    """Return what `equivalent` answers to `a` and each of `others`, in order.

    What the programs have in common is computed once, so that this is faster than as many calls.

    Raises PycError as `equivalent` does.
    """
    _check(relation, seed, trials, ("main", "main"))
    ask = partial(_answer, relation=relation, seed=seed, trials=trials)
    return _each(a, others, inputs, ("main", "main"), "", ask)


def _answer(pair: _Pair, relation: Relation, seed: int, trials: int) -> Answer:
    if isinstance(pair, Unknown | Proof):
        return pair
    return decide(*pair, relation=relation, seed=seed, trials=trials, solves=True)


def replay(
    proof: Proof,
    a: Any,
    b: Any,
    *,
    inputs: Sequence[Any] | None = None,
    functions: tuple[str, str] = ("main", "main"),
    passes: str = "",
) -> bool:
    """Return whether a proof of `a` and `b` holds when it is computed again, with its own seeds.

    Raises PycError: BAD_ARGUMENT for other programs than the proof's.
    """
    return _each(a, [b], inputs, functions, passes, partial(_holds, proof))[0]


def _holds(proof: Proof, pair: _Pair) -> bool:
    if isinstance(pair, Unknown):
        return False
    if isinstance(pair, Proof):
        return pair == proof
    first, second, graph = pair
    if (digest(first), digest(second)) != proof.digests:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            where="replay",
            expected="the two programs of the proof",
            got="others",
            remedy="give the programs, inputs and passes that `equivalent` was given",
        )
    seed = proof.trials[0].seed // 1000 if proof.trials else 0
    again = decide(
        first, second, graph, relation=proof.relation, seed=seed,
        trials=max(1, len(proof.trials)), explains=proof.kind == "algebraic",
        solves=proof.kind == "solver",
    )  # fmt: skip
    if not isinstance(again, Proof) or again.relation > proof.relation:
        return False
    return (again.kind, again.steps, again.trials) == (proof.kind, proof.steps, proof.trials)


def _check(relation: Any, seed: Any, trials: Any, functions: Any) -> None:
    wrong = None
    if not isinstance(relation, Relation) or relation is Relation.ERROR:
        wrong = "relation", "Relation.BITS, REALS or ROUNDED", relation
    elif not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        wrong = "seed", "a whole number from 0 on", seed
    elif not isinstance(trials, int) or isinstance(trials, bool) or trials < 1:
        wrong = "trials", "a whole number from 1 on", trials
    elif not (isinstance(functions, tuple) and len(functions) == 2):
        wrong = "functions", "two names", functions
    if wrong:
        where, expected, got = wrong
        raise PycError(
            ReasonCode.BAD_ARGUMENT, where=f"equivalent: {where}", expected=expected, got=repr(got)
        )


def _each(
    a: Any, others: Sequence[Any], inputs: Sequence[Any] | None, functions: tuple[str, str],
    passes: str, ask: Callable[[_Pair], T],
) -> list[T]:  # fmt: skip
    """Return the answers to `a` with each other program, all in one graph."""
    graph = Graph()
    answers = []
    with new_context() as context, ir.Location.unknown():
        first = _module(a, inputs, context)
        for other in others:
            second = _module(other, inputs, context)
            missing = [m for m in (first, second) if isinstance(m, Unknown)]
            if not missing and passes:
                run_pipeline(second, passes)
            pair = missing[0] if missing else _pair(first, second, inputs, functions, graph)
            answers.append(ask(pair))
    return answers


def _pair(
    first: ir.Module, second: ir.Module, inputs: Sequence[Any] | None, functions: tuple[str, str],
    graph: Graph,
) -> _Pair:  # fmt: skip
    """Return both programs in one graph; a proof by ids where sizes vary; Unknown."""
    chosen = [_function(m, n) for m, n in zip((first, second), functions, strict=True)]
    try:
        sizes = sizes_of(chosen[0], inputs)
        one, other = (graph.read(f, sizes) for f in chosen)
    except NotComparable as error:
        plain = all(len(f.regions[0].blocks) == 1 for f in chosen)
        ids = [OpIds(f).graph_id for f in chosen] if plain else ["a", "b"]
        if ids[0] == ids[1]:
            types = tuple(str(t) for t in chosen[0].attributes["function_type"].value.inputs)
            return Proof(Relation.BITS, "structural", types, (ids[0], ids[1]))
        return Unknown(str(error))
    return one, other, graph


def module_of(given: Any, inputs: Sequence[Any] | None = None) -> ir.Module:
    """Return a source as a pyc module, in a context of its own.

    Raises PycError: what reading raises, and BAD_MODEL for operations that pyc cannot express.
    """
    with ir.Location.unknown(new_context()):
        found = _module(given, inputs, ir.Context.current)
    if isinstance(found, Unknown):
        raise PycError(ReasonCode.BAD_MODEL, found.reason)
    return found


def _module(given: Any, inputs: Sequence[Any] | None, context: ir.Context) -> Any:
    """Return the pyc module of a source, Unknown for one that cannot be raised to pyc ops."""
    source = Source.of(given)
    if isinstance(given, ir.Module):
        # A module of another context is read anew.
        source = Source.of(str(given))
    specs = None
    if inputs is not None and source.takes_inputs:
        specs = list(inputs)
        for i, spec in enumerate(specs):
            if isinstance(spec, TensorType):
                specs[i] = TensorSpec(spec.dtype, *spec.shape)
            elif isinstance(spec, tuple) and all(isinstance(d, int) for d in spec):
                specs[i] = TensorSpec("f32", *spec)
    loaded = source.load(specs, context)
    if loaded.module is None:
        missing = ", ".join(sorted({b.op for b in loaded.unraised})[:4])
        return Unknown(f"{loaded.name} has operations that pyc cannot express: {missing or '-'}")
    return loaded.module


def sizes_of(function: ir.Operation, inputs: Sequence[Any] | None) -> list[TensorType]:
    """Return the types of the arguments, with the sizes that `inputs` give."""
    arguments = function.regions[0].blocks[0].arguments
    types = [from_mlir(a.type, f"argument {i}") for i, a in enumerate(arguments)]
    for i, given in enumerate((inputs or ())[: len(types)]):
        shape = given if isinstance(given, tuple) else getattr(given, "shape", None)
        if shape is not None and len(shape) == types[i].rank:
            sizes = [d if isinstance(d, int) else None for d in shape]
            merged = [s if t is None else t for s, t in zip(sizes, types[i].shape, strict=True)]
            types[i] = types[i].with_shape(tuple(merged))
    return types


def _function(module: ir.Module, name: str) -> ir.Operation:
    found = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    with_body = [f for f in found if len(f.regions[0].blocks)]
    for function in with_body:
        if ir.StringAttr(function.attributes["sym_name"]).value == name:
            return function
    if len(with_body) == 1 and name == "main":
        return with_body[0]
    names = [ir.StringAttr(f.attributes["sym_name"]).value for f in with_body]
    raise PycError(
        ReasonCode.BAD_ARGUMENT,
        where="functions",
        expected=f"one of {', '.join(names) or 'none'}",
        got=repr(name),
        remedy="name the function of each side",
    )
