"""XLA's elementwise operations, by the names that jaxprs give them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects import functions
from pyc_mlir.dialects.ir import angles
from pyc_mlir.dialects.types import BOOL, DTYPES, is_float
from pyc_mlir.frontends.importing.errors import unsupported

Pointwise = Callable[..., Any]
_F64, _F32, _I8 = DTYPES["f64"], DTYPES["f32"], DTYPES["i8"]


def _direct(name: str) -> Pointwise:
    return lambda b, *xs: getattr(b, name)(*xs)


def _logical(number: str, boolean: str) -> Pointwise:
    """Return the function that records one pyc op for numbers, another one for booleans."""
    return lambda b, *xs: getattr(b, boolean if b.type_of(xs[0]).dtype == BOOL else number)(*xs)


def cbrt(b: Any, x: Any) -> Any:
    """out = x ** (1/3), with the sign of x; f32 is computed in f64."""
    dtype = b.type_of(x).dtype
    wide = b.convert(x, _F64)
    root = b.pow(b.abs(wide), b.scalar(1 / 3, wide))
    negative = b.compare(wide, b.scalar(0, wide), predicate="lt")
    return b.convert(b.select(negative, b.neg(root), root), dtype)


def is_finite(b: Any, x: Any) -> Any:
    """out = |x| < infinity."""
    return b.compare(b.abs(x), b.scalar(np.inf, x), predicate="lt")


def shift_right_logical(b: Any, x: Any, count: Any) -> Any:
    """out = the bits of x moved down, zeros above."""
    own = b.type_of(x).dtype
    x, count = (b.convert(v, np.dtype(f"u{own.itemsize}")) for v in (x, count))
    return b.convert(b.shift_right(x, count), own)


def shift_right_arithmetic(b: Any, x: Any, count: Any) -> Any:
    """out = the bits of x moved down, the highest one repeated above."""
    own = b.type_of(x).dtype
    x, count = (b.convert(v, np.dtype(f"i{own.itemsize}")) for v in (x, count))
    return b.convert(b.shift_right(x, count), own)


def divide(b: Any, x: Any, y: Any) -> Any:
    """out = x / y; integers round toward zero, and all bits of x / 0 are set as in XLA."""
    if is_float(b.type_of(x).dtype):
        return b.div(x, y)
    zero = b.scalar(0, y)
    return b.select(b.compare(y, zero, predicate="eq"), b.not_(zero), b.div(x, y))


def round_away(b: Any, x: Any) -> Any:
    """Round to the nearest integer, halves away from zero."""
    size = b.abs(x)
    down = b.floor(size)
    up = b.compare(b.sub(size, down), b.scalar(0.5, x), predicate="ge")
    rounded = b.select(up, b.add(down, b.scalar(1, x)), down)
    return b.select(b.compare(x, b.scalar(0, x), predicate="lt"), b.neg(rounded), rounded)


def power(b: Any, x: Any, y: Any) -> Any:
    """x ** y of floats; an integer exponent becomes a float."""
    dtype = b.type_of(x).dtype
    if not is_float(dtype):
        raise unsupported("a power of integers: expected a float base or a constant exponent")
    return b.pow(x, b.convert(y, dtype))


def compare(b: Any, x: Any, y: Any, predicate: str) -> Any:
    """out = x <predicate> y; false < true."""
    if b.type_of(x).dtype == BOOL and predicate not in ("eq", "ne"):
        x, y = b.cast(x, dtype=_I8), b.cast(y, dtype=_I8)
    return b.compare(x, y, predicate=predicate)


def total_order_key(b: Any, x: Any) -> Any:
    """Return integers in the order of floats: -NaN < -inf < ... < -0 < +0 < ... < inf < NaN.

    The bits of a float as a signed integer are so for positive numbers; of negative ones, all bits
    but the sign are inverted.
    """
    dtype = b.type_of(x).dtype
    if not is_float(dtype):
        return x
    bits = b.bitcast(x, dtype=DTYPES[f"i{8 * dtype.itemsize}"])
    least = b.scalar(np.iinfo(b.type_of(bits).dtype).min, bits)
    negative = b.compare(bits, b.scalar(0, bits), predicate="lt")
    return b.select(negative, b.or_(b.not_(bits), least), bits)


def compare_total(b: Any, x: Any, y: Any, predicate: str) -> Any:
    """`compare` by the total order of floats."""
    return compare(b, total_order_key(b, x), total_order_key(b, y), predicate)


def convert(b: Any, x: Any, dtype: np.dtype) -> Any:
    """x as `dtype`."""
    return b.convert(x, dtype)


def bitcast(b: Any, x: Any, dtype: np.dtype) -> Any:
    """Return the bits of x read as `dtype`. Raises unsupported for types of other sizes."""
    own = b.type_of(x).dtype
    if dtype.itemsize != own.itemsize or BOOL in (dtype, own):
        raise unsupported(f"the bits of {own} as {dtype}: expected types of as many bits")
    return b.bitcast(x, dtype=dtype)


def clamp(b: Any, low: Any, x: Any, high: Any) -> Any:
    """out = min(max(x, low), high)."""
    return b.clip(x, low, high)


_SAME = (
    "sub", "pow", "neg", "abs", "floor", "ceil", "exp", "log", "sin", "cos", "sqrt", "rsqrt",
    "tanh", "erf", "erfc", "rem", "and", "or", "xor", "not", "shift_left",
)  # fmt: skip
POINTWISE: dict[str, Pointwise] = {
    **{name: _direct(name) for name in _SAME},
    **{name: partial(compare, predicate=name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"{name}_to": partial(compare_total, predicate=name) for name in ("eq", "lt", "le")},
    **{name: getattr(functions, name) for name in ("tan", "sinh", "cosh", "asinh", "acosh")},
    **{name: getattr(functions, name) for name in ("atanh", "log1p", "expm1", "exp2")},
    "nextafter": functions.nextafter,
    "erf_inv": functions.erfinv,
    **{name: getattr(angles, name) for name in ("atan", "asin", "acos", "atan2")},
    "add": _logical("add", "or"),
    "add_any": _logical("add", "or"),
    "mul": _logical("mul", "and"),
    "max": _logical("maximum", "or"),
    "min": _logical("minimum", "and"),
    "div": divide,
    "pow": power,
    "sign": functions.sign,
    "shift_right_logical": shift_right_logical,
    "shift_right_arithmetic": shift_right_arithmetic,
    "cbrt": cbrt,
    "is_finite": is_finite,
    "logistic": _direct("sigmoid"),
    "square": lambda b, x: b.mul(x, x),
    "round_even": _direct("round"),
    "round_away": round_away,
    "clamp": clamp,
}
