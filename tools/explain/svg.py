"""The pictures of one region as inline SVG: memory over time, the arena, the frontier.

Classes name what a shape is; `report/style.css` gives them colours in both themes, and
`report/script.js` turns each <title> into a tooltip, zooms the arena and reads out the lines.
"""

import json
from collections.abc import Iterator
from html import escape

from pyc_mlir.artifact.memory_report import RegionReport
from pyc_mlir.pipelines.memory.layout import ArenaLayout, Rectangle
from pyc_mlir.tools.explain.axes import Scale, bytes_scale, line, px, seconds_scale, svg, text
from pyc_mlir.tools.explain.facts import alive_at_peak, compared, rectangle_facts, role, size
from pyc_mlir.util.units import quantity

# Pixels: the axis left of a plot, the plot, and the rest around it.
AXIS, PLOT, FOOT, HEAD = 76, 1060, 40, 26
_LIVE_HEIGHT, _ARENA_HEIGHT, _LEAST_ARENA = 210, 380, 60
_FRONTIER = (620, 300)
# Labels: the largest rectangles have one; pixels of a character and of the least height.
_LABELS, _CHARACTER, _LABEL_HEIGHT = 300, 6.8, 13
# Above so many steps or below such a height, a gap between rectangles would eat them.
_GAP_PIXELS = 3.0


def live_chart(region: RegionReport) -> str:
    """Live bytes over steps: what runs in blue, before it what else there was in grey."""
    series = [(name, region.layouts[name]) for name in compared(region)]
    top = max(layout.peak_bytes for _, layout in series)
    steps = max(layout.steps for _, layout in series)
    x = Scale(0, steps, AXIS, AXIS + PLOT)
    y = bytes_scale(top, HEAD + _LIVE_HEIGHT, HEAD, room=1.06)
    bound = region.lower_bound
    parts = [_grid(x, y), _step_axis(x, HEAD + _LIVE_HEIGHT)]
    parts += [_area(line_kind(region, name), layout, x, y) for name, layout in series]
    if bound:
        parts.append(line(x.start, y(bound), x.end, y(bound), "bound"))
    parts += _peaks(region, series, x, y)
    parts.append(line(0, HEAD, 0, HEAD + _LIVE_HEIGHT, "cross"))
    data = {
        f"{role(region, name)}: {name}": {
            "live": layout.live_bytes,
            "runs": _running(region, layout),
        }
        for name, layout in series
    }
    frame = {"left": AXIS, "width": PLOT, "steps": steps}
    more = f' class="live" data-series="{_attribute(data)}" data-frame="{_attribute(frame)}"'
    height = HEAD + _LIVE_HEIGHT + FOOT
    return svg(AXIS + PLOT + 24, height, "live memory over steps", "".join(parts), more)


def line_kind(region: RegionReport, name: str) -> str:
    """Return the class of a layout's line."""
    return "after" if name == region.chosen else "before"


def _attribute(data: object) -> str:
    return escape(json.dumps(data, separators=(",", ":"), ensure_ascii=False))


def _running(region: RegionReport, layout: ArenaLayout) -> list[str]:
    """Return the tasks of each step, in words."""
    names: list[list[str]] = [[] for _ in range(layout.steps if layout.runs else 0)]
    for run in layout.runs:
        again = " (recomputed)" if run.copy else ""
        names[run.wave].append(region.tasks[run.task].name + again)
    return [" + ".join(n) for n in names]


def _grid(x: Scale, y: Scale) -> str:
    lines = [line(x.start, y(v), x.end, y(v), "grid") for v in y.ticks(4)]
    labels = [text(x.start - 8, y(v) + 4, y.label(v), "tick", "end") for v in y.ticks(4)]
    return "".join((*lines, *labels, text(x.start - 8, HEAD - 12, y.unit, "tick", "end")))


def _step_axis(x: Scale, y: float) -> str:
    """Ticks below a plot. A step takes a whole place, and its number stands at its middle."""
    places = [v for v in x.ticks(14, whole=True) if v < x.high]
    half = (x(1) - x(0)) / 2
    labels = [text(max(x(v) + half, 4), y + 17, f"{v:g}", "tick step", "middle") for v in places]
    title = text((x.start + x.end) / 2, y + 34, "step", "tick", "middle")
    return "".join((line(x.start, y, x.end, y, "axis"), *labels, title))


