"""Records as Markdown tables: one writer for all, and the common table of a report.

The common table has one row per workload and metric, and one column a candidate. Where several
candidates took time or memory for the same, a column for each of the others says how many times as
much it took as PyC (or as the first one, in a report without PyC).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyc_mlir.measure.records import Record, Report
from pyc_mlir.util.units import SCALES, quantity

PYC, IREE = "pyc", "iree"
# PyC's program for the sizes at hand alone, beside one of dynamic sizes; no peer.
STATIC = "pyc-static"
# Metrics of records that say why there is no number.
FAILURE, LEFT_OUT = "failure", "left out"

T = TypeVar("T")
# A title, and how it shows a row.
Column = tuple[str, Callable[[T], str]]


def table_row(*cells: str) -> str:
    """Write one row of a Markdown table."""
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def table(head: Sequence[str], rows: Iterable[Iterable[str]], empty: bool = False) -> str:
    """Write a Markdown table; '' if there are no rows, unless `empty` ones are shown."""
    lines = [table_row(*head), "|---" * len(head) + "|", *(table_row(*row) for row in rows)]
    return "\n".join(lines) if empty or len(lines) > 2 else ""


def by_columns(rows: Iterable[T], columns: Sequence[Column[T]], empty: bool = False) -> str:
    """Write a table of what each column shows of each row, without columns that show nothing."""
    rows = list(rows)
    shown = {title: [cell(row) for row in rows] for title, cell in columns}
    kept = {title: cells for title, cells in shown.items() if empty or any(cells)}
    return table(list(kept), zip(*kept.values(), strict=True), empty)


def joined(*parts: str) -> str:
    """Join the parts of a report that are not empty. Ends in a newline."""
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown(report: Report) -> str:
    """Write the common table of a report, below a line on the environment."""
    candidates = list(dict.fromkeys(r["candidate"] for r in report.records))
    values = {(r["workload"], r["metric"], r["candidate"]): r for r in report.records}
    rows = dict.fromkeys((r["workload"], r["metric"]) for r in report.records)
    base = PYC if PYC in candidates else next(iter(candidates), PYC)
    ratios = {
        (*row, c): ratio
        for row in rows
        for c in candidates
        if c != base and (ratio := _ratio(values.get((*row, c)), values.get((*row, base))))
    }
    compared = [c for c in candidates if any(key[2] == c for key in ratios)]

    def shown(row: tuple[str, str]) -> Iterator[str]:
        yield from row
        yield from (cell(values[*row, c]) if (*row, c) in values else "" for c in candidates)
        yield from (ratios.get((*row, c), "") for c in compared)

    head = ("workload", "metric", *candidates, *(f"{c} / {base}" for c in compared))
    return joined(environment_line(report), table(head, map(shown, rows), empty=True))


def _ratio(of: Record | None, to: Record | None) -> str:
    """Format the first record over the second; '' if that says nothing."""
    if of is None or to is None or of["unit"] not in SCALES or to["value"] <= 0:
        return ""
    return times(of["value"] / to["value"])


def environment_line(report: Report) -> str:
    """Write the suite and its environment on one line."""
    env = report.environment
    place = [env.cpu, f"{env.cores} cores", f"{env.memory_gib} GiB", *env.accelerators, env.python]
    commit = (env.commit or "no commit")[:12] + (" with changes" if env.modified else "")
    return f"{report.suite}: {', '.join(place)}; {commit}; environment {env.fingerprint}"


def exceptions(records: Sequence[Record]) -> Iterator[str]:
    """Yield one line for each reason why a system is not in the tables."""
    for metric in (FAILURE, LEFT_OUT):
        reasons: dict[tuple[str, str], list[str]] = {}
        for row in records:
            if row["metric"] == metric:
                where = f"{row['workload']} ({row['threads']})"
                reasons.setdefault((row["system"], row["reason"]), []).append(where)
        for (system, reason), where in reasons.items():
            yield f"- {metric}: {system}: {reason}: {', '.join(where)}."


def cell(record: Record) -> str:
    """Format the value of a record, with its 10th to 90th percentile if it has them."""
    text = quantity(record["value"], record["unit"])
    if "p10" not in record or "p90" not in record:
        return text
    low, high = (quantity(record[p], record["unit"]) for p in ("p10", "p90"))
    return f"{text} ({low} to {high})"


def spread_cell(found: Mapping[str, Any], unit: str = "s", suffix: str = "") -> str:
    """Format a median and its 10th to 90th percentile, whose names end in `suffix`."""
    texts = [quantity(found[k + suffix], unit) for k in ("median", "p10", "p90")]
    shown = [text.replace(" x", "x") for text in texts]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def seconds_cell(row: Record) -> str:
    """Format a latency record's median and its 10th to 90th percentile."""
    return spread_cell(row, suffix="_seconds")


