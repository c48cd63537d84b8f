"""Estimates of a program under recipes: sums of its kernels' seconds, and its bytes.

    simulate(artifact, {"pyc-select-kernels:matmul.07b2a4fa968f2466": "iree"}) -> Estimate

    Artifact | Lowered -> PricedProgram (sites, costs of alternatives, memory) -> Estimate

Nothing is compiled or measured. For many recipes of one program make one `Simulator`: it prices
each alternative once. docs/simulation.md says what is exact, and how good estimates were found to
be. An artifact's log has all decisions and its memory report all dispatches; a lowered program has
no memory plan yet, so its bytes are not known.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.memory import Account, MemoryReport
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.rows import COLD, WARM
from pyc_mlir.lab.simulation.residuals import (
    COVERAGE,
    MEASURED_SCALE,
    Residuals,
    Width,
    environment_of,
    family_of,
)
from pyc_mlir.measure.environment import current_place
from pyc_mlir.pipelines.choices.choices import Decision, Recipe, Site
from pyc_mlir.pipelines.choices.evidence import Computes
from pyc_mlir.pipelines.choices.wisdom import Wisdom, WisdomRow
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import TARGETS, Target, available_cores, read_host_cpu
from pyc_mlir.profile.dispatches import report_of
from pyc_mlir.util.units import quantity

if TYPE_CHECKING:
    from pyc_mlir.compilation.lower import Lowered

PLAN = "plan-memory"
# Decisions that say something of the compile and change nothing of the program.
NOTES = frozenset({"calibration", "wisdom", "compile-stage", "oracle", "budget"})
_SHORT = 48
MEASURED, PREDICTED = "measured", "predicted"
# An interval of five or more processes' medians is about so many deviations to each side.
_DEVIATIONS = 2.0
# Wider intervals say nothing, and their ends are no numbers any more.
_WIDEST = 100.0


@dataclass(frozen=True)
class PricedSite:
    """A site with what each of its alternatives is predicted to cost; `chosen` is the compile's."""

    site: Site
    chosen: str
    costs: Mapping[str, Cost]


@dataclass(frozen=True)
class PricedProgram:
    """A program as numbers.

    kernels: the sites whose choices are kernels. plans: those of memory plans, of which only those
    in `entry`, of the function that a call runs, have a say in its seconds. structure: sites at
    which another choice gives other kernels. other_seconds: predicted for dispatches of no kernel
    site (copies, fills). account: bytes by purpose; what is not known is None.
    """

    graph_id: str
    kernels: tuple[PricedSite, ...]
    plans: tuple[PricedSite, ...]
    structure: tuple[PricedSite, ...]
    entry: frozenset[str]
    other_seconds: float
    account: Account
    target: Target

    @property
    def sites(self) -> Mapping[str, PricedSite]:
        """All sites by key."""
        every = (*self.kernels, *self.plans, *self.structure)
        return {one.site.key: one for one in every}


def priced(program: "Artifact | Lowered", target: Target | None = None) -> PricedProgram:
    """Return the program as numbers.

    target: what a lowered program is for; an artifact names its own. Raises PycError (BAD_ARTIFACT)
    for a damaged memory report.
    """
    if not isinstance(program, Artifact):
        account = Account.of(program.signature, program.constants_bytes)
        target = _target("cpu") if target is None else target
        return priced_parts(program.graph_id, program.decisions, account, MemoryReport(), target)
    manifest, report = program.manifest, report_of(program)
    decisions, target = program.decisions, _target(manifest.target)
    made = priced_parts(manifest.graph_id, decisions, manifest.memory, report, target)
    selected = {d.site.key: d for d in decisions if d.site.pass_name == SELECT}
    tasks = [task for region in report.regions for task in region.tasks]
    kernels = []
    for one in made.kernels:
        # The costs of a log have no operations: those of its dispatches.
        names = _computed(selected[one.site.key])
        flops = math.fsum(task.flops for task in tasks if names.intersection(task.sources))
        costs = {name: replace(cost, flops=flops) for name, cost in one.costs.items()}
        kernels.append(replace(one, costs=costs))
    return replace(made, kernels=tuple(kernels))


@cache
def _target(name: str) -> Target:
    """Return the target of that name; ``cpu`` with the caches and cores of this machine."""
    target, cpu = Target.named(name if name in TARGETS else "cpu"), read_host_cpu()
    if target.name != "cpu" or cpu is None:
        return target
    return target.on(replace(cpu, cores=min(cpu.cores, available_cores())))


