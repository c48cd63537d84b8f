"""Single identities of integers and floats, decided by z3 (extra ``solve``).

Comes in: two elementwise programs. Goes out: True if no arguments give other bits, a counterexample
that the references confirm, or None. One element stands for all: integers are bit vectors, which
wrap; floats are those of IEEE 754; bf16 is computed in f32 and rounded, as by the references. Other
elementwise functions of floats are unknown ones, of which z3 knows congruence. The limit
counts z3's own steps, never time, so that an answer does not depend on the machine.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.types import (
    BOOL,
    DTYPES,
    accumulator,
    dtype_name,
    is_float,
    is_integer,
    is_unsigned,
)
from pyc_mlir.pipelines.pyc.equivalence.answers import Counterexample
from pyc_mlir.pipelines.pyc.equivalence.fields.programs import NotComparable, Program, evaluated
from pyc_mlir.pipelines.pyc.equivalence.integers import differing
from pyc_mlir.pipelines.pyc.terms.nodes import VALUE, TermNode

# Steps of z3: one or two seconds.
LIMIT = 8_000_000
# Ops of both programs; identities are small.
_MOST_NODES = 48
_FORMATS = {"f16": (5, 11), "bf16": (8, 8), "f32": (8, 24), "f64": (11, 53)}


def is_available() -> bool:
    """Return whether z3 is installed."""
    try:
        import z3  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def solved(
    first: Program, second: Program, refutes: bool, limit: int = LIMIT
) -> Counterexample | bool | None:
    """Return True if both are equal in every bit, a counterexample to that, or None.

    refutes: look for a counterexample too.
    """
    if not is_available() or len({*first.nodes, *second.nodes}) > _MOST_NODES:
        return None
    import z3

    terms = Terms(z3.Context())
    try:
        pairs = [terms.of(p) for p in (first, second)]
        differ = [z3.Not(a == b, terms.context) for a, b in zip(*pairs, strict=True)]
        solver = z3.Solver(ctx=terms.context)
        solver.set("rlimit", limit)
        solver.add(z3.Or(*differ) if len(differ) > 1 else differ[0])
        found = solver.check()
    except (NotComparable, z3.Z3Exception):
        return None
    if found == z3.unsat:
        return True
    if found != z3.sat or not refutes:
        return None
    model = solver.model()
    inputs = [np.full([d or 0 for d in n.type.shape], terms.value(model, n), n.type.dtype)
              for n in first.inputs]  # fmt: skip
    floats = any(is_float(n.type.dtype) for n in {*first.nodes, *second.nodes})
    return differing(first, second, inputs, floats)


class Terms:
    """The terms of z3 for one element of each node, in one context."""

    def __init__(self, context: Any) -> None:
        import z3

        self.z3 = z3
        self.context = context
        self.arguments: dict[TermNode, Any] = {}
        self.nearest = z3.RNE(context)

    def of(self, given: Program) -> list[Any]:
        """Return the results of a program. Raises NotComparable for ops that mix elements."""
        values = evaluated(given, self.step)
        return [values[o] for o in given.outputs]

    def step(self, node: TermNode, operands: Sequence[Any]) -> Any:
        """Return the term of a node. Raises NotComparable for what has none."""
        dtype = node.type.dtype
        if node.name == VALUE:
            name = f"argument {node.params['number']}"
            if node not in self.arguments:
                self.arguments[node] = self.z3.Const(name, self.sort(dtype))
            return self.arguments[node]
        if node.number is not None:
            array = node.array
            assert array is not None
            return self.constant(np.asarray(array)[(0,) * array.ndim], dtype)
        if not node.has(Trait.ELEMENTWISE):
            if node.name == "broadcast_to" and node.operands[0].type.elements == 1:
                return operands[0]
            raise NotComparable(f"{node.name} mixes elements")
        types = [o.type.dtype for o in node.operands]
        if node.name in _ANY:
            return _ANY[node.name](self, node, operands)
        if types[0] == BOOL:
            return self._table(_CONDITIONS, node)(self, *operands)
        if is_integer(types[0]):
            signed = not is_unsigned(types[0])
            return self._table(_INTEGERS, node)(self, signed, *operands)
        return self._float(node, operands, types[0])

    def _table(self, table: Mapping[str, Callable[..., Any]], node: TermNode) -> Callable[..., Any]:
        if node.name not in table:
            raise NotComparable(f"{node.name} has no term")
        return table[node.name]

    def _float(self, node: TermNode, operands: Sequence[Any], dtype: np.dtype) -> Any:
        """Compute as the references do; what is not known is any function."""
        # The sign of a zero that maximum and minimum give depends on the order.
        zeros = node.name in ("maximum", "minimum") and not any(o.number for o in node.operands)
        if node.name not in _FLOATS or zeros:
            kept = f"{node.name} {sorted(node.params.items())}"
            sorts = [self.sort(n.type.dtype) for n in (*node.operands, node)]
            return self.z3.Function(kept, *sorts)(*operands)
        # f32 has more than twice the digits of f16: rounding twice rounds once (Figueroa, 1995).
        # It has no more exponents than bf16, so that its smallest numbers have few digits.
        exact = node.name in _EXACT or dtype != DTYPES["bf16"]
        wide = dtype if exact else accumulator(dtype)
        parts = [self.converted(o, dtype, wide) for o in operands]
        return self.converted(_FLOATS[node.name](self, *parts), wide, dtype)

    def sort(self, dtype: np.dtype) -> Any:
        """Return the sort of an element."""
        if dtype == BOOL:
            return self.z3.BoolSort(self.context)
        if is_float(dtype):
            return self.z3.FPSort(*_FORMATS[dtype_name(dtype)], self.context)
        return self.z3.BitVecSort(8 * dtype.itemsize, self.context)

    def constant(self, number: Any, dtype: np.dtype) -> Any:
        """Return a number as a term, by its bits."""
        if dtype == BOOL:
            return self.z3.BoolVal(bool(number), self.context)
        bits = np.asarray(number, dtype).reshape(1).view(f"u{dtype.itemsize}")[0]
        whole = self.z3.BitVecVal(int(bits), 8 * dtype.itemsize, self.context)
        if not is_float(dtype):
            return whole
        return self.z3.fpBVToFP(whole, self.sort(dtype), self.context)

    def value(self, model: Any, node: TermNode) -> Any:
        """Return what a model gives to an argument."""
        dtype = node.type.dtype
        if node not in self.arguments:
            return np.zeros((), dtype)
        found = model.eval(self.arguments[node], model_completion=True)
        if dtype == BOOL:
            return self.z3.is_true(found)
        if is_float(dtype):
            found = self.z3.simplify(self.z3.fpToIEEEBV(found, self.context))
        return np.array(found.as_long(), f"u{dtype.itemsize}").view(dtype)

    def converted(self, x: Any, source: np.dtype, target: np.dtype) -> Any:
        """Return a float in another type of floats."""
        if source == target:
            return x
        return self.z3.fpFPToFP(self.nearest, x, self.sort(target), self.context)


def _rounded(name: str) -> Callable[..., Any]:
    return lambda t, *xs: getattr(t.z3, name)(t.nearest, *xs, t.context)


def _plain(name: str) -> Callable[..., Any]:
    return lambda t, *xs: getattr(t.z3, name)(*xs, t.context)


def _whole(mode: str) -> Callable[..., Any]:
    return lambda t, x: t.z3.fpRoundToIntegral(getattr(t.z3, mode)(t.context), x, t.context)


def _extreme(less: str) -> Callable[..., Any]:
    """Return max or min of floats of which one is no zero; NaN if either is."""

    def extreme(t: Terms, x: Any, y: Any) -> Any:
        first = getattr(t.z3, less)(x, y, t.context)
        nan = t.z3.fpNaN(x.sort())
        either = t.z3.Or(t.z3.fpIsNaN(x, t.context), t.z3.fpIsNaN(y, t.context))
        return t.z3.If(either, nan, t.z3.If(first, x, y, t.context), t.context)

    return extreme


_FLOATS: dict[str, Callable[..., Any]] = {
    "add": _rounded("fpAdd"),
    "sub": _rounded("fpSub"),
    "mul": _rounded("fpMul"),
    "div": _rounded("fpDiv"),
    "sqrt": _rounded("fpSqrt"),
    "neg": _plain("fpNeg"),
    "abs": _plain("fpAbs"),
    "floor": _whole("RTN"),
    "ceil": _whole("RTP"),
    "round": _whole("RNE"),
    "maximum": _extreme("fpGT"),
    "minimum": _extreme("fpLT"),
}
# Ops of floats that round nothing.
_EXACT = frozenset({"neg", "abs", "floor", "ceil", "round", "maximum", "minimum"})


def _less(t: Terms, signed: bool, x: Any, y: Any) -> Any:
    return x < y if signed else t.z3.ULT(x, y)


def _quotient(t: Terms, signed: bool, x: Any, y: Any) -> Any:
    """Return x / y toward zero; x / 0 = 0, and MIN / -1 = MIN, as bit vectors have it."""
    plain = x / y if signed else t.z3.UDiv(x, y)
    return t.z3.If(y == 0, y, plain, t.context)


def _remainder(t: Terms, signed: bool, x: Any, y: Any) -> Any:
    return x - _quotient(t, signed, x, y) * y


def _up(t: Terms, signed: bool, x: Any, y: Any) -> Any:
    """Return x << y; counts outside of the bits give 0, as those of bit vectors do."""
    return x << y


def _down(t: Terms, signed: bool, x: Any, y: Any) -> Any:
    return x >> y if signed else t.z3.LShR(x, y)


def _size(t: Terms, signed: bool, x: Any) -> Any:
    return t.z3.If(x < 0, -x, x, t.context) if signed else x


_INTEGERS: dict[str, Callable[..., Any]] = {
    "add": lambda t, s, x, y: x + y,
    "sub": lambda t, s, x, y: x - y,
    "mul": lambda t, s, x, y: x * y,
    "div": _quotient,
    "rem": _remainder,
    "neg": lambda t, s, x: -x,
    "abs": _size,
    "maximum": lambda t, s, x, y: t.z3.If(_less(t, s, x, y), y, x, t.context),
    "minimum": lambda t, s, x, y: t.z3.If(_less(t, s, x, y), x, y, t.context),
    "and": lambda t, s, x, y: x & y,
    "or": lambda t, s, x, y: x | y,
    "xor": lambda t, s, x, y: x ^ y,
    "not": lambda t, s, x: ~x,
    "shift_left": _up,
    "shift_right": _down,
}
_CONDITIONS: dict[str, Callable[..., Any]] = {
    "and": lambda t, x, y: t.z3.And(x, y),
    "or": lambda t, x, y: t.z3.Or(x, y),
    "xor": lambda t, x, y: t.z3.Xor(x, y, t.context),
    "not": lambda t, x: t.z3.Not(x, t.context),
}


def _compared(t: Terms, node: TermNode, operands: Sequence[Any]) -> Any:
    predicate, dtype = node.params["predicate"], node.operands[0].type.dtype
    x, y = operands
    if predicate in ("gt", "ge"):
        predicate, x, y = {"gt": "lt", "ge": "le"}[predicate], y, x
    if is_float(dtype):
        names = {"eq": "fpEQ", "ne": "fpEQ", "lt": "fpLT", "le": "fpLEQ"}
        found = getattr(t.z3, names[predicate])(x, y, t.context)
        return t.z3.Not(found, t.context) if predicate == "ne" else found
    if predicate in ("eq", "ne"):
        return x == y if predicate == "eq" else t.z3.Not(x == y, t.context)
    signed = not is_unsigned(dtype)
    if predicate == "lt":
        return _less(t, signed, x, y)
    return t.z3.Not(_less(t, signed, y, x), t.context)


def _cast(t: Terms, node: TermNode, operands: Sequence[Any]) -> Any:
    """Convert as the reference does, which between some types goes a way of its own."""
    source, target, (x,) = node.operands[0].type.dtype, node.type.dtype, operands
    if source == target:
        return x
    if source == BOOL:
        one, zero = (t.constant(np.array(v).astype(target), target) for v in (1, 0))
        return t.z3.If(x, one, zero, t.context)
    if target == BOOL:
        zero = t.constant(0, source)
        same = t.z3.fpEQ(x, zero, t.context) if is_float(source) else x == zero
        return t.z3.Not(same, t.context)
    if is_float(source) and is_float(target):
        if (source, target) == (DTYPES["f64"], DTYPES["bf16"]):
            raise NotComparable("f64 as bf16 may be rounded twice")
        return t.converted(x, source, target)
    if is_float(source):
        return _saturated(t, t.converted(x, source, accumulator(source)), target)
    if is_float(target):
        if target.itemsize < 4:
            raise NotComparable("integers as 16-bit floats may be rounded twice")
        name = "fpUnsignedToFP" if is_unsigned(source) else "fpSignedToFP"
        return getattr(t.z3, name)(t.nearest, x, t.sort(target), t.context)
    more = 8 * (target.itemsize - source.itemsize)
    if more < 0:
        return t.z3.Extract(8 * target.itemsize - 1, 0, x)
    return (t.z3.ZeroExt if is_unsigned(source) else t.z3.SignExt)(more, x)


def _saturated(t: Terms, x: Any, target: np.dtype) -> Any:
    info, bits = np.iinfo(target), t.sort(target)
    least, limit = (t.z3.FPVal(float(v), None, x.sort(), t.context)
                    for v in (int(info.min), int(info.max) + 1))  # fmt: skip
    toward_zero = t.z3.RTZ(t.context)
    convert = t.z3.fpToUBV if is_unsigned(target) else t.z3.fpToSBV
    inside = t.z3.And(t.z3.fpGEQ(x, least, t.context), t.z3.fpLT(x, limit, t.context))
    zero, low, high = (t.constant(v, target) for v in (0, info.min, info.max))
    out = t.z3.If(inside, convert(toward_zero, x, bits, t.context), zero, t.context)
    out = t.z3.If(t.z3.fpGEQ(x, limit, t.context), high, out, t.context)
    return t.z3.If(t.z3.fpLT(x, least, t.context), low, out, t.context)


_ANY: dict[str, Callable[..., Any]] = {
    "compare": _compared,
    "cast": _cast,
    "select": lambda t, node, operands: t.z3.If(*operands, t.context),
}
