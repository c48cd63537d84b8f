"""Stored reports as Markdown: by the suite's own tables where it has some, else the common one.

A ratio of the suites `latency` and `zoo` is PyC's over the other's; below 1 PyC is ahead. The best
peer is the quickest system that is not PyC in that row.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Record, Report
from pyc_mlir.tools.bench.report import memory_tables, tables
from pyc_mlir.tools.bench.report.tables import (
    IREE,
    PYC,
    STATIC,
    Column,
    Mean,
    WorkloadFacts,
    by_columns,
    bytes_cell,
    cell,
    environment_line,
    exceptions,
    joined,
    mean,
    of_systems,
    results,
    seconds_cell,
    times,
)
from pyc_mlir.tools.cli.common import Parser
from pyc_mlir.util.units import quantity

# As in workloads.cpu, which needs the front ends.
GOAL_CLASSES = ("gemm", "mlp", "rows", "columns", "elementwise", "encoder")
_ORT = "onnxruntime"
_PPM, _GIGA = 1e6, 1e9
_THREADS: Column[WorkloadFacts] = ("threads", lambda r: str(r.threads))
_WORKLOAD: Column[WorkloadFacts] = ("workload", lambda r: r.workload)
_NETWORK: Column[WorkloadFacts] = ("network", lambda r: r.workload)
_AGAINST: Sequence[Column[WorkloadFacts]] = (
    ("best peer", lambda r: r.best_peer or ""),
    ("/ best", lambda r: times(r.ratio())),
    ("/ iree", lambda r: times(r.ratio(PYC, IREE))),
    ("/ static", lambda r: times(r.ratio(PYC, STATIC))),
)


def _over(field: str, title: str, to: str) -> Column[WorkloadFacts]:
    """Return the column of PyC's `field` over that of another system."""
    return title, lambda r: times(r.over(field, to))


def means(
    found: Sequence[WorkloadFacts], classes: Mapping[str, Sequence[str]], to: str | None = None
) -> Iterator[tuple[str, int, Mean]]:
    """(title of the classes, threads, PyC's time over that of `to` or of the best peer)."""
    for title, kinds in classes.items():
        for threads in dict.fromkeys(r.threads for r in found):
            members = [r for r in found if r.threads == threads and r.kind in kinds]
            value = mean(members, lambda r: r.ratio(PYC, to))
            if value is not None:
                yield title, threads, value


def groups(
    found: Sequence[WorkloadFacts], goal_classes: Sequence[str] = GOAL_CLASSES
) -> dict[str, tuple[str, ...]]:
    """Return titles for means: the goal's classes together, then each class alone."""
    kinds = tuple(dict.fromkeys(r.kind for r in found))
    return {"classes of the goal": tuple(goal_classes), **{kind: (kind,) for kind in kinds}}


def latency(report: Report) -> str:
    """Write all tables of a report of the suite `latency`."""
    found = results(report.records)

    def roof(result: WorkloadFacts) -> str:
        mine = result.systems.get(PYC)
        return "" if mine is None else f"{mine['roofline_fraction']:.1%}"

    def error(result: WorkloadFacts) -> str:
        return f"{max(r['max_error'] for r in result.systems.values()) * _PPM:.2g}"

    def beside(field: str, unit: str) -> str:
        shown = of_systems(found, lambda row: quantity(row[field], unit))
        return by_columns(found, [_WORKLOAD, _THREADS, *shown])

    medians = [_WORKLOAD, _THREADS, *of_systems(found, seconds_cell), *_AGAINST,
               ("/ iree O3", lambda r: times(r.over_default())),
               ("of the roof", roof), ("error", error)]  # fmt: skip
    titles = groups(found)
    iree = {(title, t): value.mean for title, t, value in means(found, titles, IREE)}
    averages: Sequence[Column[tuple[str, int, Mean]]] = (
        ("workloads", lambda m: m[0]),
        ("threads", lambda m: str(m[1])),
        ("number", lambda m: str(m[2].members)),
        ("/ best", lambda m: times(m[2].mean)),
        ("worst", lambda m: _worst(m[2])),
        ("/ iree", lambda m: times(iree.get((m[0], m[1])))),
    )
    return joined(
        environment_line(report),
        "\n".join(
            f"- {threads} thread{'s' * (threads != '1')}: {peaks['flops'] / _GIGA:.0f} GFLOP/s by "
            f"FMAs, {peaks['bandwidth'] / _GIGA:.1f} GB/s by copies."
            for threads, peaks in report.settings.get("peaks", {}).items()
        ),
        "Medians of a warm call with its 10th to 90th percentile; PyC's time over that of the best "
        "peer, of plain IREE at its best setting, and of plain IREE at O3 with no other setting (a "
        "short measurement); its fraction of the roofline (above 100% where caches hold the data, "
        "or where it reads more than it writes: the bandwidth is that of copies), and the largest "
        "error of any system in parts per million. What a call costs by itself is "
        "`call of nothing`.",
        by_columns(found, medians),
        "Geometric means of PyC's time over the best peer's, and over plain IREE's.",
        by_columns(means(found, titles), averages),
        "Cold start: compile and first call, imports excluded.",
        beside("cold_start_seconds", "s"),
        "Peak of resident memory until the first results, the interpreter and imports included.",
        beside("peak_resident_bytes", "B"),
        "\n".join(exceptions(report.records)),
    )


