"""The numbers of a service, with stable names.

    pyc_calls_total                      calls that answered
    pyc_call_failures_total{code}        calls that ended by a fault of the program or the machine
    pyc_call_refusals_total{code}        calls that a guard or the service refused
    pyc_server_refusals_total{code}      requests refused before any model was asked
    pyc_call_seconds                     a histogram of the calls that answered
    pyc_swaps_total, pyc_returns_total   builds put in place, and returns to the one before
    pyc_fallbacks_total                  fallbacks taken, of the service and of the contract
    pyc_comparisons_total, pyc_mismatches_total, pyc_comparisons_dropped_total   in the background
    pyc_health                           0 ok, 1 degraded, 2 refusing
    pyc_memory_bytes{part}               constants and arenas of the program in place

A `Snapshot` holds the numbers; `JsonLines` writes one a line, `collector` hands them to
prometheus-client (extra `metrics`).
"""

import json
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from pyc_mlir.dialects.errors import PycError, ReasonCode, install

# Upper bounds in seconds, four a decade from 10 us to 100 s.
BOUNDS = tuple(round(10 ** (e / 4), 9) for e in range(-20, 9))
HEALTH = ("ok", "degraded", "refusing")


class Histogram:
    """Counts of seconds by `BOUNDS`, the last one without a bound, and their sum.

    The caller holds the lock.
    """

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds


@dataclass(frozen=True)
class Snapshot:
    """The numbers of one service at one time.

    health: one of `HEALTH`. failures, refusals: by reason code. buckets: as `Histogram.counts`.
    memory: bytes by part.
    """

    name: str
    build: int
    mode: str
    health: str
    calls: int
    failures: Mapping[str, int]
    refusals: Mapping[str, int]
    buckets: Sequence[int]
    seconds_total: float
    swaps: int
    returns: int
    fallbacks: int
    comparisons: int
    mismatches: int
    dropped: int
    memory: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return plain data, the buckets by their upper bounds."""
        bounds = (*map(str, BOUNDS), "inf")
        return asdict(self) | {"buckets": dict(zip(bounds, self.buckets, strict=True))}


Sources = Callable[[], Iterable[Snapshot]]


class JsonLines:
    """A thread that appends the snapshots to a file, one a line, every so many seconds."""

    def __init__(self, sources: Sources, path: str | Path, seconds: float = 10.0) -> None:
        """Open the file. Raises PycError (FILE_ACCESS)."""
        self._sources, self._seconds = sources, seconds
        try:
            self._file: TextIO = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 (`close`)
        except OSError as error:
            raise PycError(
                ReasonCode.FILE_ACCESS,
                where=str(path),
                expected="a file to append telemetry to",
                got=error.strerror or str(error),
                remedy="name a file in a folder that can be written",
            ) from None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, name="pyc-telemetry", daemon=True)
        self._thread.start()

    def _write(self) -> None:
        while True:
            ended = self._ended.wait(self._seconds)
            for snapshot in self._sources():
                print(json.dumps({"time": time.time(), **snapshot.to_json()}), file=self._file)
            self._file.flush()
            if ended:
                return

    def close(self) -> None:
        """Write once more and close the file."""
        self._ended.set()
        self._thread.join()
        self._file.close()


Counts = Callable[[Snapshot], Mapping[tuple[str, ...], float]]
# Of each family its help, its labels besides `model`, and its values by them.
_COUNTERS: dict[str, tuple[str, tuple[str, ...], Counts]] = {
    "pyc_calls": ("calls that answered", (), lambda s: {(): s.calls}),
    "pyc_call_failures": ("calls that a fault ended", ("code",), lambda s: _coded(s.failures)),
    "pyc_call_refusals": ("calls that were refused", ("code",), lambda s: _coded(s.refusals)),
    "pyc_swaps": ("builds put in place", (), lambda s: {(): s.swaps}),
    "pyc_returns": ("returns to the build before", (), lambda s: {(): s.returns}),
    "pyc_fallbacks": ("fallbacks taken", (), lambda s: {(): s.fallbacks}),
    "pyc_comparisons": ("calls compared in the background", (), lambda s: {(): s.comparisons}),
    "pyc_mismatches": ("compared calls that differed", (), lambda s: {(): s.mismatches}),
    "pyc_comparisons_dropped": ("sampled calls not compared", (), lambda s: {(): s.dropped}),
}
_GAUGES: dict[str, tuple[str, tuple[str, ...], Counts]] = {
    "pyc_health": ("0 ok, 1 degraded, 2 refusing", (), lambda s: {(): HEALTH.index(s.health)}),
    "pyc_memory_bytes": ("bytes of the program", ("part",), lambda s: _coded(s.memory)),
}


def _coded(values: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(name,): value for name, value in values.items()}


class _Collector:
    """Prometheus-client's protocol of collectors."""

    def __init__(self, sources: Sources, refusals: Mapping[str, int]) -> None:
        self._sources, self._refusals = sources, refusals

    def collect(self) -> Iterator[Any]:
        """Yield the families of all services."""
        from prometheus_client import core  # pyright: ignore[reportMissingImports]

        found = list(self._sources())
        for kind, families in (
            (core.CounterMetricFamily, _COUNTERS),
            (core.GaugeMetricFamily, _GAUGES),
        ):
            for name, (text, labels, read) in families.items():
                family = kind(name, text, labels=("model", *labels))
                for s in found:
                    for label, value in read(s).items():
                        family.add_metric((s.name, *label), value)
                yield family
        text = "seconds of calls that answered"
        seconds = core.HistogramMetricFamily("pyc_call_seconds", text, labels=("model",))
        for s in found:
            seconds.add_metric((s.name,), _cumulated(s.buckets), s.seconds_total)
        yield seconds
        text = "requests that were refused before any model was asked"
        refused = core.CounterMetricFamily("pyc_server_refusals", text, labels=("code",))
        for code, number in dict(self._refusals).items():
            refused.add_metric((code,), number)
        yield refused


def collector(sources: Sources, refusals: Mapping[str, int] = MappingProxyType({})) -> Any:
    """Return a collector for `prometheus_client.CollectorRegistry.register`.

    refusals: of a server, by reason code. Raises PycError (MISSING_DEPENDENCY) without
    prometheus-client.
    """
    if find_spec("prometheus_client") is None:
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            where="metrics",
            expected="the package prometheus-client",
            got="none installed",
            remedy=install("metrics"),
        )
    return _Collector(sources, refusals)


def _cumulated(buckets: Sequence[int]) -> list[tuple[str, float]]:
    found, total = [], 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), buckets, strict=True):
        total += count
        found.append((bound, float(total)))
    return found
