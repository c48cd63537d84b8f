"""The counts of a program, and events (guards, fallbacks, switches) for a log.

A call that just answers leaves nothing here but a count.
"""

import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyc_mlir.artifact.import_report import ImportReport
from pyc_mlir.artifact.memory import Account
from pyc_mlir.artifact.verification import CacheRecord, SelfCheck
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import ContractReport
from pyc_mlir.pipelines.choices.evidence import Reason
from pyc_mlir.pipelines.choices.log import RUN, Event
from pyc_mlir.util.html import facts_table
from pyc_mlir.util.logs import RUN as LOGGED
from pyc_mlir.util.logs import logger
from pyc_mlir.util.units import quantity

if TYPE_CHECKING:
    from pyc_mlir.runtime.counts import ApproximationCounts, FaultCounts
    from pyc_mlir.runtime.device import MemoryStatistics
    from pyc_mlir.runtime.monitor import Fallback
    from pyc_mlir.runtime.plans import ModeSwitch
    from pyc_mlir.runtime.selection.selector import RouteCount

MOST_EVENTS = 256
# The events, and what is turned down by each.
LOAD, RELEASE, GUARD, MODE, FALLBACK, RUNTIME, CALLS, FAULT = (
    "load",
    "release",
    "guard",
    "mode",
    "fallback",
    "runtime",
    "calls",
    "fault",
)
# Codes of calls that had begun to run.
_RAN = (ReasonCode.RUNTIME_FAILED, ReasonCode.OUT_OF_MEMORY, ReasonCode.FAULT_DETECTED)
# How many inputs and outputs a program's `repr` shows.
_SHOWN = 4
REFUSED, ANSWERED, LOADED = "refused", "answered", "loaded"
COUNTED = (
    "calls",
    "guard_failures",
    "comparisons",
    "wrong_results",
    "mode_switches",
    "arena_waits",
    "seconds_total",
)


def load_refused(error: PycError) -> Event:
    """Write the only line of the log of a program that could not be loaded."""
    return Event(RUN, LOAD, REFUSED, LOADED, (Reason(error.code.name, error.message),))


class RunLog:
    """The latest events of one program, in their order. Several threads may write."""

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._events: deque[Event] = deque(maxlen=most)
        self._dropped = 0
        self._fired: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(
        self, event: str, chosen: str, why: str, code: ReasonCode | None = None, before: str = ""
    ) -> None:
        """Add an event: what was taken in place of `before`, and why, with its code."""
        reason = Reason(code.name if code else "", why)
        made = Event(RUN, event, chosen, before, (reason,))
        with self._lock:
            self._dropped += len(self._events) == self._events.maxlen
            self._events.append(made)
        logger(LOGGED).info("%s: %s, %s", event, chosen, reason)

    def refused(self, error: PycError) -> None:
        """Record a call that an error ended: by a guard before it ran, or by the runtime."""
        event = RUNTIME if error.code in _RAN else GUARD
        with self._lock:
            self._fired[error.code.name] += 1
        self.add(event, REFUSED, error.message, error.code, ANSWERED)

    def differs(self, why: str) -> None:
        """Record a load although the program was compiled for another release of the runtime."""
        self.add(RELEASE, LOADED, why, ReasonCode.RUNTIME_DIFFERS, REFUSED)

    def fired(self) -> Counter[str]:
        """Count the calls that an error ended, by the names of their codes."""
        with self._lock:
            return Counter(self._fired)

    def latest(self) -> tuple[Event, ...]:
        """List the latest events."""
        with self._lock:
            return tuple(self._events)

    def events(self, stats: Any) -> tuple[Event, ...]:
        """List what the cache did, the events, and one line that counts: of a program's `stats`."""
        with self._lock:
            events, dropped = tuple(self._events), self._dropped
        cached = () if stats.cache is None else (stats.cache.event,)
        counts = {name: getattr(stats, name) for name in COUNTED}
        measured = {**counts, "events_dropped": dropped}
        if len(stats.served) > 1:
            measured |= {f"served by {name}": calls for name, calls in stats.served.items()}
        for route in stats.routes:
            measured[f"tries of {route.route}"] = route.tries
            measured[f"seconds lost by tries of {route.route}"] = route.lost_seconds
        last = Event(RUN, CALLS, ANSWERED, measured=measured, broken=stats.contract.broken)
        return (*cached, *events, last)


