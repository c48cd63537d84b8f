"""Products: knobs from the target, NaN and tails, what is offered, and no spill in hot loops."""

import math
from functools import partial

import numpy as np
import pytest
from assembly import hottest, innermost_loops
from conftest import sample
from family_checks import computed
from kernel_runs import Kernels, agrees, any_target, assembly, targets
from kernel_works import layer, lone

import pyc_mlir.dialects.ops  # noqa: F401
from pyc_mlir import nn
from pyc_mlir.api import compile
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.pipelines.kernels.families.batch import BATCH_GEMM, STACK, BatchGemm, Gemv
from pyc_mlir.pipelines.kernels.families.gemm import FAMILY as GEMM
from pyc_mlir.pipelines.kernels.families.gemm import Gemm
from pyc_mlir.pipelines.kernels.families.rows import OPERATIONS, Rows
from pyc_mlir.pipelines.kernels.lang.pointwise import COLUMN, NUMBER, Pointwise, PointwiseStep
from pyc_mlir.pipelines.kernels.match import Contraction, Feed, find_product
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp
from pyc_mlir.runtime.device import Device

AVX2, AVX512 = Target.named("cpu-avx2"), Target.named("cpu-avx512")


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [(1, 1, 1), (512, 512, 512), ("m", 100, 5000), (7, 33, 1025)])
def test_the_targets_knobs_are_legal(target, shape):
    knobs = Gemm.on(target, *shape)
    assert GEMM.refusal(knobs, target) == ""
    assert knobs.panel == (64 if target is AVX512 else 16)
    assert 4 * knobs.row_block * knobs.depth_block <= target.l2_bytes


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
def test_constant_weights_and_every_block(target):
    """Depth in three blocks, all tails, weights in the program; NaN and infinities as in numpy."""
    knobs = Gemm.on(target, 20, 201, 2100, epilogue=layer(bias=True, activation="relu"))
    random = np.random.default_rng(5)
    b = (random.normal(size=(2100, 201)) / math.sqrt(2100)).astype(np.float32)
    b[2000, 150] = b[3, 200] = -np.inf
    bias = random.normal(size=201).astype(np.float32)
    constants = {"b": knobs.panels.pack(b), "e0": bias}
    run = Kernels(target, [knobs.kernel("product")], {"product": constants})
    a = random.normal(size=(20, 2100)).astype(np.float32)
    a[7, 3] = np.nan
    a[9, 5] = a[11, 3] = np.inf
    a[11, 4] = a[19, 2099] = -np.inf
    want = computed("relu", computed("add", computed("matmul", a, b), bias))
    exact = want.value
    assert np.isnan(exact[7]).all() and not np.isnan(exact[:7]).any() and np.isinf(exact).any()
    agrees(run.run("product", a), exact, want.tolerance)


def test_a_residual_may_be_overwritten_where_c_is_written_once():
    residual = layer(bias=True, residual=True)
    one = Gemm.on(AVX2, 8, 64, 512, epilogue=residual).kernel("one")
    several = Gemm.on(AVX2, 8, 64, 5000, epilogue=residual).kernel("several")
    single = Gemm.on(AVX2, 1, 64, 512, epilogue=residual).kernel("single")
    assert (one.in_place, several.in_place) == ((("c", "e1"),), ())
    assert single.in_place == (("c", "e0"), ("c", "e1"))


PRODUCTS = {
    "small": (30, 64, 100, "relu"),
    "split": (20, 200, 3000, "relu"),
    "gelu": (30, 200, 100, "gelu"),
    "dynamic": ("m", 200, 100, "gelu_tanh"),
    "one": (1, 200, 3000, "silu"),
}


