"""`pyc_mlir.nn`: the same function records an op, or computes it at once on numpy arrays."""

from typing import Any

import numpy as np
import pytest

from pyc_mlir import nn
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.python.specs import TensorSpec, spec
from pyc_mlir.frontends.python.trace import trace

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 8)).astype(np.float32)
IMAGE = RNG.normal(size=(2, 4, 7, 6)).astype(np.float32)
V, W = (RNG.normal(size=n).astype(np.float32) for n in (8, 8))
FOUR = [RNG.uniform(0.5, 1, 4).astype(np.float32) for _ in range(4)]
KERNEL = RNG.normal(size=(6, 2, 3, 3)).astype(np.float32)
BIAS = np.arange(6, dtype=np.float32)
MASK = np.tri(3, dtype=bool)

CASES = [
    (lambda x: (nn.relu(x), nn.silu(x), nn.sigmoid(x), nn.erf(x), nn.rsqrt(x * x + 1)), X),
    (lambda x: (nn.gelu(x), nn.gelu(x, approximate="tanh")), X),
    (lambda x: (nn.softmax(x), nn.softmax(x, axis=0), nn.log_softmax(x, 1)), X),
    (lambda x: (nn.layernorm(x, V, W), nn.rmsnorm(x, V, epsilon=1e-3)), X),
    (lambda x: nn.batchnorm(x, *FOUR), IMAGE),
    (lambda x: (nn.attention(x, x, x), nn.attention(x, x, x, MASK)), X),
    (lambda x: nn.attention(x, x, x, MASK * np.float32(2), scale=0.1), X),
    (lambda x: nn.attention(x, x, x, is_causal=True), X),
    (lambda x: nn.conv2d(x, KERNEL, BIAS, strides=2, pads=(1, 0), groups=2), IMAGE),
    (
        lambda x: nn.conv2d(
            x.transpose(0, 2, 3, 1), KERNEL.transpose(2, 3, 1, 0), BIAS, groups=2, layout="NHWC"
        ),
        IMAGE,
    ),
    (lambda x: (nn.max_pool2d(x, 2), nn.max_pool2d(x, (3, 2), 1, pads=1)), IMAGE),
    (
        lambda x: nn.conv2d(
            x, KERNEL, pads=((1, 2), (0, 1)), groups=2, strides=tuple(np.array([1, 2]))
        ),
        IMAGE,
    ),
    (lambda x: nn.avg_pool2d(x, 2, pads=1, count_include_pad=True), IMAGE),
    (lambda x: (nn.resize(x, (5, 9), mode="linear"), nn.resize(x, scales=(2, 1.5))), IMAGE),
    (lambda x: nn.resize(x, scales=2, layout="NHWC"), IMAGE),
    (lambda x: (nn.update_slice(x, np.zeros((1, 2, 3)), (1, 0, 5)), nn.take(x, [0, 1], 1)), X),
    (lambda x: (x + nn.iota((3, 8), axis=1, dtype="f32"), nn.iota((2,)) * 2), X),
]


@pytest.mark.parametrize("function, x", CASES)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_traced_equals_eager(function, x, dynamic):
    shape = ("n", *x.shape[1:]) if dynamic else x.shape
    results = interpret(trace(function, spec(x.dtype, shape)), [x])
    expected = function(x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, want in zip(results, expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_eager_values():
    np.testing.assert_array_equal(nn.relu(np.array([-1.0, 2.0])), [0, 2])
    np.testing.assert_allclose(nn.softmax(X).sum(-1), np.ones((2, 3)), rtol=1e-6)
    np.testing.assert_array_equal(nn.iota((2, 3), axis=1), [[0, 1, 2]] * 2)


def test_one_op_each():
    assert str(trace(nn.attention, *[TensorSpec("f32", 2, 3, 4)] * 3)).count('"pyc.') == 1


def test_an_embedding_of_traced_tokens():
    table = RNG.normal(size=(10, 4)).astype(np.float32)
    tokens = np.array([[1, 9], [0, 3]])
    module = trace(lambda t: nn.take(table, t), TensorSpec("i64", "batch", 2))
    np.testing.assert_array_equal(interpret(module, [tokens])[0], table[tokens])


def test_a_traced_start():
    def model(x, i):
        return nn.update_slice(x, np.full((1, 2, 2), 7), (i, 0, i + 1))

    i = np.array(1, np.int32)
    (out,) = interpret(trace(model, X, i), [X, i])
    np.testing.assert_array_equal(out[1:, :2, 2:4], np.full((1, 2, 2), 7))


def test_a_dynamic_depth_needs_a_scale():
    dynamic = TensorSpec("f32", 2, 3, "d")
    with pytest.raises(PycError, match="give `scale`"):
        trace(nn.attention, dynamic, dynamic, dynamic)


def test_pairs_of_pads_are_vertical_then_horizontal():
    out = nn.conv2d(IMAGE, KERNEL, pads=((1, 2), (0, 1)), groups=2)
    np.testing.assert_array_equal(out, nn.conv2d(IMAGE, KERNEL, pads=(1, 0, 2, 1), groups=2))
    assert out.shape == (2, 6, 8, 5)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ({"pads": ((1, 2), 0)}, "`pads`: expected a number"),
        ({"pads": "same"}, "`pads`: expected a number"),
        ({"pads": (1, 2, 3)}, "`pads`: expected a number"),
        ({"strides": (1, 2, 3)}, "`strides`: expected a number"),
        ({"dilations": 1.5}, "`dilations`: expected a number"),
    ],
)
@pytest.mark.sampled(2)
def test_windows_of_another_form_are_refused(window, expected):
    with pytest.raises(PycError, match=expected) as caught:
        nn.conv2d(IMAGE, KERNEL, groups=2, **window)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT
    forms: list[dict[str, Any]] = [{}, {"sizes": 1.5}, {"scales": (1, 2, 3)}, {"scales": "2"}]
    for given in forms:
        with pytest.raises(PycError, match=r"`(sizes|scales)`: expected"):
            nn.resize(IMAGE, **given)
    with pytest.raises(PycError, match="`kernel`: expected a number"):
        nn.max_pool2d(IMAGE, (2, None))  # pyright: ignore[reportArgumentType]
