"""Two pictures of the suite `latency`: bars of ratios, and a roofline."""

from collections.abc import Iterator, Sequence

from pyc_mlir.tools.bench.report.latency_facts import PYC, WorkloadFacts
from pyc_mlir.tools.page.roofline import RoofPoint, draw_roofline
from pyc_mlir.tools.page.svg import Scale, line, rect, svg, text
from pyc_mlir.util.html import Html, tag
from pyc_mlir.util.units import quantity

_WIDTH, _LEFT, _RIGHT = 1000, 290, 60
_BAR, _GAP = 9, 12
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
# PyC stands out; the others are told apart in the usual kinds of colour blindness: see style.css.
_COLOURS = 8


def kind_of(system: str, systems: Sequence[str]) -> str:
    """Return the class of the system in all pictures."""
    return f"system{list(systems).index(system) % _COLOURS}"


def bar_chart(found: Sequence[WorkloadFacts], systems: Sequence[str]) -> Html:
    """Draw for each workload a bar per system: its time over the best peer's, logarithmic."""
    rows = [r for r in found if r.best_peer is not None]
    ratios = [v for r in rows for s in systems if (v := r.ratio(s)) is not None]
    if not ratios:
        return tag("p", "No peer ran.")
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
            parts += _bar(result, system, kind_of(system, systems), x, top + i * _BAR)
        top += height
    return svg(_WIDTH, bottom + 24, "times of the systems over the best peer's", *parts)


def _bar(result: WorkloadFacts, system: str, kind: str, x: Scale, top: float) -> Iterator[Html]:
    ratio = result.ratio(system)
    assert ratio is not None, "the system ran, and so did a peer"
    seconds = quantity(result.systems[system]["median_seconds"], "s")
    title = f"{result.workload}: {system} {seconds}, {ratio:.2f} of {result.best_peer}"
    yield rect(_LEFT, top, x(ratio) - _LEFT, _BAR - 1, kind, title)
    if system == PYC:
        yield text(x(ratio) + 4, top + 8, f"{ratio:.2f}", "tick")


def roofline_chart(found: Sequence[WorkloadFacts], peak: float, bandwidth: float) -> Html:
    """Draw PyC as dots and best peers as circles below the roof."""
    points = [p for r in found for p in _points(r)]
    return draw_roofline(points, (peak, bandwidth)) if points else tag("p", "Nothing computed.")


def _points(result: WorkloadFacts) -> Iterator[RoofPoint]:
    for system, kind in ((result.best_peer, "ring before"), (PYC, "point")):
        row = result.systems.get(system or "")
        if row is not None and row["flops"] and row["bytes"]:
            speed = row["flops"] / row["median_seconds"]
            title = f"{result.workload}: {system}, {speed / 1e9:.3g} GFLOP/s"
            yield RoofPoint(row["flops"] / row["bytes"], speed, title, kind)
