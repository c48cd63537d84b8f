"""Random image networks against onnxruntime, under the default policy and random legal choices."""

from collections import Counter

import numpy as np
import pytest
from conftest import FULL
from random_images import network
from random_policy import Dice

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import pyc_mlir  # noqa: E402

BATCH = 10
BATCHES = 40 if FULL else 1


def error_of(seed: int) -> float:
    """Return the largest difference from onnxruntime, relative to the largest result."""
    model, x = network(seed)
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"image": x})
    policy = Dice(seed) if seed % 2 else "heuristic"
    got = pyc_mlir.compile(model, policy=policy)(x)
    assert got.shape == want.shape and np.isfinite(want).all(), f"seed {seed}"
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-3))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_networks_equal_onnxruntime(batch: int, record_property) -> None:
    seeds = range(batch * BATCH, (batch + 1) * BATCH)
    errors = {seed: error_of(seed) for seed in seeds}
    record_property("random image networks against onnxruntime", dict(Counter(
        "equal" if error < 1e-4 else "different" for error in errors.values()
    )))  # fmt: skip
    assert {seed: error for seed, error in errors.items() if error >= 1e-4} == {}
