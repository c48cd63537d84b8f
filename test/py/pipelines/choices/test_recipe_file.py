"""Recipes as files: the same bytes again, and refusals of what is none."""

import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.evidence import EstimatedSeconds
from pyc_mlir.pipelines.choices.log import ExpectedCall, RecipeFile, is_recipe

PREDICTED = EstimatedSeconds(1e-5, False, "cost model")
FILE = RecipeFile(
    "871a6d93a65e091e",
    {"pyc-fuse:b": "keep", "pyc-fuse:a": "keep"},
    {"pyc-fuse:w1-00": "keep"},
    "explore",
    {"pyc-fuse:a": (PREDICTED,)},
    ExpectedCall(1e-3, 0.9e-3, 1.1e-3, 0.5e-3, 4096, True),
    "wisdom@00",
)


def test_reading_and_writing_gives_the_same_bytes():
    assert RecipeFile.from_bytes(FILE.to_bytes()) == FILE
    assert RecipeFile.from_bytes(FILE.to_bytes()).to_bytes() == FILE.to_bytes()


def test_order_of_choices_does_not_matter():
    turned = {name: FILE.choices[name] for name in reversed(list(FILE.choices))}
    again = RecipeFile(**{**vars(FILE), "choices": turned})
    assert again.to_bytes() == FILE.to_bytes()


def test_its_recipe_says_who_chose_on_what_grounds():
    recipe = FILE.recipe
    assert recipe.origins["pyc-fuse:a"] == ("explore", (PREDICTED,))
    assert recipe.origins["pyc-fuse:b"] == ("explore", ())
    assert (recipe.made_for, recipe.works) == (FILE.graph, FILE.works)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"kind": "pyc-recipe", "schema": 1, "graph": "", "choices": {}}',
        b'{"kind": "pyc-recipe", "schema": 2, "graph": ""}',
        b'{"kind": "pyc-recipe", "schema": 2, "graph": "", "choices": {"a": 1}}',
    ],
)
def test_what_is_no_recipe_is_refused(data: bytes):
    with pytest.raises(PycError, match="expected a recipe") as caught:
        RecipeFile.from_bytes(data)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


@pytest.mark.full
def test_logs_are_told_apart():
    assert is_recipe(FILE.to_bytes())
    assert not is_recipe(b'{"record": "conditions"}\n')
    assert not is_recipe(b"PK\x03\x04")
