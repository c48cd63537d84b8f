"""Shifts, bit casts, remainders, and inverse trigonometric functions."""

from typing import Any

import numpy as np

from pyc_mlir.dialects.ir import angles, divisions
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node, pyc_dtype


@node("BitShift")
def bit_shift(n: OnnxNode) -> Any:
    """Shift the bits of x left or right."""
    left = n.attr("direction") == "LEFT"
    return (n.b.shift_left if left else n.b.shift_right)(n.x(0), n.x(1))


@node("BitCast")
def bit_cast(n: OnnxNode) -> Any:
    """Reinterpret the bits of x as another type of the same width."""
    target = pyc_dtype(n.attr("to"))
    if target.itemsize != n.type().dtype.itemsize or n.type().dtype == np.bool_:
        raise unsupported(f"bits of {n.type().dtype} as {target}: expected types of one size")
    return n.b.bitcast(n.x(), dtype=target)


@node("Mod")
def modulo(n: OnnxNode) -> Any:
    """Build the remainder of the divisor's sign (fmod=0, integers) or the dividend's (fmod=1)."""
    b, lhs, rhs = n.b, n.x(0), n.x(1)
    return b.rem(lhs, rhs) if n.attr("fmod", 0) else divisions.remainder(b, lhs, rhs)


@node("Atan", "Asin", "Acos")
def arc(n: OnnxNode) -> Any:
    """Build the angle of a tangent, a sine or a cosine."""
    return getattr(angles, n.op.lower())(n.b, n.x())


@node("Swish")
def swish(n: OnnxNode) -> Any:
    """out = x * sigmoid(alpha x)."""
    b, alpha = n.b, n.attr("alpha", 1.0)
    if alpha == 1.0:
        return b.silu(n.x())
    return b.mul(n.x(), b.sigmoid(b.mul(n.x(), n.number(alpha))))
