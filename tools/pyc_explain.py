"""`pyc-explain`: what was decided when a program was compiled, and what its memory looks like.

Needs no compiler and no device: all of it stands in the artifact.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pyc_mlir import memory_report
from pyc_mlir.artifact import read
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices import read_log
from pyc_mlir.tools import cli, explain_text
from pyc_mlir.tools.explain_facts import Subject
from pyc_mlir.tools.explain_html import page

TOOL = "pyc-explain"
SCHEMA_VERSION = 1
_EPILOG = """\
Prints the program's memory (before and after planning), its frontier and its decisions.
Decisions in a program carry no source locations; the log that `pyc-compile --log` writes does.

examples:
  pyc-explain model.vmfb
  pyc-explain model.vmfb --html report.html
  pyc-explain model.vmfb --op matmul
  pyc-explain model.vmfb --op dense --log decisions.jsonl
  pyc-explain model.vmfb --json - | jq .manifest.memory
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit status (0 done, 1 refused, 2 a fault of ours)."""
    return cli.run_tool(TOOL, lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(argv: Sequence[str]) -> int:
    flags = make_parser().parse_args(argv)
    if flags.html == flags.json == "-":
        raise PycError(
            ReasonCode.BAD_ARGUMENT, "command line: expected one of --html - and --json -, got both"
        )
    log = None if flags.log is None else read_log(flags.log)
    subject = Subject.of(Path(flags.program).name, read(flags.program), log)
    if flags.op is not None:
        subject = _matching(subject, flags.op)
    if flags.html is not None:
        _write(flags.html, page(subject))
    if flags.json is not None:
        _write(flags.json, as_json(subject))
    if "-" not in (flags.html, flags.json):
        short = flags.decisions or flags.op is not None
        text = explain_text.decisions if short else explain_text.overview
        print(text(subject, _levels()), end="")
    return cli.OK


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = cli.Parser(TOOL, "Explain a compiled program: its memory, its decisions.", _EPILOG)
    parser.usage = "%(prog)s PROGRAM.vmfb [--html FILE] [options]"
    parser.add_argument("program", metavar="PROGRAM", help="a .vmfb that pyc-compile wrote")
    parser.add_argument(
        "--html", metavar="FILE", help="write a page with pictures, whole in one file; - is stdout"
    )
    parser.add_argument("--json", metavar="FILE", help="write all of it as JSON; - is stdout")
    parser.add_argument(
        "--op", metavar="TEXT", help="only decisions whose site or location holds TEXT"
    )
    parser.add_argument("--decisions", action="store_true", help="print the decisions, all of them")
    parser.add_argument(
        "--log", metavar="LOG", help="the log of this compile: decisions with source locations"
    )
    return parser


def _matching(subject: Subject, text: str) -> Subject:
    found = subject.matching(text)
    if not found.decisions:
        passes = sorted({d.site.pass_name for d in subject.decisions})
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"--op {text}: expected part of a site or location, got one that none of the "
            f"{len(subject.decisions)} decisions has (passes: {', '.join(passes) or 'none'}); "
            "see --decisions",
        )
    return found


def as_json(subject: Subject) -> str:
    """Manifest, decisions and memory report as one JSON object."""
    data = {
        "schema": SCHEMA_VERSION,
        "manifest": dict(subject.artifact.manifest),
        "decisions": [d.to_json() for d in subject.decisions],
        "memory": memory_report.to_json(subject.report) if subject.artifact.memory else None,
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _levels() -> str:
    """Block characters where the terminal can show them."""
    try:
        f"{explain_text.BLOCKS}→".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return explain_text.ASCII
    return explain_text.BLOCKS


def _write(path: str, text: str) -> None:
    if path == "-":
        print(text, end="")
    else:
        Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
