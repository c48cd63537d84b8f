"""The protocol between two processes of PyC: frames of JSON and bytes. Nothing is pickled.

    "PyC1", length of the JSON (u32), number of blobs (u32), length of each blob (u64); big-endian
    the JSON, an object, in UTF-8
    the blobs, one after another

A file that holds one frame is a request that can be run again (`messages.py`).
"""

import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

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
