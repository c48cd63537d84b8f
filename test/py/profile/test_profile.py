"""Profiles of programs: dispatches joined with their ops, kernels known, rows that add up."""

import json
import re
from dataclasses import replace
from math import fsum

import ml_dtypes
import numpy as np
import pytest
from modules import two_plans
from profiled import X, artifact_of, made_by_hand
from pythons import without_compilers

import pyc_mlir
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.memory import MemoryReport, RegionReport, TaskReport
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Site
from pyc_mlir.pipelines.choices.evidence import Computes
from pyc_mlir.pipelines.memory.planner.layout import ArenaLayout, TaskRun
from pyc_mlir.profile import build
from pyc_mlir.profile.build import placed, predict
from pyc_mlir.profile.dispatches import (
    SELECT,
    KnownDispatch,
    assigned,
    family_of,
    groups_of,
    ops_behind,
    places_of,
    recorded,
    uncovered,
)
from pyc_mlir.profile.profile import KEY, Disturbance, Profile, table
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.pool import IS_SUPPORTED, POOL
from pyc_mlir.runtime.program import Program

GROUP = Decision(
    Site(SELECT, "group.1", 'loc(fused["conv"("m.onnx":3:1), "relu"("m.onnx":4:1)])'),
    "gemm:matmul+add",
    (Alternative("gemm:matmul+add", reason="Gemm()"), Alternative("iree")),
    "heuristic",
    (Computes(("matmul.1", "add.2")),),
)


def test_names_of_nodes_come_before_files():
    assert places_of(GROUP.site.location) == ("conv", "relu")
    assert places_of('loc(fused["/a/m.py":3:1, "/a/m.py":3:9])') == ("m.py:3",)
    assert places_of("") == ()


def test_sources_in_words():
    groups = groups_of([GROUP])
    assert groups["add.2"] is groups["group.1"]
    assert groups["group.1"].knobs == "Gemm()"
    assert ops_behind(("matmul.1", "group.1"), groups) == ("matmul+add",)
    assert ops_behind(("matmul.1",), groups) == ("matmul",)
    assert ops_behind(("exp.7", "group.1"), groups) == ("exp", "matmul+add")
    assert ops_behind((), groups) == ()


@pytest.mark.parametrize(
    "symbol, family",
    [("pyc_gemm_0", "gemm"), ("pyc_batch_gemm_12", "batch_gemm"), ("main_dispatch_3_x", "IREE")],
)
def test_families_by_symbol(symbol, family):
    assert family_of(symbol) == family


def test_dispatches_are_joined_by_place_or_not_at_all():
    a, b, c = (
        KnownDispatch("d", sources=("x.1",)),
        KnownDispatch("d", sources=("y.2",)),
        KnownDispatch("e"),
    )
    known = [a, KnownDispatch("stream.async.copy"), c, b]
    assert assigned(["d", "e", "d"], known) == [a, c, b]
    # In another order nobody knows which of both `d` this is; `e` is the only one.
    assert assigned(["e", "d", "d"], known) == [c, None, None]
    assert assigned(["d", "f"], [a]) == [a, None]


def test_the_order_is_that_of_the_plan_which_runs():
    tasks = (TaskReport("first"), TaskReport("second"))
    runs = (TaskRun(1, 0, 0), TaskRun(0, 0, 1), TaskRun(1, 1, 2))
    region = RegionReport("g#0", tasks, {"planned": ArenaLayout(0, runs, ())}, "planned")
    assert [k.symbol for k in recorded(MemoryReport((region,)))] == ["second", "first", "second"]
    unplanned = replace(region, layouts={}, chosen="")
    assert [k.symbol for k in recorded(MemoryReport((unplanned,)))] == ["first", "second"]


