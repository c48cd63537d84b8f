"""The suite `soak`: the same program for very many calls, in process and behind the server.

What must stay flat after a warm-up is sampled along the way: resident memory, open handles,
threads, bytes of arenas, and the median time of a call. In process every answer is compared with
the first one for the same input, bit by bit. Random calls with sizes, layouts and memory of any
kind follow (`stress.py`).
"""

import json
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from urllib.request import urlopen

import numpy as np

import pyc_mlir
from pyc_mlir import Service, Targets
from pyc_mlir.measure.records import Record, record
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, option, suite
from pyc_mlir.tools.bench.suites.load import Load, under_load
from pyc_mlir.tools.bench.suites.serve import Served, models, served
from pyc_mlir.tools.cli.common import positive
from suites.stress import program_of_rows, stress

CALLS, REQUESTS, STRESSED, QUICK = 1_000_000, 100_000, 100_000, 2_000
# Samples of a run; the first ones are its warm-up.
_SAMPLES, _WARM = 20, 4
_ROWS = (1, 3, 8, 17, 64)
_CONNECTIONS = 8


@dataclass(frozen=True)
class Sample:
    """The resources of a process at one time, and the median seconds of the calls before."""

    rss: int
    handles: int
    threads: int
    arenas: int
    seconds: float

    @staticmethod
    def of(pid: int | str, arenas: int, seconds: float) -> "Sample":
        """Look at a process."""
        at = Path("/proc") / str(pid)
        pages = int((at / "statm").read_text().split()[1])
        handles, threads = (len(list((at / name).iterdir())) for name in ("fd", "task"))
        return Sample(pages * resource.getpagesize(), handles, threads, arenas, seconds)


@suite(
    "soak",
    1,
    option("--calls", type=positive, metavar="N", help=f"in process; default: {CALLS}"),
    option("--requests", type=positive, metavar="N", help=f"of the server; default: {REQUESTS}"),
)
def run(bench: SuiteRun) -> Iterator[Record]:
    """Call a program very often, in process and through the server; tell what grew."""
    calls = bench.options.calls or (QUICK if bench.quick else CALLS)
    requests = bench.options.requests or (QUICK if bench.quick else REQUESTS)
    with TemporaryDirectory() as folder:
        model = next(models(Path(folder), (), bench.quick))
        samples, other = in_process(model, calls)
        named = f"{calls} calls in process"
        yield from _grown(named, samples)
        yield record(named, "pyc", "answers with other bits", "answers", other)
        yield record(named, "pyc", "calls made", "calls", calls)
        samples, done, failed = through_server(model, requests)
        named = f"{done} requests of the server"
        yield from _grown(named, samples)
        yield record(named, "pyc", "failed", "requests", failed)
        yield record(named, "pyc", "requests made", "requests", done)
    random = min(calls, STRESSED)
    found, named = stress(program_of_rows(), random), f"{random} random calls"
    missed = found.silent_mismatches
    yield record(named, "pyc", "silent_mismatch_count", "answers", missed)
    yield record(named, "pyc", "right answers", "answers", found.right)
    for code, number in sorted(found.refused.items()):
        yield record(named, "pyc", f"refused: {code}", "calls", number)
    bench.failed = bool(other or failed or missed)


def in_process(model: Served, calls: int) -> tuple[list[Sample], int]:
    """Call a service of the model; return samples, and answers with other bits than the first."""
    rng = np.random.default_rng(0)
    program = pyc_mlir.load(model.program)
    shape = [d for d in program.signature.inputs[0].shape[1:] if isinstance(d, int)]
    inputs = [rng.random((rows, *shape), np.float32) for rows in _ROWS]
    each = max(calls // _SAMPLES, 1)
    seconds, samples, other = np.zeros(each), [], 0
    with Service(program, targets=Targets(p99_seconds=60.0)) as service:
        first = [service(x).tobytes() for x in inputs]
        for _ in range(_SAMPLES):
            for i in range(each):
                began = perf_counter()
                answer = service(inputs[i % len(inputs)])
                seconds[i] = perf_counter() - began
                other += answer.tobytes() != first[i % len(inputs)]
            arenas = service.snapshot().memory["arenas"]
            samples.append(Sample.of("self", arenas, float(np.median(seconds))))
            note(f"in process: {samples[-1]}")
    return samples, other


def through_server(model: Served, requests: int) -> tuple[list[Sample], int, int]:
    """Send requests to a server of the model; return samples, and how many came and failed."""
    samples: list[Sample] = []
    done = failed = 0
    with served(str(model.program)) as (process, port):
        path, body = f"/v2/models/{model.onnx.stem}/infer", (str(model.body), model.json_length)
        load = Load("127.0.0.1", port, path, *body, _CONNECTIONS, 0.2 if requests <= QUICK else 1.0)
        while done < requests or len(samples) < _SAMPLES:
            answers = under_load(load)
            done += round(answers.a_second * load.seconds)
            failed += answers.failed
            with urlopen(f"http://127.0.0.1:{port}/status", timeout=30) as reply:
                memory = json.load(reply)["models"][model.onnx.stem]["memory"]
            samples.append(Sample.of(process.pid, memory["arenas"], answers.p50))
            note(f"server: {samples[-1]}")
    return samples, done, failed


def _grown(named: str, samples: Sequence[Sample]) -> Iterator[Record]:
    """Yield the state after the warm-up, and how it grew until the end.

    The drift of latency is the median of the last quarter over that of the first one.
    """
    warm, last = samples[_WARM:], samples[-1]
    first, quarter = warm[0], max(len(warm) // 4, 1)
    yield record(named, "pyc", "resident memory after the warm-up", "B", first.rss)
    yield record(named, "pyc", "growth of resident memory", "%", 100 * (last.rss / first.rss - 1))
    for what in ("handles", "threads"):
        grown = getattr(last, what) - getattr(first, what)
        yield record(named, "pyc", f"growth of {what}", what, grown)
    yield record(named, "pyc", "growth of arenas", "B", last.arenas - first.arenas)
    early, late = (median(s.seconds for s in part) for part in (warm[:quarter], warm[-quarter:]))
    yield record(named, "pyc", "median of a call", "s", median(s.seconds for s in warm))
    yield record(named, "pyc", "drift of the median", "%", 100 * (late / early - 1))
