"""Properties of every program: random graphs through text, passes, linalg and IREE.

Graphs of consecutive seeds, the odd ones with dynamic dimensions; a full run takes more of them.
Whoever runs a graph, its results are those of the numpy references.
"""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from compiled import compile_and_load, run_function
from conftest import FULL
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Graph
from random_ops import draw_graph

from pyc_mlir.artifact.test_vectors import ExpectedResult, compare
from pyc_mlir.compilation.lower import TO_LINALG
from pyc_mlir.compilation.options import HIGH_LEVEL
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.numerics.uncertain import interpret_uncertain
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.frontends.signatures import shapes_text
from pyc_mlir.pipelines.choices.choices import Choices, Recipe
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.linalg.convert_to_linalg import require_no_pyc
from pyc_mlir.pipelines.text.module_text import roundtrip_difference
from pyc_mlir.runtime.executable import Executable

BATCH = 32
BATCHES = 25 if FULL else 1
PASSES = ("pyc-canonicalize", "pyc-infer-shapes", "pyc-decompose", "pyc-fuse", HIGH_LEVEL)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Mean of empty slice"),
    pytest.mark.filterwarnings("ignore:invalid value encountered"),
    pytest.mark.filterwarnings("ignore:overflow encountered in cast"),
]


def graph_of(seed: int) -> Graph:
    return draw_graph(Random(seed), dynamic=seed % 2 == 1)


@pytest.fixture(autouse=True)
def context():
    with new_context() as made, ir.Location.unknown():
        yield made


random_graphs = st.builds(draw_graph, st.randoms(use_true_random=False), dynamic=st.booleans())


@given(random_graphs)
def test_builders_and_verifiers_agree_with_the_references(graph: Graph):
    with new_context(), ir.Location.unknown():
        module = graph.module()
        assert module.operation.verify()
        graph.check(interpret(module, graph.inputs), "interpret")


@given(random_graphs)
@pytest.mark.full
def test_text_and_bytecode_round_trips(graph: Graph):
    with new_context(), ir.Location.unknown():
        assert roundtrip_difference(graph.module()) == ""


@pytest.mark.parametrize("passes", PASSES)
def test_passes_preserve_the_meaning(passes: str):
    for seed in range(BATCH * BATCHES):
        graph = graph_of(seed)
        module = graph.module()
        run_pipeline(module, passes, PassContext())
        graph.check(interpret(module, graph.inputs), f"seed {seed}: {passes}")


def test_shapes_of_the_arguments_make_every_shape_known():
    for seed in range(1, BATCH * BATCHES, 2):
        graph = graph_of(seed)
        module = graph.module()
        run_pipeline(
            module, f"pyc-infer-shapes{{shapes={shapes_text(graph.inputs)}}}", PassContext()
        )
        assert "?" not in str(module), f"seed {seed}"
        graph.check(interpret(module, graph.inputs), f"seed {seed}")


@pytest.mark.parametrize("passes", ["pyc-canonicalize", "pyc-infer-shapes", "pyc-decompose"])
def test_a_second_run_changes_nothing(passes: str):
    for seed in range(BATCH * BATCHES):
        module = graph_of(seed).module()
        run_pipeline(module, passes, PassContext())
        once = str(module)
        run_pipeline(module, passes, PassContext())
        assert str(module) == once, f"seed {seed}"


def test_logs_are_deterministic_and_replay():
    for seed in range(BATCH * BATCHES):
        first, second, replay = Choices(), Choices(), Choices()
        made = [graph_of(seed).module() for _ in range(3)]
        run_pipeline(made[0], HIGH_LEVEL, PassContext(choices=first))
        run_pipeline(made[1], HIGH_LEVEL, PassContext(choices=second))
        assert first.log == second.log
        replay.recipe = Recipe.from_log(first.log)
        run_pipeline(made[2], HIGH_LEVEL, PassContext(choices=replay))
        assert str(made[0]) == str(made[1]) == str(made[2]), f"seed {seed}"


