"""The suite `tune-workers`: trials a second of studies with 1 to 8 workers.

Measurements are simulated: each sleeps. What is left is what the study itself costs: proposals,
leases, rows, wake-ups. `load` beside each number says how busy the machine was.
"""

import os
from collections.abc import Iterator

from pyc_mlir.measure.records import Record, record
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, option, suite

WORKERS = (1, 2, 4, 8)
# What a real session takes on an idle machine.
SECONDS = 3.0
_QUICK_SECONDS = 0.02
_PROCESSES = "processes"


@suite(
    "tune-workers",
    1,
    option("--executor", default=_PROCESSES, metavar="WHERE", help="as for `pyc-tune`"),
)
def run(bench: SuiteRun) -> Iterator[Record]:
    """Measure trials a second of studies on simulated measurements, with 1 to 8 workers."""
    # Needs the extra `tune`, which --help does not.
    from suites.tune_studies import trials_per_second

    bench.settings["seconds"] = seconds = _QUICK_SECONDS if bench.quick else SECONDS
    executor, alone = bench.options.executor, 0.0
    where = "Dask" if executor != _PROCESSES else _PROCESSES
    for workers in WORKERS[:2] if bench.quick else WORKERS:
        rate = trials_per_second(executor, workers, seconds)
        alone = alone or rate
        load = round(os.getloadavg()[0], 1)
        share = rate / alone / workers
        note(f"{where}: {workers} workers: {rate:.2f} trials a second, {share:.0%} of linear")
        name = f"{where}, {workers} worker{'s' if workers > 1 else ''}"
        rows = (("trials a second", "trials", rate), ("share of linear", "", share))
        for metric, unit, value in rows:
            yield record(f"{seconds:g} s a measurement", name, metric, unit, value, load=load)
