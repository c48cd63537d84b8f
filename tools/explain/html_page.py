"""The explanation as one HTML page: tables, decisions, pictures of memory.

Written for somebody who has never met PyC: what the program is, its memory, its time, then the
choices that led there. Nothing is fetched and nothing runs.
"""

from collections.abc import Sequence

from pyc_mlir.artifact.memory import RegionReport
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.choices.evidence import Computes
from pyc_mlir.pipelines.memory.planner.layout import ArenaLayout
from pyc_mlir.profile.dispatches import few
from pyc_mlir.profile.profile import Profile
from pyc_mlir.tools.explain.charts import (
    arena_chart,
    frontier_chart,
    frontier_places,
    line_kind,
    live_chart,
)
from pyc_mlir.tools.explain.facts import (
    PARTS,
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
from pyc_mlir.tools.explain.time_shares import HEAD, answer, longest, not_covered, rows_of
from pyc_mlir.tools.explain.words import (
    NO_NAMES,
    by_layer,
    equal,
    folded,
    headline,
    place_of,
    purpose,
    shortened,
    topic,
    unplanned,
    whose,
)
from pyc_mlir.tools.page.document import document, facts, figure, section, wide
from pyc_mlir.tools.page.document import folded as folded_away
from pyc_mlir.tools.page.svg import legend
from pyc_mlir.util.html import Html, joined, prose, table, tag
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
    regions = subject.regions()
    header = tag(
        "header",
        tag("h1", subject.name),
        tag("p", f"{headline(subject)[:1].upper()}{headline(subject)[1:]}.", class_="headline"),
        tag("p", prose(purpose(subject))),
        facts(subject.facts()),
    )
    plans = [_region(found) for found in regions] or [tag("p", unplanned(subject), class_="note")]
    return document(
        f"{subject.name} explained",
        _PATTERNS,
        header,
        _memory(subject, regions),
        _time(subject.profile),
        _contract(subject),
        _decisions(subject.decisions),
        *plans,
    )


def _memory(subject: ExplainedProgram, regions: Sequence[RegionFacts]) -> Html:
    """Write the account of a call, and a tile for each planned region."""
    unit, rows = in_table(subject.account())
    described = [(name, amount, PARTS.get(name, "")) for name, amount in rows]
    account = wide(table(("part", unit, "what it is"), described, class_="account"))
    tiles = tag("div", *map(_tile, regions), class_="tiles")
    return section("Memory of one call", tag("div", account, tiles, class_="beside"), id_="memory")


def _time(profile: Profile | None) -> Html:
    """Write where the time goes: the answer, the longest operations, all of them folded."""
    if profile is None:
        return Html()
    kind = "measured" if profile.measured else "predicted"
    parts = [
        tag("p", prose(answer(profile))),
        tag("h3", f"The operations that take most of it, {kind}"),
        wide(table(HEAD, rows_of(longest(profile)))),
    ]
    if found := [o for o in not_covered(profile) if o not in longest(profile)]:
        parts.append(tag("h3", "Other operations that no generated kernel covers"))
        parts.append(wide(table(HEAD, rows_of(found))))
    every = folded_away(f"Every operation, {kind}", wide(Html(profile._repr_html_())))
    return section("Time of one call", *parts, every, id_="time")


def _contract(subject: ExplainedProgram) -> Html:
    """Write what was promised, and what the compile says of it."""
    clauses = [(c.clause, c.state) for c in subject.artifact.contract_report.clauses]
    promised = table(("clause", "as compiled"), clauses)
    return section("Contract", promised, id_="contract") if clauses else Html()


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
        tag("span", f"arena of region {found.title}"),
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
    return section(f"Memory plan of region {found.title}", *parts, id_=region.name)


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
    titles = ("what", "chosen", "turned down", "decided by")
    found = equal(decisions)
    parts = [
        tag("div", tag("h3", layer), *(_decision(found[d.site]) for d in made))
        for layer, made in by_layer([same[0] for same in found.values()]).items()
    ]
    if not any(d.site.nodes for d in decisions):
        parts.append(tag("p", prose(NO_NAMES), class_="note"))
    note = (
        f"{len(decisions)} choices that the compiler made, by layer of the model; equal ones stand "
        "once. Open one to see what was turned down, and why."
    )
    head = tag("div", *(tag("span", t) for t in titles), class_="decision head")
    return section("Decisions", tag("p", note, class_="note"), head, *parts, id_="decisions")


def _decision(same: Sequence[Decision]) -> Html:
    """Write a decision, the first of equal ones."""
    decision, site = same[0], same[0].site
    others = [a for a in decision.alternatives if a.name != decision.chosen]
    rows = [
        (
            "✓" if a.name == decision.chosen else "",
            shortened(a.name),
            ", ".join(f"{name} {amount}" for name, amount in cost_of(a)),
            folded(a.reason)[0],
        )
        for a in decision.alternatives
    ]
    knobs = [
        folded_away(f"{a.name}, with its knobs", tag("p", whole, class_="note"))
        for a in decision.alternatives
        if (whole := folded(a.reason)[1])
    ]
    ids = ", ".join(d.site.op_id for d in same)
    lines = [f"decided in {site.pass_name} for {ids}", place_of(decision)]
    lines += [f"evidence: {e}" for e in decision.facts if not isinstance(e, Computes)]
    lines += [f"measured: {name} {value:g}" for name, value in decision.measured.items()]
    about = whose(same)
    summary = tag(
        "summary",
        tag("span", about, " " * bool(about), tag("i", topic(decision))),
        tag("span", tag("b", shortened(decision.chosen))),
        tag("span", few([shortened(a.name) for a in others], ", ", 2) or "nothing"),
        tag("span", decision.decided_by),
    )
    notes = [tag("p", line, class_="note") for line in lines if line]
    alternatives = wide(table(("", "alternative", "predicted cost", "reason"), rows))
    return tag("details", summary, alternatives, *knobs, *notes, class_="decision")