@pytest.mark.parametrize(
    "device", [Device("local-sync"), Device("local-task", threads=2)], ids=repr
)
@pytest.mark.full
def test_a_program_is_profiled(device, tmp_path):
    program = Program(artifact_of(), device)
    profile = program.profile(X, calls=3)
    assert profile.measured and profile.device == device.kind
    assert fsum(r.seconds for r in profile.rows) == pytest.approx(profile.seconds)
    assert fsum(r.share for r in profile.rows) == pytest.approx(1.0)
    *dispatches, rest = profile.rows
    assert [r.code for r in dispatches] == ["gemm", "gemm", "rows", "IREE"]
    assert [r.computes for r in dispatches] == [
        "matmul+add+relu",
        "matmul+exp",
        "reduce_sum",
        "div",
    ]
    assert dispatches[0].knobs.startswith("Gemm(rows=8, columns=64")
    assert not rest.dispatch and rest.share > 0
    assert all(r.flops and r.traffic_bytes and r.roofline and r.calls == 3 for r in dispatches)
    for r in dispatches:
        assert r.p10_seconds is not None and r.p90_seconds is not None
        assert r.median_seconds is not None
        assert r.p10_seconds <= r.median_seconds <= r.p90_seconds
    # This process compiled it, so that decisions have places.
    assert all(p.startswith("profiled.py:") for r in dispatches for p in r.locations)
    assert profile.disturbance and min(vars(profile.disturbance).values()) > 0
    profile.trace(tmp_path / "trace.json")


@pytest.mark.skipif(not IS_SUPPORTED, reason="no helpers on this system")
def test_times_with_helpers_stand_beside_those_of_one_thread():
    profile = Program(artifact_of(), Device("local", threads=2)).profile(X, calls=3)
    *dispatches, rest = profile.rows
    helped = [r.helped_seconds or 0.0 for r in dispatches]
    assert len(helped) == 4 and min(helped) > 0 and rest.waited_seconds == 0
    assert all(0 <= (r.waited_seconds or 0.0) <= h for r, h in zip(dispatches, helped, strict=True))
    # Dispatches of a few microseconds leave time of the call from Python.
    assert profile.disturbance and rest.helped_seconds
    assert fsum(helped) + rest.helped_seconds == pytest.approx(profile.disturbance.own)
    assert "2 threads" in profile.helped and "helped  ratio" in str(profile)
    assert from_data(Profile, json.loads(json.dumps(to_data(profile)))) == profile


@pytest.mark.skipif(not IS_SUPPORTED, reason="no helpers on this system")
@pytest.mark.parametrize("row", [np.zeros((3, 3)), np.zeros((4, 3))], ids=["number", "tiles"])
def test_calls_with_other_dispatches_have_no_times_with_helpers(monkeypatch, row):
    monkeypatch.setattr(POOL, "record", lambda call: (1.0, row))
    profile = Program(artifact_of(), Device("local", threads=2)).profile(X, calls=1)
    assert f"the 4 dispatches that IREE's tool timed, with their tiles, got {len(row)}" in (
        profile.helped
    )
    assert all(r.helped_seconds is None for r in profile.rows) and "wait" not in str(profile)


@pytest.mark.full
def test_ids_are_those_of_decisions():
    sites = {d.site.op_id for d in artifact_of().decisions}
    profile = Program(artifact_of(), Device("local-sync")).profile(X, calls=1)
    assert all(set(r.groups) <= sites for r in profile.rows)


@pytest.mark.full
def test_fused_dispatches_name_all_their_ops():
    profile = predict(artifact_of("iree"))
    assert profile is not None and not profile.measured
    assert all(r.code == "IREE" for r in profile.rows if r.is_dispatch)
    named = {s.partition(".")[0] for r in profile.rows for s in r.sources}
    # The normalization's ops end up in one dispatch, or beside the second product.
    assert {"matmul", "reduce_sum", "div"} <= named
    assert fsum(r.seconds for r in profile.rows) == pytest.approx(profile.seconds)


@pytest.mark.full
def test_unknown_ops_are_called_unknown():
    program = Program(replace(artifact_of(), memory=b""), Device("local-sync"))
    profile = program.profile(X, calls=1)
    assert {r.computes for r in profile.rows if r.is_dispatch} == {"unknown"}
    assert [r.code for r in profile.rows[:2]] == ["gemm", "gemm"]
    assert predict(program.artifact) is None


def test_locations_come_from_a_log():
    saved = artifacts.from_bytes(artifacts.to_bytes(artifact_of()))
    profile = Program(saved, Device("local-sync")).profile(X, calls=1)
    assert not any(r.locations for r in profile.rows)
    found = placed(profile, artifact_of().decisions)
    assert all(r.locations for r in found.rows if r.is_dispatch)
    assert [r.seconds for r in found.rows] == [r.seconds for r in profile.rows]


