"""Sizes of dynamic dimensions as data, so that a model's shape arithmetic runs at import.

Exporters compute shapes inside the graph: ``Reshape(y, Concat(Shape(x)[0:1], [12, 64]))``. A
dynamic size is a `SymbolicSize` (a factor times named dimensions, or times a `Sum` of sizes); a
tensor of such sizes is a `SymbolicSizes`. What leaves this form (`Untracked`) is computed when the
program runs instead.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import total_ordering
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.opdef import OPS, OpDef
from pyc_mlir.dialects.types import I64, INTEGERS, TensorType


class Untracked(Exception):
    """A size computation has no answer of the form factor * dimensions."""


@total_ordering
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
        return quotient(self, other)

    def __lt__(self, other: "int | SymbolicSize") -> bool:
        return _ordering(self, other) < 0

    def __str__(self) -> str:
        factor = [] if self.factor == 1 else [str(self.factor)]
        return "*".join([*factor, *self.atoms])

    @property
    def is_length(self) -> bool:
        """True where no dimensions make it negative."""
        sums = [t for a in self.atoms if isinstance(a, Sum) for t in a.terms]
        return self.factor > 0 and all(t > 0 if isinstance(t, int) else t.is_length for t in sums)


Extent = int | SymbolicSize


class Sum(str):
    """An atom that is a sum of two sizes or more, and is written so: ``length+1``."""

    terms: tuple[Extent, ...]

    def __new__(cls, terms: Sequence[Extent]) -> "Sum":
        """Return the atom. terms: no two of the same atoms, a number last."""
        made = super().__new__(cls, "+".join(map(str, terms)).replace("+-", "-"))
        made.terms = tuple(terms)
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.terms)


def total(extents: Iterable[Extent]) -> Extent:
    """Return the sum of sizes: a product if it is one, else an atom of its own."""
    factors: Counter[tuple[str, ...]] = Counter()
    for extent in extents:
        for atoms, factor in _terms(extent):
            factors[atoms] += factor
    # The number, which has no atoms, comes last.
    ordered = sorted((i for i in factors.items() if i[1]), key=lambda item: (not item[0], item[0]))
    terms = [SymbolicSize(factor, atoms) if atoms else factor for atoms, factor in ordered]
    return SymbolicSize(1, (Sum(terms),)) if len(terms) > 1 else next(iter(terms), 0)


def _terms(extent: Extent) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the products that a size is the sum of, as atoms and a factor."""
    if not isinstance(extent, SymbolicSize):
        yield (), int(extent)
    elif len(extent.atoms) == 1 and isinstance(extent.atoms[0], Sum):
        for term in extent.atoms[0].terms:
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


def sign(a: Extent) -> int:
    """-1, 0 or 1. Dimensions may be 0, so that only ints are decided. Raises Untracked."""
    if isinstance(a, SymbolicSize):
        raise Untracked(f"sign of {a}")
    return (a > 0) - (a < 0)


def _ordering(a: Extent, b: Extent) -> int:
    """Return the sign of a - b; a size (>= 0) also compares with a negative int, as -1."""
    for one, other, answer in ((a, b, 1), (b, a, -1)):
        if isinstance(one, SymbolicSize) and one.is_length and isinstance(other, int) and other < 0:
            return answer
    return sign(a - b)


def _compare(lhs: np.ndarray, rhs: np.ndarray, *, predicate: str) -> np.ndarray:
    test = getattr(operator, predicate)
    return _pairwise(lambda a, b: test(_ordering(a, b), 0), lhs, rhs)


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
    "div": lambda lhs, rhs: _pairwise(quotient, lhs, rhs),
    "compare": _compare,
    "select": lambda condition, yes, no: np.where(condition.astype(bool), yes, no),
    "gather": _gather,
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
        if op.name in _GROWING:
            out = op.infer(*(self.type_of(v) for v in operands), **params)
            if not out.is_static or out.elements > MAX_SIZES:
                raise Untracked(f"more than {MAX_SIZES} sizes")
        return SymbolicSizes(np.asarray(rule(*(v.entries for v in operands), **params)), dtype)

    def type_of(self, value: SymbolicSizes) -> TensorType:
        """Return the static shape and the type that the entries stand for."""
        return TensorType(value.entries.shape, value.dtype)

    def dims(self, value: SymbolicSizes) -> tuple[Extent, ...]:
        """Return the shape of the tensor of sizes itself."""
        return value.entries.shape
