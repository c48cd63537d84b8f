"""Compare runs of a suite with a baseline: each row is faster, slower or unclear, with an interval.

Two runs are two sessions, and times of two sessions say nothing about each other: the machine may
have changed. So each time is divided by that of a reference, another system that ran in the same
rounds, and the ratios of the sessions are compared. The interval takes sessions as samples
(Student's t) where both sides have `MIN_SESSIONS`; with fewer it assumes that sessions of one
program differ by `SPREAD`, so that one run on each side finds large differences only.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.records import Record, Report
from pyc_mlir.runtime.selection.verdict import ALPHA, Interval, VerdictKind, student
from pyc_mlir.tools.cli.common import Parser, default_url

MIN_SESSIONS = 3
# Standard deviation of the logarithm of a program's time between processes: medians of fresh
# processes of one artifact lay 6 to 48 % apart.
SPREAD = 0.10
# The system whose times depend least on PyC comes first.
REFERENCES = ("iree", "onnxruntime", "openvino", "xla", "torch")

Key = tuple[str, str, str]


@dataclass(frozen=True)
class CompareRow:
    """One row: after / before of its ratio to the reference; None where it has no interval."""

    workload: str
    candidate: str
    metric: str
    answer: VerdictKind
    interval: Interval | None = None
    reference: str = ""
    why: str = ""

    def __str__(self) -> str:
        name = f"{self.answer.value:8} {self.workload}, {self.candidate}, {self.metric}"
        if self.interval is None:
            return f"{name}: {self.why}"
        found = self.interval
        ratio_text = f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f}) of the time before"
        return f"{name}: {ratio_text}, against {self.reference}{'; ' * bool(self.why)}{self.why}"


def compare(
    before: Sequence[Report], after: Sequence[Report], alpha: float = ALPHA, reference: str = ""
) -> list[CompareRow]:
    """Compare the rows in seconds that both sides hold, in the order of the last run.

    alpha: the error of each interval. reference: the system to divide by; empty takes the first of
    `REFERENCES`, else any other, that all sessions have.

    Raises PycError: BAD_ARGUMENT without a report on a side or for reports of two suites,
    ENVIRONMENT_MISMATCH for sessions of two environments.
    """
    if not before or not after:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"compare: expected a report on both sides, got {len(before)} and {len(after)}",
        )
    first = before[0]
    for report in (*before[1:], *after):
        if report.suite != first.suite:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"compare: expected one suite, got {first.suite!r} and {report.suite!r}",
            )
        if differences := first.environment.differences(report.environment):
            raise PycError(
                ReasonCode.ENVIRONMENT_MISMATCH,
                f"compare {first.suite!r}: the environments differ in {'; '.join(differences)}; "
                "measure the baseline again here",
            )
    sides = [[_by_key(report) for report in side] for side in (before, after)]
    shared = [key for key in sides[1][-1] if all(key in s for side in sides for s in side)]
    return [_row(key, shared, sides, alpha, reference) for key in shared]


def _by_key(report: Report) -> dict[Key, Record]:
    return {
        (r["workload"], r["candidate"], r["metric"]): r
        for r in report.records
        if r["unit"] == "s" and r["value"] > 0
    }


def _row(
    key: Key,
    shared: Sequence[Key],
    sides: Sequence[Sequence[Mapping[Key, Record]]],
    alpha: float,
    wanted: str,
) -> CompareRow:
    workload, candidate, metric = key
    others = [k[1] for k in shared if (k[0], k[2]) == (workload, metric) and k[1] != candidate]
    order = (wanted,) if wanted else (*REFERENCES, *others)
    found = next((name for name in order if name in others), "")
    if not found:
        why = f"no {wanted or 'other system'} that ran in the same sessions"
        return CompareRow(*key, VerdictKind.UNCLEAR, why=why)
    base = (workload, found, metric)
    logs = [[_log_ratio(session[key], session[base]) for session in side] for side in sides]
    interval, assumed = _interval(logs, alpha)
    more = MIN_SESSIONS - min(map(len, sides))
    unsure = assumed and interval.answer is VerdictKind.UNCLEAR
    why = f"{more} more sessions on each side would narrow it" if unsure else ""
    return CompareRow(*key, interval.answer, interval, found, why)


def _log_ratio(ours: Record, theirs: Record) -> tuple[float, float]:
    """Log of the ratio of two times of one session, and its variance by the rounds."""
    a, b = (np.asarray(r.get("samples", ()), np.float64) for r in (ours, theirs))
    if len(a) < 2 or a.shape != b.shape or min(a.min(), b.min()) <= 0:
        return math.log(ours["value"] / theirs["value"]), 0.0
    logs = np.log(a) - np.log(b)
    # Of a median of n normal values: pi / 2 of the mean's variance.
    return float(np.median(logs)), float(math.pi / 2 * logs.var(ddof=1) / len(logs))


def _interval(logs: Sequence[Sequence[tuple[float, float]]], alpha: float) -> tuple[Interval, bool]:
    """Return the interval of after / before, and whether it rests on the assumed spread."""
    values = [np.array([value for value, _ in side]) for side in logs]
    change = float(values[1].mean() - values[0].mean())
    counts = [len(side) for side in values]
    assumed = min(counts) < MIN_SESSIONS
    if assumed:
        noise = [float(np.mean([n for _, n in side])) for side in logs]
        variance = sum((SPREAD**2 + n) / c for n, c in zip(noise, counts, strict=True))
        width = NormalDist().inv_cdf(1 - alpha / 2)
    else:
        variance = sum(float(v.var(ddof=1)) / len(v) for v in values)
        width = student(1 - alpha / 2, min(counts) - 1)
    half = width * math.sqrt(variance)
    bounds = (math.exp(change), math.exp(change - half), math.exp(change + half))
    return Interval(*bounds), assumed


def load_baseline(name: str) -> list[Report]:
    """Read the reports of a file, or of a baseline in the user's database.

    Raises PycError: FILE_ACCESS and BAD_ARGUMENT for a name that is neither.
    """
    if Path(name).is_file() or name.endswith(".json"):
        return [Report.load(name)]
    from pyc_mlir.lab.evidence.database.store import EvidenceStore
    from pyc_mlir.lab.lanes.baselines import reports_of

    with EvidenceStore.open(default_url(os.environ)) as store:
        return reports_of(store, name)


def lines(rows: Sequence[CompareRow], baseline: str) -> Iterator[str]:
    """Yield the comparison as text: every row, then the counts."""
    yield from (f"{row}\n" for row in rows)
    counts = ", ".join(f"{sum(r.answer is a for r in rows)} {a.value}" for a in VerdictKind)
    yield f"{len(rows)} rows against {baseline}: {counts}\n"


def run(arguments: Sequence[str]) -> int:
    """Compare stored reports with a baseline: a stored report, or a name in the database."""
    parser = Parser("pyc-bench compare", run.__doc__ or "")
    parser.add_argument(
        "reports", nargs="+", metavar="REPORT.json", help="stored reports of one suite"
    )
    parser.add_argument(
        "--to",
        required=True,
        metavar="BASELINE",
        help="a stored report, or NAME[@N] of `pyc-tune baseline`",
    )
    parser.add_argument(
        "--reference",
        default="",
        metavar="SYSTEM",
        help="the system whose times all others are divided by; default: plain IREE",
    )
    known = parser.parse_args(arguments)
    after = [Report.load(path) for path in known.reports]
    rows = compare(load_baseline(known.to), after, reference=known.reference)
    print("".join(lines(rows, known.to)), end="")
    return 0
