"""The suite `serve`: `pyc-serve` beside onnxruntime behind the same HTTP stack, under load.

Servers and load share the machine. For each model, in rounds whose order is drawn anew: requests a
second and their p50 and p99 at as many connections as the queue and the workers hold; then at twice
as many, where the rest is refused: p99 of those that are admitted, and of the refusals. `batched`
puts requests together, `one by one` does not.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic, sleep
from typing import Any
from urllib.request import urlopen

import numpy as np

import pyc_mlir
from pyc_mlir import Service, Targets, TensorSpec
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.measure.interleave import interleave
from pyc_mlir.measure.records import Record, record
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.serve.app import application
from pyc_mlir.serve.limits import Limits
from pyc_mlir.serve.models import Endpoint
from pyc_mlir.serve.rows import most_rows
from pyc_mlir.tools.bench.peers.onnxruntime_session import open_session
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, option, suite, timing_records
from pyc_mlir.tools.bench.suites.load import Answers, Load, under_load
from pyc_mlir.tools.bench.workloads.cpu import digits
from pyc_mlir.tools.bench.workloads.parts import BASE, TINY, encoder_model
from pyc_mlir.util.children import Child

PYC, PEER = "pyc", "onnxruntime"
WORKERS, QUEUE = 2, 8
_SECONDS, _QUICK_SECONDS = 1.5, 0.3
_START = 60.0
_CALL, _CALL_ROUNDS = "a call of 4 elements", 51
# By system, whether requests are put together, and connections.
Turn = tuple[str, bool, int]
Found = dict[Turn, list[Answers]]


@dataclass(frozen=True, eq=False)
class Served:
    """A model on disk for both servers, and the body of a request."""

    name: str
    onnx: Path
    program: Path
    signature: Path
    body: Path
    json_length: int
    batches: bool


@suite(
    "serve",
    8,
    option(
        "--model", action="append", default=[], metavar="NAME=FILE.onnx", help="measure this one"
    ),
)
def run(bench: SuiteRun) -> Iterator[Record]:
    """Measure requests a second and waiting times beside onnxruntime behind the same server."""
    seconds = _QUICK_SECONDS if bench.quick else _SECONDS
    bench.settings |= {"workers": WORKERS, "queue": QUEUE, "seconds": seconds}
    with tempfile.TemporaryDirectory() as folder:
        for model in models(Path(folder), bench.options.model, bench.quick):
            yield from measured(model, bench.rounds, seconds)
    yield from call_cost(_CALL_ROUNDS)


def models(folder: Path, named: Sequence[str], quick: bool) -> Iterator[Served]:
    """Yield the models, compiled. Raises PycError as `compile`."""
    for text in named:
        name, _, path = text.partition("=")
        yield _written(folder, name, Path(path).read_bytes(), None)
    if not named:
        mlp = digits("mlp", 1)
        yield _written(folder, "digits mlp", mlp.source.read_bytes(), mlp.inputs[0])
        yield _written(folder, "encoder", encoder_model(TINY if quick else BASE), None)


def _written(folder: Path, name: str, onnx: bytes, rows: np.ndarray | None) -> Served:
    """Compile one model; with `rows`, for 1 to 64 of them."""
    stem = name.replace(" ", "_")
    source = folder / f"{stem}.onnx"
    source.write_bytes(onnx)
    if rows is None:
        program = pyc_mlir.compile(source)
    else:
        spec = TensorSpec("f32", "batch", *rows.shape[1:])
        program = pyc_mlir.compile(source, [spec], dims={"batch": (1, 64)})
    signature = folder / f"{stem}.json"
    signature.write_text(json.dumps(to_data(program.signature)))
    program.save(folder / f"{stem}.vmfb")
    head, data = _body(program, rows)
    body = folder / f"{stem}.request"
    body.write_bytes(head + data)
    return Served(
        name, source, folder / f"{stem}.vmfb", signature, body, len(head), rows is not None
    )


def _body(program: Program, rows: np.ndarray | None) -> tuple[bytes, bytes]:
    """Return the JSON of a request and the binary data of its tensors."""
    random, tensors, data = np.random.default_rng(0), [], b""
    for entry in program.signature.inputs:
        shape = entry.static_shape if rows is None else rows.shape
        assert shape is not None, "models of static shapes, or with rows"
        x = random.normal(size=shape).astype(np.float32) if rows is None else rows
        tensor = {"name": entry.name, "datatype": "FP32", "shape": list(shape)}
        tensors.append({**tensor, "parameters": {"binary_data_size": x.nbytes}})
        data += x.tobytes()
    request = {"inputs": tensors, "parameters": {"binary_data_output": True}}
    return json.dumps(request).encode(), data


def measured(model: Served, rounds: int, seconds: float) -> Iterator[Record]:
    """Load both servers by turns."""
    candidates = [(PYC, True), (PEER, True)]
    if model.batches:
        candidates += [(PYC, False), (PEER, False)]
    limit, over = WORKERS + QUEUE, 2 * (WORKERS + QUEUE)
    found: Found = {}
    path, body = f"/v2/models/{model.onnx.stem}/infer", (str(model.body), model.json_length)
    with ExitStack() as servers:
        ports = {c: servers.enter_context(server(model, *c)) for c in candidates}
        turns = [(*c, n) for c in candidates for n in (limit, over)]
        for number in range(rounds):
            # Machines drift: within a round all are loaded, in another order each time.
            for turn in Random(number).sample(turns, len(turns)):
                load = Load("127.0.0.1", ports[turn[:2]], path, *body, turn[2], seconds)
                found.setdefault(turn, []).append(under_load(load))
                note(f"{model.name}: {turn}: {found[turn][-1]}")
    for (system, batched, connections), answers in found.items():
        how = "batched" if batched and model.batches else "one by one"
        workload = f"{model.name}; {connections} connections, {how}"
        if any(a.failed for a in answers):
            raise PycError(
                ReasonCode.RUNTIME_FAILED,
                where=workload,
                expected="answers and refusals alone",
                got=f"{sum(a.failed for a in answers)} other statuses from {system}",
            )
        for metric, unit, values in (
            ("answers a second", "requests", [a.a_second for a in answers]),
            ("p50", "s", [a.p50 for a in answers]),
            ("p99", "s", [a.p99 for a in answers]),
            ("p99 of refusals", "s", [a.refused_p99 for a in answers if a.refused]),
        ):
            if values:
                low, high = np.percentile(values, (10, 90))
                spread = {"p10": float(low), "p90": float(high), "n": len(values)}
                yield record(workload, system, metric, unit, median(values), **spread)
    yield from _goals(model.name, found, limit, over)


def _goals(name: str, found: Found, limit: int, over: int) -> Iterator[Record]:
    """Yield what the goals are about, as medians of shares within a round."""

    def share(what: str, of: Turn, to: Turn) -> tuple[float, dict[str, float]]:
        pairs = zip(found[of], found[to], strict=True)
        shares = [100 * getattr(a, what) / getattr(b, what) for a, b in pairs]
        low, middle, high = map(float, np.percentile(shares, (10, 50, 90)))
        return middle, {"p10": low, "p90": high, "n": len(shares)}

    ways = {batched for _, batched, _ in found}
    for batched in ways:
        how = f"{name}; {'batched' if batched and len(ways) > 1 else 'one by one'}"
        value, spread = share("a_second", (PYC, batched, limit), (PEER, batched, limit))
        yield record(how, PYC, "answers, of onnxruntime's", "%", value, **spread)
        for system in (PYC, PEER):
            value, spread = share("p99", (system, batched, over), (system, batched, limit))
            what = "p99 at twice the load, of that at the limit"
            yield record(how, system, what, "%", value, **spread)
    for system in (PYC, PEER) if len(ways) > 1 else ():
        value, spread = share("a_second", (system, True, limit), (system, False, limit))
        what = "answers in batches, of those one by one"
        yield record(name, system, what, "%", value, **spread)


def call_cost(rounds: int) -> Iterator[Record]:
    """Yield what a call of a service costs above that of its program, which computes little.

    The least samples are compared: the cost is the same in each call, what others do is not.
    """
    device = Device("local-sync")
    x = to_device(np.zeros(4, np.float32), device)
    program = pyc_mlir.compile(lambda a: a + 1, [TensorSpec("f32", 4)], device=device)
    with Service(program, targets=Targets(p99_seconds=60.0)) as service:
        calls = {"program": lambda: program(x), "service": lambda: service(x)}
        timings = interleave(calls, rounds=rounds, min_seconds=0.005)
    yield from timing_records(_CALL, timings)
    above = timings["service"].spread.min - timings["program"].spread.min
    yield record(_CALL, "service", "above the program's call", "s", above)


@contextmanager
def server(model: Served, system: str, batched: bool) -> Iterator[int]:
    """Start a server in a process of its own; yield its port."""
    if system == PYC:
        options = ["--workers", str(WORKERS), "--queue", str(QUEUE)]
        options += [] if batched else ["--no-batching"]
        with served(str(model.program), *options) as (_, port):
            yield port
        return
    given = [str(model.onnx), str(WORKERS), str(int(batched)), str(model.signature), str(QUEUE)]
    with _started("-m", __name__, *given) as (_, port):
        yield port


def served(program: str, *options: str) -> AbstractContextManager[tuple[Any, int]]:
    """Start `pyc-serve` on any port; yield its process and the port. Raises as it ends."""
    return _started("-m", "pyc_mlir.tools.pyc_serve", program, "--port", "0", *options)


@contextmanager
def _started(*command: str) -> Iterator[tuple[Any, int]]:
    child = Child([sys.executable, *command], stdout=subprocess.PIPE)
    process = child.process
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if port is None:
            raise PycError(
                ReasonCode.RUNTIME_FAILED,
                where=" ".join(command[:2]),
                expected="an address",
                got=repr(line),
            )
        _await(f"http://127.0.0.1:{port[1]}/v2/health/ready")
        yield process, int(port[1])
    finally:
        process.terminate()
        child.wait(30)


def _await(url: str) -> None:
    end = monotonic() + _START
    while True:
        try:
            urlopen(url, timeout=5).close()
            return
        except OSError:
            if monotonic() > end:
                raise
            sleep(0.02)


class _Peer(Endpoint):
    """A session of onnxruntime as a model of the server, which is always ready."""

    is_ready = True


def serve_peer(path: str, workers: str, batch: str, signature: str, queue: str) -> None:
    """Serve onnxruntime behind the HTTP stack of `pyc-serve`, until a signal comes.

    The address is printed first. A session has one thread for each call.
    """
    import socket

    import uvicorn

    known = from_data(Signature, json.loads(Path(signature).read_text()))
    session, names = open_session(Path(path), [a.name for a in known.inputs], threads=1)

    def call(*arrays: Any) -> Any:
        return session.run(None, dict(zip(names, arrays, strict=True)))

    most = most_rows(call, known)[0] if batch == "1" else 0
    name = Path(path).stem
    models: Any = {name: _Peer(name, call, known, int(workers), int(queue), most)}
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    config = uvicorn.Config(application(models, Limits()), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    serve_peer(*sys.argv[1:])
