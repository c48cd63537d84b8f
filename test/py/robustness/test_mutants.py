"""Every injected miscompile is found before an answer leaves: by samples, or by the first call.

All mutants are computed by the numpy references, as a compiler without further faults would; some
of them also go through the whole compile, whose module is mutated behind the oracle's back.

An operator names a kind of fault and lists the ways to make it at one op; a `Mutant` is one of
these, addressed by the op's position, so that it can be made in any copy of the module.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from random import Random
from typing import Any

import numpy as np
import pytest
from conftest import FULL, rounds, sample
from op_cases import CASES, Case, Operand, inputs
from op_cases import case as call
from op_modules import case_module, module_of
from random_ops import draw_graph

import pyc_mlir
from pyc_mlir import Contract, PycError, ReasonCode, interpret
from pyc_mlir.artifact.test_vectors import ExpectedResult, compare, make_inputs
from pyc_mlir.compilation import lower as lowering
from pyc_mlir.compilation.references import PycOracle, make_samples
from pyc_mlir.dialects.ir.attributes import array_of, encode, params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.numerics.rounding import Uncertain, roundoff
from pyc_mlir.dialects.numerics.uncertain import interpret_uncertain
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.ops.movement import END, START
from pyc_mlir.dialects.types import BOOL, is_float
from pyc_mlir.frontends.signatures import signature_of
from pyc_mlir.pipelines.choices.contract import ROUNDING

Apply = Callable[[], None]
# Programs that differ by so many roundings only are equal.
ROUNDINGS = 16
# Of these the order of operands is no part of the meaning; of all others it is.
COMMUTATIVE = ("add", "mul", "maximum", "minimum", "and", "or", "xor")


@dataclass(frozen=True)
class Mutant:
    """The `way`-th fault of a kind at the op of this position."""

    operator: str
    position: int
    way: int

    def apply(self, module: ir.Module) -> None:
        """Make the fault in `module`."""
        with module.context, ir.Location.unknown():
            list(OPERATORS[self.operator](ops_in(module)[self.position]))[self.way]()


def ops_in(module: ir.Module) -> list[ir.Operation]:
    """The pyc ops of the entry function, in order."""
    block = entry_function(module).regions[0].blocks[0]
    return [o.operation for o in block.operations if o.operation.name.startswith("pyc.")]


def mutants_of(module: ir.Module) -> list[Mutant]:
    """Every fault that can be made, whether it verifies and matters or not."""
    with module.context, ir.Location.unknown():
        return [
            Mutant(name, position, way)
            for position, op in enumerate(ops_in(module))
            for name, ways in OPERATORS.items()
            for way, _ in enumerate(ways(op))
        ]


def _name(op: ir.Operation) -> str:
    return op.name.removeprefix("pyc.")


def _set(op: ir.Operation, name: str, value: Any) -> Apply:
    kind = next(p.kind for p in OPS[_name(op)].params if p.name == name)

    def apply() -> None:
        op.attributes[name] = encode(value, kind)

    return apply


def _both(first: Apply, second: Apply) -> None:
    first()
    second()


def _params(op: ir.Operation) -> dict[str, Any]:
    return OPS[_name(op)].bind(params_of(OPS[_name(op)], op))


def wrong_constant(op: ir.Operation) -> Iterator[Apply]:
    """One element of a constant, a fill value or a scale."""
    params = _params(op)
    if op.name == "pyc.constant":
        value = array_of(op.attributes["value"])
        if value.size:
            for place in {0, value.size // 2, value.size - 1}:
                wrong = value.copy()
                flat = wrong.reshape(-1)
                flat[place] = ~flat[place] if value.dtype == BOOL else flat[place] + 1
                yield _set(op, "value", wrong)
    for name in ("value", "scale"):
        if isinstance(params.get(name), float) and np.isfinite(params[name]):
            yield _set(op, name, params[name] + 1.0)


def swapped_operands(op: ir.Operation) -> Iterator[Apply]:
    """Two operands of one type."""
    if _name(op) in COMMUTATIVE:
        return
    for i, j in combinations(range(len(op.operands)), 2):
        if op.operands[i].type == op.operands[j].type:

            def apply(i: int = i, j: int = j) -> None:
                op.operands[i], op.operands[j] = op.operands[j], op.operands[i]

            yield apply


def dropped_epilogue(op: ir.Operation) -> Iterator[Apply]:
    """The op is left out: an operand takes the place of its result."""
    for i, operand in enumerate(op.operands):
        if operand.type == op.result.type:
            yield lambda i=i: op.result.replace_all_uses_with(op.operands[i])


def off_by_one(op: ir.Operation) -> Iterator[Apply]:
    """A window that begins one element too late or too early."""
    params = _params(op)
    for first, last, sign in (("starts", "stops", 1), ("low", "high", -1)):
        if not isinstance(params.get(first), tuple):
            continue
        for axis in range(len(params[first])):
            for step in (1, -1):
                starts, stops = list(params[first]), list(params[last])
                if {starts[axis], stops[axis]} & {START, END}:
                    continue
                starts[axis] += step
                stops[axis] += sign * step

                yield partial(_both, _set(op, first, tuple(starts)), _set(op, last, tuple(stops)))
    if "pads" in params:
        top, left, bottom, right = params["pads"]
        yield _set(op, "pads", (top + 1, left, bottom - 1, right))
        yield _set(op, "pads", (top, left + 1, bottom, right - 1))


def wrong_axis(op: ir.Operation) -> Iterator[Apply]:
    """Another axis, or another order of dimensions; those of other shapes do not verify."""
    params = _params(op)
    rank = ir.RankedTensorType(op.operands[0].type).rank if len(op.operands) else 0
    if isinstance(params.get("axis"), int):
        yield from (_set(op, "axis", a) for a in range(rank) if a != params["axis"] % max(rank, 1))
    if isinstance(params.get("axes"), tuple):
        now = [a % max(rank, 1) for a in params["axes"]]
        for i, other in product(range(len(now)), sorted(set(range(rank)) - set(now))):
            yield _set(op, "axes", tuple(sorted((*now[:i], other, *now[i + 1 :]))))
    if isinstance(params.get("permutation"), tuple):
        order = params["permutation"]
        for i in range(len(order) - 1):
            wrong = list(order)
            wrong[i], wrong[i + 1] = wrong[i + 1], wrong[i]
            yield _set(op, "permutation", tuple(wrong))


def lost_cast(op: ir.Operation) -> Iterator[Apply]:
    """The first of two conversions in a row: as if the type between had never been."""
    if op.name != "pyc.cast":
        return
    source = op.operands[0].owner
    if isinstance(source, ir.Block):
        return
    source = source if isinstance(source, ir.Operation) else source.operation
    if source.name != "pyc.cast":
        return
    if source.operands[0].type == op.result.type:
        yield lambda: op.result.replace_all_uses_with(source.operands[0])
    else:
        yield lambda: op.operands.__setitem__(0, source.operands[0])


def wrong_op(op: ir.Operation) -> Iterator[Apply]:
    """A predicate, a mask or a window that means something else."""
    params = _params(op)
    if "predicate" in params:
        wrong = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq"}
        yield _set(op, "predicate", wrong[params["predicate"]])
    for name in ("is_causal", "count_include_pad"):
        if name in params:
            yield _set(op, name, not params[name])


OPERATORS: dict[str, Callable[[ir.Operation], Iterator[Apply]]] = {
    "wrong constant": wrong_constant,
    "swapped operands": swapped_operands,
    "dropped epilogue": dropped_epilogue,
    "off by one": off_by_one,
    "wrong axis": wrong_axis,
    "lost cast": lost_cast,
    "wrong op": wrong_op,
}


def differs(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    """True if any value is another one, by more than a few roundings of the result's scale.

    Programs that are equal but for rounding are no miscompiles: a normalization after a shift, say.
    """
    for a, b in zip(first, second, strict=True):
        if a.shape != b.shape:
            return True
        if not is_float(a.dtype):
            if not (a == b).all():
                return True
            continue
        wide, other = a.astype(np.float64), b.astype(np.float64)
        scale = np.abs(other).max(where=np.isfinite(other), initial=1.0)
        near = np.abs(wide - other) <= ROUNDINGS * roundoff(a.dtype) * scale
        if not (near | (wide == other) | (np.isnan(wide) & np.isnan(other))).all():
            return True
    return False


# Rows of the table of cases and seeds of random graphs that one test takes, and how many tests.
CASES_AT_ONCE, GRAPHS_AT_ONCE = 48, 8
BATCHES = rounds(1, 60)
COMPILED_BATCHES = 25 if FULL else 1
COMPILED = rounds(5, 300) // COMPILED_BATCHES

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def programs(batch: int) -> Iterator[tuple[str, ir.Module, list[np.ndarray]]]:
    """Cases of the ops and random graphs, each with inputs; a context must be current."""
    cases = CASES if FULL else sample(CASES, CASES_AT_ONCE, seed=3)
    for case in cases[batch * CASES_AT_ONCE : (batch + 1) * CASES_AT_ONCE]:
        yield str(case), case_module(case, ir.Context.current), inputs(case, seed=1)
    for seed in range(batch * GRAPHS_AT_ONCE, (batch + 1) * GRAPHS_AT_ONCE):
        graph = draw_graph(Random(seed), dynamic=seed % 2 == 1)
        yield f"graph {seed}", graph.module(), graph.inputs


def mutated(code: bytes, mutant: Mutant) -> ir.Module | None:
    """The module with the fault, or None if that is no program."""
    module = ir.Module.parse(code)
    try:
        mutant.apply(module)
        return module if module.operation.verify() else None
    except (ir.MLIRError, PycError, ValueError, IndexError):
        return None


def computed(module: ir.Module, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """What a module computes; None if it refuses the arrays, which is no answer."""
    try:
        return interpret(module, arrays)
    except (PycError, ValueError, IndexError):
        return None


# Where roundings are coarse or decide: a small fault may be no larger than what they explain.
COARSE = ("f16", "pyc.compare", "pyc.argmax", "pyc.floor", "pyc.ceil", "pyc.round", "pyc.cast")


@dataclass(frozen=True)
class Question:
    """What a program is asked, what is expected of it, and what the reference itself allows."""

    arrays: Sequence[np.ndarray]
    expected: Sequence[ExpectedResult]
    allowed: Sequence[Uncertain]

    def contradicts(self, got: Sequence[np.ndarray]) -> bool:
        """Whether any element is further away than roundings explain; not the comparison's code."""
        return any(_contradicts(a, u) for a, u in zip(got, self.allowed, strict=True))


