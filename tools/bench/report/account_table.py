"""The report of the suite `account` as Markdown: bytes in all, by plain IREE and by PyC's modes."""

import math
from collections.abc import Iterator, Sequence

from pyc_mlir.measure.records import Record, Report
from pyc_mlir.tools.bench.report.table import environment_line, rows_table, times
from pyc_mlir.util.units import quantity

_IREE, _MODES = "iree", ("balanced", "memory_first")


def markdown(report: Report) -> str:
    """Write the table, the geometric means and what is above plain IREE. Ends in a newline."""
    rows = _by_workload(report.records, "total")
    head = ("workload", _IREE, "its constants")
    for mode in _MODES:
        head += (mode, "constants", "larger forms", "they save", f"{mode} / iree")
    means = [f"{mode} {times(_mean(list(rows.values()), mode))}" for mode in _MODES]
    above = [
        f"{name} ({mode})"
        for name, systems in rows.items()
        for mode in _MODES
        if systems[mode]["value"] > systems[_IREE]["value"]
    ]
    parts = [
        environment_line(report),
        "Bytes in all of one call: constants as they lie in memory, inputs, outputs, transients "
        "and workspace. Larger forms: bytes that constants take beside the model's own.",
        rows_table(head, ([name, *_cells(systems)] for name, systems in rows.items())),
        f"- Geometric means of the ratios to plain IREE: {', '.join(means)}.\n"
        f"- Above plain IREE: {', '.join(above) or 'none'}.",
        "Other exchange rates, by prediction: seconds, and bytes of constants and values, beside "
        "those of the quickest kernels.",
        _rates(_by_workload(report.records, "predicted")),
    ]
    return "\n\n".join(parts) + "\n"


def _by_workload(records: Sequence[Record], metric: str) -> dict[str, dict[str, Record]]:
    """Return the records of a metric by workload and candidate."""
    found: dict[str, dict[str, Record]] = {}
    for row in records:
        if row["metric"] == metric:
            found.setdefault(row["workload"], {})[row["candidate"]] = row
    return found


def _rates(rows: dict[str, dict[str, Record]]) -> str:
    """Write the table of rates; the first candidate is without a price."""
    first, *others = next(iter(rows.values()), {"": {}})
    changed = ([name, *(_change(s[first], s[o]) for o in others)] for name, s in rows.items())
    return rows_table(("workload", *others), changed)


def _change(free: Record, row: Record) -> str:
    seconds, held = row["value"] / free["value"] - 1, row["held"] / free["held"] - 1
    return f"{seconds:+.2%}, {held:+.1%}" if seconds or held else ""


def _cells(systems: dict[str, Record]) -> Iterator[str]:
    iree = systems[_IREE]
    yield from (quantity(iree["value"], "B"), quantity(iree["account"]["constants"], "B"))
    for mode in _MODES:
        row = systems[mode]
        yield quantity(row["value"], "B")
        yield quantity(row["account"]["constants"], "B")
        yield quantity(row["larger_bytes"], "B")
        yield quantity(row["saves"], "s") if row["larger"] else ""
        yield times(row["value"] / iree["value"])


def _mean(rows: Sequence[dict[str, Record]], mode: str) -> float:
    ratios = [math.log(r[mode]["value"] / r[_IREE]["value"]) for r in rows]
    return math.exp(sum(ratios) / len(ratios))
