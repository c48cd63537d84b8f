"""The suite `zoo`: options, resumed rows, tables; a whole row of a small network without peers."""

from argparse import Namespace
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Record, Report, record
from pyc_mlir.tools import pyc_bench
from pyc_mlir.tools.bench.peers.systems import SystemTask
from pyc_mlir.tools.bench.peers.worker import prepare
from pyc_mlir.tools.bench.report import suite as report_suite
from pyc_mlir.tools.bench.report.show import markdown, short
from pyc_mlir.tools.bench.suites import zoo
from pyc_mlir.tools.bench.suites.zoo import SYSTEMS, Models, ZooRow
from pyc_mlir.tools.bench.workloads.export import MODELS, stem
from pyc_mlir.tools.bench.workloads.networks import CONVOLUTIONAL, NETWORKS, OPSET, TRANSFORMER


def made(row: ZooRow, system: str, seconds: float = 0.01, **fields: object) -> Record:
    """A record as a row gives it."""
    threads = row.threads
    kept = record(row.workload, system, f"latency, {threads} threads", "s", seconds)
    return kept | {
        "system": system,
        "threads": threads,
        "class": MODELS[row.network].kind,
        "network": row.network,
        "batch": row.batch,
        "median_seconds": seconds,
        "p10_seconds": seconds,
        "p90_seconds": seconds,
        "max_error": 2e-6,
        "flops": 1_000_000_000,
        "peak_flops": 2e11,
        "compile_seconds": 2.0,
        "compile_cpu_seconds": 3.0,
        "resident_bytes": 1 << 28,
        "first_call_bytes": 1 << 20,
        "call_peak_bytes": None,
        "tried": {},
        **fields,
    }


def test_the_zoo_has_the_networks():
    kinds = [network.kind for network in NETWORKS.values()]
    assert kinds.count(CONVOLUTIONAL) == 9 and kinds.count(TRANSFORMER) == 4
    assert all(name == network.name for name, network in NETWORKS.items())


def test_files_are_named_by_batch_and_opset():
    assert stem("unet") == "unet"
    assert stem("unet", 8) == "unet.b8"
    assert stem("bert", 1, 23) == "bert.opset23"


@pytest.mark.parametrize("bad", ["--models=resnet1", "--systems=tvm", "--models=", "--batch=0"])
def test_wrong_words_are_refused(bad, tmp_path):
    with pytest.raises(PycError, match="expected"):
        zoo.run([bad, "--json", str(tmp_path / "x.json")])


@pytest.mark.parametrize(
    "option", ["--models=unet", "--systems=pyc", "--threads=1", "--batch=1", "--rounds=5",
               "--quick", "--opset=23"],
)  # fmt: skip
def test_a_part_is_not_the_published_report(option, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "measured", lambda row, *_: [made(row, "pyc")])
    (tmp_path / "docs" / "results").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert zoo.run([f"--folder={tmp_path}", option]) == 0
    assert (tmp_path / "zoo-part.json").exists() and not Path("docs/results/zoo.json").exists()
    assert zoo.run([f"--folder={tmp_path}"]) == 0
    assert Path("docs/results/zoo.json").exists()


def test_the_models_folder_is_an_option_or_a_variable_or_the_cache(monkeypatch, tmp_path):
    def folder(named: Path | None = None) -> Path:
        return zoo.folder_of(Namespace(folder=named))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(zoo.VARIABLE, raising=False)
    assert folder() == tmp_path / "cache" / "pyc-mlir" / "zoo"
    monkeypatch.setenv(zoo.VARIABLE, str(tmp_path / "named"))
    assert folder() == tmp_path / "named"
    assert folder(tmp_path) == tmp_path


def test_rows_are_complete_when_every_system_has_a_record(rows, tmp_path, monkeypatch):
    path, one = tmp_path / "zoo.json", ZooRow("unet", 1, 1)
    with pytest.raises(Interrupted):
        zoo.run(command(path))
    partial = Report.load(f"{path}.partial")
    replace(partial, records=partial.records[:1]).save(f"{path}.partial")
    assert zoo.run(command(path)) == 0
    assert rows.count(one) == 2


