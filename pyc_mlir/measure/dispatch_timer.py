"""Seconds of each dispatch of a program on a CPU, measured by IREE's own runtime profiling.

Comes in: a vmfb (or an artifact of PyC, which is one), the name of a function and its arguments.
Goes out: a `TimedCall` for each call: its seconds by the clock, and when each dispatch ran.

`iree-benchmark-module` of the runtime's wheel calls the function so many times in a process of its
own and writes a profile (`--device_profiling_mode=host-execution`: the only family that IREE 3.13
offers on ``local-sync`` and ``local-task``; `dispatch-events` is for GPUs); `iree-profile dispatch`
reads it. Each call is a repetition of its own, so that its seconds are known too. The clock is read
before and after each dispatch, which adds to what lies between dispatches, not to their seconds.

On ``local-sync`` IREE 3.13 records nothing of a function that neither waits nor allocates, such as
PyC's entry with an arena: time the plain entry there.

IREE's tools do not ask Linux for tile registers, and the permission of a process
(`pipelines/target/cpu_features.py`) ends where it starts another program. So they load a library
first that asks (LD_PRELOAD): an ELF file with an initializer of five instructions.
"""

import json
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from subprocess import STDOUT
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import dtype_name
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.measure.hardware import parse_cpuinfo, read
from pyc_mlir.util.children import run as run_child
from pyc_mlir.util.children import temporary_folder

_CPUINFO, _TILES = Path("/proc/cpuinfo"), "amx_tile"
_VARIABLE = "LD_PRELOAD"
_NAME = "tiles.so"
_PAGE = 0x1000
# mov eax, 158 (arch_prctl); mov edi, 0x1023 (ARCH_REQ_XCOMP_PERM); mov esi, 18; syscall; ret
_CODE = bytes.fromhex("b89e000000 bf23100000 be12000000 0f05 c3")
_CODE_AT, _SYMBOL_AT = 0x200, 0x300
# ELF: the header's size and those of a segment and of a symbol.
_HEADER, _SEGMENT, _SYMBOL = 64, 56, 24
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ, _READ_WRITE, _READ_RUN = 4, 6, 5
# DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_INIT, DT_NULL
_FACTS = ((5, _SYMBOL_AT), (6, _SYMBOL_AT), (10, 1), (11, _SYMBOL), (12, _CODE_AT), (0, 0))
CALLS = 50
# Calls before those that count: caches and pools fill.
WARMUP = 3
DEVICES = ("local-sync", "local-task")
_NANO = 1e-9
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_PRINTED_CHARACTERS = 400


def library() -> bytes:
    """Return the library, an ELF file for x86-64."""
    facts = b"".join(struct.pack("<QQ", *fact) for fact in _FACTS)
    segments = (
        (_LOAD, _READ_RUN, 0, _SYMBOL_AT + _SYMBOL),
        (_LOAD, _READ_WRITE, _PAGE, len(facts)),
        (_DYNAMIC, _READ_WRITE, _PAGE, len(facts)),
        (_STACK, _READ_WRITE, 0, 0),
    )
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    # Type 3: shared; machine 62: x86-64.
    header = struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, _HEADER, 0, 0, _HEADER, _SEGMENT, 4, 64, 0, 0
    )
    table = b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, _PAGE if kind == _LOAD else 8)
        for kind, flags, at, size in segments
    )
    start = (ident + header + table).ljust(_CODE_AT, b"\0")
    return (start + _CODE).ljust(_PAGE, b"\0") + facts