def priced_parts(
    graph_id: str,
    decisions: Sequence[Decision],
    account: Account,
    report: MemoryReport,
    target: Target,
) -> PricedProgram:
    """Price a program from what a compile knows of it, with or without code."""
    selected = [d for d in decisions if d.site.pass_name == SELECT]
    computed = {name for d in selected for name in _computed(d)}
    tasks = [task for region in report.regions for task in region.tasks]
    others = [task.seconds for task in tasks if not computed.intersection(task.sources)]
    passes = [d.site.pass_name for d in decisions]
    return PricedProgram(
        graph_id,
        _sites(decisions, (SELECT,)),
        _sites(decisions, (PLAN,)),
        _sites(decisions, [name for name in passes if name not in (SELECT, PLAN, *NOTES)]),
        frozenset(region.name for region in report.regions),
        math.fsum(others),
        account,
        target,
    )


def _sites(decisions: Iterable[Decision], passes: Iterable[str]) -> tuple[PricedSite, ...]:
    """Return the last decision at each site: a fall-back replaces what came before it."""
    wanted = set(passes)
    found = {d.site.key: d for d in decisions if d.site.pass_name in wanted}
    return tuple(
        PricedSite(d.site, d.chosen, {a.name: a.cost or Cost() for a in d.alternatives})
        for d in found.values()
    )


def _computed(decision: Decision) -> set[str]:
    """Return the ops that a kernel computes: its site's, and those of its group."""
    members = next((e.ops for e in decision.evidence if isinstance(e, Computes)), ())
    return {decision.site.op_id, *members}


@dataclass(frozen=True)
class ExecutionContext:
    """Whose rows are answers: hashes of hardware and toolchain, and the threads of a call."""

    hardware: str = ""
    toolchain: str = ""
    threads: int = 1

    @property
    def environment(self) -> str:
        """The key of residuals."""
        return environment_of(self.hardware, self.toolchain)


@dataclass(frozen=True)
class Overheads:
    """Seconds besides kernels: of a call, and of a dispatch.

    call_seconds is part of each measured row of work, which is a call of its own, and of the
    program once. dispatch_seconds is part of each measured row too. join_seconds is what each
    further kernel of a program costs besides, see residuals.py.
    """

    call_seconds: float = 0.0
    dispatch_seconds: float = 0.0
    join_seconds: float = 0.0


@dataclass(frozen=True)
class Price:
    """Seconds of one choice, without the call's own; `scale` is their expected deviation in log.

    grounds: ``measured`` or ``predicted``. why: which rows, or what the prediction rests on.
    """

    seconds: float
    scale: float
    grounds: str
    why: str = ""


def on_threads(cost: Cost, program: PricedProgram, threads: int) -> float:
    """Predicted seconds on so many threads of what was predicted for all cores of the target.

    What has no operations, or is bound by its traffic, stays as it is.
    """
    model = CostModel(program.target)
    if threads == 0 or not cost.flops or cost.seconds <= model.moving(cost.traffic_bytes):
        return cost.seconds
    busy = min(model.cores, model.cores_for(cost.flops, cost.traffic_bytes))
    return cost.seconds * busy / min(busy, threads)


@dataclass(frozen=True)
class SiteEstimate:
    """One kernel of a program: its choice, what it costs, and what the compile's own choice costs.

    site: ``pass:op``. work: the id that rows are found by.
    """

    site: str
    work: str
    choice: str
    price: Price
    before: Price

    @property
    def difference(self) -> float:
        """Seconds more than the program's own choice; below 0 is quicker."""
        return self.price.seconds - self.before.seconds


