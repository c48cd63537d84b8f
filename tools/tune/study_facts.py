"""The facts of a study as plain data: `StudyFacts` of a database's study.

    trials, traces, predictions -> points of each graph -> charts and table (study_page.py)

A tuner's trial is a session of several candidates beside the incumbent: a point each. Seconds are
medians of one call: CPU time of the thread where all traces have it, else wall time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.database.trials import StoredTrial
from pyc_mlir.lab.evidence.identity import WORK
from pyc_mlir.lab.evidence.rows import OK, Graph, Implementation, Prediction, Study, Trace
from pyc_mlir.measure.environment import Environments
from pyc_mlir.pipelines.target.cost_model import totals
from pyc_mlir.pipelines.target.work import parse_work
from pyc_mlir.profile.dispatches import MOST_TITLED, few


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
        known = [t.figures[name] for t in traces if t.status == OK and len(t.wall)]
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
        bad = next((t.reason for t in traces if t.status != OK), "")
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
