"""Run IREE's stream phase under given plans and measure the sizes that result.

Comes in: a module at the end of phase `flow`. IREE's stream phase is taken apart: `to_async` runs
up to the point where dispatches are final and each execution region is a planning problem;
`carry_out` puts plans in and runs the rest. Without plans it makes IREE's own version, the
reference. No code is generated for either, so several can be compared.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.memory.arena_entry import BUFFERS, note_donations
from pyc_mlir.iree.own_results import advance_clones, separate_results
from pyc_mlir.iree.session import IreeSession
from pyc_mlir.pipelines.memory.planner.layout import ArenaLayout
from pyc_mlir.pipelines.memory.planner.problem import SchedulePlan
from pyc_mlir.pipelines.memory.stream_alias import Bodies, donations
from pyc_mlir.pipelines.memory.stream_apply import (
    Packer,
    Shared,
    WatchedPack,
    apply_plan,
    replace_packs,
    shared_bindings,
    shared_offsets,
    watch,
)
from pyc_mlir.pipelines.memory.stream_problem import DispatchCosts, StreamRegion, read_regions
from pyc_mlir.pipelines.streams.ir import (
    EXECUTE,
    constant_of,
    find,
    function_of,
    ir,
    maker,
    number_of,
    operations,
    resources,
)
from pyc_mlir.pipelines.streams.sizes import ByteSize, Ranges, size_of
from pyc_mlir.pipelines.target.target import Target

# The peak of bytes that one call of a stream function has allocated at once.
#
# Comes in: a function from the point in IREE's phase `stream` on where every allocation and every
# release stands in the text with the timepoints that it waits for. The host submits work ahead of
# the device, so a release counts only for allocations that are sure to come after it: those that
# wait for it, and those that the host makes after having waited for it. Never too small, therefore.

_ALLOCATIONS = ("stream.resource.alloca", "stream.resource.alloc")
_DEALLOCATION = "stream.resource.dealloca"
_AWAIT, _SUBVIEW = "stream.timepoint.await", "stream.resource.subview"
# The operands of a subview: the resource and its size, then where in it the view begins.
_SUBVIEW_OFFSET = 2
_TRANSIENTS = "stream.resource.transients"
_IMPORT, _EXPORT = "stream.tensor.import", "stream.tensor.export"
# On an allocation: the number of the execution region whose planned arena it is.
ARENA = "pyc.arena_of"
# The size of one allocation, read from the value that gives it.
Sized = Callable[[Any], ByteSize]
# What may allocate out of sight.
_ELSEWHERE = "util.call"


@dataclass(frozen=True)
class CallBytes:
    """Sums of bytes, the largest of which is the peak of one call."""

    sums: tuple[ByteSize, ...] = (ByteSize(),)

    @staticmethod
    def of(sums: Iterable[ByteSize]) -> "CallBytes":
        """Return the peak of these sums, without those that are below another one."""
        return CallBytes(_largest([ByteSize(), *sums]))

    def __add__(self, more: ByteSize) -> "CallBytes":
        return CallBytes(tuple(size + more for size in self.sums))

    def at_most(self, other: "CallBytes") -> bool:
        """Return True if it is proven that this peak is never above the other."""
        return all(any(mine.at_most(theirs) for theirs in other.sums) for mine in self.sums)

    @property
    def known(self) -> int | None:
        """The peak, where it does not depend on the call."""
        if not all(size.known for size in self.sums):
            return None
        return max(size.constant for size in self.sums)

    @property
    def largest(self) -> int | None:
        """The peak of any call; None where nothing bounds it."""
        found = [size.largest for size in self.sums]
        known = [size for size in found if size is not None]
        return max(known) if len(known) == len(found) else None

    def __str__(self) -> str:
        known = self.known
        return str(known) if known is not None else " or ".join(map(str, self.sums))


@dataclass(frozen=True)
class Moment:
    """The allocations of one call at one time.

    fixed: bytes besides those of results and of the arenas of these regions.
    """

    fixed: ByteSize = field(default_factory=ByteSize)
    results: ByteSize = field(default_factory=ByteSize)
    arenas: frozenset[int] = frozenset()


@dataclass(frozen=True)
class CallAllocations:
    """The allocations of one call of a function, before its regions' arenas have been decided.

    moments: the sets of allocations that may be there at once; None where control flow decides.
    outputs: bytes of the results that have memory of their own; None likewise. IREE may give them
        more than that, as the moments say.
    handed: whether the caller hands in the scratch.
    """

    moments: tuple[Moment, ...] | None
    outputs: ByteSize | None
    handed: bool = False

    @property
    def padding(self) -> int:
        """The bytes that IREE gives results beyond their size, at most."""
        given = (moment.results.largest or 0 for moment in self.moments or ())
        return max(
            0, max(given, default=0) - (0 if self.outputs is None else self.outputs.largest or 0)
        )

    @property
    def beside_outputs(self) -> int:
        """The bytes of the largest moment without results, arenas that are not decided left out."""
        fixed = (moment.fixed.largest or 0 for moment in self.moments or ())
        return max(fixed, default=0) + self.padding


def read_call(function: Any, sized: Sized = size_of) -> CallAllocations:
    """Read the moments of a function whose arenas are marked with ARENA.

    Memory that the caller hands in for results counts. A function that is handed its scratch too
    holds all of it from its start to its end.
    """
    ops = _straight(function)
    origins = _outputs(function)
    handed = _handed_memory(function) is not None
    if ops is None or origins is None:
        return CallAllocations(None, None, handed)
    # A value that is returned in two shapes has one memory.
    apart = dict.fromkeys((*_place(op.operands[0]), _exported_size(op)) for op in origins)
    outputs = sum((sized(size) for *_, size in apart), ByteSize())
    all_of_it = [op for op in ops if op.name in _ALLOCATIONS or _is_buffer(op)]
    live_sets = [all_of_it] if handed else _live_sets(ops)
    results = set(origins.values())
    return CallAllocations(
        tuple(_moment(live, results, sized) for live in live_sets), outputs, handed
    )


def call_bytes(function: Any, sized: Sized = size_of) -> CallBytes | None:
    """Return the peak of the allocations of one call; None where control flow decides on them.

    What the caller hands in is not counted. `sized` reads the size of one allocation.
    """
    ops = _straight(function)
    if ops is None:
        return None
    live_sets = _live_sets(ops)
    return CallBytes.of(sum((sized(op.operands[0]) for op in s), ByteSize()) for s in live_sets)


def _outputs(function: Any) -> dict[Any, Any] | None:
    """Map the export of each result with memory of its own to the op that this comes from.

    Not of inputs that are handed back. None where control flow decides.
    """
    blocks = list(function.regions[0].blocks)
    if len(blocks) != 1:
        return None
    returned = operations(blocks[0])[-1].operands
    makers = (maker(value) for value in dict.fromkeys(returned))
    exports = [op for op in makers if op is not None and op.name == _EXPORT]
    origins = {op: _allocation(op.operands[0]) for op in exports}
    return {
        op: origin
        for op, origin in origins.items()
        if origin is not None and (origin.name in _ALLOCATIONS or _is_buffer(origin))
    }


def buffer_number(import_: Any) -> int | None:
    """Return the result that an imported buffer is for; None for inputs and the arena."""
    source = import_.operands[0]
    if maker(source) is not None or str(source.type) != "!hal.buffer":
        return None
    function = import_.parent.operation
    numbers = _handed_memory(function)
    if numbers is None:
        return None
    count = len(function.regions[0].blocks[0].arguments)
    place = ir.BlockArgument(source).arg_number - (count - len(numbers))
    return numbers[place] if place >= 0 else None


def takes_buffers(function: Any) -> bool:
    """Return whether the caller of an entry hands in scratch memory and memory for results."""
    return _handed_memory(function) is not None


def _handed_memory(function: Any) -> tuple[int, ...] | None:
    """Return the results that a function takes buffers for; None where it is not handed scratch."""
    if "iree.reflection" not in function.attributes:
        return None
    reflection = ir.DictAttr(function.attributes["iree.reflection"])
    return _numbers(ir.StringAttr(reflection[BUFFERS]).value) if BUFFERS in reflection else None


@lru_cache(maxsize=8)
def _numbers(text: str) -> tuple[int, ...]:
    return tuple(json.loads(text))


def _is_buffer(op: Any) -> bool:
    return op.name == _IMPORT and buffer_number(op) is not None


def _moment(live: list[Any], outputs: set[Any], sized: Sized) -> Moment:
    """Return what is live, as far as it is decided."""
    decided = [op for op in live if ARENA not in op.attributes]
    fixed = (_bytes_of(op, sized) for op in decided if op not in outputs)
    results = (_bytes_of(op, sized) for op in decided if op in outputs)
    arenas = (op.attributes[ARENA] for op in live if ARENA in op.attributes)
    numbers = frozenset(ir.IntegerAttr(a).value for a in arenas)
    return Moment(sum(fixed, ByteSize()), sum(results, ByteSize()), numbers)


def _bytes_of(op: Any, sized: Sized) -> ByteSize:
    return sized(op.operands[0 if op.name in _ALLOCATIONS else len(op.operands) - 1])


def _straight(function: Any) -> list[Any] | None:
    """Return the ops of a function that allocates in one block only; None for others."""
    blocks = list(function.regions[0].blocks)
    allocations = [op for name in _ALLOCATIONS for op in find(function, name)]
    if find(function, _ELSEWHERE) or len(blocks) != 1:
        return None
    ops = operations(blocks[0])
    return ops if set(allocations) <= set(ops) else None


def _live_sets(ops: list[Any]) -> list[list[Any]]:
    """Follow the text; what is live is looked at where something is allocated."""
    live: list[Any] = []
    releases: dict[Any, Any] = {}
    passed: set[Any] = set()
    found: list[list[Any]] = []
    for op in ops:
        if op.name in _ALLOCATIONS:
            sure = passed | _before(op)
            live = [*(made for made in live if releases.get(made) not in sure), op]
            found.append(live)
        elif op.name == _DEALLOCATION:
            releases[_allocation(op.operands[0])] = op
        elif op.name == _AWAIT:
            passed |= _before(op)
    return found


def _before(op: Any) -> set[Any]:
    """Return the ops whose timepoints `op` waits for, and those that they wait for."""
    found: set[Any] = set()
    left = [op]
    while left:
        makers = (maker(v) for v in left.pop().operands if str(v.type) == "!stream.timepoint")
        new = [m for m in makers if m is not None and m not in found]
        found.update(new)
        left += new
    return found


def _allocation(value: Any) -> Any | None:
    """Return the op whose memory a resource is or lies in, with only waiting in between."""
    return maker(_place(value)[0])


def _exported_size(export: Any) -> Any:
    return export.operands[len(export.operands) - 1]


def _place(value: Any) -> tuple[Any, ...]:
    """Return the value whose memory a resource lies in, and the offsets of the views in between."""
    offsets = []
    op = maker(value)
    while op is not None and op.name in (_AWAIT, _SUBVIEW, _TRANSIENTS):
        if op.name == _SUBVIEW:
            offsets.append(op.operands[_SUBVIEW_OFFSET])
        # A wait hands on what it is given, in that order; the others what they are given first.
        value = op.operands[number_of(value) if op.name == _AWAIT else 0]
        op = maker(value)
    return (value, *offsets)


def _largest(sums: list[ByteSize]) -> tuple[ByteSize, ...]:
    """Return those sums that are not below another one."""
    kept: list[ByteSize] = []
    for size in sums:
        if not any(size.at_most(other) for other in kept):
            kept = [other for other in kept if not other.at_most(size)] + [size]
    return tuple(kept)


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
_CMD_EXECUTE, _ALLOCATION = "stream.cmd.execute", "stream.resource.alloca"
# Whether one size is known to be at most another.
Comparison = Callable[[ByteSize, ByteSize], bool]
_LASTING = ("<constant>", "<variable>", "<*>")


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
    calls: by function, what a call of it allocates.
    layouts: how each region's transients lie; None where that is not known.
    constants: bytes that the module holds from its start to its end; None where not known.
    """

    module: Any
    regions: tuple[Allocated, ...]
    layouts: tuple[ArenaLayout | None, ...]
    constants: int | None = None
    arenas: tuple[ByteSize, ...] = ()
    calls: Mapping[str, CallAllocations] = field(default_factory=dict)

    def never_above(self, other: "Version", compared: Comparison = ByteSize.at_most) -> bool:
        """Return True if it is proven that no region needs more than it does in `other`."""
        return len(self.regions) == len(other.regions) and all(
            compared(mine.total, theirs.total)
            for mine, theirs in zip(self.regions, other.regions, strict=True)
        )

    def needed(self, function: str) -> CallBytes | None:
        """Return what a call of a function allocates; None where control flow decides."""
        moments = self.calls[function].moments
        if moments is None:
            return None
        arenas = ((self.arenas[region] for region in m.arenas) for m in moments)
        pairs = zip(moments, arenas, strict=True)
        return CallBytes.of(sum(sizes, m.fixed + m.results) for m, sizes in pairs)


