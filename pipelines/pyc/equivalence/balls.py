"""Ball arithmetic: enclosures of both programs' real results; disjoint ones are a refutation.

Each number is a ball of 200 bits that holds the real number (Johansson, Arb, 2017, by python-flint,
extra ``prove``). Comparisons are decided where balls are disjoint, else there is no answer.
"""

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OPS, evaluate
from pyc_mlir.dialects.ops.shapes import normalize_axes
from pyc_mlir.dialects.types import dtype_name, is_float
from pyc_mlir.pipelines.driver.base import Relation
from pyc_mlir.pipelines.pyc.equivalence.answers import Counterexample
from pyc_mlir.pipelines.pyc.equivalence.fields.constants import meant
from pyc_mlir.pipelines.pyc.equivalence.fields.elements import mover
from pyc_mlir.pipelines.pyc.equivalence.fields.programs import (
    EXACT,
    NotComparable,
    Program,
    evaluated,
)
from pyc_mlir.pipelines.pyc.equivalence.floats import arguments, work
from pyc_mlir.pipelines.pyc.terms.nodes import VALUE, TermNode

_BITS = 200
# In units of 0.1 ns of the references, which are some 300 times as fast.
_MOST_WORK = 1 << 25
_FEW = 64
_TRIES = 2


def is_available() -> bool:
    """Return whether python-flint is installed."""
    try:
        import flint  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def refuted(first: Program, second: Program, seed: int, rounded: bool) -> Counterexample | None:
    """Return arguments whose results are disjoint balls; None where none are found.

    rounded: constants are read as what they are rounded from. Programs are in primitive ops.
    """
    if not is_available() or work(first) + work(second) > _MOST_WORK:
        return None
    from flint import ctx

    before, ctx.prec = ctx.prec, _BITS
    try:
        for attempt in range(_TRIES):
            inputs = arguments(first, "ordinary", seed + attempt)
            try:
                sides = [_run(p, inputs, rounded) for p in (first, second)]
            except (NotComparable, ZeroDivisionError, ValueError):
                continue
            relation = Relation.ROUNDED if rounded else Relation.REALS
            if (found := _disjoint(sides, inputs, relation)) is not None:
                return found
    finally:
        ctx.prec = before
    return None


def _disjoint(
    sides: Sequence[Sequence[Any]], inputs: Sequence[np.ndarray], relation: Relation
) -> Counterexample | None:
    for output, (a, b) in enumerate(zip(*sides, strict=True)):
        if a.dtype != object:
            continue
        for at in np.ndindex(a.shape):
            x, y = a[at], b[at]
            if x.is_finite() and y.is_finite() and not x.overlaps(y):
                shown = x.str(20), y.str(20)
                return Counterexample(relation, "disjoint balls", tuple(inputs), output, at, *shown)
    return None


def _run(given: Program, inputs: Sequence[np.ndarray], rounded: bool) -> list[Any]:
    def compute(node: TermNode, operands: list[Any]) -> Any:
        return _step(node, operands, inputs, rounded)

    values = evaluated(given, compute)
    return [values[o] for o in given.outputs]


def _step(
    node: TermNode, operands: list[Any], inputs: Sequence[np.ndarray], rounded: bool
) -> np.ndarray:
    floats = is_float(node.type.dtype)
    if node.name == VALUE:
        return _exact(inputs[node.params["number"]]) if floats else inputs[node.params["number"]]
    if node.name == EXACT:
        return _fractions(node.params["fractions"])
    if node.name == "constant":
        value = np.asarray(node.params["value"])
        return _constant(value, rounded) if floats else value
    if node.name == "compare" and operands[0].dtype == object:
        return _elementwise(node, _compared(node.params["predicate"]), operands).astype(bool)
    if not floats:
        if any(o.dtype == object for o in operands) and node.name != "size":
            raise NotComparable(f"{node.name} of balls")
        arrays = [o if o.dtype != object else np.zeros(o.shape, t.type.dtype)
                  for o, t in zip(operands, node.operands, strict=True)]  # fmt: skip
        return evaluate(OPS[node.name], arrays, **node.params)
    if (move := mover(node, [_Known(o) for o in operands])) is not None:
        value = np.array(node.params.get("value", 0.0)).astype(node.type.dtype)
        return np.asarray(move(operands, _exact(value)[()]), object)
    if node.name == "iota":
        return _exact(evaluate(OPS["iota"], operands, **node.params))
    if node.name == "cast":
        return operands[0] if operands[0].dtype == object else _exact(operands[0])
    if node.name == "select":
        return np.where(operands[0], operands[1], operands[2])
    if (function := _functions().get(node.name)) is not None:
        return _elementwise(node, function, operands)
    if node.name == "matmul":
        return np.asarray(np.matmul(*operands), object)
    if node.name in _REDUCED:
        return _reduced(node, operands[0])
    raise NotComparable(f"{node.name} of balls")


