"""`fastest` against `heuristic` and exhaustive search, with costs that are known.

Programs are lowered, not compiled: each alternative of each kernel gets a true cost, and wisdom has
what measuring it with noise would give. A policy's program takes the sum of the true costs.
"""

import itertools
import math

import numpy as np
import pytest
from conftest import ALL_CASES
from wisdoms import row

from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.lab.explore.policy import Explore
from pyc_mlir.pipelines.choices.choices import Alternative, FirstIsBest, Site
from pyc_mlir.pipelines.choices.policies import Fastest
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT
from pyc_mlir.tools.bench.workloads.cpu import ROWS, make

SOME = ("mlp 784-512-512-10, batch 64", "encoder block, seq 128", "softmax 4096x1024")
Sites = list[tuple[Site, list[Alternative]]]
Costs = dict[tuple[str, str], float]


def sites_of(name: str) -> Sites:
    """The kernels of a workload at its tiny size."""
    workload = make(name, tiny=True)
    decisions = lower(Job.of(workload.source, workload.specs, make_options())).decisions
    return [(d.site, list(d.alternatives)) for d in decisions if d.site.pass_name == SELECT]


def true_costs(sites: Sites, seed: int, error: float = 0.7) -> Costs:
    """What each alternative takes: its prediction times an error of that deviation."""
    chance = np.random.default_rng(seed)
    costs: Costs = {}
    for site, alternatives in sites:
        for a in alternatives:
            predicted = a.cost.seconds if a.cost else 1e-6
            factor = float(np.exp(chance.normal(0, error)))
            costs.setdefault((site.work, a.name), max(predicted, 1e-7) * factor)
    return costs


def measured(costs: Costs, seed: int, noise: float, share: float = 1.0) -> Wisdom:
    """Rows of three sessions and nine processes, each process off by `noise`."""
    chance, rows = np.random.default_rng(seed), []
    for (work, choice), seconds in costs.items():
        times = seconds * np.exp(chance.normal(0, noise, 9))
        lo, middle, hi = (float(f(times)) for f in (np.min, np.median, np.max))
        if chance.random() < share:
            rows.append(row(work, choice, middle, lo=lo, hi=hi))
    return Wisdom.of(rows, {})


def seconds(sites: Sites, costs: Costs, policy) -> float:
    return math.fsum(costs[site.work, policy.prefer(site, found)] for site, found in sites)


def judge(kind: type[Fastest], wisdom: Wisdom) -> Fastest:
    here = row("", "", 1.0)
    return kind(wisdom, here.hardware, here.toolchain)


@pytest.mark.parametrize("kind", [Fastest, Explore])
@pytest.mark.parametrize("name", list(ROWS) if ALL_CASES else SOME)
def test_fastest_is_never_slower_than_heuristic(name: str, kind: type[Fastest]):
    """At least 0.97, whatever was measured, with noise of 1 to 30 % and rows that lack."""
    sites = sites_of(name)
    for seed, (noise, share) in enumerate(itertools.product((0.01, 0.05, 0.3), (0.3, 0.7, 1.0))):
        costs = true_costs(sites, seed)
        policy = judge(kind, measured(costs, seed, noise, share))
        heuristic, fastest = (seconds(sites, costs, p) for p in (FirstIsBest(), policy))
        assert heuristic / fastest >= 0.97, (seed, noise, share)


@pytest.mark.parametrize("seed", range(20))
def test_fastest_is_near_exhaustive_search_on_small_graphs(seed: int):
    """At least 0.9 with every alternative measured, noise 2 %; two to six kernels."""
    chance = np.random.default_rng(seed)
    sites: Sites = [
        (
            Site(SELECT, f"op{i}", work=f"w1-{i:064x}"),
            [Alternative(f"kernel{j}") for j in range(chance.integers(2, 5))],
        )
        for i in range(chance.integers(2, 7))
    ]
    costs: Costs = {
        (site.work, a.name): float(np.exp(chance.normal(-9, 0.8)))
        for site, found in sites
        for a in found
    }
    best = min(
        math.fsum(costs[site.work, a.name] for (site, _), a in zip(sites, chosen, strict=True))
        for chosen in itertools.product(*(found for _, found in sites))
    )
    fastest = seconds(sites, costs, judge(Fastest, measured(costs, seed, 0.02)))
    assert best / fastest >= 0.9