@pytest.mark.parametrize("passes", ["", HIGH_LEVEL + ","], ids=["as it is", "passes"])
def test_linalg_verifies_and_holds_no_pyc_op(passes: str):
    for seed in range(BATCH * BATCHES):
        module = graph_of(seed).module()
        run_pipeline(module, passes + TO_LINALG, PassContext())
        assert module.operation.verify(), f"seed {seed}"
        require_no_pyc(module)


def run_together(graphs: Sequence[Graph], passes: str) -> list[list[np.ndarray]]:
    """The results of all graphs, compiled as one module."""
    module = ir.Module.create()
    for i, graph in enumerate(graphs):
        graph.add_to(module, f"f{i}")
    if passes:
        run_pipeline(module, passes, PassContext())
    executable = compile_and_load(module)
    return [run(executable, f"f{i}", graph, graph.inputs) for i, graph in enumerate(graphs)]


def run(
    executable: Executable, name: str, graph: Graph, inputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    return run_function(executable, name, inputs, [v.declared for v in graph.returned])


@pytest.mark.parametrize("passes", ["", HIGH_LEVEL], ids=["as it is", "passes"])
@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.full
def test_compiled_programs_compute_the_reference(batch: int, passes: str):
    first = BATCH * batch
    graphs = [graph_of(seed) for seed in range(first, first + BATCH)]
    for i, got in enumerate(run_together(graphs, passes)):
        graphs[i].check(got, f"seed {first + i}")
        known = interpret_uncertain(graphs[i].module(), graphs[i].inputs)
        expected = [ExpectedResult(u.value, u.tolerance) for u in known]
        assert not compare(got, expected).wrong, f"seed {first + i}"


def test_a_batch_holds_most_ops_and_every_kind_of_dimension():
    graphs = [graph_of(seed) for seed in range(2 * BATCH)]
    # Products of quantized tensors and random numbers have random tests of their own.
    apart = ("integer_", "block_", "threefry", "philox", "xor")
    drawn = [name for name in OPS if not name.startswith(apart)]
    assert len({node.op for graph in graphs for node in graph.nodes}) > 0.8 * len(drawn)
    assert sum(any(any(d) for d in graph.dims) for graph in graphs) > BATCH / 4
    assert sum(len(graph.results) > 1 for graph in graphs) > BATCH / 4
    assert len({dtype for graph in graphs for dtype in (v.dtype for v in graph.values)}) == 8


def disagreeing(graph: Graph) -> list[np.ndarray] | None:
    """The inputs with one named dimension of one argument grown, or None if it has no second."""
    places = [(a, i, n) for a, names in enumerate(graph.dims) for i, n in enumerate(names) if n]
    names = [n for _, _, n in places]
    for argument, axis, name in places:
        if names.count(name) > 1:
            inputs = list(graph.inputs)
            inputs[argument] = np.repeat(inputs[argument], 2, axis)
            return inputs
    return None


@pytest.mark.full
def test_named_dimensions_that_disagree_are_refused_at_run_time():
    seeds = [s for s in range(1, 12 * BATCH, 2) if disagreeing(graph_of(s)) is not None]
    seeds = seeds[: BATCH // 2]
    assert len(seeds) > 8
    graphs = [graph_of(s) for s in seeds]
    module = ir.Module.create()
    for i, graph in enumerate(graphs):
        graph.add_to(module, f"f{i}")
    executable = compile_and_load(module)
    for i, graph in enumerate(graphs):
        inputs = disagreeing(graph)
        assert inputs is not None
        with pytest.raises(PycError, match="dimension `n") as caught:
            run(executable, f"f{i}", graph, inputs)
        assert caught.value.code is ReasonCode.DIMENSION_MISMATCH
        graph.check(run(executable, f"f{i}", graph, graph.inputs), f"seed {seeds[i]}")
