"""Models that ask for more than there is are refused with a code, in little memory and time."""

import json
import subprocess
import sys

import hostile_models
import pytest
from conftest import sample
from hostile_models import CASES

from pyc_mlir.api import build
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import Contract

CHOSEN = sample(list(CASES), 12)


@pytest.fixture(scope="module")
def reported() -> dict[str, tuple[str, str, float]]:
    """What the front said of each case: code, message, seconds."""
    command = [sys.executable, hostile_models.__file__, *CHOSEN]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0, run.stderr
    return {name: (code, message, seconds) for name, code, message, seconds in lines}


@pytest.mark.parametrize("name", CHOSEN)
def test_hostile_model(reported, name):
    assert name in reported, "it ended the process, or took too long"
    code, message, _ = reported[name]
    assert code == CASES[name][1], message
    assert not code or message


def test_a_reference_that_no_memory_holds():
    options = make_options(target="cpu-avx2", contract=Contract(max_error="rounding"))
    with pytest.raises(PycError) as caught:
        build(CASES["a constant of a terabyte"][0], None, options)
    assert caught.value.code is ReasonCode.NO_ORACLE