@pytest.fixture(scope="module", params=[AVX2, AVX512], ids=lambda t: t.name)
def text(request, tmp_path_factory):
    """The code that LLVM writes for the kernels of a target; needs no such machine."""
    target = request.param
    kernels = [Rows.on(target, n, "m", "n").kernel(f"rows_{n}") for n in OPERATIONS]
    for name, (*shape, activation) in PRODUCTS.items():
        epilogue = layer(bias=True, activation=activation)
        kernels.append(Gemm.on(target, *shape, epilogue=epilogue).kernel(name))
    return target, assembly(target, kernels, tmp_path_factory.mktemp("assembly"))


@pytest.mark.parametrize("name", ["small", "split", "gelu", "dynamic"])
@pytest.mark.full
def test_a_products_hot_loop_is_all_arithmetic(text, name):
    target, written = text
    loop = hottest(written, name)
    assert loop.fmas == 4 * 6 * (4 if target is AVX512 else 2)
    assert loop.instructions < 2 * loop.fmas


@pytest.mark.parametrize("name", [*(f"rows_{n}" for n in OPERATIONS), *PRODUCTS])
@pytest.mark.full
def test_no_loop_has_a_spill(text, name):
    loops = [loop for loop in innermost_loops(text[1]) if loop.function == name]
    assert loops and not [loop for loop in loops if loop.spills]


def test_a_spill_is_seen():
    """The reader on a made text: an outer loop, an inner one with a spill and one without."""
    text = """
f:
.L1:
\tvmovaps\t64(%rsp), %zmm3
.L2:
\tvfmadd231ps\t(%rax){1to16}, %zmm1, %zmm2
\tvmovups\t%zmm2, -64(%rsp)
\tjne\t.L2
.L3:
\tvfmadd213ps\t%ymm1, %ymm2, %ymm3
\tvmovups\t%ymm2, (%rdi)
\tvsubps\t32(%rsp), %ymm4, %ymm4
\tjne\t.L3
\tjne\t.L1
"""
    first, second = innermost_loops(text)
    assert (first.fmas, len(first.spills)) == (1, 1)
    assert (second.fmas, second.spills) == (1, ())
    assert hottest(text, "f") == first


def test_the_targets_knobs():
    small = Gemv.on(AVX2, Contraction((), 1, 64, 64, "mk", "kn", "mn"))
    large = Gemv.on(AVX2, Contraction((), 1, 4096, 4096, "mk", "kn", "mn"))
    assert (small.workgroups, large.workgroups) == ((1, 1), (1, 4))
    assert (large.at_once, large.strip) == (8, 4096)
    several = Gemv.on(AVX512, Contraction((8,), 4, 4096, 128, right="bnk"))
    assert several.workgroups == (8, 1)


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.parametrize("right", ["bkn", "bnk"])
@pytest.mark.full
def test_sizes_known_at_run_time(target, right):
    """A decoding step: the cache of keys grows; NaN and infinities as in numpy."""
    what = Contraction((2,), 2, "n", "k", right=right)
    knobs = Gemv.on(target, what, epilogue=layer(activation="relu"))
    run, random = Kernels(target, [knobs.kernel("step")]), np.random.default_rng(8)
    for n, k in ((1, 1), (15, 9), (64, 128), (150, 16), (1100, 35)):
        a, b = random.normal(size=(2, 2, k)), random.normal(size=(2, n, k))
        a[1, 0, k // 2], a[0, 1, k // 2], b[0, n // 2, k - 1] = np.nan, np.inf, -np.inf
        b = b if right == "bnk" else b.transpose(0, 2, 1)
        a, b = a.astype(np.float32), b.astype(np.float32)
        want = computed(
            "relu", computed("matmul", a, b.transpose(0, 2, 1) if right == "bnk" else b)
        )
        exact = want.value
        assert np.isnan(exact[1, 0]).all() and not np.isnan(exact[1, 1]).any()
        agrees(run.run("step", a, b), exact, want.tolerance)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.full
def test_no_loop_has_a_spill_of_gemv(target, tmp_path):
    """Needs no such machine: LLVM's assembly is read."""
    gelu = layer(bias=True, activation="gelu")
    kernels = [
        Gemv.on(target, Contraction((), rows, 4096, 4096, "mk", right, "mn"), epilogue=gelu).kernel(
            f"{right}{rows}"
        )
        for right in ("kn", "nk")
        for rows in (1, 3)
    ]
    text = assembly(target, kernels, tmp_path)
    for kernel in kernels:
        assert hottest(text, kernel.name).fmas >= 8
        loops = [loop for loop in innermost_loops(text) if loop.function == kernel.name]
        assert not [loop for loop in loops if loop.spills], kernel.name


product = partial(computed, "matmul")
HEADS = ("bmck", "bnck", "bcmn")


def arrays(knobs, random, **dynamic):
    sizes = {x: dynamic.get(x, d) for x, d in knobs.what.sizes.items()}
    return [
        random.normal(size=[sizes[x] for x in o]).astype(np.float32) for o in knobs.what.orders[:2]
    ]


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (128, 64, 128), ("m", "n", "k"), (500, 33, 3001)])
@pytest.mark.parametrize("right", ["bkn", "bnk"])
def test_the_targets_knobs_are_legal_of_batch_gemm(target, sizes, right):
    knobs = BatchGemm.on(target, Contraction((12,), *sizes, right=right))
    assert BATCH_GEMM.refusal(knobs, target) == ""
    assert not knobs.local or 4 * knobs.panel * knobs.depth_block <= STACK


