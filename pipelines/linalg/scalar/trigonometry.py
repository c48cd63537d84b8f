"""Sine and cosine over the whole range of f32 and f64, without a branch: their loops are vectors.

x * 2/pi modulo 4 is taken in integers, from as many digits of 2/pi as the exponent of x asks for
(Payne and Hanek, Radian Reduction for Trigonometric Functions, SIGNUM Newsletter 18, 1983). f32
needs words of 32 bits only, so that targets without f64 have it too; f64 has words of 64 bits.
NaN and infinities give NaN. docs/numerics.md has the errors.

The polynomials are those of the Cephes library (Moshier, 1989).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.pipelines.linalg.scalar.operators import Number, polynomial

# 2/pi after the point, in bits, most significant first.
_TWO_OVER_PI = (
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561"
    "b7246e3a424dd2e006492eea09d1921cfe1deb1cb129a73ee88235f52ebb4484"
    "e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980f"
    "ef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b"
    "3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6babf0cfbc209af4361d"
)
# pi/2 in two parts; the first has so few bits that its product with a number that was cut is exact.
_HALF_PI = {32: (1.5703125, 4.838267923332751e-4), 64: (1.5707963109016418, 1.5893254773528196e-8)}
_CUT = {32: 12, 64: 27}
_SIN = {
    32: (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1),
    64: (
        *(1.58962301576546568060e-10, -2.50507477628578072866e-8, 2.75573136213857245213e-6),
        *(-1.98412698295895385996e-4, 8.33333333332211858878e-3, -1.66666666666666307295e-1),
    ),
}
_COS = {
    32: (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2),
    64: (
        *(-1.13585365213876817300e-11, 2.08757008419747316778e-9, -2.75573141792967388112e-7),
        *(2.48015872888517045348e-5, -1.38888888888730564116e-3, 4.16666666666665929218e-2),
    ),
}
_LOW = 0xFFFFFFFF


def sin(x: ir.Value) -> ir.Value:
    """Return the sine of an f32 or f64."""
    return _circular(Number(x), 0).value


def cos(x: ir.Value) -> ir.Value:
    """sin(x + pi/2): the next quarter of the circle."""
    return _circular(Number(x), 1).value


def _circular(x: Number, shift: int) -> Number:
    """|x| = n pi/2 + r + tail with |r| <= pi/4; n mod 4 chooses sine or cosine and the sign."""
    width, sign = x.width, 1 << (x.width - 1)
    size = x.make("math.absf")
    quarter, turn, rest = _fraction(size)
    r, tail = _times_half_pi(turn, rest)
    near = size.compare("lt", math.pi / 4)
    quarter = near.where(0, quarter) + shift
    r = near.where(size, r)
    tail = near.where(0.0, tail)
    z = r * r
    sine = r + (tail + r * z * polynomial(z, _SIN[width]))
    # The tail changes 1 - r^2/2 by r * tail.
    cosine = z * z * polynomial(z, _COS[width]) - r * tail
    half = z * 0.5
    whole = half.constant(1.0) - half
    cosine = whole + ((whole.constant(1.0) - whole - half) + cosine)
    value = (quarter & 1).compare("eq", 0).where(sine, cosine).bits()
    value = value ^ ((quarter & 2) << (width - 2))
    if shift == 0:
        value = value ^ (x.bits() & sign)
    finite = size.compare("lt", math.inf)
    return finite.where(value.from_bits(), math.nan)


def _times_half_pi(x: Number, rest: Number) -> tuple[Number, Number]:
    """(x + rest) * pi/2 as a number and what it lacks; rest is below an ulp of x."""
    high, low = _HALF_PI[x.width]
    top = x.cut(_CUT[x.width])
    large = top * high
    small = top * low + ((x - top) + rest) * (math.pi / 2)
    r = large + small
    return r, small - (r - large)


def _fraction(size: Number) -> tuple[Number, Number, Number]:
    """size * 2/pi = quarter + turn + rest with |turn| <= 1/2, quarter modulo 4.

    Where size is at least 1/2 and finite; the parts of other sizes mean nothing.
    """
    return _fraction_of_f32(size) if size.width == 32 else _fraction_of_f64(size)


def _constants(like: Number, width: int, zeros: int, count: int) -> list[Number]:
    """Return `count` words of `width` bits: `zeros` bits of zero, then digits of 2/pi."""
    digits = "0" * (zeros // 4) + _TWO_OVER_PI
    step = width // 4
    return [like.constant(int(digits[i * step : (i + 1) * step], 16)) for i in range(count)]


def _window(words: Sequence[Number], start: Number, count: int) -> list[Number]:
    """Return `count` words from bit `start` of `words` on: chosen by halves, then shifted."""
    width = start.width
    index, shift = start >> int(math.log2(width)), start & (width - 1)
    chosen = list(words)
    step = 1 << ((len(words) - count - 1).bit_length() - 1)
    while step:
        there = (index & step).compare("eq", 0)
        # With this bit clear the start is at most step - 1 words away; no word after is needed.
        needed = min(len(chosen), count + step)
        chosen = [
            there.where(word, chosen[i + step]) if i + step < len(chosen) else word
            for i, word in enumerate(chosen[:needed])
        ]
        step //= 2
    back = shift ^ (width - 1)
    pairs = pairwise(chosen[: count + 1])
    return [(a << shift) | ((b >> 1) >> back) for a, b in pairs]


def _fraction_of_f32(size: Number) -> tuple[Number, Number, Number]:
    bits = size.bits()
    mantissa = (bits & 0x7FFFFF) | 0x800000
    # size = mantissa * 2^(exponent - 150): the bits of 2/pi before bit exponent - 151 make whole
    # turns. The table starts at bit -31, where the exponent is 120.
    start = _at_most(_at_least_0((bits >> 23) - 120), 134)
    a = _window(_constants(bits, 32, 32, 8), start, 3)
    high_1, low_1 = _long_product(mantissa, a[1])
    _, high_2 = reversed(_long_product(mantissa, a[2]))
    low = low_1 + high_2
    carry = low.compare("lt", low_1).where(low.constant(1), low.constant(0))
    high = mantissa * a[0] + high_1 + carry
    # high, low: a fixed-point number modulo 4, two bits before the point.
    quarter = (high + (1 << 29)) >> 30
    high = high - (quarter << 30)
    sign = high.signed_shift(31)
    high, low = high ^ sign, low ^ sign
    # Pieces of 22, 24 and 16 bits, which are exact as floats.
    middle = ((high & 0xFF) << 16) | (low >> 16)
    top = _float(high >> 8) * 2.0**-22
    small = _float(middle) * 2.0**-46 + _float(low & 0xFFFF) * 2.0**-62
    turn = top + small
    rest = small - (turn - top)
    sign = sign & 0x80000000
    return quarter, (turn.bits() ^ sign).from_bits(), (rest.bits() ^ sign).from_bits()


def _fraction_of_f64(size: Number) -> tuple[Number, Number, Number]:
    bits = size.bits()
    mantissa = (bits & 0xFFFFFFFFFFFFF) | (1 << 52)
    m_low, m_high = mantissa & _LOW, mantissa >> 32
    # size = mantissa * 2^(exponent - 1075). The table starts at bit -63, at the exponent 1013.
    start = _at_most(_at_least_0((bits >> 52) - 1013), 1033)
    a = [d for w in _window(_constants(bits, 64, 64, 20), start, 3) for d in (w >> 32, w & _LOW)]
    # The product's 32-bit digits, the most significant first, modulo 2^128 from digit 0 on.
    p3, q3 = m_low * a[3], m_high * a[4]
    p2, q2 = m_low * a[2], m_high * a[3]
    sum_3 = (p3 & _LOW) + (q3 & _LOW) + ((m_low * a[4]) >> 32) + ((m_high * a[5]) >> 32)
    sum_2 = (p2 & _LOW) + (q2 & _LOW) + (p3 >> 32) + (q3 >> 32) + (sum_3 >> 32)
    high = m_low * a[1] + m_high * a[2] + ((m_low * a[0] + m_high * a[1]) << 32)
    high = high + (p2 >> 32) + (q2 >> 32) + (sum_2 >> 32)
    quarter = (high + (1 << 61)) >> 62
    high = high - (quarter << 62)
    sign = high.signed_shift(63)
    high, d2, d3 = high ^ sign, (sum_2 ^ sign) & _LOW, (sum_3 ^ sign) & _LOW
    # Each digit is exact as a float; none is negative, so that no sum cancels.
    top = _digit(high >> 32) * 2.0**-30
    small = _digit(high & _LOW) * 2.0**-62 + (_digit(d2) * 2.0**-94 + _digit(d3) * 2.0**-126)
    turn = top + small
    rest = small - (turn - top)
    sign = sign & (1 << 63)
    return quarter, (turn.bits() ^ sign).from_bits(), (rest.bits() ^ sign).from_bits()


def _at_least_0(x: Number) -> Number:
    return x.make("arith.maxsi", 0)


def _at_most(x: Number, limit: int) -> Number:
    return x.make("arith.minsi", limit)


def _long_product(x: Number, y: Number) -> tuple[Number, Number]:
    """Return the high and the low word of x * y.

    By i64: IREE does not legalize arith.mului_extended on vectors of several dimensions.
    """
    wide = ir.IntegerType.get_signless(64)
    product = x.make("arith.extui", result=wide) * y.make("arith.extui", result=wide)
    words = (product >> 32, product)
    high, low = (word.make("arith.trunci", result=x.type) for word in words)
    return high, low


def _float(x: Number) -> Number:
    """Return a word of at most 24 bits as f32."""
    return x.make("arith.sitofp", result=ir.F32Type.get())


def _digit(x: Number) -> Number:
    """Return a word of at most 32 bits as f64: the low bits of 2^52, less 2^52."""
    return (x | 0x4330000000000000).from_bits() - 2.0**52
