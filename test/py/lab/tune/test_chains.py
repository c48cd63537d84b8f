"""Chains of searches: replayed from costs, in any order, within their evaluations."""

import random

import pytest

from pyc_mlir.lab.evidence.rows import Graph
from pyc_mlir.lab.tune.search import (
    WITH_KNOBS,
    ChoiceSpace,
    Every,
    Learned,
    SiteAlternative,
    TunedWork,
)
from pyc_mlir.lab.tune.study import Chain, chains
from pyc_mlir.pipelines.choices.space import Knob, KnobSpace

KNOBS = KnobSpace((Knob("rows", (1, 2, 4, 8)), Knob("columns", (8, 16, 32, 64))), default=(0, 0))
SPACE = ChoiceSpace.of((SiteAlternative("gemm", KNOBS), SiteAlternative("iree")))


def tuned(name, seconds=1.0):
    row = Graph(name, "work", name, name, 1)
    return TunedWork(row, "pass", SPACE, ("pass:1",), "gemm", seconds, WITH_KNOBS)


def cost(choice):
    """By the name alone; one fails."""
    return None if choice == "iree" else 1.0 + sum(map(ord, choice)) % 7


def walked(chain, costs):
    """Feed a chain until it ends; the choices that it waited for."""
    requested = []
    while (choice := chain.ask(costs)) is not None:
        requested.append(choice)
        costs[chain.work.graph.graph_id, choice] = cost(choice)
    return requested


def test_a_chain_waits_for_one_cost():
    chain, costs = Chain(tuned("w"), Learned(), 5, 0), {}
    first = chain.ask(costs)
    assert chain.ask(costs) == first
    costs["w", first] = 1.0
    assert chain.ask(costs) != first


@pytest.mark.parametrize("kept", (0, 3, 10, 12))
def test_a_chain_goes_on_from_known_costs(kept):
    whole: dict = {}
    requested = walked(Chain(tuned("w"), Learned(first=4), 12, 1), whole)
    assert len(requested) == 12
    known = {key: whole[key] for key in list(whole)[:kept]}
    assert walked(Chain(tuned("w"), Learned(first=4), 12, 1), known) == requested[kept:]
    assert known == whole


def test_chains_do_not_see_when_costs_came():
    """Lanes and works in any order of answers end with the same costs."""

    def run(seed):
        works = [tuned("a", 3.0), tuned("b")]
        made, costs, draw = chains(works, "portfolio", 40, 0, lanes=2), {}, random.Random(seed)
        while waiting := [c for c in made if c.ask(costs) is not None]:
            chain = draw.choice(waiting)
            choice = chain.ask(costs)
            costs[chain.work.graph.graph_id, choice] = cost(choice)
        return costs

    assert len({tuple(sorted(run(seed), key=str)) for seed in range(4)}) == 1


def test_an_exhaustive_search_tries_all():
    work, costs = tuned("w"), {}
    for chain in chains([work], Every.name, 1000, 0, lanes=4):
        walked(chain, costs)
    assert {choice for _, choice in costs} == {work.choice(c) for c in SPACE.every()}


def test_the_heaviest_goes_first():
    heavy, light = chains([tuned("a", 9.0), tuned("b", 6.0)], "portfolio", 16, 0, lanes=1)
    costs: dict = {}
    for chain in (heavy, light):
        choice = chain.ask(costs)
        costs[chain.work.graph.graph_id, choice] = 1.0
        chain.ask(costs)
    assert heavy.priority > light.priority