def to_async(session: IreeSession) -> None:
    """Go from the end of phase `flow` to the point where plans begin; each result has own memory.

    Raises CompileError (PASS_FAILED).
    """
    session.run_passes(TO_ASYNC)
    with session.context:
        advance_clones(session.module)
        separate_results(session.module)
        session.module.verify()


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
        watched = [[watch(e, pack, target.alignment) for pack in _packs(e)] for e in executes]
        for i, pairs in shared.items():
            offsets = shared_offsets(executes[i], pairs)
            enough = plans[i].arena_bytes
            largest = ranges if at_largest else None
            packs = _packs(executes[i])
            replace_packs(packs, packer, target.alignment, offsets, enough, largest)
        session.run_passes(LAY_OUT)
        sized = partial(size_of, ranges=ranges)
        regions = tuple(_allocated(e, sized) for e in find(module, _CMD_EXECUTE))
        layouts = tuple(_layout(packs) for packs in watched)
        arenas, calls = _read_arenas(module, len(regions), sized)
    return Version(module, regions, layouts, held_bytes(module), arenas, calls)


def finish(session: IreeSession, version: Version) -> None:
    """Go on with a version, to the end of the stream phase. Raises CompileError (PASS_FAILED)."""
    session.use(version.module)
    session.run_passes(TO_END)