def test_small_products_stay_with_one_core():
    assert BatchGemm.on(AVX512, Contraction((2,), 8, 8, 8)).workgroups == (1, 1, 1)
    assert BatchGemm.on(AVX512, Contraction((12,), 128, 128, 64)).workgroups == (
        12,
        1,
        1,
    )
    single = BatchGemm.on(AVX512, Contraction((), 1024, 1024, 1024, "mk", "kn", "mn"))
    assert single.workgroups == (1, 1, 4)
    assert Gemm.on(AVX512, 4, 8, 8).workgroups == (1, 1)
    assert Gemm.on(AVX512, 1024, 1024, 1024).workgroups == (4, 1)
    assert Gemm.on(AVX512, 1, 4096, 4096).workgroups == (1, 4)
    assert Gemm.on(AVX512, "m", 4096, 4096).workgroups == (1, 4)


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
def test_attention_in_place(target):
    """Scores of scaled heads, and their product with values, read as a projection left them."""
    scale = Pointwise(
        (NUMBER, COLUMN), (), (PointwiseStep("mul", (0, 1)), PointwiseStep("add", (3, 2)))
    )
    scores = BatchGemm.on(target, Contraction((2, 3), 37, 41, 20, *HEADS), epilogue=scale)
    values = BatchGemm.on(target, Contraction((2, 3), 37, 20, 41, "bcmk", "bkcn", "bmcn"))
    kernels = {"scores": scores, "values": values}
    run = Kernels(target, [g.kernel(name) for name, g in kernels.items()])
    random = np.random.default_rng(3)
    reads = [np.array([0.25], np.float32), random.normal(size=2 * 3 * 37).astype(np.float32)]
    for name, knobs in kernels.items():
        a, b = arrays(knobs, random)
        a.reshape(-1)[5], a.reshape(-1)[-3], b.reshape(-1)[7] = np.nan, np.inf, -np.inf
        if name == "scores":
            others = reads
            scaled = computed(
                "mul", product(a.transpose(0, 2, 1, 3), b.transpose(0, 2, 3, 1)), reads[0]
            )
            want = computed("add", scaled, reads[1].reshape(2, 3, 37, 1))
        else:
            others, want = [], product(a, b.transpose(0, 2, 1, 3))
            want = computed("transpose", want, permutation=(0, 2, 1, 3))
        exact = want.value
        assert np.isnan(exact).any() and np.isinf(exact).any() and np.isfinite(exact).any()
        agrees(run.run(name, a, b, *others), exact, want.tolerance)


