"""Programs on disk, by their key: whole, verified at every read, and bounded in size.

    v1/entries/<key>/key.json       every part of the key, in clear
                     artifact.vmfb  the program; pyc-run and IREE's tools run it as it is
                     checksums      bytes, SHA-256 and quick checksum of these two
                     side/          what was found out about the program later, each file sealed
    v1/memo/                        what front ends need not find out again (`key.py`)
    v1/making/                      what is being written or removed

An entry is made aside, written through to the disk and renamed into place, so that processes that
are killed, or write the same entry at once, leave a whole entry or none. Entries are removed by a
rename, too: whoever reads one has its folder open. An entry's time of modification is that of its
last use; the least recently used go first. Nothing here raises for a bad disk: each call answers
with an `CacheEvent`.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pyc_mlir.artifact.verification import CacheEvent
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import open_plain, read_plain
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.util.checksum import checksum
from pyc_mlir.util.pages import read_on_large_pages

VERSION = "v1"
KEY, ARTIFACT, CHECKSUMS, SIDE = "key.json", "artifact.vmfb", "checksums", "side"
# The names of nodes beside an entry. No key has them: a program is the same under other names.
NAMES = "names"
DEFAULT_BYTES = 4 << 30
MAX_MEMOS = 4096
_KEY_NAME = re.compile(r"[0-9a-f]{64}")
_SMALL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# More than the text of any key, checksum, verification or memo.
_SMALL_BYTES = 16 << 20
_NO_FOLLOW = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
# What a bad sector or a file in a folder's place says.
_BROKEN = (errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


@dataclass(frozen=True)
class StoredEntry:
    """An entry's program, or the event that says why there is none."""

    data: bytes | memoryview = b""
    event: CacheEvent | None = None


@dataclass(frozen=True)
class Listed:
    """An entry without its program: its bytes, and the Unix time of its last use."""

    name: str
    bytes: int
    used: float


class _Damaged(Exception):
    """A damaged entry; the text says what is wrong."""


