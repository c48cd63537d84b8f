"""A stored report as a Markdown table: one row per workload and metric, one column a candidate.

Where several candidates took time or memory for the same, a column for each of the others says
how many times as much it took as PyC (or as the first one, in a report without PyC).
"""

from collections.abc import Iterable, Iterator, Sequence

from pyc_mlir.measure.records import Record, Report
from pyc_mlir.util.units import SCALES, quantity

_BASE = "pyc"


def cell(record: Record) -> str:
    """Format the value of a record, with its 10th to 90th percentile if it has them."""
    text = quantity(record["value"], record["unit"])
    if "p10" not in record or "p90" not in record:
        return text
    low, high = (quantity(record[p], record["unit"]) for p in ("p10", "p90"))
    return f"{text} ({low} to {high})"


def markdown(report: Report) -> str:
    """Write the whole report: a line on the environment, then the table. Ends in a newline."""
    candidates = list(dict.fromkeys(r["candidate"] for r in report.records))
    values = {(r["workload"], r["metric"], r["candidate"]): r for r in report.records}
    rows = dict.fromkeys((r["workload"], r["metric"]) for r in report.records)
    base = _BASE if _BASE in candidates else next(iter(candidates), _BASE)
    ratios = {
        (*row, c): ratio
        for row in rows
        for c in candidates
        if c != base and (ratio := _ratio(values.get((*row, c)), values.get((*row, base))))
    }
    compared = [c for c in candidates if any(key[2] == c for key in ratios)]
    head = ["workload", "metric", *candidates, *(f"{c} / {base}" for c in compared)]
    lines = [table_row(*head), "|---" * len(head) + "|"]
    for row in rows:
        cells = [cell(values[*row, c]) if (*row, c) in values else "" for c in candidates]
        lines.append(table_row(*row, *cells, *(ratios.get((*row, c), "") for c in compared)))
    return f"{environment_line(report)}\n\n" + "\n".join(lines) + "\n"


def _ratio(of: Record | None, to: Record | None) -> str:
    """Format the first record over the second; '' if that says nothing."""
    if of is None or to is None or of["unit"] not in SCALES or to["value"] <= 0:
        return ""
    return f"{of['value'] / to['value']:.3g}x"


def environment_line(report: Report) -> str:
    """Write the suite and its environment on one line."""
    env = report.environment
    place = [env.cpu, f"{env.cores} cores", f"{env.memory_gib} GiB", *env.accelerators, env.python]
    commit = (env.commit or "no commit")[:12] + (" with changes" if env.modified else "")
    return f"{report.suite}: {', '.join(place)}; {commit}; environment {env.fingerprint}"


def table_row(*cells: str) -> str:
    """Write one row of a Markdown table."""
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def rows_table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a Markdown table; '' if there are no rows."""
    lines = [table_row(*head), "|---" * len(head) + "|", *(table_row(*row) for row in rows)]
    return "\n".join(lines) if len(lines) > 2 else ""


def times(value: float | None) -> str:
    """Format a ratio: 0.85 is ``0.85x``; '' for None."""
    return "" if value is None else f"{value:.3g}x"


def seconds_cell(row: Record) -> str:
    """Format a latency record's median and its 10th to 90th percentile."""
    texts = [quantity(row[f"{k}_seconds"], "s") for k in ("median", "p10", "p90")]
    return f"{texts[0]} ({texts[1]} to {texts[2]})"


def exceptions(records: Sequence[Record]) -> Iterator[str]:
    """Yield one line for each reason why a system is not in the tables."""
    for metric in ("failure", "left out"):
        reasons: dict[tuple[str, str], list[str]] = {}
        for row in records:
            if row["metric"] == metric:
                where = f"{row['workload']} ({row['threads']})"
                reasons.setdefault((row["system"], row["reason"]), []).append(where)
        for (system, reason), where in reasons.items():
            yield f"- {metric}: {system}: {reason}: {', '.join(where)}."
