"""The suite `latency`: one definition serves every peer, numbers are right, reports can be read."""

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec

import numpy as np
import pytest
from conftest import ALL_CASES

from pyc_mlir.calibrate import fma_program
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.builder import NumpyBuilder
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Report
from pyc_mlir.tools import pyc_bench
from pyc_mlir.tools.bench.peers import worker
from pyc_mlir.tools.bench.peers.graph import LeastWork, read_graph
from pyc_mlir.tools.bench.peers.peaks import measure_flops
from pyc_mlir.tools.bench.peers.prepared import relative_error
from pyc_mlir.tools.bench.peers.rounds import PeerProcess, store
from pyc_mlir.tools.bench.peers.systems import PEERS, SystemTask
from pyc_mlir.tools.bench.peers.translators import onnx_model
from pyc_mlir.tools.bench.peers.worker import environment
from pyc_mlir.tools.bench.report.page import page
from pyc_mlir.tools.bench.report.show import groups, latency, markdown, means
from pyc_mlir.tools.bench.report.tables import PYC, WorkloadFacts, mean, results
from pyc_mlir.tools.bench.suites import latency as cpu_suite
from pyc_mlir.tools.bench.workloads import systems
from pyc_mlir.tools.bench.workloads.cpu import CALL, CLASSES, GOAL_CLASSES, ROWS, make

# The namespace of SVG is a name, not an address that is fetched.
SVG = "http://www.w3.org/2000/svg"
MLP = "mlp 784-512-512-10, batch 64"
DYNAMIC = "mlp 1024-4096-1024, dynamic batch, at 1"
# OpenVINO ends with a segmentation fault on some of the tiny blocks; torch-compile takes long.
QUICK_PEERS = [name for name in ("onnxruntime", "jax", "torch") if find_spec(name) is not None]
ALL = sorted(ROWS)
SYSTEMS = systems.SUITES["latency"]


def test_the_table_has_25_workloads_and_the_blocks():
    kinds = [row.kind for row in ROWS.values()]
    assert set(kinds) == set(CLASSES) and set(GOAL_CLASSES) < set(CLASSES)
    blocks = ("vit", "gpt", "digits", CALL)
    assert len([name for name in ROWS if not name.startswith(blocks)]) == 25


@pytest.mark.parametrize("name", ALL)
def test_a_graph_computes_the_workload(name):
    workload = make(name, tiny=True)
    assert all(a.dtype == np.float32 for a in workload.arrays)
    with np.errstate(all="ignore"):
        got = workload.graph().build(NumpyBuilder(), workload.arrays)
    assert relative_error(got, workload.expected) < 1e-5


def test_dynamic_sizes_stay_dynamic_for_the_peers():
    onnx = pytest.importorskip("onnx")
    graph = make(DYNAMIC, tiny=True).graph()
    assert graph.arguments[0].shape[0] is None
    dims = onnx.load_from_string(onnx_model(graph)).graph.input[0].type.tensor_type.shape.dim
    assert (dims[0].dim_param, dims[1].dim_value) == ("d0", 12)
    assert None not in make(MLP, tiny=True).graph().arguments[0].shape


def test_an_op_without_a_rule_is_refused():
    pytest.importorskip("onnx")
    with pytest.raises(
        PycError, match=r"expected an op with a rule, got pyc\.reduce_prod"
    ) as caught:
        onnx_model(read_graph(lambda x: np.prod(x, axis=0), [np.zeros((3, 4), np.float32)]))
    assert caught.value.code is ReasonCode.UNSUPPORTED_OP


def test_work_is_counted_by_the_ops():
    workload = make("gemm 512", tiny=True)
    (m, k, n) = ROWS["gemm 512"].tiny
    found = workload.graph().least_work(workload.arrays)
    assert found == LeastWork(2 * m * n * k, 4 * (m * k + k * n + m * n))
    assert LeastWork(10, 5).seconds(peak_flops=10, bandwidth=1) == 5
    assert LeastWork(100, 5).seconds(peak_flops=10, bandwidth=1) == 10


