"""Placement of IREE's workers on cores, and how a caller waits for them, on Linux.

Workers that may run anywhere are often woken on the same core, one behind the other, while a core
is idle; IREE pins them only where it chooses their number itself. So a device that has a worker for
every core keeps each on its own.

A caller waits in IREE until the worker that finishes last wakes it. That worker then still has a
flag to set, for which the caller spins (IREE's `iree/async/semaphore.c`, the end of
``multi_wait``); if the kernel has put the caller on the worker's core, it spins until its slice
ends: milliseconds. A thread under ``SCHED_BATCH`` does not take the core of one that runs when it
wakes (Linux, sched(7)), so callers wait under that policy.
"""

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

Invoke = Callable[[Any, Any, Any], None]
_THREADS = Path("/proc/self/task")
_NAMED_WITHIN_SECONDS = 0.2
_IS_LINUX = hasattr(os, "sched_setscheduler") and _THREADS.exists()


def running() -> frozenset[int]:
    """Return the threads of this process; none where the system does not tell."""
    return frozenset(int(t.name) for t in _THREADS.iterdir()) if _IS_LINUX else frozenset()


def spread(before: frozenset[int], count: int) -> bool:
    """Keep each of the `count` workers started since `before` on a core of its own.

    Done where there are as many cores as workers: fewer could meet those of another process. True
    if it was.
    """
    cores = sorted(os.sched_getaffinity(0)) if _IS_LINUX else []
    if count != len(cores) or count == 1:
        return False
    workers = _named(before, count)
    for worker, core in zip(workers, cores, strict=False):
        os.sched_setaffinity(worker, {core})
    return bool(workers)


def _named(before: frozenset[int], count: int) -> list[int]:
    """Return the new workers by number; a thread gets its name a moment after it starts."""
    names = [f"iree-worker-{i}" for i in range(count)]
    end = monotonic() + _NAMED_WITHIN_SECONDS
    while True:
        found = {_name(thread): thread for thread in running() - before}
        if found.keys() >= set(names):
            return [found[name] for name in names]
        if monotonic() > end:
            return []
        sleep(0.001)


def _name(thread: int) -> str:
    try:
        return (_THREADS / str(thread) / "comm").read_text().strip()
    except OSError:
        return ""


def waiting(invoke: Invoke) -> Invoke:
    """`invoke`, called by threads that leave the core to the workers while they wait.

    A thread with a policy of its own keeps it.
    """
    if not _IS_LINUX:
        return invoke
    # Looked up once: they are on the way of every call.
    normal, batch, unused = os.SCHED_OTHER, os.SCHED_BATCH, os.sched_param(0)
    policy, become = os.sched_getscheduler, os.sched_setscheduler
    try:
        if policy(0) == normal:
            become(0, batch, unused)
            become(0, normal, unused)
    except OSError:
        return invoke

    def call(function: Any, inputs: Any, outputs: Any) -> None:
        if policy(0) != normal:
            invoke(function, inputs, outputs)
            return
        try:
            become(0, batch, unused)
            invoke(function, inputs, outputs)
        finally:
            become(0, normal, unused)

    return call
