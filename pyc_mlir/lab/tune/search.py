"""Search strategies: a generator yields a configuration and receives its cost.

    cost = yield config          # a ratio or seconds, or None for a configuration that failed

A strategy yields each configuration at most once and ends when it has nothing left to try. All
randomness comes from the generator `rng` that it is given, so that equal seeds and costs give equal
searches. docs/design-notes/search.md compares them with the samplers of a library.

`Learned` fits a Gaussian process (Matern kernel of smoothness 5/2, one length scale per feature,
chosen by the marginal likelihood with a weak prior) and proposes by expected improvement: Jones,
Schonlau, Welch, "Efficient Global Optimization of Expensive Black-Box Functions" (1998); Rasmussen,
Williams, "Gaussian Processes for Machine Learning" (2006), algorithm 2.1 and section 5.4.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from math import erf, inf, pi, sqrt
from typing import ClassVar, Protocol

import numpy as np

from pyc_mlir.lab.tune.works import ChoiceSpace
from pyc_mlir.pipelines.choices.space import Config, KnobSpace

Search = Generator[Config, float | None, None]
# Of the process: variance of the noise, bounds of length scales, their prior's middle and spread.
_NOISE, _SCALES, _TYPICAL, _SPREAD = 1e-2, (0.05, 10.0), 0.7, 2.0
_PHI = np.frompyfunc(lambda z: 0.5 * (1 + erf(z / sqrt(2))), 1, 1)


@dataclass(frozen=True, eq=False)
class Surrogate:
    """A fitted model.

    points: f64[n, features]; scales: f64[features]; factor: the Cholesky factor of the kernel
    matrix; weights: its inverse times the targets; least: the least target, standardised.
    """

    points: np.ndarray
    scales: np.ndarray
    factor: np.ndarray
    weights: np.ndarray
    least: float

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the standardised cost, f64[m] each."""
        across = _kernel(features, self.points, self.scales)
        solved = np.linalg.solve(self.factor, across.T)
        variance = np.maximum(1 - (solved * solved).sum(axis=0), 1e-9)
        return across @ self.weights, np.sqrt(variance)

    def improvement(self, features: np.ndarray) -> np.ndarray:
        """Return the expected improvement on the least cost, f64[m]."""
        mean, deviation = self.predict(features)
        gain = (self.least - mean) / deviation
        density = np.exp(-gain * gain / 2) / sqrt(2 * pi)
        return deviation * (gain * np.asarray(_PHI(gain), np.float64) + density)


def fitted(
    points: np.ndarray, targets: np.ndarray, scales: np.ndarray | None, refit: bool
) -> Surrogate:
    """Fit a model to targets f64[n] at points f64[n, features], in standardised units.

    scales: where to start from; None: a typical scale for each feature.
    refit: whether the scales are fitted, one feature after the other, two times round.
    """
    spread = targets.std()
    values = (targets - targets.mean()) / (spread if spread > 0 else 1.0)
    chosen = np.full(points.shape[1], _TYPICAL) if scales is None else scales
    if refit:
        chosen = _fit_scales(points, values, chosen)
    _, factor, weights = _solved(points, values, chosen)
    return Surrogate(points, chosen, factor, weights, float(values.min()))


