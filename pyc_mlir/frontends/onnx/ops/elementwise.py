"""Arithmetic, comparison, logic and casts: ops that work on each element alone."""

from functools import reduce
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.types import DTYPES, dtype_name, is_float, is_integer
from pyc_mlir.frontends.onnx.frame.handler import Node, node, pyc_dtype, unsupported

# ONNX's name -> the pyc op of the same meaning, operands in the same order.
_SAME = {
    "Abs": "abs", "Add": "add", "Ceil": "ceil", "Cos": "cos", "Div": "div", "Erf": "erf",
    "Exp": "exp", "Floor": "floor", "Log": "log", "Mul": "mul", "Neg": "neg", "Relu": "relu",
    "Round": "round", "Sigmoid": "sigmoid", "Sin": "sin", "Sqrt": "sqrt", "Sub": "sub",
    "Tanh": "tanh", "And": "and", "Or": "or", "Not": "not", "BitwiseAnd": "and",
    "BitwiseOr": "or", "BitwiseNot": "not", "Where": "select",
}  # fmt: skip
_PREDICATES = {
    "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge",
}  # fmt: skip
_VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


@node(*_SAME)
def same(n: Node) -> Any:
    """One pyc op."""
    return getattr(n.b, _SAME[n.op])(*n.all())


@node(*_PREDICATES)
def compare(n: Node) -> Any:
    """out = lhs <predicate> rhs as i1."""
    return n.b.compare(n.x(0), n.x(1), predicate=_PREDICATES[n.op])


@node(*_VARIADIC)
def variadic(n: Node) -> Any:
    """out = x0 op x1 op x2 ..., from the left."""
    return reduce(getattr(n.b, _VARIADIC[n.op]), n.all())


@node("Mean")
def mean(n: Node) -> Any:
    """out = (x0 + x1 + ...) / count."""
    return n.b.div(reduce(n.b.add, n.all()), n.number(n.count))


@node("Reciprocal")
def reciprocal(n: Node) -> Any:
    """out = 1 / x."""
    return n.b.div(n.number(1), n.x())


@node("Tan")
def tan(n: Node) -> Any:
    """out = sin x / cos x."""
    return n.b.div(n.b.sin(n.x()), n.b.cos(n.x()))


def _cosh(b: Any, x: Any) -> Any:
    return b.mul(b.add(b.exp(x), b.exp(b.neg(x))), b.scalar(0.5, x))


@node("Cosh")
def cosh(n: Node) -> Any:
    """out = (e^x + e^-x) / 2."""
    return _cosh(n.b, n.x())


@node("Sinh")
def sinh(n: Node) -> Any:
    """out = tanh x * cosh x: no cancellation near 0."""
    return n.b.mul(n.b.tanh(n.x()), _cosh(n.b, n.x()))


def log1p(b: Any, u: Any) -> Any:
    """ln(1 + u) precisely near 0, for u >= 0: log(w) * u / (w - 1) with w = 1 + u (Kahan)."""
    one = b.scalar(1, u)
    w = b.add(u, one)
    exact = b.compare(w, one, predicate="eq")
    infinite = b.compare(w, b.scalar(np.inf, u), predicate="eq")
    rest = b.select(b.or_(exact, infinite), one, b.sub(w, one))
    scaled = b.mul(b.log(w), b.div(u, rest))
    return b.select(exact, u, b.select(infinite, w, scaled))


def _signed(b: Any, magnitude: Any, x: Any) -> Any:
    negative = b.compare(x, b.scalar(0, x), predicate="lt")
    return b.select(negative, b.neg(magnitude), magnitude)


@node("Asinh")
def asinh(n: Node) -> Any:
    """out = sign(x) * log1p(|x| + x^2 / (1 + sqrt(x^2 + 1)))."""
    b, x, one = n.b, n.x(), n.number(1)
    square = b.mul(x, x)
    tail = b.div(square, b.add(one, b.sqrt(b.add(square, one))))
    return _signed(b, log1p(b, b.add(b.abs(x), tail)), x)


@node("Acosh")
def acosh(n: Node) -> Any:
    """out = log1p(t + sqrt(2 t + t^2)) with t = x - 1."""
    b, t = n.b, n.b.sub(n.x(), n.number(1))
    root = b.sqrt(b.mul(t, b.add(t, n.number(2))))
    return log1p(b, b.add(t, root))


@node("Atanh")
def atanh(n: Node) -> Any:
    """out = sign(x) * log1p(2 |x| / (1 - |x|)) / 2."""
    b, x = n.b, n.b.abs(n.x())
    ratio = b.div(b.mul(n.number(2), x), b.sub(n.number(1), x))
    return _signed(b, b.mul(n.number(0.5), log1p(b, ratio)), n.x())


@node("Sign")
def sign(n: Node) -> Any:
    """out = -1, 0 or 1; NaN stays."""
    b, x, zero = n.b, n.x(), n.number(0)
    positive, negative = (b.compare(x, zero, predicate=p) for p in ("gt", "lt"))
    return b.select(positive, n.number(1), b.select(negative, n.number(-1), x))


@node("IsNaN")
def is_nan(n: Node) -> Any:
    """out = x != x."""
    return n.b.compare(n.x(), n.x(), predicate="ne")


