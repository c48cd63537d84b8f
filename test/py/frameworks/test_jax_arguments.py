"""Arguments of `pyc_mlir.jax.jit` are taken as in `jax.jit`: weak types, statics, methods."""

from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

from conftest import sample  # noqa: E402
from jax import numpy as jnp  # noqa: E402  # pyright: ignore[reportMissingImports]
from random_jax import random_promotion  # noqa: E402

import pyc_mlir.jax as pyc_jax  # noqa: E402
from pyc_mlir.dialects.errors import PycError, ReasonCode  # noqa: E402
from pyc_mlir.dialects.ir.interpreter import interpret  # noqa: E402

X, HALVES = jnp.arange(4), jnp.asarray([1.5, 2.5], jnp.bfloat16)
jit = partial(pyc_jax.jit, cache=False)


def same(got: Any, want: Any) -> None:
    """Equal structures, types (weak ones too) and elements."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (mine.dtype, mine.weak_type) == (theirs.dtype, theirs.weak_type)
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("seed", sample(range(200), 25))
def test_numbers_and_arrays_promote_as_in_jax(seed: int) -> None:
    """Arrays of narrow types with Python's numbers, numpy's, and weakly typed arrays."""
    function, arguments = random_promotion(seed)
    module = pyc_jax.jit(function).module(*arguments)
    got = interpret(module, [np.asarray(jnp.asarray(a)) for a in arguments])
    want = jax.jit(function)(*arguments)
    for mine, theirs in zip(got, want, strict=True):
        assert np.asarray(mine).dtype == theirs.dtype
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def test_a_number_keeps_its_weak_type_through_programs_and_transformations() -> None:
    def scaled(x: Any, s: Any) -> Any:
        return x * s

    def repeated(function: Any) -> Any:
        return lambda x: jax.lax.scan(lambda c, _: (function(c, 2.0), None), x, None, length=3)[0]

    def loss(function: Any) -> Any:
        return lambda s, x: function(x, s).astype(jnp.float32).sum()

    made = jit(scaled)
    same(made(HALVES, made(2.0, 3.0)), scaled(HALVES, scaled(2.0, 3.0)))
    assert len(made._programs) == 2
    same(made(HALVES, np.float32(6)), scaled(HALVES, np.float32(6)))
    assert len(made._programs) == 3
    same(repeated(made)(HALVES), repeated(scaled)(HALVES))
    got, want = (jax.jit(jax.grad(loss(f), (0, 1)))(2.0, HALVES) for f in (made, scaled))
    same(got, want)


def test_a_setting_that_changes_what_jax_traces_makes_another_program() -> None:
    made = jit(lambda x: x + jnp.arange(4))
    same(made(X), X + X)
    with jax.enable_x64(True):
        same(made(X), X + jnp.arange(4))
    assert len(made._programs) == 2


def twice(x: Any, n: int, *, more: int = 0) -> Any:
    for _ in range(n + more):
        x = x * 2
    return x


@pytest.mark.parametrize(
    "static",
    [
        {"static_argnames": ("n", "more")},
        {"static_argnums": 1, "static_argnames": "more"},
        {"static_argnums": -1, "static_argnames": "more"},
    ],
)
def test_a_static_parameter_is_so_by_position_and_by_name(static: dict[str, Any]) -> None:
    module = pyc_jax.jit(twice, **static).module
    for call in (lambda: module(X, 2, more=1), lambda: module(X, n=2, more=1)):
        text = str(call())
        assert text.count("pyc.mul") == 3 and "%arg1" not in text


def test_the_last_of_any_number_of_arguments_is_static() -> None:
    module = pyc_jax.jit(lambda *xs: xs[0] + twice(xs[1], xs[-1]), static_argnums=-1).module
    assert str(module(X, X, 2)).count("pyc.mul") == 2


def test_equal_values_of_other_types_are_other_programs() -> None:
    made = jit(lambda x, n: x * n[0], static_argnums=1)
    for value in (2, 2.0, 1, True, 0.0, -0.0):
        same(made(X, (value,)), X * value)
    assert np.signbit(np.asarray(made(X, (-0.0,)))).all() and len(made._programs) == 6
    with pytest.raises(PycError, match="expected a hashable value, got list"):
        made(X, [2])


def test_a_decorated_method_binds_its_object() -> None:
    class Scaled:
        k = 2

        @partial(jit, static_argnums=0)
        def f(self, x: Any) -> Any:
            return x * self.k

    same(Scaled().f(X), X * 2)


@pytest.mark.parametrize("value", [2**40, "text"])
def test_what_has_no_type_in_jax_is_refused(value: Any) -> None:
    with pytest.raises(PycError) as refused:
        pyc_jax.jit(lambda x: x).module(value)
    assert refused.value.code is ReasonCode.BAD_ARGUMENT


@pytest.mark.parametrize("wrong", [{"static_argnames": "zzz"}, {"static_argnums": 3}])
def test_a_static_argument_that_is_no_parameter_is_refused(wrong):
    with pytest.raises(PycError, match="static arguments: expected some of x, n, got"):
        pyc_jax.jit(lambda x, n: x * n, **wrong)
