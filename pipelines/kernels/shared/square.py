"""Transpose a square of registers: as many vectors as lanes, by shuffles of 128 bits.

Shuffles that stay within 128 bits are one quick instruction on x86: pairs of rows are interleaved
by single numbers, then by pairs, which transposes each 4 x 4; then the quarters change places.
"""

from collections.abc import Sequence

from pyc_mlir.pipelines.kernels.lang.values import Vector, picked

_QUAD = 4  # f32 in 128 bits


def transposed(rows: Sequence[Vector]) -> list[Vector]:
    """Transpose a square block of vectors."""
    lanes = len(rows)
    units = range(0, lanes, _QUAD)
    columns: list[list[Vector]] = [[] for _ in range(_QUAD)]
    for q in units:
        a, b, c, d = rows[q : q + _QUAD]
        for half in (0, 2):
            # Columns `half` and `half + 1` of four rows, in each 128 bits.
            ab, cd = (_interleaved(*pair, half, units) for pair in ((a, b), (c, d)))
            for odd in (0, 1):
                spots = [u + 2 * odd + s for u in units for s in (0, 1, lanes, lanes + 1)]
                columns[half + odd].append(picked(ab, cd, spots))
    made = [_quarters(column, lanes) for column in columns]
    return [made[c % _QUAD][c // _QUAD] for c in range(lanes)]


def _interleaved(a: Vector, b: Vector, half: int, units: range) -> Vector:
    lanes = units.stop
    return picked(a, b, [u + half + s for u in units for s in (0, lanes, 1, lanes + 1)])


def _quarters(parts: list[Vector], lanes: int) -> list[Vector]:
    """[u, p] -> [p, u], where u counts units of 128 bits in a vector and p the vectors."""
    if len(parts) == 1:
        return parts
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    halves = []
    for odd in (0, 1):
        spots = [u + s for u in range(odd * _QUAD, 2 * lanes, 2 * _QUAD) for s in range(_QUAD)]
        halves.append(_quarters([picked(a, b, spots) for a, b in pairs], lanes))
    return [unit for pair in zip(*halves, strict=True) for unit in pair]
