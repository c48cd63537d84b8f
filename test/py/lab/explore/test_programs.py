"""Explored recipes are compiled to what was expected of them, and none is beaten by another."""

import itertools
import math
from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
from wisdoms import KERNELS, row

from pyc_mlir import nn
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.attempts import build_here
from pyc_mlir.compilation.build import plan_only
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.frontends.python.specs import spec
from pyc_mlir.lab.explore.programs import (
    Explored,
    ExploreLimits,
    explore,
    quickest_kernels,
    smallest_kernels,
)
from pyc_mlir.lab.simulation.simulator import Simulator
from pyc_mlir.pipelines.choices.evidence import EstimatedSeconds
from pyc_mlir.pipelines.choices.log import RecipeFile
from pyc_mlir.pipelines.choices.wisdom import Wisdom

RNG = np.random.default_rng(0)
W1, W2 = (RNG.standard_normal((64, 64), dtype=np.float32) for _ in range(2))
INPUTS = [spec("f32", (32, 64))]


def branches(x):
    """Two products beside each other, so that orders and reuse have something to decide."""
    a, b = nn.relu(x @ W1), nn.relu(x @ W2)
    return (a + b) @ W2 + a


@cache
def explored() -> Explored:
    return explore(
        Job.of(branches, INPUTS, make_options()), effort=ExploreLimits(lowerings=5, plans=1)
    )


def compiled(file: RecipeFile) -> Artifact:
    return build_here(Job.of(branches, INPUTS, make_options(recipe=file.recipe)))


def needed(artifact: Artifact) -> int:
    return artifact.account.total() or 0


@pytest.mark.full
def test_each_recipe_is_accepted_and_needs_the_bytes_that_were_expected():
    for file in {f.to_bytes(): f for f in (*explored().recipes, explored().own)}.values():
        artifact = compiled(file)
        assert file.estimate is not None
        assert file.estimate.exact
        assert file.estimate.bytes == needed(artifact)
        made = {d.site.key: d.chosen for d in artifact.decisions}
        assert file.choices.items() <= made.items()
        assert {d.decided_by for d in artifact.decisions if d.site.key in file.choices} == {
            "explore"
        }


@pytest.mark.full
def test_the_own_recipe_is_what_a_compile_chooses():
    own = build_here(Job.of(branches, INPUTS, make_options()))
    made = {d.site.key: d.chosen for d in own.decisions}
    assert explored().own.choices.items() <= made.items()


def test_recipes_are_in_order_and_none_is_beaten():
    found = [f.estimate for f in explored().recipes]
    points = [(e.seconds, e.bytes) for e in found if e is not None and e.bytes is not None]
    assert len(points) == len(found)
    assert points == sorted(points)
    assert [b for _, b in points] == sorted({b for _, b in points}, reverse=True)


def test_files_come_back_byte_for_byte(tmp_path):
    for number, file in enumerate(explored().recipes):
        path = tmp_path / f"{number}.json"
        path.write_bytes(file.to_bytes())
        assert RecipeFile.load(path) == file
        assert RecipeFile.load(path).to_bytes() == file.to_bytes()
        assert make_options(recipe=path).recipe == file.recipe


def test_equal_questions_have_equal_answers():
    again = explore(
        Job.of(branches, INPUTS, make_options()), effort=ExploreLimits(lowerings=5, plans=1)
    )
    assert again == explored()


def test_measured_rows_decide_and_are_named():
    """The kernels that a compile chooses were measured to be slow."""
    own = [d for d in compiled(explored().own).decisions if d.site.pass_name == KERNELS]
    rows = [
        row(d.site.work, a.name, 1e-3 if a.name == d.chosen else 1e-6)
        for d in own
        for a in d.alternatives
    ]
    wisdom, effort = Wisdom.of(rows, {}), ExploreLimits(lowerings=1, plans=1)
    found = explore(Job.of(branches, INPUTS, make_options()), wisdom, effort=effort)
    assert found.chosen() is found.best
    assert found.best.evidence == wisdom.label
    for decision in own:
        if len(decision.alternatives) > 1:
            assert found.best.choices[decision.site.key] != decision.chosen
            (line,) = found.best.grounds[decision.site.key]
            assert isinstance(line, EstimatedSeconds) and line.measured
            assert wisdom.label in line.why
    assert found.unknown == ()


def test_small_differences_leave_the_compile_s_own_choice():
    best, own = (f.estimate for f in (explored().best, explored().own))
    assert best is not None
    assert own is not None
    gain = 1 - best.seconds / own.seconds
    assert (explored().chosen() == explored().own) == (gain <= 0.05)


def test_a_budget_takes_the_quickest_that_fits_or_the_smallest():
    sizes = [f.estimate.bytes for f in explored().recipes if f.estimate]
    assert explored().chosen(budget=0) == explored().recipes[-1]
    fitting = explored().chosen(budget=sizes[-1])
    assert fitting.estimate is not None
    assert fitting.estimate.bytes == sizes[-1]


def test_unknown_works_are_those_of_the_structures_looked_at():
    assert explored().unknown
    assert all(work.startswith("w1-") for work in explored().unknown)
    assert explored().lowerings <= 5


def test_kernels_are_chosen_as_exhaustive_search_would():
    """The quickest and the smallest of all combinations of kernels, by sums over the sites."""
    simulator = Simulator.of(lower(Job.of(branches, INPUTS, make_options())))
    sites = simulator.program.kernels

    def totals(choices: Mapping[str, str]) -> tuple[float, int]:
        costs = [site.costs[choices[site.site.key]] for site in sites]
        prices = [simulator.price(site, choices[site.site.key]).seconds for site in sites]
        return math.fsum(prices), sum(c.constant_bytes + c.workspace_bytes for c in costs)

    every = [
        totals(dict(zip([site.site.key for site in sites], choices, strict=True)))
        for choices in itertools.product(*(site.costs for site in sites))
    ]
    assert len(every) > 1
    assert totals(quickest_kernels(simulator)) == min(every)
    assert totals(smallest_kernels(simulator)) == min(every, key=lambda t: (t[1], t[0]))


@pytest.mark.parametrize("choice", ["iree", "own"])
@pytest.mark.full
def test_a_plan_without_code_states_the_bytes_of_a_compile(choice: str):
    """Exact for other kernels too, where a log alone says nothing."""
    recipe = None
    if choice == "iree":
        own = build_here(Job.of(branches, INPUTS, make_options()))
        sites = [d.site.key for d in own.decisions if d.site.pass_name == KERNELS]
        recipe = RecipeFile("", dict.fromkeys(sites, "iree")).recipe
    options = make_options(recipe=recipe)
    planned = plan_only(lower(Job.of(branches, INPUTS, options)), options)
    artifact = build_here(Job.of(branches, INPUTS, options))
    assert planned.account == artifact.account
    assert planned.memory == artifact.memory
