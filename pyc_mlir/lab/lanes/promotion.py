"""The rule of lanes, and a recipe's way through their states as far as its measurements allow.

    candidate -> verified -> measured -> shadow -> promoted        `assess`, by paired sessions
    promoted, shadow -> suspended (drift), quarantined (faults)    `next_step`, by calls in service

    promote(store, candidate, place, Wanted("stable"), by)   # or PycError (NOT_PROMOTED)
    store.rollback(candidate.id, scope, lane)

`case_of` reads a candidate and its incumbent from the database. Times of two implementations are
compared within sessions only: traces of one session, workload, process and state of constants whose
rounds were interleaved. Sessions are joined that ran alike (context, constants, protocol); of
several kinds, the one with most processes counts.

`assess` gives one `Assessment` a step, with a `ConditionResult` for each condition: whether it
holds, what was found, and what is still needed. `next_step` takes windows of calls of one recipe,
cluster and environment, and its own quantile when it came into use. In service a recipe can only
lose its place, to the last good one (`EvidenceStore.walk`), and one window alone never decides
that: the drift is the selector's (`runtime/selection/engine.py`).

A recipe may be looked at again when there are more measurements. Each look has a share of the
error that the recipe has in all, `ALPHA`: look k has ALPHA / (k (k + 1)), which adds up to ALPHA.
So the chance that a recipe that is not faster is ever promoted stays below ALPHA, however often
it is looked at (a union bound; Lan, DeMets, "Discrete Sequential Boundaries", 1983, spend alike).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import (
    DISTURBED,
    LANES,
    STABLE,
    Graph,
    Implementation,
    RecipeState,
    Scope,
    Session,
    SessionEnd,
    State,
    StateStep,
    Status,
    Trace,
    Verdict,
    Workload,
    paired,
)
from pyc_mlir.measure.environment import Environments
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
STEPS = (State.CANDIDATE, State.VERIFIED, State.MEASURED, State.SHADOW, State.PROMOTED)
# Calls that a window needs to be judged, and the low quantile that it is judged by.
MIN_CALLS, QUANTILE = 50, f"p{round(100 * LOW_QUANTILE)}"
# Origins of PyC's own choices, beside implementations that choose nothing.
OWN = ("default", "incumbent")
# An A/A probe's ratio in `Session.probe` and `SessionEnd.probe`: by CPU time where there is one.
RATIOS = ("cpu_ratio", "wall_ratio")


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
class Wanted:
    """A requested promotion.

    lane: ``experimental`` ends at `shadow`, ``stable`` at `promoted`. least: the speed-up that
    `promoted` requires. cluster: the workloads that it is meant for; empty is all. arena_bytes,
    compile_seconds: limits of the recipe; None allows the incumbent's bytes, and any time.
    incumbent: the recipe to compare with; None is the recipe in use, else PyC's own.
    """

    lane: str = STABLE
    least: float = SWAP
    cluster: str = ""
    arena_bytes: int | None = None
    compile_seconds: float | None = None
    incumbent: Implementation | None = None

    @property
    def state(self) -> State:
        """The state that the lane ends at."""
        return State.PROMOTED if self.lane == STABLE else State.SHADOW


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
    case: PromotionCase, judged: Mapping[str, Judgement], wanted: Wanted = Wanted()
) -> Iterator[Assessment]:
    """Yield the steps of a lane in order, to the state that it ends at.

    judged: verdicts by workload, as `verdicts` gives them.
    """
    yield Assessment(State.CANDIDATE, ())
    yield Assessment(State.VERIFIED, tuple(_verified(case)))
    yield Assessment(State.MEASURED, tuple(_measured(case)))
    yield Assessment(State.SHADOW, (*_faster(case, judged, 1.0), *_costs(case, wanted)))
    if wanted.lane == STABLE:
        speed = (*_faster(case, judged, wanted.least), *_none_slower(case, judged))
        yield Assessment(State.PROMOTED, (*speed, *_probed(case)))


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
            ("processes", {(p.session_id, p.process) for p in one.pairs}, MIN_PROCESSES),
            ("sessions", {p.session_id for p in one.pairs}, MIN_SESSIONS),
            ("machines", {p.machine for p in one.pairs}, wanted),
        )
        for name, found, need in counts:
            yield ConditionResult(
                f"{name} on workload {one.workload_id[:12]}",
                len(found) >= need,
                f"{len(found)} of {need}",
                f"{need - len(found)} more {name} that measure both in turns",
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
        needed = "measurements on a workload of the cluster"
        yield ConditionResult(name, False, "not judged yet", needed)
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
    for one in (w for w in case.workloads if not w.target):
        verdict, met = judged.get(one.workload_id), False
        found, needed = "the candidate was not measured on it", "such sessions"
        if verdict is not None:
            met, found = verdict.speedup >= WORST, f"{verdict.speedup:.3f}"
            needed = _more(verdict, one, WORST)
        where = f"workload {one.workload_id[:12]} not below {WORST}"
        yield ConditionResult(where, met, found, needed)


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


def _costs(case: PromotionCase, limits: Wanted) -> Iterator[ConditionResult]:
    most = case.incumbent.arena_bytes if limits.arena_bytes is None else limits.arena_bytes
    have = case.candidate.arena_bytes
    if limits.arena_bytes is not None or (most is not None and have is not None):
        met = have is not None and most is not None and have <= most
        remedy = "a higher limit, or a compile that reports its arena"
        yield ConditionResult(f"arena of at most {most} bytes", met, f"{have} bytes", remedy)
    if limits.compile_seconds is not None:
        took, most = case.candidate.compile_seconds, limits.compile_seconds
        found = "unknown" if took is None else f"{took:.3g} s"
        met = took is not None and took <= most
        yield ConditionResult(f"compiled within {most:g} s", met, found, "a higher limit")


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
    if state not in (State.PROMOTED, State.SHADOW):
        return None
    if faults:
        return StateStep(
            State.QUARANTINED, f"{faults} calls in service with wrong results or a crash"
        )
    if ratios := drifted(lows, baseline):
        shares = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        why = f"drift: {shares} of its own baseline in {IN_A_ROW} windows in a row"
        return StateStep(State.SUSPENDED, why)
    return None


def incumbent_of(store: EvidenceStore, candidate: Implementation, scope: Scope) -> Implementation:
    """Return the recipe that the candidate would replace: the promoted one of its graph, else the
    default.

    Raises PycError (BAD_ARGUMENT) where the database has neither, or several.
    """
    same = store.find(Implementation, graph_id=candidate.graph_id, normalizer=candidate.normalizer)
    there = {s.impl_id for s in store.states(lane=STABLE, state=State.PROMOTED, **vars(scope))}
    found = [i for i in same if i.id in there and i.id != candidate.id] or [
        i for i in same if (i.origin in OWN or not i.recipe) and i.id != candidate.id
    ]
    if len(found) != 1:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"recipe {candidate.id[:12]}: expected one recipe in use, or one of PyC's own "
            f"choice, for graph {candidate.graph_id[:12]}, got {len(found)}; name the incumbent",
        )
    return found[0]


def scope_of(
    store: EvidenceStore, made: Implementation, place: Environments, cluster: str = ""
) -> Scope:
    """Return the scope of a decision on an implementation: its structure, this hardware and
    toolchain.
    """
    graphs = store.find(Graph, graph_id=made.graph_id, normalizer=made.normalizer)
    return Scope(graphs[0].structure_id, cluster, place.hardware, place.toolchain)


def case_of(
    store: EvidenceStore, candidate: Implementation, incumbent: Implementation, scope: Scope
) -> PromotionCase:
    """Return the database's facts for a decision in a scope.

    Raises PycError (BAD_ARGUMENT) for implementations of two graphs.
    """
    if (candidate.graph_id, candidate.normalizer) != (incumbent.graph_id, incumbent.normalizer):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"recipe {candidate.id[:12]}: expected an incumbent of the same graph, got "
            f"{incumbent.id[:12]}; name one that was measured beside it",
        )
    here = (scope.hardware, scope.toolchain)
    known = store.places()
    places = {n: p for n, p in known.items() if (p.hardware, p.toolchain) == here}
    sessions = {s.id: s for env in places for s in store.find(Session, env_id=env)}
    ours, theirs = (
        [t for t in store.find(Trace, impl_id=one.id) if t.session_id in sessions]
        for one in (candidate, incumbent)
    )
    loads = store.find(Workload, graph_id=candidate.graph_id, normalizer=candidate.normalizer)
    named = any(load.cluster == scope.cluster for load in loads)
    workloads = []
    for load in loads:
        mine, other = ([t for t in ts if t.workload_id == load.id] for ts in (ours, theirs))
        pairs = _pairs(mine, other, sessions, places)
        # A workload on which the incumbent alone was measured counts too.
        if pairs or any(t.status == Status.OK for t in other):
            target = not scope.cluster or load.cluster == scope.cluster or not named
            workloads.append(OnWorkload(load.id, pairs, target))
    faulty = (t for t in ours if t.status in (Status.WRONG, Status.CRASH))
    case = PromotionCase(
        candidate,
        incumbent,
        scope,
        tuple(workloads),
        checked=sum(t.status == Status.OK for t in ours),
        faults=tuple(f"{t.status}: {t.reason}" for t in faulty),
        machines=len({p.machine for p in known.values() if p.hardware == scope.hardware}),
    )
    chosen = [sessions[name] for name in case.sessions]
    back = [
        s.at
        for s in store.history(candidate.id)
        if s.scope == scope and s.reason.startswith("rollback")
    ]
    stale = bool(back) and all(s.started <= max(back) for s in chosen)
    return _with_looks(store, replace(case, probes=_probes(store, chosen), stale=stale))


def _pairs(
    ours: Sequence[Trace],
    theirs: Sequence[Trace],
    sessions: Mapping[str, Session],
    places: Mapping[str, Environments],
) -> tuple[Pair, ...]:
    """Return the pairs of the commonest kind on one workload, session by session."""
    beside = {(t.session_id, t.constants, t.process): t for t in theirs if t.status == Status.OK}
    kinds: dict[tuple[str, str, int], list[Pair]] = {}
    for session in sessions.values():
        place = places[session.env_id]
        for t in ours:
            other = beside.get((session.id, t.constants, t.process))
            if t.session_id != session.id or t.status != Status.OK or other is None:
                continue
            if (rounds := paired(t, other)) is not None:
                kind = (place.context, t.constants, session.protocol)
                pair = Pair(session.id, place.machine, t.process, rounds)
                kinds.setdefault(kind, []).append(pair)
    best = max(sorted(kinds), key=lambda kind: len(kinds[kind]), default=None)
    return () if best is None else tuple(kinds[best])


def _probes(store: EvidenceStore, sessions: Sequence[Session]) -> dict[str, float]:
    """Return the worse probe of each undisturbed session, of those before and after it."""
    made = {}
    for session in sessions:
        ends = store.find(SessionEnd, session_id=session.id)
        probes = [session.probe, *(end.probe for end in ends)]
        ratios = [next((p[name] for name in RATIOS if name in p), None) for p in probes]
        known = [ratio for ratio in ratios if ratio is not None]
        disturbed = any(end.probe.get(DISTURBED) for end in ends)
        if not disturbed and ends and len(known) == len(probes):
            made[session.id] = max(known, key=lambda ratio: abs(ratio - 1))
    return made


def _with_looks(store: EvidenceStore, case: PromotionCase) -> PromotionCase:
    """Give the look its number; one that was made before keeps its share of the error."""
    there = {"hardware": case.scope.hardware, "toolchain": case.scope.toolchain, "rule": RULE}
    stored = store.find(Verdict, candidate=case.candidate.id, **there)
    looks = {(v.sessions, v.alpha) for v in stored}
    for sessions, alpha in looks:
        # Look k has ALPHA / (k (k + 1)).
        earlier = round((ALPHA / alpha + 0.25) ** 0.5 - 0.5) - 1
        before = replace(case, looks=earlier, looked=True)
        if sessions == case.sessions and measured_enough(before):
            same = {v.id: v for v in stored if (v.sessions, v.alpha) == (sessions, alpha)}
            made = verdict_rows(before, verdicts(before))
            if all(v.id in same and v.ratio == same[v.id].ratio for v in made):
                return before
    return replace(case, looks=len(looks))


def verdict_rows(case: PromotionCase, judged: Mapping[str, Judgement]) -> list[Verdict]:
    """Return the verdicts of a look as rows."""
    return [
        Verdict.of(case.candidate, case.incumbent, workload, case.scope, case.sessions, found, RULE)
        for workload, found in judged.items()
    ]


@dataclass(frozen=True)
class PromotionStatus:
    """The state of a recipe in a lane, and the conditions of each step."""

    case: PromotionCase
    lane: str
    state: str
    assessments: tuple[Assessment, ...]
    judged: Mapping[str, Judgement]


def promotion_status(
    store: EvidenceStore,
    candidate: Implementation,
    place: Environments,
    wanted: Wanted,
    look: bool = False,
) -> PromotionStatus:
    """Return what stands between a recipe and the end of a lane.

    look: make the verdict, which spends error, if there are enough measurements; else only one
    that was made before is shown. Raises PycError (BAD_ARGUMENT) as `case_of` and `incumbent_of`.
    """
    if wanted.lane not in LANES:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"lane: expected {' or '.join(LANES)}, got {wanted.lane!r}"
        )
    scope = scope_of(store, candidate, place, wanted.cluster)
    against = wanted.incumbent or incumbent_of(store, candidate, scope)
    case = case_of(store, candidate, against, scope)
    judged = verdicts(case) if measured_enough(case) and (look or case.looked) else {}
    steps = tuple(assess(case, judged, wanted))
    return PromotionStatus(
        case, wanted.lane, state_of(store, candidate.id, scope, wanted.lane), steps, judged
    )


def state_of(store: EvidenceStore, impl_id: str, scope: Scope, lane: str) -> str:
    """Return the state in a scope and lane; quarantines of the scope's toolchain hold in every
    scope.

    A recipe in use under another toolchain only is `suspended`.
    """
    states = store.states(impl_id=impl_id)
    # Without a toolchain a quarantine, or a scope, means any.
    barring = [s.scope.toolchain for s in states if s.state == State.QUARANTINED]
    if barring and (not scope.toolchain or {"", scope.toolchain} & {*barring}):
        return State.QUARANTINED
    own = [s for s in states if s.scope == scope and s.lane == lane]
    if own:
        return own[-1].state
    return State.SUSPENDED if _before(states, scope, lane) else State.NEW


def _before(states: list[RecipeState], scope: Scope, lane: str) -> RecipeState | None:
    """Return the state in the same scope under another toolchain, if the recipe is in use there."""
    found = [
        s
        for s in states
        if replace(s.scope, toolchain=scope.toolchain) == scope != s.scope
        and s.lane == lane
        and s.state in (State.SHADOW, State.PROMOTED)
    ]
    return found[-1] if found else None


def suspend_others(store: EvidenceStore, place: Environments, by: str) -> list[RecipeState]:
    """Suspend here what is in use under other toolchains of this hardware, and is new to this one.

    Their own scopes keep their states, since other machines may still run that toolchain.
    """
    made = []
    for state in store.states(hardware=place.hardware):
        here = replace(state.scope, toolchain=place.toolchain)
        states = store.states(impl_id=state.impl_id)
        known = any(s.scope == here and s.lane == state.lane for s in states)
        if not known and _before(states, here, state.lane) == state:
            reason = f"{state.state} under {state.scope.toolchain[:16]}: measure it again here"
            step = StateStep(State.SUSPENDED, reason)
            made += store.walk(state.impl_id, here, state.lane, [step], by)
    return made


def promote(
    store: EvidenceStore, candidate: Implementation, place: Environments, wanted: Wanted, by: str
) -> PromotionStatus:
    """Take a recipe as far as its measurements allow.

    Raises PycError: NOT_PROMOTED with the conditions that fail where that is not the end of the
    lane (the steps before it are kept), BAD_ARGUMENT as `promotion_status`.
    """
    suspend_others(store, place, by)
    now = promotion_status(store, candidate, place, wanted, look=True)
    scope = now.case.scope
    if now.case.faults and now.state != State.QUARANTINED:
        quarantine(store, candidate.id, scope.toolchain, now.case.faults[-1], by)
    store.add(*verdict_rows(now.case, now.judged))
    if now.state in (State.QUARANTINED, wanted.state, State.PROMOTED) or now.case.faults:
        fault = now.case.faults[-1] if now.case.faults else f"it is {now.state}"
        raise _refused(candidate, wanted, [fault])
    steps = _steps(now, wanted)
    before = [s for s in steps if s.state != State.PROMOTED]
    # The last step may be refused for the day; the steps before it are kept.
    for some in (before, steps[len(before) :]):
        store.walk(candidate.id, scope, wanted.lane, some, by)
    failing = missing(now.assessments)
    if failing:
        raise _refused(candidate, wanted, [str(f) for f in failing])
    return promotion_status(store, candidate, place, wanted)


def quarantine(store: EvidenceStore, impl_id: str, toolchain: str, reason: str, by: str) -> None:
    """Bar a recipe under a toolchain, for every structure and in every lane."""
    states = [s for s in store.states(impl_id=impl_id) if s.scope.toolchain == toolchain]
    places = {(s.scope, s.lane) for s in states if s.state != State.QUARANTINED}
    known = {(s.scope, s.lane) for s in states}
    places |= {(Scope(toolchain=toolchain), lane) for lane in LANES} - known
    for scope, lane in sorted(places, key=str):
        store.transition(impl_id, scope, lane, State.QUARANTINED, by, reason)


def _steps(now: PromotionStatus, wanted: Wanted) -> list[StateStep]:
    """Return the steps from the present state whose conditions, and those of all before, hold."""
    done: Mapping[str, int] = {
        State.NEW: 0, State.RETIRED: 0, State.SUSPENDED: STEPS.index(State.MEASURED)
    }  # fmt: skip
    start = done.get(now.state, STEPS.index(now.state) + 1 if now.state in STEPS else 0)
    rows = verdict_rows(now.case, now.judged)
    steps = []
    for assessment in now.assessments:
        if not assessment.met:
            break
        if STEPS.index(assessment.state) >= start:
            judged = assessment.state in (State.SHADOW, State.PROMOTED) and rows
            findings_text = "; ".join(f"{f.condition}: {f.found}" for f in assessment.findings)
            named = next((r.id for r in rows), None) if judged else None
            steps.append(StateStep(assessment.state, findings_text or "proposed", named))
    return steps


def _refused(candidate: Implementation, wanted: Wanted, reasons: list[str]) -> PycError:
    lines = "\n".join(f"  {line}" for line in reasons)
    return PycError(
        ReasonCode.NOT_PROMOTED,
        f"recipe {candidate.id[:12]}: expected the conditions of {str(wanted.state)!r} in lane "
        f"{wanted.lane!r}, got\n{lines}",
    )
