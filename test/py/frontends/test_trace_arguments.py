"""Arguments of a trace: element types and sizes, arguments that do not fit, wide or masked arrays.

And what the trace tells of them: the user's line, silent f64, random numbers that become constants.
"""

import logging
import operator
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from modules import shared_context
from test_jit import oracle

from pyc_mlir import nn
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.python.jit import jit
from pyc_mlir.frontends.python.numpy_protocol import FUNCTIONS, NEAREST, UFUNCS
from pyc_mlir.frontends.python.specs import Tensor, TensorSpec, spec
from pyc_mlir.frontends.python.trace import trace
from pyc_mlir.runtime.array import readable


def test_names_of_element_types():
    names = {"float32": "f32", "int8": "i8", "bool": "i1", "half": "f16", "i8": "i8", "i1": "i1"}
    assert all(spec(text) == spec(name) for text, name in names.items())


@pytest.mark.parametrize(
    "make", [spec, TensorSpec, lambda t: Tensor[t, 2], lambda t: nn.iota(3, 0, t)]
)
@pytest.mark.parametrize(
    "code, meant",
    [("i4", "i32"), ("f4", "f32"), ("<f8", "f64"), ("d", "f64"), ("?", "i1"), ("|i4", "i32")],
)
def test_codes_that_count_bytes_are_refused(make, code, meant):
    """MLIR's "i8" has 8 bits, numpy's 8 bytes; beside it "i4" is no way to say 32 bits."""
    with pytest.raises(PycError, match=f"counts bytes; write '{meant}'") as caught:
        make(code)
    assert caught.value.code is ReasonCode.UNSUPPORTED_DTYPE


def test_sizes_are_refused_wherever_their_value_is_asked_for():
    """By numpy's functions, too, which ask in many ways."""
    for function in (
        lambda x: np.arange(x.shape[0]),
        lambda x: np.arange(0, x.shape[0], 2) + x,
        lambda x: np.array(x.shape),
        lambda x: np.indices(x.shape),
        lambda x: np.mgrid[0 : x.shape[0]],
        lambda x: abs(x.shape[0]),
        lambda x: round(x.shape[0]),
        lambda x: divmod(x.shape[0], 2),
        lambda x: x.shape[0] << 1,
        lambda x: x.shape[0] & 1,
        lambda x: f"{x.shape[0]:d}",
    ):
        with pytest.raises(PycError) as caught:
            trace(function, TensorSpec("f32", "n"))
        assert caught.value.code is ReasonCode.UNTRACEABLE
        assert "`n` is not known" in (reported := caught.value.message) and "nn.iota" in reported
    trace(lambda x: (f"{x.shape[0]} {x.shape[0]:>4}", x)[1], TensorSpec("f32", "n"))


NUMBERS = (-(2**63) - 1, -300, -129, -128, -1, 0, 1, 127, 128, 255, 256, 2**32, 2**64)
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64, bool])
def test_comparisons_take_numbers_beyond_the_type_as_numpy_does(dtype):
    info = np.iinfo(np.uint8 if dtype is bool else dtype)
    x = np.array([info.min, 0, 1, info.max]).astype(dtype)
    # Booleans are compared as int64, in which numpy has no larger number either.
    numbers = [n for n in NUMBERS if dtype is not bool or -(2**63) <= n < 2**63]

    def function(x):
        compares = [getattr(operator, name) for name in COMPARISONS]
        return [(c(x, n), c(n, x)) for c in compares for n in numbers]

    found = interpret(trace(function, x), [x])
    assert np.array_equal(np.reshape(found, (-1, 2, 4)), function(x))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_bounds_of_clip_beyond_the_type_are_no_bounds_or_refused_as_by_numpy(dtype):
    info = np.iinfo(dtype)
    x = np.array([info.min, 0, 1, info.max], dtype)
    bounds = (None, -(2**40), -300, -1, 0, 100, 300, 2**40)
    pairs, refused = [(low, high) for low in bounds for high in bounds], 0
    wanted = {}
    for pair in pairs:
        with suppress(OverflowError):
            wanted[pair] = np.clip(x, *pair)
    found = interpret(trace(lambda x: [np.clip(x, *pair) for pair in wanted], x), [x])
    assert np.array_equal(found, list(wanted.values()))
    context = new_context()
    for pair in pairs:
        if pair not in wanted:
            with pytest.raises(PycError, match=r"out of bounds for .*BAD_ARGUMENT"):
                trace(lambda x: np.clip(x, *pair), x, context=context)  # noqa: B023
            refused += 1
    assert refused


