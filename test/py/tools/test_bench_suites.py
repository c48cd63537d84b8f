"""The suites of pyc-bench: each runs in quick mode and stores records that can be believed."""

import ctypes
import gc
import gzip
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from conftest import ALL_CASES
from suites import gpu, selector
from suites.gpu import OPS, op_workload
from suites.iopddl import best_known, instances, name_of

from pyc_mlir.api import compile
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.interleave import interleave
from pyc_mlir.measure.records import Report
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program, serving
from pyc_mlir.tools import pyc_bench
from pyc_mlir.tools.bench.peers.prepared import PreparedWorkload, choose, relative_error
from pyc_mlir.tools.bench.peers.workload import evaluate_wide
from pyc_mlir.tools.bench.report.suite import SuiteRun, parse
from pyc_mlir.tools.bench.report.tables import markdown
from pyc_mlir.tools.bench.suites import adaptation, rates
from pyc_mlir.tools.bench.suites.compile import OPS as TOOLING_OPS
from pyc_mlir.tools.bench.suites.compile import QUICK_OPS, command, layers, run_command
from pyc_mlir.tools.bench.workloads.cpu import ENCODER, MODELS, ROWS, make
from pyc_mlir.tools.bench.workloads.parts import EncoderShape, encoder_model

# Each takes 10 to 15 s of CPU time.
only_full = pytest.mark.skipif(not ALL_CASES, reason="part of `make test-full`")


@pytest.fixture
def quick(tmp_path):
    """Run a suite through the command line; its report."""

    def run(suite: str, *arguments: str) -> Report:
        path = tmp_path / f"{suite}.json"
        assert pyc_bench.main([suite, "--quick", "--json", str(path), *arguments]) == 0
        report = Report.load(path)
        assert (report.suite, report.settings["quick"]) == (suite, True)
        assert report.records and markdown(report)
        return report

    return run


def by_metric(report: Report, metric: str) -> dict[str, dict]:
    return {r["candidate"]: r for r in report.records if r["metric"] == metric}


def assert_timed(rows: dict[str, dict], rounds: int = 2) -> None:
    for row in rows.values():
        assert row["unit"] == "s" and row["n"] == rounds
        assert 0 < row["min"] <= row["value"] <= row["p90"]


@pytest.mark.full
def test_replay(quick):
    (row,) = quick("replay").records
    assert row["value"] == row["of"] == 2 and row["decisions"] > 5


@only_full
def test_start(quick):
    report = quick("start")
    wanted = {"saved artifact: first answer": {"pyc", "iree"}, "cache hit: find": {"pyc"}}
    for metric, who in wanted.items():
        rows = by_metric(report, metric)
        assert_timed(rows)
        assert set(rows) == who


def test_tooling(quick):
    report = quick("tooling")
    rows = {r["workload"]: r for r in report.records}
    assert_timed(rows)
    assert {"small file: pyc-opt, to linalg", "small file: python"} <= set(rows)
    ops = f"{QUICK_OPS} ops: "
    passes = [name.removeprefix(ops).split("{")[0] for name in rows if name.startswith(ops)]
    assert passes[:3] == ["parse and all passes", "parse", "1 pyc-canonicalize"]
    assert passes[-3:] == ["12 convert-pyc-to-linalg", "13 canonicalize", "14 cse"]


def test_the_large_module_has_as_many_ops_as_it_says():
    assert layers(TOOLING_OPS).count('"pyc.') == TOOLING_OPS


@pytest.mark.full
def test_compile(quick):
    report = quick("compile", "--rounds=1")
    times = by_metric(report, "compile")
    assert set(times) == {"pyc", "iree, text", "iree, bytecode", "iree-compile"}
    assert_timed(times, rounds=1)
    assert all("--iree-opt-level=O3" in row["flags"] for row in times.values())
    ratios = by_metric(report, "pyc / this")
    assert set(ratios) == set(times) - {"pyc"}
    assert all(r["unit"] == "times" and r["value"] > 0 for r in ratios.values())


