"""Decide whether a program gets the entry `main$arena`, and which outputs take buffers.

A call of the second entry must never need more memory than one of `main`. Comes in: a module at
the end of IREE's phase `flow`, and the way to the end of phase `stream`. First those outputs are
left out that IREE would make elsewhere and copy into the caller's buffer, seen on IREE's stream IR.
Then, after the memory plan, what a call of each entry allocates is compared; where the second one
is not proven to need at most what the first one does, it is made again without outputs in buffers,
and after that not at all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from pyc_mlir.artifact.manifest import BY_IREE, MEMORY, OUTPUTS
from pyc_mlir.artifact.memory import Account
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.memory.arena_entry import SUFFIX, add_entry, function_named
from pyc_mlir.iree.memory.budget import BudgetNotKept
from pyc_mlir.iree.memory.versions import (
    CallAllocations,
    CallBytes,
    Sized,
    buffer_number,
    call_bytes,
    held_bytes,
    read_call,
    to_async,
)
from pyc_mlir.iree.session import CompileError, IreeSession
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.pipelines.streams.ir import constant_of, find, ir, maker, operations, storage_of
from pyc_mlir.pipelines.streams.sizes import ByteSize, Ranges, rounded_size_of, size_of

SITE, MADE, NONE = "arena-entry", "made", "none"
_IMPORT, _UPDATE = "stream.tensor.import", "stream.async.update"
_THERE_BEFORE = (_IMPORT, "util.global.load")
_ALIGNMENT = 64
_QUERY = "iree.abi.transients.size"


T = TypeVar("T")
# Goes from where `to_async` ends to the end of phase `stream`, and returns what is said of that.
ToStream = Callable[[IreeSession], T]


@dataclass(frozen=True)
class EntryRequest:
    """A request for the second entry of `function`.

    wanted: if it is False none is made, and only the account is read.
    also: further modes of the planner; each gets a second entry of its own.
    beside: further functions, plans for certain shapes; each gets a second entry too.
    ranges: those that dimensions of the arguments keep.
    """

    function: str = "main"
    wanted: bool = True
    also: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    ranges: Ranges = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the second entry."""
        return self.function + SUFFIX

    @property
    def second_entries(self) -> dict[str, str]:
        """The second entry of each function, that of `function` last."""
        return {f: f + SUFFIX for f in (*self.beside, self.function)}

    @property
    def modes(self) -> dict[str, str]:
        """The functions of further modes, and the mode of each."""
        return {f"{self.name}.{mode}": mode for mode in self.also}


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


@dataclass(frozen=True)
class _Refused:
    """An entry that is not to be: why, and whether one without outputs in buffers may be."""

    why: str
    again: bool = False


def make_entry(
    session: IreeSession, request: EntryRequest, to_stream: ToStream[T]
) -> tuple[ArenaEntry, T]:
    """Take a session from the end of phase `flow` to that of `stream`, with the entry or not.

    Returns what came of the request, and what `to_stream` returned for the module that stays.
    Raises as `to_stream` does without the entry.
    """
    start, missing = session.module, ""
    for into_buffers in (True, False) if request.wanted else ():
        made = _tried(session, start, request, into_buffers, to_stream)
        if not isinstance(made, _Refused):
            return made
        missing = made.why
        if not made.again:
            break
    session.use(start)
    to_async(session)
    said = to_stream(session)
    return replace(_read(session, request), missing=missing), said


def _tried(
    session: IreeSession,
    start: Any,
    request: EntryRequest,
    into_buffers: bool,
    to_stream: ToStream[T],
) -> tuple[ArenaEntry, T] | _Refused:
    """Make the entry; it stays if it needs no more than `main`."""
    before = len(session.diagnostics)
    try:
        left_out = _add(session, start, request, into_buffers)
        if isinstance(left_out, _Refused):
            return left_out
        said = to_stream(session)
    except BudgetNotKept as error:
        if not error.optional:
            raise
        return _Refused(error.message)
    except CompileError as error:
        # Perhaps the entry is at fault; if not, the compile without it fails too.
        del session.diagnostics[before:]
        return _Refused(f"IREE: {_words(error)}")
    entry = replace(_read(session, request), left_out=left_out)
    if entry.proven:
        return entry, said
    return _Refused(f"a call of it would need {entry.needs}", again=entry.second is not None)


