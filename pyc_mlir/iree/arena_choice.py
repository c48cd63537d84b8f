"""Whether a program gets the entry `main$arena`, and which outputs take buffers of the caller.

A call of the second entry must never need more memory than one of `main`. Comes in: a module at
the end of IREE's phase `flow`, and the way to the end of phase `stream`. First those outputs are
left out that IREE would make elsewhere and copy into the caller's buffer, seen on IREE's stream IR.
Then, after the memory plan, what a call of each entry allocates is compared; where the second one
is not proven to need at most what the first one does, it is made again without outputs in buffers,
and after that not at all.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyc_mlir.iree.arena_entry import BUFFERS, SUFFIX, add_entry, function_named
from pyc_mlir.iree.call_memory import CallBytes, call_bytes
from pyc_mlir.iree.session import CompileError, Session
from pyc_mlir.iree.versions import TO_ASYNC, held_bytes
from pyc_mlir.pipelines.stream_ir import (
    CONCURRENT,
    EXECUTE,
    constant_of,
    find,
    group,
    ir,
    maker,
    operations,
    ties,
)
from pyc_mlir.pipelines.stream_sizes import Size, size_of

SITE, MADE, NONE = "arena-entry", "made", "none"
_IMPORT, _UPDATE = "stream.tensor.import", "stream.async.update"
_QUERY = "iree.abi.transients.size"


@dataclass
class ArenaEntry:
    """Asks a compile for the second entry of `function`; afterwards, what came of it.

    Where it is not `wanted`, none is made, and only the account is read. `missing` says why there
    is none; `constants_bytes` is the memory that the program holds from its start to its end, None
    where that is not known. `main` and `twin` are what a call of each entry needs, arena, scratch
    and outputs together; None where that is not known, or where there is no such entry.
    `left_out` are the outputs that take no buffer since it would cost memory, `handed_back` those
    that are inputs, for which nothing is allocated.
    """

    function: str
    wanted: bool = True
    missing: str = ""
    constants_bytes: int | None = None
    main: CallBytes | None = None
    twin: CallBytes | None = None
    left_out: tuple[int, ...] = ()
    handed_back: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What the second entry is called."""
        return self.function + SUFFIX

    @property
    def evidence(self) -> str:
        """What was compared, in words."""
        fresh = ", ".join(map(str, self.left_out))
        said = f"a call of it needs {self.twin} bytes, one of `{self.function}` {self.main}"
        return f"{said}; outputs that a buffer would cost a copy: {fresh}" if fresh else said

    def compile(self, session: Session, to_stream: Callable[[Session], None]) -> None:
        """Take a session from the end of phase `flow` to that of `stream`, with the entry or not.

        Raises as `to_stream` does without the entry.
        """
        if not self.wanted:
            to_stream(session)
            self._read(session)
            return
        start = session.module
        for into_buffers in (True, False):
            session.use(start.clone())
            if self._made(session, into_buffers, to_stream):
                return
            if not self.twin:
                break
        self.twin = None
        session.use(start)
        to_stream(session)
        self._read(session)

    def _made(
        self, session: Session, into_buffers: bool, to_stream: Callable[[Session], None]
    ) -> bool:
        """Try it once; whether there is an entry that needs no more than `main`."""
        said = len(session.diagnostics)
        try:
            self.missing = self._add(session, into_buffers)
            if self.missing:
                return False
            to_stream(session)
        except CompileError as error:
            # Perhaps the entry is at fault; if not, the compile without it fails too.
            self.missing, self.twin = f"IREE: {_words(error)}", None
            del session.diagnostics[said:]
            return False
        self._read(session)
        if self.main is None or self.twin is None or not self.twin.at_most(self.main):
            self.missing = (
                f"a call of it would need {self.twin} bytes, one of `{self.function}` {self.main}"
            )
            return False
        return True

    def _add(self, session: Session, into_buffers: bool) -> str:
        """Add the entry, without buffers for outputs that IREE would copy there."""
        start = session.module
        with session.context, ir.Location.unknown():
            main = function_named(start, self.function)
            count = 0 if main is None else len(operations(main.regions[0].blocks[0])[-1].operands)
        left_out = set() if into_buffers else set(range(count))
        while True:
            session.use(start.clone())
            with session.context, ir.Location.unknown():
                missing = add_entry(session.module, self.function, self.name, left_out)
            if missing:
                return missing
            copied = self._copied(session) if into_buffers else set()
            if not copied:
                self.left_out = tuple(sorted(left_out))
                return ""
            left_out |= copied

    def _copied(self, session: Session) -> set[int]:
        """The outputs that are made elsewhere and copied; the session's module stays as it is."""
        module = session.module
        session.use(module.clone())
        session.run_passes(TO_ASYNC)
        with session.context:
            twin = function_named(session.module, self.name)
            found = copied_outputs(twin)
        session.use(module)
        return found

    def _read(self, session: Session) -> None:
        """What calls need, by a module at the end of phase `stream`."""
        module = session.module
        self.constants_bytes = held_bytes(module)
        with session.context:
            main, twin = (function_named(module, n) for n in (self.function, self.name))
            self.main = None if main is None else call_bytes(main)
            self.twin = None if twin is None else _needed(module, twin)
            returned = [] if main is None else operations(main.regions[0].blocks[0])[-1].operands
            makers = [maker(value) for value in returned]
            self.handed_back = tuple(n for n, m in enumerate(makers) if m is None)


