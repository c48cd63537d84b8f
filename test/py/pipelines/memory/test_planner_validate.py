"""The validator: each kind of violation alone in a plan, and a memory that is run byte by byte."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from planner_problems import problems

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory import plan_memory
from pyc_mlir.pipelines.memory.planner import planner
from pyc_mlir.pipelines.memory.planner.planner import SharedPlans, plan, plan_in_waves
from pyc_mlir.pipelines.memory.planner.problem import (
    Buffer,
    Instance,
    PlannedTask,
    PlanningProblem,
    SchedulePlan,
    TaskStep,
)
from pyc_mlir.pipelines.memory.planner.validate import SHOWN, validate, violations

A, B, C, D = (TaskStep(t) for t in range(4))
AGAIN = TaskStep(0, 1)
X, P, Q, R, Y = range(5)

# x -> a -> p; p -> b -> q; p, q -> c -> r; r -> d -> y. The caller holds x and y.
BUFFERS = (
    Buffer(64, pinned=True, name="x"),
    Buffer(64, name="p"),
    Buffer(128, name="q"),
    Buffer(64, name="r"),
    Buffer(64, pinned=True, name="y"),
)
TASKS = (
    PlannedTask("a", (X,), (P,), recomputable=True),
    PlannedTask("b", (P,), (Q,)),
    PlannedTask("c", (P, Q), (R,), in_place=((R, P), (R, Q))),
    PlannedTask("d", (R,), (Y,), in_place=((Y, R),), after=(1,)),
)
PROBLEM = PlanningProblem(TASKS, BUFFERS)
PLAN = SchedulePlan(
    ((A,), (B,), (C,), (D,)), {(P, 0): 0, (Q, 0): 64, (R, 0): 192}, arena_bytes=256, lower_bound=256
)
IN_PLACE = replace(PLAN, reused={(R, 0): (P, 0)}, offsets={**PLAN.offsets, (R, 0): 0})
# b reads what a computes a second time: p's first copy is dead by then.
TWICE = replace(
    PLAN,
    waves=((A,), (AGAIN,), (B,), (C,), (D,)),
    offsets={**PLAN.offsets, (P, 1): 192},
    sources={(B, P): 1},
)
# c updates p as r; further buffers and what the caller holds can be put into the chain.
TIED = replace(
    PROBLEM,
    tasks=(*TASKS[:2], replace(TASKS[2], in_place=(), tied=((R, P),)), TASKS[3]),
)
UPDATED = replace(PLAN, offsets={**PLAN.offsets, (R, 0): 0})
WIDE = replace(PROBLEM, concurrency=2)


def task(t: int, **changes: Any) -> PlanningProblem:
    """The problem with one task changed."""
    tasks = [replace(one, **changes) if i == t else one for i, one in enumerate(TASKS)]
    return replace(PROBLEM, tasks=tuple(tasks))


def buffer(problem: PlanningProblem, b: int, **changes: Any) -> PlanningProblem:
    """A problem with one buffer changed."""
    buffers = [replace(o, **changes) if i == b else o for i, o in enumerate(problem.buffers)]
    return replace(problem, buffers=tuple(buffers))


def at(found: SchedulePlan = PLAN, **offsets: int) -> SchedulePlan:
    """A plan with some buffers' first copies at other offsets."""
    numbers = {one.name: b for b, one in enumerate(BUFFERS)}
    moved = {(numbers[name], 0): offset for name, offset in offsets.items()}
    return replace(found, offsets={**found.offsets, **moved})


def without(b: int, found: SchedulePlan = PLAN) -> SchedulePlan:
    return replace(found, offsets={i: o for i, o in found.offsets.items() if i[0] != b})


# A second reader of p, beside or behind c, and the waves that run it.
SECOND = PlannedTask("e", (P,), (5,))
BESIDE = replace(
    PROBLEM,
    tasks=(*TASKS[:2], SECOND, *TASKS[2:]),
    buffers=(*BUFFERS, Buffer(64, pinned=True, name="z")),
    concurrency=2,
)
E, C_BESIDE, D_BESIDE = (TaskStep(t) for t in range(2, 5))
SAME_WAVE = ((A,), (B,), (C_BESIDE, E), (D_BESIDE,))
LATER = ((A,), (B,), (C_BESIDE,), (E,), (D_BESIDE,))
TIED_BESIDE = replace(BESIDE, tasks=(*TIED.tasks[:2], SECOND, *TIED.tasks[2:]))
# Buffers without a writer inside the arena are there from the start; kept ones until the end.
GIVEN = buffer(buffer(task(3, reads=(R, 5)), X, pinned=True), Y, pinned=True)
GIVEN = replace(GIVEN, buffers=(*BUFFERS, Buffer(64, name="g")))


