"""One plan for problems that differ in what lies outside the arena: equal, legal, as good."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import FULL
from hypothesis import given
from hypothesis import strategies as st
from planner_problems import branches, chain, layered, problems
from stream_programs import at_stream
from stream_programs import branches as wide_program
from stream_programs import layered as layered_program

from pyc_mlir.api import compile
from pyc_mlir.compilation.assign_memory import pack_slices
from pyc_mlir.iree.memory.calls import held_bytes
from pyc_mlir.iree.memory.versions import carry_out, finish
from pyc_mlir.pipelines.memory.planner import planner
from pyc_mlir.pipelines.memory.planner.planner import (
    MODES,
    BudgetRefused,
    ReducedProblem,
    SharedPlans,
    plan,
    plan_in_waves,
)
from pyc_mlir.pipelines.memory.planner.problem import Buffer, PlannedTask, PlanningProblem
from pyc_mlir.pipelines.memory.planner.storage import storages
from pyc_mlir.pipelines.memory.planner.validate import validate, violations
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import Device

CPU = Target.named("cpu")


def in_buffers_of_the_caller(problem: PlanningProblem) -> PlanningProblem:
    """Pinned results become updates of further pinned buffers, as in a program's second entry."""
    buffers, tasks = list(problem.buffers), []
    for task in problem.tasks:
        for b in task.writes:
            if buffers[b].pinned and b not in dict(task.tied):
                buffers.append(Buffer(buffers[b].size, pinned=True))
                own = len(buffers) - 1
                task = replace(task, reads=(*task.reads, own), tied=(*task.tied, (b, own)))
        pairs = tuple(p for p in task.in_place if p[0] not in dict(task.tied))
        again = task.recomputable and not task.tied
        tasks.append(replace(task, in_place=pairs, recomputable=again))
    return PlanningProblem(tuple(tasks), tuple(buffers), problem.concurrency)


@given(problems(concurrency=3))
def test_what_matters_is_kept(problem) -> None:
    reduced = ReducedProblem.of(problem)
    reduced.problem.check()
    assert not any(b.pinned for b in reduced.problem.buffers)
    assert reduced.problem.predecessors == problem.predecessors
    mine, theirs = storages(reduced.problem), storages(problem)
    assert [sum(mine.size[s] for s in t) for t in mine.touches] == [
        sum(theirs.size[s] for s in t) for t in theirs.touches
    ]
    assert list(map(mine.need, range(len(mine.touches)))) == list(
        map(theirs.need, range(len(theirs.touches)))
    )
    assert ReducedProblem.of(reduced.problem).problem == reduced.problem


@given(problems(concurrency=3))
def test_the_callers_buffers_do_not_matter(problem) -> None:
    twin = in_buffers_of_the_caller(problem)
    twin.check()
    assert ReducedProblem.of(twin).problem == ReducedProblem.of(problem).problem


@given(problems(concurrency=3), st.sampled_from(sorted(MODES)))
def test_carried_plans_are_legal_and_as_good(problem, mode) -> None:
    reduced = ReducedProblem.of(problem)
    carried = reduced.carried(plan(reduced.problem, mode=mode))
    assert not violations(problem, carried)
    if not MODES[mode].slowdown:
        # That no task may really run twice is seen sooner, so more is proven.
        whole = plan(problem, mode=mode)
        assert carried.proven >= whole.proven
        assert replace(carried, proven=True) == replace(whole, proven=True)


@pytest.mark.parametrize("problem", [chain(5, in_place=True), branches(5), layered(60, 3)])
@pytest.mark.full
def test_recomputed_copies_are_carried(problem) -> None:
    twin = in_buffers_of_the_caller(problem)
    plans = SharedPlans()
    for mode in MODES:
        for given_ in (problem, twin):
            found = plans.plan(given_, mode=mode)
            validate(given_, found)
            assert found.arena_bytes <= plan(given_, mode=mode).arena_bytes


def test_a_reader_of_what_is_updated_outside_runs_once() -> None:
    """The caller's buffer 0 is read, then updated: reading it again would read the update."""
    buffers = (Buffer(64, pinned=True), Buffer(64), Buffer(64, pinned=True), Buffer(64))
    tasks = (
        PlannedTask("read", (0,), (1,), recomputable=True),
        PlannedTask("update", (0,), (2,), tied=((2, 0),)),
        PlannedTask("last", (1, 2), (3,), recomputable=True),
    )
    reduced = ReducedProblem.of(PlanningProblem(tasks, buffers)).problem
    assert [t.recomputable for t in reduced.tasks] == [False, False, True]
    assert [t.after for t in reduced.tasks] == [(), (0,), (1,)]


@pytest.mark.full
def test_each_problem_is_planned_once(monkeypatch) -> None:
    calls = []
    real = planner.plan
    monkeypatch.setattr(planner, "plan", lambda p, **k: calls.append(k) or real(p, **k))
    problem, plans = layered(40, 1), SharedPlans()
    twin = in_buffers_of_the_caller(problem)
    assert plans.plan(problem).arena_bytes == plans.plan(twin).arena_bytes
    assert len(calls) == 1
    plans.plan(problem, mode="latency_first")
    plans.plan(replace(problem, concurrency=2))
    assert len(calls) == 3
    reported = []
    for given_ in (problem, twin):
        with pytest.raises(BudgetRefused) as refused:
            plans.plan(given_, budget=0)
        reported.append((refused.value.smallest, refused.value.code))
    assert reported[0] == reported[1] and len(calls) == 4
    waves = [(t,) for t in range(len(problem.tasks))]
    assert plans.in_waves(problem, waves) == plan_in_waves(problem, waves)
    validate(twin, plans.in_waves(twin, waves))


PROGRAMS = {"wide": wide_program(), "regions": wide_program(3, regions=2)}
PROGRAMS |= {f"layered {s}": layered_program(s) for s in range(20 if FULL else 2)}


def test_a_program_with_two_entries_is_planned_once(monkeypatch) -> None:
    problems_: list[PlanningProblem] = []
    real = planner.plan
    monkeypatch.setattr(planner, "plan", lambda p, **k: problems_.append(p) or real(p, **k))
    program = compile(PROGRAMS["wide"].code.decode(), device=Device("local-sync"))
    assert program.modes["balanced"]
    (problem,) = problems_
    assert not any(buffer.pinned for buffer in problem.buffers)


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_are_known_before_the_phase_ends(name) -> None:
    """What the module holds is the same before and after the passes that only one version sees."""
    with at_stream(PROGRAMS[name].code) as session:
        version = carry_out(session, session.module, {}, pack_slices, CPU)
        finish(session, version)
        assert held_bytes(session.module) == version.allocations.constants


def test_constants_are_counted_before_the_phase_ends() -> None:
    weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    program = compile(
        lambda x: np.tanh(x @ weights) @ weights,
        [np.zeros((8, 64), np.float32)],
        device=Device("local-sync"),
    )
    held = program.stats().memory.constants
    assert held is not None and held >= weights.nbytes
