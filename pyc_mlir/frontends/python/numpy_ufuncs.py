"""numpy's ufuncs in terms of pyc ops. Handlers get the tracer and operands of the loop's dtypes."""

from typing import Any

import numpy as np

from pyc_mlir.dialects import functions
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir import angles, divisions
from pyc_mlir.dialects.types import BOOL, DTYPES, is_float
from pyc_mlir.frontends.python.numpy_protocol import UFUNCS, Handler
from pyc_mlir.frontends.python.source import bad, untraceable, user_point
from pyc_mlir.frontends.python.tracer import TracedArray, Tracer

_COMPARISONS = {
    np.equal: "eq",
    np.not_equal: "ne",
    np.less: "lt",
    np.less_equal: "le",
    np.greater: "gt",
    np.greater_equal: "ge",
}
# (op for numbers, op for booleans)
_DIRECT = {
    np.add: ("add", "or"),
    np.subtract: ("sub", ""),
    np.multiply: ("mul", "and"),
    np.maximum: ("maximum", "or"),
    np.minimum: ("minimum", "and"),
    np.divide: ("div", ""),
    np.negative: ("neg", ""),
    np.absolute: ("abs", "identity"),
    np.fabs: ("abs", ""),
    np.exp: ("exp", ""),
    np.log: ("log", ""),
    np.sin: ("sin", ""),
    np.cos: ("cos", ""),
    np.sqrt: ("sqrt", ""),
    np.tanh: ("tanh", ""),
    np.matmul: ("matmul", ""),
    np.bitwise_and: ("and", "and"),
    np.bitwise_or: ("or", "or"),
    np.bitwise_xor: ("xor", "xor"),
    np.invert: ("not", "not"),
}
_F16, _I8 = DTYPES["f16"], DTYPES["i8"]
_COMPOSED = {
    np.exp2: functions.exp2,
    np.log2: functions.log2,
    np.log10: functions.log10,
    np.log1p: functions.log1p,
    np.expm1: functions.expm1,
    np.tan: functions.tan,
    np.sinh: functions.sinh,
    np.cosh: functions.cosh,
    np.arcsinh: functions.asinh,
    np.arccosh: functions.acosh,
    np.arctanh: functions.atanh,
    np.arctan: angles.atan,
    np.arcsin: angles.asin,
    np.arccos: angles.acos,
    np.arctan2: angles.atan2,
    np.copysign: functions.copysign,
    np.signbit: functions.is_negative,
    np.logaddexp: functions.logaddexp,
    np.hypot: functions.hypot,
}
_ROUNDINGS = {np.floor: "floor", np.ceil: "ceil", np.rint: "round"}


def _direct(number_op: str, bool_op: str) -> Handler:
    def handler(b: Tracer, *xs: TracedArray) -> TracedArray:
        name = bool_op if xs[0].dtype == BOOL else number_op
        if name == "identity":
            return xs[0]
        if not name:
            raise PycError(
                ReasonCode.UNSUPPORTED_DTYPE,
                f"{user_point()}: pyc.{number_op}: expected numbers, got booleans; "
                "convert with `.astype`",
            )
        return getattr(b, name)(*xs)

    return handler


def _of_floats(name: str) -> Handler:
    return lambda b, x: getattr(b, name)(x) if is_float(x.dtype) else x


def _comparison(predicate: str) -> Handler:
    def handler(b: Tracer, x: TracedArray, y: TracedArray) -> TracedArray:
        if x.dtype == BOOL and predicate not in ("eq", "ne"):
            # The dialect orders numbers; False < True as 0 < 1.
            x, y = b.cast(x, dtype=_I8), b.cast(y, dtype=_I8)
        return b.compare(x, y, predicate=predicate)

    return handler


def _divmod(b: Tracer, x: TracedArray, y: TracedArray) -> tuple[TracedArray, TracedArray]:
    """Build Python's quotient and remainder, of the divisor's sign; x % 0 = 0 for integers."""
    quotient, modulus = divisions.floor_divmod(b, x, y)
    if not is_float(x.dtype):
        return quotient, modulus
    zero = b.scalar(0, y)
    below = b.select(b.compare(y, zero, predicate="lt"), b.scalar(-0.0, y), zero)
    return quotient, b.select(b.compare(modulus, zero, predicate="eq"), below, modulus)


def _fmod(b: Tracer, x: TracedArray, y: TracedArray) -> TracedArray:
    """Build the remainder with the sign of the dividend; 0 for integers divided by 0."""
    rest = b.rem(x, y)
    if is_float(x.dtype):
        return rest
    zero = b.scalar(0, x)
    return b.select(b.compare(y, zero, predicate="eq"), zero, rest)


def _nextafter(b: Tracer, x: TracedArray, y: TracedArray) -> TracedArray:
    """Return the float after x on the way to y; x for equal f16, also zeros of two signs."""
    out = functions.nextafter(b, x, y)
    return b.select(b.compare(x, y, predicate="eq"), x, out) if x.dtype == _F16 else out


