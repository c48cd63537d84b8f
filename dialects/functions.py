"""Functions that the dialect has no op for, composed of its ops: for decompositions and front ends.

Each takes a builder and operands of one float type (`sign` also of an integer type) and gives its
result in that type. The 16-bit floats are computed in f32 and rounded once. docs/numerics.md has
the errors.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import BOOL, DTYPES, accumulator, is_float, is_unsigned


def accumulated(b: Any, x: Any, formula: Callable[..., Any], *others: Any) -> Any:
    """Return `formula` of all, computed in the type that sums of x are kept in, rounded once."""
    dtype = b.type_of(x).dtype
    wide = (b.convert(v, accumulator(dtype)) for v in (x, *others))
    return b.convert(formula(*wide), dtype)


def rational(b: Any, t: Any, tables: Sequence[Sequence[float]]) -> Any:
    """Return the quotient of two polynomials, by their coefficients, the constants first."""
    sums = []
    for table in tables:
        total = b.scalar(table[-1], t)
        for c in reversed(table[:-1]):
            total = b.add(b.mul(total, t), b.scalar(c, t))
        sums.append(total)
    return b.div(*sums)


def in_accumulator(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a builder and operands that computes a formula as `accumulated`."""

    @wraps(formula)
    def function(b: Any, x: Any, *others: Any) -> Any:
        return accumulated(b, x, partial(formula, b), *others)

    return function


def integer_power(b: Any, x: Any, exponent: int) -> Any:
    """x ** exponent by repeated squaring; 1 / x ** -exponent for a negative one."""
    if exponent < 0:
        return b.div(b.scalar(1, x), integer_power(b, x, -exponent))
    if exponent == 0:
        # Of infinities and NaN too.
        return b.select(b.compare(x, x, predicate="eq"), *(b.scalar(1, x),) * 2)
    out, square = None, x
    while exponent:
        if exponent & 1:
            out = square if out is None else b.mul(out, square)
        exponent >>= 1
        square = b.mul(square, square) if exponent else square
    return out


def sign(b: Any, x: Any) -> Any:
    """-1, 0 or 1, of floats and integers; NaN stays. Subnormals that compare as 0 become 0."""
    dtype, zero = b.type_of(x).dtype, b.scalar(0, x)
    below = zero
    if is_float(dtype):
        below = b.select(b.compare(x, x, predicate="eq"), zero, x)
    if not is_unsigned(dtype):
        below = b.select(b.compare(x, zero, predicate="lt"), b.scalar(-1, x), below)
    return b.select(b.compare(x, zero, predicate="gt"), b.scalar(1, x), below)


def _bits(b: Any, x: Any) -> Any:
    return b.bitcast(x, dtype=DTYPES[f"i{8 * b.type_of(x).dtype.itemsize}"])


def is_negative(b: Any, x: Any) -> Any:
    """out = the sign bit of floats, which -0.0 and some NaNs have too."""
    bits = _bits(b, x)
    return b.compare(bits, b.scalar(0, bits), predicate="lt")


def copysign(b: Any, x: Any, y: Any) -> Any:
    """out = |x| with the sign bit of y."""
    size = b.abs(x)
    return b.select(is_negative(b, y), b.neg(size), size)


def nextafter(b: Any, x: Any, y: Any) -> Any:
    """Return the float after x on the way to y; y itself if they are equal, NaN if either is.

    Of x = 0 the least subnormal number, which arithmetic takes for 0.
    """
    dtype = b.type_of(x).dtype
    zero, bits = b.scalar(0, x), _bits(b, x)
    # Of both signs, the integer of the bits without the sign grows with the magnitude.
    up, positive = b.compare(x, y, predicate="lt"), b.compare(x, zero, predicate="gt")
    away = b.compare(up, positive, predicate="eq")
    moved = b.add(bits, b.select(away, b.scalar(1, bits), b.scalar(-1, bits)))
    sign = -(1 << (8 * dtype.itemsize - 1))
    least = b.select(up, b.scalar(1, bits), b.scalar(sign + 1, bits))
    moved = b.select(b.compare(x, zero, predicate="eq"), least, moved)
    out = b.bitcast(moved, dtype=dtype)
    out = b.select(b.compare(x, y, predicate="eq"), y, out)
    unordered = b.or_(*(b.compare(v, v, predicate="ne") for v in (x, y)))
    return b.select(unordered, b.add(x, y), out)


def exp2(b: Any, x: Any) -> Any:
    """2 ** x: exp(x ln 2) would turn the rounding of the product into an error of large results."""
    return b.pow(b.scalar(2, x), x)


@in_accumulator
def log2(b: Any, x: Any) -> Any:
    """log x / log 2; the nearest whole number where that is within two roundings.

    So powers of two are exact: their logarithms err by less (1.4 roundings on a CPU).
    """
    quotient = b.mul(b.log(x), b.scalar(1 / math.log(2), x))
    whole = b.round(quotient)
    reach = b.mul(b.abs(whole), b.scalar(float(np.finfo(b.type_of(x).dtype).eps), x))
    near = b.compare(b.abs(b.sub(quotient, whole)), reach, predicate="le")
    return b.select(near, whole, quotient)


