"""The common part of the command lines: exit codes, readable errors, progress.

Exit status 0 is success, 1 a refusal (a message with place and reason code, never a traceback),
2 a command line that cannot be read, 70 a fault of ours (with a traceback; EX_SOFTWARE of
sysexits.h), 130 an interrupt.
"""

import argparse
import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from logging import INFO
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TextIO, cast

from pyc_mlir.dialects.errors import (
    PycError,
    ReasonCode,
    internal_error,
    missing_compiler,
    out_of_memory,
)
from pyc_mlir.dialects.printable import PrintableStream, for_display, one_line, shown_streams
from pyc_mlir.dialects.util.files import file_error, make_folder, require_writable, write_file
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.tools.cli.guarded import Crash, limited_memory, run_guarded
from pyc_mlir.util.logs import COMPILE, configure, logged, logger
from pyc_mlir.util.temp_dir import require_room

OK, REFUSED, USAGE, BROKEN, INTERRUPTED = 0, 1, 2, 70, 130


DATABASE = "PYC_DB"


def default_url(environment: Mapping[str, str]) -> str:
    """Return $PYC_DB, else the user's own benchmark database, whose folder is made."""
    if given := environment.get(DATABASE):
        return given
    base = environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    folder = make_folder(Path(base) / "pyc-mlir", "a folder for the database")
    return f"sqlite:///{folder / 'evidence.db'}"


class UsageError(PycError):
    """A command line that cannot be read: BAD_ARGUMENT."""


def usage_error(tool: str, problem: str) -> UsageError:
    """Return the error for a command line of a tool."""
    message = f"command line: {problem}; see `{tool} --help`"
    return UsageError(ReasonCode.BAD_ARGUMENT, message)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are PycErrors that name what comes close.

    It takes no abbreviations, and has ``--version``.
    """

    def __init__(self, tool: str, description: str = "", epilog: str = "") -> None:
        super().__init__(
            tool,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument("--version", action=_Version, help="print PyC's version, and exit")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; an unknown option is reported with the closest one."""
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            self.error(
                f"unrecognized arguments: {' '.join(unknown)}"
                f"{did_you_mean(option, self._options())}"
            )
        return known

    def _options(self) -> Iterator[str]:
        """Yield the options of this parser and of its commands."""
        yield from self._option_string_actions
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    yield from command._option_string_actions

    def words(self) -> list[str]:
        """Return the words that a shell may complete: options, names of commands and choices."""
        chosen = (c for action in self._actions for c in action.choices or ())
        return sorted({*self._options(), *map(str, chosen)})

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(str(value), map(str, action.choices or ()))
            raise

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise usage_error(self.prog, one_line(message))


def positive(text: str) -> int:
    """Read a whole number above 0, as the type of an option. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r:.40}")
    return int(text)


class _Version(argparse.Action):
    """Print the version of PyC that runs and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version  # 20 ms that other runs need not pay

        print(f"{parser.prog} {version('pyc-mlir')}")
        parser.exit()


def run_tool(tool: str, work: Callable[[], int]) -> int:
    """Call `work`; turn whatever leaves it into a message on stderr and an exit status.

    What is written to stdout and stderr as text is printable (`dialects/printable.py`).
    """
    with shown_streams():
        return _run_tool(tool, work)


