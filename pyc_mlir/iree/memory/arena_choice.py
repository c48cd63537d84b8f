"""Decide whether a program gets the entry `main$arena`, and which outputs take buffers.

A call of the second entry must never need more memory than one of `main`. Comes in: a module at
the end of IREE's phase `flow`, and the way to the end of phase `stream`. First those outputs are
left out that IREE would make elsewhere and copy into the caller's buffer, seen on IREE's stream IR.
Then, after the memory plan, what a call of each entry allocates is compared; where the second one
is not proven to need at most what the first one does, it is made again without outputs in buffers,
and after that not at all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

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
from pyc_mlir.pipelines.streams.ranges import Ranges
from pyc_mlir.pipelines.streams.sizes import ByteSize, rounded_size_of, size_of

SITE, MADE, NONE = "arena-entry", "made", "none"
_IMPORT, _UPDATE = "stream.tensor.import", "stream.async.update"
_THERE_BEFORE = (_IMPORT, "util.global.load")
_ALIGNMENT = 64
_QUERY = "iree.abi.transients.size"


# Goes from where `to_async` ends to the end of phase `stream`.
ToStream = Callable[[IreeSession], None]


@dataclass
class ArenaEntry:
    """Asks a compile for the second entry of `function`; afterwards, what came of it.

    Where it is not `wanted`, none is made, and only the account is read, with dimensions of the
    arguments within `ranges`. `missing` says why there
    is none; `constants_bytes` is the memory that the program holds from its start to its end, None
    where that is not known. `main` and `twin` are what a call of each entry needs, arena, scratch
    and outputs together; None where that is not known, or where there is no such entry.
    `also` are further modes of the planner: each gets a second entry of its own, and `in_modes` is
    what a call of each needs. `proven` says that the second entry needs no more than `main`;
    `arena_bytes` is its arena's part. `left_out` are the outputs that take no buffer since it would
    cost memory. `calls` tell by function when which part is there.
    """

    function: str
    wanted: bool = True
    also: tuple[str, ...] = ()
    ranges: Ranges = field(default_factory=dict)
    missing: str = ""
    constants_bytes: int | None = None
    main: CallBytes | None = None
    twin: CallBytes | None = None
    in_modes: dict[str, CallBytes | None] = field(default_factory=dict)
    left_out: tuple[int, ...] = ()
    proven: bool = False
    arena_bytes: ByteSize = field(default_factory=ByteSize)
    calls: dict[str, CallAllocations] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the second entry is called."""
        return self.function + SUFFIX

    @property
    def outputs(self) -> ByteSize | None:
        """Bytes of the outputs that a call allocates; None where that is not known."""
        return None if self.function not in self.calls else self.calls[self.function].outputs

    @property
    def modes(self) -> dict[str, str]:
        """The functions of further modes, and the mode of each."""
        return {f"{self.name}.{mode}": mode for mode in self.also}

    @property
    def evidence(self) -> tuple[Note, ...]:
        """The bytes of both entries, and those of further modes."""
        fresh = ", ".join(map(str, self.left_out))
        notes = [f"a call of it needs {self.twin} bytes, one of `{self.function}` {self.main}"]
        notes += [f"in mode {mode} {needed}" for mode, needed in self.in_modes.items()]
        notes += [f"outputs that a buffer would cost a copy: {fresh}"] if fresh else []
        return tuple(map(Note, notes))

    def compile(self, session: IreeSession, to_stream: ToStream) -> None:
        """Take a session from the end of phase `flow` to that of `stream`, with the entry or not.

        Raises as `to_stream` does without the entry.
        """
        start = session.module
        for into_buffers in (True, False) if self.wanted else ():
            if self._made(session, start, into_buffers, to_stream):
                return
            if not self.twin:
                break
        session.use(start)
        to_async(session)
        to_stream(session)
        self._read(session)

    def _made(
        self, session: IreeSession, start: Any, into_buffers: bool, to_stream: ToStream
    ) -> bool:
        """Try it once; whether there is an entry that needs no more than `main`."""
        before = len(session.diagnostics)
        try:
            self.missing = self._add(session, start, into_buffers)
            if self.missing:
                return False
            to_stream(session)
        except BudgetNotKept as error:
            if not error.optional:
                raise
            self.missing, self.twin = error.message, None
            return False
        except CompileError as error:
            # Perhaps the entry is at fault; if not, the compile without it fails too.
            self.missing, self.twin = f"IREE: {_words(error)}", None
            del session.diagnostics[before:]
            return False
        self._read(session)
        if not self.proven:
            self.missing = (
                f"a call of it would need {self.twin} bytes, one of `{self.function}` {self.main}"
            )
            return False
        return True

    def _add(self, session: IreeSession, start: Any, into_buffers: bool) -> str:
        """Add the entry, without buffers for outputs that IREE would copy there.

        Leaves the session where `to_async` does. Returns why there can be no entry, or nothing.
        """
        left_out = set() if into_buffers else set(range(_results(session, start, self.function)))
        while True:
            session.use(start.clone())
            with session.context, ir.Location.unknown():
                names = (self.name, *self.modes)
                added = [add_entry(session.module, self.function, n, left_out) for n in names]
            if missing := next(filter(None, added), ""):
                return missing
            to_async(session)
            with session.context:
                copied = copied_outputs(function_named(session.module, self.name))
            if copied <= left_out:
                self.left_out = tuple(sorted(left_out))
                return ""
            left_out |= copied

    def _read(self, session: IreeSession) -> None:
        """What calls need, by a module at the end of phase `stream`."""
        module = session.module
        self.constants_bytes = held_bytes(module)
        with session.context:
            main, twin = (function_named(module, n) for n in (self.function, self.name))
            sized = partial(size_of, ranges=self.ranges)
            self.main = None if main is None else call_bytes(main, sized)
            found = {self.function: main, self.name: twin}
            self.calls = {n: read_call(f, sized) for n, f in found.items() if f is not None}
            self.twin, self.proven, self.in_modes = None, False, {}
            if twin is None:
                return
            self.arena_bytes = _arena_size(module, twin, sized)
            self.twin = _needed(twin, self.arena_bytes, sized)
            for name, mode in self.modes.items():
                entry = function_named(module, name)
                assert entry is not None, "entries are made together"
                self.in_modes[mode] = _needed(entry, _arena_size(module, entry, sized), sized)
            # IREE rounds up where it packs results together, which no unknown size shows.
            rounded = _needed(twin, self.arena_bytes, partial(rounded_size_of, to=_ALIGNMENT))
            self.proven = any(
                twin is not None and self.main is not None and twin.at_most(self.main)
                for twin in (self.twin, rounded)
            )


def _results(session: IreeSession, module: Any, function: str) -> int:
    """How many results a function has; 0 where there is none of that name."""
    with session.context:
        found = function_named(module, function)
        return 0 if found is None else len(operations(found.regions[0].blocks[0])[-1].operands)


def _needed(twin: Any, arena: ByteSize, sized: Sized) -> CallBytes | None:
    """What a call of the second entry needs: what it takes and what it allocates besides."""
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
    """The results whose whole value is made elsewhere and then copied into a caller's buffer.

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
    """Only IREE's words: the message's location may hold a path, and artifacts carry none."""
    errors = [d for d in error.diagnostics if d.severity == "error"]
    return errors[0].message if errors else error.got
