"""Digests of source files and the entry points of other packages, found out once a process."""

import functools
import hashlib
from importlib import metadata
from pathlib import Path


@functools.cache
def file_digest(path: str, mtime_ns: int) -> str:
    """SHA-256 of a file as it was at that time of modification, in hex. Raises OSError."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@functools.cache
def registered(group: str) -> tuple[metadata.EntryPoint, ...]:
    """What installed packages register in a group; looking through them takes milliseconds."""
    return tuple(metadata.entry_points(group=group))
