"""Compile with PyC's memory plan in place of IREE's, wherever it is proven smaller.

IREE's stream phase is taken apart: its passes run up to the point where dispatches are final, each
execution region becomes a planning problem, the plan is carried out on the IR, and IREE's passes
go on. The same phase without a plan is the reference (no code is generated for it): a region whose
plan does not come out smaller, or whose sizes are unknown and cannot be compared, keeps IREE's. One
decision a region says which, with both sizes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.attempts import SETTINGS, Request, compile_with_fallback
from pyc_mlir.iree.compiler import opened
from pyc_mlir.iree.session import Session
from pyc_mlir.pipelines.choices import Alternative, Choices, Decision, Site
from pyc_mlir.pipelines.cost import Cost
from pyc_mlir.pipelines.planner.intervals import Intervals
from pyc_mlir.pipelines.planner.pack import pack
from pyc_mlir.pipelines.planner.planner import MODES, plan
from pyc_mlir.pipelines.planner.problem import Plan, Problem
from pyc_mlir.pipelines.stream_apply import Packer, Slice, apply_plan, replace_packs
from pyc_mlir.pipelines.stream_cost import DispatchCosts
from pyc_mlir.pipelines.stream_ir import EXECUTE, find, ir, maker
from pyc_mlir.pipelines.stream_problem import Region, read_regions
from pyc_mlir.pipelines.stream_sizes import Size, size_of
from pyc_mlir.pipelines.target import Target

SITE = "plan-memory"
PLANNED, UNPLANNED = "planned", "iree"
# IREE's stream phase in three parts; the plan's order goes in after the first one, its offsets
# after the second. `iree-stream-schedule-concurrency`, part of the first, must not run again.
TO_ASYNC = (
    "iree-util-verify-initialization-order,iree-stream-tensor-transformation-pipeline,"
    "iree-stream-async-transformation-pipeline"
)
ALLOCATE = "iree-stream-schedule-allocation"
LAY_OUT = "any(iree-stream-layout-slices)"
TO_END = (
    "iree-stream-cmd-transformation-pipeline,iree-stream-optimization-pipeline,"
    "iree-stream-cleanup-pipeline,symbol-dce"
)
_EVIDENCE_CHARACTERS = 300


@dataclass(frozen=True)
class Planner:
    """Who plans: a problem to a plan, and slices to offsets."""

    plan: Callable[[Problem], Plan]
    pack: Packer


def planner_of(mode: str) -> Planner:
    """PyC's planner in one of its modes. Raises PycError (BAD_ARGUMENT) for an unknown one."""
    if mode not in MODES:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"planner mode: expected one of {sorted(MODES)}, got {mode!r}"
        )
    return Planner(partial(plan, mode=mode), pack_slices)


def pack_slices(slices: Sequence[Slice]) -> tuple[list[int], int]:
    """Offsets and the arena by PyC's packer, for lives that include their last step."""
    packing = pack(Intervals.of((first, last + 1, size) for first, last, size in slices))
    return [int(offset) for offset in packing.offsets], packing.arena_bytes


def compile_planned(
    request: Request,
    graph_id: str,
    choices: Choices,
    planner: Planner,
    first: str = "aggressive",
) -> bytes:
    """The vmfb of `request` under the better plan of each region; raises as the unplanned compile.

    `first` is the fusion setting that is offered first, as in `compile_with_fallback`.
    """
    planning = _Planning(request.target, f"{graph_id or 'module'}", choices, planner)
    planned = _PlannedRequest(**vars(request), planning=planning)
    vmfb = compile_with_fallback(planned, graph_id, choices, first)
    choices.log.extend(planning.decisions)
    return vmfb


@dataclass(frozen=True)
class _PlannedRequest(Request):
    """A request whose compile goes through the planner."""

    planning: "_Planning | None" = None

    def compile(self, setting: str) -> bytes:
        """The vmfb under one of SETTINGS. Raises as `compile_module`."""
        assert self.planning is not None
        flags = (*SETTINGS[setting], *self.flags)
        with opened(self.code, self.target, flags, self.dump_phases, self.locations) as session:
            session.run(to="flow")
            self.planning.run(session)
            session.run(start="stream")
            return session.vmfb()


@dataclass(frozen=True)
class Version:
    """A module at the end of the stream phase.

    `sizes` are the bytes that each region allocates: transients and results.
    """

    module: Any
    sizes: tuple[Size, ...]

    def never_above(self, other: "Version") -> bool:
        """True if it is proven that no region needs more than it does in `other`."""
        return len(self.sizes) == len(other.sizes) and all(
            mine.at_most(theirs) for mine, theirs in zip(self.sizes, other.sizes, strict=True)
        )


