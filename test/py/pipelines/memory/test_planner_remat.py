"""Recomputation: the same values, fewer bytes, no more seconds than allowed."""

from hypothesis import given
from hypothesis import strategies as st
from planner_problems import (
    branches,
    chain,
    expressions,
    layered,
    naive_profile,
    never_rising,
    problems,
    skips,
)

from pyc_mlir.pipelines.memory.planner.problem import (
    Buffer,
    Expansion,
    PlannedTask,
    PlanningProblem,
    TaskStep,
)
from pyc_mlir.pipelines.memory.planner.remat import peak_of, rematerialize, sweep, taken_back
from pyc_mlir.pipelines.memory.planner.schedule import schedule


def expanded(problem: PlanningProblem) -> Expansion:
    return Expansion.of(problem, schedule(problem).order)


def same_values(expansion: Expansion) -> bool:
    problem = expansion.problem
    once = expressions(problem, [TaskStep(t) for t in range(len(problem.tasks))], {})
    return expressions(problem, expansion.steps, expansion.sources) == once


def lowest(expansion: Expansion, **options) -> Expansion:
    """The last expansion of a sweep."""
    found = [expansion, *(r.expansion for r in sweep(expansion, **options))]
    return found[-1]


@given(problems(max_tasks=14))
def test_sweeps_keep_values_and_lower_the_peak(problem) -> None:
    start = expanded(problem)
    peaks = [peak_of(start)]
    for found in sweep(start):
        expansion = found.expansion
        assert same_values(expansion) and expansion.legal
        assert {s.task for s in expansion.steps if not s.copy} == set(range(len(problem.tasks)))
        order = [[i] for i in range(len(expansion.steps))]
        assert found.peak == max(naive_profile(expansion.derived, order))
        peaks.append(found.peak)
    assert never_rising(peaks) and len(set(peaks)) == len(peaks)


@given(st.integers(0, 40), st.sampled_from([0.0, 0.02, 0.2]))
def test_seconds_are_bounded(seed, slowdown) -> None:
    start = expanded(layered(30, seed, width=8))
    limit = start.seconds * (1 + slowdown)
    for found in sweep(start, max_seconds=limit):
        assert found.expansion.seconds <= limit
        assert same_values(found.expansion)


@given(st.integers(0, 40))
def test_what_is_superfluous_is_taken_back(seed) -> None:
    end = lowest(expanded(layered(30, seed, width=8)))
    peak = peak_of(end)
    found = taken_back(end, budget=peak)
    assert found.legal and same_values(found)
    assert peak_of(found) <= peak and found.seconds <= end.seconds
    assert taken_back(found, budget=peak).seconds <= found.seconds


def test_skips_are_computed_again() -> None:
    problem = skips(depth=6, size=1024)
    start = expanded(problem)
    found = taken_back(lowest(start), budget=peak_of(lowest(start)))
    assert peak_of(start) == 2304 and peak_of(found) == 1536
    assert found.seconds <= 1.05 * start.seconds
    assert {problem.tasks[s.task].name for s in found.steps if s.copy} <= {"wide0", "wide1"}


def test_a_budget_is_met_or_nothing_happens() -> None:
    start = expanded(skips())
    assert rematerialize(start, budget=2000).peak <= 2000
    assert rematerialize(start, budget=10).expansion == start
    assert rematerialize(start, budget=2304).expansion == start
    assert rematerialize(start, budget=2000, max_seconds=start.seconds).expansion == start


def test_chains_are_computed_again() -> None:
    """Two cheap tasks from the input make a wide value that is read at both ends."""
    buffers = [Buffer(64, pinned=True), Buffer(64), Buffer(512), Buffer(512), Buffer(64)]
    buffers += [Buffer(512, pinned=True)]
    tasks = [
        PlannedTask("narrow", (0,), (1,), 1, True),
        PlannedTask("widen", (1,), (2,), 1, True),
        PlannedTask("use", (2,), (3,), 9),
        PlannedTask("shrink", (3,), (4,), 9),
        PlannedTask("join", (2, 4), (5,), 9),
    ]
    start = Expansion.of(PlanningProblem(tuple(tasks), tuple(buffers)))
    assert peak_of(start) == 512 + 512 + 64
    found = rematerialize(start, budget=1024).expansion
    assert [(s.task, s.copy) for s in found.steps if s.copy] == [(0, 1), (1, 1)]
    assert found.sources == {(TaskStep(1, 1), 1): 1, (TaskStep(4), 2): 1}
    assert same_values(found)


def test_nothing_to_recompute() -> None:
    assert list(sweep(expanded(chain(5)))) == []
    assert list(sweep(expanded(branches(4)))) == []


def test_updates_in_place_are_not_read_after() -> None:
    """The operand of the wide value is overwritten before the second use: it must be kept."""
    buffers = [Buffer(64), Buffer(512), Buffer(64), Buffer(512), Buffer(512, pinned=True)]
    buffers = [Buffer(8, pinned=True), *buffers]
    tasks = [
        PlannedTask("make", (0,), (1,), 1),
        PlannedTask("widen", (1,), (2,), 1, True),
        PlannedTask("update", (1,), (3,), 1, tied=((3, 1),)),
        PlannedTask("use", (2, 3), (4,), 1),
        PlannedTask("end", (4, 2), (5,), 1),
    ]
    problem = PlanningProblem(tuple(tasks), tuple(buffers))
    problem.check()
    assert same_values(lowest(Expansion.of(problem)))
