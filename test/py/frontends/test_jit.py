"""`jit`: one compile for each kind of arguments, results in the function's own structure."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.python.jit import CacheInfo, jit
from pyc_mlir.frontends.python.specs import Tensor

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def oracle(traced, **options):
    """A compiler whose programs interpret, and return one array or a tuple as programs do."""

    def program(*arrays):
        out = interpret(traced.module, arrays)
        return out[0] if len(out) == 1 else tuple(out)

    return program


def test_compiles_once_for_each_kind_of_argument():
    double = jit(lambda x, n=2: x * n, compile=oracle)
    for argument in (X, X + 1, X[:1], X.astype(np.float64)):
        np.testing.assert_array_equal(double(argument), argument * 2)
    assert double.cache_info() == CacheInfo(hits=1, misses=3, size=3)
    np.testing.assert_array_equal(double(X, 3), X * 3)
    np.testing.assert_array_equal(double(X, n=3.0), X * 3)
    assert double.cache_info() == CacheInfo(hits=1, misses=5, size=5)
    double.cache_clear()
    assert double.cache_info() == CacheInfo(0, 0, 0)


def test_annotations_compile_once_for_all_sizes():
    @jit(compile=oracle)
    def total(x: Tensor["f32", "n", 3]):  # noqa: F821
        """Sums rows."""
        return x.sum(0) / x.shape[0]

    for rows in (2, 1):
        np.testing.assert_allclose(total(X[:rows]), X[:rows].mean(0))
    assert total.cache_info() == CacheInfo(hits=1, misses=1, size=1)
    assert (getattr(total, "__name__", ""), total.__doc__) == ("total", "Sums rows.")


def test_results_keep_their_structure():
    @jit(compile=oracle)
    def model(params, x):
        return {"sum": x + params["b"], "parts": [x[0], (x[1], 3)]}

    out = model({"b": np.float32(1)}, X)
    np.testing.assert_array_equal(out["sum"], X + 1)
    assert list(out) == ["sum", "parts"] and isinstance(out["parts"][1], tuple)
    np.testing.assert_array_equal(out["parts"][0], X[0])
    assert out["parts"][1][1] == 3
    assert jit(lambda x: [x], compile=oracle)(X)[0].shape == X.shape


def test_options_reach_the_compiler():
    seen = []

    def compile(traced, **options):
        seen.append(options)
        return oracle(traced)

    jit(lambda x: x, compile=compile, target="cpu")(X)
    assert seen == [{"target": "cpu"}]


def test_a_call_inside_a_trace_is_part_of_it():
    inner = jit(lambda x: x + 1, compile=oracle)
    outer = jit(lambda x: inner(x) * 2, compile=oracle)
    np.testing.assert_array_equal(outer(X), (X + 1) * 2)
    assert inner.cache_info().misses == 0
    assert "pyc.add" in str(outer.trace(X)) and "pyc.mul" in str(outer.trace(X))


def test_an_argument_that_is_no_array_is_refused():
    with pytest.raises(PycError, match="argument `x`") as caught:
        jit(lambda x: x, compile=oracle)(object())
    assert caught.value.code is ReasonCode.BAD_ARGUMENT
    with pytest.raises(PycError, match="too many positional"):
        jit(lambda x: x, compile=oracle)(X, X)


def test_threads_share_one_compile():
    function = jit(lambda x: x * 2, compile=oracle)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(function, [X] * 8))
    assert function.cache_info() == CacheInfo(hits=7, misses=1, size=1)
    np.testing.assert_array_equal(results[7], X * 2)


def test_floats_are_told_apart_by_their_bits():
    scaled = jit(lambda x, k: x * 0 + 1 / np.copysign(np.float32(1), np.float32(k)), compile=oracle)
    assert scaled(X, 0.0)[0, 0] == 1 and scaled(X, -0.0)[0, 0] == -1
    for _ in range(2):
        scaled(X, float("nan"))
    assert scaled.cache_info() == CacheInfo(hits=1, misses=3, size=3)


def test_a_default_given_or_left_out_is_one_program():
    power = jit(lambda x, k=2, w=X: x**k + w, compile=oracle)
    for out in (power(X), power(X, 2), power(X, k=2)):
        np.testing.assert_array_equal(out, X**2 + X)
    assert power.cache_info() == CacheInfo(hits=2, misses=1, size=1)
    np.testing.assert_array_equal(power(X, w=X + 1), X**2 + X + 1)
    assert power.cache_info().size == 2


class Layer:
    """Adds its bias."""

    __slots__ = ("bias",)

    def __init__(self, bias):
        self.bias = bias

    @jit(compile=oracle)
    def forward(self, x, scale=1):
        """Scale and add."""
        return x * scale + self.bias


def test_a_method_has_programs_for_each_instance():
    Layer.forward.cache_clear()
    one, two = Layer(1), Layer(2)
    np.testing.assert_array_equal(one.forward(X), X + 1)
    np.testing.assert_array_equal(two.forward(X, scale=3), X * 3 + 2)
    np.testing.assert_array_equal(one.forward(X, 1), X + 1)
    np.testing.assert_array_equal(Layer(5).forward(X), X + 5)
    assert one.forward.cache_info() == CacheInfo(hits=1, misses=3, size=3)
    assert one.forward.__doc__ == "Scale and add."
    assert vars(Layer.forward)["__name__"] == "forward"
    assert "pyc.add" in str(one.forward.trace(X))
    outer = jit(lambda x: one.forward(x) * 2, compile=oracle)
    np.testing.assert_array_equal(outer(X), (X + 1) * 2)


@pytest.mark.full
def test_short_texts_of_functions_and_methods():
    def double(x):
        return x * 2

    class Model:
        method = jit(double, compile=oracle)

    assert repr(jit(double, compile=oracle)).endswith("double, 0 programs, 0 hits)")
    assert repr(Model().method).endswith("of Model")
