"""`pyc-tune`: make a model faster by measuring, and keep the measurements in a database.

    pyc-tune MODEL --budget 10min        measure choices of its kernels and report the gain
    pyc-tune resume STUDY                continue a study that was interrupted or killed
    pyc-tune worker                      measure the trials of studies that run elsewhere
    pyc-tune ls                          list the contents of the database
    pyc-tune show ID                     print a row; for a graph or implementation, its times too
    pyc-tune why ID                      print the verdicts behind an implementation's state, and
                                         the conditions of its next states
    pyc-tune promote ID [--lane LANE]    promote a recipe as far as its measurements allow
    pyc-tune rollback ID [--lane LANE]   reverse a recipe's last transition
    pyc-tune lanes                       list the recipes of both lanes and their states
    pyc-tune baseline NAME [REPORT ...]  store reports, or the recipes in use, as baseline NAME
    pyc-tune baselines [NAME[@N]]        list the baselines, or print the numbers of one
    pyc-tune report STUDY -o PAGE.html   write the charts and trials of a study as one page
    pyc-tune export FILE [--here] [--lane stable]
                                         write measured choices for `pyc-compile --wisdom`
    pyc-tune import FILE                 read such a file; its choices become candidates
    pyc-tune verify                      check every row; exit status 1 if one is damaged
    pyc-tune profile MODEL...            measure works of the models that the database lacks
    pyc-tune probe [--sessions N]        measure the smallest difference this machine can detect
    pyc-tune gc [--keep-toolchains N]    remove unreferenced traces of older toolchains

A work is a group of ops that becomes one kernel. ID is the beginning of an id, as `ls` prints it.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import require_writable, write_file
from pyc_mlir.lab.evidence.states import LANES, STABLE
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.cli.common import DATABASE, default_url
from pyc_mlir.tools.tune import probe, profile
from pyc_mlir.tools.tune.study_flags import TUNE, add_study_commands, with_command

if TYPE_CHECKING:
    from pyc_mlir.lab.evidence.database.store import EvidenceStore

TOOL = "pyc-tune"
_KEPT_TOOLCHAINS = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit status (0 done, 1 refused or something is damaged)."""
    return cli.run_tool(TOOL, lambda: _run(argv))


def make_parser() -> argparse.ArgumentParser:
    """Make the command line."""
    return parser_and_commands()[0]


def parser_and_commands() -> tuple[argparse.ArgumentParser, tuple[str, ...]]:
    """Make the command line; return it with the names of its commands."""
    assert __doc__ is not None
    description = "Tune models, and inspect the benchmark database."
    parser = cli.Parser(TOOL, description, __doc__.split("\n\n", 1)[1])
    _add_database(parser, None)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Command)
    commands.add_parser("ls", help="list the contents of the database")
    for name, text in (("show", "print a row"), ("why", "explain an implementation's state")):
        commands.add_parser(name, help=text).add_argument(
            "id", metavar="ID", help="the beginning of its id"
        )
    export = commands.add_parser("export", help="write measured choices for `pyc-compile --wisdom`")
    export.add_argument("file", metavar="FILE", help="the file to write")
    export.add_argument(
        "--here", action="store_true", help="only measurements of this hardware and toolchain"
    )
    export.add_argument(
        "--least-sessions",
        metavar="N",
        type=int,
        default=1,
        help="only rows with at least N sessions; default: 1",
    )
    export.add_argument(
        "--lane",
        choices=LANES,
        default="",
        help="only recipes in use in this lane, and their incumbents; default: all",
    )
    commands.add_parser("import", help="read exported choices as candidates").add_argument(
        "file", metavar="FILE", help="a file from `pyc-tune export`"
    )
    profile.add(commands)
    probe.add(commands)
    commands.add_parser("verify", help="check every row of the database")
    _add_gates(commands)
    gc = commands.add_parser("gc", help="remove unreferenced traces of older toolchains")
    gc.add_argument(
        "--keep-toolchains",
        metavar="N",
        type=int,
        default=_KEPT_TOOLCHAINS,
        help=f"keep the N most recent toolchains; default: {_KEPT_TOOLCHAINS}",
    )
    gc.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    add_study_commands(commands)
    for command in commands.choices.values():
        # The database may be named behind the command too.
        if "--db" not in command.words():
            _add_database(command, argparse.SUPPRESS)
    return parser, tuple(commands.choices)


