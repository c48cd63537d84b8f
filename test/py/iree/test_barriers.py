"""What IREE alone gets wrong and a barrier mends: two orders of reading, views of parts."""

import cProfile
import io
import pstats
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pytest
from compiled import OpCall, add_function, assert_close, compile_and_load, run_function
from iree.compiler import ir as iree_ir

import pyc_mlir
from pyc_mlir.api import compile
from pyc_mlir.compilation.build import FUSION_SITE as SITE
from pyc_mlir.compilation.build import UNFUSED, plan_only
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import TO_LINALG, emit, lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import DTYPES, TensorType
from pyc_mlir.iree import barriers as rewritten
from pyc_mlir.iree.barriers import (
    MOST_STEPS,
    hold_gathered,
    part_long_chains,
    separate_readers,
    share_parts,
)
from pyc_mlir.iree.compiler import IreeSession
from pyc_mlir.iree.foreign import compile_plain, plain_flags
from pyc_mlir.pipelines.choices.choices import FALLBACK, Alternative, Site
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.target.target import MOST_BINDINGS, Target
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable

Program = Callable[..., Any]
F32 = DTYPES["f32"]
X = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)


def flipped(b, x):
    return b.transpose(x, permutation=(1, 0))


def distances(b, x):
    squares = b.reduce_sum(b.mul(x, x), axes=(1,), keepdims=True)
    cross = b.mul(b.matmul(x, flipped(b, x)), b.scalar(2, x))
    return b.sub(b.add(squares, flipped(b, squares)), cross)


def symmetric_softmax(b, x):
    y = b.softmax(x)
    return b.add(y, flipped(b, y))


def adjacency(b, x):
    degrees = b.rsqrt(b.reduce_sum(b.abs(x), axes=(1,)))
    return b.mul(b.mul(x, b.expand_dims(degrees, 0)), b.expand_dims(degrees, 1))


def outer_product(b, x):
    rows = b.reduce_max(x, axes=(1,), keepdims=True)
    return b.matmul(rows, flipped(b, rows))


def equal_classes(b, x):
    best = b.argmax(x, axis=1)
    return b.compare(b.expand_dims(best, 0), b.expand_dims(best, 1), predicate="eq")


def product_of_rows(b, x):
    y = b.matmul(x, np.arange(6, dtype=np.float32))
    return b.sub(b.expand_dims(y, 0), b.expand_dims(y, 1))


CLASHING: list[Program] = [
    distances,
    symmetric_softmax,
    adjacency,
    outer_product,
    equal_classes,
    product_of_rows,
]


def linalg(program: Program, dynamic: bool, passes: str = TO_LINALG) -> bytes:
    """The bytecode, as IREE gets it: text would tell more of a product."""
    shape = (None, None) if dynamic and program is not product_of_rows else X.shape
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        add_function(module, "main", [TensorType(shape, F32)], program)
        run_pipeline(module, passes, PassContext())
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
        return buffer.getvalue()


def barriers(code: bytes, gpu: bool = False) -> int:
    """How many barriers a module gets; the result verifies."""
    with iree_ir.Context(), iree_ir.Location.unknown():
        module = iree_ir.Module.parse(code)
        count = separate_readers(module.operation, gpu)
        assert module.operation.verify()
        assert str(module).count("compute_barrier.start") == count
        return count


def positions(b, x):
    """The order of gathered positions, for each pair."""
    found = b.gather(b.cast(x, dtype=np.dtype(np.int64)), np.arange(6)[::-1] * 3 % 5)
    rows = b.reduce_sum(b.cast(found, dtype=DTYPES["f32"]), axes=(1,))
    first = b.gather(b.cast(rows, dtype=np.dtype(np.int64)), np.array([3, 1, 4, 1, 5]))
    return b.compare(b.expand_dims(first, 0), b.expand_dims(first, 1), predicate="le")