def test_overhead(quick):
    report = quick("overhead")
    times = by_metric(report, "latency")
    assert set(times) == {"pyc", "iree"}
    assert_timed(times)
    assert by_metric(report, "above bare invoke")["pyc"]["value"] == pytest.approx(
        times["pyc"]["value"] - times["iree"]["value"], rel=1e-3
    )


def test_gemm(quick):
    report = quick("gemm")
    rates = by_metric(report, "sustained")
    assert set(rates) == {"pyc", "peak"}
    assert all(r["unit"] == "GFLOP/s" and r["n"] == 2 and r["value"] > 0 for r in rates.values())
    (share,), (variation,) = (by_metric(report, m).values() for m in ("of the peak", "variation"))
    assert share["unit"] == variation["unit"] == "%"
    assert share["value"] > 0 and variation["value"] >= 0


def test_layers(quick):
    report = quick("layers")
    rates = by_metric(report, "rate")
    assert set(rates) == {"pyc", "peak"}
    units = {r["unit"] for r in report.records if r["metric"] == "rate"}
    assert units == {"GFLOP/s", "GB/s"}
    shares = [r["value"] for r in report.records if r["metric"].startswith("of ")]
    assert len(shares) >= 2 and all(share > 0 for share in shares)


def test_layers_are_distinct():
    for layers_of in rates.LAYERS.values():
        assert len({layer.name for layer in layers_of}) == len(layers_of)
    first, second = rates.RESNET50[:2]
    assert (first.outputs, first.flops) == (112, 2 * 112 * 112 * 64 * 3 * 49)
    assert second.traffic_bytes == 4 * 64 * (112**2 + 56**2)
    point = Counter(layer.kind for layer in rates.MOBILENET_V2)
    assert point == {"conv": 20, "depthwise": 10}


def test_gpu_suite_needs_a_gpu(tmp_path, capsys):
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        assert pyc_bench.main(["gpu", "--quick", "--json", str(tmp_path / "gpu.json")]) == 1
        assert "device `cuda`" in capsys.readouterr().err
        assert not (tmp_path / "gpu.json").exists()
        with pytest.raises(PycError, match="expected a CUDA GPU") as caught:
            gpu.compute_capability()
        assert caught.value.code is ReasonCode.DEVICE_UNAVAILABLE
    else:
        pytest.skip("this machine has NVIDIA's driver")


@pytest.mark.parametrize(
    ("capability", "target"),
    [((8, 0), "cuda-sm_80"), ((8, 9), "cuda-sm_89"), ((9, 0), "cuda-sm_80")],
)
def test_gpus_have_a_target(capability, target):
    assert gpu.target_for(capability) == target


def test_old_gpus_are_refused():
    with pytest.raises(PycError, match=r"8\.0 or newer"):
        gpu.target_for((7, 5))


def test_gpu_cases_are_measured_and_failures_recorded(tmp_path):
    """The suite's own way, on the CPU: one case that works, one that is wrong."""
    right = op_workload("take")
    wrong = replace(right, name="wrong", reference=lambda: (np.zeros((5, 9)),))
    requested = SuiteRun("gpu", 1, True, tmp_path / "x.json")
    builds = [lambda: right, lambda: wrong]
    rows = gpu.measure(builds, make_options(), Device("local-sync"), requested)
    found = [(r["workload"], r["metric"]) for r in rows]
    assert found == [
        (right.name, "latency"),
        (right.name, "max relative error"),
        ("wrong", "failure"),
    ]
    assert rows[-1]["reason"].startswith("WRONG_RESULT")


def test_quick_cases_are_few():
    assert len(list(gpu.cases(quick=True))) == 1
    assert len(list(gpu.cases(quick=False))) == len(OPS) + len(MODELS)


