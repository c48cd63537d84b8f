"""A study as one HTML page: charts, what they rest on, every trial."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.profile.operations import few
from pyc_mlir.tools.page.document import document, facts, figure, section, wide
from pyc_mlir.tools.tune.study_charts import above_roof, frontier, prediction, progress, roofline
from pyc_mlir.tools.tune.study_facts import Point, StudiedGraph, StudyFacts
from pyc_mlir.util.html import Html, table, tag
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


_SHORT = 16
_ABOVE = (
    "Some trials lie above the roof, whose figures are lower than what this machine reaches. "
    "Measure them with pyc-doctor --calibrate FILE, and name FILE by --calibration."
)


def page(found: StudyFacts, model: CostModel | None = None) -> str:
    """Write the whole page. model: of the machine that was measured, for the roofs."""
    name = _title(found)
    headline = tag("p", _headline(found), class_="headline")
    header = tag("header", tag("h1", name), headline, _setting(found, model))
    return document(name, header, *(_part(graph, found.clock, model) for graph in found.graphs))


def _part(graph: StudiedGraph, clock: str, model: CostModel | None) -> Html:
    """Write one graph: its best, four charts, every trial."""
    charts = (progress, frontier, lambda graph: roofline(graph, model), prediction)
    figures = []
    for (title, nothing), chart in zip(_EMPTY.items(), charts, strict=True):
        drawn = chart(graph) if graph.measured else ""
        note = "" if drawn else nothing
        if drawn and title == "Roofline" and above_roof(graph, model):
            note = _ABOVE
        figures.append(figure(title, note, wide(drawn)))
    rows = table(_HEAD, [_cells(p) for p in graph.points])
    return section(graph.title, tag("p", _best(graph, clock)), *figures, wide(rows))


def _title(found: StudyFacts) -> str:
    """Name the study by its model; one of a Python function by its first kernels."""
    model = found.study.budget.get("model")
    titles = [graph.title for graph in found.graphs]
    return f"Tuning {PurePath(str(model)).name if model else few(titles, ', ', 2)}"


def _headline(found: StudyFacts) -> str:
    measured = any(graph.measured for graph in found.graphs)
    return (
        f"{found.trials} trials of {len(found.graphs)} kernels or programs, {found.failed} failed"
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


def _setting(found: StudyFacts, model: CostModel | None) -> Html:
    study, place = found.study, found.place
    rows = [
        ("study", study.id[:_SHORT]),
        ("strategy", f"{study.strategy}, seed {study.seed}"),
        ("objective", study.objective),
        ("graph", study.graph_id),
        ("budget", _limits(study.budget)),
    ]
    if model is not None:
        rows.append(("roofs", model.basis))
    if place is not None:
        cpu = str(place.hardware_facts.get("cpu") or "unknown CPU")
        threads = place.context_facts.get("threads", 1)
        rows.append(("measured on", f"{cpu}, {threads} thread{'s' * (threads != 1)}"))
        rows.append(
            (
                "environment",
                ", ".join(h[:_SHORT] for h in (place.hardware, place.toolchain, place.context)),
            )
        )
    return facts(rows)


def _limits(budget: Mapping[str, Any]) -> str:
    """Write the limits of a budget; its other entries are for those that resume the study."""
    limits = ("effort", "seconds", "evaluations")
    return ", ".join(f"{k} {budget[k]}" for k in limits if budget.get(k) is not None) or "none"


def _cells(p: Point) -> tuple[str, ...]:
    times = (quantity(t, "s") if t else "" for t in (p.seconds, p.incumbent, p.predicted))
    arena = "" if p.arena_bytes is None else quantity(p.arena_bytes, "B")
    return (str(p.number), p.stage, p.choice, p.state, *times, arena, p.reason)
