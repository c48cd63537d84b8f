"""Numbers of a scalar body with Python's operators, and functions that code generation lacks.

Without a branch, but for the remainder: loops of them are vectors. docs/numerics.md has the errors.

- |x| ** y = 2 ** (y log2 |x|) of f32 and f64 over their whole ranges. In f32 the steps are computed
  in f64. In f64 the logarithm and its product with y have two parts, of which the first has so few
  bits that its products are exact (the reduction and the polynomials of Sun's e_pow.c, 1993:
  fdlibm). Powers of two have exact logarithms.
- Sine and cosine over the whole range of f32 and f64. x * 2/pi modulo 4 is taken in integers, from
  as many digits of 2/pi as the exponent of x asks for (Payne and Hanek, Radian Reduction for
  Trigonometric Functions, SIGNUM Newsletter 18, 1983). f32 needs words of 32 bits only, so that
  targets without f64 have it too; f64 has words of 64 bits. NaN and infinities give NaN.
- tanh and erf of f64, by rational and polynomial approximations: greatest error against the C
  library 4e-16 absolute; NaN in, NaN out; exact at the infinities. The exact remainder of f64.

The coefficients of sine, cosine, tanh and erf are those of the Cephes library (Moshier, 1989)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ops.elementwise import ERFC_P_Q

FLOAT_PREDICATES = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "ne": 13, "unordered": 14}
INTEGER_PREDICATES = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5}
UNSIGNED_PREDICATES = {"eq": 0, "ne": 1, "lt": 6, "le": 7, "gt": 8, "ge": 9}


def emit(name: str, *operands: ir.Value, result: ir.Type | None = None) -> ir.Value:
    """Return one op whose result has the type of its first operand unless said otherwise."""
    out = result if result is not None else operands[0].type
    return ir.Operation.create(name, results=[out], operands=list(operands)).result


def select(condition: ir.Value, true_value: ir.Value, false_value: ir.Value) -> ir.Value:
    """arith.select."""
    return emit("arith.select", condition, true_value, false_value, result=true_value.type)


def compare(predicate: str, lhs: ir.Value, rhs: ir.Value, *, unsigned: bool = False) -> ir.Value:
    """arith.cmpf (ordered, but `ne` and `unordered`) or arith.cmpi, of integers or indices."""
    floats = isinstance(lhs.type, ir.FloatType)
    integers = UNSIGNED_PREDICATES if unsigned else INTEGER_PREDICATES
    table = FLOAT_PREDICATES if floats else integers
    i64, i1 = ir.IntegerType.get_signless(64), ir.IntegerType.get_signless(1)
    return ir.Operation.create(
        "arith.cmpf" if floats else "arith.cmpi",
        results=[i1],
        operands=[lhs, rhs],
        attributes={"predicate": ir.IntegerAttr.get(i64, table[predicate])},
    ).result


def constant_scalar(value: Any, type_: ir.Type) -> ir.Value:
    """Return an arith.constant of a scalar type; a word is given with a sign or without one."""
    if isinstance(type_, ir.FloatType):
        attr = ir.FloatAttr.get(type_, float(value))
    else:
        # The bindings take integers as signed ones.
        width = type_.width if isinstance(type_, ir.IntegerType) else 64
        half = 1 << (width - 1)
        number = int(value)
        attr = ir.IntegerAttr.get(type_, number - 2 * half if number >= half > 1 else number)
    return ir.Operation.create("arith.constant", results=[type_], attributes={"value": attr}).result


@dataclass(frozen=True, eq=False)
class Number:
    """A float, a word, an index or a bit inside a linalg.generic: each operator emits one arith op.

    Python numbers among the operands become constants. Integers are words of bits: sums and
    products wrap, `>>` brings in zeros, words are compared without a sign, indices with one.
    number: makes constants of an index, which stand once at the function's begin.
    """

    value: ir.Value
    number: Callable[[int], ir.Value] | None = None

    @property
    def type(self) -> ir.Type:
        """The element type."""
        return self.value.type

    @property
    def is_float(self) -> bool:
        """True if it is f32 or f64."""
        return isinstance(self.type, ir.FloatType)

    @property
    def width(self) -> int:
        """Bits of the type."""
        return self.type.width  # type: ignore[attr-defined]

    def constant(self, value: float) -> "Number":
        """Return a constant of the same type."""
        if self.number is not None:
            return Number(self.number(int(value)), self.number)
        return Number(constant_scalar(value, self.type))

    def _lifted(self, other: "Number | float") -> "Number":
        return other if isinstance(other, Number) else self.constant(other)

    def make(self, op: str, *others: "Number | float", result: ir.Type | None = None) -> "Number":
        """Return the op of that name on this number and the others, of this type by default."""
        operands = [self.value, *(self._lifted(o).value for o in others)]
        return Number(emit(op, *operands, result=result), None if result else self.number)

    def _either(self, if_float: str, if_word: str, other: "Number | float") -> "Number":
        return self.make(if_float if self.is_float else if_word, other)

    def __add__(self, other: "Number | float") -> "Number":
        return self._either("arith.addf", "arith.addi", other)

    def __sub__(self, other: "Number | float") -> "Number":
        return self._either("arith.subf", "arith.subi", other)

    def __mul__(self, other: "Number | float") -> "Number":
        return self._either("arith.mulf", "arith.muli", other)

    def __truediv__(self, other: "Number | float") -> "Number":
        return self.make("arith.divf", other)

    def __floordiv__(self, other: "Number | float") -> "Number":
        return self.make("arith.divui", other)

    def __and__(self, other: "Number | float") -> "Number":
        return self.make("arith.andi", other)

    def __or__(self, other: "Number | float") -> "Number":
        return self.make("arith.ori", other)

    def __xor__(self, other: "Number | float") -> "Number":
        return self.make("arith.xori", other)

    def __lshift__(self, other: "Number | float") -> "Number":
        return self.make("arith.shli", other)

    def __rshift__(self, other: "Number | float") -> "Number":
        return self.make("arith.shrui", other)

    def __neg__(self) -> "Number":
        return self.make("arith.negf")

    def __abs__(self) -> "Number":
        return self.make("math.absf")

    def signed_shift(self, count: int) -> "Number":
        """Shift right, bringing in copies of the highest bit."""
        return self.make("arith.shrsi", count)

    def at_least(self, bound: "Number | float") -> "Number":
        """Return the greater one, of floats or of numbers with a sign."""
        return self._either("arith.maximumf", "arith.maxsi", bound)

    def at_most(self, bound: "Number | float") -> "Number":
        """Return the lesser one, of floats or of numbers with a sign."""
        return self._either("arith.minimumf", "arith.minsi", bound)

    def compare(self, predicate: str, other: "Number | float", *, signed: bool = False) -> "Number":
        """Return a bit: floats ordered, words without a sign unless it is asked for."""
        right = self._lifted(other).value
        unsigned = not signed and isinstance(self.type, ir.IntegerType)
        return Number(compare(predicate, self.value, right, unsigned=unsigned))

    def where(self, yes: "Number | float", no: "Number | float") -> "Number":
        """Return one of two numbers, at most one a constant, by this bit."""
        like = yes if isinstance(yes, Number) else no
        assert isinstance(like, Number)
        return Number(select(self.value, *(like._lifted(v).value for v in (yes, no))), like.number)

    def word(self) -> "Number":
        """Return an index as an i64."""
        return self.make("arith.index_cast", result=ir.IntegerType.get_signless(64))

    def bits(self) -> "Number":
        """Return a float's bits as a word."""
        return self.make("arith.bitcast", result=ir.IntegerType.get_signless(self.width))

    def from_bits(self) -> "Number":
        """Return a word's bits as a float."""
        kind = ir.F64Type if self.width == 64 else ir.F32Type
        return self.make("arith.bitcast", result=kind.get())

    def cut(self, count: int) -> "Number":
        """Return a float without its lowest `count` bits: toward zero."""
        ones = (1 << self.width) - 1
        return (self.bits() & (ones ^ ((1 << count) - 1))).from_bits()


