"""Inverse functions and functions of bits, against numpy in more digits: the stated errors."""

import math

import numpy as np
import pytest

from pyc_mlir.dialects import functions
from pyc_mlir.dialects.ir import angles
from pyc_mlir.dialects.ir.builder import NumpyBuilder

SPECIAL = [0.0, -0.0, 1.0, -1.0, 3.0, math.inf, -math.inf, math.nan]
MOST = {np.float32: 2.5, np.float64: 5.0}
PAIRS = np.meshgrid(SPECIAL, SPECIAL)


def _numbers(dtype: type, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    some = rng.normal(size=5000) * 10.0 ** rng.integers(-10, 10, 5000)
    return np.concatenate([some, PAIRS[seed].reshape(-1)]).astype(dtype)


def _within(dtype: type) -> np.ndarray:
    """Numbers of [-1, 1], many of them near the ends, and one beyond."""
    rng = np.random.default_rng(2)
    least = -6.5 if dtype is np.float32 else -15
    gaps = 10.0 ** rng.uniform(least, -1, 1000)
    near = np.concatenate([1 - gaps, gaps - 1])
    return np.concatenate([rng.uniform(-1, 1, 3000), near, SPECIAL[:5]]).astype(dtype)


def _check(got: np.ndarray, want: np.ndarray, most: float) -> None:
    """Within `most` times the epsilon; infinities, NaNs and the signs of zeros are the same."""
    dtype, finite = got.dtype, np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite].astype(dtype))
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))
    reach = most * np.finfo(dtype).eps * np.abs(want[finite])
    assert np.all(np.abs(got[finite] - want[finite]) <= reach)


@pytest.mark.parametrize("dtype", MOST)
def test_angles_err_by_no_more_than_stated(dtype: type) -> None:
    b, most = NumpyBuilder(), MOST[dtype]
    x, y, u = _numbers(dtype, 0), _numbers(dtype, 1), _within(dtype)
    with np.errstate(all="ignore"):
        _check(angles.atan(b, x), np.arctan(x.astype(np.longdouble)), most)
        _check(angles.asin(b, u), np.arcsin(u.astype(np.longdouble)), most)
        _check(angles.acos(b, u), np.arccos(u.astype(np.longdouble)), most)
        exact = np.arctan2(x.astype(np.longdouble), y.astype(np.longdouble))
        _check(angles.atan2(b, x, y), exact, most)


@pytest.mark.parametrize("dtype", MOST)
def test_functions_of_bits_are_exact(dtype: type) -> None:
    b, x, y = NumpyBuilder(), _numbers(dtype, 0), _numbers(dtype, 1)
    with np.errstate(all="ignore"):
        _check(functions.nextafter(b, x, y), np.nextafter(x, y), 0)
    _check(functions.copysign(b, x, y), np.copysign(x, y), 0)
    np.testing.assert_array_equal(functions.is_negative(b, x), np.signbit(x))


@pytest.mark.parametrize("dtype", MOST)
def test_erfinv_inverts_erf(dtype: type) -> None:
    """Where erf is steep enough to tell: its own inverse to a few roundings of its result."""
    b = NumpyBuilder()
    u = _within(dtype)
    with np.errstate(all="ignore"):
        r = functions.erfinv(b, u)
    inside = np.abs(u) < 1
    back = np.array([math.erf(v) for v in r[inside]])
    gap = np.array([math.erfc(abs(v)) for v in r[inside]])
    step = float(np.finfo(dtype).eps)
    # A relative error of r moves erfc by 2 r^2 times as much.
    reach = 4 * step * (np.abs(back) + gap * (1 + 2 * r[inside].astype(np.float64) ** 2))
    assert np.all(np.abs(back - u[inside]) <= reach)
    np.testing.assert_array_equal(r[np.abs(u) == 1], u[np.abs(u) == 1] * dtype(math.inf))
    assert np.isnan(r[np.abs(u) > 1]).all()
