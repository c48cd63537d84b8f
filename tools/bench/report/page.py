"""Pages of reports that compare systems: bars of ratios, a roofline, the page of `latency`."""

from collections.abc import Iterator, Sequence

from pyc_mlir.measure.records import Report
from pyc_mlir.tools.bench.report.show import groups, means
from pyc_mlir.tools.bench.report.tables import (
    PYC,
    WorkloadFacts,
    environment_line,
    results,
    systems_of,
)
from pyc_mlir.tools.page.document import document, section, wide
from pyc_mlir.tools.page.roofline import RoofPoint, draw_roofline
from pyc_mlir.tools.page.svg import Scale, legend, line, rect, svg, text
from pyc_mlir.util.html import Html, table, tag
from pyc_mlir.util.units import quantity

_WIDTH, _LEFT, _RIGHT = 1000, 290, 60
_BAR, _GAP = 9, 12
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
# PyC stands out; the others are told apart in the usual kinds of colour blindness: see style.css.
_COLOURS = 8
_RATIOS = (
    "Each bar is a system's time over that of the best peer (the dashed line at 1, on a "
    "logarithmic scale): shorter is quicker. Point at a bar for its numbers."
)
_ROOFS = (
    "What the machine allows (the line: copy bandwidth, then FMA peak, both measured in the same "
    "run) and what PyC (dots) and the best peer (circles) reach. Left are programs that wait for "
    "memory. Above the line lies what stays in caches, or reads more than it writes."
)


def bars(found: Sequence[WorkloadFacts], systems: Sequence[str]) -> tuple[Html, Html]:
    """Return the legend, and for each workload a bar per system: its time over the best peer's."""
    kinds = {system: f"system{i % _COLOURS}" for i, system in enumerate(systems)}
    keys = legend((kind, system) for system, kind in kinds.items())
    rows = [r for r in found if r.best_peer is not None]
    ratios = [v for r in rows for s in systems if (v := r.ratio(s)) is not None]
    if not ratios:
        return keys, wide(tag("p", "No peer ran."))
    low, high = min(0.5, *ratios) / 1.1, max(2.0, *ratios) * 1.1
    heights = [_BAR * len(r.systems) + _GAP for r in rows]
    bottom, top = sum(heights) + _GAP, float(_GAP)
    x = Scale(low, high, _LEFT, _WIDTH - _RIGHT, log=True)
    parts: list[Html] = []
    for tick in (t for t in _TICKS if low <= t <= high):
        parts.append(line(x(tick), 0, x(tick), bottom, "bound" if tick == 1 else "grid"))
        parts.append(text(x(tick), bottom + 16, f"{tick:g}", "tick", "middle"))
    for result, height in zip(rows, heights, strict=True):
        middle = top + (height - _GAP) / 2 + 4
        parts.append(text(_LEFT - 8, middle, result.workload, "label", "end"))
        for i, system in enumerate(s for s in systems if s in result.systems):
            parts += _bar(result, system, kinds[system], x, top + i * _BAR)
        top += height
    return keys, wide(svg(_WIDTH, bottom + 24, "times of the systems over the best peer's", *parts))


def _bar(result: WorkloadFacts, system: str, kind: str, x: Scale, top: float) -> Iterator[Html]:
    ratio = result.ratio(system)
    assert ratio is not None, "the system ran, and so did a peer"
    seconds = quantity(result.systems[system]["median_seconds"], "s")
    title = f"{result.workload}: {system} {seconds}, {ratio:.2f} of {result.best_peer}"
    yield rect(_LEFT, top, x(ratio) - _LEFT, _BAR - 1, kind, title)
    if system == PYC:
        yield text(x(ratio) + 4, top + 8, f"{ratio:.2f}", "tick")


def _roofline(found: Sequence[WorkloadFacts], peak: float, bandwidth: float) -> Html:
    """Draw PyC as dots and best peers as circles below the roof."""
    points = []
    for result in found:
        for system, kind in ((result.best_peer, "ring before"), (PYC, "point")):
            row = result.systems.get(system or "")
            # A call of nothing computes nothing: it would only stretch the axes.
            if row is not None and row["flops"] and row["bytes"] and result.kind != "call":
                speed = row["flops"] / row["median_seconds"]
                title = f"{result.workload}: {system}, {speed / 1e9:.3g} GFLOP/s"
                points.append(RoofPoint(row["flops"] / row["bytes"], speed, title, kind))
    return draw_roofline(points, (peak, bandwidth)) if points else tag("p", "Nothing computed.")


def page(report: Report) -> str:
    """Write the page of a report of the suite `latency`. Ends in a newline."""
    found = results(report.records)
    rows = [
        (title, str(t), str(m.members), _ratio(m.mean), f"{m.worst:.2f} ({m.worst_workload})")
        for title, t, m in means(found, groups(found))
    ]
    averages = section(
        "PyC's time over the best peer's: geometric means",
        wide(table(("workloads", "threads", "number", "mean", "worst"), rows)),
    )
    return document(
        "PyC: latency on this CPU",
        tag("h1", "Latency of a call, PyC and its peers"),
        tag("p", environment_line(report), class_="note"),
        averages if rows else Html(),
        *(
            part
            for threads in dict.fromkeys(r.threads for r in found)
            for part in _sections(report, [r for r in found if r.threads == threads], threads)
        ),
    )


def _sections(report: Report, shown: Sequence[WorkloadFacts], threads: int) -> Iterator[Html]:
    """Write everything about one number of threads."""
    systems, words = systems_of(shown), f"{threads} thread{'s' * (threads > 1)}"
    yield section(f"Against the best peer, {words}", tag("p", _RATIOS), *bars(shown, systems))
    peaks = report.settings.get("peaks", {}).get(str(threads))
    if peaks is not None:
        roofs = _roofline(shown, peaks["flops"], peaks["bandwidth"])
        yield section(f"Rooflines, {words}", tag("p", _ROOFS), wide(roofs))

    def numbers(result: WorkloadFacts) -> Iterator[str]:
        yield result.workload
        for system in systems:
            row = result.systems.get(system)
            yield "" if row is None else quantity(row["median_seconds"], "s")
        mine = result.systems.get(PYC)
        yield _ratio(result.ratio())
        yield "" if mine is None else f"{mine['roofline_fraction']:.0%}"

    head = ("workload", *systems, "pyc / best peer", "of the roof")
    yield section(f"Numbers, {words}", wide(table(head, [[*numbers(r)] for r in shown])))


def _ratio(value: float | None) -> str:
    kind = "ahead" if value is not None and value <= 1 else "behind"
    return "" if value is None else tag("td", f"{value:.2f}", class_=kind)
