"""The element of a node at an index, as a term: ops that move elements go, ops that compute stay.

`TermReader` follows nodes down to the leaves. Broadcasts, reshapes and transposes change the index;
composites are read as their decompositions; sums and maxima bind variables. What is left, each
operation on elements, is the business of an algebra (algebra.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.types import Shape
from pyc_mlir.pipelines.pyc.terms.indices import Index, before_reshape, whole
from pyc_mlir.pipelines.pyc.terms.nodes import TermNode, expanded
from pyc_mlir.pipelines.pyc.terms.terms import Atom, Poly, Terms

_REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod"}
Place = tuple[Index, ...]


class TermReader(ABC):
    """The reader of nodes as terms over the given leaves."""

    def __init__(self, terms: Terms, leaves: Sequence[TermNode]) -> None:
        self.terms = terms
        self.leaves = {leaf: i for i, leaf in enumerate(leaves)}
        self._seen: dict[tuple[TermNode, Place], Poly] = {}
        self._extents: dict[Hashable, Hashable] = {}
        self._fresh = 0

    @abstractmethod
    def apply(self, node: TermNode, parts: Sequence[Poly]) -> Poly:
        """Apply one op to elements."""

    @abstractmethod
    def reduce(self, head: str, variables: Mapping[Hashable, Hashable], body: Poly) -> Poly:
        """Return a sum, product, maximum or minimum over variables with these extents."""

    @abstractmethod
    def multiply(self, a: Poly, b: Poly) -> Poly:
        """Return a term of a matrix product."""

    def whole(self, node: TermNode, shape: Shape) -> Poly:
        """Return the element of a node of that shape at the place of the variables o0, o1, ..."""
        place = tuple(whole(f"o{d}", size) for d, size in enumerate(shape))
        return self.read(node, place)

    def read(self, node: TermNode, place: Place) -> Poly:
        """Return the element of a node at a place. Raises TooLarge."""
        key = (node, place)
        if key not in self._seen:
            self._seen[key] = self._read(node, place)
        return self._seen[key]

    def _read(self, node: TermNode, place: Place) -> Poly:
        if node in self.leaves:
            return self.terms.of(Atom("leaf", (self.leaves[node],), place))
        if node.number is not None:
            return self.number(node)
        if node.name == "constant" and (known := self.known(node, place)) is not None:
            return known
        if node.name in _REDUCTIONS:
            return self._reduction(node, place)
        if node.name == "matmul" and min(o.type.rank for o in node.operands) > 1:
            return self._product(node, place)
        if (moved := self._moved(node, place)) is not None:
            return moved
        if (spelled := expanded(node)) is not None:
            return self.read(spelled, place)
        if node.has(Trait.ELEMENTWISE):
            return self.apply(node, [self.read(o, _aligned(o, place)) for o in node.operands])
        return self.terms.of(Atom("other", (self.terms.identity(node),), place))

    def number(self, node: TermNode) -> Poly:
        """Return a constant that repeats one element."""
        assert node.number is not None
        return self.terms.constant(node.number)

    def known(self, node: TermNode, place: Place) -> Poly | None:
        """Return a constant that a formula gives; None for others."""
        return None

    def _moved(self, node: TermNode, place: Place) -> Poly | None:
        """Return what an op that moves elements, or counts them, reads; None for others."""
        x = node.operands[0] if node.operands else None
        if node.name == "iota":
            axis = node.params["axis"] % node.type.rank
            return self.terms.of(Atom("iota", (), (place[axis],)))
        if x is None:
            return None
        if node.name == "size":
            sizes = [self._extent(x, a % x.type.rank) for a in node.params["axes"]]
            return self._count(sizes)
        if node.name == "transpose":
            order = node.params["permutation"]
            return self.read(x, tuple(place[order.index(d)] for d in range(x.type.rank)))
        if node.name == "broadcast_to":
            return self.read(x, _aligned(x, place))
        if node.name == "reshape":
            shapes = x.type.shape, node.type.shape
            before = before_reshape(*shapes, node.params["shape"], place)
            return None if before is None else self.read(x, tuple(before))
        return None

    def _bound(self, node: TermNode, dims: Sequence[int]) -> dict[int, Hashable]:
        """Return fresh variables for dimensions of a node."""
        names: dict[int, Hashable] = {}
        for d in dims:
            self._fresh += 1
            names[d] = f"b{self._fresh}"
            self._extents[names[d]] = self._extent(node, d)
        return names

    def _reduction(self, node: TermNode, place: Place) -> Poly:
        x = node.operands[0]
        axes = sorted(a % x.type.rank for a in node.params["axes"])
        names = self._bound(x, axes)
        rest = iter(p for d, p in enumerate(place) if not (node.params["keepdims"] and d in axes))
        full = tuple(
            whole(names[d], size) if d in names else next(rest)
            for d, size in enumerate(x.type.shape)
        )
        body = self.read(x, full)
        extents = {names[d]: self._extents[names[d]] for d in axes if x.type.shape[d] != 1}
        return self.reduce(_REDUCTIONS[node.name], extents, body) if extents else body

    def _product(self, node: TermNode, place: Place) -> Poly:
        lhs, rhs = node.operands
        depth = lhs.type.shape[-1]
        depth = rhs.type.shape[-2] if depth is None else depth
        (name,) = self._bound(lhs, [lhs.type.rank - 1]).values()
        over = whole(name, depth)
        left = _aligned(lhs, (*place[:-1], over))
        right = _aligned(rhs, (*place[:-2], over, place[-1]))
        body = self.multiply(self.read(lhs, left), self.read(rhs, right))
        return self.reduce("sum", {name: self._extents[name]}, body) if over else body

    def _extent(self, node: TermNode, d: int) -> Hashable:
        """Return the size of a dimension: a number, or the place where a dynamic one comes from."""
        size = node.type.shape[d]
        if size is not None:
            return size
        if node not in self.leaves and node.operands:
            source = _source(node, d)
            if source is not None:
                return self._extent(*source)
        return (self.terms.identity(node), d)

    def _count(self, extents: Sequence[Hashable]) -> Poly:
        """Return the product of sizes."""
        total = self.terms.constant(1.0)
        for extent in extents:
            known = isinstance(extent, int)
            factor = self.terms.constant(float(extent)) if known else None  # type: ignore[arg-type]
            factor = self.terms.atom("extent", extent) if factor is None else factor
            total = self.multiply(total, factor)
        return total


def _aligned(operand: TermNode, place: Place) -> Place:
    """Return where an operand that broadcasts to the result is read."""
    shape = operand.type.shape
    tail = place[len(place) - len(shape) :]
    return tuple(() if size == 1 else p for size, p in zip(shape, tail, strict=True))


def _source(node: TermNode, d: int) -> tuple[TermNode, int] | None:
    """Return the operand and its dimension that a dynamic dimension of a result is."""
    x: Any = node.operands[0]
    if node.name == "transpose":
        return x, node.params["permutation"][d]
    if node.name == "reshape":
        entry = node.params["shape"][d]
        return (x, -2 - entry) if entry <= -2 else None
    if node.has(Trait.REDUCES) and "axes" in node.params:
        axes = {a % x.type.rank for a in node.params["axes"]}
        if node.params["keepdims"]:
            return x, d
        return x, [i for i in range(x.type.rank) if i not in axes][d]
    if node.name == "matmul":
        lhs, rhs = node.operands
        last = d == node.type.rank - 1
        return (rhs, rhs.type.rank - 1) if last else _dynamic((lhs,), d, node.type.rank)
    if node.name == "broadcast_to" and len(node.operands) == 2:
        return node.operands[1], d
    if node.has(Trait.ALIGNED):
        return _dynamic(node.operands, d, node.type.rank)
    return None


def _dynamic(operands: Sequence[TermNode], d: int, rank: int) -> tuple[TermNode, int] | None:
    """Return the first operand whose aligned dimension is dynamic."""
    for operand in operands:
        at = d - rank + operand.type.rank
        if at >= 0 and operand.type.shape[at] is None:
            return operand, at
    return None