def looked_up(b, x):
    """Gathered positions that are repeated as indices."""
    table = b.cast(b.reduce_max(x, axes=(1,)), dtype=np.dtype(np.int64))
    first = b.gather(table, np.array([3, 1, 4, 1, 5]))
    repeated = b.add(b.expand_dims(first, 1), np.zeros((5, 4), np.int64))
    return b.gather(x, b.minimum(b.abs(repeated), np.array(5)))


@pytest.mark.parametrize(("program", "count"), [(positions, 2), (looked_up, 0)])
def test_gathered_integers_stand_in_memory_where_pairs_read_them(program, count):
    with iree_ir.Context(), iree_ir.Location.unknown():
        module = iree_ir.Module.parse(linalg(program, dynamic=False))
        assert hold_gathered(module.operation) == count
        assert module.operation.verify()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("program", CLASHING)
def test_two_orders_get_a_barrier(program, dynamic):
    assert barriers(linalg(program, dynamic)) == 1


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.full
def test_results_are_those_of_the_reference(dynamic):
    with new_context(), ir.Location.unknown():
        module, results, wanted = ir.Module.create(), [], []
        for i, program in enumerate(CLASHING):
            static = not dynamic or program is product_of_rows
            type_ = TensorType(X.shape if static else (None, None), F32)
            results.append(add_function(module, f"f{i}", [type_], program))
            wanted += interpret(module, [X], function=f"f{i}")
        executable = compile_and_load(module)
    for i, program in enumerate(CLASHING):
        (got,) = run_function(executable, f"f{i}", [X], results[i])
        assert_close(got, wanted[i], program.__name__, 8.0)


def columns_of_a_slice(b, x):
    part = b.slice(x, starts=(0, 1), stops=(6, 5), steps=(1, 2))
    return b.gather(part, np.array([1, 0], np.int64), axis=1)


def rows_of_a_reshaped_slice(b, x):
    column = b.reshape(b.slice(x, starts=(0, 0), stops=(6, 1), steps=(1, 1)), shape=(6,))
    return b.gather(column, np.array([0, 5, 2], np.int64), axis=0)


@pytest.mark.parametrize("program", [columns_of_a_slice, rows_of_a_reshaped_slice])
@pytest.mark.full
def test_a_view_read_at_computed_places_stands_in_memory(program):
    assert barriers(linalg(program, dynamic=False)) == 1
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        result = add_function(module, "main", [TensorType(X.shape, F32)], program)
        (wanted,) = interpret(module, [X])
        executable = compile_and_load(module)
    (got,) = run_function(executable, "main", [X], result)
    np.testing.assert_array_equal(got, wanted)


def minus_columns(b, x):
    return b.sub(x, b.reduce_sum(x, axes=(0,), keepdims=True))


def columns_alone(b, x):
    return b.mul(b.reduce_sum(x, axes=(0,)), b.scalar(2, x))


def test_columns_that_are_read_again_stand_in_memory_on_gpus():
    code = linalg(minus_columns, dynamic=False)
    assert (barriers(code), barriers(code, gpu=True)) == (0, 1)
    assert barriers(linalg(columns_alone, dynamic=False), gpu=True) == 0
    assert barriers(linalg(same_order, dynamic=False), gpu=True) == 0


def test_columns_on_vulkan():
    try:
        device = Device("vulkan")
    except PycError as error:
        pytest.skip(f"no vulkan device: {error.message}")
    x = np.random.default_rng(0).normal(size=(130, 24)).astype(np.float32)
    program = compile(
        lambda x: x - x.sum(axis=0, keepdims=True), [x], target="vulkan", device=device
    )
    for _ in range(4):
        np.testing.assert_allclose(program(x), x - x.sum(axis=0, keepdims=True), rtol=1e-5)


def attention(b, x):
    return b.attention(x, x, x, scale=0.5, is_causal=True)


def layernorm(b, x):
    ones = np.ones(6, np.float32)
    return b.add(b.layernorm(x, ones, ones), x)


def same_order(b, x):
    rows = b.reduce_sum(x, axes=(1,), keepdims=True)
    return b.mul(b.sub(x, rows), b.exp(rows))