def _add(
    session: IreeSession, start: Any, request: EntryRequest, into_buffers: bool
) -> tuple[int, ...] | _Refused:
    """Add the entry, without buffers for outputs that IREE would copy there.

    Leaves the session where `to_async` does. Returns the outputs without a buffer.
    """
    second_entries = request.second_entries
    results = range(_results(session, start, request.function))
    left_out: dict[str, set[int]] = {
        f: set(() if into_buffers else results) for f in second_entries
    }
    while True:
        session.use(start.clone())
        with session.context, ir.Location.unknown():
            entries = [(f, name) for f, name in second_entries.items()]
            entries += [(request.function, name) for name in request.modes]
            added = [add_entry(session.module, f, name, left_out[f]) for f, name in entries]
        if missing := next(filter(None, added), ""):
            return _Refused(missing)
        to_async(session)
        with session.context:
            copied = {
                f: copied_outputs(function_named(session.module, n))
                for f, n in second_entries.items()
            }
        if all(copied[f] <= left_out[f] for f in second_entries):
            return tuple(sorted(left_out[request.function]))
        for f in second_entries:
            left_out[f] |= copied[f]


def _read(session: IreeSession, request: EntryRequest) -> ArenaEntry:
    """Read what calls need, of a module at the end of phase `stream`."""
    module = session.module
    with session.context:
        main, second = (function_named(module, n) for n in (request.function, request.name))
        sized = partial(size_of, ranges=request.ranges)
        found = {request.function: main, request.name: second}
        entry = ArenaEntry(
            request,
            constants_bytes=held_bytes(module),
            main=None if main is None else call_bytes(main, sized),
            calls={n: read_call(f, sized) for n, f in found.items() if f is not None},
        )
        if second is None:
            return entry
        arena = _arena_size(module, second, sized)
        in_modes: dict[str, CallBytes | None] = {}
        for name, mode in request.modes.items():
            other = function_named(module, name)
            assert other is not None, "entries are made together"
            in_modes[mode] = _needed(other, _arena_size(module, other, sized), sized)
        needed = _needed(second, arena, sized)
        proven = all(_proven(module, f, name, sized) for f, name in request.second_entries.items())
        return replace(entry, second=needed, in_modes=in_modes, proven=proven, arena_bytes=arena)


def _proven(module: Any, function: str, name: str, sized: Sized) -> bool:
    """Return whether the second entry of a function needs no more than the function."""
    main, second = (function_named(module, n) for n in (function, name))
    assert main is not None and second is not None, "entries are made together"
    own, arena = call_bytes(main, sized), _arena_size(module, second, sized)
    # IREE rounds up where it packs results together, which no unknown size shows.
    needed = (_needed(second, arena, s) for s in (sized, partial(rounded_size_of, to=_ALIGNMENT)))
    return any(n is not None and own is not None and n.at_most(own) for n in needed)


def _results(session: IreeSession, module: Any, function: str) -> int:
    """Return how many results a function has; 0 where there is none of that name."""
    with session.context:
        found = function_named(module, function)
        return 0 if found is None else len(operations(found.regions[0].blocks[0])[-1].operands)


def _needed(second: Any, arena: ByteSize, sized: Sized) -> CallBytes | None:
    """Return what a call of the second entry takes and what it allocates besides."""
    allocated = call_bytes(second, sized)
    if allocated is None:
        return None
    taken = arena
    for op in find(second, _IMPORT):
        if buffer_number(op) is not None:
            taken = taken + sized(op.operands[len(op.operands) - 1])
    return allocated + taken


