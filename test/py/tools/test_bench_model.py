"""`pyc-bench model`: sizes, peers, references and reports; a small model against plain IREE."""

import argparse
from pathlib import Path

import numpy as np
import pytest

from pyc_mlir import Tensor, nn, trace
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.sources import Source
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Report, record
from pyc_mlir.tools import pyc_bench
from pyc_mlir.tools.bench.model import suite
from pyc_mlir.tools.bench.model.case import ModelCase, read_signature
from pyc_mlir.tools.bench.peers.graph import read_graph

F32 = np.dtype(np.float32)
DIGITS = Path(__file__).parents[3] / "tools" / "demo" / "models" / "digits_mlp.onnx"
BOTH = Signature((SignatureEntry("x", F32, ("n", 4)), SignatureEntry("y", F32, ("n", "m"))), ())


@pytest.mark.parametrize("bad", ["8", "batch=", "batch=a", "=8", "batch=0"])
def test_sizes_are_a_name_and_numbers(bad):
    with pytest.raises(argparse.ArgumentTypeError):
        suite._dim(bad)


def test_every_combination_of_sizes_is_measured():
    assert suite._dim("x[0]=1,8") == ("x[0]", (1, 8))
    rows = list(suite._sizes([("n", (1, 8)), ("m", (3,))]))
    assert rows == [{"n": 1, "m": 3}, {"n": 8, "m": 3}]
    assert list(suite._sizes([])) == [{}]


def test_a_missing_peer_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(suite, "_installed", lambda module: module != "openvino")
    systems, missing = suite.chosen(None)
    assert "openvino" not in systems and "iree" in systems
    assert "pip install '.[bench]'" in missing["openvino"]
    assert suite.chosen(["iree"]) == (["iree"], {})
    with pytest.raises(PycError, match=r"--against openvino: .*'\.\[bench\]'") as caught:
        suite.chosen(["openvino"])
    assert caught.value.code is ReasonCode.MISSING_DEPENDENCY


def test_inputs_are_seeded_and_can_be_given():
    case = ModelCase.of("a.onnx", None, BOTH, {"n": 2, "m": 3})
    again = ModelCase.of("a.onnx", None, BOTH, {"n": 2, "m": 3}, ["y=2x3xf32=1.5"])
    assert [a.shape for a in case.inputs] == [(2, 4), (2, 3)]
    assert np.array_equal(case.inputs[0], again.inputs[0]) and again.inputs[1].max() == 1.5
    assert (case.workload, case.rows) == ("n=2, m=3", 2)
    with pytest.raises(PycError, match="--dim m=N") as caught:
        ModelCase.of("a.onnx", None, BOTH, {"n": 2, "l": 3})
    assert "got none for m, but for l" in caught.value.message
    assert caught.value.code is ReasonCode.BAD_ARGUMENT
    with pytest.raises(PycError) as caught:
        ModelCase.of("a.onnx", None, BOTH, {"n": 2, "m": 3}, ["y=5x3xf32"])
    assert caught.value.code is ReasonCode.DIMENSION_MISMATCH


def test_both_float64_references_agree():
    pytest.importorskip("onnx")
    case = ModelCase.of(str(DIGITS), Source.of(DIGITS), read_signature(DIGITS, None), {"batch": 3})
    by_onnx, by_numpy = case.reference("onnx"), case.reference("numpy")
    assert case.reference("auto").how == by_onnx.how != by_numpy.how
    assert by_onnx.results[0].dtype == by_numpy.results[0].dtype == np.float64
    np.testing.assert_allclose(by_onnx.results[0], by_numpy.results[0], rtol=1e-12)


