"""`pyc-tune report`: a study as one HTML page: charts, what they rest on, every trial.

    trials, traces, predictions -> points of each graph -> charts and table

A tuner's trial is a session of several candidates beside the incumbent: a point each. Seconds are
medians of one call: CPU time of the thread where all traces have it, else wall time.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import median
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import require_writable, write_file
from pyc_mlir.lab.evidence.database.store import EvidenceStore, StoredTrial
from pyc_mlir.lab.evidence.rows import WORK, Graph, Implementation, Prediction, Status, Study, Trace
from pyc_mlir.measure.environment import Environments, current_hashes
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.cost_model import CostModel, totals
from pyc_mlir.pipelines.target.target import TARGETS, Target
from pyc_mlir.pipelines.target.work import parse_work
from pyc_mlir.profile.dispatches import MOST_TITLED, few
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


@dataclass(frozen=True)
class Point:
    """One candidate of one trial: the trial's number, the choice, what was predicted and measured.

    incumbent: seconds of what it is compared with, in the same session. low, high: of the
    prediction's 90 % interval. reason: why there is no time. Unknown numbers are None.
    """

    number: int
    stage: str
    choice: str
    state: str
    seconds: float | None = None
    incumbent: float | None = None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    arena_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class StudiedGraph:
    """A graph of a study with its points in order.

    flops, traffic_bytes: that a call does at least; None of a program, whose groups tell.
    """

    graph_id: str
    title: str
    points: tuple[Point, ...]
    flops: int | None = None
    traffic_bytes: int | None = None

    @property
    def measured(self) -> list[Point]:
        """The points that have a time."""
        return [p for p in self.points if p.seconds]

    @property
    def best(self) -> Point | None:
        """The quickest; its time is the smallest of many, hence too small by some luck."""
        return min(self.measured, key=lambda p: (p.seconds, p.number), default=None)

    @property
    def incumbent(self) -> float | None:
        """The median of the incumbent's seconds over all trials."""
        known = [p.incumbent for p in self.points if p.incumbent]
        return median(known) if known else None

    def frontier(self) -> list[Point]:
        """Return the points that no other one beats in seconds and bytes, quickest first."""
        known = [p for p in self.measured if p.arena_bytes is not None]
        found: list[Point] = []
        for point in sorted(known, key=lambda p: (p.seconds, p.arena_bytes)):
            if not found or (point.arena_bytes or 0) < (found[-1].arena_bytes or 0):
                found.append(point)
        return found


@dataclass(frozen=True)
class StudyFacts:
    """A study, where it ran, and its graphs, those with the most trials first."""

    study: Study
    place: Environments | None
    graphs: tuple[StudiedGraph, ...]
    clock: str
    trials: int
    failed: int


def facts_of(store: EvidenceStore, study: Study) -> StudyFacts:
    """Read a study. Raises PycError (BAD_ARGUMENT) for one without trials."""
    trials = store.trials(study.id)
    if not trials:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"study {study.id[:12]}: expected trials, got none; continue it first",
        )
    reader = _Reader(store, study, trials)
    points: dict[str, list[Point]] = {}
    for trial in trials:
        points.setdefault(reader.graph_of(trial), []).extend(reader.points(trial))
    graphs = [_graph(store.get(Graph, name), name, found) for name, found in points.items()]
    graphs.sort(key=lambda graph: -len(graph.points))
    place, failed = store.places().get(study.env_id), sum(t.state == "failed" for t in trials)
    return StudyFacts(study, place, tuple(graphs), reader.clock, len(trials), failed)


def best_so_far(points: Sequence[Point]) -> list[tuple[int, float]]:
    """Return the trials at which the least time fell, as (number, seconds)."""
    found: list[tuple[int, float]] = []
    for point in points:
        if point.seconds and (not found or point.seconds < found[-1][1]):
            found.append((point.number, point.seconds))
    return found


