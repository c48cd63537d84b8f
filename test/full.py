"""Run slices of the tests at full counts; each stores its result in docs/results/tests/.

    python test/full.py [--list] [--changed] [SLICE ...]

Without names all slices run, one after the other. `--list` prints them with their last run and
runs nothing; `--changed` takes only those whose tests or sources have changed since the commit of
their last run. A slice that is interrupted stores nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Record, Report, record

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "test" / "py"), str(ROOT / "test" / "py" / "support")]
from slices import (  # noqa: E402  (the path is set above)
    FIRST_HOUR,
    LIT,
    MUTANTS,
    SLICES,
    STORED,
    Slice,
    last_run,
    missing,
    state,
    test_files,
)

Rows = Mapping[str, Mapping[str, Any]]
FINISHED = (0, 1)  # pytest's and lit's exit statuses: passed, failed
SURVIVED = ("survived", "unseen")  # test/mutate.py
LIT_FAILURES = ("FAIL", "XPASS", "UNRESOLVED", "TIMEOUT")


def run(command: Sequence[str]) -> None:
    """Run a test runner at full counts, its output on the terminal; exit if it did not finish."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    status = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYC_FULL": "1", "PATH": path}
    ).returncode
    if status not in FINISHED:
        sys.exit(f"{command[0]} ended with status {status}: nothing is stored of this slice")


def run_pytest(one: Slice, folder: Path) -> Rows:
    """Run a slice of pytest's tests: outcome, seconds, counts and reason of each, by its id."""
    outcomes = folder / f"{one.name}.json"
    outcomes.unlink(missing_ok=True)
    files = [str(path.relative_to(ROOT)) for path in test_files(one)]
    options = ["-n", "2", "--dist", one.dist, f"--outcomes={outcomes}"]
    if one.part:
        options.append("--part={}/{}".format(*one.part))
    run([sys.executable, "-m", "pytest", "-q", *options, *files])
    return json.loads(outcomes.read_text())


def run_lit(folder: Path) -> Rows:
    """Run lit on all of its tests: outcome and seconds of each, by its name."""
    outcomes = folder / "lit.json"
    lit = Path(sys.executable).with_name("lit")
    run([str(lit), "-j2", "-o", str(outcomes), str(ROOT / "test" / "lit")])
    named = {True: "failed", False: "passed"}
    return {
        test["name"]: {"outcome": named[test["code"] in LIT_FAILURES], "seconds": test["elapsed"]}
        for test in json.loads(outcomes.read_text())["tests"]
    }


def run_first_hour(folder: Path) -> Rows:
    """Run the script that walks the ways of new users: outcome and seconds of each step."""
    outcomes = folder / "first-hour.json"
    outcomes.unlink(missing_ok=True)
    run([sys.executable, str(ROOT / "test" / "first_hour.py"), f"--outcomes={outcomes}"])
    return json.loads(outcomes.read_text())


def run_mutants(one: Slice, folder: Path) -> Rows:
    """Run a part of the mutants of the compiler's code: what became of each, by its place."""
    outcomes = folder / f"{one.name}.json"
    outcomes.unlink(missing_ok=True)
    assert one.part is not None
    part = "--part={}/{}".format(*one.part)
    script = str(ROOT / "test" / "mutate.py")
    run([sys.executable, script, "--fresh", part, f"--outcomes={outcomes}"])
    return json.loads(outcomes.read_text())


def counted(rows: Rows) -> Iterator[Record]:
    """Yield what tests counted (`record_property`), added up over the parameters of one test.

    Raises ValueError where two tests count under one name: their sum would be of nothing.
    """
    totals: dict[str, Counter[str]] = {}
    tests: dict[str, str] = {}
    for test_id, row in rows.items():
        test = test_id.partition("[")[0]
        for name, counts in row.get("counts", {}).items():
            if tests.setdefault(name, test) != test:
                raise ValueError(f"{name}: expected one test's counts, got {tests[name]}, {test}")
            totals.setdefault(name, Counter()).update(counts)
    for name, total in sorted(totals.items()):
        for outcome, number in sorted(total.items()):
            yield record(name, "pyc", outcome, "cases", number)


def report_of(one: Slice, rows: Rows, seconds: float) -> Report:
    """Summarize a slice: counts by outcome, seconds, reasons of skips, what tests counted."""
    outcomes = Counter(row["outcome"] for row in rows.values())
    reasons = Counter(row.get("reason", "") for row in rows.values() if row["outcome"] == "skipped")
    failed = sorted(i for i, row in rows.items() if row["outcome"] == "failed")
    settings = {
        "date": datetime.now(UTC).date().isoformat(),
        "failed": failed,
        "skipped": dict(sorted(reasons.items())),
        "survived": sorted(i for i, row in rows.items() if row["outcome"] in SURVIVED),
    }
    names = ("passed", "failed", "skipped")
    records = [
        *(record("tests", "pyc", name, "tests", outcomes[name]) for name in names),
        record("tests", "pyc", "time", "s", round(seconds, 1)),
        *counted(rows),
    ]
    return Report(f"tests: {one.name}", probe(), settings, records)


def run_slice(one: Slice) -> list[str]:
    """Run a slice and store its result; return the ids of the tests that failed."""
    folder = ROOT / "build" / "test-full"
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    alone = {LIT: lambda _, to: run_lit(to), FIRST_HOUR: lambda _, to: run_first_hour(to)}
    alone |= dict.fromkeys(MUTANTS, run_mutants)
    rows = alone.get(one, run_pytest)(one, folder)
    report = report_of(one, rows, time.monotonic() - start)
    STORED.mkdir(exist_ok=True)
    report.save(STORED / f"{one.name}.json")
    return report.settings["failed"]


def listed(one: Slice) -> str:
    """Return a line for `--list`: the slice, its last run, and what has changed since."""
    report = last_run(one)
    ran = "never ran" if report is None else state(report)
    return f"{one.name:12} {ran:52} {' '.join(one.tests) or 'test/lit'}"


def has_changed(one: Slice) -> bool:
    """Return whether tests or sources of a slice differ from the commit of its last run."""
    report = last_run(one)
    if report is None or report.environment.commit is None:
        return True
    paths = ["pyproject.toml", "test/py/support", *(f"test/py/{t}" for t in one.tests)]
    paths += ["test/lit"] if one is LIT else []
    paths += ["test/users", "test/first_hour.py"] if one is FIRST_HOUR else []
    command = ["git", "diff", "--quiet", report.environment.commit, "--", *paths, *one.sources]
    return subprocess.run(command, cwd=ROOT).returncode != 0


def main() -> int:
    """List or run slices; 1 when a test failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    by_name = {one.name: one for one in SLICES}
    parser.add_argument("slices", nargs="*", metavar="SLICE", help=", ".join(by_name))
    parser.add_argument("--list", action="store_true", help="print the slices, run nothing")
    parser.add_argument("--changed", action="store_true", help="only slices with changes")
    options = parser.parse_args()
    if unknown := sorted(set(options.slices) - by_name.keys()):
        parser.error(f"expected names of slices ({', '.join(by_name)}), got {unknown}")
    if left := missing():
        parser.error(f"expected a slice for each test file (test/py/support/slices.py), got {left}")
    requested = [by_name[name] for name in options.slices or by_name]
    if options.changed:
        requested = [one for one in requested if has_changed(one)]
    if options.list:
        print("\n".join(map(listed, requested)))
        return 0
    failed = [name for one in requested for name in run_slice(one)]
    print("\n".join(["failed:", *failed]) if failed else "all passed; `make docs` updates the page")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
