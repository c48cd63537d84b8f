"""Load on a server by a process of its own: connections that send one request after the other.

A refused request (429) is followed by a pause, as clients that honour `Retry-After` do; the pause
here is shorter, so that a server at its limit stays there. Requests are bytes that are made once
and responses are read by their length alone, on uvloop: the load takes a small part of the machine,
which the figures name.
"""

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from pyc_mlir.service.targets import quantile
from pyc_mlir.tools.bench.report.suite import in_child

_PAUSE = 0.02
# Seconds until the last answers must be there.
_LATE = 60
_LENGTH = b"content-length:"


@dataclass(frozen=True)
class Load:
    """A body to an address, by so many connections for some seconds.

    body: a file. json_length: of the JSON before binary data.
    """

    host: str
    port: int
    path: str
    body: str
    json_length: int
    connections: int
    seconds: float


@dataclass(frozen=True)
class Answers:
    """The answers: how many a second, after how many seconds, and refusals.

    refused_p99: seconds until a request was refused, 0 without one. failed: other statuses. share:
    of one processor that the load itself took.
    """

    a_second: float
    p50: float
    p99: float
    refused: int
    refused_p99: float
    failed: int
    share: float


def under_load(load: Load) -> Answers:
    """Send the load from a process of its own. Raises PycError (RUNTIME_FAILED)."""
    return Answers(**in_child(sent, asdict(load)))


def sent(load: dict[str, Any]) -> dict[str, Any]:
    """Send the load from this process, on uvloop."""
    import uvloop  # pyright: ignore[reportMissingImports]

    return asdict(uvloop.run(send(Load(**load))))


class _Client(asyncio.Protocol):
    """One connection: sends, reads a response by its length, sends again until the end."""

    def __init__(self, request: bytes, end: float, ended: "asyncio.Future[None]") -> None:
        self.request, self.end, self.ended = request, end, ended
        self.good: list[float] = []
        self.refused: list[float] = []
        self.failed = 0
        self._head, self._left, self._status = b"", 0, 0

    def connection_made(self, transport: Any) -> None:
        """Send the first request."""
        self.transport = transport  # of uvloop, which is none of asyncio's types
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a connection that the server ends."""
        if not self.ended.done():
            self.failed += 1
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Read a part of a response."""
        if not self._status:
            self._head += data
            at = self._head.find(b"\r\n\r\n")
            if at < 0:
                return
            head = self._head[:at].lower()
            self._status = int(head[9:12])
            given = head.partition(_LENGTH)[2].partition(b"\r\n")[0]
            self._left, self._head = int(given) - (len(self._head) - at - 4), b""
        else:
            self._left -= len(data)
        if self._left <= 0:
            self._answered(perf_counter() - self.began)

    def _answered(self, passed: float) -> None:
        status, self._status = self._status, 0
        if status == 200:
            self.good.append(passed)
            self._send()
        elif status == 429:
            self.refused.append(passed)
            asyncio.get_running_loop().call_later(_PAUSE, self._send)
        else:
            self.failed += 1
            self._send()

    def _send(self) -> None:
        self.began = perf_counter()
        if self.began < self.end:
            self.transport.write(self.request)
        elif not self.ended.done():
            self.ended.set_result(None)
            self.transport.close()


async def send(load: Load) -> Answers:
    """Send the load from this process."""
    body = Path(load.body).read_bytes()
    request = (
        f"POST {load.path} HTTP/1.1\r\nHost: {load.host}\r\n"
        f"Inference-Header-Content-Length: {load.json_length}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    loop = asyncio.get_running_loop()
    began, used = perf_counter(), process_time()
    clients = []
    for _ in range(load.connections):
        client = _Client(request, began + load.seconds, loop.create_future())
        await loop.create_connection(lambda c=client: c, load.host, load.port)
        clients.append(client)
    async with asyncio.timeout(load.seconds + _LATE):
        await asyncio.gather(*(c.ended for c in clients))
    passed, used = perf_counter() - began, process_time() - used
    good = sorted(s for c in clients for s in c.good)
    refused = sorted(s for c in clients for s in c.refused)
    return Answers(
        len(good) / passed,
        quantile(good, 0.5) if good else 0.0,
        quantile(good, 0.99) if good else 0.0,
        len(refused),
        quantile(refused, 0.99) if refused else 0.0,
        sum(c.failed for c in clients),
        used / passed,
    )
