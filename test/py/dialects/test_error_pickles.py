"""Errors go to other processes whole: pickled and copied, each keeps its kind, text and fields."""

import copy
import pickle
from typing import Any

import pytest
from made_errors import ERRORS

from pyc_mlir.dialects.errors import PycError


def kinds(kind: type[PycError] = PycError) -> set[type[PycError]]:
    """A class and all below it, as far as they are loaded."""
    return {kind}.union(*map(kinds, kind.__subclasses__()))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_pickle_keeps_everything(error, protocol):
    assert_same(pickle.loads(pickle.dumps(error, protocol)), error)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_copy_keeps_everything(error, way):
    assert_same(way(error), error)


def assert_same(got: Any, error: PycError) -> None:
    assert type(got) is type(error) and str(got) == str(error) and got.args == error.args
    assert got.code is error.code and got.message == error.message
    assert vars(got) == vars(error)


def test_every_kind_of_error_is_here():
    shipped = {kind for kind in kinds() if kind.__module__.startswith("pyc_mlir.")}
    assert shipped == {type(error) for error in ERRORS}