@node("IsInf")
def is_inf(n: Node) -> Any:
    """out = x is one of the infinities that the attributes ask for."""
    b, x = n.b, n.x()
    wanted = [s for s in ("negative", "positive") if n.attr(f"detect_{s}", 1)]
    if len(wanted) == 2:
        return b.compare(b.abs(x), n.number(np.inf), predicate="eq")
    limit = {"negative": -np.inf, "positive": np.inf}[wanted[0]] if wanted else np.nan
    return b.compare(x, n.number(limit), predicate="eq")


@node("Xor")
def xor(n: Node) -> Any:
    """out = lhs != rhs."""
    return n.b.compare(n.x(0), n.x(1), predicate="ne")


@node("BitwiseXor")
def bitwise_xor(n: Node) -> Any:
    """out = (lhs | rhs) & ~(lhs & rhs)."""
    b, lhs, rhs = n.b, n.x(0), n.x(1)
    return b.and_(b.or_(lhs, rhs), b.not_(b.and_(lhs, rhs)))


@node("Clip")
def clip(n: Node) -> Any:
    """out = min(max(x, low), high); either bound may be missing."""
    if n.has(1) and n.has(2):
        return n.b.clip(n.x(0), n.x(1), n.x(2))
    out = n.b.maximum(n.x(0), n.x(1)) if n.has(1) else n.x(0)
    return n.b.minimum(out, n.x(2)) if n.has(2) else out


@node("Pow")
def power(n: Node) -> Any:
    """out = base ** exponent in the base's type."""
    base = n.type(0).dtype
    if is_integer(base):
        known = isinstance(n.operands[1], np.ndarray) and n.operands[1].size == 1
        return _integer_power(n) if known else _power_of_integers(n)
    exponent = n.x(1) if n.type(1).dtype == base else n.b.cast(n.x(1), dtype=base)
    return n.b.pow(n.x(0), exponent)


def _integer_power(n: Node) -> Any:
    """Products by repeated squaring; the exponent is a small constant, the same everywhere."""
    exponent = n.scalar(1, "exponent of an integer base")
    if exponent != int(exponent) or not 0 <= exponent <= 64:
        raise unsupported(f"exponent {exponent} of an integer base: expected 0, 1, ..., 64")
    out, square, rest = n.number(1), n.x(0), int(exponent)
    out = n.b.add(n.b.mul(n.x(0), n.number(0)), out)
    while rest:
        if rest % 2:
            out = n.b.mul(out, square)
        square, rest = (n.b.mul(square, square), rest // 2) if rest > 1 else (square, 0)
    return out


def _power_of_integers(n: Node) -> Any:
    """By way of f64, which is exact up to 2^53."""
    if not is_integer(n.type(1).dtype):
        raise unsupported("a float exponent of an integer base: expected an integer")
    lhs, rhs = (n.b.cast(n.x(i), dtype=DTYPES["f64"]) for i in (0, 1))
    return n.b.cast(n.b.round(n.b.pow(lhs, rhs)), dtype=n.type(0).dtype)


@node("Mod")
def modulo(n: Node) -> Any:
    """Remainder of integers: of the divisor's sign (fmod=0), or of the dividend's (fmod=1)."""
    dtype = n.type(0).dtype
    if is_float(dtype):
        # A rounded quotient may cross an integer, and then the remainder is off by a divisor.
        why = f"element type {dtype_name(dtype)}: expected integers"
        raise unsupported(why, ReasonCode.UNSUPPORTED_DTYPE)
    b, lhs, rhs = n.b, n.x(0), n.x(1)
    rest = b.sub(lhs, b.mul(b.div(lhs, rhs), rhs))
    if n.attr("fmod", 0):
        return rest
    zero = n.number(0)
    signs = [b.compare(v, zero, predicate="lt") for v in (rest, rhs)]
    wrong = b.and_(b.compare(rest, zero, predicate="ne"), b.compare(*signs, predicate="ne"))
    return b.select(wrong, b.add(rest, rhs), rest)


@node("Cast")
def cast(n: Node) -> Any:
    """out = x as `to`."""
    return cast_to(n, pyc_dtype(n.attr("to")))


@node("CastLike")
def cast_like(n: Node) -> Any:
    """out = x in the element type of the second input."""
    return cast_to(n, n.type(1).dtype)


def cast_to(n: Node, dtype: np.dtype) -> Any:
    """Input 0 as `dtype`; nothing to do if it has that type."""
    if n.type(0).dtype == dtype:
        return n.x(0)
    return n.b.cast(n.x(0), dtype=dtype)


@node("DequantizeLinear")
def dequantize(n: Node) -> Any:
    """out = (x - zero_point) * scale, per tensor or along `axis`."""
    if n.attr("block_size", 0):
        raise unsupported("block_size: expected scales per tensor or per axis")
    b, scale = n.b, n.x(1)
    rank, axis = n.type(0).rank, n.attr("axis", 1)
    wide = b.type_of(scale).dtype

    def spread(value: Any) -> Any:
        return b.align(value, axis % rank, rank) if b.type_of(value).rank == 1 else value

    out = b.cast(n.x(0), dtype=wide)
    if n.has(2):
        out = b.sub(out, spread(b.cast(n.x(2), dtype=wide)))
    return b.mul(out, spread(scale))
