"""Shifts, bit casts, remainders, and inverse trigonometric functions."""

import math
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir import divisions
from pyc_mlir.dialects.types import accumulator
from pyc_mlir.frontends.frame.errors import unsupported
from pyc_mlir.frontends.onnx.frame.handler import OnnxNode, node, pyc_dtype


@node("BitShift")
def bit_shift(n: OnnxNode) -> Any:
    """The bits of x moved up or down."""
    left = n.attr("direction") == "LEFT"
    return (n.b.shift_left if left else n.b.shift_right)(n.x(0), n.x(1))


@node("BitCast")
def bit_cast(n: OnnxNode) -> Any:
    """The bits of x as another type of as many."""
    target = pyc_dtype(n.attr("to"))
    if target.itemsize != n.type().dtype.itemsize or n.type().dtype == np.bool_:
        raise unsupported(f"bits of {n.type().dtype} as {target}: expected types of one size")
    return n.b.bitcast(n.x(), dtype=target)


@node("Mod")
def modulo(n: OnnxNode) -> Any:
    """Remainder of the divisor's sign (fmod=0, integers), or of the dividend's (fmod=1)."""
    b, lhs, rhs = n.b, n.x(0), n.x(1)
    return b.rem(lhs, rhs) if n.attr("fmod", 0) else divisions.remainder(b, lhs, rhs)


# atan(t) / t on [0, tan(pi/8)] in powers of t^2, by least squares at Chebyshev points in f64: off
# by less than 1e-16 there.
def _arc_coefficients(terms: int = 12) -> tuple[float, ...]:
    edge = math.tan(math.pi / 8) ** 2
    nodes = (np.cos(np.pi * (np.arange(400) + 0.5) / 400) + 1) / 2 * edge
    root = np.sqrt(nodes)
    fitted = np.polynomial.Polynomial.fit(nodes, np.arctan(root) / root, terms, domain=[0, edge])
    return tuple(float(c) for c in fitted.convert().coef)


_ARC = _arc_coefficients()


def arctan(b: Any, x: Any) -> Any:
    """atan x: 1/x where |x| > 1, then the half angle t / (1 + sqrt(1 + t^2)), then a polynomial."""
    dtype = b.type_of(x).dtype
    x = b.convert(x, accumulator(dtype))
    one = b.scalar(1, x)
    size = b.abs(x)
    large = b.compare(size, one, predicate="gt")
    t = b.select(large, b.div(one, size), size)
    t = b.div(t, b.add(one, b.sqrt(b.add(one, b.mul(t, t)))))
    square = b.mul(t, t)
    out = b.scalar(_ARC[-1], x)
    for c in reversed(_ARC[:-1]):
        out = b.add(b.mul(out, square), b.scalar(c, x))
    out = b.mul(b.mul(out, t), b.scalar(2, x))
    out = b.select(large, b.sub(b.scalar(math.pi / 2, x), out), out)
    negative = b.compare(x, b.scalar(0, x), predicate="lt")
    return b.convert(b.select(negative, b.neg(out), out), dtype)


@node("Atan")
def atan(n: OnnxNode) -> Any:
    """The angle of a tangent."""
    return arctan(n.b, n.x())


@node("Asin", "Acos")
def arc_sine(n: OnnxNode) -> Any:
    """asin x = atan(x / sqrt((1 - x)(1 + x))); acos x = pi/2 - asin x, by half angles near 1."""
    b, dtype = n.b, n.type().dtype
    x = b.convert(n.x(), accumulator(dtype))
    one, two = b.scalar(1, x), b.scalar(2, x)
    if n.op == "Asin":
        root = b.sqrt(b.mul(b.sub(one, x), b.add(one, x)))
        return b.convert(arctan(b, b.div(x, root)), dtype)
    ratio = b.div(b.sub(one, x), b.add(one, x))
    return b.convert(b.mul(two, arctan(b, b.sqrt(ratio))), dtype)


@node("Swish")
def swish(n: OnnxNode) -> Any:
    """out = x * sigmoid(alpha x)."""
    b, alpha = n.b, n.attr("alpha", 1.0)
    if alpha == 1.0:
        return b.silu(n.x())
    return b.mul(n.x(), b.sigmoid(b.mul(n.x(), n.number(alpha))))
