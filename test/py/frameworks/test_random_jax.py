"""`jax.random` through PyC: the bits are JAX's, what is computed of them within rounding."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

from jax import numpy as jnp  # noqa: E402  # pyright: ignore[reportMissingImports]
from jax import random  # noqa: E402  # pyright: ignore[reportMissingImports]

import pyc_mlir  # noqa: E402
import pyc_mlir.jax as pyc_jax  # noqa: E402
from pyc_mlir.dialects.errors import PycError, ReasonCode  # noqa: E402
from pyc_mlir.dialects.ir.pyc import new_context  # noqa: E402
from pyc_mlir.frontends.jax.keys import words_of  # noqa: E402
from pyc_mlir.frontends.stablehlo.importer import import_stablehlo, read_artifact  # noqa: E402


def _steps(key: Any) -> Any:
    def step(carry: Any, _: Any) -> Any:
        carry, used = random.split(carry)
        return carry, random.uniform(used, (2,))

    return jax.lax.scan(step, key, None, length=3)


def _dropped(key: Any) -> Any:
    x = jnp.arange(12.0).reshape(3, 4)
    return jnp.where(random.bernoulli(key, 0.75, x.shape), x / 0.75, 0)


EXACT: dict[str, Callable[[Any], Any]] = {
    "bits": lambda k: random.bits(k, (7, 5)),
    "8 bits": lambda k: random.bits(k, (7,), "uint8"),
    "16 bits": lambda k: random.bits(k, (2, 3, 4), "uint16"),
    "one number": random.uniform,
    "uniform": lambda k: random.uniform(k, (300,)),
    "bf16": lambda k: random.uniform(k, (300,), jnp.bfloat16),
    "bernoulli": lambda k: random.bernoulli(k, 0.3, (300,)),
    "randint": lambda k: random.randint(k, (300,), -3, 1000),
    "split": lambda k: random.split(k, (2, 3)),
    "fold_in": lambda k: jax.vmap(_uniform_of, (None, 0))(k, jnp.arange(4)),
    "of many keys": lambda k: jax.vmap(lambda q: random.bits(q, (2,)))(random.split(k, 3)),
    "moved keys": lambda k: random.split(k, (2, 3)).reshape(6, *k.shape)[4],
    "permutation": lambda k: random.permutation(k, 50),
    "choice": lambda k: random.choice(k, jnp.arange(20.0), (5,), replace=False),
    "categorical": lambda k: random.categorical(k, jnp.log(jnp.arange(1.0, 8)), shape=(40,)),
    "scan": _steps,
    "chosen key": lambda k: random.bits(
        jax.lax.select(random.uniform(k) > 0.5, *random.split(k)), (3,)
    ),
}
ROUNDED: dict[str, Callable[[Any], Any]] = {
    "normal": lambda k: random.normal(k, (300,)),
    "dropout": _dropped,
    "gumbel": lambda k: random.gumbel(k, (300,)),
    "exponential": lambda k: random.exponential(k, (300,)),
    "truncated normal": lambda k: random.truncated_normal(k, -2, 2, (300,)),
    "of a key made there": lambda k: random.normal(random.key(random.randint(k, (), 0, 9)), (30,)),
}


def _uniform_of(key: Any, number: Any) -> Any:
    return random.uniform(random.fold_in(key, number), (3,))


def _leaves(results: Any) -> list[np.ndarray]:
    return [np.asarray(words_of(leaf)) for leaf in jax.tree.leaves(results)]


def _check(got: Any, function: Callable[[Any], Any], key: Any, limit: float) -> None:
    want = _leaves(jax.jit(function)(key))
    found = _leaves(list(got) if isinstance(got, tuple) else got)
    for mine, theirs in zip(found, want, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(
            mine.astype(np.float64), theirs.astype(np.float64), rtol=limit, atol=limit / 10
        )


@pytest.mark.parametrize("make", [random.key, random.PRNGKey], ids=["typed", "raw"])
@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
def test_random_numbers_are_jaxs(name: str, make: Any) -> None:
    function, key = {**EXACT, **ROUNDED}[name], make(3)
    module = pyc_jax.jit(function).module(key)
    got = pyc_mlir.interpret(module, [np.asarray(words_of(key))])
    _check(got, function, key, 0 if name in EXACT else 1e-5)


@pytest.mark.parametrize("name", ["bits", "uniform", "split", "dropout", "permutation", "normal"])
def test_random_numbers_of_an_exported_model_are_jaxs(name: str) -> None:
    function, key = {**EXACT, **ROUNDED}[name], random.PRNGKey(3)
    artifact = jax.export.export(jax.jit(function))(key).mlir_module_serialized
    module = import_stablehlo(read_artifact(artifact, name, new_context()), name)
    got = pyc_mlir.interpret(module, [np.asarray(key)])
    _check(got, function, key, 0 if name in EXACT else 1e-5)


@pytest.mark.parametrize("make", [random.key, random.PRNGKey], ids=["typed", "raw"])
def test_a_program_takes_and_gives_keys(make: Any) -> None:
    def function(keys: Any) -> Any:
        return random.split(keys["a"]), random.uniform(keys["a"], (5,)), random.normal(keys["b"])

    keys = {"a": make(0), "b": make(1)}
    got, want = pyc_jax.jit(function)(keys), function(keys)
    assert [g.dtype for g in got] == [w.dtype for w in want]
    np.testing.assert_array_equal(words_of(got[0]), words_of(want[0]))
    np.testing.assert_array_equal(got[1], want[1])
    np.testing.assert_allclose(got[2], want[2], rtol=1e-5)
    again = random.uniform(got[0][0], (2,))
    np.testing.assert_array_equal(again, random.uniform(want[0][0], (2,)))


def test_a_training_step_with_dropout_is_jaxs() -> None:
    """The backward pass computes the mask of the forward pass again, from the same key."""

    def loss(w: Any, x: Any, key: Any) -> Any:
        hidden = jnp.tanh(x @ w)
        kept = random.bernoulli(key, 0.5, hidden.shape)
        return (jnp.where(kept, hidden / 0.5, 0) ** 2).mean()

    step = jax.value_and_grad(loss)
    rng = np.random.default_rng(0)
    w, x = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((8, 5), (16, 8)))
    for key in (random.key(1), random.PRNGKey(1)):
        for made in (pyc_jax.jit(step), jax.value_and_grad(pyc_jax.jit(loss))):
            for got, want in zip(made(w, x, key), step(w, x, key), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_closed_over_key_is_a_constant() -> None:
    key = random.key(5)
    got = pyc_mlir.interpret(
        pyc_jax.jit(lambda x: x + random.uniform(key, (3,))).module(jnp.zeros(3)),
        [np.zeros(3, np.float32)],
    )
    np.testing.assert_array_equal(np.asarray(got[0]), random.uniform(key, (3,)))


def test_keys_of_other_generators_are_refused() -> None:
    with pytest.raises(PycError, match="expected `threefry2x32`") as refused:
        pyc_jax.jit(lambda k: random.bits(k, (3,))).module(random.key(0, impl="rbg"))
    assert refused.value.code is ReasonCode.UNSUPPORTED_OP
