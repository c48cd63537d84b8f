"""Generated kernels in whole programs: chosen, replayed, refused, and equal to numpy."""

import math
import re
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from kernel_runs import any_target, targets
from kernel_works import lone

from pyc_mlir.api import build, compile
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import emit, lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.nn import conv2d, gelu, layernorm, softmax
from pyc_mlir.pipelines.choices.choices import Recipe
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import LargerConstant
from pyc_mlir.pipelines.kernels.knobs import decode
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.pyc.constants import RATES, ExchangeRate, Priced, PricedGroup, prices
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import Device

RANDOM = np.random.default_rng(3)
WEIGHTS = (RANDOM.normal(size=(40, 24)) / math.sqrt(40)).astype(np.float32)
BIAS = RANDOM.normal(size=24).astype(np.float32)
SCALE, SHIFT = (RANDOM.normal(size=40).astype(np.float32) for _ in range(2))
SITE = "pyc-select-kernels"
on_targets = pytest.mark.parametrize("target", targets(), ids=lambda t: t.name)


def block(x):
    """softmax(gelu(layernorm(x) W + b)), a residual behind it."""
    h = gelu(layernorm(x, SCALE, SHIFT) @ WEIGHTS + BIAS)
    return softmax(h) + h


def reference(x):
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    n = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * SCALE + SHIFT
    h = n @ WEIGHTS.astype(np.float64) + BIAS
    h = 0.5 * h * (1 + np.vectorize(math.erf)(h / math.sqrt(2))) if h.size else h
    power = np.exp(h - h.max(-1, keepdims=True, initial=-np.inf))
    return power / power.sum(-1, keepdims=True) + h


def chosen(decisions):
    return [d.chosen for d in decisions if d.site.pass_name == SITE]


@on_targets
@pytest.mark.parametrize("shape", [(5, 40), (2, 3, 40), (1, 40), (130, 40)], ids=str)
@pytest.mark.full
def test_a_program_with_kernels_equals_numpy(shape, target):
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    program = compile(block, [x], target=target, device=Device("local-sync"))
    assert any(name.startswith("gemm:matmul+add") for name in chosen(program.artifact.decisions))
    assert any(name.startswith("rows:layernorm") for name in chosen(program.artifact.decisions))
    assert np.allclose(program(x), reference(x), rtol=2e-5, atol=2e-6)


@on_targets
@pytest.mark.full
def test_dynamic_rows_run_at_every_size(target):
    program = compile(
        block, [TensorSpec("f32", None, 3, 40)], target=target, device=Device("local-sync")
    )
    assert chosen(program.artifact.decisions)
    for rows in (1, 2, 7, 64, 0):
        x = np.random.default_rng(rows).normal(size=(rows, 3, 40)).astype(np.float32)
        assert np.allclose(program(x), reference(x), rtol=2e-5, atol=2e-6)


@pytest.mark.full
def test_modes_change_no_bit():
    x = np.random.default_rng(2).normal(size=(64, 40)).astype(np.float32)
    results = {
        mode: bytes(np.asarray(compile(block, [x], planner_mode=mode)(x)))
        for mode in ("iree", "latency_first", "balanced", "memory_first")
    }
    assert len(set(results.values())) == 1


@pytest.mark.full
def test_the_choice_is_replayed_and_can_be_another():
    x = np.zeros((8, 40), np.float32)
    first = build(block, [x], make_options())
    again = build(block, [x], make_options(recipe=Recipe.from_log(first.decisions)))
    assert again.vmfb == first.vmfb and again.decisions == first.decisions
    changed = [
        replace(d, chosen="iree") if d.site.pass_name == SITE else d for d in first.decisions
    ]
    other = build(block, [x], make_options(recipe=Recipe.from_log(changed)))
    assert set(chosen(other.decisions)) == {"iree"} and other.vmfb != first.vmfb


def test_families_can_be_left_out():
    x = np.zeros((8, 40), np.float32)
    assert not chosen(lower(Job.of(block, [x], make_options(kernels="iree"))).decisions)
    only = chosen(lower(Job.of(block, [x], make_options(kernels="rows"))).decisions)
    assert only and all(name.split(":")[0] in ("rows", "iree") for name in only)
    with pytest.raises(PycError, match=r"kernels: .*some of rows, gemm.*got \['abacus'\]"):
        make_options(kernels="rows+abacus")


