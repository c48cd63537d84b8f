"""`pyc-tune`: make a model faster by measuring, and keep the measurements in a database.

    pyc-tune MODEL --budget 10min        measure choices of its kernels and report the gain
    pyc-tune resume STUDY                continue a study that was interrupted or killed
    pyc-tune COMMAND --help              print the arguments of a command

A work is a group of ops that becomes one kernel. ID is the beginning of an id, as `ls` prints it.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pyc_mlir.lab.evidence.rows import COLD, LANES, STABLE, WARM
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.cli.common import DATABASE, default_url

TOOL = "pyc-tune"
# The command that a model's name stands for.
TUNE = "tune"
# What `add_argument` of a parser takes.
Argument = tuple[tuple[str, ...], dict[str, Any]]


@dataclass(frozen=True)
class Command:
    """A command: its help, the module of `tools/tune/` that runs it, and its arguments.

    The function ``run_NAME(store, flags)`` of that module does it. by_url: it gets the database's
    URL in place of the store. A module is loaded for its own commands alone: that of studies needs
    a compiler, others SQLAlchemy, which takes 0.3 s.
    """

    help: str
    arguments: Sequence[Argument] = ()
    module: str = "evidence"
    by_url: bool = False


def argument(*names: str, **options: Any) -> Argument:
    """Return an argument of a command."""
    return names, options


def number(name: str, default: int, what: str) -> Argument:
    """Return an option that takes a whole number; what: it stands for."""
    told = f"{what}; default: {default}"
    return argument(name, metavar="N", type=int, default=default, help=told)


# Those of everything that surveys programs.
SURVEY = (
    argument("--db", metavar="URL", default=argparse.SUPPRESS, help="the database"),
    argument("--budget", metavar="TIME",
             help="start no session after this time, such as 90s, 10min or 2h"),
    argument("--constants", metavar="STATES", default=WARM,
             help=f"{WARM}, {COLD} (caches flushed before each call) or both, joined by a comma; "
             f"default: {WARM}"),
    number("--threads", 1, "threads of a call"),
    number("--rounds", 15, "rounds of each process"),
    number("--processes", 3, "processes of each session"),
    argument("--whole", action="store_true", help="measure the whole programs too"),
    argument("--quiet-only", action="store_true",
             help="refuse to measure beside other load; else such sessions are kept but decide "
             "nothing"),
)  # fmt: skip
_PROBE = (
    number("--sessions", 60, "number of sessions"),
    number("--rounds", 15, "rounds of each process"),
    number("--processes", 6, "processes of each session"),
    argument("--json", metavar="OUT", help="store all samples in this file"),
)
_ID = argument("id", metavar="ID", help="the beginning of its id")
_LANE = (
    argument("id", metavar="ID", help="the beginning of a recipe's id"),
    argument("--lane", choices=LANES, default=STABLE, help=f"default: {STABLE}"),
)
_EXPORT = (
    argument("file", metavar="FILE", help="the file to write"),
    argument("--here", action="store_true",
             help="only measurements of this hardware and toolchain"),
    number("--least-sessions", 1, "only rows with at least N sessions"),
    argument("--lane", choices=LANES, default="",
             help="only recipes in use in this lane, and their incumbents; default: all"),
)  # fmt: skip
_PROMOTE = (
    argument("--cluster", metavar="NAME", default="",
             help="the cluster of workloads; default: all"),
    argument("--new-default", action="store_true", help="require the speed-up of a new default"),
    argument("--incumbent", metavar="ID",
             help="the recipe to compare with; default: the one in use, else PyC's own"),
    argument("--arena-bytes", metavar="N", type=int, help="the largest allowed arena"),
    argument("--compile-seconds", metavar="N", type=float, help="the longest allowed compile"),
    argument("--env", metavar="ID", help="an environment; default: this machine's"),
    *_LANE,
)  # fmt: skip
_ROLLBACK = (
    argument("--toolchain", metavar="HASH",
             help="the beginning of a toolchain's hash, if several match"),
    *_LANE,
)  # fmt: skip
_REPORT = (
    argument("id", metavar="STUDY", help="the beginning of a study's id"),
    argument("-o", "--output", metavar="PAGE.html", required=True, help="the file to write"),
    argument("--calibration", metavar="FILE",
             help="figures of `pyc-doctor --calibrate` for the roofs of the rooflines"),
)  # fmt: skip
_BASELINE = (
    argument("name", metavar="NAME", help="the baseline's name"),
    argument("reports", metavar="REPORT.json", nargs="*", help="reports from `pyc-bench`"),
)
_GC = (
    number("--keep-toolchains", 3, "keep the N most recent toolchains"),
    argument("--dry-run", action="store_true", help="only print what would be removed"),
)  # fmt: skip
_WORKERS = (
    argument("--executor", default="processes", metavar="WHERE",
             help="processes, or dask://HOST:PORT; default: processes"),
    number("--workers", 1, "concurrent trials; 0 leaves all of them to `pyc-tune worker`"),
)  # fmt: skip
_TUNE = (
    argument("model", metavar="MODEL", help="an .onnx or .mlir file, or file.py:function"),
    argument("--budget", metavar="TIME",
             help="a time such as 10min, 90s or 2h, or a number of evaluations"),
    argument("--effort", default="patient", metavar="EFFORT",
             help="estimate, measure, patient or exhaustive; default: patient"),
    argument("--dim", action="append", default=[], metavar="NAME=LOW:HIGH",
             help="the range of a dynamic dimension, measured at its upper end; may be repeated"),
    number("--seed", 0, "the seed of the search"),
    argument("--target", default="cpu", metavar="TARGET",
             help="the target to compile for; default: cpu"),
    *_WORKERS,
)  # fmt: skip
_RESUME = (
    argument("id", metavar="STUDY", help="the beginning of its id"),
    argument("--budget", metavar="TIME", help="another limit; default: the study's"),
    *_WORKERS,
)
_IDLE = "end after this time without a trial; default: 0, which waits for ever"
_MODELS = argument("models", metavar="MODEL", nargs="+", help="an .onnx or .mlir file")
_IMPORTED = argument("file", metavar="FILE", help="a file from `pyc-tune export`")
_NAMED = argument("name", metavar="NAME", nargs="?", default="", help="the name, or name@version")
# Commands by name, in the order of the help; each with the module that runs it.
COMMANDS = {
    "ls": Command("list the contents of the database"),
    "show": Command("print a row; for a graph or implementation, its times too", (_ID,)),
    "why": Command(
        "print the verdicts behind an implementation's state, and what its next states need",
        (_ID,),
    ),
    "export": Command("write measured choices for `pyc-compile --wisdom`", _EXPORT),
    "import": Command("read what `export` wrote; its choices become candidates", (_IMPORTED,)),
    "profile": Command(
        "measure works of models that the database lacks",
        (_MODELS, *SURVEY),
        "measuring",
    ),
    "probe": Command(
        "measure the smallest difference this machine can detect", _PROBE, "measuring", True
    ),
    "verify": Command("check every row; exit status 1 if one is damaged"),
    "promote": Command("promote a recipe as far as its measurements allow", _PROMOTE),
    "rollback": Command("reverse a recipe's last transition", _ROLLBACK),
    "report": Command(
        "write the charts and trials of a study as one HTML page", _REPORT, "study_page"
    ),
    "lanes": Command("list the recipes of both lanes and their states"),
    "baseline": Command("store reports, or the recipes in use, as a baseline", _BASELINE),
    "baselines": Command("list the baselines, or print the numbers of one", (_NAMED,)),
    "gc": Command("remove unreferenced traces of older toolchains", _GC),
    TUNE: Command("tune a model; `pyc-tune MODEL` is the same", _TUNE, "studies", True),
    "resume": Command("continue a study that was interrupted or killed", _RESUME, "studies", True),
    "worker": Command(
        "measure the open trials of studies that run elsewhere",
        (argument("--idle", type=float, default=0.0, metavar="SECONDS", help=_IDLE),),
        "studies",
        True,
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit status (0 done, 1 refused or something is damaged)."""
    return cli.run_tool(TOOL, lambda: _run(argv))


