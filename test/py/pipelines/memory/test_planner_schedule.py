"""Orders: legal, evaluated truly, best where that can be known, never worse than before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_problems import (
    MIB,
    branches,
    chain,
    layered,
    naive_profile,
    never_rising,
    orders,
    problems,
    topological,
)

from pyc_mlir.pipelines.memory.planner.schedule import depth_first, greedy, parts, schedule
from pyc_mlir.pipelines.memory.planner.storage import profile, run, storages
from pyc_mlir.pipelines.memory.planner.waves import group, wave_profile


def one_by_one(order) -> list[list[int]]:
    return [[t] for t in order]


@given(problems(), st.booleans(), st.randoms(use_true_random=False))
def test_profile_is_the_definition(problem, reuse, random) -> None:
    model = storages(problem, reuse)
    order = greedy(model, noise=random)
    found = profile(model, order)
    assert found.during == naive_profile(problem, one_by_one(order), reuse)
    i = random.randrange(len(order))
    part = run(model, order[i:], i, {t: k for k, t in enumerate(order)}, found.before[i])
    assert part.during == found.during[i:]


@given(problems(max_tasks=12))
def test_list_schedules_are_topological(problem) -> None:
    model = storages(problem)
    for backward in (False, True):
        for newest in (False, True):
            assert topological(problem, greedy(model, backward=backward, newest=newest))
    assert topological(problem, depth_first(model))


@given(problems(max_tasks=6))
def test_small_problems_are_solved_exactly(problem) -> None:
    problem.check()
    best = min(max(naive_profile(problem, one_by_one(order))) for order in orders(problem))
    found = schedule(problem)
    assert topological(problem, found.order)
    assert found.peak == max(naive_profile(problem, one_by_one(found.order))) == best
    assert found.lower_bound == best and found.proven


@given(problems(max_tasks=6))
def test_parts_follow_one_another_in_every_order(problem) -> None:
    model = storages(problem)
    cuts = parts(model, range(len(problem.tasks)))
    assert [i for span in cuts for i in range(*span)] == list(range(len(problem.tasks)))
    for order in orders(problem):
        assert all(sorted(order[i:j]) == list(range(i, j)) for i, j in cuts)


@pytest.mark.parametrize("seed", range(3))
def test_large_problems(seed) -> None:
    problem = layered(200, seed)
    model = storages(problem)
    own = profile(model, range(200)).peak
    found = [schedule(problem, work_limit=limit) for limit in (0, 1000, 10_000, 40_000)]
    assert never_rising([own, *(f.peak for f in found)])
    assert all(topological(problem, f.order) for f in found)
    assert all(f.lower_bound <= f.peak == profile(model, f.order).peak for f in found)
    assert schedule(problem, work_limit=10_000) == found[2]


def test_branches_are_reduced_as_they_come() -> None:
    found = schedule(branches(8))
    assert found.peak == 12 * MIB and found.proven


def test_chain_in_place_needs_one_buffer() -> None:
    assert schedule(chain(5)).peak == 128
    assert schedule(chain(5, in_place=True)).peak == 64


def test_empty_problem() -> None:
    assert schedule(chain(0)).order == ()


@given(problems(max_tasks=8, concurrency=3), st.sampled_from([0, 300, None]))
def test_waves_are_independent_and_within_the_limit(problem, extra) -> None:
    model = storages(problem)
    order = schedule(problem).order
    peak = profile(model, order).peak
    limit = None if extra is None else peak + extra
    waves = group(model, order, concurrency=3, limit=limit)
    assert topological(problem, [t for wave in waves for t in wave])
    for wave in waves:
        assert 1 <= len(wave) <= 3
        assert not any(problem.predecessors[t] & set(wave) for t in wave)
    found = wave_profile(model, waves)
    assert found == naive_profile(problem, [list(w) for w in waves])
    assert limit is None or max(found) <= limit


def test_waves_keep_concurrency_where_memory_allows() -> None:
    model = storages(branches(4))
    waves = group(model, schedule(branches(4)).order, concurrency=4, limit=None)
    assert len(waves[0]) == 4
