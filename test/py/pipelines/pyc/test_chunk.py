"""pyc-chunk: parts compute what the whole computes, peaks fall, and what gains nothing is kept."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from random import Random
from typing import Any

import numpy as np
import pytest
from conftest import FULL, sample
from kernel_runs import any_target
from memory_programs import PROGRAMS
from op_cases import CASES, Case, Operand, inputs
from op_modules import module_of, ops_of
from random_ops import draw_graph

from pyc_mlir import compile, nn
from pyc_mlir.api import build
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import context_of, lower
from pyc_mlir.compilation.options import HIGH_LEVEL, NO_KERNELS, make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function, interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS, evaluate
from pyc_mlir.dialects.types import TensorType, is_float, tensor
from pyc_mlir.pipelines.choices.choices import Choices, Decision, Recipe
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.pyc.chunk import graph as chunk_graph
from pyc_mlir.pipelines.pyc.chunk.chunk import KEEP, PART, PREFERENCES, Chunk, apply, plan, seconds
from pyc_mlir.pipelines.pyc.chunk.dims import RULES, ChunkWindow, OpCall, operand_rows, part_params
from pyc_mlir.pipelines.pyc.chunk.graph import ChunkGraph, is_static, regions, rows_of
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program

CPU = Target.named("cpu")
HEADS = [tensor("f32", 8, 512, 64)] * 3
ATTENTION_INSIDE = 8 * 512 * 512 * 4


@pytest.fixture(autouse=True)
def context():
    with new_context() as made, ir.Location.unknown():
        yield made


# Which dimension of an operand does one of the result run along?


BOUNDS = {"starts": (0, 1), "stops": (4, 4), "steps": (1, 2)}
WHOLE_COLUMNS = Case("slice", (Operand("f32", (4, 5)),), tuple(BOUNDS.items()))


def static_call(case: Case) -> OpCall:
    definition, arrays = OPS[case.op], inputs(case)
    params = definition.bind(case.keywords)
    types = tuple(TensorType(a.shape, a.dtype) for a in arrays)
    return OpCall(definition, types, definition.infer(*types, **params), params)


def check_parts(case: Case, call: OpCall, dim: int) -> bool:
    """Whether the dimension runs through; if so, parts must be parts of the whole."""
    dims, arrays = call.dims[dim], inputs(case)
    size = call.out.shape[dim]
    if dims is None or not size or size < 2:
        return False
    whole = evaluate(call.definition, arrays, **call.params)
    for i in range(size):
        rows = range(*operand_rows(call, dim, (i, i + 1)))
        taken = [
            a if at is None else a.take(rows, axis=at) for a, at in zip(arrays, dims, strict=True)
        ]
        shape = tuple(1 if d == dim else s for d, s in enumerate(call.out.shape))
        params = part_params(call, dim, call.out.with_shape(shape), (i, i + 1))
        part = evaluate(call.definition, taken, **params)
        assert part.shape == shape, f"{case}: dimension {dim}"
        tolerance = 1e-6 if is_float(part.dtype) and part.dtype.itemsize > 2 else 0.02
        same = np.allclose(
            part.astype(np.float64),
            whole.take([i], axis=dim).astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
        )
        assert same, f"{case}: dimension {dim}, part {i}"
    return True


@pytest.mark.filterwarnings("ignore")
def test_parts_of_every_op_are_parts_of_its_result():
    through = set()
    of_rules = [sample([c for c in CASES if c.op == op], 40) for op in sorted(RULES)]
    for case in (*sample(CASES, 900), *chain.from_iterable(of_rules), WHOLE_COLUMNS):
        call = static_call(case)
        for dim in range(call.out.rank):
            if check_parts(case, call, dim):
                through.add(case.op)
    assert through >= RULES.keys() | {"add", "select", "cast", "reduce_sum", "reduce_mean"}


def test_columns_of_a_value_and_causal_rows_do_not_run_through():
    types = tuple(tensor("f32", 2, 8, 4) for _ in range(3))
    for causal, rows in ((False, (1, None, None)), (True, None)):
        params = {"scale": 1.0, "is_causal": causal}
        call = OpCall(OPS["attention"], types, types[0], params)
        found = [call.dims[d] for d in range(3)]
        assert found == [(0, 0, 0), rows, None]


# What is live?


def summed_late(products: int, rows: int, width: int):
    """Wide values first, then the sum of what is made of them."""

    def body(b, x, up, down):
        wide = [b.tanh(b.matmul(x, up)) for _ in range(products)]
        total = b.matmul(wide[0], down)
        for value in wide[1:]:
            total = b.add(total, b.matmul(value, down))
        return b.exp(b.reshape(total, shape=(rows * width,)))

    wide = 8 * width
    return body, [tensor("f32", *s) for s in ((rows, width), (width, wide), (wide, width))]


def graph_of(body, types) -> tuple[ir.Module, ChunkGraph]:
    module = module_of(body, types, ir.Context.current)
    return module, ChunkGraph(entry_function(module))


def test_needs_count_what_is_live_and_what_attention_hides():
    def body(b, q, k, v):
        y = b.attention(b.exp(q), k, v, scale=0.125)
        return b.tanh(b.exp(b.reshape(y, shape=(512, 512))))

    module, graph = graph_of(body, HEADS)
    one = 8 * 512 * 64 * 4
    needs = [need.nbytes for need in graph.needs({})]
    # exp; attention reads it; a view; exp in place; the result is the caller's; return.
    assert needs == [one, 2 * one + ATTENTION_INSIDE, one, one, one, 0]
    wider, region = regions(graph, 1, 1, frozenset())
    assert (region.ops, region.dims, region.size) == ((1,), (0,), 8)
    assert (wider.ops, wider.inside) == ((0, 1), one + ATTENTION_INSIDE)
    needs = [need.nbytes for need in graph.needs({region: 4})]
    assert needs[1] == 2 * one + ATTENTION_INSIDE // 4
    assert module.operation.verify()


def test_a_sum_lives_on_in_the_sum_that_reads_it_but_for_what_a_product_ends_with():
    def body(b, x, y):
        sums = b.add(b.add(b.exp(x), b.tanh(y)), b.exp(y))
        return b.reshape(b.add(sums, b.matmul(b.tanh(x), b.exp(x))), shape=(64 * 64,))

    _, graph = graph_of(body, [tensor("f32", 64, 64)] * 2)
    one = 64 * 64 * 4
    needs = [need.nbytes // one for need in graph.needs({})]
    # The first sum is no value of its own: three operands are there when the second is made.
    assert [graph.name(i) for i in range(5)] == ["exp", "tanh", "add", "exp", "add"]
    assert needs[:5] == [1, 2, 2, 3, 3]
    # The last sum ends the product, so that the sum before it is a value.
    assert needs[5:9] == [2, 3, 4, 2]


@pytest.mark.parametrize("case", [(8, 1024, 256), (3, 256, 64), (1, 64, 64)], ids=str)
def test_more_freedom_needs_no_more(case):
    _, graph = graph_of(*summed_late(*case))
    peaks = []
    for mode in ("balanced", "memory_first"):
        parts = {c.region: c.offers[0].parts for c in plan(graph, CPU, mode)}
        peaks.append(max(need.nbytes for need in graph.needs(parts)))
    assert peaks[1] <= peaks[0] <= max(need.nbytes for need in graph.needs({}))


def test_a_search_asks_each_op_once_for_its_dimensions(monkeypatch):
    asked: Counter[str] = Counter()

    def counted(call: OpCall, dim: int):
        asked[f"{id(call)}:{dim}"] += 1
        return rule(call, dim)

    rule = RULES["matmul"]
    monkeypatch.setitem(RULES, "matmul", counted)
    _, graph = graph_of(*summed_late(8, 1024, 256))
    assert plan(graph, CPU, "memory_first")
    assert len(asked) == 2 * 2 * 8 and set(asked.values()) == {1}


def test_parts_cost_what_is_read_again_and_save_what_fits_into_the_cache():
    def body(b, q, k, v):
        return b.attention(q, k, v, scale=0.125)

    def feed(b, x, w, v):
        return b.matmul(b.gelu(b.matmul(x, w)), v)

    _, graph = graph_of(body, [tensor("f32", 16, 512, 64)] * 3)
    (region,) = regions(graph, 0, 0, frozenset())
    assert seconds(graph, region, 4, CPU) < seconds(graph, region, 1, CPU)
    small = replace(CPU, l3_bytes=1 << 40)
    assert seconds(graph, region, 4, small) > seconds(graph, region, 1, small)
    weights = [tensor("f32", 64, 2048), tensor("f32", 2048, 8192), tensor("f32", 8192, 64)]
    _, graph = graph_of(feed, weights)
    *_, region = regions(graph, 0, 2, frozenset())
    assert seconds(graph, region, 2, CPU) > 1.1 * seconds(graph, region, 1, CPU)


# Parts compute what the whole computes, whatever regions are taken.


def in_parts(module: ir.Module, random: Random) -> int:
    """Split regions at random, whatever that costs, until none is left; how many."""
    count = 0
    graph = ChunkGraph(entry_function(module))
    taken: set[int] = set()
    for op in range(len(graph.ops)):
        for end in range(op, len(graph.ops)):
            found = [r for r in regions(graph, op, end, taken) if taken.isdisjoint(r.ops)]
            if not found or random.random() < 0.5:
                continue
            region = random.choice(found)
            divisors = [n for n in range(2, region.size + 1) if region.size % n == 0]
            apply(graph, region, random.choice(divisors))
            taken.update(region.ops)
            count += 1
    return count


def same(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> bool:
    return all(np.allclose(a, b, 1e-5, 1e-5, True) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_in_parts_compute_the_same(name, monkeypatch):
    monkeypatch.setattr(chunk_graph, "RESULT_SHARE", math.inf)
    program = PROGRAMS[name]
    for seed in range(3):
        module = program.module()
        want = interpret(module, program.inputs())
        in_parts(module, Random(seed))
        assert module.operation.verify()
        assert same(interpret(module, program.inputs()), want)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.full
def test_random_graphs_in_parts_compute_the_reference(monkeypatch):
    monkeypatch.setattr(chunk_graph, "RESULT_SHARE", math.inf)
    split = 0
    for seed in range(1000 if FULL else 120):
        graph = draw_graph(Random(seed), ops=12)
        module = graph.module()
        assert is_static(entry_function(module))
        split += in_parts(module, Random(seed))
        assert module.operation.verify()
        graph.check(interpret(module, graph.inputs), f"seed {seed}")
    assert split > 60


# Who decides.


def attention(b, q, k, v):
    return b.attention(q, k, v, scale=0.125)


def chunked(body, types, choices: Choices, mode: Any = "balanced") -> ir.Module:
    module = module_of(body, types, ir.Context.current)
    Chunk(mode=mode).run(module, PassContext(choices=choices))
    assert module.operation.verify()
    return module


class Names:
    """A policy by a function of the alternatives' names."""

    name = "test"

    def __init__(self, prefer) -> None:
        self._prefer = prefer

    def prefer(self, site, alternatives) -> str:
        return self._prefer([a.name for a in alternatives])


