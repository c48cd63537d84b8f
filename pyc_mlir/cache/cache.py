"""Compiled programs by their key: in this process's memory, before those on disk.

`choose` reads what a user asks for; `Cache` is the answer. Nothing is written before a program is
kept, and nothing here raises for a bad disk.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.cache_record import HIT, MEMORY, MISS, CacheEvent, CacheRecord
from pyc_mlir.cache.compile_key import Identity, current_identity
from pyc_mlir.cache.folder import default_folder, own_folder
from pyc_mlir.cache.key import Key, nearest, parse_key
from pyc_mlir.cache.sources import Sources
from pyc_mlir.cache.store import CacheStore
from pyc_mlir.dialects.errors import PycError, ReasonCode

MEMORY_BYTES = 64 << 20
# A miss is compared with this many entries, the most recently used.
_COMPARED = 100
_NAMED = 4


@dataclass(frozen=True)
class CacheAnswer:
    """The outcome, and the program or the event that says why there is none."""

    outcome: str
    artifact: Artifact | None = None
    event: CacheEvent | None = None


class Cache:
    """Programs in this process's memory, before those on disk. Several threads may use it."""

    def __init__(
        self,
        store: CacheStore,
        memory_bytes: int = MEMORY_BYTES,
        identity: Callable[[], Identity] = current_identity,
    ) -> None:
        self.store = store
        self.sources = Sources(store, self.note, store.clock)
        self.identity = identity
        self._memory_bytes = memory_bytes
        self._held: OrderedDict[str, Artifact] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of compiles by outcome, and of events by code."""
        with self._lock:
            return dict(sorted(self._counts.items()))

    def find(self, key: Key) -> CacheAnswer:
        """Return the program under a key, or what happened instead."""
        with self._lock:
            held = self._held.get(key.digest)
            if held is not None:
                self._held.move_to_end(key.digest)
        if held is not None:
            self.store.touch(key.digest)
            return CacheAnswer(MEMORY, held)
        found = self.store.read(key.digest, key.text)
        if found.event is not None:
            return CacheAnswer(MISS, event=found.event)
        try:
            artifact = artifacts.from_bytes(found.data, "cache", verified=True)
        except PycError as error:
            self.store.drop(key.digest)
            return CacheAnswer(MISS, event=CacheEvent(ReasonCode.CACHE_DAMAGED, error.message))
        self._hold(key.digest, artifact)
        return CacheAnswer(HIT, artifact)

    def keep(self, key: Key, artifact: Artifact) -> tuple[CacheEvent, ...]:
        """Put a program under its key, in memory and on disk."""
        data = artifacts.to_bytes(artifact)
        self._hold(key.digest, artifacts.from_bytes(data, "cache", verified=True))
        return self.store.write(key.digest, key.text, data)

    def miss_reason(self, key: Key) -> str:
        """Return the parts of the key that differ from the nearest entry's."""
        names = [entry.name for entry in self.store.entries()[:_COMPARED]]
        texts = ((name, self.store.key_of(name)) for name in names)
        parsed = ((name, parse_key(text)) for name, text in texts if text is not None)
        name, parts = nearest(key.parts, ((n, p) for n, p in parsed if p))
        if not name:
            return "no entry for this key; there are no others to compare with"
        more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
        return f"no entry for this key; {name[:16]} differs in {', '.join(parts[:_NAMED])}{more}"

    def count(self, record: CacheRecord) -> None:
        """Count an outcome and its events."""
        with self._lock:
            self._counts[record.outcome] += 1
            self._counts.update(event.code.name for event in record.events)

    def note(self, events: Sequence[CacheEvent]) -> None:
        """Count what happened beside the way of a compile."""
        with self._lock:
            self._counts.update(event.code.name for event in events)

    def _hold(self, digest: str, artifact: Artifact) -> None:
        with self._lock:
            self._held[digest] = artifact
            self._held.move_to_end(digest)
            total = sum(len(a.vmfb) for a in self._held.values())
            while total > self._memory_bytes:
                _, gone = self._held.popitem(last=False)
                total -= len(gone.vmfb)


_open: dict[Path, Cache] = {}
_open_lock = threading.Lock()


def open_cache(folder: str | Path) -> Cache:
    """Return the process's cache of a folder. Nothing is written before a program is kept."""
    path = Path(folder).absolute()
    with _open_lock:
        if path not in _open:
            _open[path] = Cache(CacheStore(path), identity=current_identity)
        return _open[path]


def choose(
    requested: "Cache | bool | str | Path | None", environment: Mapping[str, str]
) -> Cache | None:
    """Return the cache that a user asks for: none (False), the own (True), a folder's, a Cache.

    None is the default: the user's own, unless `PYC_CACHE` is 0 or there is no safe folder for it.

    Raises PycError (BAD_ARGUMENT) for anything else.
    """
    if requested is False:
        return None
    if requested is None:
        folder = own_folder(environment) if _is_on(environment) else None
        return None if folder is None else open_cache(folder)
    if requested is True:
        return open_cache(default_folder(environment))
    if isinstance(requested, Cache):
        return requested
    if isinstance(requested, str | Path) and str(requested):
        return open_cache(requested)
    raise PycError(
        ReasonCode.BAD_ARGUMENT,
        f"cache: expected True, a folder or a Cache, got {requested!r}; name a folder",
    )


_SWITCH = "PYC_CACHE"


def _is_on(environment: Mapping[str, str]) -> bool:
    """Return whether the default is a cache. Raises PycError (BAD_ARGUMENT)."""
    value = environment.get(_SWITCH) or "1"
    if value not in ("0", "1"):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{_SWITCH}: expected 0 (no compile cache unless one is asked for) or 1, got {value!r}",
        )
    return value == "1"
