"""The error that reports a worker's crash, and a file that repeats it.

    python -m pyc_mlir.worker pyc-crash-1f2e3d4c.request

compiles the same request in that process, so that a debugger sees the crash. The file is one frame
(`protocol.py`): the options as JSON, then the program.
"""

import hashlib
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from pyc_mlir.artifact.artifact import installed_versions
from pyc_mlir.dialects.errors import PycError, ReasonCode, out_of_memory
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.util.temp_dir import no_room
from pyc_mlir.worker.protocol import Frame
from pyc_mlir.worker.request import names_file

_OUTPUT_CHARACTERS = 400
# How LLVM ends a process that cannot write one of its files.
_CANNOT_WRITE = "LLVM ERROR: IO failure on output stream: "


def crashed(request: Frame, stage: str, ended_by: str, output: str) -> PycError:
    """Return the error for a worker that ended by `ended_by`, with a reproducer if possible.

    stage: what it was doing; said: what it wrote to its standard error. A disk that filled up has
    the code FILE_ACCESS, memory that ended OUT_OF_MEMORY, all else NATIVE_CRASH.
    """
    if _CANNOT_WRITE in output:
        return no_room(output.partition(_CANNOT_WRITE)[2].partition("\n")[0])
    memory = out_of_memory(output)
    if memory is not None:
        return memory
    doing = f"while {stage}" if stage else "before its first step"
    last = f"; its last words: {output.strip()[-_OUTPUT_CHARACTERS:]}" if output.strip() else ""
    name = request.header["program"]["name"]
    return PycError(
        ReasonCode.NATIVE_CRASH,
        f"{name}: expected the compiler to end with an answer, got a process that ended by "
        f"{ended_by} {doing}; {_reproducer(request)}{last}",
    )


def _reproducer(request: Frame) -> str:
    try:
        path = write_reproducer(request, Path(tempfile.gettempdir()))
    except PycError as error:
        return f"no reproducer could be written ({error.message})"
    return f"run it again with `{sys.executable} -m pyc_mlir.worker {path}`"


def write_reproducer(request: Frame, folder: Path) -> Path:
    """Write a request, with the file that it names, under a name of its content.

    Raises PycError (FILE_ACCESS).
    """
    data = _read(request)
    header = {**request.header, "versions": installed_versions()}
    parts = Frame(header, (data,)).parts()
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    path = folder / f"pyc-crash-{digest.hexdigest()[:16]}.request"
    write_file(path, b"".join(parts), "a reproducer to write")
    return path


def _file(request: Frame) -> Path:
    return Path(request.header["folder"]) / request.header["program"]["name"]


def _read(request: Frame) -> bytes:
    """Return the program's bytes: of a file what it holds now, nothing if it cannot be read."""
    if not names_file(request):
        return bytes(request.blobs[0])
    try:
        return read_file(_file(request))
    except PycError:
        return b""


def unpacked(request: Frame, folder: Path) -> Frame:
    """Return the request of a reproducer as it runs here.

    A file that is no longer what it was is written to `folder`; weights beside it are not there.
    Raises PycError (FILE_ACCESS).
    """
    if not names_file(request):
        return request
    stored = bytes(request.blobs[0]) if request.blobs else b""
    path = _file(request)
    if path.is_file() and read_file(path) == stored:
        return request
    copy = folder / path.name
    write_file(copy, stored)
    named = {**request.header["program"], "name": str(copy)}
    return replace(request, header={**request.header, "program": named, "folder": str(folder)})
