"""A stored report as Markdown: by the suite's own tables where it has some, else the common one."""

from collections.abc import Callable, Mapping

from pyc_mlir.bench import cpu_table, memory_table, table
from pyc_mlir.bench.schema import Report

TABLES: Mapping[str, Callable[[Report], str]] = {
    "memory": memory_table.markdown,
    "latency": cpu_table.markdown,
}


def markdown(report: Report) -> str:
    """The whole report. Ends in a newline."""
    return TABLES.get(report.suite, table.markdown)(report)