def _worst(found: Mean) -> str:
    return f"{times(found.worst)} ({found.worst_workload})"


def zoo(report: Report) -> str:
    """Write all tables of a report of the suite `zoo` or `dynamic-zoo`."""
    found = results(report.records)

    def beside(show: Callable[[Record], str], *ratios: Column[WorkloadFacts]) -> str:
        return by_columns(found, [_NETWORK, _THREADS, *of_systems(found, show), *ratios])

    def account(row: Record) -> str:
        grown = row["first_call_bytes"]
        if row["call_peak_bytes"] is not None:
            return bytes_cell(row["call_peak_bytes"])
        return "" if grown is None else f"[{bytes_cell(grown)}]"

    def compiled(row: Record) -> str:
        clock, cpu = (quantity(row[f"compile_{k}seconds"], "s") for k in ("", "cpu_"))
        return f"{clock}, {cpu} CPU"

    def error(row: Record) -> str:
        return f"{row['max_error'] * _PPM:.2g}"

    def both(field: str) -> Iterator[Column[WorkloadFacts]]:
        return (_over(field, f"/ {name}", name) for name in (IREE, _ORT, STATIC))

    return joined(
        environment_line(report),
        "Medians of a warm call with its 10th to 90th percentile over interleaved rounds, and "
        "PyC's over those of the best peer, of plain IREE, and of its own program for the size.",
        _zoo_medians(found, seconds_cell),
        "Geometric means of PyC's time over the best peer's.",
        tables.table(("networks", "batch", "threads", "number", "/ best", "worst"), _means(found)),
        _over_static(report, found),
        "Share of the FMA peak of as many cores, the best of before and after the row: operations "
        "of the network over time. Algorithms that need fewer operations (Winograd) may exceed "
        "100%.",
        _shares(found),
        "Peak of a call in bytes beside inputs and weights, results included, by the system's own "
        "account: IREE's allocator for PyC and plain IREE, the arena for onnxruntime (whole "
        "chunks, up to twice what tensors need). The others have none: in brackets, by how much "
        "the first call raised the resident memory.",
        beside(account, *both("call_peak_bytes")),
        "Compile: from the model to what can be called, seconds of the clock and of all CPUs. "
        "PyC's hold its front end, plain IREE's begin at linalg.",
        beside(compiled, *both("compile_cpu_seconds")),
        "Resident memory after the first call, the interpreter and imports included.",
        beside(lambda row: bytes_cell(row["resident_bytes"])),
        "Largest error against float64 (of dynamic sizes: onnxruntime), relative to the largest "
        "result, in parts per million; of all settings that were tried.",
        beside(error, *both("max_error")),
        "\n".join(exceptions(report.records)),
    )


def _over_static(report: Report, found: Sequence[WorkloadFacts]) -> str:
    """Write how far one program for all sizes is from PyC's own for a size; '' without such."""
    drawn = {(r["workload"], r["system"]): r for r in report.records if "p99" in r}
    kinds = {"": tuple(r.kind for r in found)}
    own = [(str(m.members), times(m.mean), _worst(m)) for *_, m in means(found, kinds, STATIC)]

    def over(field: str) -> Callable[[Record], str]:
        return lambda r: times(r[field] / drawn[r["workload"], STATIC][field])

    calls: Sequence[Column[Record]] = (
        ("network", lambda r: r["workload"]),
        ("system", lambda r: r["system"]),
        ("p50", cell),
        ("p99", lambda r: quantity(r["p99"], "s")),
        ("p50 / static", over("value")),
        ("p99 / static", over("p99")),
    )
    return joined(
        "Geometric mean of PyC's time over that of its own programs for the size." * bool(own),
        tables.table(("number", "/ static", "worst"), own),
        "Calls of drawn sizes one after another, each system in turn." * bool(drawn),
        by_columns(drawn.values(), calls),
    ).strip()


