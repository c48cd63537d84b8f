"""`pyc-explain MODEL`: how much of a model can be compiled, and what prevents the rest.

The model is read as `pyc-compile` reads it, in a child process whose crash is survived.
"""

import argparse
import json
import sys

from pyc_mlir.artifact.import_report import ImportReport, UnsupportedModel
from pyc_mlir.compilation.lower import report_import
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.frontends.sources import allow_bytecode
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.cli import guarded
from pyc_mlir.tools.cli.model_source import InputShape, read_model, with_shapes
from pyc_mlir.tools.cli.option_flags import named_values


def run(flags: argparse.Namespace) -> int:
    """Show the report; REFUSED for a model with breaks. Raises PycError for one that is none."""
    if guarded.in_child:
        allow_bytecode()
    report = _report(flags)
    if flags.json is not None:
        derived = ("score", "flop_score", "where", "by_op", "by_family", "first")
        shown = {**to_data(report), **{name: to_data(getattr(report, name)) for name in derived}}
        page = json.dumps(shown, indent=1, ensure_ascii=False) + "\n"
        cli.write_text(flags.json, page)
    if flags.json != "-":
        print(text(flags.program, report), end="")
    return cli.REFUSED if report.breaks else cli.OK


def _report(flags: argparse.Namespace) -> ImportReport:
    shapes = [InputShape.parse(text) for text in flags.input]
    try:
        reading = flags.islands, flags.function, named_values(flags.outputs)
        model = read_model(flags.program, sys.stdin.buffer, *reading)
        return report_import(*with_shapes(model, shapes))
    except UnsupportedModel as error:  # of a model that was read for its inputs' names
        return error.report


def text(name: str, report: ImportReport) -> str:
    """Write the report, then each break with its place, and each island."""
    places = (report.name if b.place is None else f"{report.name}:{b.place}" for b in report.breaks)
    lines = [f"  {p}: {b}\n" for p, b in zip(places, report.breaks, strict=True)]
    lines += [f"  {island.op}: {island.why}\n" for island in report.islands]
    return f"{name}: {report}\n{''.join(lines)}"
