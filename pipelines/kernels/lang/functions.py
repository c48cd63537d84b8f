"""Math functions on vectors that kernels compute themselves, and the steps of pointwise programs.

Each function takes and gives a `Vector`, keeps NaN, and states its largest error against float64 in
`ERRORS`, which tests check over the whole range. Results below the smallest normal number are
flushed to zero, and operands below it count as zero, as on IREE's CPU drivers.

exp and log follow Cody and Waite (ln 2 in two parts); their polynomials are those of the Cephes
library, tanh's and erf's rational functions are those of Eigen and XLA; those of
gelu and gelu_tanh are fitted for this project (minimax by reweighted least squares on Chebyshev
polynomials).

A step (`STEPS`) has the name of the pyc op that it computes; gelu in its tanh form is
``gelu_tanh``, a comparison has the name of its predicate. ``to_f16`` and ``to_bf16`` round to these
types.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf, nan
from types import MappingProxyType
from typing import Any

from pyc_mlir.dialects.ops.elementwise import ERFC_P_Q as P_Q
from pyc_mlir.dialects.ops.elementwise import TRANSCENDENTAL_FLOPS
from pyc_mlir.pipelines.kernels.lang.values import (
    ROUNDING,
    SMALLEST,
    Ints,
    Mask,
    Vector,
    arith,
    clamp,
    fma,
    math,
    maximum,
    minimum,
    rounded,
    square_root,
    where,
)

# name -> (largest relative error, largest absolute error of f(x) / |x|): the error is at most the
# sum of both.
ERRORS = MappingProxyType(
    {
        "exp": (1.2e-7, 0.0),
        "exp_nonpositive": (1.2e-7, 0.0),
        "tanh": (3.5e-7, 0.0),
        "erf": (3.5e-7, 0.0),
        "erfc": (1e-6, 0.0),
        "log": (1.5e-7, 0.0),
        "sqrt": (ROUNDING, 0.0),
        "rsqrt": (3 * ROUNDING, 0.0),
        "sigmoid": (3.5e-7, 0.0),
        "silu": (3.5e-7, 1e-38),
        "gelu": (0.0, 5e-7),
        "gelu_tanh": (0.0, 4e-7),
    }
)
# exp is normal between these; beyond, it is zero or infinite in f32.
EXP_LEAST, EXP_MOST = -87.33654, 88.72283
_EXP_GONE = -88.0  # k is -127 here
_ROUNDER = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP = (1.9875691e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
# Here the quotient is exactly 1 (with fused multiply-adds).
_TANH_LIMIT = 7.99881172180175781
# Both times 2^8: near 0 they are about 1.25, so that x times the upper one is not flushed.
_TANH_TOP = (
    *(-7.067567302204288e-14, 5.120481036351411e-11, -2.2027959096671616e-08),
    *(1.3113080551350119e-05, 0.0038034492343802626, 0.1631390537921116, 1.252742287082972),
)
_TANH_BOTTOM = (0.0003067541490347571, 0.030344884655783423, 0.580719265904384, 1.252742447488)
_ERF_LIMIT = 3.832506856900711
_ERF_TOP = (
    *(0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861),
    *(0.18520832239976145, 1.128379143519084),
)
_ERF_BOTTOM = (
    *(-1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885),
    *(0.014070470171167667, 0.11098505178285362, 0.49746925110067538, 1.0),
)
# Where the result is 0.
_ERFC_LIMIT = 10.1
_LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_ROOT_HALF_BITS = 0x3F3504F3
# 2^k is normal for e^-x with x from here on; below, sigmoid is not.
_SIGMOID_LEAST, _SIGMOID_MOST = -88.37, 87.0
# gelu(x) = x * (1/2 + y * p(u)), y = x within the limit, u = 2 (y / limit)^2 - 1.
_GELU_LIMIT = 5.3
_GELU = (
    *(-0.0005269016837701201, 0.001563925645314157, -0.00176970474421978, 0.0021953843533992767),
    *(-0.005123426206409931, 0.009341459721326828, -0.013556016609072685, 0.018786426633596420),
    *(-0.02520786039531231, 0.03209678828716278, -0.03959820792078972, 0.04926341027021408),
    *(-0.06651823967695236, 0.1333925724029541),
)
# The same form.
_GELU_TANH_LIMIT = 5.0
_GELU_TANH = (
    *(0.0006376174278557301, -0.002075070748105645, 0.002671608002856374, -0.002977853873744607),
    *(0.005704973824322224, -0.010501735843718052, 0.016084952279925346, -0.023009609431028366),
    *(0.031336236745119095, -0.04054192453622818, 0.05165809765458107, -0.07036582380533218),
    0.1413785070180893,
)


def polynomial(x: Vector, coefficients: tuple[float, ...]) -> Vector:
    """Evaluate by Horner's rule with fused multiply-adds, the highest power first."""
    value = x.constant(coefficients[0])
    for c in coefficients[1:]:
        value = fma(value, x, c)
    return value