def _needed(module: Any, twin: Any) -> CallBytes | None:
    """What a call of the second entry needs: what it takes and what it allocates besides."""
    allocated = call_bytes(twin)
    if allocated is None:
        return None
    reflection = ir.DictAttr(twin.attributes["iree.reflection"])
    taken = Size()
    if _QUERY in reflection:
        name = ir.FlatSymbolRefAttr(reflection[_QUERY]).value
        query = function_named(module, name)
        taken = size_of(operations(query.regions[0].blocks[0])[-1].operands[0])
    for op in find(twin, _IMPORT):
        if buffer_number(op) is not None:
            taken = taken + size_of(op.operands[len(op.operands) - 1])
    return allocated + taken


def buffer_number(import_: Any) -> int | None:
    """The result that an imported buffer is for; None for inputs and the arena."""
    source = import_.operands[0]
    if maker(source) is not None or str(source.type) != "!hal.buffer":
        return None
    function = import_.parent.operation
    reflection = ir.DictAttr(function.attributes["iree.reflection"])
    numbers = json.loads(ir.StringAttr(reflection[BUFFERS]).value)
    count = len(function.regions[0].blocks[0].arguments)
    place = ir.BlockArgument(source).arg_number - (count - len(numbers))
    return numbers[place] if place >= 0 else None


def copied_outputs(twin: Any) -> set[int]:
    """The results whose whole value is made in scratch and then copied into a caller's buffer.

    Read after TO_ASYNC. A copy of what is no scratch (an input, say) costs no memory.
    """
    found = set()
    for op in find(twin, _UPDATE):
        target, size, begin, end, source = (op.operands[i] for i in range(5))
        whole = constant_of(begin) == 0 and (end == size or constant_of(end) == constant_of(size))
        if not whole or "<transient>" not in str(source.type):
            continue
        import_ = maker(_storage(target))
        if import_ is not None and import_.name == _IMPORT:
            number = buffer_number(import_)
            if number is not None:
                found.add(number)
    return found


def _storage(value: Any) -> Any:
    """The value, outside of execution regions, whose storage `value` is in."""
    while True:
        op = maker(value)
        if op is None:
            region = value.owner.owner.operation
            if region.name not in (EXECUTE, CONCURRENT):
                return value
            value = group(region, 0)[ir.BlockArgument(value).arg_number]
            continue
        before = [operand for result, operand in ties(op) if result == value]
        if not before:
            return value
        value = before[0]


def _words(error: CompileError) -> str:
    """Only IREE's words: the message's location may hold a path, and artifacts carry none."""
    errors = [d for d in error.diagnostics if d.severity == "error"]
    return errors[0].message if errors else error.message.partition("got ")[2]