def test_no_kernels_where_no_target_has_them():
    assert not chosen(
        lower(Job.of(block, [TensorSpec("f32", 8, 40)], make_options(target="vulkan"))).decisions
    )
    text, _ = emit(
        Job.of(block, [TensorSpec("f32", 8, 40)], make_options(target="vulkan")), "linalg"
    )
    assert "pyc.kernel" not in text


def test_equal_kernels_share_their_code():
    def twice(x):
        return softmax(softmax(x) @ np.eye(40, dtype=np.float32))

    text, _ = emit(
        Job.of(twice, [TensorSpec("f32", 8, 40)], make_options(target="cpu-avx2")), "linalg"
    )
    assert text.count("func.func private @pyc_rows") == 1
    assert text.count("call @pyc_rows") == 2


@pytest.mark.full
def test_a_kernel_attached_by_hand_is_taken():
    """Without a decision, with the knobs that it has and no program would get."""
    knobs = "Rows(operation='softmax', rows=4, columns=8, rows_per_workgroup=3, unroll=2, ahead=0)"
    text = f"""func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {{
      %y = "pyc.softmax"(%x) {{axis = -1 : i64, pyc.kernel = {{covers = 1 : i64, family = "rows",
        feeds = ["0|1"], knobs = "{knobs}"}}}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
      return %y : tensor<4x8xf32>
    }}"""
    linalg, _ = emit(Job.of(text, None, make_options(target="cpu-avx2")), "linalg")
    assert knobs in linalg and "call @pyc_rows" in linalg
    program = compile(text, target=any_target(), device=Device("local-sync"))
    assert not chosen(program.artifact.decisions)
    x = np.random.default_rng(5).normal(size=(4, 8)).astype(np.float32)
    power = np.exp(x.astype(np.float64))
    assert np.allclose(program(x), power / power.sum(1, keepdims=True), rtol=1e-6)


def test_a_kernel_for_another_target_is_refused():
    text, _ = emit(
        Job.of(block, [TensorSpec("f32", 8, 40)], make_options(target="cpu-avx2")), "linalg"
    )
    with pytest.raises(PycError, match=r"kernel @pyc_.*: expected a kernel for target") as error:
        compile_module(text.encode(), Target.named("vulkan"))
    assert error.value.code is ReasonCode.INVALID_IR


@pytest.mark.full
def test_only_knobs_are_read():
    for text in ("", "Rows(", "Rows()", "Gemm(rows=1)", "Rows(**{})", "print(1)", "[" * 5000):
        with pytest.raises(PycError) as error:
            decode(FAMILIES["rows"].knobs, text)
        assert error.value.code is ReasonCode.BAD_ARGUMENT


SOFTMAX = "Rows(operation='softmax', rows=4, columns=8"


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("rows", "Rows(operation='softmax', rows=4.0, columns=8)"),
        ("rows", "Rows(operation='softmax', rows=4, columns=True)"),
        ("rows", f"{SOFTMAX}, ahead=-1)"),
        ("rows", f"{SOFTMAX}, epsilon=1e999)"),
        ("rows", f"{SOFTMAX}, prologue=None)"),
        ("rows", f"{SOFTMAX}, prologue=Pointwise(constants=(1,)))"),
        ("gemm", "Gemm(rows='m', columns=8, depth=8, workgroups=(1, 1.0))"),
        ("gemm", "Gemm(rows='m', columns=8, depth=8, workgroups=(1, 1, 1))"),
        ("gemm", "Gemm(rows='m', columns=8, depth=8, workgroups=1)"),
        ("batch_gemm", "BatchGemm(what=Contraction(batch=(True,), rows=4, columns=8, depth=8))"),
    ],
)
def test_numbers_of_another_type_or_without_sense_are_no_knobs(family, text):
    with pytest.raises(PycError) as error:
        decode(FAMILIES[family].knobs, text)
    assert error.value.code is ReasonCode.BAD_ARGUMENT


def test_a_norm_with_an_infinite_epsilon_is_left_to_iree():
    shapes = [(4, 8), (8,)]
    finite, infinite = (
        FAMILIES["rows"].match(
            lone("rmsnorm", *shapes, axis=-1, epsilon=e), Target.named("cpu-avx2")
        )
        for e in (1e-5, math.inf)
    )
    assert len(finite) == 1 and not infinite


