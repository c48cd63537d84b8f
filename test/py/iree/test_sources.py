"""Dispatches carry the ids of all ops that they compute, and of no others."""

import numpy as np

from pyc_mlir import compile
from pyc_mlir.artifact.memory import from_bytes

SHIFT = np.float32(0.5)


def sources(function, *arrays, **options) -> dict[str, set[str]]:
    """By dispatch the names of its source ops."""
    artifact = compile(function, arrays, **options).artifact
    tasks = [t for r in from_bytes(artifact.memory).regions for t in r.tasks]
    return {t.name: {s.partition(".")[0] for s in t.sources} for t in tasks if t.sources}


def test_all_ops_of_a_fused_dispatch():
    x = np.ones((8, 64), np.float32)

    def centered(x):
        return x - np.mean(x, -1, keepdims=True)

    (found,) = sources(centered, x, kernels="iree").values()
    assert found == {"reduce_mean", "sub"}


def test_shared_constants_and_fills_are_nobodys():
    """Two products of one size share the zeros that they start from."""
    x, w = np.ones((8, 64), np.float32), np.ones((64, 64), np.float32)

    def twice(x, w):
        return np.tanh(np.tanh(x @ w) @ w.T)

    artifact = compile(twice, [x, w], kernels="iree").artifact
    tasks = [t for r in from_bytes(artifact.memory).regions for t in r.tasks]
    products = [s for t in tasks for s in t.sources if s.startswith("matmul.")]
    assert len(products) == len(set(products)), "each product is in one dispatch"
    for task in tasks:
        if task.name.startswith("stream."):
            assert not task.sources


def test_a_program_of_one_dispatch_is_reported_too():
    x = np.ones((8, 64), np.float32)
    (found,) = sources(lambda x: x + SHIFT, x).values()
    assert found == {"add"}


def test_kernels_are_named_by_their_group():
    x, w = np.ones((8, 64), np.float32), np.ones((64, 64), np.float32)
    found = sources(lambda x: np.maximum(x @ w, 0), x)
    assert found == {"pyc_gemm_0": {"group"}}
