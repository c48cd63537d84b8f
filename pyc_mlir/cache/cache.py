"""Compiled programs by their key: in this process's memory, before those on disk.

`choose` reads what a user asks for; `Cache` is the answer. Nothing is written before a program is
kept, and nothing here raises for a bad disk.
"""

import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.verification import (
    BYPASS,
    HIT,
    MEMORY,
    MISS,
    CacheEvent,
    CacheRecord,
    SelfCheck,
    Unchecked,
    Verification,
)
from pyc_mlir.cache.key import Identity, Sources, current_identity, make_key, program_part
from pyc_mlir.cache.store import (
    NAMES,
    CacheStore,
    Key,
    Unkeyed,
    default_folder,
    nearest,
    own_folder,
    parse_key,
    side_name,
)
from pyc_mlir.compilation.job import Job, is_degraded
from pyc_mlir.compilation.options import is_on
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.frontends.signatures import shapes_text
from pyc_mlir.pipelines.choices.log import NodeNames
from pyc_mlir.runtime.device import Device, environment_of
from pyc_mlir.util.logs import CACHE, logger

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
        folder = own_folder(environment) if is_on("PYC_CACHE", "1", environment) else None
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


# A compile through the cache: make the key, look it up, compile on a miss.
#
#     artifact = compiled(cache, job, build)
#
# A hit's artifact has the bytes that a compile would have made. Its decisions have the names of the
# nodes, which lie beside the entry for each model of this program; the places in the source only a
# compile knows. Whatever goes wrong with the cache is an event of the record
# and a count, never an error: the program is compiled then.

Build = Callable[[Job], Artifact]
# From a job and a context to the job that `Build` takes, and the program's part of the key.
Load = Callable[[Job, ir.Context], tuple[Job, Mapping[str, str]]]


def load_here(job: Job, context: ir.Context) -> tuple[Job, Mapping[str, str]]:
    """Read a source in this process. Raises Unkeyed, and what the front end raises."""
    loaded = job.load(context)
    return job.loaded(loaded), program_part(loaded)


def compiled(
    cache: Cache, job: Job, build: Build, load: Load = load_here, read: bool = True
) -> Artifact:
    """Return the program from the cache, else what `build` makes, which is kept.

    Its `cached` says which of the two it is.

    read: whether files of the source may be read in this process.
    Raises what the front end and `build` raise.
    """
    way = _Lookup(cache, job)
    try:
        identity = cache.identity()
        # What the options cannot name is refused before anything is loaded.
        make_key({}, job.options, identity)
        contents = cache.sources.contents(job.source, read)
        part = None if contents is None else cache.sources.known(contents, identity)
        artifact = None if part is None else way.find(part, identity)
        if artifact is not None:
            return way.recorded(artifact)
        with new_context() as context, ir.Location.unknown():
            loaded, part = load(job, context)
            if contents is not None:
                cache.sources.remember(contents, identity, part)
            artifact = way.find(part, identity)
            if artifact is None:
                artifact = way.kept(way.counted(build, loaded), identity)
    except Unkeyed as refusal:
        way.bypass(str(refusal))
        artifact = way.counted(build, job)
    return way.recorded(artifact)