def _contradicts(got: np.ndarray, allowed: Uncertain) -> bool:
    if got.shape != allowed.value.shape:
        return True
    # A tolerance is kept as f32, rounded up.
    limit = allowed.tolerance * (1 + 2.0**-22) + float(np.finfo(np.float32).smallest_subnormal)
    a, b = got.astype(np.float64), allowed.value.astype(np.float64)
    same = (got == allowed.value) | (np.isnan(a) & np.isnan(b))
    explained = (a != b) & (np.abs(a - b) <= limit)
    return bool((~same & ~explained & np.isfinite(limit)).any())


def questions(code: bytes, arrays: Sequence[np.ndarray]) -> list[Question]:
    """What a program is asked before an answer leaves: its samples, then the first call.

    Nothing where there is no oracle, since such a compile is refused.
    """
    oracle, module = PycOracle(code), ir.Module.parse(code)
    signature = signature_of(entry_function(module))
    try:
        samples = make_samples(oracle, signature).samples
    except PycError as error:
        assert error.code is ReasonCode.NO_ORACLE
        return []
    given = [*(make_inputs(signature, s.seed, s.sizes) for s in samples), arrays]
    expected = [*(s.outputs for s in samples), oracle.expect(arrays)]
    pairs = zip(given, expected, strict=True)
    return [Question(a, e, interpret_uncertain(module, a)) for a, e in pairs]