def _area(kind: str, layout: ArenaLayout, x: Scale, y: Scale) -> str:
    corners = "".join(
        f"V{px(y(value))}H{px(x(step + 1))}" for step, value in enumerate(layout.live_bytes)
    )
    path = f"M{px(x(0))} {px(y(0))}{corners}V{px(y(0))}"
    return f'<path d="{path}Z" class="area {kind}"/><path d="{path}" class="line {kind}"/>'


def _peaks(
    region: RegionReport, series: list[tuple[str, ArenaLayout]], x: Scale, y: Scale
) -> list[str]:
    """Draw a dot and a label at each first peak; labels that would overlap go below."""
    parts: list[str] = []
    taken: list[tuple[float, float]] = []
    for name, layout in series:
        step, _ = alive_at_peak(layout)
        at, height = x(step + 0.5), y(layout.peak_bytes)
        left = at > (x.start + x.end) / 2
        meets = any(abs(at - a) < 230 and abs(height - h) < 18 for a, h in taken)
        taken.append((at, height))
        label = f"{role(region, name)}: {size(layout.peak_bytes)}"
        kind = line_kind(region, name)
        dot = f'<circle cx="{px(at)}" cy="{px(height)}" r="4.5" class="dot {kind}"/>'
        below = height + 20 if meets else height - 7
        place = at - 8 if left else at + 8
        parts += [dot, text(place, below, label, "peak", "end" if left else "start")]
    return parts


def arena_chart(region: RegionReport, layout: ArenaLayout, largest: int, steps: int) -> str:
    """Draw the arena: steps to the right, offsets upwards, one rectangle a buffer.

    `largest` bytes and `steps` fill the plot, so that two arenas of a region can be compared.
    """
    share = layout.arena_bytes / max(largest, 1)
    height = max(_LEAST_ARENA, _ARENA_HEIGHT * share)
    x = Scale(0, steps, 0, PLOT)
    y = bytes_scale(layout.arena_bytes, HEAD + height, HEAD)
    step, _ = alive_at_peak(layout)
    whole = x(layout.steps)
    parts = [
        f'<rect x="0" y="{HEAD}" width="{px(whole)}" height="{px(height)}" class="free"/>',
        *_boxes(region, layout, x, y),
        f'<rect x="{px(x(step))}" y="{HEAD - 6}" width="{px(x(1))}" height="{px(height + 6)}" '
        'class="at-peak"/>',
        *_labels(layout, x, y),
        line(0, HEAD, whole, HEAD, "limit"),
        _peak_label(x(step + 0.5), whole),
        _step_axis(x, HEAD + height),
    ]
    foot = HEAD + height + FOOT
    name = f"the arena, {len(layout.rectangles)} buffers"
    plot = svg(PLOT, foot, name, "".join(parts), f' class="arena" data-steps="{steps}"')
    return (
        f'<div class="scroller">{_arena_axis(layout, y, foot)}'
        f'<div class="scroll" tabindex="0">{plot}</div></div>'
    )


def _arena_axis(layout: ArenaLayout, y: Scale, foot: float) -> str:
    """Offsets, and the arena's size at its top."""
    most = 5 if y.start - y.end > 150 else 2
    ticks = [v for v in y.ticks(most) if y(v) - y.end > 14 or not v]
    parts = [text(AXIS - 8, y(v) + 4, y.label(v), "tick", "end") for v in ticks]
    parts += [line(AXIS - 5, y(v), AXIS, y(v), "axis") for v in ticks]
    top = f"{layout.arena_bytes / y.factor:.4g}"
    parts.append(text(AXIS - 8, y.end + 5, top, "tick strong", "end"))
    parts.append(text(AXIS - 8, y.end - 12, y.unit, "tick", "end"))
    return svg(AXIS, foot, "offset in the arena", "".join(parts), ' class="offsets"')


def _peak_label(at: float, whole: float) -> str:
    anchor = "end" if at > whole - 40 else "start" if at < 40 else "middle"
    return text(at, HEAD - 9, "peak", "tick", anchor)


