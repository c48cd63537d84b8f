"""The report of the suite `latency` as one HTML page: ratios as bars, rooflines, all numbers.

Nothing is fetched from outside and nothing runs: pictures are SVG, the style stands in the page.
"""

from collections.abc import Iterator, Sequence
from html import escape

from pyc_mlir.measure.records import Report
from pyc_mlir.tools.bench.report.latency_facts import (
    PYC,
    WorkloadFacts,
    groups,
    means,
    results,
    systems_of,
)
from pyc_mlir.tools.bench.report.latency_svg import bar_chart, legend, roofline_chart
from pyc_mlir.tools.bench.report.latency_table import GOAL_CLASSES
from pyc_mlir.tools.bench.report.table import environment_line
from pyc_mlir.util.units import quantity

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:68rem;margin:2rem auto;padding:0 1rem;
color:#1c2430;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem}
table{border-collapse:collapse;font-size:13px;width:100%}
th,td{text-align:right;padding:.25rem .5rem;border-bottom:1px solid #e3e7ec}
th:first-child,td:first-child{text-align:left}
td{white-space:nowrap}
td.ahead{color:#0b6b3a;font-weight:600}td.behind{color:#a4262c}
svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:#1c2430}
svg .faint{fill:#66707c}svg .grid{stroke:#e3e7ec}svg .one{stroke:#1c2430;stroke-dasharray:4 3}
svg .roof{stroke:#1c2430;fill:none;stroke-width:1.5}
.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin:0 .35em 0 1em}
.wide{overflow-x:auto}p.small{color:#66707c;font-size:13px}
"""
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
    body = "".join(part for t in threads for part in _section(report, found, t))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>PyC: latency on this '
        f"CPU</title><style>{_STYLE}</style></head><body>\n<h1>Latency of a call, PyC and its peers"
        f'</h1>\n<p class="small">{escape(environment_line(report))}</p>\n{_means(found)}{body}'
        "</body></html>\n"
    )


def _means(found: Sequence[WorkloadFacts]) -> str:
    rows = [
        (title, str(t), str(m.members), m.mean, f"{m.worst:.2f} ({m.worst_workload})")
        for title, t, m in means(found, groups(found, GOAL_CLASSES))
    ]
    if not rows:
        return ""
    cells = "".join(
        f"<tr><td>{escape(title)}</td><td>{t}</td><td>{n}</td>{_ratio(value)}"
        f"<td>{escape(worst)}</td></tr>"
        for title, t, n, value, worst in rows
    )
    return (
        "<h2>PyC's time over the best peer's: geometric means</h2><table><tr><th>workloads</th>"
        f"<th>threads</th><th>number</th><th>mean</th><th>worst</th></tr>{cells}</table>\n"
    )


def _section(report: Report, found: Sequence[WorkloadFacts], threads: int) -> Iterator[str]:
    """Everything about one number of threads."""
    shown = [r for r in found if r.threads == threads]
    systems = systems_of(shown)
    words = f"{threads} thread{'s' * (threads > 1)}"
    yield f"<h2>Against the best peer, {words}</h2><p>{_RATIOS}</p><p>{legend(systems)}</p>"
    yield bar_chart(shown, systems)
    peaks = report.settings.get("peaks", {}).get(str(threads))
    if peaks is not None:
        yield f"<h2>Rooflines, {words}</h2><p>{_ROOFS}</p>"
        # A call of nothing computes nothing: it would only stretch the axes.
        computing = [r for r in shown if r.kind != "call"]
        yield roofline_chart(computing, peaks["flops"], peaks["bandwidth"])
    yield f'<h2>Numbers, {words}</h2><div class="wide">{_numbers(shown, systems)}</div>\n'


def _numbers(found: Sequence[WorkloadFacts], systems: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(s)}</th>" for s in systems)
    rows = "".join(
        f"<tr><td>{escape(r.workload)}</td>{''.join(_time(r, s) for s in systems)}"
        f"{_ratio(r.ratio(PYC))}<td>{_roof(r)}</td></tr>"
        for r in found
    )
    return (
        f"<table><tr><th>workload</th>{head}<th>pyc / best peer</th><th>of the roof</th></tr>"
        f"{rows}</table>"
    )


def _time(result: WorkloadFacts, system: str) -> str:
    row = result.systems.get(system)
    return "<td></td>" if row is None else f"<td>{quantity(row['median_seconds'], 's')}</td>"


def _ratio(value: float | None) -> str:
    if value is None:
        return "<td></td>"
    kind = "ahead" if value <= 1 else "behind"
    return f'<td class="{kind}">{value:.2f}</td>'


def _roof(result: WorkloadFacts) -> str:
    row = result.systems.get(PYC)
    return "" if row is None else f"{row['roofline_fraction']:.0%}"
