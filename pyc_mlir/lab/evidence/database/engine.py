"""`Database`: transactions on SQLite with a log of its own, or PostgreSQL; and their schema.

`connect` makes of a URL a SQLAlchemy engine on an up-to-date schema. SQLite writes ahead (WAL),
with ``synchronous=NORMAL``: a killed process loses nothing that was committed, a machine that loses
power may lose the last transactions. Its writing transactions begin IMMEDIATE: deferred ones that
read before they write fail under load. Files on network file systems are refused, since their locks
cannot be relied on.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import event, exc

from pyc_mlir.dialects.errors import PycError, ReasonCode, install
from pyc_mlir.lab.evidence.database.tables import STEPS

_BUSY_SECONDS = 60
_SCHEMA_LOCK = 0x70796322
_NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "drvfs")
)
_NETWORK_FUSE = re.compile(r"fuse\.(sshfs|s3fs|gcsfuse|glusterfs|ceph.*|rclone|goofys|blobfuse.*)")


def connect(url: str, mounts: Path = Path("/proc/mounts")) -> sa.Engine:
    """Open the database and return its engine; a new database gets the schema.

    Raises PycError (DATABASE_UNUSABLE) for a URL of another system, a missing package, a file on a
    network file system, a server that does not answer, and a schema of a newer PyC.
    """
    engine = _engine(url, mounts)
    try:
        with as_pyc_errors(engine.url), engine.begin() as connection:
            _upgrade(connection)
    except PycError:
        engine.dispose()
        raise
    return engine


def _engine(url: str, mounts: Path) -> sa.Engine:
    try:
        parsed = sa.make_url(url)
    except exc.ArgumentError:
        raise unusable(
            url, "a URL such as sqlite:///pyc.db or postgresql://host/name", "another text"
        ) from None
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    try:
        if parsed.get_backend_name() == "postgresql":
            return sa.create_engine(parsed, pool_pre_ping=True)
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(parsed, mounts)
    except (ImportError, exc.NoSuchModuleError) as error:
        got = f"{error}; {install('postgres')}"
        raise unusable(_shown(parsed), "the package of its driver", got) from None
    raise unusable(_shown(parsed), "sqlite or postgresql", parsed.get_backend_name())


def _sqlite(url: sa.URL, mounts: Path) -> sa.Engine:
    if not url.database or url.database == ":memory:":
        raise unusable(_shown(url), "a file, since processes share the database", "none")
    place = Path(url.database).absolute()
    kind = file_system(place, mounts)
    if kind in _NETWORK or _NETWORK_FUSE.fullmatch(kind):
        raise unusable(
            _shown(url),
            "a file on a disk of this machine",
            f"one on {kind}, whose locks cannot be relied on; use PostgreSQL to share rows",
        )
    engine = sa.create_engine(url, connect_args={"timeout": _BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        # Transactions are begun below, not by the module as it sees fit.
        connection.isolation_level = None
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise unusable(_shown(url), "a file system with shared memory", f"journal mode {mode}")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        reads = connection.get_execution_options().get("pyc_read_only", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the kind of file system that a file lies on, or will; empty if unknown."""
    real, best, kind = os.path.realpath(path), "", ""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        words = line.split(" ")
        if len(words) < 3:
            continue
        point = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), words[1])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        # Of two mounts on one place the later one is seen.
        if inside and len(point) >= len(best):
            best, kind = point, words[2]
    return kind


def _upgrade(connection: sa.Connection) -> None:
    """Carry out the steps that a database lacks; two processes at once do them once."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
    known = sa.inspect(connection).has_table("schema_version")
    query = "SELECT max(version) FROM schema_version"
    version = connection.exec_driver_sql(query).scalar_one() if known else 0
    if version > len(STEPS):
        raise unusable(
            _shown(connection.engine.url),
            f"schema {len(STEPS)} or older",
            f"schema {version}; install the PyC that made it, or a newer one",
        )
    for number, step in enumerate(STEPS[version:], start=version + 1):
        step(connection)
        made = {"version": number, "at": datetime.now(UTC).isoformat()}
        insert = sa.text("INSERT INTO schema_version (version, at) VALUES (:version, :at)")
        connection.execute(insert, made)


@contextlib.contextmanager
def as_pyc_errors(url: sa.URL) -> Iterator[None]:
    """Turn the database's errors into PycError, with its message.

    EVIDENCE_CONFLICT where a row contradicts others, DATABASE_UNUSABLE for the rest.
    """
    try:
        yield
    except exc.DBAPIError as error:
        message = str(error.orig).strip().splitlines()[0]
        if isinstance(error, exc.IntegrityError) or "append-only" in message:
            raise PycError(
                ReasonCode.EVIDENCE_CONFLICT,
                f"{_shown(url)}: expected a row that fits those it names, got: {message}; add what "
                "it refers to first, and change no row",
            ) from None
        raise unusable(_shown(url), "a database that answers", message) from None


def unusable(where: str, expected: str, got: str) -> PycError:
    """Return the error for a database that cannot be used."""
    return PycError(ReasonCode.DATABASE_UNUSABLE, f"{where}: expected {expected}, got {got}")


def _shown(url: sa.URL) -> str:
    """Return a URL without its password."""
    return url.render_as_string(hide_password=True)


class Database:
    """A connection to a benchmark database; safe to use in threads, one for each process.

    clock: Unix time in seconds for leases and moments; None is the database's own (on SQLite this
    machine's), so that workers on several machines agree.
    """

    def __init__(self, engine: sa.Engine, clock: Callable[[], float] | None = None) -> None:
        self._engine, self._clock, self._process = engine, clock, os.getpid()

    @classmethod
    def open(cls, url: str, clock: Callable[[], float] | None = None) -> Self:
        """Open or make a database. Raises PycError (DATABASE_UNUSABLE) as `connect`."""
        return cls(connect(url), clock)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The database's URL without its password."""
        return _shown(self._engine.url)

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a transaction that may write. Raises PycError for what the database refuses."""
        with as_pyc_errors(self._engine.url), self._connection() as connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a transaction that only reads; on SQLite it waits for no writer."""
        with as_pyc_errors(self._engine.url), self._connection() as connection:
            reader = connection.execution_options(pyc_read_only=True)
            with reader.begin():
                yield reader

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sa.Connection]:
        if self._process != os.getpid():
            # The parent's connections stay open there; here they would mix two processes' words.
            self._engine.dispose(close=False)
            self._process = os.getpid()
        with self._engine.connect() as connection:
            yield connection

    def _now(self, connection: sa.Connection) -> float:
        if self._clock is not None:
            return self._clock()
        if connection.dialect.name == "postgresql":
            query = sa.text("SELECT extract(epoch FROM clock_timestamp())")
            return float(connection.execute(query).scalar_one())
        return time.time()

    def moment(self, connection: sa.Connection) -> str:
        """Now as a UTC text that sorts by time."""
        at = datetime.fromtimestamp(self._now(connection), UTC)
        return at.isoformat(timespec="microseconds")
