"""The report of the suite `latency` as one HTML page: ratios as bars, rooflines, all numbers."""

from collections.abc import Iterator, Sequence

from pyc_mlir.measure.records import Report
from pyc_mlir.tools.bench.report.latency_facts import (
    PYC,
    WorkloadFacts,
    groups,
    means,
    results,
    systems_of,
)
from pyc_mlir.tools.bench.report.latency_svg import bar_chart, kind_of, roofline_chart
from pyc_mlir.tools.bench.report.latency_table import GOAL_CLASSES
from pyc_mlir.tools.bench.report.table import environment_line
from pyc_mlir.tools.page.document import document, section, wide
from pyc_mlir.tools.page.svg import legend
from pyc_mlir.util.html import Html, table, tag
from pyc_mlir.util.units import quantity

_RATIOS = (
    "Each bar is a system's time over that of the best peer (the dashed line at 1, on a "
    "logarithmic scale): shorter is quicker. Point at a bar for its numbers."
)
_ROOFS = (
    "What the machine allows (the line: copy bandwidth, then FMA peak, both measured in the same "
    "run) and what PyC (dots) and the best peer (circles) reach. Left are programs that wait for "
    "memory. Above the line lies what stays in caches, or reads more than "
    "it writes."
)


def page(report: Report) -> str:
    """Write the whole page. Ends in a newline."""
    found = results(report.records)
    threads = list(dict.fromkeys(r.threads for r in found))
    return document(
        "PyC: latency on this CPU",
        tag("h1", "Latency of a call, PyC and its peers"),
        tag("p", environment_line(report), class_="note"),
        _means(found),
        *(part for t in threads for part in _sections(report, found, t)),
    )


def _means(found: Sequence[WorkloadFacts]) -> Html:
    rows = [
        (title, str(t), str(m.members), _ratio(m.mean), f"{m.worst:.2f} ({m.worst_workload})")
        for title, t, m in means(found, groups(found, GOAL_CLASSES))
    ]
    if not rows:
        return Html()
    head = ("workloads", "threads", "number", "mean", "worst")
    title = "PyC's time over the best peer's: geometric means"
    return section(title, wide(table(head, rows)))


def _sections(report: Report, found: Sequence[WorkloadFacts], threads: int) -> Iterator[Html]:
    """Write everything about one number of threads."""
    shown = [r for r in found if r.threads == threads]
    systems = systems_of(shown)
    words = f"{threads} thread{'s' * (threads > 1)}"
    keys = legend((kind_of(s, systems), s) for s in systems)
    bars = wide(bar_chart(shown, systems))
    yield section(f"Against the best peer, {words}", tag("p", _RATIOS), keys, bars)
    peaks = report.settings.get("peaks", {}).get(str(threads))
    if peaks is not None:
        # A call of nothing computes nothing: it would only stretch the axes.
        computing = [r for r in shown if r.kind != "call"]
        roofs = roofline_chart(computing, peaks["flops"], peaks["bandwidth"])
        yield section(f"Rooflines, {words}", tag("p", _ROOFS), wide(roofs))
    head = ("workload", *systems, "pyc / best peer", "of the roof")
    rows = [
        (r.workload, *(_time(r, s) for s in systems), _ratio(r.ratio(PYC)), _roof(r)) for r in shown
    ]
    yield section(f"Numbers, {words}", wide(table(head, rows)))


def _time(result: WorkloadFacts, system: str) -> str:
    row = result.systems.get(system)
    return "" if row is None else quantity(row["median_seconds"], "s")


def _ratio(value: float | None) -> str:
    kind = "ahead" if value is not None and value <= 1 else "behind"
    return "" if value is None else tag("td", f"{value:.2f}", class_=kind)


def _roof(result: WorkloadFacts) -> str:
    row = result.systems.get(PYC)
    return "" if row is None else f"{row['roofline_fraction']:.0%}"
