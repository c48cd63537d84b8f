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

from pyc_mlir.iree.memory.arena_entry import SUFFIX, add_entry, function_named
from pyc_mlir.iree.memory.budget import BudgetNotKept
from pyc_mlir.iree.memory.call_memory import (
    CallAllocations,
    CallBytes,
    Sized,
    buffer_number,
    call_bytes,
    read_call,
)
from pyc_mlir.iree.memory.versions import held_bytes, to_async
from pyc_mlir.iree.session import CompileError, IreeSession
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
    def twins(self) -> dict[str, str]:
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
    main, twin: what a call of each entry needs, arena, scratch and outputs together; None where
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
    twin: CallBytes | None = None
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
        return f"{self.twin} bytes, one of `{self.request.function}` {self.main}"

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
    return _Refused(f"a call of it would need {entry.needs}", again=entry.twin is not None)


def _add(
    session: IreeSession, start: Any, request: EntryRequest, into_buffers: bool
) -> tuple[int, ...] | _Refused:
    """Add the entry, without buffers for outputs that IREE would copy there.

    Leaves the session where `to_async` does. Returns the outputs without a buffer.
    """
    twins = request.twins
    results = range(_results(session, start, request.function))
    left_out: dict[str, set[int]] = {f: set(() if into_buffers else results) for f in twins}
    while True:
        session.use(start.clone())
        with session.context, ir.Location.unknown():
            entries = [(f, name) for f, name in twins.items()]
            entries += [(request.function, name) for name in request.modes]
            added = [add_entry(session.module, f, name, left_out[f]) for f, name in entries]
        if missing := next(filter(None, added), ""):
            return _Refused(missing)
        to_async(session)
        with session.context:
            copied = {
                f: copied_outputs(function_named(session.module, n)) for f, n in twins.items()
            }
        if all(copied[f] <= left_out[f] for f in twins):
            return tuple(sorted(left_out[request.function]))
        for f in twins:
            left_out[f] |= copied[f]


def _read(session: IreeSession, request: EntryRequest) -> ArenaEntry:
    """Read what calls need, of a module at the end of phase `stream`."""
    module = session.module
    with session.context:
        main, twin = (function_named(module, n) for n in (request.function, request.name))
        sized = partial(size_of, ranges=request.ranges)
        found = {request.function: main, request.name: twin}
        entry = ArenaEntry(
            request,
            constants_bytes=held_bytes(module),
            main=None if main is None else call_bytes(main, sized),
            calls={n: read_call(f, sized) for n, f in found.items() if f is not None},
        )
        if twin is None:
            return entry
        arena = _arena_size(module, twin, sized)
        in_modes: dict[str, CallBytes | None] = {}
        for name, mode in request.modes.items():
            other = function_named(module, name)
            assert other is not None, "entries are made together"
            in_modes[mode] = _needed(other, _arena_size(module, other, sized), sized)
        needed = _needed(twin, arena, sized)
        proven = all(_proven(module, f, name, sized) for f, name in request.twins.items())
        return replace(entry, twin=needed, in_modes=in_modes, proven=proven, arena_bytes=arena)


def _proven(module: Any, function: str, name: str, sized: Sized) -> bool:
    """Return whether the second entry of a function needs no more than the function."""
    main, twin = (function_named(module, n) for n in (function, name))
    assert main is not None and twin is not None, "entries are made together"
    own, arena = call_bytes(main, sized), _arena_size(module, twin, sized)
    # IREE rounds up where it packs results together, which no unknown size shows.
    needed = (_needed(twin, arena, s) for s in (sized, partial(rounded_size_of, to=_ALIGNMENT)))
    return any(n is not None and own is not None and n.at_most(own) for n in needed)


def _results(session: IreeSession, module: Any, function: str) -> int:
    """Return how many results a function has; 0 where there is none of that name."""
    with session.context:
        found = function_named(module, function)
        return 0 if found is None else len(operations(found.regions[0].blocks[0])[-1].operands)


def _needed(twin: Any, arena: ByteSize, sized: Sized) -> CallBytes | None:
    """Return what a call of the second entry takes and what it allocates besides."""
    allocated = call_bytes(twin, sized)
    if allocated is None:
        return None
    taken = arena
    for op in find(twin, _IMPORT):
        if buffer_number(op) is not None:
            taken = taken + sized(op.operands[len(op.operands) - 1])
    return allocated + taken


def _arena_size(module: Any, twin: Any, sized: Sized) -> ByteSize:
    reflection = ir.DictAttr(twin.attributes["iree.reflection"])
    if _QUERY not in reflection:
        return ByteSize()
    query = function_named(module, ir.FlatSymbolRefAttr(reflection[_QUERY]).value)
    assert query is not None, "IREE names a function of the module"
    return sized(operations(query.regions[0].blocks[0])[-1].operands[0])


def copied_outputs(twin: Any) -> set[int]:
    """Return the results whose value is made elsewhere and then copied into a caller's buffer.

    Read after `to_async`. A copy of what is there before the call (an input, say) costs no memory.
    """
    found = set()
    for op in find(twin, _UPDATE):
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
