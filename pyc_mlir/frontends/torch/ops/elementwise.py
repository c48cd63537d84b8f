"""Arithmetic, comparison, logic, casts, activations: operators that work on each element alone."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pyc_mlir.dialects import functions
from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.dialects.ir import angles, divisions
from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.types import BOOL, DTYPES, I64, accumulator, is_float
from pyc_mlir.frontends.importing.shaping import take
from pyc_mlir.frontends.torch.ops.handler import AtenCall, aten, operators, promoted, static_size

_FLOAT_OPS = ("exp", "log", "sin", "cos", "sqrt", "rsqrt", "tanh", "erf", "erfc", "sigmoid")
_COMPOSED = {
    **{n: getattr(functions, n) for n in ("exp2", "log2", "log10", "log1p", "expm1", "tan")},
    **{n: getattr(functions, n) for n in ("cosh", "sinh", "asinh", "acosh", "atanh", "erfinv")},
    **{n: getattr(angles, n) for n in ("atan", "asin", "acos")},
}
_PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")


def _or_of_bits(number: str, bits: str) -> Callable[..., Any]:
    """Return the formula of one pyc op for numbers, and of another one for booleans."""

    def formula(b: Any, x: Any, y: Any) -> Any:
        return getattr(b, bits if b.type_of(x).dtype == BOOL else number)(x, y)

    return formula


# Overloads, what they compute, the formula of operands in the element type of the result.
_FORMULAS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("copysign.Tensor copysign.Scalar", "out = |self| with the sign bit of other.",
     functions.copysign),
    ("atan2.default", "out = the angle of the point (other, self).", angles.atan2),
    ("hypot.default", "out = sqrt(self^2 + other^2).", functions.hypot),
    ("nextafter.default", "out = the next number on the way to other.", functions.nextafter),
    ("neg.default", "out = -x.", lambda b, x: b.neg(x)),
    ("reciprocal.default", "out = 1 / x.", lambda b, x: b.div(b.scalar(1, x), x)),
    ("square.default", "out = x * x.", lambda b, x: b.mul(x, x)),
    ("mul.Tensor mul.Scalar", "out = self * other; of booleans, their and.",
     _or_of_bits("mul", "and_")),
    ("div.Tensor div.Scalar true_divide.Tensor",
     "out = self / other, of integers in floating point.", lambda b, x, y: b.div(x, y)),
    ("remainder.Tensor remainder.Scalar remainder.Scalar_Tensor",
     "out = self - other * floor(self / other), exactly, of the sign of other.",
     divisions.remainder),
    ("fmod.Tensor fmod.Scalar",
     "out = self - other * trunc(self / other), exactly, of the sign of self.",
     lambda b, x, y: b.rem(x, y)),
    ("maximum.default", "out = the greater; NaN if either is.", _or_of_bits("maximum", "or_")),
    ("minimum.default", "out = the smaller; NaN if either is.", _or_of_bits("minimum", "and_")),
    ("bitwise_not.default", "out = ~self, bit by bit.", lambda b, x: b.not_(x)),
    ("bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor", "pyc.and.",
     lambda b, x, y: b.and_(x, y)),
    ("bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor", "pyc.or.",
     lambda b, x, y: b.or_(x, y)),
    ("bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor", "pyc.xor.",
     lambda b, x, y: b.xor(x, y)),
    ("_to_copy.default to.dtype to.dtype_layout to.device type_as.default",
     "out = self in the element type of the result; floats truncate toward zero.",
     lambda b, x: x),
    ("mish.default", "out = x * tanh(softplus(x)). Misra, 2019.", functions.mish),
)  # fmt: skip


for _names, _meaning, _formula in _FORMULAS:
    promoted(*_names.split(), meaning=_meaning)(_formula)


@promoted(*(f"{name}.default" for name in _FLOAT_OPS))
def float_op(n: AtenCall, x: Any) -> Any:
    """Build one pyc op, in the floating-point type of the result."""
    return getattr(n.b, n.op)(x)


@promoted(*(f"{name}.default" for name in _COMPOSED))
def float_function(n: AtenCall, x: Any) -> Any:
    """Apply a composition of pyc ops, in the floating-point type of the result."""
    return _COMPOSED[n.op](n.b, x)


@promoted("angle.default")
def phase(b: Any, x: Any) -> Any:
    """out = the angle of real numbers: pi below 0, else 0; NaN stays."""
    zero = b.scalar(0, x)
    out = b.select(b.compare(x, zero, predicate="lt"), b.scalar(np.pi, x), zero)
    return b.select(b.compare(x, x, predicate="eq"), out, x)


@aten("signbit.default")
def sign_bit(b: Any, x: Any) -> Any:
    """out = the sign bit: self < 0, and -0.0."""
    dtype = b.type_of(x).dtype
    if is_float(dtype):
        return functions.is_negative(b, x)
    x = b.cast(x, dtype=DTYPES["i8"]) if dtype == BOOL else x
    return b.compare(x, b.scalar(0, x), predicate="lt")


@aten("floor.default", "ceil.default", "round.default")
def rounding(n: AtenCall, x: Any) -> Any:
    """Build one pyc op; integers stay."""
    return getattr(n.b, n.op)(x) if is_float(n.dtype) else x


@aten("round.decimals")
def round_decimals(n: AtenCall, x: Any, *, decimals: int) -> Any:
    """out = x rounded to 10^-decimals, as torch does: by scaling, so that it is not exact."""
    b = n.b
    if not is_float(n.dtype):
        return x
    scale = b.scalar(10.0 ** abs(decimals), x)
    if decimals < 0:
        return b.mul(b.round(b.div(x, scale)), scale)
    return b.div(b.round(b.mul(x, scale)), scale) if decimals else b.round(x)


@aten("trunc.default")
def trunc(n: AtenCall, x: Any) -> Any:
    """out = x rounded toward zero."""
    return divisions.truncated(n.b, x) if is_float(n.dtype) else x


@aten("abs.default")
def absolute(n: AtenCall, x: Any) -> Any:
    """out = |x|."""
    return n.b.abs(x) if n.dtype != BOOL else x


@aten("sign.default", "sgn.default")
def sign(n: AtenCall, x: Any) -> Any:
    """out = -1, 0 or 1."""
    b = n.b
    if n.dtype == BOOL:
        return x
    if not is_float(n.dtype):
        return functions.sign(b, x)
    # torch makes 0 of NaN.
    return functions.sign(b, b.select(b.compare(x, x, predicate="eq"), x, b.scalar(0, x)))


@promoted("add.Tensor", "add.Scalar")
def add(b: Any, x: Any, y: Any, *, alpha: float = 1) -> Any:
    """out = self + alpha * other; of booleans, their or."""
    if b.type_of(x).dtype == BOOL:
        return b.or_(x, y)
    return b.add(x, _times(b, y, alpha))


@promoted("sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar")
def subtract(n: AtenCall, x: Any, y: Any, *, alpha: float = 1) -> Any:
    """out = self - alpha * other; rsub exchanges them."""
    if n.op == "rsub":
        x, y = y, x
    return n.b.sub(x, _times(n.b, y, alpha))


def _times(b: Any, x: Any, factor: float) -> Any:
    return x if factor == 1 else b.mul(x, b.scalar(factor, x))


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


@promoted("fmax.default", "fmin.default")
def number_extremum(n: AtenCall, x: Any, y: Any) -> Any:
    """out = the greater or the smaller; of a NaN and a number, the number."""
    b = n.b
    out = b.maximum(x, y) if n.op == "fmax" else b.minimum(x, y)
    if not is_float(n.dtype):
        return out
    out = b.select(b.compare(x, x, predicate="ne"), y, out)
    return b.select(b.compare(y, y, predicate="ne"), x, out)


@aten("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(n: AtenCall) -> Any:
    """out = self ** exponent; small whole exponents as products, 0.5 as sqrt."""
    b, dtype = n.b, n.dtype
    exponent, x = n.arguments["exponent"], n.x("self", dtype)
    if isinstance(exponent, (int, float)) and exponent == int(exponent) and 0 <= exponent <= 4:
        return functions.integer_power(b, x, int(exponent))
    if not is_float(dtype):
        return _integer_power(b, x, n.x("exponent", dtype))
    if exponent == 0.5:
        return b.sqrt(x)
    if exponent == -0.5:
        return b.rsqrt(x)
    return b.div(b.scalar(1, x), x) if exponent == -1 else b.pow(x, n.x("exponent", dtype))


def _integer_power(b: Any, base: Any, exponent: Any) -> Any:
    """Raise by repeated squaring over the exponent's bits, wrapping as torch; 0 for negative ones.

    Of a negative exponent, bases 1 and -1 have whole powers.
    """
    zero, one = b.scalar(0, base), b.scalar(1, base)
    out, square, rest = one, base, b.abs(exponent)
    for _ in range(6 if b.type_of(base).dtype == I64 else 5):
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
    dtype = n.common_dtype("self", "other")
    x, y = n.x("self", dtype), n.x("other", dtype)
    if dtype == BOOL and n.op not in ("eq", "ne"):
        x, y = (n.b.cast(v, dtype=DTYPES["i8"]) for v in (x, y))
    return n.b.compare(x, y, predicate=n.op)


@aten("isnan.default")
def is_nan(b: Any, x: Any) -> Any:
    """out = self != self."""
    return b.compare(x, x, predicate="ne")


@aten("isinf.default", "isfinite.default")
def is_infinite(n: AtenCall, x: Any) -> Any:
    """out = |self| is infinite; isfinite: less than that. Integers are finite."""
    b = n.b
    if not is_float(b.type_of(x).dtype):
        same = b.compare(x, x, predicate="eq")
        return b.not_(same) if n.op == "isinf" else same
    predicate = "eq" if n.op == "isinf" else "lt"
    return b.compare(b.abs(x), b.scalar(np.inf, x), predicate=predicate)


@aten("logical_and.default", "logical_or.default", "logical_xor.default", "logical_not.default")
def logical(n: AtenCall) -> Any:
    """Build the logic of ``x != 0``."""
    b, x = n.b, n.x("self", BOOL)
    if n.op == "logical_not":
        return b.not_(x)
    y = n.x("other", BOOL)
    if n.op == "logical_xor":
        return b.compare(x, y, predicate="ne")
    return b.and_(x, y) if n.op == "logical_and" else b.or_(x, y)


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(n: AtenCall, condition: Any) -> Any:
    """out = self where the condition holds, else other."""
    condition = n.b.convert(condition, BOOL)
    return n.b.select(condition, n.x("self", n.dtype), n.x("other", n.dtype))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(n: AtenCall, x: Any, mask: Any) -> Any:
    """out = value where the mask holds, else self."""
    return n.b.select(n.b.convert(mask, BOOL), n.x("value", n.dtype), x)


@aten("clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default",
      "clamp_min.Tensor", "clamp_max.Tensor")  # fmt: skip
def clamp(n: AtenCall) -> Any:
    """out = min(max(self, min), max); either bound may be missing."""
    b, x = n.b, n.x("self", n.dtype)
    if n.has("min"):
        x = b.maximum(x, n.x("min", n.dtype))
    return b.minimum(x, n.x("max", n.dtype)) if n.has("max") else x


@operators("prims.convert_element_type.default", promotes=True)
def convert_number(b: Any, x: Any) -> Any:
    """out = a in the element type of the result: a Python float that changes between calls."""
    return x


@aten("relu.default", "silu.default")
def same(n: AtenCall, x: Any) -> Any:
    """Build one pyc op."""
    return getattr(n.b, n.op)(x)


@aten("gelu.default")
def gelu(b: Any, x: Any, *, approximate: str = "none") -> Any:
    """pyc.gelu, exact or with tanh."""
    return b.gelu(x, approximate=approximate)


@aten("softplus.default")
def softplus(b: Any, x: Any, *, beta: float = 1, threshold: float = 20) -> Any:
    """out = ln(1 + e^(beta x)) / beta; x itself where beta x is above the threshold."""

    def formula(x: Any) -> Any:
        scaled = _times(b, x, beta)
        smooth = functions.softplus(b, scaled)
        smooth = smooth if beta == 1 else b.div(smooth, b.scalar(beta, x))
        return b.select(b.compare(scaled, b.scalar(threshold, x), predicate="gt"), x, smooth)

    return accumulated(b, x, formula)


@aten("elu.default")
def elu(b: Any, x: Any, *, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    """out = scale * x where x > 0, else scale * alpha * (e^(x * input_scale) - 1)."""

    def formula(x: Any) -> Any:
        low = functions.expm1(b, b.mul(x, b.scalar(input_scale, x)))
        low = b.mul(low, b.scalar(alpha * scale, x))
        return _where_positive(b, x, b.mul(x, b.scalar(scale, x)), low)

    return accumulated(b, x, formula)


def _where_positive(b: Any, x: Any, high: Any, low: Any) -> Any:
    return b.select(b.compare(x, b.scalar(0, x), predicate="gt"), high, low)


@aten("leaky_relu.default")
def leaky_relu(b: Any, x: Any, *, negative_slope: float = 0.01) -> Any:
    """out = x where x > 0, else negative_slope * x."""
    return _where_positive(b, x, x, b.mul(x, b.scalar(negative_slope, x)))


@aten("_prelu_kernel.default")
def prelu(b: Any, x: Any, weight: Any) -> Any:
    """out = x where x > 0, else weight * x."""
    return _where_positive(b, x, x, b.mul(x, weight))


@aten("hardtanh.default")
def hardtanh(b: Any, x: Any, *, min_val: float = -1, max_val: float = 1) -> Any:
    """out = min(max(x, min_val), max_val)."""
    return b.clip(x, b.scalar(min_val, x), b.scalar(max_val, x))


@aten("relu6.default")
def relu6(b: Any, x: Any) -> Any:
    """out = min(max(x, 0), 6)."""
    return hardtanh(b, x, min_val=0, max_val=6)


@aten("hardsigmoid.default", "hardswish.default")
def hard(n: AtenCall, x: Any) -> Any:
    """out = min(max(x + 3, 0), 6) / 6, times x for hardswish. Howard et al., 2019."""
    b = n.b

    def formula(x: Any) -> Any:
        gate = hardtanh(b, b.add(x, b.scalar(3, x)), min_val=0, max_val=6)
        # torch's order: the product first.
        top = b.mul(x, gate) if n.op == "hardswish" else gate
        return b.div(top, b.scalar(6, x))

    return accumulated(b, x, formula)


@promoted("softmax.int", "_softmax.default", "log_softmax.int", "_log_softmax.default",
          "_safe_softmax.default")  # fmt: skip
def softmax(n: AtenCall, x: Any) -> Any:
    """pyc.softmax or pyc.log_softmax along `dim`."""
    b = n.b
    if not n.rank():
        return b.mul(x, b.scalar(0, x)) if "log" in n.op else b.div(x, x)
    out = (b.log_softmax if "log" in n.op else b.softmax)(x, axis=n.axis())
    if n.op != "_safe_softmax":
        return out
    best = b.reduce_max(x, axes=(n.axis(),), keepdims=True)
    nothing = b.compare(best, b.scalar(float("-inf"), x), predicate="eq")
    return b.select(nothing, b.scalar(0, x), out)


@aten("glu.default")
def glu(n: AtenCall, x: Any) -> Any:
    """out = a * sigmoid(b), the halves of x along `dim`. Dauphin et al., 2017."""
    b, axis = n.b, n.axis("dim", -1)
    half = static_size(b, x, axis, "a dynamic dimension in halves") // 2
    first, second = take(b, x, axis, 0, half), take(b, x, axis, half, END)
    return b.mul(first, b.sigmoid(second))
