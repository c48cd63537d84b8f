"""Worker processes: started on demand, kept for the next compile, ended on request.

A worker is a new Python process, no fork: its parent has threads and native state. Imports take
most of its start, so `start_early` lets them run beside the parent's own. Who takes a worker has it
alone, and gives it back or ends it.

Frames go between the two processes; nothing is pickled:

    "PyC1", length of the JSON (u32), number of blobs (u32), length of each blob (u64); big-endian
    the JSON, an object, in UTF-8
    the blobs, one after another

A file that holds one frame is a request that can be run again (`messages.py`). This module imports
no compiler, so that a worker starts while its parent still imports its own.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.util.children import Child, python_command
from pyc_mlir.util.env_overrides import env_overrides

_HEAD, _SIZE, _MAGIC = struct.Struct(">4sII"), struct.Struct(">Q"), b"PyC1"
# No header of ours is longer: what says so is no frame.
_MAX_JSON, _MAX_BLOBS = 1 << 30, 1 << 10
Blob = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Frame:
    """One message: plain JSON data and blobs."""

    header: dict[str, Any]
    blobs: Sequence[Blob] = ()

    def parts(self) -> list[memoryview]:
        """Return the bytes of the frame; blobs are not copied."""
        text = json.dumps(self.header).encode()
        sizes = b"".join(_SIZE.pack(len(b)) for b in self.blobs)
        head = _HEAD.pack(_MAGIC, len(text), len(self.blobs)) + sizes + text
        return [memoryview(b).cast("B") for b in (head, *self.blobs) if len(b)]


class FrameReader:
    """Makes frames of bytes as they come."""

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque()
        self._steps = self._parse()
        self._wanted = next(self._steps)

    def fill(self, read_into: Callable[[memoryview], int]) -> bool:
        """Read once, as much as is there; False at the end of the stream.

        Raises ConnectionError for what is no frame, and what `read_into` raises.
        """
        count = read_into(self._wanted)
        self._wanted = self._wanted[count:]
        if not self._wanted:
            self._wanted = next(self._steps)
        return count > 0

    def _parse(self) -> Generator[memoryview, None, None]:
        """Yield the memory that is to be filled next."""
        while True:
            head = bytearray(_HEAD.size)
            yield memoryview(head)
            magic, length, count = _HEAD.unpack(head)
            if magic != _MAGIC or length > _MAX_JSON or count > _MAX_BLOBS:
                raise ConnectionError(f"expected a frame, got bytes that begin with {magic!r}")
            sizes = bytearray(_SIZE.size * count)
            if count:
                yield memoryview(sizes)
            text = bytearray(length)
            yield memoryview(text)
            blobs = [bytearray(size) for (size,) in _SIZE.iter_unpack(sizes)]
            for blob in filter(None, blobs):
                yield memoryview(blob)
            self.frames.append(Frame(_header(text), blobs))


def _header(text: bytearray) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConnectionError(f"expected a frame with JSON, got {error}") from None
    if not isinstance(header, dict):
        raise ConnectionError(f"expected a frame with an object, got {header!r:.60}")
    return header


def read_frame(data: bytes) -> Frame:
    """Read the frame that a file holds. Raises ConnectionError for anything else."""
    reader, rest = FrameReader(), memoryview(data)

    def take(wanted: memoryview) -> int:
        nonlocal rest
        count = min(len(wanted), len(rest))
        wanted[:count] = rest[:count]
        rest = rest[count:]
        return count

    while not reader.frames:
        if not reader.fill(take):
            raise ConnectionError(f"expected a whole frame, got {len(data)} bytes")
    return reader.frames.popleft()


class Channel:
    """A socket that frames go through: waiting for them in a worker, never in its parent."""

    def __init__(self, connection: socket.socket, blocking: bool) -> None:
        connection.setblocking(blocking)
        self.socket = connection
        self._reader = FrameReader()
        self._queue: deque[memoryview] = deque()

    def send(self, frame: Frame) -> None:
        """Send a frame; in a parent as much as fits, the rest with later `pump`s.

        Raises OSError when the other side is gone.
        """
        self._queue.extend(frame.parts())
        self._write()

    @property
    def is_sending(self) -> bool:
        """The state in which something waits to be written."""
        return bool(self._queue)

    def _write(self) -> None:
        while self._queue:
            try:
                count = self.socket.send(self._queue[0])
            except BlockingIOError:
                return
            self._queue[0] = self._queue[0][count:]
            if not self._queue[0]:
                self._queue.popleft()

    def pump(self) -> list[Frame]:
        """Write and read what goes without waiting; the frames that are complete.

        Raises OSError when the other side is gone, once all of its frames were returned.
        """
        self._write()
        try:
            while self._reader.fill(self.socket.recv_into):
                pass
            if not self._reader.frames:
                raise ConnectionError("the other side has ended")
        except BlockingIOError:
            pass
        found = list(self._reader.frames)
        self._reader.frames.clear()
        return found

    def receive(self) -> Frame:
        """Wait for the next frame. Raises OSError when the other side is gone."""
        while not self._reader.frames:
            if not self._reader.fill(self.socket.recv_into):
                raise ConnectionError("the other side has ended")
        return self._reader.frames.popleft()

    def close(self) -> None:
        """Let go of the socket."""
        self.socket.close()


BOOT = "from pyc_mlir.worker.serve import main; main(int(sys.argv[1]))"
MOST_IDLE = 2
# As a nice value: about a tenth of the share of a process that does not yield.
_YIELDING = 10


class WorkerProcess:
    """One process. `ready` once it has said so, `doing` what it does by its own words.

    overrides: the variables that it began with of those that have other code take part.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours, blocking=False)
        self.overrides = env_overrides()
        self.ready = self.yields = False
        self.doing = ""
        self._output, self._already_read = tempfile.TemporaryFile(), 0  # noqa: SIM115  (as long as the worker)
        with theirs:
            # In a group of its own an interrupt of the terminal is the parent's to handle, and the
            # linker that a compile starts ends with it. Should this process be killed: the worker
            # would notice the closed channel late if native code has its lock.
            self._child = Child(
                python_command(BOOT, str(theirs.fileno())),
                stdout=self._output,
                stderr=self._output,
                pass_fds=(theirs.fileno(),),
            )
        self._process = self._child.process

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """The state of the process: True while it runs."""
        return self._process.poll() is None

    def yield_to_others(self) -> None:
        """Let it run where others do not: for good, since only a privileged process may undo it."""
        self.yields = True
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, self._process.pid, _YIELDING)

    def end(self) -> None:
        """End the process and its children at once. It is reaped in the background."""
        # Killed first: at a closed channel it would end by itself, and its children would go on.
        self._child.end()
        self.channel.close()
        threading.Thread(target=self._process.wait, daemon=True).start()

    def how_it_ended(self) -> str:
        """``SIGSEGV``, or ``exit status 3``, of a process whose side of the socket is closed."""
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "a closed connection"
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"

    def output(self) -> str:
        """Return what it wrote to its standard output and error since this was last asked."""
        self._output.seek(self._already_read)
        text = self._output.read()
        self._already_read += len(text)
        return text.decode(errors="replace")


