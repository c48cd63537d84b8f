"""Products of run-time matrices: knobs, orders of dimensions, NaN, tails."""

from functools import partial

import numpy as np
import pytest
from assembly import hottest, innermost_loops
from family_checks import computed
from kernel_runs import Kernels, agrees, any_target, assembly, targets
from kernel_works import layer

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels.families.batch import BATCH_GEMM as FAMILY
from pyc_mlir.pipelines.kernels.families.batch import STACK, BatchGemm
from pyc_mlir.pipelines.kernels.families.gemm import Gemm
from pyc_mlir.pipelines.kernels.knobs import decode, encode
from pyc_mlir.pipelines.kernels.lang.pointwise import COLUMN, NUMBER, Pointwise, PointwiseStep
from pyc_mlir.pipelines.kernels.match import Contraction
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import Device

AVX2, AVX512 = Target.named("cpu-avx2"), Target.named("cpu-avx512")
product = partial(computed, "matmul")
HEADS = ("bmck", "bnck", "bcmn")


def arrays(knobs, random, **dynamic):
    sizes = {x: dynamic.get(x, d) for x, d in knobs.what.sizes.items()}
    return [
        random.normal(size=[sizes[x] for x in o]).astype(np.float32) for o in knobs.what.orders[:2]
    ]


@pytest.mark.parametrize(
    "what",
    [
        {"rows": 0},
        {"batch": ()},
        {"batch": (2, 2)},
        {"left": "bm"},
        {"left": "bmmk"},
        {"left": "bmkx"},
        {"right": "knb"},
        {"result": "bnm"},
    ],
)
def test_orders_that_make_no_product_are_refused(what):
    with pytest.raises(PycError, match="product kernel: expected"):
        Contraction(**{"batch": (2,), "rows": 4, "columns": 4, "depth": 4, **what})


@pytest.mark.parametrize(
    "knobs", [{"local": False}, {"depth_block": 130}, {"depth_block": 132}, {"height": 0}]
)
def test_knobs_that_make_no_kernel_are_refused(knobs):
    with pytest.raises(PycError, match="batch_gemm kernel: expected"):
        BatchGemm(Contraction((2,), 4, 4, 4, right="bnk"), **knobs)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (128, 64, 128), ("m", "n", "k"), (500, 33, 3001)])
@pytest.mark.parametrize("right", ["bkn", "bnk"])
def test_the_targets_knobs_are_legal(target, sizes, right):
    knobs = BatchGemm.on(target, Contraction((12,), *sizes, right=right))
    assert FAMILY.refusal(knobs, target) == ""
    assert not knobs.local or 4 * knobs.panel * knobs.depth_block <= STACK
    assert decode(BatchGemm, encode(knobs)) == knobs


def test_small_products_stay_with_one_core():
    assert BatchGemm.on(AVX512, Contraction((2,), 8, 8, 8)).workgroups == (1, 1, 1)
    assert BatchGemm.on(AVX512, Contraction((12,), 128, 128, 64)).workgroups == (12, 1, 1)
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
def test_no_loop_has_a_spill(target, tmp_path):
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
