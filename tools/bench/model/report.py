"""The report of `pyc-bench model`, as text for a terminal and as one HTML page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pyc_mlir.measure.records import Record, Report
from pyc_mlir.tools.bench.report.latency_facts import PYC, WorkloadFacts, results, systems_of
from pyc_mlir.tools.bench.report.latency_svg import bar_chart, kind_of
from pyc_mlir.tools.bench.report.table import environment_line, exceptions, seconds_cell, times
from pyc_mlir.tools.page.document import document, facts, section, wide
from pyc_mlir.tools.page.svg import legend
from pyc_mlir.util.html import Html, table, tag
from pyc_mlir.util.units import quantity

# Another order of the same arithmetic stays below it; quantized models and half types may not.
USUAL_ERROR = 1e-3
_HEAD = ("latency", "/ pyc", "per second", "call", "resident", "error", "compile")
_COLUMNS = {
    "latency": "median of a call, with the 10th to the 90th percentile over interleaved rounds",
    "/ pyc": "the system's median over PyC's: above 1, PyC is quicker",
    "per second": "calls, or with a batch rows, by the median, one call at a time",
    "call": "memory of a call beside inputs and weights, results included, by the system's own "
    "account; in brackets, for systems without one, the growth of resident memory in the first "
    "call",
    "resident": "what loading and the first call added to the resident memory of the process, "
    "weights included (plain IREE's holds its compiler's leavings too)",
    "error": "the largest difference from the reference, relative to the largest result",
    "compile": "seconds from the model to what can be called",
}


def text(report: Report) -> str:
    """Return the tables for a terminal. Ends in a newline."""
    settings = report.settings
    parts = [
        f"{settings['model']} ({'; '.join(settings['inputs']) or 'no inputs'})",
        environment_line(report),
        f"errors are against {settings['reference']}",
    ]
    for result in results(report.records):
        title = _title(result)
        rows = [("system", *_HEAD), *((s, *_cells(result, s)) for s in _ordered(result))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        parts += ["", title]
        for name, *cells in rows:
            padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            parts.append("  ".join((name.ljust(widths[0]), *padded)))
        parts += _lines(result)
    left = list(_absent(report))
    return "\n".join([*parts, *([""] if left else []), *left]) + "\n"


def page(report: Report) -> str:
    """Write the same as a page with a chart. Ends in a newline."""
    found, settings = results(report.records), report.settings
    systems, titled = systems_of(found), [replace(r, workload=_title(r)) for r in found]
    title = f"{Path(settings['model']).name}: PyC and its peers"
    inputs = "; ".join(settings["inputs"]) or "none"
    return document(
        title,
        tag("h1", title),
        tag("p", environment_line(report), class_="note"),
        tag("p", f"Inputs: {inputs}. Errors are against {settings['reference']}."),
        section(
            "Time over that of the quickest peer",
            legend((kind_of(s, systems), s) for s in systems),
            wide(bar_chart(titled, systems)),
        ),
        *map(_section, found),
        *(tag("p", line) for line in _absent(report)),
        section("Columns", facts(list(_COLUMNS.items()))),
    )


def _section(result: WorkloadFacts) -> Html:
    rows = [
        (system, *_cells(result, system), result.systems[system]["setting"])
        for system in _ordered(result)
    ]
    return section(
        _title(result),
        wide(table(("system", *_HEAD, "setting"), rows)),
        *(tag("p", line) for line in _lines(result)),
    )


def _absent(report: Report) -> Iterator[str]:
    """Yield a line for each system that failed or is not installed."""
    yield from (line.removeprefix("- ") for line in exceptions(report.records))
    yield from (f"left out: {name}: {why}" for name, why in report.settings["missing"].items())


def _title(result: WorkloadFacts) -> str:
    return f"{result.workload}, {result.threads} thread{'s' * (result.threads > 1)}"


def _ordered(result: WorkloadFacts) -> list[str]:
    """Order PyC first, then its peers from the quickest on."""
    seconds = {name: row["median_seconds"] for name, row in result.systems.items()}
    return sorted(seconds, key=lambda name: (name != PYC, seconds[name]))


def _cells(result: WorkloadFacts, system: str) -> tuple[str, ...]:
    row = result.systems[system]
    grown = row["first_call_bytes"]
    called = "" if grown is None else f"[{quantity(grown, 'B')}]"
    account = row["call_peak_bytes"]
    resident = max(row["resident_bytes"] - row["resident_before_bytes"], 0)
    return (
        seconds_cell(row),
        times(result.ratio(system, PYC)),
        _rate(row["rows"] / row["median_seconds"]),
        called if account is None else quantity(account, "B"),
        quantity(resident, "B"),
        f"{row['max_error']:.2g}",
        quantity(row["compile_seconds"], "s"),
    )


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def _lines(result: WorkloadFacts) -> Iterator[str]:
    """Yield what the table lacks: PyC's account and prediction, and errors above rounding."""
    mine = result.systems.get(PYC)
    if mine is not None and mine["account"]:
        yield f"PyC's account: {_account(mine)}"
    if mine is not None and mine["prediction"]:
        yield f"PyC's prediction: {mine['prediction']}"
    wrong = [name for name, row in result.systems.items() if not row["max_error"] <= USUAL_ERROR]
    if wrong:
        yield (
            f"error above {USUAL_ERROR:g} by {', '.join(wrong)}: not the reference's results, "
            "unless the model is quantized or in half precision"
        )


def _account(row: Record) -> str:
    known: Sequence[tuple[str, int]] = [(k, v) for k, v in row["account"].items() if v is not None]
    parts = ", ".join(f"{name} {quantity(bytes_, 'B')}" for name, bytes_ in known)
    total = f" = {quantity(sum(bytes_ for _, bytes_ in known), 'B')}"
    return parts + total * (len(known) == len(row["account"]))
