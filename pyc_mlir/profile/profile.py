"""`Profile`: where the time of one call goes, a row for each dispatch and one for the rest.

    profile = program.profile(x)
    print(profile)                  # a table, the longest rows first
    profile.trace("trace.json")     # for ui.perfetto.dev and chrome://tracing

Rows add up to the call. Seconds are measured (build.py) or predicted; `how` says which, and how.
The trace follows the "Trace Event Format": an object with `traceEvents`, complete events (`ph` X)
with `ts` and `dur` in microseconds, and metadata events (`ph` M) that name threads.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from typing import Any, ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.measure.dispatch_timer import DispatchSpan
from pyc_mlir.profile.dispatches import Operation, ProfileRow, operations_of, uncovered
from pyc_mlir.util.html import Html, joined, tag
from pyc_mlir.util.html import table as table_of
from pyc_mlir.util.units import quantity

# Under which a trace holds the profile.
KEY = "pyc"
_SHOWN = 30
# Seconds by the clock over CPU seconds from which on other processes disturbed a call.
_CALM = 1.2


@dataclass(frozen=True)
class Disturbance:
    """The effect of profiling and other processes on a call: medians of calls made in turn.

    profiled and plain: CPU seconds by IREE's tool, with and without profiling; unlike seconds by
    the clock, other processes change them little. own: seconds of a call from Python.
    """

    profiled: float
    plain: float
    own: float

    @property
    def overhead(self) -> float:
        """The time that profiling adds to a call, as a share of it."""
        return self.profiled / self.plain - 1 if self.plain else 0.0


@dataclass(frozen=True)
class Profile:
    """The rows of one call in the order in which they ran, the rest last.

    program: its graph id. how: what the seconds rest on. roof: what rooflines rest on.
    seconds: the profiled (or predicted) call, the sum of all rows.
    disturbance: what profiling adds; None for a prediction.
    device, threads, entry: what was called; threads 0 is one a core.
    spans: one call, the one with the median time.
    helped: how the rows' seconds with helpers were measured; empty where there are none.
    """

    schema: ClassVar[int] = 1
    program: str
    measured: bool
    how: str
    roof: str
    seconds: float
    rows: tuple[ProfileRow, ...]
    disturbance: Disturbance | None = None
    device: str = ""
    threads: int = 0
    entry: str = ""
    spans: tuple[DispatchSpan, ...] = ()
    helped: str = ""

    @property
    def operations(self) -> list[Operation]:
        """The dispatches, those of equal operations as one, the longest first."""
        return operations_of(self.rows)

    @property
    def outside(self) -> float:
        """Seconds outside of dispatches."""
        return fsum(row.seconds for row in self.rows if not row.is_dispatch)

    @property
    def kernels(self) -> float:
        """Seconds in generated kernels."""
        return fsum(row.seconds for row in self.rows if row.is_kernel)

    @property
    def uncovered(self) -> float:
        """Seconds in dispatches of IREE's code."""
        return fsum(r.seconds for r in self.rows if r.is_dispatch and not r.is_kernel)

    @property
    def is_disturbed(self) -> bool:
        """True if a call on one thread took far longer than the CPU was at work for it."""
        if self.device != "local-sync" or self.disturbance is None:
            return False
        return self.seconds > _CALM * self.disturbance.profiled

    def __str__(self) -> str:
        return table(self, _SHOWN)

    def _repr_html_(self) -> str:
        return html(self)

    def trace(self, path: str | Path) -> None:
        """Write a trace for Perfetto or Chrome, with the profile in it.

        Raises PycError: FILE_ACCESS, and BAD_ARGUMENT for a prediction.
        """
        if not self.measured:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                "trace: expected a measured profile, got a prediction; measure with "
                "`program.profile(...)`",
            )
        data = {**trace_events(self), KEY: to_data(self)}
        text = json.dumps(data, ensure_ascii=False, allow_nan=False)
        write_file(path, f"{text}\n".encode())

    @staticmethod
    def load(path: str | Path) -> "Profile":
        """Read a trace that `trace` wrote. Raises PycError: FILE_ACCESS, BAD_ARGUMENT."""
        try:
            data = parse_json(read_file(path, "a profile"))
            return from_data(Profile, data.get(KEY) if isinstance(data, Mapping) else None)
        except ValueError as error:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                where=str(path),
                expected="a trace with a profile",
                got=f"one with a fault: {error}",
                remedy="write it with `pyc-run --profile`",
            ) from None


