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
from math import isfinite, prod
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.convolution import from_nchw, padded, taps, to_nchw
from pyc_mlir.dialects.ops.shapes import normalize_axes
from pyc_mlir.dialects.types import TensorType, dtype_name, is_float, is_integer
from pyc_mlir.pipelines.pyc.equivalence import lanes as hashes
from pyc_mlir.pipelines.pyc.equivalence import towers
from pyc_mlir.pipelines.pyc.equivalence.constants import meant
from pyc_mlir.pipelines.pyc.equivalence.elements import ElementNames, Elements, mover
from pyc_mlir.pipelines.pyc.equivalence.lanes import Lanes
from pyc_mlir.pipelines.pyc.equivalence.programs import NotComparable
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
        lanes = np.broadcast_to(lanes, (2, *(d or 0 for d in type_.shape)))
        levels = []
        for i, q in enumerate(self.primes):
            number = hashes.combined(f"random {i} {self.seed}", (lanes,))[0]
            levels.append(number % _U64(q))
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
        levels = []
        for q in self.primes:
            if few:
                numbers = np.array([self._meant(x, type_.dtype, q) for x in known.tolist()], _U64)
                level = numbers[place].reshape(finite.shape)
            else:
                level = towers.of_floats(finite, q)
            levels.append(np.broadcast_to(level, array.shape))
        flag = np.broadcast_to(minus, array.shape) if minus.any() else None
        return Residues(type_, tuple(levels), 0, flag, array)

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
        if len(given) == len(operands) and (rule := _RULES.get(node.name)) is not None:
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
            _EMPTY if i < depth else
            moved([p.levels[i] for p in parts], None if fill is None else fill.levels[i])
            for i in range(len(self.primes))
        ]  # fmt: skip
        minus = None
        if any(p.minus is not None for p in (*parts, *([fill] if fill else []))):
            flags = [_flag(p) for p in parts]
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
            text = f"compare {predicate}"
            named = hashes.combined(text, [o.lanes for o in sides], predicate not in ("eq", "ne"))
            return Elements(node.type, _stretched(named, node.type))
        if node.name == "select" and operands[0].array is not None:
            chosen = np.where(operands[0].array, *(o.lanes for o in operands[1:]))
            return Elements(node.type, _stretched(chosen, node.type))
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
            same = is_integer(x.array.dtype) and np.array_equal(exact.astype(x.array.dtype), x.array)
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
            _EMPTY if i < depth else
            np.broadcast_to(np.where(condition.array, yes.levels[i], no.levels[i]), shape)
            for i in range(len(self.primes))
        ]  # fmt: skip
        minus = None
        if yes.minus is not None or no.minus is not None:
            minus = np.broadcast_to(np.where(condition.array, _flag(yes), _flag(no)), shape)
        return Residues(node.type, tuple(levels), depth, minus if _any(minus) else None)

    def mapped(
        self, node: TermNode, parts: Sequence[Residues], rule: Callable[..., np.ndarray],
        minus: np.ndarray | None = None,
    ) -> Residues:
        """Return ``rule(levels..., prime)`` modulo each prime that all parts have."""
        depth = max(p.depth for p in parts)
        shape = tuple(d or 0 for d in node.type.shape)
        levels = []
        for i, q in enumerate(self.primes):
            if i < depth:
                levels.append(_EMPTY)
                continue
            level = np.broadcast_to(rule(*(p.levels[i] for p in parts), q), shape)
            levels.append(level if minus is None else np.where(minus, _U64(0), level))
        return Residues(node.type, tuple(levels), depth, minus)

    def power_of(self, node: TermNode, x: Residues) -> Residues:
        """Return the exponential: modulo each prime by the residue of the prime below."""
        if x.depth + 1 >= len(self.primes):
            return self.random(node.type, hashes.combined("exp", (x.lanes,)))
        levels: list[np.ndarray] = [_EMPTY] * (x.depth + 1)
        for i in range(x.depth + 1, len(self.primes)):
            level = towers.exponential(x.levels[i - 1], self.bases[i], self.primes[i])
            levels.append(level if x.minus is None else np.where(x.minus, _U64(0), level))
        return Residues(node.type, tuple(levels), x.depth + 1)