@dataclass(frozen=True)
class Estimate:
    """Seconds of a call with an interval, and the device memory that the program needs.

    bytes: constants, inputs, transients and outputs; None where that depends on the call.
    exact: whether `bytes` is what a compile by this recipe would state; `why_bytes` says on what
    grounds, or why it may not be. width: of the interval, which is meant to hold the measured
    seconds in a share `COVERAGE` of cases. measured, predicted, overhead: how `seconds` divides.
    sites: the kernels, in order. notes: what was not priced.
    """

    seconds: float
    lo: float
    hi: float
    bytes: int | None
    exact: bool
    why_bytes: str
    width: Width
    measured: float
    predicted: float
    overhead: float
    sites: tuple[SiteEstimate, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def unknown(self) -> tuple[str, ...]:
        """The works of the kernels that nothing was measured for here, each once."""
        found = (s.work for s in self.sites if s.price.grounds == PREDICTED and s.work)
        return tuple(dict.fromkeys(found))


def comparison(estimate: Estimate, before: Estimate) -> str:
    """Return the estimate of a recipe beside that of the program as it is."""
    notes = (f"not priced: {note}\n" for note in estimate.notes)
    return "".join((*_head(estimate, before), *_differences(estimate), *notes))


def _head(estimate: Estimate, before: Estimate) -> Iterator[str]:
    for name, one in (("as compiled", before), ("recipe", estimate)):
        held = "unknown" if one.bytes is None else quantity(one.bytes, "B")
        exact = "exact" if one.exact else "not exact"
        yield (
            f"{name:12} {quantity(one.seconds, 's'):>9} ({quantity(one.lo, 's')} to "
            f"{quantity(one.hi, 's')})  {held}, {exact}: {one.why_bytes}\n"
        )
    ratio = estimate.seconds / before.seconds if before.seconds else 1.0
    rows = f"{estimate.width.rows} programs measured here"
    covers = f"covers {COVERAGE:.0%} by {rows}"
    grounds = covers if estimate.width.calibrated else f"not calibrated: {rows} are too few"
    yield f"ratio        {ratio:9.3f}  interval {grounds}\n"
    yield (
        f"rests on     {quantity(estimate.measured, 's')} measured, "
        f"{quantity(estimate.predicted, 's')} predicted, {quantity(estimate.overhead, 's')} of "
        f"the call; {len(estimate.unknown)} works without a row of here\n"
    )


def _differences(estimate: Estimate) -> Iterator[str]:
    """Yield the sites that differ, the largest difference first; how many others there are."""
    differ = [s for s in estimate.sites if s.price != s.before]
    for site in sorted(differ, key=lambda s: (-abs(s.difference), s.site)):
        sign = "+" if site.difference >= 0 else "-"
        before, after = (
            f"{quantity(p.seconds, 's')} {p.grounds}" for p in (site.before, site.price)
        )
        yield (
            f"  {site.site[:_SHORT]:{_SHORT}} {site.choice}: {before} -> {after} "
            f"({sign}{quantity(abs(site.difference), 's')}; {site.price.why})\n"
        )
    yield f"{len(estimate.sites) - len(differ)} of {len(estimate.sites)} kernels are the same\n"


@dataclass(frozen=True)
class Simulator:
    """Estimates for one program.

    here: whose rows are answers. A recipe's sites may be given as ``pass:op``, as ``pass:work`` or
    as ``pass``, in which case all sites of the pass that offer the choice take it.
    """

    program: PricedProgram
    wisdom: Wisdom = field(default_factory=Wisdom)
    here: ExecutionContext = field(default_factory=ExecutionContext)
    residuals: Residuals = field(default_factory=Residuals)
    overheads: Overheads = field(default_factory=Overheads)

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
        prices = [*(site.price for site in kernels), *others]
        measured, predicted = (
            math.fsum(p.seconds for p in prices if p.grounds == grounds)
            for grounds in (MEASURED, PREDICTED)
        )
        overhead = self.overheads.call_seconds
        overhead += self.overheads.join_seconds * max(0, len(kernels) - 1)
        seconds, width = measured + predicted + overhead, self._width
        # Deviations add up as if all kernels erred alike: rows of one session often do.
        own, spread = measured + predicted, math.fsum(abs(p.seconds) * p.scale for p in prices)
        scale = spread / own if own > 0 else 0.0
        factor = math.exp(min(width.deviations * scale, _WIDEST))
        return Estimate(
            seconds, seconds / factor, seconds * factor, *self._bytes(changed), width, measured,
            predicted, overhead, tuple(kernels), notes,
        )  # fmt: skip

    def price(self, site: PricedSite, choice: str) -> Price:
        """Return the price of a kernel by one of its alternatives."""
        return self._site(site, choice).price

    @cached_property
    def _width(self) -> Width:
        return self.residuals.width(self.here.environment)

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
        if not changed:
            return total, True, "as the compile states it"
        others = [key for key in changed if key not in {one.site.key for one in program.plans}]
        entry = [one for one in program.plans if one.site.key in program.entry]

        def held(one: PricedSite) -> int:
            return one.costs[changed.get(one.site.key, one.chosen)].workspace_bytes

        more = 0
        if others:
            why = f"{others[0]} changes what is planned"
        elif len(entry) != 1:
            why = "a call has not one region"
        else:
            more = held(entry[0]) - entry[0].costs[entry[0].chosen].workspace_bytes
            plain = [held(one) for one in program.plans if one is not entry[0]]
            needed = transients + more + (program.account.outputs or 0)
            why = (
                "the call's peak lies elsewhere" if transients + more < 0 or not transients
                else "the plain entry would need less than the arena entry"
                if any(needed > bytes_ for bytes_ in plain)
                else ""
            )  # fmt: skip
        if why:
            return total, False, f"of the program as it is: {why}"
        return total + more, True, "sizes of the recorded plans"

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
        if not isinstance(recipe, Recipe):
            choices = recipe or {}
        else:
            choices = recipe.choices
            # By work where it was made for another graph, as in a compile.
            if recipe.made_for not in ("", self.program.graph_id):
                choices = {k: choice for k, choice in recipe.works.items() if k in self._names}
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
