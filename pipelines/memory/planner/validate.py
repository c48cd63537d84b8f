"""Validate a plan from the problem alone, whoever made it.

Comes in: a problem and a plan. Goes out: one readable line per violation; none for a legal plan.
Nothing here is shared with the packer or the scheduler: lives are counted again, step by step.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.planner.problem import (
    Instance,
    PlanningProblem,
    SchedulePlan,
    TaskStep,
)

SHOWN = 8


def validate(problem: PlanningProblem, plan: SchedulePlan) -> None:
    """Raise PycError (BAD_ARGUMENT) naming the first violations of a plan that must not be used."""
    found = violations(problem, plan)
    if found:
        more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"memory plan: expected a legal plan, got: {'; '.join(found[:SHOWN] + more)}",
        )


def violations(problem: PlanningProblem, plan: SchedulePlan) -> list[str]:
    """List what is wrong with `plan`, but for checks that earlier faults would blur."""
    check = _Check(problem, plan)
    return list(check.steps()) or [
        *check.order(),
        *(list(check.reuse()) or check.ties()),
        *(list(check.places()) or check.overlaps()),
        *check.bytes(),
    ]


class _Check:
    def __init__(self, problem: PlanningProblem, plan: SchedulePlan) -> None:
        self.problem, self.plan = problem, plan
        self.when = {step: w for w, wave in enumerate(plan.waves) for step in wave}

    def steps(self) -> Iterator[str]:
        """Check that every task runs, once per copy; only recomputable ones have several copies."""
        counts = Counter(self.plan.steps)
        copies: dict[int, list[int]] = {t: [] for t in range(len(self.problem.tasks))}
        for step, count in counts.items():
            if step.task not in copies:
                yield f"{step} is no task of the problem"
                continue
            copies[step.task].append(step.copy)
            if count > 1:
                yield f"{self.step(step)} runs {count} times"
        for t, found in copies.items():
            name = self.step(TaskStep(t))
            if sorted(found) != list(range(len(found))):
                yield f"{name} has the copies {sorted(found)}"
            if not found:
                yield f"{name} never runs"
            if len(found) > 1 and not self.problem.tasks[t].recomputable:
                yield f"{name} runs {len(found)} times and may not be computed again"
        for w, wave in enumerate(self.plan.waves):
            if len(wave) > max(1, self.problem.concurrency):
                yield f"wave {w} holds {len(wave)} steps, {self.problem.concurrency} are allowed"

    def order(self) -> Iterator[str]:
        """Check that what a step reads or has to follow comes in an earlier wave."""
        for step, w in self.when.items():
            task = self.problem.tasks[step.task]
            for b in dict.fromkeys(task.reads):
                if b in self.problem.writer:
                    yield from self.written_before(step, self.read(step, b), w)
            for t in task.after:
                if self.when[TaskStep(t)] >= w:
                    yield f"{self.step(step)} in wave {w} does not follow {self.step(TaskStep(t))}"
        for (step, b), copy in self.plan.sources.items():
            if step not in self.when or b not in self.problem.tasks[step.task].reads:
                yield f"{step} has copy {copy} of buffer {b} as source and does not read that"

    def written_before(self, step: TaskStep, instance: Instance, w: int) -> Iterator[str]:
        writer = TaskStep(self.problem.writer[instance[0]], instance[1])
        if writer not in self.when:
            yield f"{self.step(step)} reads {self.name(instance)}, which nothing computes"
        elif self.when[writer] >= w:
            yield (
                f"{self.step(step)} in wave {w} reads {self.name(instance)}, "
                f"which is computed in wave {self.when[writer]}"
            )

    def reuse(self) -> Iterator[str]:
        """Check that a reused storage is that of an operand which the task may overwrite."""
        for result, operand in self.plan.reused.items():
            if result not in self.written or operand not in self.lives:
                yield f"{self.name(result)} reuses {self.name(operand)}: no such instances"
                continue
            step = self.written[result]
            pairs = {
                (self.write(step, r), self.read(step, o))
                for r, o in self.problem.tasks[step.task].in_place
            }
            if (result, operand) not in pairs:
                yield f"{self.name(result)} may not reuse {self.name(operand)}"
            elif self.outside(operand) or self.outside(result):
                yield f"{self.name(result)} reuses {self.name(operand)}: not both in the arena"
        for operand, count in Counter(self.plan.reused.values()).items():
            if count > 1:
                yield f"{self.name(operand)} is reused by {count} results"

    def ties(self) -> Iterator[str]:
        """Check that an updated instance is read no more, also where it lies outside the arena."""
        for result, operand in self.tied.items():
            step = self.written[result]
            late = [s for s in self.readers.get(operand, ()) if self.when[s] >= self.when[step]]
            late = [s for s in late if s != step]
            if late:
                yield (
                    f"{self.step(late[0])} in wave {self.when[late[0]]} reads "
                    f"{self.name(operand)}, which {self.step(step)} updates in wave "
                    f"{self.when[step]}"
                )

    def places(self) -> Iterator[str]:
        """Check that exactly the arena's instances have offsets, aligned and inside it."""
        needed = {i for i in self.lives if self.problem.buffers[i[0]].size and not self.outside(i)}
        for instance in sorted(needed - self.plan.offsets.keys()):
            yield f"{self.name(instance)} has no offset"
        for instance, offset in self.plan.offsets.items():
            if instance not in self.lives:
                yield f"{instance} has an offset and is never alive"
                continue
            buffer = self.problem.buffers[instance[0]]
            if self.outside(instance):
                yield f"{self.name(instance)} lies outside the arena and has an offset"
            if offset < 0 or offset + buffer.size > self.plan.arena_bytes:
                yield (
                    f"{self.name(instance)} lies at [{offset}, {offset + buffer.size}), "
                    f"the arena has {self.plan.arena_bytes} bytes"
                )
            if offset % buffer.alignment:
                yield f"{self.name(instance)} lies at {offset}, not aligned to {buffer.alignment}"
        for result, operand in {**self.plan.reused, **self.tied}.items():
            at = [self.plan.offsets.get(i) for i in (result, operand)]
            if None not in at and at[0] != at[1]:
                yield f"{self.name(result)} reuses {self.name(operand)} and lies elsewhere"

    def overlaps(self) -> Iterator[str]:
        """Check that only a result and the operand it takes over share bytes in a wave."""
        found: dict[tuple[Instance, Instance], list[int]] = {}
        for w, pairs in self._collisions():
            for a, b in pairs:
                if not self.handed_over(a, b, w):
                    found.setdefault((a, b), []).append(w)
        for (a, b), waves in found.items():
            where = f"wave {waves[0]}" if len(waves) == 1 else f"waves {waves[0]}..{waves[-1]}"
            yield f"{self.name(a)} and {self.name(b)} overlap at {where}"

    def _collisions(self) -> Iterator[tuple[int, list[tuple[Instance, Instance]]]]:
        placed = [
            i for i in self.lives if i in self.plan.offsets and self.problem.buffers[i[0]].size
        ]
        start = np.array([self.plan.offsets[i] for i in placed], np.int64)
        end = start + np.array([self.problem.buffers[i[0]].size for i in placed], np.int64)
        past = np.array([self.lives[i][1] for i in placed], np.int64)
        births: dict[int, list[int]] = {}
        for k, instance in enumerate(placed):
            births.setdefault(self.lives[instance][0], []).append(k)
        live = np.empty(0, np.int64)
        for w in range(len(self.plan.waves)):
            live = np.concatenate((live[past[live] > w], np.array(births.get(w, []), np.int64)))
            live = live[np.argsort(start[live], kind="stable")]
            if len(live) > 1 and (np.maximum.accumulate(end[live])[:-1] > start[live][1:]).any():
                yield w, self._pairs(placed, live.tolist(), start, end)

    def _pairs(
        self, placed: list[Instance], live: list[int], start: np.ndarray, end: np.ndarray
    ) -> list[tuple[Instance, Instance]]:
        found, open_ = [], []
        for k in live:
            open_ = [j for j in open_ if end[j] > start[k]]
            found += [tuple(sorted((placed[j], placed[k]))) for j in open_]
            open_.append(k)
        return found

    def handed_over(self, a: Instance, b: Instance, w: int) -> bool:
        """Return whether one takes over the other's storage in wave `w`, its only reader then."""
        for result, operand in ((a, b), (b, a)):
            given = self.plan.reused.get(result) == operand or self.tied.get(result) == operand
            if given and self.lives[result][0] == w:
                step = self.written[result]
                return all(s == step or self.when[s] != w for s in self.readers[operand])
        return False

    def bytes(self) -> Iterator[str]:
        if not 0 <= self.plan.lower_bound <= self.plan.arena_bytes:
            yield (
                f"the lower bound is {self.plan.lower_bound} bytes, "
                f"the arena has {self.plan.arena_bytes}"
            )

    @cached_property
    def written(self) -> dict[Instance, TaskStep]:
        """The step that writes each instance; pinned ones are written by copy 0."""
        tasks = self.problem.tasks
        steps = sorted(self.when, key=lambda s: -s.copy)
        return {self.write(s, b): s for s in steps for b in tasks[s.task].writes}

    @cached_property
    def readers(self) -> dict[Instance, list[TaskStep]]:
        found: dict[Instance, list[TaskStep]] = {}
        for step in self.when:
            for b in dict.fromkeys(self.problem.tasks[step.task].reads):
                found.setdefault(self.read(step, b), []).append(step)
        return found

    @cached_property
    def lives(self) -> dict[Instance, tuple[int, int]]:
        touched: dict[Instance, list[int]] = {}
        for step, w in self.when.items():
            task = self.problem.tasks[step.task]
            reads = [self.read(step, b) for b in task.reads]
            for instance in (*reads, *(self.write(step, b) for b in task.writes)):
                touched.setdefault(instance, []).append(w)
        end = len(self.plan.waves)
        return {
            i: (
                min(ws) if i[0] in self.problem.writer else 0,
                end if self.problem.buffers[i[0]].lives_to_end else max(ws) + 1,
            )
            for i, ws in touched.items()
        }

    @cached_property
    def tied(self) -> dict[Instance, Instance]:
        return {
            self.write(step, result): self.read(step, operand)
            for step in self.when
            for result, operand in self.problem.tasks[step.task].tied
        }

    def outside(self, instance: Instance) -> bool:
        return self.anchor(instance) in self.pinned_anchors

    @cached_property
    def pinned_anchors(self) -> set[Instance]:
        """The first operands of chains of ties that a pinned buffer belongs to."""
        return {self.anchor(i) for i in self.lives if self.pinned(i)}

    def anchor(self, instance: Instance) -> Instance:
        seen = set()
        while instance in self.tied and instance not in seen:
            seen.add(instance)
            instance = self.tied[instance]
        return instance

    def pinned(self, instance: Instance) -> bool:
        return self.problem.buffers[instance[0]].pinned

    def read(self, step: TaskStep, buffer: int) -> Instance:
        pinned = self.problem.buffers[buffer].pinned
        return buffer, 0 if pinned else self.plan.sources.get((step, buffer), 0)

    def write(self, step: TaskStep, buffer: int) -> Instance:
        return buffer, 0 if self.problem.buffers[buffer].pinned else step.copy

    def step(self, step: TaskStep) -> str:
        name = self.problem.tasks[step.task].name or f"task {step.task}"
        return f"{name!r}" + (f" (copy {step.copy})" if step.copy else "")

    def name(self, instance: Instance) -> str:
        b, copy = instance
        named = 0 <= b < len(self.problem.buffers) and self.problem.buffers[b].name
        return f"{named or f'buffer {b}'}" + (f" (copy {copy})" if copy else "")
