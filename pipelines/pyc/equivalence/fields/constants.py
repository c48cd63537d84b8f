"""Constants as the simple numbers that they are rounded from.

A model stores 1/sqrt(12) as the nearest f32. Each number is read as a root (n/d)^(1/k) with k in 1,
2, 4 and d at most 1024, or a decimal of at most six digits, if it is the nearest one of its type to
it. Two numbers of one type are never read as one, so that a constant that is one unit off differs.
"""

from fractions import Fraction
from functools import cache
from math import isqrt

import numpy as np

from pyc_mlir.dialects.types import DTYPES, is_float

_MOST_DENOMINATOR = 1024
_MOST_NUMERATOR = 1 << 20
_DIGITS = 6
# Bits of a binary fraction that is what it says.
_SHORT = 10


@cache
def meant(value: float, name: str) -> tuple[Fraction, int] | None:
    """Return n/d and k of the root that |value| of a type is the rounding of; None for itself."""
    dtype = DTYPES[name]
    exact = Fraction(abs(value))
    if not is_float(dtype) or value == 0 or exact.numerator < 1 << _SHORT:
        return None
    for degree in (1, 2, 4):
        power = exact**degree
        if not Fraction(1, _MOST_NUMERATOR) < power < _MOST_NUMERATOR:
            continue
        found = power.limit_denominator(_MOST_DENOMINATOR)
        if found and _rounds(found, degree, exact, dtype):
            return _reduced(found, degree)
    decimal = Fraction(f"{abs(value):.{_DIGITS - 1}e}")
    return (decimal, 1) if _rounds(decimal, 1, exact, dtype) else None


def _rounds(number: Fraction, degree: int, exact: Fraction, dtype: np.dtype) -> bool:
    """Return whether `exact` is the number of its type that is nearest to a root.

    The root lies strictly between the middles to both neighbours: compared exactly, as powers.
    """
    bits = {2: 8 if dtype == DTYPES["bf16"] else 11, 4: 24, 8: 53}[dtype.itemsize]
    scale = exact.numerator.bit_length() - exact.denominator.bit_length()
    scale -= exact < Fraction(2) ** scale
    half = Fraction(2) ** (scale - bits)
    # Below a power of two the neighbours are twice as close.
    below = half / 2 if exact == Fraction(2) ** scale else half
    return (exact - below) ** degree < number < (exact + half) ** degree


def _reduced(number: Fraction, degree: int) -> tuple[Fraction, int]:
    """Return the same root with the least degree."""
    while degree > 1:
        top, bottom = isqrt(number.numerator), isqrt(number.denominator)
        if top * top != number.numerator or bottom * bottom != number.denominator:
            break
        number, degree = Fraction(top, bottom), degree // 2
    return number, degree
