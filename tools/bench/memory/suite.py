"""The suite `memory`: memory of a call, mode by mode, against plain IREE and XLA.

    pyc-bench memory --json OUT [--only NAME ...] [--fresh]

Each workload of `workloads.memory` gives one record per planner mode, with the fields

    peak_bytes           transients (the whole arena) and fresh results of one call, measured
    transient_bytes      the peak without the results, `output_bytes`
    lower_bound_bytes    what no packing of the planned order goes below, results included; where
                         IREE's order was kept, what the largest task needs in any order
    constant_bytes, input_bytes, total_bytes     beside the peak, and all together
    iree_total_bytes                             the same of plain IREE
    iree_peak_bytes      the least of IREE's partitionings at O3; `iree_peaks` has all of them
    xla_temp_bytes       XLA's temporary memory (results not included), null without jax. XLA hands
                         products and what follows them to a library that need not store what lies
                         between; `xla_no_library_temp_bytes` is its figure without that
    median_seconds, iree_median_seconds          of a call with 1 thread: PyC's `Program`, guards
                         included, beside IREE's bare invoke at its quickest partitioning;
                         `latency` has spreads, ratios and other numbers of threads
    equal                the same bits as PyC's own unplanned program, and within the error bound
                         of plain IREE

Finished workloads are kept beside OUT as OUT.partial; a run with the same settings in the same
environment goes on from there. A workload that fails is a record too, with metric `failure`.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pyc_mlir.artifact import memory
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.dialects.errors import PycError, install
from pyc_mlir.measure.interleave import Spread, Timing, ratio
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.target.target import available_cores
from pyc_mlir.tools.bench.memory.latency import time_all
from pyc_mlir.tools.bench.memory.measure import (
    MODES,
    UNPLANNED,
    Programs,
    build_all,
    error_against,
    same_bits,
)
from pyc_mlir.tools.bench.memory.xla import XlaMemory, temporary_memory
from pyc_mlir.tools.bench.peers.footprint import Footprint, footprint
from pyc_mlir.tools.bench.report.suite import Partial, SuiteRun, note, parse
from pyc_mlir.tools.bench.workloads.case import SuiteCase
from pyc_mlir.tools.bench.workloads.memory import WORKLOADS, make
from pyc_mlir.tools.cli.common import Parser
from pyc_mlir.util.children import run as run_child

SUITE = "memory"
ROUNDS = 15
THREADS = (1, 2)
# Of another program of the same arithmetic in another order: as `Workload.tolerance`.
ERROR_BOUND = 1e-4
MIB = 2.0**20
_REASON_CHARACTERS = 300

Timings = Mapping[int, Mapping[str, Timing]]


def run(arguments: Sequence[str]) -> int:
    """Measure peaks and latency by planner mode, against plain IREE; XLA's temporary memory."""
    parser = Parser(SUITE)
    parser.add_argument(
        "--only", nargs="+", choices=WORKLOADS, metavar="NAME", help="only these workloads"
    )
    parser.add_argument("--fresh", action="store_true", help="measure finished workloads again")
    bench, known = parse(SUITE, run.__doc__ or "", ROUNDS, arguments, parser)
    names = [name for name in WORKLOADS if known.only is None or name in known.only]
    threads = [t for t in THREADS if t <= available_cores()]
    settings = {"threads": threads, "error_bound": ERROR_BOUND}
    kept = Partial(bench, settings)
    done = {} if known.fresh else kept.load()
    for i, name in enumerate(names, 1):
        if name in done:
            note(f"{i} of {len(names)}: {name}: measured before")
            continue
        note(f"{i} of {len(names)}: {name}")
        done[name] = in_own_process(name, bench, threads)
        kept.save(done)
    records = [row for name in names for row in done[name]]
    bench.store(records, **settings)
    kept.path.unlink(missing_ok=True)
    failed = [row for row in records if row["metric"] == "failure"]
    for row in failed:
        note(f"failed: {row['workload']}: {row['reason']}")
    return 1 if failed else 0


def in_own_process(name: str, bench: SuiteRun, threads: Sequence[int]) -> list[Record]:
    """Measure the records of one workload, or the reason why there are none.

    The process is its own, so that the state that one workload leaves does not affect the next, and
    a program that ends the process ends no other measurement.
    """
    command = [sys.executable, "-m", __name__, name, f"--rounds={bench.rounds}"]
    command += [f"--min-seconds={bench.min_seconds}", *(f"--threads={t}" for t in threads)]
    command += ["--quick"] if bench.quick else []
    done = run_child(command, stderr=None)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    reason = f"the measuring process ended with status {done.returncode}"
    return [_failure(name, reason)]


