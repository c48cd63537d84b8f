"""Sizes of dynamic dimensions as data, so that a model's shape arithmetic runs at import.

Exporters compute shapes inside the graph: ``Reshape(y, Concat(Shape(x)[0:1], [12, 64]))``. A
dynamic size is a `SymbolicSize`, a factor times atoms: named dimensions, and sums, floor quotients,
remainders, minima and maxima of sizes (`Computed`). A tensor of such sizes is a `SymbolicSizes`.
Comparisons are decided by the bounds of sizes. What leaves this form (`Untracked`) is computed when
the program runs instead.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.opdef import OPS, OpDef
from pyc_mlir.dialects.types import I64, INTEGERS, TensorType


class Untracked(Exception):
    """A size computation has no answer that is a size."""


# The least and the greatest number that a size may be.
Bounds = tuple[float, float]


@dataclass(frozen=True)
class SymbolicSize:
    """``factor * atoms[0] * atoms[1] * ...`` where each atom names a dynamic dimension.

    `atoms` is sorted and not empty; a size without atoms is an int. Arithmetic raises Untracked
    where the answer has no such form.
    """

    factor: int
    atoms: tuple[str, ...]

    def __mul__(self, other: "int | SymbolicSize") -> "int | SymbolicSize":
        if isinstance(other, SymbolicSize):
            return SymbolicSize(self.factor * other.factor, tuple(sorted(self.atoms + other.atoms)))
        return SymbolicSize(self.factor * other, self.atoms) if other else 0

    __rmul__ = __mul__

    def __add__(self, other: "int | SymbolicSize") -> "int | SymbolicSize":
        return total((self, other))

    __radd__ = __add__

    def __neg__(self) -> "SymbolicSize":
        return SymbolicSize(-self.factor, self.atoms)

    def __sub__(self, other: "int | SymbolicSize") -> "int | SymbolicSize":
        return self + -other

    def __rsub__(self, other: "int | SymbolicSize") -> "int | SymbolicSize":
        return -self + other

    def __floordiv__(self, other: "int | SymbolicSize") -> "int | SymbolicSize":
        return divided(self, other)[0]

    def __lt__(self, other: "int | SymbolicSize") -> bool:
        return holds("lt", self, other)

    def __le__(self, other: "int | SymbolicSize") -> bool:
        return holds("le", self, other)

    def __gt__(self, other: "int | SymbolicSize") -> bool:
        return holds("gt", self, other)

    def __ge__(self, other: "int | SymbolicSize") -> bool:
        return holds("ge", self, other)

    def __str__(self) -> str:
        factor = [] if self.factor == 1 else [str(self.factor)]
        return "*".join([*factor, *self.atoms])

    @property
    def is_length(self) -> bool:
        """True where no dimensions make it negative."""
        return bounds(self)[0] >= 0


Extent = int | SymbolicSize


class Dimension(str):
    """An atom with bounds: a dimension with a declared range, or a number that a program computes.

    Any other name of a dimension is a number from 0 on.
    """

    ends: Bounds

    def __new__(cls, name: str, low: float = 0, high: float = inf) -> "Dimension":
        """Return the atom."""
        made = super().__new__(cls, name)
        made.ends = (low, high)
        return made


_SIGNS = {"sum": "+", "floor": "//", "mod": "%"}


class Computed(str):
    """An atom that is a function of sizes, written so: ``length+1``, ``length//2``, ``min(8,n)``.

    function: sum, floor (of the quotient), mod (of the sign of the divisor), min or max.
    """

    function: str
    terms: tuple[Extent, ...]

    def __new__(cls, function: str, terms: Sequence[Extent]) -> "Computed":
        """Return the atom. terms: of a sum, no two of the same atoms, a number last."""
        sign = _SIGNS.get(function)
        texts = [str(t) for t in terms]
        if sign in ("//", "%"):
            texts = [t if t.isidentifier() or t.isdigit() else f"({t})" for t in texts]
        text = sign.join(texts).replace("+-", "-") if sign else f"{function}({','.join(texts)})"
        made = super().__new__(cls, text)
        made.function, made.terms = function, tuple(terms)
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Computed):
            return False
        return (self.function, self.terms) == (other.function, other.terms)

    def __hash__(self) -> int:
        return hash((self.function, self.terms))


def bounds(extent: Extent) -> Bounds:
    """Return numbers between which a size lies, for all dimensions."""
    if not isinstance(extent, SymbolicSize):
        return extent, extent
    low, high = extent.factor, extent.factor
    for atom in extent.atoms:
        ends = _bounds_of(atom)
        # An infinity times 0 is 0 here: no dimension is infinite.
        products = [x * y if x and y else 0 for x in (low, high) for y in ends]
        low, high = min(products), max(products)
    return low, high


def _bounds_of(atom: str) -> Bounds:
    if not isinstance(atom, Computed):
        return getattr(atom, "ends", (0, inf))
    lows, highs = zip(*map(bounds, atom.terms), strict=True)
    if atom.function == "mod":
        # A divisor is above 0.
        least, most = lows[0], highs[1] - 1
        return 0, min(highs[0], most) if least >= 0 else most
    if atom.function == "floor":
        ends = (_floor(x, y) for x in (lows[0], highs[0]) for y in (lows[1], highs[1]))
        low, *_, high = sorted(ends)
        return low, high
    function: Callable[..., float] = {"sum": sum, "min": min, "max": max}[atom.function]
    return function(lows), function(highs)


def _floor(x: float, y: float) -> float:
    """Return x // y for infinities too."""
    return x if abs(x) == inf else (0 if x >= 0 else -1) if y == inf else x // y


