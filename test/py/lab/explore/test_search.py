"""The Pareto set is that of exhaustive search, and no path brings a value where it has been.

Exhaustive search is written here again, without labels, dominance or states of the explorer's.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from pyc_mlir.lab.explore.search import (
    Execution,
    Frontier,
    Path,
    Residence,
    Transfer,
    frontier,
    pareto,
)

PLACES = [Residence("NCHW", "cpu"), Residence("NHWC", "cpu"), Residence("NHWC", "gpu")]


@dataclass
class Graph:
    """A synthetic space; `requested` lists the ops whose executions were requested."""

    ops: int
    users: Mapping[str, frozenset[int]]
    inputs: Mapping[str, Residence]
    outputs: Mapping[str, Residence]
    known: Mapping[int, list[Execution]]
    ways: Mapping[Residence, list[Transfer]]
    sizes: Mapping[str, int]
    requested: list[int] = field(default_factory=list)

    def executions(self, op: int) -> Iterable[Execution]:
        self.requested.append(op)
        return self.known.get(op, [])

    def conversions(self, value: str, place: Residence) -> Iterable[Transfer]:
        return self.ways.get(place, [])

    def nbytes(self, value: str, place: Residence) -> int:
        return self.sizes[value] * (2 if place.layout == "NHWC" else 1)


def random_graph(seed: int, ops: int = 4, places: int = 2) -> Graph:
    """A chain with skips: op i reads its predecessor's value and perhaps an earlier one."""
    chance = np.random.default_rng(seed)
    some = PLACES[:places]
    values = ["x", *(f"v{i}" for i in range(ops))]
    reads = {
        i: sorted({values[i], *chance.choice(values[: i + 1], chance.integers(0, 2))})
        for i in range(ops)
    }
    known: dict[int, list[Execution]] = {i: [] for i in range(ops)}
    for i, kind in itertools.product(range(ops), range(2)):
        place = some[chance.integers(places)]
        known[i].append(
            Execution(
                f"k{i}.{kind}",
                (i,),
                tuple((v, some[chance.integers(places)]) for v in reads[i]),
                ((f"v{i}", place),),
                float(chance.integers(1, 9)),
                int(chance.integers(0, 40)),
                int(chance.integers(0, 9)),
            )
        )
    for i in range(ops - 1):
        # Together with the next op, if nothing else reads what lies between.
        if all(f"v{i}" not in reads[j] for j in range(ops) if j != i + 1) and chance.random() < 0.7:
            outside = sorted({*reads[i], *reads[i + 1]} - {f"v{i}"})
            place = some[chance.integers(places)]
            fused = tuple((v, place) for v in outside)
            cost = float(chance.integers(1, 12))
            known[i].append(Execution(f"f{i}", (i, i + 1), fused, ((f"v{i + 1}", place),), cost, 8))
    users = {v: frozenset(i for i in reads if v in reads[i]) for v in values}
    ways = {a: [Transfer(b, float(chance.integers(0, 4)), 4) for b in some if b != a] for a in some}
    sizes = {v: int(chance.integers(1, 50)) for v in values}
    last = values[-1]
    return Graph(ops, users, {"x": some[0]}, {last: some[0]}, known, ways, sizes)


def exhaustive(graph: Graph) -> list[tuple[float, int]]:
    """Every path, by trying everything."""

    def go(op, chosen, lies, been, seconds, peak, kept) -> Iterator[tuple[float, int]]:
        now = kept + sum(graph.nbytes(v, p) for v, ps in lies.items() for p in ps)
        for v, ps in lies.items():
            for p in ps:
                for way in graph.ways.get(p, []):
                    if way.place in been[v]:
                        continue
                    top = max(peak, now + graph.nbytes(v, way.place) + way.workspace)
                    for left in (ps, ps - {p}):
                        yield from go(
                            op,
                            chosen,
                            {**lies, v: left | {way.place}},
                            {**been, v: been[v] | {way.place}},
                            seconds + way.seconds,
                            top,
                            kept,
                        )
        if op == graph.ops:
            if all(p in lies.get(v, ()) for v, p in graph.outputs.items()):
                yield seconds, peak
            return
        mine = [e for e in chosen if op in e.covers]
        busy = {i for e in chosen for i in e.covers}
        for e in mine or [e for e in graph.known[op] if not busy & set(e.covers)]:
            others = [c for c in chosen if c is not e]
            if op < e.covers[-1]:
                yield from go(op + 1, [*others, e], lies, been, seconds, peak, kept)
                continue
            if any(p not in lies.get(v, ()) for v, p in e.reads):
                continue
            top = now + e.kept + e.workspace + sum(graph.nbytes(v, p) for v, p in e.writes)
            then = {**lies, **{v: frozenset({p}) for v, p in e.writes}}
            undone = {i for c in others for i in c.covers} | set(range(op + 1, graph.ops))
            left = {
                v: ps for v, ps in then.items() if v in graph.outputs or graph.users[v] & undone
            }
            went = {**been, **{v: frozenset({p}) for v, p in e.writes}}
            took, held = seconds + e.seconds, kept + e.kept
            yield from go(op + 1, others, left, went, took, max(peak, top), held)

    start = {v: frozenset({p}) for v, p in graph.inputs.items()}
    first = sum(graph.nbytes(v, p) for v, p in graph.inputs.items())
    return list(go(0, [], start, start, 0.0, first, 0))


