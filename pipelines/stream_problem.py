"""From IREE's stream IR to planning problems: one per execution region that has memory to plan.

Read between IREE's stream passes (after ``iree-stream-async-transformation-pipeline``): dispatches
are final, every resource has a size in bytes, and values still say who reads what. Each op of a
``stream.async.execute`` becomes a task, ops within a concurrent wave too; each resource becomes a
buffer. What comes from outside or leaves the region is pinned; an op that updates its operand in
place becomes a tie. Nothing is edited here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pyc_mlir.pipelines.cost import Cost
from pyc_mlir.pipelines.planner.problem import Buffer, Problem, Task
from pyc_mlir.pipelines.stream_ir import (
    CONCURRENT,
    DISPATCH,
    EXECUTE,
    FRESH,
    UPDATES,
    find,
    group,
    is_resource,
    leaves,
    operations,
    resources,
    result_sizes,
    symbol_of,
    ties,
)
from pyc_mlir.pipelines.stream_sizes import Size, size_of

# Seconds of one op: its symbol and the bytes that it reads and writes.
Estimate = Callable[[str, int], Cost]
_TASKS = (DISPATCH, *UPDATES, *FRESH)


@dataclass(frozen=True)
class Region:
    """A planning problem and what its numbers stand for in the IR.

    index: which of the module's execution regions, counted in the order of the text.
    execute: the region's op. ops: one a task.
    numbers: the buffer of every resource value, also of those that a wave renames.
    values: per buffer the value that its writer makes.
    waves: IREE's own plan, task numbers of each step.
    exact: every size is known.
    """

    index: int
    problem: Problem
    execute: Any
    ops: tuple[Any, ...]
    numbers: dict[Any, int]
    values: tuple[Any, ...]
    waves: tuple[tuple[int, ...], ...]
    exact: bool


def read_regions(module: Any, estimate: Estimate, alignment: int = 64) -> list[Region]:
    """The regions of a module that a plan can change: all of known ops, two buffers to place.

    Sizes that are unknown enter the problem as a guess and clear `exact`.
    """
    found = []
    for index, execute in enumerate(find(module, EXECUTE)):
        reader = _Reader(execute, estimate, alignment)
        if all(op.name in _TASKS or is_scalar(op) for op in leaves(reader.block)):
            region = reader.read(index)
            if sum(not b.pinned for b in region.problem.buffers) > 1:
                found.append(region)
    return found


def is_scalar(op: Any) -> bool:
    """True for arithmetic on sizes and offsets, which touches no memory."""
    values = (*op.operands, *op.results)
    return op.name.startswith(("arith.", "util.align")) and not any(map(is_resource, values))


class _Reader:
    """Walks one region once, numbering values as they come."""

    def __init__(self, execute: Any, estimate: Estimate, alignment: int) -> None:
        self.execute = execute
        self.block = execute.regions[0].blocks[0]
        self._estimate = estimate
        self._alignment = alignment
        self._numbers: dict[Any, int] = {}
        self._values: list[Any] = []
        self._bytes: list[Size] = []
        self._pinned: set[int] = set()
        self._ops: list[Any] = []
        self._tasks: list[Task] = []

    def read(self, index: int) -> Region:
        captured = zip(resources(self.block.arguments), group(self.execute, 1), strict=True)
        for argument, size in captured:
            self._pinned.add(self._new(argument, size))
        waves = [self._step(op) for op in operations(self.block)[:-1]]
        leaving = resources(operations(self.block)[-1].operands)
        self._pinned.update(self._numbers[v] for v in leaving)
        self._pin_ties()
        problem = Problem(
            self._without_unsafe_copies(),
            tuple(self._buffer(b) for b in range(len(self._values))),
            max((len(w) for w in waves), default=1) or 1,
        )
        problem.check()
        return Region(
            index,
            problem,
            self.execute,
            tuple(self._ops),
            self._numbers,
            tuple(self._values),
            tuple(w for w in waves if w),
            all(size.known for size in self._bytes),
        )

    def _step(self, op: Any) -> tuple[int, ...]:
        """The tasks of one op of the region: one, or those of a wave, or none."""
        if is_scalar(op):
            return ()
        if op.name != CONCURRENT:
            return (self._task(op),)
        body = op.regions[0].blocks[0]
        for argument, operand in zip(body.arguments, group(op, 0), strict=True):
            self._numbers[argument] = self._numbers[operand]
        *inner, end = operations(body)
        tasks = tuple(self._task(o) for o in inner if not is_scalar(o))
        for result, value in zip(op.results, resources(end.operands), strict=True):
            self._numbers[result] = self._numbers[value]
        return tasks

    def _task(self, op: Any) -> int:
        reads = tuple(dict.fromkeys(self._numbers[v] for v in resources(op.operands)))
        made = zip(resources(op.results), result_sizes(op), strict=True)
        writes = tuple(self._new(result, size) for result, size in made)
        tied = tuple((self._numbers[r], self._numbers[v]) for r, v in ties(op))
        traffic = sum(self._bytes[b].nominal for b in (*reads, *writes))
        symbol = symbol_of(op)
        self._ops.append(op)
        self._tasks.append(
            Task(
                symbol.rpartition("::")[2],
                reads,
                writes,
                self._estimate(symbol, traffic).seconds,
                recomputable=not tied,
                tied=tied,
            )
        )
        return len(self._tasks) - 1

    def _new(self, value: Any, size: Any) -> int:
        number = len(self._values)
        self._numbers[value] = number
        self._values.append(value)
        self._bytes.append(size_of(size))
        return number

    def _pin_ties(self) -> None:
        """Storage that leaves the region (or came into it) does so for every tied buffer."""
        pairs = [pair for task in self._tasks for pair in task.tied]
        changed = True
        while changed:
            shared = {b for pair in pairs if self._pinned & set(pair) for b in pair}
            changed = not shared <= self._pinned
            self._pinned |= shared

    def _without_unsafe_copies(self) -> tuple[Task, ...]:
        """A task whose storage or source is updated in place later must not run a second time."""
        updated = {read for task in self._tasks for _, read in task.tied}
        pinned = self._pinned
        return tuple(
            replace(t, recomputable=False)
            if updated & {*t.reads, *t.writes} or pinned & set(t.writes)
            else t
            for t in self._tasks
        )

    def _buffer(self, number: int) -> Buffer:
        bytes_ = self._bytes[number].nominal
        size = -(-bytes_ // self._alignment) * self._alignment
        return Buffer(size, self._alignment, pinned=number in self._pinned)
