"""Arithmetic in finite fields whose sizes form a tower, in which exponentials are powers.

A tower is a Cunningham chain q0, q1 = 2 q0 + 1, q2 = 2 q1 + 1, ...: the squares modulo q(i+1) are a
group of order qi, so that ``x mod qi -> g ** x mod q(i+1)`` turns sums into products, as exp does.
One prime more bears one exponential more inside of another. All primes are 3 modulo 4, so that
``x ** ((q + 1) / 4)`` is the root of a square, and multiplicative. The scheme extends Mirage's two
primes (Wu et al., OSDI 2025) to nested exponentials. Numbers are arrays of uint64 below 2^31.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

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
TALLEST = max(CHAINS)
_HALF = 16
_ROUND = 1 << 20
_U64 = np.uint64


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
    out: Any = None
    for start in range(0, max(1, a.shape[-1]), _ROUND):
        part = _matmul(a[..., start : start + _ROUND], b[..., start : start + _ROUND, :], q)
        out = part if out is None else (out + part) % _U64(q)
    return out


def _matmul(a: np.ndarray, b: np.ndarray, q: int) -> np.ndarray:
    low, shift = _U64((1 << _HALF) - 1), _U64(_HALF)
    a0, a1 = ((p & low).astype(np.float64) for p in (a, a >> shift))
    b0, b1 = ((p & low).astype(np.float64) for p in (b, b >> shift))
    high = np.matmul(a1, b1).astype(_U64) % _U64(q)
    middle = (np.matmul(a1, b0) + np.matmul(a0, b1)).astype(_U64) % _U64(q)
    lowest = np.matmul(a0, b0).astype(_U64) % _U64(q)
    high = ((high << shift) + middle) % _U64(q)
    return ((high << shift) + lowest) % _U64(q)


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
