"""Single identities of integers and floats, decided by z3 (extra ``solve``).

Comes in: two elementwise programs. Goes out: True if no arguments give other bits, a counterexample
that the references confirm, or None. One element stands for all: integers are bit vectors, which
wrap; floats are those of IEEE 754; bf16 is computed in f32 and rounded, as by the references. Other
elementwise functions of floats are unknown ones, of which z3 knows congruence. The limit
counts z3's own steps, never time, so that an answer does not depend on the machine.
"""

from collections.abc import Callable, Sequence
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
from pyc_mlir.pipelines.pyc.equivalence.nodes import (
    VALUE,
    NotComparable,
    Program,
    TermNode,
    evaluated,
    sizes_of,
)
from pyc_mlir.pipelines.pyc.equivalence.refute import differing

# Steps of z3: one or two seconds.
LIMIT = 8_000_000
# Ops of both programs; identities are small.
_MOST_NODES = 48
_FORMATS = {"f16": (5, 11), "bf16": (8, 8), "f32": (8, 24), "f64": (11, 53)}


def solved(
    first: Program, second: Program, refutes: bool, limit: int = LIMIT
) -> Counterexample | bool | None:
    """Return True if both are equal in every bit, a counterexample to that, or None.

    refutes: look for a counterexample too. None where z3 is not installed.
    """
    nodes = {*first.nodes, *second.nodes}
    try:
        import z3
    except ModuleNotFoundError:
        return None
    if len(nodes) > _MOST_NODES:
        return None
    terms = Terms(z3.Context())
    try:
        pairs = [terms.of(p) for p in (first, second)]
        differ = [terms.Not(a == b) for a, b in zip(*pairs, strict=True)]
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
    inputs = [np.full(sizes_of(n.type), terms.value(model, n), n.type.dtype) for n in first.inputs]
    return differing(first, second, inputs, any(is_float(n.type.dtype) for n in nodes))


class Terms:
    """The terms of z3 for one element of each node, in one context.

    z3's functions that take a context are methods: ``t.If(condition, x, y)``.
    """

    def __init__(self, context: Any) -> None:
        import z3

        self.z3 = z3
        self.context = context
        self.arguments: dict[TermNode, Any] = {}
        self.nearest = z3.RNE(context)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self.z3, name)
        return lambda *args: function(*args, self.context)

    def of(self, given: Program) -> list[Any]:
        """Return the results of a program. Raises NotComparable for ops that mix elements."""
        return evaluated(given, self.step)

    def step(self, node: TermNode, operands: Sequence[Any]) -> Any:
        """Return the term of a node. Raises NotComparable for what has none."""
        if node.name == VALUE:
            if node not in self.arguments:
                sort = self.sort(node.type.dtype)
                self.arguments[node] = self.z3.Const(f"argument {node.params['number']}", sort)
            return self.arguments[node]
        if node.array is not None and node.number is not None:
            return self.constant(node.array.flat[0], node.type.dtype)
        if not node.has(Trait.ELEMENTWISE):
            if node.name == "broadcast_to" and node.operands[0].type.elements == 1:
                return operands[0]
            raise NotComparable(f"{node.name} mixes elements")
        dtype = node.operands[0].type.dtype
        if node.name in _ANY:
            return _ANY[node.name](self, node, *operands)
        if dtype != BOOL and not is_integer(dtype):
            return self._float(node, operands, dtype)
        table = _CONDITIONS if dtype == BOOL else _INTEGERS
        if node.name not in table:
            raise NotComparable(f"{node.name} has no term")
        signs = () if dtype == BOOL else (not is_unsigned(dtype),)
        return table[node.name](self, *signs, *operands)

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
            return self.BoolSort()
        if is_float(dtype):
            return self.FPSort(*_FORMATS[dtype_name(dtype)])
        return self.BitVecSort(8 * dtype.itemsize)

    def constant(self, number: Any, dtype: np.dtype) -> Any:
        """Return a number as a term, by its bits."""
        if dtype == BOOL:
            return self.BoolVal(bool(number))
        bits = np.asarray(number, dtype).reshape(1).view(f"u{dtype.itemsize}")[0]
        whole = self.BitVecVal(int(bits), 8 * dtype.itemsize)
        return self.fpBVToFP(whole, self.sort(dtype)) if is_float(dtype) else whole

    def value(self, model: Any, node: TermNode) -> Any:
        """Return what a model gives to an argument."""
        dtype = node.type.dtype
        if node not in self.arguments:
            return np.zeros((), dtype)
        found = model.eval(self.arguments[node], model_completion=True)
        if dtype == BOOL:
            return self.z3.is_true(found)
        if is_float(dtype):
            if found.isNaN():  # has no bits of its own
                return np.array(np.nan).astype(dtype)
            found = self.z3.simplify(self.fpToIEEEBV(found))
        return np.array(found.as_long(), f"u{dtype.itemsize}").view(dtype)

    def converted(self, x: Any, source: np.dtype, target: np.dtype) -> Any:
        """Return a float in another type of floats."""
        return x if source == target else self.fpFPToFP(self.nearest, x, self.sort(target))

    def less(self, signed: bool, x: Any, y: Any) -> Any:
        """Return whether an integer is less than another one."""
        return x < y if signed else self.z3.ULT(x, y)


def _extreme(less: str) -> Callable[..., Any]:
    """Return max or min of floats of which one is no zero; NaN if either is."""

    def extreme(t: Terms, x: Any, y: Any) -> Any:
        either = t.Or(t.fpIsNaN(x), t.fpIsNaN(y))
        return t.If(either, t.z3.fpNaN(x.sort()), t.If(getattr(t, less)(x, y), x, y))

    return extreme


