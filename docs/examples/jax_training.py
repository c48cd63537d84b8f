"""A training step in JAX.

Forward, backward and update are one program. The loss falls as under `jax.jit`.
"""

import jax
import jax.numpy as jnp

import pyc_mlir.jax as pyc_jax

keys = jax.random.split(jax.random.key(0), 3)
x = jax.random.normal(keys[0], (64, 8))
y = jnp.sin(x.sum(1, keepdims=True))
weights = [jax.random.normal(k, s) / 3 for k, s in zip(keys[1:], ((8, 32), (32, 1)))]


def loss(weights, x, y):
    return ((jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2).mean()


@pyc_jax.jit
def step(weights, x, y):
    value, slopes = jax.value_and_grad(loss)(weights, x, y)
    return [w - 0.1 * slope for w, slope in zip(weights, slopes)], value


losses = []
for _ in range(50):
    weights, value = step(weights, x, y)
    losses.append(float(value))
assert losses[-1] < 0.5 * losses[0]
