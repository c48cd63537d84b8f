"""Two algebras for the elements of tensors: of the same operations, and of the same real numbers.

`ExactAlgebra` keeps every operation and knows only that sums and products commute: programs with
equal terms round alike. `RealAlgebra` multiplies out, makes divisions products with inverses, drops
conversions between floats and pulls out of sums what does not vary: programs with equal terms
compute the same function of real numbers, by roundings of their own.
"""

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.types import DTYPES, is_float
from pyc_mlir.pipelines.pyc.terms.nodes import TermNode
from pyc_mlir.pipelines.pyc.terms.reader import Place, TermReader
from pyc_mlir.pipelines.pyc.terms.terms import Atom, Poly, Product, Terms

_ROOT = math.sqrt(2 / math.pi)
# Constants of activations: a model has them rounded, to its element type or to few digits.
_KNOWN = (
    0.044715, math.sqrt(2), _ROOT, 0.044715 * _ROOT, 2 * _ROOT, 2 * 0.044715 * _ROOT,
    math.sqrt(math.pi), 2 / math.sqrt(math.pi),
)  # fmt: skip
CONSTANTS = (*_KNOWN, *(1 / known for known in _KNOWN))
_POWERS = 4
# The greatest whole number whose root is looked for.
_WIDEST = 1 << 16


def meant(value: float, dtype: np.dtype) -> float:
    """Return the real number that a constant of an element type is the rounding of.

    A constant of `CONSTANTS` where `value` is its rounding (f32 and f64: or within two units in
    the last place), in f32 and f64 the root of a whole number or its inverse, the inverse of a
    whole number where only one can be meant; else the shortest decimal number that is rounded to
    it.
    """
    if not is_float(dtype) or not math.isfinite(value) or value == 0:
        return value
    eps = {2: 0.0, 4: 2.0**-23, 8: 2.0**-52}[dtype.itemsize]
    for known in CONSTANTS:
        exact = math.copysign(known, value)
        if value == _rounded(exact, dtype) or abs(value - exact) <= 2 * eps * known:
            return exact
    if eps and (root := _root(value, dtype)) is not None:
        return root
    n = round(1 / value) if abs(value) > 1e-6 else 0
    step = float(2.0 ** (-9 if dtype == DTYPES["bf16"] else -12)) if eps == 0.0 else eps
    if n and abs(n) * step < 1 / 8 and _rounded(1 / n, dtype) == value:
        return 1 / n
    decimal = float(str(np.array(value).astype(dtype)))
    return decimal if _rounded(decimal, dtype) == value else value


def _root(value: float, dtype: np.dtype) -> float | None:
    """Return the root of a whole number, or its inverse, that a number is the rounding of.

    Attention is scaled by the root of a head's width, which models store rounded.
    """
    for power in (0.5, -0.5):
        n = round(abs(value) ** (1 / power)) if 1 / _WIDEST < value * value < _WIDEST else 0
        exact = math.copysign(n**power, value) if n else 0.0
        if n and _rounded(exact, dtype) == value:
            return exact
    return None


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


class ExactAlgebra(TermReader):
    """The same operations on the same operands, but for the order of sums and products."""

    def apply(self, node: TermNode, parts: Sequence[Poly]) -> Poly:
        """Return the op itself; a product with 1 is no op."""
        one = self.terms.constant(1.0)
        if node.name == "mul" and one in parts:
            return parts[0] if parts[1] == one else parts[1]
        ordered = sorted(parts) if node.has(Trait.COMMUTATIVE) else parts
        kept = tuple((k, str(v)) for k, v in sorted(node.params.items()))
        return self.terms.atom("op", node.name, kept, parts=ordered)

    def reduce(self, head: str, variables: Mapping[Hashable, Hashable], body: Poly) -> Poly:
        """Return the op itself."""
        return self.terms.bind(head, variables, body)

    def multiply(self, a: Poly, b: Poly) -> Poly:
        """Return the op itself."""
        return self.terms.atom("op", "mul", (), parts=sorted((a, b)))


