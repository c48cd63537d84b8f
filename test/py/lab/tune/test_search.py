"""Strategies find good configurations of spaces whose costs are known."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from conftest import FULL
from suites.strategies import Local, Published, Random, best, run

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.lab.tune.search import Learned, Portfolio, Strategy
from pyc_mlir.pipelines.choices.space import Config, Knob, KnobSpace

PUBLISHED = Path(__file__).parents[4].parent / "shared/data/evidence/autotuning"
TILES = KnobSpace(
    (
        Knob("rows", (1, 2, 3, 4, 6, 8, 12, 16)),
        Knob("columns", (8, 16, 24, 32, 48, 64, 96, 128)),
        Knob("unroll", (1, 2, 4, 8)),
        Knob("order", ("rows first", "columns first")),
    ),
    lambda config: TILES.settings(config)["rows"] * TILES.settings(config)["columns"] <= 512,
)


def tile_cost(config: Config) -> float | None:
    """A kernel that likes 4 x 32 tiles, unrolled by 4; odd widths fail."""
    at = TILES.settings(config)
    if at["columns"] in (24, 48) and at["unroll"] == 8:
        return None
    away = np.log2(at["rows"] / 4) ** 2 + np.log2(at["columns"] / 32) ** 2
    uneven = 0.5 * (at["columns"] % 16 != 0) + 0.2 * (at["order"] == "rows first")
    return 1e-3 * float(1 + 0.3 * away + 0.1 * np.log2(at["unroll"] / 4) ** 2 + uneven)


LEAST = 1e-3
STRATEGIES = (Random(), Local(), Learned(), Portfolio())


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_a_search_is_legal_new_and_equal_for_equal_seeds(strategy):
    asked = []

    def measured(config: Config) -> float | None:
        asked.append(config)
        return tile_cost(config)

    costs = run(strategy, TILES, measured, 60, seed=3)
    assert asked == list(costs) and len(costs) <= 60
    assert all(map(TILES.is_legal, costs))
    assert list(costs.items()) == list(run(strategy, TILES, tile_cost, 60, seed=3).items())


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_a_search_ends_when_the_space_does(strategy):
    small = KnobSpace((Knob("a", (1, 2, 3)), Knob("b", ("x", "y"))), lambda c: c != (0, 0))
    costs = run(strategy, small, lambda c: 1.0 + sum(c), 1000)
    assert len(costs) <= 5
    assert best(costs) in {(0, 1), (1, 0)}


def least(costs: Mapping[Config, float | None]) -> float:
    config = best(costs)
    assert config is not None
    return costs[config] or 0.0


@pytest.mark.full
def test_the_learned_strategy_needs_few_evaluations():
    def share(strategy: Strategy) -> float:
        costs = [least(run(strategy, TILES, tile_cost, 40, seed)) for seed in range(6)]
        return float(np.mean([LEAST / cost for cost in costs]))

    assert share(Learned()) > max(0.93, share(Random()) + 0.05)


def test_failures_are_no_answers():
    assert best(run(Local(), TILES, lambda c: None, 20)) is None
    found = best(run(Learned(), TILES, lambda c: None if c[0] else 1.0, 30))
    assert found is not None and found[0] == 0


def test_a_portfolio_begins_with_what_is_known():
    known = (TILES.config({"rows": 4, "columns": 32, "unroll": 4, "order": "columns first"}),)
    illegal = TILES.config({"rows": 16, "columns": 128, "unroll": 1, "order": "rows first"})
    costs = run(Portfolio((illegal, *known, *known)), TILES, tile_cost, 10)
    assert next(iter(costs.items())) == (known[0], LEAST)
    assert len(costs) == 10 and illegal not in costs


def test_settings_and_configurations_are_inverse():
    rng = np.random.default_rng(0)
    for _ in range(50):
        config = TILES.sample(rng)
        assert TILES.config(TILES.settings(config)) == config
    with pytest.raises(PycError, match="expected a value of each of rows, columns"):
        TILES.config({"rows": 5})
    with pytest.raises(PycError, match="expected a legal configuration"):
        KnobSpace((Knob("a", (1, 2)),), lambda c: False).sample(rng)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published spaces are not there")
def test_published_spaces():
    """Share of the optimum after 64 and 128 evaluations, mean over spaces and seeds."""
    paths = sorted(PUBLISHED.glob("*.npz" if FULL else "pnpoly*.npz"))
    shares = [
        Published.load(path).shares(Learned(), (64, 128), seed)
        for path in paths
        for seed in range(10 if FULL else 1)
    ]
    early, late = np.mean(shares, axis=0)
    assert early > (0.85 if FULL else 0.5)
    assert late > (0.92 if FULL else 0.5)
