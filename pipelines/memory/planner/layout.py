"""The layout of an arena over time, as data: buffers are rectangles of steps and bytes.

An `ArenaLayout` keeps nothing of the planner and can be stored, compared and drawn; it is made from
a plan (`place.layout_of_plan`), or from the bare slices of somebody else's packing. Time counts in
steps: a step is a wave of the plan, so tasks of one step may overlap. Bytes are those that a buffer
takes in the arena, its size rounded up as the packer does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode


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


def layout_of_slices(
    slices: Sequence[tuple[int, int, int]],
    offsets: Sequence[int],
    *,
    names: Sequence[str] = (),
    runs: Sequence[TaskRun] = (),
    seconds: float = 0.0,
) -> ArenaLayout:
    """Return the picture of bare slices (first step, last step inclusive, bytes) at `offsets`.

    This is all that IREE's own packing says; a slice without a name is called by its number.
    Raises PycError (BAD_ARGUMENT) for unequal lengths or a slice that ends before it begins.
    """
    names = names or [""] * len(slices)
    lengths = {len(slices), len(offsets), len(names)}
    if len(lengths) > 1 or any(first > last for first, last, _ in slices):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"layout: expected slices (first <= last, bytes) with one offset each, got "
            f"{len(slices)} slices and {len(offsets)} offsets: {list(slices)[:3]}",
        )
    rectangles = tuple(
        Rectangle(name or f"slice {i}", 0, first, last, offset, size)
        for i, ((first, last, size), offset, name) in enumerate(
            zip(slices, offsets, names, strict=True)
        )
        if size
    )
    arena = max((r.offset + r.bytes for r in rectangles), default=0)
    return ArenaLayout(arena, tuple(runs), rectangles, seconds)
