"""Programs at the edges of what kernels take over: each once went wrong."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import sample
from kernel_runs import targets

from pyc_mlir import nn, trace
from pyc_mlir.api import compile
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import Device

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
