"""Tables of the suites `memory` and `account`: bytes, latency, means, and every exception.

Peaks are what one call takes beside inputs and constants, results included; the columns `/ iree`
compare them with the least of plain IREE's. Transients leave the results out: XLA counts no others.
The suite `account` counts all of a program, constants and inputs too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.measure.records import Record, Report
from pyc_mlir.tools.bench.report.tables import (
    FAILURE,
    IREE,
    Column,
    by_columns,
    bytes_cell,
    environment_line,
    geometric_mean,
    joined,
    quotient,
    spread_cell,
    table,
    times,
)
from pyc_mlir.util.units import quantity

_MODES = ("latency_first", "balanced", "memory_first")
_LEAST = "memory_first"


@dataclass(frozen=True)
class _Workload:
    """The records of a workload by mode; `one` is that which is compared with XLA."""

    name: str
    modes: Mapping[str, Record]

    @property
    def one(self) -> Record:
        return self.modes["balanced"]

    @property
    def kind(self) -> str:
        return self.one["class"]


Ratio = Callable[[_Workload], float | None]


def _over(mode: str, own: str, other: str) -> Ratio:
    """Return the ratio of two fields of a mode; None in reports without them."""
    return lambda w: quotient(w.modes[mode][own], w.modes[mode].get(other))


_PEAKS = {mode: _over(mode, "peak_bytes", "iree_peak_bytes") for mode in _MODES}
_TOTALS = {mode: _over(mode, "total_bytes", "iree_total_bytes") for mode in _MODES}
_XLA = {
    "xla": _over("balanced", "transient_bytes", "xla_temp_bytes"),
    "xla, no library": _over("balanced", "transient_bytes", "xla_no_library_temp_bytes"),
}


def _bytes(title: str, field: str, mode: str = "balanced") -> Column[_Workload]:
    return title, lambda w: bytes_cell(w.modes[mode][field])


def _times(title: str, ratio: Ratio) -> Column[_Workload]:
    return title, lambda w: times(ratio(w))


_NAME: Column[_Workload] = ("workload", lambda w: w.name)
_PEAK_COLUMNS: Sequence[Column[_Workload]] = (
    _NAME,
    ("class", lambda w: w.kind),
    _bytes("inputs", "input_bytes"),
    _bytes("constants", "constant_bytes"),
    _bytes("iree", "iree_peak_bytes"),
    *(_bytes(mode, "peak_bytes", mode) for mode in _MODES),
    *(_times(f"{mode} / iree", ratio) for mode, ratio in _PEAKS.items()),
    _bytes("lower bound, balanced", "lower_bound_bytes"),
    _bytes("transients, balanced", "transient_bytes"),
    _bytes("xla", "xla_temp_bytes"),
    _times("/ xla", _XLA["xla"]),
    _bytes("xla, no library", "xla_no_library_temp_bytes"),
    _times("/ that", _XLA["xla, no library"]),
    ("equal", lambda w: "yes" if all(w.modes[mode]["equal"] for mode in _MODES) else "NO"),
)
_TOTAL_COLUMNS: Sequence[Column[_Workload]] = (
    _NAME,
    _bytes("iree", "iree_total_bytes"),
    *(_bytes(mode, "total_bytes", mode) for mode in _MODES),
    *(_times(f"{mode} / iree", ratio) for mode, ratio in _TOTALS.items()),
)


def markdown(report: Report) -> str:
    """Write all tables of a report of the suite `memory`."""
    found = _workloads(report.records)
    threads = list(dict.fromkeys(t for w in found for t in w.one["latency"]))
    timed = [(w, t) for w in found for t in threads]
    totals = [w for w in found if "iree_total_bytes" in w.one]
    return joined(
        environment_line(report),
        by_columns(found, _PEAK_COLUMNS, empty=True),
        "Bytes in all: constants as they lie in memory, inputs, and the peak of a call."
        * bool(totals),
        by_columns(totals, _TOTAL_COLUMNS),
        "Latency of a call; the ratio to IREE's quickest partitioning is taken within each round.",
        by_columns(timed, _LATENCY_COLUMNS, empty=True),
        "Geometric means of the ratios.",
        _means(found, threads),
        "\n".join(_exceptions(report.records, found)),
    )


def _workloads(records: Sequence[Record]) -> list[_Workload]:
    found: dict[str, dict[str, Record]] = {}
    for r in records:
        if r["metric"] == "peak":
            found.setdefault(r["workload"], {})[r["mode"]] = r
    return [_Workload(name, modes) for name, modes in found.items()]


def _latency(w: _Workload, threads: str, mode: str = "balanced") -> Mapping[str, Any]:
    return w.modes[mode]["latency"][threads]


def _spread(title: str, field: str, mode: str, unit: str = "s") -> Column[tuple[_Workload, str]]:
    return title, lambda row: spread_cell(_latency(*row, mode)[field], unit)


_LATENCY_COLUMNS: Sequence[Column[tuple[_Workload, str]]] = (
    ("workload", lambda row: row[0].name),
    ("threads", lambda row: row[1]),
    _spread("iree", "iree_seconds", "balanced"),
    *(_spread(mode, "seconds", mode) for mode in _MODES),
    *(_spread(f"{mode} / iree", "ratio", mode, "x") for mode in _MODES),
)


def _means(found: Sequence[_Workload], threads: Sequence[str]) -> str:
    """Write the means of all ratios, by class of workloads."""

    def slowdown(mode: str, t: str) -> Ratio:
        return lambda w: _latency(w, t, mode)["ratio"]["median"]

    ratios: dict[str, Ratio] = {f"{mode} / iree": ratio for mode, ratio in _PEAKS.items()}
    ratios |= {f"{mode} / iree, in all": ratio for mode, ratio in _TOTALS.items()}
    ratios["memory_first / balanced"] = lambda w: quotient(
        w.modes[_LEAST]["peak_bytes"], w.one["peak_bytes"]
    )
    ratios |= {f"transients / {name}": ratio for name, ratio in _XLA.items()}
    for t in threads:
        for mode in _MODES:
            ratios[f"{mode}, latency, {t} thread{'s' * (t != '1')}"] = slowdown(mode, t)
    kinds = (*dict.fromkeys(w.kind for w in found), "all")
    members = {kind: [w for w in found if kind in (w.kind, "all")] for kind in kinds}

    def average(ratio: Ratio) -> Callable[[str], str]:
        return lambda kind: times(geometric_mean(v for w in members[kind] if (v := ratio(w))))

    columns: list[Column[str]] = [("class", str), ("workloads", lambda k: str(len(members[k])))]
    columns += [(title, average(ratio)) for title, ratio in ratios.items()]
    return by_columns(kinds, columns, empty=True)


def _exceptions(records: Sequence[Record], found: Sequence[_Workload]) -> Iterator[str]:
    """Yield one line per kind of exception, also if there is none."""
    runs = [(f"{w.name} ({mode})", w.modes[mode]) for w in found for mode in _MODES]
    above = [name for name, r in runs if r["peak_bytes"] > r["iree_peak_bytes"]]
    yield _listed("Above plain IREE", above)
    yield _listed("Transients above XLA's", [w.name for w in found if (_XLA["xla"](w) or 0) > 1])
    yield _listed("Not equal", [name for name, r in runs if not r["equal"]])
    failed = [f"{r['workload']} ({r['reason']})" for r in records if r["metric"] == FAILURE]
    yield _listed("Failed", failed)


def _listed(title: str, names: Iterable[str]) -> str:
    return f"- {title}: {', '.join(names) or 'none'}."


_PROMISED = ("balanced", _LEAST)
# A workload's name, and its records by candidate.
_Account = tuple[str, Mapping[str, Record]]


def accounts(report: Report) -> str:
    """Write a program's bytes in all, the geometric means, and what is above plain IREE."""
    rows = _by_workload(report.records, "total")
    columns: list[Column[_Account]] = [
        ("workload", lambda row: row[0]),
        (IREE, lambda row: bytes_cell(row[1][IREE]["value"])),
        ("its constants", lambda row: bytes_cell(row[1][IREE]["account"]["constants"])),
    ]
    for mode in _PROMISED:
        columns += _account_columns(mode)
    ratios = {m: [r[m]["value"] / r[IREE]["value"] for r in rows.values()] for m in _PROMISED}
    averages = [f"{mode} {times(geometric_mean(found))}" for mode, found in ratios.items()]
    above = [
        f"{name} ({mode})"
        for name, systems in rows.items()
        for mode in _PROMISED
        if systems[mode]["value"] > systems[IREE]["value"]
    ]
    return joined(
        environment_line(report),
        "Bytes in all of one call: constants as they lie in memory, inputs, outputs, transients "
        "and workspace. Larger forms: bytes that constants take beside the model's own.",
        by_columns(rows.items(), columns),
        f"- Geometric means of the ratios to plain IREE: {', '.join(averages)}.\n"
        + _listed("Above plain IREE", above),
        "Other exchange rates, by prediction: seconds, and bytes of constants and values, beside "
        "those of the quickest kernels.",
        _rates(_by_workload(report.records, "predicted")),
    )