def test_the_fma_program_runs():
    assert fma_program(16, 2, 5).count("vector.fma") == 12
    assert measure_flops(1, 1000) > 0


def test_a_system_prepares_and_reports(tmp_path):
    store(make(MLP, tiny=True), tmp_path)
    task = SystemTask(MLP, tmp_path, 1, True)
    for name in ("iree" if ALL_CASES else PYC, *QUICK_PEERS[:1]):
        call, ready = worker.prepare(SYSTEMS[name], task)
        call()
        assert 0 <= ready.max_error < 1e-5 and ready.calls == 1
        assert ready.setting in (*ready.tried, "default") and ready.cold_start_seconds > 0
        assert ready.peak_resident_bytes > 0 and ready.resident_before_bytes > 0


def test_thread_counts_are_set_before_libraries_load():
    found = environment(2, {"HOME": "x", "OMP_NUM_THREADS": "9"})
    assert found["HOME"] == "x" and found["OMP_NUM_THREADS"] == found["NPROC"] == "2"


def test_a_process_that_dies_has_failed(tmp_path, capfd):
    task = SystemTask(MLP, tmp_path, 1, module=systems.__name__, suite="latency", system="none")
    with PeerProcess(task) as process:
        assert process.answer() == {"failed": "ended with status 1"}
        with pytest.raises(PycError, match="expected an answer") as caught:
            process.ask(1)
    assert caught.value.code is ReasonCode.RUNTIME_FAILED


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Mapping[str, object]:
    """A quick run of two workloads through the command line, and where its files are."""
    folder = tmp_path_factory.mktemp("latency")
    paths = {"json": folder / "cpu.json", "html": folder / "cpu.html"}
    peers = ",".join(QUICK_PEERS[:1])
    command = ["latency", "--quick", "--suite=cpu", "--threads=1", f"--peers={peers}"]
    command += ["--json", str(paths["json"]), "--html", str(paths["html"])]
    assert pyc_bench.main([*command, "--only", MLP, CALL]) == 0
    return paths


def test_records_say_what_was_promised(stored):
    report = Report.load(stored["json"])
    rows = [r for r in report.records if r["metric"] == "latency, 1 thread"]
    assert {(r["workload"], r["system"]) for r in rows} == {
        (name, system) for name in (MLP, CALL) for system in (PYC, *QUICK_PEERS[:1])
    }
    for row in rows:
        assert row["candidate"] == row["system"] and row["threads"] == 1 and row["n"] == 2
        assert 0 < row["p10_seconds"] <= row["median_seconds"] <= row["p90_seconds"]
        assert row["max_error"] < 1e-5 and row["roofline_fraction"] > 0
        assert row["cold_start_seconds"] > 0 and row["call_overhead_seconds"] > 0
        assert row["peak_resident_bytes"] > 0
        bound = max(row["flops"] / row["peak_flops"], row["bytes"] / row["peak_bandwidth"])
        assert row["roofline_fraction"] == pytest.approx(
            bound / row["median_seconds"],
            rel=1e-4,  # stored numbers keep five digits
        )
    mine = [r for r in rows if r["system"] == PYC]
    assert {r["setting"] for r in mine} == {"default"}
    assert report.settings["peaks"]["1"]["flops"] > 0
    assert not os.path.exists(f"{stored['json']}.partial")


def test_table_and_page_are_whole(stored):
    report = Report.load(stored["json"])
    text = markdown(report)
    assert text == latency(report)
    assert text.count(MLP) >= 3
    # Ratios need somebody to compare with; peers are no part of the default install.
    peers = {r["candidate"] for r in report.records} - {"pyc"}
    assert ("classes of the goal" in text) == bool(peers)
    shown = stored["html"].read_text("utf-8")
    assert shown.count("times of the systems") == bool(peers)
    assert shown.count("operations a second over") == 1
    assert "<script" not in shown and set(re.findall(r"\w+://[^\s\"]*", shown)) == {SVG}
    assert MLP in shown and shown == page(report)