def times(value: float | None) -> str:
    """Format a ratio: 0.85 is ``0.85x``; '' for None."""
    return "" if value is None else f"{value:.3g}x"


def bytes_cell(value: float | None) -> str:
    """Format a number of bytes; '' for None."""
    return "" if value is None else quantity(value, "B")


def quotient(a: float | None, b: float | None) -> float | None:
    """Return a / b, None where either is missing or 0."""
    return a / b if a and b else None


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean of positive numbers; None without any."""
    logs = list(map(math.log, values))
    return math.exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True)
class WorkloadFacts:
    """All systems on one workload with one number of threads; records by system."""

    workload: str
    kind: str
    threads: int
    systems: Mapping[str, Record]

    @property
    def best_peer(self) -> str | None:
        """The quickest system that is not PyC; None where no other ran."""
        seconds = {
            s: r["median_seconds"] for s, r in self.systems.items() if s not in (PYC, STATIC)
        }
        return min(seconds, key=seconds.__getitem__) if seconds else None

    @property
    def first(self) -> Record:
        """A record of any system, for what all have in common."""
        return next(iter(self.systems.values()))

    def ratio(self, system: str = PYC, to: str | None = None) -> float | None:
        """Return the system's time over that of `to`, which is the best peer by default."""
        return self.over("median_seconds", self.best_peer if to is None else to, system)

    def over(self, field: str, to: str | None, system: str = PYC) -> float | None:
        """Return a field of the system over that of `to`; None where either has none."""
        mine, theirs = (self.systems.get(s or "", {}).get(field) for s in (system, to))
        return quotient(mine, theirs)

    def over_default(self) -> float | None:
        """Return PyC's time over plain IREE's at O3 without another setting."""
        iree, mine = self.systems.get(IREE), self.systems.get(PYC)
        if iree is None or mine is None or not iree["tried"]:
            return None
        return mine["median_seconds"] / next(iter(iree["tried"].values()))


def results(records: Sequence[Record]) -> list[WorkloadFacts]:
    """Return the results of suites that compare systems, in the records' order."""
    found: dict[tuple[str, int], dict[str, Record]] = {}
    for row in records:
        if "median_seconds" in row:
            found.setdefault((row["workload"], row["threads"]), {})[row["system"]] = row
    return [
        WorkloadFacts(workload, next(iter(systems.values()))["class"], threads, systems)
        for (workload, threads), systems in found.items()
    ]


def systems_of(found: Sequence[WorkloadFacts]) -> list[str]:
    """Return every system that ran, in the records' order."""
    return list(dict.fromkeys(name for result in found for name in result.systems))


def of_systems(
    found: Sequence[WorkloadFacts], show: Callable[[Record], str]
) -> list[Column[WorkloadFacts]]:
    """Return a column for each system, '' where it did not run."""

    def column(system: str) -> Column[WorkloadFacts]:
        return system, lambda r: show(r.systems[system]) if system in r.systems else ""

    return [column(system) for system in systems_of(found)]


@dataclass(frozen=True)
class Mean:
    """A geometric mean of ratios, and the worst of them with its workload."""

    members: int
    mean: float
    worst: float
    worst_workload: str


def mean(
    found: Sequence[WorkloadFacts],
    ratio: Callable[[WorkloadFacts], float | None] = WorkloadFacts.ratio,
) -> Mean | None:
    """Average over the results that have the ratio; None if none has."""
    ratios = {r.workload: value for r in found if (value := ratio(r)) is not None}
    average = geometric_mean(ratios.values())
    if average is None:
        return None
    worst = max(ratios, key=ratios.__getitem__)
    return Mean(len(ratios), average, ratios[worst], worst)
