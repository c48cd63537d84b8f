"""Take a recipe through the states of a lane as far as its measurements allow, and back.

    promote(store, candidate, place, Wanted("stable"), by)   # or PycError (NOT_PROMOTED)
    store.rollback(candidate.id, scope, lane)

`case_of` reads a candidate and its incumbent from the database. Times of two implementations are
compared within sessions only: traces of one session, workload, process and state of constants whose
rounds were interleaved. Sessions are joined that ran alike (context, constants, protocol); of
several kinds, the one with most processes counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import (
    CRASH,
    DISTURBED,
    LANES,
    MEASURED,
    NEW,
    OK,
    PROMOTED,
    QUARANTINED,
    RETIRED,
    SHADOW,
    STABLE,
    SUSPENDED,
    WRONG,
    Graph,
    Implementation,
    RecipeState,
    Scope,
    Session,
    SessionEnd,
    StateStep,
    Trace,
    Verdict,
    Workload,
    paired,
)
from pyc_mlir.lab.lanes.rule import (
    RULE,
    STEPS,
    SWAP,
    Assessment,
    OnWorkload,
    Pair,
    PromotionCase,
    RecipeLimits,
    assess,
    measured_enough,
    missing,
    verdicts,
)
from pyc_mlir.measure.environment import Environments
from pyc_mlir.runtime.selection.verdict import ALPHA, Judgement

# Origins of PyC's own choices, beside implementations that choose nothing.
OWN = ("default", "incumbent")
# An A/A probe's ratio in `Session.probe` and `SessionEnd.probe`: by CPU time where there is one.
RATIOS = ("cpu_ratio", "wall_ratio")


def incumbent_of(store: EvidenceStore, candidate: Implementation, scope: Scope) -> Implementation:
    """Return the recipe that the candidate would replace: the promoted one of its graph, else the
    default.

    Raises PycError (BAD_ARGUMENT) where the database has neither, or several.
    """
    same = store.find(Implementation, graph_id=candidate.graph_id, normalizer=candidate.normalizer)
    there = {s.impl_id for s in store.states(lane=STABLE, state=PROMOTED, **vars(scope))}
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
    places = {
        name: place
        for name, place in store.places().items()
        if (place.hardware, place.toolchain) == (scope.hardware, scope.toolchain)
    }
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
        if pairs or any(t.status == OK for t in other):
            target = not scope.cluster or load.cluster == scope.cluster or not named
            workloads.append(OnWorkload(load.id, pairs, target))
    case = PromotionCase(
        candidate,
        incumbent,
        scope,
        tuple(workloads),
        checked=sum(t.status == OK for t in ours),
        faults=tuple(f"{t.status}: {t.reason}" for t in ours if t.status in (WRONG, CRASH)),
        machines=len({p.machine for p in store.places().values() if p.hardware == scope.hardware}),
    )
    chosen = [sessions[name] for name in case.sessions]
    case = replace(case, probes=_probes(store, chosen), stale=_stale(store, case, chosen))
    return _with_looks(store, case)


def _pairs(
    ours: Sequence[Trace],
    theirs: Sequence[Trace],
    sessions: Mapping[str, Session],
    places: Mapping[str, Environments],
) -> tuple[Pair, ...]:
    """Return the pairs of the commonest kind on one workload, session by session."""
    beside = {(t.session_id, t.constants, t.process): t for t in theirs if t.status == OK}
    kinds: dict[tuple[str, str, int], list[Pair]] = {}
    for session in sessions.values():
        place = places[session.env_id]
        for t in ours:
            other = beside.get((session.id, t.constants, t.process))
            if t.session_id != session.id or t.status != OK or other is None:
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


def _stale(store: EvidenceStore, case: PromotionCase, sessions: Sequence[Session]) -> bool:
    """Return whether the recipe was rolled back, and no session began since."""
    back = [
        s.at
        for s in store.history(case.candidate.id)
        if s.scope == case.scope and s.reason.startswith("rollback")
    ]
    return bool(back) and all(s.started <= max(back) for s in sessions)


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
class Wanted:
    """A requested promotion.

    lane: ``experimental`` ends at `shadow`, ``stable`` at `promoted`. least: the speed-up that
    `promoted` requires. cluster: the workloads that it is meant for; empty is all. incumbent: the
    recipe to compare with; None is the recipe in use, else PyC's own.
    """

    lane: str = STABLE
    least: float = SWAP
    cluster: str = ""
    limits: RecipeLimits = field(default_factory=RecipeLimits)
    incumbent: Implementation | None = None

    @property
    def state(self) -> str:
        """The state that the lane ends at."""
        return PROMOTED if self.lane == STABLE else SHADOW


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
    steps = tuple(assess(case, wanted.lane, judged, wanted.least, wanted.limits))
    return PromotionStatus(
        case, wanted.lane, state_of(store, candidate.id, scope, wanted.lane), steps, judged
    )


def state_of(store: EvidenceStore, impl_id: str, scope: Scope, lane: str) -> str:
    """Return the state in a scope and lane; quarantines of the scope's toolchain hold in every
    scope.

    A recipe in use under another toolchain only is `suspended`.
    """
    states = store.states(impl_id=impl_id)
    if any(bars(s, scope.toolchain) for s in states):
        return QUARANTINED
    own = [s for s in states if s.scope == scope and s.lane == lane]
    if own:
        return own[-1].state
    return SUSPENDED if _before(states, scope, lane) else NEW


def bars(state: RecipeState, toolchain: str) -> bool:
    """Return whether a state excludes its recipe under a toolchain; empty means any toolchain."""
    there = state.scope.toolchain
    return state.state == QUARANTINED and (not there or not toolchain or there == toolchain)


def quarantined(store: EvidenceStore, toolchain: str) -> frozenset[str]:
    """Return implementations that are not to be offered, measured or exported under a toolchain."""
    states = store.states(state=QUARANTINED)
    return frozenset(s.impl_id for s in states if bars(s, toolchain))


def _before(states: list[RecipeState], scope: Scope, lane: str) -> RecipeState | None:
    """Return the state in the same scope under another toolchain, if the recipe is in use there."""
    known = (scope.structure, scope.cluster, scope.hardware)
    found = [
        s
        for s in states
        if (s.scope.structure, s.scope.cluster, s.scope.hardware) == known
        and s.lane == lane
        and s.scope.toolchain != scope.toolchain
        and s.state in (SHADOW, PROMOTED)
    ]
    return found[-1] if found else None


def suspend_others(store: EvidenceStore, place: Environments, by: str) -> list[RecipeState]:
    """Suspend here what is in use under other toolchains of this hardware, and is new to this one.

    Their own scopes keep their states, since other machines may still run that toolchain.
    """
    made = []
    for state in store.states(hardware=place.hardware):
        here = Scope(state.scope.structure, state.scope.cluster, place.hardware, place.toolchain)
        states = store.states(impl_id=state.impl_id)
        known = any(s.scope == here and s.lane == state.lane for s in states)
        if not known and _before(states, here, state.lane) == state:
            reason = f"{state.state} under {state.scope.toolchain[:16]}: measure it again here"
            made += store.walk(state.impl_id, here, state.lane, [StateStep(SUSPENDED, reason)], by)
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
    if now.case.faults and now.state != QUARANTINED:
        quarantine(store, candidate.id, scope.toolchain, now.case.faults[-1], by)
    store.add(*verdict_rows(now.case, now.judged))
    if now.state in (QUARANTINED, wanted.state, PROMOTED) or now.case.faults:
        fault = now.case.faults[-1] if now.case.faults else f"it is {now.state}"
        raise _refused(candidate, wanted, [fault])
    steps = _steps(now, wanted)
    before = [s for s in steps if s.state != PROMOTED]
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
    places = {(s.scope, s.lane) for s in states if s.state != QUARANTINED}
    known = {(s.scope, s.lane) for s in states}
    places |= {(Scope(toolchain=toolchain), lane) for lane in LANES} - known
    for scope, lane in sorted(places, key=str):
        store.transition(impl_id, scope, lane, QUARANTINED, by, reason)


def _steps(now: PromotionStatus, wanted: Wanted) -> list[StateStep]:
    """Return the steps from the present state whose conditions, and those of all before, hold."""
    done = {NEW: 0, RETIRED: 0, SUSPENDED: STEPS.index(MEASURED)}
    start = done.get(now.state, STEPS.index(now.state) + 1 if now.state in STEPS else 0)
    rows = verdict_rows(now.case, now.judged)
    steps = []
    for assessment in now.assessments:
        if not assessment.met:
            break
        if STEPS.index(assessment.state) >= start:
            judged = assessment.state in (SHADOW, PROMOTED) and rows
            findings_text = "; ".join(f"{f.condition}: {f.found}" for f in assessment.findings)
            named = next((r.id for r in rows), None) if judged else None
            steps.append(StateStep(assessment.state, findings_text or "proposed", named))
    return steps


def _refused(candidate: Implementation, wanted: Wanted, reasons: list[str]) -> PycError:
    lines = "\n".join(f"  {line}" for line in reasons)
    return PycError(
        ReasonCode.NOT_PROMOTED,
        f"recipe {candidate.id[:12]}: expected the conditions of {wanted.state!r} in lane "
        f"{wanted.lane!r}, got\n{lines}",
    )
