"""The normal form of elements for proofs: polynomials with exact rational coefficients.

`RealAlgebra` serves recognition: its coefficients are f64, its constants what models mean, and it
leaves guards away. Here coefficients are fractions, a constant is the binary number that it is, a
root gives up squares only, and integers, whose sums wrap, are operations that nothing is known of.
Equal normal forms are equal functions of real numbers wherever both are defined.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isqrt
from typing import Any

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.types import dtype_name, is_float, is_integer
from pyc_mlir.pipelines.pyc.equivalence.fields.constants import meant
from pyc_mlir.pipelines.pyc.terms.algebra import RealAlgebra
from pyc_mlir.pipelines.pyc.terms.nodes import TermNode
from pyc_mlir.pipelines.pyc.terms.reader import Place
from pyc_mlir.pipelines.pyc.terms.terms import (
    LIMIT,
    Atom,
    Poly,
    Product,
    Terms,
    TooManyProducts,
)

_RING = frozenset({"add", "sub", "mul", "neg"})
# Exponentials that one splits into, at most.
_MOST_FACTORS = 8


class ExactTerms(Terms):
    """Terms whose coefficients are fractions."""

    def constant(self, value: Any) -> Poly:
        """Return a number exactly; infinities and NaN are atoms."""
        if isinstance(value, float) and value - value != 0:
            return self.atom("number", repr(value))
        return ((((), Fraction(value)),)) if value else ()  # type: ignore[return-value]

    def poly(self, products: Mapping[Product, Any]) -> Poly:
        """Return a polynomial in its one order. Raises TooManyProducts."""
        if len(products) > LIMIT:
            raise TooManyProducts
        return tuple(sorted((p, c) for p, c in products.items() if c))

    def add(self, *polys: Poly) -> Poly:
        """Return their sum. Raises TooManyProducts."""
        total: dict[Product, Any] = {}
        for poly in polys:
            for product, c in poly:
                total[product] = total.get(product, 0) + Fraction(c)
        return self.poly(total)

    def scale(self, poly: Poly, factor: Any) -> Poly:
        """Return every coefficient times a number."""
        return self.poly({p: Fraction(c) * Fraction(factor) for p, c in poly})

    def times(self, a: Poly, b: Poly) -> Poly:
        """Return their product, multiplied out. Raises TooManyProducts."""
        if len(a) * len(b) > LIMIT * 4:
            raise TooManyProducts
        parts = [((self._joined(p, q), Fraction(c) * Fraction(d)),) for p, c in a for q, d in b]
        return self.add(*parts)  # type: ignore[arg-type]


class ProofAlgebra(RealAlgebra):
    """The same function of real numbers, with nothing left away.

    classes: the leaf that a node is; nodes that are proved equal are one leaf. rounded: constants
    are read as what they are rounded from.
    """

    def __init__(
        self, terms: ExactTerms, classes: Mapping[TermNode, int], rounded: bool = False
    ) -> None:
        super().__init__(terms, ())
        self.terms: ExactTerms = terms
        self.leaves = dict(classes)
        self.rounded = rounded

    def number(self, node: TermNode) -> Poly:
        """Return the binary number, or the root that it is rounded from."""
        assert node.number is not None
        if not is_float(node.type.dtype):
            # Numbers beyond 2^53 would be rounded here.
            array = node.array
            assert array is not None
            return self.terms.constant(int(array.reshape(-1)[0]))
        read = meant(node.number, dtype_name(node.type.dtype)) if self.rounded else None
        if read is None:
            return self.terms.constant(node.number)
        number, degree = read
        value = self.terms.constant(number)
        while degree > 1:
            value, degree = self.root(value), degree // 2
        return self.terms.scale(value, -1) if node.number < 0 else value

    def known(self, node: TermNode, place: Place) -> Poly | None:
        """Return None: constants are what they are."""
        return None

    def apply(self, node: TermNode, parts: Sequence[Poly]) -> Poly:
        """Read floats as numbers, and sums and products of integers of one type.

        What is equal over the integers is equal modulo a power of two. Other operations on integers
        and conditions stay operations.
        """
        t = self.terms
        types = {o.type.dtype for o in (node, *node.operands)}
        if len(types) == 1 and is_integer(node.type.dtype) and node.name in _RING:
            return super().apply(node, parts)
        own = is_float(node.type.dtype) and all(is_float(o.type.dtype) for o in node.operands)
        if node.name in ("select", "compare", "log") or not own:
            return self._opaque(node, parts)
        if node.name == "exp":
            return self.exponential(parts[0])
        if node.name == "tanh":
            below = t.add(t.constant(1), self.exponential(t.scale(parts[0], -2)))
            return t.add(t.scale(self.inverse(below), 2), t.constant(-1))
        return super().apply(node, parts)

    def exponential(self, poly: Poly) -> Poly:
        """exp(a + b) = exp(a) exp(b), and exp(-a) = 1 / exp(a): factors of negative powers."""
        t = self.terms
        inside = [t.atoms[a].head for product, _ in poly for a, _ in product]
        if "number" in inside or len(poly) > _MOST_FACTORS:
            return t.atom("exp", parts=(poly,))
        out = t.constant(1)
        for product, c in poly:
            part: Poly = ((product, abs(c)),)
            number = t.number(Atom("exp", parts=(part,)))
            out = t.times(out, ((((number, 1 if c > 0 else -1),), 1.0),))
        return out

    def inverse(self, poly: Poly) -> Poly:
        """1 / poly; of an exponential by its power."""
        t = self.terms
        if len(poly) != 1:
            return super().inverse(poly)
        ((product, c),) = poly
        powers = [(a, n) for a, n in product if t.atoms[a].head == "exp"]
        rest: Poly = ((tuple((a, n) for a, n in product if t.atoms[a].head != "exp"), c),)
        turned: Poly = ((tuple((a, -n) for a, n in powers), 1.0),)
        return t.times(super().inverse(rest), turned)

    def _opaque(self, node: TermNode, parts: Sequence[Poly]) -> Poly:
        types = [dtype_name(o.type.dtype) for o in node.operands if not is_float(o.type.dtype)]
        target = "" if is_float(node.type.dtype) else dtype_name(node.type.dtype)
        kept = tuple((k, str(v)) for k, v in sorted(node.params.items()) if k != "dtype")
        ordered = sorted(parts) if node.has(Trait.COMMUTATIVE) else parts
        return self.terms.atom("op", node.name, kept, target, *types, parts=ordered)

    def root(self, poly: Poly) -> Poly:
        """Return the square root; squares of fractions leave it."""
        t = self.terms
        if not poly:
            return poly
        lead = Fraction(poly[0][1])
        square = _square(abs(lead))
        under = t.scale(poly, 1 / (square * square))
        if t.value(under) == 1:
            return t.constant(square)
        return t.scale(t.atom("root", parts=(under,)), square)


def _square(number: Fraction) -> Fraction:
    """Return the greatest fraction whose square divides a number so that square-free ones stay."""
    return Fraction(_root_part(number.numerator), _root_part(number.denominator))


def _root_part(n: int) -> int:
    """Return a number whose square divides n: the root of n, or of its smallest factors."""
    whole = isqrt(n)
    if whole * whole == n:
        return whole
    out = 1
    for p in (2, 3, 5, 7):
        while n % (p * p) == 0:
            n //= p * p
            out *= p
    return out