def test_a_program_without_a_model_file_has_the_numpy_reference_alone():
    def f(x: Tensor["f32", "n", 4]):  # noqa: F821
        return nn.softmax(x * 2.0)

    module = str(trace(f))
    case = ModelCase.of("f.mlir", module, read_signature(module, None), {"n": 2})
    expected = case.reference("auto").results[0]
    powers = np.exp(2.0 * case.inputs[0].astype(np.float64))
    np.testing.assert_allclose(expected, powers / powers.sum(-1, keepdims=True), rtol=1e-12)
    assert len(case.graph.steps) == len(read_graph(module, None).steps)
    with pytest.raises(PycError, match="ONNX models only"):
        case.reference("onnxruntime")


def made(system: str, seconds: float, error: float = 1e-7):
    row = record("batch=8", system, "latency, 1 thread", "s", seconds)
    account = {"constants": 1024, "inputs": 256, "transients": 512, "outputs": 256}
    return row | {
        "system": system,
        "threads": 1,
        "class": "model",
        "median_seconds": seconds,
        "p10_seconds": seconds,
        "p90_seconds": seconds,
        "max_error": error,
        "rows": 8,
        "setting": "default",
        "compile_seconds": 2.0,
        "resident_before_bytes": 1 << 20,
        "resident_bytes": 3 << 20,
        "first_call_bytes": 2048,
        "call_peak_bytes": 768 if system == "pyc" else None,
        "account": account if system == "pyc" else None,
        "prediction": "",
    }


def test_the_report_is_a_table_and_a_page():
    settings = {"model": "a<b>.onnx", "inputs": ["x: tensor<8x4xf32>"], "reference": "numpy",
                "missing": {"jax": "no package `jax`"}}  # fmt: skip
    records = [made("pyc", 2e-3), made("torch", 4e-3, 0.5), made("iree", 3e-3)]
    written = Report("model", probe(), settings, records)
    text = suite.text(written)
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert list(rows)[5:8] == ["pyc", "iree", "torch"]  # PyC first, then by time
    assert rows["pyc"][8:] == ["1x", "4,000", "768", "B", "2", "MiB", "1e-07", "2", "s"]
    assert rows["iree"][8:13] == ["1.5x", "2,667", "[2", "KiB]", "2"]
    assert "transients 512 B, outputs 256 B = 2 KiB" in text
    assert "error above 0.001 by torch" in text and "left out: jax: no package" in text
    page = suite.page(written)
    assert page.count("<tr>") == 4 and "a&lt;b&gt;.onnx" in page and "2 KiB" in page


def test_a_model_alone_is_the_short_form(monkeypatch):
    seen: list[list[str]] = []
    monkeypatch.setattr(pyc_bench, "load", lambda entry: lambda words: seen.append(words) or 0)
    assert pyc_bench.main(["m.onnx", "--quick"]) == 0
    assert pyc_bench.main(["model", "m.py:f"]) == 0
    assert seen == [["m.onnx", "--quick"], ["m.py:f"]]
    assert pyc_bench.main(["nosuch"]) == 2


def test_a_model_is_measured_against_plain_iree(monkeypatch, tmp_path, capsys):
    pytest.importorskip("onnx")
    monkeypatch.setenv("PYC_CACHE", "0")
    out, page = tmp_path / "model.json", tmp_path / "model.html"
    words = [str(DIGITS), "--against=iree", "--dim=batch=1,2", "--quick"]
    assert pyc_bench.main([*words, f"--json={out}", f"--html={page}"]) == 0
    records = Report.load(out).records
    assert all(r["max_error"] < 1e-5 for r in records)
    rows = {r["system"]: r for r in records if r["workload"] == "batch=2"}
    assert set(rows) == {"pyc", "iree"} and len(records) == 4
    # The account is that of the largest size of one program.
    assert {r["account"]["inputs"] for r in records if r["system"] == "pyc"} == {2 * 64 * 4}
    assert rows["pyc"]["account"]["inputs"] == 2 * 64 * 4 and rows["pyc"]["rows"] == 2
    assert "batch=2, 1 thread" in capsys.readouterr().out and "</html>" in page.read_text()