@dataclass(frozen=True)
class CacheStore:
    """A folder of entries of at most `max_bytes`; `clock` gives Unix time in seconds."""

    folder: Path
    max_bytes: int = DEFAULT_BYTES
    clock: Callable[[], float] = time.time

    @property
    def root(self) -> Path:
        """The folder in which this version's files lie."""
        return self.folder / VERSION

    @property
    def _making(self) -> Path:
        return self.root / "making"

    def path(self, name: str) -> Path:
        """Return the folder of the entry called `name`."""
        return self.root / "entries" / name

    def read(self, name: str, key: bytes) -> StoredEntry:
        """Find the verified program under a key. A damaged entry is removed with an event."""
        path = self.path(name)
        try:
            folder = os.open(path, _NO_FOLLOW | os.O_DIRECTORY)
        except FileNotFoundError:
            return StoredEntry(event=CacheEvent(ReasonCode.CACHE_MISS, "no entry for this key"))
        except OSError as error:
            return self._unreadable(path, error)
        try:
            data = _verified(folder, key)
        except _Damaged as damage:
            if not same_file(folder, path):
                return StoredEntry(
                    event=CacheEvent(ReasonCode.CACHE_MISS, "the entry was just removed")
                )
            self.drop(name, folder)
            return StoredEntry(event=CacheEvent(ReasonCode.CACHE_DAMAGED, str(damage)))
        except OSError as error:
            return self._unreadable(path, error)
        finally:
            os.close(folder)
        self.touch(name)
        return StoredEntry(data)

    def touch(self, name: str) -> None:
        """Note that an entry was used now. A cache that cannot be written to still answers."""
        with contextlib.suppress(OSError):
            os.utime(self.path(name), (self.clock(), self.clock()))

    def _unreadable(self, path: Path, error: OSError) -> StoredEntry:
        if error.errno in _BROKEN and path.parent.is_dir():
            self.drop(path.name)
            return StoredEntry(event=CacheEvent(ReasonCode.CACHE_DAMAGED, f"{error.strerror}"))
        return StoredEntry(event=_failed("read", error))

    def write(self, name: str, key: bytes, data: bytes) -> tuple[CacheEvent, ...]:
        """Keep a program, then remove what is too much. Another process may have been first."""
        if len(data) + len(key) > self.max_bytes:
            size = f"{len(data)} bytes are more than the whole cache may hold ({self.max_bytes})"
            return (CacheEvent(ReasonCode.CACHE_BYPASSED, size),)
        lines = (_line(KEY, key, sha256(key)), _line(ARTIFACT, data, sha256(data)))
        parts = {KEY: key, ARTIFACT: data, CHECKSUMS: sealed("".join(lines).encode())}
        path = self.path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with making(self._making) as folder:
                for part, content in parts.items():
                    write_synced(folder / part, content)
                sync_folder(folder)
                os.utime(folder, (self.clock(), self.clock()))
                os.rename(folder, path)
            sync_folder(path.parent)
        except OSError as error:
            if error.errno not in _TAKEN:
                return (_failed("written", error),)
        self.evict(keep=name)
        return ()

    def drop(self, name: str, descriptor: int | None = None) -> bool:
        """Remove an entry; with a descriptor only if it is still the one that is open there."""
        path = self.path(name)
        try:
            with making(self._making) as folder:
                # Under its own name, so that `sweep` can put back what a kill leaves here.
                moved = folder / ("dropped" if descriptor is None else name)
                os.rename(path, moved)
                if descriptor is not None and not same_file(descriptor, moved):
                    # Another process put a whole one there meanwhile; a second one may be there.
                    with contextlib.suppress(OSError):
                        os.rename(moved, path)
                    return False
        except OSError:
            return False
        return True

    def entries(self) -> list[Listed]:
        """Return all entries, the most recently used first.

        Times in the future, as a clock that was set back leaves them, count as long ago.
        """
        now, found = self.clock(), []
        for path in _children(self.root / "entries"):
            if not _KEY_NAME.fullmatch(path.name):
                continue
            with contextlib.suppress(OSError):
                used = os.stat(path).st_mtime
                size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
                found.append(Listed(path.name, size, used if used <= now + 1 else 0.0))
        return sorted(found, key=lambda e: (-e.used, e.name))

    def evict(self, max_bytes: int | None = None, keep: str = "") -> int:
        """Remove the least recently used entries beyond the bound, and what killed processes left.

        Returns how many entries went. `keep` is an entry to spare. Memos count; they go when they
        are too many, or no entry is left to go.
        """
        sweep(self._making, self._put_back)
        limit = self.max_bytes if max_bytes is None else max_bytes
        entries, memos = self.entries(), dict[Path, int]()
        for path in _children(self.root / "memo"):
            with contextlib.suppress(OSError):
                memos[path] = path.stat().st_size
        if len(memos) > MAX_MEMOS:
            memos = _forgotten(memos)
        total, gone = sum(e.bytes for e in entries) + sum(memos.values()), 0
        for entry in reversed(entries):
            if total <= limit:
                break
            if entry.name != keep and self.drop(entry.name):
                total, gone = total - entry.bytes, gone + 1
        if total > limit:
            _forgotten(memos)
        return gone

    def _put_back(self, folder: Path) -> None:
        """Save whole entries that `drop` had moved aside when its process was killed.

        Where another process has made the entry again, that one stays.
        """
        for path in _children(folder):
            if _KEY_NAME.fullmatch(path.name) and not _flaw(path):
                with contextlib.suppress(OSError):
                    os.rename(path, self.path(path.name))

    def key_of(self, name: str) -> bytes | None:
        """Return the text of an entry's key; None where it cannot be read or is another's."""
        return _key_at(self.path(name))

    def check(self, name: str) -> str:
        """Return what is wrong with an entry, or nothing. It is neither used nor removed."""
        return _flaw(self.path(name))

    def read_side(self, name: str, side: str) -> bytes | None:
        """Read what `write_side` kept beside an entry; None where there is nothing whole."""
        return _unsealed_file(self.path(name) / SIDE / _small_name(side))

    def sides(self, name: str, kind: str) -> list[bytes]:
        """Return what was kept beside an entry under the names that `side_name` makes of a kind."""
        paths = sorted((self.path(name) / SIDE).glob(f"{kind}-*"))
        return [data for path in paths if (data := _unsealed_file(path)) is not None]

    def write_side(self, name: str, side: str, data: bytes) -> tuple[CacheEvent, ...]:
        """Keep something small beside an entry, under a name such as `side_name` makes."""
        folder = self.path(name) / SIDE
        return self._replace(folder / _small_name(side), data, parents=False)

    def read_memo(self, name: str) -> bytes | None:
        """Read what `write_memo` kept; None where there is nothing whole."""
        return _unsealed_file(self.root / "memo" / _small_name(name))

    def write_memo(self, name: str, data: bytes) -> tuple[CacheEvent, ...]:
        """Keep something small that can be found out again."""
        return self._replace(self.root / "memo" / _small_name(name), data, parents=True)

    def _replace(self, path: Path, data: bytes, parents: bool) -> tuple[CacheEvent, ...]:
        try:
            path.parent.mkdir(parents=parents, exist_ok=True)
            replace_file(path, sealed(data), self._making)
        except OSError as error:
            return (_failed("written", error),)
        return ()