def test_numbers_that_numpy_wraps_around_are_refused():
    for function in (lambda x: np.where(x > 0, x, 300), lambda x: x + 300, lambda x: x**300):
        with pytest.raises(PycError, match=r"300 out of bounds for int8.*BAD_ARGUMENT"):
            trace(function, np.ones(3, np.int8))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.sum(x, axis=5),
        lambda x: x.max(axis=(0, 0)),
        lambda x: x.transpose(0, 5),
        lambda x: np.logical_and.reduce(x > 0, x.shape),
        lambda x: np.add.reduce(x, 7),
        lambda x: np.expand_dims(x, 9),
        lambda x: np.take(x, [0], axis=9),
        lambda x: np.moveaxis(x, 0, 9),
        lambda x: np.stack([x, x], axis=9),
        lambda x: np.concatenate([x, x], axis=9),
        lambda x: np.linalg.norm(x, axis=9),
    ],
)
def test_an_axis_that_the_array_lacks_is_refused_with_the_line(function):
    with pytest.raises(PycError) as caught:
        trace(function, np.ones((3, 4), np.float32))
    line = function.__code__.co_firstlineno
    assert f"test_trace_arguments.py:{line}:" in str(caught.value)
    assert "lambda x:" in str(caught.value)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda x: np.tile(x, (2**40, 2**40)), "UNTRACEABLE"),
        (lambda x: np.tile(x, -1), "BAD_ARGUMENT"),
        (lambda x: np.split(x[:0], 2**40)[0], "UNTRACEABLE"),
        (lambda x: np.diff(x, 2**31), "UNTRACEABLE"),
        (lambda x: np.unstack(np.broadcast_to(x, (2**20, 4)))[0], "UNTRACEABLE"),
    ],
)
@pytest.mark.sampled(2)
def test_counts_of_ops_that_no_memory_holds_are_refused_at_once(function, code):
    with pytest.raises(PycError, match=rf"test_trace_arguments.py:[^$]*\[{code}\]"):
        trace(function, np.ones(4, np.float32))


WIDE = np.ones(3)
# What the standard names of functions on arrays, by numpy's names; what makes or inspects types is
# run by numpy itself.
STANDARD = """
abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert
bitwise_or bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1
floor floor_divide greater greater_equal hypot imag isfinite isinf isnan less less_equal log log1p
log2 log10 logaddexp logical_and logical_not logical_or logical_xor maximum minimum multiply
negative nextafter not_equal positive pow real reciprocal remainder round sign signbit sin sinh
square sqrt subtract tan tanh trunc take take_along_axis matmul matrix_transpose tensordot vecdot
broadcast_arrays broadcast_to concat expand_dims flip moveaxis permute_dims repeat reshape roll
squeeze stack tile unstack argmax argmin count_nonzero nonzero searchsorted where unique_all
unique_counts unique_inverse unique_values argsort sort cumulative_prod cumulative_sum max mean min
prod std sum var all any diff empty_like full_like ones_like zeros_like tril triu meshgrid arange
linspace astype result_type
"""


def reported(caplog: pytest.LogCaptureFixture, function, dtype: str = "f32") -> str:
    with caplog.at_level(logging.WARNING, "pyc_mlir.trace"):
        trace(function, spec(dtype, (3,)), context=shared_context())
    return caplog.text


