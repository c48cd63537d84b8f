"""How good estimates are, on programs that are left out of what the estimates know.

    scores(observed, ROWS_KNOWN)     the program's times are left out; rows of its works are known
    scores(observed, ROWS_UNKNOWN)   and no row of any of its works is known either

Comes in: `Observed`. Goes out: `Scores`: pairs of recipes whose winner is right, regret, coverage.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from pyc_mlir.lab.simulation.estimate import Estimate, Overheads
from pyc_mlir.lab.simulation.residuals import CALL, PROGRAM, Residual, Residuals, family_of
from pyc_mlir.lab.simulation.simulator import Simulator
from pyc_mlir.tools.bench.predict.observed import HERE, NOTHING, Observed, ObservedRecipe

ROWS_KNOWN, ROWS_UNKNOWN = "its rows known", "no row of its works known"
# Pairs closer than that are no question of which is quicker.
APART = 0.05
_RESAMPLES = 2000


@dataclass(frozen=True)
class ProgramScore:
    """One program: pairs apart and those whose winner is right, regret, intervals that hold."""

    program: str
    pairs: int
    right: int
    regret: float
    recipes: int
    held: int
    calibrated: int
    ratios: tuple[float, ...] = ()


@dataclass(frozen=True)
class Scores:
    """Shares over all programs, each with a 90 % interval by resampling programs."""

    judged: tuple[ProgramScore, ...]

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
        return sum(j.held for j in self.judged) / max(1, sum(j.recipes for j in self.judged))

    def interval(self, name: str) -> tuple[float, float]:
        """Return the interval of a figure: programs are drawn with replacement."""
        chance, found = np.random.default_rng(0), []
        for _ in range(_RESAMPLES):
            drawn = chance.integers(0, len(self.judged), len(self.judged))
            found.append(getattr(Scores(tuple(self.judged[i] for i in drawn)), name))
        lo, hi = np.quantile(found, (0.05, 0.95))
        return float(lo), float(hi)


def scores(observed: Observed, known: str) -> Scores:
    """Leave each program out once. `known`: ROWS_KNOWN or ROWS_UNKNOWN."""
    judged, made = [], _Made()
    for name, recipes in observed.programs.items():
        residuals = _known(observed, known, name, made)
        judged.append(_judged(name, recipes, _estimates(observed, name, known, residuals)))
    return Scores(tuple(judged))


def all_residuals(observed: Observed) -> Residuals:
    """Return the residuals of all programs and works, for estimates of others."""
    call = observed.call_seconds
    nothing = [Residual(HERE.environment, CALL, NOTHING, call, call)] if call else []
    return Residuals.of([*nothing, *_known(observed, ROWS_KNOWN, "", _Made()).rows])


# The residuals of a program where these works are hidden: the same for many that are left out.
_Made = dict[tuple[str, frozenset[str]], list[Residual]]


def _known(observed: Observed, known: str, left_out: str, made: _Made) -> Residuals:
    """Return errors of single kernels and of programs, one program left out.

    The estimates of each other program were made without its own times and, with ROWS_UNKNOWN,
    without the rows of its own works too, as those of the one that is left out will be.
    """
    found = list(_of_works(observed, _hidden(observed, known, left_out)))
    for name in observed.programs:
        if name != left_out:
            hidden = _hidden(observed, known, left_out, name)
            if (name, hidden) not in made:
                works = Residuals.of(_of_works(observed, hidden))
                estimates = _estimates(observed, name, known, works)
                made[name, hidden] = list(_of_program(observed, name, estimates))
            found += made[name, hidden]
    return Residuals.of(found)


def _hidden(observed: Observed, known: str, *programs: str) -> frozenset[str]:
    """Return the works whose rows may not be used for these programs."""
    if known == ROWS_KNOWN:
        return frozenset()
    return frozenset(work for name in programs if name for work in observed.works_of(name))


def _estimates(
    observed: Observed, program: str, known: str, residuals: Residuals
) -> list[Estimate]:
    """Estimate a program's recipes."""
    join = residuals.join_seconds(HERE.environment)
    overheads = Overheads(observed.call_seconds, join_seconds=join)
    wisdom = observed.wisdom(_hidden(observed, known, program))
    return [
        Simulator(observed.priced(recipe), wisdom, HERE, residuals, overheads).estimate()
        for recipe in observed.programs[program]
    ]


def _of_works(observed: Observed, hidden: Set[str]) -> Iterator[Residual]:
    """Yield errors of predictions of single kernels, but for those of hidden works."""
    for row in observed.rows:
        own = row.seconds - observed.call_seconds
        if row.work not in hidden and own > 0 and row.predicted > 0:
            subject = f"{row.work} {row.choice}"
            family = family_of(row.choice)
            yield Residual(HERE.environment, family, subject, row.predicted, own)


def _of_program(observed: Observed, name: str, estimates: Sequence[Estimate]) -> Iterator[Residual]:
    """Yield errors of estimates of one program, one a recipe."""
    for recipe, estimate in zip(observed.programs[name], estimates, strict=True):
        yield Residual(
            HERE.environment,
            PROGRAM,
            f"{name}: {recipe.label}",
            estimate.seconds,
            recipe.seconds,
            _scale(estimate),
            len(recipe.kernels),
        )


def _scale(estimate: Estimate) -> float:
    """Return the expected deviation that an interval was made with."""
    return max(np.log(estimate.hi / estimate.seconds) / estimate.width.deviations, 1e-3)


def _judged(
    name: str, recipes: Sequence[ObservedRecipe], estimates: Sequence[Estimate]
) -> ProgramScore:
    measured = [recipe.seconds for recipe in recipes]
    expected = [estimate.seconds for estimate in estimates]
    apart = [
        (i, j)
        for i, j in combinations(range(len(recipes)), 2)
        if abs(np.log(measured[i] / measured[j])) > np.log(1 + APART)
    ]
    right = sum((measured[i] < measured[j]) == (expected[i] < expected[j]) for i, j in apart)
    chosen = measured[int(np.argmin(expected))]
    return ProgramScore(
        name,
        len(apart),
        right,
        chosen / min(measured) - 1,
        len(recipes),
        sum(e.lo <= m <= e.hi for e, m in zip(estimates, measured, strict=True)),
        sum(e.width.calibrated for e in estimates),
        tuple(m / e for m, e in zip(measured, expected, strict=True)),
    )
