import jax
import jax.numpy as jnp
import numpy as np

import pyc_mlir.jax


def f(x, w):
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=512)[0]


x, w = np.ones((2, 8), np.float32), np.eye(8, dtype=np.float32) * 0.9
np.testing.assert_allclose(np.asarray(pyc_mlir.jax.jit(f)(x, w)), f(x, w), rtol=1e-4)
print("scanned")