def test_the_default_is_the_cheapest():
    decisions = lower(
        Job.of(block, [TensorSpec("f32", 64, 40)], make_options(target="cpu-avx2"))
    ).decisions
    for d in (d for d in decisions if d.site.pass_name == SITE):
        costs = {a.name: a.cost.seconds for a in d.alternatives if a.cost is not None}
        assert costs[d.chosen] == min(costs.values())


@pytest.mark.parametrize("error", [None, "rounding", 0, 1e-3])
def test_a_bound_on_the_error_leaves_out_what_adds_other_numbers(error):
    first, second = (RANDOM.normal(size=(64, c, 3, 3)).astype(np.float32) for c in (16, 64))

    def twice(x):
        return conv2d(conv2d(x, first, pads=1), second, pads=1)

    options = make_options(target="cpu-avx512", contract=Contract(max_error=error))
    decisions = lower(Job.of(twice, [TensorSpec("f32", 1, 16, 33, 31)], options)).decisions
    requested = [d for d in decisions if d.site.pass_name == SITE]
    offered = [a.reason for d in requested for a in d.alternatives if a.name.startswith("winograd")]
    sizes = [2, 4] if error in (None, "rounding") else []
    assert [m for m in (2, 4) if any(f"m={m}" in reason for reason in offered)] == sizes


def test_code_comes_when_dispatches_are_final():
    lowered = lower(Job.of(block, [np.zeros((5, 40), np.float32)], make_options()))
    kernels = len({c.partition(":")[0] for c in chosen(lowered.decisions) if c != "iree"})
    flow, sources = (
        compile_module(lowered.code, make_options().target, compile_to=phase).decode()
        for phase in ("flow", "executable-sources")
    )
    assert flow.count("util.optimization_barrier") >= kernels > 0
    assert "vector.fma" not in flow
    # What is left reads the arguments, and holds no kernel's operands.
    assert not re.search(r"optimization_barrier .* : (?!!stream\.resource)", sources)
    assert "vector.fma" in sources


def test_kernels_that_differ_in_a_constant_only_stay_apart():
    def twice(x):
        return np.tanh(x * 2.0), np.tanh(x * 3.0)

    x = np.random.default_rng(5).normal(size=(256, 512)).astype(np.float32)
    program = compile(twice, [x], device=Device("local-sync"))
    assert [c.partition(":")[0] for c in chosen(program.artifact.decisions)] == ["elementwise"] * 2
    for got, factor in zip(program(x), (2.0, 3.0), strict=True):
        assert np.allclose(got, np.tanh(x * factor), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [24, 130])
@pytest.mark.full
def test_a_row_has_the_same_bits_wherever_it_lies(columns):
    """Lower tiles at the bottom of a matrix add in the same order as full ones."""
    weights = RANDOM.normal(size=(96, columns)).astype(np.float32)
    x = RANDOM.normal(size=(128, 96)).astype(np.float32)
    results = []
    for rows in (7, 13, 64, 128):
        program = compile(lambda x: x @ weights, [x[-rows:]], device=Device("local-sync"))
        assert chosen(program.artifact.decisions) == ["gemm:matmul"]
        results.append(program(x[-rows:]))
    for result in results:
        assert np.array_equal(result, results[-1][-len(result) :])


# The price of constants larger than the model's: what is given up, and what all choices cost.


OWN, LARGER = "conv", "winograd"


def group(constant: str, own: int, larger: int, slow: float, quick: float) -> PricedGroup:
    """A group with a kernel for the model's weights and a quicker one for larger weights."""
    ways = {LARGER: Priced(quick, {f"{constant} 1": larger}), OWN: Priced(slow, {constant: own})}
    return PricedGroup(ways, {constant: own})


def test_without_a_rate_the_quickest_is_taken():
    found = prices([group("w", 100, 400, 2.0, 1.99)], 0, ExchangeRate())
    assert found.taken == (LARGER,) and found.price == 0.0
    assert found.added == ({LARGER: 300, OWN: 0},)


