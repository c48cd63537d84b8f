"""The campaigns on programs in service: each fault is answered by its code; nothing is torn."""

import json
import shutil
from pathlib import Path

import pytest
from suites.faults import FAULTS, Programs, Seen, is_met
from suites.gates import GATES, Gate, judged
from suites.gates import run as run_gates
from suites.stress import program_of_rows, stress

from pyc_mlir.measure.records import Report

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"


@pytest.fixture(scope="module")
def programs():
    return Programs()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_answered_by_its_code(fault, programs, tmp_path):
    if fault.name == "a killed server":
        pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install '.[serve]'")
    seen = fault.make(programs, tmp_path)
    assert is_met(fault, seen) and seen.right, seen


def test_a_fault_is_not_met_by_wrong_answers_or_other_codes():
    fault = FAULTS[0]
    assert not is_met(fault, Seen({fault.code}, 1, 1))
    assert not is_met(fault, Seen({"FILE_ACCESS"}, 1, 0))


def test_random_calls_answer_right_or_refuse():
    found = stress(program_of_rows(), 2000)
    assert found.silent_mismatches == 0 and found.right > 500
    expected = {"DIMENSION_OUT_OF_RANGE", "DIMENSION_MISMATCH", "OUTPUT_OVERLAP"}
    assert expected <= set(found.refused)


def test_gates_name_their_evidence(tmp_path, capsys):
    """A gate without a stored run stops a release, a goal that is missed does not."""
    (tmp_path / "tests").mkdir()
    assert run_gates(["--results", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "NO-GO   tests" in text and "missed  serve" in text and "no stored run" in text
    shutil.copy(RESULTS / "overhead.json", tmp_path)
    shutil.copy(RESULTS / "tests" / "runtime.json", tmp_path / "tests")
    over = Gate("overhead", "above bare invoke", lambda r: r["value"] < 1.0, "below 1 s")
    under = Gate("overhead", "above bare invoke", lambda r: False, "impossible")
    goal = Gate("overhead", "above bare invoke", lambda r: False, "impossible", binding=False)
    found = judged(tmp_path, [over, under, goal])
    assert [v.verdict for v in found] == ["go", "NO-GO", "missed", "go"]
    assert "overhead.json at " in found[0].evidence and "1 of 1 rows" in found[0].found


def test_gates_are_about_what_the_campaigns_store():
    """Each gate's metric is one that its suite writes: a renamed one would stop every release."""
    stored = {name: RESULTS / f"{name}.json" for name in {g.report for g in GATES}}
    for gate in GATES:
        if stored[gate.report].exists():
            metrics = {r["metric"] for r in Report.load(stored[gate.report]).records}
            assert gate.metric in metrics, gate.metric
    assert json.loads((RESULTS / "overhead.json").read_text())["suite"] == "overhead"
