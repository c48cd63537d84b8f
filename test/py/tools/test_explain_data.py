"""Layouts tell the truth about plans, and reports survive being stored."""

import json
from dataclasses import replace
from itertools import combinations

import pytest
from explain_programs import explained, own_order, planned
from hypothesis import given
from planner_problems import chain, layered, problems, skips
from refusals import refused

from pyc_mlir import PycError, ReasonCode
from pyc_mlir.artifact import artifact
from pyc_mlir.artifact.memory import (
    MemoryReport,
    from_bytes,
    region_report,
    to_bytes,
)
from pyc_mlir.pipelines.memory.planner.layout import ArenaLayout, TaskRun, layout_of_slices
from pyc_mlir.pipelines.memory.planner.place import layout_of_plan
from pyc_mlir.pipelines.memory.planner.planner import MODES, plan
from pyc_mlir.pipelines.memory.planner.problem import Buffer, PlannedTask, PlanningProblem


def clashes(layout: ArenaLayout) -> list[tuple[int, int]]:
    """Pairs of rectangles that hold the same bytes at the same step, and share no storage."""
    found = []
    for (i, a), (j, b) in combinations(enumerate(layout.rectangles), 2):
        in_time = a.first <= b.last and b.first <= a.last
        in_space = a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes
        if in_time and in_space and layout.storages[i] != layout.storages[j]:
            found.append((i, j))
    return found


def naive_live(layout: ArenaLayout) -> list[int]:
    """Per step the sum over storages of the largest buffer in it."""
    live = []
    for step in range(layout.steps):
        sizes: dict[int, int] = {}
        for i, r in enumerate(layout.rectangles):
            if r.first <= step <= r.last:
                storage = layout.storages[i]
                sizes[storage] = max(sizes.get(storage, 0), r.bytes)
        live.append(sum(sizes.values()))
    return live


@pytest.mark.parametrize("mode", sorted(MODES))
@given(problem=problems(concurrency=2))
def test_layouts_of_plans(mode, problem):
    found = plan(problem, mode=mode)
    layout = layout_of_plan(problem, found)
    assert not clashes(layout)
    assert list(layout.live_bytes) == naive_live(layout)
    assert layout.peak_bytes <= layout.arena_bytes == found.arena_bytes
    assert len(layout.runs) == len(found.steps) and layout.seconds == found.seconds
    report = MemoryReport((region_report("r", problem, {"planned": layout}, "planned"),))
    assert from_bytes(to_bytes(report)) == report


@pytest.mark.parametrize("problem", [layered(60, 0), layered(60, 1), skips(8, 4096)])
@pytest.mark.parametrize("mode", ["balanced", "memory_first"])
@pytest.mark.sampled(2)
def test_the_peak_of_the_live_bytes_is_the_lower_bound_of_the_order(problem, mode):
    found = plan(problem, mode=mode)
    layout = layout_of_plan(problem, found)
    assert layout.peak_bytes == found.lower_bound
    assert sum(r.recomputed for r in layout.rectangles) == sum(s.copy > 0 for s in found.steps)
    assert sum(r.takes_over is not None for r in layout.rectangles) == len(found.reused)


def test_a_chain_in_place_is_one_storage():
    layout = layout_of_plan(chain(5, 100, in_place=True), plan(chain(5, 100, in_place=True)))
    assert [r.takes_over for r in layout.rectangles] == [None, 0, 1, 2]
    assert set(layout.storages) == {0} and layout.peak_bytes == 128
    assert {(r.offset, r.bytes) for r in layout.rectangles} == {(0, 128)}
    assert [(r.buffer, r.writer) for r in layout.rectangles] == [(f"t{i}", i) for i in range(4)]


