"""Arithmetic, comparison, logic and casts: operators that work on each element alone.

Operands are brought to the element type that torch promotes them to, then broadcast.
"""

from typing import Any

import numpy as np

from pyc_mlir.dialects import functions
from pyc_mlir.dialects.ir import angles, divisions
from pyc_mlir.dialects.types import BOOL, DTYPES, I64, accumulator, is_float
from pyc_mlir.frontends.torch.shared.handler import AtenCall, aten, operators

_FLOAT_OPS = ("exp", "log", "sin", "cos", "sqrt", "rsqrt", "tanh", "erf", "erfc", "sigmoid")
_FLOAT_FUNCTIONS = (
    "exp2", "log2", "log10", "log1p", "expm1", "tan", "cosh", "sinh", "asinh", "acosh", "atanh",
    "erfinv",
)  # fmt: skip
_ANGLES = ("atan", "asin", "acos")
_ROUNDINGS = ("floor", "ceil", "round")
_PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")


@aten(*(f"{name}.default" for name in _FLOAT_OPS))
def float_op(n: AtenCall) -> Any:
    """Build one pyc op, in the floating-point type of the result."""
    return getattr(n.b, n.op)(n.x("self", n.dtype))


@aten(*(f"{name}.default" for name in _FLOAT_FUNCTIONS))
def float_function(n: AtenCall) -> Any:
    """Apply the composition of `pyc_mlir.dialects.functions`, in the type of the result."""
    return getattr(functions, n.op)(n.b, n.x("self", n.dtype))


@aten(*(f"{name}.default" for name in _ANGLES))
def angle(n: AtenCall) -> Any:
    """Apply the composition of `pyc_mlir.dialects.ir.angles`, in the type of the result."""
    return getattr(angles, n.op)(n.b, n.x("self", n.dtype))


@aten("atan2.default", "hypot.default", "nextafter.default")
def float_function_of_two(n: AtenCall) -> Any:
    """Build a point's angle, a vector's length, or the next number on the way to another one."""
    home = angles if n.op == "atan2" else functions
    return getattr(home, n.op)(n.b, n.x("self", n.dtype), n.x("other", n.dtype))


@aten("copysign.Tensor", "copysign.Scalar")
def copysign(n: AtenCall) -> Any:
    """out = |self| with the sign bit of other."""
    return functions.copysign(n.b, n.x("self", n.dtype), n.x("other", n.dtype))


@aten("angle.default")
def phase(n: AtenCall) -> Any:
    """out = the angle of real numbers: pi below 0, else 0; NaN stays."""
    b, x = n.b, n.x("self", n.dtype)
    zero = b.scalar(0, x)
    out = b.select(b.compare(x, zero, predicate="lt"), b.scalar(np.pi, x), zero)
    return b.select(b.compare(x, x, predicate="eq"), out, x)


@aten("signbit.default")
def sign_bit(n: AtenCall) -> Any:
    """out = the sign bit: self < 0, and -0.0."""
    b, x = n.b, n.x()
    dtype = b.type_of(x).dtype
    if is_float(dtype):
        return functions.is_negative(b, x)
    x = b.cast(x, dtype=DTYPES["i8"]) if dtype == BOOL else x
    return b.compare(x, b.scalar(0, x), predicate="lt")


@aten(*(f"{name}.default" for name in _ROUNDINGS))
def rounding(n: AtenCall) -> Any:
    """Build one pyc op; integers stay."""
    x = n.x()
    return getattr(n.b, n.op)(x) if is_float(n.dtype) else x


@aten("round.decimals")
def round_decimals(n: AtenCall) -> Any:
    """out = x rounded to 10^-decimals, as torch does: by scaling, so that it is not exact."""
    b, x, decimals = n.b, n.x(), n.static("decimals")
    if not is_float(n.dtype):
        return x
    scale = b.scalar(10.0 ** abs(decimals), x)
    if decimals < 0:
        return b.mul(b.round(b.div(x, scale)), scale)
    return b.div(b.round(b.mul(x, scale)), scale) if decimals else b.round(x)


@aten("trunc.default")
def trunc(n: AtenCall) -> Any:
    """out = x rounded toward zero."""
    x = n.x()
    return divisions.truncated(n.b, x) if is_float(n.dtype) else x


@aten("abs.default")
def absolute(n: AtenCall) -> Any:
    """out = |x|."""
    return n.b.abs(n.x()) if n.dtype != BOOL else n.x()


@aten("neg.default")
def negate(n: AtenCall) -> Any:
    """out = -x."""
    return n.b.neg(n.x())


@aten("reciprocal.default")
def reciprocal(n: AtenCall) -> Any:
    """out = 1 / x."""
    x = n.x("self", n.dtype)
    return n.b.div(n.b.scalar(1, x), x)


@aten("square.default")
def square(n: AtenCall) -> Any:
    """out = x * x."""
    x = n.x("self", n.dtype)
    return n.b.mul(x, x)