@dataclass(frozen=True)
class ProgramStats:
    """The statistics of a program.

    Times are seconds of whole calls, guards and conversions included; the median is that of
    the last 1,024 calls.

    `memory` is what the program needs by its manifest; `device_memory` counts what everybody has
    allocated on the device, without constants that lie in the file. `arena_bytes` are what the
    program's arenas hold now, and `arena_waits` counts the calls that found all arenas in use.
    `mode` names the plan in use, `mode_switches` counts the changes of it, and `switches` are the
    latest. `contract` tells of each clause; `comparisons` counts calls that were compared with the
    reference (which is no part of their times), `wrong_results` samples and calls that differed,
    and `fallbacks` are those that were taken. `imported` is how much of the program PyC compiles,
    `cache` what the compile cache did for it, if it was asked, `check` how it compared with its
    references when this process compiled it. `other_runtime` says which release of IREE's runtime
    the program was compiled for, if this is another one (RUNTIME_DIFFERS). `faults` counts what
    checksums found, under `detect_faults`, and `approximations` the tiles of products that were
    approximated, under a bound of the error. `served` counts the calls of each plan: modes by their
    names, plans for certain shapes by their sizes. `routes` are what a selector did, if there is
    one.
    """

    calls: int
    guard_failures: int
    seconds_total: float
    seconds_last: float | None
    seconds_median: float | None
    memory: Account
    device_memory: "MemoryStatistics"
    artifact_bytes: int
    arena_bytes: int
    arena_waits: int
    mode: str
    mode_switches: int
    switches: "tuple[ModeSwitch, ...]"
    contract: ContractReport
    comparisons: int
    wrong_results: int
    fallbacks: "tuple[Fallback, ...]"
    imported: ImportReport
    cache: CacheRecord | None = None
    check: SelfCheck | None = None
    other_runtime: str = ""
    faults: "FaultCounts | None" = None
    approximations: "ApproximationCounts | None" = None
    served: Mapping[str, int] = field(default_factory=dict)
    routes: "tuple[RouteCount, ...]" = ()

    def __repr__(self) -> str:
        return f"ProgramStats({', '.join(f'{n}: {v}' for n, v in self._shown().items())})"

    def _repr_html_(self) -> str:
        return facts_table("ProgramStats", self._shown())

    def _shown(self) -> dict[str, str]:
        """Describe the figures that are looked at most."""
        median = self.seconds_median
        shown = {
            "calls": str(self.calls),
            "median": "none" if median is None else quantity(median, "s"),
            "guard failures": str(self.guard_failures),
            "artifact": quantity(self.artifact_bytes, "B"),
            "memory": str(self.memory),
            "arenas held": quantity(self.arena_bytes, "B"),
        }
        if self.mode:
            shown["mode"] = self.mode
        if len(self.served) > 1:
            counts = (f"{name}: {calls}" for name, calls in self.served.items())
            shown["calls by plan"] = ", ".join(counts)
        if self.check is not None:
            shown["self-check"] = str(self.check)
        if self.faults is not None:
            shown["faults"] = str(self.faults)
        if self.approximations is not None and self.approximations.tiles:
            shown["approximations"] = str(self.approximations)
        if self.wrong_results or self.fallbacks:
            shown["wrong results"] = str(self.wrong_results)
            shown["fallbacks"] = "; ".join(map(str, self.fallbacks)) or "none"
        return shown


def few(texts: Sequence[str]) -> str:
    """Name the first of them, and how many more there are."""
    more = [f"{len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return ", ".join([*texts[:_SHOWN], *more])
