"""`Profile`: where the time of one call goes, a row for each dispatch and one for the rest.

    profile = program.profile(x)
    print(profile)                  # a table, the longest rows first
    profile.trace("trace.json")     # for ui.perfetto.dev and chrome://tracing

Rows add up to the call. Seconds are measured (build.py) or predicted; `how` says which, and how.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from typing import ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.measure.dispatch_timer import DispatchSpan
from pyc_mlir.profile import views
from pyc_mlir.profile.dispatches import Operation, ProfileRow, operations_of

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
        return views.table(self, _SHOWN)

    def _repr_html_(self) -> str:
        return views.html(self)

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
        data = {**views.trace_events(self), KEY: to_data(self)}
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
    whole = seconds or 1.0
    shared = [_shared(row, row.seconds, whole) for row in rows]
    return (*shared, _shared(rest, left, whole))


def _shared(row: ProfileRow, seconds: float, whole: float) -> ProfileRow:
    return replace(row, seconds=seconds, share=seconds / whole)
