"""`pyc-compile`: compile a model to a program that `pyc-run` and IREE's tools run.

The work runs in a forked child: a crash in native code becomes a message and exit status 70.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.util.files import require_writable, write_file
from pyc_mlir.pipelines.choices.log import write_beside, write_log
from pyc_mlir.pipelines.target.target import ALL_DTYPES, TARGETS
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.cli import exploring
from pyc_mlir.tools.cli.contract_flags import CLAUSES, add_flags, read_contract
from pyc_mlir.tools.cli.option_flags import add_option_flags, flags_of_options
from pyc_mlir.util.process_start import process_start
from pyc_mlir.worker import process

if TYPE_CHECKING:
    from pyc_mlir.tools.cli.compile_driver import Output

TOOL = "pyc-compile"
# `EMITTED` of compilation/lower.py, which imports MLIR.
_TEXTS = ("imported", "pyc", "linalg")
_EPILOG = """\
MODEL is one of these:
  FILE.onnx             an ONNX model
  FILE.mlir, .mlirbc    the pyc dialect as text, or any dialect that IREE's input stage accepts
  FILE.py:FUNCTION      a Python function; annotate its arguments, or add --input
  -                     MLIR text on standard input

examples:
  pyc-compile model.onnx -o model.vmfb
  pyc-compile model.onnx --input image=1x1x8x8 --target cuda-sm_80 -o model.vmfb
  pyc-compile model.onnx --dim batch=1:64 --memory-budget 64MiB -o model.vmfb
  pyc-compile model.py:forward --emit linalg
  pyc-compile model.onnx --passes my-pass,default -o model.vmfb
  pyc-compile model.onnx --memory-budget 64MiB --planner-mode memory_first -o model.vmfb
  pyc-compile model.onnx --contract contract.toml -o model.vmfb
  pyc-compile model.onnx --max-error rounding --determinism strict -o model.vmfb
  pyc-compile model.onnx --max-compile-time 10s -o model.vmfb
  pyc-compile model.onnx --recipe decisions.jsonl -o model.vmfb
  pyc-compile model.onnx --replay decisions.jsonl -o same.vmfb
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit status (0 done, 1 refused, 2 usage, 70 a crash)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Users see the command's time: its start and imports count towards a limit of seconds.
    began = process_start() if argv is None else time.time()
    return cli.run_tool_guarded(
        TOOL, lambda: _run(arguments, began), lambda e: _log_crash(arguments, e)
    )


def run(argv: Sequence[str]) -> int:
    """Run the tool in this process."""
    return cli.run_tool(TOOL, lambda: _run(argv))


def _run(argv: Sequence[str], began: float | None = None) -> int:
    flags = make_parser().parse_args(argv)
    if flags.list_targets:
        print(list_targets(), end="")
        return cli.OK
    check(flags)
    if is_binary(flags) and (flags.max_compile_seconds is not None or flags.untrusted):
        # Its imports run beside those of this process.
        process.start_early()
    # MLIR and IREE take half a second to import, which --help need not wait for.
    from pyc_mlir.tools.cli import compile_driver

    with cli.Progress(sys.stderr, requested=flags.progress) as progress:
        output = compile_driver.run(flags, progress, sys.stdin.buffer, began)
    _write(flags, output)
    if flags.verbose:
        print(compile_driver.details(output, progress.stages), end="", file=sys.stderr)
    to_stdout = flags.output not in (None, "-")
    if output.summary and (flags.verbose or (to_stdout and sys.stdout.isatty())):
        print(output.summary, end="", file=sys.stdout if to_stdout else sys.stderr)
    if output.contract_report:
        print(output.contract_report, end="", file=sys.stdout if to_stdout else sys.stderr)
    return cli.OK


def _log_crash(argv: Sequence[str], error: PycError) -> None:
    """Write the log that the child would have written."""
    from pyc_mlir.artifact.compile_log import refusal_of

    # What crashed the compile is what the user has to know of, not also a bad log.
    with suppress(PycError, SystemExit):
        flags = make_parser().parse_args(argv)
        check(flags)
        if flags.log is not None:
            write_log((refusal_of(error, read_contract(flags)),), flags.log)


def make_parser() -> argparse.ArgumentParser:
    """Make the command line."""
    parser = cli.Parser(TOOL, "Compile a model to a program for one target.", _EPILOG)
    parser.usage = "%(prog)s MODEL -o FILE [options]"
    parser.add_argument("model", nargs="?", metavar="MODEL", help="the model; see below")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the file to write; - is standard output"
    )
    parser.add_argument("--list-targets", action="store_true", help="list the targets and exit")
    parser.add_argument(
        "--emit",
        choices=(*_TEXTS, "vmfb"),
        help="write the module as text: imported (before PyC's passes), pyc (after them) or "
        "linalg; or a program (vmfb); default: vmfb",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]SHAPE",
        help="the shape of an input with dynamic dimensions, e.g. image=1x1x8x8; may be repeated",
    )
    groups = add_option_flags(parser)
    groups["decisions"].add_argument(
        "--replay",
        metavar="LOG",
        help="repeat the compile of a log or of a program, with its target, contract and options: "
        "the same bytes, or an error that names the differences",
    )
    groups["decisions"].add_argument(
        "--log", metavar="LOG", help="write the decisions to this file as JSON lines"
    )
    groups["IREE"].add_argument(
        "--compile-to", metavar="PHASE", help="stop after this phase of IREE and write its IR"
    )
    _add_cache_flags(parser)
    exploring.add_flags(parser)
    add_flags(parser)
    parser.add_argument(
        "--untrusted",
        action="store_true",
        help="read and compile the model in a worker process; MLIR bytecode always is",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print stages, decisions and a summary"
    )
    parser.add_argument(
        "--progress", action="store_true", help="show progress also if stderr is not a terminal"
    )
    return parser


