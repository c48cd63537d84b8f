"""Extreme attributes of every ONNX operator: imported, or an error with a code, in bounds."""

import json
import subprocess
import sys
from collections.abc import Sequence

import onnx_attributes
import pytest
from conftest import FULL, sample
from onnx_attributes import cases
from scenarios import count_of

BATCHES = 40 if FULL else 2
SAMPLED = count_of("extreme attributes of ONNX operators")


def reported(numbers: Sequence[int]) -> dict[int, str]:
    """What is wrong with each case; a process that one ends goes on with the next."""
    found: dict[int, str] = {}
    left = list(numbers)
    while left:
        command = [sys.executable, onnx_attributes.__file__]
        run = subprocess.run(command, input=json.dumps(left), capture_output=True, text=True)
        for line in run.stdout.splitlines():
            number, output_text = json.loads(line)
            found[number] = (
                f"it ended the process: {run.returncode}" if output_text is None else output_text
            )
        assert run.stdout, run.stderr
        left = [n for n in left if n not in found]
    return found


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.full
def test_extreme_attributes(batch: int, record_property) -> None:
    numbers = sample(range(len(cases())), SAMPLED)[batch::BATCHES]
    found = reported(numbers)
    wrong = [(cases()[n][:2], str(cases()[n][2])[:60], w) for n, w in found.items() if w]
    assert not wrong
    record_property("extreme ONNX attributes", {"imported or refused": len(found)})