def test_a_tied_update_continues_its_operand():
    tasks = (
        PlannedTask("make", (0,), (1,)),
        PlannedTask("update", (1,), (2,), tied=((2, 1),)),
        PlannedTask("read", (2,), (3,)),
    )
    outside = Buffer(64, pinned=True)
    problem = PlanningProblem(tasks, (outside, Buffer(64, name="state"), Buffer(64), outside))
    first, second = layout_of_plan(problem, own_order(problem)).rectangles
    assert (first.buffer, first.first, first.last) == ("state", 0, 1)
    assert (second.buffer, second.first, second.last, second.takes_over) == ("update", 1, 2, 0)


def test_slices_alone_make_a_layout():
    layout = layout_of_slices([(0, 1, 64), (1, 3, 128), (2, 2, 0)], [128, 0, 0], seconds=2.0)
    assert [r.buffer for r in layout.rectangles] == ["slice 0", "slice 1"]
    assert (layout.live_bytes, layout.arena_bytes) == ((64, 192, 128, 128), 192)
    assert layout.seconds == 2.0 and layout.runs == ()
    empty = layout_of_slices([], [])
    assert (empty.steps, empty.peak_bytes, empty.arena_bytes) == (0, 0, 0)


@pytest.mark.parametrize("slices", [[(0, 1, 64)], [(0, 1, 64), (3, 2, 64)]])
def test_slices_that_make_no_sense(slices):
    refused(
        ReasonCode.BAD_ARGUMENT, layout_of_slices, slices, [0, 0], match="slices \\(first <= last"
    )


def test_reports_are_stored_in_artifacts():
    content = explained([planned(skips())])
    data = artifact.to_bytes(content)
    assert data == artifact.to_bytes(explained([planned(skips())]))
    again = artifact.from_bytes(data)
    assert again.memory == content.memory
    (region,) = from_bytes(again.memory).regions
    assert region == planned(skips())
    assert region.before is region.layouts["iree"] and region.after is region.layouts["planned"]
    assert b"memory.json" in data
    without = artifact.to_bytes(explained())
    assert b"memory.json" not in without and artifact.from_bytes(without).memory == b""


def changed(**fields) -> bytes:
    """A stored report with fields of its region or first layout changed."""
    data = json.loads(to_bytes(MemoryReport((planned(chain(3)),))))
    region = data["regions"][0]
    for name, value in fields.items():
        place = region["layouts"]["planned"] if name in ("runs", "rectangles") else data
        place = region if name == "tasks" else place
        place[name] = value
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[1]",
        b'"text"',
        changed(schema=MemoryReport.schema - 1),
        changed(schema=MemoryReport.schema + 1),
        changed(tasks=[["name", 0.0]]),
        changed(regions=[{}]),
        changed(regions=None),
        changed(runs=[[9, 0, 0]]),
        changed(runs=[[0, 0]]),
        changed(rectangles=[["b", 0, 2, 1, 0, 64, 0, False, None]]),
        changed(rectangles=[["b", 0, 0, 1, 0, 64, 9, False, None]]),
        changed(rectangles=[["b", 0, 0, 1, 0, 64, 0, False, 0]]),
        changed(rectangles=[["b", 0, "x", 1, 0, 64, 0, False, None]]),
    ],
)
def test_what_is_no_report_is_refused(data):
    refused(ReasonCode.BAD_ARTIFACT, from_bytes, data, "m", match=r"^m: expected a memory report")


def test_the_chosen_layout_must_be_there():
    layout = ArenaLayout(0, (TaskRun(0, 0, 0),), ())
    with pytest.raises(PycError, match=r"region r: expected the chosen one of \['iree'\]"):
        region_report("r", chain(1), {"iree": layout}, "planned")


def test_numbers_are_plain():
    """numpy's numbers, which planners compute with, are not JSON's."""
    region = planned(layered(30, 3))
    layout = region.layouts["planned"]
    assert {type(v) for r in layout.rectangles for v in (r.first, r.offset, r.bytes)} == {int}
    assert replace(region, layouts=dict(region.layouts)) == region


def test_the_basis_of_predictions_is_stored():
    assert from_bytes(to_bytes(MemoryReport((), "figures of `cpu`"))).basis == "figures of `cpu`"
