import jax
import jax.numpy as jnp
import numpy as np

import pyc_mlir.jax


def loss(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


@pyc_mlir.jax.jit
def step(w, x, y):
    value, gradient = jax.value_and_grad(loss)(w, x, y)
    return value, w - 0.1 * gradient


rng = np.random.default_rng(0)
x, w = rng.normal(size=(32, 4)).astype(np.float32), np.zeros(4, np.float32)
y = x @ np.ones(4, np.float32)
values = []
for _ in range(10):
    value, w = step(w, x, y)
    values.append(float(np.asarray(value)))
assert values[-1] < values[0] / 4, values
print("trained", values[-1])