def main(arguments: Sequence[str]) -> int:
    """Run the measuring process: records as JSON on the last line of stdout."""
    parser = argparse.ArgumentParser(__name__)
    parser.add_argument("name", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--min-seconds", type=float, required=True)
    parser.add_argument("--threads", type=int, action="append", required=True)
    parser.add_argument("--quick", action="store_true")
    known = parser.parse_args(arguments)
    try:
        case = make(known.name, known.quick)
        rows = measure(case, known.rounds, known.min_seconds, known.threads)
    except PycError as error:
        rows = [_failure(known.name, f"{error.code.name}: {error.message}")]
    print(json.dumps(rows))
    return 0


def _failure(name: str, reason: str) -> Record:
    return record(name, "pyc", "failure", "failures", 1, reason=reason[:_REASON_CHARACTERS])


def measure(
    case: SuiteCase, rounds: int, min_seconds: float, threads: Sequence[int]
) -> list[Record]:
    """Measure one record per mode. Raises PycError when a program does not compile or run."""
    programs = build_all(case)
    pyc = {mode: footprint(b.artifact, case.arrays) for mode, b in programs.pyc.items()}
    iree = {name: footprint(b.artifact, case.arrays) for name, b in programs.iree.items()}
    ours = {mode: programs.pyc[mode].artifact for mode in MODES}
    theirs = {name: programs.iree[name].artifact for name in programs.same_kernels}
    timings = time_all(ours, theirs, case.arrays, threads, rounds, min_seconds)
    shared = {
        "input_bytes": case.input_bytes,
        **_iree_fields(case, programs, iree),
        **_xla_fields(temporary_memory(case)),
        "unplanned_peak_bytes": pyc[UNPLANNED].peak_bytes,
    }
    expected = next(iter(iree.values()))
    return [_mode_record(case, mode, programs, pyc, expected, timings, shared) for mode in MODES]


def _mode_record(
    case: SuiteCase,
    mode: str,
    programs: Programs,
    pyc: Mapping[str, Footprint],
    expected: Footprint,
    timings: Timings,
    shared: Mapping[str, Any],
) -> Record:
    found, built = pyc[mode], programs.pyc[mode]
    constants = built.artifact.account.constants or 0
    bits = same_bits(found.results, pyc[UNPLANNED].results)
    error = error_against(found.results, expected.results)
    latency = {str(t): _latency(mode, programs, timings[t]) for t in timings}
    first = next(iter(latency.values()))
    note(
        f"{case.name}: {mode} {found.peak_bytes / MIB:.2f} MiB, "
        f"iree {shared['iree_peak_bytes'] / MIB:.2f} MiB, "
        + ", ".join(f"{row['ratio']['median']:.3f}x with {t} threads" for t, row in latency.items())
        + ("" if bits else ", OTHER BITS than unplanned")
    )
    row = record(case.name, mode, "peak", "B", found.peak_bytes)
    return row | {
        "class": case.kind,
        "mode": mode,
        "peak_bytes": found.peak_bytes,
        "transient_bytes": found.transient_bytes,
        "output_bytes": found.output_bytes,
        "lower_bound_bytes": found.output_bytes + lower_bound(built.artifact, programs.task_bound),
        "constant_bytes": constants,
        "total_bytes": found.peak_bytes + constants + shared["input_bytes"],
        **shared,
        "median_seconds": first["seconds"]["median"],
        "iree_median_seconds": first["iree_seconds"]["median"],
        "latency": latency,
        "equal": bits and error <= ERROR_BOUND,
        "same_bits": bits,
        "error_against_iree": error if error < float("inf") else None,
        "compile_seconds": built.seconds,
    }


def _iree_fields(
    case: SuiteCase, programs: Programs, iree: Mapping[str, Footprint]
) -> dict[str, Any]:
    peaks = {name: found.peak_bytes for name, found in iree.items()}
    best = min(peaks, key=peaks.__getitem__)
    return {
        "iree_peak_bytes": peaks[best],
        "iree_total_bytes": peaks[best] + (programs.iree_constants or 0) + case.input_bytes,
        "iree_transient_bytes": iree[best].transient_bytes,
        "iree_setting": best,
        "iree_peaks": peaks,
        "iree_compile_seconds": programs.iree[programs.same_kernels[0]].seconds,
        "fusion": programs.fusion,
    }


def _xla_fields(found: XlaMemory | None) -> dict[str, Any]:
    if found is None:
        note(f"jax is not installed: no figure of XLA; {install('bench')}")
    return {
        "xla_temp_bytes": None if found is None else found.temp_bytes,
        "xla_no_library_temp_bytes": None if found is None else found.no_library_temp_bytes,
    }


def _latency(mode: str, programs: Programs, timings: Mapping[str, Timing]) -> dict[str, Any]:
    """Return the times of PyC's program in `mode` beside IREE's quickest, in seconds."""
    quickest = min(programs.same_kernels, key=lambda name: timings[name].median)
    return {
        "seconds": asdict(timings[mode].spread),
        "iree_seconds": asdict(timings[quickest].spread),
        "iree_setting": quickest,
        "ratio": asdict(_ratio(timings, mode, quickest)),
    }


def _ratio(timings: Mapping[str, Timing], of: str, to: str) -> Spread:
    return ratio(timings, of=of, to=to)


def lower_bound(artifact: Artifact, task_bound: int) -> int:
    """Return the transients that the plan's order needs; `task_bound` if IREE's order was kept.

    Regions run one after another, so the largest bound counts.
    """
    regions = memory.from_bytes(artifact.memory).regions if artifact.memory else ()
    return max(task_bound, *(r.lower_bound for r in regions), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
