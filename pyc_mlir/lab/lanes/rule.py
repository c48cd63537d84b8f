"""The rule of lanes: which measurements take a recipe up, which calls in service take it down.

    candidate -> verified -> measured -> shadow -> promoted        `assess`, by paired sessions
    promoted, shadow -> suspended (drift), quarantined (faults)    `next_step`, by calls in service

`assess` takes a `PromotionCase`, what a database holds about a candidate and its incumbent, and
gives one `Assessment` a step, with a `ConditionResult` for each condition: whether it holds, what
was found, and what is still needed. `next_step` takes windows of calls of one recipe, cluster and
environment, and its own quantile when it came into use. In service a recipe can only lose its
place, to the last good one (`Store.walk`), and one window alone never decides that: the drift is
the selector's (`runtime/selection/engine.py`). Nothing here reads a database or a clock.

A recipe may be looked at again when there are more measurements. Each look has a share of the
error that the recipe has in all, `ALPHA`: look k has ALPHA / (k (k + 1)), which adds up to ALPHA.
So the chance that a recipe that is not faster is ever promoted stays below ALPHA, however often
it is looked at (a union bound; Lan, DeMets, "Discrete Sequential Boundaries", 1983, spend alike).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from pyc_mlir.lab.evidence.rows import (
    CANDIDATE,
    MEASURED,
    PROMOTED,
    QUARANTINED,
    SHADOW,
    STABLE,
    SUSPENDED,
    VERIFIED,
    Implementation,
    Scope,
    StateStep,
)
from pyc_mlir.runtime.selection.engine import IN_A_ROW, LOW_QUANTILE, drifted
from pyc_mlir.runtime.selection.verdict import (
    ALPHA,
    MIN_PROCESSES,
    Judgement,
    Rounds,
    VerdictKind,
    judge,
)

MIN_SESSIONS, MIN_MACHINES = 2, 2
# Least speed-ups, incumbent / candidate: to replace a recipe, to become PyC's default, and what no
# other workload may fall below.
SWAP, NEW_DEFAULT, WORST = 1.03, 1.10, 0.97
# By how much a program may differ from itself in a session that decides.
MOST_APART = 0.05
# How verdicts are made; another text when that changes.
RULE = "paired rounds, Hodges-Lehmann, t over processes, alpha spent by look, 1"
STEPS = (CANDIDATE, VERIFIED, MEASURED, SHADOW, PROMOTED)
# Calls that a window needs to be judged, and the low quantile that it is judged by.
MIN_CALLS, QUANTILE = 50, f"p{round(100 * LOW_QUANTILE)}"


@dataclass(frozen=True)
class Pair:
    """Interleaved rounds of candidate and incumbent in one process of a session."""

    session_id: str
    machine: str
    process: int
    rounds: Rounds


@dataclass(frozen=True)
class OnWorkload:
    """The measurements of both on one workload; `target`: the promotion is meant for it."""

    workload_id: str
    pairs: tuple[Pair, ...]
    target: bool = True


@dataclass(frozen=True)
class RecipeLimits:
    """Limits of a recipe; None allows the incumbent's bytes, and any time."""

    arena_bytes: int | None = None
    compile_seconds: float | None = None


