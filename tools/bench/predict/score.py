"""How good estimates are, on programs that are left out of what the estimates know.

    scores(observed, ROWS_KNOWN)     the program's times are left out; rows of its works are known
    scores(observed, ROWS_UNKNOWN)   and no row of any of its works is known either

Comes in: `Observed`. Goes out: `Scores`: pairs of recipes whose winner is right, regret, coverage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from pyc_mlir.simulation.estimate import Estimate
from pyc_mlir.simulation.evidence import Overheads
from pyc_mlir.simulation.residuals import COVERAGE, PROGRAM, Residual, Residuals, family_of
from pyc_mlir.simulation.simulator import Simulator
from pyc_mlir.tools.bench.predict.observed import HERE, Observed, Way

ROWS_KNOWN, ROWS_UNKNOWN = "its rows known", "no row of its works known"
# Pairs closer than that are no question of which is quicker.
APART = 0.05
_RESAMPLES = 2000


@dataclass(frozen=True)
class Judged:
    """One program: pairs apart and those whose winner is right, regret, intervals that hold."""

    program: str
    pairs: int
    right: int
    regret: float
    ways: int
    held: int
    calibrated: int
    ratios: tuple[float, ...] = ()


@dataclass(frozen=True)
class Scores:
    """Shares over all programs, each with a 90 % interval by resampling programs."""

    judged: tuple[Judged, ...]

    @property
    def winner(self) -> float:
        """The share of pairs more than `APART` apart whose winner is right."""
        return sum(j.right for j in self.judged) / max(1, sum(j.pairs for j in self.judged))

    @property
    def regret(self) -> float:
        """How much longer the recipe estimated to be quickest takes than the quickest, in mean."""
        return float(np.mean([j.regret for j in self.judged]))

    @property
    def coverage(self) -> float:
        """The share of intervals that hold what was measured."""
        return sum(j.held for j in self.judged) / max(1, sum(j.ways for j in self.judged))

    def interval(self, name: str) -> tuple[float, float]:
        """Of one of the figures above: programs are drawn with replacement."""
        chance, found = np.random.default_rng(0), []
        for _ in range(_RESAMPLES):
            drawn = chance.integers(0, len(self.judged), len(self.judged))
            found.append(getattr(Scores(tuple(self.judged[i] for i in drawn)), name))
        lo, hi = np.quantile(found, (0.05, 0.95))
        return float(lo), float(hi)


def scores(observed: Observed, known: str) -> Scores:
    """Each program left out once. `known`: ROWS_KNOWN or ROWS_UNKNOWN."""
    own = {name: _estimates(observed, name, known, Residuals()) for name in observed.programs}
    judged = []
    for name, ways in observed.programs.items():
        residuals = Residuals.of(
            [*_of_works(observed, name, known), *_of_programs(observed, name, own)]
        )
        judged.append(_judged(name, ways, _estimates(observed, name, known, residuals)))
    return Scores(tuple(judged))


def all_residuals(observed: Observed) -> Residuals:
    """What all programs and works say, for estimates of others."""
    own = {name: _estimates(observed, name, ROWS_KNOWN, Residuals()) for name in observed.programs}
    return Residuals.of([*_of_works(observed, "", ROWS_KNOWN), *_of_programs(observed, "", own)])


def _estimates(
    observed: Observed, program: str, known: str, residuals: Residuals
) -> list[Estimate]:
    """Estimates of a program's recipes. Without residuals at all those of works still correct."""
    hidden = observed.works_of(program) if known == ROWS_UNKNOWN else frozenset()
    if not residuals.rows:
        residuals = Residuals.of(_of_works(observed, program, known))
    simulator = Simulator(
        observed.priced(observed.programs[program][0]),
        observed.wisdom(hidden),
        HERE,
        residuals,
        Overheads(call_seconds=observed.call_seconds),
    )
    return [
        Simulator(
            observed.priced(way),
            simulator.wisdom,
            HERE,
            residuals,
            simulator.overheads,
        ).estimate()
        for way in observed.programs[program]
    ]


def _of_works(observed: Observed, program: str, known: str) -> Iterator[Residual]:
    """Errors of predictions of single kernels, but for the works that are left out."""
    hidden = observed.works_of(program) if program and known == ROWS_UNKNOWN else frozenset()
    for row in observed.rows:
        own = row.seconds - observed.call_seconds
        if row.work not in hidden and own > 0 and row.predicted > 0:
            subject = f"{row.work} {row.choice}"
            family = family_of(row.choice)
            yield Residual(HERE.environment, family, subject, row.predicted, own)


def _of_programs(
    observed: Observed, left_out: str, own: dict[str, list[Estimate]]
) -> Iterator[Residual]:
    """Errors of estimates of the other programs, one a recipe."""
    for name, estimates in own.items():
        for way, estimate in zip(observed.programs[name], estimates, strict=True):
            if name != left_out:
                scale = _scale(estimate)
                subject = f"{name}: {way.label}"
                yield Residual(
                    HERE.environment, PROGRAM, subject, estimate.seconds, way.seconds, scale
                )


def _scale(estimate: Estimate) -> float:
    """The expected deviation that an interval was made with."""
    return max(np.log(estimate.hi / estimate.seconds) / estimate.width.deviations, 1e-3)


def _judged(name: str, ways: Sequence[Way], estimates: Sequence[Estimate]) -> Judged:
    measured = [way.seconds for way in ways]
    expected = [estimate.seconds for estimate in estimates]
    apart = [
        (i, j)
        for i, j in combinations(range(len(ways)), 2)
        if abs(np.log(measured[i] / measured[j])) > np.log(1 + APART)
    ]
    right = sum((measured[i] < measured[j]) == (expected[i] < expected[j]) for i, j in apart)
    chosen = measured[int(np.argmin(expected))]
    return Judged(
        name,
        len(apart),
        right,
        chosen / min(measured) - 1,
        len(ways),
        sum(e.lo <= m <= e.hi for e, m in zip(estimates, measured, strict=True)),
        sum(e.width.calibrated for e in estimates),
        tuple(m / e for m, e in zip(measured, expected, strict=True)),
    )


__all__ = ["COVERAGE", "ROWS_KNOWN", "ROWS_UNKNOWN", "Judged", "Scores", "all_residuals", "scores"]