def total(extents: Iterable[Extent]) -> Extent:
    """Return the sum of sizes: a product if it is one, else an atom of its own."""
    factors: Counter[tuple[str, ...]] = Counter()
    for extent in extents:
        for atoms, factor in _terms(extent):
            factors[atoms] += factor
    # The number, which has no atoms, comes last.
    ordered = sorted((i for i in factors.items() if i[1]), key=lambda item: (not item[0], item[0]))
    terms = [SymbolicSize(factor, atoms) if atoms else factor for atoms, factor in ordered]
    return _computed("sum", terms) if len(terms) > 1 else next(iter(terms), 0)


def _computed(function: str, terms: Sequence[Extent]) -> SymbolicSize:
    return SymbolicSize(1, (Computed(function, terms),))


def _made_by(extent: Extent, function: str) -> Computed | None:
    """Return the one atom that a size is a multiple of, if it is a function."""
    atom = extent.atoms[0] if isinstance(extent, SymbolicSize) else ""
    alone = isinstance(atom, Computed) and atom.function == function
    return atom if alone and len(extent.atoms) == 1 else None  # type: ignore[union-attr]


def _terms(extent: Extent) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the products that a size is the sum of, as atoms and a factor."""
    if not isinstance(extent, SymbolicSize):
        yield (), int(extent)
    elif (joined := _made_by(extent, "sum")) is not None:
        for term in joined.terms:
            yield from ((atoms, factor * extent.factor) for atoms, factor in _terms(term))
    else:
        yield extent.atoms, extent.factor


def quotient(a: Extent, b: Extent) -> Extent:
    """Return a / b where it is exact. Raises Untracked."""
    factors = [s.factor if isinstance(s, SymbolicSize) else s for s in (a, b)]
    atoms = [Counter(s.atoms) if isinstance(s, SymbolicSize) else Counter() for s in (a, b)]
    if factors[1] == 0 or factors[0] % factors[1] or atoms[1] - atoms[0]:
        raise Untracked(f"{a} / {b}")
    left = tuple(sorted((atoms[0] - atoms[1]).elements()))
    factor = factors[0] // factors[1]
    return SymbolicSize(factor, left) if left else factor


def divided(a: Extent, b: Extent) -> tuple[Extent, Extent]:
    """Return a // b, rounded down, and a % b. Raises Untracked for a divisor that may be 0."""
    if bounds(b)[0] <= 0:
        raise Untracked(f"{a} / {b}")
    low, high = bounds(a)
    if low >= 0 and high < bounds(b)[0]:
        return 0, a
    whole: Extent = 0
    if isinstance(b, int):
        # What b divides is apart: (2 n + 3) // 2 = n + 1 + 1 // 2.
        for atoms, factor in _terms(a):
            if not atoms or factor % b == 0:
                whole += SymbolicSize(factor // b, atoms) if atoms else factor // b
    else:
        with suppress(Untracked):
            return quotient(a, b), 0
    rest = a - whole * b
    if whole != 0:
        quotients, rest = divided(rest, b)
        return whole + quotients, rest
    inner = _made_by(rest, "floor")
    if inner is not None and rest == _computed("floor", inner.terms):
        # (n // 2) // 3 = n // 6.
        quotients = divided(inner.terms[0], inner.terms[1] * b)[0]
    else:
        quotients = _computed("floor", (rest, b))
    return whole + quotients, _computed("mod", (rest, b))


def extremum(function: str, extents: Iterable[Extent]) -> Extent:
    """Return the min or the max of sizes."""
    found: list[Extent] = []
    for extent in extents:
        inner = _made_by(extent, function)
        alone = inner is not None and extent == _computed(function, inner.terms)
        found += inner.terms if inner is not None and alone else (extent,)
    found = sorted(dict.fromkeys(found), key=str)

    def beats(x: Extent, y: Extent) -> bool:
        low, high = bounds(x - y)
        return high <= 0 if function == "min" else low >= 0

    left: list[Extent] = []
    for extent in found:
        if not any(beats(other, extent) for other in left):
            left = [other for other in left if not beats(extent, other)] + [extent]
    return left[0] if len(left) == 1 else _computed(function, left)


def holds(predicate: str, a: Extent, b: Extent) -> bool:
    """Compare two sizes. Raises Untracked where it depends on the dimensions."""
    low, high = bounds(a - b)
    if predicate in ("eq", "ne"):
        if low < high and low <= 0 <= high:
            raise Untracked(f"{a} {predicate} {b}")
        return (low == high == 0) == (predicate == "eq")
    test = getattr(operator, predicate)
    if test(low, 0) != test(high, 0):
        raise Untracked(f"{a} {predicate} {b}")
    return test(low, 0)


def _compare(lhs: np.ndarray, rhs: np.ndarray, *, predicate: str) -> np.ndarray:
    return _pairwise(partial(holds, predicate), lhs, rhs)


def _toward_zero(place: int, a: Extent, b: Extent) -> Extent:
    """Return the quotient (0) or the remainder (1) that pyc's integers have: rounded toward 0."""
    if bounds(a)[0] >= 0:
        return divided(a, b)[place]
    return quotient(a, b) if place == 0 else a - quotient(a, b) * b


def _pairwise(function: Callable[[Any, Any], Any], lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(function, 2, 1)(lhs.astype(object), rhs.astype(object)))


def _gather(x: np.ndarray, indices: np.ndarray, *, axis: int) -> np.ndarray:
    if has_sizes(indices):
        raise Untracked("gather at a dynamic size")
    return OPS["gather"].reference(x, indices.astype(np.int64), axis=axis)


# Elements of a tensor of sizes that are followed; a shape has one for each dimension.
MAX_SIZES = 4096
_GROWING = ("broadcast_to", "concat")
_MOVES = ("transpose", "reshape", "broadcast_to", "concat", "slice")
_RULES: dict[str, Callable[..., Any]] = {
    **{name: OPS[name].reference for name in _MOVES},
    "constant": lambda value: value,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "div": partial(_pairwise, partial(_toward_zero, 0)),
    "rem": partial(_pairwise, partial(_toward_zero, 1)),
    "minimum": partial(_pairwise, lambda *pair: extremum("min", pair)),
    "maximum": partial(_pairwise, lambda *pair: extremum("max", pair)),
    "compare": _compare,
    "select": lambda condition, yes, no: np.where(condition.astype(bool), yes, no),
    "gather": _gather,
    "reduce_sum": lambda x, axes, keepdims: np.sum(x, axis=axes, keepdims=keepdims),
    "reduce_prod": lambda x, axes, keepdims: np.prod(x, axis=axes, keepdims=keepdims),
    "cast": lambda x, dtype: x,
}


@dataclass(frozen=True, eq=False)
class SymbolicSizes:
    """An integer tensor with `SymbolicSize` entries: an object array, and the type it stands
    for.
    """

    entries: np.ndarray
    dtype: np.dtype = I64


def has_sizes(entries: np.ndarray) -> bool:
    """Return True when an entry depends on a dynamic dimension."""
    return entries.dtype == object and any(isinstance(e, SymbolicSize) for e in entries.reshape(-1))


def settle(value: SymbolicSizes) -> "SymbolicSizes | np.ndarray":
    """Return a plain array if no entry is dynamic, else the value itself."""
    return value if has_sizes(value.entries) else value.entries.astype(value.dtype)


def sizes(extents: Sequence[Extent]) -> "SymbolicSizes | np.ndarray":
    """Return a vector of extents: a plain i64 array if all are static."""
    entries = np.empty(len(extents), object)
    entries[:] = extents
    return settle(SymbolicSizes(entries))


class SizesBuilder(Builder):
    """Computes ops on `SymbolicSizes`. Raises Untracked for those that have no rule above."""

    def emit(
        self, op: type[OpDef], operands: Sequence[Any], params: dict[str, Any]
    ) -> SymbolicSizes:
        """Apply the op's rule to the entries."""
        rule = _RULES.get(op.name)
        dtype = params.get("dtype", operands[-1].dtype if operands else I64)
        if op.name == "constant":
            dtype = params["value"].dtype
        if op.name == "compare":
            dtype = np.dtype(bool)
        if rule is None or (op.name == "cast" and dtype not in INTEGERS):
            raise Untracked(f"{op.name} of sizes")
        if op.name == "select" and has_sizes(operands[0].entries):
            raise Untracked("select by sizes")
        if op.name in _GROWING:
            out = op.infer(*(self.type_of(v) for v in operands), **params)
            if not out.is_static or out.elements > MAX_SIZES:
                raise Untracked(f"more than {MAX_SIZES} sizes")
        return SymbolicSizes(np.asarray(rule(*(v.entries for v in operands), **params)), dtype)

    def floor_divmod(self, x: SymbolicSizes, y: SymbolicSizes) -> tuple[SymbolicSizes, ...]:
        """Return quotients rounded down, and remainders."""
        # One by one: numpy takes a single pair for an array of two.
        parts = (lambda a, b: divided(a, b)[0], lambda a, b: divided(a, b)[1])
        return tuple(SymbolicSizes(_pairwise(p, x.entries, y.entries), x.dtype) for p in parts)

    def type_of(self, value: SymbolicSizes) -> TensorType:
        """Return the static shape and the type that the entries stand for."""
        return TensorType(value.entries.shape, value.dtype)

    def dims(self, value: SymbolicSizes) -> tuple[Extent, ...]:
        """Return the shape of the tensor of sizes itself."""
        return value.entries.shape
