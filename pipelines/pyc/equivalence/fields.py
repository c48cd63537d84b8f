"""Programs run over a tower of finite fields: rational functions, roots and exponentials exactly.

Arguments are random residues. Sums, products, quotients, roots and exponentials are those of the
field; every other function is a random one of its operands (a hash), which knows congruence and the
few laws that are written here: maxima do not mind order, erf and sine are odd. Equal functions of
real numbers of this kind give equal residues; different ones nearly never do. Integers and
conditions are names of elements (names.py); those that follow from constants alone are computed.
-inf has no residue: a flag beside the value, exp of which is 0.

A tower is a Cunningham chain q0, q1 = 2 q0 + 1, q2 = 2 q1 + 1, ...: the squares modulo q(i+1) are a
group of order qi, so that ``x mod qi -> g ** x mod q(i+1)`` turns sums into products, as exp does.
One prime more bears one exponential more inside of another. All primes are 3 modulo 4, so that
``x ** ((q + 1) / 4)`` is the root of a square, and multiplicative. The scheme extends Mirage's two
primes (Wu et al., OSDI 2025) to nested exponentials. Numbers are arrays of uint64 below 2^31.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from math import isfinite, prod
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.convolution import from_nchw, padded, taps, to_nchw
from pyc_mlir.dialects.ops.shapes import normalize_axes
from pyc_mlir.dialects.types import TensorType, is_float, is_integer
from pyc_mlir.pipelines.pyc.equivalence import names
from pyc_mlir.pipelines.pyc.equivalence.algebra import nearest_root
from pyc_mlir.pipelines.pyc.equivalence.names import (
    ElementNames,
    Elements,
    Lanes,
    combined,
    mover,
    stretched,
)
from pyc_mlir.pipelines.pyc.equivalence.nodes import NotComparable, TermNode, repeats, sizes_of

# Chains whose last prime is below 2^31, by their number of primes, the best first: modulo all of
# their primes as many of 2, 3, 5, 7, 11 and 13 as possible are squares, so that roots of small
# numbers have the sign of the real ones.
CHAINS: dict[int, tuple[int, ...]] = {
    1: (2147483399, 2147481311, 2147478791, 2147474159, 2147472311, 2147472071, 2147470751),
    2: (1073512439, 1072670759, 1072375919, 1072190279, 1072079399, 1071950879, 1071709799),
    3: (529609079, 526813559, 516155639, 513840599, 513152639, 508915679, 508555319),
    4: (251891639, 236155919, 198438239, 162522359, 160600439, 137417279, 136576439),
    5: (37800839, 20235599, 19893719, 8158919, 4490639, 133214759),
    6: (40158719, 38199839, 19099919, 16595879, 3784199, 66517439),
    7: (19099919, 23103659, 14145539, 12314699),
}
_HALF = 16
_ROUND = 1 << 20
_U64 = np.uint64
EMPTY = np.zeros((), _U64)
_MOST_POWER = 64
# Constants of more elements, that do not repeat one, are weights, which are what they are.
_FEW = 64
_EXPONENTIALS = frozenset({"exp", "tanh"})
# Ops whose result is a hash, and so bears as many exponentials as an argument.
_FRESH = frozenset(
    {"maximum", "minimum", "erf", "sin", "cos", "abs", "floor", "ceil", "round", "log", "rem"}
    | {"reduce_max", "reduce_min", "argsort", "argmax", "compare"}
)


def tower(height: int, trial: int) -> tuple[int, ...]:
    """Return the primes of a trial, the least first; trials beyond the table take its rows anew."""
    start = CHAINS[height][trial % len(CHAINS[height])]
    return tuple((start + 1) * 2**i - 1 for i in range(height))


def product(a: np.ndarray, b: np.ndarray, q: int) -> np.ndarray:
    """Return a * b mod q."""
    return a * b % _U64(q)


def power(a: np.ndarray, exponent: int, q: int) -> np.ndarray:
    """Return a ** exponent mod q for an exponent >= 0."""
    out = np.ones_like(a)
    while exponent:
        if exponent & 1:
            out = product(out, a, q)
        exponent >>= 1
        if exponent:
            a = product(a, a, q)
    return out


def inverse(a: np.ndarray, q: int) -> np.ndarray:
    """Return 1 / a mod q. Raises ZeroDivisionError where an element is 0."""
    if a.size and not a.all():
        raise ZeroDivisionError
    return power(a, q - 2, q)


def root(a: np.ndarray, q: int) -> np.ndarray:
    """Return the square root of squares: a homomorphism of products."""
    return power(a, (q + 1) // 4, q)


def exponential(a: np.ndarray, base: int, q: int) -> np.ndarray:
    """Return base ** a mod q, element by element."""
    out, factor, left = np.ones_like(a), base % q, a
    while left.any():
        odd = (left & _U64(1)).astype(bool)
        out = np.where(odd, out * _U64(factor) % _U64(q), out)
        factor = factor * factor % q
        left = left >> _U64(1)
    return out


def matmul(a: np.ndarray, b: np.ndarray, q: int) -> np.ndarray:
    """Return a @ b mod q, by products of 16-bit halves that f64 holds exactly."""
    low, shift = _U64((1 << _HALF) - 1), _U64(_HALF)
    out: Any = None
    for start in range(0, max(1, a.shape[-1]), _ROUND):
        parts = a[..., start : start + _ROUND], b[..., start : start + _ROUND, :]
        a0, b0 = ((p & low).astype(np.float64) for p in parts)
        a1, b1 = ((p >> shift).astype(np.float64) for p in parts)
        high = np.matmul(a1, b1).astype(_U64) % _U64(q)
        middle = (np.matmul(a1, b0) + np.matmul(a0, b1)).astype(_U64) % _U64(q)
        lowest = np.matmul(a0, b0).astype(_U64) % _U64(q)
        high = ((high << shift) + middle) % _U64(q)
        total = ((high << shift) + lowest) % _U64(q)
        out = total if out is None else (out + total) % _U64(q)
    return out


def of_floats(values: np.ndarray, primes: Sequence[int]) -> list[np.ndarray]:
    """Return finite f64 numbers modulo each prime, exactly: they are binary fractions."""
    mantissa, exponent = np.frexp(values)
    whole = (mantissa * 2.0**53).astype(np.int64)
    least, most = (int(exponent.min()), int(exponent.max())) if values.size else (0, 0)
    place = exponent - least
    powers = ([pow(2, e - 53, q) for e in range(least, most + 1)] for q in primes)
    return [
        product(np.mod(whole, q).astype(_U64), np.array(power, _U64)[place], q)
        for q, power in zip(primes, powers, strict=True)
    ]


def of_integers(values: np.ndarray, q: int) -> np.ndarray:
    """Return integers mod q."""
    if values.dtype == _U64:
        return values % _U64(q)
    return np.mod(values.astype(np.int64), q).astype(_U64)


def of_root(number: Fraction, degree: int, q: int) -> int:
    """Return the root of a positive fraction mod q; `degree` is 1, 2 or 4."""
    value = number.numerator * pow(number.denominator, -1, q) % q
    while degree > 1:
        value, degree = pow(value, (q + 1) // 4, q), degree // 2
    return value


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
        out = names.of_integers("residue", self.levels[-1])
        if self.minus is None:
            return out
        return np.where(self.minus, names.salt("-inf").reshape(2, *(1,) * self.minus.ndim), out)

    @property
    def arrays(self) -> list[np.ndarray]:
        """All that it consists of, beside its type."""
        parts = (*self.levels, self.minus, self.array)
        return [np.zeros(0, bool) if p is None else np.asarray(p) for p in parts]

    @property
    def is_finite(self) -> bool:
        """True if no element is -inf."""
        return self.minus is None or not self.minus.any()

    @property
    def flags(self) -> np.ndarray:
        """True where an element is -inf."""
        return np.zeros(sizes_of(self.type), bool) if self.minus is None else self.minus


Formula = Callable[..., np.ndarray]


class Field(ElementNames):
    """The interpreter over one tower. `rounded`: constants are read as what they round."""

    def __init__(self, primes: Sequence[int], seed: int, rounded: bool) -> None:
        self.primes = tuple(primes)
        self.seed = seed
        self.rounded = rounded
        self.bases = [pow(2 + seed % 1009 + i, 2, q) for i, q in enumerate(self.primes)]

    def step(self, node: TermNode, operands: Sequence[Any]) -> Any:
        """Return the value of a node. Raises NotComparable for what has no residue."""
        try:
            return super().step(node, operands)
        except ZeroDivisionError:
            raise NotComparable(f"{node.name}: a division by zero") from None

    def argument(self, node: TermNode) -> Any:
        """Return random residues for floats."""
        if not is_float(node.type.dtype):
            return super().argument(node)
        name = f"argument {node.params['number']} {self.seed}"
        places = np.arange(node.type.elements).reshape(sizes_of(node.type))
        return self.random(node.type, names.of_integers(name, places))

    def random(self, type_: TensorType, lanes: Lanes) -> Residues:
        """Return the residues of a random function of names."""
        lanes = stretched(lanes, type_)
        pairs = range(0, len(self.primes), 2)
        numbers = [x for i in pairs for x in combined(f"random {i} {self.seed}", (lanes,))]
        levels = (x % _U64(q) for x, q in zip(numbers, self.primes, strict=False))
        return Residues(type_, tuple(levels))

    def constant(self, type_: TensorType, array: np.ndarray) -> Any:
        """Return a constant exactly; numbers that are few as what they are rounded from."""
        if not is_float(type_.dtype):
            return super().constant(type_, array)
        is_splat = repeats(array)
        plain = np.asarray(array[(0,) * array.ndim] if is_splat else array).astype(np.float64)
        minus = np.isneginf(plain)
        if not np.isfinite(plain[~minus]).all():
            raise NotComparable("a constant holds +inf or NaN, which obey no algebra")
        finite = np.where(minus, 0.0, plain)
        if self.rounded and finite.size <= _FEW:
            known, place = np.unique(finite, return_inverse=True)
            levels = []
            for q in self.primes:
                read = []
                for x in known.tolist():
                    meant = nearest_root(x, type_.dtype)
                    residue = of_root(*(meant or (Fraction(x), 1)), q)
                    read.append((q - residue) % q if meant and x < 0 else residue)
                levels.append(np.array(read, _U64)[place].reshape(finite.shape))
        else:
            levels = of_floats(finite, self.primes)
        if is_splat:
            levels = [np.broadcast_to(level, array.shape) for level in levels]
        flag = np.broadcast_to(minus, array.shape) if minus.any() else None
        return Residues(type_, tuple(levels), 0, flag, array)

    def exact(self, type_: TensorType, fractions: np.ndarray) -> Any:
        """Return a constant of fractions."""
        levels = [
            np.array([of_root(f, 1, q) for f in fractions.flat], _U64).reshape(fractions.shape)
            for q in self.primes
        ]
        return Residues(type_, tuple(levels))

    def folds(self, node: TermNode) -> bool:
        """Compute integers and conditions of constants; floats keep every digit instead."""
        return node.name == "iota" or not is_float(node.type.dtype)

    def kind(self, type_: TensorType) -> str:
        """Return nothing for floats: conversions between them are exact."""
        return "" if is_float(type_.dtype) else super().kind(type_)

    def operation(self, node: TermNode, operands: Sequence[Any]) -> Any:
        """Return the value of an op."""
        if not is_float(node.type.dtype):
            return self._discrete(node, operands)
        if (move := mover(node, operands)) is not None:
            return self._moved(node, operands, move)
        given = [o for o in operands if isinstance(o, Residues)]
        if len(given) == len(operands):
            if node.name in FORMULAS:
                return self.formula(node.name, node, given)
            rule = RULES.get(node.name)
            if rule is not None and (out := rule(self, node, given)) is not None:
                return out
        if node.name == "cast":
            return self._converted(node, operands[0])
        if node.name == "select":
            return self._selected(node, *operands)
        return self.random(node.type, self.hashed(node, [o.lanes for o in operands]))

    def by_level(
        self, type_: TensorType, depth: int, level: Callable[[int, int], np.ndarray],
        minus: np.ndarray | None = None, array: np.ndarray | None = None,
    ) -> Residues:  # fmt: skip
        """Return ``level(i, prime)`` for each prime from `depth` on."""
        levels = (EMPTY if i < depth else level(i, q) for i, q in enumerate(self.primes))
        return Residues(type_, tuple(levels), depth, minus, array)

    def _moved(self, node: TermNode, operands: Sequence[Any], move: Formula) -> Residues:
        parts = [o for o in operands if isinstance(o, Residues)] or [operands[0]]
        likes: list[np.ndarray] = []
        if node.name in ("broadcast_to", "reshape"):
            parts = parts[:1]
            likes = [np.broadcast_to(EMPTY, sizes_of(o.type)) for o in operands[1:]]
        fill = self.fill(node) if node.name == "pad" else None

        def moved(read: Callable[[Residues], Any]) -> np.ndarray:
            return move([*map(read, parts), *likes], None if fill is None else read(fill))

        minus = array = None
        if not all(p.minus is None for p in (*parts, *([] if fill is None else [fill]))):
            minus = moved(lambda p: p.flags)
        if all(p.array is not None for p in parts) and not likes:
            array = moved(lambda p: np.asarray(p.array))
        depth = max(p.depth for p in parts)
        return self.by_level(
            node.type, depth, lambda i, q: moved(lambda p: p.levels[i]), minus, array
        )

    def _discrete(self, node: TermNode, operands: Sequence[Any]) -> Any:
        """Return an integer or a condition by name; comparisons in one direction."""
        if node.name == "compare":
            predicate, (a, b) = node.params["predicate"], operands
            if predicate in ("gt", "ge"):
                predicate, a, b = {"gt": "lt", "ge": "le"}[predicate], b, a
            # As in the guards against NaN of exporters.
            if a is b or (a.type == b.type and np.array_equal(a.lanes, b.lanes)):
                known = np.full(sizes_of(node.type), predicate in ("eq", "le"))
                return super().constant(node.type, known)
            ordered = predicate not in ("eq", "ne")
            named = combined(f"compare {predicate}", (a.lanes, b.lanes), ordered)
            return Elements(node.type, stretched(named, node.type))
        if node.name == "select" and operands[0].array is not None:
            sides = [stretched(o.lanes, node.type) for o in operands[1:]]
            return Elements(node.type, np.where(operands[0].array, *sides))
        lanes = self.moved(node, operands)
        if lanes is None:
            lanes = self.hashed(node, [o.lanes for o in operands])
        return Elements(node.type, lanes)

    def _converted(self, node: TermNode, x: Any) -> Residues:
        """Return a number as a float: floats are exact, integers by their names or numbers."""
        if isinstance(x, Residues):
            return Residues(node.type, x.levels, x.depth, x.minus)
        if x.array is None:
            return self.random(node.type, combined("number", (x.lanes,)))
        plain = x.array.astype(np.int64) if x.array.dtype == np.bool_ else x.array
        levels = tuple(of_integers(plain, q) for q in self.primes)
        exact = x.array.astype(node.type.dtype)
        same = np.array_equal(exact.astype(x.array.dtype), x.array) and is_integer(x.array.dtype)
        return Residues(node.type, levels, 0, None, exact if same else None)

    def _selected(self, node: TermNode, condition: Any, yes: Any, no: Any) -> Residues:
        if condition.array is None:
            lanes = [condition.lanes, yes.lanes, no.lanes]
            return self.random(node.type, combined("select", lanes))
        shape = sizes_of(node.type)

        def chosen(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.broadcast_to(np.where(condition.array, a, b), shape)

        minus = chosen(yes.flags, no.flags)
        return self.by_level(
            node.type, max(yes.depth, no.depth), lambda i, q: chosen(yes.levels[i], no.levels[i]),
            minus if minus.any() else None,
        )  # fmt: skip

    def mapped(
        self, node: TermNode, parts: Sequence[Residues], rule: Formula,
        minus: np.ndarray | None = None,
    ) -> Residues:  # fmt: skip
        """Return ``rule(levels..., prime)`` modulo each prime that all parts have."""
        shape = sizes_of(node.type)

        def level(i: int, q: int) -> np.ndarray:
            out = rule(*(p.levels[i] for p in parts), q)
            out = out if out.shape == shape else np.broadcast_to(out, shape)
            return out if minus is None else np.where(minus, _U64(0), out)

        return self.by_level(node.type, max(p.depth for p in parts), level, minus)

    def formula(self, name: str, node: TermNode, parts: Sequence[Residues]) -> Residues:
        """Return what the formula of an op makes of the operands of a node."""
        function, flags = FORMULAS[name]
        return self.mapped(node, parts, partial(function, node), flags(node, *parts))

    def power_of(self, node: TermNode, x: Residues) -> Residues:
        """Return the exponential: modulo each prime by the residue of the prime below."""
        if x.depth + 1 >= len(self.primes):
            return self.random(node.type, combined("exp", (x.lanes,)))

        def level(i: int, q: int) -> np.ndarray:
            out = exponential(x.levels[i - 1], self.bases[i], q)
            return out if x.minus is None else np.where(x.minus, _U64(0), out)

        return self.by_level(node.type, x.depth + 1, level)


def height(nodes: Sequence[TermNode]) -> int:
    """Return how many primes the primitive ops of a program need, as far as the tallest tower."""
    depth: dict[TermNode, int] = {}
    for node in nodes:
        below = max((depth.get(o, 0) for o in node.operands), default=0)
        depth[node] = 0 if node.name in _FRESH else below + (node.name in _EXPONENTIALS)
    return min(1 + max(depth.values(), default=0), max(CHAINS))


def _require_finite(node: TermNode, parts: Sequence[Residues]) -> None:
    """Raise NotComparable for an operand with -inf."""
    if not all(p.is_finite for p in parts):
        raise NotComparable(f"{node.name}: -inf, which has no residue")


def _flags(node: TermNode, *parts: Residues) -> np.ndarray | None:
    """Return where one of some values is -inf, for each element of a result; None if none is."""
    if all(p.is_finite for p in parts):
        return None
    return np.broadcast_to(reduce(np.logical_or, [p.flags for p in parts]), sizes_of(node.type))


def _scaled(node: TermNode, x: Residues, factor: Residues) -> np.ndarray | None:
    """Return where a product or a quotient is -inf: that of -inf with a positive constant."""
    _require_finite(node, (factor,))
    if not x.is_finite and (factor.array is None or not (factor.array > 0).all()):
        _require_finite(node, (x,))
    return _flags(node, x)


def _of_difference(node: TermNode, x: Residues, y: Residues) -> np.ndarray | None:
    _require_finite(node, (y,))
    return _flags(node, x)


def _of_product(node: TermNode, x: Residues, y: Residues) -> np.ndarray | None:
    return _scaled(node, y, x) if x.is_finite else _scaled(node, x, y)


def _of_none(node: TermNode, *parts: Residues) -> None:
    _require_finite(node, parts)


def _pow(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues | None:
    """Return whole and half powers; others are hashes."""
    _require_finite(node, parts)
    base, exponents = parts[0], parts[1].array
    if exponents is None or not exponents.size:
        return None
    first = float(np.asarray(exponents).reshape(-1)[0])
    if not isfinite(first) or not (exponents == first).all():
        return None
    if first * 2 != int(first * 2) or abs(first) > _MOST_POWER:
        return None
    whole, half = divmod(abs(int(first * 2)), 2)

    def modulo(a: np.ndarray, q: int) -> np.ndarray:
        out = power(a, whole, q)
        out = product(out, root(a, q), q) if half else out
        return out if first >= 0 else inverse(out, q)

    return field.mapped(node, (base,), modulo)


def _exp(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    return field.power_of(node, parts[0])


def _tanh(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues | None:
    """1 - 2 / (1 + exp(2 x)), where a prime is left for it."""
    (x,) = parts
    _require_finite(node, parts)
    if x.depth + 1 >= len(field.primes):
        return _odd(field, node, parts)

    def modulo(a: np.ndarray, q: int) -> np.ndarray:
        share = inverse((a + _U64(1)) % _U64(q), q)
        return (_U64(q + 1) - share * _U64(2) % _U64(q)) % _U64(q)

    return field.mapped(node, (field.power_of(node, field.formula("add", node, (x, x))),), modulo)


def _odd(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    """f(-x) = -f(x), or f(x): a random function of the lesser of both residues, with the sign."""
    _require_finite(node, parts)
    value, q = parts[0].levels[-1], _U64(field.primes[-1])
    turned = value > q // _U64(2)
    least = np.where(turned, q - value, value)
    out = field.random(node.type, combined(node.name, (names.of_integers("residue", least),)))
    if node.name in ("abs", "cos"):
        return out

    def signed(i: int, prime: int) -> np.ndarray:
        level = np.where(turned, (_U64(prime) - out.levels[i]) % _U64(prime), out.levels[i])
        return np.where(value == 0, _U64(0), level)

    return field.by_level(node.type, 0, signed)


def _greatest(
    field: Field, type_: TensorType, rows: Lanes, parts: Residues, alike: Any = False
) -> Residues:
    """Return the maxima of rows: lanes [2, *rows, n], residues and flags [*rows, n].

    A random function of the multiset of what is finite; of a single element, or of a row of the
    same ones (`alike`), the element.
    """
    shape, flags = sizes_of(type_), parts.flags
    with np.errstate(over="ignore"):
        total = np.where(flags, _U64(0), names.mixed(rows)).sum(-1, dtype=_U64)
    out = field.random(type_, combined("max", (total,)).reshape(2, *shape))
    finite = (~flags).sum(-1).reshape(shape)
    single = (finite == 1) | alike
    minus = finite == 0 if flags.any() else None
    if not single.any():
        return Residues(type_, out.levels, 0, minus)
    first = flags.argmin(-1)[..., None]

    def level(i: int, q: int) -> np.ndarray:
        own = np.take_along_axis(parts.levels[i], first, -1).reshape(shape)
        return np.where(single, own, out.levels[i])

    return field.by_level(type_, parts.depth, level, minus)


def _maximum(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    shape = sizes_of(node.type)

    def stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack([np.broadcast_to(a, shape) for a in arrays], -1)

    type_ = node.type.with_shape((*shape, 2))
    flags = stacked([p.flags for p in parts])
    depth = max(p.depth for p in parts)
    pairs = field.by_level(type_, depth, lambda i, q: stacked([p.levels[i] for p in parts]), flags)
    rows = np.stack([stretched(p.lanes, node.type) for p in parts], -1)
    return _greatest(field, node.type, rows, pairs, (rows[..., 0] == rows[..., 1]).all(0))


def _reduce_max(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    axes, _ = _axes(node)
    x = parts[0]
    sizes = sizes_of(x.type)
    count = prod(sizes[a] for a in axes)
    if not count:
        raise NotComparable(f"{node.name}: nothing to reduce")
    rows = [d for d in range(x.type.rank) if d not in axes]
    shape = (*(sizes[d] for d in rows), count)

    def flat(a: np.ndarray) -> np.ndarray:
        return a.transpose([*rows, *axes]).reshape(shape)

    type_ = x.type.with_shape(shape)
    levels = field.by_level(type_, x.depth, lambda i, q: flat(x.levels[i]), flat(x.flags))
    return _greatest(field, node.type, np.stack([flat(lane) for lane in x.lanes]), levels)


def _minimum(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    """min(a, b) = -max(-a, -b)."""
    turned = [field.formula("neg", o, (p,)) for o, p in zip(node.operands, parts, strict=True)]
    greatest = _maximum if node.name == "minimum" else _reduce_max
    return field.formula("neg", node, (greatest(field, node, turned),))


def _axes(node: TermNode) -> tuple[tuple[int, ...], bool]:
    axes = normalize_axes(node.params["axes"], node.operands[0].type.rank)
    return tuple(axes), node.params["keepdims"]


def _reduce_sum(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    axes, keep = _axes(node)
    (x,) = parts
    minus = None if x.minus is None else np.asarray(x.minus.any(axis=axes, keepdims=keep))

    def modulo(a: np.ndarray, q: int) -> np.ndarray:
        return a.sum(axis=axes, keepdims=keep, dtype=_U64) % _U64(q)

    return field.mapped(node, parts, modulo, minus)


def _reduce_prod(node: TermNode, a: np.ndarray, q: int) -> np.ndarray:
    axes, _ = _axes(node)
    rest = [d for d in range(a.ndim) if d not in axes]
    rows = a.transpose([*rest, *axes]).reshape(*[a.shape[d] for d in rest], -1)
    out = np.ones(rows.shape[:-1], _U64)
    for i in range(rows.shape[-1]):
        out = product(out, rows[..., i], q)
    return out.reshape(sizes_of(node.type))


def _conv2d(node: TermNode, x: np.ndarray, weight: np.ndarray, q: int) -> np.ndarray:
    params = node.params
    layout, groups = params["layout"], params["groups"]
    data = padded(to_nchw(x, layout), params["pads"], _U64(0))
    filters = weight if layout == "NCHW" else weight.transpose(3, 2, 0, 1)
    f, depth, *kernel = filters.shape
    filters = filters.reshape(groups, f // groups, depth, *kernel)
    total: Any = _U64(0)
    rows = columns = 0
    for i, j, view in taps(data, kernel, params["strides"], params["dilations"]):
        n, _, rows, columns = view.shape
        blocks = view.reshape(n, groups, depth, rows * columns)
        total = (total + matmul(filters[..., i, j], blocks, q)) % _U64(q)
    return from_nchw(total.reshape(x.shape[0], f, rows, columns), layout)


def _avg_pool2d(node: TermNode, x: np.ndarray, q: int) -> np.ndarray:
    params = node.params
    data = to_nchw(x, params["layout"])
    ones = np.ones_like(data[:1, :1])

    def total(a: np.ndarray, beyond: int) -> Any:
        pads = padded(a, params["pads"], _U64(beyond))
        views = taps(pads, params["kernel"], params["strides"], (1, 1))
        return sum((view for _, _, view in views), _U64(0))

    counts = inverse(np.asarray(total(ones, params["count_include_pad"])), q)
    return from_nchw(product(np.asarray(total(data, 0)) % _U64(q), counts, q), params["layout"])


def _max_pool2d(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    """Return the maximum of the multiset of each window."""
    _require_finite(node, parts)
    params, (x,) = node.params, parts
    layout = params["layout"]

    def total(a: np.ndarray) -> np.ndarray:
        pads = padded(to_nchw(a, layout), params["pads"], a.dtype.type(0))
        views = taps(pads, params["kernel"], params["strides"], params["dilations"])
        return np.asarray(sum((view for _, _, view in views), a.dtype.type(0)))

    if not (total(np.ones(sizes_of(x.type), np.int64)) > 1).all():
        return field.random(node.type, field.hashed(node, [x.lanes]))
    with np.errstate(over="ignore"):
        lanes = np.stack([from_nchw(total(lane), layout) for lane in names.mixed(x.lanes)])
    return field.random(node.type, combined("max", (lanes,)))


def _cumulative(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues | None:
    if node.params["reduction"] != "add":
        return None
    _require_finite(node, parts)

    def modulo(a: np.ndarray, q: int) -> np.ndarray:
        return np.cumsum(a, axis=node.params["axis"], dtype=_U64) % _U64(q)

    return field.mapped(node, parts, modulo)


# The meaning of each other op over a field. None: a hash.
Rule = Callable[[Field, TermNode, Sequence[Residues]], Residues | None]
RULES: dict[str, Rule] = {
    "pow": _pow,
    "exp": _exp,
    "tanh": _tanh,
    **dict.fromkeys(("erf", "sin", "abs", "cos"), _odd),
    "maximum": _maximum,
    "reduce_max": _reduce_max,
    **dict.fromkeys(("minimum", "reduce_min"), _minimum),
    "reduce_sum": _reduce_sum,
    "max_pool2d": _max_pool2d,
    "cumulative": _cumulative,
}
# Ops of one formula on the residues, and where their results are -inf.
FORMULAS: dict[str, tuple[Formula, Callable[..., np.ndarray | None]]] = {
    "add": (lambda node, a, b, q: (a + b) % _U64(q), _flags),
    "sub": (lambda node, a, b, q: (a + (_U64(q) - b)) % _U64(q), _of_difference),
    "mul": (lambda node, a, b, q: product(a, b, q), _of_product),
    "div": (lambda node, a, b, q: product(a, inverse(b, q), q), _scaled),
    "neg": (lambda node, a, q: (_U64(q) - a) % _U64(q), _of_none),
    "sqrt": (lambda node, a, q: root(a, q), _of_none),
    "rsqrt": (lambda node, a, q: inverse(root(a, q), q), _of_none),
    "matmul": (lambda node, a, b, q: matmul(a, b, q), _of_none),
    "reduce_prod": (_reduce_prod, _of_none),
    "conv2d": (_conv2d, _of_none),
    "avg_pool2d": (_avg_pool2d, _of_none),
}
