"""Child processes that end with their parent, however it ends.

A lifeline is a pipe whose writing end only the parent holds. Linux is asked (`fcntl(2)`, F_SETSIG)
to send SIGKILL to the child, or to its whole process group, once that end is closed: by the parent,
or by the system when the parent is killed. Unlike PR_SET_PDEATHSIG it does not fire when a mere
thread of the parent ends, and it reaches the children of a child.
"""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

# What ends a process that does not ask for it; an interrupt is Python's own KeyboardInterrupt.
ENDING = (signal.SIGTERM, signal.SIGHUP)
# The command waits for a line: until then it is not tied, and its parent may be killed.
_GATE = ("/bin/sh", "-c", 'read -r go && exec "$@" </dev/null', "sh")


class Lifeline:
    """A pipe on which the lives of children hang; the parent keeps it as long as they may live.

    fd: the child's end, to be inherited.
    """

    def __init__(self) -> None:
        self.fd, self._ours = os.pipe()
        _lines.add(self)

    def tie(self, owner: int) -> None:
        """Let SIGKILL go to a process, or for a negative number to that group, once `cut`.

        The parent's copy of `fd` is closed. On systems without F_SETSIG nothing is tied.
        """
        with contextlib.suppress(OSError):  # of a process that has ended, or on such a system
            if hasattr(fcntl, "F_SETSIG"):
                fcntl.fcntl(self.fd, fcntl.F_SETOWN, owner)
                fcntl.fcntl(self.fd, fcntl.F_SETSIG, signal.SIGKILL)
                flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
                fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | os.O_ASYNC)
        os.close(self.fd)

    def tie_self(self) -> None:
        """End this forked child with its parent, which may have ended already."""
        self.cut()
        kept = os.dup(self.fd)  # of the same open pipe: it stays open for as long as this process
        self.tie(os.getpid())
        poll = select.poll()
        poll.register(kept, 0)
        if poll.poll(0):
            os._exit(1)

    def cut(self) -> None:
        """End what is tied."""
        ours, self._ours = self._ours, -1
        if ours >= 0:
            os.close(ours)

    def __del__(self) -> None:
        self.cut()


_lines: "weakref.WeakSet[Lifeline]" = weakref.WeakSet()


def _forget() -> None:
    """Forget the children in a forked child: they are its parent's, and end with that."""
    for line in _lines:
        line.cut()


os.register_at_fork(after_in_child=_forget)


def python_command(boot: str, *arguments: str) -> list[str]:
    """Return the command of a Python program `boot`, whose modules are those of this process.

    It imports none of the current folder.
    """
    paths = [p for p in sys.path if isinstance(p, str)]
    return [sys.executable, "-P", "-c", f"import sys\nsys.path[:] = {paths!r}\n{boot}", *arguments]


class Child:
    """A started child in a process group of its own, which ends with this process.

    Arguments as those of `subprocess.Popen`; standard input and output are text.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._line = Lifeline()
        self.process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=env,
            text=True,
            errors="replace",
            pass_fds=(*pass_fds, self._line.fd),
            # No session of its own: Linux would give that a share of the processor of its own.
            process_group=0,
        )
        self._line.tie(-self.process.pid)

    def end(self) -> None:
        """End the process and its children at once; it is not waited for."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self._line.cut()

    def wait(self, seconds: float | None = None) -> None:
        """Wait so long for the process, then end it, and what it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.end()
        self.process.wait()


def run(
    command: str | Sequence[str],
    *,
    stdout: int | None = subprocess.PIPE,
    stderr: int | None = subprocess.PIPE,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a command as `subprocess.run` does; the child does not outlive this process, nor what it
    starts.

    A text is a shell's command. The child has nothing on its standard input; what is left of its
    group is ended with it. Raises subprocess.TimeoutExpired after `timeout` seconds.
    """
    arguments = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    gated = [*_GATE, *arguments]
    child = Child(gated, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, env=env)
    with child.process as process:
        try:
            out, err = process.communicate("\n", timeout)
        finally:
            child.end()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


class _Ended(BaseException):
    """A signal asked this process to end."""


@contextlib.contextmanager
def temporary_folder(prefix: str | None = None) -> Iterator[Path]:
    """Make a folder that is removed at the end, also when a signal of `ENDING` ends the process.

    Only for work that gives Python a turn now and then: the signal waits for it.
    """
    received: list[int] = []
    inside = False

    def end(number: int, _: FrameType | None) -> None:
        received.append(number)
        if inside:
            raise _Ended

    with handled(end), tempfile.TemporaryDirectory(prefix=prefix) as folder:
        try:
            inside = True
            if not received:
                yield Path(folder)
        except _Ended:
            pass
        finally:
            inside = False
    if received:
        os.kill(os.getpid(), received[0])


Handler = Callable[[int, FrameType | None], None]


@contextlib.contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Let `handler` take the signals of `ENDING` that are not ignored; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.getsignal(n) for n in ENDING}
    taken = {n: h for n, h in before.items() if h not in (signal.SIG_IGN, None)}
    try:
        for number in taken:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in taken.items():
            signal.signal(number, old)
