"""pyc-bufferize-arena: plans carried out by MLIR's own execution engine, against numpy."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from conftest import sample
from executed import execute
from memory_programs import PROGRAMS, Program, X
from op_modules import ops_of
from random_ops import draw_graph

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function, interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import DTYPES, tensor
from pyc_mlir.pipelines.choices.choices import Choices
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.memory import bufferize_arena
from pyc_mlir.pipelines.memory.bufferize_arena import BufferizeArena, read_allocations
from pyc_mlir.pipelines.memory.planner.planner import plan

LOWER = "convert-pyc-to-linalg,pyc-bufferize-arena"


@pytest.fixture(autouse=True)
def context():
    with new_context() as made, ir.Location.unknown():
        yield made


def bufferized(program: Program, passes: str) -> tuple[ir.Module, dict[str, int]]:
    module = program.module()
    text = ",".join(p for p in (program.first, passes) if p)
    report = run_pipeline(module, text)
    return module, report.statistics["pyc-bufferize-arena"]


def names_of(module: ir.Module) -> list[str]:
    found: list[str] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op.name)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.full
def test_plans_run_and_compute_what_numpy_does(name):
    program = PROGRAMS[name]
    inputs = program.inputs()
    want = interpret(program.module(), inputs)
    unplanned = execute(bufferized(program, LOWER)[0], inputs)
    for got, expected in zip(unplanned, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    for mode in ("balanced", "memory_first"):
        module, counts = bufferized(program, f"pyc-plan-memory{{mode={mode}}},{LOWER}")
        assert counts["arena bytes"] <= counts["allocated bytes"]
        assert "memref.alloc" not in names_of(module)
        got = execute(module, inputs)
        assert [a.tobytes() for a in got] == [b.tobytes() for b in unplanned], mode


def test_optimized_code_takes_over_operands_too():
    module, _ = bufferized(PROGRAMS["residual"], LOWER)
    inputs = PROGRAMS["residual"].inputs()
    (plain,), (optimized,) = execute(module, inputs), execute(module, inputs, opt_level=2)
    np.testing.assert_allclose(optimized, plain, rtol=1e-5, atol=1e-5)


def test_recomputed_copies_and_the_order_reach_the_arena():
    program = PROGRAMS["cheap again"]
    balanced = bufferized(program, f"pyc-plan-memory{{mode=balanced}},{LOWER}")[1]
    smaller = bufferized(program, f"pyc-plan-memory{{mode=memory_first}},{LOWER}")[1]
    assert smaller["allocations"] > balanced["allocations"]
    assert smaller["arena bytes"] < balanced["arena bytes"]
    as_written = bufferized(PROGRAMS["branches"], LOWER)[1]
    ordered = bufferized(PROGRAMS["branches"], f"pyc-plan-memory,{LOWER}")[1]
    assert ordered["arena bytes"] <= as_written["arena bytes"] // 2


@pytest.mark.parametrize("seed", sample(range(300), 16))
@pytest.mark.full
def test_random_graphs(seed):
    graph = draw_graph(Random(seed), ops=12)
    module = graph.module()
    mode = "memory_first" if seed % 2 else "balanced"
    report = run_pipeline(module, f"pyc-plan-memory{{mode={mode}}},{LOWER}")
    counts = report.statistics["pyc-bufferize-arena"]
    assert counts["arena bytes"] <= counts["allocated bytes"]
    try:
        graph.check(execute(module, graph.inputs), "the execution engine")
    except PycError as error:
        is_16_bit = any(v.dtype.itemsize == 2 for v in graph.values)
        assert error.code is ReasonCode.UNSUPPORTED_DTYPE and is_16_bit, error


def test_the_arena_may_be_an_allocation():
    program = PROGRAMS["residual"]
    module, counts = bufferized(program, "convert-pyc-to-linalg,pyc-bufferize-arena{arena=alloc}")
    assert names_of(module).count("memref.alloc") == 1 == names_of(module).count("memref.dealloc")
    assert len(entry_function(module).regions[0].blocks[0].arguments) == 2
    (got,) = execute(module, program.inputs())
    (want,) = interpret(program.module(), program.inputs())
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert counts["arena bytes"] > 0


def test_without_allocations_there_is_no_arena():
    module, counts = bufferized(Program(lambda b, x: b.exp(x), (X,)), LOWER)
    assert counts == {"allocations": 0, "allocated bytes": 0, "arena bytes": 0}
    assert len(entry_function(module).regions[0].blocks[0].arguments) == 2


@pytest.mark.parametrize("name", ["mlp", "encoder layer", "branches", "skips"])
def test_the_execution_sees_a_plan_that_overlaps(name, monkeypatch):
    """What the other tests prove: with every offset at 0 the results are wrong."""

    def overlapping(problem):
        found = plan(problem)
        return replace(found, offsets=dict.fromkeys(found.offsets, 0))

    monkeypatch.setattr(bufferize_arena, "plan", overlapping)
    program = PROGRAMS[name]
    got = execute(bufferized(program, LOWER)[0], program.inputs())
    want = interpret(program.module(), program.inputs())
    assert any(not np.allclose(a, b, rtol=1e-2, atol=1e-2) for a, b in zip(got, want, strict=True))


def test_the_execution_sees_writes_past_the_arena_and_into_inputs(monkeypatch):
    def past_the_end(problem):
        found = plan(problem)
        return replace(found, offsets={i: o + 64 for i, o in found.offsets.items()})

    program = PROGRAMS["mlp"]
    with monkeypatch.context() as patch:
        patch.setattr(bufferize_arena, "plan", past_the_end)
        module = bufferized(program, LOWER)[0]
    with pytest.raises(PycError, match="past a buffer"):
        execute(module, program.inputs())
    text = "func.func @main(%x: memref<4xf32>, %v: f32) {\n  return\n}"
    with pytest.raises(PycError, match="static memrefs"):
        execute(ir.Module.parse(text), [])
    writes = """
