"""pyc-plan-memory and pyc-remat: plans are legal, keep what is computed, and keep budgets."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import get_args, get_type_hints

import numpy as np
import pytest
from conftest import sample
from memory_programs import PROGRAMS, Program, W, X, cheap_again
from op_modules import ops_of
from random_ops import draw_graph

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function, interpret
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import DTYPES, tensor
from pyc_mlir.pipelines.choices.choices import Choices, Recipe
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.memory.plan_memory import (
    AS_WRITTEN,
    DEFAULT_SLOWDOWN,
    PLANNED,
    PlanMemory,
    Remat,
)
from pyc_mlir.pipelines.memory.planner.planner import MODES
from pyc_mlir.pipelines.memory.planner.problem import Expansion
from pyc_mlir.pipelines.memory.planner.remat import peak_of
from pyc_mlir.pipelines.memory.pyc_problem import read_function

CHEAP = PROGRAMS["cheap again"]


@pytest.fixture(autouse=True)
def context():
    with new_context() as made, ir.Location.unknown():
        yield made


def prepared(program: Program) -> ir.Module:
    module = program.module()
    if program.first:
        run_pipeline(module, program.first)
    return module


def same_bits(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> bool:
    return [a.tobytes() for a in got] == [b.tobytes() for b in want]


def integer(op: ir.Operation, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value


def runs(module: ir.Module) -> list[ir.Operation]:
    """What a plan orders: all ops but constants and the return."""
    return [op for op in ops_of(module)[:-1] if op.name != "pyc.constant"]


def captured(op: ir.Operation) -> list[ir.Value]:
    inner = [o.operation for r in op.regions for b in r.blocks for o in b.operations]
    return [*op.operands, *(v for o in inner for v in captured(o))]


def check_attributes(module: ir.Module) -> None:
    """Nothing that is alive is overwritten, straight from what the ops say of themselves."""
    function, ops = entry_function(module), runs(module)
    arena = integer(function, "pyc.arena_bytes")
    assert integer(function, "pyc.lower_bound") <= arena
    placed = []
    for at, op in enumerate(ops):
        if "pyc.offset" not in op.attributes:
            continue
        first, last = ir.DenseI64ArrayAttr(op.attributes["pyc.live"])
        readers = [i for i, other in enumerate(ops) if op.results[0] in captured(other)]
        assert (first, last) == (at, max([at, *readers])), op
        offset, size = integer(op, "pyc.offset"), from_mlir(op.results[0].type).nbytes
        assert offset % 64 == 0 and offset + size <= arena
        placed.append((first, last, offset, offset + size, integer(op, "pyc.slot")))
    for i, a in enumerate(placed):
        for b in placed[:i]:
            assert (a[2] == b[2]) == (a[4] == b[4])
            if a[2] < b[3] and b[2] < a[3] and a[0] <= b[1] and b[0] <= a[1]:
                # Only a result and the operand that dies where it is born share bytes.
                assert max(a[0], b[0]) == min(a[1], b[1]) and a[2:4] == b[2:4], (a, b)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_plans_are_legal_and_compute_the_same(name, mode):
    program = PROGRAMS[name]
    module = prepared(program)
    want = interpret(module, program.inputs())
    counts = PlanMemory(mode=mode).run(module, PassContext())
    assert module.operation.verify()
    assert same_bits(interpret(module, program.inputs()), want)
    assert counts["arena bytes"] <= counts["bytes in program order"]
    check_attributes(module)


@pytest.mark.parametrize("seed", sample(range(200), 10))
def test_random_graphs(seed):
    graph = draw_graph(Random(seed), ops=16)
    module = graph.module()
    want = interpret(module, graph.inputs)
    run_pipeline(module, "pyc-remat{slowdown=0.5},pyc-plan-memory{mode=memory_first}")
    assert same_bits(interpret(module, graph.inputs), want)
    check_attributes(module)


@pytest.mark.parametrize("name, smaller", [("branches", 0.5), ("grown", 0.6)])
def test_the_order_lowers_the_peak(name, smaller):
    counts = PlanMemory().run(prepared(PROGRAMS[name]), PassContext(choices=Choices()))
    assert counts["arena bytes"] <= smaller * counts["bytes in program order"]
    assert counts["recomputed"] == 0


def test_recomputed_ops_are_clones_that_cse_keeps():
    module = prepared(CHEAP)
    counts = PlanMemory(mode="memory_first").run(module, PassContext())
    assert counts["recomputed"] > 0
    run_pipeline(module, "cse,canonicalize")
    numbers = [
        integer(op, "pyc.recomputed") for op in runs(module) if "pyc.recomputed" in op.attributes
    ]
    assert sorted(numbers) == list(range(1, counts["recomputed"] + 1))
    PlanMemory().run(module, PassContext())
    check_attributes(module)


def test_a_second_plan_replaces_the_first():
    module = prepared(PROGRAMS["branches"])
    first = PlanMemory().run(module, PassContext())
    again = PlanMemory().run(module, PassContext())
    assert again["arena bytes"] == again["bytes in program order"] == first["arena bytes"]
    check_attributes(module)


def test_modes_are_the_planners():
    modes, none = get_args(get_type_hints(PlanMemory)["mode"])
    assert get_args(modes) == tuple(MODES) and none is type(None)


def overwritable(body, *types, first: str = "") -> list[int]:
    """Which of the buffers that the last op but one reads it may overwrite."""
    program = Program(lambda b, *args: b.reduce_sum(body(b, *args), axes=(0,)), types, first)
    module = prepared(program)
    *_, task, _ = read_function(entry_function(module)).problem.tasks
    assert not first or task.name == "group"
    return [task.reads.index(read) for _, read in task.in_place]


N = tensor("i32", 16, 16)
ROW = tensor("f32", 16)


@pytest.mark.parametrize(
    "body, types, places",
    [
        (lambda b, x, y: b.add(x, y), (X, X), [0, 1]),
        (lambda b, x, v: b.add(x, v), (X, ROW), [0]),
        (lambda b, x: b.gelu(x), (X,), [0]),
        (lambda b, x: b.cast(x, dtype=DTYPES["f32"]), (N,), [0]),
        (lambda b, x: b.cast(x, dtype=DTYPES["f64"]), (N,), []),
        (lambda b, c, x, y: b.select(c, x, y), (tensor("i1", 16, 16), X, X), [1, 2]),
        (lambda b, x: b.reshape(x, shape=(256,)), (X,), [0]),
        (lambda b, x: b.transpose(x, permutation=(1, 0)), (X,), []),
        (lambda b, x: b.matmul(x, x), (X,), []),
        (lambda b, x: b.softmax(x), (X,), []),
        (lambda b, x, y: b.update_slice(x, y, np.array([0, 0])), (X, X), [0]),
        (lambda b, x: b.update_slice(x, x, np.array([0, 0])), (X,), []),
    ],
)
def test_what_a_result_may_overwrite(body, types, places):
    assert overwritable(body, *types) == places


@pytest.mark.parametrize(
    "body, places",
    [
        (lambda b, x, y: b.relu(b.add(b.matmul(x, W), y)), [2]),  # the residual, not the anchor's
        (lambda b, x, y: b.add(b.matmul(x, y), x), []),  # the anchor reads it as well
        (lambda b, x, y: b.mul(b.exp(x), b.add(x, y)), [0, 1]),
    ],
)
def test_what_a_group_may_overwrite(body, places):
    assert overwritable(body, X, X, first="pyc-fuse") == places


@pytest.mark.parametrize("name", ["cheap again", "grown", "branches"])
def test_budgets_are_kept_or_refused(name):
    written = PlanMemory().run(prepared(PROGRAMS[name]), PassContext(choices=Choices()))[
        "bytes in program order"
    ]
    kept = refused = 0
    for budget in np.linspace(0, written, 6, dtype=int).tolist():
        module = prepared(PROGRAMS[name])
        try:
            counts = PlanMemory(budget=budget).run(module, PassContext())
        except PycError as error:
            refused += 1
            impossible = error.code is ReasonCode.BUDGET_IMPOSSIBLE
            assert impossible or error.code is ReasonCode.BUDGET_NOT_FOUND
            assert "@main" in error.message and "smallest budget" in error.message
        else:
            kept += 1
            assert counts["arena bytes"] <= budget
            check_attributes(module)
    assert kept and refused


@dataclass
class Prefers:
    """A policy that asks for one answer everywhere."""

    answer: str
    name: str = "test"

    def prefer(self, site, alternatives):
        return self.answer


def test_every_plan_is_a_decision_and_replays():
    choices = Choices(Prefers(AS_WRITTEN))
    module = prepared(PROGRAMS["branches"])
    counts = PlanMemory().run(module, PassContext(choices=choices))
    assert counts["arena bytes"] == counts["bytes in program order"]
    (decision,) = choices.log
    assert [a.name for a in decision.alternatives] == [PLANNED, AS_WRITTEN]
    costs = [a.cost.workspace_bytes for a in decision.alternatives if a.cost]
    assert costs[0] < costs[1] == counts["arena bytes"]
    replayed = prepared(PROGRAMS["branches"])
    PlanMemory().run(replayed, PassContext(choices=Choices(recipe=Recipe.from_log(choices.log))))
    assert str(replayed) == str(module)


def test_the_programs_own_order_must_keep_the_budget_too():
    with pytest.raises(PycError) as caught:
        PlanMemory(budget=4096).run(
            prepared(PROGRAMS["branches"]), PassContext(choices=Choices(Prefers(AS_WRITTEN)))
        )
    assert caught.value.code is ReasonCode.INVALID_CHOICE


INVALID = {
    "dynamic": (
        "func.func @main(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {\n"
        '  %0 = "pyc.relu"(%x) : (tensor<?x4xf32>) -> tensor<?x4xf32>\n'
        "  return %0 : tensor<?x4xf32>\n}",
        ReasonCode.PASS_FAILED,
        "run pyc-infer-shapes",
    ),
    "another dialect": (
        "func.func @main() -> tensor<4xf32> {\n"
        "  %0 = tensor.empty() : tensor<4xf32>\n  return %0 : tensor<4xf32>\n}",
        ReasonCode.UNSUPPORTED_OP,
        "tensor.empty",
    ),
    "control flow": (
        "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
        "  cf.br ^a\n^a:\n  return %x : tensor<4xf32>\n}",
        ReasonCode.UNSUPPORTED_OP,
        "one block",
    ),
    "no tensor": (
        "func.func @main(%x: f32) {\n  return\n}",
        ReasonCode.INVALID_IR,
        "expected a ranked tensor",
    ),
}


@pytest.mark.parametrize("pass_", [PlanMemory(), Remat()], ids=["plan", "remat"])
@pytest.mark.parametrize("name", INVALID)
def test_what_is_not_understood_is_refused(name, pass_):
    text, code, reported = INVALID[name]
    with pytest.raises(PycError) as caught:
        pass_.run(ir.Module.parse(text), PassContext(choices=Choices()))
    assert caught.value.code is code
    assert reported in caught.value.message and "loc(" in caught.value.message


def peak(module: ir.Module) -> tuple[int, float]:
    expansion = Expansion.of(read_function(entry_function(module)).problem)
    return peak_of(expansion), expansion.seconds


def test_remat_lowers_the_peak_within_the_slowdown():
    module = prepared(CHEAP)
    want, before = interpret(module, CHEAP.inputs()), peak(module)
    choices = Choices()
    counts = Remat().run(module, PassContext(choices=choices))
    after = peak(module)
    assert same_bits(interpret(module, CHEAP.inputs()), want)
    assert counts["recomputed"] > 0 and after[0] < before[0]
    assert after[1] <= before[1] * (1 + DEFAULT_SLOWDOWN) * (1 + 1e-9)
    assert (counts["peak bytes before"], counts["peak bytes"]) == (before[0], after[0])
    (decision,) = choices.log
    assert f"peak {before[0]} -> {after[0]} bytes" in decision.alternatives[0].reason


def test_remat_keeps_a_budget_or_refuses():
    before, seconds = peak(prepared(CHEAP))
    for budget in (before, before - 1, before * 3 // 4):
        module = prepared(CHEAP)
        counts = Remat(budget=budget).run(module, PassContext())
        assert peak(module)[0] <= budget
        assert (counts["recomputed"] == 0) == (budget == before)
    with pytest.raises(PycError) as caught:
        Remat(budget=64).run(prepared(CHEAP), PassContext(choices=Choices()))
    assert caught.value.code is ReasonCode.BUDGET_IMPOSSIBLE
    with pytest.raises(PycError) as caught:
        Remat(budget=before * 3 // 4, slowdown=0.0).run(
            prepared(CHEAP), PassContext(choices=Choices())
        )
    assert caught.value.code is ReasonCode.BUDGET_NOT_FOUND and seconds > 0


def test_remat_does_not_fire_without_a_gain():
    module = prepared(PROGRAMS["mlp"])
    before = str(module)
    choices = Choices()
    assert Remat().run(module, PassContext(choices=choices))["recomputed"] == 0
    assert str(module) == before
    assert [d.chosen for d in choices.log] == ["keep"]


def test_clones_of_a_second_run_are_told_apart():
    module = Program(
        lambda b, x: cheap_again(b, cheap_again(b, b.reduce_sum(x, axes=(0,))))
    ).module()
    for _ in range(2):
        Remat(slowdown=1.0).run(module, PassContext())
        PlanMemory(mode="memory_first", slowdown=1.0).run(module, PassContext())
    marks = [
        integer(op, "pyc.recomputed") for op in runs(module) if "pyc.recomputed" in op.attributes
    ]
    assert len(marks) == len(set(marks)) > 1


def test_equal_functions_are_different_sites():
    module = ir.Module.parse(
        "".join(
            f"func.func @f{i}(%x: tensor<4xf32>) -> tensor<4xf32> {{\n"
            '  %0 = "pyc.relu"(%x) : (tensor<4xf32>) -> tensor<4xf32>\n'
            "  return %0 : tensor<4xf32>\n}\n"
            for i in range(2)
        )
    )
    choices = Choices()
    PlanMemory().run(module, PassContext(choices=choices))
    first, second = (d.site.op_id for d in choices.log)
    assert second == f"{first}#1"


@pytest.mark.parametrize("pass_class", [PlanMemory, Remat])
@pytest.mark.parametrize("option", ["budget", "slowdown"])
def test_negative_options_are_refused(pass_class, option):
    with pytest.raises(PycError) as caught:
        pass_class(**{option: -1})
    assert caught.value.code is ReasonCode.INVALID_PIPELINE
