"""Run every test at full counts and store the summary in docs/results/test-full.json.

    python test/full.py [--fresh] [--campaign [FILE ...]]

`--campaign` runs the files of `CAMPAIGN` alone, or those that are named, one after the other, and
stores docs/results/campaign.json: what was attacked, how often, and with what result.
An interrupted run goes on where it stopped, as long as sources and environment are the same: tests
that passed are not run again, unless their file has changed since. `--fresh` forgets them.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyc_mlir.measure.environment import Environment, probe
from pyc_mlir.measure.records import Record, Report, record

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "test" / "py"), str(ROOT / "test" / "py" / "support")]
from conftest import read_done  # noqa: E402  (the path is set above)
from scenarios import SCENARIOS, Scenario  # noqa: E402

SOURCES = ("dialects", "pipelines", "pyc_mlir", "tools", "test")
NOT_SOURCES = {"__pycache__", "Output", ".lit_test_times.txt"}
FINISHED = (0, 1, 5)  # pytest's exit statuses: passed, failed, nothing left to run
# These read or run the other test files, so that a change of any of those is one of theirs.
READERS = tuple(
    f"test/py/{name}.py" for name in ("test_layers", "test_done_list", "robustness/test_scenarios")
)
# What attacks PyC from outside, below test/py/.
CAMPAIGN = (
    "frontends/test_numpy_agreement.py",
    "robustness/test_manifests.py",
    "robustness/test_mutated_data.py",
    "robustness/test_damaged.py",
    "robustness/test_onnx_attributes.py",
    "robustness/test_hostile_models.py",
    "robustness/test_mutated_models.py",
    "robustness/test_names.py",
    "robustness/test_compile_memory.py",
    "robustness/test_signals.py",
)
LIT_FAILURES = ("FAIL", "XPASS", "UNRESOLVED", "TIMEOUT")


def state_key(environment: Environment) -> str:
    """What a done-list is valid for: the environment, and every file but those of tests alone."""
    digest = hashlib.sha256(environment.fingerprint.encode())
    files = {ROOT / "pyproject.toml", *(f for s in SOURCES for f in (ROOT / s).rglob("*"))}
    for path in sorted(files - set(test_files())):
        if path.is_file() and NOT_SOURCES.isdisjoint(path.parts):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def test_files() -> list[Path]:
    """Files of tests, which no others import (but see `READERS`), and this one."""
    return [ROOT / "test" / "full.py", *sorted((ROOT / "test" / "py").rglob("test_*.py"))]


def forget_changed(done: Path, digests: Path) -> None:
    """Leave out of a done-list the tests of files that have changed since the last run.

    digests: where the SHA-256 of each test file is kept from run to run.
    """
    names = {str(path.relative_to(ROOT)): path.read_bytes() for path in test_files()}
    now = {name: hashlib.sha256(data).hexdigest() for name, data in names.items()}
    before = json.loads(digests.read_text()) if digests.exists() else {}
    rows = read_done(done)
    if before != now:
        before = {name: digest for name, digest in before.items() if name not in READERS}
    kept = [r for i, r in rows.items() if before.get(f := i.partition("::")[0]) == now.get(f)]
    done.write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    digests.write_text(json.dumps(now))


def run(command: list[str]) -> int:
    """Run one test runner at full counts, its output on the terminal."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PYC_FULL": "1", "PATH": path}
    try:
        return subprocess.run(command, cwd=ROOT, env=environment).returncode
    except KeyboardInterrupt:
        sys.exit("interrupted: run `make test-full` again to go on")


def run_pytest(done: Path, tests: str = "test/py", workers: int = 2) -> dict[str, dict]:
    """Run what is left of a pytest suite; exits when it was interrupted."""
    command = [sys.executable, "-m", "pytest", "-n", str(workers), f"--done={done}", tests]
    status = run(command)
    if status not in FINISHED:
        sys.exit(f"pytest ended with status {status}: run `make test-full` again to go on")
    return read_done(done)


def run_lit(results: Path) -> dict[str, str]:
    """Run lit; its result code for each test."""
    lit = Path(sys.executable).with_name("lit")
    status = run([str(lit), "-j2", "-o", str(results), "test/lit"])
    if status not in (0, 1):
        sys.exit(f"lit ended with status {status}")
    return {test["name"]: test["code"] for test in json.loads(results.read_text())["tests"]}


