"""Spaces and strategies: the choices of a program's works, and the order in which they are tried.

    kernel_works(job) -> TunedWork (one space over all alternatives and their knobs) -> strategies

The front end and the passes on pyc ops run once; nothing is compiled. `with_known` adds what a
database knows, `allot` shares evaluations among works. A strategy is a generator that yields a
configuration and receives its cost:

    cost = yield config          # a ratio or seconds, or None for a configuration that failed

It yields each configuration at most once and ends when it has nothing left to try. All randomness
comes from the generator `rng` that it is given, so that equal seeds and costs give equal searches.
docs/design-notes/search.md compares strategies with the samplers of a library.

`Learned` fits a Gaussian process (Matern kernel of smoothness 5/2, one length scale per feature,
chosen by the marginal likelihood with a weak prior) and proposes by expected improvement: Jones,
Schonlau, Welch, "Efficient Global Optimization of Expensive Black-Box Functions" (1998); Rasmussen,
Williams, "Gaussian Processes for Machine Learning" (2006), algorithm 2.1 and section 5.4.
"""

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import erf, inf, log2, pi, sqrt
from typing import ClassVar, Protocol

import numpy as np

from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import optimized
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.exchange import measured
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import WORK, Graph, Implementation, State
from pyc_mlir.lab.sessions.session import works_of
from pyc_mlir.measure.environment import Environments
from pyc_mlir.pipelines.choices.space import Config, Knob, KnobSpace, split_variant, variant_name
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT

ALTERNATIVE = "alternative"
# By how much of its time a choice may be improved, as a share, while nothing was measured: the
# quickest of the legal knob sets of 12 kernels took 0.4 to 0.93 of the default's time, the quickest
# of the alternatives without knobs 0.6 to 1.
WITH_KNOBS, WITHOUT_KNOBS = 0.5, 0.2
# Evaluations are handed out in blocks: a search of one or two has no significance.
BLOCK = 8
# Combinations that are listed one by one to find the legal ones.
_LISTED = 1 << 12
# Choices of a neighbour that are tried first.
_NEIGHBOURS = 8
_NUMBER = re.compile(r"\d+")
_NO_KNOBS = KnobSpace(())
Search = Generator[Config, float | None, None]
# Of the process: variance of the noise, bounds of length scales, their prior's middle and spread.
_NOISE, _SCALES, _TYPICAL, _SPREAD = 1e-2, (0.05, 10.0), 0.7, 2.0
_PHI = np.frompyfunc(lambda z: 0.5 * (1 + erf(z / sqrt(2))), 1, 1)


@dataclass(frozen=True)
class SiteAlternative:
    """One alternative of a choice, and the space of its knobs, whose default the name means."""

    name: str
    space: KnobSpace = _NO_KNOBS