def test_a_larger_constant_stays_where_it_saves_more_than_it_is_worth():
    """Of 1000 bytes and 10 s, at the rate 0.5, a byte is worth 5 ms."""
    rest = PricedGroup({OWN: Priced(9.0)})
    rate = ExchangeRate(worth=0.5, slack=1.0)
    little = prices([group("w", 100, 200, 1.4, 1.0), rest], 800, rate)
    assert little.price == pytest.approx(0.5 * 10 / 1000)
    assert little.taken == (OWN, OWN)
    much = prices([group("w", 100, 200, 1.6, 1.0), rest], 800, rate)
    assert much.taken == (LARGER, OWN)


def test_no_more_time_is_lost_than_the_mode_accepts():
    groups = [group(f"w{i}", 100, 400, 1.02, 1.0) for i in range(10)]
    found = prices(groups, 0, ExchangeRate(worth=1.0, slack=0.005))
    assert sorted(found.taken) == [OWN, OWN, *[LARGER] * 8]


def test_parts_that_read_one_weight_give_it_up_together():
    """Its bytes count once, their seconds twice."""
    rest = PricedGroup({OWN: Priced(8.0)})
    shared = [*(group("w", 100, 200, 1.3, 1.0) for _ in range(2)), rest]
    alone = [*(group(name, 100, 200, 1.3, 1.0) for name in "vw"), rest]
    rate = ExchangeRate(worth=0.8, slack=1.0)
    assert prices(shared, 1800, rate).taken == (LARGER, LARGER, OWN)
    assert prices(alone, 1600, rate).taken == (OWN, OWN, OWN)


def test_a_weight_that_another_op_reads_as_it_is_stays_beside_its_larger_form():
    """As a table that is looked up, and multiplied with at the end."""
    lookup = PricedGroup({OWN: Priced(1.0, {"w": 100})}, {"w": 100})
    found = prices([group("w", 100, 120, 2.0, 1.0), lookup], 0, ExchangeRate())
    assert found.added[0] == {LARGER: 120, OWN: 0}


@pytest.mark.parametrize("seed", range(60))
def test_what_is_taken_costs_no_more_than_the_price_and_the_slack(seed):
    random = Random(seed)
    groups = []
    for i in range(random.randint(1, 6)):
        own = random.randint(1, 100)
        ways = {OWN: Priced(random.uniform(1, 2), {f"w{i}": own})}
        for j in range(random.randint(0, 3)):
            ways[f"kernel {j}"] = Priced(
                random.uniform(0.5, 2), {f"w{i} {j}": random.randint(1, 400)}
            )
        groups.append(PricedGroup(ways, {f"w{i}": own}))
    rate = ExchangeRate(random.uniform(0.1, 2), random.uniform(0, 0.3))
    free, found = prices(groups, 50, ExchangeRate()), prices(groups, 50, rate)

    def seconds(taken):
        return sum(g.ways[n].seconds for g, n in zip(groups, taken, strict=True))

    def added(taken):
        return sum(a[n] for a, n in zip(found.added, taken, strict=True))

    lost, saved = seconds(found.taken) - seconds(free.taken), added(free.taken) - added(found.taken)
    assert saved >= 0 and lost <= rate.slack * seconds(free.taken) + 1e-9
    assert lost <= found.price * saved + 1e-9


def test_the_rates_of_the_modes():
    assert "latency_first" not in RATES and None not in RATES
    assert RATES["balanced"].slack <= 0.02


def test_kernels_of_unknown_sizes_are_chosen_for_several_with_the_numbers():
    any_target()
    w = RANDOM.normal(size=(64, 64, 3, 3)).astype(np.float32)
    images = TensorSpec("f32", "n", 64, 28, 28)
    options = make_options(check=False, dims={"n": (1, 32)})
    made = build(lambda x: conv2d(x, w, pads=(1, 1, 1, 1)), [images], options)
    (decision,) = [d for d in made.decisions if "conv2d" in d.chosen and d.site.pass_name == SITE]
    (note,) = [str(f) for f in decision.facts if "at several sizes" in str(f)]
    parts = [part.rsplit(" ", 3) for part in note.partition("sizes: ")[2].split("; ")]
    ratios = {name: max(float(r.strip(",")) for r in at) for name, *at in parts}
    assert set(ratios) == {a.name for a in decision.alternatives}
    assert ratios[decision.chosen] == min(ratios.values()) and min(ratios.values()) >= 1
    saved = [f.saves for f in decision.facts if isinstance(f, LargerConstant)]
    assert saved and min(saved) > 0
