"""Run IREE's stream phase under given plans and measure the sizes that result.

Comes in: a module at the end of phase `flow`. IREE's stream phase is taken apart: `to_async` runs
up to the point where dispatches are final and each execution region is a planning problem;
`carry_out` puts plans in and runs the rest. Without plans it makes IREE's own version, the
reference. No code is generated for either, so several can be compared.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.compiler import IreeSession
from pyc_mlir.iree.memory.calls import ARENA, Allocations, Sized, handed_buffers
from pyc_mlir.iree.rewrites import after_elided_copies
from pyc_mlir.pipelines.memory.planner.layout import ArenaLayout
from pyc_mlir.pipelines.memory.planner.problem import SchedulePlan
from pyc_mlir.pipelines.memory.stream_alias import Bodies, donations
from pyc_mlir.pipelines.memory.stream_apply import (
    Packer,
    Shared,
    apply_plan,
    replace_packs,
    shared_bindings,
    shared_offsets,
    watch,
)
from pyc_mlir.pipelines.memory.stream_problem import DispatchCosts, StreamRegion, read_regions
from pyc_mlir.pipelines.streams.ir import EXECUTE, find, function_of, ir, maker, resources
from pyc_mlir.pipelines.streams.sizes import ByteSize, Ranges, size_of, unchanged
from pyc_mlir.pipelines.target.target import Target

# IREE's stream phase in four parts; a plan's order goes in after the first one, its offsets after
# the second. `iree-stream-schedule-concurrency`, part of the first, must not run again. The third
# is what the fourth would begin with: constants and slices get their sizes and offsets.
TO_ASYNC = (
    "iree-util-verify-initialization-order,iree-stream-tensor-transformation-pipeline,"
    "iree-stream-async-transformation-pipeline"
)
ALLOCATE = "iree-stream-schedule-allocation"
LAY_OUT = "any(iree-stream-pack-constants),any(iree-stream-layout-slices)"
TO_END = (
    "iree-stream-cmd-transformation-pipeline,iree-stream-optimization-pipeline,"
    "iree-stream-cleanup-pipeline,symbol-dce"
)
DONATIONS = "pyc.donations"
_CMD_EXECUTE, _ALLOCATION = "stream.cmd.execute", "stream.resource.alloca"
# Whether one size is known to be at most another.
Comparison = Callable[[ByteSize, ByteSize], bool]


@dataclass(frozen=True)
class Allocated:
    """Bytes that one run of a region allocates: what it works in, and what it hands out.

    function: whose region it is; empty for the module's initializers.
    """

    function: str = ""
    transient: ByteSize = field(default_factory=ByteSize)
    results: ByteSize = field(default_factory=ByteSize)

    @property
    def total(self) -> ByteSize:
        """The sum of both."""
        return self.transient + self.results


@dataclass(frozen=True)
class Version:
    """A module in which all that is allocated has its size; `finish` takes it further, once.

    regions: what each execution region allocates.
    arenas: the packed part of each region's transients, which plans decide; the rest is handed on.
    layouts: how each region's transients lie; None where that is not known.
    """

    module: Any
    regions: tuple[Allocated, ...]
    layouts: tuple[ArenaLayout | None, ...]
    arenas: tuple[ByteSize, ...] = ()
    allocations: Allocations = field(default_factory=lambda: Allocations(None, {}))

    def never_above(self, other: "Version", compared: Comparison = ByteSize.at_most) -> bool:
        """Return True if it is proven that no region needs more than it does in `other`."""
        return len(self.regions) == len(other.regions) and all(
            compared(mine.total, theirs.total)
            for mine, theirs in zip(self.regions, other.regions, strict=True)
        )


def to_async(session: IreeSession) -> None:
    """Go from the end of phase `flow` to the point where plans begin; each result has own memory.

    Raises CompileError (PASS_FAILED).
    """
    session.run_passes(TO_ASYNC)
    with session.context:
        after_elided_copies(session.module)


def iree_alone(session: IreeSession) -> None:
    """Go on from there to the end of phase `stream` by IREE's own plan. Raises as `to_async`."""
    session.run_passes(f"{ALLOCATE},{LAY_OUT},{TO_END}")


