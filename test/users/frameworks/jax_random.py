import jax
import numpy as np

import pyc_mlir.jax


def draw(seed):
    key = jax.random.key(seed)
    return jax.random.normal(key, (4, 5)), jax.random.uniform(key, (7,))


for got, wanted in zip(pyc_mlir.jax.jit(draw)(np.int32(3)), jax.jit(draw)(np.int32(3))):
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-6)


def bits(seed):
    return jax.random.bits(jax.random.key(seed), (9,))


assert np.array_equal(np.asarray(pyc_mlir.jax.jit(bits)(np.int32(3))), bits(np.int32(3)))
print("equal bits")
