"""The suite `evidence`: kills, claims and look-ups of the benchmark database.

    pyc-bench evidence                                   on SQLite, in a temporary folder
    pyc-bench evidence --db postgresql://pyc@/pyc        on a database that is thrown away after it

`load` beside each number says how busy the machine was: what it means is seen only beside that.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyc_mlir.measure.records import Record
from pyc_mlir.tools.bench.report.suite import SuiteRun, option, suite


@suite(
    "evidence",
    1,
    option("--db", metavar="URL", help="an empty database; default: a SQLite file"),
)
def run(bench: SuiteRun) -> Iterator[Record]:
    """Measure the database: rows lost to SIGKILL, claims a second, look-ups in a million rows."""
    # The database's package is optional, and the list of suites is shown without it.
    from suites import evidence_database as database

    with tempfile.TemporaryDirectory() as folder:
        url = bench.options.db or f"sqlite:///{Path(folder, 'evidence.db')}"
        yield from database.measure(url, 100 if bench.quick else 1)
