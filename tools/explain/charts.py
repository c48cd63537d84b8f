"""The pictures of one region: memory over time, the arena, the frontier.

Classes name what a shape is; `tools/page/style.css` gives them colours in both themes.
"""

from collections.abc import Iterator

from pyc_mlir.artifact.memory import RegionReport
from pyc_mlir.pipelines.memory.planner.layout import ArenaLayout, Rectangle
from pyc_mlir.tools.explain.facts import alive_at_peak, compared, rectangle_facts, role, size
from pyc_mlir.tools.page.document import wide
from pyc_mlir.tools.page.svg import (
    Scale,
    bytes_scale,
    dot,
    grid,
    line,
    path,
    rect,
    seconds_scale,
    svg,
    text,
)
from pyc_mlir.util.html import Html, tag
from pyc_mlir.util.units import quantity

# Pixels: the axis left of a plot, the plot, and the rest around it. Arenas of many steps are wider
# and scroll.
AXIS, PLOT, FOOT, HEAD = 76, 1060, 40, 26
_STEP, _WIDEST = 8, 6000
_LIVE_HEIGHT, _ARENA_HEIGHT, _LEAST_ARENA = 210, 380, 60
_FRONTIER = (620, 300)
# Labels: the largest rectangles have one; pixels of a character and of the least height.
_LABELS, _CHARACTER, _LABEL_HEIGHT = 300, 6.8, 13
# Above so many steps or below such a height, a gap between rectangles would eat them.
_GAP_PIXELS = 3.0


def live_chart(region: RegionReport) -> Html:
    """Draw live bytes over steps: what runs in blue, what else there was in grey."""
    series = [(name, region.layouts[name]) for name in compared(region)]
    top = max(layout.peak_bytes for _, layout in series)
    steps = max(layout.steps for _, layout in series)
    foot = HEAD + _LIVE_HEIGHT
    x = Scale(0, steps, AXIS, AXIS + PLOT)
    y = bytes_scale(top, foot, HEAD, room=1.06)
    bound = region.lower_bound
    parts = [*_axes(x, y), *_step_axis(x, foot)]
    for name, layout in series:
        parts += _area(line_kind(region, name), layout, x, y)
    if bound:
        parts.append(line(x.start, y(bound), x.end, y(bound), "bound"))
    parts += _peaks(region, series, x, y)
    parts += [
        rect(x(step), HEAD, x(1) - x(0), _LIVE_HEIGHT, "step-at", _said(region, series, step))
        for step in range(steps)
    ]
    return svg(AXIS + PLOT + 24, foot + FOOT, "live memory over steps", *parts, kind="live")


def line_kind(region: RegionReport, name: str) -> str:
    """Return the class of a layout's line."""
    return "after" if name == region.chosen else "before"


def _said(region: RegionReport, series: list[tuple[str, ArenaLayout]], step: int) -> str:
    """Return what a step does under each layout, in words."""
    lines = [f"step {step}"]
    for name, layout in series:
        if step >= layout.steps:
            lines.append(f"{role(region, name)}: done")
            continue
        runs = (r for r in layout.runs if r.wave == step)
        names = [region.tasks[r.task].name + " (recomputed)" * bool(r.copy) for r in runs]
        during = f" while {' + '.join(names)}" if names else ""
        lines.append(f"{role(region, name)}: {size(layout.live_bytes[step])}{during}")
    return "\n".join(lines)


def _axes(x: Scale, y: Scale) -> Iterator[Html]:
    """Draw lines of round bytes."""
    for v in y.ticks(4):
        yield line(x.start, y(v), x.end, y(v), "grid")
        yield text(x.start - 8, y(v) + 4, y.label(v), "tick", "end")
    yield text(x.start - 8, HEAD - 12, y.unit, "tick", "end")


def _step_axis(x: Scale, y: float) -> Iterator[Html]:
    """Draw ticks below a plot: a step takes a whole place, its number stands at its middle."""
    half = (x(1) - x(0)) / 2
    yield line(x.start, y, x.end, y, "axis")
    for v in x.ticks(14, whole=True):
        if v < x.high:
            yield text(max(x(v) + half, 4), y + 17, f"{v:g}", "tick step", "middle")
    yield text((x.start + x.end) / 2, y + 34, "step", "tick", "middle")