def rows_and_columns(b, x):
    return b.add(
        b.reduce_sum(x, axes=(1,), keepdims=True), b.reduce_sum(x, axes=(0,), keepdims=True)
    )


def symmetric_product(b, x):
    y = b.matmul(x, x)
    return b.add(y, flipped(b, y))


def pointwise_alone(b, x):
    y = b.exp(x)
    return b.add(y, flipped(b, y))


def in_memory(b, x):
    rows = b.reduce_sum(x, axes=(1,))
    first = b.slice(rows, starts=(0,), stops=(3,), steps=(1,))
    last = b.slice(rows, starts=(3,), stops=(6,), steps=(1,))
    return b.sub(b.expand_dims(first, 0), b.expand_dims(last, 1))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "program",
    [
        attention,
        layernorm,
        same_order,
        rows_and_columns,
        symmetric_product,
        pointwise_alone,
        in_memory,
    ],
)
def test_other_programs_are_left_alone(program, dynamic):
    assert barriers(linalg(program, dynamic)) == 0


def test_a_barrier_stands_between_later_readers_too():
    """What is read behind a barrier is in memory: a second op needs no barrier for it."""

    def program(b, x):
        rows = b.reduce_sum(x, axes=(1,), keepdims=True)
        both = b.add(rows, flipped(b, rows))
        return b.mul(b.reduce_max(both, axes=(1,)), b.reduce_sum(both, axes=(0,)))

    assert barriers(linalg(program, False)) == 1


@pytest.mark.parametrize("axes", [(1,), (0,), (0, 1)])
@pytest.mark.parametrize("shape", [(20, 30), (3, 5)])
@pytest.mark.full
def test_sums_of_what_repeats_one_value(shape, axes):
    """IREE sums wrongly what a fill makes, so broadcast constants are emitted as reads."""

    def program(b, x):
        two = b.broadcast_to(np.array(2, np.float32), x, shape=(-1, -1))
        return b.reduce_sum(b.exp(two), axes=axes), b.reduce_sum(two, axes=axes)

    x = np.zeros(shape, np.float32)
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        results = add_function(module, "main", [TensorType((None, None), F32)], program)
        wanted = interpret(module, [x])
        executable = compile_and_load(module)
    for got, want in zip(run_function(executable, "main", [x], results), wanted, strict=True):
        assert_close(got, want, str(OpCall("reduce_sum", (x,))))


SHIFT = """func.func @main(%a: tensor<32x16xf32>, %b: tensor<16x24xf32>) -> tensor<32x24xf32> {{
  %y = "pyc.matmul"(%a, %b) : (tensor<32x16xf32>, tensor<16x24xf32>) -> tensor<32x24xf32>
  %s = "pyc.slice"(%y) {{starts = array<i64: 0, 0>, stops = array<i64: {stop}, 12>,
      steps = array<i64: {step}, 1>}} : (tensor<32x24xf32>) -> tensor<8x12xf32>
  %p = "pyc.constant"() {{value = dense<[{row}, {column}]> : tensor<2xi64>}} : () -> tensor<2xi64>
  %r = "pyc.update_slice"(%y, %s, %p)
      : (tensor<32x24xf32>, tensor<8x12xf32>, tensor<2xi64>) -> tensor<32x24xf32>
  return %r : tensor<32x24xf32>
}}"""


@pytest.mark.parametrize(
    ("row", "column", "step", "meets"),
    [(4, 2, 1, True), (1, 0, 1, True), (4, 2, 2, True), (8, 0, 1, False), (2, 12, 1, False)],
)
def test_a_slice_that_is_inserted_into_its_own_tensor(row, column, step, meets, monkeypatch):
    inserted, honest = [], rewritten.separate_readers
    monkeypatch.setattr(
        rewritten,
        "separate_readers",
        lambda *a, **k: inserted.append(honest(*a, **k)) or inserted[-1],
    )
    text = SHIFT.format(row=row, column=column, step=step, stop=8 * step)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((32, 16), (16, 24)))
    want = a @ b
    want[row : row + 8, column : column + 12] = (a @ b)[: 8 * step : step, :12]
    np.testing.assert_array_equal(compile(text)(a, b), want)
    assert bool(sum(inserted)) == meets


