"""Approximate products in calls that are compared: errors that are equal, and rows that cancel."""

from typing import Any

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir.compilation.approximation import APPROXIMATE, EXACT
from pyc_mlir.dialects.numerics.approximation import WAYS
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program

DRAW = np.random.default_rng(0)
ROWS, WIDTH, LIMIT = 64, 256, 0.08
W = DRAW.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32)
ALIKE = np.repeat(DRAW.normal(size=(WIDTH, 1)), 64, 1).astype(np.float32)


def chosen(program: Program) -> list[str]:
    return [d.chosen for d in program.artifact.decisions if d.site.pass_name == APPROXIMATE]


def compiled(function: Any) -> Program:
    return pyc_mlir.compile(
        function,
        [pyc_mlir.TensorSpec("f32", ROWS, WIDTH)],
        contract=Contract(max_error=LIMIT),
        device=Device("local-sync"),
        cache=False,
    )


def share(found: np.ndarray, exact: np.ndarray) -> float:
    """Return the greatest error, as a share of the greatest element."""
    return float(np.abs(found - exact).max() / np.abs(exact).max())


@pytest.mark.parametrize("axis, w", [(0, W), (1, ALIKE)], ids=["equal rows", "equal columns"])
def test_equal_errors_that_add_up_are_no_wrong_result(axis: int, w: np.ndarray) -> None:
    def pooled(x: Any) -> Any:
        return np.mean(x @ w, axis=axis)

    program = compiled(pooled)
    assert set(chosen(program)) & set(WAYS)
    program.compare_every(1)
    for offset in (0, 2, 30, 30, 30):
        row = DRAW.normal(offset, 1, (1, WIDTH))
        x = np.repeat(row, ROWS, 0).astype(np.float32)
        assert share(program(x), pooled(x.astype(np.float64))) <= LIMIT
    assert program.stats().comparisons >= 5


def test_weights_of_zeros_leave_a_product_exact() -> None:
    def adapted(x: Any) -> Any:
        return x @ W + x @ np.zeros_like(W)

    program = compiled(adapted)
    assert sorted(chosen(program))[0] == EXACT
    x = DRAW.normal(size=(ROWS, WIDTH)).astype(np.float32)
    assert share(program(x), x.astype(np.float64) @ W) <= LIMIT


def test_rows_that_cancel_are_exact_beside_large_ones() -> None:
    def normed(x: Any) -> Any:
        y = x @ W
        centred = y - np.mean(y, axis=-1, keepdims=True)
        return centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)

    program = compiled(normed)
    assert set(chosen(program)) & set(WAYS)
    x = DRAW.normal(size=(ROWS, WIDTH))
    least = np.linalg.svd(W.astype(np.float64))[0][:, -1]
    x[1::2] = 0.02 * x[1::2] + 16 * least
    x = x.astype(np.float32)
    assert share(program(x), normed(x.astype(np.float64))) <= LIMIT
    counts = program.stats().approximations
    assert counts is not None
    assert counts.by_bound
