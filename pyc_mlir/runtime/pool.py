"""The process's pool of threads, which help the dispatches of loaded programs.

Dispatches fork and join by themselves (`iree/fork_join.mlir`, with the layout of the page and how
order is kept); here threads are started and stopped, and programs are told of them. A helper runs
under ``SCHED_IDLE``, so that it takes only time that nobody else wants, spins about a millisecond
after the last job, then sleeps. It is a thread of the system that Python does not know: with the
interpreter's lock it would stop the process for as long as others want its core.

The code that helpers run is part of a loaded program. It is one of those that are loaded: when
that one goes, helpers begin in another one, and its code stays until the last one has left it.
"""

import _thread
import atexit
import ctypes
import mmap
import os
import re
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from platform import machine
from time import perf_counter, sleep
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.hardware import cpu_quota
from pyc_mlir.pipelines.target.target import available_cores
from pyc_mlir.util.units import quantity

# The function by which a loaded program is told of threads: takes and returns int64[WORDS]. The
# number is that of the layout below: a program of another one runs without helpers.
ATTACH = "pyc_threads_attach_1"
WORDS = 16
MOST_THREADS = 64
IS_SUPPORTED = sys.platform == "linux" and machine() == "x86_64"

# See `iree/fork_join.mlir`. Offsets in bytes.
_RECORDS_AT = 3 * mmap.PAGESIZE
_BYTES = _RECORDS_AT + (1 << 23)
_OWNER, _ASLEEP, _WAITED_ON, _PLACED = 256, 260, 264, 280
_JOBS, _WAITS, _WAITED_CYCLES, _OFFS = 288, 296, 304, 312
_TURN, _SPIN, _SLACK, _MOST_OFF, _RECORDS, _HELPERS, _POLICY = 384, 392, 408, 416, 424, 432, 440
_CORES = 512
_SHARES, _SHARE_BYTES, _UNITS, _SLEEPS, _THREAD = 1024, 128, 8, 16, 24
# Seconds; docs/design-notes/threads.md has what was measured.
_SPIN_SECONDS = 1e-3
_SLACK_SECONDS = 5e-5
_MOST_OFF_SECONDS = 1.0
_CALIBRATION_SECONDS = 2e-3
# A call of less does not wake sleepers, which takes the caller 8 us.
_WORTH_WAKING_SECONDS = 3e-5
_FUTEX, _WAKE_PRIVATE, _SCHED_IDLE = 202, 129, 5
# What the code of a program says of itself.
_MARK = 1346978643
# Seconds that a program waits for helpers to leave its code before it goes without its memory.
_LEAVE_SECONDS = 5e-2

_LIBC = ctypes.CDLL(None)

# Runs ATTACH of a program on these words; returns what it returns.
Tell = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class PoolStatistics:
    """Counts since the process began.

    jobs: dispatches that were forked. waits: those whose caller waited for helpers, wait_seconds
    in all. helped: units of work that helpers took. sleeps: of helpers. turned_off: how often the
    pool was off for a while, since other threads or processes needed the cores.
    """

    jobs: int
    waits: int
    wait_seconds: float
    helped: int
    sleeps: int
    turned_off: int

    def __str__(self) -> str:
        wait = quantity(self.wait_seconds / max(self.waits, 1), "s")
        forks = f"{self.jobs} forks, {self.waits} of them with a wait of {wait} on average"
        return f"{forks}, {self.helped} units helped, turned off {self.turned_off} times"