def _add_cache_flags(parser: argparse.ArgumentParser) -> None:
    cache = parser.add_argument_group(
        "cache",
        "where compiled programs are kept; default: a folder of the user below $XDG_CACHE_HOME or "
        "~/.cache; PYC_CACHE=0 turns it off; `pyc-cache` lists its entries",
    )
    one = cache.add_mutually_exclusive_group()
    one.add_argument(
        "--cache",
        action="store_true",
        default=None,
        help="use the default cache, also with PYC_CACHE=0 or --log",
    )
    one.add_argument("--cache-dir", metavar="DIR", help="use the cache in this folder")
    one.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        default=None,
        help="use no cache; the default with --log, because cached programs have no source "
        "locations",
    )


def check(flags: argparse.Namespace) -> None:
    """Raise PycError: BAD_ARGUMENT for flags that lack each other or contradict each other,
    FILE_ACCESS for files that cannot be written."""
    if flags.model is None:
        raise cli.usage_error(TOOL, "expected a MODEL, got none")
    if flags.emit in _TEXTS:
        given = {
            "--compile-to": flags.compile_to,
            "--dump-phases": flags.dump_phases,
            "--Xiree": flags.iree_flags,
        }
        for flag in (name for name, value in given.items() if value):
            raise cli.usage_error(
                TOOL,
                f"expected {flag} without --emit {flags.emit}, which ends before IREE; got both",
            )
    if (flags.cache or flags.cache_dir is not None) and not is_binary(flags):
        raise cli.usage_error(
            TOOL, "expected --cache and --cache-dir for a program only, got them for text output"
        )
    exploring.check(flags)
    if flags.replay is not None:
        _check_replay(flags)
    if flags.emit == "vmfb" and flags.compile_to:
        raise cli.usage_error(TOOL, "expected --emit vmfb or --compile-to, got both")
    if is_binary(flags) and (flags.output is None or (flags.output == "-" and sys.stdout.isatty())):
        raise cli.usage_error(TOOL, "expected -o FILE for the program, got none")
    # A compile takes long: report an output that cannot be written before it.
    others = (flags.output, flags.model, flags.replay, flags.recipe, flags.contract)
    cli.require_own_log(TOOL, flags.log, others)
    if flags.output not in (None, "-"):
        require_writable(flags.output)


def _check_replay(flags: argparse.Namespace) -> None:
    """Raise PycError (BAD_ARGUMENT) for what a replay takes from its log, or cannot make."""
    if not is_binary(flags):
        raise cli.usage_error(TOOL, "expected --replay for a program only, got it for text output")
    allowed = ("model", "output", "emit", "input", "replay", "calibration", "iree_flags", "log")
    own_flags = ("verbose", "progress", "list_targets")
    defaults = vars(make_parser().parse_args([]))
    clauses = {name: clause.flag for name, clause in CLAUSES.items()}
    named = {**flags_of_options(), **clauses}
    for name, value in vars(flags).items():
        # A replay uses no cache.
        is_default = value == defaults[name] or (name == "cache" and not value)
        if name not in (*allowed, *own_flags) and not is_default:
            flag = named.get(name, f"--{name.replace('_', '-')}")
            raise cli.usage_error(
                TOOL, f"expected {flag} from the log of --replay, not on the command line; drop it"
            )


def is_binary(flags: argparse.Namespace) -> bool:
    """Return True when the output is a program, not text."""
    return flags.emit in (None, "vmfb") and not flags.compile_to


def list_targets() -> str:
    """Write a table of the targets: name, device, element types."""
    lines = [f"{'target':<13} {'device':<8} element types\n"]
    for name, target in sorted(TARGETS.items()):
        lacks = ", ".join(sorted(target.lacks()))
        types = f"all but {lacks}" if lacks else f"all {len(ALL_DTYPES)}"
        alias = f" (is {target.name})" if target.name != name else ""
        lines.append(f"{name:<13} {target.device:<8} {types}{alias}\n")
    return "".join(lines)


def _write(flags: argparse.Namespace, output: "Output") -> None:
    """Put the output where it belongs."""
    if flags.output in (None, "-"):
        sys.stdout.flush()
        sys.stdout.buffer.write(output.data)
        sys.stdout.buffer.flush()
    else:
        write_file(flags.output, output.data)
        if output.names is not None:
            write_beside(flags.output, output.names)


if __name__ == "__main__":
    sys.exit(main())