def test_a_run_goes_on_where_it_was(monkeypatch, tmp_path, stored):
    """Finished workloads are not measured again; the third one fails, and is a record."""
    path = tmp_path / "cpu.json"
    report = Report.load(stored["json"])
    rows = [r for r in report.records if r["workload"] == MLP]
    settings = {k: v for k, v in report.settings.items() if k != "peaks"}
    Report("latency", probe(), settings, rows).save(f"{path}.partial")
    monkeypatch.setattr(
        cpu_suite, "fma_and_copies", lambda threads, requested: cpu_suite.Peaks(1e9, 1e9)
    )
    requested: list[str] = []

    def refuse(bench, name, *more, **details):
        requested.append(name)
        raise PycError(ReasonCode.RUNTIME_FAILED, "refused")

    monkeypatch.setattr(cpu_suite, "compared", refuse)
    command = ["--quick", "--threads=1", f"--peers={','.join(QUICK_PEERS[:1])}"]
    assert cpu_suite.run([*command, "--json", str(path), "--only", MLP, CALL]) == 1
    assert requested == [CALL]
    again = Report.load(path)
    kept = [r for r in again.records if r["workload"] == MLP]
    assert [r["median_seconds"] for r in kept] == [r["median_seconds"] for r in rows]
    (failed,) = (r for r in again.records if r["metric"] == "failure")
    assert failed["reason"] == "RUNTIME_FAILED: refused" and failed["system"] == PYC
    assert "refused" in markdown(again)


def test_a_run_has_the_workloads_that_were_asked_for():
    assert cpu_suite.names_of("cpu", None)[0] == CALL
    assert sorted(cpu_suite.names_of("cpu", None)) == ALL
    assert cpu_suite.names_of("cpu", [MLP]) == [MLP]
    assert {ROWS[n].kind for n in cpu_suite.names_of("demo", None)} == {"call", "demo"}
    assert set(cpu_suite.QUICK) <= set(ROWS)


def test_wrong_words_are_refused(tmp_path, capsys):
    for bad in ("--peers=tvm", "--threads=0", "--threads=x"):
        with pytest.raises(PycError) as caught:
            cpu_suite.run([bad, "--json", str(tmp_path / "x.json")])
        assert caught.value.code is ReasonCode.BAD_ARGUMENT
    assert set(PEERS) == set(SYSTEMS) - {PYC}


def result(workload: str, threads: int = 1, kind: str = "gemm", **seconds: float) -> WorkloadFacts:
    rows = {name: {"median_seconds": s, "class": kind} for name, s in seconds.items()}
    return WorkloadFacts(workload, kind, threads, rows)


def test_ratios_are_against_the_best_peer():
    one = result("a", pyc=2.0, iree=4.0, jax=1.0)
    assert one.best_peer == "jax" and one.ratio("pyc") == 2 and one.ratio("pyc", "iree") == 0.5
    assert one.ratio("pyc", "openvino") is None
    alone = result("b", pyc=1.0)
    assert alone.best_peer is None and alone.ratio("pyc") is None


def test_means_are_geometric():
    found = [result("a", pyc=2.0, jax=1.0), result("b", pyc=1.0, jax=2.0), result("c", pyc=1.0),
             result("d", kind="rows", pyc=8.0, jax=1.0)]  # fmt: skip
    value = mean(found[:3], lambda r: r.ratio("pyc"))
    assert value is not None and value.members == 2 and value.mean == pytest.approx(1.0)
    assert (value.worst, value.worst_workload) == (2.0, "a")
    titles = groups(found, ("gemm", "rows"))
    assert list(titles) == ["classes of the goal", "gemm", "rows"]
    by_title = {title: m.mean for title, _, m in means(found, titles)}
    assert by_title["classes of the goal"] == pytest.approx(2.0) and by_title[
        "rows"
    ] == pytest.approx(8)
    assert list(means(found, titles, "iree")) == []


@pytest.mark.full
def test_results_leave_out_what_did_not_run():
    assert results([{"workload": "a", "metric": "failure", "threads": 1, "system": "jax"}]) == []
