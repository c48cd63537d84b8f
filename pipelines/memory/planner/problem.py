"""The planning problem and its plan as data, and the problem with some tasks run more than once.

A `PlanningProblem` has no order but the one that its dependencies ask for: a task that reads a
buffer follows the one that writes it. The order of `tasks` is legal and is the one to beat. In an
`Expansion` each run of a task has buffers of its own and is a task of a derived problem, so that
ordering, reuse and evaluation need to know nothing about recomputation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import fsum

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.planner.intervals import MOST_BYTES


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


Sources = Mapping[tuple[TaskStep, int], int]


@dataclass(frozen=True)
class Expansion:
    """The steps of `problem` in a legal order, and which copy each reads where that is not 0."""

    problem: PlanningProblem
    steps: tuple[TaskStep, ...]
    sources: Sources = field(default_factory=dict)

    @staticmethod
    def of(problem: PlanningProblem, order: Sequence[int] | None = None) -> "Expansion":
        """Run every task once, in `order` or in the problem's own."""
        numbers = range(len(problem.tasks)) if order is None else order
        return Expansion(problem, tuple(TaskStep(t) for t in numbers))

    @cached_property
    def seconds(self) -> float:
        """Predicted run time of all steps, one after the other."""
        return fsum(self.problem.tasks[step.task].seconds for step in self.steps)

    @cached_property
    def instances(self) -> tuple[Instance, ...]:
        """The origins of the derived problem's buffers; the original ones come first."""
        copies = [
            (b, step.copy)
            for step in self.steps
            if step.copy
            for b in self.problem.tasks[step.task].writes
        ]
        return (*((b, 0) for b in range(len(self.problem.buffers))), *copies)

    @cached_property
    def numbers(self) -> dict[Instance, int]:
        """The derived buffer of each instance."""
        return {instance: i for i, instance in enumerate(self.instances)}

    @cached_property
    def derived(self) -> PlanningProblem:
        """Step i as task i, each instance as a buffer."""
        place = {step.task: i for i, step in enumerate(self.steps) if not step.copy}
        copies = self.instances[len(self.problem.buffers) :]
        buffers = (
            *self.problem.buffers,
            *(replace(self.problem.buffers[b], lives_to_end=False) for b, _ in copies),
        )
        tasks = tuple(self._task(step, place) for step in self.steps)
        return PlanningProblem(tasks, buffers, self.problem.concurrency)

    @cached_property
    def legal(self) -> bool:
        """True where every step finds what it reads, unspoiled."""
        try:
            self.derived.check()
        except (PycError, KeyError):
            return False
        return True

    def _task(self, step: TaskStep, place: Mapping[int, int]) -> PlannedTask:
        task = self.problem.tasks[step.task]
        numbers = self.numbers
        read = {b: numbers[b, self.sources.get((step, b), 0)] for b in task.reads}
        written = {b: numbers[b, step.copy] for b in task.writes}
        return replace(
            task,
            reads=tuple(read[b] for b in task.reads),
            writes=tuple(written[b] for b in task.writes),
            in_place=tuple((written[r], read[o]) for r, o in task.in_place),
            tied=tuple((written[r], read[o]) for r, o in task.tied),
            after=tuple(place[t] for t in task.after),
        )

    def reordered(self, order: Iterable[int]) -> "Expansion":
        """Return the same steps, in an order of the derived problem's tasks."""
        return replace(self, steps=tuple(self.steps[i] for i in order))

    def without(self, step: TaskStep) -> "Expansion":
        """`step` left out; what read its results reads those of the run before it (maybe none)."""
        earlier = [s.copy for s in self.steps[: self.steps.index(step)] if s.task == step.task]
        writes = set(self.problem.tasks[step.task].writes)
        sources = {}
        for (reader, b), copy in self.sources.items():
            if reader == step:
                continue
            if b in writes and copy == step.copy:
                copy = earlier[-1] if earlier else copy
            sources[reader, b] = copy
        steps = tuple(s for s in self.steps if s != step)
        return replace(self, steps=steps, sources={k: c for k, c in sources.items() if c})

    def tidied(self) -> "Expansion":
        """Drop runs that nothing reads, if another one is left; copies are counted by place."""
        found = self
        while (unread := found._unread()) is not None:
            found = found.without(unread)
        return found._renumbered()

    def _unread(self) -> TaskStep | None:
        runs: dict[int, int] = {}
        for step in self.steps:
            runs[step.task] = runs.get(step.task, 0) + 1
        if len(runs) == len(self.steps):
            return None
        used = {
            (b, self.sources.get((step, b), 0))
            for step in self.steps
            for b in self.problem.tasks[step.task].reads
        }
        for step in reversed(self.steps):
            writes = self.problem.tasks[step.task].writes
            if runs[step.task] > 1 and not any((b, step.copy) in used for b in writes):
                smaller = self.without(step)
                if step.copy or smaller._renumbered().legal:
                    return step
        return None

    def _renumbered(self) -> "Expansion":
        fresh: dict[TaskStep, TaskStep] = {}
        runs: dict[int, int] = {}
        for step in self.steps:
            fresh[step] = TaskStep(step.task, runs.get(step.task, 0))
            runs[step.task] = fresh[step].copy + 1
        sources = {}
        for step in self.steps:
            for b in self.problem.tasks[step.task].reads:
                writer = self.problem.writer.get(b)
                if writer is None:
                    continue
                source = TaskStep(writer, self.sources.get((step, b), 0))
                if copy := fresh.get(source, source).copy:
                    sources[fresh[step], b] = copy
        return replace(self, steps=tuple(fresh[s] for s in self.steps), sources=sources)