@pytest.mark.parametrize("name", OPS)
def test_op_cases_describe_what_numpy_computes(name):
    """The function on the case's own element type agrees with its float64 reference."""
    case = op_workload(name)
    own = np.asarray(case.source(*case.inputs))
    assert relative_error([own], case.expected) <= case.tolerance


def test_the_onnx_encoder_is_the_same_program():
    workload = make(ENCODER, tiny=True)
    shape = EncoderShape(*ROWS[ENCODER].tiny)
    results = evaluate_wide(encoder_model(shape), workload.arrays)
    # The graph's own scale is f32.
    assert relative_error(results, workload.expected) < 1e-7


def test_relative_errors():
    wanted = [np.array([4.0, 0.0])]
    assert relative_error([np.array([4.0, 0.5], np.float32)], wanted) == 0.125
    assert relative_error([np.zeros(3)], wanted) == float("inf")
    assert np.isnan(relative_error([np.array([np.nan, 0.0])], wanted))
    assert relative_error([np.zeros((0, 2))], [np.zeros((0, 2))]) == 0.0


def test_nan_is_never_within_the_tolerance():
    workload = replace(op_workload("add"), reference=lambda: (np.zeros(2),))
    with pytest.raises(PycError, match="expected x to be within") as caught:
        workload.check([np.array([0.0, np.nan])], "x")
    assert caught.value.code is ReasonCode.WRONG_RESULT


def test_the_quickest_setting_is_chosen():
    def slow() -> None:
        sum(range(50_000))

    prepared = {
        name: PreparedWorkload(call, list) for name, call in (("slow", slow), ("fast", int))
    }
    found = choose(prepared, rounds=3, min_seconds=0, rest=0)
    assert found.setting == "fast" and set(found.tried) == {"slow", "fast"}
    only = choose({"slow": prepared["slow"]}, rounds=3, min_seconds=0, rest=0)
    assert (only.setting, only.tried) == ("slow", {})


def test_rest_precedes_every_sample():
    calls = []
    interleave({"a": lambda: calls.append(1)}, rounds=3, warmup=0, rest_seconds=1e-6)
    assert len(calls) == 6, "one call that is not timed before each sample"


def test_suites_refuse_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(PycError, match="No such file"):
        parse("tooling", "", 3, ["--json", str(tmp_path / "none" / "x.json")])


def test_commands_that_fail_say_why():
    with pytest.raises(PycError, match=r"iree-compile: expected status 0, got 1: .*no-such-file"):
        run_command([str(command()), "no-such-file.mlir"])
    with pytest.raises(PycError, match="expected the command `no-such-tool`"):
        command("no-such-tool")


def test_a_bare_call_outlives_its_program():
    device = Device("local-sync")
    program = compile(lambda a: a + a, [np.ones(4, np.float32)], device=device)
    call = serving(program).bare_call(to_device(np.ones(4, np.float32), device))
    alive = programs_alive()
    del program, device
    gc.collect()
    assert programs_alive() == alive - 1
    call()
    del call
    gc.collect()


def programs_alive() -> int:
    return sum(isinstance(thing, Program) for thing in gc.get_objects())


@pytest.fixture
def spaces(tmp_path):
    draws = np.random.default_rng(0)
    for name in ("noise", "plans", "autotuning"):
        (tmp_path / name).mkdir()
    np.savez(tmp_path / "noise/pyc_gemm_loaded.npz", A=1 + draws.random((3, 20, 3)))
    np.savez(tmp_path / "plans/job.npz", seconds=1 + draws.random((6, 9)))
    knobs = [{"samples": (1 + draws.random((7, 5))).tolist()} for _ in range(3)]
    (tmp_path / "autotuning/pyc_knobs.json.gz").write_bytes(
        gzip.compress(json.dumps(knobs).encode())
    )
    return tmp_path