def short(report: Report) -> str:
    """Write medians and ratios of a report of the suite `zoo` alone, for a terminal."""
    found = results(report.records)
    medians = _zoo_medians(found, lambda row: quantity(row["median_seconds"], "s"))
    return "\n".join(part for part in (medians, *exceptions(report.records)) if part)


def _zoo_medians(found: Sequence[WorkloadFacts], show: Callable[[Record], str]) -> str:
    return by_columns(found, [_NETWORK, _THREADS, *of_systems(found, show), *_AGAINST])


def _means(found: Sequence[WorkloadFacts]) -> Iterator[tuple[str, ...]]:
    """Yield means by kind of network, batch size and threads."""

    def group(result: WorkloadFacts) -> tuple[str, int, int]:
        return result.kind, result.first["batch"], result.threads

    for key in dict.fromkeys(map(group, found)):
        value = mean([r for r in found if group(r) == key])
        if value is not None:
            yield (*map(str, (*key, value.members)), times(value.mean), _worst(value))


def _shares(found: Sequence[WorkloadFacts]) -> str:
    def share(row: Record) -> str:
        return f"{row['flops'] / row['median_seconds'] / row['peak_flops']:.0%}"

    sizes: Sequence[Column[WorkloadFacts]] = (
        ("GFLOP", lambda r: f"{r.first['flops'] / _GIGA:.3g}"),
        ("peak GFLOP/s", lambda r: f"{r.first['peak_flops'] / _GIGA:.0f}"),
    )
    return by_columns(found, [_NETWORK, _THREADS, *sizes, *of_systems(found, share)])


def predict(report: Report) -> str:
    """Write the figures of the suite `predict`, then what they were taken from.

    In parentheses are 90 % intervals over programs.
    """
    figures = [r for r in report.records if r["candidate"] == "predict"]
    works = {r["workload"] for r in report.records if r["metric"] == "kernel"}
    calls: dict[str, list[Record]] = {}
    for r in sorted(report.records, key=lambda r: r["value"]):
        if r["metric"] == "call" and "kernels" in r:
            calls.setdefault(r["workload"], []).append(r)
    order = dict.fromkeys(r["workload"] for r in report.records if r["workload"] in calls)

    def own(recipes: Sequence[Record]) -> str:
        return next((quantity(r["value"], "s") for r in recipes if r["candidate"] == "own"), "")

    def recipe(row: Record) -> str:
        return f"{row['candidate']}: {quantity(row['value'], 's')}"

    counted: Sequence[Column[Record]] = (
        ("estimates of", lambda r: r["workload"]),
        ("figure", lambda r: r["metric"]),
        ("value (90 % interval)", cell),
        ("programs", lambda r: str(r.get("programs", ""))),
        ("pairs", lambda r: str(r.get("pairs", ""))),
    )
    programs: Sequence[Column[Sequence[Record]]] = (
        ("program", lambda rows: rows[0]["workload"]),
        ("kernels", lambda rows: str(len(rows[0]["kernels"]))),
        ("recipes", lambda rows: str(len(rows))),
        ("heuristic", own),
        ("quickest recipe", lambda rows: recipe(rows[0])),
        ("slowest", lambda rows: recipe(rows[-1])),
    )
    return joined(
        environment_line(report),
        by_columns(figures, counted, empty=True),
        f"Rows of {len(works)} works; load of the machine when stored: "
        f"{report.settings.get('load')}.",
        by_columns([calls[name] for name in order], programs, empty=True),
    )


def _noise(report: Report) -> str:
    # The probe needs a compiler, tables need none.
    from pyc_mlir.tools.tune.measuring import markdown

    return markdown(report)


TABLES: Mapping[str, Callable[[Report], str]] = {
    "account": memory_tables.accounts,
    "memory": memory_tables.markdown,
    "noise": _noise,
    "latency": latency,
    "predict": predict,
    "zoo": zoo,
    "dynamic-zoo": zoo,
}


def markdown(report: Report) -> str:
    """Write the whole report. Ends in a newline."""
    return TABLES.get(report.suite, tables.markdown)(report)


def show_environment(arguments: Sequence[str]) -> int:
    """Print this machine's environment and fingerprint as JSON."""
    Parser("pyc-bench env", show_environment.__doc__ or "").parse_args(arguments)
    environment = probe()
    print(json.dumps({"fingerprint": environment.fingerprint, **to_data(environment)}, indent=1))
    return 0


def show_table(arguments: Sequence[str]) -> int:
    """Print stored reports as Markdown tables."""
    parser = Parser("pyc-bench table", show_table.__doc__ or "")
    parser.add_argument("reports", nargs="+", metavar="FILE.json")
    print("\n".join(markdown(Report.load(path)) for path in parser.parse_args(arguments).reports))
    return 0
