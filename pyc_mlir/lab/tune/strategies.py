"""Search strategies: a generator yields a configuration and receives its cost.

    cost = yield config          # seconds, or None for a configuration that failed

A strategy yields each configuration at most once and ends when it has nothing left to try. All
randomness comes from the generator `rng` that it is given, so that equal seeds and costs give equal
searches. `run` drives one with a budget of evaluations.

Sources: Gaussian processes with expected improvement follow Jones, Schonlau, Welch, "Efficient
Global Optimization of Expensive Black-Box Functions" (1998), and Rasmussen, Williams, "Gaussian
Processes for Machine Learning" (2006), algorithm 2.1; tempering follows Hukushima, Nemoto,
"Exchange Monte Carlo Method" (1996).
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from math import exp, inf, log
from typing import ClassVar, Protocol

import numpy as np

from pyc_mlir.lab.tune.surrogate import Surrogate, fitted
from pyc_mlir.pipelines.choices.space import Config, KnobSpace

Search = Generator[Config, float | None, None]


class Strategy(Protocol):
    """The order in which a space is tried."""

    name: ClassVar[str]

    def search(self, space: KnobSpace, rng: np.random.Generator) -> Search:
        """Yield configurations, receive costs."""
        ...


@dataclass(frozen=True)
class Trial:
    """One evaluated configuration; no cost where it failed."""

    config: Config
    cost: float | None


def run(
    strategy: Strategy,
    space: KnobSpace,
    measure: Callable[[Config], float | None],
    evaluations: int,
    seed: int = 0,
) -> list[Trial]:
    """Run a search: return its trials in their order, at most `evaluations` many."""
    trials: list[Trial] = []
    search = strategy.search(space, np.random.default_rng(seed))
    config = next(search, None)
    while config is not None:
        trials.append(Trial(config, measure(config)))
        if len(trials) == evaluations:
            break
        try:
            config = search.send(trials[-1].cost)
        except StopIteration:
            break
    search.close()
    return trials


def best(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial of the least cost, the first of equals; None if all failed."""
    return min((t for t in trials if t.cost is not None), key=_cost, default=None)


def _cost(trial: Trial) -> float:
    return inf if trial.cost is None else trial.cost


class _History:
    """The trials that a search has seen."""

    def __init__(self) -> None:
        self.costs: dict[Config, float] = {}

    def evaluate(self, config: Config) -> Search:
        """Yield one configuration and note its cost; infinite if it failed."""
        cost = yield config
        self.costs[config] = inf if cost is None else cost

    @property
    def best(self) -> Config:
        """The configuration of the least cost so far."""
        return min(self.costs, key=self.costs.__getitem__)


def _fresh(
    space: KnobSpace, rng: np.random.Generator, seen: dict[Config, float], draws: int = 1000
) -> Config | None:
    """Draw a random configuration that was not tried; None if none is found."""
    for _ in range(draws):
        config = space.sample(rng)
        if config not in seen:
            return config
    return None


@dataclass(frozen=True)
class Random:
    """Configurations drawn uniformly: the baseline."""

    name: ClassVar[str] = "random"

    def search(self, space: KnobSpace, rng: np.random.Generator) -> Search:
        """Yield random configurations until none is left."""
        history = _History()
        while (config := _fresh(space, rng, history.costs)) is not None:
            yield from history.evaluate(config)


@dataclass(frozen=True)
class Local:
    """Descent from random starts: the first neighbour that is better becomes the centre."""

    name: ClassVar[str] = "local"
    starts: int = 8

    def search(self, space: KnobSpace, rng: np.random.Generator) -> Search:
        """Start from the best of `starts` random configurations; restart in a local optimum."""
        history = _History()
        while True:
            drawn = []
            for _ in range(self.starts):
                config = _fresh(space, rng, history.costs)
                if config is not None:
                    yield from history.evaluate(config)
                    drawn.append(config)
            if not drawn:
                return
            yield from self._descend(space, rng, history, min(drawn, key=history.costs.__getitem__))

    def _descend(
        self, space: KnobSpace, rng: np.random.Generator, history: _History, centre: Config
    ) -> Search:
        improved = True
        while improved:
            improved = False
            around = [c for c in space.neighbours(centre) if c not in history.costs]
            for index in rng.permutation(len(around)):
                yield from history.evaluate(around[index])
                if history.costs[around[index]] < history.costs[centre]:
                    centre, improved = around[index], True
                    break


