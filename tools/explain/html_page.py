"""The explanation as one HTML page: pictures, tables, decisions; nothing is fetched from outside.

Style and script stand in the folder `report` beside this module and are copied into the page. All
that comes from the program is escaped. Without scripts the page still shows everything.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from pyc_mlir.artifact.memory_report import RegionReport
from pyc_mlir.dialects.printable import for_display
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.memory.layout import ArenaLayout
from pyc_mlir.profile.profile import Profile
from pyc_mlir.tools.explain.axes import svg
from pyc_mlir.tools.explain.facts import (
    ExplainedProgram,
    Story,
    alive_at_peak,
    compared,
    cost_of,
    in_table,
    role,
    size,
    task_name,
)
from pyc_mlir.tools.explain.svg import (
    arena_chart,
    frontier_chart,
    frontier_places,
    line_kind,
    live_chart,
)
from pyc_mlir.tools.explain.time_shares import HEAD, answer, uncovered
from pyc_mlir.tools.explain.words import NO_NAMES, by_layer, folded, headline, place_of
from pyc_mlir.util.units import quantity

_FOLDER = Path(__file__).parent / "report"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_AT_PEAK = 40
_PATTERNS = """\
<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>
<pattern id="again" width="7" height="7" patternUnits="userSpaceOnUse" \
patternTransform="rotate(45)"><rect width="7" height="7" class="again-fill"/>\
<rect width="2.5" height="7" class="again-mark"/></pattern>
<pattern id="in-place" width="6" height="6" patternUnits="userSpaceOnUse">\
<rect width="6" height="6" class="in-place-fill"/><circle cx="3" cy="3" r="1.1" \
class="in-place-mark"/></pattern>
</defs></svg>
"""
_HOW_TO_READ = (
    "Time goes to the right in steps; tasks of one step may overlap. Each rectangle is a buffer: "
    "as wide as it is alive, as high as it is large, at its offset in the arena. Empty space is "
    "memory that nothing uses then. Point at a rectangle to see what it is."
)
_NO_REPORT = "This program holds no memory report: compile it with a planner mode to have one."


def page(subject: ExplainedProgram) -> str:
    """Write the whole page."""
    body = "".join(
        [
            _PATTERNS,
            "<main><header>",
            f"<h1>{escape(subject.name)}</h1>",
            f'<p class="headline">{escape(headline(subject))}</p>',
            _facts(subject.facts()),
            "</header>",
            _time(subject.profile),
            _overview(subject),
            *(_region(story) for story in subject.stories()),
            _decisions(subject.decisions),
            '</main><div id="tip" role="status" hidden></div>',
        ]
    )
    return document(f"{subject.name} explained", body)


def document(title: str, body: str) -> str:
    """Write a page that holds its style and script; without scripts everything is shown too."""
    style, script = ((_FOLDER / n).read_text("utf-8") for n in ("style.css", "script.js"))
    return for_display(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body>{body}<script>{script}</script></body></html>\n"
    )


def _facts(rows: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(t)}</dd></div>" for n, t in rows)
    return f'<dl class="facts">{items}</dl>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Write a table; from the second column on, cells of class `numbers` are set to the right."""
    heads = "".join(f"<th>{escape(h)}</th>" for h in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<table class="{kind}"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>'


def _overview(subject: ExplainedProgram) -> str:
    """One tile a region, and the account of a call."""
    tiles = "".join(_tile(story) for story in subject.stories())
    unit, rows = in_table(subject.account())
    account = _table(("memory of one call", unit), rows, "numbers account")
    note = "" if subject.stories() else f'<p class="note">{_NO_REPORT}</p>'
    clauses = [(c.clause, c.state) for c in subject.artifact.contract_report.clauses]
    contract = _table(("contract", "as compiled"), clauses, "facts") if clauses else ""
    return (
        f'<section class="overview"><div class="tiles">{tiles}{note}</div>{account}{contract}'
        "</section>"
    )


def _time(profile: Profile | None) -> str:
    """Write the shares of time: the answer, uncovered ops, and every dispatch folded away."""
    if profile is None:
        return ""
    kind = "measured" if profile.measured else "predicted"
    found = uncovered(profile)
    table = _table(HEAD, [u.cells for u in found], "numbers") if found else ""
    left = f"<h3>Ops that no generated kernel covers, {kind}</h3>" if found else ""
    return (
        f'<section id="time"><h2>Where the time goes</h2><p>{escape(answer(profile))}</p>'
        f'{left}<div class="scroll">{table}</div><details><summary>Every dispatch, {kind}'
        f'</summary><div class="scroll">{profile._repr_html_()}</div></details></section>'
    )


def _tile(story: Story) -> str:
    before, after = story.region.before, story.region.after
    if after is None:
        return ""
    saved = "nothing to compare with"
    if before is not None and before.arena_bytes == after.arena_bytes:
        saved = "as much as IREE's own plan"
    elif before is not None:
        share = 1 - after.arena_bytes / max(before.arena_bytes, 1)
        way = "less" if share >= 0 else "more"
        saved = f"{abs(share):.0%} {way} than {size(before.arena_bytes)} before"
    return (
        f'<a class="tile" href="#{escape(story.region.name)}"><span>arena of region '
        f"{escape(story.region.name)}</span><b>{size(after.arena_bytes)}</b>"
        f"<span>{saved}</span></a>"
    )


def _region(story: Story) -> str:
    region = story.region
    parts = [
        f'<section id="{escape(region.name)}"><h2>Region {escape(region.name)}</h2>',
        _facts(story.rows()),
    ]
    if any(layout.steps for layout in region.layouts.values()):
        parts += [_live(story), _arenas(story)]
    if region.frontier:
        parts.append(_frontier(region))
    return "".join((*parts, "</section>"))


def _live(story: Story) -> str:
    region = story.region
    keys = [(f"line {line_kind(region, n)}", f"{role(region, n)}: {n}") for n in compared(region)]
    if region.lower_bound:
        keys.append(("bound", f"lower bound {size(region.lower_bound)}"))
    return (
        '<figure><h3>Live memory over time</h3><p class="note">Each line in the steps of its own '
        f"plan. Bytes of buffers that hold something that is still needed.</p>{_legend(keys)}"
        f'<div class="scroll">{live_chart(region)}</div></figure>'
    )


def _legend(keys: Sequence[tuple[str, str]]) -> str:
    """Write the meaning of the marks; a key that is a line is drawn as one."""
    items = []
    for kind, label in keys:
        mark = (
            f'<line x1="0" y1="7" x2="22" y2="7" class="{kind}"/>'
            if kind.startswith(("line", "bound"))
            else f'<rect x="1" y="1" width="20" height="12" class="{kind}"/>'
        )
        items.append(f"<li>{svg(22, 14, label, mark)}<span>{escape(label)}</span></li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _arenas(story: Story) -> str:
    """Draw the layouts' arenas on one scale: the one that runs, the one before, others folded."""
    region = story.region
    layouts = region.layouts.values()
    largest = max(layout.arena_bytes for layout in layouts)
    steps = max(layout.steps for layout in layouts)
    rectangles = [r for layout in layouts for r in layout.rectangles]
    keys = [("b plain", "buffer")]
    if any(r.takes_over is not None for r in rectangles):
        keys.append(("b in-place", "in place: takes over another buffer's storage"))
    if any(r.recomputed for r in rectangles):
        keys.append(("b again", "recomputed: its task runs again"))
    keys += [("free", "unused"), ("at-peak", "step with the most live bytes")]
    first = compared(region)[::-1]
    pictures = [_arena(region, name, largest, steps) for name in first]
    others = [_arena(region, n, largest, steps) for n in region.layouts if n not in first]
    if any(others):
        pictures.append(
            f"<details><summary>{len(others)} more that were turned down</summary>"
            f"{''.join(others)}</details>"
        )
    zoom = (
        '<span class="zoom" hidden>stretch time <button type="button" data-by="0.5" '
        'aria-label="narrower">&#8722;</button> <output>1</output>x '
        '<button type="button" data-by="2" aria-label="wider">+</button></span>'
    )
    return (
        f'<figure class="arenas"><div class="bar"><h3>The arena</h3>{zoom}</div>'
        f'<p class="note">{_HOW_TO_READ}</p>{_legend(keys)}{"".join(pictures)}</figure>'
    )


def _arena(region: RegionReport, name: str, largest: int, steps: int) -> str:
    layout = region.layouts[name]
    if not layout.rectangles:
        return ""
    return (
        f"<h4>{escape(role(region, name))}: {escape(name)}, {size(layout.arena_bytes)}</h4>"
        f"{arena_chart(region, layout, largest, steps)}{_at_peak(region, layout)}"
    )


def _at_peak(region: RegionReport, layout: ArenaLayout) -> str:
    """Write the buffers alive at the peak as a table."""
    step, alive = alive_at_peak(layout)
    rows = []
    for i in alive[:_AT_PEAK]:
        r = layout.rectangles[i]
        writer = "" if r.writer is None else task_name(region, r.writer)
        share = f"{r.bytes / max(layout.peak_bytes, 1):.1%}"
        rows.append((r.buffer, size(r.bytes), share, f"{r.first} to {r.last}", writer))
    head = ("buffer", "bytes", "of the peak", "steps", "written by")
    more = f"; the largest {_AT_PEAK}" if len(alive) > _AT_PEAK else ""
    return (
        f"<details><summary>Alive at the peak, step {step}: {len(alive)} of "
        f"{len(layout.rectangles)} buffers, {size(layout.peak_bytes)}{more}</summary>"
        f'<div class="scroll">{_table(head, rows, "numbers")}</div></details>'
    )


def _frontier(region: RegionReport) -> str:
    fastest = min(p.seconds for p in region.frontier)
    after = region.after
    own = None if after is None else (after.arena_bytes, after.seconds)
    rows = [
        (
            size(p.arena_bytes),
            quantity(p.seconds, "s"),
            f"{p.seconds / fastest - 1:+.1%}" if fastest else "",
            "runs" if (p.arena_bytes, p.seconds) == own else "",
        )
        for p in region.frontier
    ]
    table = _table(("arena", "predicted time", "against the fastest", ""), rows, "numbers")
    # One place alone needs no picture.
    chart = f'<div class="scroll">{frontier_chart(region)}</div>'
    chart = chart if len(frontier_places(region)) > 1 else ""
    return (
        '<figure><h3>What less memory would cost</h3><p class="note">Plans that no other one '
        "beats in both arena and predicted time (dots), and those that were compared (rings).</p>"
        f'<div class="beside">{chart}{table}</div>'
        "</figure>"
    )


def _decisions(decisions: Sequence[Decision]) -> str:
    items = "".join(
        f'<div class="layer"><h3>{escape(layer)}</h3>{"".join(map(_decision, found))}</div>'
        for layer, found in by_layer(decisions).items()
    )
    if not any(d.site.nodes for d in decisions):
        items += f'<p class="note">{escape(NO_NAMES)}</p>'
    return (
        f'<section id="decisions"><h2>Decisions</h2><p class="bar"><span class="note">'
        f"{len(decisions)} choices; open one to see what was turned down, and why.</span>"
        '<label class="filter" hidden>show only <input type="search" '
        'placeholder="pass, op, choice"/></label></p>'
        '<div class="decision head"><span>node, pass and op</span><span>chosen</span>'
        f"<span>turned down</span><span>by</span></div>{items}</section>"
    )


def _decision(decision: Decision) -> str:
    others = [a for a in decision.alternatives if a.name != decision.chosen]
    location = escape(place_of(decision))
    place = f'<p class="note">{location}</p>' if location else ""
    rows = [
        (
            "✓" if a.name == decision.chosen else "",
            a.name,
            ", ".join(f"{name} {amount}" for name, amount in cost_of(a)),
            folded(a.reason)[0],
        )
        for a in decision.alternatives
    ]
    knobs = "".join(
        f"<details><summary>knobs of {escape(a.name)}</summary>"
        f'<p class="note">{escape(folded(a.reason)[1])}</p></details>'
        for a in decision.alternatives
        if folded(a.reason)[1]
    )
    lines = [f"evidence: {e}" for e in decision.facts]
    lines += [f"measured: {name} {value:g}" for name, value in decision.measured.items()]
    evidence = "".join(f'<p class="note">{escape(text)}</p>' for text in lines)
    table = _table(("", "alternative", "predicted cost", "reason"), rows)
    names = ", ".join(a.name for a in others) or "nothing"
    return (
        '<details class="decision"><summary>'
        f"<span>{escape(', '.join(decision.site.nodes))} {escape(decision.site.pass_name)} "
        f"<i>{escape(decision.site.op_id)}</i></span>"
        f"<span><b>{escape(decision.chosen)}</b></span><span>{escape(names)}</span>"
        f"<span>{escape(decision.decided_by)}</span></summary>{place}{table}{knobs}"
        f"{evidence}</details>"
    )
