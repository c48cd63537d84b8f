"""Terms that stand for the elements of tensors: sums of products of atoms, each stored once.

An atom is an element of a leaf, a function of polynomials, or a sum or maximum over bound
variables. Atoms are numbered as they are first met, so that equal terms are equal numbers. Bound
variables are named by the depth of what they bind ("locally nameless", Chargueraud, 2012): a sum is
the same term wherever it stands.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyc_mlir.pipelines.pyc.terms.indices import Index

# Atoms with how often each is a factor, and polynomials: such products with their coefficients.
Product = tuple[tuple[int, int], ...]
Poly = tuple[tuple[Product, float], ...]
# Products in a polynomial, at most: spelled-out composites have a handful.
LIMIT = 64
_NEAR = 1e-11


class TooManyProducts(Exception):
    """A polynomial has more than `LIMIT` products: nothing that composites are made of."""


@dataclass(frozen=True)
class Atom:
    """`head` and `data` say what it is; `index` where it is read, `parts` what it is made of."""

    head: str
    data: tuple[Hashable, ...] = ()
    index: tuple[Index, ...] = ()
    parts: tuple[Poly, ...] = ()


@dataclass
class Terms:
    """All terms of one comparison."""

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
        binds = atom.head in ("sum", "max", "min", "prod")
        self.depth.append(max((self.depth[a] for a in inner), default=0) + binds)
        return number

    def atom(self, head: str, *data: Hashable, parts: Sequence[Poly] = ()) -> Poly:
        """Return a polynomial of one atom."""
        return self.of(Atom(head, data, (), tuple(parts)))

    def of(self, atom: Atom) -> Poly:
        """Return the polynomial that is one atom."""
        return ((((self.number(atom), 1),), 1.0),)

    def constant(self, value: float) -> Poly:
        """Return a number; those that are not finite are atoms, since they obey no algebra."""
        if value - value != 0:
            return self.atom("number", repr(float(value)))
        return ((((), self.same(value)),)) if value else ()

    def same(self, value: float) -> float:
        """Return the known coefficient that differs from this one by roundings of f64 only."""
        for known in self.coefficients:
            if abs(known - value) <= _NEAR * abs(known):
                return known
        self.coefficients.append(value)
        return value

    def poly(self, products: Mapping[Product, float]) -> Poly:
        """Return a polynomial in its one order. Raises TooLarge."""
        if len(products) > LIMIT:
            raise TooManyProducts
        return tuple(sorted((p, self.same(c)) for p, c in products.items() if c))

    def add(self, *polys: Poly) -> Poly:
        """Return their sum. Raises TooLarge."""
        total: dict[Product, float] = {}
        for poly in polys:
            for product, c in poly:
                before = total.get(product, 0.0)
                now = before + c
                total[product] = 0.0 if abs(now) <= _NEAR * abs(c) else now
        return self.poly(total)

    def scale(self, poly: Poly, factor: float) -> Poly:
        """Return every coefficient times a number."""
        return self.poly({p: c * factor for p, c in poly})

    def times(self, a: Poly, b: Poly) -> Poly:
        """Return their product, multiplied out. Raises TooLarge."""
        if len(a) * len(b) > LIMIT * 4:
            raise TooManyProducts
        parts = [((self._joined(p, q), c * d),) for p, c in a for q, d in b]
        return self.add(*parts)

    def _joined(self, a: Product, b: Product) -> Product:
        counts = dict(a)
        for atom, n in b:
            counts[atom] = counts.get(atom, 0) + n
        for atom in list(counts):
            self._cancel(counts, atom)
        return tuple(sorted((atom, n) for atom, n in counts.items() if n))

    def _cancel(self, counts: dict[int, int], atom: int) -> None:
        """Cancel a size and its inverse: sizes are not 0, so n * (1 / n) = 1."""
        if self.atoms[atom].head != "extent":
            return
        inverse = self.numbers.get(Atom("inverse", parts=(((((atom, 1),), 1.0),),)))
        if inverse in counts:
            common = min(counts[atom], counts[inverse])
            counts[atom] -= common
            counts[inverse] -= common

    def depends(self, product: Product, variables: frozenset[Hashable]) -> Product:
        """Return the factors in which one of the variables occurs."""
        return tuple(f for f in product if self.free[f[0]] & variables)

    def bind(self, head: str, extents: Mapping[Hashable, Hashable], body: Poly) -> Poly:
        """Return the sum, product or maximum of `body` over variables with these extents."""
        inner = (self.depth[a] for product, _ in body for a, _ in product)
        level = max(inner, default=0) + 1
        names = {v: ("bound", level, i) for i, v in enumerate(extents)}
        return self.atom(head, *extents.values(), parts=(self.renamed(body, names),))

    def renamed(self, poly: Poly, names: Mapping[Hashable, Hashable]) -> Poly:
        """Return the polynomial with other variables."""
        out: dict[Product, float] = {}
        for product, c in poly:
            renamed = [(self._rename(a, names), n) for a, n in product]
            out[tuple(sorted(renamed))] = c
        return self.poly(out)

    def _rename(self, number: int, names: Mapping[Hashable, Hashable]) -> int:
        if not self.free[number] & names.keys():
            return number
        atom = self.atoms[number]
        index = tuple(tuple((names.get(v, v), d, n) for v, d, n in i) for i in atom.index)
        parts = tuple(self.renamed(part, names) for part in atom.parts)
        return self.number(replace(atom, index=index, parts=parts))

    def single(self, poly: Poly) -> Atom | None:
        """Return the atom that a polynomial is; None where it is more."""
        if len(poly) != 1 or poly[0][1] != 1.0 or [n for _, n in poly[0][0]] != [1]:
            return None
        return self.atoms[poly[0][0][0][0]]

    def value(self, poly: Poly) -> float | None:
        """Return the number that a polynomial is; None where it is more."""
        if not poly:
            return 0.0
        return poly[0][1] if len(poly) == 1 and not poly[0][0] else None