def scenario_record(scenario: Scenario, rows: dict[str, dict]) -> Record:
    """How often a scenario was done, and whether each time as it must be: 0 where a test failed."""
    own = [
        row
        for test_id, row in rows.items()
        if test_id.partition("[")[0].rpartition("test/py/")[2] in scenario.tests
    ]
    # A scenario of all that there are: its tests count them.
    times = scenario.full
    if times is None:
        times = sum(n for row in own for c in row.get("counts", {}).values() for n in c.values())
    kept = times if {row["outcome"] for row in own} == {"passed"} else 0
    return record(f"scenario: {scenario.name}", "pyc", "as it must be", scenario.what, kept)


def counted(rows: dict[str, dict]) -> Iterator[Record]:
    """What tests counted, by name and outcome: added up over the parameters of one test.

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


def summary(
    environment: Environment, rows: dict[str, dict], lit: dict[str, str], seconds: float
) -> Report:
    """Counts by outcome, seconds, the reason of everything that was skipped, and every scenario."""
    outcomes = Counter(row["outcome"] for row in rows.values())
    codes = Counter(lit.values())
    reasons = Counter(row.get("reason", "") for row in rows.values() if row["outcome"] == "skipped")
    test_seconds = sum(row["seconds"] for row in rows.values())
    records = [
        *(
            record("pytest", "pyc", o, "tests", outcomes[o])
            for o in ("passed", "failed", "skipped")
        ),
        record("pytest", "pyc", "time in tests", "s", round(test_seconds, 1)),
        *(record("lit", "pyc", code.lower(), "tests", codes[code]) for code in sorted(codes)),
        record("all", "pyc", "time since the last start", "s", round(seconds, 1)),
        *counted(rows),
        *(scenario_record(s, rows) for s in SCENARIOS),
    ]
    return Report("test-full", environment, {"skipped": dict(sorted(reasons.items()))}, records)


def run_campaign(environment: Environment, done: Path, files: Sequence[str]) -> list[str]:
    """Run files of `CAMPAIGN` and store what is done of it; the tests that failed.

    The report has a file's rows once all of its tests have run, in this run or an earlier one.
    """
    requested = [f for f in CAMPAIGN if not files or f in files]
    for file in requested:
        run_pytest(done, f"test/py/{file}", workers=1)
        finished = requested[: requested.index(file) + 1]
        rows = {i: row for i, row in read_done(done).items() if file_of(i) in finished}
        own = [s for s in SCENARIOS if {t.partition("::")[0] for t in s.tests} <= set(finished)]
        outcomes = Counter((file_of(i), row["outcome"]) for i, row in rows.items())
        records = [
            *(record(f, "pyc", o, "tests", n) for (f, o), n in sorted(outcomes.items())),
            *counted(rows),
            *(scenario_record(s, rows) for s in own),
        ]
        report = Report("campaign", environment, {}, records)
        report.save(ROOT / "docs" / "results" / "campaign.json")
    return [i for i, row in read_done(done).items() if row["outcome"] == "failed"]


def file_of(test_id: str) -> str:
    """The file of a test, below test/py/."""
    return test_id.partition("::")[0].removeprefix("test/py/")


def reported(failed: Sequence[str]) -> int:
    """Print the tests that failed; 1 if there are any."""
    print("\n".join(["failed:", *sorted(failed)]) if failed else "all passed")
    return int(bool(failed))


def main() -> int:
    """Run both suites, or the campaign; write the summary, return 1 when anything failed."""
    start = time.monotonic()
    environment = probe()
    arguments = sys.argv[1:]
    state = ROOT / "build" / "test-full" / state_key(environment)
    state.mkdir(parents=True, exist_ok=True)
    done = state / "done.jsonl"
    if "--fresh" in arguments:
        done.unlink(missing_ok=True)
    forget_changed(done, state / "digests.json")
    if "--campaign" in arguments:
        files = arguments[arguments.index("--campaign") + 1 :]
        return reported(run_campaign(environment, done, files))
    rows, lit = run_pytest(done), run_lit(state / "lit.json")
    report = summary(environment, rows, lit, time.monotonic() - start)
    report.save(ROOT / "docs" / "results" / "test-full.json")
    failed = [i for i, row in rows.items() if row["outcome"] == "failed"]
    failed += [name for name, code in lit.items() if code in LIT_FAILURES]
    return reported(failed)


if __name__ == "__main__":
    sys.exit(main())
