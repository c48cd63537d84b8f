"""Waves: the quick way to fill them answers what the plain one does."""

from random import Random

import pytest
from conftest import FULL
from hypothesis import given
from hypothesis import strategies as st
from planner_problems import layered, naive_profile, problems, topological

from pyc_mlir.pipelines.memory.planner import waves as module
from pyc_mlir.pipelines.memory.planner.problem import Buffer, PlannedTask, PlanningProblem
from pyc_mlir.pipelines.memory.planner.schedule import greedy, schedule
from pyc_mlir.pipelines.memory.planner.storage import Storages, profile, storages
from pyc_mlir.pipelines.memory.planner.waves import LOOK_AHEAD, group, wave_profile


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
                wave_bytes = plain_profile(model, whole)[len(waves)]
                if max(during[start : start + overtakes]) > limit or wave_bytes > limit:
                    continue
            wave, rest = joint, others
        waves.append(wave)
        left = [t for t in left if t not in wave]
    return waves


def _flat(waves) -> list[int]:
    return [t for wave in waves for t in wave]


def plain_profile(model: Storages, waves) -> list[int]:
    """Live bytes of each wave, from the first and the last wave that touches each storage."""
    when = {t: w for w, wave in enumerate(waves) for t in wave}
    live = [0] * len(waves)
    for s, touchers in enumerate(model.touchers):
        if touchers:
            last = len(waves) - 1 if model.stays[s] else max(when[t] for t in touchers)
            for w in range(min(when[t] for t in touchers), last + 1):
                live[w] += model.size[s]
    for w, wave in enumerate(waves):
        for t in wave:
            alone = [
                s
                for s in model.touches[t]
                if not model.stays[s] and all(x == t or when[x] < w for x in model.touchers[s])
            ]
            live[w] -= model.saved(t, alone)
    return live


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
            assert wave_profile(model, found) == plain_profile(model, found)


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