def test_policies_are_compared_on_public_spaces(spaces, tmp_path, monkeypatch):
    monkeypatch.setattr(selector, "_soak", lambda calls, folder: [])
    out = tmp_path / "selector.json"
    assert selector.run(["--data", str(spaces), "--quick", "--json", str(out)]) == 0
    records = Report.load(out).records
    assert {r["candidate"] for r in records} == {"paired", "thompson", "ucb"}
    assert len(records) == 3 * 3 * 3 * 5 + 1
    with pytest.raises(PycError) as caught:
        selector.run(["--data", str(tmp_path / "none"), "--quick", "--json", str(out)])
    assert caught.value.code is ReasonCode.FILE_ACCESS


def test_traces_are_scaled_to_the_ranges_of_programs(tmp_path):
    trace = tmp_path / "trace.csv.gz"
    trace.write_bytes(gzip.compress(b"time,ContextTokens\n1,100\n2,50\n3,1\n"))
    sizes = adaptation.sizes_of(trace, "ContextTokens")
    assert list(sizes) == [100, 50, 1]
    assert (adaptation.sizes_of(None, "") == adaptation.sizes_of(None, "")).all()
    for case in adaptation.cases():
        assert all(case.low <= s <= case.high for s in adaptation.scaled(sizes, case))


def test_a_script_changes_the_load(tmp_path, monkeypatch):
    monkeypatch.setattr(adaptation, "SCRIPT", ((0, False), (1, True)))
    out = tmp_path / "tail.json"
    assert adaptation.tail(["--quick", "--json", str(out)]) == 0
    records = Report.load(out).records
    assert {r["candidate"] for r in records} == {adaptation.PLAIN, adaptation.ADAPTED}
    assert all(r["value"] > 0 for r in records) and len(records) == 6


def instance(limit: int) -> bytes:
    """Two nodes, alive together; the second way is dear and small."""
    nodes = {
        "intervals": [[0, 4], [2, 6]],
        "costs": [[1, 10], [2, 20]],
        "usages": [[8, 1], [8, 1]],
    }
    edges = {"nodes": [[0, 1]], "costs": [[0, 3, 3, 10**18]]}
    return json.dumps({"problem": {"nodes": nodes, "edges": edges, "usage_limit": limit}}).encode()


def test_costs_and_points(tmp_path):
    (tmp_path / "contest-A.json.gz").write_bytes(gzip.compress(instance(9)))
    (tmp_path / "contest-C.json").write_bytes(instance(16))
    (tmp_path / "best_known.csv").write_text(
        "instance,timeout_seconds,best_contest\nA,2,14\nC,2,\n"
    )
    out = str(tmp_path / "out" / "r.json")
    (tmp_path / "out").mkdir()
    assert pyc_bench.main(["iopddl", str(tmp_path), "--share", "0.01", "--json", out]) == 0
    found = {(r["workload"], r["metric"]): r for r in Report.load(out).records}
    # 10 + 2 + 3 or 1 + 20 + 3 below the limit, 1 + 2 where there is room.
    assert found["A", "cost"]["value"] == 15 and found["C", "cost"]["value"] == 3
    assert found["A", "points"]["value"] == 0.93333 and ("C", "points") not in found
    assert found["A", "cost"]["nodes"] == 2 and found["A", "cost"]["work"] > 0


def test_what_cannot_be_chosen(tmp_path):
    (tmp_path / "contest-A.json").write_bytes(instance(5))
    out = str(tmp_path / "r.out")
    path = str(tmp_path / "contest-A.json")
    assert pyc_bench.main(["iopddl", path, "--quick", "--json", out]) == 1
    assert [r["metric"] for r in Report.load(out).records] == ["infeasible"]
    assert pyc_bench.main(["iopddl", str(tmp_path / "gone"), "--json", out]) == 1


@pytest.mark.full
def test_names(tmp_path):
    path = tmp_path / "asplos-2025-iopddl-B.json.gz"
    path.write_bytes(b"")
    assert name_of(path) == "B" and instances(tmp_path) == [path] and best_known(tmp_path) == {}
