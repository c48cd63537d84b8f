"""Parts of files beside a model: only what lies in the model's own folder, within the files there.

A model names files and places in them, and who wrote the model chose the names. `inside` finds the
file that a name leads to, `check_parts` looks at all parts before any is read, and `read_part`
opens a file without following links, so that one that is put there meanwhile leads nowhere.
"""

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np

# How often the bytes of a model's files may be used, all in all. Weights that are stored once for
# several tensors are tied ones; without a bound, a megabyte could stand for a terabyte.
MAX_USES = 16
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe that takes a file's place must not be waited for.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class FileRange:
    """`length` bytes from `offset` of a file, whose path (of `inside`) is free of links."""

    path: Path
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.length


class MissingFile(ValueError):
    """A file that a model names, which could lie beside it, does not exist."""


def inside(folder: Path, name: str) -> Path:
    """Return the file that `name` leads to from `folder` (which is free of links), links followed.

    Raises ValueError unless that is a plain file in the folder, or in one in it; MissingFile where
    it could be one.
    """
    absent = False
    try:
        path = (folder / name).resolve()
        within = bool(name) and path.is_relative_to(folder)
        legal = within and path.is_file()
        absent = within and path.parent.is_dir() and not os.path.lexists(path)
    # A loop of links is a RuntimeError up to Python 3.12.
    except (OSError, RuntimeError, ValueError):
        legal = False
    if absent:
        raise MissingFile(f"expected a file inside the model's directory, got no {name!r:.200}")
    if not legal:
        raise ValueError(f"expected a file inside the model's directory, got {name!r:.200}")
    return path


def check_parts(parts: Sequence[FileRange]) -> None:
    """Raise ValueError unless all lie within their files, and overlap only where they are equal.

    No more is read of the files than their sizes. Raises OSError.
    """
    total = stored = 0
    for path, group in groupby(sorted(parts, key=_place), key=lambda part: part.path):
        within = list(group)
        size = os.stat(path, follow_symlinks=False).st_size
        _check_file(within, size)
        total, stored = total + sum(p.length for p in within), stored + size
    if total > MAX_USES * stored:
        raise ValueError(
            f"expected weights of at most {MAX_USES} times the {stored} bytes in the model's "
            f"files, got {total} bytes"
        )


def _place(part: FileRange) -> tuple[Path, int, int]:
    return part.path, part.offset, part.length


def _check_file(parts: Iterable[FileRange], size: int) -> None:
    parts = [p for p in parts if p.length]
    for part in parts:
        if part.end > size:
            raise ValueError(
                f"expected {part.length} bytes from {part.offset} of {part.path.name}, "
                f"which has {size} bytes"
            )
    for one, other in pairwise(dict.fromkeys(parts)):
        if one.end > other.offset:
            raise ValueError(
                f"expected parts of {one.path.name} that are equal or apart, got bytes "
                f"{one.offset} to {one.end} and {other.offset} to {other.end}"
            )


def read_part(folder: Path, part: FileRange, out: np.ndarray) -> None:
    """Read a part of a file into an array of as many bytes.

    Raises OSError, and ValueError for what is no plain file any more, or too short.
    """
    descriptor = _opened(folder, part.path)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"expected a plain file, got {part.path.name}")
        file.seek(part.offset)
        rest = out.reshape(-1).view(np.uint8).data if out.size else memoryview(b"")
        while rest:
            count = file.readinto(rest)
            if not count:
                raise ValueError(f"expected {part.length} bytes of {part.path.name}, got fewer")
            rest = rest[count:]


def _opened(folder: Path, path: Path) -> int:
    """Open the file, each folder on the way by its own name. Raises OSError."""
    *folders, name = path.relative_to(folder).parts
    here = os.open(folder, _FOLDER)
    try:
        for part in folders:
            below = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        return os.open(name, _FILE, dir_fd=here)
    finally:
        os.close(here)
