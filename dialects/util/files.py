"""Files that users name: read and written whole, with errors that say which file and what to do.

Every failure is a PycError (FILE_ACCESS). What is written takes its place at once when it is
complete: a full disk or a kill leaves what was there before.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pyc_mlir.dialects.errors import PycError, ReasonCode

_Content = TypeVar("_Content")
_REMEDIES = {
    errno.ENOENT: "check the path and its folder",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.EISDIR: "name a file, not a folder",
    errno.EACCES: "give permission, or name another",
    errno.EPERM: "give permission, or name another",
    errno.EROFS: "name one on a disk that can be written",
    errno.ENOSPC: "free space there, or name another",
    errno.EDQUOT: "free space there, or name another",
    errno.EFBIG: "free space there, raise the limit on file sizes, or name another",
}


def file_error(error: OSError, expected: str, path: str | Path | None = None) -> PycError:
    """The error for `path` (None: the one that `error` names) where `expected` was wanted."""
    place = path if path is not None else error.filename or "file"
    said = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0, "check it, or name another")
    return PycError(ReasonCode.FILE_ACCESS, f"{place}: expected {expected}, got: {said}; {remedy}")


def read_file(path: str | Path, expected: str = "a file to read") -> bytes:
    """The content. Raises PycError (FILE_ACCESS)."""
    return read_file_by(Path.read_bytes, path, expected)


def read_file_by(read: Callable[[Path], _Content], path: str | Path, expected: str) -> _Content:
    """What `read` makes of a file. Raises PycError (FILE_ACCESS)."""
    try:
        return read(Path(path))
    except OSError as error:
        raise file_error(error, expected, path) from None
    except ValueError as error:  # a path with a NUL
        raise file_error(OSError(errno.EINVAL, str(error)), expected, path) from None


def write_file(
    path: str | Path, data: bytes | memoryview, expected: str = "a file to write"
) -> None:
    """Write a file, whole or not at all; pipes and devices are written into.

    Raises PycError (FILE_ACCESS).
    """
    given, place = Path(path), Path(os.path.realpath(path))
    try:
        regular = not given.exists() or (given.is_file() and os.access(given, os.W_OK))
        if regular and os.access(place.parent, os.W_OK):
            _replace(place, data)
        else:
            given.write_bytes(data)
    except OSError as error:
        raise file_error(error, expected, path) from None


def _replace(place: Path, data: bytes | memoryview) -> None:
    made = place.with_name(f".pyc-{secrets.token_hex(8)}")
    try:
        with made.open("xb") as file:
            file.write(data)
        if place.exists():
            shutil.copymode(place, made)
        os.replace(made, place)
    finally:
        made.unlink(missing_ok=True)


def make_folder(path: str | Path, expected: str = "a folder to write into") -> Path:
    """The folder, made with those above it if it is not there. Raises PycError (FILE_ACCESS)."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise file_error(error, expected, path) from None
    return Path(path)


def require_writable(path: str | Path, expected: str = "a file to write") -> None:
    """Raise PycError (FILE_ACCESS) now if a later `write_file` would for want of a place.

    For work that takes long: a misspelt folder is told before it, not after.
    """
    place = os.path.realpath(path)
    folder = os.path.dirname(place)
    if os.path.isdir(place):
        found = errno.EISDIR
    elif not os.path.isdir(folder):
        found = _unreachable(folder)
    elif not os.access(place if os.path.exists(place) else folder, os.W_OK):
        found = errno.EACCES
    else:
        return
    raise file_error(OSError(found, os.strerror(found)), expected, path)


def _unreachable(folder: str) -> int:
    """Why a folder cannot be used, as one of the system's numbers."""
    try:
        os.stat(folder)
    except OSError as error:
        return error.errno or errno.ENOENT
    return errno.ENOTDIR
