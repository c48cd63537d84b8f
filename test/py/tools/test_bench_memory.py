"""The memory suite: its workloads compute what they say, its records and tables hold together."""

from dataclasses import replace

import numpy as np
import pytest

from pyc_mlir.api import build
from pyc_mlir.artifact.memory import MemoryReport, RegionReport, to_bytes
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.python.specs import map_leaves
from pyc_mlir.frontends.python.trace import trace
from pyc_mlir.measure.records import Report
from pyc_mlir.pipelines.memory.planner.problem import Buffer, PlannedTask, PlanningProblem
from pyc_mlir.tools import pyc_bench
from pyc_mlir.tools.bench.peers import footprint as peers_footprint
from pyc_mlir.tools.bench.peers.candidates import plain_artifact, plain_options
from pyc_mlir.tools.bench.peers.footprint import footprint
from pyc_mlir.tools.bench.peers.prepared import relative_error
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.report import show
from pyc_mlir.tools.bench.report.suite import SuiteRun, failure
from pyc_mlir.tools.bench.suites import memory
from pyc_mlir.tools.bench.suites.account import ALONE, FREE, RATIO, TOGETHER
from pyc_mlir.tools.bench.suites.memory import compile_iree, error_against, same_bits
from pyc_mlir.tools.bench.workloads.memory import CLASSES, PRESSED, WORKLOADS, layered, make
from pyc_mlir.tools.bench.workloads.parts import SeededWeights, case, made
from pyc_mlir.tools.cli.common import INTERRUPTED

FUNCTIONS = [name for name in WORKLOADS if callable(make(name, quick=True).source)]
SMALLEST = "branches added late"
STEP = 1e-6


def test_every_class_has_workloads_of_its_own_name():
    cases = {name: make(name, quick=True) for name in WORKLOADS}
    assert set(CLASSES) == {case.kind for case in cases.values()}
    assert all(case.name == name for name, case in cases.items())
    assert set(WORKLOADS) - set(FUNCTIONS) == {"digits mlp", "digits cnn"}


@pytest.mark.parametrize(
    ("name", "rows"),
    [*((name, WORKLOADS) for name in FUNCTIONS), *((name, PRESSED) for name in PRESSED)],
)
def test_workloads_mean_what_numpy_computes(name, rows):
    case = made(rows, name, tiny=True)
    with new_context() as context, ir.Location.unknown():
        results = interpret(trace(case.source, *case.specs, context=context), case.arrays)
    assert all(r.dtype == np.float32 for r in results) and case.expected[0].dtype == np.float64
    assert relative_error(results, case.expected) < 1e-5


@pytest.mark.parametrize("name", ["mlp, gradients", "encoder layer, gradients"])
def test_gradients_agree_with_finite_differences(name):
    """d loss / d a in a drawn direction, for every argument whose gradient is a result."""
    case = make(name, quick=True)
    x, target, weights = map_leaves(lambda a: a.astype(np.float64), case.inputs)
    found = case.source(x, target, weights)
    rng = np.random.default_rng(0)
    for key, gradient in found.items():
        if key == "loss":
            continue
        direction = rng.normal(0, 1, gradient.shape)

        def loss(step: float, key: str = key, direction: np.ndarray = direction) -> float:
            moved = {**weights, "x": x}
            moved[key] = moved[key] + step * direction
            return float(case.source(moved.pop("x"), target, moved)["loss"])

        slope = (loss(STEP) - loss(-STEP)) / (2 * STEP)
        assert float(np.sum(gradient * direction)) == pytest.approx(slope, rel=1e-5, abs=1e-7), key


def test_all_weights_but_the_keys_bias_have_a_gradient():
    for name, without in (("mlp, gradients", set()), ("encoder layer, gradients", {"key.bias"})):
        case = make(name, quick=True)
        weights = case.inputs[2]
        found = case.source(*case.inputs)
        assert set(found) - {"x"} == {"loss", *weights} - without
        assert all(found[key].shape == weights[key].shape for key in set(found) & set(weights))


def test_graphs_are_drawn_alike_every_time():
    first, again, other = (layered(30, 5, 4, (4, 8), seed=seed) for seed in (0, 0, 1))
    assert same_bits(first.expected, again.expected)
    assert [r.shape for r in other.expected] != [r.shape for r in first.expected]


def test_a_decoder_does_not_look_ahead():
    case = make("decoder block", quick=True)
    (x,) = case.inputs
    changed = x.copy()
    changed[-1] += 1
    before, after = case.source(x), case.source(changed)
    assert np.array_equal(before[:-1], after[:-1]) and not np.array_equal(before[-1], after[-1])


def product() -> Workload:
    """One product: a result and no transients."""
    w = SeededWeights(0).matrix(64, 64)
    return case(lambda x: x @ w, (64, 64), name="product")


@pytest.mark.full
def test_a_footprint_is_transients_and_results():
    case = product()
    artifact = build(case.source, case.specs, make_options())
    found = footprint(artifact, case.arrays)
    assert (found.peak_bytes, found.output_bytes, found.transient_bytes) == (16384, 16384, 0)
    assert error_against(found.results, case.expected) < 1e-5