def _run_tool(tool: str, work: Callable[[], int]) -> int:
    try:
        configure(os.environ)
        return work()
    except SystemExit as ended:  # argparse, after --help or --version
        return int(ended.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; Python must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return REFUSED
    except Exception as error:  # noqa: BLE001  (the process boundary: reported in full)
        known = refusal(error)
        if known.code is not ReasonCode.INTERNAL_ERROR:
            print(explain(tool, known), file=sys.stderr)
            return USAGE if isinstance(known, UsageError) else REFUSED
        traceback.print_exc()
        print(explain(tool, known), file=sys.stderr)
        print(bug_note(tool), file=sys.stderr)
        return BROKEN


def refusal(error: Exception) -> PycError:
    """Return an exception as a PycError: INTERNAL_ERROR for those that are no user's fault."""
    if isinstance(error, PycError):
        return error
    if (memory := out_of_memory(error)) is not None:
        return memory
    if isinstance(error, OSError):
        return file_error(error, "what can be used")
    # A compiler that is not installed is one message; other modules are our fault.
    known = missing_compiler(error) if isinstance(error, ModuleNotFoundError) else None
    return internal_error(error) if known is None else known


def run_tool_guarded(
    tool: str, work: Callable[[], int], crashed: Callable[[PycError], None] | None = None
) -> int:
    """Run as `run_tool`, in a child process whose crash is reported; start no thread before.

    crashed: the remaining work if the child could not do it: it gets the crash as an error.
    """
    with shown_streams():
        return _run_guarded(tool, work, crashed)


def _run_guarded(
    tool: str, work: Callable[[], int], crashed: Callable[[PycError], None] | None
) -> int:
    try:
        ended = run_guarded(lambda _: run_tool(tool, work))
    except KeyboardInterrupt:
        return INTERRUPTED
    if not isinstance(ended, Crash):
        return ended
    error = _crash(ended)
    print(explain(tool, error), file=sys.stderr)
    if crashed is not None:
        crashed(error)
    if error.code is not ReasonCode.NATIVE_CRASH:
        return REFUSED  # no fault of ours
    print(bug_note(tool), file=sys.stderr)
    return BROKEN


def _crash(ended: Crash) -> PycError:
    """Return the error for a child's crash: a full disk ends the compiler like a fault of it."""
    try:
        require_room()
    except PycError as error:
        return error
    return limited_memory(ended) or PycError(ReasonCode.NATIVE_CRASH, ended.reason)


def require_own_log(tool: str, log: str | None, others: Iterable[str | None]) -> None:
    """Raise PycError for a log that would overwrite what the tool reads or writes, or that cannot
    be written: UsageError, FILE_ACCESS."""
    if log is None:
        return
    taken = {os.path.realpath(other) for other in others if other is not None}
    if log == "-" or os.path.realpath(log) in taken:
        raise usage_error(tool, f"expected a file of its own for --log, got {log!r}")
    require_writable(log)


def write_text(path: str, text: str) -> None:
    """Write to a file, or for ``-`` to stdout. Raises PycError (FILE_ACCESS)."""
    if path == "-":
        print(text, end="")
    else:
        write_file(path, text.encode())


def explain(tool: str, error: PycError) -> str:
    """Format the message of an error: place, expected, got, remedy, and the reason code.

    A message of several lines shows source text: its code stands on the first line. One that reads
    as a compiler's diagnostic already (``file:1:2: error: ...``) gets no prefix.
    """
    first, newline, rest = for_display(error.message).partition("\n")
    prefix = "" if ": error: " in first else f"{tool}: error: "
    return f"{prefix}{first} [{error.code.name}]{newline}{rest}"


def bug_note(tool: str) -> str:
    """Return the request to report a fault of ours."""
    return (
        f"{tool}: error: this is a fault of PyC, not of your input; please report it in an "
        "issue of PyC's repository (CONTRIBUTING.md), with the lines above and the command line"
    )


class Progress:
    """Shows which stage runs and for how long, once the whole has taken `delay` seconds.

    On a terminal one line is rewritten in place and cleared at the end; elsewhere, when asked
    for, each stage gets a line. Use it as a context manager around the stages.
    """

    def __init__(
        self,
        err: TextIO,
        requested: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        delay: float = 2.0,
        interval: float = 0.25,
    ) -> None:
        self.stages: list[tuple[str, float]] = []
        # Its own escape sequences pass, what it shows is escaped.
        err = cast(TextIO, err.stream) if isinstance(err, PrintableStream) else err
        self._err, self._clock, self._delay, self._interval = err, clock, delay, interval
        self._in_place = err.isatty()
        # Log records on the terminal show the same, line by line.
        self._enabled = (requested or self._in_place) and not logger(COMPILE).isEnabledFor(INFO)
        self._began = clock()
        self._stage = self._shown = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Progress":
        if self._enabled:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._enabled:
            self._thread.join()
        if self._shown and self._in_place:
            self._write("\r\x1b[K")

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began

    @contextlib.contextmanager
    def stage(self, title: str) -> Iterator[None]:
        """Name what runs inside and log it; its seconds go to `stages`, also when it fails."""
        title = one_line(title)
        began, self._stage = self._clock(), title
        try:
            with logged(title):
                yield
        finally:
            self.stages.append((title, self._clock() - began))
            self._stage = ""

    def tick(self) -> None:
        """Show the stage that runs now, if it is time to."""
        stage = self._stage
        if not stage or self.seconds < self._delay:
            return
        if self._in_place:
            self._write(f"\r\x1b[K[{self.seconds:5.1f} s] {stage} ...")
        elif stage != self._shown:
            self._write(f"[{self.seconds:5.1f} s] {stage} ...\n")
        self._shown = stage

    def _watch(self) -> None:
        while not self._done.wait(self._interval):
            self.tick()

    def _write(self, text: str) -> None:
        # A terminal that went away must not end a compile.
        with contextlib.suppress(OSError):
            self._err.write(text)
            self._err.flush()
