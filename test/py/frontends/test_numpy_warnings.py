"""What the numpy front end tells of a trace: silent f64, random numbers that become constants."""

import logging
import random

import numpy as np
import pytest
from modules import shared_context

from pyc_mlir.frontends.python.numpy_protocol import FUNCTIONS, NEAREST, UFUNCS
from pyc_mlir.frontends.python.specs import spec
from pyc_mlir.frontends.python.trace import trace

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
    assert "test_numpy_warnings.py" in text


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
