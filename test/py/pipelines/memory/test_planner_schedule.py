"""Orders of the fewest live bytes, and waves that keep them, against slow models."""

from random import Random

import pytest
from conftest import FULL
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

from pyc_mlir.pipelines.memory.planner import storage as module
from pyc_mlir.pipelines.memory.planner.problem import Buffer, PlannedTask, PlanningProblem
from pyc_mlir.pipelines.memory.planner.schedule import depth_first, greedy, parts, schedule
from pyc_mlir.pipelines.memory.planner.storage import (
    LOOK_AHEAD,
    group,
    places,
    profile,
    run,
    storages,
    wave_profile,
)


def one_by_one(order) -> list[list[int]]:
    return [[t] for t in order]


@given(problems(), st.booleans(), st.randoms(use_true_random=False))
def test_profile_is_the_definition(problem, reuse, random) -> None:
    model = storages(problem, reuse)
    order = greedy(model, noise=random)
    found = profile(model, order)
    assert found.during == naive_profile(problem, one_by_one(order), reuse)
    i = random.randrange(len(order))
    part = run(model, order[i:], i, places(order), found.before[i])
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


def plain(problem: PlanningProblem, order, concurrency: int, limit: int | None) -> list[list[int]]:
    """The definition: a candidate stands behind the wave, and all is evaluated anew."""
    model = storages(problem)
    left, waves = list(order), []
    while left:
        window = left[: LOOK_AHEAD * concurrency]
        wave, rest = [window[0]], window[1:]
        for t in window[1:]:
            ahead = [*wave, *rest[: rest.index(t)]]
            joint = [*wave, t]
            others = [x for x in rest if x != t]
            if len(wave) == concurrency or problem.predecessors[t] & set(ahead):
                continue
            behind = [*others, *left[len(window) :]]
            if limit is not None:
                during = profile(model, [*_flat(waves), *joint, *behind]).during
                start = sum(map(len, waves)) + len(wave)
                overtakes = len(ahead) - len(wave) + 1
                whole = [*waves, joint, *([x] for x in behind)]
                wave_bytes = naive_profile(problem, whole)[len(waves)]
                if max(during[start : start + overtakes]) > limit or wave_bytes > limit:
                    continue
            wave, rest = joint, others
        waves.append(wave)
        left = [t for t in left if t not in wave]
    return waves


def _flat(waves) -> list[int]:
    return [t for wave in waves for t in wave]


def wide(seed: int, count: int) -> PlanningProblem:
    """Random tasks with ties, several results, values that stay, and dependencies without bytes."""
    random = Random(seed)
    base = layered(count, seed, width=count)
    buffers, tasks = list(base.buffers), []
    fresh = [t.writes[0] for t in base.tasks]
    for t, task in enumerate(base.tasks):
        after = (random.randrange(t),) if t and random.random() < 0.2 else ()
        more = ()
        if random.random() < 0.3:
            buffers.append(Buffer(4096 * random.randint(0, 3), lives_to_end=random.random() < 0.3))
            more = (len(buffers) - 1,)
        tasks.append(
            PlannedTask(
                task.name,
                task.reads,
                (*task.writes, *more),
                1.0,
                in_place=task.in_place,
                after=after,
            )
        )
    last = random.sample(fresh, count // 8)
    for b in last:
        buffers.append(Buffer(buffers[b].size))
        tasks.append(
            PlannedTask("update", (b,), (len(buffers) - 1,), 1.0, tied=((len(buffers) - 1, b),))
        )
    return PlanningProblem(tuple(tasks), tuple(buffers), 8)


@given(
    problems(max_tasks=10, concurrency=3),
    st.sampled_from([None, -500, -64, 0, 64, 300, 2000]),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_the_answer_is_the_plain_one(problem, extra, concurrency, random) -> None:
    model = storages(problem)
    order = greedy(model, noise=random)
    limit = None if extra is None else max(0, profile(model, order).peak + extra)
    found = group(model, order, concurrency=concurrency, limit=limit)
    assert [list(w) for w in found] == plain(problem, order, concurrency, limit)


@pytest.mark.parametrize("seed", range(40 if FULL else 4))
@pytest.mark.full
def test_the_answer_is_the_plain_one_for_wide_graphs(seed, monkeypatch) -> None:
    """Also where the window ends before the graph does."""
    problem = wide(seed, 60)
    problem.check()
    model = storages(problem)
    order = schedule(problem, work_limit=2000).order
    peak = profile(model, order).peak
    for look_ahead in (2, LOOK_AHEAD):
        monkeypatch.setattr(module, "LOOK_AHEAD", look_ahead)
        monkeypatch.setitem(globals(), "LOOK_AHEAD", look_ahead)
        for limit in (None, peak * 3 // 4, peak, peak * 9 // 8, peak * 2):
            found = group(model, order, concurrency=8, limit=limit)
            assert [list(w) for w in found] == plain(problem, order, 8, limit)
            assert topological(problem, _flat(found))
            assert wave_profile(model, found) == naive_profile(problem, found)


@given(problems(max_tasks=8, concurrency=3), st.randoms(use_true_random=False))
def test_the_profile_of_any_waves_is_the_definition(problem, random) -> None:
    """Waves of any legal kind, not only those that fill up."""
    done: set[int] = set()
    waves: list[list[int]] = []
    while len(done) < len(problem.tasks):
        ready = [t for t, p in enumerate(problem.predecessors) if t not in done and p <= done]
        waves.append(random.sample(ready, random.randint(1, len(ready))))
        done.update(waves[-1])
    assert wave_profile(storages(problem), waves) == naive_profile(problem, waves)
