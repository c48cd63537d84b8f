"""|x| ** y = 2 ** (y log2 |x|) for f32 and f64 over their whole ranges, without a branch.

In f32 the steps are computed in f64. In f64 the logarithm and its product with y have two parts, of
which the first has so few bits that its products are exact (the reduction and the polynomials of
Sun's e_pow.c, 1993: fdlibm). Powers of two have exact logarithms. docs/numerics.md has the errors.
"""

import math

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.pipelines.linalg.scalar.operators import Number, polynomial

_LN2 = math.log(2)
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
# log2((1 + s) / (1 - s)) / s in powers of s^2, for |s| <= 0.172; e^r for |r| <= ln 2 / 2.
_LOG2 = tuple(2 / (2 * i + 1) / _LN2 for i in range(5, -1, -1))
_EXP = tuple(1 / math.factorial(i) for i in range(8, -1, -1))
# (2^r - 1) / r for |r| <= 1/2.
_EXP2 = {
    width: tuple(_LN2**i / math.factorial(i) for i in range(degree, 0, -1))
    for width, degree in {32: 7, 64: 13}.items()
}
# Beyond these powers of two everything is zero or infinite; their roots are normal.
_MOST = {32: 250.0, 64: 1100.0}
# 3/2 log((1 + s) / (1 - s)) = 3s + s^3 + s^5 _L(s^2), |s| <= 0.101.
_L = (
    *(2.06975017800338417784e-1, 2.30660745775561754067e-1, 2.72728123808534006489e-1),
    *(3.33333329818377432918e-1, 4.28571428578550184252e-1, 5.99999999999994648725e-1),
)
# r (e^r + 1) / (e^r - 1) = 2 + r^2 _P(r^2).
_P = (
    *(4.13813679705723846039e-8, -1.65339022054652515390e-6, 6.61375632143793436117e-5),
    *(-2.77777777770155933842e-3, 1.66666666666666019037e-1),
)
# 2 / (3 ln 2), log2(3/2) and ln 2, each also in two parts.
_CP, _CP_HIGH, _CP_LOW = (
    *(9.61796693925975554329e-1, 9.61796700954437255859e-1, -7.02846165095275826516e-9),
)
_LOG2_HIGH, _LOG2_LOW = 5.84962487220764160156e-1, 1.35003920212974897128e-8
_LN2_HIGH, _LN2_LOW = 6.93147182464599609375e-1, -1.90465429995776804525e-9
_HALF = 32  # bits that are cut from a number whose products are to be exact


def power_of_size(size: ir.Value, y: ir.Value) -> ir.Value:
    """size ** y for size >= 0, f32 or f64; what comes of NaN and of 0 ** 0 means nothing."""
    x, exponent = Number(size), Number(y)
    if x.width == 64:
        return _power_of_f64(x, exponent).value
    wide = ir.F64Type.get()
    out = _power_of_f32(x.make("arith.extf", result=wide), exponent.make("arith.extf", result=wide))
    return out.make("arith.truncf", result=x.type).value


def power_of_two(y: ir.Value) -> ir.Value:
    """2 ** y for f32 or f64; NaN stays. The fraction of y is exact, whatever its size."""
    x = Number(y)
    t = _clamp(x, _MOST[x.width])
    n = t.make("math.roundeven")
    r = t - n
    fraction = r * polynomial(r, _EXP2[x.width]) + 1.0
    first = (n * 0.5).make("math.floor")
    return (fraction * _power_of_two(first) * _power_of_two(n - first)).value


def _power_of_f32(x: Number, y: Number) -> Number:
    bits = x.bits()
    k = (bits - _ROOT_HALF_BITS).signed_shift(52)
    m = (bits - (k << 52)).from_bits()  # between the roots of 1/2 and 2
    s = (m - 1.0) / (m + 1.0)
    logarithm = _to_float(k) + s * polynomial(s * s, _LOG2)
    t = _clamp(y * _at_the_ends(x, logarithm), _MOST[32])
    n = t.make("math.roundeven")
    return polynomial((t - n) * _LN2, _EXP) * _power_of_two(n)


