"""Where programs are kept unless a folder is named."""

from collections.abc import Mapping
from pathlib import Path

FOLDER = "pyc-mlir"


def default_folder(environment: Mapping[str, str]) -> Path:
    """The user's own folder by the XDG base directories. Nothing is created."""
    base = environment.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    root = Path(base) if base.startswith("/") else Path(environment.get("HOME", "/")) / ".cache"
    return root / FOLDER
