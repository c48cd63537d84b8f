"""Compile with PyC's memory plan in place of IREE's, wherever it is proven smaller.

Each execution region of a module becomes a planning problem, each mode of the planner that the
policy asks for gives a plan, and the plans are carried out on the IR (`versions.py`). IREE's own
version is the reference: a plan that does not come out smaller, or whose sizes are unknown and
cannot be compared, is not offered. Where none of the modes is smaller, IREE's own order with our
reuse and packing may be. One decision a region says what was chosen, with all sizes.

A budget is a matter of legality: only plans that keep it are offered, and where none of them does,
one is searched for that does at the least predicted seconds, or the compile is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import fsum

from pyc_mlir.artifact.memory import UNPLANNED, MemoryReport, RegionReport, region_report
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.compiler import IreeSession
from pyc_mlir.iree.diagnostics import CompileError
from pyc_mlir.iree.memory.budget import (
    BudgetNotKept,
    ByteBudget,
    Shares,
    SmallestProgram,
    arena_bytes,
    shares_of,
    squeeze,
)
from pyc_mlir.iree.memory.calls import CallBytes
from pyc_mlir.iree.memory.versions import (
    Comparison,
    Version,
    carry_out,
    finish,
    regions_of,
)
from pyc_mlir.pipelines.choices.choices import (
    FALLBACK,
    Alternative,
    Choices,
    Decision,
    FirstIsBest,
    Policy,
    Recipe,
    Site,
)
from pyc_mlir.pipelines.choices.evidence import PlanBytes, Reason
from pyc_mlir.pipelines.memory.planner.intervals import Intervals
from pyc_mlir.pipelines.memory.planner.layout import ArenaLayout
from pyc_mlir.pipelines.memory.planner.pack import pack
from pyc_mlir.pipelines.memory.planner.place import layout_of_plan
from pyc_mlir.pipelines.memory.planner.planner import (
    LAST_WORK,
    BudgetRefused,
    PlannerMode,
    SharedPlans,
    frontier,
    mode_named,
    plan_in_waves,
)
from pyc_mlir.pipelines.memory.planner.problem import PlanningProblem, SchedulePlan
from pyc_mlir.pipelines.memory.stream_apply import Packer, Slice
from pyc_mlir.pipelines.memory.stream_problem import StreamRegion
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.streams.sizes import ByteSize, Ranges
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target

SITE = "plan-memory"
IREE_ORDER, WITHIN_BUDGET = "iree-order", "within-budget"
# Programs of so many dispatches a region get their frontier drawn: it costs about a second there.
FRONTIER_TASKS = 200
Plans = dict[int, SchedulePlan]


@dataclass(frozen=True)
class Planner:
    """A planner: by name how a problem becomes a plan, first the preferred one; and a packer.

    within: a plan of at most so many bytes; raises BudgetRefused. Asked for under a budget only.
    also: modes for functions that are planned in one mode only.
    in_waves: a plan of a given order.
    """

    modes: Mapping[str, Callable[[PlanningProblem], SchedulePlan]]
    pack: Packer
    within: Callable[[PlanningProblem, int], SchedulePlan] | None = None
    also: Mapping[str, Callable[[PlanningProblem], SchedulePlan]] = field(default_factory=dict)
    in_waves: Callable[[PlanningProblem, Sequence[Sequence[int]]], SchedulePlan] = plan_in_waves


def planner_of(modes: Sequence[str], also: Sequence[str] = ()) -> Planner:
    """Return PyC's planner in some modes, for one compile: it remembers what it has planned.

    Raises PycError (BAD_ARGUMENT) for an unknown mode.
    """
    found: dict[str, PlannerMode] = {name: mode_named(name) for name in modes}
    first = next(iter(found.values()))
    plans, packed = SharedPlans(), cache(pack_slices)
    return Planner(
        {name: partial(plans.plan, mode=mode) for name, mode in found.items()},
        lambda slices, enough: packed(tuple(slices), enough),
        lambda problem, budget: plans.plan(problem, mode=first, budget=budget),
        {name: partial(plans.plan, mode=mode_named(name)) for name in also},
        plans.in_waves,
    )


def pack_slices(slices: Sequence[Slice], enough: int = 0) -> tuple[list[int], int]:
    """Return offsets and the arena by PyC's packer, for lives that include their last step.

    An arena of at most `enough` bytes will do: so much a search has reached before.
    """
    lives = Intervals.of((first, last + 1, size) for first, last, size in slices)
    packing = pack(lives, capacity=enough, work_limit=LAST_WORK)
    return [int(offset) for offset in packing.offsets], packing.arena_bytes


@dataclass(frozen=True, kw_only=True)
class MemoryRequest:
    """A request to plan a module: the planner, the policy among its plans, and the budget.

    `name` is the module's in sites, `structure_id` blind to contents of constants. `only`
    names the one mode in which certain functions are planned.
    """

    name: str
    planner: Planner
    policy: Policy = field(default_factory=FirstIsBest)
    recipe: Recipe | None = None
    only: Mapping[str, str] = field(default_factory=dict)
    budget: ByteBudget | None = None
    structure_id: str = ""


@dataclass(frozen=True)
class _Offer:
    """Plans of regions under one name, and the module that they give."""

    name: str
    plans: Plans
    version: Version


@dataclass(frozen=True)
class AssignedMemory:
    """The plans of a module that were carried out: their decisions and the report.

    added_seconds: by which the chosen plans of one function are slower than the preferred ones.
    reference: by function, what a call of it needs by IREE's own plan; empty where nothing was
        planned.
    """

    decisions: tuple[Decision, ...] = ()
    report: MemoryReport = field(default_factory=MemoryReport)
    added_seconds: float = 0.0
    reference: Mapping[str, CallBytes | None] = field(default_factory=dict)


def assign_memory(
    session: IreeSession, target: Target, request: MemoryRequest, ranges: Ranges
) -> AssignedMemory:
    """Take the session's module from `to_async` to the end of phase `stream`.

    Raises BudgetNotKept, and CompileError as IREE's phase does.
    """
    planning = _Planning(session, target, request, ranges)
    reference = planning.reference
    try:
        planning.read()
        planning.offer()
    except (PycError, ir.MLIRError) as error:
        planning.give_up(error)
    planning.squeeze()
    best = planning.chosen()
    failed: PycError | None = None
    if not best.never_above(reference, planning.at_most):
        failed, best = PycError(ReasonCode.PLANNING_FAILED, _NOT_PROVEN), reference
    planning.require(planning.shares([], best), best)
    try:
        finish(session, best)
    except CompileError as error:
        if best is reference or request.budget is not None:
            raise
        failed = error
        finish(session, reference)
    if failed is not None:
        planning.give_up(failed)
    return AssignedMemory(
        planning.answers.log,
        planning.report(),
        planning.added_seconds,
        reference.allocations.needed(reference.arenas),
    )


class _Planning:
    """The module of a session after `to_async` (`start`), its regions, and what is offered them.

    regions: those that plans can change, of `every`. preferred: by region, the seconds of the plan
    that was offered first. taken: by region, what it got; None is IREE's plan.
    """

    def __init__(
        self, session: IreeSession, target: Target, request: MemoryRequest, ranges: Ranges
    ) -> None:
        self.session, self.start = session, session.module
        self.target, self.request, self.ranges = target, request, ranges
        self.answers = Choices(request.policy, request.recipe)
        self.every: list[StreamRegion] = []
        self.regions: list[StreamRegion] = []
        self.offers: list[_Offer] = []
        self.preferred: dict[int, float] = {}
        self.budgeted: dict[str, Shares] = {}
        self.taken: dict[int, _Offer | None] = {}
        self.reference = self.carried({})

    def read(self) -> None:
        """Read the regions of the module."""
        with self.session.context:
            self.every = regions_of(self.start, self.target, self.ranges, every=True)
        self.regions = [r for r in self.every if r.can_change]

    def carried(self, plans: Plans) -> Version:
        """Carry plans out, by region, on a copy of the module; without any, IREE's own plan."""
        return carry_out(
            self.session,
            self.start,
            plans,
            self.request.planner.pack,
            self.target,
            self.ranges,
            at_largest=self.request.budget is not None,
        )

    @property
    def at_most(self) -> Comparison:
        """The test that a size is no larger: in every call; under a budget, in the largest one."""
        return ByteSize.at_most if self.request.budget is None else ByteSize.largest_at_most

    def _better(self, region: StreamRegion, offer: _Offer) -> bool:
        if region.index not in offer.plans:
            return False
        ours = offer.version.regions[region.index].total
        theirs = self.reference.regions[region.index].total
        return self.at_most(ours, theirs) and not self.at_most(theirs, ours)

    def offer(self) -> None:
        """Offer the plans of the planner's modes, and IREE's order where none is smaller."""
        planner, only, offers = self.request.planner, self.request.only, list[_Offer]()
        for name in dict.fromkeys((*planner.modes, *planner.also)):
            plans = {}
            for r in self.regions:
                own = only.get(r.function)
                modes = planner.modes if own is None else {own: planner.also[own]}
                if name in modes:
                    plans[r.index] = modes[name](r.problem)
            if plans:
                offers.append(_Offer(name, plans, self.carried(plans)))
        left = [r for r in self.regions if not any(self._better(r, o) for o in offers)]
        ordered = {r.index: planner.in_waves(r.problem, r.waves) for r in left if r.exact}
        if any(
            p.arena_bytes < self.reference.regions[i].transient.nominal for i, p in ordered.items()
        ):
            offers.append(_Offer(IREE_ORDER, ordered, self.carried(ordered)))
        self.offers = offers

    def shares(self, offers: list[_Offer], version: Version) -> dict[str, Shares]:
        """Return what the budget allows the regions of each function; nothing without a budget."""
        if self.request.budget is None:
            return {}
        versions = {
            i: [version, *(o.version for o in offers if i in o.plans)]
            for i in range(len(version.regions))
        }
        return shares_of(self.request.budget, version, versions)

    def squeeze(self) -> None:
        """Plan the regions that have to be smaller than every offer. Raises BudgetNotKept."""
        # The first plan offered for a region stays, also for those of further modes alone.
        offered = (o.plans.items() for o in reversed(self.offers))
        self.preferred = {i: p.seconds for plans in offered for i, p in plans}
        self.budgeted = self.shares(self.offers, self.reference)
        plans: Plans = {}
        proven = any(share.allowance < 0 for share in self.budgeted.values())
        for function, share in self.budgeted.items():
            if share.spare < 0:
                own = {r.index: r for r in self.regions if r.function == function}
                impossible = self._squeezed(own, share, plans)
                proven |= share.spare < 0 and impossible and len(share.smallest) == 1
        added = sum(p.seconds - self.preferred.get(i, 0.0) for i, p in plans.items())
        self.require(self.budgeted, self.reference, added, proven=proven)
        if plans:
            self.offers.append(_Offer(WITHIN_BUDGET, plans, self.carried(plans)))

    def require(
        self,
        shares: Mapping[str, Shares],
        version: Version,
        added: float = 0.0,
        *,
        seconds: float | None = None,
        proven: bool = False,
    ) -> None:
        """Raise BudgetNotKept unless the regions of each function fit.

        seconds: predicted for what was asked for, `added` beside them for the smallest found.
        """
        over = {name: share for name, share in shares.items() if share.spare < 0}
        if self.request.budget is None or not over:
            return
        # Entries that take their scratch from the caller can be left out.
        without = [name for name in over if not version.allocations.calls[name].handed]
        name = max(without or over, key=lambda name: over[name].needed)
        outputs = version.allocations.calls[name].outputs
        known = 0 if outputs is None else outputs.largest or 0
        first = sum(self.preferred.values()) if seconds is None else seconds
        need = SmallestProgram(
            version.allocations.constants or 0, known, over[name].needed, first, first + added
        )
        raise BudgetNotKept(self.request.budget, need, proven=proven, optional=not without)

    def _squeezed(self, regions: Mapping[int, StreamRegion], share: Shares, plans: Plans) -> bool:
        """Fill in `plans` until the regions of one function fit; return whether one cannot."""
        impossible, plan_within = False, self.request.planner.within
        assert plan_within is not None

        def within(index: int, allowed: int) -> int:
            nonlocal impossible
            problem = regions[index].problem
            try:
                plans[index] = plan_within(problem, allowed)
            except BudgetRefused as refused:
                impossible |= refused.code is ReasonCode.BUDGET_IMPOSSIBLE
                plans[index] = plan_within(problem, refused.smallest)
            return plans[index].arena_bytes

        squeeze(share, list(regions), within)
        return impossible

    def _choose(self, region: StreamRegion) -> _Offer | None:
        """Return the offer that one region takes; None is IREE's plan."""
        index, theirs = region.index, self.reference.regions[region.index].total
        seconds, share = _iree_seconds(region), self.budgeted.get(region.function)
        better = [o for o in self.offers if self._better(region, o)]
        iree = Alternative(
            UNPLANNED, Cost(seconds, theirs.nominal), f"{theirs} bytes, IREE's order and packing"
        )
        legal: dict[Alternative, _Offer | None] = {_alternative(region, o): o for o in better}
        legal[iree] = None

        def size(offer: _Offer | None) -> int:
            return arena_bytes(offer.version if offer else self.reference, index)

        if share is not None:
            legal = {a: o for a, o in legal.items() if size(o) <= share.allowed(index)}
        evidence = tuple(
            PlanBytes(o.name, str(o.version.regions[index].total), str(theirs), o in better)
            for o in self.offers
            if index in o.plans
        )
        if not legal:
            assert share is not None, "without a budget every plan is legal"
            share.take(index, size(None))
            self.require({region.function: share}, self.reference, seconds=seconds)
        nth, structure = f"#{index}", self.request.structure_id
        site = Site(SITE, self.request.name + nth, work=structure and structure + nth)
        offer = legal[self.answers.choose(site, list(legal), evidence)]
        if share is not None:
            share.take(index, size(offer))
        return offer

    def chosen(self) -> Version:
        """Return the module in which each region has the plan chosen for it."""
        if self.offers:
            self.taken = {r.index: self._choose(r) for r in self.regions}
        plans = {i: o.plans[i] for i, o in self.taken.items() if o is not None}
        for offer in self.taken.values():
            if offer is not None and offer.plans == plans:
                return offer.version
        return self.carried(plans) if plans else self.reference

    @property
    def added_seconds(self) -> float:
        """The most seconds by which the plans of one function are slower than the preferred."""
        added: dict[str, float] = {}
        for r in self.regions:
            offer, before = self.taken.get(r.index), self.preferred.get(r.index)
            if offer is not None and before is not None:
                more = offer.plans[r.index].seconds - before
                added[r.function] = added.get(r.function, 0.0) + more
        return max(0.0, *added.values()) if added else 0.0

    def give_up(self, error: Exception) -> None:
        """Leave the memory to IREE's plan, with one decision that says why."""
        self.offers, self.taken = [], {}
        self.answers = Choices(self.request.policy, self.request.recipe)
        why = Reason.of(ReasonCode.PLANNING_FAILED, str(getattr(error, "message", error)))
        iree, site = Alternative(UNPLANNED, reason="planning failed"), Site(SITE, self.request.name)
        self.answers.record(Decision(site, UNPLANNED, (iree,), FALLBACK, grounds=(why,)))

    def report(self) -> MemoryReport:
        """Report on the function that PyC calls: the last one, if there are two.

        Functions of further modes are left out. A region for which nothing was chosen shows only
        its tasks.
        """
        calls = (r.function for r in reversed(self.every) if r.function)
        shown = next((name for name in calls if name not in self.request.only), "")
        found = []
        for r in self.every:
            if r.function == shown:
                name = f"{SITE}:{self.request.name}#{r.index}"
                found.append(
                    _region_report(name, r, self.offers, self.taken[r.index], self.reference)
                    if r.index in self.taken
                    else region_report(name, r.problem, {}, "")
                )
        return MemoryReport(tuple(found), CostModel(self.target).basis)


