"""A tolerance for every element: how far a correct program may be from the numpy reference.

Comes in: arrays; goes out: for each value of a program the reference's array and the standard
deviation of the error that roundings explain, element by element. It is a running error analysis
(Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.3) in the probabilistic
model of Higham and Mary (A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci.
Comput. 41, 2019): roundings are independent with mean zero, so that deviations of operands add in
quadrature and a sum of n terms errs by sqrt(n) u * sum |terms| where the worst case says n. An
error beyond `LAMBDA` deviations has, for a sum, a probability below 2 exp(-LAMBDA^2 / 2).

What rounding may decide (a comparison of nearly equal values, the index of a maximum, the side of
an integer) gets a deviation as large as the step that it decides.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pyc_mlir.dialects.types import accumulator, dtype_name, is_float

LAMBDA = 4.0
# Half the distance of 1 from the next number.
UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
# Roundings of an elementwise composite, of its result and of its operands.
_COMPOSITE_ULPS = 16.0
# The least number that f16 rounds to infinity, and half the distance of its subnormal numbers.
_F16_OVERFLOW, _F16_UNIT = 65520.0, 2.0**-25


@dataclass(frozen=True, eq=False)
class Uncertain:
    """A value of the reference, and the standard deviation (f64, same shape) of its error.

    approximate: an approximate product is among what it was computed from.
    """

    value: np.ndarray
    deviation: np.ndarray
    approximate: bool = False

    @staticmethod
    def exact(value: np.ndarray) -> "Uncertain":
        """Return a value that every correct program has, but that subnormal numbers may be zero."""
        value = np.asarray(value)
        if is_float(value.dtype) and value.dtype != np.float16:
            subnormal = (np.abs(value) < flushed(value.dtype)) & (value != 0)
            if subnormal.any():
                return Uncertain(value, np.where(subnormal, flushed(value.dtype), 0.0))
        # One zero for all elements: constants are large.
        return Uncertain(value, np.broadcast_to(0.0, value.shape))

    @property
    def tolerance(self) -> np.ndarray:
        """The distance that a correct program may keep: it and the reference err independently."""
        return LAMBDA * math.sqrt(2) * self.deviation


# The deviation of a result, from the result, the operands and the op's parameters.
Rule = Callable[..., np.ndarray]


def roundoff(dtype: np.dtype) -> float:
    """Return the unit roundoff of an element type; 0 for integers."""
    return UNIT_ROUNDOFF.get(dtype_name(dtype), 0.0)


def flushed(dtype: np.dtype) -> float:
    """Return the least number that is never flushed: of f32, in which 16 bits are computed."""
    return float(np.finfo(accumulator(dtype)).tiny)


def leaves_range(exact: np.ndarray, deviation: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return where a number leaves the range of f16, or may: composites compute in f32."""
    reach = np.abs(exact.astype(np.float64)) + LAMBDA * deviation
    return np.isfinite(exact) & (reach >= _F16_OVERFLOW) & (dtype == np.float16)


def rounded(value: np.ndarray, ulps: float = 1.0) -> np.ndarray:
    """Return the deviation of a result computed to `ulps` roundings; results may be flushed.

    Errors of a rounding are taken as uniform up to u |value|. The 16-bit floats are computed in
    f32 and rounded once more. An infinity is taken as exact.
    """
    dtype = value.dtype
    if not is_float(dtype):
        return np.zeros(value.shape)
    wide = accumulator(dtype)
    least = flushed(dtype) if dtype != np.float16 else _F16_UNIT / math.sqrt(3)
    u = ulps * roundoff(wide) + (roundoff(dtype) if wide != dtype else 0.0)
    size = np.abs(value.astype(np.float64))
    return u / math.sqrt(3) * np.where(np.isfinite(size), size, 0.0) + least


def composed(value: np.ndarray, deviation: np.ndarray, operands: Sequence[Uncertain]) -> np.ndarray:
    """Return an elementwise composite's deviation; of exact operands some roundings at most.

    A decomposition that cancels near zero errs by as many of 1, which is no measure.
    """
    if not is_float(value.dtype) or not np.any(deviation):
        return deviation
    size = sum(np.abs(o.value.astype(np.float64)) for o in operands)
    u = _COMPOSITE_ULPS * roundoff(accumulator(value.dtype)) + flushed(value.dtype)
    most = rounded(value, _COMPOSITE_ULPS) + u * size
    inexact = sum(o.deviation for o in operands) > 0
    return np.where(inexact | ~np.isfinite(deviation), deviation, np.minimum(deviation, most))


def summed(magnitudes: np.ndarray, terms: int, value: np.ndarray) -> np.ndarray:
    """Return what a sum errs by whose terms have absolute values that add up to `magnitudes`."""
    inner = roundoff(accumulator(value.dtype)) * math.sqrt(max(terms, 1))
    return inner * magnitudes + rounded(value)