class Interrupted(Exception):
    """The run ends here."""


@pytest.fixture
def rows(monkeypatch) -> list[ZooRow]:
    """The rows that were measured; batch 8 is interrupted the first time."""
    requested: list[ZooRow] = []

    def measured(row, systems, run, models):
        requested.append(row)
        if row.batch == 8 and requested.count(row) == 1:
            raise Interrupted
        return [made(row, system) for system in systems]

    monkeypatch.setattr(zoo, "measured", measured)
    return requested


def command(path: Path) -> list[str]:
    parts = ("--models=unet", "--systems=pyc,onnxruntime", "--threads=1", "--batch=1,8")
    return [*parts, f"--folder={path.parent}", "--rounds=2", f"--json={path}"]


def test_rows_are_stored_as_they_come_and_a_run_goes_on(rows, tmp_path, capsys):
    path = tmp_path / "zoo.json"
    with pytest.raises(Interrupted):
        zoo.run(command(path))
    partial = Report.load(f"{path}.partial")
    assert {r["workload"] for r in partial.records} == {"unet, batch 1"}
    assert zoo.run(command(path)) == 0
    assert rows == [ZooRow("unet", 1, 1), ZooRow("unet", 8, 1), ZooRow("unet", 8, 1)]
    report = Report.load(path)
    assert len(report.records) == 4 and not Path(f"{path}.partial").exists()
    assert report.settings["batch"] == [1, 8] and report.settings["opset"] == 20
    assert "unet, batch 8" in capsys.readouterr().out


def test_quantized_models_are_a_word_and_not_torchs(rows, tmp_path):
    path = tmp_path / "quantized.json"
    parts = ["--models=quantized", "--systems=pyc,torch", "--threads=1", "--batch=1"]
    assert zoo.run([*parts, f"--folder={tmp_path}", f"--json={path}"]) == 0
    ran = {r["network"] for r in Report.load(path).records}
    assert {"bert2-int8", "feed-forward-4bit-64", "resnet18", "bert2"} < ran
    assert zoo.able("bert2-int8", ("pyc", "torch", "torch-compile")) == ["pyc"]
    assert zoo.able("bert2", ("pyc", "torch")) == ["pyc", "torch"]


def test_another_environment_measures_all_again(rows, monkeypatch, tmp_path, capsys):
    path = tmp_path / "zoo.json"
    with pytest.raises(Interrupted):
        zoo.run(command(path))
    other = replace(probe(), cpu="another processor")
    monkeypatch.setattr(report_suite, "probe", lambda: other)
    assert zoo.run(command(path)) == 0
    assert rows.count(ZooRow("unet", 1, 1)) == 2
    assert "another environment" in capsys.readouterr().err


def test_a_row_that_cannot_be_measured_is_a_failure_of_each_system(monkeypatch, tmp_path):
    def refuse(self, network, batch):
        raise PycError(ReasonCode.MISSING_DEPENDENCY, "no model")

    monkeypatch.setattr(Models, "path", refuse)
    path = tmp_path / "zoo.json"
    assert zoo.run(command(path)) == 1
    report = Report.load(path)
    assert len(report.records) == 4
    assert {r["reason"] for r in report.records} == {"MISSING_DEPENDENCY: no model"}
    assert "no model" in markdown(report)


@pytest.mark.skipif(
    find_spec("torch") is not None, reason="torch is installed: the export would run"
)
def test_a_model_that_cannot_be_exported_names_the_packages(tmp_path):
    with pytest.raises(PycError, match=r"expected unet\.onnx in .*pip install '\.\[zoo\]'") as e:
        Models(tmp_path).path("unet", 1)
    assert e.value.code is ReasonCode.MISSING_DEPENDENCY