@in_accumulator
def log10(b: Any, x: Any) -> Any:
    """log x / log 10."""
    share = 1 / math.log(10)
    return b.mul(b.log(x), b.scalar(share, x))


@in_accumulator
def log1p(b: Any, x: Any) -> Any:
    """log(w) * x / (w - 1) with w = 1 + x: accurate near 0 (Kahan; HP-15C handbook, 1982)."""
    one = b.scalar(1, x)
    w = b.add(x, one)
    near = b.compare(w, one, predicate="eq")
    infinite = b.compare(w, b.scalar(np.inf, x), predicate="eq")
    rest = b.select(b.or_(near, infinite), one, b.sub(w, one))
    scaled = b.mul(b.log(w), b.div(x, rest))
    return b.select(near, x, b.select(infinite, w, scaled))


@in_accumulator
def expm1(b: Any, x: Any) -> Any:
    """(u - 1) * x / log(u) with u = exp(x): accurate near 0 (Kahan; see log1p)."""
    one = b.scalar(1, x)
    u = b.exp(x)
    less = b.sub(u, one)
    near = b.compare(u, one, predicate="eq")
    far = b.or_(
        b.compare(less, b.neg(one), predicate="eq"),
        b.compare(u, b.scalar(np.inf, x), predicate="eq"),
    )
    exact = b.mul(less, b.div(x, b.log(u)))
    return b.select(near, x, b.select(far, less, exact))


@in_accumulator
def tan(b: Any, x: Any) -> Any:
    """sin x / cos x."""
    return b.div(b.sin(x), b.cos(x))


def _cosh(b: Any, x: Any) -> Any:
    """t^2 / 2 + 1 / (2 t^2) with t = e^(|x|/2), so that only the result can overflow."""
    t = b.exp(b.mul(b.abs(x), b.scalar(0.5, x)))
    half = b.mul(b.mul(t, b.scalar(0.5, x)), t)
    return b.add(half, b.div(b.scalar(0.25, x), half))


@in_accumulator
def cosh(b: Any, x: Any) -> Any:
    """(e^x + e^-x) / 2."""
    return _cosh(b, x)


@in_accumulator
def sinh(b: Any, x: Any) -> Any:
    """tanh x * cosh x: no cancellation near 0."""
    return b.mul(b.tanh(x), _cosh(b, x))


@in_accumulator
def asinh(b: Any, x: Any) -> Any:
    """sign(x) * log1p(|x| + x^2 / (1 + sqrt(x^2 + 1))); log |2 x| where x^2 + 1 is x^2."""
    one, size = b.scalar(1, x), b.abs(x)
    near = b.minimum(size, _root_limit(b, x))
    square = b.mul(near, near)
    tail = b.div(square, b.add(one, b.sqrt(b.add(square, one))))
    return _signed(b, _or_log_of_twice(b, size, log1p(b, b.add(near, tail))), x)


@in_accumulator
def acosh(b: Any, x: Any) -> Any:
    """log1p(t + sqrt(2 t + t^2)) with t = x - 1; log(2 x) where x^2 - 1 is x^2; NaN below 1."""
    # Below 1 the root is NaN; below -1, where t (t + 2) is positive again, by the cut.
    t = b.sub(b.minimum(x, _root_limit(b, x)), b.scalar(1, x))
    root = b.sqrt(b.mul(t, b.add(b.maximum(t, b.scalar(-1, x)), b.scalar(2, x))))
    return _or_log_of_twice(b, x, log1p(b, b.add(t, root)))


@in_accumulator
def atanh(b: Any, x: Any) -> Any:
    """sign(x) * log1p(2 |x| / (1 - |x|)) / 2."""
    size = b.abs(x)
    ratio = b.div(b.mul(b.scalar(2, x), size), b.sub(b.scalar(1, x), size))
    return _signed(b, b.mul(b.scalar(0.5, x), log1p(b, ratio)), x)


def _root_limit(b: Any, x: Any) -> Any:
    """Return the x from which x^2 + 1 and x^2 differ by less than a rounding."""
    return b.scalar(2.0**13 if b.type_of(x).dtype.itemsize == 4 else 2.0**28, x)


def _or_log_of_twice(b: Any, x: Any, near: Any) -> Any:
    """Return `near`, but log x + log 2 beyond the limit; the product 2 x could overflow."""
    far = b.add(b.log(x), b.scalar(math.log(2), x))
    return b.select(b.compare(x, _root_limit(b, x), predicate="gt"), far, near)


def _signed(b: Any, magnitude: Any, x: Any) -> Any:
    """Return the magnitude with the sign of x; x itself where it is 0, of either sign."""
    zero = b.scalar(0, x)
    signed = b.select(b.compare(x, zero, predicate="lt"), b.neg(magnitude), magnitude)
    return b.select(b.compare(x, zero, predicate="eq"), x, signed)


@in_accumulator
def softplus(b: Any, x: Any) -> Any:
    """max(x, 0) + ln(1 + e^-|x|), which neither overflows nor loses small values."""
    return b.add(b.maximum(x, b.scalar(0, x)), log1p(b, b.exp(b.neg(b.abs(x)))))


