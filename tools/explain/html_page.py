"""The explanation as one HTML page: tables, decisions, pictures of memory.

Written for somebody who has never met PyC: what the program is, its memory, its time, then the
choices that led there. Nothing is fetched and nothing runs.
"""

from collections.abc import Sequence

from pyc_mlir.artifact.memory_report import RegionReport
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.memory.layout import ArenaLayout
from pyc_mlir.profile.profile import Profile
from pyc_mlir.tools.explain.charts import (
    arena_chart,
    frontier_chart,
    frontier_places,
    line_kind,
    live_chart,
)
from pyc_mlir.tools.explain.facts import (
    ExplainedProgram,
    RegionFacts,
    alive_at_peak,
    compared,
    cost_of,
    in_table,
    role,
    size,
    task_name,
)
from pyc_mlir.tools.explain.time_shares import HEAD, answer, uncovered
from pyc_mlir.tools.explain.words import NO_NAMES, by_layer, folded, headline, place_of, unplanned
from pyc_mlir.tools.page.document import document, facts, figure, section, wide
from pyc_mlir.tools.page.document import folded as folded_away
from pyc_mlir.tools.page.svg import legend
from pyc_mlir.util.html import Html, joined, table, tag
from pyc_mlir.util.units import quantity

_AT_PEAK = 40
_PATTERNS = Html("""\
<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>
<pattern id="again" width="7" height="7" patternUnits="userSpaceOnUse" \
patternTransform="rotate(45)"><rect width="7" height="7" class="again-fill"/>\
<rect width="2.5" height="7" class="again-mark"/></pattern>
<pattern id="in-place" width="6" height="6" patternUnits="userSpaceOnUse">\
<rect width="6" height="6" class="in-place-fill"/><circle cx="3" cy="3" r="1.1" \
class="in-place-mark"/></pattern>
</defs></svg>
""")
_HOW_TO_READ = (
    "Time goes to the right in steps; tasks of one step may overlap. Each rectangle is a buffer: "
    "as wide as it is alive, as high as it is large, at its offset in the arena. Empty space is "
    "memory that nothing uses then. Point at a rectangle to see what it is."
)


def page(subject: ExplainedProgram) -> str:
    """Write the whole page."""
    header = tag(
        "header",
        tag("h1", subject.name),
        tag("p", headline(subject), class_="headline"),
        facts(subject.facts()),
    )
    return document(
        f"{subject.name} explained",
        _PATTERNS,
        header,
        _time(subject.profile),
        _overview(subject),
        *(_region(found) for found in subject.regions()),
        _decisions(subject.decisions),
    )


def _overview(subject: ExplainedProgram) -> Html:
    """Write one tile a region, and the account of a call."""
    tiles = [_tile(found) for found in subject.regions()]
    unit, rows = in_table(subject.account())
    clauses = [(c.clause, c.state) for c in subject.artifact.contract_report.clauses]
    parts = [
        tag("div", *(tiles or [tag("p", unplanned(subject), class_="note")]), class_="tiles"),
        table(("memory of one call", unit), rows, class_="account"),
        *([table(("contract", "as compiled"), clauses)] if clauses else []),
    ]
    return tag("section", *parts, class_="overview")


def _time(profile: Profile | None) -> Html:
    """Write where the time goes: the answer, what no kernel covers, every dispatch folded."""
    if profile is None:
        return Html()
    kind = "measured" if profile.measured else "predicted"
    found = uncovered(profile)
    parts = [tag("p", answer(profile))]
    if found:
        parts.append(tag("h3", f"Ops that no generated kernel covers, {kind}"))
        parts.append(wide(table(HEAD, [u.cells for u in found])))
    every = folded_away(f"Every dispatch, {kind}", wide(Html(profile._repr_html_())))
    return section("Where the time goes", *parts, every, id_="time")


def _tile(found: RegionFacts) -> Html:
    before, after = found.region.before, found.region.after
    if after is None:
        return Html()
    saved = "nothing to compare with"
    if before is not None and before.arena_bytes == after.arena_bytes:
        saved = "as much as IREE's own plan"
    elif before is not None:
        share = 1 - after.arena_bytes / max(before.arena_bytes, 1)
        way = "less" if share >= 0 else "more"
        saved = f"{abs(share):.0%} {way} than {size(before.arena_bytes)} before"
    return tag(
        "a",
        tag("span", f"arena of region {found.region.name}"),
        tag("b", size(after.arena_bytes)),
        tag("span", saved),
        class_="tile",
        href=f"#{found.region.name}",
    )


