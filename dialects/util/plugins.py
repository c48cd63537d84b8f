"""The entry points that installed packages register."""

import functools
from importlib import metadata


@functools.cache
def registered(group: str) -> tuple[metadata.EntryPoint, ...]:
    """Return the entry points of a group, found out once a process: looking takes milliseconds."""
    return tuple(metadata.entry_points(group=group))