def test_every_number_of_parts_is_offered_with_its_bytes():
    choices = Choices()
    chunked(attention, HEADS, choices)
    (decision,) = choices.log
    assert decision.site.pass_name == "pyc-chunk"
    assert {a.name for a in decision.alternatives} == {KEEP, "split:2", "split:4"}
    nbytes = {a.name: a.cost.workspace_bytes for a in decision.alternatives if a.cost}
    assert nbytes[KEEP] == ATTENTION_INSIDE
    assert nbytes["split:4"] == ATTENTION_INSIDE // 4


@pytest.mark.parametrize("mode", PREFERENCES)
def test_the_order_of_alternatives_follows_the_mode(mode):
    choices = Choices()
    chunked(attention, HEADS, choices, mode)
    (decision,) = choices.log
    costs = {a.name: a.cost for a in decision.alternatives if a.cost}
    chosen, keep = costs[decision.chosen], costs[KEEP]
    assert chosen.seconds <= keep.seconds * (1 + PREFERENCES[mode].slack)
    if mode == "latency_first":
        assert chosen.seconds == min(c.seconds for c in costs.values())
    else:
        assert chosen.workspace_bytes == min(c.workspace_bytes for c in costs.values())


def test_a_policy_may_keep_everything():
    choices = Choices(Names(lambda names: KEEP))
    module = chunked(attention, HEADS, choices)
    assert str(module) == str(module_of(attention, HEADS, ir.Context.current))
    assert [d.chosen for d in choices.log] == [KEEP]