def test_a_peak_of_loading_does_not_hide_the_calls(monkeypatch):
    """Whatever was needed for a moment before the call, the call's own peak is told."""
    case = product()
    artifact = build(case.source, case.specs, make_options())
    real, spent = peers_footprint.to_device, []

    def wasteful(array, device):
        if not spent:
            spent.append(real(np.zeros(1 << 20, np.int8), device))
            spent.clear()
            spent.append(None)
        return real(array, device)

    monkeypatch.setattr(peers_footprint, "to_device", wasteful)
    assert footprint(artifact, case.arrays).peak_bytes == 16384


@pytest.mark.full
def test_iree_alone_in_its_partitioning_modes():
    """The default lets branches overlap, each with memory of its own; `debug` is a sequence."""
    case, options = make(SMALLEST, quick=True), plain_options()
    lowered = lower(Job.of(case.source, case.specs, options))
    peaks = []
    for name in ("min-peak-memory", "debug"):
        vmfb = compile_iree(lowered, options.target, "aggressive", name)
        peaks.append(footprint(plain_artifact(lowered, vmfb), case.arrays).peak_bytes)
    assert peaks[0] > peaks[1]


def test_bounds_are_read_from_the_artifacts_report():
    """A region that keeps IREE's plan has none: what the largest task needs is left."""
    artifact = build(product().source, product().specs, make_options())

    def bound(*bounds: int) -> int:
        regions = tuple(RegionReport("r", (), {}, "iree", lower_bound=b) for b in bounds)
        report = to_bytes(MemoryReport(regions))
        return memory.lower_bound(replace(artifact, memory=report), 32)

    assert (bound(64, 48), bound(0), bound()) == (64, 32, 32)
    assert memory.lower_bound(replace(artifact, memory=b""), 32) == 32


def test_the_largest_task_is_a_bound():
    buffers = (Buffer(64, pinned=True), Buffer(8), Buffer(16), Buffer(16))
    reading = PlannedTask("a", reads=(0, 1), writes=(2,))
    over = PlannedTask("b", reads=(1, 2), writes=(3,), in_place=((3, 2),))
    problem = PlanningProblem(
        (PlannedTask("first", reads=(0,), writes=(1,)), reading, over), buffers
    )
    assert [memory._needed(problem, task) for task in problem.tasks] == [8, 24, 24]


def test_bits_and_errors():
    ones, twos = [np.ones(3, np.float32)], [np.full(3, 2, np.float32)]
    nan = [np.full(3, np.nan, np.float32)]
    assert same_bits(ones, [ones[0].copy()]) and same_bits(nan, nan)
    assert not same_bits(ones, twos) and not same_bits(ones, [])
    assert not same_bits([np.zeros(1, np.float32)], [-np.zeros(1, np.float32)])
    assert error_against(ones, twos) == 0.5


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The suite on one tiny workload, through the command line."""
    path = tmp_path_factory.mktemp("memory") / "memory.json"
    assert pyc_bench.main(["memory", "--quick", "--only", SMALLEST, "--json", str(path)]) == 0
    assert not path.with_name("memory.json.partial").exists()
    return Report.load(path)


@pytest.mark.full
def test_records_have_all_fields(quick):
    assert [r["mode"] for r in quick.records] == list(memory.MODES)
    for row in quick.records:
        assert (row["workload"], row["class"], row["equal"]) == (SMALLEST, "wide", True)
        assert row["value"] == row["peak_bytes"] == row["transient_bytes"] + row["output_bytes"]
        beside = row["constant_bytes"] + row["input_bytes"]
        assert row["total_bytes"] == row["peak_bytes"] + beside
        assert row["iree_peak_bytes"] == min(row["iree_peaks"].values())
        assert 0 < row["lower_bound_bytes"] <= row["peak_bytes"]
        assert row["median_seconds"] > 0 and row["iree_median_seconds"] > 0
        assert row["latency"]["1"]["seconds"]["n"] == quick.settings["rounds"]
        assert row["xla_temp_bytes"] is None or row["xla_temp_bytes"] > 0
    balanced = quick.records[1]
    assert balanced["peak_bytes"] < balanced["iree_peak_bytes"]
    # The bound of the planned order was found: the largest task needs two results and no more.
    assert balanced["lower_bound_bytes"] > 2 * balanced["output_bytes"]


def changed(row: dict, name: str, kind: str, share: float, equal: bool = True) -> dict:
    """The record as of another workload, with peaks of `share` of IREE's."""
    peak = int(row["iree_peak_bytes"] * share)
    fields = {"workload": name, "class": kind, "peak_bytes": peak, "equal": equal}
    return {**row, **fields, "transient_bytes": 200, "xla_temp_bytes": 100}


