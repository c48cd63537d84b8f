"""Take a recipe through the states of a lane as far as its measurements allow, and back.

decide(store, candidate, place, lane="stable")   # a Decision, or PycError (NOT_PROMOTED)
store.rollback(candidate.id, scope, lane)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import Implementation
from pyc_mlir.lab.evidence.states import (
    LANES,
    MEASURED,
    NEW,
    PROMOTED,
    QUARANTINED,
    RETIRED,
    SHADOW,
    STABLE,
    SUSPENDED,
    RecipeState,
    Scope,
    StateStep,
)
from pyc_mlir.lab.lanes.cases import case_of, incumbent_of, scope_of, verdict_rows
from pyc_mlir.lab.lanes.conditions import (
    STEPS,
    SWAP,
    Assessment,
    PromotionCase,
    RecipeLimits,
    assess,
    measured_enough,
    missing,
    verdicts,
)
from pyc_mlir.measure.environment import Environments
from pyc_mlir.runtime.selection.verdict import Judgement


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
class Standing:
    """The state of a recipe in a lane, and the conditions of each step."""

    case: PromotionCase
    lane: str
    state: str
    assessments: tuple[Assessment, ...]
    judged: Mapping[str, Judgement]


def standing(
    store: EvidenceStore,
    candidate: Implementation,
    place: Environments,
    wanted: Wanted,
    look: bool = False,
) -> Standing:
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
    return Standing(
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
) -> Standing:
    """Take a recipe as far as its measurements allow.

    Raises PycError: NOT_PROMOTED with the conditions that fail where that is not the end of the
    lane (the steps before it are kept), BAD_ARGUMENT as `standing`.
    """
    suspend_others(store, place, by)
    now = standing(store, candidate, place, wanted, look=True)
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
    return standing(store, candidate, place, wanted)


def quarantine(store: EvidenceStore, impl_id: str, toolchain: str, reason: str, by: str) -> None:
    """Bar a recipe under a toolchain, for every structure and in every lane."""
    states = [s for s in store.states(impl_id=impl_id) if s.scope.toolchain == toolchain]
    places = {(s.scope, s.lane) for s in states if s.state != QUARANTINED}
    known = {(s.scope, s.lane) for s in states}
    places |= {(Scope(toolchain=toolchain), lane) for lane in LANES} - known
    for scope, lane in sorted(places, key=str):
        store.transition(impl_id, scope, lane, QUARANTINED, by, reason)


def _steps(now: Standing, wanted: Wanted) -> list[StateStep]:
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
