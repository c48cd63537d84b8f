"""`pyc-explain --bisect GOOD BAD MODEL`: the decision that makes a program wrong or slow."""

import argparse
import sys
from functools import partial

from pyc_mlir.artifact.compile_log import read_compile_log
from pyc_mlir.debug.bisect import (
    Bisection,
    bisect,
    command_check,
    error_check,
    latency_check,
)
from pyc_mlir.debug.replay import replay_options
from pyc_mlir.tools.cli.model_source import InputShape, read_model, with_shapes_of
from pyc_mlir.tools.explain.text_page import decision_text


def run(flags: argparse.Namespace) -> str:
    """Find it; tries are reported on stderr. Raises PycError."""
    good, bad = map(read_compile_log, flags.bisect)
    options = replay_options(bad, flags.calibration)
    shapes = [InputShape.parse(text) for text in flags.input]
    model = read_model(flags.program, sys.stdin.buffer, *bad.reading)
    source, inputs = with_shapes_of(model, bad.signature, shapes)
    if flags.check is not None:
        check = command_check(flags.check)
    elif flags.by == "latency":
        check = latency_check()
    else:
        check = error_check(source, inputs, options)
    tell = partial(print, file=sys.stderr, flush=True)
    found = bisect(source, inputs, good, bad, options, check, tell)
    return text(found)


def text(found: Bisection) -> str:
    """Write the culprits with the decisions of both logs, and the number of compiles."""
    several = len(found.culprits.changes) > 1
    head = "these decisions together" if several else "this decision"
    lines = [f"{head}, of {found.differing} that differ ({found.culprits.tests} programs tried)\n"]
    for site in found.culprits.changes:
        for name, log in (("good", found.good), ("bad", found.bad)):
            text = decision_text(log[site]) if site in log else f"  {site}: not decided\n"
            lines.append(f"{name}:\n{text}")
    if found.culprits.untold:
        lines.append(f"{found.culprits.untold} programs could not be compiled, or not be judged\n")
    if found.vanished:
        lines.append(f"{found.vanished} recorded choices did not apply in some program\n")
    return "".join(lines)
