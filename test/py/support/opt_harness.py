"""Runs pyc-opt and filecheck in this process: the bulk of test/lit in about 10 ms a test.

Only RUN lines of the simple form are taken, ``[not] pyc-opt %s FLAGS [2>&1] [| filecheck %s ...]``;
what needs a shell, another file or another tool is lit's.
"""

import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import parse_argv_options
from filecheck.parser import Parser

from pyc_mlir.tools.cli.opt_driver import OptDriver
from pyc_mlir.tools.cli.opt_flags import parse_flags

LIT_ROOT = Path(__file__).parents[2] / "lit"
_SHELL = {"<", ">", "|", "2>", ">>", "&&", "||", ";", "&", "2>&1"}


@dataclass(frozen=True)
class Result:
    """What a run of pyc-opt gave."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class RunLine:
    """One RUN line of the simple form; `filecheck` is None when nothing checks the output."""

    path: Path
    arguments: tuple[str, ...]
    fails: bool = False
    merges_stderr: bool = False
    filecheck: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return f"{self.path.name}: {shlex.join(self.arguments[1:])}"

    def check(self) -> None:
        """Run it; raise AssertionError when the status or the output is not as it should be."""
        result = run_opt(self.arguments)
        assert (result.status != 0) == self.fails, f"exit status {result.status}\n{result.err}"
        if self.filecheck is not None:
            text = result.err + result.out if self.merges_stderr else result.out
            assert matches(self.filecheck, text), f"filecheck failed on:\n{text}"


def run_opt(arguments: Sequence[str], data: bytes | None = None) -> Result:
    """pyc-opt on `data`, or on the file that `arguments` name, without its child process."""
    flags = parse_flags(arguments)
    contents = Path(flags.input).read_bytes() if data is None else data
    with tempfile.TemporaryFile() as sink, _stderr_to(sink.fileno()) as err:
        outcome = OptDriver(flags, contents, err).run()
        err.flush()
        sink.seek(0)
        return Result(outcome.status, outcome.output.decode(errors="replace"), sink.read().decode())


@contextmanager
def _stderr_to(descriptor: int) -> Iterator[TextIOWrapper]:
    """Point the process's standard error, which native code writes to, at `descriptor`."""
    saved = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        with open(2, "w", closefd=False) as err:
            yield err
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def matches(arguments: Sequence[str], text: str) -> bool:
    """filecheck with `arguments` (the check file among them) on `text`."""
    options = parse_argv_options(["filecheck", *arguments])
    return Matcher(options, FInput("<output>", text), Parser.from_opts(options)).run() == 0


def discover(root: Path = LIT_ROOT) -> list[RunLine]:
    """Every RUN line of the simple form under `root`, in the order of the paths."""
    paths = sorted(root.rglob("*.mlir"))
    return [line for path in paths for line in run_lines(path) if line is not None]


def run_lines(path: Path) -> list[RunLine | None]:
    """The RUN lines of a test; None for one that only lit can run."""
    commands, pending = [], ""
    for line in path.read_text(errors="replace").splitlines():
        _, run, command = line.partition("RUN:")
        if not run:
            continue
        pending += command.strip()
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        commands.append(pending)
        pending = ""
    return [parse_run_line(command, path) for command in commands]


def parse_run_line(command: str, path: Path) -> RunLine | None:
    """`command` as data when it has the simple form."""
    words = [w.replace("%s", str(path)) for w in shlex.split(command.replace("%%", "%"))]
    opt, checked = words, None
    if "|" in words:
        at = words.index("|")
        opt, checked = words[:at], words[at + 1 :]
        if checked[:1] != ["filecheck"]:
            return None
    fails = opt[:1] == ["not"]
    opt = opt[fails:]
    merges = opt[-1:] == ["2>&1"]
    opt = opt[: len(opt) - merges]
    rest = [*opt[1:], *(checked or [])]
    if opt[:1] != ["pyc-opt"] or str(path) not in opt or not _SHELL.isdisjoint(rest):
        return None
    if any("%" in word for word in rest):  # %t and its like
        return None
    checks = None if checked is None else tuple(checked[1:])
    return RunLine(path, tuple(opt[1:]), fails, merges, checks)