def _area(kind: str, layout: ArenaLayout, x: Scale, y: Scale) -> Iterator[Html]:
    corners = [(x(0), y(0))]
    for step, value in enumerate(layout.live_bytes):
        corners += [(x(step), y(value)), (x(step + 1), y(value))]
    corners.append((corners[-1][0], y(0)))
    yield path(corners, f"area {kind}")
    yield path(corners, f"line {kind}")


def _peaks(
    region: RegionReport, series: list[tuple[str, ArenaLayout]], x: Scale, y: Scale
) -> list[Html]:
    """Mark each first peak with a dot and a label; one that would meet another goes below."""
    parts: list[Html] = []
    taken: list[tuple[float, float]] = []
    for name, layout in series:
        step, _ = alive_at_peak(layout)
        at, height = x(step + 0.5), y(layout.peak_bytes)
        left = at > (x.start + x.end) / 2
        meets = any(abs(at - a) < 230 and abs(height - h) < 18 for a, h in taken)
        taken.append((at, height))
        label = f"{role(region, name)}: {size(layout.peak_bytes)}"
        below = height + 20 if meets else height - 7
        parts.append(dot(at, height, 4.5, f"dot {line_kind(region, name)}"))
        parts.append(text(at - 8 if left else at + 8, below, label, "peak", "end" if left else ""))
    return parts


def arena_chart(region: RegionReport, layout: ArenaLayout, largest: int, steps: int) -> Html:
    """Draw the arena: steps to the right, offsets upwards, one rectangle a buffer.

    `largest` bytes and `steps` fill the plot, so that two arenas of a region can be compared.
    """
    share = layout.arena_bytes / max(largest, 1)
    height = max(_LEAST_ARENA, _ARENA_HEIGHT * share)
    width = min(max(PLOT, _STEP * steps), _WIDEST)
    x = Scale(0, steps, 0, width)
    y = bytes_scale(layout.arena_bytes, HEAD + height, HEAD)
    step, _ = alive_at_peak(layout)
    whole, peak = x(layout.steps), x(step + 0.5)
    near = "end" if peak > whole - 40 else "start" if peak < 40 else "middle"
    parts = [
        rect(0, HEAD, whole, height, "free"),
        *_boxes(region, layout, x, y),
        rect(x(step), HEAD - 6, x(1), height + 6, "at-peak"),
        *_labels(layout, x, y),
        line(0, HEAD, whole, HEAD, "limit"),
        text(peak, HEAD - 9, "peak", "tick", near),
        *_step_axis(x, HEAD + height),
    ]
    foot = HEAD + height + FOOT
    name = f"the arena, {len(layout.rectangles)} buffers"
    plot = svg(width, foot, name, *parts, kind="arena")
    return tag("div", _arena_axis(layout, y, foot), wide(plot), class_="scroller")


def _arena_axis(layout: ArenaLayout, y: Scale, foot: float) -> Html:
    """Draw offsets, and the arena's size at its top."""
    most = 5 if y.start - y.end > 150 else 2
    ticks = [v for v in y.ticks(most) if y(v) - y.end > 14 or not v]
    parts = [text(AXIS - 8, y(v) + 4, y.label(v), "tick", "end") for v in ticks]
    parts += [line(AXIS - 5, y(v), AXIS, y(v), "axis") for v in ticks]
    top = f"{layout.arena_bytes / y.factor:.4g}"
    parts.append(text(AXIS - 8, y.end + 5, top, "tick strong", "end"))
    parts.append(text(AXIS - 8, y.end - 12, y.unit, "tick", "end"))
    return svg(AXIS, foot, "offset in the arena", *parts, kind="offsets")


def _boxes(region: RegionReport, layout: ArenaLayout, x: Scale, y: Scale) -> Iterator[Html]:
    """Draw one rectangle a buffer."""
    for i, (r, span) in enumerate(zip(layout.rectangles, drawn(layout), strict=True)):
        left, right = map(x, span)
        top, bottom = y(r.offset + r.bytes), y(r.offset)
        thin = " thin" if min(right - left, bottom - top) < _GAP_PIXELS else ""
        title = "\n".join(rectangle_facts(region, layout, i))
        width, height = max(right - left, 0.4), max(bottom - top, 0.6)
        yield rect(left, top, width, height, f"b {box_kind(r)}{thin}", title)