def test_a_log_replays_to_the_same_module():
    first = Choices(Names(lambda names: "split:2"))
    text = str(chunked(attention, HEADS, first))
    replay = Choices(recipe=Recipe.from_log(first.log))
    assert str(chunked(attention, HEADS, replay)) == text
    assert replay.log == first.log


def test_a_recipe_of_parts_that_do_not_exist_is_refused():
    choices = Choices()
    chunked(attention, HEADS, choices)
    (decision,) = choices.log
    with pytest.raises(PycError, match="split:3") as caught:
        chunked(attention, HEADS, Choices(recipe=Recipe({decision.site.key: "split:3"})))
    assert caught.value.code is ReasonCode.RECIPE_MISMATCH


def test_statistics():
    module = module_of(attention, HEADS, ir.Context.current)
    counts = Chunk().run(module, PassContext())
    assert counts == {"regions": 1, "in parts": 1, "parts": 4}


def test_equal_layers_are_all_in_parts_and_what_lies_lower_is_kept():
    def body(b, q, k, v):
        for _ in range(3):
            q = b.attention(q, k, v, scale=0.125)
        low = b.attention(
            *(b.slice(x, starts=(0, 0, 0), stops=(2, 128, 64), steps=(1, 1, 1)) for x in (q, k, v)),
            scale=0.125,
        )
        return b.concat(q, b.pad(low, low=(0, 0, 0), high=(0, 384, 0)), axis=0)

    module = chunked(body, HEADS, Choices())
    ops = [op for op in ops_of(module) if op.name == "pyc.attention"]
    assert sum(PART in op.attributes for op in ops) == len(ops) - 1


