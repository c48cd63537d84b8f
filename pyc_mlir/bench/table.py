"""A stored report as a Markdown table: one row per workload and metric, one column a candidate."""

from pyc_mlir.bench.schema import Record, Report

_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_SCALES = {"s": _TIME, "B": _BYTES}


def quantity(value: float, unit: str) -> str:
    """`value` with a readable unit: 0.0123 s is ``12.3 ms``, 4718592 B is ``4.5 MiB``."""
    scales = _SCALES.get(unit, ((1.0, unit),))
    factor, name = next((s for s in scales if abs(value) >= s[0]), scales[-1])
    scaled = value / factor
    digits = (
        f"{scaled:.0f}" if float(scaled).is_integer() or abs(scaled) >= 1000 else f"{scaled:.3g}"
    )
    return digits + (name if name == "%" else f" {name}")


def cell(record: Record) -> str:
    """The value of a record, with its 10th to 90th percentile where it has them."""
    text = quantity(record["value"], record["unit"])
    if "p10" not in record or "p90" not in record:
        return text
    low, high = (quantity(record[p], record["unit"]) for p in ("p10", "p90"))
    return f"{text} ({low} to {high})"


def markdown(report: Report) -> str:
    """The whole report: a line on the environment, then the table. Ends in a newline."""
    candidates = list(dict.fromkeys(r["candidate"] for r in report.records))
    cells = {(r["workload"], r["metric"], r["candidate"]): cell(r) for r in report.records}
    rows = dict.fromkeys((r["workload"], r["metric"]) for r in report.records)
    lines = [_row("workload", "metric", *candidates), "|---" * (2 + len(candidates)) + "|"]
    lines += [_row(*row, *(cells.get((*row, c), "") for c in candidates)) for row in rows]
    return f"{environment_line(report)}\n\n" + "\n".join(lines) + "\n"


def environment_line(report: Report) -> str:
    """Which suite ran where, on one line."""
    env = report.environment
    place = [env.cpu, f"{env.cores} cores", f"{env.memory_gib} GiB", *env.accelerators, env.python]
    commit = (env.commit or "no commit")[:12] + (" with changes" if env.modified else "")
    return f"{report.suite}: {', '.join(place)}; {commit}; environment {env.fingerprint}"


def _row(*cells: str) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"