@pytest.mark.full
def test_workers_change_no_bit():
    """Each worker packs on a stack of its own; shares of all three kinds run at once."""
    target, random = any_target(), np.random.default_rng(9)
    knobs = {
        f"cut{number}": BatchGemm.on(
            target, Contraction((3,), 50, 200, 70, right="bnk"), workgroups=w
        )
        for number, w in enumerate([(1, 1, 1), (3, 1, 1), (1, 3, 1), (1, 1, 3), (2, 2, 2)])
    }
    device = Device("local-task", threads=2)
    run = Kernels(target, [g.kernel(name) for name, g in knobs.items()], device=device)
    a, b = arrays(knobs["cut0"], random)
    first = run.run("cut0", a, b)
    for _ in range(5):
        assert all(np.array_equal(run.run(name, a, b), first) for name in knobs)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.full
def test_no_loop_has_a_spill_of_batch_gemm(target, tmp_path):
    """Needs no such machine: LLVM's assembly is read. docs/kernels.md says which loops have."""
    sizes = {"local": (100, 128, 64), "deep": (12, 64, 128)}
    gelu = layer(activation="gelu")
    kernels = [BatchGemm.on(target, Contraction((4,), *s)).kernel(n) for n, s in sizes.items()]
    heads: dict[str, int | str] = {"turned": 128, "dynamic": "m"}
    for name, rows in heads.items():
        what = Contraction((1, 4), rows, 128, 64, *HEADS)
        kernels.append(BatchGemm.on(target, what, epilogue=gelu).kernel(name))
    text = assembly(target, kernels, tmp_path)
    for name in (*sizes, *heads):
        loop = hottest(text, name)
        assert loop.fmas == 4 * 6 * (4 if target is AVX512 else 2)
        assert loop.instructions <= 2 * loop.fmas
        loops = [loop for loop in innermost_loops(text) if loop.function == name]
        assert not [loop for loop in loops if loop.spills], name


TARGET = Target.named("cpu-avx2")


class Group:
    """A group that is written op by op; values are numbered as in `Work`."""

    def __init__(self, *shapes):
        self.inputs = [TensorType(s, np.dtype(np.float32)) for s in shapes]
        self.nodes = []

    def op(self, name, *operands, **params):
        types = [*self.inputs, *(n.type for n in self.nodes)]
        result = OPS[name].infer(*(types[o] for o in operands), **params)
        self.nodes.append(WorkOp(name, operands, params, result))
        return len(types)

    @property
    def work(self):
        return Work(tuple(map(Input, self.inputs)), tuple(self.nodes))


@pytest.mark.parametrize(
    ("left", "right", "what", "cuts"),
    [
        ((4, 5), (5, 6), Contraction((), 4, 6, 5, "mk", "kn", "mn"), ((1,), (1,))),
        ((2, 4, 5), (2, 5, 6), Contraction((2,), 4, 6, 5, "amk", "akn", "amn"), ((1, 2), (1, 2))),
        ((2, 4, 5), (5, 6), Contraction((), 8, 6, 5, "mk", "kn", "mn"), ((2,), (1,))),
        ((4, 5), (3, 5, 6), Contraction((3,), 4, 6, 5, "mk", "akn", "amn"), ((1,), (1, 2))),
        (
            (2, 1, 4, 5),
            (2, 3, 5, 6),
            Contraction((2, 3), 4, 6, 5, "amk", "abkn", "abmn"),
            ((2, 3), (1, 2, 3)),
        ),
        (
            (None, 4, 5),
            (None, 5, None),
            Contraction(("a",), 4, "n", 5, "amk", "akn", "amn"),
            ((1, 2), (1, 2)),
        ),
        ((None, 4, 5), (5, 6), Contraction((), "m", 6, 5, "mk", "kn", "mn"), ((2,), (1,))),
        (
            (2, 4, 5),
            (5, None),
            Contraction((2,), 4, "n", 5, "amk", "kn", "amn"),
            ((1, 2), (1,)),
        ),
    ],
    ids=str,
)
def test_a_product_is_found(left, right, what, cuts):
    found = find_product(lone("matmul", left, right))
    assert found is not None and (found.what, found.covers) == (what, 1)
    assert found.feeds == tuple(Feed(i, c) for i, c in enumerate(cuts))