class _Reader:
    """The traces of a study's sessions."""

    def __init__(self, store: EvidenceStore, study: Study, trials: Sequence[StoredTrial]) -> None:
        self._store, self._study = store, study
        known = {t.trace_id: store.get(Trace, t.trace_id) for t in trials if t.trace_id}
        sessions = {trace.session_id for trace in known.values() if trace is not None}
        self._traces = {name: store.find(Trace, session_id=name) for name in sorted(sessions)}
        self._sessions = {name: t.session_id for name, t in known.items() if t is not None}
        figures = [t.figures for rows in self._traces.values() for t in rows if len(t.wall)]
        self.clock = "cpu" if figures and all(f["cpu_p50"] for f in figures) else "wall"

    def graph_of(self, trial: StoredTrial) -> str:
        """Return the graph that a trial is about: the study's own if it names none."""
        return str(trial.config.get("graph", self._study.graph_id))

    def points(self, trial: StoredTrial) -> Iterator[Point]:
        """Yield a point for each candidate; one without a time if the trial has no traces."""
        stage, recipes = str(trial.config.get("stage", "")), trial.config.get("recipes")
        session = self._sessions.get(trial.trace_id or "")
        if session is None:
            asked = [_label(trial.config)] if recipes is None else map(_label, recipes[1:])
            for choice in asked:
                yield Point(
                    trial.number, stage, choice, trial.state, predicted=trial.predicted,
                    reason=trial.reason,
                )  # fmt: skip
            return
        traces, first = self._by_implementation(session), None
        if recipes is None:
            own = next(t for t in self._traces[session] if t.id == trial.trace_id)
            yield self._point(trial, stage, _label(trial.config), own.impl_id, [own], None)
            return
        for number, recipe in enumerate(recipes):
            found = next((n for n, (made, _) in traces.items() if dict(made.recipe) == recipe), "")
            mine = traces[found][1] if found else []
            if number == 0:
                first = self._seconds(mine)
            else:
                yield self._point(trial, stage, _label(recipe), found, mine, first)

    def _by_implementation(self, session: str) -> dict[str, tuple[Implementation, list[Trace]]]:
        found: dict[str, tuple[Implementation, list[Trace]]] = {}
        for trace in self._traces[session]:
            if trace.impl_id not in found:
                made = self._store.get(Implementation, trace.impl_id)
                if made is None:
                    continue
                found[trace.impl_id] = (made, [])
            found[trace.impl_id][1].append(trace)
        return found

    def _seconds(self, traces: Sequence[Trace]) -> float | None:
        """Return the median over processes of a call's median."""
        name = "cpu_p50" if self.clock == "cpu" else "p50"
        known = [t.figures[name] for t in traces if t.status == Status.OK and len(t.wall)]
        return median(known) if known else None

    def _point(
        self,
        trial: StoredTrial,
        stage: str,
        choice: str,
        impl_id: str,
        traces: Sequence[Trace],
        incumbent: float | None,
    ) -> Point:
        made = self._store.get(Implementation, impl_id) if impl_id else None
        rows = self._store.find(Prediction, impl_id=impl_id, env_id=self._study.env_id)
        interval = rows[-1] if impl_id and rows else None
        peak = next((t.peak_bytes for t in traces if t.peak_bytes is not None), None)
        bad = next((t.reason for t in traces if t.status != Status.OK), "")
        return Point(
            trial.number,
            stage,
            choice,
            trial.state,
            self._seconds(traces),
            incumbent,
            interval.seconds if interval else trial.predicted,
            interval.lo if interval else None,
            interval.hi if interval else None,
            peak if made is None or made.arena_bytes is None else made.arena_bytes,
            trial.reason or bad,
        )


def _label(recipe: Mapping[str, Any]) -> str:
    """Write a recipe in words: of one choice its name, else each with its place."""
    if len(recipe) == 1 and isinstance(value := next(iter(recipe.values())), str):
        return value
    return ", ".join(f"{k}={v}" for k, v in sorted(recipe.items())) or "PyC's own choices"


def _graph(row: Graph | None, name: str, points: Sequence[Point]) -> StudiedGraph:
    """Return a graph with its points; operations and bytes if it is the work of a kernel."""
    if row is None or row.kind != WORK:
        return StudiedGraph(name, f"the program {name[:12]}", tuple(points))
    work = parse_work(row.text)
    flops, traffic_bytes = totals(work)
    ops = few([node.name for node in work.nodes], "+", MOST_TITLED)
    shape = "x".join(str(size) if size else "?" for size in work.nodes[-1].type.shape)
    return StudiedGraph(name, f"{ops} to {shape}", tuple(points), flops, traffic_bytes)


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
    # A study is named by its model; one of a Python function by its first kernels.
    model_path, titles = found.study.budget.get("model"), [graph.title for graph in found.graphs]
    title = PurePath(str(model_path)).name if model_path else few(titles, ", ", 2)
    name = f"Tuning {title}"
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
    cells = []
    for p in graph.points:
        times = (quantity(t, "s") if t else "" for t in (p.seconds, p.incumbent, p.predicted))
        arena = "" if p.arena_bytes is None else quantity(p.arena_bytes, "B")
        cells.append((str(p.number), p.stage, p.choice, p.state, *times, arena, p.reason))
    rows = table(_HEAD, cells)
    return section(graph.title, tag("p", _best(graph, clock)), *figures, wide(rows))


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
    limits = ((k, study.budget.get(k)) for k in ("effort", "seconds", "evaluations"))
    rows = [
        ("study", study.id[:_SHORT]),
        ("strategy", f"{study.strategy}, seed {study.seed}"),
        ("objective", study.objective),
        ("graph", study.graph_id),
        # Its other entries are for those that resume the study.
        ("budget", ", ".join(f"{k} {v}" for k, v in limits if v is not None) or "none"),
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
