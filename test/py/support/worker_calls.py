"""Compiles in a worker: a small program, and what `build` makes of it or raises."""

from typing import Any

import numpy as np
import pytest

from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.choices.contract import Contract

LONG = Contract(max_compile_seconds=600)
TEXT = """func.func @main(%x: tensor<?x8xf32> {pyc.name = "x", pyc.dims = ["n", ""]})
    -> tensor<?x8xf32> {
  %0 = "pyc.tanh"(%x) : (tensor<?x8xf32>) -> tensor<?x8xf32>
  return %0 : tensor<?x8xf32>
}
"""
X = np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)


def chain(x):
    """A program that takes a while: products of many sizes."""
    for i in range(24):
        x = np.tanh(x @ np.full((8 + 3 * i, 11 + 3 * i), 0.01, np.float32))
    return x


def compiled(source: Any = TEXT, inputs=None, untrusted=False, **asked) -> Artifact:
    return build(source, inputs, make_options(**asked), untrusted=untrusted)


def refusal(source: Any = TEXT, inputs=None, untrusted=False, **asked) -> PycError:
    with pytest.raises(PycError) as caught:
        compiled(source, inputs, untrusted, **asked)
    return caught.value
