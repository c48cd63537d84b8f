"""A compile through the cache: make the key, look it up, compile on a miss.

    artifact = compiled(cache, job, build)

A hit's artifact has the bytes that a compile would have made. Its decisions have the names of the
nodes, which lie beside the entry for each model of this program; the places in the source only a
compile knows. Whatever goes wrong with the cache is an event of the record
and a count, never an error: the program is compiled then.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.cache_record import BYPASS, CacheEvent, CacheRecord
from pyc_mlir.cache.cache import Cache, CacheAnswer
from pyc_mlir.cache.compile_key import Identity, make_key
from pyc_mlir.cache.key import Key, Unkeyed
from pyc_mlir.cache.program import program_part
from pyc_mlir.cache.sources import Contents
from pyc_mlir.cache.store import NAMES, side_name
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.stages import is_degraded
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.signatures import shapes_text
from pyc_mlir.pipelines.choices.node_names import NodeNames
from pyc_mlir.util.logs import CACHE, logger

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
        artifact = way.from_memos(read)
        if artifact is not None:
            return way.with_record(artifact)
        with new_context() as context, ir.Location.unknown():
            loaded, part = load(job, context)
            artifact = way.from_program(part) or way.built(lambda: build(loaded))
    except Unkeyed as refusal:
        way.bypass(str(refusal))
        artifact = way.counted(lambda: build(job))
    return way.with_record(artifact)


class _Lookup:
    """The state of one compile through the cache; `with_record` adds its record."""

    def __init__(self, cache: Cache, job: Job) -> None:
        self.cache = cache
        self._job = job
        self._identity: Identity | None = None
        self._contents: Contents | None = None
        self._key: Key | None = None
        self._side = ""
        self._answer = CacheAnswer(BYPASS)
        self._events: tuple[CacheEvent, ...] = ()
        self._began = perf_counter()
        self._keyed = self._found = 0.0

    def from_memos(self, read: bool) -> Artifact | None:
        """Return the program of files whose digests are known from before. Raises Unkeyed."""
        identity = self._identity = self.cache.identity()
        # What the options cannot name is refused before anything is loaded.
        make_key({}, self._job.options, identity)
        self._contents = self.cache.sources.contents(self._job.source, read)
        if self._contents is None:
            return None
        part = self.cache.sources.known(self._contents, identity)
        return None if part is None else self._find(part)

    def from_program(self, part: Mapping[str, str]) -> Artifact | None:
        """Return the program of a loaded source. Raises Unkeyed."""
        assert self._identity is not None, "the identity comes first"
        if self._contents is not None:
            self.cache.sources.remember(self._contents, self._identity, part)
        return self._find(part)

    def _find(self, part: Mapping[str, str]) -> Artifact | None:
        """Look a program up, once for each key."""
        assert self._identity is not None, "the identity comes first"
        # Programs that enter at IREE are not refined by shapes.
        used = self._job.shapes if part["enters"] == "pyc" else None
        shapes = None if used is None else shapes_text(used)
        self._side = side_name(NAMES, part) if part.get(NAMES) else ""
        keyed = {name: value for name, value in part.items() if name != NAMES}
        key = make_key({**keyed, "shapes": shapes}, self._job.options, self._identity)
        if self._key is not None and key.digest == self._key.digest:
            return None
        self._key, self._keyed = key, perf_counter()
        self._answer = self.cache.find(key)
        self._found = perf_counter()
        if (found := self._answer.artifact) is None or not self._side:
            return found
        return found.named(NodeNames.from_bytes(self.cache.store.read_side(key.digest, self._side)))

    def built(self, build: Callable[[], Artifact]) -> Artifact:
        """Build the program and keep it under its key."""
        assert self._key is not None, "a program was looked up first"
        event = self._answer.event
        if event is not None and event.code is ReasonCode.CACHE_MISS:
            event = replace(event, why=self.cache.miss_reason(self._key))
        self._events = () if event is None else (event,)
        artifact = self.counted(build)
        self._events += self._keep(self._key, artifact)
        return artifact

    def counted(self, build: Callable[[], Artifact]) -> Artifact:
        """Build; where that raises, what the cache did is counted all the same."""
        try:
            return build()
        except Exception:
            self.cache.count(self._record())
            raise

    def _keep(self, key: Key, artifact: Artifact) -> tuple[CacheEvent, ...]:
        """Keep a program unless a clock decided on it, or PyC's source changed meanwhile."""
        if is_degraded(artifact):
            why = "it stands in for what would have taken longer: another compile may have the time"
            return (CacheEvent(ReasonCode.COMPILE_DEGRADED, why),)
        try:
            now = self.cache.identity()
        except Unkeyed as refusal:
            return (CacheEvent(ReasonCode.CACHE_BYPASSED, str(refusal)),)
        if self._identity is None or now.source != self._identity.source:
            why = "PyC's source changed during the compile"
            return (CacheEvent(ReasonCode.CACHE_BYPASSED, why),)
        if (events := self.cache.keep(key, artifact)) or not self._side:
            return events
        names = replace(artifact.names, model=self._job.source.title)
        return self.cache.store.write_side(key.digest, self._side, names.to_bytes())

    def bypass(self, why: str) -> None:
        """Go past the cache."""
        self._key, self._answer = None, CacheAnswer(BYPASS)
        self._keyed = self._found = perf_counter()
        self._events = (CacheEvent(ReasonCode.CACHE_BYPASSED, why),)

    def with_record(self, artifact: Artifact) -> Artifact:
        """Return the artifact with its record, which is counted."""
        record = self._record()
        self.cache.count(record)
        message = "; ".join(map(str, record.events))
        logger(CACHE).info("%s %s %s", record.outcome, record.key[:16], message)
        return replace(artifact, cached=record)

    def _record(self) -> CacheRecord:
        return CacheRecord(
            self._answer.outcome,
            "" if self._key is None else self._key.digest,
            self._events,
            self._keyed - self._began,
            self._found - self._keyed,
        )
