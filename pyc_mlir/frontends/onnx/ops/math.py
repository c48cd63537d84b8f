"""Elementwise operators, products and sums: arithmetic, activations, MatMul, Einsum, reductions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from pyc_mlir.dialects import functions
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import accumulated, integer_power
from pyc_mlir.dialects.ir import angles, divisions
from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.ops.movement import START as BEGIN
from pyc_mlir.dialects.types import BOOL, DTYPES, is_float, is_integer
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import product, reshape_to, swap_last, take
from pyc_mlir.frontends.onnx.ops.node import Ints, Number, OnnxNode, formulas, node, pyc_dtype

# ONNX's name -> the pyc op of the same meaning, operands in the same order.
_SAME = {
    "Abs": "abs", "Add": "add", "Ceil": "ceil", "Cos": "cos", "Div": "div", "Erf": "erf",
    "Exp": "exp", "Floor": "floor", "Log": "log", "Mul": "mul", "Neg": "neg", "Relu": "relu",
    "Round": "round", "Sigmoid": "sigmoid", "Sin": "sin", "Sqrt": "sqrt", "Sub": "sub",
    "Tanh": "tanh", "And": "and", "Or": "or", "Not": "not", "BitwiseAnd": "and",
    "BitwiseOr": "or", "BitwiseXor": "xor", "BitwiseNot": "not", "Where": "select",
    "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge",
    "Xor": "ne", "MatMul": "matmul",
}  # fmt: skip
_FUNCTIONS = ("Tan", "Cosh", "Sinh", "Asinh", "Acosh", "Atanh", "Sign", "Softplus", "Mish")


def _op(name: str) -> Callable[..., Any]:
    return lambda b, *xs: getattr(b, name)(*xs)


formulas({name: ("Build one pyc op.", _op(op)) for name, op in _SAME.items()})


@node("Sum", "Mean")
def total(n: OnnxNode, x: Any, *more: Any) -> Any:
    """out = x0 + x1 + ..., over their count for the mean."""

    def formula(*values: Any) -> Any:
        out = reduce(n.b.add, values)
        return out if n.op == "Sum" else n.b.div(out, len(values))

    return accumulated(n.b, x, formula, *more)


def leaky(b: Any, x: Any, alpha: float) -> Any:
    """out = alpha * x where x < 0, else x."""
    return b.select(b.lt(x, 0), b.mul(x, alpha), x)


def bent(b: Any, x: Any) -> Any:
    """e^x - 1 for x <= 0; positive x are cut to 0, so that the branch not taken stays finite."""
    return functions.expm1(b, b.minimum(x, 0))


def elu(b: Any, x: Any, alpha: float) -> Any:
    """out = alpha * (e^x - 1) where x < 0, else x."""
    return b.select(b.lt(x, 0), b.mul(alpha, bent(b, x)), x)


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
              lambda b, x, slope: b.select(b.lt(x, 0), b.mul(x, slope), x)),
    "Elu": ("out = alpha * (e^x - 1) where x < 0, else x.",
            lambda b, x, *, alpha=1.0: elu(b, x, alpha)),
    "ThresholdedRelu": ("out = x where x > alpha, else 0.",
                        lambda b, x, *, alpha=1.0: b.select(b.gt(x, alpha), x, 0)),
    "Celu": ("out = max(0, x) + min(0, alpha * (e^(x/alpha) - 1)).", lambda b, x, *, alpha=1.0:
             b.add(b.maximum(x, 0), b.minimum(0, b.mul(alpha, bent(b, b.div(x, alpha)))))),
    # Klambauer et al., 2017.
    "Selu": ("out = gamma * x where x > 0, else gamma * alpha * (e^x - 1).", lambda
             b, x, *, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875:
             b.select(b.gt(x, 0), b.mul(gamma, x), b.mul(gamma * alpha, bent(b, x)))),
    "Shrink": ("out = x + bias where x < -lambd, x - bias where x > lambd, else 0.", lambda
               b, x, *, bias=0.0, lambd=0.5: b.select(
                   b.lt(x, -lambd), b.add(x, bias), b.select(b.gt(x, lambd), b.sub(x, bias), 0))),
    "Max": ("out = max(x0, x1, ...), from the left.", lambda b, *xs: reduce(b.maximum, xs)),
    "Min": ("out = min(x0, x1, ...), from the left.", lambda b, *xs: reduce(b.minimum, xs)),
    "Softsign": ("out = x / (1 + |x|).", lambda b, x: b.div(x, b.add(1, b.abs(x)))),
    "HardSigmoid": ("out = max(0, min(1, alpha * x + beta)).",
                    lambda b, x, *, alpha=0.2, beta=0.5: _hard_sigmoid(b, x, alpha, beta)),
    "HardSwish": ("out = x * max(0, min(1, x / 6 + 0.5)).",
                  lambda b, x: b.mul(x, _hard_sigmoid(b, x, 1 / 6, 0.5))),
    "Softmax": ("pyc.softmax along `axis`.", lambda b, x, *, axis=-1: b.softmax(x, axis=axis)),
    "LogSoftmax": ("pyc.log_softmax along `axis`.",
                   lambda b, x, *, axis=-1: b.log_softmax(x, axis=axis)),
})  # fmt: skip


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
    return b.eq(x, -np.inf if detect_negative else np.inf if detect_positive else np.nan)


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


_MAX_DETERMINANT = 4
_MARKS = str.maketrans("", "", ".,->")


@node("Gemm")
def gemm(
    b: Any, x: Any, y: Any, c: Any = None, *,
    alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0,
) -> Any:  # fmt: skip
    """out = alpha * A' @ B' + beta * C; A' and B' are A and B, transposed if requested."""
    x, y = (swap_last(b, v) if turned else v for v, turned in ((x, transA), (y, transB)))
    out = scaled_product(b, x, y, alpha)
    return out if c is None else b.add(out, _scaled(b, c, beta))


def scaled_product(b: Any, lhs: Any, rhs: Any, factor: float) -> Any:
    """factor * lhs @ rhs; of 16-bit floats the product before it may leave their range."""
    if factor == 1.0:
        return b.matmul(lhs, rhs)
    return accumulated(b, lhs, lambda x, y: _scaled(b, b.matmul(x, y), factor), rhs)


def _scaled(b: Any, x: Any, factor: float) -> Any:
    if factor == 1.0:
        return x
    if not is_float(b.type_of(x).dtype) and factor != int(factor):
        raise unsupported(f"factor {factor} with integers: expected a whole number")
    return b.mul(x, factor)


@node("Det")
def determinant(b: Any, x: Any) -> Any:
    """Build determinants of matrices of up to 4 rows, by cofactors."""
    (*_, rows, size), rank = b.type_of(x).shape, b.type_of(x).rank
    if size is None or size != rows or not 0 < size <= _MAX_DETERMINANT:
        raise unsupported(f"matrices of {size} rows: expected 1 to {_MAX_DETERMINANT}, static")
    dims = b.dims(x)[:-2]

    def entry(x: Any, row: int, column: int) -> Any:
        one = take(b, take(b, x, rank - 2, row, row + 1), rank - 1, column, column + 1)
        return reshape_to(b, one, dims)

    def minor(x: Any, row: int, columns: tuple[int, ...]) -> Any:
        total = None
        for place, column in enumerate(columns):
            term = entry(x, row, column)
            if rest := (*columns[:place], *columns[place + 1 :]):
                term = b.mul(term, minor(x, row + 1, rest))
            if total is None:
                total = term
            else:
                total = b.sub(total, term) if place % 2 else b.add(total, term)
        return total

    return accumulated(b, x, lambda x: minor(x, 0, tuple(range(size))))


@node("Einsum")
def einsum(b: Any, *xs: Any, equation: str) -> Any:
    """Build sums of products by named indices, two operands at a time: a batched matmul each."""
    inputs, out = _labels(equation.replace(" ", ""), [b.type_of(x).rank for x in xs])
    terms = [_plain(b, x, label) for x, label in zip(xs, inputs, strict=True)]
    while len(terms) > 1:
        wanted = set(out).union(*(label for _, label in terms[2:]))
        both = "".join(dict.fromkeys(terms[0][1] + terms[1][1]))
        label = out if len(terms) == 2 else "".join(c for c in both if c in wanted)
        terms[:2] = [(_product(b, terms[0], terms[1], label), label)]
    return _permuted(b, *terms[0], out)


def _product(b: Any, lhs: tuple[Any, str], rhs: tuple[Any, str], out: str) -> Any:
    """Multiply two operands with their indices and sum over the indices not in `out`."""
    lhs, rhs = _without_ones(b, lhs, rhs), _without_ones(b, rhs, lhs)
    (x, left), (y, right) = lhs, rhs
    shared = set(left) & set(right)
    batch = [c for c in out if c in shared]
    inner = [c for c in left if c in shared and c not in out]
    rows = [c for c in out if c in left and c not in shared]
    columns = [c for c in out if c in right and c not in shared]
    sizes = dict(zip(left, b.dims(x), strict=True)) | dict(zip(right, b.dims(y), strict=True))

    def matrix(value: Any, labels: str, groups: list[list[str]]) -> Any:
        value = _permuted(b, value, labels, "".join(c for g in groups for c in g))
        flat = [product([sizes[c] for c in g]) for g in groups[-2:]]
        return reshape_to(b, value, [*(sizes[c] for c in batch), *flat])

    order = [*batch, *rows, *columns]
    whole = b.matmul(
        matrix(x, left, [batch, rows, inner]), matrix(y, right, [batch, inner, columns])
    )
    return _permuted(b, reshape_to(b, whole, [sizes[c] for c in order]), "".join(order), out)


def _without_ones(b: Any, term: tuple[Any, str], other: tuple[Any, str]) -> tuple[Any, str]:
    """Drop the dimensions of size 1 that the other operand has larger: they broadcast."""
    (x, label), sizes = term, dict(zip(other[1], b.dims(other[0]), strict=True))
    dims = dict(zip(label, b.dims(x), strict=True))
    kept = "".join(c for c in label if not (dims[c] == 1 and sizes.get(c, 1) != 1))
    return (x, label) if kept == label else (reshape_to(b, x, [dims[c] for c in kept]), kept)


def _plain(b: Any, x: Any, label: str) -> tuple[Any, str]:
    """Make the indices of an operand all different: a repeated one selects the diagonal."""
    if b.type_of(x).rank != len(label):
        raise PycError(ReasonCode.BAD_MODEL, f"indices {label!r}: expected {b.type_of(x).rank}")
    while len(set(label)) < len(label):
        place = next(i for i, c in enumerate(label) if c in label[:i])
        first = label.index(label[place])
        same = b.eq(b.iota_like(x, first), b.iota_like(x, place))
        x = b.reduce_sum(b.select(same, x, 0), axes=(place,), keepdims=False)
        label = label[:place] + label[place + 1 :]
    return x, label


def _labels(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Return the indices of each operand and of the result; ``...`` becomes unused letters."""

    def wrong(expected: str) -> PycError:
        return PycError(ReasonCode.BAD_MODEL, f"equation {equation[:80]!r}: expected {expected}")

    left, arrow, out = equation.partition("->")
    labels = left.split(",")
    letters = equation.translate(_MARKS)
    if len(labels) != len(ranks) or not all(c.isalpha() for c in letters):
        raise wrong(f"{len(ranks)} terms")
    if any(t.replace("...", "", 1).count(".") for t in (*labels, out)):
        raise wrong("one ellipsis")
    spare = [c for c in map(chr, range(0x391, 0x3CA)) if c not in equation]
    depths = [r - len(t) + 3 if "..." in t else 0 for r, t in zip(ranks, labels, strict=True)]
    most = max(depths, default=0)
    if not min(depths, default=0) >= 0 or most > len(spare):
        raise wrong("other ranks")
    hidden = "".join(spare[:most])
    full = [t.replace("...", hidden[most - d :]) for t, d in zip(labels, depths, strict=True)]
    if arrow:
        return full, out.replace("...", hidden)
    alone = "".join(full)
    once = sorted(c for c in set(alone) - set(hidden) if alone.count(c) == 1)
    return full, hidden + "".join(once)