def _key_at(path: Path) -> bytes | None:
    """Return the text of the key of an entry that lies at `path`, whose name is its digest."""
    try:
        text = read_plain(path / KEY)
    except OSError:
        return None
    return text if sha256(text) == path.name else None


def _flaw(path: Path) -> str:
    """Return what is wrong with the entry that lies at `path`; empty if nothing is."""
    key = _key_at(path)
    if key is None:
        return f"{KEY}: expected the text whose SHA-256 is the entry's name"
    try:
        folder = os.open(path, _NO_FOLLOW | os.O_DIRECTORY)
    except OSError as error:
        return str(error.strerror)
    try:
        _verified(folder, key, whole=True)
    except (_Damaged, OSError) as error:
        return str(error)
    finally:
        os.close(folder)
    return ""


def _forgotten(memos: Iterable[Path]) -> dict[Path, int]:
    """Return what is left of memos after they were removed: nothing."""
    for path in memos:
        with contextlib.suppress(OSError):
            path.unlink()
    return {}


def _verified(folder: int, key: bytes, whole: bool = False) -> bytes | memoryview:
    """Read the program of an open entry; `whole` checks SHA-256. Raises _Damaged, or OSError."""
    sums = unsealed(_part(folder, CHECKSUMS, _SMALL_BYTES))
    lines = [] if sums is None else sums.decode().splitlines()
    if len(lines) != 2:
        raise _Damaged(f"{CHECKSUMS}: expected two lines as they were written")
    if _part(folder, KEY, len(key)) != key:
        raise _Damaged(f"{KEY}: expected the text of the key")
    size, digest, quick, _ = lines[1].split(" ")
    data = _part(folder, ARTIFACT, int(size))
    if len(data) != int(size) or checksum(data) != quick:
        raise _Damaged(f"{ARTIFACT}: expected the bytes that `{CHECKSUMS}` names")
    if whole and sha256(data) != digest:
        raise _Damaged(f"{ARTIFACT}: expected the SHA-256 that `{CHECKSUMS}` names")
    return data


def _part(folder: int, name: str, most: int) -> bytes | memoryview:
    """Read a file of an open entry, of at most `most` bytes. Raises _Damaged, or OSError."""
    try:
        opened = open_plain(name, flags=os.O_NOFOLLOW, folder=folder)
    except FileNotFoundError:
        raise _Damaged(f"{name}: expected a file, found none") from None
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise _Damaged(f"{name}: expected at most {most} bytes")
        return read_on_large_pages(file, size)


def _line(name: str, data: bytes, digest: str) -> str:
    return f"{len(data)} {digest} {checksum(data)} {name}\n"