@dataclass(frozen=True)
class Learned:
    """A Gaussian process on log costs proposes what is expected to improve most.

    first: random configurations before the first proposal.
    local_every: each so many evaluations the neighbour of the best with the least predicted cost.
    candidates: random configurations that compete for a proposal, beside the best one's neighbours.
    """

    name: ClassVar[str] = "learned"
    first: int = 8
    local_every: int = 3
    candidates: int = 2000
    refit_every: int = 8

    def search(self, space: KnobSpace, rng: np.random.Generator) -> Search:
        """Yield `first` random configurations, then proposals."""
        history = _History()
        for _ in range(self.first):
            config = _fresh(space, rng, history.costs)
            if config is None:
                return
            yield from history.evaluate(config)
        model: Surrogate | None = None
        while True:
            configs = list(history.costs)
            refit = model is None or len(configs) % self.refit_every == 0
            scales = None if model is None else model.scales
            model = fitted(space.features(configs), _targets(history.costs), scales, refit)
            config = self._proposal(space, rng, history, model)
            if config is None:
                return
            yield from history.evaluate(config)

    def _proposal(
        self, space: KnobSpace, rng: np.random.Generator, history: _History, model: Surrogate
    ) -> Config | None:
        near = [c for c in space.neighbours(history.best) if c not in history.costs]
        if near and len(history.costs) % self.local_every == 0:
            mean, _ = model.predict(space.features(near))
            return near[int(mean.argmin())]
        pool = dict.fromkeys(near)
        for config in near[:: max(1, len(near) // 16)]:
            pool.update(dict.fromkeys(space.neighbours(config)))
        pool.update(dict.fromkeys(space.sample(rng) for _ in range(self.candidates)))
        left = [c for c in pool if c not in history.costs]
        if not left:
            return _fresh(space, rng, history.costs)
        return left[int(model.improvement(space.features(left)).argmax())]


def _targets(costs: dict[Config, float]) -> np.ndarray:
    """Log costs; what failed counts as the worst that worked."""
    values = np.array(list(costs.values()))
    worked = np.isfinite(values)
    worst = values[worked].max() if worked.any() else 1.0
    return np.log(np.maximum(np.where(worked, values, worst), 1e-12))


@dataclass(frozen=True)
class Tempering:
    """Parallel tempering: walkers at several temperatures exchange places.

    Meant for costs that a simulator answers: it takes thousands of evaluations. A step changes one
    knob; a walker at temperature t takes a step that multiplies the cost by r with the
    probability min(1, r ** (-1 / t)). After each round neighbours on the ladder exchange their
    configurations by the rule of Metropolis.
    """

    name: ClassVar[str] = "tempering"
    temperatures: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    rounds: int = 1000

    def search(self, space: KnobSpace, rng: np.random.Generator) -> Search:
        """Yield the steps of all walkers, round by round; known costs are not requested again."""
        history = _History()
        walkers: list[Config] = []
        for _ in self.temperatures:
            walkers.append(space.sample(rng))
            yield from self._known(history, walkers[-1])
        for _ in range(self.rounds):
            for place, temperature in enumerate(self.temperatures):
                around = list(space.neighbours(walkers[place]))
                if not around:
                    continue
                step = around[int(rng.integers(len(around)))]
                yield from self._known(history, step)
                if _accepts(history.costs, walkers[place], step, temperature, rng):
                    walkers[place] = step
            self._exchange(history.costs, walkers, rng)

    def _known(self, history: _History, config: Config) -> Search:
        if config not in history.costs:
            yield from history.evaluate(config)

    def _exchange(
        self, costs: dict[Config, float], walkers: list[Config], rng: np.random.Generator
    ) -> None:
        pairs = zip(self.temperatures, self.temperatures[1:], strict=False)
        for place, (cold, hot) in enumerate(pairs):
            below, above = (_log(costs[walkers[place + i]]) for i in (0, 1))
            chance = exp(min(0.0, (1 / cold - 1 / hot) * (below - above)))
            if rng.random() < chance:
                walkers[place : place + 2] = walkers[place + 1], walkers[place]


def _log(cost: float) -> float:
    """Return the logarithm of a cost; a large number for a failure, so that differences stay
    finite.
    """
    return log(max(cost, 1e-12)) if cost < inf else 1e3


def _accepts(
    costs: dict[Config, float],
    old: Config,
    new: Config,
    temperature: float,
    rng: np.random.Generator,
) -> bool:
    change = _log(costs[new]) - _log(costs[old])
    return change <= 0 or rng.random() < exp(-change / temperature)


@dataclass(frozen=True)
class Portfolio:
    """A strategy that tries what is known to be good elsewhere first, then follows another one.

    known: configurations that shipped or that were best for a sister device or a similar problem;
        those that this space lacks are left out.
    """

    name: ClassVar[str] = "portfolio"
    known: tuple[Config, ...] = ()
    then: Strategy = field(default_factory=Learned)

    def search(self, space: KnobSpace, rng: np.random.Generator) -> Search:
        """Yield the known configurations, then those of `then` that are new."""
        seen: dict[Config, float | None] = {}
        for config in dict.fromkeys(self.known):
            if space.is_legal(config):
                seen[config] = yield config
        search = self.then.search(space, rng)
        config = next(search, None)
        while config is not None:
            if config not in seen:
                seen[config] = yield config
            try:
                config = search.send(seen[config])
            except StopIteration:
                return


STRATEGIES: dict[str, type] = {s.name: s for s in (Random, Local, Learned, Tempering, Portfolio)}