@dataclass(frozen=True)
class PromotionCase:
    """All that a decision on a candidate rests on.

    checked: processes whose results were within their tolerance. faults: status and reason of
    processes with wrong results or a crash. machines: how many of this hardware the database
    knows. probes: of each undisturbed session the worst ratio of a program to itself. looks:
    earlier looks at other measurements; looked: this one was made before. stale: no session began
    since the recipe was rolled back.
    """

    candidate: Implementation
    incumbent: Implementation
    scope: Scope
    workloads: tuple[OnWorkload, ...]
    checked: int = 0
    faults: tuple[str, ...] = ()
    machines: int = 1
    probes: Mapping[str, float] = field(default_factory=dict)
    looks: int = 0
    stale: bool = False
    looked: bool = False

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sessions in which both were measured, sorted."""
        return tuple(sorted({p.session_id for w in self.workloads for p in w.pairs}))

    @property
    def alpha(self) -> float:
        """The error that this look may have."""
        look = self.looks + 1
        return ALPHA / (look * (look + 1))


@dataclass(frozen=True)
class ConditionResult:
    """One condition: whether it holds, what was found, and what would make it hold."""

    condition: str
    met: bool
    found: str
    needed: str = ""

    def __str__(self) -> str:
        more = f"; needed: {self.needed}" if self.needed and not self.met else ""
        return f"{self.condition}: {'yes' if self.met else 'no'}, {self.found}{more}"


@dataclass(frozen=True)
class Assessment:
    """The conditions of the step to one state."""

    state: str
    findings: tuple[ConditionResult, ...]

    @property
    def met(self) -> bool:
        """True if all conditions hold."""
        return all(finding.met for finding in self.findings)


def measured_enough(case: PromotionCase) -> bool:
    """Return whether there are the processes, sessions and machines that a verdict needs."""
    return all(finding.met for finding in _measured(case))


def verdicts(case: PromotionCase) -> dict[str, Judgement]:
    """Return the verdict on each workload at this look's error: equal cases give equal verdicts."""
    return {
        one.workload_id: judge([p.rounds for p in one.pairs], case.alpha)
        for one in case.workloads
        if one.pairs
    }


def assess(
    case: PromotionCase,
    lane: str,
    judged: Mapping[str, Judgement],
    least: float = SWAP,
    limits: RecipeLimits | None = None,
) -> Iterator[Assessment]:
    """Yield the steps of a lane in order: to `shadow` in the experimental, `promoted` in the stable
    one.

    judged: verdicts by workload, as `verdicts` gives them. least: the speed-up that `promoted`
    asks for. limits: of bytes and compile time.
    """
    yield Assessment(CANDIDATE, ())
    yield Assessment(VERIFIED, tuple(_verified(case)))
    yield Assessment(MEASURED, tuple(_measured(case)))
    yield Assessment(SHADOW, (*_faster(case, judged, 1.0), *_costs(case, limits or RecipeLimits())))
    if lane == STABLE:
        promoted = (
            *_faster(case, judged, least),
            *_none_slower(case, judged),
            *_probed(case),
        )
        yield Assessment(PROMOTED, promoted)


def _verified(case: PromotionCase) -> Iterator[ConditionResult]:
    last = f", the last: {case.faults[-1]}" if case.faults else ""
    faults = f"{len(case.faults)} faulty processes{last}"
    yield ConditionResult(
        "neither wrong results nor crashes", not case.faults, faults, "another recipe"
    )
    yield ConditionResult(
        "results within their tolerance",
        case.checked > 0,
        f"{case.checked} checked processes",
        "a session that compiles it here and checks its results",
    )


def _measured(case: PromotionCase) -> Iterator[ConditionResult]:
    wanted = min(MIN_MACHINES, max(case.machines, 1))
    for one in case.workloads:
        counts = (
            ("processes", len({(p.session_id, p.process) for p in one.pairs}), MIN_PROCESSES),
            ("sessions", len({p.session_id for p in one.pairs}), MIN_SESSIONS),
            ("machines", len({p.machine for p in one.pairs}), wanted),
        )
        for name, have, need in counts:
            yield ConditionResult(
                f"{name} on workload {one.workload_id[:12]}",
                have >= need,
                f"{have} of {need}",
                f"{need - have} more {name} that measure both in turns",
            )
    if not case.workloads:
        needed = f"{MIN_PROCESSES} processes in {MIN_SESSIONS} sessions on {wanted} machines"
        yield ConditionResult("paired measurements", False, "none", needed)


