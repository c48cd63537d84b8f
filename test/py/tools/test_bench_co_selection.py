"""The suite `co-selection`: what it compares, and the records that it stores."""

import pytest

from pyc_mlir.measure.records import Report
from pyc_mlir.tools import pyc_bench
from pyc_mlir.tools.bench.memory.co_selection import ALONE, FREE, RATIO, TOGETHER
from pyc_mlir.tools.bench.peers.workload import relative_error
from pyc_mlir.tools.bench.report import show
from pyc_mlir.tools.bench.workloads.memory import PRESSED


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


def test_tiny_workloads_compute_what_they_say():
    for entry in PRESSED.values():
        case = entry.tiny()
        assert relative_error([case.source(*case.inputs)], case.reference()) < 1e-4
