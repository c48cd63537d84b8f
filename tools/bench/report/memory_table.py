"""The memory suite's report as Markdown: peaks, latency, geometric means, and every exception.

Peaks are what one call takes beside inputs and constants, results included; the columns `/ iree`
compare them with the least of plain IREE's. Transients leave the results out: XLA counts no others.
The suite `account` counts all of a program, constants and inputs too.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.measure.records import Record, Report
from pyc_mlir.tools.bench.report.table import environment_line, rows_table, table_row, times
from pyc_mlir.util.units import quantity

_MODES = ("latency_first", "balanced", "memory_first")
# The mode that is compared with XLA.
_BALANCED = "balanced"

ByMode = Mapping[str, Record]
Ratio = Callable[[ByMode], float | None]


@dataclass(frozen=True)
class _Workload:
    name: str
    kind: str
    modes: ByMode


def markdown(report: Report) -> str:
    """Write all tables of a report of the suite `memory`. Ends in a newline."""
    found = list(_workloads(report.records))
    threads = list(dict.fromkeys(t for w in found for t in w.modes[_BALANCED]["latency"]))
    means = _ratios(threads)
    parts = [
        environment_line(report),
        _table(_PEAK_HEAD, map(_peak_row, found)),
        *_totals(found),
        "Latency of a call; the ratio to IREE's quickest partitioning is taken within each round.",
        _table(_LATENCY_HEAD, (r for w in found for t in threads for r in _latency_rows(w, t))),
        "Geometric means of the ratios.",
        _table(("class", "workloads", *means), _mean_rows(found, means)),
        "\n".join(_exceptions(report.records, found)),
    ]
    return "\n\n".join(parts) + "\n"


def _totals(found: Sequence[_Workload]) -> Iterator[str]:
    if all("iree_total_bytes" in w.modes[_BALANCED] for w in found):
        yield "Bytes in all: constants as they lie in memory, inputs, and the peak of a call."
        yield _table(_TOTAL_HEAD, map(_total_row, found))


def _workloads(records: Sequence[Record]) -> Iterator[_Workload]:
    peaks = [r for r in records if r["metric"] == "peak"]
    for name in dict.fromkeys(r["workload"] for r in peaks):
        modes = {r["mode"]: r for r in peaks if r["workload"] == name}
        yield _Workload(name, modes[_BALANCED]["class"], modes)


_PEAK_HEAD = (
    "workload",
    "class",
    "inputs",
    "constants",
    "iree",
    *_MODES,
    *(f"{mode} / iree" for mode in _MODES),
    "lower bound, balanced",
    "transients, balanced",
    "xla",
    "/ xla",
    "xla, no library",
    "/ that",
    "equal",
)
_TOTAL_HEAD = ("workload", "iree", *_MODES, *(f"{mode} / iree" for mode in _MODES))  # fmt: skip
_LATENCY_HEAD = ("workload", "threads", "iree", *_MODES, *(f"{m} / iree" for m in _MODES))


def _peak_row(workload: _Workload) -> Iterator[str]:
    modes, one = workload.modes, workload.modes[_BALANCED]
    yield from (workload.name, workload.kind)
    for field in ("input_bytes", "constant_bytes", "iree_peak_bytes"):
        yield _bytes(one[field])
    yield from (_bytes(modes[mode]["peak_bytes"]) for mode in _MODES)
    yield from (times(_against_iree(mode)(modes)) for mode in _MODES)
    yield from (_bytes(one["lower_bound_bytes"]), _bytes(one["transient_bytes"]))
    for field in ("xla_temp_bytes", "xla_no_library_temp_bytes"):
        yield from (_bytes(one[field]), times(_against_xla(field)(modes)))
    yield "yes" if all(modes[mode]["equal"] for mode in _MODES) else "NO"


def _total_row(workload: _Workload) -> Iterator[str]:
    modes = workload.modes
    yield from (workload.name, _bytes(modes[_BALANCED]["iree_total_bytes"]))
    yield from (_bytes(modes[mode]["total_bytes"]) for mode in _MODES)
    yield from (times(_in_all(mode)(modes)) for mode in _MODES)


def _latency_rows(workload: _Workload, threads: str) -> Iterator[Iterable[str]]:
    modes = {mode: workload.modes[mode]["latency"][threads] for mode in _MODES}
    yield (
        workload.name,
        threads,
        _spread(modes[_BALANCED]["iree_seconds"]),
        *(_spread(modes[mode]["seconds"]) for mode in _MODES),
        *(_spread(modes[mode]["ratio"], "x") for mode in _MODES),
    )


def _ratios(threads: Sequence[str]) -> dict[str, Ratio]:
    """Return the ratios to average: column -> ratio of one workload, None if it has none."""
    found = {f"{mode} / iree": _against_iree(mode) for mode in _MODES}
    found |= {f"{mode} / iree, in all": _in_all(mode) for mode in _MODES}
    found["memory_first / balanced"] = lambda modes: _quotient(
        modes["memory_first"]["peak_bytes"], modes[_BALANCED]["peak_bytes"]
    )
    found["transients / xla"] = _against_xla("xla_temp_bytes")
    found["transients / xla, no library"] = _against_xla("xla_no_library_temp_bytes")
    for t in threads:
        for mode in _MODES:
            found[f"{mode}, latency, {t} thread{'s' * (t != '1')}"] = _slowdown(mode, t)
    return found


def _against_iree(mode: str) -> Ratio:
    return lambda modes: _quotient(modes[mode]["peak_bytes"], modes[mode]["iree_peak_bytes"])


def _in_all(mode: str) -> Ratio:
    """Return the ratio to IREE with constants and inputs; None in older reports."""
    return lambda modes: _quotient(modes[mode]["total_bytes"], modes[mode].get("iree_total_bytes"))


def _against_xla(field: str) -> Ratio:
    return lambda modes: _quotient(modes[_BALANCED]["transient_bytes"], modes[_BALANCED][field])


def _slowdown(mode: str, threads: str) -> Ratio:
    return lambda modes: modes[mode]["latency"][threads]["ratio"]["median"]


def _quotient(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def _mean_rows(found: Sequence[_Workload], means: Mapping[str, Ratio]) -> Iterator[Iterable[str]]:
    kinds = dict.fromkeys(w.kind for w in found)
    for kind in (*kinds, "all"):
        members = [w for w in found if kind in (w.kind, "all")]
        yield (kind, str(len(members)), *(times(_mean(members, r)) for r in means.values()))


def _mean(members: Sequence[_Workload], ratio: Ratio) -> float | None:
    """Return the geometric mean of a ratio over the workloads that have it."""
    logs = [math.log(value) for w in members if (value := ratio(w.modes))]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _exceptions(records: Sequence[Record], found: Sequence[_Workload]) -> Iterator[str]:
    """Yield one line per kind of exception, also if there is none."""
    runs = [(f"{w.name} ({mode})", w.modes[mode]) for w in found for mode in _MODES]
    above = [name for name, r in runs if r["peak_bytes"] > r["iree_peak_bytes"]]
    yield _listed("Above plain IREE", above)
    beyond = [w.name for w in found if (_against_xla("xla_temp_bytes")(w.modes) or 0) > 1]
    yield _listed("Transients above XLA's", beyond)
    other = [name for name, r in runs if not r["equal"]]
    yield _listed("Not equal", other)
    failed = [f"{r['workload']} ({r['reason']})" for r in records if r["metric"] == "failure"]
    yield _listed("Failed", failed)


def _listed(title: str, names: Sequence[str]) -> str:
    return f"- {title}: {', '.join(names) or 'none'}."


def _table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    return "\n".join(
        [table_row(*head), "|---" * len(head) + "|", *(table_row(*cells) for cells in rows)]
    )


def _bytes(value: float | None) -> str:
    return "" if value is None else quantity(value, "B")


def _spread(spread: Mapping[str, Any], unit: str = "s") -> str:
    texts = [quantity(spread[k], unit).replace(" x", "x") for k in ("median", "p10", "p90")]
    return f"{texts[0]} ({texts[1]} to {texts[2]})"


_IREE, _PROMISED = "iree", ("balanced", "memory_first")


def accounts(report: Report) -> str:
    """Write the table, the geometric means and what is above plain IREE. Ends in a newline."""
    rows = _by_workload(report.records, "total")
    head = ("workload", _IREE, "its constants")
    for mode in _PROMISED:
        head += (mode, "constants", "larger forms", "they save", f"{mode} / iree")
    means = [f"{mode} {times(_mean_ratio(list(rows.values()), mode))}" for mode in _PROMISED]
    above = [
        f"{name} ({mode})"
        for name, systems in rows.items()
        for mode in _PROMISED
        if systems[mode]["value"] > systems[_IREE]["value"]
    ]
    parts = [
        environment_line(report),
        "Bytes in all of one call: constants as they lie in memory, inputs, outputs, transients "
        "and workspace. Larger forms: bytes that constants take beside the model's own.",
        rows_table(head, ([name, *_account_cells(systems)] for name, systems in rows.items())),
        f"- Geometric means of the ratios to plain IREE: {', '.join(means)}.\n"
        f"- Above plain IREE: {', '.join(above) or 'none'}.",
        "Other exchange rates, by prediction: seconds, and bytes of constants and values, beside "
        "those of the quickest kernels.",
        _rates(_by_workload(report.records, "predicted")),
    ]
    return "\n\n".join(parts) + "\n"


def _by_workload(records: Sequence[Record], metric: str) -> dict[str, dict[str, Record]]:
    """Return the records of a metric by workload and candidate."""
    found: dict[str, dict[str, Record]] = {}
    for row in records:
        if row["metric"] == metric:
            found.setdefault(row["workload"], {})[row["candidate"]] = row
    return found


def _rates(rows: dict[str, dict[str, Record]]) -> str:
    """Write the table of rates; the first candidate is without a price."""
    first, *others = next(iter(rows.values()), {"": {}})
    changed = ([name, *(_change(s[first], s[o]) for o in others)] for name, s in rows.items())
    return rows_table(("workload", *others), changed)


def _change(free: Record, row: Record) -> str:
    seconds, held = row["value"] / free["value"] - 1, row["held"] / free["held"] - 1
    return f"{seconds:+.2%}, {held:+.1%}" if seconds or held else ""


def _account_cells(systems: dict[str, Record]) -> Iterator[str]:
    iree = systems[_IREE]
    yield from (quantity(iree["value"], "B"), quantity(iree["account"]["constants"], "B"))
    for mode in _PROMISED:
        row = systems[mode]
        yield quantity(row["value"], "B")
        yield quantity(row["account"]["constants"], "B")
        yield quantity(row["larger_bytes"], "B")
        yield quantity(row["saves"], "s") if row["larger"] else ""
        yield times(row["value"] / iree["value"])


def _mean_ratio(rows: Sequence[dict[str, Record]], mode: str) -> float:
    ratios = [math.log(r[mode]["value"] / r[_IREE]["value"]) for r in rows]
    return math.exp(sum(ratios) / len(ratios))
