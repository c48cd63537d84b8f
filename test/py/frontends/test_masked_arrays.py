"""Arrays whose class gives them another meaning are refused wherever arrays enter."""

from typing import Any

import numpy as np
import pytest
from test_jit import oracle

from pyc_mlir import nn
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.python.jit import jit
from pyc_mlir.frontends.python.specs import Tensor, TensorSpec
from pyc_mlir.frontends.python.trace import trace
from pyc_mlir.runtime.array import readable

X = np.arange(6, dtype=np.float32).reshape(2, 3)
MASKED = np.ma.masked_array(X, mask=X > 3)
with pytest.warns(PendingDeprecationWarning):
    MATRIX = np.matrix(X)
INDICES = np.ma.masked_array([0, 1], mask=[False, True])
NO_DEVICE: Any = None
SPEC = TensorSpec("f32", 2, 3)


def annotated(x: Tensor["f32", 2, 3]):  # noqa: F821
    return x


def refused(run, message="masked array"):
    with pytest.raises(PycError, match=message) as caught:
        run()
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + MASKED,
        lambda x: np.add.reduce(x) + MASKED[0],
        lambda x: np.maximum(MASKED, x),
        lambda x: np.concatenate([x, MASKED]),
        lambda x: np.where(x > 0, x, MASKED),
        lambda x: np.einsum("ij,kj->ik", x, MASKED),
        lambda x: x @ MASKED.T,
        lambda x: x[INDICES],
        lambda x: np.take(x, INDICES, axis=1),
        lambda x: nn.relu(x) + nn.take(MASKED, np.array([0, 1])),
        lambda x: nn.attention(x, MASKED, x),
        lambda x: (x, MASKED),
        lambda x: x * np.ma.masked,
    ],
)
def test_captured(function):
    refused(lambda: trace(function, SPEC))


def test_arguments():
    module = trace(annotated)
    refused(lambda: trace(lambda x: x, MASKED))
    refused(lambda: jit(lambda x: x, compile=oracle)(MASKED))
    refused(lambda: jit(lambda p: p["x"], compile=oracle)({"x": MASKED}))
    refused(lambda: jit(annotated, compile=oracle)(MASKED))
    refused(lambda: interpret(module, [MASKED]), "main: input 0: .*masked array")
    refused(lambda: nn.relu(MASKED))
    refused(lambda: readable(MASKED, NO_DEVICE))


def test_operators_of_masked_arrays_ask_for_values():
    with pytest.raises(PycError, match="UNTRACEABLE"):
        trace(lambda x: MASKED + x, SPEC)


def test_matrices():
    refused(lambda: trace(lambda x: x * MATRIX.T, SPEC), "np.matrix.*asarray")
    refused(lambda: trace(lambda x: x, MATRIX), "np.matrix.*asarray")


def test_other_subclasses_are_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 3))
    assert trace(lambda x: x + mapped, mapped)