def _permuted(b: Any, x: Any, have: str, want: str) -> Any:
    """x with indices `have` summed over those not in `want`, in the order of `want`."""
    gone = tuple(i for i, c in enumerate(have) if c not in want)
    if gone:
        x = b.reduce_sum(x, axes=gone)
        have = "".join(c for c in have if c in want)
    if sorted(have) != sorted(want):
        raise PycError(ReasonCode.BAD_MODEL, f"indices {want!r}: expected those of the operands")
    if have == want:
        return x
    return b.transpose(x, permutation=tuple(have.index(c) for c in want))


@dataclass(frozen=True)
class _Fold:
    """One pyc reduction, by name, over the axes of a node; without axes there is nothing to do."""

    b: Any
    axes: tuple[int, ...]
    keepdims: bool

    def __call__(self, op: str, x: Any) -> Any:
        """Build it."""
        return getattr(self.b, op)(x, axes=self.axes, keepdims=self.keepdims) if self.axes else x


def _reduction(formula: Callable[[Any, Any, _Fold], Any]) -> Callable[..., Any]:
    """Return the handler that computes a formula of the builder, x and the reduction.

    Axes are an input (opset 18; ReduceSum 13) or an attribute; else all.
    """

    def handler(
        b: Any, x: Any, axes: Ints = None, *,
        axes_: Sequence[int] = (), keepdims: int = 1, noop_with_empty_axes: int = 0,
    ) -> Any:  # fmt: skip
        rank = b.type_of(x).rank
        given = tuple(axes_) if axes is None else axes
        every = () if noop_with_empty_axes else tuple(range(rank))
        over = tuple(sorted(a % rank for a in given)) if given else every
        return formula(b, x, _Fold(b, over, bool(keepdims)))

    return handler