@dataclass(frozen=True)
class ChoiceSpace(KnobSpace):
    """All choices of one site: its alternatives, and for each of them its own knobs.

    The axes are the alternative and every knob of every alternative; knobs of the others stand at
    their defaults. A step changes one knob of the alternative, or takes another one's default.
    """

    alternatives: tuple[SiteAlternative, ...] = ()

    @staticmethod
    def of(alternatives: Sequence[SiteAlternative]) -> "ChoiceSpace":
        """Return the space of these alternatives, the first one's default being the incumbent."""
        axes = [Knob(ALTERNATIVE, tuple(alternative.name for alternative in alternatives))]
        for alternative in alternatives:
            axes += (Knob(f"{alternative.name}.{a.name}", a.values) for a in alternative.space.axes)
        made = ChoiceSpace(tuple(axes), alternatives=tuple(alternatives))
        object.__setattr__(made, "is_legal", made._holds)
        return made

    def place(self, config: Config) -> tuple[SiteAlternative, Config]:
        """Return the alternative of a configuration, and that of its own knobs."""
        return self.alternatives[config[0]], config[self._slices[config[0]]]

    def at(self, alternative: int, knobs: Config) -> Config:
        """Return the configuration of an alternative with these knobs."""
        parts = [
            a.space.default if n != alternative else knobs for n, a in enumerate(self.alternatives)
        ]
        return (alternative, *(index for part in parts for index in part))

    @property
    def defaults(self) -> tuple[Config, ...]:
        """Each alternative with the knobs that its name means, in order."""
        return tuple(self.at(n, a.space.default) for n, a in enumerate(self.alternatives))

    @cached_property
    def size(self) -> int:
        """An upper bound on the number of choices: the product of knobs, over alternatives."""
        return sum(alternative.space.combinations for alternative in self.alternatives)

    def sample(self, rng: np.random.Generator) -> Config:
        """Draw a random choice: of few any one, of many an alternative first and then its knobs."""
        if self._listed is not None:
            return self._listed[int(rng.integers(len(self._listed)))]
        number = int(np.searchsorted(self._shares, rng.random()))
        space = self.alternatives[number].space
        return self.at(number, space.sample(rng) if space.axes else ())

    def neighbours(self, config: Config) -> Iterator[Config]:
        """Yield the choices with one knob changed, or another alternative at its default."""
        alternative, knobs = self.place(config)
        yield from (c for n, c in enumerate(self.defaults) if n != config[0])
        yield from (self.at(config[0], other) for other in alternative.space.neighbours(knobs))

    def every(self) -> Iterator[Config]:
        """Yield all legal choices, an alternative after the other, its default first."""
        for number, alternative in enumerate(self.alternatives):
            own = alternative.space.default
            yield self.at(number, own)
            yield from (self.at(number, knobs) for knobs in alternative.space if knobs != own)

    @cached_property
    def _listed(self) -> list[Config] | None:
        return list(self.every()) if self.size <= _LISTED else None

    @cached_property
    def _shares(self) -> np.ndarray:
        """Ends of the alternatives' shares of (0, 1).

        By the logarithms of their sizes: beside one of millions a small one would not be drawn.
        """
        sizes = [alternative.space.combinations for alternative in self.alternatives]
        ends = np.cumsum([1 + log2(size) for size in sizes])
        return ends / ends[-1]

    @cached_property
    def _slices(self) -> list[slice]:
        ends = np.cumsum([1, *(len(alternative.space.axes) for alternative in self.alternatives)])
        return [slice(int(a), int(b)) for a, b in pairwise(ends)]

    def _holds(self, config: Config) -> bool:
        alternative, knobs = self.place(config)
        return alternative.space.is_legal(knobs) and self.at(config[0], knobs) == config


@dataclass(frozen=True, eq=False)
class TunedWork:
    """A choice to tune: one kernel's work, at all sites of the program that have it.

    graph: the work's row. pass_name: whose choice. sites: the keys of the program's sites.
    incumbent: the choice that is to be beaten. seconds: predicted of one call of one site.
    uncertainty: by how much of that a choice may improve, as a share (`WITH_KNOBS`).
    known: choices that are tried first: of wisdom, of neighbours.
    """

    graph: Graph
    pass_name: str
    space: ChoiceSpace
    sites: tuple[str, ...]
    incumbent: str
    seconds: float
    uncertainty: float
    known: tuple[str, ...] = ()

    def choice(self, config: Config) -> str:
        """Return the name of a configuration, as recipes and wisdom have it."""
        alternative, knobs = self.space.place(config)
        return variant_name(alternative.name, alternative.space.label(knobs))

    def config(self, choice: str) -> Config | None:
        """Return the configuration that a choice names; None if this space lacks it."""
        name, label = split_variant(choice)
        for number, alternative in enumerate(self.space.alternatives):
            if alternative.name == name:
                with suppress(PycError):
                    return self.space.at(number, alternative.space.labelled(label))
        return None

    @property
    def first(self) -> tuple[Config, ...]:
        """The choices that a search begins with: the incumbent, what is known elsewhere, every
        alternative.
        """
        named = (self.config(choice) for choice in (self.incumbent, *self.known))
        found = (*(c for c in named if c is not None), *self.space.defaults)
        return tuple(dict.fromkeys(found))

    @property
    def all_seconds(self) -> float:
        """Predicted seconds of a call of the program at all of its sites."""
        return len(self.sites) * self.seconds

    @property
    def weight(self) -> float:
        """Seconds of a call of the program that tuning may save: what it gets evaluations by."""
        return self.all_seconds * self.uncertainty

    @property
    def names(self) -> tuple[str, ...]:
        """The alternatives, each with the knobs that its name means."""
        return tuple(alternative.name for alternative in self.space.alternatives)

    @property
    def ops(self) -> str:
        """Its ops and the type of its result, for people."""
        lines = [line.partition(") ")[2] for line in self.graph.text.splitlines()[1:]]
        made = [line for line in lines if not line.startswith(("input ", "constant ", "read by"))]
        names = "+".join(line.split("{")[0].split(" ")[0] for line in made)
        return f"{names} -> {made[-1].rpartition(' : ')[2] if made else '?'}"