def test_control_flow_and_dynamic_sizes_are_left_alone():
    choices = Choices()
    types = [tensor("f32", None, 512, 64)] * 3
    module = chunked(attention, types, choices)
    assert choices.log == () and PART not in str(module)


# The whole way: IREE's arena shrinks, the bits stay.


def onnx_style(x):
    """Separate ops, heads as the second dimension."""

    def heads(x):
        return x.reshape(1, 256, 8, 64).transpose(0, 2, 1, 3)

    q, k, v = heads(x), heads(np.tanh(x)), heads(np.exp(x))
    return (nn.softmax(q @ k.transpose(0, 1, 3, 2) * 0.125) @ v).sum(axis=2)


def fused(x):
    def heads(x):
        return x.reshape(256, 8, 64).transpose(1, 0, 2)

    return nn.attention(heads(x), heads(np.tanh(x)), heads(np.exp(x)), is_causal=True).sum(axis=1)


def feed_forward(x):
    return x + nn.gelu(x @ UP) @ UP.T


rng = np.random.default_rng(0)
UP = rng.normal(0, 0.04, (512, 2048)).astype(np.float32)
ROWS = rng.normal(0, 0.3, (256, 512)).astype(np.float32)
COMPILED = {"onnx": onnx_style, "attention": fused, "feed-forward": feed_forward}


def whole(options):
    return replace(options, passes=HIGH_LEVEL.replace("pyc-chunk,", ""))


@pytest.mark.parametrize("name", sample(list(COMPILED), 2))
@pytest.mark.full
def test_arenas_shrink_and_results_are_the_same_bits(name):
    """With IREE's code for everything: what fusion into kernels changes is not the parts' doing."""
    policy = Names(lambda names: "split:4" if "split:4" in names else names[0])
    options = make_options(planner_mode="memory_first", policy=policy, kernels=NO_KERNELS)
    device = Device("local-sync")
    programs = [
        Program(build(COMPILED[name], [ROWS], o), device) for o in (whole(options), options)
    ]
    before, after = (p.artifact.account.transients for p in programs)
    chosen = [d.chosen for d in programs[1].artifact.decisions if d.site.pass_name == "pyc-chunk"]
    assert chosen and any(c != KEEP for c in chosen)
    assert before is not None and after is not None and after <= 0.75 * before
    want, got = (p(ROWS) for p in programs)
    np.testing.assert_array_equal(got, want)