def carry_out(
    session: Session, start: Any, plans: Mapping[int, Plan], packer: Packer, target: Target
) -> Version:
    """A copy of `start` (after TO_ASYNC) at the end of the stream phase, with `plans` by region.

    Without plans it is IREE's own version. Raises CompileError (PASS_FAILED).
    """
    session.use(start.clone())
    module = session.module
    with session.context:
        for region in regions_of(module, target) if plans else ():
            if region.index in plans:
                apply_plan(region, plans[region.index])
        module.verify()
        count = len(find(module, EXECUTE))
        session.run_passes(ALLOCATE)
        executes = find(module, "stream.cmd.execute")
        if plans and len(executes) != count:
            raise PycError(
                ReasonCode.PASS_FAILED,
                f"{ALLOCATE}: expected {count} execution regions, got {len(executes)}",
            )
        packs = [pack for i in plans for pack in _packs(executes[i])]
        replace_packs(packs, packer, target.alignment)
        session.run_passes(LAY_OUT)
        sizes = tuple(_allocated(e) for e in find(module, "stream.cmd.execute"))
        session.run_passes(TO_END)
    return Version(module, sizes)


def regions_of(module: Any, target: Target) -> list[Region]:
    """The planning problems of a module after TO_ASYNC, with the target's costs and alignment."""
    return read_regions(module, DispatchCosts(module, target), target.alignment)


@dataclass
class _Planning:
    """Plans one module; `decisions` are those of the last run."""

    target: Target
    name: str
    choices: Choices
    planner: Planner
    decisions: list[Decision] = field(default_factory=list)

    def run(self, session: Session) -> None:
        """Take the session's module from the end of phase `flow` to the end of `stream`."""
        session.run_passes(TO_ASYNC)
        start = session.module
        reference = carry_out(session, start, {}, self.planner.pack, self.target)
        answers = Choices(self.choices.policy, self.choices.recipe)
        try:
            with session.context:
                regions = regions_of(start, self.target)
            plans = {r.index: self.planner.plan(r.problem) for r in regions}
            version = carry_out(session, start, plans, self.planner.pack, self.target)
        except (PycError, ir.MLIRError) as error:
            best = reference
            answers.log.append(self._failure(error))
        else:
            names = [self._choose(r, plans[r.index], version, reference, answers) for r in regions]
            kept = {r.index for r, name in zip(regions, names, strict=True) if name == UNPLANNED}
            best = self._without(kept, session, start, plans, version, reference)
        session.use(best.module)
        self.decisions = answers.log

    def _without(
        self,
        kept: set[int],
        session: Session,
        start: Any,
        plans: Mapping[int, Plan],
        version: Version,
        reference: Version,
    ) -> Version:
        """`version` with IREE's plan in the regions `kept`."""
        if len(kept) == len(plans):
            return reference
        if kept:
            chosen = {index: plan for index, plan in plans.items() if index not in kept}
            version = carry_out(session, start, chosen, self.planner.pack, self.target)
        assert version.never_above(reference), "one region's plan changed another one"
        return version

    def _choose(
        self, region: Region, plan: Plan, version: Version, reference: Version, answers: Choices
    ) -> str:
        """Choose between the plan and IREE's for one region; IREE's alone when it is no larger."""
        ours, theirs = version.sizes[region.index], reference.sizes[region.index]
        better = ours.at_most(theirs) and not theirs.at_most(ours)
        sequence = sum(task.seconds for task in region.problem.tasks)
        iree = Alternative(
            UNPLANNED, Cost(sequence, theirs.nominal), f"{theirs} bytes, IREE's order and packing"
        )
        planned = Alternative(
            PLANNED,
            Cost(plan.seconds or sequence, ours.nominal),
            f"{ours} bytes, lower bound {plan.lower_bound} for the plan's order",
        )
        offered = (planned, iree) if better else (iree,)
        why = "smaller" if better else "not proven smaller"
        evidence = f"{PLANNED}: {ours} bytes, {why} than IREE's {theirs}"
        return answers.choose(self._site(region), offered, (evidence,)).name

    def _failure(self, error: Exception) -> Decision:
        said = getattr(error, "message", str(error))[:_EVIDENCE_CHARACTERS]
        iree = Alternative(UNPLANNED, reason="planning failed")
        return Decision(Site(SITE, self.name), UNPLANNED, (iree,), "fallback", (said,))

    def _site(self, region: Region) -> Site:
        return Site(SITE, f"{self.name}#{region.index}")


def _allocations(execute: Any) -> list[Any]:
    """The ``stream.resource.alloca`` ops whose memory a region works in."""
    makers = (maker(v) for v in execute.operands)
    return [op for op in makers if op is not None and op.name == "stream.resource.alloca"]


def _packs(execute: Any) -> list[Any]:
    """The packs of a region's transients; results may be packed too, but they all stay."""
    transients = (op for op in _allocations(execute) if "<transient>" in str(op.results[0].type))
    makers = (maker(op.operands[0]) for op in transients)
    return [op for op in makers if op is not None and op.name == "stream.resource.pack"]


def _allocated(execute: Any) -> Size:
    total = Size()
    for op in _allocations(execute):
        total = total + size_of(op.operands[0])
    return total
