"""A workload ready to be called, under one or several settings, and which setting is quickest.

Imports little, so that a peer's process holds that peer and not a compiler.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import numpy as np

from pyc_mlir.measure.interleave import interleave

# Longer than whatever a candidate leaves running.
REST_SECONDS = 0.1


@dataclass(frozen=True)
class Spent:
    """Seconds of the clock, and CPU seconds of a process and its children, user and system."""

    seconds: float
    cpu_seconds: float

    @staticmethod
    def so_far() -> "Spent":
        """Return the use since some moment in the past: only differences count."""
        used = (getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN))
        return Spent(time.perf_counter(), sum(u.ru_utime + u.ru_stime for u in used))

    def since(self, start: "Spent") -> "Spent":
        """Return the time spent since `start`."""
        return Spent(self.seconds - start.seconds, self.cpu_seconds - start.cpu_seconds)


@dataclass(frozen=True)
class PreparedWorkload:
    """A workload ready to be called by one candidate: `call` is timed, `results` are checked.

    `peak_bytes` measures what a call needs beside inputs and constants, results included, by the
    system's own account; None where a system has none. `compiled` is what its compile took, where
    more than that is done until it is ready. `account` are the bytes that the program says it
    needs, by purpose, `prediction` is what it says of its time.
    """

    call: Callable[[], object]
    results: Callable[[], Sequence[np.ndarray]]
    peak_bytes: Callable[[], int] | None = None
    compiled: Spent | None = None
    account: Mapping[str, int | None] | None = None
    prediction: str = ""


Settings = Mapping[str, PreparedWorkload]
# In this order they are made, each when it is asked for: the first one is the cold start.
Named = Iterator[tuple[str, PreparedWorkload]]


@dataclass(frozen=True)
class Choice:
    """The quickest setting, and the median seconds of all that were tried."""

    setting: str
    prepared: PreparedWorkload
    tried: Mapping[str, float]


def choose(settings: Settings, rounds: int, min_seconds: float, rest: float) -> Choice:
    """Time the settings, interleaved, and take the one with the least median."""
    if len(settings) == 1:
        ((name, prepared),) = settings.items()
        return Choice(name, prepared, {})
    calls = {name: prepared.call for name, prepared in settings.items()}
    timings = interleave(calls, rounds, min_seconds=min_seconds, rest_seconds=rest)
    tried = {name: timing.median for name, timing in timings.items()}
    best = min(tried, key=tried.__getitem__)
    return Choice(best, settings[best], tried)


def relative_error(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """max |got - expected| / max |expected|, the largest over all results; inf where shapes differ.

    Relative to the largest element: where elements cancel to nearly 0, a ratio says nothing.
    """
    if [r.shape for r in results] != [e.shape for e in expected]:
        return float("inf")
    errors = [0.0]
    for got, wanted in zip(results, expected, strict=True):
        if wanted.size:
            scale = float(np.max(np.abs(wanted))) or 1.0
            errors.append(float(np.max(np.abs(got.astype(np.float64) - wanted))) / scale)
    return float("nan") if np.isnan(errors).any() else max(errors)
