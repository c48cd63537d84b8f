"""Versions of the installed packages."""

import re
from functools import cache
from importlib import metadata

_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE)


@cache
def installed_version(package: str) -> str:
    """Return the installed version. Raises importlib.metadata.PackageNotFoundError.

    `metadata.version` would load a parser of mail first: 1.5 ms of every start.
    """
    try:
        text = metadata.distribution(package).read_text("METADATA")
    except OSError:
        text = None
    found = _VERSION.search(text or "")
    return metadata.version(package) if found is None else found[1]


# The package that runs programs.
RUNTIME = "iree-base-runtime"


def runtime_version() -> str:
    """Return the release of IREE's runtime that is installed."""
    return installed_version(RUNTIME)
