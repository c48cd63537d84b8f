"""Arguments of numpy's functions that do not fit: what numpy makes of them, or the user's line."""

import operator
from contextlib import suppress

import numpy as np
import pytest

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.python.trace import trace

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
    assert f"test_python_arguments.py:{line}:" in str(caught.value)
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
    with pytest.raises(PycError, match=rf"test_python_arguments.py:[^$]*\[{code}\]"):
        trace(function, np.ones(4, np.float32))