_lock = threading.Lock()
_idle: list[WorkerProcess] = []


def take() -> WorkerProcess:
    """Take a worker for the caller alone: one that waits, else a started one, else a new one."""
    with _lock:
        while _idle:
            best = next((w for w in _idle if w.ready), _idle[0])
            _idle.remove(best)
            if best.alive and best.overrides == env_overrides():
                return best
            best.end()
    return WorkerProcess()


def give(worker: WorkerProcess) -> None:
    """Keep a worker for the next compile; one too many is ended."""
    with _lock:
        if worker.alive and not worker.yields and len(_idle) < MOST_IDLE:
            _idle.append(worker)
            return
    worker.end()


def start_early(count: int = 1) -> None:
    """Ensure that so many workers wait or are on their way."""
    with _lock:
        _idle[:] = [w for w in _idle if w.alive]
        _idle.extend(WorkerProcess() for _ in range(count - len(_idle)))


def idle() -> Sequence[WorkerProcess]:
    """Return the workers that wait."""
    with _lock:
        return tuple(_idle)


def end_all() -> None:
    """End the workers that wait."""
    with _lock:
        waiting = list(_idle)
        _idle.clear()
    for worker in waiting:
        worker.end()


def _forget() -> None:
    """Forget the workers in a forked child: they are its parent's."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()


atexit.register(end_all)
os.register_at_fork(after_in_child=_forget)
