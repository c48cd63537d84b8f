"""The four charts of a study as inline SVG: progress, frontier, roofline, prediction.

Shapes have the classes of `tools/explain/report/style.css`, a <title> each, and a label for screen
readers; the page has every number in a table as well.
"""

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10

from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.tools.explain.axes import Scale, bytes_scale, line, px, seconds_scale, svg, text
from pyc_mlir.tools.tune.study_facts import Point, StudiedGraph, best_so_far
from pyc_mlir.util.units import quantity

_WIDTH, _HEIGHT, _LEFT, _FOOT, _HEAD = 620, 300, 76, 40, 26
_RIGHT, _BOTTOM = _WIDTH - 24, _HEIGHT - _FOOT


def progress(graph: StudiedGraph) -> str:
    """Seconds of each trial in order, the least so far, and the incumbent's as a dashed line."""
    measured = graph.measured
    x = Scale(0, max(p.number for p in graph.points) + 1, _LEFT, _RIGHT)
    own = [] if graph.incumbent is None else [graph.incumbent]
    y = seconds_scale([*own, *(p.seconds or 0.0 for p in measured)], _BOTTOM, _HEAD)
    steps = best_so_far(measured)
    path = f"M{px(x(steps[0][0]))} {px(y(steps[0][1]))}"
    path += "".join(f"H{px(x(n))}V{px(y(s))}" for n, s in steps[1:]) + f"H{px(x(x.high))}"
    parts = [
        *_axes(x, y, "trial", f"seconds of a call, {y.unit}"),
        *(line(_LEFT, y(seconds), _RIGHT, y(seconds), "bound") for seconds in own),
        *(_dot(x(p.number), y(p.seconds or 0.0), _words(p)) for p in measured),
        f'<path d="{path}" class="line frontier" fill="none"/>',
    ]
    return svg(
        _WIDTH, _HEIGHT, "measured seconds of each trial, and the least so far", "".join(parts)
    )


def frontier(graph: StudiedGraph) -> str:
    """Seconds against bytes of all trials; those that nothing beats are joined."""
    known = [p for p in graph.measured if p.arena_bytes is not None]
    if not known:
        return ""
    best = graph.frontier()
    x = seconds_scale([p.seconds or 0.0 for p in known], _LEFT, _RIGHT)
    y = bytes_scale(max(p.arena_bytes or 0 for p in known), _BOTTOM, _HEAD, room=1.1)
    way = "L".join(f"{px(x(p.seconds or 0.0))} {px(y(p.arena_bytes or 0))}" for p in best)
    parts = [
        *_axes(x, y, f"seconds of a call, {x.unit}", f"arena, {y.unit}"),
        f'<path d="M{way}" class="line frontier" fill="none"/>',
        *(_dot(x(p.seconds or 0.0), y(p.arena_bytes or 0), _words(p)) for p in known),
    ]
    return svg(_WIDTH, _HEIGHT, "seconds against arena bytes of each trial", "".join(parts))


def prediction(graph: StudiedGraph) -> str:
    """Draw predicted against measured times; on the line both are equal."""
    known = [p for p in graph.measured if p.predicted and p.predicted > 0]
    if not known:
        return ""
    values = [v for p in known for v in (p.predicted, p.seconds, p.low, p.high) if v]
    x, y = _decades(values, _LEFT, _RIGHT), _decades(values, _BOTTOM, _HEAD)
    parts = [*_log_axes(x, y, "predicted seconds", "measured seconds")]
    parts.append(line(x(x.low), y(x.low), x(x.high), y(x.high), "bound"))
    for p in known:
        up = y(log10(p.seconds or 1.0))
        if p.low and p.high:
            parts.append(line(x(log10(p.low)), up, x(log10(p.high)), up, "axis"))
        parts.append(_dot(x(log10(p.predicted or 1.0)), up, _words(p)))
    return svg(_WIDTH, _HEIGHT, "predicted against measured seconds", "".join(parts))