def _arena_size(module: Any, second: Any, sized: Sized) -> ByteSize:
    reflection = ir.DictAttr(second.attributes["iree.reflection"])
    if _QUERY not in reflection:
        return ByteSize()
    query = function_named(module, ir.FlatSymbolRefAttr(reflection[_QUERY]).value)
    assert query is not None, "IREE names a function of the module"
    return sized(operations(query.regions[0].blocks[0])[-1].operands[0])


def copied_outputs(second: Any) -> set[int]:
    """Return the results whose value is made elsewhere and then copied into a caller's buffer.

    Read after `to_async`. A copy of what is there before the call (an input, say) costs no memory.
    """
    found = set()
    for op in find(second, _UPDATE):
        target, size, begin, end, source = (op.operands[i] for i in range(5))
        whole = constant_of(begin) == 0 and (end == size or constant_of(end) == constant_of(size))
        origin = maker(storage_of(source))
        if not whole or origin is None or origin.name in _THERE_BEFORE:
            continue
        import_ = maker(storage_of(target))
        if import_ is not None and import_.name == _IMPORT:
            number = buffer_number(import_)
            if number is not None:
                found.add(number)
    return found


def _words(error: CompileError) -> str:
    """Return only IREE's words: a message's location may hold a path, and artifacts carry none."""
    errors = [d for d in error.diagnostics if d.severity == "error"]
    return errors[0].message if errors else error.got


# The account of a compiled module: what its calls need, and what they would by IREE's own plan.
#
# Comes in: what the compile read off the module (`ArenaEntry`), the signature, the contract. Goes
# out: an `Account` of the entry that a Program calls.


def account_of(signature: Signature, entry: ArenaEntry, contract: Contract, device: str) -> Account:
    """Return what a program needs, of the entry that a Program takes (runtime/plans.py)."""
    account = Account.of(signature, entry.constants_bytes)
    in_arena, called = _called(entry, contract, device)
    needed = None if called is None else called.largest
    outputs = None if entry.outputs is None else entry.outputs.largest
    if needed is None or outputs is None:
        return account
    arena = 0 if entry.second is None else entry.arena_bytes.largest or 0
    scratch = max(arena, needed - outputs)
    if contract.max_concurrency > 1:
        # Another call's outputs may be there before this one's are.
        asked = entry.request
        call = entry.calls[asked.name if in_arena else asked.function]
        scratch = max(scratch, call.beside_outputs + (arena if in_arena else 0))
    transients = arena if in_arena else scratch
    return replace(account, outputs=outputs, transients=transients, workspace=scratch - transients)


def _called(entry: ArenaEntry, contract: Contract, device: str) -> tuple[bool, CallBytes | None]:
    """Return whether calls take the entry with an arena, and what one of them allocates."""
    by_arena = device == "local" or contract.memory_budget_bytes is not None
    in_arena = entry.second is not None and by_arena
    return in_arena, entry.second if in_arena else entry.main


def formulas_of(
    entry: ArenaEntry, reference: CallBytes | None, contract: Contract, device: str
) -> dict[str, tuple[str, ...]]:
    """Return what a call allocates, outputs included, by both plans, and its outputs alone.

    Empty where all is known, and where it cannot be said.
    """
    called = _called(entry, contract, device)[1]
    if called is None or reference is None or entry.outputs is None:
        return {}
    if None not in (called.known, reference.known):
        return {}
    sums = {MEMORY: called.sums, BY_IREE: reference.sums, OUTPUTS: (entry.outputs,)}
    return {name: tuple(map(str, sizes)) for name, sizes in sums.items()}


def reference_of(account: Account, larger: int, needed: CallBytes | None) -> Account:
    """Return the account of the same dispatches by IREE's own plan.

    larger: what constants take more in the forms that kernels read. Others that a compile makes,
        such as tables and what IREE computes of constants, it would hold too.
    needed: what a call of `main` allocates under that plan.
    """
    held = None if account.constants is None else account.constants - larger
    peak = None if needed is None else needed.largest
    if peak is None or account.outputs is None:
        return replace(account, constants=held, transients=None, workspace=None)
    transients = max(0, peak - account.outputs)
    return replace(account, constants=held, transients=transients, workspace=0)


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
