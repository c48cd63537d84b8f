"""A study as one HTML page: charts, what they rest on, every trial. Nothing is fetched.

Style and script are those of `pyc-explain`'s page; without scripts everything is still shown.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.tools.explain.html_page import document
from pyc_mlir.tools.tune.study_charts import frontier, prediction, progress, roofline
from pyc_mlir.tools.tune.study_facts import Point, StudiedGraph, StudyFacts
from pyc_mlir.util.units import quantity

_HEAD = (
    "trial", "stage", "choice", "state", "measured", "incumbent", "predicted", "arena", "remark",
)  # fmt: skip
_EMPTY = {
    "Progress": "No trial has a time yet.",
    "Seconds against bytes": "No trial knows how many bytes it needs.",
    "Roofline": "A program has no single intensity: see its kernels.",
    "Prediction against measurement": "No trial was predicted.",
}


def page(facts: StudyFacts, model: CostModel | None = None) -> str:
    """Write the whole page. model: of the machine that was measured, for the roofs."""
    name = f"Study {facts.study.id[:12]}"
    parts = "".join(_part(graph, facts.clock, model) for graph in facts.graphs)
    body = (
        f"<main><header><h1>{name}</h1><p class='headline'>{escape(_headline(facts))}</p>"
        f"{_setting(facts, model)}</header>{parts}</main>"
        '<div id="tip" role="status" hidden></div>'
    )
    return document(name, body)


def _part(graph: StudiedGraph, clock: str, model: CostModel | None) -> str:
    """One graph: its best, four charts, every trial."""
    charts = (progress, frontier, lambda graph: roofline(graph, model), prediction)
    figures = "".join(
        f'<figure aria-label="{title}"><h3>{title}</h3>'
        f"{(chart(graph) if graph.measured else '') or f'<p>{nothing}</p>'}</figure>"
        for (title, nothing), chart in zip(_EMPTY.items(), charts, strict=True)
    )
    return (
        f"<section><h2>{escape(graph.title)}</h2><p>{escape(_best(graph, clock))}</p>{figures}"
        f'<div class="scroll" tabindex="0">{_table(graph.points)}</div></section>'
    )


def _headline(facts: StudyFacts) -> str:
    measured = any(graph.measured for graph in facts.graphs)
    return (
        f"{facts.trials} trials of {len(facts.graphs)} kernels or programs, {facts.failed} failed"
        + (
            ". The least of many measurements is too small by some luck: a verdict needs sessions "
            "of its own."
            if measured
            else ", none measured."
        )
    )


def _best(graph: StudiedGraph, clock: str) -> str:
    best, own = graph.best, graph.incumbent
    if best is None or best.seconds is None:
        return "Nothing was measured."
    against = f", the incumbent {quantity(own, 's')}" if own else ""
    return (
        f"Least {clock} time: {quantity(best.seconds, 's')} by {best.choice} in trial "
        f"{best.number}{against}."
    )


def _setting(facts: StudyFacts, model: CostModel | None) -> str:
    study, place = facts.study, facts.place
    rows = [
        ("strategy", f"{study.strategy}, seed {study.seed}"),
        ("objective", study.objective),
        ("graph", study.graph_id),
        ("budget", _limits(study.budget)),
    ]
    if model is not None:
        rows.append(("roofs", model.basis))
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


def _limits(budget: Mapping[str, Any]) -> str:
    """Write the limits of a budget; its other entries are for those that resume the study."""
    limits = ("effort", "seconds", "evaluations")
    return ", ".join(f"{k} {budget[k]}" for k in limits if budget.get(k) is not None) or "none"


def _cells(p: Point) -> tuple[str, ...]:
    times = (quantity(t, "s") if t else "" for t in (p.seconds, p.incumbent, p.predicted))
    arena = "" if p.arena_bytes is None else quantity(p.arena_bytes, "B")
    return (str(p.number), p.stage, p.choice, p.state, *times, arena, p.reason)
