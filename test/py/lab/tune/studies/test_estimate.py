"""Searching {site: choice} on the simulator: what it finds is no slower by the estimate."""

import numpy as np
import pytest

from pyc_mlir import nn
from pyc_mlir.compilation.compile_options import CompileOptions
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import resolve
from pyc_mlir.lab.simulation.simulator import Simulator
from pyc_mlir.lab.tune.strategies import Local, Random, Tempering
from pyc_mlir.lab.tune.studies.estimate import estimated, space_of
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


def test_the_space_has_an_axis_for_each_choice(simulator):
    space = space_of(simulator)
    assert len(space.axes) == 6 and all(len(axis.values) > 1 for axis in space.axes)
    assert simulator.estimate(space.settings(space.default)).seconds == simulator.estimate().seconds


@pytest.mark.parametrize("strategy", (Random(), Local(), Tempering()), ids=lambda s: s.name)
def test_slow_choices_are_replaced(simulator, strategy):
    slow = simulated(Last())
    found = estimated(slow, strategy, evaluations=300)
    assert found.recipe and found.found.seconds < found.own.seconds
    assert found.found.seconds >= simulator.estimate().seconds * (1 - 1e-9)
    assert "measure before you use them" in str(found)
    again = estimated(slow, strategy, evaluations=300)
    assert again.recipe == found.recipe


def test_a_program_that_is_best_already_keeps_its_choices(simulator):
    found = estimated(simulator, evaluations=100)
    assert not found.recipe and found.found is found.own
    assert "no quicker ones" in str(found)
