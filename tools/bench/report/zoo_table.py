"""The report of the suite `zoo` as Markdown: latency, shares of the FMA peak, memory, compiles.

A ratio is PyC's over the other's; below 1 PyC is ahead. The best peer is the quickest system that
is not PyC in that row.
"""

from collections.abc import Callable, Iterator, Sequence

from pyc_mlir.measure.records import Record, Report
from pyc_mlir.tools.bench.report.latency_facts import (
    IREE,
    PYC,
    WorkloadFacts,
    mean,
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

_ORT = "onnxruntime"
_PPM, _GIGA = 1e6, 1e9
_ROW = ("network", "threads")
_FIRST = (
    "Medians of a warm call with its 10th to 90th percentile over interleaved rounds, and PyC's "
    "over those of the best peer and of plain IREE."
)
_MEANS = "Geometric means of PyC's time over the best peer's."
_SHARES = (
    "Share of the FMA peak of as many cores, the best of before and after the row: operations of "
    "the network over time. Algorithms that need fewer operations (Winograd) may exceed 100%."
)
_MEMORY = (
    "Peak of a call in bytes beside inputs and weights, results included, by the system's own "
    "account: IREE's allocator for PyC and plain IREE, the arena for onnxruntime (whole chunks, up "
    "to twice what tensors need). The others have none: in brackets, by how much the first call "
    "raised the resident memory."
)
_COMPILE = (
    "Compile: from the model to what can be called, seconds of the clock and of all CPUs. PyC's "
    "hold its front end, plain IREE's begin at linalg."
)
_RESIDENT = "Resident memory after the first call, the interpreter and imports included."
_ERRORS = (
    "Largest error against float64, relative to the largest result, in parts per million; of all "
    "settings that were tried."
)


def markdown(report: Report) -> str:
    """Write all tables of a report of the suite `zoo`. Ends in a newline."""
    found = results(report.records)
    systems = systems_of(found)
    ratios = ("/ iree", f"/ {_ORT}")
    parts = [
        environment_line(report),
        _FIRST,
        _latency(found, systems, seconds_cell),
        _MEANS,
        rows_table(("networks", "batch", "threads", "number", "/ best", "worst"), _means(found)),
        _SHARES,
        rows_table(
            (*_ROW, "GFLOP", "peak GFLOP/s", *systems), (_shares(r, systems) for r in found)
        ),
        _MEMORY,
        _beside(found, systems, _account, ratios, "call_peak_bytes"),
        _COMPILE,
        _beside(found, systems, _compile, ("/ iree, CPU",), "compile_cpu_seconds"),
        _RESIDENT,
        _beside(found, systems, _resident, (), ""),
        _ERRORS,
        _beside(found, systems, _error, ratios, "max_error"),
        "\n".join(exceptions(report.records)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def short(report: Report) -> str:
    """Write medians and ratios alone, for a terminal."""
    found = results(report.records)
    medians = _latency(found, systems_of(found), lambda row: quantity(row["median_seconds"], "s"))
    return "\n".join(part for part in (medians, *exceptions(report.records)) if part)


def _latency(
    found: Sequence[WorkloadFacts], systems: Sequence[str], shown: Callable[[Record], str]
) -> str:
    def cells(result: WorkloadFacts) -> Iterator[str]:
        yield from _names(result)
        yield from _cells(result, systems, shown)
        yield result.best_peer or ""
        yield from (times(result.ratio(PYC)), times(result.ratio(PYC, IREE)))

    head = (*_ROW, *systems, "best peer", "/ best", "/ iree")
    return rows_table(head, (cells(r) for r in found))


def _names(result: WorkloadFacts) -> tuple[str, str]:
    return result.workload, str(result.threads)


def _cells(
    result: WorkloadFacts, systems: Sequence[str], shown: Callable[[Record], str]
) -> Iterator[str]:
    for system in systems:
        row = result.systems.get(system)
        yield "" if row is None else shown(row)


def _means(found: Sequence[WorkloadFacts]) -> Iterator[tuple[str, ...]]:
    """Yield means by kind of network, batch size and threads."""
    for kind, batch, threads in dict.fromkeys((r.kind, _batch(r), r.threads) for r in found):
        members = [r for r in found if (r.kind, _batch(r), r.threads) == (kind, batch, threads)]
        value = mean(members, lambda r: r.ratio(PYC))
        if value is not None:
            worst = f"{times(value.worst)} ({value.worst_workload})"
            row = (kind, batch, threads, value.members)
            yield (*map(str, row), times(value.mean), worst)


def _batch(result: WorkloadFacts) -> int:
    return next(iter(result.systems.values()))["batch"]


def _shares(result: WorkloadFacts, systems: Sequence[str]) -> Iterator[str]:
    row = next(iter(result.systems.values()))
    flops, peak = row["flops"], row["peak_flops"]
    yield from _names(result)
    yield from (f"{flops / _GIGA:.3g}", f"{peak / _GIGA:.0f}")
    yield from _cells(result, systems, lambda r: f"{flops / r['median_seconds'] / peak:.0%}")


def _beside(
    found: Sequence[WorkloadFacts],
    systems: Sequence[str],
    shown: Callable[[Record], str],
    ratios: Sequence[str],
    field: str,
) -> str:
    """Write one cell a system; PyC's `field` over plain IREE's and onnxruntime's for `ratios`."""

    def cells(result: WorkloadFacts) -> Iterator[str]:
        yield from _names(result)
        yield from _cells(result, systems, shown)
        yield from (times(_over(result, other, field)) for other in (IREE, _ORT)[: len(ratios)])

    return rows_table((*_ROW, *systems, *ratios), (cells(r) for r in found))


def _over(result: WorkloadFacts, other: str, field: str) -> float | None:
    mine, theirs = (result.systems.get(system, {}).get(field) for system in (PYC, other))
    return mine / theirs if mine and theirs else None


def _account(row: Record) -> str:
    if row["call_peak_bytes"] is not None:
        return quantity(row["call_peak_bytes"], "B")
    grown = row["first_call_bytes"]
    return "" if grown is None else f"[{quantity(grown, 'B')}]"


def _compile(row: Record) -> str:
    clock, cpu = (quantity(row[f"compile_{k}seconds"], "s") for k in ("", "cpu_"))
    return f"{clock}, {cpu} CPU"


def _resident(row: Record) -> str:
    return quantity(row["resident_bytes"], "B")


def _error(row: Record) -> str:
    return f"{row['max_error'] * _PPM:.2g}"