class _Lookup:
    """One compile on its way through the cache: what happens to it, for its record."""

    def __init__(self, cache: Cache, job: Job) -> None:
        self.cache, self._job = cache, job
        self._key: Key | None = None
        self._side = ""
        self._outcome = BYPASS
        self._events: tuple[CacheEvent, ...] = ()
        self._began = self._keyed = self._found = perf_counter()

    def find(self, part: Mapping[str, str], identity: Identity) -> Artifact | None:
        """Look a program up, once for each key. Raises Unkeyed."""
        # Programs that enter at IREE are not refined by shapes.
        used = self._job.shapes if part["enters"] == "pyc" else None
        shapes = None if used is None else shapes_text(used)
        keyed = {name: value for name, value in part.items() if name != NAMES}
        key = make_key({**keyed, "shapes": shapes}, self._job.options, identity)
        self._side = side_name(NAMES, part) if part.get(NAMES) else ""
        if self._key is not None and key.digest == self._key.digest:
            return None
        self._key, self._keyed = key, perf_counter()
        answer = self.cache.find(key)
        self._outcome, self._found = answer.outcome, perf_counter()
        event = answer.event
        if event is not None and event.code is ReasonCode.CACHE_MISS:
            event = replace(event, why=self.cache.miss_reason(key))
        self._events = () if event is None else (event,)
        if (found := answer.artifact) is None or not self._side:
            return found
        return found.named(NodeNames.from_bytes(self.cache.store.read_side(key.digest, self._side)))

    def counted(self, build: Build, job: Job) -> Artifact:
        """Build; where that raises, what the cache did is counted all the same."""
        try:
            return build(job)
        except Exception:
            self.cache.count(self._record())
            raise

    def kept(self, artifact: Artifact, identity: Identity) -> Artifact:
        """Keep a program unless a clock decided on it, or PyC's source changed meanwhile."""
        assert self._key is not None, "a program was looked up first"
        event = None
        if is_degraded(artifact):
            why = "it stands in for what would have taken longer: another compile may have the time"
            event = CacheEvent(ReasonCode.COMPILE_DEGRADED, why)
        else:
            try:
                if self.cache.identity().source != identity.source:
                    raise Unkeyed("PyC's source changed during the compile")
            except Unkeyed as refusal:
                event = CacheEvent(ReasonCode.CACHE_BYPASSED, str(refusal))
        if event is not None:
            self._events += (event,)
            return artifact
        events = self.cache.keep(self._key, artifact)
        if not events and self._side:
            names = replace(artifact.names, model=self._job.source.title).to_bytes()
            events = self.cache.store.write_side(self._key.digest, self._side, names)
        self._events += events
        return artifact

    def bypass(self, why: str) -> None:
        """Go past the cache."""
        self._key, self._outcome = None, BYPASS
        self._keyed = self._found = perf_counter()
        self._events = (CacheEvent(ReasonCode.CACHE_BYPASSED, why),)

    def recorded(self, artifact: Artifact) -> Artifact:
        """Return the artifact with its record, which is counted."""
        record = self._record()
        self.cache.count(record)
        message = "; ".join(map(str, record.events))
        logger(CACHE).info("%s %s %s", record.outcome, record.key[:16], message)
        return replace(artifact, cached=record)

    def _record(self) -> CacheRecord:
        return CacheRecord(
            self._outcome,
            "" if self._key is None else self._key.digest,
            self._events,
            self._keyed - self._began,
            self._found - self._keyed,
        )


# A program of the cache that was compared with its samples here need not be compared again. Here
# means under the same runtime, on the same kind of device and CPU: the side file is named after
# that, and the record in it says so once more, with the hash of program and samples. Whatever
# cannot be read is no record. The outcome of a compile's check of itself stands there too: it holds
# for the entry, whose key names the CPU and whether the check was on.

KIND, CHECK_KIND = "verification", "self-check"
# The entry's key says all that the outcome of a check depends on.
_CHECK_NAME = side_name(CHECK_KIND, {})


@dataclass(frozen=True)
class Verifications:
    """The verification records of one program, beside its entry; `key` is the entry's name."""

    cache: Cache
    key: str

    @staticmethod
    def of(cache: Cache, record: CacheRecord | None) -> "Verifications | None":
        """Return those of the program of a record; None for one that went past the cache."""
        return None if record is None or not record.key else Verifications(cache, record.key)

    def known(self, device: Device) -> Verification | None:
        """Return the verification of an earlier comparison on such a device."""
        data = self.cache.store.read_side(self.key, side_name(KIND, environment_of(device)))
        if data is None:
            return None
        try:
            return from_data(Verification, parse_json(data))
        # Sealed by whoever wrote it, which need not be this version of PyC.
        except ValueError:
            return None

    def keep(self, verification: Verification) -> None:
        """Keep what a comparison found; of one that failed nothing is kept."""
        if verification.passed:
            self._write(side_name(KIND, verification.environment), verification)

    def keep_check(self, check: SelfCheck) -> None:
        """Keep the outcome of a compile's check of itself."""
        self._write(_CHECK_NAME, check)

    def known_check(self) -> SelfCheck:
        """Return the outcome that was kept; else that there is no record."""
        data = self.cache.store.read_side(self.key, _CHECK_NAME)
        try:
            if data is not None:
                return from_data(SelfCheck, parse_json(data))
        except ValueError:
            pass
        return SelfCheck.without(Unchecked.NO_RECORD)

    def _write(self, name: str, content: Verification | SelfCheck) -> None:
        data, store = json.dumps(to_data(content), sort_keys=True).encode(), self.cache.store
        if store.read_side(self.key, name) != data:
            self.cache.note(store.write_side(self.key, name, data))


def noted(artifact: Artifact, verifications: Verifications | None) -> Artifact:
    """Keep the verification record of an artifact that was compiled here beside its entry."""
    checks = artifact.checks
    if verifications is not None and checks is not None:
        if checks.verification is not None:
            verifications.keep(checks.verification)
        if checks.check is not None:
            verifications.keep_check(checks.check)
    return artifact


def recalled(artifact: Artifact, verifications: Verifications | None) -> Artifact:
    """Return a program from the cache with the outcome of the check of its compile."""
    if verifications is None:
        return artifact
    return artifact.with_checks(check=verifications.known_check())
