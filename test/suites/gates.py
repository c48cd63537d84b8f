"""The suite `gates`: go or no-go for a release, each line with the stored run that it rests on.

    go     faults          85 of 85 answered so, at least 85             faults.json at 1a2b3c4
    NO-GO  soak            growth of resident memory 1.9 %, at most 1 %  soak.json at 1a2b3c4
    missed serve           answers, of onnxruntime's 91 %, at least 100 %  ...

Nothing is measured here: a line without a stored run is no-go. A goal that is missed (`missed`) is
shown and stops nothing. `docs/results` has the runs.
"""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyc_mlir.measure.records import Record, Report
from pyc_mlir.tools.bench.report.suite import RESULTS
from pyc_mlir.tools.bench.suites.serve import PEER
from pyc_mlir.tools.cli.common import Parser

GO, NO_GO, MISSED = "go", "NO-GO", "missed"
_SOURCES = ("dialects", "pipelines", "pyc_mlir")


@dataclass(frozen=True)
class Gate:
    """One requirement on the records of a stored run with a metric.

    holds: of a record's value. limit: the same in words. binding: False for a goal.
    """

    report: str
    metric: str
    holds: Callable[[Record], bool]
    limit: str
    binding: bool = True


@dataclass(frozen=True)
class Verdict:
    """One line: go, no-go or a missed goal, of which report, what was found, and the evidence."""

    verdict: str
    report: str
    found: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.verdict:6}  {self.report:14} {self.found}  ({self.evidence})"


def _most(limit: float) -> Callable[[Record], bool]:
    return lambda r: r["value"] <= limit


def _least(limit: float) -> Callable[[Record], bool]:
    return lambda r: r["value"] >= limit


NONE = "none"
GATES = (
    Gate("faults", "answered so", lambda r: r["value"] == r["of"], "every time"),
    Gate("faults", "wrong answers", _most(0), NONE),
    Gate("soak", "calls made", _least(1_000_000), "at least 10^6"),
    Gate("soak", "requests made", _least(100_000), "at least 10^5"),
    Gate("soak", "silent_mismatch_count", _most(0), NONE),
    Gate("soak", "answers with other bits", _most(0), NONE),
    Gate("soak", "failed", _most(0), NONE),
    Gate("soak", "growth of resident memory", _most(1), "at most 1 %"),
    Gate("soak", "growth of handles", _most(0), NONE),
    Gate("soak", "growth of threads", _most(0), NONE),
    Gate("serve", "answers, of onnxruntime's", _least(100), "at least 100 %", binding=False),
    Gate("serve", "answers in batches, of those one by one", _least(150), "at least 150 %", False),
    Gate(
        "serve",
        "p99 at twice the load, of that at the limit",
        _most(150),
        "at most 150 %",
        binding=False,
    ),
    Gate("serve", "above the program's call", _most(1e-6), "at most 1 us", binding=False),
)


def run(arguments: Sequence[str]) -> int:
    """Say go or no-go for a release, from stored results; the status is 1 for no-go."""
    parser = Parser("pyc-bench gates", run.__doc__ or "")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="FOLDER", help="default: %(default)s"
    )
    verdicts = judged(parser.parse_args(arguments).results)
    print("".join(f"{v}\n" for v in verdicts), end="")
    stops = sum(v.verdict == NO_GO for v in verdicts)
    goals = sum(v.verdict == MISSED for v in verdicts)
    print(
        f"{NO_GO if stops else GO}: {stops} of {len(verdicts)} lines stop it, {goals} goals missed"
    )
    return int(bool(stops))


def judged(folder: Path, gates: Sequence[Gate] = GATES) -> list[Verdict]:
    """Judge the runs in a folder of results. Raises PycError for a malformed one."""
    reports = {p.stem: Report.load(p) for p in sorted(folder.glob("*.json"))}
    tests = {p.stem: Report.load(p) for p in sorted((folder / "tests").glob("*.json"))}
    verdicts = [_of(gate, reports) for gate in gates]
    return [*verdicts, *_of_tests(tests)]


def _of(gate: Gate, reports: Mapping[str, Report]) -> Verdict:
    otherwise = NO_GO if gate.binding else MISSED
    report = reports.get(gate.report)
    records = report.records if report else ()
    rows = [r for r in records if r["metric"] == gate.metric and r["candidate"] != PEER]
    if report is None or not rows:
        return Verdict(
            otherwise, gate.report, f"{gate.metric}: no stored run", f"{gate.report}.json"
        )
    failed = [r for r in rows if not gate.holds(r)]
    shown = "; ".join(f"{r['workload']}: {r['value']:g} {r['unit']}" for r in failed[:3])
    found = f"{gate.metric}, {gate.limit}: {len(rows) - len(failed)} of {len(rows)} rows"
    verdict = otherwise if failed else GO
    return Verdict(
        verdict,
        gate.report,
        f"{found}{'; ' if shown else ''}{shown}",
        _evidence(gate.report, report),
    )


def _of_tests(tests: Mapping[str, Report]) -> Iterator[Verdict]:
    """Yield a line for each slice of the tests that is stored, and one for none."""
    if not tests:
        yield Verdict(NO_GO, "tests", "no stored run of any slice", "tests/")
    for name, report in tests.items():
        rows = {r["metric"]: r["value"] for r in report.records if r["workload"] == "tests"}
        failed = rows.get("failed", 1)
        found = f"{rows.get('passed', 0):g} passed, {failed:g} failed, none may"
        yield Verdict(NO_GO if failed else GO, f"tests {name}", found, _evidence(name, report))


def _evidence(name: str, report: Report) -> str:
    """Name the commit of a run, and how many later commits touch what it was about."""
    commit = report.environment.commit
    if commit is None:
        return f"{name}.json, of no commit"
    at = f"{name}.json at {commit[:7]}{' with changes' if report.environment.modified else ''}"
    command = ["git", "rev-list", "--count", f"{commit}..HEAD", "--", *_SOURCES]
    done = subprocess.run(command, capture_output=True, text=True)
    return f"{at}, {done.stdout.strip()} commits ago" if done.returncode == 0 else at