@pytest.mark.parametrize(
    ("left", "right"),
    [((0, 5), (5, 6)), ((4, None), (5, 6)), ((None, 4, 5), (3, 5, 6))],
    ids=str,
)
def test_sizes_that_are_not_known_to_agree_are_left(left, right):
    assert find_product(lone("matmul", left, right)) is None
    assert find_product(lone("matmul", (4, 5), (5, 6), dtype=np.float64)) is None


def test_transposes_are_read_and_written_in_place():
    """Heads as a projection left them: [b, s, h, d]; the values' result goes back to that."""
    group = Group((2, 7, 3, 8), (2, 9, 3, 8))
    queries = group.op("transpose", 0, permutation=(0, 2, 1, 3))
    keys = group.op("transpose", 1, permutation=(0, 2, 3, 1))
    scores = group.op("matmul", queries, keys)
    back = group.op("transpose", scores, permutation=(0, 2, 1, 3))
    group.op("relu", back)
    found = find_product(group.work)
    assert found is not None and found.covers == 5
    assert found.what == Contraction((2, 3), 7, 9, 8, "ambk", "anbk", "ambn")
    assert [s.op for s in found.epilogue.steps] == ["relu"]


def test_a_product_by_one_column_becomes_a_row():
    group = Group((3, 20, 8), (3, 8, 1), (20, 1))
    group.op("add", group.op("matmul", 0, 1), 2)
    found = find_product(group.work)
    assert found is not None and found.covers == 2
    assert found.what == Contraction((3,), 1, 20, 8, "amk", "ank", "amn")
    assert found.feeds == (Feed(1, (1, 1)), Feed(0, (1, 2)), Feed(2))
    few = find_product(lone("matmul", (2, 8), (8, 1)))
    assert few is not None and few.what.rows == 2


def test_what_is_used_twice_is_left():
    group = Group((4, 4))
    turned = group.op("transpose", 0, permutation=(1, 0))
    product = group.op("matmul", 0, turned)
    group.op("add", product, turned)
    assert find_product(group.work) is None


def test_few_rows_are_streamed_and_constants_are_packed():
    def offered(work):
        return [n for n in ("gemm", "batch_gemm", "gemv") if FAMILIES[n].match(work, TARGET)]

    assert offered(lone("matmul", (2, 64), (64, 64))) == ["gemv"]
    assert offered(lone("matmul", (9, 64), (64, 64))) == ["batch_gemm"]
    inputs = lone("matmul", (9, 64), (64, 64))
    constant = Input(inputs.inputs[1].type, lambda: np.zeros((64, 64), np.float32))
    assert offered(Work((inputs.inputs[0], constant), inputs.nodes)) == ["gemm"]
    assert offered(lone("matmul", (9, 64), (64, 2))) == []
    assert offered(lone("matmul", (9, 64), (64, 1))) == ["gemv"]