func.func @main(%x: memref<4xf32>) {
  %v = arith.constant 1.0 : f32
  linalg.fill ins(%v : f32) outs(%x : memref<4xf32>)
  return
}"""
    with pytest.raises(PycError, match="wrote to input 0"):
        execute(ir.Module.parse(writes), [np.zeros(4, np.float32)])


@pytest.mark.parametrize(
    "inputs, code",
    [
        ([], ReasonCode.ARGUMENT_COUNT),
        ([np.zeros((4, 4), np.float32)], ReasonCode.ARGUMENT_SHAPE),
        ([np.zeros((16, 16))], ReasonCode.ARGUMENT_DTYPE),
    ],
)
def test_inputs_that_do_not_fit(inputs, code):
    module = bufferized(PROGRAMS["mlp"], LOWER)[0]
    with pytest.raises(PycError) as caught:
        execute(module, inputs)
    assert caught.value.code is code


def test_every_arena_is_a_decision():
    module = PROGRAMS["branches"].module()
    choices = Choices()
    run_pipeline(module, LOWER, PassContext(choices=choices))
    (decision,) = choices.log
    (chosen,) = decision.alternatives
    arena = ir.IntegerAttr(entry_function(module).attributes["pyc.arena_bytes"]).value
    assert chosen.cost is not None and chosen.cost.workspace_bytes == arena
    assert decision.site.op_id


# The problem of a bufferized function: who lives when.
def problem_of(text: str):
    module = ir.Module.parse(text)
    function = entry_function(module)
    return module, read_allocations(function, 64).problem


def lives(problem) -> list[tuple[int, int]]:
    touched: dict[int, list[int]] = {}
    for t, task in enumerate(problem.tasks):
        for b in (*task.reads, *task.writes):
            touched.setdefault(b, []).append(t)
    return [(min(touched[b]), max(touched[b])) for b in sorted(touched)]


MAP = "affine_map<(i, j) -> (i, j)>"
TURNED = "affine_map<(i, j) -> (j, i)>"
M = "memref<4x4xf32>"


def generic(ins: Sequence[str], out: str, maps: Sequence[str], body: str = "") -> str:
    arguments = ", ".join(f"%e{i}: f32" for i in range(len(ins) + 1))
    return f"""
  linalg.generic {{indexing_maps = [{", ".join(maps)}], iterator_types = ["parallel", "parallel"]}}
      ins({", ".join(ins)} : {", ".join([M] * len(ins))}) outs({out} : {M}) {{
  ^bb0({arguments}):
    {body}
    linalg.yield %e0 : f32
  }}"""


def two_buffers(between: str) -> str:
    return f"""