def _faster(
    case: PromotionCase, judged: Mapping[str, Judgement], least: float
) -> Iterator[ConditionResult]:
    targets = [w for w in case.workloads if w.target and w.workload_id in judged]
    name = "faster" if least <= 1 else f"speed-up of {least:.2f} at least"
    if not targets:
        yield ConditionResult(
            name, False, "not judged yet", "measurements on a workload of the cluster"
        )
    for one in targets:
        verdict = judged[one.workload_id]
        bound = verdict.speedup
        met = bound > 1 and bound >= least and verdict.answer is VerdictKind.FASTER
        where = f"{name} on workload {one.workload_id[:12]}"
        yield ConditionResult(where, met, f"{bound:.3f}; {verdict}", _more(verdict, one, least))


def _more(verdict: Judgement, one: OnWorkload, least: float) -> str:
    """Return the further measurements that would decide an undecided verdict."""
    if 1 / verdict.interval.ratio < max(least, 1.0):
        return "a faster recipe: the estimate itself is below"
    have = len(one.pairs)
    wanted = verdict.needed or 2 * have
    return f"about {max(1, wanted - have)} more processes, on a quiet machine"


def _none_slower(case: PromotionCase, judged: Mapping[str, Judgement]) -> Iterator[ConditionResult]:
    for one in case.workloads:
        if one.target:
            continue
        verdict = judged.get(one.workload_id)
        where = f"workload {one.workload_id[:12]} not below {WORST}"
        if verdict is None:
            yield ConditionResult(
                where, False, "the candidate was not measured on it", "such sessions"
            )
            continue
        bound = verdict.speedup
        yield ConditionResult(where, bound >= WORST, f"{bound:.3f}", _more(verdict, one, WORST))


def _probed(case: PromotionCase) -> Iterator[ConditionResult]:
    bad = [s for s in case.sessions if not abs(case.probes.get(s, inf) - 1) <= MOST_APART]
    yield ConditionResult(
        "the sessions do not tell a program from itself",
        not bad and bool(case.sessions),
        f"{len(case.sessions) - len(bad)} of {len(case.sessions)} sessions",
        f"other sessions than {', '.join(s[:12] for s in bad)}, with a probe, on a quiet machine",
    )
    if case.stale:
        yield ConditionResult("measured since its rollback", False, "no session", "a session")


def _costs(case: PromotionCase, limits: RecipeLimits) -> Iterator[ConditionResult]:
    most = case.incumbent.arena_bytes if limits.arena_bytes is None else limits.arena_bytes
    have = case.candidate.arena_bytes
    if limits.arena_bytes is not None or (most is not None and have is not None):
        met = have is not None and most is not None and have <= most
        remedy = "a higher limit, or a compile that reports its arena"
        yield ConditionResult(f"arena of at most {most} bytes", met, f"{have} bytes", remedy)
    if limits.compile_seconds is not None:
        took = case.candidate.compile_seconds
        met = took is not None and took <= limits.compile_seconds
        measured_time = "unknown" if took is None else f"{took:.3g} s"
        yield ConditionResult(
            f"compiled within {limits.compile_seconds:g} s", met, measured_time, "a higher limit"
        )


def missing(assessments: Sequence[Assessment]) -> list[ConditionResult]:
    """Return the conditions that do not hold, of the first step that has some."""
    first = next((a for a in assessments if not a.met), None)
    return [] if first is None else [f for f in first.findings if not f.met]


def next_step(
    state: str, baseline: float, lows: Sequence[float], faults: int = 0
) -> StateStep | None:
    """Return the step that calls in service require in a state; None for no change.

    baseline: the recipe's own low quantile in seconds when it came into use. lows: those of the
    windows of `MIN_CALLS` calls since then, oldest first. faults: calls with wrong results or a
    crash. Only recipes in use (`promoted`) or beside one (`shadow`) take steps.
    """
    if state not in (PROMOTED, SHADOW):
        return None
    if faults:
        return StateStep(QUARANTINED, f"{faults} calls in service with wrong results or a crash")
    if ratios := drifted(lows, baseline):
        shares = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        why = f"drift: {shares} of its own baseline in {IN_A_ROW} windows in a row"
        return StateStep(SUSPENDED, why)
    return None
