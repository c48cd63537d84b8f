"""Whole plans: valid, never worse than the problem's own order, budgets kept or truly refused."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_problems import (
    MIB,
    branches,
    chain,
    expressions,
    layered,
    naive_profile,
    never_rising,
    problems,
    skips,
    topological,
)

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.planner.planner import (
    MODES,
    BudgetRefused,
    PlannerMode,
    frontier,
    plan,
)
from pyc_mlir.pipelines.memory.planner.problem import (
    Buffer,
    PlannedTask,
    PlanningProblem,
    SchedulePlan,
    TaskStep,
)
from pyc_mlir.pipelines.memory.planner.storage import choose_reuse
from pyc_mlir.pipelines.memory.planner.validate import validate

ANY_PROBLEM = st.one_of(problems(max_tasks=10), problems(max_tasks=10, concurrency=3))


def same_values(problem: PlanningProblem, found: SchedulePlan) -> bool:
    once = expressions(problem, [TaskStep(t) for t in range(len(problem.tasks))], {})
    return expressions(problem, found.steps, found.sources) == once


def own_order(problem: PlanningProblem) -> int:
    """The peak of the problem's own sequence without reuse: what no arena may be above."""
    return max(naive_profile(problem, [[t] for t in range(len(problem.tasks))], reuse=False))


@given(ANY_PROBLEM, st.sampled_from(sorted(MODES)))
def test_plans_are_valid_and_keep_values(problem, mode) -> None:
    found = plan(problem, mode=mode, work_limit=2000)
    validate(problem, found)
    assert same_values(problem, found)
    assert found.lower_bound <= found.arena_bytes
    assert topological(problem, [s.task for s in found.steps if not s.copy])
    assert all(len(wave) <= problem.concurrency for wave in found.waves)
    again = plan(problem, mode=mode, work_limit=2000)
    assert again == found


@given(problems(max_tasks=10), st.sampled_from(["balanced", "memory_first"]))
def test_more_work_is_never_worse(problem, mode) -> None:
    arenas = [plan(problem, mode=mode, work_limit=w).arena_bytes for w in (0, 10_000, 50_000)]
    assert never_rising(arenas)


@given(ANY_PROBLEM, st.sampled_from([None, 0.0, 0.1]), st.floats(0.3, 1.1))
def test_budgets_are_kept_or_refused_with_a_true_reason(problem, slowdown, share) -> None:
    once = sum(task.seconds for task in problem.tasks)
    budget = int(share * plan(problem, work_limit=2000).arena_bytes)
    try:
        found = plan(problem, budget=budget, slowdown=slowdown, work_limit=2000)
    except BudgetRefused as refused:
        assert refused.smallest > budget
        assert (refused.code is ReasonCode.BUDGET_IMPOSSIBLE) == (budget < refused.bound)
        found = plan(problem, budget=refused.smallest, slowdown=slowdown, work_limit=2000)
        assert found.arena_bytes <= refused.smallest and found.seconds <= refused.seconds
        assert found.arena_bytes >= refused.bound
    else:
        assert found.arena_bytes <= budget
    assert slowdown is None or found.seconds <= once * (1 + slowdown) * (1 + 1e-9)
    validate(problem, found)
    assert same_values(problem, found)


@given(ANY_PROBLEM)
def test_frontiers_trade_bytes_for_seconds(problem) -> None:
    points = frontier(problem, work_limit=2000)
    assert points == sorted(points)
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in pairwise(points))
    for arena, seconds in points:
        found = plan(problem, budget=arena, work_limit=2000)
        assert found.arena_bytes <= arena and found.seconds <= seconds