func.func @main(%x: {M}, %out: {M}) {{
  %a = memref.alloc() : {M}
  memref.copy %x, %a : {M} to {M}
  %b = memref.alloc() : {M}
  {between}
  memref.copy %b, %out : {M} to {M}
  return
}}"""


@pytest.mark.parametrize(
    "between, allowed",
    [
        (generic(["%a"], "%b", [MAP, MAP]), True),
        (generic(["%a"], "%b", [TURNED, TURNED]), True),
        (generic(["%a"], "%b", [TURNED, MAP]), False),
        (generic(["%a", "%a"], "%b", [MAP, TURNED, MAP]), False),
        (generic(["%a", "%a"], "%b", [MAP, MAP, MAP]), True),
        (generic(["%x", "%a"], "%b", [TURNED, MAP, MAP]), True),
        # Read again behind it, under another name.
        (
            f"%v = memref.collapse_shape %a [[0, 1]] : {M} into memref<16xf32>"
            + generic(["%a"], "%b", [MAP, MAP])
            + "\n%c0 = arith.constant 0 : index\n%r = memref.load %v[%c0] : memref<16xf32>",
            False,
        ),
        # A transposed view has the same shape and other places.
        (
            f"%v = memref.transpose %a (i, j) -> (j, i) : {M} to memref<4x4xf32, strided<[1, 4]>>"
            + generic(["%a"], "%b", [MAP, MAP])
            + "\nmemref.copy %v, %b : memref<4x4xf32, strided<[1, 4]>> to " + M,
            False,
        ),
        # Read at computed places inside the body.
        (
            "%c0 = arith.constant 0 : index"
            + generic(["%a"], "%b", [MAP, MAP], f"%g = memref.load %a[%c0, %c0] : {M}"),
            False,
        ),
    ],
)  # fmt: skip
def test_what_one_op_may_write_over(between, allowed):
    _, problem = problem_of(two_buffers(between))
    pairs = [pair for task in problem.tasks for pair in task.in_place]
    assert pairs == ([(1, 0)] if allowed else [])


def test_a_loop_is_one_moment_and_views_count():
    _, problem = problem_of(f"""