def preloading(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Write the library to a folder; the environment in which a program loads it first.

    The environment as it is where the CPU has no tiles.
    """
    if _TILES not in parse_cpuinfo(read(_CPUINFO))[1]:
        return dict(environ)
    path = folder / _NAME
    write_file(path, library())
    others = environ.get(_VARIABLE, "")
    return {**environ, _VARIABLE: f"{path}:{others}" if others else str(path)}


@dataclass(frozen=True)
class DispatchSpan:
    """One run of a dispatch: seconds since the first dispatch of its call began.

    `workgroups` is the grid.
    """

    symbol: str
    start: float
    end: float
    workgroups: tuple[int, ...] = ()


@dataclass(frozen=True)
class TimedCall:
    """One call: its seconds by the clock, and its dispatches in the order in which they began.

    cpu_seconds: those that all threads of the process spent.
    """

    seconds: float
    spans: tuple[DispatchSpan, ...]
    cpu_seconds: float = 0.0

    @property
    def shares(self) -> tuple[float, ...]:
        """Seconds of the call that fall to each dispatch.

        A moment in which several run counts for each in equal parts: the sum is at most `seconds`.
        """
        if all(before.end <= after.start for before, after in pairwise(self.spans)):
            return tuple(span.end - span.start for span in self.spans)
        shares = [0.0] * len(self.spans)
        times = sorted({t for s in self.spans for t in (s.start, s.end)})
        for begin, end in pairwise(times):
            running = [i for i, s in enumerate(self.spans) if s.start <= begin and end <= s.end]
            for i in running:
                shares[i] += (end - begin) / len(running)
        return tuple(shares)


@dataclass(frozen=True)
class TimerSettings:
    """How to measure: the device and its threads (0: one a core), the number of calls.

    allocator: what `iree-benchmark-module --device_allocator` is given. profiling: False to time
    calls alone, to see what profiling adds.
    """

    device: str = "local-sync"
    threads: int = 1
    calls: int = CALLS
    allocator: str = ""
    profiling: bool = True
    environ: Mapping[str, str] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Raise PycError (CANNOT_PROFILE) for other devices, BAD_ARGUMENT for other numbers."""
        if self.device not in DEVICES:
            raise PycError(
                ReasonCode.CANNOT_PROFILE,
                f"dispatch timer: expected a device of {', '.join(DEVICES)}, got "
                f"{self.device!r}; compile for `cpu` to see times of dispatches",
            )
        if self.calls < 1 or self.threads < 0:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"dispatch timer: expected one call or more and no negative number of threads, "
                f"got {self.calls} and {self.threads}",
            )


def time_calls(
    vmfb: bytes | memoryview | Path,
    function: str,
    inputs: Sequence[np.ndarray],
    how: TimerSettings | None = None,
    storage: Sequence[int] = (),
) -> list[TimedCall]:
    """Call `function` and time its dispatches; calls to warm up are left out.

    storage: bytes of each buffer that the function takes after its inputs.
    Raises PycError (RUNTIME_FAILED) with the output of IREE's tools.
    """
    how = how or TimerSettings()
    with temporary_folder("pyc-dispatches-") as folder:
        how = replace(how, environ=preloading(folder, how.environ or os.environ))
        if not isinstance(vmfb, Path):
            write_file(folder / "module.vmfb", vmfb)
        module = vmfb if isinstance(vmfb, Path) else folder / "module.vmfb"
        clock, events = folder / "calls.json", folder / "calls.ireeprof"
        profiling = (
            "--device_profiling_mode=host-execution",
            f"--device_profiling_output={events}",
        )
        _run(
            how,
            "iree-benchmark-module",
            f"--module={module}",
            f"--function={function}",
            *_input_flags(inputs, folder),
            *(f"--input=&{max(size, 1)}xi8" for size in storage),
            f"--device={how.device}",
            *([f"--device_allocator={how.allocator}"] if how.allocator else []),
            f"--task_topology_group_count={how.threads}",
            "--benchmark_min_time=1x",
            f"--benchmark_repetitions={WARMUP + how.calls}",
            f"--benchmark_out={clock}",
            "--benchmark_out_format=json",
            *(profiling if how.profiling else ()),
        )
        flags = ("dispatch", "--dispatch_events", "--format=jsonl", str(events))
        # A call that uses no device leaves no profile.
        printed = _run(how, "iree-profile", *flags) if events.exists() else ""
        with _irees_format():
            return read_calls(printed.splitlines(), read_clock(read_file(clock)))[WARMUP:]


