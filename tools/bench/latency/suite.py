"""The suite `latency`: time of calls against the peers of this CPU.

    pyc-bench latency --suite cpu --threads 1,2 --peers onnxruntime,torch --json OUT --html OUT

One record per workload, number of threads and system, with the fields

    system                  `pyc` is the default of `pyc_mlir.compile` and nothing else
    median_seconds, p10_seconds, p90_seconds       of a warm call, over the rounds
    max_error               max |got - float64| / max |float64|, the worst of all settings tried
    roofline_fraction       the least time that the machine allows, by the peaks measured in the
                            same run (peak_flops, peak_bandwidth: of copies), over the median;
                            above 1 where caches hold everything, or most bytes are only read
    flops, bytes            what the program does at least: operations, and bytes of arguments,
                            constants and results
    cold_start_seconds      compile and first call, imports excluded
    compile_seconds, compile_cpu_seconds     of the cold start until the program could be called;
                            the CPU seconds are those of all threads and children
    peak_resident_bytes     of the process until the first results; `resident_before_bytes` of it
                            were there before the cold start, `resident_bytes` after it
    first_call_bytes        by how much the first call raised the resident memory at its peak
    call_peak_bytes         transients and results of a call by the system's own account: by IREE's
                            allocator for `pyc` and `iree`, null where there is none
    call_overhead_seconds   the same system's median on `call of nothing`, null if not measured
    setting, tried          the quickest setting, and the medians of those that were compared

A system whose package is missing is a record with metric `left out`, one that fails or is wrong is
one with metric `failure`; both are noted, and neither ends the run. Finished workloads are kept
beside OUT as OUT.partial; a run with the same settings in the same environment goes on from there.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyc_mlir.calibrate import Peaks
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.util.files import write_file
from pyc_mlir.measure.records import Record, Report
from pyc_mlir.pipelines.target.target import available_cores
from pyc_mlir.tools.bench.peers.rounds import (
    FAILURE,
    RoundSettings,
    counts,
    failure,
    fma_and_copies,
    measure,
    records_of,
)
from pyc_mlir.tools.bench.peers.systems import PEERS, PYC
from pyc_mlir.tools.bench.report import latency_html as cpu_html
from pyc_mlir.tools.bench.report.suite import Partial, SuiteRun, note, parse
from pyc_mlir.tools.bench.workloads.cpu import CALL, ROWS, make
from pyc_mlir.tools.cli.common import Parser

SUITE = "latency"
ROUNDS = 21
_SYSTEMS = "pyc_mlir.tools.bench.latency.systems"
THREADS = (1, 2)
# Suites by name: which classes of workloads belong to them.
SUITES: Mapping[str, tuple[str, ...]] = {
    "cpu": tuple(dict.fromkeys(row.kind for row in ROWS.values())),
    "demo": ("call", "demo"),
}
QUICK = (CALL, "mlp 784-512-512-10, batch 64")


def run(arguments: Sequence[str]) -> int:
    """Measure the CPU workloads: PyC, plain IREE, onnxruntime, OpenVINO, XLA and torch."""
    bench, known = parse(SUITE, run.__doc__ or "", ROUNDS, arguments, _parser())
    threads = [t for t in known.threads if t <= available_cores()]
    for t in set(known.threads) - set(threads):
        note(f"left out: {t} threads on {available_cores()} cores")
    systems = (PYC, *known.peers)
    peaks = {t: fma_and_copies(t, bench) for t in threads}
    settings = {"suite": known.suite, "threads": threads, "systems": list(systems)}
    kept = Partial(bench, settings)
    done = {} if known.fresh else _complete(kept.load(), threads)
    names = _names(known.suite, known.only or (QUICK if bench.quick else None))
    for i, name in enumerate(names, 1):
        if name in done:
            note(f"{i} of {len(names)}: {name}: measured before")
            continue
        note(f"{i} of {len(names)}: {name}")
        done[name] = [r for t in threads for r in _measured(name, t, systems, bench, peaks[t])]
        kept.save(done)
    records = with_overhead([row for name in names for row in done[name]])
    peaks_data = {str(t): asdict(found) for t, found in peaks.items()}
    bench.store(records, **settings, peaks=peaks_data)
    kept.path.unlink(missing_ok=True)
    if known.html is not None:
        write_file(known.html, cpu_html.page(Report.load(bench.path)).encode())
        note(f"page written to {known.html}")
    return 1 if any(r["metric"] == FAILURE and r["system"] == PYC for r in records) else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(SUITE)
    parser.add_argument(
        "--suite", choices=SUITES, default="cpu", help="the workloads; default: cpu"
    )
    parser.add_argument(
        "--threads", type=counts, default=THREADS, metavar="N,...", help="numbers of threads"
    )
    parser.add_argument("--peers", type=_peers, default=PEERS, metavar="NAME,...",
                        help=f"some of {', '.join(PEERS)}; default: all")  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", choices=ROWS, metavar="NAME", help="only these workloads"
    )
    parser.add_argument("--fresh", action="store_true", help="measure finished workloads again")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write a page of charts")
    return parser


def _peers(text: str) -> tuple[str, ...]:
    named = tuple(part for part in text.split(",") if part)
    unknown = [name for name in named if name not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(PEERS)}, got {text!r}")
    return named


def _names(suite: str, only: Sequence[str] | None) -> list[str]:
    """Return the workloads, the empty call first: an interrupted run has it then."""
    kinds = SUITES[suite]
    named = [n for n, row in ROWS.items() if row.kind in kinds and (only is None or n in only)]
    return sorted(named, key=lambda name: name != CALL)


def _complete(found: Mapping[str, list[Record]], threads: Sequence[int]) -> dict[str, list[Record]]:
    """Return the workloads that PyC ran with every number of threads; others are tried again."""
    ran = {name: {r["threads"] for r in rows if r["system"] == PYC} for name, rows in found.items()}
    return {name: rows for name, rows in found.items() if ran[name] >= set(threads)}


def _measured(
    name: str, threads: int, systems: Sequence[str], bench: SuiteRun, peaks: Peaks
) -> list[Record]:
    """Measure the records of one workload with that many threads."""
    how = RoundSettings(
        bench.rounds, bench.min_seconds, threads, bench.quick, dict(os.environ), _SYSTEMS
    )
    try:
        work, found = measure(make(name, bench.quick), name, systems, how)
    except PycError as error:
        row = failure(name, PYC, threads, f"{error.code.name}: {error.message}")
        return [row | {"class": ROWS[name].kind}]
    return records_of(name, ROWS[name].kind, threads, work, found, peaks)


def with_overhead(records: Sequence[Record]) -> list[Record]:
    """Add to each record the cost of an empty call of the same system and threads."""
    costs: dict[Any, float] = {
        (r["system"], r["threads"]): r["median_seconds"]
        for r in records
        if r["workload"] == CALL and "median_seconds" in r
    }
    return [
        r | {"call_overhead_seconds": costs.get((r["system"], r["threads"]))}
        if "median_seconds" in r
        else r
        for r in records
    ]
