"""The suite `evidence`: kills, claims and look-ups of the benchmark database.

    pyc-bench evidence                                   on SQLite, in a temporary folder
    pyc-bench evidence --db postgresql://pyc@/pyc        on a database that is thrown away after it

`load` beside each number says how busy the machine was: what it means is seen only beside that.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from pyc_mlir.tools.bench.report.suite import parse
from pyc_mlir.tools.cli.common import Parser

SUITE = "evidence"


def run(arguments: Sequence[str]) -> int:
    """Measure the database: rows lost to SIGKILL, claims a second, look-ups in a million rows."""
    parser = Parser(SUITE, "")
    parser.add_argument("--db", metavar="URL", help="an empty database; default: a SQLite file")
    bench, known = parse(SUITE, run.__doc__ or "", 1, arguments, parser)
    # The database's package is optional, and the list of suites is shown without it.
    from suites import evidence_database as database

    share = 100 if bench.quick else 1
    with tempfile.TemporaryDirectory() as folder:
        url = known.db or f"sqlite:///{Path(folder, 'evidence.db')}"
        records = database.measure(url, share)
    bench.store(records)
    return 0
