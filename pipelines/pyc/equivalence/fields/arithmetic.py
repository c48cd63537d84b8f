"""Elementwise arithmetic over a field: sums, products, quotients, roots, powers, exponentials."""

from collections.abc import Sequence
from math import isfinite

import numpy as np

from pyc_mlir.pipelines.pyc.equivalence.fields import lanes as hashes
from pyc_mlir.pipelines.pyc.equivalence.fields import towers
from pyc_mlir.pipelines.pyc.equivalence.fields.interpreter import (
    Field,
    Residues,
    any_minus,
    flags_of,
    require_finite,
    rule,
)
from pyc_mlir.pipelines.pyc.equivalence.fields.programs import NotComparable
from pyc_mlir.pipelines.pyc.terms.nodes import TermNode

_U64 = np.uint64
_MOST_POWER = 64


@rule("add")
def _add(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    minus = None
    if any(p.minus is not None for p in parts):
        minus = flags_of(parts[0]) | flags_of(parts[1])
        minus = np.broadcast_to(minus, [d or 0 for d in node.type.shape])
    return field.mapped(node, parts, lambda a, b, q: (a + b) % _U64(q), minus)


@rule("sub")
def _sub(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    require_finite(node, parts[1:])
    minus = parts[0].minus
    if minus is not None:
        minus = np.broadcast_to(minus, [d or 0 for d in node.type.shape])
    return field.mapped(node, parts, lambda a, b, q: (a + (_U64(q) - b)) % _U64(q), minus)


@rule("neg")
def negated(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    """Return -x."""
    require_finite(node, parts)
    return field.mapped(node, parts, lambda a, q: (_U64(q) - a) % _U64(q))


@rule("mul")
def _mul(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    minus = _scaled(node, parts)
    return field.mapped(node, parts, lambda a, b, q: a * b % _U64(q), minus)


def _scaled(node: TermNode, parts: Sequence[Residues]) -> np.ndarray | None:
    """Return where a product is -inf: that of -inf with a positive constant."""
    if not any(any_minus(p.minus) for p in parts):
        return None
    for x, factor in (parts, parts[::-1]):
        positive = factor.array is not None and bool((factor.array > 0).all())
        if positive and not any_minus(factor.minus):
            return np.broadcast_to(flags_of(x), [d or 0 for d in node.type.shape])
    raise NotComparable(f"{node.name}: -inf, which has no residue")


@rule("div")
def _div(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    require_finite(node, parts[1:])
    minus = None
    if any_minus(parts[0].minus):
        positive = parts[1].array is not None and bool((parts[1].array > 0).all())
        if not positive:
            raise NotComparable(f"{node.name}: -inf, which has no residue")
        minus = np.broadcast_to(flags_of(parts[0]), [d or 0 for d in node.type.shape])
    return field.mapped(
        node, parts, lambda a, b, q: towers.product(a, towers.inverse(b, q), q), minus
    )


@rule("sqrt")
def _sqrt(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    require_finite(node, parts)
    return field.mapped(node, parts, towers.root)


@rule("rsqrt")
def _rsqrt(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    require_finite(node, parts)
    return field.mapped(node, parts, lambda a, q: towers.inverse(towers.root(a, q), q))


@rule("pow")
def _pow(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues | None:
    """Return whole and half powers; others are hashes."""
    require_finite(node, parts)
    exponents = parts[1].array
    if exponents is None or not exponents.size:
        return None
    first = float(np.asarray(exponents).reshape(-1)[0])
    if not isfinite(first) or not (exponents == first).all():
        return None
    if first * 2 != int(first * 2) or abs(first) > _MOST_POWER:
        return None
    whole, half = divmod(abs(int(first * 2)), 2)

    def modulo(a: np.ndarray, _: np.ndarray, q: int) -> np.ndarray:
        out = towers.power(a, whole, q)
        out = towers.product(out, towers.root(a, q), q) if half else out
        return out if first >= 0 else towers.inverse(out, q)

    return field.mapped(node, (parts[0], _spread(parts[1], parts[0])), modulo)


def _spread(x: Residues, like: Residues) -> Residues:
    """Return a constant with the primes of another value: its own residues are not read."""
    return Residues(x.type, x.levels, like.depth)


@rule("exp")
def _exp(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    return field.power_of(node, parts[0])


@rule("tanh")
def _tanh(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues | None:
    """1 - 2 / (1 + exp(2 x)), where a prime is left for it."""
    (x,) = parts
    require_finite(node, parts)
    if x.depth + 1 >= len(field.primes):
        return _odd(field, node, parts)
    e = field.power_of(node, _add(field, node, (x, x)))

    def modulo(a: np.ndarray, q: int) -> np.ndarray:
        share = towers.inverse((a + _U64(1)) % _U64(q), q)
        return (_U64(q + 1) - share * _U64(2) % _U64(q)) % _U64(q)

    return field.mapped(node, (e,), modulo)


@rule("erf", "sin")
def _odd(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    """f(-x) = -f(x): a random function of the lesser of both residues, with the sign."""
    require_finite(node, parts)
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


@rule("abs", "cos")
def _even(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    """f(-x) = f(x)."""
    require_finite(node, parts)
    value, q = parts[0].levels[-1], _U64(field.primes[-1])
    least = np.minimum(value, (q - value) % q)
    named = hashes.combined(node.name, (hashes.of_integers("residue", least),))
    return field.random(node.type, named)
