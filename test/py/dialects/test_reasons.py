"""Reason codes: each row is provoked; errors are pickled and copied whole."""

import copy
import pickle
from dataclasses import astuple
from typing import Any

import pytest
import reason_calls  # noqa: F401  (enters its scenarios)
import reason_contracts  # noqa: F401
from made_errors import ERRORS
from reason_table import SCENARIOS, Here

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.reasons import ReasonCode


@pytest.mark.parametrize("code", ReasonCode, ids=lambda c: c.name)
def test_a_scenario_gives_its_code_and_no_other(code, tmp_path, monkeypatch):
    assert code in SCENARIOS, (
        f"{code.name} has no scenario: add to test/py/support/reason_calls.py a function under "
        f"`@provokes(ReasonCode.{code.name})` that leads to it; delete the code if nothing can"
    )
    found = {c.name for c in SCENARIOS[code](Here(tmp_path, monkeypatch))}
    assert found == {code.name}


def test_rows_are_sentences_for_a_table():
    for code in ReasonCode:
        for text in astuple(code.value):
            assert text and "|" not in text and "\n" not in text and not text.endswith("."), code
    assert len({c.value for c in ReasonCode}) == len(ReasonCode), "equal rows are one member"


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
