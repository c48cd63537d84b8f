"""Arithmetic with dynamic dimensions: lengths, values, bounds of slices, as numpy has them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from modules import shared_context

import pyc_mlir
from pyc_mlir import nn
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.python.specs import spec
from pyc_mlir.frontends.python.trace import trace

Function = Callable[..., Any]
SIZES = ((7, 5), (4, 3), (10, 1))


def length(x: Any) -> Any:
    return x.shape[0]


LENGTHS: dict[str, Function] = {
    "n": lambda n, m: n,
    "n + 2": lambda n, m: n + 2,
    "3 + n": lambda n, m: 3 + n,
    "n - 3": lambda n, m: n - 3,
    "n * 2": lambda n, m: n * 2,
    "2 * n + 1": lambda n, m: 2 * n + 1,
    "n // 2": lambda n, m: n // 2,
    "(n + 2) // 3": lambda n, m: (n + 2) // 3,
    "n + m": lambda n, m: n + m,
    "n * m": lambda n, m: n * m,
    "n * 4 // 4": lambda n, m: n * 4 // 4,
}
VALUES: dict[str, Function] = {
    **LENGTHS,
    "n - m": lambda n, m: n - m,
    "5 - n": lambda n, m: 5 - n,
    "-n": lambda n, m: -n,
    "n % 3": lambda n, m: n % 3,
    "(n - 9) // 2": lambda n, m: (n - 9) // 2,
}
SLICES: dict[str, Function] = {
    "[:n]": lambda x, n: x[:n],
    "[n:]": lambda x, n: x[n:],
    "[: n - 1]": lambda x, n: x[: n - 1],
    "[n - 2 :]": lambda x, n: x[n - 2 :],
    "[: n // 2]": lambda x, n: x[: n // 2],
    "[n // 2 :]": lambda x, n: x[n // 2 :],
    "[n // 3 :]": lambda x, n: x[n // 3 :],
    "[1 : n // 2]": lambda x, n: x[1 : n // 2],
    "[1 : n - 1 : 2]": lambda x, n: x[1 : n - 1 : 2],
    "[..., : n // 2]": lambda x, n: x.T[..., : n // 2],
    "[: n // 2, 0]": lambda x, n: x[: n // 2, 0],
}


def compared(function: Function) -> None:
    """The trace, of dynamic sizes, gives what numpy gives for several sizes."""
    module = trace(function, spec("f32", ("n", 2)), spec("f32", ("m", 2)), context=shared_context())
    for n, m in SIZES:
        x, y = (np.arange(2.0 * s, dtype=np.float32).reshape(s, 2) for s in (n, m))
        wanted = np.asarray(function(x, y))
        (found,) = interpret(module, [x, y])
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, 1e-6)


@pytest.mark.parametrize("form", VALUES.values(), ids=VALUES)
def test_values(form: Function) -> None:
    """Beside an array a size is a weak integer: the result stays f32."""
    compared(lambda x, y: x.sum() * 0 + form(length(x), length(y)))


@pytest.mark.parametrize("form", LENGTHS.values(), ids=LENGTHS)
def test_lengths(form: Function) -> None:
    compared(lambda x, y: nn.arange(form(length(x), length(y))) + x[0, 0].astype(np.int64) * 0)
    compared(lambda x, y: np.broadcast_to(x[0], (form(length(x), length(y)), 2)))


@pytest.mark.parametrize("form", SLICES.values(), ids=SLICES)
def test_slices(form: Function) -> None:
    compared(lambda x, y: form(x, length(x)))


def test_ranges_over_dynamic_sizes() -> None:
    compared(
        lambda x, y: np.arange(x.shape[0], like=x) if hasattr(x, "tracer") else np.arange(len(x))
    )
    compared(lambda x, y: nn.linspace(0.0, 1.0, x.shape[0]) + x.sum() * 0)
    compared(lambda x, y: nn.linspace(-1.0, 3.0, x.shape[0] + 1, endpoint=False) + x.sum() * 0)
    compared(lambda x, y: np.stack(np.meshgrid(x[:, 0], y[:, 1])))
    compared(lambda x, y: np.take_along_axis(x, np.argsort(x[:, ::-1], axis=0), 0))
    compared(lambda x, y: np.cumsum(x, axis=0) + np.sort(x, 0)[: length(x) - 1].sum())


def test_sizes_computed_twice_are_one_dimension() -> None:
    compared(lambda x, y: nn.arange(length(x) // 3 + 1) * nn.arange(x.shape[0] // 3 + 1))
    compared(lambda x, y: np.pad(x, ((0, 1), (0, 0))) * np.broadcast_to(x[0], (length(x) + 1, 2)))


def test_a_length_below_nothing_is_an_error_when_the_program_runs() -> None:
    module = trace(
        lambda x: nn.arange(x.shape[0] - 3) + 0, spec("f32", ("n",)), context=shared_context()
    )
    assert interpret(module, [np.ones(3, np.float32)])[0].shape == (0,)
    with pytest.raises(PycError):
        interpret(module, [np.ones(2, np.float32)])


@pytest.mark.parametrize(
    ("function", "needle"),
    [
        (lambda x, y: nn.arange(x.shape[0] - y.shape[0]), "no array can be made of the length"),
        (lambda x, y: x[: y.shape[0]], "as a bound of a slice"),
        (lambda x, y: x[: x.shape[0] * 2], "as a bound of a slice"),
        (lambda x, y: x.T[: x.shape[0]], "as a bound of a slice"),
        (lambda x, y: x[x.shape[0] // 3 : x.shape[0] // 2], "slice twice"),
        (lambda x, y: nn.arange(x.shape[0] // y.shape[0]), "positive integers"),
        (lambda x, y: nn.arange(2, x.shape[0]), "start + step"),
        (lambda x, y: range(x.shape[0] + 1), "`n + 1` is not known"),
    ],
)
def test_what_has_no_op_names_the_remedy(function: Function, needle: str) -> None:
    specs = spec("f32", ("n", 2)), spec("f32", ("m", 2))
    with pytest.raises(PycError) as caught:
        trace(function, *specs, context=shared_context())
    assert caught.value.code is ReasonCode.UNTRACEABLE
    assert needle in str(caught.value)


def test_a_length_below_zero_is_an_error():
    """Also where no element of the array that has it is read."""

    def program(x):
        n = x.shape[0] - 3
        return np.arange(n, like=x), np.broadcast_to(x.sum(), (n,)), nn.linspace(0.0, 1.0, n)

    compiled = pyc_mlir.compile(program, [spec(np.float32, ("n",))])
    assert [len(r) for r in compiled(np.ones(5, np.float32))] == [2, 2, 2]
    assert [len(r) for r in compiled(np.ones(3, np.float32))] == [0, 0, 0]
    with pytest.raises(PycError, match="DIMENSION_MISMATCH"):
        compiled(np.ones(2, np.float32))


@pytest.mark.parametrize("function", [np.max, np.min])
@pytest.mark.parametrize("dtype", [np.float32, np.bool_])
def test_no_greatest_of_nothing(function, dtype):
    """As numpy: an error where a result has no element, none where there is no result."""
    both = spec(dtype, ("m", "n"))

    def program(x):
        return function(x, axis=1), function(x, axis=1, keepdims=True)

    compiled = pyc_mlir.compile(program, [both])
    for shape in ((2, 3), (0, 3)):
        x = np.ones(shape, dtype)
        x[:, 1:] = 0
        for got, wanted in zip(compiled(x), program(x), strict=True):
            np.testing.assert_array_equal(got, wanted)
    # Of booleans IREE refuses the copy of one result to the other before the sizes are compared.
    with pytest.raises(PycError, match=r"DIMENSION_MISMATCH|RUNTIME_FAILED"):
        compiled(np.ones((2, 0), dtype))
