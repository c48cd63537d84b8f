"""The common parts of suites over a catalogue: its table, and reports that are extended.

A catalogue is a Python file with ``ZOO``: name -> () -> what a suite wants of an architecture. A
run of some names replaces their records in the report of earlier runs: with compiling, a catalogue
takes hours.
"""

import argparse
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.measure.records import Record, Report
from pyc_mlir.tools.bench.report.suite import SuiteRun, note
from pyc_mlir.tools.cli.common import Parser

REASON_CHARACTERS = 200
Zoo = Mapping[str, Callable[[], Any]]
Measure = Callable[[str, Zoo, argparse.Namespace], Sequence[Record]]


def read_catalogue(path: Path) -> dict[str, Callable[[], Any]]:
    """Read the table ``ZOO`` of a Python file. Raises PycError (BAD_ARGUMENT) without one."""
    spec = importlib.util.spec_from_file_location("catalogue", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "ZOO"):
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"{path}: expected a table `ZOO` of models, found none"
        )
    return module.ZOO


def make_parser(suite: str) -> argparse.ArgumentParser:
    """Make the options that all suites over a catalogue have."""
    parser = Parser(suite)
    parser.add_argument("catalogue", type=Path, metavar="CATALOGUE")
    parser.add_argument("--only", default="", metavar="NAME,...", help="some of the catalogue")
    return parser


def run_catalogue(
    parsed: tuple[SuiteRun, argparse.Namespace],
    measure: Measure,
    own: Zoo | None = None,
    summary: Callable[[Sequence[Record]], Mapping[str, Any]] = lambda records: {},
) -> int:
    """Measure the names one by one, and store the report after each; `own` are programs beside."""
    bench, known = parsed
    zoo = {**(own or {}), **read_catalogue(known.catalogue)}
    names = [name for name in known.only.split(",") if name]
    if unknown := [name for name in names if name not in zoo]:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"--only: expected names of {known.catalogue}, got {', '.join(unknown)}"
            f"{did_you_mean(unknown[0], zoo)}",
        )
    for name in names or list(zoo):
        note(name)
        rows = list(measure(name, zoo, known))
        earlier = Report.load(bench.path).records if bench.path.exists() else ()
        records = sorted(
            [*(r for r in earlier if r["workload"] != name), *rows],
            key=lambda r: (r["workload"], r["candidate"]),
        )
        bench.store(records, **summary(records))
    return 0


def reason(error: BaseException) -> str:
    """Return the first line of an error, with its class, for a record."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:REASON_CHARACTERS]