def _of_floats(b: Any, x: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function of floats; integers go by way of f64, and the result is truncated."""
    dtype = b.type_of(x).dtype
    if is_float(dtype):
        return accumulated(b, x, function)
    return b.convert(function(b.cast(x, dtype=DTYPES["f64"])), dtype)


def _extreme(b: Any, x: Any, fold: _Fold, op: str) -> Any:
    if b.type_of(x).dtype != BOOL:
        return fold(op, x)
    wide = b.cast(x, dtype=DTYPES["i8"])
    # The identities of i8 are not 0 and 1: an empty maximum is false, an empty minimum true.
    zero = b.constant(np.array(0, np.int8))
    return b.gt(fold(op, wide), zero)


def _log_sum_exp(b: Any, x: Any, fold: _Fold) -> Any:
    axes = fold.axes

    def compute(x: Any) -> Any:
        top = b.reduce_max(x, axes=axes, keepdims=True)
        finite = b.lt(b.abs(top), np.inf)
        top = b.select(finite, top, 0)
        total = b.reduce_sum(b.exp(b.sub(x, top)), axes=axes, keepdims=True)
        out = b.add(b.log(total), top)
        # Dimensions of size 1: any reduction drops them.
        return out if fold.keepdims else b.reduce_max(out, axes=axes)

    return _of_floats(b, x, compute) if axes else x


_REDUCTIONS: dict[str, tuple[str, Callable[[Any, Any, _Fold], Any]]] = {
    "ReduceSum": ("One pyc reduction.", lambda b, x, fold: fold("reduce_sum", x)),
    "ReduceProd": ("One pyc reduction.", lambda b, x, fold: fold("reduce_prod", x)),
    "ReduceMax": ("One pyc reduction; i1 goes by way of i8.",
                  lambda b, x, fold: _extreme(b, x, fold, "reduce_max")),
    "ReduceMin": ("One pyc reduction; i1 goes by way of i8.",
                  lambda b, x, fold: _extreme(b, x, fold, "reduce_min")),
    "ReduceMean": ("The mean; of integers, rounded toward zero.", lambda b, x, fold:
                   fold("reduce_mean", x) if is_float(b.type_of(x).dtype) or not fold.axes
                   else b.div(fold("reduce_sum", x), b.count(x, fold.axes))),
    "ReduceL1": ("out = sum |x|.", lambda b, x, fold: fold("reduce_sum", b.abs(x))),
    "ReduceL2": ("out = sqrt(sum x^2).", lambda b, x, fold: _of_floats(
        b, x, lambda x: b.sqrt(fold("reduce_sum", b.mul(x, x))))),
    "ReduceSumSquare": ("out = sum x^2.", lambda b, x, fold: accumulated(
        b, x, lambda x: fold("reduce_sum", b.mul(x, x)))),
    "ReduceLogSum": ("out = ln(sum x).", lambda b, x, fold: _of_floats(
        b, x, lambda x: b.log(fold("reduce_sum", x)))),
    "ReduceLogSumExp": ("out = m + ln(sum e^(x - m)) with m = max(x), or 0 where that is infinite.",
                        _log_sum_exp),
}  # fmt: skip
formulas({name: (doc, _reduction(formula)) for name, (doc, formula) in _REDUCTIONS.items()})


def _reversed(b: Any, x: Any, axis: int) -> Any:
    return take(b, x, axis, END, BEGIN, -1)


@node("ArgMax", "ArgMin")
def arg_extreme(
    n: OnnxNode, x: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Any:
    """pyc.argmax; the minimum's is that of -x (~x for integers); the last one's of x reversed."""
    b, type_ = n.b, n.b.type_of(x)
    axis %= type_.rank
    if n.op == "ArgMin":
        x = b.neg(x) if is_float(type_.dtype) else b.not_(x)
    if select_last_index:
        x = _reversed(b, x, axis)
    index = b.argmax(x, axis=axis, keepdims=bool(keepdims))
    if not select_last_index:
        return index
    return b.sub(b.sub(b.size(x, axis), 1), index)


@node("CumSum", "CumProd")
def cumulative(n: OnnxNode, x: Any, axis: Number, *, exclusive: int = 0, reverse: int = 0) -> Any:
    """Build running sums or products along `axis`, from the end with `reverse`."""
    b, rank, sums = n.b, n.b.type_of(x).rank, n.op == "CumSum"
    axis = int(axis) % rank
    x = _reversed(b, x, axis) if reverse else x
    if exclusive:
        # The last one falls off only behind, so that an axis of size 0 stays so.
        low = tuple(int(i == axis) for i in range(rank))
        x = b.pad(x, low=low, high=(0,) * rank, value=0.0 if sums else 1.0)
    out = b.cumulative(x, axis=axis, reduction="add" if sums else "mul")
    out = take(b, out, axis, 0, -1) if exclusive else out
    return _reversed(b, out, axis) if reverse else out