class _Known:
    """An operand as `mover` asks for it: indices are known, balls are not."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = None if array.dtype == object else array


def _exact(array: np.ndarray) -> np.ndarray:
    from flint import arb

    out = np.empty(array.shape, object)
    for at in np.ndindex(array.shape):
        value = array[at]
        out[at] = arb(int(value)) if array.dtype.kind in "iub" else arb(float(value))
    return out


def _fractions(given: np.ndarray) -> np.ndarray:
    from flint import arb, fmpq

    exact = [arb(fmpq(f.numerator, f.denominator)) for f in given.flat]
    out = np.empty(given.shape, object)
    out.flat[:] = exact
    return out


def _constant(array: np.ndarray, rounded: bool) -> np.ndarray:
    from flint import arb, fmpq

    repeats = array.size > 1 and not any(array.strides)
    few = array[(0,) * array.ndim] if repeats else array
    few = np.asarray(few)
    out = _exact(few)
    if rounded and few.size <= _FEW:
        for at in np.ndindex(few.shape):
            value = float(few[at])
            read = meant(value, dtype_name(array.dtype)) if np.isfinite(value) else None
            if read is not None:
                number, degree = read
                root = arb(fmpq(number.numerator, number.denominator)).root(degree)
                out[at] = root if value > 0 else -root
    return np.broadcast_to(out, array.shape)


def _elementwise(
    node: TermNode, function: Callable[..., Any], operands: Sequence[np.ndarray]
) -> np.ndarray:
    called = np.frompyfunc(function, len(operands), 1)
    return np.broadcast_to(np.asarray(called(*operands), object), [d or 0 for d in node.type.shape])


def _compared(predicate: str) -> Callable[[Any, Any], bool]:
    """Return a comparison that is decided, or raises NotComparable."""

    def compare(a: Any, b: Any) -> bool:
        if a.is_exact() and b.is_exact():
            return bool(getattr(operator, predicate)(a, b))
        if a.overlaps(b):
            raise NotComparable("a comparison of balls that overlap")
        less = bool(a < b)
        return {"eq": False, "ne": True, "lt": less, "le": less, "gt": not less, "ge": not less}[
            predicate
        ]

    return compare


def _functions() -> dict[str, Callable[..., Any]]:
    from flint import arb

    return {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b, "neg": lambda a: -a, "abs": abs, "exp": arb.exp,
        "log": arb.log, "sqrt": arb.sqrt, "rsqrt": arb.rsqrt, "tanh": arb.tanh, "erf": arb.erf,
        "sin": arb.sin, "cos": arb.cos, "pow": lambda a, b: a**b, "floor": arb.floor,
        "ceil": arb.ceil, "maximum": arb.max, "minimum": arb.min,
    }  # fmt: skip


_REDUCED: dict[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": lambda a, b: a + b, "reduce_mean": lambda a, b: a + b,
    "reduce_prod": lambda a, b: a * b, "reduce_max": lambda a, b: a.max(b),
    "reduce_min": lambda a, b: a.min(b),
}  # fmt: skip


def _reduced(node: TermNode, x: np.ndarray) -> np.ndarray:
    rank = x.ndim
    axes = normalize_axes(node.params["axes"], rank)
    kept = [d for d in range(rank) if d not in axes]
    rows = x.transpose([*kept, *axes]).reshape(*[x.shape[d] for d in kept], -1)
    out = np.empty(rows.shape[:-1], object)
    if not rows.shape[-1]:
        raise NotComparable("a reduction of nothing")
    for at in np.ndindex(out.shape):
        out[at] = reduce(_REDUCED[node.name], list(rows[at]))
        if node.name == "reduce_mean":
            out[at] = out[at] / rows.shape[-1]
    return out.reshape([d or 0 for d in node.type.shape])
