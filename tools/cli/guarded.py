"""Run work in a forked child, so that a crash in native code becomes an exit status.

The child ends through `os._exit` after marking its end in memory shared with the parent; a child
that ends without the mark (signal, native exit, unexpected exception) has crashed. A parent that is
ended by a signal ends its child first; one that is killed takes it along (`children.Lifeline`).
"""

import contextlib
import mmap
import os
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from pyc_mlir.dialects.errors import PycError, out_of_memory
from pyc_mlir.util.children import ENDING, Lifeline, handled

# Whether this process is such a child, whose crash is survived.
in_child = False
_STATE = struct.Struct("<?i?")  # finished, progress, whether Python raised what ended it


@dataclass(frozen=True)
class Crash:
    """How a child ended and the last progress that it reported; whether a signal ended it, and
    whether native code did, by a signal or by an exit of its own."""

    reason: str
    progress: int
    is_signal: bool
    is_native: bool = True


def limited_memory(crash: Crash) -> PycError | None:
    """Return the error of a crash under a limit of memory, if native code ends so; else None.

    It ends by SIGABRT, SIGSEGV or an exit if an allocation fails, and reports it only on standard
    error.
    """
    if not crash.is_native:
        return None
    limits = (resource.getrlimit(r)[0] for r in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    if all(most == resource.RLIM_INFINITY for most in limits):
        return None
    return out_of_memory(f"{crash.reason}, as it does when it is out of memory")


def run_guarded(work: Callable[[Callable[[int], None]], int]) -> int | Crash:
    """Call `work(progress)` in a child; return its exit status, or how it crashed.

    `progress(n)` stores a number for the crash report. Call this before any thread exists.
    """
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    sys.stdout.flush()
    sys.stderr.flush()
    line = Lifeline()
    # A signal that comes now waits until this process knows what it has to end.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*ENDING, signal.SIGINT))
    try:
        child = os.fork()
        if child == 0:
            line.tie_self()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _run_child(work, shared)
        os.close(line.fd)
        status = _wait(child, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        line.cut()
    finished, progress, raised = _STATE.unpack_from(shared)
    code = os.waitstatus_to_exitcode(status)
    if finished:
        return code
    if code < 0:
        name = signal.Signals(-code).name
        return Crash(f"native code ended the process ({name})", progress, is_signal=True)
    return Crash(
        "an unexpected error ended the process", progress, is_signal=False, is_native=not raised
    )


def _wait(child: int, mask: Collection[int]) -> int:
    """Return the child's wait status. A signal that ends this process ends the child before.

    mask: the signals that are blocked from now on; those of `ENDING` and interrupts were until now.
    """
    received: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        received.append(number)
        _kill(child)

    with handled(end):
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            status = os.waitpid(child, 0)[1]
        except KeyboardInterrupt:
            _kill(child)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
            raise
    # The child may have got it too, as all of a group do, and have ended before this process.
    received += [n for n in ENDING if os.WIFSIGNALED(status) and os.WTERMSIG(status) == n]
    if received:
        os.kill(os.getpid(), received[0])
    return status


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def _run_child(work: Callable[[Callable[[int], None]], int], shared: mmap.mmap) -> NoReturn:
    global in_child
    in_child = True

    def progress(number: int) -> None:
        _STATE.pack_into(shared, 0, False, number, False)

    code = 2
    try:
        code = work(progress)
        sys.stdout.flush()
        sys.stderr.flush()
        _STATE.pack_into(shared, 0, True, 0, False)
    except KeyboardInterrupt:
        _STATE.pack_into(shared, 0, True, 0, False)
        code = 130
    except BaseException:  # noqa: BLE001  (the process boundary: the parent writes a reproducer)
        traceback.print_exc()
        _STATE.pack_into(shared, 0, False, _STATE.unpack_from(shared)[1], True)
    finally:
        sys.stderr.flush()
        os._exit(code)
