"""A memory budget that is kept, or refused with the smallest one that can be kept.

The contract counts all that a call needs: arguments, results, constants and scratch memory.
"""

import numpy as np

import pyc_mlir
from pyc_mlir import Contract, PycError, nn

rng = np.random.default_rng(0)
weights = [rng.normal(0, 0.04, (512, 512)).astype(np.float32) for _ in range(4)]


def model(x):
    branches = [nn.gelu(x @ w) for w in weights]
    return nn.softmax(sum(branches[1:], branches[0]))


x = rng.normal(size=(256, 512)).astype(np.float32)
largest = pyc_mlir.compile(model, (x,))
account = largest.artifact.account
print("by default:   ", account.total(1), "bytes")

program = pyc_mlir.compile(model, (x,), contract=Contract(memory_budget_bytes=7 << 20))
print("under 7 MiB:  ", program.artifact.contract_report)
assert np.allclose(program(x), model(x), atol=1e-5)

try:
    pyc_mlir.compile(model, (x,), contract=Contract(memory_budget_bytes=2 << 20))
except PycError as error:
    print("under 2 MiB:  ", error)
