"""The parts that all suites share: command line, progress, runs that go on, stored results.

    pyc-bench NAME [--json OUT] [--rounds N] [--quick] [--compare BASELINE]

A suite is a function that yields the records of its cases, made a command by `suite`:

    @suite("overhead", 51, option("--device", default="local-sync"))
    def run(bench: SuiteRun) -> Iterator[Record]:
        \"\"\"Measure a call's cost ...\"\"\"          the help of `pyc-bench overhead`

A quick run does two rounds of the smallest workload: it shows that a suite works, its figures
mean nothing.
"""

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import require_writable
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.interleave import Spread, Timing
from pyc_mlir.measure.records import Record, Report, record
from pyc_mlir.pipelines.target.target import available_cores
from pyc_mlir.tools.bench.report.compare import compare, lines, load_baseline
from pyc_mlir.tools.bench.report.tables import FAILURE, PYC
from pyc_mlir.tools.cli.common import Parser
from pyc_mlir.util.children import run as run_child

RESULTS = Path("docs/results")
QUICK_ROUNDS = 2
_REASON_CHARACTERS = 300


@dataclass
class SuiteRun:
    """A request of a suite: rounds, amount, the report's file, the reports to compare with.

    `options` are those of the suite's own; `settings` are stored beside the records, with the
    rounds; `failed` makes the exit status 1, as a failure of PyC does.
    """

    suite: str
    rounds: int
    quick: bool
    path: Path
    baseline: Sequence[Report] = ()
    options: argparse.Namespace = field(default_factory=argparse.Namespace)
    settings: dict[str, Any] = field(default_factory=dict)
    failed: bool = False

    @property
    def min_seconds(self) -> float:
        """How long one sample lasts at least."""
        return 0.0 if self.quick else 0.05

    def report(self, records: Sequence[Record]) -> Report:
        """Return the report of some records."""
        settings = {"rounds": self.rounds, "quick": self.quick, **self.settings}
        return Report(self.suite, probe(), settings, records)

    def store(self, records: Sequence[Record]) -> None:
        """Write the report, and print how it compares with the baseline, if there is one.

        Raises PycError as `compare`.
        """
        report = self.report(records)
        report.save(self.path)
        self._partial.unlink(missing_ok=True)
        note(f"{len(records)} records stored in {self.path}")
        if self.baseline:
            rows = compare(self.baseline, [report])
            print("".join(lines(rows, self.options.compare)), end="")

    def resumed(
        self,
        cases: Mapping[str, Callable[[], Sequence[Record]]],
        complete: Callable[[Sequence[Record]], bool] = lambda rows: True,
        case_of: Callable[[Record], str] = lambda row: row["workload"],
    ) -> Iterator[Record]:
        """Yield the records of all cases; finished ones are kept beside the report as .partial.

        A run of the same settings in the same environment goes on from there, without `--fresh`;
        failures, and cases whose records are not `complete`, are measured again.
        """
        kept = {} if self.options.fresh else self._kept(case_of)
        done = {name: rows for name, rows in kept.items() if name in cases and complete(rows)}
        for i, (name, measure) in enumerate(cases.items(), 1):
            note(f"{i} of {len(cases)}: {name}" + ": measured before" * (name in done))
            if name not in done:
                done[name] = measure()
                self.report([row for rows in done.values() for row in rows]).save(self._partial)
        for name in cases:
            yield from done[name]

    @property
    def _partial(self) -> Path:
        return Path(f"{self.path}.partial")

    def _kept(self, case_of: Callable[[Record], str]) -> dict[str, Sequence[Record]]:
        """Read finished records by case; none of other settings or another environment."""
        path = self._partial
        if not path.is_file():
            return {}
        stored, now = Report.load(path), self.report(())
        if (stored.environment, dict(stored.settings)) != (now.environment, dict(now.settings)):
            note(f"{path}: other settings or another environment; measuring all again")
            return {}
        found: dict[str, list[Record]] = {}
        for row in stored.records:
            if row["metric"] != FAILURE:
                found.setdefault(case_of(row), []).append(row)
        return {**found}


Option = tuple[tuple[str, ...], dict[str, Any]]
Body = Callable[[SuiteRun], Iterable[Record]]
Command = Callable[[Sequence[str]], int]


def option(*flags: str, **settings: Any) -> Option:
    """Describe an option of a suite's own, as `add_argument` takes it."""
    return flags, settings


FRESH = option("--fresh", action="store_true", help="measure finished workloads again")