def _power(b: Tracer, x: TracedArray, y: TracedArray) -> TracedArray:
    """Raise as numpy: scalar exponents 2, 1/2, 1 and -1 are done without pow."""
    exponent = y.literal
    if not is_float(x.dtype):
        return _integer_power(b, x, exponent)
    if exponent == 2:
        return b.mul(x, x)
    if exponent == 0.5:
        return _half_root(b, x) if x.dtype == _F16 else b.sqrt(x)
    if exponent == 1:
        return x
    return b.div(b.scalar(1, x), x) if exponent == -1 else b.pow(x, y)


def _half_root(b: Tracer, x: TracedArray) -> TracedArray:
    """np.power(x, 0.5) of f16, which is pow there: 0.0 for -0.0, inf for -inf."""
    zero, infinity = b.scalar(0, x), b.scalar(np.inf, x)
    root = b.select(b.compare(x, zero, predicate="eq"), zero, b.sqrt(x))
    return b.select(b.compare(x, b.neg(infinity), predicate="eq"), infinity, root)


def _integer_power(b: Tracer, x: TracedArray, exponent: Any) -> TracedArray:
    if exponent is None:
        raise untraceable(
            "an integer power needs an exponent that is a Python number",
            "convert to a float type first: `x.astype(np.float32) ** y`",
        )
    if exponent < 0:
        raise bad(
            f"expected an exponent >= 0 for integers, got {exponent}; convert to a float type first"
        )
    return functions.integer_power(b, x, int(exponent))


def _reciprocal(b: Tracer, x: TracedArray) -> TracedArray:
    """1 / x of floats: numpy's reciprocal of the integer 0 depends on the machine."""
    if not is_float(x.dtype):
        raise untraceable(
            "np.reciprocal of integers is 0 but for 1 and -1, and undefined for 0",
            "write `1 / x`, or convert to a float type first",
        )
    return b.div(b.scalar(1, x), x)


def _ignoring_nan(name: str) -> Handler:
    def handler(b: Tracer, x: TracedArray, y: TracedArray) -> TracedArray:
        both = _direct(*_DIRECT[getattr(np, name)])(b, x, y)
        if not is_float(x.dtype):
            return both
        return b.select(_is_nan(b, x), y, b.select(_is_nan(b, y), x, both))

    return handler


def _is_nan(b: Tracer, x: TracedArray) -> TracedArray:
    return b.compare(x, x, predicate="ne")


def _magnitude(predicate: str, integers: str) -> Handler:
    """Compare |x| with infinity; of integers, which are finite, x with itself."""

    def handler(b: Tracer, x: TracedArray) -> TracedArray:
        if not is_float(x.dtype):
            return b.compare(x, x, predicate=integers)
        return b.compare(b.abs(x), b.scalar(np.inf, x), predicate=predicate)

    return handler


def truth(b: Tracer, x: TracedArray) -> TracedArray:
    """x != 0."""
    return b.lift(x, BOOL)


UFUNCS.update({ufunc: _direct(*names) for ufunc, names in _DIRECT.items()})
UFUNCS.update(_COMPOSED)
UFUNCS.update({ufunc: _of_floats(name) for ufunc, name in _ROUNDINGS.items()})
UFUNCS.update({ufunc: _comparison(predicate) for ufunc, predicate in _COMPARISONS.items()})
UFUNCS.update(
    {
        np.positive: lambda b, x: x,
        np.square: lambda b, x: b.mul(x, x),
        np.reciprocal: _reciprocal,
        np.sign: functions.sign,
        np.trunc: lambda b, x: divisions.truncated(b, x) if is_float(x.dtype) else x,
        np.floor_divide: divisions.floor_divide,
        np.remainder: lambda b, x, y: _divmod(b, x, y)[1],
        np.divmod: _divmod,
        np.fmod: _fmod,
        np.power: _power,
        np.nextafter: _nextafter,
        np.left_shift: lambda b, x, y: b.shift_left(x, y),
        np.right_shift: lambda b, x, y: b.shift_right(x, y),
        np.fmax: _ignoring_nan("maximum"),
        np.fmin: _ignoring_nan("minimum"),
        np.isnan: _is_nan,
        np.isinf: _magnitude("eq", "ne"),
        np.isfinite: _magnitude("lt", "eq"),
        np.logical_and: lambda b, x, y: b.and_(truth(b, x), truth(b, y)),
        np.logical_or: lambda b, x, y: b.or_(truth(b, x), truth(b, y)),
        np.logical_xor: lambda b, x, y: b.compare(truth(b, x), truth(b, y), predicate="ne"),
        np.logical_not: lambda b, x: b.not_(truth(b, x)),
    }
)
if isinstance(np.fix, np.ufunc):
    UFUNCS[np.fix] = UFUNCS[np.trunc]