def fate(code: bytes, mutant: Mutant, requested: Sequence[Question]) -> str:
    """``caught``, ``missed``, ``within rounding``, or why there was nothing to catch."""
    module = mutated(code, mutant)
    if module is None:
        return "illegal"
    changed = contradicted = False
    for question in requested:
        got = computed(module, question.arrays)
        if got is None:
            return "refused"
        if compare(got, question.expected).wrong:
            return "caught"
        changed |= differs(got, [u.value for u in question.allowed])
        contradicted |= question.contradicts(got)
    coarse = any(name in str(module) for name in COARSE)
    if contradicted or (changed and not coarse):
        return "missed"
    return "within rounding" if changed else "equal"


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.full
def test_every_mutant_that_changes_a_value_is_found(batch: int):
    fates: Counter[str] = Counter()
    missed = []
    with new_context(), ir.Location.unknown():
        for name, module, arrays in programs(batch):
            code = lowering.bytecode_of(module)
            if not all(o.value.size for o in PycOracle(code).expect(arrays)):
                continue
            requested = questions(code, arrays)
            for mutant in mutants_of(module):
                found = fate(code, mutant, requested)
                fates[found] += 1
                missed += [f"{name}: {mutant}"] if found == "missed" else []
    assert not missed, "\n".join(missed)
    assert fates["caught"] > 2