def _note_donations(module: Any, target: Target) -> None:
    """Say in entries that take memory of the caller which inputs' memory a result may take."""
    entries = [f for f in find(module, "util.func") if takes_buffers(f)]
    bodies = Bodies.of(module, target.in_place) if entries else None
    for function in entries:
        assert bodies is not None
        note_donations(function, donations(function, buffer_number, bodies))


def regions_of(
    module: Any, target: Target, ranges: Ranges | None = None, *, every: bool = False
) -> list[StreamRegion]:
    """Read the planning problems of a module after `to_async`, with the target's costs.

    every: as of `read_regions`.
    """
    bodies = Bodies.of(module, target.in_place)
    costs = DispatchCosts(module, target)
    return read_regions(module, costs, bodies, target.alignment, ranges, every=every)


def _layout(packs: Sequence[WatchedPack | None]) -> ArenaLayout | None:
    """Return the layout of a region that packs once, which is all that IREE's scheduling makes."""
    return packs[0].layout() if len(packs) == 1 and packs[0] is not None else None


def held_bytes(module: Any) -> int | None:
    """Return what the initializers of a module allocate for its life; None for unknown sizes."""
    total = 0
    for initializer in find(module, "util.initializer"):
        for name in ("stream.resource.alloc", "stream.resource.alloca"):
            for op in find(initializer, name):
                if any(kind in str(op.results[0].type) for kind in _LASTING):
                    size = constant_of(op.operands[0])
                    if size is None:
                        return None
                    total += size
    return total