@given(ANY_PROBLEM, st.booleans())
def test_reuse_is_of_dying_operands(problem, sparing) -> None:
    waves = [[t] for t in range(len(problem.tasks))]
    above = max(naive_profile(problem, waves)) if sparing else None
    pairs = choose_reuse(problem, waves, above=above)
    allowed = {pair for task in problem.tasks for pair in task.in_place}
    assert set(pairs.items()) <= allowed
    assert len(set(pairs.values())) == len(pairs)
    for written, read in pairs.items():
        assert not problem.buffers[written].pinned and not problem.buffers[read].pinned
        assert max(problem.readers[read]) == problem.writer[written]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", ["balanced", "memory_first"])
@pytest.mark.full
def test_random_graphs_need_less_than_their_own_order(seed, mode) -> None:
    problem = layered(120, seed)
    found = plan(problem, mode=mode, work_limit=40_000)
    assert found.arena_bytes < own_order(problem)
    assert found.seconds <= 1.08 * sum(t.seconds for t in problem.tasks) * (1 + 1e-9)
    assert same_values(problem, found)


def test_500_tasks() -> None:
    problem = layered(500, 0)
    found = plan(problem)
    assert found.arena_bytes <= 0.6 * own_order(problem)


def test_branches() -> None:
    for mode in ("balanced", "memory_first"):
        found = plan(branches(8), mode=mode)
        assert found.arena_bytes == 12 * MIB and found.proven


def test_skips_are_recomputed_only_where_the_mode_pays_for_it() -> None:
    assert plan(skips(), mode="balanced").arena_bytes == 2304
    found = plan(skips(), mode="memory_first")
    assert found.arena_bytes == 1536 and found.proven
    assert any(step.copy for step in found.steps)


def test_budgets() -> None:
    found = plan(skips(), budget=2000)
    assert found.arena_bytes <= 2000 and any(step.copy for step in found.steps)
    with pytest.raises(BudgetRefused, match=r"2304 bytes, at 36 s") as refused:
        plan(skips(), budget=2000, slowdown=0.0)
    assert refused.value.code is ReasonCode.BUDGET_NOT_FOUND
    with pytest.raises(BudgetRefused, match="needs 1536; the smallest") as refused:
        plan(skips(), budget=1000)
    assert refused.value.code is ReasonCode.BUDGET_IMPOSSIBLE
    assert frontier(skips()) == [(1536, 37.0), (2304, 36.0)]


def test_waves_by_mode() -> None:
    problem = branches(4, size=64)
    wide = PlanningProblem(problem.tasks, problem.buffers, concurrency=4)
    fast, small = plan(wide, mode="latency_first"), plan(wide, mode="balanced")
    assert max(map(len, fast.waves)) == 4
    assert fast.seconds < small.seconds <= plan(wide, mode="memory_first").seconds
    assert small.arena_bytes == 192 < fast.arena_bytes
    assert max(map(len, plan(wide, mode="memory_first").waves)) == 1


def test_chain_in_place() -> None:
    found = plan(chain(6, in_place=True))
    assert found.arena_bytes == 64 and found.proven
    assert len(found.reused) == 4 and set(found.offsets.values()) == {0}


def test_modes_are_data() -> None:
    own = PlannerMode("mine", overlap="none", slowdown=0.5)
    assert plan(skips(), mode=own).arena_bytes == 1536


def test_bad_arguments() -> None:
    for mode, slowdown in (("fast", None), ("balanced", -1.0)):
        with pytest.raises(PycError) as error:
            plan(chain(3), mode=mode, slowdown=slowdown)
        assert error.value.code is ReasonCode.BAD_ARGUMENT
    backwards = PlanningProblem(
        (PlannedTask("a", (1,), (0,)), PlannedTask("b", (), (1,))), (Buffer(1), Buffer(1))
    )
    with pytest.raises(PycError):
        plan(backwards)
    with pytest.raises(PycError, match="fewer than 1152921504606846976 bytes in all"):
        plan(chain(3, size=1 << 60))


def test_nothing_to_plan() -> None:
    assert plan(chain(0)).arena_bytes == 0
    assert plan(chain(1)).arena_bytes == 0
