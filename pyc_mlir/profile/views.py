"""A profile for people and tools: a table, HTML for notebooks, events for Perfetto and Chrome.

The trace follows the "Trace Event Format" that both document: an object with `traceEvents`,
complete events (`ph` X) with `ts` and `dur` in microseconds, and metadata events (`ph` M) that name
threads.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyc_mlir.measure.dispatch_timer import DispatchSpan
from pyc_mlir.profile.dispatches import IREE, Operation, ProfileRow, uncovered
from pyc_mlir.util.html import Html, joined, tag
from pyc_mlir.util.html import table as table_of
from pyc_mlir.util.units import quantity

if TYPE_CHECKING:
    from pyc_mlir.profile.profile import Profile

_HEAD = ("time", "share", "times", "spread", "roof", "code", "operations", "nodes of the model")
# Columns of text, which stand to the left; the least characters of a line that both have.
_TEXTS = 3
_LONGEST = 30
_MICRO = 1e6
_PROCESS = 1


def table(profile: "Profile", most: int | None = None) -> str:
    """Write the longest operations first, the others as one, then the rest and the whole call.

    Columns that hold nothing are left out.
    """
    operations = profile.operations
    shown = operations if most is None else operations[:most]
    cells = [
        _HEAD,
        *(
            [c if len(c) <= _LONGEST else f"{c[: _LONGEST - 3]}..." for c in _cells(o)]
            for o in shown
        ),
    ]
    if others := [row for o in operations[len(shown) :] for row in o.rows]:
        cells.append(_sum(others, f"{len(operations) - len(shown)} more operations", profile))
    columns = [c for c in zip(*cells, *_whole(profile), strict=True) if any(c[1:])]
    widths = [max(map(len, column)) for column in columns]
    numbers = len([c for c in columns if c[0] not in _HEAD[-_TEXTS:]])
    body = "".join(f"  {_line(row, widths, numbers)}\n" for row in zip(*columns, strict=True))
    return f"{summary(profile)}\n{body}{notes(profile)}"


def _line(row: Sequence[str], widths: Sequence[int], numbers: int) -> str:
    pairs = enumerate(zip(row, widths, strict=True))
    cells = (c.rjust(width) if i < numbers else c.ljust(width) for i, (c, width) in pairs)
    return "  ".join(cells).rstrip()


def _cells(operation: Operation) -> tuple[str, ...]:
    times = len(operation.rows)
    return (
        quantity(operation.seconds, "s"),
        f"{operation.share:.1%}",
        str(times) if times > 1 else "",
        _spread(operation.rows[0]) if times == 1 else "",
        "" if operation.roofline is None else f"{operation.roofline:.0%}",
        operation.code,
        operation.title,
        operation.named,
    )


def _whole(profile: "Profile") -> list[tuple[str, ...]]:
    outside = [row for row in profile.rows if not row.is_dispatch]
    return [
        _sum(outside, "outside of dispatches", profile),
        _sum(profile.rows, "the call", profile),
    ]


def _sum(rows: Sequence[ProfileRow], what: str, profile: "Profile") -> tuple[str, ...]:
    seconds = sum(row.seconds for row in rows)
    share = f"{seconds / (profile.seconds or 1.0):.1%}"
    return (quantity(seconds, "s"), share, "", "", "", "", what, "")


def _spread(row: ProfileRow) -> str:
    median, low, high = row.median_seconds, row.p10_seconds, row.p90_seconds
    if not median or low is None or high is None:
        return ""
    return f"{low / median - 1:+.0%} {high / median - 1:+.0%}"


def code_of(row: ProfileRow) -> str:
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
        shares: dict[str, float] = {}
        for operation in uncovered(profile.operations):
            title = operation.title
            shares[title] = shares.get(title, 0.0) + operation.share
        longest = sorted(shares.items(), key=lambda item: -item[1])[:3]
        most = ", ".join(f"{title} {share:.0%}" for title, share in longest)
        parts.append(
            f"{profile.uncovered / whole:.0%} in IREE's code for what no kernel covers ({most})"
        )
    if profile.measured:
        parts.append(f"{profile.outside / whole:.0%} outside of dispatches")
    return f"{head}: {', '.join(parts)}."


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
    cells = [*map(_cells, profile.operations), *_whole(profile)]
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


def _arguments(row: ProfileRow, span: DispatchSpan) -> dict[str, Any]:
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