def read(source: ir.Value, *indices: Number) -> Number:
    """Return one element of a tensor."""
    element = ir.RankedTensorType(source.type).element_type
    return Number(emit("tensor.extract", source, *(i.value for i in indices), result=element))


def repeated(
    count: ir.Value, step: Callable[..., Sequence[ir.Value]], *starts: ir.Value
) -> list[ir.Value]:
    """Return the values that `step(turn, *values)` makes of `starts` in `count` turns."""
    zero, one = (constant_scalar(v, count.type) for v in (0, 1))
    types = [v.type for v in starts]
    loop = ir.Operation.create("scf.for", types, [zero, count, one, *starts], regions=1)
    body = loop.regions[0].blocks.append(count.type, *types)
    with ir.InsertionPoint(body):
        ir.Operation.create("scf.yield", operands=list(step(*body.arguments)))
    return list(loop.results)


def polynomial(x: Number, coefficients: Sequence[float]) -> Number:
    """Evaluate by Horner's rule, the highest power first."""
    value = x.constant(coefficients[0])
    for c in coefficients[1:]:
        value = value * x + c
    return value


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
    return (fraction * _scale_of(first) * _scale_of(n - first)).value


def _power_of_f32(x: Number, y: Number) -> Number:
    bits = x.bits()
    k = (bits - _ROOT_HALF_BITS).signed_shift(52)
    m = (bits - (k << 52)).from_bits()  # between the roots of 1/2 and 2
    s = (m - 1.0) / (m + 1.0)
    logarithm = _whole_to_float(k) + s * polynomial(s * s, _LOG2)
    t = _clamp(y * _at_the_ends(x, logarithm), _MOST[32])
    n = t.make("math.roundeven")
    return polynomial((t - n) * _LN2, _EXP) * _scale_of(n)


