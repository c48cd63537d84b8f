"""Shapes, scales and frames of charts as SVG.

Classes name what a shape is; `style.css` gives them colours in both themes. Where a shape has a
<title>, browsers show it at the pointer.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from pyc_mlir.util.html import Html, tag
from pyc_mlir.util.units import SCALES

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` on pixels from `start` to `end`, in units of `factor`.

    log: equal ratios take equal room.
    """

    low: float
    high: float
    start: float
    end: float
    factor: float = 1.0
    unit: str = ""
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high = (log10(self.low), log10(self.high)) if self.log else (self.low, self.high)
        at = log10(value) if self.log else value
        return self.start + (at - low) / ((high - low) or 1.0) * (self.end - self.start)

    def ticks(self, most: int, whole: bool = False) -> list[float]:
        """Return at most about `most` round values within the scale, ascending."""
        if self.log:
            first, last = ceil(log10(self.low) - 1e-9), floor(log10(self.high) + 1e-9)
            return [10.0**i for i in range(first, last + 1, max(1, ceil((last - first) / most)))]
        low, high = self.low / self.factor, self.high / self.factor
        rough = max((high - low) / max(most, 1), 1e-12)
        power = 10.0 ** floor(log10(rough))
        step = next(r * power for r in _ROUND if r * power >= rough * 0.999)
        step = max(1.0, float(ceil(step))) if whole else step
        first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
        return [i * step * self.factor for i in range(first, last + 1)]

    def label(self, value: float) -> str:
        """Return a tick's value in the unit of the axis."""
        return f"{value / self.factor:.6g}"


def bytes_scale(largest: float, start: float, end: float, room: float = 1.0) -> Scale:
    """Return the scale from 0 to `largest` bytes (times `room`), in a unit that reads well."""
    factor, unit = _unit(largest, "B")
    return Scale(0.0, max(largest, 1) * room, start, end, factor, unit)


def seconds_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """Return a scale around some seconds, with a margin at both ends."""
    low, high = min(values), max(values)
    margin = (high - low) * 0.08 or high * 0.05 or 1.0
    return Scale(max(low - margin, 0.0), high + margin, start, end, *_unit(high, "s"))


def decades(values: Sequence[float], start: float, end: float, *unit: float | str) -> Scale:
    """Return the logarithmic scale from power of ten to power of ten around the values."""
    logs = [log10(v) for v in values]
    low, high = 10.0 ** floor(min(logs) - 0.05), 10.0 ** ceil(max(logs) + 0.05)
    factor, name = unit or (1.0, "")
    return Scale(low, high, start, end, float(factor), str(name), log=True)


def _unit(largest: float, kind: str) -> tuple[float, str]:
    return next((u for u in SCALES[kind] if largest >= u[0]), SCALES[kind][-1])


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "") -> Html:
    """Write text at a place; `anchor` is start, middle or end."""
    return tag("text", content, x=x, y=y, class_=kind, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Html:
    """Write a line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def path(points: Iterable[tuple[float, float]], kind: str) -> Html:
    """Write straight lines from pixel to pixel."""
    return tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), class_=kind)


def rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> Html:
    """Write a rectangle."""
    return tag("rect", *_title(title), x=x, y=y, width=width, height=height, class_=kind)


def dot(x: float, y: float, radius: float, kind: str, title: str = "") -> Html:
    """Write a circle."""
    return tag("circle", *_title(title), cx=x, cy=y, r=radius, class_=kind)


def _title(title: str) -> list[Html]:
    return [tag("title", title)] if title else []


def svg(width: float, height: float, label: str, *content: str, kind: str = "") -> Html:
    """Write a picture of its own; `label` is for screen readers."""
    box = f"0 0 {width:.0f} {height:.0f}"
    return tag(
        "svg", *content, xmlns="http://www.w3.org/2000/svg", width=width, height=height,
        viewBox=box, role="img", aria_label=label, class_=kind,
    )  # fmt: skip


def legend(keys: Iterable[tuple[str, str]]) -> Html:
    """Write the kinds of marks with what they mean; a key that is a line is drawn as one."""
    items = []
    for kind, label in keys:
        is_line = kind.startswith(("line", "bound"))
        mark = line(0, 7, 22, 7, kind) if is_line else rect(1, 1, 20, 12, kind)
        items.append(tag("li", svg(22, 14, label, mark), tag("span", label)))
    return tag("ul", *items, class_="legend")


def grid(
    x: Scale, y: Scale, across: str, up: str, ticks: tuple[int, int] = (8, 5), whole: bool = False
) -> Iterator[Html]:
    """Write the frame of a chart: axes with round numbers and titles, lines behind the plot.

    whole: only whole numbers stand below the plot.
    """
    yield line(x.start, y.start, x.end, y.start, "axis")
    yield text((x.start + x.end) / 2, y.start + 34, across, "tick", "middle")
    yield text(4, y.end - 10, up, "tick")
    for v in y.ticks(ticks[1]):
        yield line(x.start, y(v), x.end, y(v), "grid")
        yield text(x.start - 8, y(v) + 4, y.label(v), "tick", "end")
    for v in x.ticks(ticks[0], whole):
        yield text(x(v), y.start + 17, x.label(v), "tick", "middle")