def test_every_operator_makes_mutants_of_random_graphs():
    made: Counter[str] = Counter()
    for seed in range(24):
        with new_context(), ir.Location.unknown():
            graph = draw_graph(Random(seed), dynamic=False)
            made.update(m.operator for m in mutants_of(graph.module()))
    assert set(made) >= set(OPERATORS) - {"lost cast"}


def test_the_batches_of_a_full_run_take_every_case():
    assert len(CASES) <= 60 * CASES_AT_ONCE


def _square(op: str, *dtypes: str, shape: tuple[int, ...] = (3, 3), **params: Any) -> Case:
    """A case whose operands have one shape."""
    return call(op, *(Operand(dtype, shape) for dtype in dtypes), **params)


# Faults that the shapes of the table of cases leave no room for.
ROOMY: tuple[tuple[str, Case], ...] = (
    ("swapped operands", _square("matmul", "f32", "f32")),
    ("swapped operands", _square("concat", "i32", "i32", axis=1)),
    ("swapped operands", _square("clip", "f32", "f32", "f32")),
    ("swapped operands", _square("conv2d", "f32", "f32", shape=(3, 3, 3, 3))),
    (
        "swapped operands",
        call("integer_matmul", Operand("i8", (4, 4)), Operand("i8", (4, 4)), Operand("i32", ())),
    ),
    (
        "swapped operands",
        call("integer_conv2d", *[Operand("i8", (3, 3, 3, 3))] * 2, Operand("i32", ())),
    ),
    (
        "swapped operands",
        call(
            "block_matmul",
            Operand("f32", (5, 1)),
            Operand("ui8", (5, 1, 1), "bytes"),
            Operand("f32", (5, 1)),
            Operand("ui8", (5, 1), "bytes"),
            bits=4,
        ),
    ),
    ("swapped operands", _square("rmsnorm", "f32", "f32", shape=(8,), axis=0)),
    ("swapped operands", _square("gather", "i64", "i64", shape=(4, 4))),
    ("swapped operands", call("broadcast_to", *[Operand("i64", (2, 3))] * 2, shape=(-1, -1))),
    *(
        ("wrong axis", call(f"reduce_{kind}", Operand("f32", (3, 3, 3), values), axes=(0, 1)))
        for kind, values in (("sum", "plain"), ("prod", "factor"), ("max", "plain"))
    ),
    ("wrong axis", _square("reduce_min", "f32", shape=(4, 4, 4), axes=(0, 2))),
    ("wrong axis", _square("reduce_mean", "f16", shape=(3, 3, 3), axes=(1, 2))),
)


@pytest.mark.parametrize(("operator", "case"), ROOMY, ids=str)
def test_faults_that_need_equal_shapes_are_found(operator: str, case: Case):
    with new_context() as context, ir.Location.unknown():
        module = case_module(case, context)
        code = lowering.bytecode_of(module)
        requested = questions(code, inputs(case, seed=1))
        fates = {fate(code, m, requested) for m in mutants_of(module) if m.operator == operator}
    assert "caught" in fates and fates <= {"caught", "equal"}


