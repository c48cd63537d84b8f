"""The memory of a program's calls: what one of them allocates, with which entry, and the account.

Comes in: functions from the point in IREE's phase `stream` on where every allocation and every
release stands in the text with the timepoints that it waits for. The host submits work ahead of
the device, so a release counts only for allocations that are sure to come after it: those that
wait for it, and those that the host makes after having waited for it. Never too small, therefore.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyc_mlir.artifact.manifest import BY_IREE, MEMORY, OUTPUTS
from pyc_mlir.artifact.memory import Account
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.pipelines.streams.ir import (
    constant_of,
    find,
    functions_of,
    ir,
    maker,
    number_of,
    operations,
)
from pyc_mlir.pipelines.streams.sizes import ByteSize, Ranges, rounded_size_of, size_of, unchanged

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
_LASTING = ("<constant>", "<variable>", "<*>")
_ALIGNMENT = 64
# The second entry's name behind the function's, and the results that its reflection lists.
SUFFIX, BUFFERS = "$arena", "pyc.buffers"
_QUERY = "iree.abi.transients.size"


@dataclass(frozen=True)
class CallBytes:
    """Sums of bytes, the largest of which is the peak of one call."""

    sums: tuple[ByteSize, ...] = (ByteSize(),)

    @staticmethod
    def of(sums: Iterable[ByteSize]) -> "CallBytes":
        """Return the peak of these sums, without those that are below another one."""
        kept: list[ByteSize] = []
        for size in (ByteSize(), *sums):
            if not any(size.at_most(other) for other in kept):
                kept = [other for other in kept if not other.at_most(size)] + [size]
        return CallBytes(tuple(kept))

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


@dataclass(frozen=True)
class FunctionBytes:
    """The bytes of one call of a function, after its regions' arenas have been decided.

    call: when which part is there. allocated: the peak of what a call allocates; None where control
    flow decides. arena: what the caller hands in for scratch. needed: `allocated` with all that the
    caller hands in; rounded: the same where IREE rounds up unknown sizes.
    """

    call: CallAllocations
    allocated: CallBytes | None
    arena: ByteSize
    needed: CallBytes | None
    rounded: CallBytes | None

    def never_above(self, other: "FunctionBytes") -> bool:
        """Return True if it is proven that a call needs at most what the other one allocates."""
        theirs = other.allocated
        # IREE rounds up where it packs results together, which no unknown size shows.
        found = (self.needed, self.rounded)
        return any(n is not None and theirs is not None and n.at_most(theirs) for n in found)


@dataclass(frozen=True)
class Allocations:
    """The allocations of a module whose regions' arenas are marked with ARENA.

    constants: bytes that it holds from its start to its end; None where not known. calls: by
    function, what a call of it allocates.
    """

    constants: int | None
    calls: Mapping[str, CallAllocations]

    @staticmethod
    def of(module: Any, sized: Sized) -> "Allocations":
        """Read them."""
        calls = {name: _read(function, sized) for name, function in functions_of(module).items()}
        return Allocations(held_bytes(module), calls)

    def needed(self, arenas: Sequence[ByteSize]) -> dict[str, CallBytes | None]:
        """Return what a call of each function allocates; None where control flow decides.

        arenas: the bytes of each region's.
        """
        return {
            name: None
            if call.moments is None
            else CallBytes.of(
                sum((arenas[region] for region in m.arenas), m.fixed + m.results)
                for m in call.moments
            )
            for name, call in self.calls.items()
        }


def bytes_of(module: Any, ranges: Ranges) -> dict[str, FunctionBytes]:
    """Return the bytes of a call of each function that IREE has an entry for."""
    functions = functions_of(module)
    sized, rounded = partial(size_of, ranges=ranges), partial(rounded_size_of, to=_ALIGNMENT)

    def measured(function: Any, buffers: Mapping[Any, int]) -> FunctionBytes:
        reflection = ir.DictAttr(function.attributes["iree.reflection"])
        arena = ByteSize()
        if _QUERY in reflection:
            query = functions[ir.FlatSymbolRefAttr(reflection[_QUERY]).value]
            arena = sized(operations(query.regions[0].blocks[0])[-1].operands[0])
        sizes = [op.operands[len(op.operands) - 1] for op in buffers]
        peaks = [_peak(function, s) for s in (sized, rounded)]
        taken = [sum(map(s, sizes), arena) for s in (sized, rounded)]
        needed = [None if p is None else p + t for p, t in zip(peaks, taken, strict=True)]
        return FunctionBytes(_read(function, sized), peaks[0], arena, *needed)

    with unchanged():
        return {
            name: measured(function, buffers_of(function) or {})
            for name, function in functions.items()
            if "iree.reflection" in function.attributes
        }


def _read(function: Any, sized: Sized) -> CallAllocations:
    """Read the moments of a function.

    Memory that the caller hands in for results counts. A function that is handed its scratch too
    holds all of it from its start to its end.
    """
    ops, buffers = _straight(function), buffers_of(function)
    origins = _outputs(function, buffers or {})
    if ops is None or origins is None:
        return CallAllocations(None, None, buffers is not None)
    # A value that is returned in two shapes has one memory.
    apart = dict.fromkeys(
        (*_place(op.operands[0]), op.operands[len(op.operands) - 1]) for op in origins
    )
    outputs = sum((sized(size) for *_, size in apart), ByteSize())
    live_sets = _live_sets(ops)
    if buffers is not None:
        live_sets = [[op for op in ops if op.name in _ALLOCATIONS or op in buffers]]
    results = set(origins.values())
    moments = tuple(_moment(live, results, sized) for live in live_sets)
    return CallAllocations(moments, outputs, buffers is not None)


def _peak(function: Any, sized: Sized) -> CallBytes | None:
    """Return the peak of the allocations of one call; None where control flow decides on them.

    What the caller hands in is not counted.
    """
    ops = _straight(function)
    if ops is None:
        return None
    live_sets = _live_sets(ops)
    return CallBytes.of(sum((sized(op.operands[0]) for op in s), ByteSize()) for s in live_sets)


def _outputs(function: Any, buffers: Mapping[Any, int]) -> dict[Any, Any] | None:
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
        if origin is not None and (origin.name in _ALLOCATIONS or origin in buffers)
    }


def handed_buffers(module: Any) -> dict[str, tuple[Any, dict[Any, int]]]:
    """Return the functions whose caller hands in memory, by name, each with `buffers_of` it."""
    functions = functions_of(module).items()
    found = {name: (function, buffers_of(function)) for name, function in functions}
    return {name: (f, buffers) for name, (f, buffers) in found.items() if buffers is not None}


def buffers_of(function: Any) -> dict[Any, int] | None:
    """Return the imports of memory of the caller, with the result that each is for.

    None where the caller of a function hands in neither scratch nor memory for results.
    """
    if "iree.reflection" not in function.attributes:
        return None
    reflection = ir.DictAttr(function.attributes["iree.reflection"])
    if BUFFERS not in reflection:
        return None
    numbers = json.loads(ir.StringAttr(reflection[BUFFERS]).value)
    first = len(function.regions[0].blocks[0].arguments) - len(numbers)
    found = {}
    for op in find(function, _IMPORT):
        source = op.operands[0]
        if maker(source) is None and str(source.type) == "!hal.buffer":
            place = ir.BlockArgument(source).arg_number - first
            if place >= 0:
                found[op] = numbers[place]
    return found


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
    return maker(_place(value)[0])


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


# The entry with an arena: what is asked for, and what came of it.


@dataclass(frozen=True)
class EntryRequest:
    """A request for the second entry of `function`.

    wanted: if it is False none is made, and only the account is read.
    also: further modes of the planner; each gets a second entry of its own.
    beside: further functions, plans for certain shapes; each gets a second entry too.
    ranges: those that dimensions of the arguments keep.
    name: of the second entry. second_entries: that of each function, that of `function` last.
    modes: the functions of further modes, and the mode of each.
    """

    function: str = "main"
    wanted: bool = True
    also: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    ranges: Ranges = field(default_factory=dict)
    name: str = field(init=False)
    second_entries: Mapping[str, str] = field(init=False)
    modes: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        name = self.function + SUFFIX
        second = {f: f + SUFFIX for f in (*self.beside, self.function)}
        vars(self).update(
            name=name,
            second_entries=second,
            modes={f"{name}.{mode}": mode for mode in self.also},
        )


@dataclass(frozen=True)
class ArenaEntry:
    """The outcome of a request: the second entry, or why there is none (`missing`).

    constants_bytes: the memory that the program holds from its start to its end; None if unknown.
    main, second: what a call of each entry needs, arena, scratch and outputs together; None where
        that is not known, or where there is no such entry.
    in_modes: what a call needs of the second entry of each further mode.
    left_out: the outputs that take no buffer since it would cost memory.
    proven: the second entry needs no more than `main`.
    arena_bytes: the arena's part of the second entry.
    calls: by function, when which part is there.
    """

    request: EntryRequest
    missing: str = ""
    constants_bytes: int | None = None
    main: CallBytes | None = None
    second: CallBytes | None = None
    in_modes: Mapping[str, CallBytes | None] = field(default_factory=dict)
    left_out: tuple[int, ...] = ()
    proven: bool = False
    arena_bytes: ByteSize = field(default_factory=ByteSize)
    calls: Mapping[str, CallAllocations] = field(default_factory=dict)

    @property
    def outputs(self) -> ByteSize | None:
        """The bytes of the outputs that a call allocates; None where that is not known."""
        function = self.request.function
        return None if function not in self.calls else self.calls[function].outputs

    @property
    def needs(self) -> str:
        """The bytes of both entries, as a sentence."""
        return f"{self.second} bytes, one of `{self.request.function}` {self.main}"

    @property
    def evidence(self) -> tuple[Note, ...]:
        """The bytes of both entries, and those of further modes."""
        fresh = ", ".join(map(str, self.left_out))
        notes = [f"a call of it needs {self.needs}"]
        notes += [f"in mode {mode} {needed}" for mode, needed in self.in_modes.items()]
        notes += [f"outputs that a buffer would cost a copy: {fresh}"] if fresh else []
        return tuple(map(Note, notes))


def entry_of(module: Any, request: EntryRequest) -> ArenaEntry:
    """Read what calls need, of a module at the end of phase `stream`."""
    found = bytes_of(module, request.ranges)
    main, second = found.get(request.function), found.get(request.name)
    known = {request.function: main, request.name: second}
    entry = ArenaEntry(
        request,
        constants_bytes=held_bytes(module),
        main=None if main is None else main.allocated,
        calls={name: made.call for name, made in known.items() if made is not None},
    )
    if second is None:
        return entry
    return replace(
        entry,
        second=second.needed,
        in_modes={mode: found[name].needed for name, mode in request.modes.items()},
        proven=all(found[n].never_above(found[f]) for f, n in request.second_entries.items()),
        arena_bytes=second.arena,
    )


@dataclass(frozen=True)
class Accounts:
    """The memory of a compiled program, of the entry that a Program calls.

    account: by PyC's plan. by_iree: of the same dispatches by IREE's own. formulas: what a call
    allocates, outputs included, by both plans, and its outputs alone; empty where all is known, and
    where it cannot be said.
    """

    account: Account
    by_iree: Account
    formulas: Mapping[str, tuple[str, ...]]


def accounts_of(
    signature: Signature,
    entry: ArenaEntry,
    contract: Contract,
    device: str,
    larger: int,
    reference: CallBytes | None,
) -> Accounts:
    """Return what a program needs, of the entry that a Program takes (runtime/plans.py).

    larger: what constants take more in the forms that kernels read. Others that a compile makes,
        such as tables and what IREE computes of constants, it would hold too.
    reference: what a call of `main` allocates by IREE's plan.
    """
    inputs, results = signature.largest_bytes
    account = Account(entry.constants_bytes, inputs, None, results, None)
    by_arena = device == "local" or contract.memory_budget_bytes is not None
    in_arena = entry.second is not None and by_arena
    called = entry.second if in_arena else entry.main
    needed = None if called is None else called.largest
    outputs = None if entry.outputs is None else entry.outputs.largest
    if needed is not None and outputs is not None:
        arena = 0 if entry.second is None else entry.arena_bytes.largest or 0
        scratch = max(arena, needed - outputs)
        if contract.max_concurrency > 1:
            # Another call's outputs may be there before this one's are.
            call = entry.calls[entry.request.name if in_arena else entry.request.function]
            scratch = max(scratch, call.beside_outputs + (arena if in_arena else 0))
        transients = arena if in_arena else scratch
        account = replace(
            account, outputs=outputs, transients=transients, workspace=scratch - transients
        )
    held = None if account.constants is None else account.constants - larger
    by_iree = replace(account, constants=held, transients=None, workspace=None)
    peak = None if reference is None else reference.largest
    if peak is not None and account.outputs is not None:
        by_iree = replace(by_iree, transients=max(0, peak - account.outputs), workspace=0)
    formulas, sizes = {}, entry.outputs
    if called is None or reference is None or sizes is None:
        return Accounts(account, by_iree, formulas)
    if None in (called.known, reference.known):
        sums = {MEMORY: called.sums, BY_IREE: reference.sums, OUTPUTS: (sizes,)}
        formulas = {name: tuple(map(str, parts)) for name, parts in sums.items()}
    return Accounts(account, by_iree, formulas)


def require_kept(account: Account, contract: Contract, entry: ArenaEntry) -> None:
    """Raise PycError (BUDGET_NOT_FOUND) unless what was made keeps the budget, every mode of it.

    Plans were chosen by the same figures, before IREE's last passes over them.
    """
    if contract.memory_budget_bytes is None:
        return
    modes = [None if m is None else m.largest for m in entry.in_modes.values()]
    beside = [None if m is None else m - (account.outputs or 0) for m in modes]
    largest = [account.scratch, *beside]
    known = [size for size in largest if size is not None]
    widest = replace(account, transients=max(known, default=0), workspace=0)
    total = widest.total(contract.max_concurrency)
    if len(known) < len(largest) or total is None or total > contract.memory_budget_bytes:
        raise PycError(
            ReasonCode.BUDGET_NOT_FOUND,
            f"memory budget: expected at most {contract.memory_budget_bytes} bytes, got a program "
            f"that needs {total} ({account}); raise the budget, or leave further modes out",
        )
