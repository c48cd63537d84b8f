"""A profile for people and tools: a table, HTML for notebooks, events for Perfetto and Chrome.

The trace follows the "Trace Event Format" that both document: an object with `traceEvents`,
complete events (`ph` X) with `ts` and `dur` in microseconds, and metadata events (`ph` M) that name
threads.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyc_mlir.measure.dispatch_timer import DispatchSpan
from pyc_mlir.profile.known import IREE
from pyc_mlir.util.html import Html, joined, tag
from pyc_mlir.util.html import table as table_of
from pyc_mlir.util.units import quantity

if TYPE_CHECKING:
    from pyc_mlir.profile.profile import Profile, ProfileRow

_HEAD = ("time", "share", "spread", "roof", "flops", "bytes", "code", "computes", "dispatch")
# Columns of text, which stand to the left.
_TEXTS = 3
_LONGEST = 48
_MICRO = 1e6
_PROCESS = 1


def table(profile: "Profile", most: int | None = None) -> str:
    """Write the longest rows first, the others as one, then the rest and the whole call."""
    cells, rows = [_HEAD], profile.longest_first
    shown = rows if most is None else rows[:most]
    cells += [_cells(row) for row in shown]
    if others := rows[len(shown) :]:
        cells.append(_sum(others, f"{len(others)} more dispatches", profile))
    cells += [_cells(row) for row in profile.rows if not row.is_dispatch]
    cells.append(_sum(profile.rows, "the call", profile))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    body = "".join(f"  {_line(row, widths)}\n" for row in cells)
    return f"{summary(profile)}\n{body}{notes(profile)}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    pairs = list(zip(row, widths, strict=True))
    numbers = [cell.rjust(width) for cell, width in pairs[:-_TEXTS]]
    texts = [cell.ljust(width) for cell, width in pairs[-_TEXTS:]]
    return "  ".join((*numbers, *texts)).rstrip()


def _cells(row: "ProfileRow") -> tuple[str, ...]:
    return (
        quantity(row.seconds, "s"),
        f"{row.share:.1%}",
        _spread(row),
        "" if row.roofline is None else f"{row.roofline:.0%}",
        "" if row.flops is None else _count(row.flops),
        "" if row.traffic_bytes is None else quantity(row.traffic_bytes, "B"),
        code_of(row),
        _cut(f"{row.computes}{_at(row)}"),
        row.dispatch,
    )


def _sum(rows: Sequence["ProfileRow"], what: str, profile: "Profile") -> tuple[str, ...]:
    seconds = sum(row.seconds for row in rows)
    share = f"{seconds / (profile.seconds or 1.0):.1%}"
    return (quantity(seconds, "s"), share, "", "", "", "", "", what, "")


def _spread(row: "ProfileRow") -> str:
    """Write the 10th and 90th percentile of the calls, against the median."""
    median, low, high = row.median_seconds, row.p10_seconds, row.p90_seconds
    if not median or low is None or high is None:
        return ""
    return f"{low / median - 1:+.0%} {high / median - 1:+.0%}"


def _count(value: float) -> str:
    scales = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    factor, name = next((s for s in scales if value >= s[0]), (1.0, ""))
    return f"{value / factor:.3g}{name}"


def _at(row: "ProfileRow") -> str:
    return f" ({', '.join(row.locations)})" if row.locations else ""


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def code_of(row: "ProfileRow") -> str:
    """Name the owner of a row's code."""
    if not row.is_dispatch:
        return ""
    return "IREE's code" if row.code == IREE else f"kernel {row.code}"


def summary(profile: "Profile") -> str:
    """Describe the shares of a call's time, and the ops that no generated kernel covers."""
    whole = profile.seconds or 1.0
    basis = "measured" if profile.measured else "predicted, not measured"
    head = f"A call takes {quantity(profile.seconds, 's')} ({basis})"
    parts = [f"{profile.kernels / whole:.0%} in generated kernels"]
    if profile.uncovered:
        most = ", ".join(f"{n} {share:.0%}" for n, share in uncovered(profile)[:3])
        parts.append(
            f"{profile.uncovered / whole:.0%} in IREE's code for what no kernel covers ({most})"
        )
    parts.append(f"{profile.outside / whole:.0%} outside of dispatches")
    return f"{head}: {', '.join(parts)}."


def uncovered(profile: "Profile") -> list[tuple[str, float]]:
    """Return the ops that no generated kernel covers, in words, with their share of the call."""
    shares: dict[str, float] = {}
    for row in profile.rows:
        if row.is_dispatch and not row.is_kernel:
            shares[row.computes] = shares.get(row.computes, 0.0) + row.share
    return sorted(shares.items(), key=lambda item: -item[1])


def notes(profile: "Profile") -> str:
    """Describe the measurement, its comparison, and the roof."""
    lines = [profile.how]
    if (seen := profile.disturbance) is not None:
        profiled, plain, own = (quantity(v, "s") for v in (seen.profiled, seen.plain, seen.own))
        lines.append(
            f"profiling changes the CPU time of a call by {seen.overhead:+.1%}: {profiled} with, "
            f"{plain} without, in turn; a call from Python takes {own} (medians)"
        )
    if profile.is_disturbed:
        lines.append("other processes disturbed the calls: measure again on a quiet machine")
    if any(row.roofline is not None for row in profile.rows):
        lines.append(f"roof: {profile.roof}")
    return "".join(f"  {line}\n" for line in lines)


def html(profile: "Profile") -> Html:
    """Write the whole table, and what it rests on."""
    rest = [row for row in profile.rows if not row.is_dispatch]
    cells = [_cells(row) for row in (*profile.longest_first, *rest)]
    cells.append(_sum(profile.rows, "the call", profile))
    lines = (tag("p", line.strip()) for line in notes(profile).splitlines())
    return joined(tag("p", summary(profile)), table_of(_HEAD, cells), *lines)


def trace_events(profile: "Profile") -> dict[str, Any]:
    """Return one call as trace events; dispatches that overlap in time stand on own lanes."""
    rows = [row for row in profile.rows if row.is_dispatch]
    lanes = list(_lanes(profile.spans))
    name = f"{profile.program or 'program'} on {profile.device}"
    events: list[dict[str, Any]] = [_named("process_name", 0, name)]
    events += [_named("thread_name", lane, f"lane {lane}") for lane in sorted(set(lanes))]
    for span, lane, row in zip(profile.spans, lanes, rows, strict=True):
        events.append(
            {
                "name": row.computes if row.sources else span.symbol,
                "cat": "kernel" if row.is_kernel else "iree",
                "ph": "X",
                "ts": span.start * _MICRO,
                "dur": (span.end - span.start) * _MICRO,
                "pid": _PROCESS,
                "tid": lane,
                "args": _arguments(row, span),
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _arguments(row: "ProfileRow", span: DispatchSpan) -> dict[str, Any]:
    found = {
        "dispatch": span.symbol,
        "code": code_of(row),
        "knobs": row.knobs,
        "sources": ", ".join(row.sources) or "unknown",
        "locations": ", ".join(row.locations),
        "workgroups": "x".join(map(str, span.workgroups)),
        "flops": row.flops,
        "bytes": row.traffic_bytes,
        "roofline": row.roofline,
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def _named(what: str, lane: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": lane, "args": {"name": name}}


def _lanes(spans: Sequence[DispatchSpan]) -> Iterator[int]:
    """Yield a lane for each span: the first one that is free when it begins."""
    ends: list[float] = []
    for span in spans:
        free = (i for i, end in enumerate(ends) if end <= span.start)
        lane = next(free, len(ends))
        ends[lane : lane + 1] = [span.end]
        yield lane
