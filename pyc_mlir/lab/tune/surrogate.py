"""A Gaussian process that predicts costs from the few that were measured.

Matern kernel of smoothness 5/2 with one length scale per feature, chosen by the marginal likelihood
with a weak prior (Rasmussen, Williams, "Gaussian Processes for Machine Learning", 2006, algorithm
2.1 and section 5.4). Costs are standardised; predictions are in those units.
"""

from dataclasses import dataclass
from math import erf, pi, sqrt

import numpy as np

_NOISE = 1e-2
_SCALES = (0.05, 10.0)
_TYPICAL, _SPREAD = 0.7, 2.0
_PHI = np.frompyfunc(lambda z: 0.5 * (1 + erf(z / sqrt(2))), 1, 1)


@dataclass(frozen=True, eq=False)
class Surrogate:
    """A fitted model.

    points: f64[n, features]; scales: f64[features]; factor: the Cholesky factor of the kernel
    matrix; weights: its inverse times the targets; least: the least target, standardised.
    """

    points: np.ndarray
    scales: np.ndarray
    factor: np.ndarray
    weights: np.ndarray
    least: float

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the standardised cost, f64[m] each."""
        across = _kernel(features, self.points, self.scales)
        solved = np.linalg.solve(self.factor, across.T)
        variance = np.maximum(1 - (solved * solved).sum(axis=0), 1e-9)
        return across @ self.weights, np.sqrt(variance)

    def improvement(self, features: np.ndarray) -> np.ndarray:
        """Return the expected improvement on the least cost, f64[m]."""
        mean, deviation = self.predict(features)
        gain = (self.least - mean) / deviation
        density = np.exp(-gain * gain / 2) / sqrt(2 * pi)
        return deviation * (gain * np.asarray(_PHI(gain), np.float64) + density)


def fitted(
    points: np.ndarray, targets: np.ndarray, scales: np.ndarray | None, refit: bool
) -> Surrogate:
    """Fit a model to targets f64[n] at points f64[n, features].

    scales: where to start from; None: a typical scale for each feature.
    refit: whether the scales are fitted, one feature after the other, two times round.
    """
    spread = targets.std()
    values = (targets - targets.mean()) / (spread if spread > 0 else 1.0)
    chosen = np.full(points.shape[1], _TYPICAL) if scales is None else scales.copy()
    if refit:
        chosen = _fit_scales(points, values, chosen)
    _, factor, weights = _solved(points, values, chosen)
    return Surrogate(points, chosen, factor, weights, float(values.min()))


def _fit_scales(points: np.ndarray, values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    best = _score(points, values, scales)
    for _ in range(2):
        for feature in range(len(scales)):
            for times in (0.5, 2.0):
                other = scales.copy()
                other[feature] = np.clip(other[feature] * times, *_SCALES)
                score = _score(points, values, other)
                if score > best:
                    best, scales = score, other
    return scales


def _score(points: np.ndarray, values: np.ndarray, scales: np.ndarray) -> float:
    """Log of the marginal likelihood and of a wide prior on the scales, up to a constant."""
    likelihood, _, _ = _solved(points, values, scales)
    away = np.log(scales / _TYPICAL)
    return likelihood - float((away * away).sum()) / (2 * _SPREAD)


def _solved(
    points: np.ndarray, values: np.ndarray, scales: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    matrix = _kernel(points, points, scales) + _NOISE * np.eye(len(points))
    factor = np.linalg.cholesky(matrix)
    weights = np.linalg.solve(factor.T, np.linalg.solve(factor, values))
    likelihood = -0.5 * float(values @ weights) - float(np.log(np.diag(factor)).sum())
    return likelihood, factor, weights


def _kernel(left: np.ndarray, right: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Matern 5/2 between f64[m, features] and f64[n, features]."""
    a, b = left / scales, right / scales
    square = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2 * a @ b.T
    distance = np.sqrt(5 * np.maximum(square, 0))
    return (1 + distance + distance * distance / 3) * np.exp(-distance)
