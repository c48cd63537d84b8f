"""The folder of the user's own cache. Needs no compiler."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from pyc_mlir.dialects.errors import PycError, ReasonCode

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