@pytest.mark.full
def test_dynamic_shapes_have_seconds_but_no_recorded_work():
    def doubled(x):
        return np.tanh(x @ np.ones((64, 64), np.float32))

    program = pyc_mlir.compile(doubled, [pyc_mlir.TensorSpec("f32", "n", 64)])
    profile = program.profile(X[:3], calls=1)
    dispatches = [r for r in profile.rows if r.is_dispatch]
    assert dispatches and all(r.seconds > 0 for r in dispatches)
    assert all(r.flops is r.traffic_bytes is r.roofline is None for r in dispatches)


@pytest.mark.full
def test_inputs_of_every_kind():
    def several(x, scale, mask, numbers):
        return np.where(mask, x * scale, x), numbers + 1

    x, scale = np.ones((4, 8), ml_dtypes.bfloat16), np.array(2, ml_dtypes.bfloat16)
    inputs = [x, scale, np.ones((4, 8), bool), np.arange(3)]
    program = pyc_mlir.compile(several, inputs, device=Device("local-sync"))
    names = [i.name for i in program.signature.inputs]
    profile = program.profile(**dict(zip(names, inputs, strict=True)), calls=1)
    assert sorted(r.code for r in profile.rows) == ["", "IREE", "IREE"]


def test_a_program_without_dispatches_has_one_row():
    program = pyc_mlir.compile(lambda x: x, [X], device=Device("local-sync"))
    (rest,) = program.profile(X, calls=1).rows
    assert rest.share == 1.0 and not rest.is_dispatch


def test_the_entry_in_place_of_an_arenas_keeps_its_memory(monkeypatch):
    """It got new pages in each call: what writes them first seemed three times as slow."""
    asked = []
    monkeypatch.setattr(build, "measure", lambda _, call, how, *rest: asked.append((call, how)))
    Program(artifact_of(), Device("local-sync")).profile(X)
    ((call, how),) = asked
    assert call.storage == () and how.allocator == "caching"


@pytest.mark.full
def test_other_modes_are_profiled_on_local_task():
    artifact = two_plans().artifact
    tasks = Program(artifact, Device("local-task", threads=1))
    tasks.use_mode("memory_first")
    profile = tasks.profile(X, calls=1)
    assert profile.entry.endswith("memory_first")
    sync = Program(artifact, Device("local-sync"))
    sync.use_mode("memory_first")
    with pytest.raises(PycError, match="local-task") as caught:
        sync.profile(X, calls=1)
    assert caught.value.code is ReasonCode.CANNOT_PROFILE


def test_wrong_arguments_are_refused_before_anything_runs():
    program = Program(artifact_of(), Device("local-sync"))
    with pytest.raises(PycError) as caught:
        program.profile(X[:1])
    assert caught.value.code is ReasonCode.ARGUMENT_SHAPE
    with pytest.raises(PycError, match="one call or more"):
        program.profile(X, calls=0)


@pytest.mark.full
def test_pyc_run_needs_no_compiler(tmp_path):
    artifacts.write(artifact_of(), tmp_path / "p.vmfb")
    flags = ["--input", "8x64xf32=1", "--repeat", "2", "--profile", tmp_path / "t.json"]
    text = without_compilers("pyc_run", tmp_path / "p.vmfb", *flags)
    assert "gemm matmul+add+relu" in " ".join(text.split())
    assert "outside of dispatches" in text and (tmp_path / "t.json").exists()


# Views of a profile: the table, HTML, the trace, JSON and back.
GOLDEN = """\
A call takes 10 s (measured): 20% in generated kernels, 70% in IREE's code for what no kernel \
covers (conv2d 60%, unknown 10%), 10% outside of dispatches.
  time   share    spread  roof  code  operations             nodes of the model
   6 s   60.0%                  IREE  conv2d
   2 s   20.0%  -5% +10%   50%  gemm  matmul+add             dense <1>
   1 s   10.0%                  IREE  unknown
   1 s   10.0%                        outside of dispatches
  10 s  100.0%                        the call
  measured by hand
  profiling changes the CPU time of a call by +25.0%: 10 s with, 8 s without, in turn; a call from \
Python takes 9 s (medians)
  roof: 1 GFLOP/s
"""


def test_the_table():
    assert str(made_by_hand()) == GOLDEN


def test_the_table_with_helpers():
    by_hand = made_by_hand()
    times = zip(by_hand.rows, [(1.0, 0.0), (3.0, 0.5), (1.0, 0.0), (2.0, 0.0)], strict=True)
    rows = tuple(replace(r, helped_seconds=h, waited_seconds=w) for r, (h, w) in times)
    text = str(replace(by_hand, rows=rows, helped="2 threads: by hand"))
    assert "  helped: 2 threads: by hand\n" in text
    assert re.search(r" 6 s .* 3 s +0\.50 +500 ms +IREE", text)
    assert re.search(r" 2 s .* 50% +1 s +0\.50 +gemm", text)
    assert re.search(r"10 s  100\.0% +7 s +0\.70 +500 ms +the call", text)


