"""`pyc-explain`: the decisions of a compile, and the memory of its program.

Needs no compiler and no device: all of it stands in the artifact.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.compile_log import CompileLog, read_compile_log, recipe_at
from pyc_mlir.debug.diff import diff
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.lab.simulation.residuals import Residuals
from pyc_mlir.lab.simulation.simulator import Simulator, comparison
from pyc_mlir.pipelines.choices.log import Listed
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.profile.guards import fired_in, guards_of
from pyc_mlir.profile.profile import Profile
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.cli.sizes import ChosenSizes
from pyc_mlir.tools.explain import diff as explain_diff
from pyc_mlir.tools.explain import text_page as explain_text
from pyc_mlir.tools.explain import why as explain_why
from pyc_mlir.tools.explain.facts import ExplainedProgram, concerning
from pyc_mlir.tools.explain.html_page import page

TOOL = "pyc-explain"
SCHEMA_VERSION = 1
# What names a model, and no program or log.
_MODEL = re.compile(r"\.(onnx|mlir|mlirbc|py(:[\w.]*)?)$|^-$")
_EPILOG = """\
For a program, prints the time of each dispatch (predicted, or measured with --profile), its memory
before and after planning, its frontier and its decisions.
For a model, prints which share of it can be compiled, and which ops prevent the rest.
Decisions name the model's nodes where PROGRAM.vmfb.names.json lies beside the program, as
`pyc-compile` writes it. The log that `pyc-compile --log` writes also has source locations.