def suite(
    name: str,
    rounds: int,
    *options: Option,
    elsewhere: Callable[[SuiteRun], Path | None] = lambda bench: None,
    piecewise: bool = False,
    then: Callable[[SuiteRun, Report], None] = lambda bench, stored: None,
) -> Callable[[Body], Command]:
    """Make a command of what measures; its docstring is the help.

    `elsewhere` names the report's file of a run that is not to be published, else None; the option
    `--json` goes before it. `piecewise`: the report is stored after each workload, so that a run
    that is ended early has measured what it has. `then` shows what was stored.
    """

    def made(body: Body) -> Command:
        @functools.wraps(body)
        def run(arguments: Sequence[str]) -> int:
            bench = parse(name, body.__doc__ or "", rounds, arguments, options, elsewhere)
            records: list[Record] = []
            for row in body(bench):
                if piecewise and records and row["workload"] != records[-1]["workload"]:
                    bench.store(records)
                records.append(row)
            bench.store(records)
            then(bench, Report.load(bench.path))
            failures = [r for r in records if (r["metric"], r["candidate"]) == (FAILURE, PYC)]
            for row in failures:
                note(f"failed: {row['workload']}: {row['reason']}")
            return int(bench.failed or bool(failures))

        return run

    return made


def parse(
    name: str,
    description: str,
    rounds: int,
    arguments: Sequence[str],
    options: Sequence[Option] = (),
    elsewhere: Callable[[SuiteRun], Path | None] = lambda bench: None,
) -> SuiteRun:
    """Read a suite's command line.

    Raises PycError (FILE_ACCESS) when the report could not be stored: measuring takes minutes.
    """
    parser, out = Parser(f"pyc-bench {name}", description), RESULTS / f"{name}.json"
    for flags, settings in options:
        parser.add_argument(*flags, **settings)
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
    # What cannot be compared with is found before minutes of measuring; and the report may take the
    # place of the one that it is compared with.
    before = load_baseline(known.compare) if known.compare else ()
    wanted = known.rounds or (QUICK_ROUNDS if known.quick else rounds)
    bench = SuiteRun(name, wanted, known.quick, out, before, known)
    bench.path = known.json or elsewhere(bench) or out
    require_writable(bench.path, "a file for the report (`--json`; docs/results/ of the project)")
    return bench


def some_of(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """Return the type of an option that takes some of the known names, separated by commas."""
    names = list(known)

    def read(text: str) -> tuple[str, ...]:
        named = tuple(dict.fromkeys(part for part in text.split(",") if part))
        if not named or not set(named) <= set(names):
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(names)}, got {text!r}")
        return named

    return read


def counts(text: str) -> tuple[int, ...]:
    """Read positive numbers, each once. Raises ArgumentTypeError, and ValueError."""
    numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"expected numbers above 0, got {text!r}")
    return numbers


def on_cores(threads: Sequence[int]) -> list[int]:
    """Return the numbers of threads that have a core each; others are noted."""
    cores = available_cores()
    for t in threads:
        if t > cores:
            note(f"left out: {t} threads on {cores} cores")
    return [t for t in threads if t <= cores]


def threads_of(number: int) -> str:
    """Return ``1 thread``, ``2 threads``."""
    return f"{number} thread{'s' * (number > 1)}"


def failure(workload: str, error: PycError | str, candidate: str = PYC) -> Record:
    """Record why a candidate has no number."""
    reason = error if isinstance(error, str) else f"{error.code.name}: {error.message}"
    reason = reason[:_REASON_CHARACTERS]
    return record(workload, candidate, FAILURE, "failures", 1, reason=reason)


def spread_record(
    workload: str, candidate: str, metric: str, unit: str, found: Spread, **details: Any
) -> Record:
    """Record a median with its spread."""
    spread = {"p10": found.p10, "p90": found.p90, "min": found.min, "n": found.n}
    return record(workload, candidate, metric, unit, found.median, **spread, **details)


def timing_records(workload: str, timings: Mapping[str, Timing], **details: Any) -> list[Record]:
    """Return one latency record per candidate, in seconds, with its spread and the samples by
    round.
    """
    return [
        spread_record(
            workload, name, "latency", "s", timing.spread,
            calls=timing.calls, samples=timing.rounded, **details,
        )
        for name, timing in timings.items()
    ]  # fmt: skip


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module with data in a process of its own; return its data.

    The state that one measurement leaves does not affect the next, and a program that ends the
    process ends no other measurement. Raises PycError (RUNTIME_FAILED).
    """
    where = f"{function.__module__}:{function.__name__}"
    done = run_child([sys.executable, "-m", __name__, where, json.dumps(arguments)], stderr=None)
    if done.returncode != 0:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"{function.__name__}: expected the measuring process to finish, it ended with status "
            f"{done.returncode}; its message stands above",
        )
    return json.loads(done.stdout.splitlines()[-1])


def note(text: str) -> None:
    """Print one line of progress, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    _module, _, _name = sys.argv[1].partition(":")
    print(json.dumps(getattr(import_module(_module), _name)(*json.loads(sys.argv[2]))))
