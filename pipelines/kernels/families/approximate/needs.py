"""The error that a product of given numbers needs to be allowed, by the bound of its kernel."""

import numpy as np

from pyc_mlir.dialects.numerics.approximation import DEVIATIONS
from pyc_mlir.pipelines.kernels.families.approximate.facts import RoundedB, bf16_variance
from pyc_mlir.pipelines.kernels.families.approximate.forms import Form, best_form
from pyc_mlir.pipelines.target.target import Target

# Rows and columns of a tile, about.
_HEIGHT, _PANEL = 6, 64
_TILES = 0.9


def needed_share(
    way: str, target: Target, a: np.ndarray, b: np.ndarray, value: np.ndarray
) -> float:
    """Return the least `allowed` under which nine of ten tiles of A B keep what they promise.

    a: [..., depth]; b: [depth, columns]; value: the product. The way has a form on the target.
    """
    name = best_form(target, way)
    assert name is not None, f"{way} has an instruction on {target.name}"
    form = Form(name, b.shape[0])
    rows = a.reshape(-1, a.shape[-1]).astype(np.float64)
    result = np.abs(value.astype(np.float64)).reshape(len(rows), -1)
    tiles, found = range(0, len(rows), _HEIGHT), []
    with np.errstate(all="ignore"):
        for start in range(0, b.shape[1], _PANEL):
            panel = slice(start, start + _PANEL)
            of_rows = deviations(form, rows, b[:, panel]) / result[:, panel].max(axis=1)
            share = DEVIATIONS * np.fmax.reduceat(of_rows, tiles)
            found.append(share[np.isfinite(share)])
    shares = np.concatenate(found) if found else np.zeros(0)
    return float(np.quantile(shares, _TILES)) if shares.size else 0.0


def deviations(form: Form, rows: np.ndarray, panel: np.ndarray) -> np.ndarray:
    """Return the standard deviation of an element of each row, as kernels bound it."""
    wide = panel.astype(np.float64)
    if form.is_bf16:
        return np.sqrt(np.sqrt((rows**4).sum(axis=1)) * bf16_variance(wide))
    of_a, of_b = RoundedB.of(form, panel).variance(form)
    steps = np.abs(rows).max(axis=1) / form.levels
    return np.sqrt(steps**2 * of_a + (rows**2).sum(axis=1) * of_b)