examples:
  pyc-explain model.vmfb
  pyc-explain model.vmfb --html report.html
  pyc-explain model.vmfb --profile trace.json --html report.html
  pyc-explain model.vmfb --op matmul
  pyc-explain model.vmfb --size batch=8
  pyc-explain model.vmfb --op dense --log decisions.jsonl
  pyc-explain model.vmfb --json - | jq .manifest.memory
  pyc-explain model.vmfb --why CODEGEN_FALLBACK
  pyc-explain model.vmfb --what-if recipe.json --wisdom wisdom.json
  pyc-explain model.onnx
  pyc-explain --diff before.vmfb after.vmfb
  pyc-explain --bisect good.vmfb bad.vmfb model.onnx --check 'python judge.py {}'
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit status (0 done, 1 refused, 2 usage, 70 a fault of ours)."""
    return cli.run_tool(TOOL, lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(argv: Sequence[str]) -> int:
    flags = make_parser().parse_args(argv)
    _check(flags)
    if flags.bisect is not None:
        # It compiles, which nothing else here does.
        from pyc_mlir.tools.explain import bisect as explain_bisect

        print(explain_bisect.run(flags), end="")
        return cli.OK
    if flags.diff is not None:
        a, b = map(read_compile_log, flags.diff)
        print(explain_diff.text(diff(a, b), flags.decisions), end="")
        return cli.OK
    if _MODEL.search(flags.program):
        return _model(flags)
    recorded = read_compile_log(flags.program)
    if flags.log is not None:
        log = read_compile_log(flags.log)
        recorded = replace(recorded, decisions=log.decisions, events=log.events)
    if flags.what_if is not None:
        print(_what_if(recorded, flags), end="")
        return cli.OK
    if recorded.artifact is None or flags.why is not None:
        sizes = ChosenSizes.none(recorded.signature)
        recorded = replace(recorded, decisions=tuple(map(sizes.filled, recorded.decisions)))
    if flags.why is not None:
        print(explain_why.why(recorded, explain_why.code_named(flags.why)), end="")
    elif recorded.artifact is None:
        print(_log(recorded, flags), end="")
    else:
        _program(recorded.artifact, recorded, flags)
    return cli.OK


def _model(flags: argparse.Namespace) -> int:
    """Show what the import of a model finds; nothing was decided or planned yet."""
    programs = ("html", "op", "why", "decisions", "log", "profile")
    if given := [f"--{name}" for name in programs if getattr(flags, name)]:
        raise cli.usage_error(
            TOOL, f"expected a program for {', '.join(given)}, got the model {flags.program}"
        )

    def work() -> int:
        # It reads models, which nothing else here does.
        from pyc_mlir.tools.explain import imports as explain_import

        return explain_import.run(flags)

    return cli.run_tool_guarded(TOOL, work)


def _check(flags: argparse.Namespace) -> None:
    """Raise PycError (BAD_ARGUMENT) for flags that lack or exclude each other."""
    if flags.diff is None and flags.program is None:
        raise cli.usage_error(TOOL, "expected a PROGRAM, got none")
    if flags.diff is not None and flags.program is not None:
        raise cli.usage_error(TOOL, f"expected two files with --diff, got {flags.program} too")
    if flags.what_if is None and (flags.wisdom or flags.residuals):
        raise cli.usage_error(TOOL, "expected --what-if with --wisdom and --residuals, got none")
    if flags.html == flags.json == "-":
        raise cli.usage_error(TOOL, "expected one of --html - and --json -, got both")
    if flags.bisect is not None and (flags.check is None) == (flags.by is None):
        got = "neither" if flags.by is None else "both"
        raise cli.usage_error(TOOL, f"expected --check COMMAND or --by with --bisect, got {got}")


def _program(artifact: Artifact, recorded: CompileLog, flags: argparse.Namespace) -> None:
    """Show a program, wherever the flags want it."""
    measured = None if flags.profile is None else Profile.load(flags.profile)
    name = Path(flags.program).name
    subject = ExplainedProgram.of(name, artifact, recorded.decisions, flags.size, measured)
    if flags.op is not None:
        subject = subject.matching(flags.op)
        _require(subject.decisions, recorded, flags.op)
    if flags.html is not None:
        cli.write_text(flags.html, page(subject))
    if flags.json is not None:
        cli.write_text(flags.json, as_json(subject))
    if flags.guards:
        print(guards_of(artifact, fired_in(recorded.events)), end="")
    elif "-" not in (flags.html, flags.json):
        short = flags.decisions or flags.op is not None
        text = explain_text.decisions if short else explain_text.overview
        print(text(subject, _levels()), end="")


def _what_if(recorded: CompileLog, flags: argparse.Namespace) -> str:
    """Write the estimate of a program under the recipe that the flags name.

    Raises PycError: FILE_ACCESS, BAD_ARGUMENT and BAD_WISDOM for the files, RECIPE_MISMATCH.
    """
    if recorded.artifact is None:
        raise cli.usage_error(
            TOOL, f"expected a program for --what-if, got the log {recorded.name}"
        )
    wisdom = None if flags.wisdom is None else Wisdom.load(flags.wisdom)
    residuals = None if flags.residuals is None else Residuals.load(flags.residuals)
    simulator = Simulator.of(recorded.artifact, wisdom, residuals)
    return comparison(simulator.estimate(recipe_at(flags.what_if)), simulator.estimate())


def _log(recorded: CompileLog, flags: argparse.Namespace) -> str:
    """Write the decisions of a log, whose program is elsewhere."""
    if flags.html is not None or flags.json is not None:
        raise cli.usage_error(
            TOOL, f"expected a program for --html and --json, got the log {recorded.name}"
        )
    shown = (*recorded.decisions, *recorded.events)
    if flags.op is not None:
        shown = concerning(shown, flags.op)
        _require(shown, recorded, flags.op)
    return explain_text.listing(shown, _levels())


def make_parser() -> argparse.ArgumentParser:
    """Make the command line."""
    parser = cli.Parser(TOOL, "Explain a compiled program: its memory, its decisions.", _EPILOG)
    parser.usage = "%(prog)s PROGRAM.vmfb [--html FILE] [options]"
    parser.add_argument(
        "program",
        nargs="?",
        metavar="PROGRAM",
        help="a .vmfb that pyc-compile wrote, a log, or a model as pyc-compile takes it",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]SHAPE",
        help="for a model: the shape of an input with dynamic dimensions; may be repeated",
    )
    parser.add_argument("--islands", action="store_true", help="as in pyc-compile")
    parser.add_argument("--function", default="", metavar="NAME", help="as in pyc-compile")
    parser.add_argument("--outputs", action="append", default=[], metavar="NAME,...",
                        help="as in pyc-compile")  # fmt: skip
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="for a program with dynamic dimensions: show it at this size; may be repeated",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write an HTML page with charts; - is standard output"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write everything as JSON; - is standard output"
    )
    parser.add_argument(
        "--op",
        metavar="NAME",
        help="print only decisions about one op: its id, name (pyc.softmax), location or dispatch",
    )
    parser.add_argument(
        "--why", metavar="CODE", help="explain a reason code, and list each place where it occurs"
    )
    parser.add_argument(
        "--diff",
        nargs=2,
        metavar=("A", "B"),
        help="compare two programs or logs, and explain the differences",
    )
    parser.add_argument("--decisions", action="store_true", help="print all decisions")
    parser.add_argument(
        "--guards",
        action="store_true",
        help="print what calls are checked for, the cost on this machine, and how often the log of "
        "a run has it (--log)",
    )
    _add_beside(parser)
    _add_what_if(parser)
    _add_bisect(parser)
    return parser


def _add_beside(parser: argparse.ArgumentParser) -> None:
    """Add the files that say more of the program."""
    parser.add_argument(
        "--log", metavar="LOG", help="the log of the program's compile, for source locations"
    )
    parser.add_argument(
        "--profile",
        metavar="FILE",
        help="show the measured times that `pyc-run --profile FILE` wrote, not predicted ones",
    )


def _add_what_if(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what-if", "estimate the program under other choices")
    group.add_argument(
        "--what-if",
        metavar="RECIPE",
        help="estimate the program with the choices of a recipe, log or program; no compile",
    )
    group.add_argument("--wisdom", metavar="FILE", help="measurements, as for pyc-compile")
    group.add_argument(
        "--residuals", metavar="FILE", help="errors of earlier estimates, from `pyc-bench predict`"
    )


def _add_bisect(parser: argparse.ArgumentParser) -> None:
    bisect = parser.add_argument_group(
        "bisect", "find the decision that makes a program wrong or slow"
    )
    bisect.add_argument(
        "--bisect",
        nargs=2,
        metavar=("GOOD", "BAD"),
        help="a good and a bad program or log; PROGRAM is then the model of both",
    )
    bisect.add_argument(
        "--check",
        metavar="COMMAND",
        help="a shell command that judges a program, {}: exit status 0 is good, 125 undecided, any "
        "other bad",
    )
    bisect.add_argument(
        "--by",
        choices=("error", "latency"),
        help="instead of --check: compare with the reference, or measure calls",
    )
    bisect.add_argument("--calibration", metavar="FILE", help="as for pyc-compile")


def _require(found: Sequence[Listed], recorded: CompileLog, text: str) -> None:
    """Raise PycError (BAD_ARGUMENT) unless a decision was found."""
    if found:
        return
    passes = sorted({d.site.pass_name for d in recorded.decisions})
    raise PycError(
        ReasonCode.BAD_ARGUMENT,
        f"--op {text}: expected part of a site or location, an op or a dispatch, got one that none "
        f"of the {len(recorded.decisions)} decisions has (passes: {', '.join(passes) or 'none'}); "
        "see --decisions",
    )


def as_json(subject: ExplainedProgram) -> str:
    """Write manifest, decisions, memory report and time of a call as one JSON object."""
    data = {
        "schema": SCHEMA_VERSION,
        "manifest": to_data(subject.artifact.manifest),
        "decisions": to_data(subject.decisions),
        "memory": to_data(subject.report) if subject.artifact.memory else None,
        "time": to_data(subject.profile),
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _levels() -> str:
    """Block characters where the terminal can show them."""
    try:
        f"{explain_text.BLOCKS}→".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return explain_text.ASCII
    return explain_text.BLOCKS


if __name__ == "__main__":
    sys.exit(main())