def _input_flags(inputs: Sequence[np.ndarray], folder: Path) -> Iterator[str]:
    """Yield a flag for each array, as a file of its bytes: the .npy format has no name for bf16."""
    for number, array in enumerate(inputs):
        path = folder / f"{number}.bin"
        write_file(path, np.ascontiguousarray(array).tobytes())
        kind = "x".join([*map(str, array.shape), dtype_name(array.dtype)])
        yield f"--input={kind}=@{path}"


@dataclass(frozen=True)
class Clock:
    """Seconds of one call by the clock, and CPU seconds of the process."""

    seconds: float
    cpu_seconds: float = 0.0


def read_clock(text: str | bytes) -> list[Clock]:
    """Return the clock of each call, from what ``--benchmark_out_format=json`` writes."""
    rows = [r for r in json.loads(text)["benchmarks"] if r["run_type"] == "iteration"]
    units = (_UNITS[row["time_unit"]] for row in rows)
    pairs = zip(rows, units, strict=True)
    return [Clock(row["real_time"] * unit, row["cpu_time"] * unit) for row, unit in pairs]


def read_calls(lines: Iterable[str], clocks: Sequence[Clock]) -> list[TimedCall]:
    """Return the calls, from what ``iree-profile dispatch`` prints, and from the clock of each
    call.

    Raises PycError (RUNTIME_FAILED) where calls differ in their dispatches.
    """
    parsed = (json.loads(line) for line in lines if line.startswith("{"))
    rows = [r for r in parsed if r.get("type") == "host_dispatch_event" and r["valid"]]
    # Command buffers of a call run one after another; within one, commands have numbers.
    rows.sort(key=lambda row: (row["submission_id"], row["command_index"], row["event_id"]))
    each, left = divmod(len(rows), len(clocks))
    names = [row["key"] for row in rows]
    if left or any(names[i] != names[i % each] for i in range(len(names))):
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"dispatch timer: expected the same dispatches in each of {len(clocks)} calls, got "
            f"{len(rows)} in all; time a program whose dispatches do not depend on data",
        )
    events = (_spans(rows[i * each : (i + 1) * each]) for i in range(len(clocks)))
    return [
        TimedCall(clock.seconds, spans, clock.cpu_seconds)
        for clock, spans in zip(clocks, events, strict=True)
    ]


def _spans(rows: Sequence[Mapping[str, Any]]) -> tuple[DispatchSpan, ...]:
    first = min((row["start_host_time_ns"] for row in rows), default=0)
    return tuple(
        DispatchSpan(
            row["key"],
            (row["start_host_time_ns"] - first) * _NANO,
            (row["end_host_time_ns"] - first) * _NANO,
            tuple(row["workgroup_count"]),
        )
        for row in rows
    )


@contextmanager
def _irees_format() -> Iterator[None]:
    """Raise PycError (RUNTIME_FAILED) where IREE's tools write something else."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"dispatch timer: expected a profile as IREE 3.13 writes it, got one with: {error}; "
            "install iree-base-runtime 3.13",
        ) from None


def _run(how: TimerSettings, tool: str, *arguments: str) -> str:
    """Return the output of a tool of the runtime's wheel. Raises PycError (RUNTIME_FAILED)."""
    command = [sys.executable, "-m", f"iree._runtime.scripts.{tool.replace('-', '_')}", *arguments]
    done = run_child(command, stderr=STDOUT, env=how.environ)
    printed = done.stdout
    if done.returncode != 0:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"dispatch timer: expected `{tool}` to finish, got status {done.returncode}: "
            f"{printed[-_PRINTED_CHARACTERS:].strip()}",
        )
    return printed
