"""Compile on one machine, run on another that has no compiler, refuse what does not fit.

The file also runs under IREE's own `iree-run-module`.
"""

from pathlib import Path

import numpy as np

import pyc_mlir
from pyc_mlir import PycError, Tensor, nn

rng = np.random.default_rng(0)
weights = rng.normal(0, 0.1, (64, 10)).astype(np.float32)


def model(x: Tensor["f32", "batch", 64]):
    return nn.softmax(x @ weights)


pyc_mlir.compile(model, dims={"batch": (1, 32)}).save("model.vmfb")

program = pyc_mlir.load("model.vmfb")  # needs numpy, ml_dtypes and IREE's runtime only
print(program.signature, Path("model.vmfb").stat().st_size, "bytes")
for batch in (1, 7, 32):
    x = rng.normal(size=(batch, 64)).astype(np.float32)
    assert np.allclose(program(x), model(x), atol=1e-6)
for wrong in (np.zeros((33, 64), np.float32), np.zeros((4, 63), np.float32)):
    try:
        program(wrong)
    except PycError as error:
        print(error)
print(program.stats())
