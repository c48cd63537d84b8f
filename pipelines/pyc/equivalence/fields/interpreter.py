"""Programs run over a tower of finite fields: rational functions, roots and exponentials exactly.

Arguments are random residues. Sums, products, quotients, roots and exponentials are those of the
field (towers.py); every other function is a random one of its operands (a hash), which knows
congruence and the few laws that are written here: maxima do not mind order, erf and sine are odd.
Equal functions of real numbers of this kind give equal residues; different ones nearly never do.
Integers and conditions are names of elements (elements.py); those that follow from constants alone
are computed. -inf has no residue: a flag beside the value, exp of which is 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from pyc_mlir.dialects.types import TensorType, dtype_name, is_float, is_integer
from pyc_mlir.pipelines.pyc.equivalence.fields import lanes as hashes
from pyc_mlir.pipelines.pyc.equivalence.fields import towers
from pyc_mlir.pipelines.pyc.equivalence.fields.constants import meant
from pyc_mlir.pipelines.pyc.equivalence.fields.elements import (
    ElementNames,
    Elements,
    mover,
    stretched,
)
from pyc_mlir.pipelines.pyc.equivalence.fields.lanes import Lanes
from pyc_mlir.pipelines.pyc.equivalence.fields.programs import NotComparable
from pyc_mlir.pipelines.pyc.terms.nodes import TermNode

_U64 = np.uint64
_MOST_POWER = 64
# Constants of more elements, that do not repeat one, are weights, which are what they are.
_FEW = 64
_EXPONENTIALS = frozenset({"exp", "tanh"})
_EVEN = frozenset({"abs", "cos"})
# Ops whose result is a hash, and so bears as many exponentials as an argument.
_FRESH = frozenset(
    {"maximum", "minimum", "erf", "sin", "cos", "abs", "floor", "ceil", "round", "log", "rem"}
    | {"reduce_max", "reduce_min", "argsort", "argmax", "compare"}
)


@dataclass(frozen=True)
class Residues:
    """The elements of a float value: residues modulo each prime from `depth` on, the least first.

    levels: by prime; empty arrays stand below `depth`. minus: where the element is -inf, if any
    is. array: the numbers themselves, where they are a constant.
    """

    type: TensorType
    levels: tuple[np.ndarray, ...]
    depth: int = 0
    minus: np.ndarray | None = None
    array: np.ndarray | None = None

    @property
    def lanes(self) -> Lanes:
        """The names of the elements, by the residue modulo the greatest prime."""
        out = hashes.of_integers("residue", self.levels[-1])
        if self.minus is None:
            return out
        return np.where(self.minus, hashes.salt("-inf").reshape(2, *(1,) * self.minus.ndim), out)


Value = Elements | Residues
# The meaning of each op over a field: arithmetic.py and reductions.py fill the table. None: a hash.
Rule = Callable[["Field", TermNode, Sequence[Residues]], Residues | None]
RULES: dict[str, Rule] = {}


R = TypeVar("R", bound=Rule)


def rule(*names: str) -> Callable[[R], R]:
    """Register the meaning of ops."""

    def register(function: R) -> R:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


class Field(ElementNames):
    """The interpreter over one tower. `rounded`: constants are read as what they round."""

    def __init__(self, primes: Sequence[int], seed: int, rounded: bool) -> None:
        self.primes = tuple(primes)
        self.seed = seed
        self.rounded = rounded
        self.bases = [pow(2 + seed % 1009 + i, 2, q) for i, q in enumerate(self.primes)]

    def step(self, node: TermNode, operands: Sequence[Any]) -> Value:
        """Return the value of a node. Raises NotComparable for what has no residue."""
        try:
            return super().step(node, operands)  # type: ignore[return-value]
        except ZeroDivisionError:
            raise NotComparable(f"{node.name}: a division by zero") from None

    def argument(self, node: TermNode) -> Any:
        """Return random residues for floats."""
        if not is_float(node.type.dtype):
            return super().argument(node)
        name = f"argument {node.params['number']} {self.seed}"
        places = np.arange(node.type.elements).reshape([d or 0 for d in node.type.shape])
        return self.random(node.type, hashes.of_integers(name, places))

    def random(self, type_: TensorType, lanes: Lanes) -> Residues:
        """Return the residues of a random function of names."""
        lanes = stretched(lanes, type_)
        pairs = range(0, len(self.primes), 2)
        numbers = [x for i in pairs for x in hashes.combined(f"random {i} {self.seed}", (lanes,))]
        levels = (x % _U64(q) for x, q in zip(numbers, self.primes, strict=False))
        return Residues(type_, tuple(levels))

    def constant(self, type_: TensorType, array: np.ndarray) -> Any:
        """Return a constant exactly; numbers that are few as what they are rounded from."""
        if not is_float(type_.dtype):
            return super().constant(type_, array)
        repeats = array.size > 1 and not any(array.strides)
        plain = np.asarray(array[(0,) * array.ndim] if repeats else array).astype(np.float64)
        minus = np.isneginf(plain)
        if not np.isfinite(plain[~minus]).all():
            raise NotComparable("a constant holds +inf or NaN, which obey no algebra")
        finite = np.where(minus, 0.0, plain)
        few = self.rounded and finite.size <= _FEW
        known, place = np.unique(finite, return_inverse=True) if few else (finite, finite)
        if few:
            numbers = [
                [self._meant(x, type_.dtype, q) for x in known.tolist()] for q in self.primes
            ]
            levels = [np.array(n, _U64)[place].reshape(finite.shape) for n in numbers]
        else:
            levels = towers.of_floats(finite, self.primes)
        if repeats:
            levels = [np.broadcast_to(level, array.shape) for level in levels]
        flag = np.broadcast_to(minus, array.shape) if minus.any() else None
        return Residues(type_, tuple(levels), 0, flag, array)

    def exact(self, type_: TensorType, fractions: np.ndarray) -> Any:
        """Return a constant of fractions."""
        levels = [
            np.array([f.numerator * pow(f.denominator, -1, q) % q for f in fractions.flat], _U64)
            for q in self.primes
        ]
        return Residues(type_, tuple(level.reshape(fractions.shape) for level in levels))

    def _meant(self, value: float, dtype: np.dtype, q: int) -> int:
        read = meant(value, dtype_name(dtype))
        if read is None:
            exact = Fraction(value)
            return exact.numerator * pow(exact.denominator, -1, q) % q
        found = towers.of_root(*read, q)
        return found if value > 0 else (q - found) % q

    def folds(self, node: TermNode) -> bool:
        """Compute integers and conditions of constants; floats keep every digit instead."""
        return node.name == "iota" or not is_float(node.type.dtype)

    def kind(self, type_: TensorType) -> str:
        """Return nothing for floats: conversions between them are exact."""
        return "" if is_float(type_.dtype) else super().kind(type_)

    def operation(self, node: TermNode, operands: Sequence[Any]) -> Any:
        """Return the value of an op."""
        floats = is_float(node.type.dtype)
        if floats and isinstance(moved := self._moved(node, operands), Residues):
            return moved
        if not floats:
            return self._discrete(node, operands)
        given = [o for o in operands if isinstance(o, Residues)]
        if len(given) == len(operands) and (rule := RULES.get(node.name)) is not None:
            out = rule(self, node, given)
            if out is not None:
                return out
        if node.name == "cast":
            return self._converted(node, operands[0])
        if node.name == "select":
            return self._selected(node, operands)
        return self.random(node.type, self.hashed(node, [o.lanes for o in operands]))

    def _moved(self, node: TermNode, operands: Sequence[Any]) -> Residues | None:
        move = mover(node, operands)
        if move is None:
            return None
        parts = [o for o in operands if isinstance(o, Residues)] or [operands[0]]
        if node.name == "broadcast_to":
            parts = parts[:1]
        like = operands[1:] if node.name == "broadcast_to" else []
        fill = self.fill(node) if node.name == "pad" else None
        depth = max(p.depth for p in parts)

        def moved(arrays: list[np.ndarray], added: Any) -> np.ndarray:
            return move([*arrays, *(_like(o) for o in like)], added)

        levels = [
            EMPTY if i < depth else
            moved([p.levels[i] for p in parts], None if fill is None else fill.levels[i])
            for i in range(len(self.primes))
        ]  # fmt: skip
        minus = None
        if any(p.minus is not None for p in (*parts, *([fill] if fill else []))):
            flags = [flags_of(p) for p in parts]
            minus = moved(flags, None if fill is None else fill.minus is not None)
        array = None
        if all(p.array is not None for p in parts) and not like:
            array = moved([np.asarray(p.array) for p in parts],
                          None if fill is None else fill.array)  # fmt: skip
        return Residues(node.type, tuple(levels), depth, minus, array)

    def _discrete(self, node: TermNode, operands: Sequence[Any]) -> Any:
        """Return an integer or a condition by name; comparisons in one direction."""
        if node.name == "compare":
            predicate, sides = node.params["predicate"], list(operands)
            if predicate in ("gt", "ge"):
                predicate, sides = {"gt": "lt", "ge": "le"}[predicate], sides[::-1]
            if _alike(*sides):  # as in the guards against NaN of exporters
                known = np.full([d or 0 for d in node.type.shape], predicate in ("eq", "le"))
                return super().constant(node.type, known)
            text = f"compare {predicate}"
            named = hashes.combined(text, [o.lanes for o in sides], predicate not in ("eq", "ne"))
            return Elements(node.type, stretched(named, node.type))
        if node.name == "select" and operands[0].array is not None:
            sides = [stretched(o.lanes, node.type) for o in operands[1:]]
            return Elements(node.type, np.where(operands[0].array, *sides))
        moved = self.moved(node, operands)
        if moved is not None:
            return Elements(node.type, moved)
        return Elements(node.type, self.hashed(node, [o.lanes for o in operands]))

    def _converted(self, node: TermNode, x: Any) -> Residues:
        """Return a number as a float: floats are exact, integers by their names or numbers."""
        if isinstance(x, Residues):
            return Residues(node.type, x.levels, x.depth, x.minus)
        if x.array is not None:
            plain = x.array.astype(np.int64) if x.array.dtype == np.bool_ else x.array
            levels = tuple(towers.of_integers(plain, q) for q in self.primes)
            exact = x.array.astype(node.type.dtype)
            same = np.array_equal(exact.astype(x.array.dtype), x.array)
            same &= is_integer(x.array.dtype)
            return Residues(node.type, levels, 0, None, exact if same else None)
        return self.random(node.type, hashes.combined("number", (x.lanes,)))

    def _selected(self, node: TermNode, operands: Sequence[Any]) -> Residues:
        condition, yes, no = operands
        shape = tuple(d or 0 for d in node.type.shape)
        if condition.array is None:
            lanes = [condition.lanes, yes.lanes, no.lanes]
            return self.random(node.type, hashes.combined("select", lanes))
        depth = max(yes.depth, no.depth)
        levels = [
            EMPTY if i < depth else
            np.broadcast_to(np.where(condition.array, yes.levels[i], no.levels[i]), shape)
            for i in range(len(self.primes))
        ]  # fmt: skip
        minus = None
        if yes.minus is not None or no.minus is not None:
            minus = np.broadcast_to(np.where(condition.array, flags_of(yes), flags_of(no)), shape)
        return Residues(node.type, tuple(levels), depth, minus if any_minus(minus) else None)

    def mapped(
        self,
        node: TermNode,
        parts: Sequence[Residues],
        rule: Callable[..., np.ndarray],
        minus: np.ndarray | None = None,
    ) -> Residues:
        """Return ``rule(levels..., prime)`` modulo each prime that all parts have."""
        depth = max(p.depth for p in parts)
        shape = tuple(d or 0 for d in node.type.shape)
        levels = []
        for i, q in enumerate(self.primes):
            if i < depth:
                levels.append(EMPTY)
                continue
            level = rule(*(p.levels[i] for p in parts), q)
            level = level if level.shape == shape else np.broadcast_to(level, shape)
            levels.append(level if minus is None else np.where(minus, _U64(0), level))
        return Residues(node.type, tuple(levels), depth, minus)

    def power_of(self, node: TermNode, x: Residues) -> Residues:
        """Return the exponential: modulo each prime by the residue of the prime below."""
        if x.depth + 1 >= len(self.primes):
            return self.random(node.type, hashes.combined("exp", (x.lanes,)))
        levels: list[np.ndarray] = [EMPTY] * (x.depth + 1)
        for i in range(x.depth + 1, len(self.primes)):
            level = towers.exponential(x.levels[i - 1], self.bases[i], self.primes[i])
            levels.append(level if x.minus is None else np.where(x.minus, _U64(0), level))
        return Residues(node.type, tuple(levels), x.depth + 1)


EMPTY = np.zeros((), _U64)


def height(nodes: Sequence[TermNode]) -> int:
    """Return how many primes the primitive ops of a program need, as far as the tallest tower."""
    depth: dict[TermNode, int] = {}
    for node in nodes:
        below = max((depth.get(o, 0) for o in node.operands), default=0)
        depth[node] = 0 if node.name in _FRESH else below + (node.name in _EXPONENTIALS)
    return min(1 + max(depth.values(), default=0), towers.TALLEST)


def any_minus(flags: np.ndarray | None) -> bool:
    """Return whether an element is -inf."""
    return flags is not None and bool(flags.any())


def flags_of(x: Residues) -> np.ndarray:
    """Return where a value is -inf."""
    shape = tuple(d or 0 for d in x.type.shape)
    return np.zeros(shape, bool) if x.minus is None else x.minus


def _alike(a: Any, b: Any) -> bool:
    """Return whether two values have the same elements."""
    return a is b or (a.type == b.type and np.array_equal(a.lanes, b.lanes))


def _like(x: Any) -> np.ndarray:
    """Return an array of the shape of a value."""
    return np.broadcast_to(EMPTY, [d or 0 for d in x.type.shape])


def require_finite(node: TermNode, parts: Sequence[Residues]) -> None:
    """Raise NotComparable for an operand with -inf."""
    if any(any_minus(p.minus) for p in parts):
        raise NotComparable(f"{node.name}: -inf, which has no residue")
