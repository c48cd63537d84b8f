"""Programs with generated kernels, through IREE and the memory planner; some once went wrong."""

import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import sample
from kernel_runs import any_target, targets
from kernel_works import layer

from pyc_mlir import compile, nn, trace
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.pipelines.kernels.families.gemm import Gemm
from pyc_mlir.pipelines.kernels.families.rows import Rows
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT
from pyc_mlir.pipelines.kernels.lang.carrier import Carrier
from pyc_mlir.pipelines.kernels.nest import Panels
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import Device

ROWS, WIDTH, LAYERS = 64, 96, 4
SQUARE = f"tensor<{ROWS}x{WIDTH}xf32>"


def layers(target):
    """x = x + softmax(gelu(x B)), four times, the kernels called as private functions."""
    kernels = [
        Gemm.on(target, ROWS, WIDTH, WIDTH, epilogue=layer(activation="gelu")).kernel("product"),
        Rows.on(target, "softmax", ROWS, WIDTH).kernel("softmax"),
    ]
    carrier = Carrier(target)
    carrier.add(*kernels)
    for kernel in kernels:
        carrier.call(kernel)
    packed = f"tensor<{Gemm.on(target, ROWS, WIDTH, WIDTH).panels.size}xf32>"
    lines = [f"func.func @main(%x0: {SQUARE}, %b: {packed}) -> {SQUARE} {{"]
    for i in range(LAYERS):
        lines += [
            f"%g{i} = func.call @product(%x{i}, %b) : ({SQUARE}, {packed}) -> {SQUARE}",
            f"%s{i} = func.call @softmax(%g{i}) : ({SQUARE}) -> {SQUARE}",
            f"%x{i + 1} = arith.addf %s{i}, %x{i} : {SQUARE}",
        ]
    lines += [f"return %x{LAYERS} : {SQUARE}", "}", "}"]
    text = str(carrier.module).rstrip().removesuffix("}") + "\n".join(lines)
    for name in ("product", "softmax"):
        text = text.replace(
            f"func.func @{name}(%arg0: tensor", f"func.func private @{name}(%arg0: tensor"
        )
    return text


def reference(x, b):
    x, b = x.astype(np.float64), b.astype(np.float64)
    for _ in range(LAYERS):
        g = x @ b
        g = 0.5 * g * (1 + np.vectorize(math.erf)(g / math.sqrt(2)))
        power = np.exp(g - g.max(1, keepdims=True))
        x = x + power / power.sum(1, keepdims=True)
    return x


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.full
def test_planned_memory_changes_no_bit(target):
    text, random = layers(target), np.random.default_rng(7)
    x = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    b = (random.normal(size=(WIDTH, WIDTH)) / math.sqrt(WIDTH)).astype(np.float32)
    packed = Gemm.on(target, ROWS, WIDTH, WIDTH).panels.pack(b)
    results = {}
    for mode in ("iree", "memory_first"):
        program = compile(text, target=target, device=Device("local-sync"), planner_mode=mode)
        results[mode] = np.array(program(x, packed))
    assert np.array_equal(results["iree"], results["memory_first"])
    assert np.allclose(results["iree"], reference(x, b), rtol=1e-5, atol=1e-6)


def everything(x, w, u):
    """A program of six families, each of which reads what others have made."""
    scores = x @ w
    summed = scores.sum(1)
    turned = np.transpose(scores, (0, 2, 1))
    return summed @ u, turned, scores.max(), turned.argmax(2), (turned @ scores).max(1)


