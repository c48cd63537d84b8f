"""Elementwise operations: they broadcast as numpy does and work on each element alone.

Primitive ops map to one scalar operation of arith or math; composite ones decompose. The 16-bit
floats are computed in f32 by the reference and rounded once."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.functions import accumulated, in_accumulator, rational
from pyc_mlir.dialects.opdef import NO_TRAITS, OpDef, Trait
from pyc_mlir.dialects.ops.shapes import broadcast_shapes, require, same_dtype
from pyc_mlir.dialects.types import (
    BOOL,
    FLOATS,
    INTEGERS,
    TensorType,
    accumulator,
    dtype_name,
    highest,
    is_float,
    is_integer,
    is_unsigned,
    lowest,
)

FLOAT = FLOATS
NUMBER = FLOATS | INTEGERS
LOGICAL = INTEGERS | {BOOL}
PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")
TRANSCENDENTAL_FLOPS = 10
# The C library's erf is called for each element: some 60 ns.
ERF_WORK = 500


def require_dtype(type_: TensorType, allowed: frozenset[np.dtype], what: str = "operand") -> None:
    """Raise VerificationError unless the element type is one of `allowed`."""
    if type_.dtype not in allowed:
        names = ", ".join(sorted(dtype_name(d) for d in allowed))
        found = dtype_name(type_.dtype)
        raise VerificationError(f"{what}: expected an element type in {names}, got {found}")


def wide(array: np.ndarray) -> np.ndarray:
    """Return the array in the type that its sums are kept in (f32 for 16-bit floats)."""
    return np.asarray(array).astype(accumulator(array.dtype), copy=False)


class Elementwise(
    OpDef, traits=Trait.ELEMENTWISE | Trait.ALIGNED | Trait.OVERWRITES | Trait.ANY_ORDER
):
    """Base of elementwise ops: one flop an element unless said otherwise."""

    flops_per_element = 1
    allowed = NUMBER

    @classmethod
    def infer(cls, *types: TensorType, **params: Any) -> TensorType:
        """Broadcast the shapes; all operands share one element type."""
        for i, type_ in enumerate(types):
            require_dtype(type_, cls.allowed, f"operand {i}")
        same_dtype(*types)
        return TensorType(broadcast_shapes(*(t.shape for t in types)), types[0].dtype)


def _primitive(
    name: str,
    operands: str,
    equation: str,
    function: Callable[..., np.ndarray],
    allowed: frozenset[np.dtype] = NUMBER,
    traits: Trait = NO_TRAITS,
    neutral: Callable[[np.dtype], Any] | None = None,
    flops: int = 1,
    work: int = OpDef.element_work,
) -> None:
    """Define an elementwise op without parameters by its numpy function."""

    def reference(*arrays: np.ndarray) -> np.ndarray:
        return function(*(wide(a) for a in arrays))

    body = {
        "__doc__": equation,
        "__module__": __name__,
        "allowed": allowed,
        "flops_per_element": flops,
        "element_work": work,
        "neutral": neutral and staticmethod(neutral),
        "reference": staticmethod(reference),
    }
    options = {"name": name, "operands": operands, "traits": traits}
    type(name.title(), (Elementwise,), body, **options)  # type: ignore[call-overload]


def truncated_division(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Return integer quotients rounded toward zero; x/0 = 0 and MIN/-1 = MIN."""
    if is_float(lhs.dtype):
        return np.divide(lhs, rhs)
    safe = np.where((rhs == 0) | (rhs == -1), 1, rhs)
    quotient = lhs // safe
    quotient = quotient + ((lhs % safe != 0) & ((lhs < 0) != (safe < 0)))
    return np.where(rhs == 0, 0, np.where(rhs == -1, np.negative(lhs), quotient))


def erf_reference(x: np.ndarray) -> np.ndarray:
    """erf by the C library, element by element, in f64."""
    wide = x.astype(np.float64)
    return np.fromiter(map(math.erf, wide.ravel().tolist()), np.float64, wide.size).reshape(x.shape)


def _rsqrt(x: np.ndarray) -> np.ndarray:
    return 1.0 / np.sqrt(x.astype(np.float64))


