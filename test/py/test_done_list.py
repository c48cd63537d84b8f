"""How a full run goes on: what the done-list records and what it leaves out the next time."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import FULL, read_done, sample

from pyc_mlir.measure.environment import probe

TESTS = """
import os, pytest
def test_passes(record_property): record_property("cases", {"equal": 3})
def test_is_skipped(): pytest.skip("no reason")
def test_fails(): assert os.path.exists("mended")
def test_ends_its_process():
    if not os.path.exists("mended"): os._exit(3)
"""


def run(folder: Path) -> tuple[dict[str, str], str]:
    """Run pytest on `folder`; the outcomes in its done-list and what pytest printed."""
    done = folder / "done.jsonl"
    options = ["-q", "-n", "1", "-p", "no:cacheprovider", f"--done={done}"]
    command = [sys.executable, "-m", "pytest", *options, "test_module.py", "test_broken.py"]
    printed = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout
    rows = read_done(done)
    return {i.rpartition("::")[2]: row["outcome"] for i, row in rows.items()}, printed


def test_an_interrupted_run_goes_on(tmp_path):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_module.py").write_text(TESTS)
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    first, printed = run(tmp_path)
    assert first == {
        "test_passes": "passed",
        "test_is_skipped": "skipped",
        "test_fails": "failed",
        "test_ends_its_process": "failed",
        "test_broken.py": "failed",
    }, printed
    assert [r["counts"] for r in read_done(tmp_path / "done.jsonl").values() if "counts" in r] == [
        {"cases": {"equal": 3}}
    ]
    (tmp_path / "mended").touch()
    (tmp_path / "test_broken.py").write_text("def test_new(): pass\n")
    second, printed = run(tmp_path)
    assert second == {
        "test_passes": "passed",
        "test_is_skipped": "skipped",
        "test_fails": "passed",
        "test_ends_its_process": "passed",
        "test_new": "passed",
    }
    assert "3 passed" in printed


def test_a_line_that_was_cut_off_is_ignored(tmp_path):
    path = tmp_path / "done.jsonl"
    path.write_text('{"id": "a", "outcome": "passed", "seconds": 1}\n{"id": "b", "outc')
    assert list(read_done(path)) == ["a"]
    assert read_done(tmp_path / "none") == {}


@pytest.fixture
def full(monkeypatch) -> Any:
    """test/full.py as a module."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    place = Path(__file__).parents[1] / "full.py"
    spec = importlib.util.spec_from_file_location("full", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_counts_are_those_of_one_test(full):
    counts = [{"cases": {"equal": 2, "newer": i}} for i in (1, 2)]
    rows = {f"test_a.py::test[{i}]": {"counts": found} for i, found in enumerate(counts)}
    found = {(r["workload"], r["metric"]): r["value"] for r in full.counted(rows)}
    assert found == {("cases", "equal"): 4, ("cases", "newer"): 3}
    rows["test_b.py::test"] = {"counts": {"cases": {"equal": 1}}}
    with pytest.raises(ValueError, match=r"cases: expected one test's counts"):
        list(full.counted(rows))


def test_a_scenario_of_all_cases_is_as_many_as_were_counted(full):
    scenario = next(s for s in full.SCENARIOS if s.full is None)
    name, count = f"test/py/{scenario.tests[0]}", {"cases": {"equal": 2, "newer": 1}}
    rows = {f"{name}[{i}]": {"outcome": "passed", "counts": count} for i in range(3)}
    assert full.scenario_record(scenario, rows)["value"] == 9
    rows[f"{name}[0]"]["outcome"] = "failed"
    assert full.scenario_record(scenario, rows)["value"] == 0


def test_tests_of_changed_files_run_again(full, tmp_path, monkeypatch):
    monkeypatch.setattr(full, "ROOT", tmp_path)
    folder = tmp_path / "test" / "py"
    folder.mkdir(parents=True)
    tests = [f"test/py/test_{name}.py" for name in ("a", "b", "layers")]
    for name in ("pyproject.toml", "test/full.py", *tests):
        (tmp_path / name).write_text("# first\n")
    done, digests = tmp_path / "done.jsonl", tmp_path / "digests.json"
    rows = [{"id": f"{name}::test", "outcome": "passed"} for name in tests]
    full.forget_changed(done, digests)
    done.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    full.forget_changed(done, digests)
    assert list(read_done(done)) == [row["id"] for row in rows]
    key = full.state_key(probe())
    (folder / "test_b.py").write_text("# second\n")
    full.forget_changed(done, digests)
    assert list(read_done(done)) == [rows[0]["id"]] and full.state_key(probe()) == key
    (folder / "helper.py").write_text("# a helper\n")
    assert full.state_key(probe()) != key


@pytest.mark.skipif(FULL, reason="a full run samples nothing")
def test_samples_are_seeded_and_keep_their_order():
    items = list(range(100))
    chosen = sample(items, 10)
    assert chosen == sorted(chosen) == sample(items, 10) and len(chosen) == 10
    assert chosen != sample(items, 10, seed=1)
    assert sample(items, 100) == items