func.func @main(%x: {M}, %out: {M}) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %a = memref.alloc() : {M}
  %row = memref.subview %a[1, 0] [1, 4] [1, 1] : {M} to memref<4xf32, strided<[1], offset: 4>>
  memref.copy %x, %a : {M} to {M}
  %b = memref.alloc() : {M}
  scf.for %i = %c0 to %c4 step %c1 {{
    %t = memref.alloc() : memref<4xf32>
    %v = memref.load %a[%i, %c0] : {M}
    memref.store %v, %t[%i] : memref<4xf32>
    %w = memref.load %t[%i] : memref<4xf32>
    memref.store %w, %b[%i, %c0] : {M}
  }}
  memref.copy %b, %out : {M} to {M}
  %u = memref.load %row[%c0] : memref<4xf32, strided<[1], offset: 4>>
  return
}}""")
    assert lives(problem) == [(0, 3), (1, 2), (1, 1)]
    found = plan(problem)
    assert found.arena_bytes == 64 * 3


REFUSED = {
    "a pointer that a region hands on": (
        f"""%r = scf.if %c -> ({M}) {{
    %a = memref.alloc() : {M}
    scf.yield %a : {M}
  }} else {{
    scf.yield %x : {M}
  }}
  return""",
        "scf.yield",
    ),
    "a pointer that is chosen": (
        f"%a = memref.alloc() : {M}\n  %r = arith.select %c, %a, %x : {M}\n  return",
        "arith.select",
    ),
    "a call": (
        f"%a = memref.alloc() : {M}\n  func.call @other(%a) : ({M}) -> ()\n  return",
        "func.call",
    ),
    "an end": (f"%a = memref.alloc() : {M}\n  memref.dealloc %a : {M}\n  return", "dealloc"),
    "an address": (
        f"%a = memref.alloc() : {M}\n"
        f"  %i = memref.extract_aligned_pointer_as_index %a : {M} -> index\n  return",
        "extract_aligned",
    ),
    "a loop that carries a pointer": (
        f"""%c0 = arith.constant 0 : index
  %a = memref.alloc() : {M}
  %r = scf.for %i = %c0 to %c0 step %c0 iter_args(%m = %a) -> ({M}) {{
    scf.yield %m : {M}
  }}
  return""",
        "scf.for",
    ),
    "a body that runs later": (
        f"""%a = memref.alloc() : {M}
  %c0 = arith.constant 0 : index
  %t = async.execute {{
    %v = memref.load %a[%c0, %c0] : {M}
    async.yield
  }}
  return""",
        "async.execute",
    ),
    "several blocks": ("cf.br ^a\n^a:\n  return", "one block"),
    "a size that is not known": (
        "%n = arith.constant 4 : index\n  %a = memref.alloc(%n) : memref<?xf32>\n"
        "  %v = memref.load %a[%n] : memref<?xf32>\n  return",
        "pyc-infer-shapes",
    ),
    "another layout": (
        "%a = memref.alloc() : memref<4x4xf32, strided<[8, 1]>>\n  return",
        "plain layout",
    ),
    "another memory": ("%a = memref.alloc() : memref<4xf32, 3>\n  return", "plain layout"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused(name):
    body, reported = REFUSED[name]
    text = f"""
func.func private @other({M})
func.func @main(%x: {M}, %c: i1) {{
  {body}
}}"""
    with pytest.raises(PycError) as caught:
        problem_of(text)
    assert reported in caught.value.message and "loc(" in caught.value.message


def test_programs_that_do_not_enter():
    module = PROGRAMS["mlp"].module()
    with pytest.raises(PycError) as caught:
        BufferizeArena().run(module, PassContext())
    assert caught.value.code is ReasonCode.UNSUPPORTED_OP
    module = Program(lambda b, x: b.exp(b.exp(x)), (tensor("f32", None, 4),)).module()
    run_pipeline(module, "convert-pyc-to-linalg")
    with pytest.raises(PycError, match="pyc-infer-shapes"):
        BufferizeArena().run(module, PassContext())


def test_16_bit_floats_are_refused_or_right():
    def halved(b, x):
        return b.cast(b.exp(b.cast(x, dtype=DTYPES["f16"])), dtype=DTYPES["f32"])

    program = Program(halved, (X,))
    module, _ = bufferized(program, LOWER)
    try:
        (got,) = execute(module, program.inputs())
    except PycError as error:
        assert error.code is ReasonCode.UNSUPPORTED_DTYPE
    else:
        (want,) = interpret(program.module(), program.inputs())
        np.testing.assert_allclose(got, want, rtol=1e-2)


def test_the_module_is_left_as_it_was():
    module = bufferized(PROGRAMS["pieces"], LOWER)[0]
    before = str(module)
    execute(module, PROGRAMS["pieces"].inputs())
    assert str(module) == before
    assert ops_of(module)[-1].name == "func.return"
