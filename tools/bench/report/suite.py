"""The common part of all suites: command line, progress on stderr, stored results.

    pyc-bench NAME [--json OUT] [--rounds N] [--quick]

A quick run does two rounds of the smallest workload: it shows that a suite works, its figures
mean nothing.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyc_mlir.dialects.util.files import require_writable
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Record, Report
from pyc_mlir.tools.bench.report.compare import compare, lines, load_baseline
from pyc_mlir.tools.cli.common import Parser

RESULTS = Path("docs/results")
QUICK_ROUNDS = 2


@dataclass(frozen=True)
class SuiteRun:
    """The request of a suite: rounds, amount, the report's file, the report to compare with."""

    suite: str
    rounds: int
    quick: bool
    path: Path
    baseline: str = ""

    @property
    def min_seconds(self) -> float:
        """How long one sample lasts at least."""
        return 0.0 if self.quick else 0.05

    def store(self, records: Sequence[Record], **settings: Any) -> None:
        """Write the report, with the number of rounds and `settings` beside the records.

        Then print how it compares with the baseline, if there is one. Raises PycError as `compare`.
        """
        everything = {"rounds": self.rounds, "quick": self.quick, **settings}
        # A report may take the place of the one that it is compared with.
        before = load_baseline(self.baseline) if self.baseline else []
        report = Report(self.suite, probe(), everything, records)
        report.save(self.path)
        note(f"{len(records)} records stored in {self.path}")
        if before:
            print("".join(lines(compare(before, [report]), self.baseline)), end="")


class Partial:
    """The finished workloads of a run that may not have come to its end."""

    def __init__(self, bench: SuiteRun, settings: Mapping[str, Any]) -> None:
        self.path = Path(f"{bench.path}.partial")
        self._suite = bench.suite
        self._environment = probe()
        self._settings = {"rounds": bench.rounds, "quick": bench.quick, **settings}

    def load(self) -> dict[str, list[Record]]:
        """Read records by workload; none if the file is of other settings or another environment.

        Failures are forgotten, so that they are tried again.
        """
        if not self.path.is_file():
            return {}
        report = Report.load(self.path)
        if (report.environment, dict(report.settings)) != (self._environment, self._settings):
            note(f"{self.path}: other settings or another environment; measuring all again")
            return {}
        found: dict[str, list[Record]] = {}
        for row in report.records:
            if row["metric"] != "failure":
                found.setdefault(row["workload"], []).append(row)
        return found

    def save(self, done: Mapping[str, Sequence[Record]]) -> None:
        """Write what is finished."""
        rows = [row for records in done.values() for row in records]
        Report(self._suite, self._environment, self._settings, rows).save(self.path)


def parse(
    suite: str,
    description: str,
    rounds: int,
    arguments: Sequence[str],
    parser: argparse.ArgumentParser | None = None,
    elsewhere: Callable[[argparse.Namespace], Path | None] = lambda known: None,
) -> tuple[SuiteRun, argparse.Namespace]:
    """Read a suite's command line; `parser` may know options of the suite's own.

    `elsewhere` names the report's file of a run that is not to be published, else None; the option
    `--json` goes before it.
    Raises PycError (FILE_ACCESS) when the report could not be stored: measuring takes minutes.
    """
    parser = Parser(suite) if parser is None else parser
    parser.prog, parser.description = f"pyc-bench {suite}", description
    out = RESULTS / f"{suite}.json"
    parser.add_argument(
        "--json", type=Path, metavar="OUT", help=f"the report to write; default: {out}"
    )
    parser.add_argument(
        "--rounds", type=int, help=f"how often each workload is timed; default: {rounds}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="only two rounds of the smallest workload"
    )
    parser.add_argument("--compare", metavar="BASELINE", default="",
                        help="a stored report, or NAME[@N] of `pyc-tune baseline`")  # fmt: skip
    known = parser.parse_args(arguments)
    if known.compare:
        # What cannot be compared with is found before minutes of measuring.
        load_baseline(known.compare)
    path = known.json or elsewhere(known) or out
    require_writable(path, "a file for the report (`--json`; docs/results/ of the project)")
    wanted = known.rounds or (QUICK_ROUNDS if known.quick else rounds)
    return SuiteRun(suite, wanted, known.quick, path, known.compare), known


def note(text: str) -> None:
    """Print one line of progress, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
