"""The report of the suite `predict` as Markdown: its figures, then what they were taken from."""

from collections.abc import Iterator, Sequence

from pyc_mlir.measure.records import Record, Report
from pyc_mlir.tools.bench.report.table import cell, environment_line, table_row
from pyc_mlir.util.units import quantity

_FIGURES, _CALL, _KERNEL = "predict", "call", "kernel"


def markdown(report: Report) -> str:
    """Write the whole report; in parentheses 90 % intervals over programs. Ends in a newline."""
    lines = [environment_line(report), "", *_figures(report.records), "", *_programs(report)]
    return "\n".join(lines) + "\n"


def _figures(records: Sequence[Record]) -> Iterator[str]:
    yield table_row("estimates of", "figure", "value (90 % interval)", "programs", "pairs")
    yield "|---" * 5 + "|"
    for r in records:
        if r["candidate"] == _FIGURES:
            counts = (str(r.get(name, "")) for name in ("programs", "pairs"))
            yield table_row(r["workload"], r["metric"], cell(r), *counts)


def _programs(report: Report) -> Iterator[str]:
    load = report.settings.get("load")
    works = {r["workload"] for r in report.records if r["metric"] == _KERNEL}
    yield f"Rows of {len(works)} works; load of the machine when stored: {load}."
    yield ""
    yield table_row("program", "kernels", "recipes", "heuristic", "quickest recipe", "slowest")
    yield "|---" * 6 + "|"
    calls = [r for r in report.records if r["metric"] == _CALL and "kernels" in r]
    for name in dict.fromkeys(r["workload"] for r in calls):
        recipes = sorted((r for r in calls if r["workload"] == name), key=lambda r: r["value"])
        own = next((r["value"] for r in recipes if r["candidate"] == "own"), None)
        yield table_row(
            name,
            str(len(recipes[0]["kernels"])),
            str(len(recipes)),
            "" if own is None else quantity(own, "s"),
            f"{recipes[0]['candidate']}: {quantity(recipes[0]['value'], 's')}",
            f"{recipes[-1]['candidate']}: {quantity(recipes[-1]['value'], 's')}",
        )
