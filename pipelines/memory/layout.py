"""The layout of an arena over time, as data: buffers are rectangles of steps and bytes.

A `ArenaLayout` keeps nothing of the planner and can be stored, compared and drawn (picture.py makes
them). Time counts in steps: a step is a wave of the plan, so tasks of one step may overlap. Bytes
are those that a buffer takes in the arena, its size rounded up as the packer does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar


@dataclass(frozen=True)
class TaskRun:
    """One run of a task in step `wave`; `copy` above 0 says that it runs again."""

    as_row: ClassVar[bool] = True
    task: int
    copy: int
    wave: int


@dataclass(frozen=True)
class Rectangle:
    """A buffer's place: steps `first` to `last`, both inclusive, and bytes from `offset` on.

    writer: the task that writes it; None where that is not known.
    recomputed: a later run of the writer made it, because its first result was dropped.
    takes_over: the earlier rectangle, by number, whose storage it continues: both are alive in
        `first`, and their common bytes count once.
    """

    as_row: ClassVar[bool] = True
    buffer: str
    copy: int
    first: int
    last: int
    offset: int
    bytes: int
    writer: int | None = None
    recomputed: bool = False
    takes_over: int | None = None


@dataclass(frozen=True)
class ArenaLayout:
    """An arena over time. `seconds` are predicted, 0 where they are not known."""

    arena_bytes: int
    runs: tuple[TaskRun, ...]
    rectangles: tuple[Rectangle, ...]
    seconds: float = 0.0

    @cached_property
    def steps(self) -> int:
        """The number of steps."""
        ends = (*(r.wave for r in self.runs), *(r.last for r in self.rectangles))
        return max(ends, default=-1) + 1

    @cached_property
    def live_bytes(self) -> tuple[int, ...]:
        """The bytes alive in each step: of buffers that share a storage, the largest counts."""
        change = [0] * (self.steps + 1)
        for first, past, size in self._stays():
            change[first] += size
            change[past] -= size
        return tuple(accumulate(change[:-1]))

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive in a step; the arena may be larger, by holes."""
        return max(self.live_bytes, default=0)

    @cached_property
    def storages(self) -> tuple[int, ...]:
        """The first rectangle of the storage that each one continues."""
        roots: list[int] = []
        for i, r in enumerate(self.rectangles):
            roots.append(i if r.takes_over is None else roots[r.takes_over])
        return tuple(roots)

    def _stays(self) -> Iterator[tuple[int, int, int]]:
        """(first step, past the last one, bytes) whose sums are the live bytes."""
        for r in self.rectangles:
            yield r.first, r.last + 1, r.bytes
            if r.takes_over is not None:
                before = self.rectangles[r.takes_over]
                yield r.first, min(before.last, r.last) + 1, -min(before.bytes, r.bytes)
