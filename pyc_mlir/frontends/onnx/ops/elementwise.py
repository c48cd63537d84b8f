"""Operators that work on each element alone: arithmetic, comparison, logic, bits, activations."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from pyc_mlir.dialects import functions
from pyc_mlir.dialects.functions import accumulated, integer_power
from pyc_mlir.dialects.ir import angles, divisions
from pyc_mlir.dialects.types import DTYPES, is_integer
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.onnx.ops.node import OnnxNode, formulas, node, pyc_dtype

# ONNX's name -> the pyc op of the same meaning, operands in the same order.
_SAME = {
    "Abs": "abs", "Add": "add", "Ceil": "ceil", "Cos": "cos", "Div": "div", "Erf": "erf",
    "Exp": "exp", "Floor": "floor", "Log": "log", "Mul": "mul", "Neg": "neg", "Relu": "relu",
    "Round": "round", "Sigmoid": "sigmoid", "Sin": "sin", "Sqrt": "sqrt", "Sub": "sub",
    "Tanh": "tanh", "And": "and", "Or": "or", "Not": "not", "BitwiseAnd": "and",
    "BitwiseOr": "or", "BitwiseXor": "xor", "BitwiseNot": "not", "Where": "select",
}  # fmt: skip
_PREDICATES = {
    "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge",
    "Xor": "ne",
}  # fmt: skip
_VARIADIC = {"Max": "maximum", "Min": "minimum"}
_FUNCTIONS = ("Tan", "Cosh", "Sinh", "Asinh", "Acosh", "Atanh", "Sign", "Softplus", "Mish")


def _op(name: str) -> Callable[..., Any]:
    """Return the handler that builds one pyc op."""

    def handler(b: Any, *xs: Any) -> Any:
        return getattr(b, name)(*xs)

    return handler


formulas({name: ("Build one pyc op.", _op(op)) for name, op in _SAME.items()})


@node(*_PREDICATES)
def compare(n: OnnxNode, x: Any, y: Any) -> Any:
    """out = lhs <predicate> rhs as i1."""
    return n.b.compare(x, y, predicate=_PREDICATES[n.op])


@node(*_VARIADIC)
def variadic(n: OnnxNode, *xs: Any) -> Any:
    """out = x0 op x1 op x2 ..., from the left."""
    return reduce(getattr(n.b, _VARIADIC[n.op]), xs)


@node("Sum", "Mean")
def total(n: OnnxNode, x: Any, *more: Any) -> Any:
    """out = x0 + x1 + ..., over their count for the mean."""

    def formula(*values: Any) -> Any:
        out = reduce(n.b.add, values)
        return out if n.op == "Sum" else n.b.div(out, len(values))

    return accumulated(n.b, x, formula, *more)


def where(b: Any, x: Any, predicate: str, bound: float, yes: Any, no: Any) -> Any:
    """out = yes where x <predicate> bound, else no."""
    return b.select(b.compare(x, bound, predicate=predicate), yes, no)


def leaky(b: Any, x: Any, alpha: float) -> Any:
    """out = alpha * x where x < 0, else x."""
    return where(b, x, "lt", 0, b.mul(x, alpha), x)


def bent(b: Any, x: Any) -> Any:
    """e^x - 1 for x <= 0; positive x are cut to 0, so that the branch not taken stays finite."""
    return functions.expm1(b, b.minimum(x, 0))


def elu(b: Any, x: Any, alpha: float) -> Any:
    """out = alpha * (e^x - 1) where x < 0, else x."""
    return where(b, x, "lt", 0, b.mul(alpha, bent(b, x)), x)


def _hard_sigmoid(b: Any, x: Any, alpha: float, beta: float) -> Any:
    line = b.add(b.mul(x, alpha), beta)
    return b.clip(line, 0, 1)


_COMPOSED = {name: getattr(functions, name.lower()) for name in _FUNCTIONS}
_ANGLES = {name: getattr(angles, name.lower()) for name in ("Atan", "Asin", "Acos")}
formulas({
    **{name: (f"out = {f.__doc__}", f) for name, f in (_COMPOSED | _ANGLES).items()},
    "Identity": ("out = x.", lambda b, x: x),
    "Reciprocal": ("out = 1 / x.", lambda b, x: b.div(1, x)),
    "IsNaN": ("out = x != x.", lambda b, x: b.ne(x, x)),
    "Cast": ("out = x as `to`.", lambda b, x, *, to: b.convert(x, pyc_dtype(to))),
    "CastLike": ("out = x in the element type of the second input.",
                 lambda b, x, like: b.convert(x, b.type_of(like).dtype)),
    "Mod": ("The remainder of the divisor's sign (fmod=0, integers) or the dividend's (fmod=1).",
            lambda b, x, y, *, fmod=0: b.rem(x, y) if fmod else divisions.remainder(b, x, y)),
    "BitShift": ("Shift the bits of x left or right.", lambda b, x, y, *, direction:
                 (b.shift_left if direction == "LEFT" else b.shift_right)(x, y)),
    "Gelu": ("pyc.gelu, exact or with tanh.",
             lambda b, x, *, approximate="none": b.gelu(x, approximate=approximate)),
    "Swish": ("out = x * sigmoid(alpha x).", lambda b, x, *, alpha=1.0: b.silu(x)
              if alpha == 1.0 else b.mul(x, b.sigmoid(b.mul(x, alpha)))),
    "LeakyRelu": ("out = alpha * x where x < 0, else x.",
                  lambda b, x, *, alpha=0.01: leaky(b, x, alpha)),
    "PRelu": ("out = slope * x where x < 0, else x.",
              lambda b, x, slope: where(b, x, "lt", 0, b.mul(x, slope), x)),
    "Elu": ("out = alpha * (e^x - 1) where x < 0, else x.",
            lambda b, x, *, alpha=1.0: elu(b, x, alpha)),
    "ThresholdedRelu": ("out = x where x > alpha, else 0.",
                        lambda b, x, *, alpha=1.0: where(b, x, "gt", alpha, x, b.scalar(0, x))),
    "Softsign": ("out = x / (1 + |x|).", lambda b, x: b.div(x, b.add(1, b.abs(x)))),
    "HardSigmoid": ("out = max(0, min(1, alpha * x + beta)).",
                    lambda b, x, *, alpha=0.2, beta=0.5: _hard_sigmoid(b, x, alpha, beta)),
    "HardSwish": ("out = x * max(0, min(1, x / 6 + 0.5)).",
                  lambda b, x: b.mul(x, _hard_sigmoid(b, x, 1 / 6, 0.5))),
    "Softmax": ("pyc.softmax along `axis`.", lambda b, x, *, axis=-1: b.softmax(x, axis=axis)),
    "LogSoftmax": ("pyc.log_softmax along `axis`.",
                   lambda b, x, *, axis=-1: b.log_softmax(x, axis=axis)),
})  # fmt: skip


@node("Celu")
def celu(b: Any, x: Any, *, alpha: float = 1.0) -> Any:
    """out = max(0, x) + min(0, alpha * (e^(x/alpha) - 1))."""
    scale = b.scalar(alpha, x)
    low = b.mul(scale, bent(b, b.div(x, scale)))
    return b.add(b.maximum(x, 0), b.minimum(0, low))


@node("Selu")
def selu(
    b: Any, x: Any, *,
    alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875,
) -> Any:  # fmt: skip
    """out = gamma * x where x > 0, else gamma * alpha * (e^x - 1). Klambauer et al., 2017."""
    low = b.mul(gamma * alpha, bent(b, x))
    return where(b, x, "gt", 0, b.mul(gamma, x), low)


@node("Shrink")
def shrink(b: Any, x: Any, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    """out = x + bias where x < -lambd, x - bias where x > lambd, else 0."""
    shift = b.scalar(bias, x)
    inner = where(b, x, "gt", lambd, b.sub(x, shift), b.scalar(0, x))
    return where(b, x, "lt", -lambd, b.add(x, shift), inner)


@node("Hardmax")
def hardmax(b: Any, x: Any, *, axis: int = -1) -> Any:
    """out = 1 at the first maximum along `axis`, else 0."""
    type_ = b.type_of(x)
    axis %= type_.rank
    best = b.argmax(x, axis=axis, keepdims=True)
    return b.cast(b.eq(b.iota_like(x, axis), best), dtype=type_.dtype)


@node("IsInf")
def is_inf(b: Any, x: Any, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    """out = x is one of the infinities that the attributes select."""
    if detect_negative and detect_positive:
        return b.eq(b.abs(x), np.inf)
    limit = -np.inf if detect_negative else np.inf if detect_positive else np.nan
    return b.eq(x, limit)


@node("Clip")
def clip(b: Any, x: Any, low: Any = None, high: Any = None) -> Any:
    """out = min(max(x, low), high); either bound may be missing."""
    if low is not None and high is not None:
        return b.clip(x, low, high)
    out = x if low is None else b.maximum(x, low)
    return out if high is None else b.minimum(out, high)


@node("BitCast")
def bit_cast(b: Any, x: Any, *, to: int) -> Any:
    """Reinterpret the bits of x as another type of the same width."""
    own, target = b.type_of(x).dtype, pyc_dtype(to)
    if target.itemsize != own.itemsize or own == np.bool_:
        raise unsupported(f"bits of {own} as {target}: expected types of one size")
    return b.bitcast(x, dtype=target)


@node("Pow")
def power(n: OnnxNode, x: Any, y: Any) -> Any:
    """out = base ** exponent in the base's type.

    Integers: a known exponent by products, others by way of f64, which is exact up to 2^53.
    """
    b, base = n.b, n.b.type_of(x).dtype
    if not is_integer(base):
        return b.pow(x, b.convert(y, base))
    known = n.operands[1]
    if isinstance(known, np.ndarray) and known.size == 1:
        exponent = known.reshape(()).item()
        if not 0 <= exponent <= 64 or exponent != int(exponent):
            raise unsupported(f"exponent {exponent} of an integer base: expected 0, 1, ..., 64")
        return integer_power(b, x, int(exponent))
    out = b.pow(*(b.cast(v, dtype=DTYPES["f64"]) for v in (x, y)))
    return b.cast(b.round(out) if is_integer(b.type_of(y).dtype) else out, dtype=base)
