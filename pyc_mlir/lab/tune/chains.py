"""Searches as chains: each waits for one cost at a time, and all of them can be replayed.

A chain drives the generator of a strategy over the choices of one work. Its order depends on its
own costs alone, never on when they came. So any number of workers gives the same search, and a
study that was killed goes on where it was: its chains begin anew and take the costs that the
database has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from pyc_mlir.lab.tune.sites import ChoiceSpace, TunedWork, allot
from pyc_mlir.lab.tune.strategies import Learned, Local, Portfolio, Search, Strategy
from pyc_mlir.pipelines.choices.space import Config, KnobSpace

# Cost of a choice as a share of the incumbent's time; None where it failed.
Costs = Mapping[tuple[str, str], float | None]


@dataclass
class Chain:
    """One search over one work, at most `evaluations` long."""

    work: TunedWork
    strategy: Strategy
    evaluations: int
    seed: int
    asked: int = field(default=0, init=False)
    _search: Search | None = field(default=None, init=False)
    _config: Config | None = field(default=None, init=False)

    def next(self, costs: Costs) -> str | None:
        """Return the choice that the search waits for, after all costs that are known; None at its
        end.
        """
        if self._search is None:
            self._search = self.strategy.search(self.work.space, np.random.default_rng(self.seed))
            self._take(next(self._search, None))
        while self._config is not None:
            key = (self.work.graph.graph_id, self.work.choice(self._config))
            if key not in costs:
                return key[1]
            try:
                self._take(self._search.send(costs[key]))
            except StopIteration:
                self._take(None)
        return None

    def _take(self, config: Config | None) -> None:
        self.asked += config is not None
        self._config = config if self.asked <= self.evaluations else None

    @property
    def priority(self) -> float:
        """Which chain goes first where there is not time for all: the largest."""
        return self.work.weight / self.asked if self.asked else float("inf")


@dataclass(frozen=True)
class Every:
    """All choices of a site, alternative by alternative."""

    name: ClassVar[str] = "exhaustive"

    def search(self, space: KnobSpace, rng: np.random.Generator) -> Search:
        """Yield every choice once."""
        assert isinstance(space, ChoiceSpace)
        yield from space.every()


def chains(
    works: Sequence[TunedWork], strategy: str, evaluations: int, seed: int, lanes: int
) -> list[Chain]:
    """Return the chains of a study: `lanes` for each work that gets evaluations.

    The first begins with what is known and goes on with a learned model (or tries every choice, for
    the strategy `exhaustive`), the second descends from random starts, further ones learn from
    other starts. More lanes keep more workers busy; each lane has its share of the evaluations.
    """
    made = []
    for work, given in zip(works, allot(works, evaluations), strict=True):
        used = 1 if strategy == Every.name else min(lanes, max(1, given // 8))
        for lane in range(used if given else 0):
            share = given // used + (lane < given % used)
            made.append(Chain(work, _strategy(work, strategy, lane), share, seed + lane))
    return made


def _strategy(work: TunedWork, strategy: str, lane: int) -> Strategy:
    if strategy == Every.name:
        return Portfolio(work.first, Every())
    if lane == 0:
        return Portfolio(work.first, Learned())
    return Local() if lane == 1 else Learned()