def _power_of_f64(x: Number, y: Number) -> Number:
    log_high, log_low = _log2(x)
    y_high = y.cut(_HALF)
    low = (y - y_high) * log_high + y * log_low
    high = y_high * log_high
    integral = y * _at_the_ends(x, log_high)
    t = abs(integral).compare("eq", math.inf).where(integral, high + low)
    inside = abs(t).compare("lt", _MOST[64])
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
    return fraction * _scale_of(first) * _scale_of(n - first)


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
    power = _whole_to_float(k)
    high = (((l_high + l_low) + above) + power).cut(_HALF)
    return high, l_low - (((high - power) - above) - l_high)


def _at_the_ends(x: Number, logarithm: Number) -> Number:
    """Return the logarithm, infinite for 0 and infinity."""
    logarithm = x.compare("lt", math.inf).where(logarithm, math.inf)
    return x.compare("eq", 0.0).where(-math.inf, logarithm)


def _clamp(t: Number, most: float) -> Number:
    return t.at_most(most).at_least(-most)


def _whole_to_float(k: Number) -> Number:
    """Return a word between -2048 and 2^51 as f64."""
    return ((k + 2048) | 0x4330000000000000).from_bits() - (2.0**52 + 2048)


def _scale_of(n: Number) -> Number:
    """2 ** n for a whole n, where that is normal: the low bits of the sum become the exponent."""
    mantissa, bias = {32: (23, 127), 64: (52, 1023)}[n.width]
    return ((n + (1.5 * 2.0**mantissa + bias)).bits() << mantissa).from_bits()


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
    size = abs(x)
    # size * 2/pi = quarter + turn + rest with |turn| <= 1/2, quarter modulo 4, where size is at
    # least 1/2 and finite; the parts of other sizes mean nothing. rest is below an ulp of turn.
    fraction = _fraction_of_f32 if width == 32 else _fraction_of_f64
    quarter, turn, rest = fraction(size)
    # (turn + rest) * pi/2 as a number and what it lacks.
    high, low = _HALF_PI[width]
    top = turn.cut(_CUT[width])
    large = top * high
    small = top * low + ((turn - top) + rest) * (math.pi / 2)
    r = large + small
    tail = small - (r - large)
    near = size.compare("lt", math.pi / 4)
    quarter = near.where(0, quarter) + shift
    r = near.where(size, r)
    tail = near.where(0.0, tail)
    z = r * r
    sine = r + (tail + r * z * polynomial(z, _SIN[width]))
    # The tail changes 1 - r^2/2 by r * tail.
    cosine = z * z * polynomial(z, _COS[width]) - r * tail
    half = z * 0.5
    integral = half.constant(1.0) - half
    cosine = integral + ((integral.constant(1.0) - integral - half) + cosine)
    value = (quarter & 1).compare("eq", 0).where(sine, cosine).bits()
    value = value ^ ((quarter & 2) << (width - 2))
    if shift == 0:
        value = value ^ (x.bits() & sign)
    finite = size.compare("lt", math.inf)
    return finite.where(value.from_bits(), math.nan)


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
    start = ((bits >> 23) - 120).at_least(0).at_most(134)
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
    start = ((bits >> 52) - 1013).at_least(0).at_most(1033)
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


