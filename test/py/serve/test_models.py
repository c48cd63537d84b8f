"""Models of a server: the memory that they hold."""

import numpy as np

import pyc_mlir
from pyc_mlir import TensorSpec
from pyc_mlir.serve.models import Model, ModelSettings


def test_no_arena_is_held_before_the_first_request(tmp_path):
    w = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)

    def layers(x):
        y = np.maximum(x @ w, 0) @ w
        return np.maximum((y - y.max(axis=1, keepdims=True)) @ w, 0) @ w

    program = pyc_mlir.compile(layers, [TensorSpec("f32", "n", 64)], dims={"n": (1, 64)})
    program.save(tmp_path / "layers.vmfb")
    before = program.device.memory().live_bytes
    model = Model(ModelSettings("layers", tmp_path / "layers.vmfb"))
    try:
        served = model.service.program
        assert model.alone == "", "its rows were probed"
        assert served.stats().arena_bytes == 0
        assert served.device.memory().live_bytes <= before
        model.service(np.ones((8, 64), np.float32))
        assert served.stats().arena_bytes > 0
        served.trim()
        assert served.stats().arena_bytes == 0
    finally:
        model.close()
