"""PyC's own modules: which there are, and digests of them, found out once a process."""

import functools
import hashlib
import os

import pyc_mlir
from pyc_mlir import dialects, pipelines

# Name, path, time of modification in nanoseconds.
_MODULE_BYTES = 1 << 24  # more than any module has
Files = tuple[tuple[str, str, int], ...]


def source_files() -> Files:
    """PyC's modules, sorted by name. A module has the same name wherever PyC is installed."""
    found = []
    for package in (dialects, pipelines, pyc_mlir):
        folder = os.path.dirname(str(package.__file__))
        for at, names, files in os.walk(folder):
            names[:] = [n for n in names if n != "__pycache__"]
            inside = f"{package.__name__}/{os.path.relpath(at, folder)}"
            for name in (f for f in files if f.endswith(".py")):
                path = os.path.join(at, name)
                found.append((f"{inside}/{name}", path, os.stat(path).st_mtime_ns))
    return tuple(sorted(found))


# Taken when this module is loaded; a forked child has the code of its parent.
SEEN = source_files()


@functools.cache
def file_digest(path: str, mtime_ns: int) -> str:
    """SHA-256 of a file as it was at that time of modification, in hex. Raises OSError.

    Read without buffers and paths as objects: some hundred files, half of the time.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        data = os.read(descriptor, _MODULE_BYTES)
    finally:
        os.close(descriptor)
    return hashlib.sha256(data).hexdigest()


@functools.lru_cache(maxsize=4)
def source_digest(files: Files) -> str:
    """SHA-256 of modules, their names and contents."""
    digest = hashlib.sha256()
    for name, path, mtime in files:
        digest.update(f"{name} {file_digest(path, mtime)}\n".encode())
    return digest.hexdigest()
