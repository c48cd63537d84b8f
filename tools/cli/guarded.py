"""Run work in a forked child, so that a crash in native code is survived and told apart.

The child ends through `os._exit` after marking its end in memory shared with the parent; a child
that ends without the mark (signal, native exit, unexpected exception) has crashed.
"""

import mmap
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

# Whether this process is such a child, whose crash is survived.
in_child = False
_STATE = struct.Struct("<?i")  # finished, progress


@dataclass(frozen=True)
class Crash:
    """How a child ended, the last progress that it reported, and whether a signal ended it."""

    reason: str
    progress: int
    is_signal: bool


def run_guarded(work: Callable[[Callable[[int], None]], int]) -> int | Crash:
    """Call `work(progress)` in a child; return its exit status, or how it crashed.

    `progress(n)` stores a number for the crash report. Call this before any thread exists.
    """
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _run_child(work, shared)
    status = _wait(child)
    finished, progress = _STATE.unpack_from(shared)
    code = os.waitstatus_to_exitcode(status)
    if finished:
        return code
    if code < 0:
        name = signal.Signals(-code).name
        return Crash(f"native code ended the process ({name})", progress, is_signal=True)
    return Crash("an unexpected error ended the process", progress, is_signal=False)


def _wait(child: int) -> int:
    """The child's wait status; an interrupt reaches it too, so that it does not linger."""
    try:
        return os.waitpid(child, 0)[1]
    except KeyboardInterrupt:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def _run_child(work: Callable[[Callable[[int], None]], int], shared: mmap.mmap) -> NoReturn:
    global in_child
    in_child = True

    def progress(number: int) -> None:
        _STATE.pack_into(shared, 0, False, number)

    code = 2
    try:
        code = work(progress)
        sys.stdout.flush()
        sys.stderr.flush()
        _STATE.pack_into(shared, 0, True, 0)
    except KeyboardInterrupt:
        _STATE.pack_into(shared, 0, True, 0)
        code = 130
    except BaseException:  # noqa: BLE001  (the process boundary: the parent writes a reproducer)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