def test_tables_hold_the_figures_and_what_is_missing():
    conv, bert = ZooRow("resnet50", 1, 1), ZooRow("bert", 8, 2)
    records = [
        made(conv, "pyc", 0.02, call_peak_bytes=3 << 20, compile_cpu_seconds=6.0),
        made(conv, "iree", 0.08, call_peak_bytes=6 << 20, compile_cpu_seconds=4.0),
        made(conv, "onnxruntime", 0.01, call_peak_bytes=12 << 20),
        made(conv, "torch", 0.04),
        made(bert, "pyc", 0.005),
        made(bert, "torch", 0.01, first_call_bytes=None),
    ]
    left = record(bert.workload, "openvino", "left out", "systems", 1, reason="not installed")
    records.append(left | {"system": "openvino", "threads": 2})
    report = Report("zoo", probe(), {}, records)
    text = markdown(report)
    assert "| onnxruntime | 2x | 0.25x |" in text  # the best peer, over it, over plain IREE
    assert "| 1 | 200 | 25% | 6% | 50% | 12% |" in text  # GFLOP, the peak, the shares
    assert "| 3 MiB | 6 MiB | 12 MiB | [1 MiB] | 0.5x | 0.25x |" in text
    assert "| 2 s, 6 s CPU | 2 s, 4 s CPU |" in text and "| 1.5x |" in text
    assert "| transformer | 8 | 2 | 1 | 0.5x | 0.5x (bert, batch 8) |" in text
    assert "left out: openvino: not installed" in text
    brief = short(report)
    assert "| resnet50, batch 1 | 1 | 20 ms | 80 ms | 10 ms | 40 ms | onnxruntime | 2x |" in brief
    assert markdown(Report("zoo", probe(), {}, ())).startswith("zoo: ")


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    """A small network in the place of one of the zoo's, measured through the command line."""
    onnx = pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("zoo")
    draw = np.random.default_rng(0)
    weight = draw.normal(0, 0.2, (4, 3, 3, 3)).astype(np.float32)
    x = draw.normal(0, 1, (1, 3, 8, 8)).astype(np.float32)
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = onnx.helper.make_graph(
        [node],
        "small",
        [onnx.helper.make_tensor_value_info("x", 1, x.shape)],
        [onnx.helper.make_tensor_value_info("y", 1, (1, 4, 8, 8))],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    opset = onnx.helper.make_opsetid("", OPSET)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)
    onnx.save(model, folder / "unet.onnx")
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    y = np.einsum("nchwij,fcij->nfhw", windows, weight.astype(np.float64))
    np.savez(folder / "unet.npz", input_0=x, float32_0=y.astype(np.float32), float64_0=y)
    parts = ["--models=unet", "--systems=pyc,iree", "--threads=1", "--batch=1", "--quick"]
    assert pyc_bench.main(["zoo", *parts, f"--folder={folder}"]) == 0
    return folder


@pytest.mark.full
def test_a_row_says_what_was_promised(stored):
    report = Report.load(stored / "zoo-part.json")
    assert [r["system"] for r in report.records] == ["pyc", "iree"]
    for row in report.records:
        assert (row["network"], row["batch"], row["threads"]) == ("unet", 1, 1)
        assert row["class"] == CONVOLUTIONAL and row["n"] == 2 and row["max_error"] < 1e-5
        assert 0 < row["p10_seconds"] <= row["median_seconds"] <= row["p90_seconds"]
        assert row["flops"] == 2 * 27 * 4 * 64 and row["peak_flops"] > 0
        assert row["call_peak_bytes"] >= 4 * 4 * 64 and row["rows"] == 1
        assert (row["account"] is not None) == (row["system"] == "pyc")
        assert row["compile_seconds"] > 0 and row["compile_cpu_seconds"] > 0
        assert row["resident_bytes"] > row["resident_before_bytes"] > 0
        assert row["first_call_bytes"] is None or row["first_call_bytes"] >= 0
    assert "unet, batch 1" in markdown(report)


def test_a_system_without_a_setting_that_compiles_has_failed(tmp_path):
    np.savez(tmp_path / "inputs.npz", np.zeros(1))
    task = SystemTask("unet", tmp_path, 1, True)
    system = replace(SYSTEMS["torch"], settings=lambda task, inputs: iter(()))
    with pytest.raises(PycError, match="expected a setting that compiles, got none") as caught:
        prepare(system, task)
    assert caught.value.code is ReasonCode.TARGET_COMPILE_FAILED
