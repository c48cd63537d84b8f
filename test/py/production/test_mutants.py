"""Every injected miscompile is found before an answer leaves: by samples, or by the first call.

All mutants are computed by the numpy references, as a compiler without further faults would; some
of them also go through the whole compile, whose module is mutated behind the oracle's back.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
import pytest
from conftest import FULL, sample
from mutants import OPERATORS, Mutant, differs, mutants_of
from op_cases import CASES, inputs
from op_modules import case_module
from random_ops import draw_graph
from scenarios import count_of

import pyc_mlir
from pyc_mlir import lowering
from pyc_mlir.dialects.bindings import ir
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.interpreter import entry_function, interpret
from pyc_mlir.dialects.pyc import new_context
from pyc_mlir.oracles import PycOracle, make_samples
from pyc_mlir.pipelines.contract import ROUNDING, Contract
from pyc_mlir.samples import Expected, compare, make_inputs
from pyc_mlir.signatures import signature_of

# Rows of the table of cases and seeds of random graphs that one test takes, and how many tests.
CASES_AT_ONCE, GRAPHS_AT_ONCE = 48, 8
BATCHES = count_of("injected miscompiles, every mutation operator over the ops")
COMPILED_BATCHES = 25 if FULL else 1
COMPILED = count_of("injected miscompiles through whole compiles") // COMPILED_BATCHES

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
Question = tuple[Sequence[Expected], Sequence[np.ndarray]]


def questions(code: bytes, arrays: Sequence[np.ndarray]) -> list[Question]:
    """What a program is asked before an answer leaves: its samples, then the first call.

    Nothing where there is no oracle, since such a compile is refused.
    """
    oracle, signature = PycOracle(code), signature_of(entry_function(ir.Module.parse(code)))
    try:
        samples = make_samples(oracle, signature).samples
    except PycError as error:
        assert error.code is ReasonCode.NO_ORACLE
        return []
    asked = [(s.outputs, make_inputs(signature, s.seed, s.sizes)) for s in samples]
    return [*asked, (oracle.expect(arrays), arrays)]


def fate(code: bytes, mutant: Mutant, asked: Sequence[Question]) -> str:
    """``caught``, ``missed``, ``within rounding``, or why there was nothing to catch."""
    module = mutated(code, mutant)
    if module is None:
        return "illegal"
    changed = False
    for expected, given in asked:
        got = computed(module, given)
        if got is None:
            return "refused"
        if compare(got, expected).wrong:
            return "caught"
        changed |= differs(got, [e.value for e in expected])
    coarse = any(name in str(module) for name in COARSE)
    return "equal" if not changed else "within rounding" if coarse else "missed"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_mutant_that_changes_a_value_is_found(batch: int):
    fates: Counter[str] = Counter()
    missed = []
    with new_context(), ir.Location.unknown():
        for name, module, arrays in programs(batch):
            code = lowering.bytecode_of(module)
            if not all(o.value.size for o in PycOracle(code).expect(arrays)):
                continue
            asked = questions(code, arrays)
            for mutant in mutants_of(module):
                found = fate(code, mutant, asked)
                fates[found] += 1
                missed += [f"{name}: {mutant}"] if found == "missed" else []
    assert not missed, "\n".join(missed)
    assert fates["caught"] > 2 and fates["within rounding"] <= fates["caught"] / 20


def test_every_operator_makes_mutants_of_random_graphs():
    made: Counter[str] = Counter()
    for seed in range(24):
        with new_context(), ir.Location.unknown():
            graph = draw_graph(Random(seed), dynamic=False)
            made.update(m.operator for m in mutants_of(graph.module()))
    assert set(made) >= set(OPERATORS) - {"lost cast"}


def test_lost_casts_are_found():
    """Rounding to a narrow type and back, and a fraction that is cut off."""
    text = """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
      %0 = "pyc.cast"(%x) {{dtype = {0}}} : (tensor<8xf32>) -> tensor<8x{0}>
      %1 = "pyc.cast"(%0) {{dtype = f32}} : (tensor<8x{0}>) -> tensor<8xf32>
      return %1 : tensor<8xf32>
    }}"""
    arrays = [np.linspace(-3.3, 3.3, 8, dtype=np.float32)]
    for dtype in ("f16", "bf16", "i32", "i8"):
        with new_context() as context, ir.Location.unknown():
            module = ir.Module.parse(text.format(dtype), context)
            found = [m for m in mutants_of(module) if m.operator == "lost cast"]
            assert found
            code = lowering.bytecode_of(module)
            asked = questions(code, arrays)
            assert [fate(code, m, asked) for m in found] == ["caught"], dtype


def chosen_mutants(batch: int) -> list[tuple[int, Mutant]]:
    """Mutants of random graphs that change a value, by the graph's seed; kinds take turns."""
    by_kind: dict[str, list[tuple[int, Mutant]]] = {name: [] for name in OPERATORS}
    with new_context(), ir.Location.unknown():
        for seed in range(batch * 2 * GRAPHS_AT_ONCE, (batch + 1) * 2 * GRAPHS_AT_ONCE):
            graph = draw_graph(Random(seed), dynamic=False)
            module = graph.module()
            code = lowering.bytecode_of(module)
            ways, asked = mutants_of(module), questions(code, graph.inputs)
            for mutant in Random(seed).sample(ways, min(len(ways), 6)):
                if fate(code, mutant, asked) == "caught":
                    by_kind[mutant.operator].append((seed, mutant))
    turns = [[kind[i] for kind in by_kind.values() if i < len(kind)] for i in range(COMPILED)]
    return [found for turn in turns for found in turn][:COMPILED]


@pytest.mark.parametrize("batch", range(COMPILED_BATCHES))
def test_compiled_mutants_give_no_answer(monkeypatch: pytest.MonkeyPatch, batch: int):
    honest = lowering._optimize
    chosen = chosen_mutants(batch)
    assert len(chosen) >= COMPILED // 2
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
