"""Seconds of each dispatch of a program on a CPU, measured by IREE's own runtime profiling.

Comes in: a vmfb (or an artifact of PyC, which is one), the name of a function and its arguments.
Goes out: a `DispatchTime` for each dispatch of a call, in the order in which they ran.

`iree-benchmark-module` of the runtime's wheel calls the function so many times in a process of its
own and writes a profile (`--device_profiling_mode=host-execution`: the only family that IREE 3.13
offers on ``local-sync`` and ``local-task``; `dispatch-events` is for GPUs); `iree-profile dispatch`
reads it. A dispatch's time is the least of all calls: on a machine that is shared nothing but
disturbance makes one slower. The clock is read before and after each dispatch, which adds to what
lies between dispatches, not to their seconds.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import STDOUT
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import write_file
from pyc_mlir.util.children import run as run_child
from pyc_mlir.util.children import temporary_folder

CALLS = 50
DEVICES = ("local-sync", "local-task")
_NANO = 1e-9
_SAID = 400


@dataclass(frozen=True)
class Dispatch:
    """What is known of a dispatch when it is compiled: one task of the memory report."""

    symbol: str
    seconds: float = 0.0
    flops: float = 0.0
    traffic_bytes: int = 0
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class DispatchTime:
    """One dispatch of a call: the least and the median seconds of so many calls.

    `workgroups` is the grid. flops, traffic_bytes, sources and predicted_seconds come from the
    compile (`joined`): zeros and empty where nothing is known.
    """

    symbol: str
    seconds: float
    median_seconds: float
    calls: int
    workgroups: tuple[int, ...] = ()
    flops: float = 0.0
    traffic_bytes: int = 0
    sources: tuple[str, ...] = ()
    predicted_seconds: float = 0.0


@dataclass(frozen=True)
class How:
    """How to measure: the device, its threads (``local-task``), and the number of calls."""

    device: str = "local-sync"
    threads: int = 1
    calls: int = CALLS
    environ: Mapping[str, str] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Raises PycError (BAD_ARGUMENT)."""
        if self.device not in DEVICES or self.calls < 1 or self.threads < 1:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"dispatch timer: expected a device of {', '.join(DEVICES)}, one call and one "
                f"thread or more, got {self.device!r}, {self.calls} and {self.threads}",
            )


def time_dispatches(
    vmfb: bytes | Path, function: str, inputs: Sequence[np.ndarray], how: How | None = None
) -> list[DispatchTime]:
    """Run `function` and time its dispatches.

    Raises PycError (RUNTIME_FAILED) with what IREE's tools say.
    """
    how = how or How()
    with temporary_folder("pyc-dispatches-") as folder:
        if isinstance(vmfb, bytes):
            write_file(folder / "module.vmfb", vmfb)
        module = vmfb if isinstance(vmfb, Path) else folder / "module.vmfb"
        named = []
        for number, array in enumerate(inputs):
            np.save(folder / f"{number}.npy", np.ascontiguousarray(array), allow_pickle=False)
            named.append(f"--input=@{folder / f'{number}.npy'}")
        profile = folder / "calls.ireeprof"
        _run(
            how,
            "iree-benchmark-module",
            f"--module={module}",
            f"--function={function}",
            *named,
            f"--device={how.device}",
            f"--task_topology_group_count={how.threads}",
            f"--benchmark_min_time={how.calls}x",
            "--device_profiling_mode=host-execution",
            f"--device_profiling_output={profile}",
        )
        flags = ("--dispatch_events", "--format=jsonl")
        said = _run(how, "iree-profile", "dispatch", *flags, str(profile))
    return read_events(said.splitlines(), how.calls)


def read_events(lines: Iterable[str], calls: int) -> list[DispatchTime]:
    """The dispatches of one call, from what ``iree-profile dispatch`` prints for so many calls.

    Raises PycError (RUNTIME_FAILED) where calls differ in their dispatches.
    """
    rows = [row for row in map(_parsed, lines) if row.get("type") == "host_dispatch_event"]
    rows = [row for row in rows if row["valid"]]
    # Command buffers of a call run one after another; within one, commands have numbers.
    rows.sort(key=lambda row: (row["submission_id"], row["command_index"], row["event_id"]))
    each, left = divmod(len(rows), calls)
    names = [row["key"] for row in rows]
    if left or any(names[i] != names[i % each] for i in range(len(names))):
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"dispatch timer: expected the same dispatches in each of {calls} calls, got "
            f"{len(rows)} in all; time a program whose dispatches do not depend on data",
        )
    return [_time(rows[i::each]) for i in range(each)]


def joined(times: Sequence[DispatchTime], known: Sequence[Dispatch]) -> list[DispatchTime]:
    """The times with what the compile knows of each dispatch: the next of its symbol, in order."""
    waiting: dict[str, list[Dispatch]] = {}
    for dispatch in known:
        waiting.setdefault(dispatch.symbol, []).append(dispatch)
    made = []
    for time in times:
        same = waiting.get(time.symbol, [])
        # A region that runs again repeats its dispatches.
        found = same.pop(0) if len(same) > 1 else same[0] if same else Dispatch(time.symbol)
        made.append(
            DispatchTime(
                time.symbol,
                time.seconds,
                time.median_seconds,
                time.calls,
                time.workgroups,
                found.flops,
                found.traffic_bytes,
                found.sources,
                found.seconds,
            )
        )
    return made


def _time(rows: Sequence[Mapping[str, Any]]) -> DispatchTime:
    seconds = sorted(row["duration_ns"] * _NANO for row in rows)
    middle = seconds[len(seconds) // 2]
    groups = tuple(rows[0]["workgroup_count"])
    return DispatchTime(rows[0]["key"], seconds[0], middle, len(rows), groups)


def _parsed(line: str) -> Mapping[str, Any]:
    return json.loads(line) if line.startswith("{") else {}


def _run(how: How, tool: str, *arguments: str) -> str:
    """What a tool of the runtime's wheel prints. Raises PycError (RUNTIME_FAILED)."""
    command = [sys.executable, "-m", f"iree._runtime.scripts.{tool.replace('-', '_')}", *arguments]
    done = run_child(command, stderr=STDOUT, env=how.environ)
    said = done.stdout
    if done.returncode != 0:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"dispatch timer: expected `{tool}` to finish, got status {done.returncode}: "
            f"{said[-_SAID:].strip()}",
        )
    return said
