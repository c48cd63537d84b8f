"""Inverse trigonometric functions, composed of the dialect's ops, for all front ends.

Each takes a builder and operands of one float type and gives its result in that type. The 16-bit
floats are computed in f32 and rounded once. The relative error is up to 2.5 times the epsilon of
f32, and 5 times that of f64.
"""

import math
from typing import Any

import numpy as np

from pyc_mlir.dialects.functions import copysign, in_accumulator, is_negative


# atan(t) / t on [0, tan(pi/8)] in powers of t^2, by least squares at Chebyshev points in f64: off
# by less than 1e-15 there.
def _arc_coefficients(terms: int = 12) -> tuple[float, ...]:
    edge = math.tan(math.pi / 8) ** 2
    nodes = (np.cos(np.pi * (np.arange(400) + 0.5) / 400) + 1) / 2 * edge
    root = np.sqrt(nodes)
    fitted = np.polynomial.Chebyshev.fit(nodes, np.arctan(root) / root, terms, domain=[0, edge])
    return tuple(float(c) for c in fitted.convert(kind=np.polynomial.Polynomial).coef)


_ARC = _arc_coefficients()


def _angle(b: Any, t: Any) -> Any:
    """atan t for t in [0, 1]: the half angle t / (1 + sqrt(1 + t^2)), then a polynomial."""
    one = b.scalar(1, t)
    t = b.div(t, b.add(one, b.sqrt(b.add(one, b.mul(t, t)))))
    square = b.mul(t, t)
    out = b.scalar(_ARC[-1], t)
    for c in reversed(_ARC[:-1]):
        out = b.add(b.mul(out, square), b.scalar(c, t))
    return b.mul(b.mul(out, t), b.scalar(2, t))


@in_accumulator
def atan(b: Any, x: Any) -> Any:
    """Return the angle in [-pi/2, pi/2] whose tangent is x: pi/2 - atan 1/x where |x| > 1."""
    one, size = b.scalar(1, x), b.abs(x)
    large = b.compare(size, one, predicate="gt")
    out = _angle(b, b.select(large, b.div(one, size), size))
    out = b.select(large, b.sub(b.scalar(math.pi / 2, x), out), out)
    return copysign(b, out, x)


@in_accumulator
def asin(b: Any, x: Any) -> Any:
    """atan(x / sqrt((1 - x)(1 + x))); NaN outside of [-1, 1]."""
    one = b.scalar(1, x)
    root = b.sqrt(b.mul(b.sub(one, x), b.add(one, x)))
    return atan(b, b.div(x, root))


@in_accumulator
def acos(b: Any, x: Any) -> Any:
    """2 atan(sqrt((1 - x) / (1 + x))), which is exact near 1; NaN outside of [-1, 1]."""
    one = b.scalar(1, x)
    ratio = b.div(b.sub(one, x), b.add(one, x))
    return b.mul(b.scalar(2, x), atan(b, b.sqrt(ratio)))


@in_accumulator
def atan2(b: Any, y: Any, x: Any) -> Any:
    """Return the angle in [-pi, pi] of (x, y), by the quotient of the lesser and the greater.

    Zeros and infinities of either sign as in C99.
    """
    height, width = b.abs(y), b.abs(x)
    most, least = b.maximum(height, width), b.minimum(height, width)
    zero, one = b.scalar(0, x), b.scalar(1, x)
    ratio = b.div(least, b.select(b.compare(most, zero, predicate="eq"), one, most))
    infinite = b.compare(least, b.scalar(math.inf, x), predicate="eq")
    out = _angle(b, b.select(infinite, one, ratio))
    steep = b.compare(height, width, predicate="gt")
    out = b.select(steep, b.sub(b.scalar(math.pi / 2, x), out), out)
    out = b.select(is_negative(b, x), b.sub(b.scalar(math.pi, x), out), out)
    return copysign(b, out, y)
