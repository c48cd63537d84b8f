"""Files that users name: read and written whole, with errors that say which file and what to do.

Every failure is a PycError (FILE_ACCESS). What is written takes its place at once when it is
complete: a full disk or a kill leaves what was there before.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import TypeVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line

_Content = TypeVar("_Content")
_NULL_DEVICE = os.makedev(1, 3)
_REMEDIES = {
    errno.EINVAL: "name a regular file, or - where a tool reads standard input",
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
    """Return the error for `path` (None: the one of `error`) where `expected` was wanted."""
    place = one_line(path if path is not None else error.filename or "file")
    cause = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0, "check it, or name another")
    return PycError(ReasonCode.FILE_ACCESS, f"{place}: expected {expected}, got: {cause}; {remedy}")


def open_plain(path: str | Path, *, flags: int = 0, folder: int | None = None) -> FileIO:
    """Return a file open to be read, without buffers, and never waited for. Raises OSError.

    A pipe without a name (``/dev/stdin``, a shell's ``<(...)``) is as good as a file. A named one
    is refused, since nobody may ever write into it, and so are devices, which may have no end.
    """
    place = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder)
    try:
        found = os.fstat(place)
        nameless = folder is None and not os.path.exists(os.path.realpath(path))
        if stat.S_ISFIFO(found.st_mode) and nameless:
            os.set_blocking(place, True)
        elif stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        elif not stat.S_ISREG(found.st_mode) and found.st_rdev != _NULL_DEVICE:
            raise OSError(errno.EINVAL, "a named pipe or a device", str(path))
        return os.fdopen(place, "rb", buffering=0)
    except BaseException:
        os.close(place)
        raise


def read_plain(path: str | Path) -> bytes:
    """Return the content of a file as `open_plain` takes it. Raises OSError."""
    with open_plain(path) as file:
        return file.read()


def read_file(path: str | Path, expected: str = "a file to read") -> bytes:
    """Return the content. Raises PycError (FILE_ACCESS)."""
    return read_file_by(read_plain, path, expected)


def read_file_by(read: Callable[[Path], _Content], path: str | Path, expected: str) -> _Content:
    """Return what `read` makes of a file. Raises PycError (FILE_ACCESS)."""
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
    """Put a file there. Until it is whole it has no name that a kill could leave behind."""
    made = place.with_name(f".pyc-{secrets.token_hex(8)}")
    try:
        if not _link_whole(place, made, data):
            with made.open("xb") as file:
                file.write(data)
        if not made.exists():
            return
        if place.exists():
            shutil.copymode(place, made)
        os.replace(made, place)
    finally:
        made.unlink(missing_ok=True)


def _link_whole(place: Path, made: Path, data: bytes | memoryview) -> bool:
    """Write a nameless file, then name it `place`, or `made` where that exists.

    False where the file system or the system has none. Raises OSError where it cannot be written.
    """
    folder = -1
    try:
        folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
        nameless = os.open(place.parent, os.O_WRONLY | os.O_TMPFILE, 0o666)
    except (AttributeError, OSError):  # all that is wrong with the folder is told by the other way
        return False
    else:
        with os.fdopen(nameless, "wb") as file:
            file.write(data)
            file.flush()
            for name in (place.name, made.name):
                with contextlib.suppress(OSError):
                    link = f"/proc/self/fd/{nameless}"
                    # Only with folders given does Python follow the link.
                    os.link(link, name, src_dir_fd=folder, dst_dir_fd=folder)
                    return True
    finally:
        if folder >= 0:
            os.close(folder)
    return False


def make_folder(path: str | Path, expected: str = "a folder to write into") -> Path:
    """Return the folder, made with those above it if it is not there.

    Raises PycError (FILE_ACCESS).
    """
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
        found = unwritable(folder)
    else:
        return
    raise file_error(OSError(found, os.strerror(found)), expected, path)


def unwritable(folder: str | Path) -> int:
    """Return why nothing may be written in a folder, as one of the system's numbers."""
    return errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES


def _unreachable(folder: str) -> int:
    """Return why a folder cannot be used, as one of the system's numbers."""
    try:
        os.stat(folder)
    except OSError as error:
        return error.errno or errno.ENOENT
    return errno.ENOTDIR
