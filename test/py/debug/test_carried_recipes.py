"""Recipes of other programs: a model that was trained again keeps all choices, another model some.

Choices are forced away from the default first, so that what is carried over shows.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from pyc_mlir import Recipe, nn
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact, to_bytes
from pyc_mlir.artifact.compile_log import read_compile_log, recipe_at
from pyc_mlir.compilation.options import make_options
from pyc_mlir.debug.replay import replay
from pyc_mlir.pipelines.choices.choices import RECIPE, Coverage, Site, coverage

X = np.zeros((8, 32), np.float32)
KERNELS = "pyc-select-kernels"


def network(seed: int, layers: int = 2) -> Any:
    """relu(... relu(x @ w + b)) with weights of a seed."""
    chance = np.random.default_rng(seed)
    weights = [chance.normal(size=(32, 32)).astype(np.float32) for _ in range(layers)]

    def model(x: Any) -> Any:
        for w in weights:
            x = nn.relu(x @ w + w[0])
        return x

    return model


@dataclass(frozen=True)
class LastKernel:
    """Prefers what is listed last where kernels are chosen."""

    name: str = "last-kernel"
    version: str = "1"

    def prefer(self, site: Site, alternatives: Any) -> str:
        return alternatives[-1 if site.pass_name == KERNELS else 0].name


def chosen(artifact: Artifact) -> list[tuple[str, str]]:
    return [(d.site.pass_name, d.chosen) for d in artifact.decisions]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A program whose kernels are all IREE's, in a file."""
    made = build(network(0), [X], make_options(policy=LastKernel()))
    assert (KERNELS, "iree") in chosen(made)
    path = tmp_path_factory.mktemp("first") / "first.vmfb"
    path.write_bytes(to_bytes(made))
    return made, path


@pytest.mark.full
def test_a_model_trained_again_keeps_every_choice(first, tmp_path):
    made, path = first
    again = build(network(1), [X], make_options(recipe=path))
    assert again.manifest.graph_id != made.manifest.graph_id
    assert chosen(again) == chosen(made)
    assert coverage(again.decisions) == Coverage(len(again.decisions), 0)
    assert {d.decided_by for d in again.decisions} == {RECIPE}
    # The log says so, and a replay needs nothing else.
    kept = tmp_path / "again.vmfb"
    kept.write_bytes(to_bytes(again))
    assert to_bytes(replay(network(1), [X], read_compile_log(kept))) == to_bytes(again)


def test_the_same_model_goes_by_its_sites(first):
    made, path = first
    again = build(network(0), [X], make_options(recipe=path))
    assert to_bytes(again) == to_bytes(made)
    assert coverage(again.decisions) == Coverage()


def test_a_deeper_model_takes_what_it_shares(first):
    _, path = first
    deeper = build(network(2, layers=3), [X], make_options(recipe=path))
    used = coverage(deeper.decisions)
    assert used.carried and used.left
    kernels = [d for d in deeper.decisions if d.site.pass_name == KERNELS]
    # Both kinds of layer are known: one that is read by a product, and the last.
    assert [d.chosen for d in kernels] == ["iree"] * 3


def test_equal_layers_share_their_work(first):
    made, _ = first
    works = [d.site.work for d in made.decisions if d.site.pass_name == KERNELS]
    assert len(works) == 2 and len(set(works)) == 2, "the last layer has another reader"
    three = build(network(2, layers=3), [X], make_options())
    works = [d.site.work for d in three.decisions if d.site.pass_name == KERNELS]
    assert works[0] == works[1] != works[2]


def test_a_work_with_two_choices_is_carried_over_to_nobody():
    three = build(network(2, layers=3), [X], make_options())
    kernels = [i for i, d in enumerate(three.decisions) if d.site.pass_name == KERNELS]
    mixed = list(three.decisions)
    mixed[kernels[0]] = replace(mixed[kernels[0]], chosen="iree")
    recipe = Recipe.from_log(mixed, "another graph")
    assert mixed[kernels[0]].site.work_key not in recipe.works
    assert mixed[kernels[2]].site.work_key in recipe.works


def test_a_file_knows_the_graph_it_was_made_for(first):
    made, path = first
    assert recipe_at(path).made_for == made.manifest.graph_id
