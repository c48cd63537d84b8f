"""Quotients rounded to whole numbers, and the remainders that belong to them, for all front ends.

Each function takes a builder and two operands of one number type. Floats use the exact remainder
of pyc.rem (C's fmod), so that no rounded quotient crosses a whole number: 1.0 // 0.1 is 9. The
16-bit floats are divided in f32 and rounded once. An integer divided by 0 gives 0.
"""

from typing import Any

from pyc_mlir.dialects.types import accumulator, is_float


def truncated(b: Any, x: Any) -> Any:
    """Return floats rounded toward zero."""
    return b.select(b.compare(x, b.scalar(0, x), predicate="lt"), b.ceil(x), b.floor(x))


def floor_divide(b: Any, x: Any, y: Any) -> Any:
    """out = x / y rounded down: Python's `//`."""
    return floor_divmod(b, x, y)[0]


def remainder(b: Any, x: Any, y: Any) -> Any:
    """out = x - y * floor(x / y), of the sign of y: Python's `%`. A float zero has that of x."""
    return floor_divmod(b, x, y)[1]


def floor_divmod(b: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return `floor_divide` and `remainder`."""
    dtype = b.type_of(x).dtype
    if (own := getattr(b, "floor_divmod", None)) is not None:
        return own(x, y)
    if not is_float(dtype):
        rest = b.rem(x, y)
        moved = _needs_floor(b, rest, y)
        zero = b.scalar(0, x)
        quotient = b.sub(b.div(x, y), b.cast(moved, dtype=dtype))
        modulus = b.select(moved, b.add(rest, y), rest)
        return quotient, b.select(b.compare(y, zero, predicate="eq"), zero, modulus)
    x, y = (b.convert(v, accumulator(dtype)) for v in (x, y))
    rest = b.rem(x, y)
    moved = _needs_floor(b, rest, y)
    modulus = b.select(moved, b.add(rest, y), rest)
    return b.convert(_floored(b, x, y, rest, moved), dtype), b.convert(modulus, dtype)


def _needs_floor(b: Any, rest: Any, divisor: Any) -> Any:
    """Return i1: truncated and floored quotients differ (never for a divisor of integer zero).

    Signs are compared one by one: the product of rest and divisor may wrap around to 0.
    """
    zero = b.scalar(0, divisor)
    inexact = b.compare(rest, zero, predicate="ne")
    if not is_float(b.type_of(divisor).dtype):
        inexact = b.and_(inexact, b.compare(divisor, zero, predicate="ne"))
    negative = [b.compare(v, zero, predicate="lt") for v in (rest, divisor)]
    return b.and_(inexact, b.compare(*negative, predicate="ne"))


def _floored(b: Any, x: Any, y: Any, rest: Any, moved: Any) -> Any:
    """Return the floored quotient of floats that belongs to a remainder; x / 0 as IEEE has it."""
    zero, one = b.scalar(0, x), b.scalar(1, x)
    quotient = b.div(b.sub(x, rest), y)
    quotient = b.select(moved, b.sub(quotient, one), quotient)
    whole = b.floor(quotient)
    above = b.compare(b.sub(quotient, whole), b.scalar(0.5, x), predicate="gt")
    whole = b.select(above, b.add(whole, one), whole)
    ratio = b.div(x, y)
    none = b.compare(quotient, zero, predicate="eq")
    whole = b.select(none, _signed_zero(b, ratio), whole)
    return b.select(b.compare(y, zero, predicate="eq"), ratio, whole)


def _signed_zero(b: Any, x: Any) -> Any:
    zero = b.scalar(0, x)
    below = b.select(b.compare(x, zero, predicate="lt"), b.scalar(-0.0, x), zero)
    return b.select(b.compare(x, zero, predicate="eq"), x, below)
