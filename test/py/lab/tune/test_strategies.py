"""Strategies find good configurations of spaces whose costs are known."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import FULL

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.lab.tune.strategies import (
    STRATEGIES,
    Learned,
    Portfolio,
    Random,
    Strategy,
    Tempering,
    Trial,
    best,
    run,
)
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


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_search_is_legal_new_and_equal_for_equal_seeds(name):
    strategy = STRATEGIES[name]()
    trials = run(strategy, TILES, tile_cost, 60, seed=3)
    configs = [t.config for t in trials]
    assert len(set(configs)) == len(configs) <= 60
    assert all(map(TILES.is_legal, configs))
    assert trials == run(strategy, TILES, tile_cost, 60, seed=3)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_search_ends_when_the_space_does(name):
    small = KnobSpace((Knob("a", (1, 2, 3)), Knob("b", ("x", "y"))), lambda c: c != (0, 0))
    trials = run(STRATEGIES[name](), small, lambda c: 1.0 + sum(c), 1000)
    assert len(trials) <= 5
    assert found(trials)[0] in {(0, 1), (1, 0)}


def found(trials: Sequence[Trial]) -> tuple[Config, float]:
    """The best configuration and its cost."""
    trial = best(trials)
    assert trial is not None and trial.cost is not None
    return trial.config, trial.cost


@pytest.mark.full
def test_the_learned_strategy_needs_few_evaluations():
    def share(strategy: Strategy) -> float:
        costs = [found(run(strategy, TILES, tile_cost, 40, seed))[1] for seed in range(6)]
        return float(np.mean([LEAST / cost for cost in costs]))

    assert share(Learned()) > max(0.93, share(Random()) + 0.05)


def test_failures_are_no_answers():
    assert best(run(Random(), TILES, lambda c: None, 20)) is None
    trials = run(Learned(), TILES, lambda c: None if c[0] else 1.0, 30)
    assert found(trials)[0][0] == 0


def test_a_portfolio_begins_with_what_is_known():
    known = (TILES.config({"rows": 4, "columns": 32, "unroll": 4, "order": "columns first"}),)
    illegal = TILES.config({"rows": 16, "columns": 128, "unroll": 1, "order": "rows first"})
    trials = run(Portfolio((illegal, *known, *known)), TILES, tile_cost, 10)
    assert trials[0].config == known[0] and trials[0].cost == LEAST
    assert len(trials) == 10 and illegal not in [t.config for t in trials]


def test_tempering_leaves_local_optima():
    """Two valleys; the deeper one is far from where greedy steps end."""
    line = KnobSpace((Knob("x", tuple(range(64))), Knob("y", tuple(range(64)))))

    def cost(config: Config) -> float:
        x, y = config
        return 1 + min(((x - 10) ** 2 + (y - 10) ** 2) / 500 + 0.3, ((x - 55) ** 2 + y**2) / 50)

    assert found(run(Tempering(rounds=800), line, cost, 3000, seed=1))[1] < 1.3


def test_settings_and_configurations_are_inverse():
    rng = np.random.default_rng(0)
    for _ in range(50):
        config = TILES.sample(rng)
        assert TILES.config(TILES.settings(config)) == config
    with pytest.raises(PycError, match="expected a value of each of rows, columns"):
        TILES.config({"rows": 5})
    with pytest.raises(PycError, match="expected a legal configuration"):
        KnobSpace((Knob("a", (1, 2)),), lambda c: False).sample(rng)


def published(path: Path) -> tuple[KnobSpace, dict[Config, float | None]]:
    """A brute-forced space: the median of each configuration's observations."""
    data = np.load(path, allow_pickle=False)
    rows = [tuple(int(v) for v in row) for row in data["parameters"]]
    space = KnobSpace.of_rows([f"p{i}" for i in range(len(rows[0]))], rows)
    names = [axis.name for axis in space.axes]
    costs = {
        space.config(dict(zip(names, row, strict=True))): (
            float(np.median(times)) if np.isfinite(times).all() else None
        )
        for row, times in zip(rows, data["times"], strict=True)
    }
    return space, costs


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published spaces are not there")
def test_published_spaces():
    """Share of the optimum after 64 and 128 evaluations, mean over spaces and seeds."""
    shares = []
    for path in sorted(PUBLISHED.glob("*.npz" if FULL else "pnpoly*.npz")):
        space, costs = published(path)
        least = min(c for c in costs.values() if c is not None)
        for seed in range(10 if FULL else 1):
            trials = run(Learned(), space, costs.__getitem__, 128, seed)
            shares.append([least / found(trials[:n])[1] for n in (64, 128)])
    early, late = np.mean(shares, axis=0)
    assert early > (0.85 if FULL else 0.5)
    assert late > (0.92 if FULL else 0.5)
