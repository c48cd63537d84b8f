"""Load on a server by a process of its own: connections that send one request after the other.

A refused request (429) is followed by a pause, as clients that honour `Retry-After` do; the pause
here is shorter, so that a server at its limit stays there.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

from pyc_mlir.dialects.util.codec import from_data
from pyc_mlir.service.targets import quantile
from pyc_mlir.util.children import run as run_child

_PAUSE = 0.02


@dataclass(frozen=True)
class Load:
    """A body to an address, by so many connections for some seconds."""

    host: str
    port: int
    path: str
    body: str
    connections: int
    seconds: float


@dataclass(frozen=True)
class Answers:
    """The answers: how many a second, after how many seconds, and refusals.

    refused_p99: seconds until a request was refused, 0 without one. failed: other statuses.
    """

    a_second: float
    p50: float
    p99: float
    refused: int
    refused_p99: float
    failed: int


def under_load(load: Load) -> Answers:
    """Send the load from a process of its own. Raises ValueError with its last words."""
    line = [sys.executable, "-m", "pyc_mlir.tools.bench.service.load", json.dumps(asdict(load))]
    done = run_child(line)
    if done.returncode != 0:
        raise ValueError(f"load: expected status 0, got {done.returncode}: {done.stderr[-300:]}")
    return from_data(Answers, json.loads(done.stdout))


async def send(load: Load) -> Answers:
    """Send the load from this process."""
    request = (
        f"POST {load.path} HTTP/1.1\r\nHost: {load.host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(load.body)}\r\n\r\n{load.body}"
    ).encode()
    good: list[float] = []
    refused: list[float] = []
    failed = [0]
    end = perf_counter() + load.seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection(load.host, load.port, limit=1 << 26)
        while perf_counter() < end:
            began = perf_counter()
            writer.write(request)
            status = await _status(reader)
            passed = perf_counter() - began
            if status == 200:
                good.append(passed)
            elif status == 429:
                refused.append(passed)
                await asyncio.sleep(_PAUSE)
            else:
                failed[0] += 1
        writer.close()

    began = perf_counter()
    await asyncio.gather(*(client() for _ in range(load.connections)))
    passed = perf_counter() - began
    good.sort()
    refused.sort()
    return Answers(
        len(good) / passed,
        quantile(good, 0.5) if good else 0.0,
        quantile(good, 0.99) if good else 0.0,
        len(refused),
        quantile(refused, 0.99) if refused else 0.0,
        failed[0],
    )


async def _status(reader: asyncio.StreamReader) -> int:
    """Read one response; return its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
    await reader.readexactly(length)
    return int(head[9:12])


def main(arguments: Sequence[str]) -> int:
    """Send the load that the argument describes as JSON; print what came back."""
    load = from_data(Load, json.loads(arguments[0]))
    print(json.dumps(asdict(asyncio.run(send(load)))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