def cut(b, x, bounds, axis):
    parts = []
    for low, high in bounds:
        starts, stops = [0, 0], [8, 6]
        starts[axis], stops[axis] = low, high
        part = b.slice(x, starts=tuple(starts), stops=tuple(stops), steps=(1, 1))
        parts.append(b.reduce_sum(part, axes=(0, 1)))
    return b.add(*parts)


@pytest.mark.parametrize(
    ("bounds", "axis", "count"),
    [
        (((0, 4), (4, 8)), 0, 2),
        (((0, 3), (3, 6)), 1, 0),
        (((0, 4), (2, 6)), 0, 0),
        (((0, 3), (3, 8)), 0, 0),
    ],
    ids=["parts", "not-contiguous", "not-all", "unequal"],
)
@pytest.mark.sampled(2)
def test_equal_contiguous_parts_of_the_whole(bounds, axis, count):
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        add_function(
            module, "main", [TensorType((8, 6), F32)], lambda b, x: cut(b, x, bounds, axis)
        )
        run_pipeline(module, TO_LINALG, PassContext())
        text = str(module)
    with iree_ir.Context(), iree_ir.Location.unknown():
        parsed = iree_ir.Module.parse(text)
        assert share_parts(parsed.operation) == count
        assert parsed.operation.verify()


# What IREE fuses and cannot generate code for is compiled op by op, and answers as numpy.

# IREE turns the transpose around the whole reduction, whose values nothing reads.
TURNED_ARGMAX = """func.func @main(%x: tensor<?x3x?xf32>) -> tensor<?x3xi64> {
  %0 = "pyc.argmax"(%x) {axis = 0 : i64, keepdims = false} : (tensor<?x3x?xf32>) -> tensor<3x?xi64>
  %1 = "pyc.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<3x?xi64>) -> tensor<?x3xi64>
  return %1 : tensor<?x3xi64>
}"""


@pytest.mark.full
def test_a_program_that_only_compiles_op_by_op():
    x = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
    program = pyc_mlir.compile(TURNED_ARGMAX)
    np.testing.assert_array_equal(program(x), x.argmax(0).T)
    (decision,) = (d for d in program.artifact.decisions if d.site.pass_name == SITE)
    assert (decision.chosen, decision.decided_by) == (UNFUSED, FALLBACK)
    assert [a.name for a in decision.alternatives][-1] == UNFUSED
    assert str(decision.grounds[0]).startswith("CODEGEN_FALLBACK: aggressive: 'linalg.yield' op")


@dataclass(frozen=True)
class Unfused:
    """Takes the last resort at once."""

    name: str = "unfused"
    planner_modes: tuple[str, ...] = ("latency_first", "balanced", "memory_first")

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        names = [a.name for a in alternatives]
        return UNFUSED if UNFUSED in names else names[0]


def test_constants_that_a_plan_puts_beside_other_work_are_uploaded():
    """IREE drops a constant of an initializer inside of a wave: the product read zeros."""
    w = np.random.default_rng(0).normal(size=(16, 5)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(2, 8, 16)).astype(np.float32)
    program = pyc_mlir.compile(lambda x: np.sort(x @ w), [x], policy=Unfused())
    assert ("iree-fusion", UNFUSED) in {
        (d.site.pass_name, d.chosen) for d in program.artifact.decisions
    }
    np.testing.assert_allclose(program(x), np.sort(x @ w), atol=1e-4)


# Programs that read more tensors than one dispatch binds are computed in parts.
NUMBER = 40
NAMES = [f"%a{i}" for i in range(NUMBER)]
ARRAYS = [np.full((4, 4), i, np.float32) for i in range(NUMBER)]


