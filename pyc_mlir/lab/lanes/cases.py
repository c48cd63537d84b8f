"""Read a candidate and its incumbent from a benchmark database: `case_of`.

Times of two implementations are compared within sessions only: traces of one session, workload,
process and state of constants whose rounds were interleaved. Sessions are joined that ran alike
(context, constants, protocol); of several kinds, the one with most processes counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence import rows
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import (
    CRASH,
    OK,
    WRONG,
    Graph,
    Implementation,
    Session,
    Trace,
    Workload,
)
from pyc_mlir.lab.evidence.states import PROMOTED, STABLE, Scope
from pyc_mlir.lab.lanes.conditions import (
    RULE,
    OnWorkload,
    Pair,
    PromotionCase,
    SelfComparison,
    measured_enough,
    verdicts,
)
from pyc_mlir.measure.environment import Environments
from pyc_mlir.runtime.selection.verdict import ALPHA, MIN_ROUNDS, Judgement, Rounds

# Origins of PyC's own choices, beside implementations that choose nothing.
OWN = ("default", "incumbent")
# An A/A probe's ratio in `Session.probe` and `SessionEnd.probe`: by CPU time where there is one.
RATIOS = ("cpu_ratio", "wall_ratio")


@dataclass(frozen=True)
class _Bench:
    """A session, where it was, and the traces in it of one implementation by what must agree."""

    session: Session
    place: Environments
    traces: Mapping[tuple[str, str, int], Trace]


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
    ours = store.find(Trace, impl_id=candidate.id)
    theirs = store.find(Trace, impl_id=incumbent.id)
    used = {t.session_id for t in (*ours, *theirs)}
    sessions = {s.id: s for env in places for s in store.find(Session, env_id=env) if s.id in used}
    here = [t for t in ours if t.session_id in sessions]
    beside = [t for t in theirs if t.session_id in sessions]
    benches = [_Bench(s, places[s.env_id], _keyed(here, s.id)) for s in sessions.values()]
    workloads = _workloads(store, candidate, scope, benches, beside)
    case = PromotionCase(
        candidate,
        incumbent,
        scope,
        workloads,
        checked=sum(t.status == OK for t in here),
        faults=tuple(f"{t.status}: {t.reason}" for t in here if t.status in (WRONG, CRASH)),
        machines=len({p.machine for p in store.places().values() if p.hardware == scope.hardware}),
    )
    chosen = [sessions[name] for name in case.sessions]
    case = replace(case, probes=_probes(store, chosen), stale=_stale(store, case, chosen))
    return _with_looks(store, case)


def _keyed(traces: Iterable[Trace], session: str) -> dict[tuple[str, str, int], Trace]:
    return {
        (t.workload_id, t.constants, t.process): t
        for t in traces
        if t.session_id == session and t.status == OK
    }


def _workloads(
    store: EvidenceStore,
    candidate: Implementation,
    scope: Scope,
    benches: Sequence[_Bench],
    beside: Sequence[Trace],
) -> tuple[OnWorkload, ...]:
    """Return each workload on which either was measured, with the pairs of the commonest kind."""
    loads = store.find(Workload, graph_id=candidate.graph_id, normalizer=candidate.normalizer)
    named = any(load.cluster == scope.cluster for load in loads)
    found = []
    for load in loads:
        kinds: dict[tuple[str, str, int], list[Pair]] = {}
        for bench in benches:
            theirs = _keyed(beside, bench.session.id)
            for key, trace in bench.traces.items():
                if key[0] == load.id and key in theirs:
                    kind = (bench.place.context, key[1], bench.session.protocol)
                    if (rounds := _rounds(trace, theirs[key])) is not None:
                        pair = Pair(bench.session.id, bench.place.machine, key[2], rounds)
                        kinds.setdefault(kind, []).append(pair)
        measured = any(t.workload_id == load.id and t.status == OK for t in beside)
        if kinds or measured:
            best = max(sorted(kinds), key=lambda kind: len(kinds[kind]), default=None)
            pairs = tuple(kinds[best]) if best is not None else ()
            target = not scope.cluster or load.cluster == scope.cluster or not named
            found.append(OnWorkload(load.id, pairs, target))
    return tuple(found)


def _rounds(ours: Trace, theirs: Trace) -> Rounds | None:
    """Return seconds of one call, round by round; None for too few or other numbers of rounds."""
    if len(ours.wall) != len(theirs.wall) or len(ours.wall) < MIN_ROUNDS:
        return None
    walls = (ours.wall / ours.calls, theirs.wall / theirs.calls)
    if any(not bool(np.all(wall > 0)) for wall in walls):
        return None
    if any(len(t.cpu) == 0 or t.cpu.min() <= 0 for t in (ours, theirs)):
        return Rounds(*walls)
    return Rounds(*walls, ours.cpu / ours.calls, theirs.cpu / theirs.calls)


def _probes(store: EvidenceStore, sessions: Sequence[Session]) -> tuple[SelfComparison, ...]:
    """Return the worse probe of each undisturbed session, of those before and after it."""
    made = []
    for session in sessions:
        ends = store.find(rows.SessionEnd, session_id=session.id)
        session_probes = [session.probe, *(end.probe for end in ends)]
        ratios = [next((p[name] for name in RATIOS if name in p), None) for p in session_probes]
        known = [ratio for ratio in ratios if ratio is not None]
        disturbed = any(end.probe.get(rows.DISTURBED) for end in ends)
        if disturbed or not ends or len(known) < len(session_probes):
            made.append(SelfComparison(session.id))
        else:
            made.append(SelfComparison(session.id, max(known, key=lambda ratio: abs(ratio - 1))))
    return tuple(made)


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
    stored = store.find(rows.Verdict, candidate=case.candidate.id, **there)
    looks = {(v.sessions, v.alpha) for v in stored}
    for sessions, alpha in looks:
        before = replace(case, looks=_looks_before(alpha), looked=True)
        if sessions == case.sessions and measured_enough(before):
            same = {v.id: v for v in stored if (v.sessions, v.alpha) == (sessions, alpha)}
            made = verdict_rows(before, verdicts(before))
            if all(v.id in same and v.ratio == same[v.id].ratio for v in made):
                return before
    return replace(case, looks=len(looks))


def _looks_before(alpha: float) -> int:
    """Return how many looks preceded the one with this share of the error, ALPHA / (k (k + 1))."""
    return round((ALPHA / alpha + 0.25) ** 0.5 - 0.5) - 1


def verdict_rows(case: PromotionCase, judged: Mapping[str, Judgement]) -> list[rows.Verdict]:
    """Return the verdicts of a look as rows; interval and ratio are those of the clock that
    decides.
    """
    return [
        rows.Verdict(
            case.candidate.id,
            case.incumbent.id,
            workload,
            case.scope.hardware,
            case.scope.toolchain,
            case.sessions,
            found.interval.ratio,
            found.interval.low,
            found.interval.high,
            case.alpha,
            RULE,
            found.answer.value,
        )
        for workload, found in judged.items()
    ]
