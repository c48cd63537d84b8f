"""The place of a user's benchmark database."""

from collections.abc import Mapping
from pathlib import Path

from pyc_mlir.dialects.util.files import make_folder

VARIABLE = "PYC_DB"


def default_url(environment: Mapping[str, str]) -> str:
    """Return the value of $PYC_DB, else the user's own file, whose folder is made."""
    if given := environment.get(VARIABLE):
        return given
    base = environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    folder = make_folder(Path(base) / "pyc-mlir", "a folder for the database")
    return f"sqlite:///{folder / 'evidence.db'}"