def _boxes(region: RegionReport, layout: ArenaLayout, x: Scale, y: Scale) -> Iterator[str]:
    """One <rect> a buffer."""
    spans = drawn(layout)
    shared = {s for i, s in enumerate(layout.storages) if s != i}
    for i, r in enumerate(layout.rectangles):
        left, right = map(x, spans[i])
        top, bottom = y(r.offset + r.bytes), y(r.offset)
        thin = " thin" if min(right - left, bottom - top) < _GAP_PIXELS else ""
        storage = layout.storages[i]
        same = f' data-s="{storage}"' if storage in shared else ""
        title = escape("\n".join(rectangle_facts(region, layout, i)))
        yield (
            f'<rect x="{px(left)}" y="{px(top)}" width="{px(max(right - left, 0.4))}" '
            f'height="{px(max(bottom - top, 0.6))}" class="b {box_kind(r)}{thin}"{same}>'
            f"<title>{title}</title></rect>"
        )


def drawn(layout: ArenaLayout) -> list[tuple[float, float]]:
    """From where to where each buffer is drawn, in steps.

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


def _labels(layout: ArenaLayout, x: Scale, y: Scale) -> Iterator[str]:
    """Names within the largest rectangles, as far as they fit; the script cuts them anew."""
    spans = drawn(layout)
    areas = [(end - start) * layout.rectangles[i].bytes for i, (start, end) in enumerate(spans)]
    by_area = sorted(range(len(areas)), key=lambda i: (-areas[i], i))
    for i in by_area[:_LABELS]:
        r = layout.rectangles[i]
        top, bottom = y(r.offset + r.bytes), y(r.offset)
        if bottom - top < _LABEL_HEIGHT:
            continue
        start, end = map(x, spans[i])
        room = int((end - start - 8) / _CHARACTER)
        name = short(r.buffer)
        cut = name if len(name) <= room else name[: room - 1] + "…" if room > 3 else ""
        yield (
            f'<text x="{px(start)}" dx="4" y="{px((top + bottom) / 2 + 4)}" '
            f'class="name {box_kind(r)}" '
            f'data-full="{escape(name)}" data-room="{px(end - start)}">'
            f"{escape(cut)}</text>"
        )


def frontier_chart(region: RegionReport) -> str:
    """Arena against predicted time: each point a plan that no other one beats."""
    width, height = _FRONTIER
    marks = _marks(region)
    everything = frontier_places(region)
    x = seconds_scale([s for s, _ in everything], AXIS, width - 30)
    y = bytes_scale(max(a for _, a in everything), height - FOOT, HEAD, room=1.1)
    foot = height - FOOT
    parts = [_grid(x, y), line(x.start, foot, x.end, foot, "axis")]
    parts += [text(x(v), foot + 17, x.label(v), "tick", "middle") for v in x.ticks(6)]
    title = f"predicted time of a call, {x.unit}"
    parts.append(text((x.start + x.end) / 2, foot + 34, title, "tick", "middle"))
    way = "L".join(f"{px(x(p.seconds))} {px(y(p.arena_bytes))}" for p in region.frontier)
    parts.append(f'<path d="M{way}" class="line frontier"/>')
    for p in region.frontier:
        label = f"{size(p.arena_bytes)} at {quantity(p.seconds, 's')}"
        parts.append(
            f'<circle cx="{px(x(p.seconds))}" cy="{px(y(p.arena_bytes))}" r="5" class="point">'
            f"<title>{label}</title></circle>"
        )
    for (seconds, arena), names in marks.items():
        at, up = x(seconds), y(arena)
        kind = "after" if region.chosen in names else "before"
        left = at > (x.start + x.end) / 2
        parts.append(f'<circle cx="{px(at)}" cy="{px(up)}" r="8.5" class="ring {kind}"/>')
        place, anchor = (at - 13, "end") if left else (at + 13, "start")
        label = ", ".join(f"{n} (runs)" if n == region.chosen else n for n in names)
        parts.append(text(place, up - 9, label, "peak", anchor))
    return svg(width, height, "the arena against the predicted time", "".join(parts))


def frontier_places(region: RegionReport) -> list[tuple[float, int]]:
    """All that stands in the frontier's chart, as (seconds, arena), each place once."""
    points = ((p.seconds, p.arena_bytes) for p in region.frontier)
    return list(dict.fromkeys((*points, *_marks(region))))


def _marks(region: RegionReport) -> dict[tuple[float, int], list[str]]:
    """Return the layouts whose time is known, by place; several may share one."""
    found: dict[tuple[float, int], list[str]] = {}
    for name, layout in region.layouts.items():
        if layout.seconds:
            found.setdefault((layout.seconds, layout.arena_bytes), []).append(name)
    return found