def _account_columns(mode: str) -> Iterator[Column[_Account]]:
    yield mode, lambda row: bytes_cell(row[1][mode]["value"])
    yield "constants", lambda row: bytes_cell(row[1][mode]["account"]["constants"])
    yield "larger forms", lambda row: bytes_cell(row[1][mode]["larger_bytes"])
    yield (
        "they save",
        lambda row: quantity(row[1][mode]["saves"], "s") if row[1][mode]["larger"] else "",
    )
    yield f"{mode} / iree", lambda row: times(row[1][mode]["value"] / row[1][IREE]["value"])


def _by_workload(records: Sequence[Record], metric: str) -> dict[str, dict[str, Record]]:
    """Return the records of a metric by workload and candidate."""
    found: dict[str, dict[str, Record]] = {}
    for row in records:
        if row["metric"] == metric:
            found.setdefault(row["workload"], {})[row["candidate"]] = row
    return found


def _rates(rows: Mapping[str, Mapping[str, Record]]) -> str:
    """Write the table of rates; the first candidate is without a price."""
    first, *others = next(iter(rows.values()), {"": {}})

    def change(free: Record, row: Record) -> str:
        seconds, held = row["value"] / free["value"] - 1, row["held"] / free["held"] - 1
        return f"{seconds:+.2%}, {held:+.1%}" if seconds or held else ""

    changed = ([name, *(change(s[first], s[o]) for o in others)] for name, s in rows.items())
    return table(("workload", *others), changed)