@in_accumulator
def mish(b: Any, x: Any) -> Any:
    """x * tanh(softplus(x)). Misra, 2019."""
    return b.mul(x, b.tanh(softplus(b, x)))


@in_accumulator
def logaddexp(b: Any, x: Any, y: Any) -> Any:
    """max + log1p(exp(-|x - y|)); equal operands (infinities too) give x + log 2."""
    equal = b.compare(x, y, predicate="eq")
    gap = b.neg(b.abs(b.sub(x, y)))
    apart = b.add(b.maximum(x, y), log1p(b, b.exp(gap)))
    return b.select(equal, b.add(x, b.scalar(math.log(2), x)), apart)


@in_accumulator
def hypot(b: Any, x: Any, y: Any) -> Any:
    """m * sqrt(1 + (n/m)^2) with m the greater and n the lesser magnitude: no square overflows.

    inf where either operand is, whatever the other one.
    """
    x, y = b.abs(x), b.abs(y)
    most, least = b.maximum(x, y), b.minimum(x, y)
    zero, one, infinity = (b.scalar(v, x) for v in (0, 1, np.inf))
    ratio = b.div(least, b.select(b.compare(most, zero, predicate="eq"), one, most))
    length = b.mul(most, b.sqrt(b.add(one, b.mul(ratio, ratio))))
    infinite = b.or_(*(b.compare(v, infinity, predicate="eq") for v in (x, y)))
    return b.select(infinite, infinity, length)


# Numerator and denominator of Wichura's AS 241 (PPND16), the constant first: of 0.180625 - q^2 in
# the middle, of r - 1.6 in the tails, and of r - 5 far out.
_QUANTILE = (
    (
        (3.3871328727963666080, 1.3314166789178437745e2, 1.9715909503065514427e3,
         1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
         3.3430575583588128105e4, 2.5090809287301226727e3),
        (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
         2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
         5.2264952788528545610e3),
    ),
    (
        (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550,
         3.64784832476320460504, 1.27045825245236838258, 2.41780725177450611770e-1,
         2.27238449892691845833e-2, 7.74545014278341407640e-4),
        (1.0, 2.05319162663775882187, 1.67638483018380384940, 6.89767334985100004550e-1,
         1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
         1.05075007164441684324e-9),
    ),
    (
        (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580,
         2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
         2.71155556874348757815e-5, 2.01033439929228813265e-7),
        (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
         7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
         2.04426310338993978564e-15),
    ),
)  # fmt: skip


@in_accumulator
def erfinv(b: Any, x: Any) -> Any:
    """Return the number whose erf is x: the normal quantile of (1 + x) / 2, over sqrt 2.

    Wichura, "Algorithm AS 241", 1988. Infinite at 1 and -1, NaN beyond.
    """
    half = b.mul(x, b.scalar(0.5, x))
    inner = b.sub(b.scalar(0.180625, x), b.mul(half, half))
    middle = b.mul(half, rational(b, inner, _QUANTILE[0]))
    share = b.mul(b.sub(b.scalar(1, x), b.abs(x)), b.scalar(0.5, x))
    r = b.sqrt(b.neg(b.log(share)))
    near = rational(b, b.sub(r, b.scalar(1.6, x)), _QUANTILE[1])
    far = rational(b, b.sub(r, b.scalar(5, x)), _QUANTILE[2])
    tail = b.select(b.compare(r, b.scalar(5, x), predicate="le"), near, far)
    # The quotient of two infinities would be NaN.
    tail = b.select(b.compare(r, b.scalar(math.inf, x), predicate="eq"), r, tail)
    inside = b.compare(b.abs(half), b.scalar(0.425, x), predicate="le")
    out = b.select(inside, middle, copysign(b, tail, x))
    return b.mul(out, b.scalar(math.sqrt(0.5), x))


def filled(b: Any, x: Any, low: Sequence[int], high: Sequence[int], value: Any) -> Any:
    """Pad as pyc.pad, whose value is an f64, by any value of the type, as i64's greatest number."""
    widths = {"low": tuple(low), "high": tuple(high)}
    if is_float(b.type_of(x).dtype) or int(float(value)) == int(value):
        return b.pad(x, **widths, value=float(value))
    inside = b.cast(b.compare(x, x, predicate="eq"), dtype=DTYPES["i8"])
    inside = b.cast(b.pad(inside, **widths), dtype=BOOL)
    return b.select(inside, b.pad(x, **widths), b.scalar(int(value), x))


def sees_a_key(b: Any, mask: Any) -> Any:
    """Return i1 [..., s, 1]: the rows of a mask of attention that leave some key visible."""
    axis = b.type_of(mask).rank - 1
    if b.type_of(mask).dtype != BOOL:
        best = b.reduce_max(mask, axes=(axis,), keepdims=True)
        return b.compare(best, b.scalar(-np.inf, mask), predicate="ne")
    best = b.reduce_max(b.cast(mask, dtype=DTYPES["i8"]), axes=(axis,), keepdims=True)
    return b.compare(best, b.scalar(0, best), predicate="gt")