_NOT_PROVEN = (
    "plans: expected every region to be proven at most as large as under IREE's plan, got a "
    "region that is not once all plans are carried out; IREE's plan is used"
)


def _iree_seconds(region: StreamRegion) -> float:
    """Predict the seconds of IREE's own plan, as `place` predicts those of ours."""
    tasks = region.problem.tasks
    return fsum(max(tasks[t].seconds for t in wave) for wave in region.waves)


def _alternative(region: StreamRegion, offer: _Offer) -> Alternative:
    plan, size = offer.plans[region.index], offer.version.regions[region.index].total
    again = len(plan.steps) - len(region.problem.tasks)
    parts = [
        f"{size} bytes",
        f"arena {plan.gap:.1%} above the lower bound {plan.lower_bound} of its order",
        f"{len(plan.reused)} results in place",
        f"{again} runs again" if again else "",
        "proven optimal" if plan.proven else "",
    ]
    reason = ", ".join(part for part in parts if part)
    return Alternative(offer.name, Cost(plan.seconds, size.nominal), reason)


def _region_report(
    name: str, region: StreamRegion, offers: list[_Offer], chosen: _Offer | None, reference: Version
) -> RegionReport:
    problem, index = region.problem, region.index
    found = {o.name: _layout(region, o) for o in offers if index in o.plans}
    iree = reference.layouts[index]
    found[UNPLANNED] = None if iree is None else replace(iree, seconds=_iree_seconds(region))
    layouts = {name: layout for name, layout in found.items() if layout is not None}
    bound = chosen.plans[index].lower_bound if chosen else 0
    best = chosen.name if chosen else UNPLANNED
    points = frontier(problem) if layouts and len(problem.tasks) <= FRONTIER_TASKS else []
    return region_report(name, problem, layouts if best in layouts else {}, best, points, bound)


def _layout(region: StreamRegion, offer: _Offer) -> ArenaLayout | None:
    plan = offer.plans[region.index]
    real = offer.version.regions[region.index].transient
    if real.known and plan.arena_bytes == real.constant:
        return layout_of_plan(region.problem, plan)
    carried = offer.version.layouts[region.index]
    return None if carried is None else replace(carried, seconds=plan.seconds)
