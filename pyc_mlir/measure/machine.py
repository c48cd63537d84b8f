"""Check that this machine is fit to measure: one measurement at a time, and what disturbs it.

    with measure_token("pyc-tune profile"):          MACHINE_BUSY names the holder
        before = read_counters()
        ...
        disturbed = disturbances(before, read_counters(), own_cpu_seconds)

The token is a lock on a file that all processes of the machine share (`flock(2)`): the kernel
releases it when its process ends, however it ends. The counters are Linux's own, from /proc and
/sys below a root; missing counters count as undisturbed.
"""

import fcntl
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.hardware import read, read_caches

# Of the CPU time of all cores between two readings: what a hypervisor may take, and what other
# processes may use. A neighbour on another core takes memory bandwidth and frequency too.
MOST_STOLEN, MOST_OTHERS = 0.01, 0.10
_NAME = "pyc-mlir-measure.lock"
_POLL_SECONDS = 0.05
_HEAD_BYTES = 4096
_LOOK_SECONDS = 1.0
_CACHES = "sys/devices/system/cpu/cpu0/cache"
_KIB = re.compile(r"(\d+) KiB$")
_UNKNOWN_CACHE_KIB = 64 * 1024


def token_path() -> Path:
    """Return the file that every measuring process of this machine locks."""
    return Path(tempfile.gettempdir()) / _NAME


@contextmanager
def measure_token(
    holder: str, wait_seconds: float = 0.0, path: Path | None = None
) -> Iterator[None]:
    """Hold the right to measure on this machine.

    holder: the name of this process for others. wait_seconds: how long to wait for another one.
    Raises PycError: MACHINE_BUSY with the process that holds it, FILE_ACCESS.
    """
    where = path or token_path()
    try:
        handle = _opened(where)
    except OSError as error:
        raise PycError(
            ReasonCode.FILE_ACCESS,
            f"{where}: expected a file to lock while measuring, got: {error.strerror}",
        ) from None
    try:
        _lock(handle, where, wait_seconds)
        holder_data = {"pid": os.getpid(), "holder": holder, "since": int(time.time())}
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(holder_data).encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _opened(where: Path) -> int:
    """Open the file, which every user may lock.

    Made only where it is missing: in a sticky folder Linux refuses O_CREAT for another user's file
    (fs.protected_regular).
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(where, flags)
    except FileNotFoundError:
        handle = os.open(where, flags | os.O_CREAT, 0o666)
        os.fchmod(handle, 0o666)
        return handle


def _lock(handle: int, where: Path, wait_seconds: float) -> None:
    end = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                break
        time.sleep(_POLL_SECONDS)
    raise PycError(
        ReasonCode.MACHINE_BUSY,
        f"{where}: expected no other measurement on this machine, got {_holder(handle)}; wait for "
        "it, since two at a time disturb each other",
    )


def _holder(handle: int) -> str:
    """Who holds the token, by its own words."""
    try:
        holder_data = json.loads(os.pread(handle, _HEAD_BYTES, 0))
        seconds = max(0, int(time.time()) - int(holder_data["since"]))
        return (
            f"process {int(holder_data['pid'])} ({str(holder_data['holder'])[:80]}) for {seconds} s"
        )
    except (ValueError, KeyError, TypeError):
        return "an unnamed process"


@dataclass(frozen=True)
class Counters:
    """Linux's counters of this machine, since it started.

    at: seconds of a clock that only goes on. busy, stolen: CPU seconds of all cores, without
    waiting; taken by the hypervisor. throttled: periods in which the control group was held back.
    hot: times that a core was slowed for its heat. load: the mean length of the run queue in the
    last minute.
    """

    at: float
    busy: float
    stolen: float
    throttled: int
    hot: int
    load: float


def read_counters(root: Path = Path("/")) -> Counters:
    """Return the current counters; 0 for those that the system lacks."""
    first = read(root / "proc/stat").partition("\n")[0].split()
    ticks = [int(word) for word in first[1:9]] if len(first) >= 9 and first[0] == "cpu" else [0] * 8
    user, nice, system, _, _, irq, softirq, steal = (t / os.sysconf("SC_CLK_TCK") for t in ticks)
    words = read(root / "proc/loadavg").split()
    # Control groups of version 2, then of version 1.
    groups = (read(root / f / "cpu.stat") for f in ("sys/fs/cgroup", "sys/fs/cgroup/cpu"))
    held_back = (re.search(r"^nr_throttled (\d+)$", text, re.MULTILINE) for text in groups)
    cores = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle")
    slowed = (read(folder / "core_throttle_count").strip() for folder in cores)
    return Counters(
        time.monotonic(),
        user + nice + system + irq + softirq,
        steal,
        next((int(match[1]) for match in held_back if match), 0),
        sum(int(text) for text in slowed if text.isdigit()),
        float(words[0]) if words else 0.0,
    )


def disturbances(
    before: Counters, after: Counters, own_seconds: float, cores: int | None = None
) -> tuple[str, ...]:
    """Return why the measurement in between decides nothing; empty where nothing disturbed it.

    own_seconds: CPU time that the measuring processes spent in between.
    """
    count = cores or os.cpu_count() or 1
    total = max((after.at - before.at) * count, 1e-9)
    stolen = (after.stolen - before.stolen) / total
    others = max(0.0, after.busy - before.busy - own_seconds) / total
    reasons = []
    if stolen > MOST_STOLEN:
        reasons.append(f"the hypervisor took {stolen:.1%} of the CPU time")
    if others > MOST_OTHERS:
        reasons.append(f"other processes used {others:.0%} of the CPU time")
    if after.throttled > before.throttled:
        reasons.append(
            f"the control group was held back {after.throttled - before.throttled} times"
        )
    if after.hot > before.hot:
        reasons.append(f"cores were slowed for heat {after.hot - before.hot} times")
    return tuple(reasons)


def stolen_share(before: Counters, after: Counters, cores: int | None = None) -> float:
    """Return the share of all cores' time that the hypervisor took."""
    total = (after.at - before.at) * (cores or os.cpu_count() or 1)
    return max(0.0, (after.stolen - before.stolen) / total) if total > 0 else 0.0


def require_quiet(disturbed: Sequence[str]) -> None:
    """Raise PycError (MACHINE_BUSY) for a machine that is disturbed."""
    if disturbed:
        raise PycError(
            ReasonCode.MACHINE_BUSY,
            f"machine: expected a quiet one to measure on, got one where {'; '.join(disturbed)}; "
            "end other work, or measure without `quiet`, whose verdicts may be `unclear`",
        )


def pause(seconds: float = _LOOK_SECONDS) -> None:
    """Wait, so that counters can be read before and after."""
    time.sleep(seconds)


def flush_bytes(root: Path = Path("/")) -> int:
    """Memory that takes the place of everything in the caches: twice the largest one."""
    sizes = [int(match[1]) for c in read_caches(root / _CACHES) if (match := _KIB.search(c))]
    return 2 * 1024 * max(sizes, default=_UNKNOWN_CACHE_KIB)