@dataclass(frozen=True)
class Wrong:
    """A plan with one violation, and the line that names it."""

    line: str
    plan: SchedulePlan
    problem: PlanningProblem = PROBLEM

    def __str__(self) -> str:
        return self.line


WRONG = [
    Wrong("TaskStep(task=9, copy=0) is no task of the problem",
          replace(PLAN, waves=(*PLAN.waves, (TaskStep(9),)))),
    Wrong("'b' runs 2 times", replace(PLAN, waves=((A,), (B,), (B,), (C,), (D,)))),
    Wrong("'a' has the copies [0, 2]", replace(PLAN, waves=((TaskStep(0, 2),), *PLAN.waves))),
    Wrong("'a' has the copies [1]", replace(PLAN, waves=((AGAIN,), *PLAN.waves[1:]))),
    Wrong("'d' never runs", replace(PLAN, waves=PLAN.waves[:3])),
    Wrong("'a' runs 2 times and may not be computed again", TWICE, task(0, recomputable=False)),
    Wrong("wave 1 holds 2 steps, 1 are allowed", replace(PLAN, waves=((A,), (B, C), (D,)))),
    Wrong("wave 1 holds 3 steps, 2 are allowed", replace(PLAN, waves=((A,), (B, C, D))), WIDE),
    Wrong("'b' in wave 0 reads p, which is computed in wave 0",
          replace(PLAN, waves=((A, B), (C,), (D,))), WIDE),
    Wrong("'b' in wave 0 reads p, which is computed in wave 1",
          replace(PLAN, waves=((B,), (A,), (C,), (D,)))),
    Wrong("'b' reads p (copy 1), which nothing computes",
          replace(TWICE, waves=PLAN.waves, offsets=PLAN.offsets | {(P, 1): 192})),
    Wrong("'d' in wave 1 does not follow 'b'",
          replace(PLAN, waves=((A,), (B, D), (C,))),
          replace(task(3, reads=(X,), in_place=()), concurrency=2)),
    Wrong("'d' in wave 0 does not follow 'b'",
          replace(PLAN, waves=((D,), (A,), (B,), (C,))),
          task(3, reads=(X,), in_place=())),
    Wrong("TaskStep(task=1, copy=0) has copy 0 of buffer 2 as source and does not read that",
          replace(PLAN, sources={(B, Q): 0})),
    Wrong("TaskStep(task=0, copy=1) has copy 0 of buffer 0 as source and does not read that",
          replace(PLAN, sources={(AGAIN, X): 0})),
    Wrong("r (copy 1) reuses p: no such instances", replace(PLAN, reused={(R, 1): (P, 0)})),
    Wrong("r reuses p (copy 1): no such instances", replace(PLAN, reused={(R, 0): (P, 1)})),
    Wrong("r may not reuse p", IN_PLACE, task(2, in_place=((R, Q),))),
    Wrong("r reuses p: not both in the arena", without(P, IN_PLACE),
          buffer(PROBLEM, P, pinned=True)),
    Wrong("y reuses r: not both in the arena", replace(PLAN, reused={(Y, 0): (R, 0)})),
    Wrong("p is reused by 2 results",
          replace(at(IN_PLACE, q=0), reused={(R, 0): (P, 0), (Q, 0): (P, 0)}),
          buffer(task(1, in_place=((Q, P),)), Q, size=0)),
    Wrong("'e' in wave 2 reads p, which 'c' updates in wave 2",
          replace(without(R, without(P)), waves=SAME_WAVE), buffer(TIED_BESIDE, P, pinned=True)),
    Wrong("'e' in wave 3 reads p, which 'c' updates in wave 2",
          replace(without(R, without(P)), waves=LATER), buffer(TIED_BESIDE, P, pinned=True)),
    Wrong("q has no offset", without(Q)),
    Wrong("(1, 1) has an offset and is never alive",
          replace(PLAN, offsets={**PLAN.offsets, (P, 1): 0})),
    Wrong("x lies outside the arena and has an offset", at(x=192)),
    Wrong("p lies outside the arena and has an offset", at(p=0),
          buffer(PROBLEM, P, pinned=True)),
    Wrong("p lies at [-64, 0), the arena has 256 bytes", at(p=-64)),
    Wrong("r lies at [256, 320), the arena has 256 bytes", at(r=256)),
    Wrong("p lies at 32, not aligned to 64", replace(at(p=32, q=128, r=256), arena_bytes=320)),
    Wrong("r reuses p and lies elsewhere", at(IN_PLACE, r=192)),
    Wrong("r reuses p and lies elsewhere", PLAN, TIED),
    Wrong("p and q overlap at waves 1..2", at(p=64)),
    Wrong("q and r overlap at wave 2", at(r=64)),
    Wrong("q and r overlap at wave 2", at(r=128)),
    Wrong("p and r overlap at wave 2", at(r=0)),
    Wrong("p and r overlap at wave 2", replace(IN_PLACE, waves=SAME_WAVE), BESIDE),
    Wrong("p and r overlap at wave 3", replace(IN_PLACE, waves=LATER), BESIDE),
    Wrong("p and r overlap at wave 3", IN_PLACE, buffer(PROBLEM, P, lives_to_end=True)),
    Wrong("p and g overlap at waves 0..2",
          replace(PLAN, offsets=PLAN.offsets | {(5, 0): 0}), GIVEN),
    Wrong("the lower bound is -1 bytes, the arena has 256", replace(PLAN, lower_bound=-1)),
    Wrong("the lower bound is 257 bytes, the arena has 256", replace(PLAN, lower_bound=257)),
]  # fmt: skip