def _fit_scales(points: np.ndarray, values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    best = _score(points, values, scales)
    for _ in range(2):
        for feature in range(len(scales)):
            for times in (0.5, 2.0):
                other = scales.copy()
                other[feature] = np.clip(other[feature] * times, *_SCALES)
                score = _score(points, values, other)
                if score > best:
                    best, scales = score, other
    return scales


def _score(points: np.ndarray, values: np.ndarray, scales: np.ndarray) -> float:
    """Log of the marginal likelihood and of a wide prior on the scales, up to a constant."""
    likelihood, _, _ = _solved(points, values, scales)
    away = np.log(scales / _TYPICAL)
    return likelihood - float((away * away).sum()) / (2 * _SPREAD)


def _solved(
    points: np.ndarray, values: np.ndarray, scales: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    matrix = _kernel(points, points, scales) + _NOISE * np.eye(len(points))
    factor = np.linalg.cholesky(matrix)
    weights = np.linalg.solve(factor.T, np.linalg.solve(factor, values))
    likelihood = -0.5 * float(values @ weights) - float(np.log(np.diag(factor)).sum())
    return likelihood, factor, weights


def _kernel(left: np.ndarray, right: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Matern 5/2 between f64[m, features] and f64[n, features]."""
    a, b = left / scales, right / scales
    square = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2 * a @ b.T
    distance = np.sqrt(5 * np.maximum(square, 0))
    return (1 + distance + distance * distance / 3) * np.exp(-distance)


class Strategy(Protocol):
    """The order in which a space is tried."""

    name: ClassVar[str]

    def search(self, space: KnobSpace, rng: np.random.Generator) -> Search:
        """Yield configurations, receive costs."""
        ...


def run(
    strategy: Strategy,
    space: KnobSpace,
    measure: Callable[[Config], float | None],
    evaluations: int,
    seed: int = 0,
) -> dict[Config, float | None]:
    """Run a search: return the costs in their order, at most `evaluations` many."""
    costs: dict[Config, float | None] = {}
    search = strategy.search(space, np.random.default_rng(seed))
    config = next(search, None)
    while config is not None:
        costs[config] = measure(config)
        if len(costs) == evaluations:
            break
        try:
            config = search.send(costs[config])
        except StopIteration:
            break
    search.close()
    return costs


def best(costs: Mapping[Config, float | None]) -> Config | None:
    """Return the configuration of the least cost, the first of equals; None if all failed."""
    known = {config: cost for config, cost in costs.items() if cost is not None}
    return min(known, key=known.__getitem__, default=None)


def fresh(
    space: KnobSpace, rng: np.random.Generator, seen: Mapping[Config, float], draws: int = 1000
) -> Config | None:
    """Draw a random configuration that was not tried; None if none is found."""
    for _ in range(draws):
        config = space.sample(rng)
        if config not in seen:
            return config
    return None


def _try(costs: dict[Config, float], config: Config) -> Search:
    """Yield one configuration and note its cost; infinite if it failed."""
    cost = yield config
    costs[config] = inf if cost is None else cost


@dataclass(frozen=True)
class Local:
    """Descent from random starts: the first neighbour that is better becomes the centre."""

    name: ClassVar[str] = "local"
    starts: int = 8

    def search(self, space: KnobSpace, rng: np.random.Generator) -> Search:
        """Start from the best of `starts` random configurations; restart in a local optimum."""
        costs: dict[Config, float] = {}
        while True:
            drawn = []
            for _ in range(self.starts):
                config = fresh(space, rng, costs)
                if config is not None:
                    yield from _try(costs, config)
                    drawn.append(config)
            if not drawn:
                return
            centre, improved = min(drawn, key=costs.__getitem__), True
            while improved:
                improved = False
                around = [c for c in space.neighbours(centre) if c not in costs]
                for index in rng.permutation(len(around)):
                    yield from _try(costs, around[index])
                    if costs[around[index]] < costs[centre]:
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
        costs: dict[Config, float] = {}
        model: Surrogate | None = None
        while True:
            if len(costs) < self.first:
                config = fresh(space, rng, costs)
            else:
                configs = list(costs)
                refit = model is None or len(configs) % self.refit_every == 0
                scales = None if model is None else model.scales
                model = fitted(space.features(configs), _targets(costs), scales, refit)
                config = self._proposal(space, rng, costs, model)
            if config is None:
                return
            yield from _try(costs, config)

    def _proposal(
        self,
        space: KnobSpace,
        rng: np.random.Generator,
        costs: Mapping[Config, float],
        model: Surrogate,
    ) -> Config | None:
        centre = min(costs, key=costs.__getitem__)
        near = [c for c in space.neighbours(centre) if c not in costs]
        if near and len(costs) % self.local_every == 0:
            mean, _ = model.predict(space.features(near))
            return near[int(mean.argmin())]
        pool = dict.fromkeys(near)
        for config in near[:: max(1, len(near) // 16)]:
            pool.update(dict.fromkeys(space.neighbours(config)))
        pool.update(dict.fromkeys(space.sample(rng) for _ in range(self.candidates)))
        left = [c for c in pool if c not in costs]
        if not left:
            return fresh(space, rng, costs)
        return left[int(model.improvement(space.features(left)).argmax())]


def _targets(costs: Mapping[Config, float]) -> np.ndarray:
    """Log costs; what failed counts as the worst that worked."""
    values = np.array(list(costs.values()))
    worked = np.isfinite(values)
    worst = values[worked].max() if worked.any() else 1.0
    return np.log(np.maximum(np.where(worked, values, worst), 1e-12))


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


@dataclass(frozen=True)
class Every:
    """All choices of a site, alternative by alternative."""

    name: ClassVar[str] = "exhaustive"

    def search(self, space: KnobSpace, rng: np.random.Generator) -> Search:
        """Yield every choice once."""
        assert isinstance(space, ChoiceSpace)
        yield from space.every()