_EMPTY = np.zeros((), _U64)


def height(nodes: Sequence[TermNode]) -> int:
    """Return how many primes the primitive ops of a program need, as far as the tallest tower."""
    depth: dict[TermNode, int] = {}
    for node in nodes:
        below = max((depth.get(o, 0) for o in node.operands), default=0)
        depth[node] = 0 if node.name in _FRESH else below + (node.name in _EXPONENTIALS)
    return min(1 + max(depth.values(), default=0), towers.TALLEST)


def _any(flags: np.ndarray | None) -> bool:
    return flags is not None and bool(flags.any())


def _flag(x: Residues) -> np.ndarray:
    shape = tuple(d or 0 for d in x.type.shape)
    return np.zeros(shape, bool) if x.minus is None else x.minus


def _like(x: Any) -> np.ndarray:
    """Return an array of the shape of a value."""
    return np.broadcast_to(_EMPTY, [d or 0 for d in x.type.shape])


def _stretched(lanes: Lanes, type_: TensorType) -> Lanes:
    return np.broadcast_to(lanes, (2, *(d or 0 for d in type_.shape)))


def _finite(node: TermNode, parts: Sequence[Residues]) -> None:
    if any(_any(p.minus) for p in parts):
        raise NotComparable(f"{node.name}: -inf, which has no residue")


