"""The recipe of least predicted seconds: no other choice at any site is quicker."""

import numpy as np
import pytest

from pyc_mlir import nn
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import CompileOptions, resolve
from pyc_mlir.lab.simulation.simulator import Simulator
from pyc_mlir.lab.tune.tuner import estimated
from pyc_mlir.pipelines.choices.choices import FirstIsBest

RNG = np.random.default_rng(0)
WEIGHTS = [RNG.normal(size=(64, 64)).astype(np.float32) for _ in range(3)]
X = np.zeros((8, 64), np.float32)


def net(x):
    for weight in WEIGHTS:
        x = nn.softmax(nn.relu(x @ weight))
    return x


class Last(FirstIsBest):
    """Takes what is predicted to be slowest."""

    def prefer(self, site, alternatives):
        return alternatives[-1].name


def simulated(policy=None):
    return Simulator.of(lower(Job.of(net, [X], resolve(CompileOptions(policy=policy)))))


@pytest.fixture(scope="module")
def simulator():
    return simulated()


def test_slow_choices_are_replaced(simulator):
    slow = simulated(Last())
    found = estimated(slow)
    assert found.recipe and found.found.seconds < found.own.seconds
    assert found.found.seconds >= simulator.estimate().seconds * (1 - 1e-9)
    assert "measure before you use them" in str(found)
    # Costs of sites add up: no single change of the recipe makes it quicker.
    for site in slow.program.kernels:
        for choice in site.costs:
            other = slow.estimate({**found.recipe, site.site.key: choice})
            assert other.seconds >= found.found.seconds * (1 - 1e-12)


def test_a_program_that_is_best_already_keeps_its_choices(simulator):
    found = estimated(simulator)
    assert not found.recipe and found.found == found.own
    assert "no quicker ones" in str(found)
