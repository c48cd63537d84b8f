"""The suite `iopddl` on instances made here: costs, points, and what has no choice."""

import gzip
import json

import pytest
from suites.iopddl import best_known, instances, name_of

from pyc_mlir.measure.records import Report
from pyc_mlir.tools import pyc_bench


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
