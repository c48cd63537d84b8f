"""Worker processes: started on demand, kept for the next compile, ended on request.

A worker is a new Python process, no fork: its parent has threads and native state. Imports take
most of its start, so `start_early` lets them run beside the parent's own. Who takes a worker has it
alone, and gives it back or ends it.
"""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence

from pyc_mlir.util.children import Child, python_command
from pyc_mlir.util.env_overrides import env_overrides
from pyc_mlir.worker.messages import Channel

BOOT = "from pyc_mlir.worker.serve import main; main(int(sys.argv[1]))"
MOST_IDLE = 2
# As a nice value: about a tenth of the share of a process that does not yield.
_YIELDING = 10


class WorkerProcess:
    """One process. `ready` once it has said so, `doing` what it does by its own words.

    overrides: the variables that it began with of those that have other code take part.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours, blocking=False)
        self.overrides = env_overrides()
        self.ready = self.yields = False
        self.doing = ""
        self._output, self._already_read = tempfile.TemporaryFile(), 0  # noqa: SIM115  (as long as the worker)
        with theirs:
            # In a group of its own an interrupt of the terminal is the parent's to handle, and the
            # linker that a compile starts ends with it. Should this process be killed: the worker
            # would notice the closed channel late if native code has its lock.
            self._child = Child(
                python_command(BOOT, str(theirs.fileno())),
                stdout=self._output,
                stderr=self._output,
                pass_fds=(theirs.fileno(),),
            )
        self._process = self._child.process

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """The state of the process: True while it runs."""
        return self._process.poll() is None

    def yield_to_others(self) -> None:
        """Let it run where others do not: for good, since only a privileged process may undo it."""
        self.yields = True
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, self._process.pid, _YIELDING)

    def end(self) -> None:
        """End the process and its children at once. It is reaped in the background."""
        # Killed first: at a closed channel it would end by itself, and its children would go on.
        self._child.end()
        self.channel.close()
        threading.Thread(target=self._process.wait, daemon=True).start()

    def how_it_ended(self) -> str:
        """``SIGSEGV``, or ``exit status 3``, of a process whose side of the socket is closed."""
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "a closed connection"
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"

    def output(self) -> str:
        """Return what it wrote to its standard output and error since this was last asked."""
        self._output.seek(self._already_read)
        text = self._output.read()
        self._already_read += len(text)
        return text.decode(errors="replace")


_lock = threading.Lock()
_idle: list[WorkerProcess] = []


def take() -> WorkerProcess:
    """Take a worker for the caller alone: one that waits, else a started one, else a new one."""
    with _lock:
        while _idle:
            best = next((w for w in _idle if w.ready), _idle[0])
            _idle.remove(best)
            if best.alive and best.overrides == env_overrides():
                return best
            best.end()
    return WorkerProcess()


def give(worker: WorkerProcess) -> None:
    """Keep a worker for the next compile; one too many is ended."""
    with _lock:
        if worker.alive and not worker.yields and len(_idle) < MOST_IDLE:
            _idle.append(worker)
            return
    worker.end()


def start_early(count: int = 1) -> None:
    """Ensure that so many workers wait or are on their way."""
    with _lock:
        _idle[:] = [w for w in _idle if w.alive]
        _idle.extend(WorkerProcess() for _ in range(count - len(_idle)))


def idle() -> Sequence[WorkerProcess]:
    """Return the workers that wait."""
    with _lock:
        return tuple(_idle)


def end_all() -> None:
    """End the workers that wait."""
    with _lock:
        waiting = list(_idle)
        _idle.clear()
    for worker in waiting:
        worker.end()


def _forget() -> None:
    """Forget the workers in a forked child: they are its parent's."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()


atexit.register(end_all)
os.register_at_fork(after_in_child=_forget)