def _power(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """lhs ** rhs of C99; numpy takes the square root of all, of -inf too, where rhs is one 0.5."""
    ends = (rhs == 0.5) & (np.isinf(lhs) | (lhs == 0))
    return np.where(ends, np.abs(lhs), np.power(lhs, rhs))


def remainder(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Return C's fmod; for integers lhs - (lhs / rhs) * rhs, with x % 0 = x."""
    if is_float(lhs.dtype):
        return np.fmod(lhs, rhs)
    return lhs - truncated_division(lhs, rhs).astype(lhs.dtype) * rhs


def shifted_left(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Return numpy's shift, with 0 for counts outside of the bits."""
    return np.where(_outside(rhs), 0, np.left_shift(lhs, np.where(_outside(rhs), 0, rhs)))


def shifted_right(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Return numpy's shift, which fills with the sign; all bits the sign for counts outside."""
    if is_unsigned(lhs.dtype):
        return np.where(_outside(rhs), 0, np.right_shift(lhs, np.where(_outside(rhs), 0, rhs)))
    most = rhs.dtype.type(8 * rhs.dtype.itemsize - 1)
    return np.right_shift(lhs, np.where(_outside(rhs), most, rhs))


def _outside(count: np.ndarray) -> np.ndarray:
    return (count < 0) | (count >= 8 * count.dtype.itemsize)


def _always(value: Any) -> Callable[[np.dtype], Any]:
    return lambda dtype: value


def _minus_zero(dtype: np.dtype) -> Any:
    return -0.0 if is_float(dtype) else 0


def _all_bits(dtype: np.dtype) -> Any:
    return True if dtype == BOOL else -1


_ARITHMETIC, _SYMMETRIC = Trait.ARITHMETIC, Trait.COMMUTATIVE
_LATTICE = Trait.COMMUTATIVE | Trait.IDEMPOTENT
_MANY = TRANSCENDENTAL_FLOPS
_RING = _ARITHMETIC | _SYMMETRIC
_TWO = "lhs rhs"

_primitive("add", _TWO, "out = lhs + rhs.", np.add, NUMBER, _RING, _minus_zero)
_primitive("sub", _TWO, "out = lhs - rhs.", np.subtract, NUMBER, _ARITHMETIC, _always(0))
_primitive("mul", _TWO, "out = lhs * rhs.", np.multiply, NUMBER, _RING, _always(1))
_primitive(
    *("div", _TWO, "out = lhs / rhs; integers round toward zero, x/0 = 0, MIN/-1 = MIN."),
    *(truncated_division, NUMBER, _ARITHMETIC, _always(1)),
)
_primitive(
    "maximum", _TWO, "out = max(lhs, rhs); NaN if either is.", np.maximum, NUMBER, _LATTICE, lowest
)
_primitive(
    "minimum", _TWO, "out = min(lhs, rhs); NaN if either is.", np.minimum, NUMBER, _LATTICE, highest
)
_primitive("pow", _TWO, "out = lhs ** rhs.", _power, FLOAT, _ARITHMETIC, _always(1), _MANY)
_primitive("neg", "x", "out = -x.", np.negative, NUMBER, _ARITHMETIC | Trait.INVOLUTION)
_primitive("abs", "x", "out = |x|.", np.abs, NUMBER, Trait.IDEMPOTENT)
_primitive("floor", "x", "out = the greatest integer <= x.", np.floor, FLOAT, Trait.IDEMPOTENT)
_primitive("ceil", "x", "out = the least integer >= x.", np.ceil, FLOAT, Trait.IDEMPOTENT)
_primitive(
    "round", "x", "out = the nearest integer, ties to even.", np.rint, FLOAT, Trait.IDEMPOTENT
)
_primitive("exp", "x", "out = e ** x.", np.exp, FLOAT, flops=_MANY)
_primitive("log", "x", "out = ln x.", np.log, FLOAT, flops=_MANY)
_primitive("sin", "x", "out = sin x.", np.sin, FLOAT, Trait.ODD, flops=_MANY)
_primitive("cos", "x", "out = cos x.", np.cos, FLOAT, flops=_MANY)
_primitive("sqrt", "x", "out = x ** 0.5.", np.sqrt, FLOAT, _ARITHMETIC)
_primitive("rsqrt", "x", "out = x ** -0.5.", _rsqrt, FLOAT, _ARITHMETIC)
_primitive("tanh", "x", "out = tanh x.", np.tanh, FLOAT, Trait.ODD, flops=_MANY)
_primitive(
    *("erf", "x", "out = 2/sqrt(pi) * integral of exp(-t^2) from 0 to x."),
    *(erf_reference, FLOAT, Trait.ODD, None, _MANY, ERF_WORK),
)
_primitive(
    "and", _TWO, "out = lhs & rhs, bit by bit.", np.bitwise_and, LOGICAL, _LATTICE, _all_bits
)
_primitive("or", _TWO, "out = lhs | rhs, bit by bit.", np.bitwise_or, LOGICAL, _LATTICE, _always(0))
_primitive(
    "xor", _TWO, "out = lhs ^ rhs, bit by bit.", np.bitwise_xor, LOGICAL, _SYMMETRIC, _always(0)
)
_primitive("not", "x", "out = ~x, bit by bit.", np.invert, LOGICAL, Trait.INVOLUTION)
_primitive(
    *("rem", _TWO),
    "out = lhs - trunc(lhs / rhs) * rhs, exactly, of the sign of lhs (integers: x % 0 = x).",
    remainder,
)
_primitive(
    *("shift_left", _TWO),
    "out = the bits of lhs moved up by rhs; 0 for counts below 0 or as large as the type.",
    *(shifted_left, INTEGERS),
)
_primitive(
    *("shift_right", _TWO),
    "out = floor(lhs / 2 ** rhs); counts below 0 or as large as the type leave only the sign.",
    *(shifted_right, INTEGERS),
)


class Compare(Elementwise, name="compare", operands="lhs rhs"):
    """out = lhs <predicate> rhs as i1; predicate is eq, ne, lt, le, gt or ge. NaN is unequal."""

    predicate: str

    @staticmethod
    def infer(lhs: TensorType, rhs: TensorType, *, predicate: str) -> TensorType:
        """Return i1 of the broadcast shape."""
        require(predicate in PREDICATES, f"`predicate`: expected one of {PREDICATES}")
        if predicate not in ("eq", "ne"):
            require_dtype(lhs, NUMBER, "operand 0")
        same_dtype(lhs, rhs)
        return TensorType(broadcast_shapes(lhs.shape, rhs.shape), BOOL)

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray, *, predicate: str) -> np.ndarray:
        """Return numpy's comparison of the same meaning."""
        names = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal"}
        names |= {"gt": "greater", "ge": "greater_equal"}
        return getattr(np, names[predicate])(wide(lhs), wide(rhs))


class Select(Elementwise, name="select", operands="condition true_value false_value"):
    """out = true_value where condition, else false_value."""

    @staticmethod
    def infer(condition: TensorType, true_value: TensorType, false_value: TensorType) -> TensorType:
        """Return the element type of the two values; `condition` is i1."""
        require_dtype(condition, frozenset({BOOL}), "condition")
        same_dtype(true_value, false_value)
        shape = broadcast_shapes(condition.shape, true_value.shape, false_value.shape)
        return TensorType(shape, true_value.dtype)

    @staticmethod
    def reference(
        condition: np.ndarray, true_value: np.ndarray, false_value: np.ndarray
    ) -> np.ndarray:
        """Return numpy's `where`."""
        return np.where(condition, true_value, false_value)


_CONVERSION = Trait.CONVERTS | Trait.ARITHMETIC


class Cast(Elementwise, name="cast", operands="x", traits=_CONVERSION):
    """out = x as `dtype`; floats truncate toward zero and saturate, NaN -> 0; to i1: x != 0."""

    dtype: np.dtype

    @staticmethod
    def infer(x: TensorType, *, dtype: np.dtype) -> TensorType:
        """Return the same shape with element type `dtype`."""
        return x.with_dtype(dtype)

    @staticmethod
    def reference(x: np.ndarray, *, dtype: np.dtype) -> np.ndarray:
        """Convert, saturating; between integers the low bits are kept."""
        if dtype == BOOL:
            return wide(x) != 0
        if is_float(x.dtype) and is_integer(dtype):
            return saturate(wide(x), dtype)
        return x.astype(dtype)


class Bitcast(Elementwise, name="bitcast", operands="x"):
    """out = the bits of x read as `dtype`, which has as many."""

    dtype: np.dtype

    @staticmethod
    def infer(x: TensorType, *, dtype: np.dtype) -> TensorType:
        """Return the same shape with element type `dtype`."""
        same = x.dtype.itemsize == dtype.itemsize and BOOL not in (x.dtype, dtype)
        names = dtype_name(x.dtype), dtype_name(dtype)
        require(same, f"`dtype`: expected as many bits as {names[0]} has, got {names[1]}")
        return x.with_dtype(dtype)

    @staticmethod
    def reference(x: np.ndarray, *, dtype: np.dtype) -> np.ndarray:
        """Return numpy's view."""
        return np.ascontiguousarray(x).view(dtype).reshape(x.shape)


def saturate(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert floats to integers: toward zero, saturating, NaN to 0."""
    info = np.iinfo(dtype)
    least, limit = float(info.min), float(info.max + 1)
    inside = (x >= least) & (x < limit)
    out = np.where(inside, x, 0).astype(dtype)
    out = np.where(x >= limit, info.max, out)
    return np.where(x < least, info.min, out).astype(dtype)


class Clip(Elementwise, name="clip", operands="x low high"):
    """out = min(max(x, low), high)."""

    flops_per_element = 2

    @staticmethod
    def reference(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Compute as numpy's clip."""
        return np.minimum(np.maximum(wide(x), wide(low)), wide(high))

    @staticmethod
    def decompose(b: Any, x: Any, low: Any, high: Any) -> Any:
        """minimum(maximum(x, low), high)."""
        return b.minimum(b.maximum(x, low), high)


class Relu(Elementwise, name="relu", operands="x", traits=Trait.IDEMPOTENT):
    """out = max(x, 0)."""

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        """max with zero."""
        return np.maximum(wide(x), 0)

    @staticmethod
    def decompose(b: Any, x: Any) -> Any:
        """maximum(x, 0)."""
        return b.maximum(x, b.scalar(0, x))


class Sigmoid(Elementwise, name="sigmoid", operands="x", traits=Trait.WIDE):
    """out = 1 / (1 + exp(-x))."""

    allowed = FLOAT
    flops_per_element = TRANSCENDENTAL_FLOPS

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        """Return the logistic function in f64."""
        return 1.0 / (1.0 + np.exp(-x.astype(np.float64)))

    @staticmethod
    @in_accumulator
    def decompose(b: Any, x: Any) -> Any:
        """div(1, add(1, exp(neg(x)))), in f32 at least: exp leaves the range of f16 at 11."""
        one = b.scalar(1, x)
        return b.div(one, b.add(one, b.exp(b.neg(x))))


class Silu(Elementwise, name="silu", operands="x", traits=Trait.WIDE):
    """out = x * sigmoid(x)."""

    allowed = FLOAT
    flops_per_element = TRANSCENDENTAL_FLOPS + 1

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        """Return x over 1 + exp(-x), in f64."""
        x = x.astype(np.float64)
        return x * (1.0 / (1.0 + np.exp(-x)))

    @staticmethod
    @in_accumulator
    def decompose(b: Any, x: Any) -> Any:
        """mul(x, sigmoid(x)), in f32 at least."""
        return b.mul(x, b.sigmoid(x))


class Gelu(Elementwise, name="gelu", operands="x", traits=Trait.WIDE):
    """out = x/2 * (1 + erf(x / sqrt 2)).

    With approximate="tanh": out = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
    """

    allowed = FLOAT
    flops_per_element = TRANSCENDENTAL_FLOPS + 4
    element_work = ERF_WORK
    approximate: str = "none"

    @classmethod
    def infer(cls, x: TensorType, *, approximate: str) -> TensorType:
        """Return the type of x."""
        require(approximate in ("none", "tanh"), "`approximate`: expected 'none' or 'tanh'")
        require_dtype(x, FLOAT, "operand 0")
        return x

    @staticmethod
    def reference(x: np.ndarray, *, approximate: str) -> np.ndarray:
        """Compute the function of Hendrycks and Gimpel, 2016, in f64."""
        x = x.astype(np.float64)
        if approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + erf_reference(x / math.sqrt(2)))

    @staticmethod
    def decompose(b: Any, x: Any, *, approximate: str) -> Any:
        """Return the equation in primitive ops, in f32 at least: 1 + erf cancels for x < 0."""

        def formula(x: Any) -> Any:
            half, one = b.scalar(0.5, x), b.scalar(1, x)
            if approximate == "tanh":
                cubic = b.mul(b.mul(x, x), b.mul(x, b.scalar(0.044715, x)))
                inner = b.mul(b.add(x, cubic), b.scalar(math.sqrt(2 / math.pi), x))
                return b.mul(b.mul(half, x), b.add(one, b.tanh(inner)))
            scaled = b.mul(x, b.scalar(1 / math.sqrt(2), x))
            return b.mul(b.mul(half, x), b.add(one, b.erf(scaled)))

        return accumulated(b, x, formula)


# exp(x^2) erfc(x) from 1 to 8 as P / Q, and beyond as R / S, the constants first: the published
# coefficients of the Cephes library (Moshier, 1989). To f32's digits P / Q holds from 0 to 9.2,
# where the result is no normal number any more.
ERFC_P_Q = (
    (5.57535335369399327526e2, 1.02755188689515710272e3, 9.34528527171957607540e2,
     5.26445194995477358631e2, 1.96520832956077098242e2, 4.86371970985681366614e1,
     7.46321056442269912687, 5.64189564831068821977e-1, 2.46196981473530512524e-10),
    (5.57535340817727675546e2, 1.65666309194161350182e3, 2.24633760818710981792e3,
     1.82390916687909736289e3, 9.75708501743205489753e2, 3.54937778887819891062e2,
     8.67072140885989742329e1, 1.32281951154744992508e1, 1.0),
)  # fmt: skip
_R_S = (
    (2.97886665372100240670, 7.40974269950448939160, 6.16021097993053585195,
     5.01905042251180477414, 1.27536670759978104416, 5.64189583547755073984e-1),
    (3.36907645100081516050, 9.60896809063285878198, 1.70814450747565897222e1,
     1.20489539808096656605e1, 9.39603524938001434673, 2.26052863220117276590, 1.0),
)  # fmt: skip
# Where the result is 0 in every type.
_END = 28.0


class Erfc(Elementwise, name="erfc", operands="x", traits=Trait.WIDE):
    """out = 1 - erf x, as exact where it is small."""

    allowed = FLOAT
    flops_per_element = 3 * TRANSCENDENTAL_FLOPS
    element_work = ERF_WORK

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        """erfc by the C library, element by element, in f64."""
        values = map(math.erfc, x.astype(np.float64).ravel().tolist())
        return np.fromiter(values, np.float64, x.size).reshape(x.shape)

    @staticmethod
    @in_accumulator
    def decompose(b: Any, x: Any) -> Any:
        """Return exp(-x^2) times a rational of |x|, in f64 below 1 also 1 - erf x."""
        size = b.minimum(b.abs(x), b.scalar(_END, x))
        # x^2 is rounded; the square of the nearest 16th below is not.
        coarse = b.mul(b.floor(b.mul(size, b.scalar(16, x))), b.scalar(1 / 16, x))
        rest = b.mul(b.sub(coarse, size), b.add(coarse, size))
        power = b.mul(b.exp(b.neg(b.mul(coarse, coarse))), b.exp(rest))
        ratio, double = rational(b, size, ERFC_P_Q), b.type_of(x).dtype.itemsize == 8
        if double:
            near = b.compare(size, b.scalar(8, x), predicate="lt")
            ratio = b.select(near, ratio, rational(b, size, _R_S))
        tail = b.mul(power, ratio)
        out = b.select(
            b.compare(x, b.scalar(0, x), predicate="lt"), b.sub(b.scalar(2, x), tail), tail
        )
        if not double:
            return out
        one = b.scalar(1, x)
        return b.select(b.compare(size, one, predicate="lt"), b.sub(one, b.erf(x)), out)