@pytest.mark.full
def test_tables_have_means_and_exceptions(quick):
    rows = [changed(r, "a", "wide", 0.5) for r in quick.records]
    rows += [changed(r, "b", "chain", 2.0, equal=False) for r in quick.records]
    rows.append(failure("c", "it broke"))
    text = show.markdown(replace(quick, records=rows))
    means = [line for line in text.splitlines() if line.startswith(("| wide | 1", "| all | 2"))]
    assert [line.split(" | ")[2] for line in means] == ["0.5x", "1x"]
    assert "- Above plain IREE: b (latency_first), b (balanced), b (memory_first)." in text
    assert "- Transients above XLA's: a, b." in text
    assert "- Not equal: b (latency_first), b (balanced), b (memory_first)." in text
    assert "- Failed: c (it broke)." in text


@pytest.mark.full
def test_tables_do_without_xla(quick):
    rows = [{**r, "xla_temp_bytes": None, "xla_no_library_temp_bytes": None} for r in quick.records]
    text = show.markdown(replace(quick, records=rows))
    assert "- Transients above XLA's: none." in text and "- Failed: none." in text


@pytest.fixture
def faked(monkeypatch, quick):
    """The suite with a measuring process that answers at once; the names that were measured."""
    requested: list[str] = []

    def answer(name: str, bench: SuiteRun) -> list[dict]:
        requested.append(name)
        if name == "u-net":
            raise KeyboardInterrupt
        if name == "digits mlp":
            return [failure(name, "it broke")]
        return [{**row, "workload": name} for row in quick.records]

    monkeypatch.setattr(memory, "apart", answer)
    return requested


@pytest.mark.full
def test_an_interrupted_run_goes_on(tmp_path, faked, capsys):
    path = tmp_path / "memory.json"
    names = [SMALLEST, "u-net", "mlp"]
    command = ["memory", "--quick", "--json", str(path), "--only"]
    assert pyc_bench.main([*command, *names]) == INTERRUPTED
    assert not path.exists() and path.with_name("memory.json.partial").exists()
    assert pyc_bench.main([*command, SMALLEST, "mlp"]) == 0
    assert faked == [SMALLEST, "u-net", "mlp"], "what was finished is not measured again"
    assert f"{SMALLEST}: measured before" in capsys.readouterr().err
    workloads = [r["workload"] for r in Report.load(path).records]
    assert workloads == [SMALLEST] * 3 + ["mlp"] * 3
    assert not path.with_name("memory.json.partial").exists()


@pytest.mark.full
def test_other_settings_and_fresh_measure_again(tmp_path, faked, capsys):
    path = tmp_path / "memory.json"
    command = ["memory", "--quick", "--json", str(path), "--only", SMALLEST]
    for more in ([], ["--rounds=3"], ["--rounds=3", "--fresh"]):
        assert pyc_bench.main([*command, "u-net", *more]) == INTERRUPTED
    assert faked == [SMALLEST, "u-net"] * 3
    assert "other settings or another environment" in capsys.readouterr().err


@pytest.mark.full
def test_failures_are_records_and_tried_again(tmp_path, faked, capsys):
    path = tmp_path / "memory.json"
    command = ["memory", "--quick", "--json", str(path), "--only", "digits mlp"]
    assert pyc_bench.main([*command, "u-net"]) == INTERRUPTED
    # The order is the table's: u-net came first, so only it was asked for.
    assert pyc_bench.main(command) == 1
    assert faked == ["u-net", "digits mlp"]
    (row,) = Report.load(path).records
    assert (row["metric"], row["reason"]) == ("failure", "it broke")
    assert "failed: digits mlp: it broke" in capsys.readouterr().err


def test_a_measuring_process_that_dies_is_a_failure(tmp_path):
    bench = SuiteRun("memory", 1, True, tmp_path / "x.json", settings={"threads": [1]})
    (row,) = memory.apart("no such workload", bench)
    assert row["metric"] == "failure" and "ended with status 1" in row["reason"]


@pytest.mark.full
def test_arguments_are_flat_for_the_program_and_trees_for_the_function():
    case = make("mlp, gradients", quick=True)
    x, target, weights = case.inputs
    flat = [x, target, *(weights[name] for name in ("w0", "w1", "b0", "b1"))]
    assert all(a is b for a, b in zip(case.arrays, flat, strict=True))
    assert case.specs == case.inputs and case.input_bytes == sum(a.nbytes for a in flat)


@pytest.mark.full
def test_both_programs_keep_the_budget(tmp_path):
    path = tmp_path / "co-selection.json"
    arguments = ["co-selection", "--quick", "--shares", "0.8", "--json", str(path)]
    assert pyc_bench.main(arguments) == 0
    report = Report.load(path)
    name = f"{next(iter(PRESSED))}, budget at 0.8"
    assert {r["workload"] for r in report.records} == {name}
    totals = {r["candidate"]: r for r in report.records if r["metric"] == "total"}
    for candidate in (ALONE, TOGETHER):
        assert totals[candidate]["value"] <= totals[candidate]["budget"] < totals[FREE]["value"]
    assert totals[TOGETHER]["way"] == "co-selected" != totals[ALONE]["way"]
    ratios = [r for r in report.records if r["metric"] == RATIO]
    assert [r["run"] for r in ratios] == [1] and ratios[0]["error"] < 1e-4
    timed = {r["candidate"] for r in report.records if r["metric"] == "latency"}
    assert timed == {ALONE, TOGETHER, FREE}
    assert name in show.markdown(report)
