"""The suite `strategies`: share of the optimum that searches reach, on brute-forced spaces.

    pyc-bench strategies --spaces FOLDER [--library]

Each file ``*.npz`` of the folder is a space in which every configuration was measured: `parameters`
[n, p], `times` [n, observations] in ms (NaN: failed), `meta` (JSON with `kernel` and `device`). The
data of the published spaces are not part of PyC: see docs/tuning.md. `--library` compares with the
samplers of optuna too, which is no dependency of PyC: docs/design-notes/search.md has the result.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.tune.search import Learned, Portfolio, Search, Strategy, fresh
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.choices.space import Config, KnobSpace
from pyc_mlir.runtime.selection.verdict import student
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, option, suite

SEEDS = 6
# Evaluations after which shares are taken.
COUNTS = (64, 128)
# Configurations of each sister space that a portfolio begins with.
_BEST_OF_SISTERS = 4
# Configurations that a sampler of the library may name before one counts as new.
_ASKED = 200


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


@dataclass(frozen=True)
class Random:
    """Configurations drawn uniformly: the baseline."""

    name: ClassVar[str] = "random"

    def search(self, space: KnobSpace, rng: np.random.Generator) -> Search:
        """Yield random configurations until none is left."""
        seen: dict[Config, float] = {}
        while (config := fresh(space, rng, seen)) is not None:
            yield config
            seen[config] = 0.0


@dataclass(frozen=True)
class Local:
    """Descent from random starts: the first neighbour that is better becomes the centre.

    Beside `Learned` in docs/design-notes/search.md.
    """

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


def _try(costs: dict[Config, float], config: Config) -> Search:
    """Yield one configuration and note its cost; infinite if it failed."""
    cost = yield config
    costs[config] = math.inf if cost is None else cost


@dataclass(frozen=True)
class Library:
    """A sampler of optuna, asked and told; what it names twice or illegally costs no evaluation.

    An illegal configuration is told as pruned, a failed one as failed, a cost as its logarithm.
    """

    name: str
    sampler: Callable[[int], Any]

    def search(self, space: KnobSpace, rng: np.random.Generator) -> Search:
        """Yield what the sampler names; a random one where it names nothing new."""
        import optuna  # pyright: ignore[reportMissingImports]

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(sampler=self.sampler(int(rng.integers(1 << 31))))
        seen: dict[Config, float] = {}
        while True:
            config: Config | None = None
            for _ in range(_ASKED):
                trial = study.ask()
                named = tuple(
                    trial.suggest_int(a.name, 0, len(a.values) - 1)
                    if a.is_ordered
                    else trial.suggest_categorical(a.name, range(len(a.values)))
                    for a in space.axes
                )
                if not space.is_legal(named):
                    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                elif named in seen:
                    _tell(study, trial, seen[named])
                else:
                    config = named
                    break
            else:
                trial, config = None, fresh(space, rng, seen)
            if config is None:
                return
            cost = yield config
            seen[config] = math.inf if cost is None else math.log(cost)
            if trial is not None:
                _tell(study, trial, seen[config])


def _tell(study: Any, trial: Any, cost: float) -> None:
    from optuna.trial import TrialState  # pyright: ignore[reportMissingImports]

    if cost < math.inf:
        study.tell(trial, cost)
    else:
        study.tell(trial, state=TrialState.FAIL)


def library() -> list[Library]:
    """Return the samplers that need nothing but numpy, and the Gaussian process, on torch.

    Raises PycError (MISSING_DEPENDENCY).
    """
    try:
        from optuna import samplers  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            "strategies: expected the package `optuna` for `--library`, got none; pip install it",
        ) from None
    return [
        Library("optuna random", lambda s: samplers.RandomSampler(seed=s)),
        Library("optuna TPE", lambda s: samplers.TPESampler(seed=s)),
        Library("optuna TPE, joint", lambda s: samplers.TPESampler(seed=s, multivariate=True)),
        Library("optuna NSGA-II", lambda s: samplers.NSGAIISampler(seed=s, population_size=16)),
        Library("optuna GP", lambda s: samplers.GPSampler(seed=s, n_startup_trials=8)),
    ]


@dataclass(frozen=True, eq=False)
class Published:
    """A brute-forced space; costs are the medians of the observations in ms, None where failed."""

    name: str
    kernel: str
    space: KnobSpace
    costs: Mapping[Config, float | None]

    @staticmethod
    def load(path: Path) -> "Published":
        """Read a file."""
        data = np.load(path, allow_pickle=False)
        rows = [tuple(int(v) for v in row) for row in data["parameters"]]
        space = KnobSpace.of_rows([f"p{i}" for i in range(len(rows[0]))], rows)
        configs = [
            space.config({a.name: v for a, v in zip(space.axes, r, strict=True)}) for r in rows
        ]
        costs = [float(np.median(t)) if np.isfinite(t).all() else None for t in data["times"]]
        kernel = json.loads(str(data["meta"]))["kernel"]
        return Published(path.stem, kernel, space, dict(zip(configs, costs, strict=True)))

    @cached_property
    def ranked(self) -> list[Config]:
        """The configurations that worked, best first."""
        worked = [(cost, config) for config, cost in self.costs.items() if cost is not None]
        return [config for _, config in sorted(worked)]

    def shares(self, strategy: Strategy, counts: Sequence[int], seed: int) -> list[float]:
        """Return optimum / best cost found after each number of evaluations; 0 if all failed."""
        tried = list(run(strategy, self.space, self.costs.__getitem__, max(counts), seed).values())
        least = self.costs[self.ranked[0]]
        assert least is not None
        found = [[cost for cost in tried[:n] if cost is not None] for n in counts]
        return [least / min(costs) if costs else 0.0 for costs in found]

    def known(self, sisters: Sequence["Published"]) -> tuple[Config, ...]:
        """Return the best configurations of the same kernel on the other devices here."""
        found: list[Config] = []
        for other in sisters:
            if other.kernel == self.kernel and other.name != self.name:
                settings = [other.space.settings(c) for c in other.ranked[:_BEST_OF_SISTERS]]
                found += [self.space.config(s) for s in settings if self._has(s)]
        return tuple(c for c in dict.fromkeys(found) if self.space.is_legal(c))

    def _has(self, settings: Mapping[str, int]) -> bool:
        return all(settings[axis.name] in axis.values for axis in self.space.axes)


@suite(
    "strategies",
    SEEDS,
    option("--spaces", metavar="FOLDER", type=Path, required=True),
    option("--library", action="store_true", help="compare with optuna's samplers"),
)
def run_suite(bench: SuiteRun) -> Iterator[Record]:
    """Share of the optimum that each strategy finds in brute-forced spaces of kernels."""
    files = sorted(bench.options.spaces.glob("*.npz"))
    if not files:
        raise PycError(
            ReasonCode.FILE_ACCESS,
            f"{bench.options.spaces}: expected .npz files of spaces, got none",
        )
    bench.settings["seeds"] = bench.rounds
    spaces = [Published.load(path) for path in files]
    more, made = library() if bench.options.library else [], list[Record]()
    for space in spaces:
        strategies: list[Strategy] = [Random(), Local(), *([] if bench.quick else [Learned()])]
        if sisters := space.known(spaces):
            strategies.append(Portfolio(sisters, Local() if bench.quick else Learned()))
        made += [r for s in [*strategies, *more] for r in _records(space, s, bench.rounds)]
    yield from (*made, *_means(made))


def _records(space: Published, strategy: Strategy, seeds: int) -> Iterator[Record]:
    """Yield a record for each number of evaluations."""
    shares = np.array([space.shares(strategy, COUNTS, seed) for seed in range(seeds)])
    for count, of_seeds in zip(COUNTS, shares.T, strict=True):
        yield _record(space.name, strategy.name, count, of_seeds)
    note(f"{space.name}: {strategy.name}: {shares.mean(axis=0).round(3).tolist()}")


def _record(workload: str, name: str, count: int, shares: np.ndarray) -> Record:
    """Record the mean over seeds with its 95 % interval by Student's t."""
    mean, half, seeds = float(shares.mean()), 0.0, len(shares)
    if seeds > 1:
        half = student(0.975, seeds - 1) * float(shares.std(ddof=1)) / math.sqrt(seeds)
    return record(
        workload,
        name,
        f"share of the optimum after {count}",
        "",
        mean,
        lo=mean - half,
        hi=min(1.0, mean + half),
        worst=float(shares.min()),
        shares=[float(s) for s in shares],
        n=seeds,
    )


def _means(made: Sequence[Record]) -> Iterator[Record]:
    """Yield the mean over spaces, seed by seed, of each strategy that every space has."""
    spaces = {r["workload"] for r in made}
    for key in dict.fromkeys((r["candidate"], r["metric"]) for r in made):
        rows = [r for r in made if (r["candidate"], r["metric"]) == key]
        if len(rows) == len(spaces) > 1:
            count = int(key[1].rpartition(" ")[2])
            yield _record("all spaces", key[0], count, np.mean([r["shares"] for r in rows], axis=0))