def test_a_compile_replays_from_its_log():
    options = make_options(planner_mode="memory_first")
    first = lower(Job.of(fused, [ROWS], options))
    recipe = Recipe.from_log(first.decisions)
    again = lower(Job.of(fused, [ROWS], replace(options, recipe=recipe)))
    assert again.code == first.code
    assert any(d.site.pass_name == "pyc-chunk" for d in first.decisions)


def test_where_iree_plans_alone_nothing_runs_in_parts():
    options = make_options(planner_mode="iree")
    assert context_of(options).mode is None
    assert (
        lower(Job.of(fused, [ROWS], options)).code
        == lower(Job.of(fused, [ROWS], whole(options))).code
    )


def test_passes_of_a_compile_see_its_own_target_and_mode():
    options = make_options(planner_mode="memory_first", target="vulkan")
    mine = replace(options, target=replace(options.target, name="mine", l3_bytes=1 << 40))
    context = context_of(mine)
    assert context.target is mine.target and context.mode == "memory_first"
    assert context_of(replace(mine, parts_for="balanced")).mode == "balanced"


def test_an_option_of_the_pass_wins_over_the_context():
    def chosen(text: str, **context: Any) -> list[Decision]:
        choices, module = Choices(), module_of(attention, HEADS, ir.Context.current)
        run_pipeline(module, text, PassContext(choices=choices, **context))
        return list(choices.log)

    memory, vulkan = "memory_first", Target.named("vulkan")
    named = chosen("pyc-chunk{mode=memory_first target=vulkan}")
    assert named and named == chosen("pyc-chunk", mode=memory, target=vulkan)
    assert named == chosen("pyc-chunk{mode=memory_first target=vulkan}", mode="latency_first")
    assert named != chosen("pyc-chunk", mode=memory)
    assert chosen("pyc-chunk", mode=None) == []


# pyc-chunk on images: parts of rows with halos compute what the whole computes, in less memory.


NUMBERS = np.random.default_rng(7)


def weights(*shape):
    return NUMBERS.normal(size=shape, scale=0.3).astype(np.float32)


def test_rows_of_a_window_are_those_that_its_outputs_see():
    random = Random(1)
    for _ in range(300):
        size, reach, stride = random.randint(1, 12), random.randint(1, 5), random.randint(1, 3)
        low, high = random.randrange(reach), random.randrange(reach)
        outputs = (size + low + high - reach) // stride + 1
        if size + low + high < reach:
            continue
        first = random.randrange(outputs)
        rows = (first, random.randint(first + 1, outputs))
        window = ChunkWindow(size, reach, stride, low)
        seen = {o * stride - low + t for o in range(*rows) for t in range(reach)}
        inside = sorted(s for s in seen if 0 <= s < size)
        start, end = window.source(rows)
        assert (start, end) == (max(min(seen), 0), min(max(seen) + 1, size))
        assert not inside or (start <= inside[0] and inside[-1] < end)
        before, behind = window.pads(rows)
        assert (end - start + before + behind - reach) // stride + 1 == rows[1] - rows[0]


def window_call(size, kernel, pads, layout="NHWC"):
    shape = (1, size, size, 4) if layout == "NHWC" else (1, 4, size, size)
    x, definition = tensor("f32", *shape), OPS["max_pool2d"]
    params = definition.bind({"kernel": (kernel, kernel), "pads": pads, "layout": layout})
    return OpCall(definition, (x,), definition.infer(x, **params), params)


def test_windows_that_see_padding_alone_are_not_cut():
    assert window_call(6, 3, (1, 1, 1, 1)).dims[1] == (1,)
    assert window_call(6, 3, (1, 1, 1, 1), "NCHW").dims[3] == (3,)
    assert window_call(6, 3, (3, 0, 0, 0)).dims[1] is None
    assert window_call(6, 3, (0, 0, 3, 0)).dims[1] is None
    assert window_call(6, 3, (3, 0, 3, 0)).dims[2] == (2,)