def attention(q, k, v):
    scores = q @ k * 0.25
    return scores @ v + q


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
def test_a_column_in_a_program(target):
    random = np.random.default_rng(7)
    column = random.normal(size=(33, 1)).astype(np.float32)
    y = random.normal(size=(2, 33, 1)).astype(np.float32)
    x = random.normal(size=(2, 40, 33)).astype(np.float32)
    program = compile(
        lambda x, y: x @ y * (x @ column), [x, y], target=target, device=Device("local-sync")
    )
    assert sum("gemv:" in d.chosen for d in program.artifact.decisions) == 2
    wide, narrow = x.astype(np.float64), column.astype(np.float64)
    assert np.allclose(program(x, y), (wide @ y) * (wide @ narrow), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.full
def test_programs_with_run_time_matrices(target):
    """Static and dynamic sizes; the sites tell that kernels were chosen."""
    random = np.random.default_rng(6)
    spec = [TensorSpec("f32", 2, None, 8), TensorSpec("f32", 2, 8, None), None]
    spec[2] = TensorSpec("f32", 2, None, 8)
    for specs in (None, spec):
        for s, t in ((12, 20), (1, 5)):
            q, k, v = (random.normal(size=d) for d in ((2, s, 8), (2, 8, t), (2, t, 8)))
            arrays = [x.astype(np.float32) for x in (q, k, v)]
            program = compile(
                attention, specs or arrays, target=target, device=Device("local-sync")
            )
            chosen = [d.chosen for d in program.artifact.decisions]
            assert sum("gemm:" in c or "gemv:" in c for c in chosen) == 2
            exact = (q @ k * 0.25) @ v + q
            assert np.allclose(program(*arrays), exact, rtol=1e-5, atol=1e-5)


def masked(x, y, mask):
    """softmax of masked scores of several heads; booleans choose, numbers are added."""
    scores = np.transpose(x, (0, 2, 1, 3)) @ np.transpose(y, (0, 2, 3, 1)) * np.float32(0.25)
    if mask.dtype == np.bool_:
        return nn.softmax(np.where(mask, scores, np.float32(-1e9)))
    return nn.softmax(scores + mask)


# The dimensions of a mask of three heads.
MASKS = ("b1qk", "b11k", "11qk", "qk", "31k", "b3qk", "b1q1", "b111")


@pytest.mark.parametrize("dtype", ["f32", "i1"])
@pytest.mark.parametrize("mask", sample(MASKS, 2))
@pytest.mark.parametrize("known", [False, True])
def test_a_mask_of_any_dimensions_joins_the_scores_of_heads(mask, dtype, known):
    """One kernel has scores, scale and mask; sizes are known, or have several values."""
    names = [int(x) if x in "13" else x for x in mask]
    specs = [TensorSpec("f32", "b", "q", 3, 16), TensorSpec("f32", "b", "k", 3, 16)]
    specs.append(TensorSpec(dtype, *names))
    program, device = None, Device("local-sync")
    for b, q, k in ((2, 5, 7), (1, 1, 1), (3, 40, 130), (0, 4, 5), (2, 0, 4)):
        random, sizes = np.random.default_rng(q), {"b": b, "q": q, "k": k}
        x, y = (random.normal(size=(b, n, 3, 16)).astype(np.float32) for n in (q, k))
        m = random.normal(size=[sizes.get(str(n), n) for n in names]).astype(np.float32)
        m = m > -0.5 if dtype == "i1" else m
        if program is None:
            given = [x, y, m] if known else specs
            program = compile(masked, given, target=any_target(), device=device)
        step = "select" if dtype == "i1" else "add"
        chosen = [d.chosen for d in program.artifact.decisions]
        assert f"batch_gemm:transpose+transpose+matmul+mul+{step}" in chosen
        scores = np.einsum("bqhd,bkhd->bhqk", x, y).astype(np.float64) * 0.25
        scores = np.where(m, scores, -1e9) if dtype == "i1" else scores + m
        power = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        exact = power / power.sum(-1, keepdims=True)
        got = np.asarray(program(x, y, m))
        assert got.shape == exact.shape and np.allclose(got, exact, rtol=1e-4, atol=1e-5)
        if known:
            return


def test_a_mask_of_other_sizes_than_the_scores_is_refused():
    specs = [TensorSpec("f32", None, None, 3, 16)] * 2 + [TensorSpec("f32", None, 1, None, None)]
    program = compile(masked, specs, device=Device("local-sync"))
    x, y = np.ones((2, 4, 3, 16), np.float32), np.ones((2, 5, 3, 16), np.float32)
    assert program(x, y, np.ones((2, 1, 4, 5), np.float32)).shape == (2, 3, 4, 5)
    for shape in ((3, 1, 4, 5), (2, 1, 6, 5), (2, 1, 4, 7)):
        with pytest.raises(PycError):
            program(x, y, np.ones(shape, np.float32))
