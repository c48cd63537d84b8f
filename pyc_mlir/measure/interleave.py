"""Fair timing of candidates: interleaved rounds, medians and spread.

Machines drift (frequency, caches, neighbours), so candidates are never timed one after the other:
each round times every candidate once, in an order drawn anew, and ratios are taken within rounds.
Clock and seed are arguments.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode

MAX_CALLS = 1 << 24


@dataclass(frozen=True)
class Spread:
    """A distribution in four numbers: median, 10th and 90th percentile, least; of `n` samples."""

    median: float
    p10: float
    p90: float
    min: float
    n: int

    @staticmethod
    def of(samples: Sequence[float]) -> "Spread":
        """Summarize `samples` (at least one); percentiles interpolate linearly."""
        p10, median, p90 = (float(v) for v in np.percentile(samples, (10, 50, 90)))
        return Spread(median, p10, p90, float(min(samples)), len(samples))


@dataclass(frozen=True)
class Timing:
    """Seconds per call: one sample a round, each the mean of `calls` calls."""

    samples: tuple[float, ...]
    calls: int

    @property
    def spread(self) -> Spread:
        """The samples in four numbers, in seconds."""
        return Spread.of(self.samples)

    @property
    def rounded(self) -> list[float]:
        """The samples to six digits, as records keep them."""
        return [float(f"{sample:.6g}") for sample in self.samples]

    @property
    def median(self) -> float:
        """The median sample in seconds."""
        return self.spread.median


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int = 15,
    warmup: int = 2,
    min_seconds: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
    seed: int = 0,
    rest_seconds: float = 0.0,
) -> dict[str, Timing]:
    """Time every candidate once in each of `rounds` rounds; the order within a round is random.

    `warmup` calls of each come first and are not kept. A sample lasts at least `min_seconds`: a
    quick candidate is called in a loop, as often as a trial before the rounds found necessary.
    Each sample begins after `rest_seconds` of sleep and one call that is not timed: for candidates
    whose worker threads spin on after a call and would take cores from the next one.
    Returns timings by name, in the order of `candidates`. Raises PycError without rounds or
    candidates; what a candidate raises goes through.
    """
    if rounds < 1 or not candidates:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"interleave: expected at least one round and one candidate, "
            f"got {rounds} rounds of {len(candidates)}",
        )
    calls = {}
    for name, run in candidates.items():
        for _ in repeat(None, warmup):
            run()
        calls[name] = _calls_needed(run, min_seconds, clock)
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    order, draw = list(candidates), random.Random(seed)
    for _ in range(rounds):
        draw.shuffle(order)
        for name in order:
            if rest_seconds:
                time.sleep(rest_seconds)
                candidates[name]()
            samples[name].append(_elapsed(candidates[name], calls[name], clock) / calls[name])
    return {name: Timing(tuple(samples[name]), calls[name]) for name in candidates}


def ratio(timings: Mapping[str, Timing], of: str, to: str) -> Spread:
    """Return how many times as long `of` takes as `to`, from the ratios within each round."""
    pairs = zip(timings[of].samples, timings[to].samples, strict=True)
    return Spread.of([a / b for a, b in pairs])


def _elapsed(run: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in repeat(None, calls):
        run()
    return clock() - start


def _calls_needed(run: Callable[[], object], min_seconds: float, clock: Callable[[], float]) -> int:
    """Double the number of calls until they last `min_seconds` (as ``timeit`` does)."""
    calls = 1
    while min_seconds > 0 and calls < MAX_CALLS and _elapsed(run, calls, clock) < min_seconds:
        calls *= 2
    return calls
