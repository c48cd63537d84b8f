"""The matrices of Winograd's minimal filtering F(m, 3), made from points by Toom and Cook.

y = at [(g w) * (bt x)] gives m outputs of a window of 3 taps on m + 2 numbers; in two dimensions
each side is applied to rows and to columns (Lavin and Gray, 2016). The points decide the error
(Barabasz et al., 2020): those of F(4, 3) were chosen by measurement, docs/kernels.md.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod

import numpy as np

from pyc_mlir.pipelines.kernels.families.packing import Panels

TAPS = 3
_POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(1), Fraction(-1), Fraction(2), Fraction(-1, 2)),
}
SIZES = tuple(_POINTS)


@dataclass(frozen=True, eq=False)
class ToomCookMatrices:
    """at [m, m + 2], g [m + 2, 3] and bt [m + 2, m + 2], exact in f64 up to rounding."""

    at: np.ndarray
    g: np.ndarray
    bt: np.ndarray


@lru_cache
def matrices(m: int) -> ToomCookMatrices:
    """Return the matrices of F(m, 3); the last point is infinity."""
    points = _POINTS[m]
    scales = [prod(p - q for q in points if q != p) for p in points]
    at = [[p**i for p in points] + [Fraction(i == m - 1)] for i in range(m)]
    g = [[p**j / s for j in range(TAPS)] for p, s in zip(points, scales, strict=True)]
    g.append([Fraction(j == TAPS - 1) for j in range(TAPS)])
    bt = [[*_polynomial([q for q in points if q != p]), Fraction(0)] for p in points]
    bt.append(_polynomial(list(points)))
    return ToomCookMatrices(
        *(np.array([[float(x) for x in row] for row in rows]) for rows in (at, g, bt))
    )


def _polynomial(roots: list[Fraction]) -> list[Fraction]:
    """Return the coefficients of the polynomial with these roots, lowest power first."""
    made = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *made]
        made = [s - root * c for s, c in zip(shifted, [*made, Fraction(0)], strict=True)]
    return made


@dataclass(frozen=True)
class Spectrum:
    """The layout of w[9 channels, filters]: panel by panel, position by position, transformed."""

    m: int
    channels: int
    panels: Panels

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of w."""
        return TAPS * TAPS * self.channels, self.panels.columns

    def pack(self, weights: np.ndarray) -> np.ndarray:
        """Pack panels, each [positions][channels][panel]; computed in f64, rounded once."""
        g = matrices(self.m).g
        w = weights.astype(np.float64).reshape(TAPS, TAPS, self.channels, -1)
        spectrum = np.einsum("pi,qj,ijcf->pqcf", g, g, w, optimize=True)
        matrix = spectrum.reshape(self.panels.depth, -1).astype(np.float32)
        return self.panels.pack(matrix)
