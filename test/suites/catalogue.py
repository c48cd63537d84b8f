"""The common parts of suites over a catalogue: its table, and reports that are extended.

A catalogue is a Python file with ``ZOO``: name -> () -> what a suite wants of an architecture. A
run of some names replaces their records in the report of earlier runs: with compiling, a catalogue
takes hours.
"""

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.measure.records import Record, Report
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, option

REASON_CHARACTERS = 200
Zoo = Mapping[str, Callable[[], Any]]
OPTIONS = (
    option("catalogue", type=Path, metavar="CATALOGUE"),
    option("--only", default="", metavar="NAME,...", help="some of the catalogue"),
)


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


def over_catalogue(
    bench: SuiteRun,
    measure: Callable[[str, Callable[[], Any]], Iterable[Record]],
    own: Zoo | None = None,
) -> Iterator[Record]:
    """Yield the records of all names, measured now or earlier; `own` are programs beside.

    The report is stored after each name.
    """
    zoo = {**(own or {}), **read_catalogue(bench.options.catalogue)}
    names = [name for name in bench.options.only.split(",") if name]
    if unknown := [name for name in names if name not in zoo]:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"--only: expected names of {bench.options.catalogue}, got {', '.join(unknown)}"
            f"{did_you_mean(unknown[0], zoo)}",
        )
    records = list(Report.load(bench.path).records) if bench.path.exists() else []
    for name in names or list(zoo):
        note(name)
        rows = measure(name, zoo[name])
        records = [*(r for r in records if r["workload"] != name), *rows]
        records.sort(key=lambda r: (r["workload"], r["candidate"]))
        bench.store(records)
    yield from records


def reason(error: BaseException) -> str:
    """Return the first line of an error, with its class, for a record."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:REASON_CHARACTERS]
