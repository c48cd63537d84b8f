"""Terms that stand for the elements of tensors: sums of products of atoms, each stored once.

An atom is an element of a leaf, a function of polynomials, or a sum or maximum over bound
variables. Atoms are numbered as they are first met, so that equal terms are equal numbers. Bound
variables are named by the depth of what they bind ("locally nameless", Chargueraud, 2012): a sum is
the same term wherever it stands.

Ops that move elements change the index at which a leaf is read. A digit (v, d, n) of an index is
``(v // d) % n`` of a loop variable v; an index is its digits, the most significant first, in a
mixed radix: the position in a dimension whose size is the product of their sizes. () is 0. So a
reshape is a change of digits, and one that undoes another gives the variable back. The size of a
first digit may be None if it is dynamic. `SameOperations` follows nodes down to the leaves; what
operations make of elements otherwise is the business of an algebra (algebra.py).
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.types import Shape
from pyc_mlir.pipelines.pyc.equivalence.nodes import TermNode, expanded
from pyc_mlir.pipelines.pyc.orders import reshape_groups

Digit = tuple[Hashable, int, int | None]
Index = tuple[Digit, ...]
Place = tuple[Index, ...]
# Atoms with how often each is a factor, and polynomials: such products with their coefficients.
Product = tuple[tuple[int, int], ...]
Poly = tuple[tuple[Product, Any], ...]
# Products in a polynomial, at most: spelled-out composites have a handful.
LIMIT = 64
_NEAR = 1e-11
_REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod"}


class TooManyProducts(Exception):
    """A polynomial has more than `LIMIT` products: nothing that composites are made of."""


@dataclass(frozen=True)
class Atom:
    """`head` and `data` say what it is; `index` where it is read, `parts` what it is made of."""

    head: str
    data: tuple[Hashable, ...] = ()
    index: Place = ()
    parts: tuple[Poly, ...] = ()


@dataclass
class Terms:
    """All terms of one comparison.

    exact: coefficients are `Fraction`s. Else they are f64, and those that differ by roundings only
    are one number.
    """

    exact: bool = False
    atoms: list[Atom] = field(default_factory=list)
    numbers: dict[Atom, int] = field(default_factory=dict)
    free: list[frozenset[Hashable]] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    coefficients: list[float] = field(default_factory=list)
    held: list[object] = field(default_factory=list)

    def identity(self, thing: object) -> int:
        """Return a number for an object, which nothing else has while these terms exist."""
        self.held.append(thing)
        return id(thing)

    def number(self, atom: Atom) -> int:
        """Return the number of an atom."""
        known = self.numbers.get(atom)
        if known is not None:
            return known
        number = self.numbers[atom] = len(self.atoms)
        inner = [a for part in atom.parts for product, _ in part for a, _ in product]
        free = frozenset(d[0] for index in atom.index for d in index)
        self.atoms.append(atom)
        self.free.append(free.union(*(self.free[a] for a in inner)))
        binds = atom.head in _REDUCTIONS.values()
        self.depth.append(max((self.depth[a] for a in inner), default=0) + binds)
        return number

    def power(self, number: int, n: int = 1) -> Poly:
        """Return the polynomial that is one atom, by its number, to a power."""
        return ((((number, n),), 1.0),)

    def of(self, atom: Atom) -> Poly:
        """Return the polynomial that is one atom."""
        return self.power(self.number(atom))

    def atom(self, head: str, *data: Hashable, parts: Sequence[Poly] = ()) -> Poly:
        """Return a polynomial of one atom."""
        return self.of(Atom(head, data, (), tuple(parts)))

    def constant(self, value: Any) -> Poly:
        """Return a number; those that are not finite are atoms, since they obey no algebra."""
        if value - value != 0:
            return self.atom("number", repr(float(value)))
        return ((((), self._known(value)),)) if value else ()

    def _exactly(self, value: Any) -> Any:
        return Fraction(value) if self.exact else value

    def _known(self, value: Any) -> Any:
        """Return the known coefficient that differs from this one by roundings of f64 only."""
        if self.exact:
            return Fraction(value)
        for known in self.coefficients:
            if abs(known - value) <= _NEAR * abs(known):
                return known
        self.coefficients.append(value)
        return value

    def poly(self, products: Mapping[Product, Any]) -> Poly:
        """Return a polynomial in its one order. Raises TooManyProducts."""
        if len(products) > LIMIT:
            raise TooManyProducts
        return tuple(sorted((p, self._known(c)) for p, c in products.items() if c))

    def add(self, *polys: Poly) -> Poly:
        """Return their sum. Raises TooManyProducts."""
        total: dict[Product, Any] = {}
        near = 0 if self.exact else _NEAR
        for poly in polys:
            for product, c in poly:
                now = total.get(product, 0) + self._exactly(c)
                total[product] = 0 if abs(now) <= near * abs(c) else now
        return self.poly(total)

    def scale(self, poly: Poly, factor: Any) -> Poly:
        """Return every coefficient times a number."""
        return self.poly({p: self._exactly(c) * self._exactly(factor) for p, c in poly})

    def times(self, a: Poly, b: Poly) -> Poly:
        """Return their product, multiplied out. Raises TooManyProducts."""
        if len(a) * len(b) > LIMIT * 4:
            raise TooManyProducts
        parts = (((self._joined(p, q), self._exactly(c) * self._exactly(d)),)
                 for p, c in a for q, d in b)  # fmt: skip
        return self.add(*parts)

    def _joined(self, a: Product, b: Product) -> Product:
        """Return the product of two; sizes are not 0, so that n * (1 / n) = 1."""
        counts = dict(a)
        for atom, n in b:
            counts[atom] = counts.get(atom, 0) + n
        for atom in counts:
            if self.atoms[atom].head == "extent":
                inverse = self.numbers.get(Atom("inverse", parts=(self.power(atom),)))
                if inverse in counts:
                    common = min(counts[atom], counts[inverse])
                    counts[atom] -= common
                    counts[inverse] -= common
        return tuple(sorted((atom, n) for atom, n in counts.items() if n))

    def depends(self, product: Product, variables: frozenset[Hashable]) -> Product:
        """Return the factors in which one of the variables occurs."""
        return tuple(f for f in product if self.free[f[0]] & variables)

    def bind(self, head: str, extents: Mapping[Hashable, Hashable], body: Poly) -> Poly:
        """Return the sum, product or maximum of `body` over variables with these extents."""
        inner = (self.depth[a] for product, _ in body for a, _ in product)
        level = max(inner, default=0) + 1
        names = {v: ("bound", level, i) for i, v in enumerate(extents)}
        return self.atom(head, *extents.values(), parts=(self._renamed(body, names),))

    def _renamed(self, poly: Poly, names: Mapping[Hashable, Hashable]) -> Poly:
        def rename(number: int) -> int:
            if not self.free[number] & names.keys():
                return number
            atom = self.atoms[number]
            index = tuple(tuple((names.get(v, v), d, n) for v, d, n in i) for i in atom.index)
            parts = tuple(self._renamed(part, names) for part in atom.parts)
            return self.number(replace(atom, index=index, parts=parts))

        return self.poly({tuple(sorted((rename(a), n) for a, n in p)): c for p, c in poly})

    def single(self, poly: Poly) -> Atom | None:
        """Return the atom that a polynomial is; None where it is more."""
        if len(poly) != 1 or poly[0][1] != 1.0 or [n for _, n in poly[0][0]] != [1]:
            return None
        return self.atoms[poly[0][0][0][0]]

    def value(self, poly: Poly) -> Any:
        """Return the number that a polynomial is; None where it is more."""
        if not poly:
            return 0.0
        return poly[0][1] if len(poly) == 1 and not poly[0][0] else None


class SameOperations:
    """The reader of nodes as terms over leaves; leaves of one number are the same.

    An operation is itself, but for the order of sums and products.
    """

    def __init__(self, terms: Terms, leaves: Mapping[TermNode, int]) -> None:
        self.terms = terms
        self.leaves = leaves
        self._seen: dict[tuple[TermNode, Place], Poly] = {}
        self._extents: dict[Hashable, Hashable] = {}
        self._fresh = 0

    def apply(self, node: TermNode, parts: Sequence[Poly]) -> Poly:
        """Apply one op to elements; a product with 1 is no op."""
        one = self.terms.constant(1.0)
        if node.name == "mul" and one in parts:
            return parts[0] if parts[1] == one else parts[1]
        kept = tuple((k, str(v)) for k, v in sorted(node.params.items()))
        return self.terms.atom("op", node.name, kept, parts=ordered_parts(node, parts))

    def reduce(self, head: str, variables: Mapping[Hashable, Hashable], body: Poly) -> Poly:
        """Return a sum, product, maximum or minimum over variables with these extents."""
        return self.terms.bind(head, variables, body)

    def multiply(self, a: Poly, b: Poly) -> Poly:
        """Return a term of a matrix product."""
        return self.terms.atom("op", "mul", (), parts=sorted((a, b)))

    def number(self, node: TermNode) -> Poly:
        """Return a constant that repeats one element."""
        assert node.number is not None
        return self.terms.constant(node.number)

    def known(self, node: TermNode, place: Place) -> Poly | None:
        """Return a constant that a formula gives; None for others."""
        return None

    def general(self, node: TermNode, shape: Shape) -> Poly:
        """Return the element of a node of that shape at the place of the variables o0, o1, ..."""
        return self.read(node, tuple(_all(f"o{d}", size) for d, size in enumerate(shape)))

    def read(self, node: TermNode, place: Place) -> Poly:
        """Return the element of a node at a place. Raises TooManyProducts."""
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

    def _moved(self, node: TermNode, place: Place) -> Poly | None:
        """Return what an op that moves elements, or counts them, reads; None for others."""
        if node.name == "iota":
            return self.terms.of(Atom("iota", (), (place[node.params["axis"] % node.type.rank],)))
        if not node.operands:
            return None
        x = node.operands[0]
        if node.name == "size":
            return self.count([self._extent(x, a % x.type.rank) for a in node.params["axes"]])
        if node.name == "transpose":
            order = node.params["permutation"]
            return self.read(x, tuple(place[order.index(d)] for d in range(x.type.rank)))
        if node.name == "broadcast_to":
            return self.read(x, _aligned(x, place))
        if node.name == "reshape":
            found: dict[int, Index] = {}
            groups = reshape_groups(x.type.shape, node.params["shape"]) if x.type.rank else []
            if x.type.rank and not groups:
                return None
            for sources, targets in groups:
                joined = _merged([place[j] for j in targets])
                sizes = [x.type.shape[i] for i in sources]
                parts = None if joined is None else _split(joined, sizes)
                if parts is None:
                    return None
                found.update(zip(sources, parts, strict=True))
            return self.read(x, tuple(found[d] for d in range(x.type.rank)))
        return None

    def _bound(self, node: TermNode, d: int) -> Hashable:
        self._fresh += 1
        name = f"b{self._fresh}"
        self._extents[name] = self._extent(node, d)
        return name

    def _reduction(self, node: TermNode, place: Place) -> Poly:
        x = node.operands[0]
        names = {d: self._bound(x, d) for d in sorted(a % x.type.rank for a in node.params["axes"])}
        rest = iter(p for d, p in enumerate(place) if not (node.params["keepdims"] and d in names))
        full = tuple(
            _all(names[d], size) if d in names else next(rest)
            for d, size in enumerate(x.type.shape)
        )
        body = self.read(x, full)
        extents = {n: self._extents[n] for d, n in names.items() if x.type.shape[d] != 1}
        return self.reduce(_REDUCTIONS[node.name], extents, body) if extents else body

    def _product(self, node: TermNode, place: Place) -> Poly:
        lhs, rhs = node.operands
        depth = lhs.type.shape[-1]
        depth = rhs.type.shape[-2] if depth is None else depth
        name = self._bound(lhs, lhs.type.rank - 1)
        over = _all(name, depth)
        left = self.read(lhs, _aligned(lhs, (*place[:-1], over)))
        right = self.read(rhs, _aligned(rhs, (*place[:-2], over, place[-1])))
        body = self.multiply(left, right)
        return self.reduce("sum", {name: self._extents[name]}, body) if over else body

    def _extent(self, node: TermNode, d: int) -> Hashable:
        """Return the size of a dimension: a number, or the place where a dynamic one comes from."""
        size = node.type.shape[d]
        if size is not None:
            return size
        if node not in self.leaves and node.operands and (source := _source(node, d)) is not None:
            return self._extent(*source)
        return (self.terms.identity(node), d)

    def count(self, extents: Sequence[Hashable]) -> Poly:
        """Return the product of sizes."""
        t = self.terms
        total = t.constant(1.0)
        for extent in extents:
            known = isinstance(extent, int)
            factor = t.constant(float(extent)) if known else t.atom("extent", extent)  # type: ignore[arg-type]
            total = self.multiply(total, factor)
        return total


def ordered_parts(node: TermNode, parts: Sequence[Poly]) -> Sequence[Poly]:
    """Return the operands of an op, in their one order where it does not count."""
    return sorted(parts) if node.has(Trait.COMMUTATIVE) else parts


def _aligned(operand: TermNode, place: Place) -> Place:
    """Return where an operand that broadcasts to the result is read."""
    shape = operand.type.shape
    tail = place[len(place) - len(shape) :]
    return tuple(() if size == 1 else p for size, p in zip(shape, tail, strict=True))


def _source(node: TermNode, d: int) -> tuple[TermNode, int] | None:
    """Return the operand and its dimension that a dynamic dimension of a result is."""
    x, rank = node.operands[0], node.type.rank
    if node.name == "transpose":
        return x, node.params["permutation"][d]
    if node.name == "reshape":
        entry = node.params["shape"][d]
        at = -2 - entry - x.type.rank
        return (node.operands[1], at) if at >= 0 else (x, -2 - entry) if entry <= -2 else None
    if node.has(Trait.REDUCES) and "axes" in node.params:
        axes = {a % x.type.rank for a in node.params["axes"]}
        if node.params["keepdims"]:
            return x, d
        return x, [i for i in range(x.type.rank) if i not in axes][d]
    if node.name == "matmul" and d == rank - 1:
        return node.operands[1], node.operands[1].type.rank - 1
    if node.name == "broadcast_to" and len(node.operands) == 2:
        return node.operands[1], d
    if not (node.name == "matmul" or node.has(Trait.ALIGNED)):
        return None
    for operand in (x,) if node.name == "matmul" else node.operands:
        at = d - rank + operand.type.rank
        if at >= 0 and operand.type.shape[at] is None:
            return operand, at
    return None


def _all(variable: Hashable, size: int | None) -> Index:
    """Return the index that runs over a dimension; 0 where its size is 1."""
    return () if size == 1 else ((variable, 1, size),)


def _merged(indices: Sequence[Index]) -> Index | None:
    """Return the index of dimensions that became one; None where an inner size is not known."""
    digits: list[Digit] = []
    for variable, divisor, size in (d for index in indices for d in index):
        if digits and size is None:
            return None
        if digits and digits[-1][0] == variable and digits[-1][1] == divisor * (size or 1):
            _, _, outer = digits.pop()
            size = None if outer is None or size is None else outer * size
        digits.append((variable, divisor, size))
    return tuple(digits)


def _split(index: Index, sizes: Sequence[int | None]) -> list[Index] | None:
    """Return the indices of the dimensions that one is cut into; None where digits forbid it."""
    if None in sizes[1:]:
        return None
    rest, parts = list(index), []
    for size in reversed(sizes[1:]):
        part: list[Digit] = []
        needed = size or 0
        while needed > 1:
            if not rest:
                return None
            variable, divisor, n = rest.pop()
            if n is not None and needed % n == 0:
                part.insert(0, (variable, divisor, n))
                needed //= n
            elif n is None or n % needed == 0:
                part.insert(0, (variable, divisor, needed))
                rest.append((variable, divisor * needed, None if n is None else n // needed))
                needed = 1
            else:
                return None
        parts.insert(0, tuple(part))
    return [tuple(rest), *parts]
