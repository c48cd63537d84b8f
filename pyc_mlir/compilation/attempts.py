"""The attempts of one compile: a flat list, and the rules by which one follows another.

The ways to keep a memory budget come first, each with all settings of IREE's fusion:

    balanced              the chosen setting, then the others
    co-selected           with kernels and parts chosen together, for policies that allow it
    memory_first          the same, cut into the parts of that mode, with small kernels
    memory_first, IREE's code  the same, without weights in padded panels

`pyc-chunk` and the choice of kernels come before the dispatches are known, thus before anybody can
tell whether a budget is kept. So the next way is for a program that does not keep it in the one
before, and the other settings are for one that IREE has no code for under the chosen setting.
What is chosen together is no slower by prediction than the ways behind it, or those are taken
(`pipelines/memory/selection/rounds.py`).

Without a budget, a program of `memory_first` may not need more than under IREE's own plan,
constants included. One that does, since kernels read weights in larger forms than the model's, is
compiled again without such kernels (`HELD_SITE`).

`first_artifact` goes through the list; what was left, and
why, stands in the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import attrgetter
from typing import Any

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.build import Prepared, complete, prepare, together
from pyc_mlir.compilation.contract_check import check_contract, with_requested_options
from pyc_mlir.compilation.generate import SETTINGS, UNFUSED, generate, plan
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import Lowered, lower
from pyc_mlir.compilation.options import NO_KERNELS, Options
from pyc_mlir.compilation.shape_plans import with_shape_plans, without_shape_plans
from pyc_mlir.compilation.stages import record_stage, stage_of_recipe
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.memory.budget import BudgetNotKept
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Site
from pyc_mlir.pipelines.choices.evidence import Evidence, Reason, WithoutBudget
from pyc_mlir.util.logs import Stage, logged
from pyc_mlir.util.temp_dir import require_room

BUDGET_SITE = Site("budget", "module")
# In which forms constants may be held in the mode `memory_first`.
HELD_SITE = Site("constant-forms", "module")
AS_KERNELS_READ, AS_IN_MODEL = "as kernels read them", "as the model has them"
SMALLEST, CO_SELECTED = "memory_first", "co-selected"


@dataclass(frozen=True)
class Attempt:
    """One try: with which options, in which way, under which setting of fusion, and after what.

    `setting` is None for the one that a recipe or the policy chooses. `why` is None for what was
    asked for, CODEGEN_FALLBACK after a setting that gave no code, BUDGET_RETRY after a way that
    does not keep the budget.
    """

    options: Options
    way: str
    setting: str | None = None
    why: ReasonCode | None = None


@dataclass(frozen=True)
class Failure:
    """An attempt, its setting filled in, and its end: no code (TARGET_COMPILE_FAILED), or no plan
    within the budget (BudgetNotKept)."""

    attempt: Attempt
    error: PycError


def build_here(job: Job, stage: Stage = logged) -> Artifact:
    """Compile in this process, without a cache or a limit of time. Raises as `compile`."""
    options = job.options
    if options.target.device == "local":
        require_room()
    at, decision = stage_of_recipe(options)
    made = check_contract(at, lambda options: first_artifact(job.under(options), stage))
    return with_requested_options(
        made if decision is None else record_stage(made, decision), options
    )


def first_artifact(job: Job, stage: Stage = logged) -> Artifact:
    """Return the artifact of the first attempt that succeeds. Raises as `compile`."""
    choices = Choices(job.options.policy, job.options.recipe)
    failures: list[Failure] = []
    notes: list[str] = []
    free: list[Evidence] = []
    for way, found in groupby(attempts_of(job.options, choices), attrgetter("way")):
        attempts = tuple(found)
        if not follows(attempts[0], failures):
            continue
        tried = job.under(attempts[0].options)
        if tried.options.co_selected and failures:
            try:
                with stage("PyC chooses kernels and parts together"):
                    options, note = together(tried, _alone(tried.options))
            except PycError as error:
                notes.append(error.message)
                failures.append(Failure(attempts[0], _smallest(failures)))
                continue
            tried = job.under(options)
            notes.append(note)
        if failures:
            reasons = [*retry_reasons(failures, notes), *free]
            choices.record_fallback(BUDGET_SITE, way, reasons)
        with stage("PyC lowers to linalg"):
            # Under `max_error` the contract's own samples are compared.
            lowered = lower(tried, tried.options.check and not tried.options.contract.compares)
        if not failures and lowered.prediction is not None:
            free.append(WithoutBudget(lowered.prediction.seconds))
        whole = with_shape_plans(lowered, tried, stage)
        earlier = list(failures)
        prepared = prepare(whole, tried.options, choices.log)
        artifact = _first_of(prepared, attempts, failures, stage)
        if artifact is None and whole.shape_plans:
            why = _of_last_way(failures)[-1].error.message
            alone = without_shape_plans(whole, lowered, why)
            failures = earlier
            prepared = prepare(alone, tried.options, choices.log)
            artifact = _first_of(prepared, attempts, failures, stage)
        if artifact is None:
            continue
        if way != AS_KERNELS_READ or (above := _above_reference(artifact)) is None:
            return artifact
        choices.record_fallback(HELD_SITE, AS_IN_MODEL, [above])
    raise refusal(failures)


def _above_reference(artifact: Artifact) -> Reason | None:
    """Return why a program's memory is not proven to be within that of IREE's plan, or None.

    Where sizes are open the transients are within IREE's, whatever the call, and constants decide.
    """
    account, reference = artifact.account, artifact.reference
    ours, theirs = account.total(), reference.total()
    if ours is None or theirs is None:
        ours, theirs = account.constants, reference.constants
    if ours is None or theirs is None or ours <= theirs:
        return None
    text = f"{ours} bytes with larger constants, {theirs} under IREE's plan"
    return Reason("", text)


def finish(lowered: Lowered, options: Options) -> Artifact:
    """Compile a lowered program by IREE and make its artifact. Raises as `compile`."""
    failures: list[Failure] = []
    artifact = _first_of(prepare(lowered, options), attempts_under(options), failures, logged)
    if artifact is None:
        raise refusal(failures)
    return artifact


def _first_of(
    prepared: Prepared, attempts: Sequence[Attempt], failures: list[Failure], stage: Stage
) -> Artifact | None:
    """Go through the settings of one way; the attempts that fail are appended to `failures`."""
    for attempt in attempts:
        if not follows(attempt, failures):
            continue
        request = replace(prepared.request, setting=attempt.setting or prepared.request.setting)
        with stage(f"IREE compiles for {request.target.name}"):
            try:
                with plan(prepared.lowered, request) as planned:
                    made = generate(planned)
            except PycError as error:
                if not may_be_followed(error):
                    raise
                failures.append(Failure(replace(attempt, setting=request.setting), error))
                continue
        return complete(prepared, made, fallback_reasons(failures, attempt.way))
    return None


def attempts_of(options: Options, choices: Choices) -> tuple[Attempt, ...]:
    """Return all attempts, the preferred one first.

    With a budget, `choices` answers in which way to begin: a recipe repeats the way that kept it
    without those before. Kernels are chosen together where the policy allows it (`co_selects`) and
    no recipe decides, or to repeat such a choice.
    """
    ways = _ways(options)
    names = list(ways)
    if options.contract.memory_budget_bytes is None and _has_larger(options):
        names = [AS_KERNELS_READ, AS_IN_MODEL]
        requested = choices.choose(HELD_SITE, tuple(map(Alternative, names))).name
        forms = [(name, name == AS_IN_MODEL) for name in names[names.index(requested) :]]
        return tuple(
            attempt
            for name, own in forms
            for attempt in attempts_under(replace(options, own_constants=own), name)
        )
    if options.contract.memory_budget_bytes is None or len(names) == 1:
        return attempts_under(options)
    requested = choices.choose(BUDGET_SITE, tuple(map(Alternative, names))).name
    found: list[Attempt] = []
    free = options.recipe is None and getattr(options.policy, "co_selects", False)
    for name in names[names.index(requested) :]:
        if name == CO_SELECTED and not free and name != requested:
            continue
        why = ReasonCode.BUDGET_RETRY if found else None
        found += attempts_under(replace(options, **ways[name]), name, why)
    return tuple(found)


def _has_larger(options: Options) -> bool:
    """Return whether the mode bounds constants, and kernels may have larger ones."""
    kernels = options.kernels != NO_KERNELS and options.target.device == "local"
    # Kernels that check themselves are asked for by a clause, which goes first.
    bound = options.planner_modes[:1] == (SMALLEST,) and not options.contract.detect_faults
    return kernels and bound


def attempts_under(
    options: Options, way: str = "", why: ReasonCode | None = None
) -> tuple[Attempt, ...]:
    """Return the attempts in one way: the chosen setting, then those that are left."""
    settings = (*SETTINGS, UNFUSED)
    rest = (Attempt(options, way, s, ReasonCode.CODEGEN_FALLBACK) for s in settings)
    return (Attempt(options, way, why=why), *rest)


def _ways(options: Options) -> dict[str, dict[str, Any]]:
    """Return changes of the options by the name of the way, the preferred one first."""
    first = (*options.planner_modes, SMALLEST)[0]
    ways: dict[str, dict[str, Any]] = {first: {"parts_for": first}}
    if options.kernels != NO_KERNELS and options.target.device == "local":
        ways[CO_SELECTED] = {"parts_for": SMALLEST, "co_selected": True}
    ways[SMALLEST] = {"parts_for": SMALLEST}
    if options.kernels != NO_KERNELS:
        smallest = {"parts_for": SMALLEST, "kernels": NO_KERNELS}
        ways[f"{SMALLEST}, IREE's code"] = smallest
    return ways


def follows(attempt: Attempt, failures: Sequence[Failure]) -> bool:
    """Return whether an attempt is made after these failures."""
    here = [f for f in failures if f.attempt.way == attempt.way]
    match attempt.why:
        case None:
            return not failures
        case ReasonCode.CODEGEN_FALLBACK:
            tried = {f.attempt.setting for f in here}
            # A budget that the chosen setting does not keep is one for the next way.
            return bool(here) and not _over([here[0]]) and attempt.setting not in tried
        case _:
            return bool(_over(_of_last_way(failures)))


def may_be_followed(error: PycError) -> bool:
    """Return whether the next attempt may follow this error."""
    return isinstance(error, BudgetNotKept) or error.code is ReasonCode.TARGET_COMPILE_FAILED


def refusal(failures: Sequence[Failure]) -> PycError:
    """Return the error that a compile ends with when every attempt failed.

    BudgetNotKept, with the smallest need of all, where the last way has code that does not keep the
    budget; otherwise the first failure of that way.
    """
    last = _of_last_way(failures)
    return _smallest(failures) if _over(last) else last[0].error


def retry_reasons(failures: Sequence[Failure], notes: Sequence[str] = ()) -> list[Reason]:
    """Return why the ways so far were left; `notes` are those of co-selection."""
    return [
        Reason.of(ReasonCode.BUDGET_RETRY, text) for text in (_smallest(failures).message, *notes)
    ]


def _alone(options: Options) -> list[Options]:
    """Return the options of the ways behind co-selection that have kernels."""
    requested = replace(options, co_selected=False)
    ways = _ways(requested)
    behind = list(ways)[list(ways).index(CO_SELECTED) + 1 :]
    return [replace(requested, **ways[name]) for name in behind]


def fallback_reasons(failures: Sequence[Failure], way: str) -> list[Reason]:
    """Return why settings of a way were left, for the decision about fusion."""
    return [_reason(f) for f in failures if f.attempt.way == way]


def _reason(failure: Failure) -> Reason:
    setting, error = failure.attempt.setting, failure.error
    if isinstance(error, BudgetNotKept):
        return Reason.of(ReasonCode.BUDGET_RETRY, f"{setting}: {error.message}")
    # Only IREE's words: the message's location may hold a path, and artifacts carry none.
    return Reason.of(ReasonCode.CODEGEN_FALLBACK, f"{setting}: {error.got}")


def _of_last_way(failures: Sequence[Failure]) -> list[Failure]:
    return [f for f in failures if f.attempt.way == failures[-1].attempt.way]


def _over(failures: Sequence[Failure]) -> list[BudgetNotKept]:
    return [f.error for f in failures if isinstance(f.error, BudgetNotKept)]


def _smallest(failures: Sequence[Failure]) -> BudgetNotKept:
    """Return the refusal with the smallest need of all."""
    return reduce(BudgetNotKept.or_better, _over(failures))
