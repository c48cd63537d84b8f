"""The paired test: whether a program is faster than another, slower, or nobody can tell.

`judge` takes whole sessions; `Pairs` takes one pair of calls after the other, in service.

A process measures both programs in alternating rounds. The pairs of a process give the ratio of
their times by the Hodges-Lehmann estimate of the differences of logarithms, which a few disturbed
rounds do not move. Processes differ by more than rounds do (page placement, cache alignment), so
that with several of them each counts as one sample.

Two clocks are read: wall time, which is what a user waits for, and the CPU time of the thread,
which a loaded machine disturbs less. An answer needs one clock that excludes equality and another
that does not contradict it.

Sources: Hodges, Lehmann, "Estimates of Location Based on Rank Tests" (1963), with the interval of
Wilcoxon's signed-rank test for the rounds of one process; Student's t interval over processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import exp, lgamma, log, pi, sqrt
from statistics import NormalDist

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode

# Rounds of one process that an interval needs, and processes that count as samples of their own.
MIN_ROUNDS, MIN_PROCESSES = 8, 5
# Chance that an interval misses the true ratio.
ALPHA = 0.01
_BISECTIONS = 40
# Of pairs of calls: how many a decision needs, standard errors of a bound, the spread of log ratios
# that is assumed before any was seen, and for how many pairs that counts.
LEAST_PAIRS = 4
_ERRORS, _SPREAD, _STRENGTH, _MOST_RATIO = 2.0, 0.1, 2.0, 1.6


class VerdictKind(StrEnum):
    """The verdict on the candidate against the incumbent."""

    FASTER = "faster"
    SLOWER = "slower"
    UNCLEAR = "unclear"


@dataclass(frozen=True, eq=False)
class Rounds:
    """The rounds of one process: seconds of candidate and incumbent, f64[rounds] each.

    cpu times are the thread's; None where work runs on several threads.
    """

    candidate_wall: np.ndarray
    incumbent_wall: np.ndarray
    candidate_cpu: np.ndarray | None = None
    incumbent_cpu: np.ndarray | None = None

    def log_ratios(self, clock: str) -> np.ndarray | None:
        """Logarithms of candidate / incumbent, round by round; None without this clock.

        Raises PycError (BAD_ARGUMENT) for clocks that are not positive or differ in length.
        """
        ours, theirs = getattr(self, f"candidate_{clock}"), getattr(self, f"incumbent_{clock}")
        if ours is None or theirs is None:
            return None
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        alike = ours.shape == theirs.shape and ours.ndim == 1
        if not (alike and (ours > 0).all() and (theirs > 0).all()):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"rounds: expected as many positive {clock} times of both programs, got shapes "
                f"{ours.shape} and {theirs.shape}; measure again",
            )
        return np.log(ours) - np.log(theirs)


@dataclass(frozen=True)
class Interval:
    """Candidate / incumbent on one clock: the estimate, and bounds at the level 1 - alpha."""

    ratio: float
    low: float
    high: float

    @property
    def answer(self) -> VerdictKind:
        """The verdict by this clock alone."""
        if self.high < 1:
            return VerdictKind.FASTER
        return VerdictKind.SLOWER if self.low > 1 else VerdictKind.UNCLEAR


@dataclass(frozen=True)
class Judgement:
    """The answer, the clock that decides, and the interval of every clock.

    ratio is candidate / incumbent: below 1 the candidate is faster. `processes` and `rounds` are
    what it rests on; `needed` is how many processes of this kind would decide a difference as
    large as the estimate, if the answer is unclear and an estimate of that is possible.
    """

    answer: VerdictKind
    clock: str
    intervals: dict[str, Interval]
    processes: int
    rounds: int
    alpha: float = ALPHA
    needed: int | None = None

    @property
    def interval(self) -> Interval:
        """The interval of the clock that decides."""
        return self.intervals[self.clock]

    @property
    def speedup(self) -> float:
        """The least speed-up, incumbent / candidate, that the verdict guarantees.

        The best bound of a clock; a clock whose estimate is worse than that takes it down.
        """
        found = self.intervals.values()
        return min(max(1 / i.high for i in found), min(1 / i.ratio for i in found))

    def __str__(self) -> str:
        found = self.interval
        return (
            f"{self.answer}: {found.ratio:.3f} of the incumbent's {self.clock} time, "
            f"{100 * (1 - self.alpha):g}% interval {found.low:.3f} to {found.high:.3f}, "
            f"{self.processes} processes, {self.rounds} rounds"
        )


def judge(processes: Sequence[Rounds], alpha: float = ALPHA) -> Judgement:
    """Return the verdict of measurements in one or more processes.

    Raises PycError (BAD_ARGUMENT) without a process of at least `MIN_ROUNDS` rounds.
    """
    enough = [p for p in processes if len(p.candidate_wall) >= MIN_ROUNDS]
    if not enough:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"verdict: expected a process with at least {MIN_ROUNDS} rounds, got "
            f"{[len(p.candidate_wall) for p in processes]}; measure more rounds",
        )
    intervals: dict[str, Interval] = {}
    needed: int | None = None
    for clock in ("wall", "cpu"):
        ratios = [r for p in enough if (r := p.log_ratios(clock)) is not None]
        if len(ratios) == len(enough):
            intervals[clock] = _interval(ratios, alpha)
            needed = _needed(ratios, alpha) or needed
    answers = {clock: found.answer for clock, found in intervals.items()}
    decided = set(answers.values()) - {VerdictKind.UNCLEAR}
    answer = decided.pop() if len(decided) == 1 else VerdictKind.UNCLEAR
    # A clock whose estimate lies on the other side of 1 contradicts.
    ratios = [found.ratio for found in intervals.values()]
    if max(ratios) > 1 if answer is VerdictKind.FASTER else min(ratios) < 1:
        answer = VerdictKind.UNCLEAR
    clock = next((c for c, a in answers.items() if a is answer), "wall")
    rounds = sum(len(p.candidate_wall) for p in enough)
    missing = needed if answer is VerdictKind.UNCLEAR else None
    return Judgement(answer, clock, intervals, len(enough), rounds, alpha, missing)


def judged(processes: Sequence[Rounds], alpha: float = ALPHA) -> Judgement | None:
    """Return the verdict as `judge` does; None of too few rounds."""
    enough = any(len(p.candidate_wall) >= MIN_ROUNDS for p in processes)
    return judge(processes, alpha) if enough else None


def _interval(ratios: Sequence[np.ndarray], alpha: float) -> Interval:
    if len(ratios) >= MIN_PROCESSES:
        estimates = _estimates(ratios)
        middle, error = float(estimates.mean()), float(estimates.std(ddof=1) / sqrt(len(estimates)))
        half = student(1 - alpha / 2, len(estimates) - 1) * error
        return Interval(exp(middle), exp(middle - half), exp(middle + half))
    means, count = _walsh(np.concatenate(ratios)), sum(map(len, ratios))
    # Means of pairs outside of the interval on either side, by the normal limit of signed ranks.
    deviation = sqrt(count * (count + 1) * (2 * count + 1) / 24)
    most = count * (count + 1) / 4 - NormalDist().inv_cdf(1 - alpha / 2) * deviation
    outside = max(0, int(most))
    ends = (float(np.median(means)), float(means[outside]), float(means[-1 - outside]))
    return Interval(*map(exp, ends))


def _walsh(values: np.ndarray) -> np.ndarray:
    """Return the sorted means of all pairs, of equals too; their median estimates the centre."""
    first, second = np.triu_indices(len(values))
    return np.sort((values[first] + values[second]) / 2)


def _estimates(ratios: Sequence[np.ndarray]) -> np.ndarray:
    """Return the Hodges-Lehmann estimate of each process, f64[processes]."""
    return np.array([np.median(_walsh(r)) for r in ratios])


def _needed(ratios: Sequence[np.ndarray], alpha: float) -> int | None:
    """Return the number of processes whose t interval would exclude the present estimate from 0;
    None if unknown.
    """
    if len(ratios) < 2:
        return None
    estimates = _estimates(ratios)
    middle, spread = abs(float(estimates.mean())), float(estimates.std(ddof=1))
    for count in (*range(MIN_PROCESSES, 64), *range(64, 1024, 16)):
        if student(1 - alpha / 2, count - 1) * spread / sqrt(count) < middle:
            return count
    return None


@dataclass
class Pairs:
    """Pairs of calls of an arm and the incumbent: their number, mean log ratio, squared deviations.

    Ratios count up to `_MOST_RATIO`, since load makes single calls many times slower.
    """

    pairs: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, ratio: float) -> None:
        """Count a ratio of seconds (Welford's recurrence on its logarithm)."""
        self.pairs += 1
        value = log(min(max(ratio, 1 / _MOST_RATIO), _MOST_RATIO))
        delta = value - self.mean
        self.mean += delta / self.pairs
        self.squares += delta * (value - self.mean)

    @property
    def half(self) -> float:
        """Half the width of the interval of the mean log ratio."""
        variance = (_STRENGTH * _SPREAD**2 + self.squares) / (self.pairs + _STRENGTH - 1)
        return _ERRORS * sqrt(variance / max(self.pairs, 1))

    @property
    def is_faster(self) -> bool:
        """True if the arm is faster than the incumbent."""
        return self.pairs >= LEAST_PAIRS and self.mean + self.half < 0.0


@cache
def student(chance: float, freedom: int) -> float:
    """Return the quantile of Student's t at a chance above one half.

    Raises PycError (BAD_ARGUMENT) for other chances, or less than one degree of freedom.
    """
    if not 0.5 < chance < 1 or freedom < 1:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"quantile: expected a chance in (0.5, 1) and freedom >= 1, got {chance}, {freedom}",
        )
    low, high = 0.0, 1.0
    while _student_cdf(high, freedom) < chance:
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, freedom) < chance else (low, middle)
    return high


@cache
def _legendre() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(64)


def _student_cdf(value: float, freedom: int) -> float:
    """P(t <= value) for value >= 0, by Gauss-Legendre over the angle arctan(t / sqrt(freedom))."""
    nodes, weights = _legendre()
    end = float(np.arctan(value / sqrt(freedom)))
    angles = (nodes + 1) * end / 2
    constant = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(pi)
    return 0.5 + constant * float((weights * np.cos(angles) ** (freedom - 1)).sum()) * end / 2