def sum_text() -> str:
    arguments = ", ".join(f"{name}: tensor<4x4xf32>" for name in NAMES)
    sums = [
        f"%s{i} = stablehlo.add {f'%s{i - 1}' if i > 1 else NAMES[0]}, {NAMES[i]} : tensor<4x4xf32>"
        for i in range(1, NUMBER)
    ]
    body = "\n".join(sums)
    return (
        f"func.func @main({arguments}) -> tensor<4x4xf32> {{\n{body}\n"
        f"return %s{NUMBER - 1} : tensor<4x4xf32>\n}}"
    )


def total(*values):
    return sum(values[1:], start=values[0])


def largest(*values):
    out = values[0]
    for value in values[1:]:
        out = np.maximum(out, value)
    return out


def test_own_groups_and_kernels():
    """At the limit and above it, behind a product, in front of a reduction, side by side."""

    def program(*v):
        return (
            total(*v[: MOST_BINDINGS - 1]),
            total(*v[:MOST_BINDINGS]),
            largest(*v).sum(axis=1),
            total(v[0] @ v[1], *v[2:]),
            np.concatenate([x * np.float32(2) for x in v], axis=1),
        )

    for got, wanted in zip(
        pyc_mlir.compile(program, ARRAYS)(*ARRAYS), program(*ARRAYS), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("setting", ["aggressive", "unfused"])
def test_dispatches_of_a_foreign_program(setting, tmp_path):
    path = tmp_path / "sum.mlir"
    path.write_text(sum_text())
    recipe = pyc_mlir.Recipe({"raise:module": "iree", "iree-fusion:module": setting})
    program = pyc_mlir.compile(path, recipe=recipe)
    np.testing.assert_array_equal(program(*ARRAYS), total(*ARRAYS))


def test_iree_alone_still_needs_it():
    """Fails once IREE is mended: then the workaround can go."""
    cpu = Target.named("cpu")
    with pytest.raises(PycError, match=f"binding count {NUMBER + 1} > {MOST_BINDINGS}"):
        Executable(compile_plain(sum_text().encode(), plain_flags(cpu)), Device("local-sync"))


# Work of a compile in proportion to the program: counted at two sizes, never timed.
ONES = np.ones(64, np.float32)


def chain(n: int) -> Any:
    return lambda v: reduce(lambda x, _: np.tanh(x), range(n), v)


def terms(n: int) -> Any:
    return lambda v: reduce(lambda s, i: s + v * np.float32(i + 1.5), range(n), v)


def results(n: int) -> Any:
    return lambda v: tuple(v + np.float32(i) for i in range(n))


def calls(function: Any) -> Counter[tuple[str, int, str]]:
    """How often each Python function is called by a compile up to its memory plan."""
    profile, options = cProfile.Profile(), make_options()
    profile.runcall(lambda: plan_only(lower(Job.of(function, [ONES], options)), options))
    stats: Any = pstats.Stats(profile)
    return Counter({where: count[1] for where, count in stats.stats.items()})


@pytest.mark.parametrize(("made", "n"), [(results, 20), (terms, 60), (chain, 20)])
def test_no_function_is_called_more_than_twice_as_often_as_the_program_grows(made, n):
    small, large = calls(made(n)), calls(made(4 * n))
    frequent = {where: n for where, n in large.items() if n > 4000}
    # Of a few calls most are the same in every compile.
    grown = {where: n for where, n in frequent.items() if n > 8 * max(small[where], 250)}
    assert not grown


@pytest.mark.parametrize("n", [16, 200])
def test_the_terms_of_a_sum_are_made_where_they_are_added(n):
    text, _ = emit(Job.of(terms(n), [ONES], make_options()), "pyc")
    kernels = [line for line in text.splitlines() if line.startswith("    ") and line[4] == "%"]
    computed = [line for line in kernels if '"pyc.constant"' not in line]
    assert len(computed) <= 1 + n / 6


@pytest.mark.parametrize(("n", "barriers"), [(400, 0), (1600, 3)])
def test_a_long_chain_becomes_several_dispatches(n, barriers):
    with IreeSession() as session:
        session.parse(lower(Job.of(chain(n), [ONES], make_options())).code)
        assert part_long_chains(session.module) == barriers >= n * 8 // MOST_STEPS
