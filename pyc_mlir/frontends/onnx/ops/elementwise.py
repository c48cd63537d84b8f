"""Arithmetic, comparison, logic and casts: ops that work on each element alone."""

from functools import reduce
from typing import Any

import numpy as np

from pyc_mlir.dialects import functions
from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.dialects.types import DTYPES, is_integer
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node, pyc_dtype

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
_VARIADIC = {"Max": "maximum", "Min": "minimum"}


@node(*_SAME)
def same(n: OnnxNode) -> Any:
    """Build one pyc op."""
    return getattr(n.b, _SAME[n.op])(*n.all())


@node(*_PREDICATES)
def compare(n: OnnxNode) -> Any:
    """out = lhs <predicate> rhs as i1."""
    return n.b.compare(n.x(0), n.x(1), predicate=_PREDICATES[n.op])


@node(*_VARIADIC)
def variadic(n: OnnxNode) -> Any:
    """out = x0 op x1 op x2 ..., from the left."""
    return reduce(getattr(n.b, _VARIADIC[n.op]), n.all())


@node("Sum", "Mean")
def total(n: OnnxNode) -> Any:
    """out = x0 + x1 + ..., over their count for the mean."""

    def formula(*values: Any) -> Any:
        out = reduce(n.b.add, values)
        return out if n.op == "Sum" else n.b.div(out, n.b.scalar(n.count, out))

    return accumulated(n.b, n.x(), formula, *n.all()[1:])


@node("Reciprocal")
def reciprocal(n: OnnxNode) -> Any:
    """out = 1 / x."""
    return n.b.div(n.number(1), n.x())


def _compose(name: str) -> None:
    """Import the op of that name as the function of functions.py."""
    function = getattr(functions, name.lower())

    def handler(n: OnnxNode) -> Any:
        return function(n.b, n.x())

    handler.__doc__ = f"out = {function.__doc__}"
    node(name)(handler)


for _name in ("Tan", "Cosh", "Sinh", "Asinh", "Acosh", "Atanh"):
    _compose(_name)


@node("Sign")
def sign(n: OnnxNode) -> Any:
    """out = -1, 0 or 1; NaN stays."""
    return functions.sign(n.b, n.x())


@node("IsNaN")
def is_nan(n: OnnxNode) -> Any:
    """out = x != x."""
    return n.b.compare(n.x(), n.x(), predicate="ne")


@node("IsInf")
def is_inf(n: OnnxNode) -> Any:
    """out = x is one of the infinities that the attributes select."""
    b, x = n.b, n.x()
    wanted = [s for s in ("negative", "positive") if n.attr(f"detect_{s}", 1)]
    if len(wanted) == 2:
        return b.compare(b.abs(x), n.number(np.inf), predicate="eq")
    limit = {"negative": -np.inf, "positive": np.inf}[wanted[0]] if wanted else np.nan
    return b.compare(x, n.number(limit), predicate="eq")


@node("Xor")
def xor(n: OnnxNode) -> Any:
    """out = lhs != rhs."""
    return n.b.compare(n.x(0), n.x(1), predicate="ne")


@node("BitwiseXor")
def bitwise_xor(n: OnnxNode) -> Any:
    """out = lhs ^ rhs, bit by bit."""
    return n.b.xor(n.x(0), n.x(1))


@node("Clip")
def clip(n: OnnxNode) -> Any:
    """out = min(max(x, low), high); either bound may be missing."""
    if n.has(1) and n.has(2):
        return n.b.clip(n.x(0), n.x(1), n.x(2))
    out = n.b.maximum(n.x(0), n.x(1)) if n.has(1) else n.x(0)
    return n.b.minimum(out, n.x(2)) if n.has(2) else out


@node("Pow")
def power(n: OnnxNode) -> Any:
    """out = base ** exponent in the base's type."""
    base = n.type(0).dtype
    if is_integer(base):
        known = isinstance(n.operands[1], np.ndarray) and n.operands[1].size == 1
        return _integer_power(n) if known else _power_of_integers(n)
    exponent = n.x(1) if n.type(1).dtype == base else n.b.cast(n.x(1), dtype=base)
    return n.b.pow(n.x(0), exponent)


def _integer_power(n: OnnxNode) -> Any:
    """Multiply by repeated squaring; the exponent is a small constant, the same everywhere."""
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


def _power_of_integers(n: OnnxNode) -> Any:
    """Raise by way of f64, which is exact up to 2^53."""
    lhs, rhs = (n.b.cast(n.x(i), dtype=DTYPES["f64"]) for i in (0, 1))
    out = n.b.pow(lhs, rhs)
    if is_integer(n.type(1).dtype):
        out = n.b.round(out)
    return n.b.cast(out, dtype=n.type(0).dtype)


@node("Cast")
def cast(n: OnnxNode) -> Any:
    """out = x as `to`."""
    return cast_to(n, pyc_dtype(n.attr("to")))


@node("CastLike")
def cast_like(n: OnnxNode) -> Any:
    """out = x in the element type of the second input."""
    return cast_to(n, n.type(1).dtype)


def cast_to(n: OnnxNode, dtype: np.dtype) -> Any:
    """Return input 0 as `dtype`; nothing to do if it has that type."""
    if n.type(0).dtype == dtype:
        return n.x(0)
    return n.b.cast(n.x(0), dtype=dtype)
