"""A record of the cache's part in a compile: beside the program, never inside its bytes.

The bytes of an artifact are those of its key, whether they were compiled or found. So the record is
no part of the artifact's own log: it stands in `Program.stats().cache`, and `event` is its line
in the log that `pyc-compile --log` writes.
"""

from dataclasses import dataclass

from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.pipelines.choices.evidence import Reason
from pyc_mlir.pipelines.choices.log import CACHE
from pyc_mlir.pipelines.choices.log import Event as LogEvent

# Found on disk; found in this process; compiled and, unless an event says why not, kept; compiled
# without the cache.
HIT, MEMORY, MISS, BYPASS = "hit", "memory", "miss", "bypass"
_SHOWN = 16


@dataclass(frozen=True)
class CacheEvent:
    """Something that kept the cache from answering, or from keeping the answer."""

    code: ReasonCode
    why: str

    def __str__(self) -> str:
        return f"{self.code.name}: {self.why}"


@dataclass(frozen=True)
class CacheRecord:
    """The outcome, the key's SHA-256 in hex (empty without one), and each event with its code.

    `key_seconds` went into making the key, `find_seconds` into finding and reading the entry.
    """

    outcome: str
    key: str = ""
    events: tuple[CacheEvent, ...] = ()
    key_seconds: float = 0.0
    find_seconds: float = 0.0

    @property
    def event(self) -> LogEvent:
        """The record as a line of a log."""
        return LogEvent(
            CACHE,
            self.key[:_SHOWN] or "none",
            self.outcome,
            reasons=tuple(Reason(e.code.name, e.why) for e in self.events),
            measured={"key_seconds": self.key_seconds, "find_seconds": self.find_seconds},
        )
