"""The benchmark `zoo` with torch: networks are seeded, exports hold inputs and answers."""

from dataclasses import replace

import numpy as np
import pytest

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.tools.bench.workloads.networks import (
    NETWORKS,
    OPSET,
    Network,
    answers,
    export,
    inputs,
    make,
)

torch = pytest.importorskip("torch", reason="torch is not installed")


def small() -> Network:
    """The zoo's U-Net on smaller images."""
    return replace(NETWORKS["unet"], shape=(3, 32, 32))


def test_weights_are_seeded_and_activations_sane():
    network = small()
    with torch.no_grad():
        first, again = make(network)(*inputs(network, 2)), make(network)(*inputs(network, 2))
    assert first.shape == (2, 2, 32, 32) and torch.equal(first, again)
    assert bool(first.isfinite().all()) and float(first.std()) > 1e-3


def test_an_export_holds_inputs_and_answers(tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    path = export(small(), 1, OPSET, tmp_path)
    with np.load(path.with_suffix(".npz")) as stored:
        assert stored["float64_0"].dtype == np.float64
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        (got,) = session.run(None, {session.get_inputs()[0].name: stored["input_0"]})
        np.testing.assert_allclose(got, stored["float32_0"], atol=1e-4)
    before = path.stat().st_mtime_ns
    assert export(small(), 1, OPSET, tmp_path) == path
    assert path.stat().st_mtime_ns == before


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [0.0, 1.0, float("nan")])
def test_results_that_say_nothing_are_refused(value):
    class Constant(torch.nn.Module):
        def forward(self, x):
            return torch.full_like(x, value)

    with pytest.raises(PycError, match="expected results that differ"):
        answers(Constant(), [torch.zeros(4)])
