"""The GEMM kernel: knobs from the target, packed constants, refusals, and no spill in hot loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
from assembly import hottest, innermost_loops
from family_checks import computed
from kernel_runs import Kernels, agrees, assembly, targets
from kernel_works import layer

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels.families.gemm import FAMILY, Gemm
from pyc_mlir.pipelines.kernels.families.rows import OPERATIONS, Rows
from pyc_mlir.pipelines.target.target import TARGETS, Target

AVX2, AVX512 = Target.named("cpu-avx2"), Target.named("cpu-avx512")


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [(1, 1, 1), (512, 512, 512), ("m", 100, 5000), (7, 33, 1025)])
def test_the_targets_knobs_are_legal(target, shape):
    knobs = Gemm.on(target, *shape)
    assert FAMILY.refusal(knobs, target) == ""
    assert knobs.panel == (64 if target is AVX512 else 16)
    assert 4 * knobs.row_block * knobs.depth_block <= target.l2_bytes


def test_a_tile_beyond_the_registers_is_refused():
    wide = Gemm.on(AVX512, 8, 64, 8)
    assert "registers" in FAMILY.refusal(wide, AVX2)
    assert "registers" in FAMILY.refusal(replace(wide, height=7), AVX512)
    assert "expected a CPU with AVX2" in FAMILY.refusal(wide, TARGETS["vulkan"])


@pytest.mark.parametrize(
    "knobs",
    [
        {"depth": 0},
        {"rows": 0},
        {"panel": 24},
        {"strip": 0},
        {"row_block": 0},
        {"depth_block": 6},
    ],
)
def test_knobs_that_make_no_kernel_are_refused(knobs):
    with pytest.raises(PycError, match="gemm kernel: expected"):
        Gemm(**{"rows": 4, "columns": 4, "depth": 4, **knobs})


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
    """What LLVM writes for the kernels of a target; needs no such machine."""
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
