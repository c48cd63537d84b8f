"""Events of a running program (guards, fallbacks, switches) as decisions of a log.

A call that just answers leaves nothing here but a count. The lines have the schema of a compile's
decisions (`pipelines/choices/choices.py`), under the pass ``run``; no recipe repeats them.
"""

import threading
from collections import deque
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.choices import RUN, Alternative, Decision, Site
from pyc_mlir.util.logs import RUN as LOGGED
from pyc_mlir.util.logs import logger

MOST_EVENTS = 256
# The events, and what is turned down by each.
LOAD, RELEASE, GUARD, MODE, FALLBACK, RUNTIME, CALLS = (
    "load",
    "release",
    "guard",
    "mode",
    "fallback",
    "runtime",
    "calls",
)
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


def load_refused(error: PycError) -> Decision:
    """The only line of the log of a program that could not be loaded."""
    offered = (Alternative(REFUSED), Alternative(LOADED))
    said = (f"{error.code.name}: {error.message}",)
    return Decision(Site(RUN, LOAD), REFUSED, offered, LOAD, said)


class RunLog:
    """The latest events of one program, in their order. Several threads may write."""

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._events: deque[Decision] = deque(maxlen=most)
        self._dropped = 0
        self._lock = threading.Lock()

    def add(
        self, event: str, chosen: str, why: str, code: ReasonCode | None = None, before: str = ""
    ) -> None:
        """An event: what was taken in place of `before`, and why, with its code."""
        offered = tuple(Alternative(name) for name in (chosen, before) if name)
        said = f"{code.name}: {why}" if code else why
        made = Decision(Site(RUN, event), chosen, offered, event, (said,))
        with self._lock:
            self._dropped += len(self._events) == self._events.maxlen
            self._events.append(made)
        logger(LOGGED).info("%s: %s, %s", event, chosen, said)

    def refused(self, error: PycError) -> None:
        """A call that an error ended: by a guard before it ran, or by the runtime."""
        ran = error.code in (ReasonCode.RUNTIME_FAILED, ReasonCode.OUT_OF_MEMORY)
        event = RUNTIME if ran else GUARD
        self.add(event, REFUSED, error.message, error.code, ANSWERED)

    def differs(self, why: str) -> None:
        """A load although the program was compiled for another release of the runtime."""
        self.add(RELEASE, LOADED, why, ReasonCode.RUNTIME_DIFFERS, REFUSED)

    def told(self, stats: Any) -> tuple[Decision, ...]:
        """What the cache did, the events, and one line that counts: of a program's `stats`."""
        with self._lock:
            events, dropped = tuple(self._events), self._dropped
        cached = () if stats.cache is None else (stats.cache.decision,)
        counts = {name: getattr(stats, name) for name in COUNTED}
        measured = {**counts, "events_dropped": dropped, **stats.contract.broken}
        offered = (Alternative(ANSWERED),)
        last = Decision(Site(RUN, CALLS), ANSWERED, offered, CALLS, (), measured)
        return (*cached, *events, last)
