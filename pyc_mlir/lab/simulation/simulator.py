"""Estimates of a program under recipes: sums of its kernels' seconds, and its bytes.

    simulate(artifact, {"pyc-select-kernels:matmul.07b2a4fa968f2466": "iree"}) -> Estimate

Comes in: a compiled or lowered program, a recipe, wisdom. Goes out: an `Estimate`. Nothing is
compiled or measured. For many recipes of one program make one `Simulator`: it prices each
alternative once. docs/simulation.md says what is exact, and how good estimates were found to be.

Bytes under another memory plan follow from the sizes that the compile recorded:

    transients' = transients + (bytes of the other plan - bytes of the plan that was chosen)

A log states for each plan of a region what that region allocates under it, carried out on the IR.
The equation is exact where one region decides, which `_bytes` checks:

- the recipe changes memory plans alone: another kernel may write in place where this one does not,
  so the region would have another problem;
- all sizes are known, and the call has one region;
- a call of the arena entry still needs no more than one of the plain entry, or a compile would
  leave the arena entry out.

Elsewhere the bytes of the program as it is are given, and are not exact.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.rows import COLD, WARM
from pyc_mlir.lab.simulation.estimate import (
    MEASURED,
    PREDICTED,
    Estimate,
    ExecutionContext,
    Overheads,
    Price,
    SiteEstimate,
    Total,
    on_threads,
)
from pyc_mlir.lab.simulation.program import NOTES, PricedProgram, PricedSite, priced
from pyc_mlir.lab.simulation.residuals import COVERAGE, MEASURED_SCALE, Residuals, Width, family_of
from pyc_mlir.measure.environment import current_place
from pyc_mlir.pipelines.choices.choices import Recipe
from pyc_mlir.pipelines.choices.wisdom import Wisdom, WisdomRow
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel

if TYPE_CHECKING:
    from pyc_mlir.compilation.lower import Lowered

AS_COMPILED = "as the compile states it"
# An interval of five or more processes' medians is about so many deviations to each side.
_DEVIATIONS = 2.0
# Wider intervals say nothing, and their ends are no numbers any more.
_WIDEST = 100.0


@dataclass(frozen=True)
class Simulator:
    """Estimates for one program.

    here: whose rows are answers; coverage: of the intervals. A recipe's sites may be given as
    ``pass:op``, as ``pass:work`` or as ``pass``, in which case all sites of the pass that offer the
    choice take it.
    """

    program: PricedProgram
    wisdom: Wisdom = field(default_factory=Wisdom)
    here: ExecutionContext = field(default_factory=ExecutionContext)
    residuals: Residuals = field(default_factory=Residuals)
    overheads: Overheads = field(default_factory=Overheads)
    coverage: float = COVERAGE

    @staticmethod
    def of(
        program: "Artifact | Lowered | PricedProgram",
        wisdom: Wisdom | None = None,
        residuals: Residuals | None = None,
        threads: int = 1,
    ) -> "Simulator":
        """Return a simulator for this machine and toolchain. Raises as `priced`."""
        place = current_place()
        numbers = program if isinstance(program, PricedProgram) else priced(program)
        here = ExecutionContext(place.hardware, place.toolchain, threads)
        residuals = residuals or Residuals()
        overheads = Overheads(
            residuals.call_seconds(here.environment),
            CostModel(numbers.target).dispatch_seconds,
            join_seconds=residuals.join_seconds(here.environment),
        )
        return Simulator(numbers, wisdom or Wisdom(), here, residuals, overheads)

    def estimate(self, recipe: Recipe | Mapping[str, str] | None = None) -> Estimate:
        """Estimate the program by a recipe; sites that it lacks keep the program's choice.

        Raises PycError (RECIPE_MISMATCH) for a site that the program does not have, and for a
        choice that is not offered there.
        """
        changed = self._changes(recipe)
        kernels = [
            self._site(one, changed.get(one.site.key, one.chosen)) for one in self.program.kernels
        ]
        others, notes = self._others(changed)
        total = Total.of([*(site.price for site in kernels), *others])
        overhead = self.overheads.call_seconds
        overhead += self.overheads.join_seconds * max(0, len(kernels) - 1)
        overhead += self.overheads.wake_seconds if self.here.threads != 1 else 0.0
        seconds = total.measured + total.predicted + overhead
        width = self._width
        factor = math.exp(min(width.deviations * total.scale, _WIDEST))
        return Estimate(
            seconds,
            seconds / factor,
            seconds * factor,
            *self._bytes(changed),
            self.coverage,
            width,
            total.measured,
            total.predicted,
            overhead,
            tuple(kernels),
            notes,
        )

    def price(self, site: PricedSite, choice: str) -> Price:
        """Return the price of a kernel by one of its alternatives."""
        return self._site(site, choice).price

    @cached_property
    def _width(self) -> Width:
        return self.residuals.width(self.here.environment, self.coverage)

    def _price(self, site: PricedSite, choice: str) -> Price:
        """Return the seconds of a kernel: measured where wisdom has rows of here, else predicted.

        All rows of one program are of one clock and one context, so that they may be added; of
        several alike that of most sessions counts.
        """
        rows = [row for row in self._rows(site) if (row.clock, row.context) == self._clock]
        rows.sort(key=lambda row: (row.sessions, row))
        found = {row.constants: row for row in rows if row.choice == choice}
        if found:
            return self._measured(found)
        cost = site.costs.get(choice) or site.costs[choice.partition("[")[0]]
        return self._predicted(cost, family_of(choice))

    @cached_property
    def _clock(self) -> tuple[str, str] | None:
        """The clock and context with rows of most sites; CPU time of equals; or None."""
        counts: Counter[tuple[str, str]] = Counter()
        for site in self.program.kernels:
            counts.update({(row.clock, row.context) for row in self._rows(site)})
        return max(sorted(counts), key=lambda c: counts[c], default=None)

    @property
    def _warm_share(self) -> float:
        """The share of what a call works on that the last-level cache keeps between calls."""
        target, account = self.program.target, self.program.account
        cache = target.l3_bytes or target.l2_bytes
        used = (account.constants or 0) + (account.scratch or 0)
        return min(1.0, cache / used) if used else 1.0

    def _rows(self, site: PricedSite) -> Iterable[WisdomRow]:
        known = self.wisdom.about(site.site.pass_name, site.site.op_id, site.site.work)
        here = (self.here.hardware, self.here.toolchain)
        return (row for row in known if (row.hardware, row.toolchain) == here)

    def _measured(self, rows: dict[str, WisdomRow]) -> Price:
        """Return a row with warm and one with cold constants mixed, or the only one there is.

        By the share of the program's constants that its last-level cache holds.
        """
        share = self._warm_share if len(rows) > 1 else float(WARM in rows)
        parts = [(share, rows.get(WARM)), (1.0 - share, rows.get(COLD))]
        used = [(weight, row) for weight, row in parts if row is not None and weight > 0]
        seconds = sum(weight * row.seconds for weight, row in used)
        least = sum(weight * row.lo for weight, row in used)
        most = sum(weight * row.hi for weight, row in used)
        scale = max(math.log(most / least) / (2 * _DEVIATIONS), MEASURED_SCALE)
        own = max(seconds - self.overheads.call_seconds, 0.0)
        told = " and ".join(f"{weight:.0%} {row.constants}" for weight, row in used)
        return Price(own, scale, MEASURED, f"{told} [{self.wisdom.label}]")

    def _predicted(self, cost: Cost, family: str) -> Price:
        """Return the cost model's seconds on the threads of here, times the family's known bias."""
        environment = self.here.environment
        bias = self.residuals.bias(environment, family)
        seconds = bias * on_threads(cost, self.program, self.here.threads)
        why = f"x{bias:.2f} of {family}" if bias != 1 else "cost model"
        scale = self.residuals.spread(environment, family)
        return Price(seconds + self.overheads.dispatch_seconds, scale, PREDICTED, why)

    @cached_property
    def _known(self) -> dict[tuple[str, str], SiteEstimate]:
        return {}

    def _site(self, one: PricedSite, choice: str) -> SiteEstimate:
        key = (one.site.key, choice)
        if key not in self._known:
            price, before = (self._price(one, c) for c in (choice, one.chosen))
            self._known[key] = SiteEstimate(one.site.key, one.site.work, choice, price, before)
        return self._known[key]

    def _others(self, changed: Mapping[str, str]) -> tuple[list[Price], tuple[str, ...]]:
        """Prices of what no kernel site says, and what of the recipe has none."""
        prices = [self._fixed] if self._fixed.seconds else []
        notes = []
        plans = [one for one in self.program.plans if one.site.key in self.program.entry]
        for one in (*plans, *self.program.structure):
            choice = changed.get(one.site.key, one.chosen)
            if choice == one.chosen:
                continue
            more = self._more(one.costs[choice]) - self._more(one.costs[one.chosen])
            prices.append(replace(self._fixed, seconds=more))
            if not more:
                notes.append(f"{one.site.key}: {one.chosen} -> {choice} has no price")
        return prices, tuple(notes)

    def _more(self, cost: Cost) -> float:
        """Return the seconds of an alternative that is no kernel: its own, else those of its
        traffic.
        """
        return cost.seconds or self._model.moving(cost.traffic_bytes)

    @cached_property
    def _model(self) -> CostModel:
        return CostModel(self.program.target)

    @cached_property
    def _fixed(self) -> Price:
        scale = self.residuals.spread(self.here.environment, "iree")
        return Price(self.program.other_seconds, scale, PREDICTED, "copies and fills")

    def _bytes(self, changed: Mapping[str, str]) -> tuple[int | None, bool, str]:
        """Return the bytes under a recipe, whether they are exact, and on what grounds.

        changed: its choices that are not the program's.
        """
        program = self.program
        total, transients = program.account.total(), program.account.scratch or 0
        if total is None:
            return None, False, "no memory plan, or sizes that depend on the call"
        plans = {one.site.key for one in program.plans}
        others = [key for key in changed if key not in plans]
        if not changed:
            return total, True, AS_COMPILED
        entry = [one for one in program.plans if one.site.key in program.entry]
        if others:
            why = f"{others[0]} changes what is planned"
        elif len(entry) != 1:
            why = "a call has not one region"
        else:
            (region,) = entry

            def held(one: PricedSite) -> int:
                return one.costs[changed.get(one.site.key, one.chosen)].workspace_bytes

            more = held(region) - region.costs[region.chosen].workspace_bytes
            plain = [held(one) for one in program.plans if one is not region]
            needed = transients + more + (program.account.outputs or 0)
            if transients + more < 0 or not transients:
                why = "the call's peak lies elsewhere"
            elif any(needed > bytes_ for bytes_ in plain):
                why = "the plain entry would need less than the arena entry"
            else:
                return total + more, True, "sizes of the recorded plans"
        return total, False, f"of the program as it is: {why}"

    @cached_property
    def _names(self) -> Mapping[str, tuple[PricedSite, ...]]:
        """The sites that a recipe's key may stand for."""
        found: dict[str, tuple[PricedSite, ...]] = {}
        for one in self.program.sites.values():
            for key in {one.site.key, one.site.work_key, one.site.pass_name} - {""}:
                found[key] = (*found.get(key, ()), one)
        return found

    def _changes(self, recipe: Recipe | Mapping[str, str] | None) -> dict[str, str]:
        """Return the changes of a recipe: {site: choice} where the choice is not the program's."""
        choices = self._of_recipe(recipe) if isinstance(recipe, Recipe) else recipe or {}
        changed: dict[str, str] = {}
        for key, choice in choices.items():
            sites = self._names.get(key)
            if sites is None:
                if key.partition(":")[0] in NOTES:
                    continue
                raise _mismatch(key, "a site of this program", "none; lower it by that recipe")
            offering = [one for one in sites if choice.partition("[")[0] in one.costs]
            if not offering:
                offered = ", ".join(sorted({n for one in sites for n in one.costs}))
                raise _mismatch(key, f"one of {offered}", repr(choice))
            changed |= {one.site.key: choice for one in offering if choice != one.chosen}
        return changed

    def _of_recipe(self, recipe: Recipe) -> Mapping[str, str]:
        """Its choices by site; by work where it was made for another graph, as in a compile."""
        if recipe.made_for in ("", self.program.graph_id):
            return recipe.choices
        return {key: choice for key, choice in recipe.works.items() if key in self._names}


def simulate(
    program: "Artifact | Lowered",
    recipe: Recipe | Mapping[str, str] | None = None,
    wisdom: Wisdom | None = None,
    residuals: Residuals | None = None,
    threads: int = 1,
) -> Estimate:
    """Estimate a program by a recipe on this machine: `Estimate(seconds, lo, hi, bytes)`.

    program: what was compiled or lowered. recipe: {site: choice}; sites that it lacks keep the
    program's choice. wisdom: measured rows. residuals: errors of earlier estimates, for bias and
    interval. threads: of a call. Deterministic; nothing is compiled, nothing is measured.
    Raises PycError (RECIPE_MISMATCH) as `Simulator.estimate`.
    """
    return Simulator.of(program, wisdom, residuals, threads).estimate(recipe)


def _mismatch(key: str, expected: str, got: str) -> PycError:
    return PycError(
        ReasonCode.RECIPE_MISMATCH, f"what-if: {key}: expected {expected}, the recipe has {got}"
    )
