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
is compiled without them; so is one without the kernels that its self-check blames. What was left,
and why, stands in the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
    plain_instead,
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
class Way:
    """A way to compile: its name, and the options to lower and plan the program with."""

    name: str
    options: Options


@dataclass(frozen=True)
class Failure:
    """The end of a try: in which way, under which setting of fusion, and the error.

    That is no code (TARGET_COMPILE_FAILED), or no plan within the budget (BudgetNotKept).
    """

    way: str
    setting: str
    error: PycError

    @property
    def is_over(self) -> bool:
        """True for an end without a plan within the budget."""
        return isinstance(self.error, BudgetNotKept)


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
    """Return the artifact of the first try that succeeds. Raises as `compile`.

    checks: whether runs have to show that it keeps the contract.
    """
    options, stand_in = job.options, None
    if options.recipe is not None:
        options, stand_in = without_stand_in(options, options.recipe)
    choices = Choices(options.policy, options.recipe)
    made = _Compile(job, stage, choices).artifact(ways_of(options, choices))
    if stand_in is not None:
        made = as_stand_in(made, *stand_in)
    if not checks:
        return made
    try:
        return checked(made, job.options, lambda o: compiled(job.under(o), stage, checks=False))
    except PycError as error:
        other = exact_instead(made, job.options, error) or plain_instead(job.options, error)
        if other is None:
            raise
    return compiled(job.under(other), stage)


def finish(lowered: Lowered, options: Options) -> Artifact:
    """Compile a lowered program by IREE and make its artifact. Raises as `compile`."""
    job = Job(Packed(lowered.code, lowered.entry, is_foreign=True), None, options)
    choices = Choices(options.policy, options.recipe)
    return _Compile(job, logged, choices, lowered).artifact((Way("", options),))


@dataclass
class _Compile:
    """One compile: its log, what failed so far, and what was noted for the log.

    given: the program where it is lowered already. free: seconds without the budget.
    """

    job: Job
    stage: Stage
    choices: Choices
    given: Lowered | None = None
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    free: list[Evidence] = field(default_factory=list)

    def artifact(self, ways: Sequence[Way]) -> Artifact:
        """Go through the ways. Raises as `compile`."""
        for number, way in enumerate(ways):
            made = self._made(way, ways[number + 1 :])
            if made is not None and way.name == AS_KERNELS_READ:
                if (above := _above_reference(made)) is None:
                    return made
                self.choices.record_fallback(HELD_SITE, AS_IN_MODEL, [above])
                self.failures.clear()
            elif made is not None:
                return made
            elif not any(f.way == way.name and f.is_over for f in self.failures):
                break
        # The smallest need of all, where the last way has code that does not keep the budget; else
        # the first failure of that way.
        last = [f for f in self.failures if f.way == self.failures[-1].way]
        raise self._smallest() if any(f.is_over for f in last) else last[0].error

    def _made(self, way: Way, behind: Sequence[Way]) -> Artifact | None:
        before, options = list(self.failures), way.options
        if before and options.co_selected:
            rivals = [other.options for other in behind]
            try:
                with self.stage("PyC chooses kernels and parts together"):
                    options, note = co_selection(self.job.under(options), rivals)
            except PycError as error:
                self.notes.append(error.message)
                self.failures.append(Failure(way.name, "", self._smallest()))
                return None
            self.notes.append(note)
        if before:
            texts = (self._smallest().message, *self.notes)
            why = [Reason.of(ReasonCode.BUDGET_RETRY, text) for text in texts]
            self.choices.record_fallback(BUDGET_SITE, way.name, [*why, *self.free])
        job = replace(self.job, options=options)
        general = self.given or self._lowered(job)
        lowered = general
        if options.plans and self.given is None:
            lowered = specialized(general, job, self.stage)
        made = self._first(way, plan_for(lowered, options, self.choices.log))
        if made is None and lowered.shape_plans:
            lowered = unspecialized(lowered, general, self.failures[-1].error.message)
            self.failures = before
            made = self._first(way, plan_for(lowered, options, self.choices.log))
        return made

    def _lowered(self, job: Job) -> Lowered:
        with self.stage("PyC lowers to linalg"):
            # Under `max_error` the contract's own samples are compared.
            made = lower(job, job.options.check and not job.options.contract.compares)
        if not self.failures and made.prediction is not None:
            self.free.append(WithoutBudget(made.prediction.seconds))
        return made

    def _first(self, way: Way, plan: Plan) -> Artifact | None:
        """Return the artifact under the first setting of fusion that gives code within a budget."""
        first = len(self.failures)
        for setting in dict.fromkeys((plan.setting, *SETTINGS, UNFUSED)):
            with self.stage(f"IREE compiles for {plan.options.target.name}"):
                try:
                    built = build(plan, setting)
                except PycError as error:
                    failure = Failure(way.name, setting, error)
                    if not failure.is_over and error.code is not ReasonCode.TARGET_COMPILE_FAILED:
                        raise
                    self.failures.append(failure)
                    # A budget that the chosen setting does not keep is one for the next way.
                    if self.failures[first].is_over:
                        return None
                    continue
            return complete(built, [_left_for(f) for f in self.failures[first:]])
        return None

    def _smallest(self) -> BudgetNotKept:
        errors = [f.error for f in self.failures if isinstance(f.error, BudgetNotKept)]
        return reduce(BudgetNotKept.or_better, errors)


def _left_for(failure: Failure) -> Reason:
    setting, error = failure.setting, failure.error
    if isinstance(error, BudgetNotKept):
        return Reason.of(ReasonCode.BUDGET_RETRY, f"{setting}: {error.message}")
    # Only IREE's words: the message's location may hold a path, and artifacts carry none.
    return Reason.of(ReasonCode.CODEGEN_FALLBACK, f"{setting}: {error.got}")


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
    return Reason("", f"{ours} bytes with larger constants, {theirs} under IREE's plan")


def ways_of(options: Options, choices: Choices) -> tuple[Way, ...]:
    """Return the ways to compile, the preferred one first.

    Where there are several `choices` answers in which to begin: a recipe repeats the way that kept
    the budget without those before. Kernels are chosen together where the policy allows it
    (`co_selects`) and no recipe decides, or to repeat such a choice.
    """
    has_kernels = options.kernels != NO_KERNELS
    on_cpu = has_kernels and options.target.device == "local"
    site, changes = BUDGET_SITE, dict[str, dict[str, Any]]()
    if options.contract.memory_budget_bytes is not None:
        first = (*options.planner_modes, SMALLEST)[0]
        changes[first] = {"parts_for": first}
        if on_cpu:
            changes[CO_SELECTED] = {"parts_for": SMALLEST, "co_selected": True}
        changes[SMALLEST] = {"parts_for": SMALLEST}
        if has_kernels:
            changes[f"{SMALLEST}, IREE's code"] = {"parts_for": SMALLEST, "kernels": NO_KERNELS}
    # The mode bounds constants, and kernels may have larger ones. Kernels that check themselves are
    # asked for by a clause, which goes first.
    elif on_cpu and options.planner_modes[:1] == (SMALLEST,) and not options.contract.detect_faults:
        site = HELD_SITE
        changes = {AS_KERNELS_READ: {}, AS_IN_MODEL: {"own_constants": True}}
    if len(changes) < 2:
        return (Way("", options),)
    names = list(changes)
    requested = choices.choose(site, tuple(map(Alternative, names))).name
    free = options.recipe is None and options.policy.co_selects
    return tuple(
        Way(name, replace(options, **changes[name]))
        for name in names[names.index(requested) :]
        if name != CO_SELECTED or free or name == requested
    )