class Pool:
    """One a process. Methods may be called by several threads."""

    def __init__(self) -> None:
        # Private, so that a forked child has its own.
        self._memory = mmap.mmap(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._address = self._bytes.ctypes.data
        self._lock, self._recording = _thread.allocate_lock(), _thread.allocate_lock()
        self._threads: list[int] = []
        # What keeps code loaded, by where helpers begin in it.
        self._hosts: dict[int, Any] = {}
        self._host = 0
        self._leaving: set[Any] = set()
        self._has_ended = False
        # Daemon threads may be in a call when the interpreter ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._bytes))
        self._wanted = 0
        self._cycles_a_second = 0.0
        self._int32(_POLICY)[0] = _SCHED_IDLE

    def attach(
        self, owner: Any, code: Any, tell: Tell, threads: int, seconds: float | None
    ) -> None:
        """Let the dispatches of a program have `threads` threads, the caller's one of them.

        owner: lives as long as the program is used. code: keeps its code loaded. seconds: that a
        call is predicted to take.
        """
        threads = min(threads, MOST_THREADS)
        is_worth_waking = seconds is None or seconds >= _WORTH_WAKING_SECONDS
        with self._lock:
            if self._has_ended:
                return
            if tell(np.zeros(WORDS, np.int64))[2] != _MARK:
                return  # Compiled for another CPU or by flags, without the code.
            if not self._cycles_a_second:
                self._calibrate(tell)
            begin, _ = self._told(tell, self._address | threads << 1 | is_worth_waking)
            self._hosts[begin] = code
            self._wanted = max(self._wanted, threads - 1)
            self._start()
        gone = weakref.finalize(owner, self._forget, begin)
        gone.atexit = False

    def start(self) -> None:
        """Start the helpers that are wanted and do not run, in a forked child too."""
        with self._lock:
            self._start()

    def stop(self) -> None:
        """Stop all helpers; what runs goes on without them."""
        with self._lock:
            _join(self._stop())

    def end(self) -> None:
        """Stop for good: the interpreter ends, and does not tell when programs go."""
        self.stop()
        self._has_ended = True
        self._hosts.clear()
        for left in list(self._leaving):
            left.acquire()

    def after_fork(self) -> None:
        """Forget the parent's threads in a child, and the job that one of them was in."""
        self._lock, self._recording = _thread.allocate_lock(), _thread.allocate_lock()
        self._threads.clear()
        self._int64(_RECORDS)[0] = 0
        self._leaving.clear()
        for word in (_OWNER, _ASLEEP, _HELPERS):
            self._int32(word)[0] = 0
        job = self._int64(0)
        job &= -1 << 24  # No shares and no units.
        lines = self._int64(_SHARES, MOST_THREADS * _SHARE_BYTES // 8).reshape(MOST_THREADS, -1)
        lines[:, _THREAD // 8] = 0

    def _start(self) -> None:
        if not self._hosts:
            return
        if self._host not in self._hosts:
            self._host = next(iter(self._hosts))
        self._set_cores()
        turn, thread = self._address | int(self._int32(_TURN)[0]) << 6, ctypes.c_ulong()
        begin = ctypes.c_void_p(self._host)
        for number in range(len(self._threads) + 1, self._wanted + 1):
            given = ctypes.c_void_p(turn | number)
            if _LIBC.pthread_create(ctypes.byref(thread), None, begin, given):
                break  # The system has no more threads; callers do their part.
            self._threads.append(thread.value)
            _LIBC.pthread_setname_np(thread, b"pyc-helper-%d" % number)
        self._int64(_HELPERS)[0] = len(self._threads)

    def _stop(self) -> list[int]:
        """Return the helpers that now leave."""
        leaving, self._threads = self._threads, []
        self._int64(_HELPERS)[0] = 0
        self._int32(_TURN)[0] = (self._int32(_TURN)[0] + 1) % 64
        # By more than callers add at the same time, one of which may get lost.
        waited_on = self._int32(_WAITED_ON)
        waited_on += 1 << 16
        where = ctypes.c_void_p(self._address + _WAITED_ON)
        _LIBC.syscall(_FUTEX, where, _WAKE_PRIVATE, MOST_THREADS, None, None, 0)
        return leaving

    def record(self, call: Callable[[], object]) -> tuple[float, np.ndarray]:
        """Return the seconds of a call, and a row for each dispatch, forked or not, in their order.

        A row has the tiles, the seconds, and those of them that the caller waited for helpers.
        Other calls at the same time add theirs; 260,000 rows are kept.
        """
        with self._recording:
            rows = self._int64(_RECORDS_AT, (_BYTES - _RECORDS_AT) // 8).reshape(-1, 4)
            rows[0, :2] = rows[0].nbytes, rows.nbytes
            self._int64(_RECORDS)[0] = rows.ctypes.data
            began = perf_counter()
            try:
                call()
            finally:
                seconds = perf_counter() - began
                self._int64(_RECORDS)[0] = 0
            rate = self._cycles_a_second or 1.0
            return seconds, rows[1 : rows[0, 0] // rows[0].nbytes, 1:] / np.array([1.0, rate, rate])

    def statistics(self) -> PoolStatistics:
        """Return the counts; those of callers that run now may be missing."""
        shares = [_SHARES + _SHARE_BYTES * number for number in range(1, MOST_THREADS)]
        return PoolStatistics(
            jobs=self._count(_JOBS),
            waits=self._count(_WAITS),
            wait_seconds=self._count(_WAITED_CYCLES) / (self._cycles_a_second or 1.0),
            helped=sum(self._count(s + _UNITS) for s in shares),
            sleeps=sum(self._count(s + _SLEEPS) for s in shares),
            turned_off=self._count(_OFFS),
        )

    def _set_cores(self) -> None:
        """Tell the cores that helpers may be on; they are placed when they are woken next."""
        cores = self._int64(_CORES, 16)
        cores[:] = 0
        for core in os.sched_getaffinity(os.getpid()):  # Its first thread's: others may be bound.
            if core < 64 * len(cores):
                cores.view(np.uint64)[core // 64] |= np.uint64(1 << core % 64)
        self._int32(_PLACED)[0] = -1

    def _forget(self, begin: int) -> None:
        """Leave the code of a program that goes.

        The collector may call this anywhere, with locks of others held: it only waits for a while.
        """
        left = _thread.allocate_lock()
        left.acquire()
        self._leaving.add(left)
        try:
            _thread.start_new_thread(self._leave, (begin, left))
        except RuntimeError:
            self._leaving.discard(left)  # The system has no more threads: the code stays.
            return
        left.acquire(timeout=_LEAVE_SECONDS)

    def _leave(self, begin: int, left: Any) -> None:
        with self._lock:
            code = self._hosts.pop(begin, None)
            leaving = self._stop() if begin == self._host else []
            self._start()
        _join(leaving)
        del code
        self._leaving.discard(left)
        left.release()

    def _calibrate(self, tell: Tell) -> None:
        """Measure the cycle counter, and set what is counted in cycles."""
        rate = 0.0
        for _ in range(3):  # What comes in between makes it less.
            began = perf_counter()
            _, before = self._told(tell, 0)
            sleep(_CALIBRATION_SECONDS)
            _, after = self._told(tell, 0)
            rate = max(rate, (after - before) / (perf_counter() - began))
        self._cycles_a_second = rate
        seconds = np.array([_SPIN_SECONDS, 0, _SLACK_SECONDS, _MOST_OFF_SECONDS])
        self._int64(_SPIN, 4)[:] = seconds * rate

    @staticmethod
    def _told(tell: Tell, word: int) -> tuple[int, int]:
        words = np.zeros(WORDS, np.int64)
        words[0] = word
        told = tell(words)
        return int(told[0]), int(told[1])

    def _count(self, offset: int) -> int:
        return int(self._int64(offset)[0])

    def _int64(self, offset: int, count: int = 1) -> np.ndarray:
        return self._bytes[offset : offset + 8 * count].view(np.int64)

    def _int32(self, offset: int) -> np.ndarray:
        return self._bytes[offset : offset + 4].view(np.int32)


def _join(threads: list[int]) -> None:
    for thread in threads:
        _LIBC.pthread_join(ctypes.c_ulong(thread), None)


def usable_threads(env: Mapping[str, str] = os.environ, cores: int = 0, quota: str = "") -> int:
    """Return PYC_THREADS, else the cores that this process may use, within its CPU quota.

    cores, quota: instead of this process's. Raises PycError (BAD_ARGUMENT) for another value of
    PYC_THREADS than a number from 1 on.
    """
    given = env.get("PYC_THREADS", "")
    if not given:
        limit = int(float(quota or cpu_quota() or MOST_THREADS))
        return max(1, min(cores or available_cores(), limit, MOST_THREADS))
    if not re.fullmatch(r"[1-9]\d*", given):
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"PYC_THREADS: expected a number from 1 on, got {given!r}"
        )
    return int(given)


POOL = Pool()
os.register_at_fork(after_in_child=POOL.after_fork)
atexit.register(POOL.end)