class RealAlgebra(TermReader):
    """The same function of real numbers.

    `guards` names what was left away since it changes infinities or NaN only: ``max guard``, a
    maximum replaced by 0 where it is -inf (softmax is NaN there either way); ``finite guard``, also
    where it is +inf; ``nan guard``, a NaN replaced by 0, of each value in `nan_guarded`.
    """

    def __init__(self, terms: Terms, leaves: Sequence[TermNode]) -> None:
        super().__init__(terms, leaves)
        self.guards: set[str] = set()
        self.nan_guarded: set[Poly] = set()

    def number(self, node: TermNode) -> Poly:
        """Return the number that is meant."""
        assert node.number is not None
        exact = node.params.get("exact")
        return self.terms.constant(meant(node.number, node.type.dtype) if exact is None else exact)

    def known(self, node: TermNode, place: Place) -> Poly | None:
        """Return a triangle of true: ``j - i <= k``, as a causal mask is computed."""
        offset = triangle(node)
        if offset is None:
            return None
        row, column = (self.terms.of(Atom("iota", (), (i,))) for i in place[-2:])
        bound = self.terms.constant(float(-offset))
        difference = self.terms.add(column, self.terms.scale(row, -1.0), bound)
        return self.terms.atom("bound", parts=(difference,))

    def multiply(self, a: Poly, b: Poly) -> Poly:
        """Multiply out."""
        return self.terms.times(a, b)

    def reduce(self, head: str, variables: Mapping[Hashable, Hashable], body: Poly) -> Poly:
        """Reduce; of sums what does not vary is pulled out."""
        if head != "sum":
            return self.terms.bind(head, variables, body)
        names = frozenset(variables)
        total: Poly = ()
        for product, c in body:
            inside = self.terms.depends(product, names)
            outside: Product = tuple(f for f in product if f not in inside)
            used = frozenset().union(*(self.terms.free[a] for a, _ in inside))
            over = {v: n for v, n in variables.items() if v in used}
            factor = self._count([n for v, n in variables.items() if v not in used])
            bound = self.terms.bind("sum", over, ((inside, 1.0),)) if over else factor
            bound = self.terms.times(bound, factor) if over else bound
            total = self.terms.add(total, self.terms.times(((outside, c),), bound))
        return total

    def apply(self, node: TermNode, parts: Sequence[Poly]) -> Poly:
        """Read arithmetic as arithmetic; functions of polynomials as atoms."""
        t, name = self.terms, node.name
        floats = is_float(node.operands[0].type.dtype)
        if name in ("add", "sub"):
            return t.add(parts[0], parts[1] if name == "add" else t.scale(parts[1], -1.0))
        if name == "neg":
            return t.scale(parts[0], -1.0)
        if name == "mul":
            return t.times(*parts)
        if name == "cast":
            return self._cast(node, parts[0])
        if name == "compare":
            return self._compare(node.params["predicate"], parts, floats)
        if name == "select":
            return self._select(*parts)
        if floats and name == "div":
            return t.times(parts[0], self.inverse(parts[1]))
        if floats and name in ("sqrt", "rsqrt"):
            root = self.root(parts[0])
            return root if name == "sqrt" else self.inverse(root)
        if floats and name == "pow" and (exponent := t.value(parts[1])) is not None:
            return self._power(parts[0], exponent)
        if node.has(Trait.ODD):
            return self._odd(name, parts[0])
        if name == "and":
            return self._all(parts)
        if name == "not":
            return self._negated(parts[0])
        if name == "log":
            return self._log(parts[0])
        ordered = sorted(parts) if node.has(Trait.COMMUTATIVE) else parts
        return t.atom(name, parts=ordered)

    def _odd(self, name: str, x: Poly) -> Poly:
        """f(x) = -f(-x); tanh(x) = 2 / (1 + exp(-2 x)) - 1."""
        t = self.terms
        if x and x[0][1] < 0:
            return t.scale(self._odd(name, t.scale(x, -1.0)), -1.0)
        if name != "tanh":
            return t.atom(name, parts=(x,))
        below = t.add(t.constant(1.0), t.atom("exp", parts=(t.scale(x, -2.0),)))
        return t.add(t.scale(self.inverse(below), 2.0), t.constant(-1.0))

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
            inner: Poly = ((((number, 1),), 1.0),)
            if atom.head == "inverse":
                inner, sign = atom.parts[0], -sign
            total = t.add(total, t.scale(t.atom("log", parts=(inner,)), sign))
        return total

    def _is_positive(self, number: int) -> bool:
        """Return an exponential, a sum of such, or the inverse of one."""
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
            below = t.add(t.constant(1.0), t.scale(test.parts[0], -1.0))
            return t.atom("bound", parts=(below,))
        if test is not None and test.head == "compare" and test.data[0] in ("eq", "ne"):
            return t.atom("compare", "ne" if test.data[0] == "eq" else "eq", parts=test.parts)
        return t.atom("not", parts=(condition,))

    def _cast(self, node: TermNode, x: Poly) -> Poly:
        source, target = node.operands[0].type.dtype, node.type.dtype
        if is_float(target) and source.kind != "b":
            return x
        if target.kind == "i" and source.kind == "i" and target.itemsize >= source.itemsize:
            return x
        return self.terms.atom("cast", str(source), str(target), parts=(x,))

    def inverse(self, poly: Poly) -> Poly:
        """1 / poly: of a product factor by factor, of a sum with 1 as its first coefficient."""
        t = self.terms
        if len(poly) != 1:
            lead = poly[0][1] if poly else 1.0
            return t.scale(t.atom("inverse", parts=(t.scale(poly, 1 / lead),)), 1 / lead)
        ((product, c),) = poly
        out = t.constant(1 / c)
        for atom, n in product:
            known = t.atoms[atom]
            single: Poly = ((((atom, 1),), 1.0),)
            of = known.parts[0] if known.head == "inverse" else t.atom("inverse", parts=(single,))
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

    def _compare(self, predicate: str, parts: Sequence[Poly], floats: bool) -> Poly:
        """Compare integers by the bound ``d <= 0``; floats by the op itself, without gt and ge."""
        t, (a, b) = self.terms, parts
        if predicate in ("gt", "ge"):
            predicate, a, b = {"gt": "lt", "ge": "le"}[predicate], b, a
        if floats or predicate in ("eq", "ne"):
            pair = sorted((a, b)) if predicate in ("eq", "ne") else (a, b)
            return t.atom("compare", predicate, parts=pair)
        difference = t.add(a, t.scale(b, -1.0), t.constant(1.0 if predicate == "lt" else 0.0))
        return t.atom("bound", parts=(difference,))

    def _all(self, parts: Sequence[Poly]) -> Poly:
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
        last, first = self._is_infinite(no), self._is_infinite(yes)
        negated = test is not None and test.head == "not"
        if not last and (first or negated):
            condition, yes, no = self._negated(condition), no, yes
        inner = t.single(yes)
        if inner is not None and inner.head == "select" and inner.parts[2] == no:
            condition, yes = self._all((condition, inner.parts[0])), inner.parts[1]
        return t.atom("select", parts=(condition, yes, no))

    def _is_infinite(self, poly: Poly) -> bool:
        atom = self.terms.single(poly)
        return atom is not None and atom.head == "number"

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
