"""Selection under a limit of memory: exact on small problems, near the best known on others."""

import csv
import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest
from conftest import ALL_CASES, FULL
from suites.iopddl import from_contest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.selection.problem import (
    FORBIDDEN,
    Edge,
    SelectionProblem,
    Usage,
    reduce,
)
from pyc_mlir.pipelines.memory.selection.select import Messages, select

CONTEST = Path(__file__).parents[4].parent / "shared/data/evidence/iopddl"
WORK = 2_000_000


def random_problem(
    seed: int, nodes: int = 7, forbidden: float = 0.3, tight: float = 0.4
) -> SelectionProblem:
    """Up to three ways a node, edges with forbidden pairs, a limit between least and most."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, nodes)
    costs = [rng.integers(0, 20, n).astype(float) for n in sizes]
    usages = [rng.integers(0, 10, n).astype(float) for n in sizes]
    begin = rng.integers(0, 6, nodes)
    lives = np.stack([begin, begin + rng.integers(0, 5, nodes)], 1)
    edges = []
    for a, b in itertools.combinations(range(nodes), 2):
        if rng.random() < 0.35:
            a, b = (a, b) if rng.random() < 0.5 else (b, a)
            table = rng.integers(0, 30, (sizes[a], sizes[b])).astype(float)
            table[rng.random(table.shape) < forbidden] = 1e18
            edges.append(Edge(a, b, table))
    free = SelectionProblem(costs, usages, lives, edges, 1e9)
    low, high = (free.use(np.array([f(u) for u in usages])).max() for f in (np.argmin, np.argmax))
    return SelectionProblem(costs, usages, lives, edges, float(low + tight * (high - low)))


def exact(problem: SelectionProblem) -> float:
    choices = itertools.product(*(range(len(c)) for c in problem.costs))
    arrays = (np.array(c, np.int64) for c in choices)
    return min((problem.cost(c) for c in arrays if problem.feasible(c)), default=np.inf)


@pytest.mark.parametrize("seed", range(60 if FULL else 12))
def test_small_problems(seed):
    problem = random_problem(seed)
    least = exact(problem)
    if not np.isfinite(least):
        with pytest.raises(PycError) as caught:
            select(problem, 20_000)
        assert caught.value.code is ReasonCode.BUDGET_IMPOSSIBLE
        return
    found = select(problem, 30_000)
    assert problem.feasible(found.choice) and found.cost == problem.cost(found.choice)
    assert found.cost <= 1.25 * least + 5 and found.bound <= least + 1e-6


def test_most_small_problems_are_solved_exactly():
    problems = [random_problem(seed, forbidden=0.1) for seed in range(100, 120)]
    least = [exact(p) for p in problems]
    solved = [select(p, 30_000).cost == e for p, e in zip(problems, least, strict=True) if e < 1e9]
    assert sum(solved) >= 0.9 * len(solved)


@pytest.mark.parametrize("seed", range(10))
def test_groups_cost_and_use_what_their_nodes_do(seed):
    problem = random_problem(seed, nodes=9, forbidden=0.5)
    try:
        reduced = reduce(problem)
    except PycError:
        assert not np.isfinite(exact(problem))
        return
    usage, rng = Usage.of(problem, reduced), np.random.default_rng(seed)
    for _ in range(10):
        choice = np.array([rng.integers(len(c)) for c in reduced.costs])
        nodes = reduced.expand(choice)
        cost = sum(c[s] for c, s in zip(reduced.costs, choice, strict=True)) + sum(
            t[choice[a], choice[b]] for (a, b), t in reduced.tables.items()
        )
        assert min(cost, FORBIDDEN) == min(problem.cost(nodes), FORBIDDEN)
        assert usage.of_choice(choice).max() == problem.use(nodes).max()
        group = int(rng.integers(len(choice)))
        other = choice.copy()
        other[group] = rng.integers(len(reduced.costs[group]))
        times, more = usage.change(group, int(choice[group]), int(other[group]))
        expected = usage.of_choice(other) - usage.of_choice(choice)
        assert np.array_equal(expected[times], more) and np.count_nonzero(expected) <= len(more)


def test_a_node_that_decides_another_is_one_with_it():
    table = np.array([[0, 1e18], [1e18, 3.0]])
    costs, usages = [np.array([1.0, 5.0]), np.array([7.0, 2.0])], [np.ones(2), np.ones(2)]
    problem = SelectionProblem(costs, usages, np.array([[0, 2], [1, 3]]), [Edge(0, 1, table)], 10.0)
    reduced = reduce(problem)
    assert len(reduced.costs) == 1 and sorted(reduced.costs[0]) == [8.0, 10.0]


def test_bounds_rise_and_stay_below():
    problem = random_problem(3, forbidden=0.0, tight=5.0)
    reduced = reduce(problem)
    messages = Messages(reduced, lambda work: None)
    bounds = [messages.sweep(reduced.costs) for _ in range(30)]
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(bounds))
    assert bounds[-1] <= exact(problem) + 1e-9


def test_equal_problems_give_equal_selections():
    first, second = (select(random_problem(4), 20_000) for _ in range(2))
    assert np.array_equal(first.choice, second.choice) and first.work == second.work


def test_a_start_is_never_made_worse():
    problem = random_problem(5)
    best = select(problem, 30_000)
    again = select(problem, 1, start=best.choice)
    assert again.cost <= best.cost


def test_wrong_problems_are_refused():
    with pytest.raises(PycError, match="selection problem"):
        SelectionProblem([np.ones(2)], [np.ones(3)], np.zeros((1, 2), int), [], 1.0)
    for text in (b"", b"[]", b'{"problem": {}}', b'{"problem": {"nodes": 1, "edges": 2}}'):
        with pytest.raises(PycError, match="contest instance"):
            from_contest(text)


@pytest.mark.skipif(not CONTEST.exists(), reason="the contest's instances are not there")
@pytest.mark.parametrize("path", sorted(CONTEST.glob("*.json.gz")), ids=lambda p: p.name[19:-8])
def test_instances_of_the_contest(path):
    problem = from_contest(gzip.decompress(path.read_bytes()))
    if len(problem.costs) > 1000 and not ALL_CASES:
        pytest.skip("large instances run in `make test-full` only")
    with open(CONTEST / "best_known.csv") as file:
        known = {r["instance"]: float(r["best_contest"]) for r in csv.DictReader(file)}
    found = select(problem, WORK)
    assert problem.feasible(found.choice)
    if len(problem.costs) <= 1000:
        assert known[path.name[19:-8]] / found.cost >= 0.9