FAMILIES = {"batch_gemm", "columns", "gemv", "transpose", "full_reduce", "argmax"}


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.full
def test_planned_memory_changes_no_bit_of_any_family(target):
    random = np.random.default_rng(3)
    shapes = (3, 50, 40), (3, 40, 48), (48, 72)
    x, w, u = (random.normal(size=s).astype(np.float32) for s in shapes)
    results = {}
    for mode in ("iree", "memory_first"):
        program = compile(
            everything, [x, w, u], target=target, device=Device("local-sync"), planner_mode=mode
        )
        chosen = {d.chosen.partition(":")[0] for d in program.artifact.decisions}
        assert chosen >= FAMILIES
        results[mode] = [np.array(made) for made in program(x, w, u)]
    exact = everything(*(a.astype(np.float64) for a in (x, w, u)))
    for number, expected in enumerate(exact):
        first, *others = (made[number] for made in results.values())
        assert all(np.array_equal(first, other) for other in others)
        assert np.allclose(first, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.full
def test_a_kernel_whose_operands_are_known_is_not_run_by_the_compiler():
    """IREE evaluates what is constant while a kernel still is a stub, which computes nothing."""
    text = """func.func @main(%x: tensor<0x1x5xf32>) -> tensor<4x4x5xf32> {
      %0 = "pyc.pad"(%x) {low = array<i64: 2, 2, 0>, high = array<i64: 2, 1, 0>, value = 1.0}
        : (tensor<0x1x5xf32>) -> tensor<4x4x5xf32>
      %1 = "pyc.constant"() {value = dense<2.0> : tensor<5x5xf32>} : () -> tensor<5x5xf32>
      %2 = "pyc.matmul"(%0, %1) : (tensor<4x4x5xf32>, tensor<5x5xf32>) -> tensor<4x4x5xf32>
      return %2 : tensor<4x4x5xf32>
    }"""
    for planner_mode in ("", "iree"):
        program = compile(text, kernels="gemm", planner_mode=planner_mode)
        assert any(d.chosen.startswith("gemm:") for d in program.artifact.decisions)
        got = program(np.zeros((0, 1, 5), np.float32))
        np.testing.assert_array_equal(got, np.full((4, 4, 5), 10, np.float32))


@pytest.mark.full
def test_a_constant_is_packed_once_however_often_it_is_used(monkeypatch):
    packed, pack = [], Panels.pack
    monkeypatch.setattr(Panels, "pack", lambda self, b: packed.append(self) or pack(self, b))
    w = np.random.default_rng(0).normal(size=(96, 96)).astype(np.float32)
    x = np.ones((64, 96), np.float32)
    program = compile(lambda x: np.tanh(np.tanh(x @ w) @ w) @ w, [x], device=Device("local-sync"))
    assert len(packed) == 1
    np.testing.assert_allclose(program(x), np.tanh(np.tanh(x @ w) @ w) @ w, atol=1e-4)


MOVED = {
    "columns:reduce_sum": lambda x: x.sum(1),
    "argmax:argmax": lambda x: x.argmax(2),
    "transpose:transpose": lambda x: np.transpose(x, (0, 2, 1)),
}


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.sampled(2)
def test_a_dynamic_batch_runs_at_every_size(name):
    spec = TensorSpec("f32", None, 50, 40)
    program = compile(MOVED[name], [spec], target=any_target(), device=Device("local-sync"))
    chosen = [d.chosen for d in program.artifact.decisions if d.site.pass_name == SELECT]
    assert chosen == [name]
    for batch in (1, 2, 7, 0):
        x = np.random.default_rng(batch).normal(size=(batch, 50, 40)).astype(np.float32)
        got, exact = np.asarray(program(x)), MOVED[name](x.astype(np.float64))
        assert got.shape == exact.shape and np.allclose(got, exact, rtol=1e-5, atol=1e-5)


RANDOM = np.random.default_rng(0)
DEVICE = Device("local-sync")


def array(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def f32(*dims):
    return TensorSpec("f32", *dims)


# Results that IREE places into a larger one, at an offset that no vector is aligned to. Those of
# functions such as gelu are not written past the caches.
PLACED = {
    "concat": (lambda a, x: np.concatenate([a, x * x + x]), (3,), (40_000,)),
    "rows": (lambda a, x: np.concatenate([a, x * x + x]), (1, 1000), (48, 1000)),
    "update": (lambda a, x: nn.update_slice(a, x * x + x, [3]), (40_100,), (40_000,)),
    "transpose": (lambda a, x: np.concatenate([a, np.reshape(x.T, (-1,))]), (3,), (224, 208)),
}


@pytest.mark.parametrize("name", sample(list(PLACED), 2))
@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.full
def test_streaming_results_may_lie_anywhere(target, name):
    function, *shapes = PLACED[name]
    a, x = (array(*s) for s in shapes)
    small = replace(target, l3_bytes=1 << 12)
    program = compile(function, [a, x], target=small, device=DEVICE)
    reasons = [a.reason for d in program.artifact.decisions for a in d.alternatives]
    assert any("streaming=True" in reason for reason in reasons)
    plain = compile(function, [a, x], target=target, device=DEVICE, kernels="iree")
    np.testing.assert_allclose(program(a, x), plain(a, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [65535, 65536, 70001])
@pytest.mark.full
def test_transposes_of_many_matrices(batch):
    program = compile(lambda x: np.transpose(x, (0, 2, 1)), [f32(None, 16, 16)], device=DEVICE)
    x = np.arange(batch * 256, dtype=np.float32).reshape(batch, 16, 16)
    assert np.array_equal(program(x), x.transpose(0, 2, 1))


@pytest.mark.full
def test_a_comparison_of_comparisons():
    x, y = array(64, 1024), array(64, 1024)
    program = compile(lambda x, y: np.where((x > 0) == (y > 0), x, y), [x, y], device=DEVICE)
    assert np.array_equal(program(x, y), np.where((x > 0) == (y > 0), x, y))


@pytest.mark.full
def test_weights_of_rank_3():
    x, w = array(2, 8, 16), array(1, 16, 32)
    program = compile(lambda x: x @ w, [x], device=DEVICE)
    np.testing.assert_allclose(program(x), x @ w, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_norm_weights_of_unknown_size():
    x, s, b = array(8, 64), array(64), array(64)
    specs = [f32(8, 64), f32("n"), f32("n")]
    program = compile(lambda x, s, b: nn.layernorm(x, s, b), specs, device=DEVICE)
    known = compile(lambda x, s, b: nn.layernorm(x, s, b), [x, s, b], device=DEVICE)
    np.testing.assert_allclose(program(x, s, b), known(x, s, b), rtol=1e-5, atol=1e-6)


WEIGHTS = array(16, 32)
FOLDED = {
    "gemm": (lambda x, y: x @ WEIGHTS + y, 32),
    "rows": (lambda x, y: nn.softmax(x) + y, 16),
}


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.full
def test_dimensions_that_a_kernel_folds_must_agree_each(name):
    function, columns = FOLDED[name]
    specs = [f32(None, None, 16), f32(None, None, columns)]
    program = compile(function, specs, device=DEVICE)
    program(array(2, 3, 16), array(2, 3, columns))
    with pytest.raises(PycError) as caught:
        program(array(2, 3, 16), array(3, 2, columns))
    assert caught.value.code is ReasonCode.DIMENSION_MISMATCH


@pytest.mark.full
def test_an_entry_named_as_a_kernel():
    module = trace(lambda x: nn.softmax(x), f32(4, 16), name="pyc_rows_0")
    x = array(4, 16)
    target = Target.named("cpu-avx2")
    program = compile(str(module), target=target, device=DEVICE, kernels="rows")
    np.testing.assert_allclose(np.sum(program(x), axis=-1), 1, rtol=1e-5)
