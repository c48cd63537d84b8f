"""Hashes of elements: two independent lanes of 64 bits each, as arrays of numpy.

A value is an array [2, *shape]. Equal inputs give equal hashes; different ones give equal ones with
a chance of about 2^-128 a pair (`mixed` is the finalizer of splitmix64, Steele, Lea and Flood,
2014). Salts are keyed by text, so that different operations never meet. Sums and products of arrays
wrap without a warning.
"""

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np

_U64 = np.uint64
_FIRST = np.array([0xBF58476D1CE4E5B9, 0xFF51AFD7ED558CCD], _U64)
_SECOND = np.array([0x94D049BB133111EB, 0xC4CEB9FE1A85EC53], _U64)
_STEP = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], _U64)
Lanes = np.ndarray


@cache
def salt(text: str) -> np.ndarray:
    """Return the salt of a text: one number for each lane."""
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), _U64).copy()


@cache
def _salts(text: str, rank: int) -> np.ndarray:
    return _of_lanes(salt(text), rank)


@cache
def _factors(rank: int) -> tuple[np.ndarray, np.ndarray]:
    return _of_lanes(_FIRST, rank), _of_lanes(_SECOND, rank)


@cache
def _step(part: int, rank: int) -> np.ndarray:
    """Return what tells one operand from the others."""
    return _of_lanes(_STEP * _U64(2 * part + 1), rank)


def _of_lanes(numbers: np.ndarray, rank: int) -> np.ndarray:
    return numbers.reshape(2, *(1,) * rank)


def mixed(lanes: Lanes) -> Lanes:
    """Return a bijective mix of each number."""
    first, second = _factors(lanes.ndim - 1)
    x = lanes ^ (lanes >> _U64(30))
    x *= first
    x ^= x >> _U64(27)
    x *= second
    x ^= x >> _U64(31)
    return x


def combined(text: str, parts: Sequence[Lanes], ordered: bool = True) -> Lanes:
    """Return the hash of an operation on aligned elements; the parts broadcast.

    ordered: whether the order of the parts counts.
    """
    rank = max((p.ndim - 1 for p in parts), default=0)
    out = _salts(text, rank)
    for i, part in enumerate(parts):
        if part.ndim <= rank:
            part = part.reshape(2, *(1,) * (rank + 1 - part.ndim), *part.shape[1:])
        out = out + mixed(part + _step(i if ordered else 0, rank))
    return mixed(out)


def of_integers(text: str, numbers: np.ndarray) -> Lanes:
    """Return the hashes of 64-bit numbers, or of what is viewed as such."""
    raw = np.asarray(numbers).astype(_U64)
    return mixed(raw[None] + _salts(text, raw.ndim))


def of_array(array: np.ndarray) -> Lanes:
    """Return the hashes of a constant's elements, by their bits and their type."""
    plain = np.ascontiguousarray(array).reshape(array.shape)
    if plain.dtype == np.bool_:
        bits = plain.astype(_U64)
    else:
        bits = plain.view(f"u{plain.dtype.itemsize}").astype(_U64)
    return of_integers(f"constant {plain.dtype}", bits)


def along(lanes: Lanes, axes: Sequence[int], ordered: bool = True) -> Lanes:
    """Return the hash of all elements along axes, which keep a size of 1.

    axes: counted without the axis of lanes. ordered: whether their places count; else a multiset.
    """
    shape = lanes.shape[1:]
    value = lanes
    if ordered:
        sizes = [shape[a] if a in axes else 1 for a in range(len(shape))]
        places = np.arange(int(np.prod(sizes)), dtype=np.int64).reshape(sizes)
        value = lanes + of_integers("place", places)
    total = mixed(value).sum(axis=tuple(a + 1 for a in axes), keepdims=True, dtype=_U64)
    return total
