"""Approximate products in calls that are compared: errors that are equal, and rows that cancel."""

from typing import Any

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir.compilation.reference.approximation import APPROXIMATE
from pyc_mlir.dialects.numerics.approximation import WAYS
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program

DRAW = np.random.default_rng(0)
ROWS, WIDTH, LIMIT = 64, 256, 0.08
W = DRAW.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32)
ALIKE = np.repeat(DRAW.normal(size=(WIDTH, 1)), 64, 1).astype(np.float32)


def compiled(function: Any) -> Program:
    program = pyc_mlir.compile(
        function,
        [pyc_mlir.TensorSpec("f32", ROWS, WIDTH)],
        contract=Contract(max_error=LIMIT),
        device=Device("local-sync"),
        cache=False,
    )
    taken = {d.chosen for d in program.artifact.decisions if d.site.pass_name == APPROXIMATE}
    assert taken & set(WAYS), taken
    return program


def share(found: np.ndarray, exact: np.ndarray) -> float:
    """Return the greatest error, as a share of the greatest element."""
    return float(np.abs(found - exact).max() / np.abs(exact).max())


@pytest.mark.parametrize("axis, w", [(0, W), (1, ALIKE)], ids=["equal rows", "equal columns"])
def test_equal_errors_that_add_up_are_no_wrong_result(axis: int, w: np.ndarray) -> None:
    def pooled(x: Any) -> Any:
        return np.mean(x @ w, axis=axis)

    program = compiled(pooled)
    program.compare_every(1)
    for offset in (0, 2, 30, 30, 30):
        row = DRAW.normal(offset, 1, (1, WIDTH))
        x = np.repeat(row, ROWS, 0).astype(np.float32)
        assert share(program(x), pooled(x.astype(np.float64))) <= LIMIT
    assert program.stats().comparisons >= 5
