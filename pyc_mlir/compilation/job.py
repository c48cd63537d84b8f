"""A compile as one frozen record, and its stages under a time limit.

A `Job` is what the cache's key, the workers and the compile itself take. From what was requested to
the least work, its stages are

    requested  the options as they are: recipe, policy, every mode that is wanted
    default    PyC's own choices for one plan, `balanced`
    cheapest   what compiles fastest: IREE plans the memory, one entry, plain fusion

A stage is a change of the options, and its name a decision at the site `compile-stage`; a recipe
that has the site repeats the stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.options import Options
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.frontends.sources import Inputs, Loaded, Source
from pyc_mlir.pipelines.choices.choices import (
    Alternative,
    Choices,
    Decision,
    FirstIsBest,
    Policy,
    Site,
)
from pyc_mlir.pipelines.choices.contract import NO_FALLBACK, OTHER_PLANS, Contract
from pyc_mlir.pipelines.choices.policies import DEFAULT_MODE


@dataclass(frozen=True)
class Job:
    """A source, its inputs and the options to compile it with.

    settled: sizes of dynamic dimensions, for a plan of certain shapes.
    """

    source: Source
    inputs: Inputs
    options: Options
    settled: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(source: Any, inputs: Inputs, options: Options) -> "Job":
        """Return the job of what a user gives. Raises PycError as `Source.of`."""
        reading = options.islands, options.function, options.outputs
        ranges = tuple(options.ranges.items())
        return Job(Source.of(source, *reading, ranges), inputs, options)

    @property
    def shapes(self) -> Sequence[Any] | None:
        """The inputs that refine dynamic dimensions; None where the source takes the inputs."""
        if self.source.takes_inputs or self.inputs is None:
            return None
        return list(self.inputs)

    def under(self, options: Options) -> "Job":
        """Return the job under other options."""
        return replace(self, options=options)

    def load(self, context: ir.Context) -> Loaded:
        """Read the source into `context`. Raises as `Source.load`."""
        return self.source.load(self.inputs, context)

    def loaded(self, source: Loaded) -> "Job":
        """Return the job of the source as it was loaded."""
        return Job(source, self.shapes, self.options)


SECONDS_CLAUSE = "max_compile_seconds"


def at_stage(options: Options, stage: str) -> Options:
    """Return what a stage leaves of `options`: target, contract, ranges, families, flags stay.

    Plans that the contract needs stay too: those of its fallback `modes`, and PyC's own where it
    has a memory budget.
    """
    if stage == REQUESTED:
        return options
    also = options.also_modes if OTHER_PLANS in options.contract.fallbacks else ()
    if stage == DEFAULT:
        modes = (DEFAULT_MODE,) if options.planner_modes else ()
        policy = FirstIsBest()
    else:
        assert stage == CHEAPEST, stage
        planned = also or options.contract.memory_budget_bytes is not None
        modes = (DEFAULT_MODE,) if planned else ()
        policy = FirstIsBest() if planned else FewestSteps()
    return replace(
        options,
        policy=policy,
        recipe=None,
        planner_modes=modes,
        also_modes=tuple(m for m in also if (m,) != modes),
        plans="",
    )


def stages_below(options: Options) -> tuple[str, ...]:
    """Return the stages that may stand in for what was asked, the cheapest first.

    Strict determinism and `fallbacks = none` have no stages: a clock decides nothing there. Nor
    has a recipe that names its stage.
    """
    contract, recipe = options.contract, options.recipe
    if recipe is not None and STAGE_SITE.key in recipe.choices:
        return ()
    if takes_no_overrun(contract):
        return ()
    found: dict[str, Options] = {}
    for stage in (CHEAPEST, DEFAULT):
        changed = at_stage(options, stage)
        if _differs(changed, options) and all(_differs(changed, o) for o in found.values()):
            found[stage] = changed
    return tuple(found)


def takes_no_overrun(contract: Contract) -> bool:
    """Return whether every overrun of the limit is refused."""
    return contract.is_strict or NO_FALLBACK in contract.fallbacks


def _differs(a: Options, b: Options) -> bool:
    fields = ("policy", "recipe", "planner_modes", "also_modes", "plans")
    return any(getattr(a, f) != getattr(b, f) for f in fields)


def stage_of_recipe(options: Options) -> tuple[Options, Decision | None]:
    """Return the options of the stage that a recipe names, and the decision for it.

    Raises PycError (RECIPE_MISMATCH) for a stage that does not exist.
    """
    recipe = options.recipe
    if recipe is None or STAGE_SITE.key not in recipe.choices:
        return options, None
    choices = Choices(options.policy, recipe)
    stage = choices.choose(STAGE_SITE, OFFERED).name
    others = {site: choice for site, choice in recipe.choices.items() if site != STAGE_SITE.key}
    at = replace(at_stage(options, stage), recipe=replace(recipe, choices=others))
    return at, choices.log[0]


def record_stage(artifact: Artifact, decision: Decision) -> Artifact:
    """Record in decisions and report that an artifact is of another stage than the asked one."""
    decisions, report = (decision, *artifact.decisions), artifact.contract_report
    clauses = [
        replace(c, code=ReasonCode.COMPILE_DEGRADED.name, evidence=decision.grounds)
        for c in report.clauses
        if c.clause == SECONDS_CLAUSE
    ]
    changed = report.updated(clauses).unmeasured()
    return replace(artifact.noted(contract_report=changed), decisions=decisions)


def is_degraded(artifact: Artifact) -> bool:
    """Return whether a clock had a say in what the artifact is."""
    code = ReasonCode.COMPILE_DEGRADED.name
    return any(
        c.clause == SECONDS_CLAUSE and c.code == code for c in artifact.contract_report.clauses
    )


REQUESTED, DEFAULT, CHEAPEST = "requested", "default", "cheapest"
STAGE_SITE = Site("compile-stage", "module")
REASONS = {
    REQUESTED: "the options as they are",
    DEFAULT: "no recipe, the policy `heuristic`, one balanced plan",
    CHEAPEST: "IREE's memory plan, one entry, plain fusion",
}
OFFERED = tuple(Alternative(name, reason=reason) for name, reason in REASONS.items())
# Answers of sites that have others which take longer to compile.
_FEWEST_STEPS = {"arena-entry": "none", "iree-fusion": "plain"}


@dataclass(frozen=True)
class FewestSteps(Policy):
    """A policy that prefers what compiles fastest, and else what passes list first."""

    name: str = CHEAPEST

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """Return the quickest answer's name."""
        names = [a.name for a in alternatives]
        quickest = _FEWEST_STEPS.get(site.pass_name)
        return quickest if quickest in names else names[0]
