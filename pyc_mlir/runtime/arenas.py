"""Who works in which scratch memory: a pool of arenas, each used by one call at a time.

A call takes an arena, which is allocated or grown to what the call needs, and gives it back when
the device has finished. With all arenas in use further calls wait, and are counted. The arena that
was given back last is the next one taken, so that a pool of several stays as small as its use.
"""

import threading
from typing import Any

from pyc_mlir.runtime.device import Device


class Arena:
    """Scratch memory on a device; none before it is first held."""

    # As in `Array`: slots are freed in this order, so the memory goes before IREE's device.
    __slots__ = ("buffer", "hal", "size", "tag")

    def __init__(self, device: Device) -> None:
        self.buffer: Any = None
        self.hal = device.hal
        self.size = 0
        self.tag = ""

    def hold(self, size: int, device: Device) -> None:
        """Have at least `size` bytes; what was in there is lost. Raises as `Device.allocate`."""
        if self.buffer is None or self.size < size:
            # The old memory goes before the new one comes, so that both never count.
            self.drop()
            self.buffer = device.allocate(max(size, 1))
            self.size = self.buffer.byte_length()

    def drop(self) -> None:
        """Let go of the memory."""
        self.buffer, self.size = None, 0


class ArenaPool:
    """At most `count` arenas on `device`. Several threads may take and give."""

    __slots__ = ("_arenas", "_device", "_free", "_freed", "_tag", "_waiting", "waits")

    def __init__(self, device: Device, count: int) -> None:
        self._device = device
        self._arenas = tuple(Arena(device) for _ in range(count))
        self._free = list(self._arenas)
        self._freed = threading.Condition()
        self._waiting = 0
        self._tag = ""
        self.waits = 0

    def __len__(self) -> int:
        return len(self._arenas)

    @property
    def bytes(self) -> int:
        """What all arenas of the pool hold now."""
        return sum(a.size for a in self._arenas)

    def use(self, tag: str) -> None:
        """From now on arenas of `tag` stay; those of other ones go when no call works in them."""
        self._tag = tag
        idle = []
        try:
            while True:
                idle.append(self._free.pop())
        except IndexError:
            for arena in reversed(idle):
                self.give(arena)

    def take(self, size: int, tag: str | None = None) -> Arena:
        """An arena of at least `size` bytes for this caller alone; waits until there is one.

        Raises PycError (RUNTIME_FAILED) when the device has no memory for it.
        """
        try:
            # Taking from a list is one step for all threads.
            arena = self._free.pop()
        except IndexError:
            arena = self._wait()
        if tag is not None and arena.tag != tag:
            # One size is no measure for another plan.
            arena.drop()
            arena.tag = tag
        if arena.buffer is None or arena.size < size:
            try:
                arena.hold(size, self._device)
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