def points(found: Frontier) -> list[tuple[float, int]]:
    return [(path.seconds, path.bytes) for path in found.paths]


@pytest.mark.parametrize("seed", range(40))
def test_the_pareto_set_is_that_of_exhaustive_search(seed: int):
    graph = random_graph(seed)
    found = frontier(graph)
    assert found.complete
    assert points(found) == pareto(exhaustive(graph))


@pytest.mark.parametrize("seed", range(4))
def test_three_places_on_two_devices(seed: int):
    graph = random_graph(100 + seed, ops=2, places=3)
    assert points(frontier(graph)) == pareto(exhaustive(graph))


def carried_out(graph: Graph, path: Path) -> tuple[float, int]:
    """Follow the steps: assert that each is legal; seconds and peak."""
    lies = {v: {p} for v, p in graph.inputs.items()}
    been = {v: {p} for v, p in graph.inputs.items()}
    seconds, done, peak = 0.0, set(), 0
    for step in path.steps:
        now = sum(graph.nbytes(v, p) for v, ps in lies.items() for p in ps)
        peak = max(peak, now)
        if step.execution is not None:
            for value, place in step.execution.reads:
                assert place in lies[value]
            for value, place in step.execution.writes:
                assert value not in been, "computed twice"
                lies[value], been[value] = {place}, {place}
            assert done.isdisjoint(step.execution.covers)
            done |= set(step.execution.covers)
            seconds += step.execution.seconds
            for value in [v for v in lies if v not in graph.outputs and graph.users[v] <= done]:
                del lies[value]
        elif step.value:
            assert step.before is not None
            assert step.after is not None
            assert step.before in lies[step.value]
            assert step.after not in been[step.value], "a value re-entered a place"
            ways = [w for w in graph.ways[step.before] if w.place == step.after]
            seconds += ways[0].seconds
            been[step.value].add(step.after)
            lies[step.value].add(step.after)
            if step.moved:
                lies[step.value].remove(step.before)
    assert done == set(range(graph.ops))
    assert all(p in lies[v] for v, p in graph.outputs.items())
    return seconds, peak


@pytest.mark.parametrize("seed", range(25))
def test_every_path_is_legal_and_enters_no_place_twice(seed: int):
    graph = random_graph(200 + seed, ops=7)
    found = frontier(graph)
    for path in found.paths:
        seconds, peak = carried_out(graph, path)
        assert seconds == pytest.approx(path.seconds)
        assert peak <= path.bytes


@pytest.mark.parametrize("seed", range(10))
def test_no_path_of_the_set_is_beaten_by_another(seed: int):
    found = points(frontier(random_graph(300 + seed, ops=7)))
    assert found
    assert found == pareto(found)


@pytest.mark.parametrize("seed", range(10))
def test_a_narrow_search_is_near_the_exact_one_and_says_so(seed: int):
    graph = random_graph(400 + seed, ops=8)
    exact, narrow = frontier(graph), frontier(graph, width=200)
    assert exact.paths[0].seconds >= 0.9 * narrow.paths[0].seconds
    assert narrow.states <= exact.states
    assert exact.complete


@pytest.mark.parametrize("seed", range(10))
def test_a_limit_of_bytes_leaves_the_paths_within_it(seed: int):
    graph = random_graph(500 + seed, ops=5)
    every = points(frontier(graph))
    limit = every[len(every) // 2][1]
    assert points(frontier(graph, limit=limit)) == [p for p in every if p[1] <= limit]


def test_equal_spaces_give_equal_paths():
    assert frontier(random_graph(1, ops=6)) == frontier(random_graph(1, ops=6))


def test_executions_are_asked_for_when_their_op_is_reached():
    graph = random_graph(2, ops=5)
    known = {op: [e for e in ways if 2 not in e.covers] for op, ways in graph.known.items()}
    dead = Graph(**{**vars(graph), "known": known, "requested": []})
    assert frontier(dead).paths == ()
    assert max(dead.requested) == 2


@pytest.mark.full
def test_moving_frees_the_copy_that_was_converted():
    """A value that is large where it begins is moved before the other one is made."""
    a, b = Residence("a"), Residence("b")
    graph = Graph(
        2,
        {"x": frozenset({1}), "y": frozenset({1}), "v0": frozenset({1}), "z": frozenset()},
        {"x": a},
        {"z": b},
        {
            0: [Execution("make", (0,), (), (("v0", b),), 1, 100)],
            1: [Execution("join", (1,), (("x", b), ("v0", b)), (("z", b),), 1)],
        },
        {a: [Transfer(b, 1)]},
        {"x": 10, "v0": 1, "z": 1},
    )
    assert points(frontier(graph)) == pareto(exhaustive(graph))
