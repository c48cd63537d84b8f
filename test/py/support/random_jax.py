"""Random JAX functions from a seed: a few dozen operations on arrays of small shapes."""

from collections.abc import Callable
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import numpy as np

Step = Callable[[Any, Any], Any]


def _matmul(x: Any, y: Any) -> Any:
    return jnp.tanh(jnp.einsum("...i,...j->...ij", x, x).mean(-1)) + y.mean()


_STEPS: tuple[Step, ...] = (
    lambda x, y: x + y[..., :1],
    lambda x, y: x * jnp.tanh(y.sum()),
    lambda x, y: jax.nn.softmax(x, -1),
    lambda x, y: jax.nn.gelu(x),
    lambda x, y: jax.nn.silu(x) - y.max(),
    lambda x, y: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-3),
    lambda x, y: jnp.where(x > 0, x, 0.1 * x) - y.mean(),
    lambda x, y: jnp.swapaxes(x, 0, -1),
    lambda x, y: x[::-1],
    lambda x, y: jnp.concatenate([x, x[:1]], 0)[1:],
    lambda x, y: jnp.pad(x, [(1, 0)] + [(0, 0)] * (x.ndim - 1))[:-1],
    lambda x, y: jnp.cumsum(x, -1) / x.shape[-1],
    lambda x, y: jnp.sort(x, 0),
    lambda x, y: x.at[0].set(y.mean()),
    lambda x, y: x.at[..., 0].add(1.0),
    lambda x, y: x[jnp.argmax(x.reshape(x.shape[0], -1)[:, 0])] + x,
    lambda x, y: jnp.take(x, jnp.arange(x.shape[0]) % 2, axis=0),
    lambda x, y: jnp.clip(x, -1, 1) ** 2 + jnp.abs(y).min(),
    lambda x, y: jax.lax.scan(lambda c, r: (0.5 * c + r, c - r), x[0], x)[1],
    lambda x, y: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
    lambda x, y: jax.lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + i, x),
    lambda x, y: jax.vmap(lambda r: r - r.min())(x),
    lambda x, y: jax.grad(lambda v: (jax.nn.softplus(v) ** 2).sum())(x),
    lambda x, y: jnp.expand_dims(x, 1).repeat(2, 1).sum(1),
    lambda x, y: x + 1e-3 * x.astype(jnp.bfloat16).astype(x.dtype),
    lambda x, y: jnp.arange(x.shape[-1]) % 3 // 2 + x,
    _matmul,
)


def random_function(seed: int) -> tuple[Callable[..., Any], tuple[np.ndarray, ...]]:
    """A function of two arrays, and arrays for it."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    shape = tuple(int(d) for d in rng.integers(2, 6, rank))
    steps = [_STEPS[i] for i in rng.integers(0, len(_STEPS), int(rng.integers(3, 9)))]

    def function(x: Any, y: Any) -> Any:
        for step in steps:
            x, y = step(x, y), x
        return x, y.sum()

    arrays = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    return function, tuple(arrays)


_NARROW = (jnp.bfloat16, np.float16, np.float32, np.int8, np.uint8, np.int32, np.bool_)
_NUMBERS: tuple[Callable[[int], Any], ...] = (
    float, int, lambda v: v > 2, np.float32, np.int8, lambda v: jnp.asarray(v) * 1.0,
)  # fmt: skip
# Exact for small multiples of a half, whatever the types.
_PROMOTING: tuple[Step, ...] = (
    lambda x, s: x * s, lambda x, s: x + s, lambda x, s: jnp.where(x > 2, x, s), jnp.maximum,
    lambda x, s: jnp.stack([x, x * s]).sum(0), lambda x, s: jnp.asarray(s) + 2 * x,
    lambda x, s: jax.lax.fori_loop(0, 2, lambda i, c: c * 2, s * 1) + x, lambda x, s: x**2 + s,
    lambda x, s: jnp.concatenate([jnp.atleast_1d(s) * 1, x]),
)  # fmt: skip


def random_promotion(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function of an array of a narrow type and two numbers, weakly typed or not."""
    rng = np.random.default_rng(seed)
    dtype = _NARROW[rng.integers(len(_NARROW))]
    first, second = (_PROMOTING[i] for i in rng.integers(0, len(_PROMOTING), 2))
    x = jnp.asarray(rng.integers(0, 5, 3) / 2, dtype)
    numbers = (_NUMBERS[i](int(rng.integers(0, 4))) for i in rng.integers(0, len(_NUMBERS), 2))

    def function(x: Any, s: Any, t: Any) -> Any:
        y = first(x, s)
        return y, second(y, t), s * t

    return function, (x, *numbers)