def exp(x: Vector) -> Vector:
    """e^x over the whole range: 0 where it would not be normal, infinity past the largest."""
    power, fraction = _exp_parts(clamp(x, EXP_LEAST, EXP_MOST))
    scaled = where(x < EXP_LEAST, 0.0, (fraction.bits() + (power << 23)).from_bits())
    scaled = where(x > EXP_MOST, inf, scaled)
    # Adding to the exponent's bits could turn some NaNs into numbers.
    return where(x.is_nan(), x, scaled)


def exp_nonpositive(x: Vector) -> Vector:
    """e^x for x <= 0 or NaN, with fewer instructions and constants than `exp`."""
    # At the lower end the exponent's bits are 0, and so is the product.
    return _exp_within(where(x < _EXP_GONE, _EXP_GONE, x))


def _exp_within(x: Vector) -> Vector:
    """e^x where 2^(x / ln 2), rounded, is normal; NaN is kept, since the fraction is NaN."""
    power, fraction = _exp_parts(x)
    return fraction * ((power + 127) << 23).from_bits()


def _exp_parts(x: Vector) -> tuple[Ints, Vector]:
    """k (integers, of which the low 9 bits count) and e^r; x = k ln 2 + r, |r| <= ln 2 / 2."""
    shifted = fma(x, 1.4426950408889634, _ROUNDER)
    k = shifted - _ROUNDER
    r = fma(k, -_LN2_LOW, fma(k, -_LN2_HIGH, x))
    fraction = fma(polynomial(r, _EXP), r * r, r) + 1.0
    return shifted.bits(), fraction


def tanh(x: Vector) -> Vector:
    """Emit the hyperbolic tangent; odd, exactly 1 in size far out."""
    near = clamp(x, -_TANH_LIMIT, _TANH_LIMIT)
    square = near * near
    return near * polynomial(square, _TANH_TOP) / polynomial(square, _TANH_BOTTOM)


def erf(x: Vector) -> Vector:
    """Emit the error function; odd, exactly 1 in size far out."""
    near = clamp(x, -_ERF_LIMIT, _ERF_LIMIT)
    square = near * near
    value = near * polynomial(square, _ERF_TOP) / polynomial(square, _ERF_BOTTOM)
    return clamp(value, -1.0, 1.0)


def erfc(x: Vector) -> Vector:
    """1 - erf x, as exact where it is small: as pyc.erfc decomposes."""
    size = clamp(maximum(x, -x), 0.0, _ERFC_LIMIT)
    coarse = ((size * 16.0 + _ROUNDER) - _ROUNDER) * 0.0625
    power = exp_nonpositive(-(coarse * coarse)) * _exp_within((coarse - size) * (coarse + size))
    top, bottom = (polynomial(size, table[::-1]) for table in P_Q)
    tail = power * top / bottom
    return where(x < 0.0, 2.0 - tail, tail)


def log(x: Vector) -> Vector:
    """Emit the natural logarithm: minus infinity at 0 and of subnormal numbers, NaN below them."""
    power = (x.bits() - _ROOT_HALF_BITS) >> 23
    # x = 2^power (1 + f), 1 + f between the roots of 1/2 and 2.
    f = (x.bits() - (power << 23)).from_bits() - 1.0
    k = power.to_float()
    square = f * f
    value = fma(f * square, polynomial(f, _LOG), k * _LN2_LOW)
    value = fma(k, _LN2_HIGH, f + fma(square, -0.5, value))
    value = where(x < SMALLEST, -inf, value)
    value = where(x < 0.0, nan, value)
    return where(x < inf, value, x)


def sqrt(x: Vector) -> Vector:
    """Emit the square root, rounded once: NaN below 0."""
    return square_root(x)


def rsqrt(x: Vector) -> Vector:
    """1 / sqrt(x), each rounded once: infinity at 0, NaN below it."""
    return 1.0 / square_root(x)


