"""The executions of a pyc program that no other one beats, as recipes that `compile` accepts.

    explored = explore(Job.of(model, inputs, options), wisdom)
    explored.best.to_bytes()                    # a file for compile(recipe=...)

Comes in: what `lower` takes, and evidence. Goes out: recipes of the Pareto set on (seconds, bytes).
Three searches stand one within the other, each lazy:

1. Structure: which composites stay whole, what is fused, in which layout regions lie, how regions
   are cut. Another choice there gives other sites further on, so the program is lowered again: best
   first by what is predicted, each structure once, at most `ExploreLimits.lowerings` times.
2. Kernels of one lowered program: seconds and bytes are sums over its sites, so the best choice of
   each site gives the quickest and the smallest program. Seconds are the simulator's, measured
   where wisdom has rows. Bytes are what kernels are predicted to keep: they rank.
3. Memory: the planner's modes on the quickest and the smallest of those, by IREE's phases up to the
   plan, without code generation: exact bytes.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from pyc_mlir.artifact.memory import MemoryReport, from_bytes
from pyc_mlir.compilation.build import plan_only
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import Lowered, lower
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.simulation.residuals import Residuals
from pyc_mlir.lab.simulation.simulator import (
    MEASURED,
    NOTES,
    PREDICTED,
    PricedProgram,
    PricedSite,
    Simulator,
    priced,
    priced_parts,
)
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Recipe
from pyc_mlir.pipelines.choices.evidence import EstimatedSeconds, ExploredStructures
from pyc_mlir.pipelines.choices.log import ExpectedCall, RecipeFile
from pyc_mlir.pipelines.choices.policies import PLANNER_MODES, Fastest
from pyc_mlir.pipelines.choices.wisdom import Wisdom

EXPLORE = "explore"
# Passes whose choices decide which kernels there are. What IREE is told has no price.
STRUCTURE = ("pyc-recognize", "pyc-fold-norms", "pyc-layout", "pyc-chunk", "pyc-fuse")

# By how much another recipe has to be quicker than the compile's own.
MARGIN = 0.05


@dataclass(frozen=True)
class ExploreLimits:
    """The limits of a search: programs lowered, and programs whose memory is planned."""

    lowerings: int = 12
    plans: int = 2


@dataclass(frozen=True)
class Explored:
    """The recipes found, by ascending seconds, none beaten by another on (seconds, bytes).

    own: what the compile chooses by itself. unknown: works without a row of here, those first on
    which most predicted seconds rest. lowerings: how many structures were looked at.
    """

    recipes: tuple[RecipeFile, ...]
    own: RecipeFile
    unknown: tuple[str, ...]
    lowerings: int

    @property
    def best(self) -> RecipeFile:
        """The quickest."""
        return self.recipes[0]

    def chosen(self, budget: int | None = None) -> RecipeFile:
        """Return the quickest of at most so many bytes, or else the smallest.

        `own` stands as long as it fits, unless another one is clearly quicker (`_is_clear`).
        """
        most = float("inf") if budget is None else budget
        fitting = [r for r in self.recipes if budget is None or _point(r)[1] <= most]
        best = fitting[0] if fitting else self.recipes[-1]
        fits = budget is None or _point(self.own)[1] <= most
        return self.own if fits and not _is_clear(best, self.own) else best


@dataclass(frozen=True)
class Variant:
    """One structure: its choices, the lowered program, and its quickest kernels."""

    structure: Mapping[str, str]
    lowered: Lowered
    simulator: Simulator
    kernels: Mapping[str, str]
    seconds: float


@dataclass
class Explorer:
    """The searches over one program; `lowerings` counts what was done."""

    job: Job
    wisdom: Wisdom
    residuals: Residuals
    lowerings: int = 0

    def variants(self, most: int) -> Iterator[Variant]:
        """Structures, best first: the compile's own, then those that differ in one choice more.

        At most so many.
        """
        first = self._variant({})
        number, seen = count(), {_key(first.structure)}
        asked: set[tuple[tuple[str, str], ...]] = {()}
        waiting = [(first.seconds, next(number), first)]
        while waiting:
            _, _, variant = heapq.heappop(waiting)
            yield variant
            for structure in _neighbours(variant):
                if _key(structure) in asked | seen:
                    continue
                if self.lowerings >= most:
                    return
                asked.add(_key(structure))
                found = self._variant(structure)
                if _key(found.structure) not in seen:
                    seen.add(_key(found.structure))
                    heapq.heappush(waiting, (found.seconds, next(number), found))

    def _variant(self, structure: Mapping[str, str]) -> Variant:
        """Lower the program under these choices of structure; the policy makes the others."""
        self.lowerings += 1
        recipe = Recipe(dict(structure), tolerant=True)
        lowered = lower(self.job.under(replace(self.job.options, recipe=recipe)))
        program = priced(lowered, self.job.options.target)
        simulator = Simulator.of(program, self.wisdom, self.residuals)
        quickest = quickest_kernels(simulator, clear=True)
        chosen = {d.site.key: d.chosen for d in lowered.decisions if d.site.pass_name in STRUCTURE}
        return Variant(chosen, lowered, simulator, quickest, simulator.estimate(quickest).seconds)

    def planned(self, variant: Variant, kernels: Mapping[str, str]) -> Iterator[RecipeFile]:
        """Yield a recipe for each memory plan of a program with these kernels, with its exact
        bytes.
        """
        recipe = Recipe({**variant.structure, **kernels}, tolerant=True)
        options = replace(self.job.options, recipe=recipe)
        if options.planner_modes:
            modes = tuple(dict.fromkeys((*options.planner_modes, *PLANNER_MODES)))
            options = replace(options, planner_modes=modes)
        lowered = lower(self.job.under(options))
        try:
            made = plan_only(lowered, options)
        except PycError as error:
            if error.code is not ReasonCode.TARGET_COMPILE_FAILED:
                raise
            yield self._file(lowered, lowered.decisions, priced(lowered, options.target), {})
            return
        report = from_bytes(made.memory) if made.memory else MemoryReport()
        decisions, target = made.decisions, options.target
        program = priced_parts(lowered.graph_id, decisions, made.account, report, target)
        # First the compile's own plan.
        yield self._file(lowered, decisions, program, {})
        for choice in dict.fromkeys(n for site in program.plans for n in site.costs):
            plans = {s.site.key: choice for s in program.plans if choice in s.costs}
            if any(s.chosen != choice for s in program.plans if s.site.key in plans):
                yield self._file(lowered, decisions, program, plans)

    def _file(
        self,
        lowered: Lowered,
        decisions: Sequence[Decision],
        program: PricedProgram,
        plans: Mapping[str, str],
    ) -> RecipeFile:
        found = Simulator.of(program, self.wisdom, self.residuals).estimate(plans)
        made = [d for d in decisions if d.site.pass_name not in NOTES]
        chosen = [replace(d, chosen=plans.get(d.site.key, d.chosen)) for d in made]
        # The evidence of each choice between several.
        prices = {site.site: site.price for site in found.sites}
        total = ExploredStructures(self.lowerings, found.seconds)
        grounds = {
            key: (EstimatedSeconds(p.seconds, p.grounds == MEASURED, p.why) if p else total,)
            for key, p in (
                (d.site.key, prices.get(d.site.key)) for d in made if len(d.alternatives) > 1
            )
        }
        return RecipeFile(
            lowered.graph_id,
            {d.site.key: d.chosen for d in chosen},
            Recipe.from_log(chosen).works,
            EXPLORE,
            grounds,
            ExpectedCall(
                found.seconds, found.lo, found.hi, found.measured, found.bytes, found.exact
            ),
            self.wisdom.label if self.wisdom.rows else "",
        )


def explore(
    job: Job,
    wisdom: Wisdom | None = None,
    residuals: Residuals | None = None,
    effort: ExploreLimits = ExploreLimits(),
) -> Explored:
    """Return the Pareto set of executions of a program on (seconds, bytes), as recipes.

    job: the compile that the recipes are for; a recipe of its own is left out.
    wisdom, residuals: what seconds rest on, see `simulate`. Deterministic; nothing is measured, and
    no code is generated. Raises as a compile up to its memory plan.
    """
    own = job.under(replace(job.options, recipe=None))
    asked = Explorer(own, wisdom or Wisdom(), residuals or Residuals())
    variants = list(asked.variants(effort.lowerings))
    first, *_ = found = list(asked.planned(variants[0], {}))
    variants.sort(key=lambda v: v.seconds)
    for variant in variants[: effort.plans]:
        kernels = (variant.kernels, smallest_kernels(variant.simulator))
        for some in {_key(one): one for one in kernels}.values():
            found += asked.planned(variant, some)
    return Explored(tuple(_undominated(found)), first, _unknown(variants), asked.lowerings)


def quickest_kernels(simulator: Simulator, clear: bool = False) -> dict[str, str]:
    """Return {site: choice} with the fewest seconds; of equals the one that keeps fewer bytes.

    clear: only choices that the policy `fastest` may take: a row that is not beyond the interval of
    another one decides nothing.
    """
    return _cheapest(simulator, clear, lambda seconds, kept: (seconds, kept))


def smallest_kernels(simulator: Simulator) -> dict[str, str]:
    """Return {site: choice} that keeps the fewest bytes; of equals the quickest."""
    return _cheapest(simulator, False, lambda seconds, kept: (kept, seconds))


def _cheapest(
    simulator: Simulator, clear: bool, rank: Callable[[float, int], tuple[float, float]]
) -> dict[str, str]:
    """Return the choice of least rank at each site: costs of sites add up."""

    def of_choice(site: PricedSite, choice: str) -> tuple[float, float]:
        cost = site.costs[choice.partition("[")[0]]
        seconds = simulator.price(site, choice).seconds
        return rank(seconds, cost.constant_bytes + cost.workspace_bytes)

    return {
        site.site.key: min(_offered(simulator, site, clear), key=lambda c: of_choice(site, c))
        for site in simulator.program.kernels
    }


def _offered(simulator: Simulator, site: PricedSite, clear: bool) -> Iterable[str]:
    """Return what is offered, and variants that were measured here; or those that are clear."""
    here = simulator.here
    judge = Fastest(simulator.wisdom, here.hardware, here.toolchain)
    variants = [v for v in judge.variants(site.site) if v.partition("[")[0] in site.costs]
    choices = list(dict.fromkeys((*site.costs, *variants)))
    judged = judge.judge(site.site, [Alternative(choice) for choice in choices])
    rows = any(simulator.price(site, c).grounds == MEASURED for c in choices)
    return (judged.chosen,) if clear and rows else choices


def _key(structure: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(structure.items()))


def _neighbours(variant: Variant) -> Iterator[dict[str, str]]:
    """Structures that differ in one choice, those first whose choice is predicted to cost least."""
    found = []
    for site in variant.simulator.program.structure:
        before = site.costs[site.chosen]
        for choice, cost in site.costs.items():
            if choice != site.chosen and site.site.pass_name in STRUCTURE:
                seconds, moved = cost.seconds, cost.traffic_bytes
                more = (seconds - before.seconds, moved - before.traffic_bytes)
                found.append((more, site.site.key, choice))
    return ({**variant.structure, key: choice} for _, key, choice in sorted(found))


def _is_clear(file: RecipeFile, own: RecipeFile) -> bool:
    """Return whether a recipe is expected to be quicker than the compile's own beyond doubt.

    Of predictions by one model differences below `MARGIN` are within their error. Where `own` rests
    on measurements for a larger share, errors are independent: the intervals must not touch.
    """
    new, old = file.estimate, own.estimate
    assert new is not None
    assert old is not None
    if new.measured * old.seconds < old.measured * new.seconds:
        return new.hi < old.lo
    return new.seconds < (1 - MARGIN) * old.seconds


def _point(file: RecipeFile) -> tuple[float, float]:
    """Return seconds and bytes of a recipe; unknown bytes are the most."""
    assert file.estimate is not None
    size = file.estimate.bytes
    return file.estimate.seconds, float("inf") if size is None else size


def _undominated(files: Iterable[RecipeFile]) -> list[RecipeFile]:
    """Return them by ascending seconds, each with fewer bytes than those before."""
    kept: list[RecipeFile] = []
    for file in sorted(files, key=lambda f: (_point(f), _key(f.choices))):
        if not kept or _point(file)[1] < _point(kept[-1])[1]:
            kept.append(file)
    return kept


def _unknown(variants: Sequence[Variant]) -> tuple[str, ...]:
    """Works of the quickest structures without a row, the one of most seconds first."""
    seconds: dict[str, float] = {}
    for variant in variants:
        estimate = variant.simulator.estimate(variant.kernels)
        for site in estimate.sites:
            if site.price.grounds == PREDICTED and site.work:
                seconds[site.work] = max(seconds.get(site.work, 0.0), site.price.seconds)
    return tuple(sorted(seconds, key=lambda work: (-seconds[work], work)))
