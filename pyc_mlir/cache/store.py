"""Programs on disk, by their key: whole, verified at every read, and bounded in size.

    v1/entries/<key>/key.json       every part of the key, in clear
                     artifact.vmfb  the program; pyc-run and IREE's tools run it as it is
                     checksums      bytes, SHA-256 and quick checksum of these two
                     side/          what was found out about the program later, each file sealed
    v1/memo/                        what front ends need not find out again (`sources.py`)
    v1/making/                      what is being written or removed

An entry is made aside, written through to the disk and renamed into place, so that processes that
are killed, or write the same entry at once, leave a whole entry or none. Entries are removed by a
rename, too: whoever reads one has its folder open. An entry's time of modification is that of its
last use; the least recently used go first. Nothing here raises for a bad disk: each call answers
with an `CacheEvent`.
"""

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyc_mlir.artifact.cache_record import CacheEvent
from pyc_mlir.cache.files import (
    making,
    replace_file,
    same_file,
    sealed,
    sha256,
    sweep,
    sync_folder,
    unsealed,
    write_synced,
)
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.util.files import open_plain, read_plain
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
                found.append(Listed(path.name, _size(path), used if used <= now + 1 else 0.0))
        return sorted(found, key=lambda e: (-e.used, e.name))

    def evict(self, max_bytes: int | None = None, keep: str = "") -> int:
        """Remove the least recently used entries beyond the bound, and what killed processes left.

        Returns how many entries went. `keep` is an entry to spare. Memos count; they go when they
        are too many, or no entry is left to go.
        """
        sweep(self._making, self._put_back)
        limit = self.max_bytes if max_bytes is None else max_bytes
        entries, memos = self.entries(), self._memos()
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

    def _memos(self) -> dict[Path, int]:
        """Return the bytes of each memo."""
        found = {}
        for path in _children(self.root / "memo"):
            with contextlib.suppress(OSError):
                found[path] = path.stat().st_size
        return found

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


def _size(path: Path) -> int:
    """Return the bytes of all files of an entry."""
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def _failed(what: str, error: OSError) -> CacheEvent:
    """Make an event without paths, which have no place in a log."""
    return CacheEvent(ReasonCode.CACHE_FOLDER, f"the folder could not be {what}: {error.strerror}")