def _power_of_f64(x: Number, y: Number) -> Number:
    log_high, log_low = _log2(x)
    y_high = y.cut(_HALF)
    low = (y - y_high) * log_high + y * log_low
    high = y_high * log_high
    whole = y * _at_the_ends(x, log_high)
    t = whole.make("math.absf").compare("eq", math.inf).where(whole, high + low)
    inside = t.make("math.absf").compare("lt", _MOST[64])
    t = _clamp(t, _MOST[64])
    n = t.make("math.roundeven")
    high, low = inside.where(high - n, t - n), inside.where(low, 0.0)
    top = (high + low).cut(_HALF)
    u = top * _LN2_HIGH
    v = (low - (top - high)) * _LN2 + top * _LN2_LOW
    r = u + v
    rest = v - (r - u)
    z = r * r
    q = r - z * polynomial(z, _P)
    value = (r * q) / (q - 2.0) - (rest + r * rest)
    fraction = value.constant(1.0) - (value - r)
    # In two steps, since 2^n alone may leave the range where the result does not.
    first = (n * 0.5).make("math.floor")
    return fraction * _power_of_two(first) * _power_of_two(n - first)


def _log2(x: Number) -> tuple[Number, Number]:
    """log2 x in two parts, the first without its lowest 32 bits."""
    bits = x.bits()
    m = ((bits & ((1 << 52) - 1)) | (1023 << 52)).from_bits()
    k = (bits >> 52) - 1023
    # m is taken relative to 1, or to 3/2, or halved and relative to 1.
    large = m.compare("ge", math.sqrt(3))
    m = large.where(m * 0.5, m)
    k = large.where(k + 1, k)
    middle = m.compare("ge", math.sqrt(1.5))
    base = middle.where(m.constant(1.5), 1.0)
    u, total = m - base, m + base
    inverse = total.constant(1.0) / total
    s = u * inverse
    s_high, total_high = s.cut(_HALF), total.cut(_HALF)
    total_low = m - (total_high - base)
    s_low = inverse * ((u - s_high * total_high) - s_high * total_low)
    z = s * s
    z_high = s_high * s_high
    rest = z * z * polynomial(z, _L) + s_low * (s_high + s)
    sum_high = (z_high + 3.0 + rest).cut(_HALF)
    sum_low = rest - ((sum_high - 3.0) - z_high)
    u, v = s_high * sum_high, s_low * sum_high + sum_low * s
    p_high = (u + v).cut(_HALF)
    p_low = v - (p_high - u)
    l_high = p_high * _CP_HIGH
    zero = p_low.constant(0.0)
    l_low = p_high * _CP_LOW + p_low * _CP + middle.where(zero.constant(_LOG2_LOW), zero)
    above = middle.where(zero.constant(_LOG2_HIGH), zero)
    power = _to_float(k)
    high = (((l_high + l_low) + above) + power).cut(_HALF)
    return high, l_low - (((high - power) - above) - l_high)


def _at_the_ends(x: Number, logarithm: Number) -> Number:
    """Return the logarithm, infinite for 0 and infinity."""
    logarithm = x.compare("lt", math.inf).where(logarithm, math.inf)
    return x.compare("eq", 0.0).where(-math.inf, logarithm)


def _clamp(t: Number, most: float) -> Number:
    return t.make("arith.minimumf", most).make("arith.maximumf", -most)


def _to_float(k: Number) -> Number:
    """Return a word between -2048 and 2^51 as f64."""
    return ((k + 2048) | 0x4330000000000000).from_bits() - (2.0**52 + 2048)


def _power_of_two(n: Number) -> Number:
    """2 ** n for a whole n, where that is normal: the low bits of the sum become the exponent."""
    mantissa, bias = {32: (23, 127), 64: (52, 1023)}[n.width]
    return ((n + (1.5 * 2.0**mantissa + bias)).bits() << mantissa).from_bits()
