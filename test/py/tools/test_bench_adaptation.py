"""The suites `dynamic`, `selector` and `tail`: their data, and a quick run on made-up spaces."""

import gzip
import json

import numpy as np
import pytest
from suites import selector

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.records import Report
from pyc_mlir.tools.bench.suites import adaptation


@pytest.fixture
def data(tmp_path):
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


def test_policies_are_compared_on_public_spaces(data, tmp_path, monkeypatch):
    monkeypatch.setattr(selector, "_soak", lambda calls, folder: [])
    out = tmp_path / "selector.json"
    assert selector.run(["--data", str(data), "--quick", "--json", str(out)]) == 0
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
