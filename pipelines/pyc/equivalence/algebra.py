"""The meaning of constants, and two algebras for the elements of tensors.

`SameOperations` (terms.py) knows only that sums and products commute: programs with equal terms
round alike. `RealAlgebra` multiplies out, makes divisions products with inverses, drops
conversions between floats and pulls out of sums what does not vary: programs with equal terms
compute the same function of real numbers, by roundings of their own. It serves recognition: its
constants are those that a model likely means, and it leaves guards away. `ProofAlgebra` leaves
nothing away: equal normal forms are equal functions of real numbers wherever both are defined.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from math import isqrt

import numpy as np

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.types import DTYPES, dtype_name, is_float, is_integer
from pyc_mlir.pipelines.pyc.equivalence.nodes import TermNode
from pyc_mlir.pipelines.pyc.equivalence.terms import (
    Atom,
    Place,
    Poly,
    Product,
    SameOperations,
    Terms,
    ordered_parts,
)

_ROOT = math.sqrt(2 / math.pi)
# Constants of activations: a model has them rounded, to its element type or to few digits.
_KNOWN = (
    0.044715, math.sqrt(2), _ROOT, 0.044715 * _ROOT, 2 * _ROOT, 2 * 0.044715 * _ROOT,
    math.sqrt(math.pi), 2 / math.sqrt(math.pi),
)  # fmt: skip
CONSTANTS = (*_KNOWN, *(1 / known for known in _KNOWN))
_MOST_DENOMINATOR = 1024
_MOST_NUMERATOR = 1 << 20
# The degree of the root of an inverse of a whole number, and the greatest such number.
_WHOLE = ((1, 1 << 20), (2, 1 << 16))
_DIGITS = 6
# Bits of a binary fraction that is what it says.
_SHORT = 10
_POWERS = 4
_RING = frozenset({"add", "sub", "mul", "neg"})
# Exponentials that one splits into, at most.
_MOST_FACTORS = 8


@cache
def nearest_root(value: float, dtype: np.dtype) -> tuple[Fraction, int] | None:
    """Return n/d and k of the root (n/d)^(1/k) that |value| is the rounding of; None for itself.

    A model stores 1/sqrt(12) as the nearest f32. A number is read as such a root with k in 1, 2, 4
    and d at most 1024, as a decimal of at most six digits, or as 1/n or its root, if it is the
    nearest one of its type to it. Two numbers of one type are never read as one, so that a constant
    that is one unit off differs.
    """
    exact = Fraction(abs(value))
    if not is_float(dtype) or exact.numerator < 1 << _SHORT:
        return None
    for degree in (1, 2, 4):
        power = exact**degree
        if Fraction(1, _MOST_NUMERATOR) < power < _MOST_NUMERATOR:
            found = power.limit_denominator(_MOST_DENOMINATOR)
            if found and _rounds(found, degree, exact, dtype):
                while degree > 1:  # the same root with the least degree
                    root = Fraction(isqrt(found.numerator), isqrt(found.denominator))
                    if root * root != found:
                        break
                    found, degree = root, degree // 2
                return found, degree
    decimal = Fraction(f"{abs(value):.{_DIGITS - 1}e}")
    return (decimal, 1) if _rounds(decimal, 1, exact, dtype) else _inverse(exact, dtype)


def _inverse(exact: Fraction, dtype: np.dtype) -> tuple[Fraction, int] | None:
    """Return 1/n, or the degree of its root, that a number is the rounding of."""
    for degree, most in _WHOLE:
        n = round(1 / exact**degree)
        if 0 < n < most and _rounds(Fraction(1, n), degree, exact, dtype):
            return Fraction(1, n), degree
    return None


def _rounds(number: Fraction, degree: int, exact: Fraction, dtype: np.dtype) -> bool:
    """Return whether `exact` is the number of its type that is nearest to a root.

    The root lies strictly between the middles to both neighbours: compared exactly, as powers.
    """
    bits = {2: 8 if dtype == DTYPES["bf16"] else 11, 4: 24, 8: 53}[dtype.itemsize]
    scale = exact.numerator.bit_length() - exact.denominator.bit_length()
    scale -= exact < Fraction(2) ** scale
    half = Fraction(2) ** (scale - bits)
    # Below a power of two the neighbours are twice as close.
    below = half / 2 if exact == Fraction(2) ** scale else half
    return (exact - below) ** degree < number < (exact + half) ** degree


@cache
def likely(value: float, dtype: np.dtype) -> float:
    """Return the number that a model most likely means by a constant of an element type.

    A constant of `CONSTANTS` where `value` is its rounding (f32, f64: or within two units in the
    last place); in f32 and f64 what `nearest_root` says, inverses of integers first; in 16 bits
    such an inverse where only one can be meant; else the shortest decimal that is rounded to it.
    """
    if not is_float(dtype) or not math.isfinite(value) or value == 0:
        return value
    eps = {2: 0.0, 4: 2.0**-23, 8: 2.0**-52}[dtype.itemsize]
    for known in CONSTANTS:
        if value == _rounded(math.copysign(known, value), dtype) or (
            abs(abs(value) - known) <= 2 * eps * known
        ):
            return math.copysign(known, value)
    exact = Fraction(abs(value))
    if eps and exact.numerator < 1 << _SHORT:
        return value
    if eps and (read := _inverse(exact, dtype) or nearest_root(value, dtype)) is not None:
        number, degree = read
        while degree > 1:  # by digits enough for the nearest f64
            number, degree = Fraction(isqrt(int(number * 4**128)), 2**128), degree // 2
        return math.copysign(float(number), value)
    n = 0 if eps or abs(value) <= 1e-6 else round(1 / value)
    few = abs(n) * 2.0 ** (-9 if dtype == DTYPES["bf16"] else -12) < 1 / 8
    if n and few and _rounded(1 / n, dtype) == value:
        return 1 / n
    decimal = float(str(np.array(value).astype(dtype)))
    return decimal if _rounded(decimal, dtype) == value else value


def _rounded(value: float, dtype: np.dtype) -> float:
    return float(np.array(value).astype(dtype))


def triangle(node: TermNode) -> int | None:
    """Return the k of a boolean constant that is true where column - row <= k; None for others."""
    shape = node.type.shape
    if node.type.dtype.kind != "b" or node.type.rank < 2 or node.array is None:
        return None
    rows, columns = shape[-2:]
    if any(d != 1 for d in shape[:-2]) or not rows or not columns:
        return None
    matrix = node.array.reshape(rows, columns)
    k = int(matrix[0].sum()) - 1
    return k if np.array_equal(matrix, np.tri(rows, columns, k, dtype=bool)) else None


class RealAlgebra(SameOperations):
    """The same function of real numbers.

    `guards` names what was left away since it changes infinities or NaN only: ``max guard``, a
    maximum replaced by 0 where it is -inf (softmax is NaN there either way); ``finite guard``, also
    where it is +inf; ``nan guard``, a NaN replaced by 0, of each value in `nan_guarded`.
    """

    def __init__(self, terms: Terms, leaves: Mapping[TermNode, int]) -> None:
        super().__init__(terms, leaves)
        self.guards: set[str] = set()
        self.nan_guarded: set[Poly] = set()

    def number(self, node: TermNode) -> Poly:
        """Return the number that is meant."""
        assert node.number is not None
        exact = node.params.get("exact")
        return self.terms.constant(likely(node.number, node.type.dtype) if exact is None else exact)

    def known(self, node: TermNode, place: Place) -> Poly | None:
        """Return a triangle of true: ``j - i <= k``, as a causal mask is computed."""
        offset = triangle(node)
        if offset is None:
            return None
        row, column = (self.terms.of(Atom("iota", (), (i,))) for i in place[-2:])
        return self._bounded(column, row, -offset)

    def _bounded(self, a: Poly, b: Poly, offset: float) -> Poly:
        """Return ``a - b + offset <= 0``."""
        t = self.terms
        difference = t.add(a, t.scale(b, -1.0), t.constant(float(offset)))
        return t.atom("bound", parts=(difference,))

    def multiply(self, a: Poly, b: Poly) -> Poly:
        """Multiply out."""
        return self.terms.times(a, b)

    def reduce(self, head: str, variables: Mapping[Hashable, Hashable], body: Poly) -> Poly:
        """Reduce; of sums what does not vary is pulled out."""
        t = self.terms
        if head != "sum":
            return t.bind(head, variables, body)
        names = frozenset(variables)
        total: Poly = ()
        for product, c in body:
            inside = t.depends(product, names)
            outside: Product = tuple(f for f in product if f not in inside)
            used = frozenset().union(*(t.free[a] for a, _ in inside))
            over = {v: n for v, n in variables.items() if v in used}
            bound = self.count([n for v, n in variables.items() if v not in used])
            if over:
                bound = t.times(t.bind("sum", over, ((inside, 1.0),)), bound)
            total = t.add(total, t.times(((outside, c),), bound))
        return total

    def apply(self, node: TermNode, parts: Sequence[Poly]) -> Poly:
        """Read arithmetic as arithmetic; functions of polynomials as atoms."""
        t, x = self.terms, parts[0]
        floats = is_float(node.operands[0].type.dtype)
        match node.name:
            case "add":
                return t.add(*parts)
            case "sub":
                return t.add(x, t.scale(parts[1], -1.0))
            case "neg":
                return t.scale(x, -1.0)
            case "mul":
                return t.times(*parts)
            case "cast":
                source, target = node.operands[0].type.dtype, node.type.dtype
                whole = target.kind == source.kind == "i" and target.itemsize >= source.itemsize
                if whole or (is_float(target) and source.kind != "b"):
                    return x
                return t.atom("cast", str(source), str(target), parts=(x,))
            case "compare":
                return self._compare(node.params["predicate"], floats, *parts)
            case "select":
                return self._select(*parts)
            case "div" if floats:
                return t.times(x, self.inverse(parts[1]))
            case "sqrt" if floats:
                return self.root(x)
            case "rsqrt" if floats:
                return self.inverse(self.root(x))
            case "pow" if floats and (exponent := t.value(parts[1])) is not None:
                return self._power(x, exponent)
            case "and":
                return self._every(parts)
            case "not":
                return self._negated(x)
            case "log":
                return self._log(x)
        if node.has(Trait.ODD):
            return self._odd(node.name, x)
        return t.atom(node.name, parts=ordered_parts(node, parts))

    def _odd(self, name: str, x: Poly) -> Poly:
        """f(x) = -f(-x); tanh(x) = 2 / (1 + exp(-2 x)) - 1."""
        t = self.terms
        if x and x[0][1] < 0:
            return t.scale(self._odd(name, t.scale(x, -1.0)), -1.0)
        return self.tanh(x) if name == "tanh" else t.atom(name, parts=(x,))

    def tanh(self, x: Poly) -> Poly:
        """Return 2 / (1 + exp(-2 x)) - 1."""
        t = self.terms
        below = t.add(t.constant(1.0), self.exponential(t.scale(x, -2.0)))
        return t.add(t.scale(self.inverse(below), 2.0), t.constant(-1.0))

    def exponential(self, x: Poly) -> Poly:
        """Return exp(x), which stays what it is: another maximum makes no softmax."""
        return self.terms.atom("exp", parts=(x,))

    def _log(self, x: Poly) -> Poly:
        """log(c a / b) = log c + log a - log b for what is positive; log(exp(x)) = x."""
        t = self.terms
        atoms = [a for product, _ in x for a, _ in product]
        if len(x) != 1 or x[0][1] <= 0 or not all(map(self._is_positive, atoms)):
            return t.atom("log", parts=(x,))
        total = t.constant(math.log(x[0][1]))
        for number, n in x[0][0]:
            atom, sign = t.atoms[number], float(n)
            if atom.head == "exp":
                total = t.add(total, t.scale(atom.parts[0], sign))
                continue
            inner = t.power(number)
            if atom.head == "inverse":
                inner, sign = atom.parts[0], -sign
            total = t.add(total, t.scale(t.atom("log", parts=(inner,)), sign))
        return total

    def _is_positive(self, number: int) -> bool:
        """Return whether an atom is an exponential, a sum of such, or the inverse of one."""
        atom = self.terms.atoms[number]
        if atom.head not in ("sum", "inverse"):
            return atom.head == "exp"
        products = [product for part in atom.parts for product, _ in part]
        factors = [a for product in products for a, _ in product]
        positive = all(c > 0 for part in atom.parts for _, c in part)
        return bool(factors) and positive and all(map(self._is_positive, factors))

    def _negated(self, condition: Poly) -> Poly:
        """Return a condition that holds where another one does not; NaN compares as neither."""
        t = self.terms
        test = t.single(condition)
        if test is not None and test.head == "not":
            return test.parts[0]
        if test is not None and test.head == "bound":
            return self._bounded((), test.parts[0], 1)
        if test is not None and test.head == "compare" and test.data[0] in ("eq", "ne"):
            return t.atom("compare", "ne" if test.data[0] == "eq" else "eq", parts=test.parts)
        return t.atom("not", parts=(condition,))

    def inverse(self, poly: Poly) -> Poly:
        """1 / poly: of a product factor by factor, of a sum with 1 as its first coefficient."""
        t = self.terms
        if len(poly) != 1:
            lead = poly[0][1] if poly else 1.0
            return t.scale(t.atom("inverse", parts=(t.scale(poly, 1 / lead),)), 1 / lead)
        ((product, c),) = poly
        out = t.constant(1 / c)
        for number, n in product:
            atom = t.atoms[number]
            is_inverse = atom.head == "inverse"
            of = atom.parts[0] if is_inverse else t.atom("inverse", parts=(t.power(number),))
            for _ in range(n):
                out = t.times(out, of)
        return out

    def root(self, poly: Poly) -> Poly:
        """Return the square root, with 1 or -1 as the first coefficient under it."""
        t = self.terms
        if (value := t.value(poly)) is not None and value >= 0:
            return t.constant(math.sqrt(value))
        lead = abs(poly[0][1]) if poly else 1.0
        return t.scale(t.atom("root", parts=(t.scale(poly, 1 / lead),)), math.sqrt(lead))

    def _power(self, base: Poly, exponent: float) -> Poly:
        t = self.terms
        if exponent < 0:
            return self.inverse(self._power(base, -exponent))
        if exponent == 0.5:
            return self.root(base)
        if exponent != int(exponent) or not 0 < exponent <= _POWERS:
            return t.atom("pow", parts=(base, t.constant(exponent)))
        out = base
        for _ in range(int(exponent) - 1):
            out = t.times(out, base)
        return out

    def _compare(self, predicate: str, floats: bool, a: Poly, b: Poly) -> Poly:
        """Compare integers by the bound ``d <= 0``; floats by the op itself, without gt and ge."""
        if predicate in ("gt", "ge"):
            predicate, a, b = {"gt": "lt", "ge": "le"}[predicate], b, a
        if floats or predicate in ("eq", "ne"):
            pair = sorted((a, b)) if predicate in ("eq", "ne") else (a, b)
            return self.terms.atom("compare", predicate, parts=pair)
        return self._bounded(a, b, predicate == "lt")

    def _every(self, parts: Sequence[Poly]) -> Poly:
        """Return conditions that all hold, each once, in order."""
        found: set[Poly] = set()
        for part in parts:
            atom = self.terms.single(part)
            found.update(atom.parts if atom is not None and atom.head == "and" else (part,))
        return self.terms.atom("and", parts=sorted(found)) if len(found) > 1 else found.pop()

    def _select(self, condition: Poly, yes: Poly, no: Poly) -> Poly:
        """Put what is masked by a number last; conditions on the same value join."""
        t = self.terms
        test = t.single(condition)
        if test is not None and (kept := self._guarded(test, yes, no)) is not None:
            return kept
        sides = [t.single(p) for p in (yes, no)]
        first, last = (atom is not None and atom.head == "number" for atom in sides)
        negated = test is not None and test.head == "not"
        if not last and (first or negated):
            condition, yes, no = self._negated(condition), no, yes
        inner = t.single(yes)
        if inner is not None and inner.head == "select" and inner.parts[2] == no:
            condition, yes = self._every((condition, inner.parts[0])), inner.parts[1]
        return t.atom("select", parts=(condition, yes, no))

    def _guarded(self, test: Atom, yes: Poly, no: Poly) -> Poly | None:
        """Return what a guard guards; None where a select is none."""
        t = self.terms
        if test.head != "compare" or () not in (yes, no):
            return None
        kept, when, sides = yes or no, bool(yes), set(test.parts)
        predicate = test.data[0]
        if sides == {kept} and predicate == ("eq" if when else "ne"):
            self.guards.add("nan guard")
            self.nan_guarded.add(kept)
            return kept
        top = t.single(kept)
        if top is None or top.head != "max":
            return None
        infinite, lowest = t.constant(math.inf), t.constant(-math.inf)
        magnitude = t.atom("abs", parts=(kept,))
        wanted = ("ne", "lt") if when else ("eq", "le")
        for name, low, high in (("max", lowest, kept), ("finite", magnitude, infinite)):
            # -inf < max and |max| < inf guard as they stand; max <= -inf and inf <= |max| negated.
            pair = (low, high) if when else (high, low)
            ordered = predicate in ("eq", "ne") or test.parts == pair
            if sides == {low, high} and predicate in wanted and ordered:
                self.guards.add(f"{name} guard")
                return kept
        return None


class ProofAlgebra(RealAlgebra):
    """The same function of real numbers, with nothing left away, over exact terms.

    A constant is the binary number that it is, or if `rounded` what it is rounded from. A root
    gives up squares only. Integers, whose sums wrap, are operations that nothing is known of.
    """

    def __init__(self, terms: Terms, leaves: Mapping[TermNode, int], rounded: bool = False) -> None:
        super().__init__(terms, leaves)
        self.rounded = rounded

    def number(self, node: TermNode) -> Poly:
        """Return the binary number, or the root that it is rounded from."""
        assert node.number is not None
        if not is_float(node.type.dtype):
            # Numbers beyond 2^53 would be rounded here.
            array = node.array
            assert array is not None
            return self.terms.constant(int(array.reshape(-1)[0]))
        finite = self.rounded and math.isfinite(node.number)
        read = nearest_root(node.number, node.type.dtype) if finite else None
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
        types = {o.type.dtype for o in (node, *node.operands)}
        if len(types) == 1 and is_integer(node.type.dtype) and node.name in _RING:
            return super().apply(node, parts)
        if node.name in ("select", "compare", "log") or not all(map(is_float, types)):
            # Nothing is known of an operation, but whether its operands commute.
            given = [dtype_name(o.type.dtype) for o in node.operands if not is_float(o.type.dtype)]
            target = "" if is_float(node.type.dtype) else dtype_name(node.type.dtype)
            kept = tuple((k, str(v)) for k, v in sorted(node.params.items()) if k != "dtype")
            parts = ordered_parts(node, parts)
            return self.terms.atom("op", node.name, kept, target, *given, parts=parts)
        if node.name in ("exp", "tanh"):
            return (self.exponential if node.name == "exp" else self.tanh)(parts[0])
        return super().apply(node, parts)

    def exponential(self, x: Poly) -> Poly:
        """exp(a + b) = exp(a) exp(b), and exp(-a) = 1 / exp(a): factors of negative powers."""
        t = self.terms
        inside = [t.atoms[a].head for product, _ in x for a, _ in product]
        if "number" in inside or len(x) > _MOST_FACTORS:
            return super().exponential(x)
        out = t.constant(1)
        for product, c in x:
            number = t.number(Atom("exp", parts=(((product, abs(c)),),)))
            out = t.times(out, t.power(number, 1 if c > 0 else -1))
        return out

    def inverse(self, poly: Poly) -> Poly:
        """1 / poly; of an exponential by its power."""
        t = self.terms
        if len(poly) != 1:
            return super().inverse(poly)
        ((product, c),) = poly
        powers = [(a, n) for a, n in product if t.atoms[a].head == "exp"]
        rest = tuple((a, n) for a, n in product if t.atoms[a].head != "exp")
        turned = tuple((a, -n) for a, n in powers)
        return t.times(super().inverse(((rest, c),)), ((turned, 1.0),))

    def root(self, poly: Poly) -> Poly:
        """Return the square root; squares of fractions leave it."""
        t = self.terms
        if not poly:
            return poly
        lead = abs(Fraction(poly[0][1]))
        square = Fraction(_square_part(lead.numerator), _square_part(lead.denominator))
        under = t.scale(poly, 1 / (square * square))
        if t.value(under) == 1:
            return t.constant(square)
        return t.scale(t.atom("root", parts=(under,)), square)


def _square_part(n: int) -> int:
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
