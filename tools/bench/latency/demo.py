"""The suite `demo-latency`: time of a call against plain IREE and onnxruntime.

The demo models at three batch sizes and an encoder block, with one and with two threads. IREE's
thread count belongs to the process, so each thread count is measured in a process of its own
(``python -m pyc_mlir.tools.bench.latency.demo`` prints its records); in it the candidates are
interleaved. Every candidate's results are checked against float64 before anything is timed.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.interleave import interleave, timing_records
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.target.target import available_cores
from pyc_mlir.tools.bench.peers import candidates
from pyc_mlir.tools.bench.peers.prepared import (
    REST_SECONDS,
    Choice,
    PreparedWorkload,
    Settings,
    choose,
)
from pyc_mlir.tools.bench.peers.workload import BenchWorkload
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, parse
from pyc_mlir.tools.bench.workloads.workloads import PUBLISHED, TINY_ENCODER, WORKLOADS
from pyc_mlir.util.children import run as run_child

SUITE = "demo-latency"
ROUNDS = 21
THREADS = (1, 2)
_TRIAL_ROUNDS = 5
_TRIAL_SHARE = 0.4
MILLION = 1e6


def run(arguments: Sequence[str]) -> int:
    """Measure the demo models and an encoder block: PyC, plain IREE, onnxruntime."""
    bench, _ = parse(SUITE, run.__doc__ or "", ROUNDS, arguments)
    names = (TINY_ENCODER,) if bench.quick else PUBLISHED
    counts = [t for t in THREADS if t <= available_cores()][: 1 if bench.quick else None]
    records = [r for threads in counts for r in in_own_process(bench, names, threads)]
    bench.store(
        records,
        threads=list(counts),
        iree_settings=list(candidates.IREE_COMPILES),
        pyc="default options; local-sync for 1 thread, else local-task",
        error="max |got - float64| / max |float64|, in parts per million",
    )
    return 0


def in_own_process(bench: SuiteRun, names: Sequence[str], threads: int) -> list[Record]:
    """Measure with that many threads. Raises PycError when the process fails."""
    command = [sys.executable, "-m", __name__, f"--threads={threads}", f"--rounds={bench.rounds}"]
    command += [f"--min-seconds={bench.min_seconds}", *names]
    done = run_child(command, stderr=None)
    if done.returncode != 0:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"{SUITE}, {threads} threads: expected the measuring process to finish, "
            f"got status {done.returncode}; its message stands above",
        )
    return json.loads(done.stdout)


def measure(workload: BenchWorkload, threads: int, rounds: int, min_seconds: float) -> list[Record]:
    """Check, choose settings, interleave. Raises PycError (WRONG_RESULT)."""
    rest = REST_SECONDS if min_seconds else 0.0
    chosen: dict[str, Choice] = {}
    errors: dict[str, float] = {}
    for name, settings in _candidates(workload, threads).items():
        for setting, prepared in settings.items():
            error = workload.check(prepared.results(), f"{name} ({setting})")
            errors[name] = max(error, errors.get(name, 0.0))
        # Only onnxruntime's workers disturb whoever comes next.
        pause = rest if name == "onnxruntime" else 0.0
        trials = min(rounds, _TRIAL_ROUNDS)
        chosen[name] = choose(settings, trials, min_seconds * _TRIAL_SHARE, pause)
    calls = {name: choice.prepared.call for name, choice in chosen.items()}
    timings = interleave(calls, rounds, min_seconds=min_seconds, rest_seconds=rest)
    title = f"{workload.name}; {threads} thread{'s' if threads > 1 else ''}"
    records = timing_records(title, timings, threads=threads)
    for row in records:
        choice = chosen[row["candidate"]]
        row |= {"setting": choice.setting, "tried": dict(choice.tried)}
        note(f"{title}: {row['candidate']} {row['value'] * MILLION:.1f} us ({choice.setting})")
    errors_ppm = [
        record(title, name, "max relative error", "ppm", error * MILLION)
        for name, error in errors.items()
    ]
    return records + errors_ppm


def _candidates(workload: BenchWorkload, threads: int) -> dict[str, Settings]:
    mine: dict[str, PreparedWorkload] = {"default": candidates.pyc_by_default(workload, threads)}
    found = {"pyc": mine, "iree": candidates.plain_iree(workload, threads)}
    if workload.onnx is not None and importlib.util.find_spec("onnxruntime") is not None:
        found["onnxruntime"] = candidates.onnxruntime(workload, threads)
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the measuring process: records as JSON on stdout."""
    parser = argparse.ArgumentParser(__name__)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--min-seconds", type=float, required=True)
    parser.add_argument("names", nargs="+", choices=WORKLOADS)
    known = parser.parse_args(arguments)
    records = []
    try:
        for name in known.names:
            workload = WORKLOADS[name]()
            records += measure(workload, known.threads, known.rounds, known.min_seconds)
    except PycError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(records))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