def sigmoid(x: Vector) -> Vector:
    """1 / (1 + e^-x)."""
    return 1.0 / _sigmoid_bottom(x)


def silu(x: Vector) -> Vector:
    """x / (1 + e^-x); exactly 0 below -88.37, also at minus infinity: its limit."""
    return where(x < _SIGMOID_LEAST, 0.0, x / _sigmoid_bottom(x))


def _sigmoid_bottom(x: Vector) -> Vector:
    return 1.0 + _exp_within(clamp(-x, -_SIGMOID_MOST, -_SIGMOID_LEAST))


def gelu(x: Vector) -> Vector:
    """x * Phi(x), Phi the normal distribution, without a division; exactly 0 from -5.3 down.

    At minus infinity it is its limit 0, where the formula would give NaN.
    """
    return _gated(x, _GELU_LIMIT, _GELU)


def gelu_tanh(x: Vector) -> Vector:
    """x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))), without a division.

    Exactly 0 from -5 down, also at minus infinity: its limit.
    """
    return _gated(x, _GELU_TANH_LIMIT, _GELU_TANH)


def _gated(x: Vector, limit: float, coefficients: tuple[float, ...]) -> Vector:
    """x * (1/2 + y * p(2 (y / limit)^2 - 1)) for y = x within the limit; 0 below it."""
    near = clamp(x, -limit, limit)
    u = fma(near * near, 2 / limit**2, -1.0)
    value = x * fma(polynomial(u, coefficients), near, 0.5)
    return where(x < -limit, 0.0, value)


@dataclass(frozen=True)
class Op:
    """A step: how many operands, its code, its roundings; `flops` a number.

    `own` is the relative error that it adds, and an absolute one as a share of the first operand's
    size. A comparison gives a `mask`; a selection takes one (`by_mask`) as its first operand.
    """

    operands: int
    build: Callable[..., Any]
    own: tuple[float, float] = (0.0, 0.0)
    flops: int = 1
    mask: bool = False
    by_mask: bool = False


def _of_math(name: str) -> Callable[[Vector], Vector]:
    return lambda x: Vector(getattr(math, name)(x.value))


def _comparison(predicate: str) -> Op:
    """Make a comparison by MLIR's name of it; NaN is unequal to all."""
    kind = getattr(arith.CmpFPredicate, predicate)
    return Op(2, lambda a, b: Mask(arith.cmpf(kind, a.value, b.value)), mask=True)


def _arithmetic(build: Callable[..., Any]) -> Op:
    return Op(2, build, (ROUNDING, 0.0))


# Half the distance of 1 from the next number.
_HALF_ROUNDINGS = {"f16": 2.0**-11, "bf16": 2.0**-8}
STEPS = MappingProxyType(
    {
        "add": _arithmetic(lambda a, b: a + b),
        "sub": _arithmetic(lambda a, b: a - b),
        "mul": _arithmetic(lambda a, b: a * b),
        "div": _arithmetic(lambda a, b: a / b),
        "maximum": Op(2, maximum),
        "minimum": Op(2, minimum),
        "clip": Op(3, lambda x, low, high: minimum(maximum(x, low), high)),
        "eq": _comparison("OEQ"),
        "ne": _comparison("UNE"),
        "lt": _comparison("OLT"),
        "le": _comparison("OLE"),
        "gt": _comparison("OGT"),
        "ge": _comparison("OGE"),
        "select": Op(3, where, by_mask=True),
        "neg": Op(1, lambda x: -x),
        "abs": Op(1, _of_math("absf")),
        "relu": Op(1, lambda x: maximum(x, 0.0)),
        "floor": Op(1, _of_math("floor")),
        "ceil": Op(1, _of_math("ceil")),
        "round": Op(1, _of_math("roundeven")),
        "sqrt": Op(1, sqrt, ERRORS["sqrt"]),
        "rsqrt": Op(1, rsqrt, ERRORS["rsqrt"]),
        **{
            f"to_{dtype}": Op(1, partial(rounded, dtype=dtype), (unit, 0.0))
            for dtype, unit in _HALF_ROUNDINGS.items()
        },
        **{
            function.__name__: Op(1, function, ERRORS[function.__name__], TRANSCENDENTAL_FLOPS)
            for function in (exp, log, tanh, erf, erfc, sigmoid, silu, gelu, gelu_tanh)
        },
    }
)
