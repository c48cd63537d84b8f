"""The planning problem and its plan as data: tasks that read and write buffers.

A `PlanningProblem` has no order but the one that its dependencies ask for: a task that reads a
buffer follows the one that writes it. The order of `tasks` is legal and is the one to beat.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.packing.intervals import MOST_BYTES


@dataclass(frozen=True)
class Buffer:
    """`size` bytes that one task writes. A pinned buffer exists outside the arena.

    Inputs and constants are pinned and have no writer; results that the caller owns are pinned
    too. `lives_to_end` keeps a buffer until the last wave although no task reads it later.
    """

    size: int
    alignment: int = 64
    pinned: bool = False
    lives_to_end: bool = False
    name: str = ""


@dataclass(frozen=True)
class PlannedTask:
    """One dispatch: buffers by number, and what is allowed with it.

    seconds: predicted run time.
    recomputable: running it twice gives the same bits and has no other effect.
    in_place: pairs (written, read): the written buffer may take the storage of the read one if
        nothing reads that one later; alias safety has been proven by whoever built the problem.
    tied: pairs (written, read): it must (the task updates its operand).
    after: tasks that have to precede this one although no buffer says so.
    flops, traffic_bytes, sources: what `seconds` was predicted from, and the ids of the ops that
        the dispatch computes; for reports, nothing is planned by them.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    seconds: float = 0.0
    recomputable: bool = False
    in_place: tuple[tuple[int, int], ...] = ()
    tied: tuple[tuple[int, int], ...] = ()
    after: tuple[int, ...] = ()
    flops: float = field(default=0.0, compare=False)
    traffic_bytes: int = field(default=0, compare=False)
    sources: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class PlanningProblem:
    """Tasks in a legal order, buffers by number, and how much overlap is wanted.

    `concurrency` is how many tasks a wave may hold; 1 asks for a sequence.
    """

    tasks: tuple[PlannedTask, ...]
    buffers: tuple[Buffer, ...]
    concurrency: int = 1

    @cached_property
    def writer(self) -> dict[int, int]:
        """The task that writes each buffer (tied updates write a buffer of their own)."""
        return {b: t for t, task in enumerate(self.tasks) for b in task.writes}

    @cached_property
    def readers(self) -> dict[int, tuple[int, ...]]:
        """The tasks that read each buffer, in order."""
        found: dict[int, list[int]] = {b: [] for b in range(len(self.buffers))}
        for t, task in enumerate(self.tasks):
            for b in dict.fromkeys(task.reads):
                found[b].append(t)
        return {b: tuple(ts) for b, ts in found.items()}

    @cached_property
    def predecessors(self) -> tuple[frozenset[int], ...]:
        """The tasks that each task has to follow, tied updates' anti-dependencies included."""
        needed = [set(task.after) for task in self.tasks]
        for t, task in enumerate(self.tasks):
            needed[t].update(self.writer[b] for b in task.reads if b in self.writer)
            for _, read in task.tied:
                needed[t].update(r for r in self.readers[read] if r != t)
        return tuple(frozenset(n - {t}) for t, n in enumerate(needed))

    def check(self) -> None:
        """Raise PycError (BAD_ARGUMENT) unless the problem is well formed and its order legal."""
        for message in self._faults():
            raise PycError(ReasonCode.BAD_ARGUMENT, f"planning problem: {message}")

    def _faults(self) -> Iterator[str]:
        numbers = range(len(self.buffers))
        written: set[int] = set()
        if (total := sum(buffer.size for buffer in self.buffers)) >= MOST_BYTES:
            yield f"expected buffers of fewer than {MOST_BYTES} bytes in all, got {total}"
        for i, buffer in enumerate(self.buffers):
            if buffer.size < 0 or buffer.alignment < 1:
                yield f"buffer {i}: expected size >= 0 and alignment >= 1, got {buffer}"
        for t, task in enumerate(self.tasks):
            used = (*task.reads, *task.writes)
            if any(b not in numbers for b in used):
                yield f"task {t}: expected buffers below {len(self.buffers)}, got {used}"
                return
            if written & set(task.writes) or len(set(task.writes)) != len(task.writes):
                yield f"task {t}: writes a buffer that was written before"
            written |= set(task.writes)
            for result, operand in (*task.in_place, *task.tied):
                if result not in task.writes or operand not in task.reads:
                    yield f"task {t}: expected pairs (written, read), got {(result, operand)}"
        for t, before in enumerate(self.predecessors):
            if any(p >= t for p in before):
                yield f"task {t}: stands before a task that it has to follow"


@dataclass(frozen=True)
class TaskStep:
    """One run of a task. `copy` counts its runs from 0: each has buffers of its own."""

    task: int
    copy: int = 0


# A buffer as written by one run of its task: (buffer, copy). Pinned buffers have copy 0.
Instance = tuple[int, int]


@dataclass(frozen=True)
class SchedulePlan:
    """Waves of steps, where each instance lies, and how good that is.

    Steps of one wave may overlap in time; waves follow one another. `sources` says which copy of
    a buffer a step reads, where that is not copy 0. `reused` pairs an instance with the one whose
    storage it takes over. `lower_bound` is for the given waves: no packing of these lifetimes is
    smaller; `proven` says that none of the whole problem is.
    """

    waves: tuple[tuple[TaskStep, ...], ...]
    offsets: dict[Instance, int]
    arena_bytes: int
    lower_bound: int
    seconds: float = 0.0
    proven: bool = False
    sources: dict[tuple[TaskStep, int], int] = field(default_factory=dict)
    reused: dict[Instance, Instance] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """The distance of the arena above the lower bound, as a share of it."""
        return self.arena_bytes / self.lower_bound - 1 if self.lower_bound else 0.0

    @property
    def steps(self) -> list[TaskStep]:
        """All steps, wave after wave."""
        return [step for wave in self.waves for step in wave]
