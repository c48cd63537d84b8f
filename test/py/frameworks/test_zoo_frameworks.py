"""The benchmark `zoo` with torch: networks are seeded, exports hold inputs and answers."""

from dataclasses import replace

import numpy as np
import pytest

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.measure.records import Report
from pyc_mlir.tools.bench.report.show import markdown
from pyc_mlir.tools.bench.report.tables import LEFT_OUT
from pyc_mlir.tools.bench.suites import zoo
from pyc_mlir.tools.bench.workloads.dynamic import Dynamic
from pyc_mlir.tools.bench.workloads.export import answers, export
from pyc_mlir.tools.bench.workloads.networks import (
    NETWORKS,
    OPSET,
    TRANSFORMER,
    Network,
    inputs,
    make,
)
from pyc_mlir.tools.bench.workloads.quantized import Quantized

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
    path = export("unet", small(), 1, OPSET, tmp_path)
    with np.load(path.with_suffix(".npz")) as stored:
        assert stored["float64_0"].dtype == np.float64
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        (got,) = session.run(None, {session.get_inputs()[0].name: stored["input_0"]})
        np.testing.assert_allclose(got, stored["float32_0"], atol=1e-4)
    before = path.stat().st_mtime_ns
    assert export("unet", small(), 1, OPSET, tmp_path) == path
    assert path.stat().st_mtime_ns == before


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [0.0, 1.0, float("nan")])
def test_results_that_say_nothing_are_refused(value):
    class Constant(torch.nn.Module):
        def forward(self, x):
            return torch.full_like(x, value)

    with pytest.raises(PycError, match="expected results that differ"):
        answers(Constant(), [torch.zeros(4)])


@pytest.mark.parametrize(
    ("how", "element"), [("half", 10), ("bfloat16", 16), ("static", 1), ("dynamic", 1)]
)
def test_models_are_made_of_a_network(how, element, tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    network = Network("linear", TRANSFORMER, "", (4, 8), lambda: torch.nn.Linear(8, 6))
    path = export("made", Quantized(network, how), 1, OPSET, tmp_path)
    graph = onnx.load(path).graph
    (entry,) = graph.input
    assert entry.type.tensor_type.elem_type == element
    if how in ("half", "bfloat16"):
        assert {w.data_type for w in graph.initializer if w.data_type in (1, 10, 16)} == {element}
    else:
        expected = {"static": "QuantizeLinear", "dynamic": "DynamicQuantizeLinear"}[how]
        assert expected in {node.op_type for node in graph.node}
    with np.load(path.with_suffix(".npz")) as made, np.load(tmp_path / "linear.npz") as plain:
        error = np.abs(made["float64_0"] - plain["float64_0"]).max()
        assert error == 0 if how in ("half", "bfloat16") else 0 < error < 0.1


def test_one_model_is_called_at_several_sizes(tmp_path, monkeypatch):
    """The suite `dynamic-zoo` on a small network in the place of one of its own."""
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    layers = torch.nn.Embedding(8192, 8), torch.nn.Linear(8, 6)
    network = Network("words", TRANSFORMER, "", (4,), lambda: torch.nn.Sequential(*layers))
    ranges = {"batch": (1, 4), "length": (1, 512)}
    sizes = ((1, 4), (2, 8), ())
    words = Dynamic(network, {0: "batch", 1: "length"}, ranges, sizes)
    monkeypatch.setattr(zoo, "DYNAMIC", {"bert": words})
    monkeypatch.setattr(zoo, "in_child", lambda measure, *given: measure(*given))
    export("bert.any", words, 1, OPSET, tmp_path)
    stored = tmp_path / "dynamic.json"
    command = ["--models=bert", "--rounds=1", f"--folder={tmp_path}", f"--json={stored}"]
    assert zoo.dynamic_zoo(command) == 0
    report = Report.load(stored)
    rows = {(r["workload"], r["system"]): r for r in report.records if r["metric"] != LEFT_OUT}
    names = ["bert, 1x4", "bert, 2x8", "bert, random lengths"]
    assert {name for name, _ in rows} == set(names)
    for name in names:
        assert {s for w, s in rows if w == name} >= {"pyc", "pyc-static", "onnxruntime"}
    one, other, drawn = (rows[name, "pyc"] for name in names)
    assert one["max_error"] < 1e-5 and one["call_peak_bytes"] >= 4 * 6 * 4
    assert one["compile_seconds"] == other["compile_seconds"], "one compile serves both"
    assert one["sizes"] == [1, 4] and other["sizes"] == [2, 8]
    assert 0 < drawn["value"] <= drawn["p99"]
    text = markdown(report)
    assert "p99 / static" in text and "| / static |" in text and "| pyc-static |" in text
