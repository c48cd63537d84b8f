"""What a study came to, as plain data: `StudyFacts` of a database's study.

Seconds are medians of one call: CPU time of the thread where all traces have it, else wall time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.evidence.database.store import EvidenceStore
from pyc_mlir.evidence.environment import Environments
from pyc_mlir.evidence.rows import Implementation, Prediction, Study, Trace

# What a tuner notes in `Study.budget` beside limits, for the roofline: operations and bytes that a
# call moves at least, and the machine's peaks a second.
FLOPS, BYTES, PEAK_FLOPS, PEAK_BANDWIDTH = "flops", "bytes", "peak_flops", "peak_bandwidth"


@dataclass(frozen=True)
class Point:
    """One trial: its number, configuration in words, what was predicted and measured.

    low, high: of the prediction's 90 % interval, None without one. reason: why there is no time.
    """

    number: int
    config: str
    state: str
    seconds: float | None = None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    arena_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class StudyFacts:
    """A study, where it ran, and its trials in order."""

    study: Study
    place: Environments | None
    points: tuple[Point, ...]
    clock: str

    @property
    def measured(self) -> list[Point]:
        """The trials that have a time."""
        return [p for p in self.points if p.seconds]

    @property
    def best(self) -> Point | None:
        """The quickest; its time is the smallest of many, hence too small by some luck."""
        return min(self.measured, key=lambda p: (p.seconds, p.number), default=None)

    def frontier(self) -> list[Point]:
        """The trials that no other one beats in seconds and bytes, quickest first."""
        known = [p for p in self.measured if p.arena_bytes is not None]
        found: list[Point] = []
        for point in sorted(known, key=lambda p: (p.seconds, p.arena_bytes)):
            if not found or (point.arena_bytes or 0) < (found[-1].arena_bytes or 0):
                found.append(point)
        return found

    def figure(self, name: str) -> float | None:
        """A number that the tuner noted for the roofline; None where it did not."""
        value = self.study.budget.get(name)
        return float(value) if isinstance(value, int | float) and value > 0 else None


def facts_of(store: EvidenceStore, study: Study) -> StudyFacts:
    """Read a study. Raises PycError (BAD_ARGUMENT) for one without trials."""
    trials = store.trials(study.id)
    if not trials:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"study {study.id[:12]}: expected trials, got none; continue it first",
        )
    traces = {t.trace_id: store.get(Trace, t.trace_id) for t in trials if t.trace_id}
    figures = [t.figures for t in traces.values() if t is not None and len(t.wall)]
    clock = "cpu" if figures and all(f["cpu_p50"] for f in figures) else "wall"
    points = []
    for trial in trials:
        trace = traces.get(trial.trace_id) if trial.trace_id else None
        point = Point(
            trial.number,
            ", ".join(f"{k}={v}" for k, v in sorted(trial.config.items())),
            trial.state,
            predicted=trial.predicted,
            reason=trial.reason or (trace.reason if trace else ""),
        )
        points.append(_with_trace(store, study, point, trace, clock) if trace else point)
    return StudyFacts(study, store.places().get(study.env_id), tuple(points), clock)


def _with_trace(
    store: EvidenceStore, study: Study, point: Point, trace: Trace, clock: str
) -> Point:
    made = store.get(Implementation, trace.impl_id)
    told = store.find(Prediction, impl_id=trace.impl_id, env_id=study.env_id)
    interval = told[-1] if told else None
    predicted = point.predicted if point.predicted is not None else interval and interval.seconds
    return Point(
        point.number,
        point.config,
        point.state,
        trace.figures["cpu_p50" if clock == "cpu" else "p50"],
        predicted,
        interval.lo if interval else None,
        interval.hi if interval else None,
        trace.peak_bytes if made is None or made.arena_bytes is None else made.arena_bytes,
        point.reason,
    )


def best_so_far(points: Sequence[Point]) -> list[tuple[int, float]]:
    """The trials at which the least time fell, as (number, seconds)."""
    found: list[tuple[int, float]] = []
    for point in points:
        if point.seconds and (not found or point.seconds < found[-1][1]):
            found.append((point.number, point.seconds))
    return found