_FLOATS: dict[str, Callable[..., Any]] = {
    "add": lambda t, x, y: t.fpAdd(t.nearest, x, y),
    "sub": lambda t, x, y: t.fpSub(t.nearest, x, y),
    "mul": lambda t, x, y: t.fpMul(t.nearest, x, y),
    "div": lambda t, x, y: t.fpDiv(t.nearest, x, y),
    "sqrt": lambda t, x: t.fpSqrt(t.nearest, x),
    "neg": lambda t, x: t.fpNeg(x),
    "abs": lambda t, x: t.fpAbs(x),
    "floor": lambda t, x: t.fpRoundToIntegral(t.RTN(), x),
    "ceil": lambda t, x: t.fpRoundToIntegral(t.RTP(), x),
    "round": lambda t, x: t.fpRoundToIntegral(t.nearest, x),
    "maximum": _extreme("fpGT"),
    "minimum": _extreme("fpLT"),
}
# Ops of floats that round nothing.
_EXACT = frozenset({"neg", "abs", "floor", "ceil", "round", "maximum", "minimum"})


def _quotient(t: Terms, signed: bool, x: Any, y: Any) -> Any:
    """Return x / y toward zero; x / 0 = 0, and MIN / -1 = MIN, as bit vectors have it."""
    return t.If(y == 0, y, x / y if signed else t.z3.UDiv(x, y))


_INTEGERS: dict[str, Callable[..., Any]] = {
    "add": lambda t, s, x, y: x + y,
    "sub": lambda t, s, x, y: x - y,
    "mul": lambda t, s, x, y: x * y,
    "div": _quotient,
    "rem": lambda t, s, x, y: x - _quotient(t, s, x, y) * y,
    "neg": lambda t, s, x: -x,
    "abs": lambda t, s, x: t.If(x < 0, -x, x) if s else x,
    "maximum": lambda t, s, x, y: t.If(t.less(s, x, y), y, x),
    "minimum": lambda t, s, x, y: t.If(t.less(s, x, y), x, y),
    "and": lambda t, s, x, y: x & y,
    "or": lambda t, s, x, y: x | y,
    "xor": lambda t, s, x, y: x ^ y,
    "not": lambda t, s, x: ~x,
    # Counts outside of the bits give 0, as those of bit vectors do.
    "shift_left": lambda t, s, x, y: x << y,
    "shift_right": lambda t, s, x, y: x >> y if s else t.z3.LShR(x, y),
}
_CONDITIONS: dict[str, Callable[..., Any]] = {
    "and": lambda t, x, y: t.z3.And(x, y),
    "or": lambda t, x, y: t.z3.Or(x, y),
    "xor": lambda t, x, y: t.Xor(x, y),
    "not": lambda t, x: t.z3.Not(x),
}


def _compared(t: Terms, node: TermNode, x: Any, y: Any) -> Any:
    predicate, dtype = node.params["predicate"], node.operands[0].type.dtype
    if predicate in ("gt", "ge"):
        predicate, x, y = {"gt": "lt", "ge": "le"}[predicate], y, x
    if is_float(dtype):
        names = {"eq": "fpEQ", "ne": "fpEQ", "lt": "fpLT", "le": "fpLEQ"}
        found = getattr(t, names[predicate])(x, y)
        return t.Not(found) if predicate == "ne" else found
    if predicate in ("eq", "ne"):
        return x == y if predicate == "eq" else t.Not(x == y)
    signed = not is_unsigned(dtype)
    return t.less(signed, x, y) if predicate == "lt" else t.Not(t.less(signed, y, x))


def _cast(t: Terms, node: TermNode, x: Any) -> Any:
    """Convert as the reference does, which between some types goes a way of its own."""
    source, target = node.operands[0].type.dtype, node.type.dtype
    if source == target:
        return x
    if source == BOOL:
        one, zero = (t.constant(np.array(v).astype(target), target) for v in (1, 0))
        return t.If(x, one, zero)
    if target == BOOL:
        zero = t.constant(0, source)
        return t.Not(t.fpEQ(x, zero) if is_float(source) else x == zero)
    if is_float(source) and is_float(target):
        if (source, target) == (DTYPES["f64"], DTYPES["bf16"]):
            raise NotComparable("f64 as bf16 may be rounded twice")
        return t.converted(x, source, target)
    if is_float(source):
        return _saturated(t, t.converted(x, source, accumulator(source)), target)
    if is_float(target):
        if target.itemsize < 4:
            raise NotComparable("integers as 16-bit floats may be rounded twice")
        convert = t.fpUnsignedToFP if is_unsigned(source) else t.fpSignedToFP
        return convert(t.nearest, x, t.sort(target))
    more = 8 * (target.itemsize - source.itemsize)
    if more < 0:
        return t.z3.Extract(8 * target.itemsize - 1, 0, x)
    return (t.z3.ZeroExt if is_unsigned(source) else t.z3.SignExt)(more, x)


def _saturated(t: Terms, x: Any, target: np.dtype) -> Any:
    info = np.iinfo(target)
    least, limit = (t.FPVal(float(v), None, x.sort()) for v in (int(info.min), int(info.max) + 1))
    zero, low, high = (t.constant(v, target) for v in (0, info.min, info.max))
    convert = t.fpToUBV if is_unsigned(target) else t.fpToSBV
    inside = t.z3.And(t.fpGEQ(x, least), t.fpLT(x, limit))
    out = t.If(inside, convert(t.RTZ(), x, t.sort(target)), zero)
    return t.If(t.fpLT(x, least), low, t.If(t.fpGEQ(x, limit), high, out))


_ANY: dict[str, Callable[..., Any]] = {
    "compare": _compared,
    "cast": _cast,
    "select": lambda t, node, *operands: t.If(*operands),
}