def drawn(random):
    """A chain of windows on NHWC images, with residual sums, of 12 rows at first."""
    shapes = [(4, 4) for _ in range(random.randint(2, 4))]

    def body(b, x):
        for channels, _ in shapes:
            kind = random.choice(("conv", "conv", "depthwise", "max", "mean", "relu", "residual"))
            high = b.type_of(x).shape[1]
            window = {
                "strides": (random.choice((1, 1, 2)), random.choice((1, 2))),
                "pads": random.choice(((1, 1, 1, 1), (0, 1, 1, 0), (2, 2, 2, 2))),
                "layout": "NHWC",
            }
            if high < 4 or kind == "relu":
                x = b.relu(x)
            elif kind in ("conv", "depthwise"):
                groups = channels if kind == "depthwise" else 1
                w = b.constant(value=weights(3, 3, channels // groups, channels))
                x = b.conv2d(x, w, groups=groups, dilations=(random.choice((1, 2)), 1), **window)
            elif kind == "residual":
                w = b.constant(value=weights(3, 3, channels, channels))
                x = b.add(b.conv2d(x, w, pads=(1, 1, 1, 1), layout="NHWC"), x)
            elif kind == "max":
                x = b.max_pool2d(x, kernel=(3, 3), **window)
            else:
                x = b.avg_pool2d(
                    x, kernel=(3, 3), count_include_pad=random.random() < 0.5, **window
                )
        return x

    return body


def test_random_windows_in_parts_compute_the_same(monkeypatch):
    monkeypatch.setattr(chunk_graph, "RESULT_SHARE", np.inf)
    split = 0
    for seed in range(500 if FULL else 60):
        module = module_of(drawn(Random(seed)), [tensor("f32", 1, 12, 5, 4)], ir.Context.current)
        x = weights(1, 12, 5, 4)
        want = interpret(module, [x])
        split += in_parts(module, Random(seed))
        assert module.operation.verify()
        assert same(interpret(module, [x]), want), f"seed {seed}"
    assert split > 30


def test_parts_overlap_in_halos_alone():
    def body(b, x):
        w = b.constant(value=weights(3, 3, 4, 4))
        y = b.relu(b.conv2d(x, w, pads=(1, 1, 1, 1), layout="NHWC"))
        y = b.conv2d(y, w, pads=(1, 1, 1, 1), layout="NHWC", strides=(2, 2))
        return b.max_pool2d(y, kernel=(2, 2), strides=(2, 2), layout="NHWC")

    module = module_of(body, [tensor("f32", 1, 32, 32, 4)], ir.Context.current)
    graph = ChunkGraph(entry_function(module))
    conv, relu, down, pool = (
        i for i in range(len(graph.ops)) if graph.name(i) not in ("", "constant")
    )
    region = max(regions(graph, conv, pool, frozenset()), key=lambda r: len(r.ops))
    assert region.size == 8
    every = [rows_of(graph, region, 4, n) for n in range(4)]
    assert [r[pool] for r in every] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert [r[down] for r in every] == [(0, 4), (4, 8), (8, 12), (12, 16)]
    assert [r[relu] for r in every] == [(0, 8), (7, 16), (15, 24), (23, 32)]
    assert [r[conv] for r in every] == [r[relu] for r in every]
    whole = region.inside
    assert whole / 4 < region.inside_of(4) < whole / 2


EXPAND, DEPTHWISE, PROJECT = weights(96, 16, 1, 1), weights(96, 1, 3, 3), weights(24, 96, 1, 1)


def block(x):
    """An inverted residual block that halves the image (MobileNet-V2)."""
    x = nn.relu(nn.conv2d(x, EXPAND))
    x = nn.relu(nn.conv2d(x, DEPTHWISE, pads=1, strides=(2, 2), groups=96))
    return nn.conv2d(x, PROJECT)


@pytest.mark.full
def test_an_image_in_parts_needs_less_memory():
    any_target()
    x = NUMBERS.normal(size=(1, 16, 96, 96)).astype(np.float32)
    needs, results = {}, {}
    for mode in ("latency_first", "memory_first"):
        program = compile(block, [x], planner_mode=mode, device=Device("local-sync"))
        needs[mode] = program.artifact.account.transients
        results[mode] = np.asarray(program(x))
        chosen = [d.chosen for d in program.artifact.decisions if d.site.pass_name == "pyc-chunk"]
        assert any(c.startswith("split") for c in chosen) == (mode == "memory_first")
    assert np.abs(results["latency_first"] - results["memory_first"]).max() < 1e-4
    assert needs["memory_first"] < 0.6 * needs["latency_first"]
