"""No first answer is wrong: random graphs and ONNX's node cases through whole compiles.

Each is compiled under ``max_error="rounding"``. Its first answer must be that of the reference, by
a bound that is not the contract's (the graph's own, or that of ONNX's test), and no honest program
may be taken for a wrong one.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from conftest import FULL, rounds, sample
from onnx_cases import cases, close, import_case, tensors
from random_ops import draw_graph

import pyc_mlir
from pyc_mlir import Contract, PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.pipelines.choices.contract import ROUNDING

ROUNDED = Contract(max_error=ROUNDING)
# Not the seeds of the property tests. Batches, so that an interrupted full run goes on.
FIRST_SEED, GRAPHS, BATCH = 50_000, rounds(6, 2000), 50
CHUNKS, SAMPLED_CASES = 20, 12
# What random graphs are compiled with besides; each changes the code or the plan.
WAYS: Sequence[dict[str, Any]] = (
    {},
    {"target": "cpu-avx2"},
    {"planner_mode": "memory_first"},
    {"kernels": "iree"},
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Mean of empty slice"),
    pytest.mark.filterwarnings("ignore:invalid value encountered"),
    pytest.mark.filterwarnings("ignore:overflow encountered"),
    pytest.mark.filterwarnings("ignore:divide by zero"),
]


def graph_outcome(seed: int) -> str:
    """``equal``, or ``no oracle``; raises where an answer, or a refusal, is wrong."""
    with new_context(), ir.Location.unknown():
        graph = draw_graph(Random(seed), dynamic=seed % 2 == 1)
        way = WAYS[seed // 2 % len(WAYS)]
        try:
            program = pyc_mlir.compile(graph.module(), contract=ROUNDED, **way)
        except PycError as error:
            assert error.code is ReasonCode.NO_ORACLE, f"graph {seed} {way}: {error}\n{graph}"
            return "no oracle"
        found = program(*graph.inputs)
        graph.check(found if isinstance(found, tuple) else (found,), f"graph {seed} {way}")
        assert program.stats().comparisons == 1 and program.stats().wrong_results == 0
    return "equal"


@pytest.mark.parametrize("batch", range(-(-GRAPHS // BATCH)))
@pytest.mark.full
def test_random_graphs(batch: int, record_property) -> None:
    first = FIRST_SEED + batch * BATCH
    seeds = range(first, first + min(BATCH, GRAPHS))
    counts = Counter(map(graph_outcome, seeds))
    record_property("random graphs, compiled", dict(counts))
    assert counts["equal"] >= 0.8 * len(seeds), counts


def case_outcome(case: Any, context: ir.Context) -> str:
    """``equal``, or why there is no answer: its reason code, or that of the case."""
    found = tensors(case)
    if isinstance(found, str):
        return found
    model, inputs, wanted = found
    try:
        module, rest = import_case(model, inputs, context)
        program = pyc_mlir.compile(module, contract=ROUNDED)
    except PycError as error:
        assert error.code is not ReasonCode.WRONG_RESULT, f"{case.name}: {error}"
        return error.code.name
    answer = program(*rest)
    answers = answer if isinstance(answer, tuple) else (answer,)
    for got, right in zip(answers, wanted, strict=True):
        assert close(np.asarray(got), right, case), f"{case.name}: {got}, not {right}"
    assert program.stats().wrong_results == 0
    return "equal"


@pytest.mark.parametrize("chunk", range(CHUNKS if FULL else 1))
@pytest.mark.full
def test_onnx_node_cases(chunk: int, record_property) -> None:
    """Every case that is imported; what is not has a test of its own (test_onnx_nodes.py)."""
    here = cases()[chunk::CHUNKS] if FULL else sample(cases(), SAMPLED_CASES)
    context = new_context()
    counts = Counter(case_outcome(case, context) for case in here)
    record_property("onnx node cases, compiled", dict(counts))
    assert counts["equal"] >= len(here) // 3, counts


@pytest.mark.parametrize(
    ("op", "x", "w", "out"),
    [
        ("matmul", "7x?x0xf32", "0x2xf32", "7x?x2xf32"),
        ("conv2d", "?x0x4x4xf32", "2x0x1x1xf32", "?x2x4x4xf32"),
        ("grouped", "?x0x4x4xf32", "2x0x1x1xf32", "?x2x4x4xf32"),
    ],
)
@pytest.mark.full
def test_sums_of_nothing_are_zero(op: str, x: str, w: str, out: str):
    """IREE divides by a depth of 0 where another dimension is dynamic, which ends the process."""
    name = '"pyc.conv2d"(%x, %w) {groups = 2 : i64}' if op == "grouped" else f'"pyc.{op}"(%x, %w)'
    text = f"""func.func @main(%x: tensor<{x}>, %w: tensor<{w}>) -> tensor<{out}> {{
      %0 = {name} : (tensor<{x}>, tensor<{w}>) -> tensor<{out}>
      return %0 : tensor<{out}>
    }}"""
    shapes = [tuple(3 if d == "?" else int(d) for d in t.split("x")[:-1]) for t in (x, w, out)]
    for kernels in ("all", "iree"):
        program = pyc_mlir.compile(text, kernels=kernels)
        found = program(*(np.ones(shape, np.float32) for shape in shapes[:2]))
        np.testing.assert_array_equal(found, np.zeros(shapes[2], np.float32))