def side_name(kind: str, who: Mapping[str, str]) -> str:
    """Return the file of a fact of one environment only, such as a verification record."""
    return f"{kind}-{sha256(json.dumps(dict(who), sort_keys=True).encode())[:16]}"


def _small_name(name: str) -> str:
    # It becomes a part of a path, so this is no assertion, which `python -O` leaves out.
    if not _SMALL_NAME.fullmatch(name):
        raise ValueError(f"expected a name of PyC's own, got {name!r}")
    return name


def _unsealed_file(path: Path) -> bytes | None:
    try:
        with open_plain(path) as file:
            return unsealed(file.read(_SMALL_BYTES))
    except OSError:
        return None


def _children(folder: Path) -> Sequence[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _failed(what: str, error: OSError) -> CacheEvent:
    """Make an event without paths, which have no place in a log."""
    return CacheEvent(ReasonCode.CACHE_FOLDER, f"the folder could not be {what}: {error.strerror}")


# Blocks of a file are hashed side by side: `tree_digest`.
BLOCK_BYTES = 1 << 20
_PARALLEL_BYTES = 8 << 20
_ATTEMPTS = 8
_DIGITS = 64


def sha256(data: bytes | memoryview) -> str:
    """Return the SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def tree_digest(data: bytes | memoryview) -> str:
    """Return the SHA-256 over each MiB's SHA-256, in hex; several cores take part in large ones."""
    view = memoryview(data).cast("B")
    blocks = [view[i : i + BLOCK_BYTES] for i in range(0, len(view), BLOCK_BYTES)]

    def one(block: memoryview) -> bytes:
        return hashlib.sha256(block).digest()

    workers = min(4, os.cpu_count() or 1)
    if view.nbytes < _PARALLEL_BYTES or workers == 1:
        return sha256(b"".join(map(one, blocks)))
    with ThreadPoolExecutor(workers) as pool:
        return sha256(b"".join(pool.map(one, blocks)))


def file_digest(path: Path) -> str:
    """Return the `tree_digest` of a file's content, of which at most a MiB is held at once."""
    blocks = []
    with open_plain(path) as file:
        while block := file.read(BLOCK_BYTES):
            blocks.append(hashlib.sha256(block).digest())
    return sha256(b"".join(blocks))


def sealed(data: bytes) -> bytes:
    """Return `data` after a line with its SHA-256."""
    return f"{sha256(data)}\n".encode() + data


def unsealed(data: bytes | memoryview) -> bytes | None:
    """Return what `sealed` was given; None for anything damaged."""
    rest = bytes(data[_DIGITS + 1 :])
    return rest if data[: _DIGITS + 1] == f"{sha256(rest)}\n".encode() else None


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until the disk has it. Raises OSError."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def same_file(descriptor: int, path: Path) -> bool:
    """Return True while `path` leads to what is open as `descriptor`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


@contextlib.contextmanager
def making(parent: Path) -> Iterator[Path]:
    """Yield a new, locked folder under `parent`; what is left of it at the end is removed.

    Raises OSError.
    """
    folder, descriptor = _locked_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    parent.mkdir(parents=True, exist_ok=True)
    for _ in range(_ATTEMPTS):
        # As others of the user's folders are: a cache may be shared to be read.
        folder = parent / secrets.token_hex(8)
        folder.mkdir()
        # Between these two lines a sweep may take the folder for one that was left behind.
        descriptor = _lock(folder)
        if descriptor is not None and same_file(descriptor, folder):
            return folder, descriptor
        if descriptor is not None:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            folder.rmdir()
    raise OSError(f"{parent}: expected to lock a new folder, got none in {_ATTEMPTS} attempts")


def _lock(folder: Path) -> int | None:
    """Yield the open folder under a lock of its own; None where it is gone or another holds it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def sweep(parent: Path, save: Callable[[Path], None] = lambda folder: None) -> int:
    """Remove what killed processes left in making; return how many folders.

    save: is given each folder first, to take out of it what is not to go.
    """
    swept = 0
    for folder in _children(parent):
        descriptor = _lock(folder)
        if descriptor is not None:
            save(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
            swept += not folder.exists()
    return swept


def replace_file(path: Path, data: bytes, parent: Path) -> None:
    """Put a whole file at `path`, made in a folder under `parent`. Raises OSError."""
    with making(parent) as folder:
        write_synced(folder / path.name, data)
        os.replace(folder / path.name, path)


FOLDER = "pyc-mlir"
_BASE, _HOME = "XDG_CACHE_HOME", "HOME"


def own_folder(environment: Mapping[str, str]) -> Path | None:
    """`default_folder`, if it may be used without having been asked for; else None.

    It may not where the folder, or the nearest one above it that exists, belongs to another user or
    may be written to by all, as what lies in it is run; nor below a home that is missing or is the
    root of the file system.
    """
    try:
        folder = default_folder(environment)
    except PycError:
        return None
    root = Path(folder.anchor)
    base = next(path for path in (folder, *folder.parents) if path.exists())
    if root in (base, folder.parent, folder.parent.parent):
        return None
    status = os.stat(base)
    is_own = status.st_uid == os.geteuid() and not status.st_mode & stat.S_IWOTH
    return folder if is_own else None


def default_folder(environment: Mapping[str, str]) -> Path:
    """Return the user's own folder by the XDG base directories. Nothing is created.

    Raises PycError (BAD_ARGUMENT) where the environment names none: there is no folder of the
    user's own then, and none is made up.
    """
    # The specification has relative paths ignored.
    base, home = (environment.get(name, "") for name in (_BASE, _HOME))
    if base.startswith("/"):
        return Path(base) / FOLDER
    if home.startswith("/"):
        return Path(home) / ".cache" / FOLDER
    raise PycError(
        ReasonCode.BAD_ARGUMENT,
        f"cache: expected an absolute path in the variable {_BASE} or {_HOME}, got {base!r} and "
        f"{home!r}; set one of them, or name a folder",
    )


KEY_SCHEMA = 2


@dataclass(frozen=True)
class Key:
    """The parts as JSON data; equal parts have equal bytes."""

    parts: Mapping[str, Any]

    @cached_property
    def text(self) -> bytes:
        """The bytes of ``key.json``."""
        return f"{json.dumps(self.parts, indent=1, sort_keys=True)}\n".encode()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of `text`, in hex."""
        return sha256(self.text)


def flat(parts: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten to ``{"options.target.cores": 4, ...}``; lists of plain values stay whole."""
    if isinstance(parts, Mapping):
        found = {}
        for name, value in parts.items():
            found |= flat(value, f"{prefix}.{name}" if prefix else name)
        return found or {prefix: {}}
    return {prefix: parts}


def differences(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of the parts that differ, sorted."""
    left, right = flat(mine), flat(other)
    return sorted(n for n in left.keys() | right.keys() if left.get(n, ...) != right.get(n, ...))


def nearest(
    mine: Mapping[str, Any], others: Iterable[tuple[str, Mapping[str, Any]]]
) -> tuple[str, list[str]]:
    """Return the entry that differs in the fewest parts, and these; the first of those that tie.

    An entry of the same program counts as nearer than any other. Empty without entries.
    """
    best: tuple[bool, int] | None = None
    name, parts = "", []
    for other, its in others:
        odd = differences(mine, its)
        rank = (any(p.startswith("program.") for p in odd), len(odd))
        if best is None or rank < best:
            best, name, parts = rank, other, odd
    return name, parts


def parse_key(text: bytes) -> Mapping[str, Any]:
    """Return the parts of a key's text; empty for what is no key of this schema."""
    try:
        found = parse_json(text)
    except ValueError:
        return {}
    known = isinstance(found, dict) and found.get("schema") == KEY_SCHEMA
    return found if known else {}


class Unkeyed(Exception):
    """Something takes part in a compile that no content can name; the text says what.

    It never reaches a user: such a compile goes past the cache, and its record has the reason.
    """
