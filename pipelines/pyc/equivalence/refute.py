"""Arguments for which two programs differ: by the ops' references, and by disjoint balls.

The references refute integers, conditions and equality of bits, and prove programs whose values can
all be tried. Of real results balls are enclosures: each number is a ball of 200 bits that holds the
real number (Johansson, Arb, 2017, by python-flint, extra ``prove``). Comparisons are decided where
balls are disjoint, else there is no answer.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OPS, Trait, evaluate
from pyc_mlir.dialects.ops.shapes import normalize_axes
from pyc_mlir.dialects.types import is_float
from pyc_mlir.pipelines.driver.base import Relation
from pyc_mlir.pipelines.pyc.equivalence.algebra import nearest_root
from pyc_mlir.pipelines.pyc.equivalence.answers import Counterexample
from pyc_mlir.pipelines.pyc.equivalence.floats import MOST_WORK, arguments, run, work
from pyc_mlir.pipelines.pyc.equivalence.names import mover
from pyc_mlir.pipelines.pyc.equivalence.nodes import (
    EXACT,
    VALUE,
    NotComparable,
    Program,
    TermNode,
    evaluated,
    repeats,
    sizes_of,
)

# Bits of all arguments of an element, at most, to try all of their values.
_MOST_VALUES = 20
_SAMPLES = 8
_BITS = 200
# In units of 0.1 ns of the references, which are some 300 times as fast as balls.
_MOST_BALLS = 1 << 25
_FEW = 64
_TRIES = 2


def tried(
    first: Program, second: Program, seed: int, relation: Relation
) -> Counterexample | bool | None:
    """Return a counterexample, True where all values agree, or None where it is not known.

    Programs with floats are tried for equality of bits only.
    """
    nodes = {*first.nodes, *second.nodes, *first.inputs}
    floats = any(is_float(n.type.dtype) for n in nodes)
    if floats and relation is not Relation.BITS:
        return None
    if work(first) + work(second) > MOST_WORK:
        return None
    for inputs in _samples(first, seed):
        if (found := differing(first, second, inputs, floats)) is not None:
            return found
    if not floats and (columns := _all_values(first, nodes)) is not None:
        sides = [run(p, columns, single=True) for p in (first, second)]
        # A result that no argument reaches is one element.
        return all((a == b).all() for a, b in zip(*sides, strict=True)) or None
    return None


def _samples(given: Program, seed: int) -> Iterator[list[np.ndarray]]:
    """Yield arguments: ordinary ones, all bits at random, the ends of each type, equal ones."""
    for number in range(_SAMPLES):
        rng = np.random.default_rng([seed, number])
        inputs = arguments(given, "ordinary", seed + number)
        for i, type_ in enumerate(given.input_types):
            shape = sizes_of(type_)
            if is_float(type_.dtype):
                special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 3.0e38, 1e-40])
                with np.errstate(all="ignore"):
                    mixed = np.where(rng.random(shape) < 0.2 * (number > 3),
                                     rng.choice(special, shape), inputs[i])  # fmt: skip
                    inputs[i] = mixed.astype(type_.dtype)
            elif type_.dtype != np.bool_ and number:
                info = np.iinfo(type_.dtype)
                ends = np.array([info.min, info.max, 0, 1, info.max - 1], type_.dtype)
                bits = rng.bytes(int(np.prod(shape)) * type_.dtype.itemsize)
                drawn = np.frombuffer(bits, type_.dtype).reshape(shape)
                inputs[i] = np.where(rng.random(shape) < 0.3, rng.choice(ends, shape), drawn)
        if number % 4 == 2:  # arguments that are equal
            alike = dict(zip(given.input_types, inputs, strict=True))
            inputs = [alike[t] for t in given.input_types]
        yield inputs


def differing(
    first: Program, second: Program, inputs: Sequence[np.ndarray], floats: bool
) -> Counterexample | None:
    """Return a counterexample if the references give other bits for these arguments."""
    with np.errstate(all="ignore"):
        sides = [run(p, inputs) for p in (first, second)]
    for output, (a, b) in enumerate(zip(*sides, strict=True)):
        same = a == b
        if is_float(a.dtype):
            bits = [np.ascontiguousarray(x).view(f"u{x.itemsize}") for x in (a, b)]
            same = (bits[0] == bits[1]).reshape(a.shape) | (np.isnan(a) & np.isnan(b))
        places = np.argwhere(~same)
        if len(places):
            at = tuple(int(i) for i in places[0])
            kind = "the bits of floats differ" if floats else "unequal integers"
            relation = Relation.BITS if floats else Relation.ROUNDED
            values = str(a[at]), str(b[at])
            return Counterexample(relation, kind, tuple(inputs), output, at, *values)
    return None


def _all_values(given: Program, nodes: set[TermNode]) -> list[np.ndarray] | None:
    """Return all values of the arguments of one element; None where elements meet or are many."""
    bits = [1 if t.dtype == np.bool_ else 8 * t.dtype.itemsize for t in given.input_types]
    plain = all(n.name == VALUE or n.number is not None or n.has(Trait.ELEMENTWISE) for n in nodes)
    # A broadcast argument meets other elements, each by itself: sizes do not count.
    if not plain or sum(bits) > _MOST_VALUES or not bits:
        return None
    codes = np.arange(1 << sum(bits), dtype=np.uint64)
    columns = []
    for width, type_ in zip(bits, given.input_types, strict=True):
        part = codes & np.uint64((1 << width) - 1)
        codes = codes >> np.uint64(width)
        column = part.astype(np.bool_ if width == 1 else f"u{width // 8}")
        columns.append(column if width == 1 else column.view(type_.dtype))
    return columns


def has_balls() -> bool:
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
    if not has_balls() or work(first) + work(second) > _MOST_BALLS:
        return None
    from flint import ctx

    before, ctx.prec = ctx.prec, _BITS
    try:
        for attempt in range(_TRIES):
            inputs = arguments(first, "ordinary", seed + attempt)
            try:
                sides = [_Balls(inputs, rounded).run(p) for p in (first, second)]
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


class _Balls:
    """The interpreter over balls: floats are arrays of them, other values numpy's own."""

    def __init__(self, inputs: Sequence[np.ndarray], rounded: bool) -> None:
        from flint import arb, fmpq

        self.inputs = inputs
        self.rounded = rounded
        self.fraction: Callable[[Any], Any] = lambda f: arb(fmpq(f.numerator, f.denominator))
        self.number: Callable[[Any], Any] = arb
        self.functions: dict[str, Callable[..., Any]] = {
            **{name: getattr(arb, name) for name in _OWN}, **_SPELLED,
            "maximum": arb.max, "minimum": arb.min,
        }  # fmt: skip

    def run(self, given: Program) -> list[Any]:
        """Return the results of a program. Raises NotComparable for what has no balls."""
        return evaluated(given, self.step)

    def step(self, node: TermNode, operands: list[Any]) -> np.ndarray:
        """Return the value of a node."""
        floats = is_float(node.type.dtype)
        if node.name == VALUE:
            given = self.inputs[node.params["number"]]
            return self.exact(given) if floats else given
        if node.name == EXACT:
            return _each(self.fraction, node.params["fractions"])
        if node.name == "constant":
            value = np.asarray(node.params["value"])
            return self.constant(value) if floats else value
        balls = [o.dtype == object for o in operands]
        if node.name == "compare" and balls[0]:
            compare = _compared(node.params["predicate"])
            return _elementwise(node, compare, operands).astype(bool)
        if not floats:
            if any(balls) and node.name != "size":
                raise NotComparable(f"{node.name} of balls")
            # `size` reads no numbers.
            arrays = [np.zeros(o.shape) if is_ball else o
                      for o, is_ball in zip(operands, balls, strict=True)]  # fmt: skip
            return evaluate(OPS[node.name], arrays, **node.params)
        if (move := mover(node, [_Known(o) for o in operands])) is not None:
            value = np.array(node.params.get("value", 0.0)).astype(node.type.dtype)
            return np.asarray(move(operands, self.exact(value)[()]), object)
        if node.name == "iota":
            return self.exact(evaluate(OPS["iota"], operands, **node.params))
        if node.name == "cast":
            return operands[0] if balls[0] else self.exact(operands[0])
        if node.name == "select":
            return np.where(operands[0], operands[1], operands[2])
        if (function := self.functions.get(node.name)) is not None:
            return _elementwise(node, function, operands)
        if node.name == "matmul":
            return np.asarray(np.matmul(*operands), object)
        if node.name in _REDUCED:
            return _reduced(node, operands[0])
        raise NotComparable(f"{node.name} of balls")

    def exact(self, array: np.ndarray) -> np.ndarray:
        """Return numbers as balls without a radius."""
        whole = array.dtype.kind in "iub"
        return _each(lambda x: self.number(int(x) if whole else float(x)), array)

    def constant(self, array: np.ndarray) -> np.ndarray:
        """Return a constant; numbers that are few as what they are rounded from."""
        few = np.asarray(array[(0,) * array.ndim] if repeats(array) else array)

        def read(value: Any) -> Any:
            number = float(value)
            found = nearest_root(number, array.dtype) if np.isfinite(number) else None
            if found is None:
                return self.number(number)
            root = self.fraction(found[0]).root(found[1])
            return root if number > 0 else -root

        out = _each(read, few) if self.rounded and few.size <= _FEW else self.exact(few)
        return np.broadcast_to(out, array.shape)