@pytest.mark.parametrize(
    "function",
    [lambda x: x * WIDE, lambda x: x + np.sqrt(2), lambda x: np.where(x > 0, x, WIDE)],
)
def test_an_array_that_becomes_f64_is_told_with_its_line(caplog, function) -> None:
    text = reported(caplog, function)
    assert "f32 becomes f64" in text
    assert "test_trace_arguments.py" in text


@pytest.mark.parametrize(
    "function", [lambda x: x * 2.0, lambda x: x + WIDE.astype(np.float32), lambda x: np.exp(x)]
)
def test_what_stays_narrow_is_not(caplog, function) -> None:
    assert reported(caplog, function) == ""


def test_what_was_wide_before_is_not(caplog) -> None:
    assert reported(caplog, lambda x: x * WIDE, "f64") == ""


@pytest.mark.parametrize(
    "function",
    [lambda x: x + np.random.rand(3).astype(np.float32), lambda x: x * random.random()],
)
def test_random_numbers_that_become_constants_are_told(caplog, function) -> None:
    assert "random numbers were drawn" in reported(caplog, function)


@pytest.mark.parametrize("name", STANDARD.split())
def test_each_function_of_the_array_api_is_traced_or_has_a_nearest_one(name: str) -> None:
    function = getattr(np, name)
    known = function in UFUNCS or function in FUNCTIONS
    assert known or f"np.{function.__name__}" in NEAREST


X = np.arange(6, dtype=np.float32).reshape(2, 3)
MASKED = np.ma.masked_array(X, mask=X > 3)
with pytest.warns(PendingDeprecationWarning):
    MATRIX = np.matrix(X)
INDICES = np.ma.masked_array([0, 1], mask=[False, True])
NO_DEVICE: Any = None
SPEC = TensorSpec("f32", 2, 3)


def annotated(x: Tensor["f32", 2, 3]):  # noqa: F821
    return x


def refused(run, message="masked array"):
    with pytest.raises(PycError, match=message) as caught:
        run()
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + MASKED,
        lambda x: np.add.reduce(x) + MASKED[0],
        lambda x: np.maximum(MASKED, x),
        lambda x: np.concatenate([x, MASKED]),
        lambda x: np.where(x > 0, x, MASKED),
        lambda x: np.einsum("ij,kj->ik", x, MASKED),
        lambda x: x @ MASKED.T,
        lambda x: x[INDICES],
        lambda x: np.take(x, INDICES, axis=1),
        lambda x: nn.relu(x) + nn.take(MASKED, np.array([0, 1])),
        lambda x: nn.attention(x, MASKED, x),
        lambda x: (x, MASKED),
        lambda x: x * np.ma.masked,
    ],
)
def test_masked_arrays_that_are_captured(function):
    refused(lambda: trace(function, SPEC))


def test_masked_arguments():
    module = trace(annotated)
    refused(lambda: trace(lambda x: x, MASKED))
    refused(lambda: jit(lambda x: x, compile=oracle)(MASKED))
    refused(lambda: jit(lambda p: p["x"], compile=oracle)({"x": MASKED}))
    refused(lambda: jit(annotated, compile=oracle)(MASKED))
    refused(lambda: interpret(module, [MASKED]), "main: input 0: .*masked array")
    refused(lambda: nn.relu(MASKED))
    refused(lambda: readable(MASKED, NO_DEVICE))


def test_operators_of_masked_arrays_ask_for_values():
    with pytest.raises(PycError, match="UNTRACEABLE"):
        trace(lambda x: MASKED + x, SPEC)


def test_matrices():
    refused(lambda: trace(lambda x: x * MATRIX.T, SPEC), "np.matrix.*asarray")
    refused(lambda: trace(lambda x: x, MATRIX), "np.matrix.*asarray")


def test_other_subclasses_are_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 3))
    assert trace(lambda x: x + mapped, mapped)