def roofline(graph: StudiedGraph, model: CostModel | None) -> str:
    """Operations a second of each trial, and what the machine can do at this intensity.

    Williams, Waterman and Patterson, 2009. Without a model of the machine there is no roof.
    """
    flops, moved = graph.flops, graph.traffic_bytes
    if not flops or not moved:
        return ""
    rates = [flops / (p.seconds or 1.0) for p in graph.measured]
    at, roof = flops / moved, _roof(model)
    knee = roof[0] / roof[1] if roof else at
    x = _decades([at / 4, at * 4, knee / 4, knee * 4], _LEFT, _RIGHT)
    y = _decades([*rates, *([roof[0]] if roof else [])], _BOTTOM, _HEAD)
    parts = [*_log_axes(x, y, "operations a byte", "operations a second")]
    if roof:
        peak, bandwidth = roof
        start = max(x.low, y.low - log10(bandwidth))
        corners = ((start, log10(bandwidth) + start), (log10(knee), log10(peak)))
        way = "L".join(f"{px(x(a))} {px(y(b))}" for a, b in (*corners, (x.high, log10(peak))))
        parts.append(f'<path d="M{way}" class="line before" fill="none"/>')
    for p, rate in zip(graph.measured, rates, strict=True):
        parts.append(_dot(x(log10(at)), y(log10(rate)), _words(p)))
    return svg(_WIDTH, _HEIGHT, "operations a second against operations a byte", "".join(parts))


def _roof(model: CostModel | None) -> tuple[float, float] | None:
    """FLOP/s of all cores that a call may use, and bytes/s of main memory."""
    return None if model is None else (model.core_flops * model.cores, model.bandwidth)


def _words(p: Point) -> str:
    parts = [f"trial {p.number}, {p.stage}: {quantity(p.seconds or 0.0, 's')}", p.choice]
    if p.incumbent:
        parts.append(f"incumbent {quantity(p.incumbent, 's')}")
    if p.predicted:
        parts.append(f"predicted {quantity(p.predicted, 's')}")
    if p.arena_bytes is not None:
        parts.append(quantity(p.arena_bytes, "B"))
    return "\n".join(part for part in parts if part)


def _dot(x: float, y: float, words: str) -> str:
    return (
        f'<circle cx="{px(x)}" cy="{px(y)}" r="4" class="point"><title>{escape(words)}</title>'
        "</circle>"
    )


def _axes(x: Scale, y: Scale, below: str, beside: str) -> Iterator[str]:
    yield from _frame(below, beside)
    for v in y.ticks(5):
        yield line(_LEFT, y(v), _RIGHT, y(v), "grid")
        yield text(_LEFT - 8, y(v) + 4, y.label(v), "tick", "end")
    for v in x.ticks(8):
        yield text(x(v), _BOTTOM + 17, x.label(v), "tick", "middle")


def _log_axes(x: Scale, y: Scale, below: str, beside: str) -> Iterator[str]:
    """Axes whose values are logarithms of what the labels say."""
    yield from _frame(below, beside)
    for v in _whole(y):
        yield line(_LEFT, y(v), _RIGHT, y(v), "grid")
        yield text(_LEFT - 8, y(v) + 4, f"1e{v:g}", "tick", "end")
    for v in _whole(x):
        yield text(x(v), _BOTTOM + 17, f"1e{v:g}", "tick", "middle")


def _frame(below: str, beside: str) -> Iterator[str]:
    yield line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, "axis")
    yield text((_LEFT + _RIGHT) / 2, _BOTTOM + 34, below, "tick", "middle")
    yield text(4, _HEAD - 10, beside, "tick")


def _decades(values: Sequence[float], start: float, end: float) -> Scale:
    logs = [log10(v) for v in values]
    return Scale(floor(min(logs) - 0.05), ceil(max(logs) + 0.05), start, end)


def _whole(scale: Scale) -> list[float]:
    """At most about ten whole logarithms."""
    step = max(1, ceil((scale.high - scale.low) / 10))
    return [float(v) for v in range(int(scale.low), int(scale.high) + 1, step)]
