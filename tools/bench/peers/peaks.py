"""The machine's peaks beside a measurement of systems, by a process of its own.

python -m pyc_mlir.tools.bench.peers.peaks --threads 2      {"flops": ..., "bandwidth": ...}
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from pyc_mlir.calibrate import copy_probe, fma_probes
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.runtime.device import Device
from pyc_mlir.tools.bench.peers.worker import environment, hold_to
from pyc_mlir.util.children import run as run_child

_ROUNDS = 7
_COPIED_BYTES = 128 << 20


@dataclass(frozen=True)
class Peaks:
    """FLOP/s of f32 and bytes/s of main memory, the best of several rounds."""

    flops: float
    bandwidth: float


def in_own_process(threads: int, iterations: int, environ: dict[str, str]) -> Peaks:
    """Calibrate with that many threads. Raises PycError (RUNTIME_FAILED)."""
    command = [sys.executable, "-m", __name__, f"--threads={threads}"]
    command += [f"--iterations={iterations}"]
    done = run_child(command, stderr=None, env=environment(threads, environ))
    if done.returncode != 0:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"calibration with {threads} threads: expected the process to finish, got status "
            f"{done.returncode}; its message stands above",
        )
    return Peaks(**json.loads(done.stdout))


def measure_flops(threads: int, iterations: int) -> float:
    """FLOP/s of FMAs on `threads` threads."""
    device = Device("local-sync") if threads == 1 else Device("local-task", threads)
    (probe,) = fma_probes([device], threads, iterations)
    return probe.amount / _least_seconds(probe.call)


def measure_bandwidth(threads: int, total_bytes: int) -> float:
    """Return the bytes read and written per second by copies on `threads` threads."""
    with copy_probe(threads, total_bytes) as probe:
        return probe.amount / _least_seconds(probe.call)


def _least_seconds(call: Callable[[], object]) -> float:
    call()
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main(arguments: Sequence[str]) -> int:
    """Run the calibrating process: peaks as JSON on stdout."""
    parser = argparse.ArgumentParser(__name__)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    known = parser.parse_args(arguments)
    hold_to(known.threads)
    size = min(_COPIED_BYTES, known.iterations * 128)
    flops = measure_flops(known.threads, known.iterations)
    print(json.dumps(asdict(Peaks(flops, measure_bandwidth(known.threads, size)))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