Scalar = ir.Value


_TANH_P = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_TANH_Q = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)
_ERF_T = (
    *(9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3),
    *(7.00332514112805075473e3, 5.55923013010394962768e4),
)
_ERF_U = (
    *(1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3),
    *(2.26290000613890934246e4, 4.92673942608635921086e4),
)


def tanh(value: ir.Value) -> ir.Value:
    """Compute a rational near 0, else 1 - 2 / (exp(2|x|) + 1) with the sign of x."""
    x = Number(value)
    z = x * x
    near = x + x * z * (polynomial(z, _TANH_P) / polynomial(z, _TANH_Q))
    size, one, two = abs(x), x.constant(1.0), x.constant(2.0)
    far = one - two / ((two * size).make("math.exp") + one)
    # Near 0, -0 plus a rounded-off product would be +0.
    return size.compare("lt", 0.625).where(near, far).make("math.copysign", x).value


def erf(value: ir.Value) -> ir.Value:
    """Compute a rational below 1, else 1 - exp(-x^2) P(|x|) / Q(|x|) with the sign of x."""
    x = Number(value)
    z = x * x
    near = x * (polynomial(z, _ERF_T) / polynomial(z, _ERF_U))
    # Beyond 6 the result is 1 to the last bit; capping keeps infinities out of the quotient.
    size = abs(x).at_most(6.0)
    p, q = (polynomial(size, table[::-1]) for table in ERFC_P_Q)
    tail = (-(size * size)).make("math.exp") * (p / q)
    far = (x.constant(1.0) - tail).make("math.copysign", x)
    return abs(x).compare("lt", 1.0).where(near, far).value


# An f64 is [sign, 11 bits of exponent, 52 bits of fraction]; a significand has 53 bits.
# The exponent _SPECIAL marks infinities and NaNs.
_FRACTION, _BIAS, _SPECIAL = 52, 1023, 0x7FF
# Bits that a significand can be shifted by in 64.
_CHUNK = 11


def remainder(x: ir.Value, y: ir.Value) -> ir.Value:
    """Return C's fmod: x - trunc(x / y) * y exactly, by long division of the significands.

    Each step brings down 11 bits of the quotient, so that the steps grow with the difference of
    the exponents (one up to quotients of 2^11, 187 at most). Subnormal numbers are 0.
    """
    bits_x, bits_y = Number(x).bits(), Number(y).bits()
    size_x, size_y = (v & (2**63 - 1) for v in (bits_x, bits_y))
    power_x, power_y = size_x >> _FRACTION, size_y >> _FRACTION
    shift = (power_x - power_y).at_least(0)
    dividend, divisor = ((v & (2**_FRACTION - 1)) | 2**_FRACTION for v in (size_x, size_y))
    rest = _long_division(dividend.make("arith.remui", divisor), divisor, shift)
    # The bits of so many last places at that exponent; 0 or less if subnormal.
    places = rest.make("arith.uitofp", result=x.type).bits()
    near = places + ((power_y - (_BIAS + _FRACTION)) << _FRACTION)
    near = rest.compare("eq", 0).where(0, near)
    near = size_x.compare("lt", size_y).where(size_x, near)
    near = near.compare("gt", 2**_FRACTION - 1, signed=True).where(near, 0)
    signed = near | (bits_x & (1 << 63))
    undefined = power_y.compare("eq", 0) | power_x.compare("eq", _SPECIAL)
    undefined = undefined | size_y.compare("gt", _SPECIAL << _FRACTION)
    return undefined.where(math.nan, signed.from_bits()).value


def _long_division(rest: Number, divisor: Number, shift: Number) -> Number:
    """(rest * 2^shift) mod divisor for rest < divisor < 2^53."""
    chunks = shift.make("arith.ceildivsi", _CHUNK)
    count = chunks.make("arith.index_cast", result=ir.IndexType.get())

    def bring_down(_: ir.Value, held: ir.Value, left: ir.Value) -> list[ir.Value]:
        step = Number(left).at_most(_CHUNK)
        lower = (Number(held) << step).make("arith.remui", divisor)
        return [lower.value, (Number(left) - step).value]

    return Number(repeated(count.value, bring_down, rest.value, shift.value)[0])


F64_FUNCTIONS: dict[str, Callable[..., ir.Value]] = {"tanh": tanh, "erf": erf, "rem": remainder}