@aten("sign.default", "sgn.default")
def sign(n: AtenCall) -> Any:
    """out = -1, 0 or 1."""
    b, x = n.b, n.x()
    if n.dtype == BOOL:
        return x
    if not is_float(n.dtype):
        return functions.sign(b, x)
    # torch makes 0 of NaN.
    return functions.sign(b, b.select(b.compare(x, x, predicate="eq"), x, b.scalar(0, x)))


@aten("add.Tensor", "add.Scalar")
def add(n: AtenCall) -> Any:
    """out = self + alpha * other; of booleans, their or."""
    x, y = n.x("self", n.dtype), _scaled(n)
    return n.b.or_(x, y) if n.dtype == BOOL else n.b.add(x, y)


@aten("sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar")
def subtract(n: AtenCall) -> Any:
    """out = self - alpha * other; rsub exchanges them."""
    b, dtype = n.b, n.dtype
    if n.op == "rsub":
        x = n.x("self", dtype)
        alpha = n.static("alpha", 1)
        return b.sub(n.x("other", dtype), x if alpha == 1 else b.mul(b.scalar(alpha, x), x))
    return b.sub(n.x("self", dtype), _scaled(n))


def _scaled(n: AtenCall) -> Any:
    """alpha * other in the type of the result."""
    other, alpha = n.x("other", n.dtype), n.static("alpha", 1)
    if alpha == 1 or n.dtype == BOOL:
        return other
    return n.b.mul(other, n.b.scalar(alpha, other))


@aten("mul.Tensor", "mul.Scalar")
def multiply(n: AtenCall) -> Any:
    """out = self * other; of booleans, their and."""
    x, y = n.x("self", n.dtype), n.x("other", n.dtype)
    return n.b.and_(x, y) if n.dtype == BOOL else n.b.mul(x, y)


@aten("div.Tensor", "div.Scalar", "true_divide.Tensor")
def divide(n: AtenCall) -> Any:
    """out = self / other, of integers in floating point."""
    return n.b.div(n.x("self", n.dtype), n.x("other", n.dtype))


@aten("div.Tensor_mode", "div.Scalar_mode", "floor_divide.default", "floor_divide.Scalar")
def rounded_divide(n: AtenCall) -> Any:
    """out = self / other rounded down (floor) or toward zero (trunc).

    A number or a rank-0 tensor beside 16-bit floats is not rounded to their type, as in torch: the
    quotient of 1 and 0.1 would cross 10.
    """
    b, dtype = n.b, n.dtype
    mode = "floor" if n.op == "floor_divide" else n.arg("rounding_mode")
    wide = accumulator(dtype)
    x, y = b.convert(n.x("self", dtype), wide), n.x("other", wide)
    if b.type_of(y).rank:
        y = b.convert(n.x("other", dtype), wide)
    if mode == "floor":
        return b.convert(divisions.floor_divide(b, x, y), dtype)
    quotient = b.div(x, y)
    if mode == "trunc" and is_float(dtype):
        quotient = divisions.truncated(b, quotient)
    return b.convert(quotient, dtype)


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(n: AtenCall) -> Any:
    """out = self - other * floor(self / other), exactly, of the sign of other."""
    return divisions.remainder(n.b, n.x("self", n.dtype), n.x("other", n.dtype))


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(n: AtenCall) -> Any:
    """out = self - other * trunc(self / other), exactly, of the sign of self."""
    return n.b.rem(n.x("self", n.dtype), n.x("other", n.dtype))


@aten("maximum.default", "minimum.default")
def extremum(n: AtenCall) -> Any:
    """out = the greater or the smaller; NaN if either is."""
    x, y = n.x("self", n.dtype), n.x("other", n.dtype)
    if n.dtype == BOOL:
        return n.b.or_(x, y) if n.op == "maximum" else n.b.and_(x, y)
    return getattr(n.b, n.op)(x, y)


@aten("fmax.default", "fmin.default")
def number_extremum(n: AtenCall) -> Any:
    """out = the greater or the smaller; of a NaN and a number, the number."""
    b, x, y = n.b, n.x("self", n.dtype), n.x("other", n.dtype)
    out = b.maximum(x, y) if n.op == "fmax" else b.minimum(x, y)
    if not is_float(n.dtype):
        return out
    out = b.select(b.compare(x, x, predicate="ne"), y, out)
    return b.select(b.compare(y, y, predicate="ne"), x, out)