def _add_database(parser: argparse.ArgumentParser, default: str | None) -> None:
    parser.add_argument(
        "--db",
        metavar="URL",
        default=default,
        help=f"the database, sqlite:///FILE or postgresql://...; default: ${DATABASE}, else the "
        "user's own file below $XDG_DATA_HOME or ~/.local/share",
    )


def _add_gates(commands: Any) -> None:
    promote = commands.add_parser(
        "promote", help="promote a recipe as far as its measurements allow"
    )
    promote.add_argument(
        "--cluster", metavar="NAME", default="", help="the cluster of workloads; default: all"
    )
    promote.add_argument(
        "--new-default", action="store_true", help="require the speed-up of a new default"
    )
    promote.add_argument(
        "--incumbent",
        metavar="ID",
        help="the recipe to compare with; default: the one in use, else PyC's own",
    )
    promote.add_argument("--arena-bytes", metavar="N", type=int, help="the largest allowed arena")
    promote.add_argument(
        "--compile-seconds", metavar="N", type=float, help="the longest allowed compile"
    )
    promote.add_argument("--env", metavar="ID", help="an environment; default: this machine's")
    rollback = commands.add_parser("rollback", help="reverse a recipe's last transition")
    rollback.add_argument(
        "--toolchain", metavar="HASH", help="the beginning of a toolchain's hash, if several match"
    )
    for command in (promote, rollback):
        command.add_argument("id", metavar="ID", help="the beginning of a recipe's id")
        command.add_argument("--lane", choices=LANES, default=STABLE, help=f"default: {STABLE}")
    report = commands.add_parser("report", help="write a study as one HTML page")
    report.add_argument("id", metavar="STUDY", help="the beginning of a study's id")
    report.add_argument(
        "-o", "--output", metavar="PAGE.html", required=True, help="the file to write"
    )
    report.add_argument(
        "--calibration",
        metavar="FILE",
        help="figures of `pyc-doctor --calibrate` for the roofs of the rooflines",
    )
    commands.add_parser("lanes", help="list the recipes of both lanes and their states")
    baseline = commands.add_parser(
        "baseline", help="store reports, or the recipes in use, under a name"
    )
    baseline.add_argument("name", metavar="NAME", help="the baseline's name")
    baseline.add_argument(
        "reports", metavar="REPORT.json", nargs="*", help="reports from `pyc-bench`"
    )
    commands.add_parser("baselines", help="list the baselines, or print one").add_argument(
        "name", metavar="NAME", nargs="?", default="", help="the name, or name@version"
    )


