"""Files written whole or not at all, whose damage is detected.

`making` gives a folder in which something is made before a rename puts it where others look; it
holds a lock that the system lets go when its process ends, so that `sweep` can tell what is being
made from what was left behind by a process that was killed. No call waits for another process.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyc_mlir.dialects.util.files import open_plain

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
    for folder in _listed(parent):
        descriptor = _lock(folder)
        if descriptor is not None:
            save(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
            swept += not folder.exists()
    return swept


def _listed(parent: Path) -> list[Path]:
    try:
        return list(parent.iterdir())
    except OSError:
        return []


def replace_file(path: Path, data: bytes, parent: Path) -> None:
    """Put a whole file at `path`, made in a folder under `parent`. Raises OSError."""
    with making(parent) as folder:
        write_synced(folder / path.name, data)
        os.replace(folder / path.name, path)