def allot(works: Sequence[TunedWork], evaluations: int) -> list[int]:
    """Allot evaluations to each work, `evaluations` in all at most, by highest averages of the
    weights.

    A work gets blocks of `BLOCK`, and no more evaluations than it has choices; a work with one
    choice gets none.
    """
    given = [0] * len(works)
    most = [0 if work.space.size < 2 else work.space.size for work in works]
    left = evaluations
    while left > 0:
        open_ = [n for n in range(len(works)) if given[n] < most[n]]
        if not open_:
            break
        best = max(open_, key=lambda n: (works[n].weight / (given[n] // BLOCK + 1), -n))
        block = min(BLOCK, left, most[best] - given[best])
        given[best] += block
        left -= block
    return given


def kernel_works(job: Job, required: bool = False) -> tuple[TunedWork, ...]:
    """Return the works of a program's kernels, in order; none of a program that enters at IREE.

    Sites of one work are one. Raises PycError as a compile does, and BAD_ARGUMENT for a program
    that enters at IREE where works are `required`.
    """
    with optimized(job) as (made, context):
        if made.module is None and required:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"{made.name}: expected a program of pyc ops, got one that IREE compiles as it "
                "is; it has no choices to tune",
            )
        if made.module is None:
            return ()
        graphs = {found.graph.graph_id: found.graph for found in works_of(made.module)}
        tunable = {one.site.key: one for one in context.choices.tunable}
        log = [d for d in context.choices.log if d.site.pass_name == SELECT]
    groups = {name: [d for d in log if d.site.work == name] for name in graphs}
    works = []
    for name in dict.fromkeys(d.site.work for d in log if d.site.work in graphs):
        first = groups[name][0]
        site = tunable.get(first.site.key)
        listed, spaces = (site.alternatives, site.spaces) if site else (first.alternatives, {})
        own = listed[0]
        work = TunedWork(
            graphs[name],
            SELECT,
            ChoiceSpace.of(
                [SiteAlternative(a.name, spaces.get(a.name, _NO_KNOBS)) for a in listed]
            ),
            tuple(d.site.key for d in groups[name]),
            own.name,
            own.cost.seconds if own.cost else 0.0,
            WITH_KNOBS if spaces else WITHOUT_KNOBS,
        )
        works.append(work)
    return tuple(works)


def with_known(
    store: EvidenceStore, works: Sequence[TunedWork], place: Environments
) -> tuple[TunedWork, ...]:
    """Return the works with what the database knows of them.

    What to try first: choices that it calls measured, those of the work itself, then those of its
    neighbours: works of the same ops with other sizes, wherever they were measured. A neighbour's
    choice is a candidate, no answer. Of a work of which n choices were measured here, the
    uncertainty is divided by the root of 1 + n.
    """
    found: list[tuple[Graph, Implementation]] = []
    for impl_id in dict.fromkeys(s.impl_id for s in store.states(state=State.MEASURED)):
        one = store.get(Implementation, impl_id)
        graph = None if one is None else store.get(Graph, one.graph_id)
        if one is not None and graph is not None and graph.kind == WORK:
            found.append((graph, one))
    tried: dict[str, set[str]] = {}
    names = [work.graph.graph_id for work in works]
    for trace in measured(store, names, place.hardware, place.toolchain) if works else ():
        tried.setdefault(trace.graph_id, set()).add(trace.impl_id)
    return tuple(
        replace(
            work,
            known=_known(work, found),
            uncertainty=work.uncertainty / sqrt(1 + len(tried.get(work.graph.graph_id, ()))),
        )
        for work in works
    )


def _known(work: TunedWork, found: Sequence[tuple[Graph, Implementation]]) -> tuple[str, ...]:
    own, near = [], []
    for graph, one in found:
        choice = one.recipe.get(work.pass_name)
        if choice is None or choice == work.incumbent or work.config(choice) is None:
            continue
        if graph.graph_id == work.graph.graph_id:
            own.append(choice)
        elif _NUMBER.sub("", graph.text) == _NUMBER.sub("", work.graph.text):
            near.append(choice)
    return tuple(dict.fromkeys((*own, *near[-_NEIGHBOURS:])))


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


def fresh(
    space: KnobSpace, rng: np.random.Generator, seen: Mapping[Config, float], draws: int = 1000
) -> Config | None:
    """Draw a random configuration that was not tried; None if none is found."""
    for _ in range(draws):
        config = space.sample(rng)
        if config not in seen:
            return config
    return None


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
            cost = yield config
            costs[config] = inf if cost is None else cost

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
