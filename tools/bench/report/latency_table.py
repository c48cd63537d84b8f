"""The report of the suite `latency` as Markdown: medians, ratios, means, costs beside, exceptions.

A ratio is a time over the best peer's; below 1 PyC is ahead.
"""

from collections.abc import Iterable, Iterator, Sequence

from pyc_mlir.measure.records import Report
from pyc_mlir.tools.bench.report.latency_facts import (
    IREE,
    PYC,
    Mean,
    WorkloadFacts,
    groups,
    means,
    results,
    systems_of,
)
from pyc_mlir.tools.bench.report.table import (
    environment_line,
    exceptions,
    rows_table,
    seconds_cell,
    times,
)
from pyc_mlir.util.units import quantity

# As in cpu_workloads, which needs the front ends.
GOAL_CLASSES = ("gemm", "mlp", "rows", "columns", "elementwise", "encoder")
_PPM = 1e6
_MEDIANS = (
    "Medians of a warm call with its 10th to 90th percentile; PyC's time over that of the best "
    "peer, of plain IREE at its best setting, and of plain IREE at O3 with no other setting (a "
    "short measurement); its fraction of the roofline (above 100% where caches hold the data, or "
    "where it reads more than it writes: the bandwidth is that of copies), and the largest error "
    "of any system in parts per million. What a call costs by itself is `call of nothing`."
)


def markdown(report: Report) -> str:
    """Write all tables of a report of the suite `latency`. Ends in a newline."""
    found = results(report.records)
    systems = systems_of(found)
    head = (
        "workload",
        "threads",
        *systems,
        "best peer",
        "/ best",
        "/ iree",
        "/ iree O3",
        "of the roof",
        "error",
    )
    beside = ("workload", "threads", *systems)
    parts = [
        environment_line(report),
        "\n".join(_peak_lines(report)),
        _MEDIANS,
        rows_table(head, (_latency(r, systems) for r in found)),
        "Geometric means of PyC's time over the best peer's, and over plain IREE's.",
        rows_table(
            ("workloads", "threads", "number", "/ best", "worst", "/ iree"), _mean_rows(found)
        ),
        "Cold start: compile and first call, imports excluded.",
        rows_table(beside, (_beside(r, systems, "cold_start_seconds", "s") for r in found)),
        "Peak of resident memory until the first results, the interpreter and imports included.",
        rows_table(beside, (_beside(r, systems, "peak_resident_bytes", "B") for r in found)),
        "\n".join(exceptions(report.records)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _peak_lines(report: Report) -> Iterator[str]:
    for threads, peaks in report.settings.get("peaks", {}).items():
        flops, bandwidth = peaks["flops"] / 1e9, peaks["bandwidth"] / 1e9
        words = f"{threads} thread{'s' * (threads != '1')}"
        yield f"- {words}: {flops:.0f} GFLOP/s by FMAs, {bandwidth:.1f} GB/s by copies."


def _latency(result: WorkloadFacts, systems: Sequence[str]) -> Iterator[str]:
    yield from (result.workload, str(result.threads))
    for system in systems:
        row = result.systems.get(system)
        yield "" if row is None else seconds_cell(row)
    yield result.best_peer or ""
    yield from (times(result.ratio(PYC)), times(result.ratio(PYC, IREE)))
    yield times(result.over_default())
    mine = result.systems.get(PYC)
    yield "" if mine is None else f"{mine['roofline_fraction']:.1%}"
    yield f"{max(r['max_error'] for r in result.systems.values()) * _PPM:.2g}"


def _beside(result: WorkloadFacts, systems: Sequence[str], field: str, unit: str) -> Iterator[str]:
    yield from (result.workload, str(result.threads))
    for system in systems:
        row = result.systems.get(system)
        yield "" if row is None else quantity(row[field], unit)


def _mean_rows(found: Sequence[WorkloadFacts]) -> Iterator[Iterable[str]]:
    titles = groups(found, GOAL_CLASSES)
    iree = {(title, t): value for title, t, value in means(found, titles, IREE)}
    for title, threads, value in means(found, titles):
        other: Mean | None = iree.get((title, threads))
        worst = f"{times(value.worst)} ({value.worst_workload})"
        against = times(other.mean if other else None)
        yield title, str(threads), str(value.members), times(value.mean), worst, against
