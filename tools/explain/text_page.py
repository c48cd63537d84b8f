"""The explanation for a terminal: head, memory with charts, decisions, as one string."""

import textwrap
from collections.abc import Sequence

from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.choices.evidence import Computes
from pyc_mlir.pipelines.choices.log import Listed
from pyc_mlir.pipelines.memory.planner.layout import ArenaLayout
from pyc_mlir.profile.dispatches import Operation
from pyc_mlir.tools.explain.facts import (
    ExplainedProgram,
    RegionFacts,
    compared,
    cost_of,
    in_table,
    role,
    size,
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
    unplanned,
    whose,
)
from pyc_mlir.util.units import quantity

# Levels of a cell, from empty to full: for terminals with Unicode, and for those without.
BLOCKS, ASCII = " ▁▂▃▄▅▆▇█", " #"
_WIDTH, _HEIGHT = 64, 6
_FIRST = 12
_INDENT = "  "


def overview(subject: ExplainedProgram, levels: str = BLOCKS) -> str:
    """Write everything, the decisions cut off after some."""
    found = equal(subject.decisions)
    shown, left = list(found.values())[:_FIRST], len(found) - _FIRST
    more = f"  ... and {left} more; --decisions shows all, with knobs\n" if left > 0 else ""
    if not any(d.site.nodes for d in subject.decisions):
        more += f"{_filled(NO_NAMES)}\n"
    parts = [
        f"{subject.name}: {headline(subject)}\n{_filled(purpose(subject))}\n"
        f"{_rows(subject.facts())}",
        _account(subject),
        _time(subject),
        _contract_report(subject),
        f"decisions by layer, `>` marks the choice\n{_by_layer(shown)}{more}",
        *(_region(found, levels) for found in subject.regions()),
        f"{unplanned(subject)}\n" if not subject.regions() else "",
    ]
    return _plain("\n".join(p for p in parts if p), levels)


def decisions(subject: ExplainedProgram, levels: str = BLOCKS) -> str:
    """Write all decisions and nothing else."""
    return listing(subject.decisions, levels)


def listing(shown: Sequence[Listed], levels: str = BLOCKS) -> str:
    """Write decisions, one after the other."""
    return _plain("".join(map(decision_text, shown)), levels)


def _by_layer(shown: Sequence[Sequence[Decision]]) -> str:
    """Write decisions under the layers that they are about, without knobs, equal ones once."""
    about = {same[0].site: whose(same) for same in shown}
    return "".join(
        f"  {layer}\n"
        + textwrap.indent("".join(decision_text(d, about[d.site]) for d in found), "  ")
        for layer, found in by_layer([same[0] for same in shown]).items()
    )


def _plain(text: str, levels: str) -> str:
    if levels != ASCII:
        return text
    return text.replace("→", "->").encode("ascii", "backslashreplace").decode()


def _rows(rows: Sequence[tuple[str, str]]) -> str:
    width = max((len(name) for name, _ in rows), default=0) + 2
    return "".join(f"  {name:<{width}}{text}\n" for name, text in rows)


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent=_INDENT, subsequent_indent=_INDENT)


def _time(subject: ExplainedProgram) -> str:
    """Write where the time goes, and the operations that no generated kernel covers."""
    profile = subject.profile
    if profile is None:
        return ""
    left = [o for o in not_covered(profile) if o not in longest(profile)]
    more = _table(left, "operations that no generated kernel covers, beside these") if left else ""
    places = _table(longest(profile), "the operations that take most of it")
    kind = "measured" if profile.measured else "predicted"
    return f"time of a call, {kind}\n{_filled(answer(profile))}\n{places}{more}"