def _region(found: RegionFacts) -> Html:
    region = found.region
    parts = [facts(found.rows())]
    if any(layout.steps for layout in region.layouts.values()):
        parts += [_live(region), _arenas(region)]
    if region.frontier:
        parts.append(_frontier(region))
    return section(f"Region {region.name}", *parts, id_=region.name)


def _live(region: RegionReport) -> Html:
    keys = [(f"line {line_kind(region, n)}", f"{role(region, n)}: {n}") for n in compared(region)]
    if region.lower_bound:
        keys.append(("bound", f"lower bound {size(region.lower_bound)}"))
    note = (
        "Each line in the steps of its own plan. Bytes of buffers that hold something that is "
        "still needed. Point at a step to see what runs in it."
    )
    return figure("Live memory over time", note, legend(keys), wide(live_chart(region)))


def _arenas(region: RegionReport) -> Html:
    """Draw the arenas on one scale: what runs, what was before, the others folded away."""
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
        pictures.append(folded_away(f"{len(others)} more that were turned down", *others))
    return tag("div", figure("The arena", _HOW_TO_READ, legend(keys), *pictures), class_="arenas")


def _arena(region: RegionReport, name: str, largest: int, steps: int) -> Html:
    layout = region.layouts[name]
    if not layout.rectangles:
        return Html()
    return joined(
        tag("h4", f"{role(region, name)}: {name}, {size(layout.arena_bytes)}"),
        arena_chart(region, layout, largest, steps),
        _at_peak(region, layout),
    )


def _at_peak(region: RegionReport, layout: ArenaLayout) -> Html:
    """List what is alive when most is."""
    step, alive = alive_at_peak(layout)
    rows = []
    for i in alive[:_AT_PEAK]:
        r = layout.rectangles[i]
        writer = "" if r.writer is None else task_name(region, r.writer)
        share = f"{r.bytes / max(layout.peak_bytes, 1):.1%}"
        rows.append((r.buffer, size(r.bytes), share, f"{r.first} to {r.last}", writer))
    head = ("buffer", "bytes", "of the peak", "steps", "written by")
    more = f"; the largest {_AT_PEAK}" if len(alive) > _AT_PEAK else ""
    title = (
        f"Alive at the peak, step {step}: {len(alive)} of {len(layout.rectangles)} buffers, "
        f"{size(layout.peak_bytes)}{more}"
    )
    return folded_away(title, wide(table(head, rows)))


def _frontier(region: RegionReport) -> Html:
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
    # One place alone needs no picture.
    chart = [wide(frontier_chart(region))] if len(frontier_places(region)) > 1 else []
    points = table(("arena", "predicted time", "against the fastest", ""), rows)
    return figure(
        "What less memory would cost",
        "Plans that no other one beats in both arena and predicted time (dots), and those that "
        "were compared (rings).",
        tag("div", *chart, points, class_="beside"),
    )


def _decisions(decisions: Sequence[Decision]) -> Html:
    titles = ("node, pass and op", "chosen", "turned down", "by")
    parts = [
        tag("div", tag("h3", layer), *map(_decision, found))
        for layer, found in by_layer(decisions).items()
    ]
    if not any(d.site.nodes for d in decisions):
        parts.append(tag("p", NO_NAMES, class_="note"))
    note = f"{len(decisions)} choices; open one to see what was turned down, and why."
    head = tag("div", *(tag("span", t) for t in titles), class_="decision head")
    return section("Decisions", tag("p", note, class_="note"), head, *parts, id_="decisions")


def _decision(decision: Decision) -> Html:
    site, others = decision.site, [a for a in decision.alternatives if a.name != decision.chosen]
    rows = [
        (
            "✓" if a.name == decision.chosen else "",
            a.name,
            ", ".join(f"{name} {amount}" for name, amount in cost_of(a)),
            folded(a.reason)[0],
        )
        for a in decision.alternatives
    ]
    knobs = [
        folded_away(f"knobs of {a.name}", tag("p", whole, class_="note"))
        for a in decision.alternatives
        if (whole := folded(a.reason)[1])
    ]
    lines = [place_of(decision), *(f"evidence: {e}" for e in decision.facts)]
    lines += [f"measured: {name} {value:g}" for name, value in decision.measured.items()]
    summary = tag(
        "summary",
        tag("span", f"{', '.join(site.nodes)} {site.pass_name} ", tag("i", site.op_id)),
        tag("span", tag("b", decision.chosen)),
        tag("span", ", ".join(a.name for a in others) or "nothing"),
        tag("span", decision.decided_by),
    )
    notes = [tag("p", line, class_="note") for line in lines if line]
    alternatives = wide(table(("", "alternative", "predicted cost", "reason"), rows))
    return tag("details", summary, alternatives, *knobs, *notes, class_="decision")
