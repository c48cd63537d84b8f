"""Latency of the programs of one workload: artifacts in a folder, interleaved.

IREE's thread count belongs to the process, so each thread count has a process of its own:
``python -m pyc_mlir.tools.bench.memory.latency --threads 2 ... FOLDER`` prints the samples of every
``*.vmfb`` in the folder, called with the arrays of ``inputs.npz``. PyC's are called as users call
them, IREE's (``bare-*``) the way that costs least. Programs of the same bytes are timed once.
"""

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.interleave import Timing, interleave
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.device import Device, default_device
from pyc_mlir.runtime.program import Program, serving
from pyc_mlir.util.children import run as run_child

# Of the calling thread, which computes all of a call where there is one thread: other processes
# take its time from the wall clock, but not from this one.
CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}
_INPUTS = "inputs.npz"
_BARE = "bare-"


def time_all(
    pyc: Mapping[str, Artifact],
    iree: Mapping[str, Artifact],
    arrays: Sequence[np.ndarray],
    threads: Sequence[int],
    rounds: int,
    min_seconds: float,
    clock: str = "wall",
) -> dict[int, dict[str, Timing]]:
    """Return timings by number of threads and name, on a clock of CLOCKS. Raises RUNTIME_FAILED."""
    stems = {name: _digest(artifact) for name, artifact in pyc.items()}
    stems |= {name: _BARE + _digest(artifact) for name, artifact in iree.items()}
    with tempfile.TemporaryDirectory(prefix="pyc-bench-") as name:
        folder = Path(name)
        np.savez(folder / _INPUTS, *arrays)
        for program, artifact in {**pyc, **iree}.items():
            artifacts.write(artifact, folder / f"{stems[program]}.vmfb")
        found = {t: _in_own_process(folder, t, rounds, min_seconds, clock) for t in threads}
    return {t: {n: timings[stem] for n, stem in stems.items()} for t, timings in found.items()}


def _digest(artifact: Artifact) -> str:
    return hashlib.sha256(artifact.vmfb).hexdigest()[:16]


def _in_own_process(
    folder: Path, threads: int, rounds: int, min_seconds: float, clock: str
) -> dict[str, Timing]:
    command = [sys.executable, "-m", __name__, f"--threads={threads}", f"--rounds={rounds}"]
    command += [f"--min-seconds={min_seconds}", f"--clock={clock}", str(folder)]
    done = run_child(command, stderr=None)
    if done.returncode != 0:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"latency with {threads} threads: expected the measuring process to finish, "
            f"got status {done.returncode}; its message stands above",
        )
    read = json.loads(done.stdout)
    return {name: Timing(tuple(t["samples"]), t["calls"]) for name, t in read.items()}


def main(arguments: Sequence[str]) -> int:
    """Run the measuring process: samples as JSON on stdout."""
    parser = argparse.ArgumentParser(__name__)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--min-seconds", type=float, required=True)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("folder", type=Path)
    known = parser.parse_args(arguments)
    device = default_device(known.threads)
    with np.load(known.folder / _INPUTS, allow_pickle=False) as stored:
        arrays = [to_device(stored[f"arr_{i}"], device) for i in range(len(stored.files))]
    try:
        calls = {
            path.stem: _call(path, device, arrays) for path in sorted(known.folder.glob("*.vmfb"))
        }
        seconds, clock = known.min_seconds, CLOCKS[known.clock]
        timings = interleave(calls, known.rounds, min_seconds=seconds, clock=clock)
    except PycError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({n: {"samples": t.samples, "calls": t.calls} for n, t in timings.items()}))
    return 0


def _call(path: Path, device: Device, arrays: Sequence[Array]) -> Callable[[], object]:
    program = Program(artifacts.read(path), device)
    if path.stem.startswith(_BARE):
        return serving(program).bare_call(*arrays)
    return partial(program, *arrays)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