def _allocations(execute: Any) -> list[Any]:
    """Return the ``stream.resource.alloca`` ops whose memory a region works in."""
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
    """Say on each allocation of packed transients whose arena it is, before packs are answered."""
    for number, execute in enumerate(executes):
        for allocation, _ in _arenas(execute):
            allocation.attributes[ARENA] = ir.IntegerAttr.get(ir.IndexType.get(), number)


def _read_arenas(
    module: Any, regions: int, sized: Sized
) -> tuple[tuple[ByteSize, ...], dict[str, CallAllocations]]:
    """Return the arena of each region and the calls of the functions; take the marks off."""
    arenas = [ByteSize()] * regions
    functions = [f for f in find(module, "util.func") if len(f.regions[0].blocks)]
    calls = {ir.StringAttr(f.attributes["sym_name"]).value: read_call(f, sized) for f in functions}
    for op in find(module, _ALLOCATION):
        if ARENA in op.attributes:
            number = ir.IntegerAttr(op.attributes[ARENA]).value
            arenas[number] = arenas[number] + sized(op.operands[0])
            del op.attributes[ARENA]
    return tuple(arenas), calls


def _allocated(execute: Any, sized: Sized) -> Allocated:
    transient, results = ByteSize(), ByteSize()
    for op in _allocations(execute):
        size = sized(op.operands[0])
        if _is_transient(op):
            transient = transient + size
        else:
            results = results + size
    return Allocated(function_of(execute), transient, results)