@aten("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(n: AtenCall) -> Any:
    """out = self ** exponent; small whole exponents as products, 0.5 as sqrt."""
    b, dtype = n.b, n.dtype
    exponent = n.arguments["exponent"]
    if isinstance(exponent, (int, float)) and exponent == int(exponent) and 0 <= exponent <= 4:
        return _power(b, n.x("self", dtype), int(exponent))
    if not is_float(dtype):
        return _integer_power(n)
    if isinstance(exponent, (int, float)):
        x = n.x("self", dtype)
        if exponent == 0.5:
            return b.sqrt(x)
        if exponent == -0.5:
            return b.rsqrt(x)
        if exponent == -1:
            return b.div(b.scalar(1, x), x)
    return b.pow(n.x("self", dtype), n.x("exponent", dtype))


def _power(b: Any, x: Any, exponent: int) -> Any:
    if exponent == 0:
        return b.select(b.compare(x, x, predicate="eq"), b.scalar(1, x), b.scalar(1, x))
    if exponent == 1:
        return x
    square = b.mul(x, x)
    return {2: lambda: square, 3: lambda: b.mul(square, x), 4: lambda: b.mul(square, square)}[
        exponent
    ]()


def _integer_power(n: AtenCall) -> Any:
    """Raise by repeated squaring over the exponent's bits, wrapping as torch; 0 for negative ones.

    Of a negative exponent, bases 1 and -1 have whole powers.
    """
    b, dtype = n.b, n.dtype
    base, exponent = n.x("self", dtype), n.x("exponent", dtype)
    zero, one = b.scalar(0, base), b.scalar(1, base)
    out, square, rest = one, base, b.abs(exponent)
    for _ in range(6 if dtype == I64 else 5):
        half = b.div(rest, b.scalar(2, base))
        odd = b.compare(b.sub(rest, b.add(half, half)), one, predicate="eq")
        out = b.mul(out, b.select(odd, square, one))
        square, rest = b.mul(square, square), half
    unit = b.compare(b.abs(base), one, predicate="eq")
    negative = b.compare(exponent, zero, predicate="lt")
    return b.select(b.and_(negative, b.not_(unit)), b.mul(out, zero), out)


@aten(*(f"{p}.{kind}" for p in _PREDICATES for kind in ("Tensor", "Scalar")))
def compare(n: AtenCall) -> Any:
    """out = self <predicate> other as i1, in their common type."""
    x, y = n.common("self", "other")
    if n.b.type_of(x).dtype == BOOL and n.op not in ("eq", "ne"):
        x, y = (n.b.cast(v, dtype=DTYPES["i8"]) for v in (x, y))
    return n.b.compare(x, y, predicate=n.op)


@aten("isnan.default")
def is_nan(n: AtenCall) -> Any:
    """out = self != self."""
    return n.b.compare(n.x(), n.x(), predicate="ne")


@aten("isinf.default", "isfinite.default")
def is_infinite(n: AtenCall) -> Any:
    """out = |self| is infinite; isfinite: less than that. Integers are finite."""
    b, x = n.b, n.x()
    if not is_float(b.type_of(x).dtype):
        same = b.compare(x, x, predicate="eq")
        return b.not_(same) if n.op == "isinf" else same
    predicate = "eq" if n.op == "isinf" else "lt"
    return b.compare(b.abs(x), b.scalar(np.inf, x), predicate=predicate)


@aten("logical_and.default", "logical_or.default", "logical_xor.default", "logical_not.default")
def logical(n: AtenCall) -> Any:
    """Build the logic of ``x != 0``."""
    b = n.b
    x = n.x("self", BOOL)
    if n.op == "logical_not":
        return b.not_(x)
    y = n.x("other", BOOL)
    if n.op == "logical_xor":
        return b.compare(x, y, predicate="ne")
    return b.and_(x, y) if n.op == "logical_and" else b.or_(x, y)


@aten("bitwise_not.default")
def bitwise_not(n: AtenCall) -> Any:
    """out = ~self, bit by bit."""
    return n.b.not_(n.x())


@aten(
    *(f"bitwise_{op}.{kind}" for op in ("and", "or", "xor")
      for kind in ("Tensor", "Scalar", "Scalar_Tensor"))
)  # fmt: skip
def bitwise(n: AtenCall) -> Any:
    """pyc.and, pyc.or or pyc.xor."""
    compute = getattr(n.b, f"{n.op.removeprefix('bitwise_')}_")
    return compute(n.x("self", n.dtype), n.x("other", n.dtype))


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(n: AtenCall) -> Any:
    """out = self where the condition holds, else other."""
    condition = n.x("condition", BOOL)
    return n.b.select(condition, n.x("self", n.dtype), n.x("other", n.dtype))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(n: AtenCall) -> Any:
    """out = value where the mask holds, else self."""
    return n.b.select(n.x("mask", BOOL), n.x("value", n.dtype), n.x("self"))


@aten("clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default",
      "clamp_min.Tensor", "clamp_max.Tensor")  # fmt: skip
def clamp(n: AtenCall) -> Any:
    """out = min(max(self, min), max); either bound may be missing."""
    b, x = n.b, n.x("self", n.dtype)
    if n.has("min"):
        x = b.maximum(x, n.x("min", n.dtype))
    return b.minimum(x, n.x("max", n.dtype)) if n.has("max") else x


@aten("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "type_as.default")
def convert(n: AtenCall) -> Any:
    """out = self in the element type of the result; floats truncate toward zero."""
    return n.x("self", n.dtype)


@operators("prims.convert_element_type.default")
def convert_number(n: AtenCall) -> Any:
    """out = a in the element type of the result: a Python float that changes between calls."""
    return n.x("a", n.dtype)
