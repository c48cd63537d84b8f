"""Reason codes: each can be provoked and gives its own."""

from dataclasses import astuple

import pytest
import reason_calls  # noqa: F401  (enters its scenarios)
import reason_contracts  # noqa: F401
from reason_table import SCENARIOS, Here

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
