"""The loop that may compile again: attempts in order, and the rules by which one follows another.

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
compiled again without such kernels (`HELD_SITE`). Functions for certain shapes that no setting has
code for are left out, and a program whose approximate products are what its comparison finds wrong
is compiled without them. What was left, and why, stands in the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.build import (
    SETTINGS,
    UNFUSED,
    Plan,
    build,
    co_selection,
    complete,
    plan_for,
)
from pyc_mlir.compilation.contract_check import (
    as_stand_in,
    checked,
    exact_instead,
    with_requested_options,
    without_stand_in,
)
from pyc_mlir.compilation.job import Job, record_stage, stage_of_recipe
from pyc_mlir.compilation.lower import Lowered, lower
from pyc_mlir.compilation.options import NO_KERNELS, Options
from pyc_mlir.compilation.specialize import specialized, unspecialized
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.sources import Packed
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
    does not keep the budget, NO_SHAPE_PLANS after functions for certain shapes that gave none.
    """

    options: Options
    way: str
    setting: str | None = None
    why: ReasonCode | None = None


@dataclass(frozen=True)
class Failure:
    """An attempt, its setting filled in, and its end: no code (TARGET_COMPILE_FAILED), or no plan
    within the budget (BudgetNotKept). specialized: it had functions for certain shapes."""

    attempt: Attempt
    error: PycError
    specialized: bool = False


def build_here(job: Job, stage: Stage = logged) -> Artifact:
    """Compile in this process, without a cache or a limit of time. Raises as `compile`."""
    options = job.options
    if options.target.device == "local":
        require_room()
    if options.recipe is None:
        return with_requested_options(compiled(job, stage), options)
    at, decision = stage_of_recipe(options)
    made = compiled(job.under(at), stage)
    made = made if decision is None else record_stage(made, decision)
    return with_requested_options(made, options)


def compiled(job: Job, stage: Stage = logged, checks: bool = True) -> Artifact:
    """Return the artifact of the first attempt that succeeds. Raises as `compile`.

    checks: whether runs have to show that it keeps the contract.
    """
    return _Run(job, stage, checks).artifact()


def finish(lowered: Lowered, options: Options) -> Artifact:
    """Compile a lowered program by IREE and make its artifact. Raises as `compile`."""
    job = Job(Packed(lowered.code, lowered.entry, is_foreign=True), None, options)
    return _Run(job, logged, False, lowered).artifact()


class _Run:
    """One compile: the attempts that are left, and how those before ended."""

    def __init__(
        self, job: Job, stage: Stage, checks: bool, lowered: Lowered | None = None
    ) -> None:
        self._stage, self._checks, self._given = stage, checks, lowered
        self._begin(job)

    def _begin(self, job: Job) -> None:
        """Compile a job from the first attempt on."""
        self._asked = job
        options, self._stand_in = job.options, None
        if options.recipe is not None:
            options, self._stand_in = without_stand_in(options)
        self._choices = Choices(options.policy, options.recipe)
        lowered = self._given is not None
        found = attempts_under(options) if lowered else attempts_of(options, self._choices)
        self._left = list(found)
        self._failures: list[Failure] = []
        # Failures of the ways before the one that is tried.
        self._earlier: list[Failure] = []
        self._notes: list[str] = []
        self._free: list[Evidence] = []
        self._plan: Plan | None = None
        self._general: Lowered | None = None

    def artifact(self) -> Artifact:
        """Go through the attempts. Raises as `compile`."""
        while self._left:
            attempt = self._left.pop(0)
            if follows(attempt, self._failures) and (made := self._end_of(attempt)) is not None:
                return made
        raise refusal(self._failures)

    def _end_of(self, attempt: Attempt) -> Artifact | None:
        """Return the artifact of an attempt; None where others are left to follow it."""
        if attempt.setting is None:
            self._plan = self._planned(attempt)
        if self._plan is None:
            return None
        setting = attempt.setting or self._plan.setting
        with self._stage(f"IREE compiles for {attempt.options.target.name}"):
            try:
                built = build(self._plan, setting)
            except PycError as error:
                if not may_be_followed(error):
                    raise
                plans = bool(self._plan.lowered.shape_plans)
                tried = replace(attempt, setting=setting)
                self._failures.append(Failure(tried, error, plans))
                return None
        made = complete(built, fallback_reasons(self._failures, attempt.way))
        if attempt.way == AS_KERNELS_READ and (above := _above_reference(made)) is not None:
            self._choices.record_fallback(HELD_SITE, AS_IN_MODEL, [above])
            self._left = [a for a in self._left if a.way != attempt.way]
            self._failures.clear()
            return None
        return self._kept(made)

    def _planned(self, attempt: Attempt) -> Plan | None:
        """Return the plan that the attempts of a way share; None where it has none."""
        if attempt.why is ReasonCode.NO_SHAPE_PLANS:
            assert self._plan is not None and self._general is not None, "the first of its way"
            why = self._failures[-1].error.message
            lowered = unspecialized(self._plan.lowered, self._general, why)
            self._failures = self._earlier
            return plan_for(lowered, self._plan.options, self._choices.log)
        job = replace(self._asked, options=attempt.options)
        if job.options.co_selected and self._failures:
            try:
                with self._stage("PyC chooses kernels and parts together"):
                    options, note = co_selection(job, _alone(job.options))
            except PycError as error:
                self._notes.append(error.message)
                self._failures.append(Failure(attempt, _smallest(self._failures)))
                return None
            job = job.under(options)
            self._notes.append(note)
        if self._failures:
            reasons = [*retry_reasons(self._failures, self._notes), *self._free]
            self._choices.record_fallback(BUDGET_SITE, attempt.way, reasons)
        self._general, lowered = self._lowered(job)
        self._earlier = list(self._failures)
        return plan_for(lowered, job.options, self._choices.log)

    def _lowered(self, job: Job) -> tuple[Lowered, Lowered]:
        """Lower a job: without functions for certain shapes, and with them."""
        if self._given is not None:
            return self._given, self._given
        with self._stage("PyC lowers to linalg"):
            # Under `max_error` the contract's own samples are compared.
            general = lower(job, job.options.check and not job.options.contract.compares)
        if not self._failures and general.prediction is not None:
            self._free.append(WithoutBudget(general.prediction.seconds))
        return general, specialized(general, job, self._stage)

    def _kept(self, made: Artifact) -> Artifact | None:
        """Return an artifact that keeps the contract.

        Raises PycError where it does not; None where it is compiled again, more exactly.
        """
        if self._stand_in is not None:
            made = as_stand_in(made, *self._stand_in)
        if not self._checks:
            return made
        options = self._asked.options
        try:
            return checked(made, options, self._again)
        except PycError as error:
            exact = exact_instead(made, options, error)
            if exact is None:
                raise
        self._begin(self._asked.under(exact))
        return None

    def _again(self, options: Options) -> Artifact:
        """Compile the program under other options, for comparisons and in its place."""
        return compiled(self._asked.under(options), self._stage, checks=False)


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
    free = options.recipe is None and options.policy.co_selects
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
    others = [Attempt(options, way, s, ReasonCode.CODEGEN_FALLBACK) for s in (*SETTINGS, UNFUSED)]
    found = [Attempt(options, way, why=why), *others]
    if options.plans:
        found += [Attempt(options, way, why=ReasonCode.NO_SHAPE_PLANS), *others]
    return tuple(found)


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
        case ReasonCode.NO_SHAPE_PLANS:
            return bool(here) and here[-1].specialized
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
