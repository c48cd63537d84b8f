"""Two pictures of the suite `latency` as SVG: bars of ratios, and a roofline."""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from pyc_mlir.tools.bench.report.latency_facts import PYC, WorkloadFacts
from pyc_mlir.util.units import quantity

# PyC stands out; the others are told apart in the usual kinds of colour blindness (Okabe and Ito).
_COLOURS = ("#0072b2", "#999999", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#f0e442")
_WIDTH, _LEFT, _RIGHT = 1000, 290, 60
_BAR, _GAP = 9, 12
_ROOF_HEIGHT, _MARGIN = 460, 60
Place = Callable[[float], float]
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def colour(system: str, systems: Sequence[str]) -> str:
    """Return the system's colour in all pictures."""
    return _COLOURS[list(systems).index(system) % len(_COLOURS)]


def legend(systems: Sequence[str]) -> str:
    """Write the systems and their colours as HTML."""
    return "".join(
        f'<span class="key" style="background:{colour(s, systems)}"></span>{escape(s)}'
        for s in systems
    )


def bar_chart(found: Sequence[WorkloadFacts], systems: Sequence[str]) -> str:
    """For each workload a bar per system: its time over the best peer's, logarithmic."""
    rows = [r for r in found if r.best_peer is not None]
    ratios = [v for r in rows for s in systems if (v := r.ratio(s)) is not None]
    if not ratios:
        return "<p>No peer ran.</p>"
    low, high = min(0.5, *ratios) / 1.1, max(2.0, *ratios) * 1.1
    heights = [_BAR * len(r.systems) + _GAP for r in rows]
    bottom = sum(heights) + _GAP

    def place(value: float) -> float:
        span = math.log(high / low)
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(value / low) / span

    parts = list(_scale(place, low, high, bottom))
    top = float(_GAP)
    for result, height in zip(rows, heights, strict=True):
        middle = top + (height - _GAP) / 2 + 4
        parts.append(f'<text x="{_LEFT - 8}" y="{middle:.0f}" text-anchor="end">'
                     f"{escape(result.workload)}</text>")  # fmt: skip
        for i, system in enumerate(s for s in systems if s in result.systems):
            parts.append(_bar(result, system, colour(system, systems), place, top + i * _BAR))
        top += height
    return _svg(bottom + 24, "times of the systems over the best peer's", parts)


def _scale(place: Place, low: float, high: float, bottom: float) -> Iterator[str]:
    for tick in _TICKS:
        if low <= tick <= high:
            kind, x = ("one" if tick == 1 else "grid"), place(tick)
            yield f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom:.0f}"/>'
            yield (f'<text class="faint" x="{x:.1f}" y="{bottom + 16:.0f}" text-anchor="middle">'
                   f"{tick:g}</text>")  # fmt: skip


def _bar(result: WorkloadFacts, system: str, fill: str, place: Place, top: float) -> str:
    ratio = result.ratio(system)
    assert ratio is not None, "the system ran, and so did a peer"
    seconds = quantity(result.systems[system]["median_seconds"], "s")
    title = f"{result.workload}: {system} {seconds}, {ratio:.2f} of {result.best_peer}"
    number = (
        f'<text x="{place(ratio) + 4:.1f}" y="{top + 8:.1f}" style="font-size:10px">{ratio:.2f}'
        "</text>"
        if system == PYC
        else ""
    )
    return (
        f'<rect x="{_LEFT}" y="{top:.1f}" width="{place(ratio) - _LEFT:.1f}" '
        f'height="{_BAR - 1}" fill="{fill}"><title>{escape(title)}</title></rect>{number}'
    )


def roofline_chart(found: Sequence[WorkloadFacts], peak: float, bandwidth: float) -> str:
    """FLOP/s over FLOP/byte, both logarithmic: PyC as dots, best peers as circles, the roof."""
    points = [p for r in found for p in _points(r)]
    if not points:
        return "<p>Nothing that computes ran.</p>"
    ridge = peak / bandwidth
    x_low, x_high = _decades([ridge / 4, ridge * 4, *(p[0] for p in points)])
    y_low, y_high = _decades([peak, *(p[1] for p in points)])
    x = _Axis(x_low, x_high, _MARGIN, _WIDTH - 20)
    y = _Axis(y_low, y_high, _ROOF_HEIGHT - _MARGIN, 20)
    parts = list(_grid(x, y, (x_low, x_high), (y_low, y_high)))
    left = max(x_low, y_low / bandwidth)
    roof = [(left, left * bandwidth), (ridge, peak), (x_high, peak)]
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in roof)
    parts.append(f'<polyline class="roof" points="{path}"/>')
    for intensity, speed, system, title in points:
        mine = system == PYC
        style = f'fill="{_COLOURS[0]}"' if mine else f'fill="none" stroke="{_COLOURS[6]}"'
        parts.append(f'<circle cx="{x(intensity):.1f}" cy="{y(speed):.1f}" r="{4.5 if mine else 6}"'
                     f" {style}><title>{escape(title)}</title></circle>")  # fmt: skip
    return _svg(_ROOF_HEIGHT, "speed over arithmetic intensity, with the roofline", parts)


def _points(result: WorkloadFacts) -> Iterator[tuple[float, float, str, str]]:
    """(FLOP/byte, FLOP/s, system, what it is) of PyC and of the best peer."""
    for system in (result.best_peer, PYC):
        row = result.systems.get(system or "")
        if system is not None and row is not None and row["flops"] and row["bytes"]:
            speed = row["flops"] / row["median_seconds"]
            title = f"{result.workload}: {system}, {speed / 1e9:.3g} GFLOP/s"
            yield row["flops"] / row["bytes"], speed, system, title


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Powers of ten around the values."""
    logs = [math.log10(v) for v in values]
    return 10.0 ** math.floor(min(logs)), 10.0 ** math.ceil(max(logs))


class _Axis:
    """A logarithmic axis: value -> pixel."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.span, self.start, self.end = low, math.log(high / low), start, end

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * math.log(value / self.low) / self.span


def _grid(
    x: Place, y: Place, across: tuple[float, float], up: tuple[float, float]
) -> Iterator[str]:
    bottom, right = y(up[0]), x(across[1])
    for power in _powers(*across):
        at = x(10.0**power)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="20" y2="{bottom:.0f}"/>'
        yield (f'<text class="faint" x="{at:.1f}" y="{bottom + 18:.0f}" text-anchor="middle">'
               f"{10.0**power:g}</text>")  # fmt: skip
    for power in _powers(*up):
        at = y(10.0**power)
        yield f'<line class="grid" x1="{_MARGIN}" x2="{right:.0f}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield (f'<text class="faint" x="{_MARGIN - 6}" y="{at + 4:.1f}" text-anchor="end">'
               f"{10.0 ** (power - 9):g}</text>")  # fmt: skip
    yield (f'<text x="{right:.0f}" y="{bottom + 38:.0f}" text-anchor="end">FLOP per byte</text>'
           f'<text x="66" y="14">GFLOP/s</text>')  # fmt: skip


def _powers(low: float, high: float) -> range:
    return range(round(math.log10(low)), round(math.log10(high)) + 1)


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>\n"
    )