def _add(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    minus = None
    if any(p.minus is not None for p in parts):
        minus = np.broadcast_to(_flag(parts[0]) | _flag(parts[1]), [d or 0 for d in node.type.shape])
    return field.mapped(node, parts, lambda a, b, q: (a + b) % _U64(q), minus)


def _sub(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    _finite(node, parts[1:])
    minus = parts[0].minus
    if minus is not None:
        minus = np.broadcast_to(minus, [d or 0 for d in node.type.shape])
    return field.mapped(node, parts, lambda a, b, q: (a + (_U64(q) - b)) % _U64(q), minus)


def _neg(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    _finite(node, parts)
    return field.mapped(node, parts, lambda a, q: (_U64(q) - a) % _U64(q))


def _mul(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    minus = _scaled(node, parts)
    return field.mapped(node, parts, lambda a, b, q: a * b % _U64(q), minus)


def _scaled(node: TermNode, parts: Sequence[Residues]) -> np.ndarray | None:
    """Return where a product is -inf: that of -inf with a positive constant."""
    if not any(_any(p.minus) for p in parts):
        return None
    for x, factor in (parts, parts[::-1]):
        positive = factor.array is not None and bool((factor.array > 0).all())
        if positive and not _any(factor.minus):
            return np.broadcast_to(_flag(x), [d or 0 for d in node.type.shape])
    raise NotComparable(f"{node.name}: -inf, which has no residue")


def _div(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    _finite(node, parts[1:])
    minus = None
    if _any(parts[0].minus):
        positive = parts[1].array is not None and bool((parts[1].array > 0).all())
        if not positive:
            raise NotComparable(f"{node.name}: -inf, which has no residue")
        minus = np.broadcast_to(_flag(parts[0]), [d or 0 for d in node.type.shape])
    return field.mapped(
        node, parts, lambda a, b, q: towers.product(a, towers.inverse(b, q), q), minus
    )


def _sqrt(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    _finite(node, parts)
    return field.mapped(node, parts, towers.root)


def _rsqrt(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    _finite(node, parts)
    return field.mapped(node, parts, lambda a, q: towers.inverse(towers.root(a, q), q))


def _pow(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues | None:
    """Return whole and half powers; others are hashes."""
    _finite(node, parts)
    exponents = parts[1].array
    if exponents is None or not exponents.size:
        return None
    first = float(np.asarray(exponents).reshape(-1)[0])
    if not isfinite(first) or not (exponents == first).all():
        return None
    if first * 2 != int(first * 2) or abs(first) > _MOST_POWER:
        return None
    whole, half = divmod(abs(int(first * 2)), 2)

    def rule(a: np.ndarray, _: np.ndarray, q: int) -> np.ndarray:
        out = towers.power(a, whole, q)
        out = towers.product(out, towers.root(a, q), q) if half else out
        return out if first >= 0 else towers.inverse(out, q)

    return field.mapped(node, (parts[0], _spread(parts[1], parts[0])), rule)


def _spread(x: Residues, like: Residues) -> Residues:
    """Return a constant with the primes of another value: its own residues are not read."""
    return Residues(x.type, x.levels, like.depth)


def _exp(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    return field.power_of(node, parts[0])


def _tanh(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues | None:
    """1 - 2 / (1 + exp(2 x)), where a prime is left for it."""
    (x,) = parts
    _finite(node, parts)
    if x.depth + 1 >= len(field.primes):
        return _odd(field, node, parts)
    e = field.power_of(node, _add(field, node, (x, x)))

    def rule(a: np.ndarray, q: int) -> np.ndarray:
        share = towers.inverse((a + _U64(1)) % _U64(q), q)
        return (_U64(q + 1) - share * _U64(2) % _U64(q)) % _U64(q)

    return field.mapped(node, (e,), rule)


def _odd(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    """f(-x) = -f(x): a random function of the lesser of both residues, with the sign."""
    _finite(node, parts)
    value, q = parts[0].levels[-1], _U64(field.primes[-1])
    turned = value > q // _U64(2)
    least = np.where(turned, q - value, value)
    named = hashes.combined(node.name, (hashes.of_integers("residue", least),))
    out = field.random(node.type, named)
    levels = []
    for level, prime in zip(out.levels, field.primes, strict=True):
        signed = np.where(turned, (_U64(prime) - level) % _U64(prime), level)
        levels.append(np.where(value == 0, _U64(0), signed))
    return Residues(node.type, tuple(levels))


def _even(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    """f(-x) = f(x)."""
    _finite(node, parts)
    value, q = parts[0].levels[-1], _U64(field.primes[-1])
    least = np.minimum(value, (q - value) % q)
    named = hashes.combined(node.name, (hashes.of_integers("residue", least),))
    return field.random(node.type, named)


def _maximum(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    shape = tuple(d or 0 for d in node.type.shape)
    stacked = [np.broadcast_to(p.lanes, (2, *shape)) for p in parts]
    levels = [_pair(p, shape) for p in parts]
    return _greatest(field, node.type, np.stack(stacked, -1), levels)


def _pair(x: Residues, shape: tuple[int, ...]) -> Residues:
    minus = np.broadcast_to(_flag(x), shape)
    levels = tuple(_EMPTY if i < x.depth else np.broadcast_to(level, shape)
                   for i, level in enumerate(x.levels))  # fmt: skip
    return Residues(x.type.with_shape(shape), levels, x.depth, minus)


def _greatest(
    field: Field, type_: TensorType, lanes: Lanes, parts: Sequence[Residues]
) -> Residues:
    """Return the maximum of the last axis of lanes, whose entries are `parts`.

    A random function of the multiset of what is finite; of a single element, itself.
    """
    flags = np.stack([_flag(p) for p in parts], -1)
    finite = (~flags).sum(-1)
    same = np.logical_and.reduce(
        [(lanes[0, ..., 0] == lanes[0, ..., i]) & (lanes[1, ..., 0] == lanes[1, ..., i])
         for i in range(lanes.shape[-1])]
    )  # fmt: skip
    with np.errstate(over="ignore"):
        total = np.where(flags, _U64(0), hashes.mixed(lanes)).sum(-1, dtype=_U64)
    out = field.random(type_, hashes.combined("max", (total,)))
    single = (finite == 1) | same
    depth = max(p.depth for p in parts) if single.any() else 0
    levels = []
    for i, level in enumerate(out.levels):
        if i < depth:
            levels.append(_EMPTY)
            continue
        own = parts[0].levels[i]
        for p in parts[1:]:
            own = np.where(_flag(p), own, p.levels[i])
        levels.append(np.where(single, own, level))
    minus = finite == 0
    return Residues(type_, tuple(levels), depth, minus if minus.any() else None)


def _minimum(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    """min(a, b) = -max(-a, -b)."""
    shape = tuple(d or 0 for d in node.type.shape)
    _finite(node, parts)
    turned = [_neg(field, o, (p,)) for o, p in zip(node.operands, parts, strict=True)]
    stacked = np.stack([np.broadcast_to(p.lanes, (2, *shape)) for p in turned], -1)
    found = _greatest(field, node.type, stacked, [_pair(p, shape) for p in turned])
    return _neg(field, node, (found,))


def _reduce_sum(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    axes, keep = _axes(node)
    x = parts[0]
    minus = None if x.minus is None else x.minus.any(axis=axes, keepdims=keep)

    def rule(a: np.ndarray, q: int) -> np.ndarray:
        return a.sum(axis=axes, keepdims=keep, dtype=_U64) % _U64(q)

    return field.mapped(node, parts, rule, minus)


def _reduce_mean(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    axes, _ = _axes(node)
    count = prod(parts[0].type.shape[a] or 0 for a in axes)
    total = _reduce_sum(field, node, parts)

    def rule(a: np.ndarray, q: int) -> np.ndarray:
        return a * _U64(pow(count, -1, q)) % _U64(q)

    if not count:
        raise ZeroDivisionError
    return field.mapped(node, (total,), rule, total.minus)


def _reduce_prod(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    _finite(node, parts)
    axes, keep = _axes(node)
    rank = parts[0].type.rank
    order = [d for d in range(rank) if d not in axes] + list(axes)
    shape = tuple(d or 0 for d in node.type.shape)

    def rule(a: np.ndarray, q: int) -> np.ndarray:
        rows = a.transpose(order).reshape(*[a.shape[d] for d in order[: rank - len(axes)]], -1)
        out = np.ones(rows.shape[:-1], _U64)
        for i in range(rows.shape[-1]):
            out = towers.product(out, rows[..., i], q)
        return out.reshape(shape)

    return field.mapped(node, parts, rule)


def _reduce_max(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    axes, _ = _axes(node)
    x = parts[0]
    if not prod(x.type.shape[a] or 0 for a in axes):
        raise NotComparable(f"{node.name}: nothing to reduce")
    rank = x.type.rank
    order = [d for d in range(rank) if d not in axes] + list(axes)
    rows = [d for d in order if d not in axes]
    shape = tuple(d or 0 for d in node.type.shape)
    kept = tuple(x.type.shape[d] or 0 for d in rows)

    def flat(a: np.ndarray) -> np.ndarray:
        return a.transpose(order).reshape(*kept, -1)

    lanes = np.stack([flat(lane) for lane in x.lanes])
    flags = flat(_flag(x))
    if lanes.shape[-1] == 1:
        return field.mapped(node, parts, lambda a, q: a.reshape(shape), _reshaped(x.minus, shape))
    with np.errstate(over="ignore"):
        total = np.where(flags, _U64(0), hashes.mixed(lanes)).sum(-1, dtype=_U64)
    out = field.random(node.type, hashes.combined("max", (total,)).reshape(2, *shape))
    finite = (~flags).sum(-1).reshape(shape)
    single = finite == 1
    depth = x.depth if single.any() else 0
    levels = []
    for i, level in enumerate(out.levels):
        if i < depth:
            levels.append(_EMPTY)
            continue
        if not single.any():
            levels.append(level)
            continue
        own = np.where(flags, _U64(0), flat(x.levels[i])).sum(-1, dtype=_U64).reshape(shape)
        levels.append(np.where(single, own, level))
    minus = finite == 0
    return Residues(node.type, tuple(levels), depth, minus if minus.any() else None)


def _reshaped(array: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    return None if array is None else array.reshape(shape)


def _reduce_min(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    turned = _neg(field, node.operands[0], parts)
    return _neg(field, node, (_reduce_max(field, node, (turned,)),))


def _axes(node: TermNode) -> tuple[tuple[int, ...], bool]:
    axes = normalize_axes(node.params["axes"], node.operands[0].type.rank)
    return tuple(axes), node.params["keepdims"]


def _matmul(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    _finite(node, parts)
    return field.mapped(node, parts, towers.matmul)


def _conv2d(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    _finite(node, parts)
    params = node.params
    layout, groups = params["layout"], params["groups"]

    def rule(x: np.ndarray, weight: np.ndarray, q: int) -> np.ndarray:
        data = padded(to_nchw(x, layout), params["pads"], _U64(0))
        filters = weight if layout == "NCHW" else weight.transpose(3, 2, 0, 1)
        f, depth, *kernel = filters.shape
        filters = filters.reshape(groups, f // groups, depth, *kernel)
        total: Any = _U64(0)
        rows = columns = 0
        for i, j, view in taps(data, kernel, params["strides"], params["dilations"]):
            n, _, rows, columns = view.shape
            blocks = view.reshape(n, groups, depth, rows * columns)
            total = (total + towers.matmul(filters[..., i, j], blocks, q)) % _U64(q)
        return from_nchw(total.reshape(x.shape[0], f, rows, columns), layout)

    return field.mapped(node, parts, rule)


def _avg_pool2d(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    _finite(node, parts)
    params = node.params
    layout, kernel, strides = params["layout"], params["kernel"], params["strides"]

    def rule(x: np.ndarray, q: int) -> np.ndarray:
        data = to_nchw(x, layout)
        ones = np.ones_like(data[:1, :1])
        beyond = _U64(params["count_include_pad"])
        total = count = _U64(0)
        for _, _, view in taps(padded(data, params["pads"], _U64(0)), kernel, strides, (1, 1)):
            total = (total + view) % _U64(q)
        for _, _, view in taps(padded(ones, params["pads"], beyond), kernel, strides, (1, 1)):
            count = count + view
        return from_nchw(towers.product(total, towers.inverse(count, q), q), layout)

    return field.mapped(node, parts, rule)


def _max_pool2d(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    """Return the maximum of the multiset of each window."""
    _finite(node, parts)
    params, (x,) = node.params, parts
    layout, kernel = params["layout"], params["kernel"]
    window = kernel, params["strides"], params["dilations"]
    inside = np.ones(to_nchw(x.levels[-1], layout).shape, bool)
    lanes: list[np.ndarray] = []
    with np.errstate(over="ignore"):
        for lane in hashes.mixed(x.lanes):
            views = taps(padded(to_nchw(lane, layout), params["pads"], _U64(0)), *window)
            lanes.append(np.asarray(sum((view for _, _, view in views), _U64(0))))
    counts = sum(
        view.astype(np.int64)
        for _, _, view in taps(padded(inside, params["pads"], False), *window)
    )
    if not np.asarray(counts > 1).all():
        return field.random(node.type, field.hashed(node, [x.lanes]))
    total = np.stack([from_nchw(lane, layout) for lane in lanes])
    return field.random(node.type, hashes.combined("max", (total,)))


def _cumulative(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues | None:
    if node.params["reduction"] != "add":
        return None
    _finite(node, parts)

    def rule(a: np.ndarray, q: int) -> np.ndarray:
        return np.cumsum(a, axis=node.params["axis"], dtype=_U64) % _U64(q)

    return field.mapped(node, parts, rule)


Rule = Callable[[Field, TermNode, Sequence[Residues]], Residues | None]
_RULES: dict[str, Rule] = {
    "abs": _even, "add": _add, "avg_pool2d": _avg_pool2d, "conv2d": _conv2d, "cos": _even,
    "cumulative": _cumulative, "div": _div, "erf": _odd, "exp": _exp, "matmul": _matmul,
    "max_pool2d": _max_pool2d, "maximum": _maximum, "minimum": _minimum, "mul": _mul, "neg": _neg,
    "pow": _pow, "reduce_max": _reduce_max, "reduce_mean": _reduce_mean, "reduce_min": _reduce_min,
    "reduce_prod": _reduce_prod, "reduce_sum": _reduce_sum, "rsqrt": _rsqrt, "sin": _odd,
    "sqrt": _sqrt, "sub": _sub, "tanh": _tanh,
}  # fmt: skip