def carry_out(
    session: IreeSession,
    start: Any,
    plans: Mapping[int, SchedulePlan],
    packer: Packer,
    target: Target,
    ranges: Ranges | None = None,
    *,
    at_largest: bool = False,
) -> Version:
    """Take a copy of `start` (after `to_async`) as far as LAY_OUT, with `plans` by region.

    `ranges` are those that dimensions of the arguments are declared with; with `at_largest` plans
    are packed for the largest sizes, whatever a call's are. Raises CompileError (PASS_FAILED).
    """
    session.use(start.clone())
    module = session.module
    shared: dict[int, Shared] = {}
    with session.context:
        for region in regions_of(module, target, ranges) if plans else ():
            if region.index in plans:
                shared[region.index] = shared_bindings(region, plans[region.index])
                apply_plan(region, plans[region.index])
        _note_donations(module, target)
        module.verify()
        count = len(find(module, EXECUTE))
        session.run_passes(ALLOCATE)
        executes = find(module, _CMD_EXECUTE)
        if plans and len(executes) != count:
            raise PycError(
                ReasonCode.PASS_FAILED,
                f"{ALLOCATE}: expected {count} execution regions, got {len(executes)}",
            )
        _mark_arenas(executes)
        # But for packs, whose sizes none depends on.
        with unchanged():
            watched = [[watch(e, pack, target.alignment) for pack in _packs(e)] for e in executes]
            for i, pairs in shared.items():
                offsets = shared_offsets(executes[i], pairs)
                enough = plans[i].arena_bytes
                how = (offsets, enough, ranges or {}, at_largest)
                replace_packs(_packs(executes[i]), packer, target.alignment, *how)
        session.run_passes(LAY_OUT)
        # Of regions that pack once, which is all that IREE's scheduling makes.
        once = (packs[0] if len(packs) == 1 else None for packs in watched)
        layouts = tuple(None if pack is None else pack.layout() for pack in once)
        sized = partial(size_of, ranges=ranges)
        with unchanged():
            regions = tuple(_allocated(e, sized) for e in find(module, _CMD_EXECUTE))
            arenas, allocations = _read_arenas(module, len(regions), sized)
    return Version(module, regions, layouts, arenas, allocations)


def finish(session: IreeSession, version: Version) -> None:
    """Go on with a version, to the end of the stream phase. Raises CompileError (PASS_FAILED)."""
    session.run_passes(TO_END, version.module)


def _note_donations(module: Any, target: Target) -> None:
    """Say in entries that take memory of the caller which inputs' memory a result may take."""
    entries = handed_buffers(module)
    bodies = Bodies.of(module, target.in_place) if entries else None
    for function, buffers in entries.values():
        assert bodies is not None
        pairs = [*map(list, donations(function, buffers.get, bodies))]
        parts = {a.name: a.attr for a in ir.DictAttr(function.attributes["iree.reflection"])}
        parts[DONATIONS] = ir.StringAttr.get(json.dumps(pairs))
        function.attributes["iree.reflection"] = ir.DictAttr.get(parts)


def regions_of(
    module: Any, target: Target, ranges: Ranges | None = None, *, every: bool = False
) -> list[StreamRegion]:
    """Read the planning problems of a module after `to_async`, with the target's costs.

    every: as of `read_regions`.
    """
    bodies = Bodies.of(module, target.in_place)
    costs = DispatchCosts(module, target)
    return read_regions(module, costs, bodies, target.alignment, ranges, every=every)


def _allocations(execute: Any) -> list[Any]:
    # Not the timepoints: a lone allocation's is an operand too.
    makers = (maker(v) for v in resources(execute.operands))
    return [op for op in makers if op is not None and op.name == _ALLOCATION]


def _is_transient(allocation: Any) -> bool:
    return "<transient>" in str(allocation.results[0].type)


def _arenas(execute: Any) -> list[tuple[Any, Any]]:
    """Return a region's packed transients, each with its pack; packed results all stay."""
    makers = [(op, maker(op.operands[0])) for op in _allocations(execute) if _is_transient(op)]
    return [(op, m) for op, m in makers if m is not None and m.name == "stream.resource.pack"]


def _packs(execute: Any) -> list[Any]:
    return [pack for _, pack in _arenas(execute)]


def _mark_arenas(executes: Sequence[Any]) -> None:
    for number, execute in enumerate(executes):
        for allocation, _ in _arenas(execute):
            allocation.attributes[ARENA] = ir.IntegerAttr.get(ir.IndexType.get(), number)


def _read_arenas(
    module: Any, regions: int, sized: Sized
) -> tuple[tuple[ByteSize, ...], Allocations]:
    """Return the arena of each region and what the module allocates; take the marks off."""
    arenas = [ByteSize()] * regions
    allocations = Allocations.of(module, sized)
    for op in find(module, _ALLOCATION):
        if ARENA in op.attributes:
            number = ir.IntegerAttr(op.attributes[ARENA]).value
            arenas[number] = arenas[number] + sized(op.operands[0])
            del op.attributes[ARENA]
    return tuple(arenas), allocations


def _allocated(execute: Any, sized: Sized) -> Allocated:
    transient, results = ByteSize(), ByteSize()
    for op in _allocations(execute):
        size = sized(op.operands[0])
        if _is_transient(op):
            transient = transient + size
        else:
            results = results + size
    return Allocated(function_of(execute), transient, results)
