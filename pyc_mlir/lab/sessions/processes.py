"""The parent's side of a measuring process: give it a job, read its messages, end it if it hangs.

    outcome = run_job(job, folder, timeout_seconds)

A process is a fresh one for each job. It ends with its parent, however that ends.
"""

import json
import os
import select
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import dtype_name
from pyc_mlir.dialects.util.files import write_file
from pyc_mlir.util.children import Child, python_command

CHECK, TIME = "check", "time"
_BOOT = "from pyc_mlir.lab.sessions.child import main; main(sys.argv[1], int(sys.argv[2]))"
_OUTPUT_CHARACTERS = 300
# A process that crashes may take a while to be gone.
_END_SECONDS = 20.0
_TIMEOUT: dict[str, Any] = {"timeout": True}


@dataclass(frozen=True)
class OnDevice:
    """The place where programs run: kind, threads and allocator of a `Device`."""

    kind: str = "local-sync"
    threads: int = 1
    allocator: str = "recycling"


@dataclass(frozen=True)
class MeasureJob:
    """The task of a process: run each candidate once (`CHECK`), or time them in rounds (`TIME`).

    candidates: paths of artifacts. arguments: of every call. flush_bytes: of memory that is
    written before each call with cold constants. calls: of a sample of each candidate; none: as
    many as last `min_seconds`. nothing: path of an artifact that does next to nothing with the
    arguments `scalar`: what a call costs by itself; empty for none.
    """

    kind: str
    candidates: tuple[str, ...]
    arguments: tuple[dict[str, Any], ...]
    device: OnDevice = field(default_factory=OnDevice)
    rounds: int = 1
    warmup: int = 0
    min_seconds: float = 0.0
    seed: int = 0
    constants: str = "warm"
    flush_bytes: int = 0
    calls: tuple[int, ...] = ()
    nothing: str = ""
    scalar: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class ProcessOutcome:
    """The messages of a process, and how it ended.

    messages: see child.py. failed: the number of the candidate during which it ended before its
    job was done, -1 before the first one, None where it was done. timed_out: this process ended it.
    """

    messages: tuple[dict[str, Any], ...]
    failed: int | None = None
    timed_out: bool = False
    reason: str = ""

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the process; 0 if it ended before it reported it."""
        return float(next((m["done"] for m in self.messages if "done" in m), 0.0))


def stored(
    arrays: Sequence[np.ndarray], folder: Path, name: str = "argument"
) -> tuple[dict[str, Any], ...]:
    """Write arguments as files; return their description for a job."""
    made = []
    for number, array in enumerate(arrays):
        path = folder / f"{name}{number}.bin"
        write_file(path, np.ascontiguousarray(array).tobytes())
        made.append(
            {"path": str(path), "dtype": dtype_name(array.dtype), "shape": list(array.shape)}
        )
    return tuple(made)


def run_job(job: MeasureJob, folder: Path, timeout_seconds: float) -> ProcessOutcome:
    """Do a job in a fresh process.

    timeout_seconds: the longest time without a message before the process is ended.
    """
    path = folder / "job.json"
    write_file(path, json.dumps(asdict(job)).encode())
    reading, writing = os.pipe()
    command = python_command(_BOOT, str(path), str(writing))
    with tempfile.TemporaryFile() as output:
        child = Child(command, stdout=output, stderr=output, pass_fds=(writing,))
        os.close(writing)
        messages: tuple[dict[str, Any], ...] = ()
        try:
            messages = tuple(_messages(reading, timeout_seconds))
        finally:
            os.close(reading)
            # It sent its last message.
            child.wait(0.0 if messages[-1:] == (_TIMEOUT,) else _END_SECONDS)
        output.seek(0)
        words = output.read().decode(errors="replace").strip()[-_OUTPUT_CHARACTERS:]
    return _outcome(messages, child.process.returncode, words)


def _messages(reading: int, timeout_seconds: float) -> Iterator[dict[str, Any]]:
    """Lines until the pipe is closed; `_TIMEOUT` last if none came for so long."""
    left = b""
    end = time.monotonic() + timeout_seconds
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            yield _TIMEOUT
            return
        read = os.read(reading, 1 << 16)
        if not read:
            return
        end = time.monotonic() + timeout_seconds
        *lines, left = (left + read).split(b"\n")
        yield from map(json.loads, lines)


def _outcome(messages: tuple[dict[str, Any], ...], status: int, words: str) -> ProcessOutcome:
    timed_out = messages[-1:] == (_TIMEOUT,)
    if any("done" in m for m in messages):
        return ProcessOutcome(messages)
    at = next((m["at"] for m in reversed(messages) if "at" in m), -1)
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    reason = "it sent no message for too long" if timed_out else f"the process ended by {how}"
    return ProcessOutcome(messages, at, timed_out, f"{reason}: {words}" if words else reason)
