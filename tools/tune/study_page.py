"""A study as one HTML page: charts, what they rest on, every trial. Nothing is fetched.

Style and script are those of `pyc-explain`'s page; without scripts everything is still shown.
"""

from collections.abc import Sequence
from html import escape

from pyc_mlir.tools.explain.html_page import document
from pyc_mlir.tools.tune.study_charts import frontier, prediction, progress, roofline
from pyc_mlir.tools.tune.study_facts import Point, StudyFacts
from pyc_mlir.util.units import quantity

_HEAD = ("trial", "configuration", "state", "measured", "predicted", "arena", "remark")
_EMPTY = {
    "Progress": "No trial has a time yet.",
    "Seconds against bytes": "No trial knows how many bytes it needs.",
    "Roofline": "The study does not note operations and bytes of a call.",
    "Prediction against measurement": "No trial was predicted.",
}


def page(facts: StudyFacts) -> str:
    """The whole page."""
    name = f"Study {facts.study.id[:12]}"
    charts = (progress, frontier, roofline, prediction)
    figures = "".join(
        f'<figure aria-label="{title}"><h2>{title}</h2>'
        f"{(chart(facts) if facts.measured else '') or f'<p>{nothing}</p>'}</figure>"
        for (title, nothing), chart in zip(_EMPTY.items(), charts, strict=True)
    )
    body = (
        f"<main><header><h1>{name}</h1><p class='headline'>{escape(_headline(facts))}</p>"
        f"{_setting(facts)}</header>{figures}<section><h2>Trials</h2>"
        f'<div class="scroll" tabindex="0">{_table(facts.points)}</div></section></main>'
        '<div id="tip" role="status" hidden></div>'
    )
    return document(name, body)


def _headline(facts: StudyFacts) -> str:
    best, all_trials = facts.best, len(facts.points)
    failed = sum(p.state == "failed" for p in facts.points)
    if best is None or best.seconds is None:
        return f"{all_trials} trials, {failed} failed, none measured."
    return (
        f"{all_trials} trials, {failed} failed; least {quantity(best.seconds, 's')} of "
        f"{facts.clock} time in trial {best.number}. The least of many measurements is too small "
        "by some luck: a verdict needs paired sessions."
    )


def _setting(facts: StudyFacts) -> str:
    study, place = facts.study, facts.place
    rows = [
        ("strategy", f"{study.strategy}, seed {study.seed}"),
        ("objective", study.objective),
        ("graph", study.graph_id),
        ("budget", ", ".join(f"{k} {v}" for k, v in study.budget.items()) or "none"),
    ]
    if place is not None:
        rows.append(("measured on", f"{place.hardware}, {place.toolchain}, {place.context}"))
    items = "".join(f"<div><dt>{n}</dt><dd>{escape(str(t))}</dd></div>" for n, t in rows)
    return f'<dl class="facts">{items}</dl>'


def _table(points: Sequence[Point]) -> str:
    heads = "".join(f'<th scope="col">{h}</th>' for h in _HEAD)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(p)) + "</tr>" for p in points
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"


def _cells(p: Point) -> tuple[str, ...]:
    times = (quantity(t, "s") if t else "" for t in (p.seconds, p.predicted))
    arena = "" if p.arena_bytes is None else quantity(p.arena_bytes, "B")
    return (str(p.number), p.config, p.state, *times, arena, p.reason)
