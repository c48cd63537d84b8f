import jax
import jax.numpy as jnp
import numpy as np

import pyc_mlir.jax


def f(x, w):
    return jax.nn.softmax(jnp.tanh(x @ w))


x, w = np.ones((4, 8), np.float32), np.eye(8, dtype=np.float32)
np.testing.assert_allclose(np.asarray(pyc_mlir.jax.jit(f)(x, w)), f(x, w), rtol=1e-5)
print("jitted")
