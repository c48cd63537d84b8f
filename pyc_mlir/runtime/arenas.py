"""Scratch memory of calls: a pool of arenas, and calls of `main$arena`, which takes one.

The caller owns the scratch memory and, where it can, the outputs. Each arena is used by one call
at a time.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from iree import runtime as rt

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.runtime.array import Array, Spec, copy
from pyc_mlir.runtime.counts import TakeCounts
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Entry, Executable, ResultType

# An arena that as many calls in turn have used less than half of becomes as large as they needed.
SMALLER_CALLS = 256


class Arena:
    """Scratch memory on a device; none before it is first held.

    Of the last `smaller` calls, each of which needed less than it has, the largest took `most`.
    """

    # As in `Array`: slots are freed in this order, so the memory goes before IREE's device.
    __slots__ = ("buffer", "hal", "most", "size", "smaller", "tag")

    def __init__(self, device: Device) -> None:
        self.buffer: Any = None
        self.hal = device.hal
        self.size = self.smaller = self.most = 0
        self.tag = ""

    def hold(self, size: int, device: Device) -> None:
        """Have at least `size` bytes; what was in there is lost. Raises as `Device.allocate`."""
        if self.buffer is None or self.size < size:
            # The old memory goes before the new one comes, so that both never count.
            self.drop()
            self.buffer = device.allocate(max(size, 1))
            self.size = self.buffer.byte_length()

    def fit(self, size: int, device: Device) -> None:
        """Have `size` bytes, and no more than twice what the last calls needed. As `hold`."""
        if self.buffer is None or self.size < size:
            self.smaller = self.most = 0
        else:
            self.smaller, self.most = self.smaller + 1, max(self.most, size)
            if self.smaller < SMALLER_CALLS:
                return
            size, large = self.most, 2 * self.most < self.size
            self.smaller = self.most = 0
            if large:
                self.drop()
        self.hold(size, device)

    def drop(self) -> None:
        """Let go of the memory."""
        self.buffer, self.size = None, 0


class ArenaPool:
    """At most `count` arenas on `device`. Several threads may take and give."""

    __slots__ = ("_arenas", "_count", "_device", "_free", "_freed", "_tag", "_waiting", "waits")

    def __init__(self, device: Device, count: int) -> None:
        self._device = device
        self._count = count
        # Made when a call finds none free: `count` may be any number, as it stands in a file.
        self._arenas: list[Arena] = []
        self._free: list[Arena] = []
        self._freed = threading.Condition()
        self._waiting = 0
        self._tag = ""
        self.waits = 0

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """The bytes that all arenas of the pool hold now."""
        return sum(a.size for a in tuple(self._arenas))

    def use(self, tag: str) -> None:
        """Keep arenas of `tag` from now on; others go when no call works in them."""
        self._tag = tag
        idle = []
        try:
            while True:
                idle.append(self._free.pop())
        except IndexError:
            for arena in reversed(idle):
                self.give(arena)

    def trim(self) -> None:
        """Let go of the memory of arenas that no call works in."""
        with self._freed:
            idle = []
            try:
                while True:
                    idle.append(self._free.pop())
            except IndexError:
                for arena in reversed(idle):
                    arena.drop()
                    self._free.append(arena)
                self._freed.notify(len(idle))

    def take(self, size: int, tag: str | None = None) -> Arena:
        """Take an arena of at least `size` bytes for this caller alone; wait until there is one.

        Raises PycError (RUNTIME_FAILED) when the device has no memory for it.
        """
        try:
            # Taking from a list is one step for all threads.
            arena = self._free.pop()
        except IndexError:
            arena = self._made() or self._wait()
        if tag is not None and arena.tag != tag:
            # One size is no measure for another plan.
            arena.drop()
            arena.tag = tag
        if arena.size != size or arena.buffer is None:
            try:
                arena.fit(size, self._device)
            except BaseException:
                self.give(arena)
                raise
        return arena

    def give(self, arena: Arena) -> None:
        """Hand `arena` back, for the next call."""
        if arena.tag != self._tag:
            arena.drop()
        self._free.append(arena)
        # Read after the arena is there: who waits looks for one after it has said so.
        if self._waiting:
            with self._freed:
                self._freed.notify()

    def _made(self) -> Arena | None:
        with self._freed:
            if len(self._arenas) >= self._count:
                return None
            self._arenas.append(Arena(self._device))
            return self._arenas[-1]

    def _wait(self) -> Arena:
        with self._freed:
            self._waiting += 1
            self.waits += 1
            try:
                while True:
                    try:
                        return self._free.pop()
                    except IndexError:
                        self._freed.wait()
            finally:
                self._waiting -= 1


# Names in the reflection: two of IREE's, and those that the compile left (arena_entry.py).
_QUERY = "iree.abi.transients.size"
_CONSTANT = "iree.abi.transients.size.constant"
_OUTPUTS, _BUFFERS, _DONATIONS = "pyc.outputs", "pyc.buffers", "pyc.donations"
_List = rt.VmVariantList


@dataclass(frozen=True)
class ArenaFacts:
    """The needs of the entry: `arena_bytes` of scratch, or None where `query` computes it.

    `outputs` are the shapes of the results: sizes and [input, axis] pairs, None where the shape
    is not known before the call. `buffers` are the numbers of those that take buffers. `donations`
    are pairs (input, output): the input's memory may be the buffer.
    """

    arena_bytes: int | None
    query: str
    outputs: tuple[tuple[int | tuple[int, int], ...] | None, ...]
    buffers: tuple[int, ...]
    donations: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(reflection: Mapping[str, str]) -> "ArenaFacts":
        """Read the facts of a function's reflection. Raises PycError (BAD_ARTIFACT) without them.

        A program without scratch has neither a size nor a query.
        """
        try:
            shapes = parse_json(reflection[_OUTPUTS])
            query = reflection.get(_QUERY, "")
            constant = reflection.get(_CONSTANT, None if query else "0")
            outputs = tuple(None if s is None else tuple(map(_dim, s)) for s in shapes)
            buffers = tuple(map(int, parse_json(reflection[_BUFFERS])))
            if any(outputs[number] is None for number in buffers):
                raise ValueError("a buffer of unknown shape")
            pairs = [(int(i), int(o)) for i, o in parse_json(reflection.get(_DONATIONS, "[]"))]
            arena = None if constant is None else int(constant)
            return ArenaFacts(arena, query, outputs, buffers, tuple(pairs))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise PycError(
                ReasonCode.BAD_ARTIFACT,
                f"vmfb: expected the arena's size and the outputs' shapes in the reflection, "
                f"got {dict(reflection)!r:.200} ({type(error).__name__}: {error}); "
                "compile it again",
            ) from None


def _dim(value: Any) -> int | tuple[int, int]:
    if isinstance(value, int):
        return value
    source, axis = value
    return int(source), int(axis)


def read_facts(vmfb: bytes | memoryview, functions: Iterable[str]) -> dict[str, ArenaFacts]:
    """Read the facts of entries of a vmfb, without a device; those that it lacks are left out."""
    # A function does not keep its module alive.
    module = rt.VmModule.copy_buffer(rt.VmInstance(), vmfb)
    found = {name: module.lookup_function(name) for name in functions}
    return {n: ArenaFacts.of(f.reflection) for n, f in found.items() if f is not None}


@dataclass(frozen=True)
class CallNeeds:
    """The needs of a call with arguments of certain shapes: scratch, and buffers for outputs.

    `outputs` are (number of the result, what it is, bytes), in the order of the entry's arguments;
    `fresh` the results of known shape that take no buffer: (number, what it is).
    """

    arena_bytes: int
    outputs: tuple[tuple[int, Spec, int], ...]
    fresh: tuple[tuple[int, Spec], ...] = ()

    @property
    def specs(self) -> dict[int, Spec]:
        """The results that a caller can have in memory of its own."""
        return {number: spec for number, spec, *_ in (*self.outputs, *self.fresh)}


class ArenaCall(Entry):
    """`main$arena` of an executable, with the pool that its arenas come from."""

    __slots__ = ("_allocate", "_nothing", "_query", "facts", "name", "pool", "tag")

    def __init__(
        self,
        executable: Executable,
        name: str,
        results: Sequence[ResultType],
        pool: ArenaPool,
        counts: Sequence[TakeCounts] = (),
        tag: str = "",
    ) -> None:
        """Load the entry; calls of entries with the same `tag` share arenas (its name if empty).

        Raises PycError (BAD_ARTIFACT) unless the executable has such an entry."""
        function = executable.function(name)
        super().__init__(executable.context, function, executable.device, results, counts)
        facts = ArenaFacts.of(function.reflection)
        named = len(results) - len(counts)
        given = tuple(pair for pair in facts.donations if pair[1] < named)
        self.facts = replace(facts, donations=given)
        if len(self.facts.outputs) != len(results):
            raise PycError(
                ReasonCode.BAD_ARTIFACT,
                f"vmfb: expected {len(results)} results of `{name}`, got "
                f"{len(self.facts.outputs)}; compile it again",
            )
        self.pool = pool
        self.name = name
        self.tag = tag or name
        self._query = None
        if self.facts.arena_bytes is None:
            self._query = executable.function(self.facts.query)
        # Stands for the arena of a call that needs none, and for buffers that only a query sees.
        self._nothing = executable.device.allocate(0 if executable.device.is_cpu else 1)
        self._allocate = executable.device.allocate

    @property
    def largest_output(self) -> int:
        """Bytes of the largest result that takes a buffer, of those that are known by now."""
        shapes = [(n, self.facts.outputs[n] or ()) for n in self.facts.buffers]
        known = ((n, [d for d in s if isinstance(d, int)], len(s)) for n, s in shapes)
        sizes = (_bytes(s, self._results[n].dtype.itemsize) for n, s, r in known if len(s) == r)
        return max(sizes, default=0)

    def require_inputs(self, ranks: Sequence[int]) -> None:
        """Raise PycError (BAD_ARTIFACT) unless inputs of these ranks have all sizes of results."""
        dims = (d for shape in self.facts.outputs for d in shape or ())
        for index, axis in (d for d in dims if not isinstance(d, int)):
            if not (0 <= index < len(ranks) and 0 <= axis < ranks[index]):
                raise PycError(
                    ReasonCode.BAD_ARTIFACT,
                    f"vmfb: expected an input {index} with a dimension {axis}, got {len(ranks)} "
                    f"inputs of ranks {list(ranks)}; compile it again",
                )

    def needs(self, arrays: Sequence[Array]) -> CallNeeds:
        """Return what a call with these arrays needs; it depends on their shapes only."""
        outputs, fresh = [], []
        for number, shape in enumerate(self.facts.outputs):
            if shape is None:
                continue
            dims = tuple(d if isinstance(d, int) else arrays[d[0]].shape[d[1]] for d in shape)
            dtype = self._results[number].dtype
            spec = (dims, dtype, self._device)
            if number in self.facts.buffers:
                outputs.append((number, spec, _bytes(dims, dtype.itemsize)))
            else:
                fresh.append((number, spec))
        return CallNeeds(self._arena_bytes(arrays, len(outputs)), tuple(outputs), tuple(fresh))

    def _arena_bytes(self, arrays: Sequence[Array], outputs: int) -> int:
        if self._query is None:
            return self.facts.arena_bytes or 0
        inputs: Any = _List(len(arrays) + 1 + outputs)
        for array in arrays:
            inputs.push_ref(array._buffer)
        for _ in range(1 + outputs):
            inputs.push_ref(self._nothing)
        answer: Any = _List(1)
        try:
            self._invoke(self._query, inputs, answer)
        except (RuntimeError, ValueError, IndexError) as error:
            raise self._failure(error) from None
        return int(answer.get_variant(0))

    def call(
        self, arrays: Sequence[Array], needs: CallNeeds, out: Sequence[Array | None] = ()
    ) -> list[Array]:
        """Run on arrays that passed the guards; `needs` are those of such arrays.

        `out` are checked arrays for the results, None or nothing for fresh ones. An arena is
        taken for the time of the call. Raises PycError (ARENA_TOO_SMALL, RUNTIME_FAILED).
        """
        if needs.arena_bytes == 0:
            return self._launch(arrays, needs, self._nothing, out)
        arena = self.pool.take(needs.arena_bytes, self.tag)
        try:
            return self._launch(arrays, needs, arena.buffer, out)
        except BaseException:
            # A call that failed may still be at work in its arena: the next one gets another.
            arena.drop()
            raise
        finally:
            self.pool.give(arena)

    def _launch(
        self, arrays: Sequence[Array], needs: CallNeeds, arena: Any, out: Sequence[Array | None]
    ) -> list[Array]:
        if arena.byte_length() < needs.arena_bytes:
            raise PycError(
                ReasonCode.ARENA_TOO_SMALL,
                f"`{self._function.name}`: expected an arena of {needs.arena_bytes} bytes, got "
                f"{arena.byte_length()}; nothing was launched",
            )
        inputs: Any = _List(len(arrays) + 1 + len(needs.outputs))
        for array in arrays:
            inputs.push_ref(array._buffer)
        inputs.push_ref(arena)
        for number, _, size in needs.outputs:
            given = out[number] if number < len(out) else None
            memory = self._allocate(size) if given is None else given.view.get_buffer()
            inputs.push_ref(memory)
        results = self._finish(inputs)
        if not out:
            return results
        for number, _ in needs.fresh:
            given = out[number] if number < len(out) else None
            if given is not None:
                copy(results[number], given)
        return [r if g is None else g for g, r in zip(out, results, strict=True)]


def _bytes(shape: Sequence[int], itemsize: int) -> int:
    size = itemsize
    for dim in shape:
        size *= dim
    return size
