"""A stored report as Markdown: by the suite's own tables where it has some, else the common one."""

from collections.abc import Callable, Mapping

from pyc_mlir.measure.records import Report
from pyc_mlir.tools.bench.report import latency_table as cpu_table
from pyc_mlir.tools.bench.report import memory_table, predict_table, table, zoo_table
from pyc_mlir.tools.tune import probe

TABLES: Mapping[str, Callable[[Report], str]] = {
    "account": memory_table.accounts,
    "memory": memory_table.markdown,
    "noise": probe.markdown,
    "latency": cpu_table.markdown,
    "predict": predict_table.markdown,
    "zoo": zoo_table.markdown,
}


def markdown(report: Report) -> str:
    """Write the whole report. Ends in a newline."""
    return TABLES.get(report.suite, table.markdown)(report)
