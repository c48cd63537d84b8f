"""Choices of a site as one space, their names, and who gets how many evaluations."""

from itertools import pairwise

import numpy as np
import pytest

from pyc_mlir.lab.evidence.rows import Graph
from pyc_mlir.lab.tune.search import (
    BLOCK,
    WITH_KNOBS,
    ChoiceSpace,
    SiteAlternative,
    TunedWork,
    allot,
)
from pyc_mlir.pipelines.choices.space import Knob, KnobSpace

KNOBS = KnobSpace(
    (Knob("rows", (1, 2, 4)), Knob("columns", (8, 16))), lambda config: config != (2, 1), (1, 0)
)
LARGE = KnobSpace(tuple(Knob(f"k{n}", tuple(range(16))) for n in range(6)), default=(0,) * 6)
WAYS = (
    SiteAlternative("gemm:matmul", KNOBS),
    SiteAlternative("iree"),
    SiteAlternative("conv:matmul", LARGE),
)
SPACE = ChoiceSpace.of(WAYS)


def tuned(ways, sites=1, seconds=1.0, known=()):
    row = Graph(f"w1-{sites}{seconds}", "work", "", "", 1)
    keys = tuple(f"pass:{n}" for n in range(sites))
    space = ChoiceSpace.of(ways)
    return TunedWork(row, "pass", space, keys, ways[0].name, seconds, WITH_KNOBS, tuple(known))


def test_names_say_what_differs_and_are_read_back():
    work = tuned(WAYS)
    assert work.choice(SPACE.at(0, (1, 0))) == "gemm:matmul"
    assert work.choice(SPACE.at(0, (2, 0))) == "gemm:matmul[rows=4]"
    assert work.choice(SPACE.at(0, (0, 1))) == "gemm:matmul[rows=1,columns=16]"
    assert work.choice(SPACE.at(1, ())) == "iree"
    rng = np.random.default_rng(0)
    for _ in range(50):
        config = SPACE.sample(rng)
        assert work.config(work.choice(config)) == config


@pytest.mark.parametrize(
    "name", ("gemm:matmul[rows=3]", "gemm:matmul[rows=4,columns=16]", "gemm", "iree[rows=4]", "")
)
def test_other_names_are_no_choices(name):
    assert tuned(WAYS).config(name) is None


def test_draws_are_legal_and_reach_every_alternative():
    rng = np.random.default_rng(0)
    drawn = [SPACE.sample(rng) for _ in range(3000)]
    assert all(map(SPACE.is_legal, drawn))
    assert {config[0] for config in drawn} == {0, 1, 2}


def test_knobs_of_other_alternatives_stand_at_their_defaults():
    config = SPACE.at(0, (2, 0))
    assert SPACE.is_legal(config)
    assert not SPACE.is_legal((1, *config[1:]))


def test_a_step_changes_one_knob_or_takes_another_default():
    config = SPACE.at(0, (2, 0))
    near = list(SPACE.neighbours(config))
    assert len(near) == len(set(near)) and all(map(SPACE.is_legal, near))
    names = {tuned(WAYS).choice(c) for c in near}
    # `rows=4,columns=16` is illegal.
    assert names == {"iree", "conv:matmul", "gemm:matmul[rows=1]", "gemm:matmul"}


def test_every_choice_comes_once():
    small = ChoiceSpace.of(WAYS[:2])
    found = list(small.every())
    assert len(found) == len(set(found)) == 6
    assert found[0] == small.at(0, (1, 0))
    assert small.size == 7  # an upper bound


def test_a_search_begins_with_the_incumbent_and_what_is_known():
    work = tuned(WAYS, known=("gemm:matmul[rows=4]", "gone:matmul", "iree"))
    reported = [work.choice(c) for c in work.first]
    assert reported == ["gemm:matmul", "gemm:matmul[rows=4]", "iree", "conv:matmul"]


def test_evaluations_go_where_time_may_be_saved():
    works = [
        tuned(WAYS, seconds=8.0),
        tuned(WAYS, seconds=1.0),
        tuned(WAYS, sites=4, seconds=1.0),
        tuned((SiteAlternative("iree"),), seconds=100.0),
        tuned(WAYS[:2], seconds=50.0),
    ]
    given = allot(works, 100)
    assert sum(given) == 100
    assert given[3] == 0, "it has no choice"
    assert given[4] == 7, "it has no more"
    assert given[0] > given[2] > given[1]
    by_time = [given[0], given[2], given[1]]
    assert all(a >= b for a, b in pairwise(by_time))
    assert allot(works, 3) == [0, 0, 0, 0, 3]
    assert allot([], 10) == [] and allot(works, 0) == [0] * 5
    assert all(n % BLOCK == 0 for n in allot(works[:2], 10 * BLOCK))