def drawn(layout: ArenaLayout) -> list[tuple[float, float]]:
    """Return from where to where each buffer is drawn, in steps.

    Where one takes over another one's place, both meet within the step.
    """
    given = {(r.takes_over, r.first) for r in layout.rectangles if r.takes_over is not None}
    spans = []
    for i, r in enumerate(layout.rectangles):
        start = r.first + (0.5 if r.takes_over is not None else 0.0)
        end = r.last + (0.5 if (i, r.last) in given else 1.0)
        spans.append((start, max(end, start + 0.25)))
    return spans


def box_kind(r: Rectangle) -> str:
    """Return the class of a buffer; one both recomputed and in place counts as recomputed."""
    return "again" if r.recomputed else "in-place" if r.takes_over is not None else "plain"


def short(name: str) -> str:
    """Return a name without the part that IREE gives to every dispatch or stream operation."""
    for common in ("_dispatch_", "stream.async."):
        name = name.rpartition(common)[2] or name
    return name


def _labels(layout: ArenaLayout, x: Scale, y: Scale) -> Iterator[Html]:
    """Write names within the largest rectangles, as far as they fit."""
    spans = drawn(layout)
    areas = [(end - start) * layout.rectangles[i].bytes for i, (start, end) in enumerate(spans)]
    by_area = sorted(range(len(areas)), key=lambda i: (-areas[i], i))
    for i in by_area[:_LABELS]:
        r = layout.rectangles[i]
        top, bottom = y(r.offset + r.bytes), y(r.offset)
        start, end = map(x, spans[i])
        room = int((end - start - 8) / _CHARACTER)
        name = short(r.buffer)
        cut = name if len(name) <= room else name[: room - 1] + "…" if room > 3 else ""
        if cut and bottom - top >= _LABEL_HEIGHT:
            yield text(start + 4, (top + bottom) / 2 + 4, cut, f"name {box_kind(r)}")


def frontier_chart(region: RegionReport) -> Html:
    """Draw arena against predicted time: each point a plan that no other one beats."""
    width, height = _FRONTIER
    everything = frontier_places(region)
    x = seconds_scale([s for s, _ in everything], AXIS, width - 30)
    y = bytes_scale(max(a for _, a in everything), height - FOOT, HEAD, room=1.1)
    parts = [*grid(x, y, f"predicted time of a call, {x.unit}", f"arena, {y.unit}", (6, 4))]
    parts.append(path([(x(p.seconds), y(p.arena_bytes)) for p in region.frontier], "line frontier"))
    for p in region.frontier:
        label = f"{size(p.arena_bytes)} at {quantity(p.seconds, 's')}"
        parts.append(dot(x(p.seconds), y(p.arena_bytes), 5, "point", label))
    for (seconds, arena), names in _marks(region).items():
        at, up = x(seconds), y(arena)
        kind = "after" if region.chosen in names else "before"
        left = at > (x.start + x.end) / 2
        label = ", ".join(f"{n} (runs)" if n == region.chosen else n for n in names)
        parts.append(dot(at, up, 8.5, f"ring {kind}"))
        parts.append(text(at - 13 if left else at + 13, up - 9, label, "peak", "end" * left))
    return svg(width, height, "the arena against the predicted time", *parts)


def frontier_places(region: RegionReport) -> list[tuple[float, int]]:
    """Return all that stands in the frontier's chart, as (seconds, arena), each place once."""
    points = ((p.seconds, p.arena_bytes) for p in region.frontier)
    return list(dict.fromkeys((*points, *_marks(region))))


def _marks(region: RegionReport) -> dict[tuple[float, int], list[str]]:
    """Return the layouts whose time is known, by place; several may share one."""
    found: dict[tuple[float, int], list[str]] = {}
    for name, layout in region.layouts.items():
        if layout.seconds:
            found.setdefault((layout.seconds, layout.arena_bytes), []).append(name)
    return found
