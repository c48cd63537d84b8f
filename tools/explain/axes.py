"""Numbers in pictures: round ticks, units of an axis, numbers as SVG text."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from pyc_mlir.tools.explain.facts import unit_of

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` on pixels from `start` to `end`, in units of `factor`."""

    low: float
    high: float
    start: float
    end: float
    factor: float = 1.0
    unit: str = ""

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)

    def ticks(self, most: int, whole: bool = False) -> list[float]:
        """At most about `most` round values within the scale, ascending."""
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


def bytes_scale(largest: int, start: float, end: float, room: float = 1.0) -> Scale:
    """From 0 to `largest` bytes (times `room`), in the unit in which that reads well."""
    factor, unit = unit_of(largest)
    return Scale(0.0, max(largest, 1) * room, start, end, factor, unit)


def seconds_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """Around some seconds, with a margin at both ends."""
    low, high = min(values), max(values)
    margin = (high - low) * 0.08 or high * 0.05 or 1.0
    factor, unit = next((t for t in _TIMES if high >= t[0]), _TIMES[-1])
    return Scale(max(low - margin, 0.0), high + margin, start, end, factor, unit)


def px(value: float) -> str:
    """Format a pixel with a tenth's precision, as short as possible."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """SVG text at a place."""
    place = f'x="{px(x)}" y="{px(y)}" class="{kind}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(content)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Draw an SVG line."""
    return f'<line x1="{px(x1)}" y1="{px(y1)}" x2="{px(x2)}" y2="{px(y2)}" class="{kind}"/>'


def svg(width: float, height: float, label: str, content: str, more: str = "") -> str:
    """Write an SVG element; `label` is for screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{px(width)}" height="{px(height)}" '
        f'viewBox="0 0 {px(width)} {px(height)}" role="img" aria-label="{escape(label)}"{more}>'
        f"{content}</svg>"
    )