class _Known:
    """An operand as `mover` asks for it: indices are known, balls are not."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = None if array.dtype == object else array


def _each(function: Callable[[Any], Any], array: np.ndarray) -> np.ndarray:
    out = np.empty(array.shape, object)
    for at in np.ndindex(array.shape):
        out[at] = function(array[at])
    return out


def _elementwise(
    node: TermNode, function: Callable[..., Any], operands: Sequence[np.ndarray]
) -> np.ndarray:
    called = np.frompyfunc(function, len(operands), 1)
    return np.broadcast_to(np.asarray(called(*operands), object), sizes_of(node.type))


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


# Ops that are functions of balls by the same name, and operators.
_OWN = ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "floor", "ceil")
_SPELLED: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "pow": operator.pow, "neg": operator.neg, "abs": abs,
}  # fmt: skip
_REDUCED: dict[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": operator.add, "reduce_prod": operator.mul,
    "reduce_max": lambda a, b: a.max(b), "reduce_min": lambda a, b: a.min(b),
}  # fmt: skip


def _reduced(node: TermNode, x: np.ndarray) -> np.ndarray:
    axes = normalize_axes(node.params["axes"], x.ndim)
    kept = [d for d in range(x.ndim) if d not in axes]
    rows = x.transpose([*kept, *axes]).reshape(*[x.shape[d] for d in kept], -1)
    if not rows.shape[-1]:
        raise NotComparable("a reduction of nothing")
    out = np.empty(rows.shape[:-1], object)
    for at in np.ndindex(out.shape):
        out[at] = reduce(_REDUCED[node.name], list(rows[at]))
    return out.reshape(sizes_of(node.type))