def make_parser() -> argparse.ArgumentParser:
    """Make the command line."""
    assert __doc__ is not None
    description = "Tune models, and inspect the benchmark database."
    parser = cli.Parser(TOOL, description, __doc__.split("\n\n", 1)[1])
    _add_database(parser, None)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Command)
    for name, command in COMMANDS.items():
        made = commands.add_parser(name, help=command.help)
        for names, options in command.arguments:
            made.add_argument(*names, **options)
        # The database may be named behind the command too.
        if "--db" not in made.words():
            _add_database(made, argparse.SUPPRESS)
    return parser


def _add_database(parser: argparse.ArgumentParser, default: str | None) -> None:
    parser.add_argument(
        "--db",
        metavar="URL",
        default=default,
        help=f"the database, sqlite:///FILE or postgresql://...; default: ${DATABASE}, else the "
        "user's own file below $XDG_DATA_HOME or ~/.local/share",
    )


class _Command(cli.Parser):
    """The command line of one command, as `add_subparsers` makes it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, "")


def with_command(arguments: Sequence[str], commands: Sequence[str]) -> list[str]:
    """Insert the command `tune` if the arguments begin with no command: `pyc-tune MODEL`."""
    database = next(iter(arguments), "")
    start = 2 if database == "--db" else int(database.startswith("--db="))
    first = next(iter(arguments[start:]), "-h")
    known = first in commands or first in ("-h", "--help", "--version")
    return list(arguments) if known else [*arguments[:start], TUNE, *arguments[start:]]


def _run(argv: Sequence[str] | None) -> int:
    given = sys.argv[1:] if argv is None else argv
    flags = make_parser().parse_args(with_command(given, [*COMMANDS]))
    if flags.command is None:
        raise cli.usage_error(TOOL, "expected a command or a model, got none")
    command, url = COMMANDS[flags.command], flags.db or default_url(os.environ)
    module: Any = import_module(f"pyc_mlir.tools.tune.{command.module}")
    run = getattr(module, f"run_{flags.command}")
    if command.by_url:
        return run(url, flags)
    from pyc_mlir.lab.evidence.database.store import EvidenceStore

    with EvidenceStore.open(url) as store:
        return run(store, flags)


if __name__ == "__main__":
    sys.exit(main())
