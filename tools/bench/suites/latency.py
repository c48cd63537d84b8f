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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.util.files import write_file
from pyc_mlir.measure.records import Record, Report
from pyc_mlir.tools.bench.peers.peaks import Peaks
from pyc_mlir.tools.bench.peers.rounds import absence, compared, fma_and_copies, store
from pyc_mlir.tools.bench.peers.systems import PEERS
from pyc_mlir.tools.bench.report.page import page
from pyc_mlir.tools.bench.report.suite import (
    FRESH,
    SuiteRun,
    counts,
    note,
    on_cores,
    option,
    some_of,
    suite,
)
from pyc_mlir.tools.bench.report.tables import PYC
from pyc_mlir.tools.bench.workloads import systems as systems_here
from pyc_mlir.tools.bench.workloads.cpu import CALL, ROWS, make

# Suites by name: which classes of workloads belong to them.
SUITES: Mapping[str, tuple[str, ...]] = {
    "cpu": tuple(dict.fromkeys(row.kind for row in ROWS.values())),
    "demo": ("call", "demo"),
}
QUICK = (CALL, "mlp 784-512-512-10, batch 64")


def _peers(text: str) -> tuple[str, ...]:
    """Read names of peers, or none of them."""
    return some_of(PEERS)(text) if text else ()


def _page(bench: SuiteRun, stored: Report) -> None:
    if bench.options.html is not None:
        write_file(bench.options.html, page(stored).encode())
        note(f"page written to {bench.options.html}")


@suite(
    "latency",
    21,
    option("--suite", choices=SUITES, default="cpu", help="the workloads; default: cpu"),
    option("--threads", type=counts, default=(1, 2), metavar="N,...", help="numbers of threads"),
    option("--peers", type=_peers, default=PEERS, metavar="NAME,...",
           help=f"some of {', '.join(PEERS)}; default: all"),
    option("--only", nargs="+", choices=ROWS, metavar="NAME", help="only these workloads"),
    FRESH,
    option("--html", type=Path, metavar="OUT", help="write a page of charts"),
    then=_page,
)  # fmt: skip
def run(bench: SuiteRun) -> Iterator[Record]:
    """Measure the CPU workloads: PyC, plain IREE, onnxruntime, OpenVINO, XLA and torch."""
    known = bench.options
    threads, systems = on_cores(known.threads), (PYC, *known.peers)
    peaks = {t: fma_and_copies(t, bench) for t in threads}
    bench.settings |= {"suite": known.suite, "threads": threads, "systems": list(systems)}

    def complete(rows: Sequence[Record]) -> bool:
        return {r["threads"] for r in rows if r["system"] == PYC} >= set(threads)

    names = names_of(known.suite, known.only or (QUICK if bench.quick else None))
    cases = {name: partial(measured, name, systems, bench, peaks) for name in names}
    yield from with_overhead(list(bench.resumed(cases, complete)))
    bench.settings["peaks"] = {str(t): asdict(found) for t, found in peaks.items()}


def names_of(suite: str, only: Sequence[str] | None) -> list[str]:
    """Return the workloads, the empty call first: an interrupted run has it then."""
    kinds = SUITES[suite]
    named = [n for n, row in ROWS.items() if row.kind in kinds and (only is None or n in only)]
    return sorted(named, key=lambda name: name != CALL)


def measured(
    name: str, systems: Sequence[str], bench: SuiteRun, peaks: Mapping[int, Peaks]
) -> list[Record]:
    """Measure the records of one workload, with each number of threads."""
    records, kind = [], ROWS[name].kind
    for threads, found in peaks.items():
        try:
            workload = make(name, bench.quick)
            records += compared(
                bench, name, kind, threads, systems, partial(store, workload),
                module=systems_here.__name__, peaks=found, tolerance=workload.tolerance,
            )  # fmt: skip
        except PycError as error:
            row = absence(name, PYC, threads, f"{error.code.name}: {error.message}")
            records.append(row | {"class": kind})
    return records


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