def with_rest(
    rows: Sequence[ProfileRow], seconds: float, rest: ProfileRow
) -> tuple[ProfileRow, ...]:
    """Return the rows and the rest of a call of `seconds`, with the share of each."""
    left = seconds - fsum(row.seconds for row in rows)
    every = (*rows, replace(rest, seconds=left))
    return tuple(replace(row, share=row.seconds / (seconds or 1.0)) for row in every)


_HEAD = (
    *("time", "share", "times", "spread", "roof", "helped", "ratio", "wait"),
    *("code", "operations", "nodes of the model"),
)
# Columns of text, which stand to the left; the least characters of a line that both have.
_TEXTS = 3
_LONGEST = 30
_MICRO = 1e6
_PROCESS = 1


def table(profile: Profile, most: int | None = None) -> str:
    """Write the longest operations first, the others as one, then the rest and the whole call.

    Columns that hold nothing are left out.
    """
    operations = profile.operations
    shown = operations if most is None else operations[:most]
    texts = map(_cells, shown)
    cut = ([c if len(c) <= _LONGEST else f"{c[: _LONGEST - 3]}..." for c in row] for row in texts)
    cells = [_HEAD, *cut]
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
        *_helped(operation.rows),
        operation.code,
        operation.title,
        operation.named,
    )


def _whole(profile: Profile) -> list[tuple[str, ...]]:
    outside = [row for row in profile.rows if not row.is_dispatch]
    return [
        _sum(outside, "outside of dispatches", profile),
        _sum(profile.rows, "the call", profile),
    ]


def _sum(rows: Sequence[ProfileRow], what: str, profile: Profile) -> tuple[str, ...]:
    seconds = sum(row.seconds for row in rows)
    share = f"{seconds / (profile.seconds or 1.0):.1%}"
    return (quantity(seconds, "s"), share, "", "", "", *_helped(rows), "", what, "")


def _helped(rows: Sequence[ProfileRow]) -> tuple[str, str, str]:
    """Write the seconds with helpers, their ratio to those without, and the wait."""
    if not rows or rows[0].helped_seconds is None:
        return "", "", ""
    helped = fsum(row.helped_seconds or 0.0 for row in rows)
    waited = fsum(row.waited_seconds or 0.0 for row in rows)
    ratio = helped / (fsum(row.seconds for row in rows) or 1.0)
    return quantity(helped, "s"), f"{ratio:.2f}", quantity(waited, "s") if waited else ""


def _spread(row: ProfileRow) -> str:
    median, low, high = row.median_seconds, row.p10_seconds, row.p90_seconds
    if not median or low is None or high is None:
        return ""
    return f"{low / median - 1:+.0%} {high / median - 1:+.0%}"


def summary(profile: Profile) -> str:
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


def notes(profile: Profile) -> str:
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
    if profile.helped:
        lines.append(f"helped: {profile.helped}")
    if any(row.roofline is not None for row in profile.rows):
        lines.append(f"roof: {profile.roof}")
    return "".join(f"  {line}\n" for line in lines)


def html(profile: Profile) -> Html:
    """Write the whole table, and what it rests on."""
    cells = [_HEAD, *map(_cells, profile.operations), *_whole(profile)]
    head, *rows = zip(*(c for c in zip(*cells, strict=True) if any(c[1:])), strict=True)
    lines = (tag("p", line.strip()) for line in notes(profile).splitlines())
    return joined(tag("p", summary(profile)), table_of(head, rows), *lines)


def trace_events(profile: Profile) -> dict[str, Any]:
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
        "code": f"kernel {row.code}" if row.is_kernel else "IREE's code",
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
