"""The suite `strategies`: share of the optimum that searches reach, on brute-forced spaces.

    pyc-bench strategies --spaces FOLDER

Each file ``*.npz`` of the folder is a space in which every configuration was measured: `parameters`
[n, p], `times` [n, observations] in ms (NaN: failed), `meta` (JSON with `kernel` and `device`). The
data of the published spaces are not part of PyC: see docs/tuning.md.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.tune.strategies import Learned, Local, Portfolio, Random, Strategy, Tempering, run
from pyc_mlir.lab.tune.verdict import student
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.choices.space import Config, KnobSpace
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, option, suite

SEEDS = 6
# Evaluations after which shares are taken: of measurements, and of a simulator's answers.
MEASURED, SIMULATED = (64, 128), 1024
# Configurations of each sister space that a portfolio begins with.
_BEST_OF_SISTERS = 4


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
        trials = run(strategy, self.space, self.costs.__getitem__, max(counts), seed)
        least = self.costs[self.ranked[0]]
        assert least is not None
        found = [[t.cost for t in trials[:n] if t.cost is not None] for n in counts]
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


@suite("strategies", SEEDS, option("--spaces", metavar="FOLDER", type=Path, required=True))
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
    made = [r for space in spaces for r in _records(space, spaces, bench.rounds, bench.quick)]
    yield from (*made, *_means(made))


def _records(
    space: Published, spaces: Sequence[Published], seeds: int, quick: bool
) -> Iterator[Record]:
    """Yield a record for each strategy and number of evaluations."""
    measured: dict[str, Strategy] = {s.name: s for s in (Random(), Local(), Learned())}
    if known := space.known(spaces):
        measured["portfolio"] = Portfolio(known, Learned())
    simulated: dict[str, Strategy] = {s.name: s for s in (Random(), Local(), Tempering())}
    plans: list[tuple[dict[str, Strategy], tuple[int, ...]]] = [
        (measured, MEASURED),
        (simulated, (SIMULATED,)),
    ]
    for strategies, counts in plans:
        for name, strategy in strategies.items():
            if quick and name == Learned.name:
                continue
            shares = np.array([space.shares(strategy, counts, seed) for seed in range(seeds)])
            for count, of_seeds in zip(counts, shares.T, strict=True):
                yield _record(space.name, name, count, of_seeds)
            note(f"{space.name}: {name}: {shares.mean(axis=0).round(3).tolist()}")


def _record(workload: str, name: str, count: int, shares: np.ndarray) -> Record:
    """Record the mean over seeds with its 95 % interval by Student's t."""
    mean, half, seeds = float(shares.mean()), 0.0, len(shares)
    if seeds > 1:
        half = student(0.975, seeds - 1) * float(shares.std(ddof=1)) / sqrt(seeds)
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