LEGAL = {
    "plain": (PROBLEM, PLAN),
    "in place": (PROBLEM, IN_PLACE),
    "computed again": (PROBLEM, TWICE),
    "an update": (TIED, UPDATED),
    "no concurrency means one step at a time": (replace(PROBLEM, concurrency=0), PLAN),
    "nothing lies anywhere": (buffer(PROBLEM, Q, size=0), without(Q)),
    "an update of what the caller holds": (
        buffer(TIED, P, pinned=True),
        without(R, without(P, UPDATED)),
    ),
    "an update that the caller holds": (
        buffer(TIED, R, pinned=True),
        without(R, without(P, UPDATED)),
    ),
    "a second run reads the caller's own": (
        PROBLEM, replace(TWICE, sources={(B, P): 1, (AGAIN, X): 1})
    ),
    "there from the start": (
        GIVEN, replace(PLAN, offsets=PLAN.offsets | {(5, 0): 256}, arena_bytes=320)
    ),
    "at the bound": (PROBLEM, replace(PLAN, lower_bound=0)),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_plan_has_no_violation(name: str) -> None:
    problem, found = LEGAL[name]
    problem.check()
    assert violations(problem, found) == []
    validate(problem, found)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_each_violation_is_found_where_it_is_the_only_one(wrong: Wrong) -> None:
    wrong.problem.check()
    assert violations(wrong.problem, wrong.plan) == [wrong.line]
    with pytest.raises(PycError) as refused:
        validate(wrong.problem, wrong.plan)
    assert refused.value.code is ReasonCode.BAD_ARGUMENT and wrong.line in refused.value.message


FAULTS = [
    ("fewer than 1152921504606846976 bytes in all", buffer(PROBLEM, Q, size=(1 << 60) - 256)),
    ("buffer 1: expected size >= 0", buffer(PROBLEM, P, size=-1)),
    ("buffer 2: expected size >= 0 and alignment >= 1", buffer(PROBLEM, Q, alignment=0)),
    ("task 1: expected buffers below 5, got (5, 2)", task(1, reads=(5,))),
    ("task 1: expected buffers below 5, got (-1, 2)", task(1, reads=(-1,))),
    ("task 1: writes a buffer that was written before", task(1, writes=(P,))),
    ("task 1: writes a buffer that was written before", task(1, writes=(Q, Q))),
    ("task 1: expected pairs (written, read), got (3, 1)", task(1, in_place=((R, P),))),
    ("task 1: expected pairs (written, read), got (2, 0)", task(1, tied=((Q, X),))),
    ("task 0: stands before a task that it has to follow", task(0, reads=(Q,))),
    ("task 0: stands before a task that it has to follow", task(0, after=(2,))),
    ("task 1: stands before a task that it has to follow", task(1, tied=((Q, P),))),
]


@pytest.mark.parametrize("line, problem", FAULTS)
def test_each_fault_of_a_problem_is_named(line: str, problem: PlanningProblem) -> None:
    with pytest.raises(PycError) as error:
        problem.check()
    assert error.value.code is ReasonCode.BAD_ARGUMENT and line in error.value.message
    buffer(PROBLEM, Q, size=(1 << 60) - 257).check()


def test_many_violations_are_counted() -> None:
    none = replace(PROBLEM, tasks=TASKS * 3)
    with pytest.raises(PycError, match=rf"'a' never runs; .*and {12 - SHOWN} more \["):
        validate(none, replace(PLAN, waves=()))


def run(problem: PlanningProblem, found: SchedulePlan) -> bool:
    """Run a plan on an arena of bytes that each know whose they are; return whether none is lost.

    Steps of a wave may overlap: what one writes, no other one reads, writes or needs later.
    """
    arena: dict[int, Instance] = {}

    def held(*instances: Instance) -> set[int]:
        sizes = [(found.offsets.get(i), problem.buffers[i[0]].size) for i in instances]
        return {x for o, size in sizes if o is not None for x in range(o, o + size)}

    def intact(instance: Instance) -> bool:
        return all(arena.get(byte) == instance for byte in held(instance))

    def fill(instance: Instance) -> None:
        arena.update(dict.fromkeys(held(instance), instance))

    given_ = {(b, 0) for t in problem.tasks for b in t.reads if b not in problem.writer}
    for instance in given_:
        fill(instance)
    lasting = {i for i in given_ if problem.buffers[i[0]].lives_to_end}
    for wave in found.waves:
        touched: list[tuple[set[int], set[int]]] = []
        for step in wave:
            task_ = problem.tasks[step.task]
            reads = {b: (b, found.sources.get((step, b), 0)) for b in task_.reads}
            writes = {b: (b, step.copy) for b in task_.writes}
            if not all(map(intact, reads.values())):
                return False
            touched.append(
                (
                    {x for i in reads.values() for x in held(i)},
                    {x for i in writes.values() for x in held(i)},
                )
            )
            for b, instance in writes.items():
                taken = {r for w, r in task_.tied if w == b}
                taken |= {r for r in task_.reads if found.reused.get(instance) == reads[r]}
                if held(instance) & held(*(reads[r] for r in task_.reads if r not in taken)):
                    return False
                fill(instance)
            if not all(map(intact, writes.values())):
                return False
            lasting |= {i for b, i in writes.items() if problem.buffers[b].lives_to_end}
        for i, (_, written) in enumerate(touched):
            if any(written & (r | w) for j, (r, w) in enumerate(touched) if i != j):
                return False
    return all(map(intact, lasting))


@given(problems(concurrency=3), st.sampled_from(["latency_first", "memory_first"]), st.data())
def test_a_moved_buffer_is_a_violation_exactly_where_bytes_are_lost(problem, mode, data) -> None:
    found = plan(problem, mode=mode, work_limit=2000)
    assert run(problem, found)
    assume(found.offsets)
    moved = data.draw(st.sampled_from(sorted(found.offsets)))
    room = max(1, found.arena_bytes - problem.buffers[moved[0]].size + 1)
    offset = 64 * data.draw(st.integers(0, (room - 1) // 64))
    wrong = replace(found, offsets={**found.offsets, moved: offset})
    reasons = violations(problem, wrong)
    assume(not any("lies elsewhere" in line for line in reasons))
    assert bool(reasons) != run(problem, wrong), reasons


@pytest.mark.parametrize("mode", ["latency_first", "balanced", "memory_first"])
def test_what_stays_and_what_was_there_keep_their_bytes(mode: str) -> None:
    last = buffer(PROBLEM, Y, pinned=False, size=192)
    for problem in (*(buffer(last, b, lives_to_end=True) for b in (P, Q, R)), GIVEN):
        assert run(problem, plan(problem, mode=mode))


def at_one_place(found: SchedulePlan) -> SchedulePlan:
    """The plan with everything that is alive at one offset."""
    return replace(found, offsets=dict.fromkeys(found.offsets, 0))


def refused(call: Any) -> None:
    with pytest.raises(PycError, match=r"expected a legal plan, got: p and q overlap") as error:
        call()
    assert error.value.code is ReasonCode.BAD_ARGUMENT


def spoiled(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Have a function of plans return them with everything at one offset."""
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *a, **k: at_one_place(real(*a, **k)))


def test_a_plan_is_validated_whoever_found_it(monkeypatch) -> None:
    for name in ("best", "within"):
        spoiled(monkeypatch, planner._Planner, name)
    refused(lambda: plan(PROBLEM))
    refused(lambda: plan(PROBLEM, budget=10**6))
    spoiled(monkeypatch, planner, "place")
    refused(lambda: plan_in_waves(PROBLEM, [(t,) for t in range(4)]))
    spoiled(monkeypatch, plan_memory, "place")
    refused(lambda: plan_memory.in_program_order(PROBLEM))


def test_a_plan_is_validated_again_where_it_is_carried_over(monkeypatch) -> None:
    spoiled(monkeypatch, planner.ReducedProblem, "carried")
    refused(lambda: SharedPlans().plan(PROBLEM))
    refused(lambda: SharedPlans().in_waves(PROBLEM, [(t,) for t in range(4)]))