def test_every_op_whose_operands_have_an_order_is_given_swapped_ones():
    cases = (*CASES, *(c for _, c in ROOMY))
    able = {c.op for c in cases if any(a == b for a, b in combinations(c.types, 2))}
    own = {n: d for n, d in OPS.items() if d.__module__.startswith("pyc_mlir.")}
    several = {n for n, d in own.items() if len(d.operands) + (d.optional is not None) > 1}
    # Boxes and groups are never of one type.
    assert several - {*COMMUTATIVE, "suppress"} <= able


def there_and_back(case: Case, context: ir.Context) -> ir.Module:
    """A conversion, and the one back to its operand's type."""
    source = case.operands[0].type.dtype

    def body(b: IRBuilder, x: ir.Value) -> ir.Value:
        return b.build(OPS["cast"], b.build(OPS["cast"], x, **case.keywords), dtype=source)

    return module_of(body, case.types, context)


@pytest.mark.parametrize("case", sample([c for c in CASES if c.op == "cast"], 24), ids=str)
@pytest.mark.full
def test_lost_casts_are_found(case):
    """Rounding to a narrow type and back, fractions and bits that are cut off, NaN made 0."""
    with new_context() as context, ir.Location.unknown():
        module = there_and_back(case, context)
        code = lowering.bytecode_of(module)
        requested = questions(code, inputs(case))
        (lost,) = [m for m in mutants_of(module) if m.operator == "lost cast"]
        found = fate(code, lost, requested)
    pairs = [(q.arrays[0], q.expected[0].value) for q in requested]
    equal = all(np.array_equal(a, b, equal_nan=is_float(a.dtype)) for a, b in pairs)
    assert found == ("equal" if equal else "caught")


def chosen_mutants(batch: int) -> list[tuple[int, Mutant]]:
    """Mutants of random graphs that change a value, by the graph's seed; kinds take turns."""
    by_kind: dict[str, list[tuple[int, Mutant]]] = {name: [] for name in OPERATORS}
    with new_context(), ir.Location.unknown():
        for seed in range(batch * 2 * GRAPHS_AT_ONCE, (batch + 1) * 2 * GRAPHS_AT_ONCE):
            graph = draw_graph(Random(seed), dynamic=False)
            module = graph.module()
            code = lowering.bytecode_of(module)
            ways, requested = mutants_of(module), questions(code, graph.inputs)
            for mutant in Random(seed).sample(ways, min(len(ways), 6)):
                if fate(code, mutant, requested) == "caught":
                    by_kind[mutant.operator].append((seed, mutant))
    turns = [[kind[i] for kind in by_kind.values() if i < len(kind)] for i in range(COMPILED)]
    return [found for turn in turns for found in turn][:COMPILED]


@pytest.mark.parametrize("batch", range(COMPILED_BATCHES))
@pytest.mark.full
def test_compiled_mutants_give_no_answer(monkeypatch: pytest.MonkeyPatch, batch: int):
    honest = lowering._optimize
    chosen = chosen_mutants(batch)
    assert len(chosen) == COMPILED
    for seed, mutant in chosen:

        def faulty(module, options, choices, mutant=mutant):
            mutant.apply(module)
            honest(module, options, choices)

        with new_context(), ir.Location.unknown():
            graph = draw_graph(Random(seed), dynamic=False)
            monkeypatch.setattr(lowering, "_optimize", faulty)
            with pytest.raises(PycError) as caught:
                contract = Contract(max_error=ROUNDING)
                program = pyc_mlir.compile(graph.module(), contract=contract)
                program(*graph.inputs)
            assert caught.value.code is ReasonCode.WRONG_RESULT, f"graph {seed}: {mutant}"


@pytest.mark.full
def test_honest_programs_pass():
    for seed in range(0, 80 if FULL else 3):
        with new_context(), ir.Location.unknown():
            graph = draw_graph(Random(seed), dynamic=seed % 2 == 1)
            try:
                program = pyc_mlir.compile(graph.module(), contract=Contract(max_error=ROUNDING))
            except PycError as error:
                assert error.code is ReasonCode.NO_ORACLE, f"graph {seed}"
                continue
            program(*graph.inputs)
            assert program.stats().wrong_results == 0 and program.stats().comparisons == 1
