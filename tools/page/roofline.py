"""The roofline model as a chart (Williams, Waterman and Patterson, 2009).

In: points with their operations, bytes and seconds, and what the machine can do. Out: SVG with
operations a second over operations a byte, both logarithmic. Left of the ridge bytes limit a
program, right of it arithmetic does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyc_mlir.tools.page.svg import decades, dot, grid, path, svg
from pyc_mlir.util.html import Html

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 820, 380, 76, 800, 30, 330


@dataclass(frozen=True)
class RoofPoint:
    """One measurement: operations a byte, operations a second, its mark, and it in words."""

    intensity: float
    flops: float
    title: str
    kind: str = "point"


def draw_roofline(points: Sequence[RoofPoint], roof: tuple[float, float] | None) -> Html:
    """Draw points below the roof; `roof` is FLOP/s and bytes/s, None where they are not known."""
    peak, bandwidth = roof or (0.0, 0.0)
    ridge = [peak / bandwidth] if roof else []
    around = [v for p in (*ridge, *(p.intensity for p in points)) for v in (p / 4, p * 4)]
    x = decades(around, _LEFT, _RIGHT)
    y = decades([*([peak] if roof else []), *(p.flops for p in points)], _BOTTOM, _TOP, 1e9, "G")
    parts = [*grid(x, y, "FLOP per byte", "GFLOP/s")]
    if roof:
        left = max(x.low, y.low / bandwidth)
        corners = ((left, left * bandwidth), (ridge[0], peak), (x.high, peak))
        parts.append(path([(x(a), y(b)) for a, b in corners], "line before"))
    parts += [dot(x(p.intensity), y(p.flops), 4.5, p.kind, p.title) for p in points]
    return svg(_WIDTH, _HEIGHT, "operations a second over operations a byte", *parts)