def _table(operations: Sequence[Operation], title: str) -> str:
    cells = [HEAD, *rows_of(operations[:_FIRST])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
    left = len(operations) - _FIRST
    more = f"  ... and {left} more\n" if left > 0 else ""
    return f"\n  {title}\n" + "".join(f"  {line}\n" for line in lines) + more


def _account(subject: ExplainedProgram) -> str:
    unit, rows = in_table(subject.account())
    width = max(len(text) for _, text in rows)
    return f"memory of one call, {unit}\n{_rows([(n, f'{t:>{width}}') for n, t in rows])}"


def _contract_report(subject: ExplainedProgram) -> str:
    report = subject.artifact.contract_report
    return f"contract, as compiled\n{textwrap.indent(str(report), '  ')}" if report.clauses else ""


def _region(facts: RegionFacts, levels: str) -> str:
    region = facts.region
    views = [(name, region.layouts[name]) for name in compared(region)]
    top = max((layout.peak_bytes for _, layout in views), default=0)
    steps = max((layout.steps for _, layout in views), default=0)
    charts = "".join(
        f"\n  live memory over steps, {role(region, name)}: {name}\n"
        + chart(layout, top, steps, levels)
        for name, layout in views
        if layout.rectangles
    )
    return f"memory plan of region {facts.title}\n{_rows(facts.rows())}{charts}{_frontier(facts)}"


def chart(
    layout: ArenaLayout, top: int, steps: int, levels: str = BLOCKS, width: int = _WIDTH
) -> str:
    """Draw live bytes over steps as columns of blocks; a column shows the most of its steps.

    `top` bytes fill the height and `steps` the width, so that two charts can be compared.
    """
    # A step takes several columns, or a column several steps.
    columns = steps * max(1, width // steps) if steps <= width else width
    live = (*layout.live_bytes, *[0] * (steps - layout.steps))
    most = [
        max(live[c * steps // columns : max(c * steps // columns + 1, (c + 1) * steps // columns)])
        for c in range(columns)
    ]
    fine = len(levels) - 1
    heights = [-(-value * _HEIGHT * fine // max(top, 1)) for value in most]
    labels = {_HEIGHT - 1: size(top), 0: "0"}
    lines = []
    for row in reversed(range(_HEIGHT)):
        cells = "".join(levels[min(fine, max(0, h - row * fine))] for h in heights)
        lines.append(f"  {labels.get(row, ''):>12} |{cells.rstrip()}\n")
    peak = layout.live_bytes.index(layout.peak_bytes)
    lines.append(f"  {'':>12} +{'-' * columns}\n")
    lines.append(
        f"  {'':>12}  steps 0 to {steps - 1}; peak {size(layout.peak_bytes)} in step {peak}\n"
    )
    return "".join(lines)


def _frontier(facts: RegionFacts) -> str:
    points = facts.region.frontier
    if not points:
        return ""
    after = facts.region.after
    own = None if after is None else (after.arena_bytes, after.seconds)
    lines = [
        f"  {'>' if (p.arena_bytes, p.seconds) == own else ' '} "
        f"{size(p.arena_bytes):>12}  {quantity(p.seconds, 's')}\n"
        for p in points
    ]
    return "\n  frontier: arena, predicted time of a call\n" + "".join(lines)


def decision_text(decision: Listed, about: str | None = None) -> str:
    """Write a decision: site, alternatives with costs and reasons, evidence.

    about: names what it is about, in short, without knobs and places.
    """
    site, short = decision.site, about is not None
    place = "" if short else place_of(decision)
    place = f"  at {place}" if place else ""
    named = about if about is not None and site.nodes else ", ".join(site.nodes)
    head = f"  {named}{'  ' * bool(named)}{site.key}{place}  (by {decision.decided_by})\n"
    names_of = {a.name: shortened(a.name) if short else a.name for a in decision.alternatives}
    width = max(map(len, names_of.values()), default=0)
    lines = []
    for a in decision.alternatives:
        mark = ">" if a.name == decision.chosen else " "
        costs = ", ".join(f"{name} {text}" for name, text in cost_of(a))
        reason = folded(a.reason)[0] if short else a.reason
        note = "; ".join(t for t in (costs, reason) if t)
        lines.append(f"    {mark} {names_of[a.name]:<{width}}  {note}".rstrip() + "\n")
    told = [e for e in decision.facts if not (short and isinstance(e, Computes))]
    lines += [f"      evidence: {e}\n" for e in told]
    lines += [f"      measured: {name} {value:g}\n" for name, value in decision.measured.items()]
    return head + "".join(lines)