def test_a_short_table_sums_up_the_rest():
    text = table(made_by_hand(), most=1)
    assert "3 s   30.0%" in text and "2 more operations" in text


def test_equal_operations_are_one_row_with_a_short_title():
    by_hand = made_by_hand()
    kernel = by_hand.rows[0]
    ops = ("matmul+add+mul+relu",)
    again = replace(kernel, seconds=1.0, share=0.1, locations=("b", "c"), roofline=0.2)
    rows = tuple(replace(row, ops=ops) for row in (kernel, again))
    (operation, *others) = replace(by_hand, rows=(*rows, *by_hand.rows[1:])).operations[1:]
    assert (operation.seconds, operation.title) == (3.0, "matmul+add+mul and 1 more")
    assert operation.named == "dense <1>, b and 1 more" and operation.is_kernel
    assert operation.roofline == pytest.approx((2 * 0.5 + 0.2) / 3)
    assert [o.title for o in uncovered(others)] == ["unknown"] and others[0].roofline is None
    assert re.search(
        r"30\.0% +2 +40% +gemm", table(replace(by_hand, rows=(*rows, *by_hand.rows[1:])))
    )


def test_rows_add_up_to_the_call():
    profile = made_by_hand()
    assert fsum(r.seconds for r in profile.rows) == pytest.approx(profile.seconds)
    assert fsum(r.share for r in profile.rows) == pytest.approx(1.0)
    assert profile.kernels + profile.uncovered + profile.outside == pytest.approx(profile.seconds)


def test_disturbed_calls_are_called_so():
    calm = made_by_hand()
    disturbed = replace(calm, disturbance=Disturbance(5.0, 5.0, 9.0))
    assert disturbed.is_disturbed and "measure again" in str(disturbed)
    # Several threads together may take more CPU time than the call, or less.
    assert not replace(disturbed, device="local-task").is_disturbed and not calm.is_disturbed


def test_html_is_escaped():
    text = made_by_hand()._repr_html_()
    assert "dense &lt;1&gt;" in text and "<1>" not in text
    assert text.count("<tr>") == 1 + 3 + 2 and "helped" not in text


def test_the_trace_is_a_trace(tmp_path):
    profile = made_by_hand()
    profile.trace(tmp_path / "trace.json")
    data = json.loads((tmp_path / "trace.json").read_text())
    named = [e for e in data["traceEvents"] if e["ph"] == "M"]
    spans = [e for e in data["traceEvents"] if e["ph"] == "X"]
    assert len(named) + len(spans) == len(data["traceEvents"])
    assert {e["name"] for e in named} == {"process_name", "thread_name"}
    assert [e["name"] for e in spans] == ["matmul+add", "conv2d", "main_dispatch_1"]
    for e in spans:
        assert set(e) == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
        assert e["ts"] >= 0 and e["dur"] > 0
        assert {e["pid"]} == {n["pid"] for n in named}
        assert e["tid"] in {n["tid"] for n in named if n["name"] == "thread_name"}
    # Complete events of one thread must not overlap.
    assert spans[0]["tid"] != spans[1]["tid"] and spans[2]["tid"] == spans[0]["tid"]
    assert spans[0]["dur"] == pytest.approx(2e6)
    assert spans[0]["args"]["code"] == "kernel gemm" and spans[2]["args"]["sources"] == "unknown"
    assert Profile.load(tmp_path / "trace.json") == profile


def test_json_and_back():
    profile = made_by_hand()
    assert from_data(Profile, json.loads(json.dumps(to_data(profile)))) == profile


@pytest.mark.parametrize(
    "data", ["[]", "{}", "no json", '{"pyc": {"schema": 9}}', '{"pyc": {"schema": 1, "rows": 3}}']
)
def test_what_is_no_profile_is_refused(tmp_path, data):
    (tmp_path / "p.json").write_text(data)
    with pytest.raises(PycError, match=r"p\.json") as caught:
        Profile.load(tmp_path / "p.json")
    assert caught.value.code is ReasonCode.BAD_ARGUMENT
    assert KEY == "pyc"
