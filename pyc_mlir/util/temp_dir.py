"""Check that the compiler's temporary files have room.

LLVM's code generator and linker keep objects in a folder for temporary files. Where there is none,
or no room in it, LLVM ends the process, so it is asked before.
"""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import unwritable

# In LLVM's order.
_VARIABLES = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")
_DEFAULT = "/tmp"
# The objects of a program are a fraction of it; weights are not in them.
ROOM_BYTES = 16 << 20


def temporary_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder where LLVM keeps temporary files."""
    return Path(next(filter(None, map(environment.get, _VARIABLES)), _DEFAULT))


def free_bytes(folder: Path) -> int:
    """Return bytes that this user may still write there. Raises OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def require_room(
    environment: Mapping[str, str] = os.environ, free: Callable[[Path], int] = free_bytes
) -> None:
    """Raise PycError (FILE_ACCESS) where the compiler's temporary files have no place."""
    folder = temporary_folder(environment)
    try:
        if not folder.is_dir():
            found = errno.ENOTDIR if folder.exists() else errno.ENOENT
        elif not os.access(folder, os.W_OK | os.X_OK):
            found = unwritable(folder)
        else:
            found = 0 if free(folder) >= ROOM_BYTES else errno.ENOSPC
    except OSError as error:
        found = error.errno or errno.EIO
    if found:
        raise no_room(os.strerror(found), environment)


def no_room(got: str, environment: Mapping[str, str] = os.environ) -> PycError:
    """Return the error where the system said so of temporary files."""
    return PycError(
        ReasonCode.FILE_ACCESS,
        f"{temporary_folder(environment)}: expected a folder with room for {ROOM_BYTES >> 20} MiB "
        f"of the compiler's temporary files, got: {got}; free space there, or name "
        "another folder, that can be written, by the environment variable TMPDIR",
    )
