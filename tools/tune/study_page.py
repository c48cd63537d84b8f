"""`pyc-tune report`: a study as one HTML page: charts, what they rest on, every trial."""

import argparse
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import require_writable, write_file
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import Study
from pyc_mlir.measure.environment import current_hashes
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import TARGETS, Target
from pyc_mlir.profile.dispatches import few
from pyc_mlir.runtime.device import host_cpu
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.page import svg
from pyc_mlir.tools.page.document import document, facts, figure, section, wide
from pyc_mlir.tools.page.roofline import RoofPoint, draw_roofline
from pyc_mlir.tools.page.svg import (
    Scale,
    bytes_scale,
    decades,
    dot,
    grid,
    line,
    path,
    seconds_scale,
)
from pyc_mlir.tools.tune.evidence import named
from pyc_mlir.tools.tune.study_facts import Point, StudiedGraph, StudyFacts, best_so_far, facts_of
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
_WIDTH, _HEIGHT = 620, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 596, 26, 260


def run_report(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Write a study as a page."""
    require_writable(flags.output, "a file for the page")
    study = named(store, flags.id)
    if not isinstance(study, Study):
        message = f"report: expected the id of a study, got an id of table {study.table}"
        raise PycError(ReasonCode.BAD_ARGUMENT, message)
    found = facts_of(store, study)
    write_file(flags.output, page(found, _machine_model(found, flags.calibration)).encode())
    print(f"{flags.output}: study {study.id[:12]}")
    return cli.OK


def _machine_model(facts: StudyFacts, calibration: str | None) -> CostModel | None:
    """Return the machine's model; None for another machine's study without a calibration.

    Raises PycError: FILE_ACCESS, BAD_ARGUMENT for a file that is no calibration.
    """
    name = str(facts.study.budget.get("target", "cpu"))
    threads = 1 if facts.place is None else int(facts.place.context_facts.get("threads", 1))
    target, cpu = Target.named(name if name in TARGETS else "cpu"), host_cpu()
    if calibration is not None:
        figures = Calibration.load(calibration)
        return CostModel(target, figures, threads)
    if cpu is None or facts.place is None or facts.place.hardware != current_hashes()[0]:
        return None
    return CostModel(target.on(cpu), None, threads)


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


def progress(graph: StudiedGraph) -> Html:
    """Draw seconds of each trial in order, the least so far, and the incumbent's as a line."""
    measured = graph.measured
    x = Scale(0, max(p.number for p in graph.points) + 1, _LEFT, _RIGHT)
    own = [] if graph.incumbent is None else [graph.incumbent]
    y = seconds_scale([*own, *(p.seconds or 0.0 for p in measured)], _BOTTOM, _TOP)
    steps = best_so_far(measured)
    corners: list[tuple[float, float]] = []
    for number, seconds in steps:
        corners += [(x(number), corners[-1][1])] if corners else []
        corners.append((x(number), y(seconds)))
    corners.append((x.end, corners[-1][1]))
    return svg.svg(
        _WIDTH,
        _HEIGHT,
        "measured seconds of each trial, and the least so far",
        *grid(x, y, "trial", f"time of a call, {y.unit}", whole=True),
        *(line(_LEFT, y(seconds), _RIGHT, y(seconds), "bound") for seconds in own),
        *(_dot(x(p.number), y(p.seconds or 0.0), p) for p in measured),
        path(corners, "line frontier"),
    )


def frontier(graph: StudiedGraph) -> Html:
    """Draw seconds against bytes of all trials; those that nothing beats are joined."""
    known = [p for p in graph.measured if p.arena_bytes is not None]
    if not known:
        return Html()
    x = seconds_scale([p.seconds or 0.0 for p in known], _LEFT, _RIGHT)
    y = bytes_scale(max(p.arena_bytes or 0 for p in known), _BOTTOM, _TOP, room=1.1)
    best = [(x(p.seconds or 0.0), y(p.arena_bytes or 0)) for p in graph.frontier()]
    return svg.svg(
        _WIDTH,
        _HEIGHT,
        "seconds against arena bytes of each trial",
        *grid(x, y, f"time of a call, {x.unit}", f"arena, {y.unit}"),
        path(best, "line frontier"),
        *(_dot(x(p.seconds or 0.0), y(p.arena_bytes or 0), p) for p in known),
    )


def prediction(graph: StudiedGraph) -> Html:
    """Draw what was predicted against what was measured; on the line both are equal."""
    known = [p for p in graph.measured if p.predicted and p.predicted > 0]
    if not known:
        return Html()
    values = [v for p in known for v in (p.predicted, p.seconds, p.low, p.high) if v]
    x = decades(values, _LEFT, _RIGHT, 1e-3, "ms")
    y = decades(values, _BOTTOM, _TOP, 1e-3, "ms")
    parts = [*grid(x, y, "predicted, ms", "measured, ms")]
    parts.append(line(x(x.low), y(x.low), x(x.high), y(x.high), "bound"))
    for p in known:
        up = y(p.seconds or 1.0)
        if p.low and p.high:
            parts.append(line(x(p.low), up, x(p.high), up, "axis"))
        parts.append(_dot(x(p.predicted or 1.0), up, p))
    return svg.svg(_WIDTH, _HEIGHT, "predicted against measured seconds", *parts)


def roofline(graph: StudiedGraph, model: CostModel | None) -> Html:
    """Draw the trials below what the machine can do; without its model there is no roof."""
    flops, moved = graph.flops, graph.traffic_bytes
    if not flops or not moved:
        return Html()
    points = [
        RoofPoint(flops / moved, flops / (p.seconds or 1.0), _words(p)) for p in graph.measured
    ]
    return draw_roofline(points, None if model is None else roof_of(model, moved))


def above_roof(graph: StudiedGraph, model: CostModel | None) -> bool:
    """Return True if a trial was faster than the roof allows."""
    flops, moved = graph.flops, graph.traffic_bytes
    if not flops or not moved or model is None:
        return False
    peak, bandwidth = roof_of(model, moved)
    least = max(flops / peak, moved / bandwidth)
    return any(p.seconds is not None and p.seconds < least for p in graph.measured)


def roof_of(model: CostModel, moved: float) -> tuple[float, float]:
    """Return FLOP/s of the cores, and bytes/s of the smallest cache that holds `moved` bytes.

    Published figures count in full here: their usual share is no bound.
    """
    target, speed = model.target, moved / (model.moving(moved) * model.bandwidth)
    if model.calibration is not None:
        return model.core_flops * model.cores, speed * model.bandwidth
    return target.peak_flops / target.cores * model.cores, speed * target.peak_bandwidth


def _words(p: Point) -> str:
    parts = [f"trial {p.number}, {p.stage}: {quantity(p.seconds or 0.0, 's')}", p.choice]
    if p.incumbent:
        parts.append(f"incumbent {quantity(p.incumbent, 's')}")
    if p.predicted:
        parts.append(f"predicted {quantity(p.predicted, 's')}")
    if p.arena_bytes is not None:
        parts.append(quantity(p.arena_bytes, "B"))
    return "\n".join(part for part in parts if part)


def _dot(x: float, y: float, p: Point) -> Html:
    return dot(x, y, 4, "point", _words(p))