class _Command(cli.Parser):
    """The command line of one command, as `add_subparsers` makes it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, "")


def _run(argv: Sequence[str] | None) -> int:
    given = sys.argv[1:] if argv is None else argv
    parser, commands = parser_and_commands()
    flags = parser.parse_args(with_command(given, commands))
    if flags.command is None:
        raise cli.usage_error(TOOL, "expected a command or a model, got none")
    url = flags.db or default_url(os.environ)
    if flags.command in _STUDIES:
        # What these need takes a compiler, which looking into the database does without.
        from pyc_mlir.tools.tune import tuning

        return getattr(tuning, _STUDIES[flags.command])(url, flags)
    if flags.command == "report":
        require_writable(flags.output, "a file for the page")
    if flags.command == "export":
        require_writable(flags.file, "a file for the wisdom")
    if flags.command == probe.COMMAND:
        return probe.run(flags)
    # SQLAlchemy takes 0.3 s to import, which --help need not wait for.
    from pyc_mlir.lab.evidence.database.store import EvidenceStore

    with EvidenceStore.open(url) as store:
        return _COMMANDS[flags.command](store, flags)


def _look(store: "EvidenceStore", flags: argparse.Namespace) -> int:
    from pyc_mlir.tools.tune import look

    if flags.command == "ls":
        print(look.listing(store), end="")
    elif flags.command == "show":
        print(look.shown(store, flags.id), end="")
    else:
        from pyc_mlir.tools.tune import gates

        print(look.reasons(store, flags.id), end="")
        print("".join(gates.outlook(store, gates.implementation(store, flags.id))), end="")
    return cli.OK


def _export(store: "EvidenceStore", flags: argparse.Namespace) -> int:
    from pyc_mlir.lab.evidence.database.exchange import export_wisdom
    from pyc_mlir.measure.environment import current_place

    here = current_place() if flags.here else None
    keep = (here.hardware, here.toolchain) if here else ("", "")
    wisdom = export_wisdom(store, *keep, flags.least_sessions, flags.lane)
    write_file(flags.file, wisdom.to_bytes())
    print(f"{flags.file}: {len(wisdom.rows)} rows, {wisdom.label}")
    return cli.OK


def _import(store: "EvidenceStore", flags: argparse.Namespace) -> int:
    from pyc_mlir.lab.evidence.database.exchange import import_wisdom
    from pyc_mlir.pipelines.choices.wisdom import Wisdom

    wisdom = Wisdom.load(flags.file)
    new = import_wisdom(store, wisdom)
    print(f"{flags.file}: {len(wisdom.rows)} rows, {new} new candidates")
    return cli.OK


def _verify(store: "EvidenceStore", flags: argparse.Namespace) -> int:
    from pyc_mlir.lab.evidence.database.upkeep import problems

    damaged = 0
    for problem in problems(store):
        damaged += 1
        print(f"{problem} [{ReasonCode.EVIDENCE_CONFLICT.name}]", file=sys.stderr)
    print(f"{store.url}: {sum(store.counts().values())} rows, {damaged} damaged")
    return cli.REFUSED if damaged else cli.OK


def _collect(store: "EvidenceStore", flags: argparse.Namespace) -> int:
    from pyc_mlir.lab.evidence.database.upkeep import collect

    if flags.keep_toolchains < 0:
        raise cli.usage_error(TOOL, f"expected a number of toolchains, got {flags.keep_toolchains}")
    gone = collect(store, flags.keep_toolchains, flags.dry_run)
    done = "would remove" if flags.dry_run else "removed"
    print(f"{store.url}: {done} {gone.traces} traces of {len(gone.toolchains)} toolchains")
    return cli.OK


def _report(store: "EvidenceStore", flags: argparse.Namespace) -> int:
    from pyc_mlir.lab.evidence.rows import Study
    from pyc_mlir.tools.tune.look import named
    from pyc_mlir.tools.tune.machine import machine_model
    from pyc_mlir.tools.tune.study_facts import facts_of
    from pyc_mlir.tools.tune.study_page import page

    study = named(store, flags.id)
    if not isinstance(study, Study):
        message = f"report: expected the id of a study, got an id of table {study.table}"
        raise PycError(ReasonCode.BAD_ARGUMENT, message)
    facts = facts_of(store, study)
    model = machine_model(facts, flags.calibration)
    write_file(flags.output, page(facts, model).encode())
    print(f"{flags.output}: study {study.id[:12]}")
    return cli.OK


def _gates(store: "EvidenceStore", flags: argparse.Namespace) -> int:
    from pyc_mlir.tools.tune import gates

    return getattr(gates, f"run_{flags.command}")(store, flags)


_COMMANDS = {
    "ls": _look,
    "show": _look,
    "why": _look,
    "export": _export,
    "import": _import,
    "promote": _gates,
    "rollback": _gates,
    "lanes": _gates,
    profile.COMMAND: profile.run,
    "report": _report,
    "baseline": _gates,
    "baselines": _gates,
    "verify": _verify,
    "gc": _collect,
}


_STUDIES = {TUNE: "run_tune", "resume": "run_resume", "worker": "run_worker"}


if __name__ == "__main__":
    sys.exit(main())
