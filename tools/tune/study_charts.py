"""The four charts of a study: progress, frontier, roofline, prediction.

The page has every number in a table as well.
"""

from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.tools.page import svg
from pyc_mlir.tools.page.roofline import RoofPoint, draw_roofline
from pyc_mlir.tools.page.svg import (
    Scale,
    bytes_scale,
    decades,
    dot,
    grid,
    line,
    path,
    seconds_scale,
)
from pyc_mlir.tools.tune.study_facts import Point, StudiedGraph, best_so_far
from pyc_mlir.util.html import Html
from pyc_mlir.util.units import quantity

_WIDTH, _HEIGHT = 620, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 596, 26, 260


def progress(graph: StudiedGraph) -> Html:
    """Draw seconds of each trial in order, the least so far, and the incumbent's as a line."""
    measured = graph.measured
    x = Scale(0, max(p.number for p in graph.points) + 1, _LEFT, _RIGHT)
    own = [] if graph.incumbent is None else [graph.incumbent]
    y = seconds_scale([*own, *(p.seconds or 0.0 for p in measured)], _BOTTOM, _TOP)
    steps = best_so_far(measured)
    corners: list[tuple[float, float]] = []
    for number, seconds in steps:
        corners += [(x(number), corners[-1][1])] if corners else []
        corners.append((x(number), y(seconds)))
    corners.append((x.end, corners[-1][1]))
    return svg.svg(
        _WIDTH,
        _HEIGHT,
        "measured seconds of each trial, and the least so far",
        *grid(x, y, "trial", f"time of a call, {y.unit}", whole=True),
        *(line(_LEFT, y(seconds), _RIGHT, y(seconds), "bound") for seconds in own),
        *(_dot(x(p.number), y(p.seconds or 0.0), p) for p in measured),
        path(corners, "line frontier"),
    )


def frontier(graph: StudiedGraph) -> Html:
    """Draw seconds against bytes of all trials; those that nothing beats are joined."""
    known = [p for p in graph.measured if p.arena_bytes is not None]
    if not known:
        return Html()
    x = seconds_scale([p.seconds or 0.0 for p in known], _LEFT, _RIGHT)
    y = bytes_scale(max(p.arena_bytes or 0 for p in known), _BOTTOM, _TOP, room=1.1)
    best = [(x(p.seconds or 0.0), y(p.arena_bytes or 0)) for p in graph.frontier()]
    return svg.svg(
        _WIDTH,
        _HEIGHT,
        "seconds against arena bytes of each trial",
        *grid(x, y, f"time of a call, {x.unit}", f"arena, {y.unit}"),
        path(best, "line frontier"),
        *(_dot(x(p.seconds or 0.0), y(p.arena_bytes or 0), p) for p in known),
    )


def prediction(graph: StudiedGraph) -> Html:
    """Draw what was predicted against what was measured; on the line both are equal."""
    known = [p for p in graph.measured if p.predicted and p.predicted > 0]
    if not known:
        return Html()
    values = [v for p in known for v in (p.predicted, p.seconds, p.low, p.high) if v]
    x = decades(values, _LEFT, _RIGHT, 1e-3, "ms")
    y = decades(values, _BOTTOM, _TOP, 1e-3, "ms")
    parts = [*grid(x, y, "predicted, ms", "measured, ms")]
    parts.append(line(x(x.low), y(x.low), x(x.high), y(x.high), "bound"))
    for p in known:
        up = y(p.seconds or 1.0)
        if p.low and p.high:
            parts.append(line(x(p.low), up, x(p.high), up, "axis"))
        parts.append(_dot(x(p.predicted or 1.0), up, p))
    return svg.svg(_WIDTH, _HEIGHT, "predicted against measured seconds", *parts)


def roofline(graph: StudiedGraph, model: CostModel | None) -> Html:
    """Draw the trials below what the machine can do; without its model there is no roof."""
    flops, moved = graph.flops, graph.traffic_bytes
    if not flops or not moved:
        return Html()
    points = [
        RoofPoint(flops / moved, flops / (p.seconds or 1.0), _words(p)) for p in graph.measured
    ]
    return draw_roofline(points, None if model is None else roof_of(model, moved))


def above_roof(graph: StudiedGraph, model: CostModel | None) -> bool:
    """Return True if a trial was faster than the roof allows."""
    flops, moved = graph.flops, graph.traffic_bytes
    if not flops or not moved or model is None:
        return False
    peak, bandwidth = roof_of(model, moved)
    least = max(flops / peak, moved / bandwidth)
    return any(p.seconds is not None and p.seconds < least for p in graph.measured)


def roof_of(model: CostModel, moved: float) -> tuple[float, float]:
    """Return FLOP/s of the cores, and bytes/s of the smallest cache that holds `moved` bytes.

    Published figures count in full here: their usual share is no bound.
    """
    target, speed = model.target, moved / (model.moving(moved) * model.bandwidth)
    if model.calibration is not None:
        return model.core_flops * model.cores, speed * model.bandwidth
    return target.peak_flops / target.cores * model.cores, speed * target.peak_bandwidth


def _words(p: Point) -> str:
    parts = [f"trial {p.number}, {p.stage}: {quantity(p.seconds or 0.0, 's')}", p.choice]
    if p.incumbent:
        parts.append(f"incumbent {quantity(p.incumbent, 's')}")
    if p.predicted:
        parts.append(f"predicted {quantity(p.predicted, 's')}")
    if p.arena_bytes is not None:
        parts.append(quantity(p.arena_bytes, "B"))
    return "\n".join(part for part in parts if part)


def _dot(x: float, y: float, p: Point) -> Html:
    return dot(x, y, 4, "point", _words(p))
