"""The suite `self-check`: what the check of each compile by itself costs, and what it reaches.

Each program is compiled with and without the check, in turn, and the seconds of all CPUs that this
process took are compared. A record says how many samples were compared, or why none were, and the
work that the references did. The summary holds the geometric
mean of the times with the check over those without, and the share of programs that were checked.

    pyc-bench self-check --models FOLDER/*.onnx
"""

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.verification import SelfCheck
from pyc_mlir.compilation.options import make_options
from pyc_mlir.measure.interleave import interleave, ratio, timing_records
from pyc_mlir.measure.records import Record, record
from pyc_mlir.tools.bench.report.suite import note, parse
from pyc_mlir.tools.bench.workloads.cpu import ENCODER, MODELS, make

SUITE = "self-check"
ROUNDS = 5
CHECKED, UNCHECKED = "checked", "unchecked"
ALL = "all programs"


def run(arguments: Sequence[str]) -> int:
    """Compile time with and without the check of a compile by itself, and how many are checked."""
    parser = argparse.ArgumentParser(add_help=True)
    parser.add_argument(
        "--models", nargs="*", type=Path, default=[], metavar="FILE.onnx", help="further programs"
    )
    bench, known = parse(SUITE, run.__doc__ or "", ROUNDS, arguments, parser)
    tiny = make(ENCODER, tiny=True)
    workloads = {ENCODER: tiny} if bench.quick else {n: build() for n, build in MODELS.items()}
    programs: dict[str, tuple[Any, Sequence[Any] | None]] = {
        **{name: (w.source, w.specs) for name, w in workloads.items()},
        **{path.stem: (path, None) for path in known.models},
    }
    records: list[Record] = []
    measured(ENCODER, tiny.source, tiny.specs, 1)  # loads what compiles need
    for name, (source, inputs) in programs.items():
        records += measured(name, source, inputs, bench.rounds)
    bench.store([*records, *summary(records)])
    return 0


def measured(name: str, source: Any, inputs: Sequence[Any] | None, rounds: int) -> Sequence[Record]:
    """Measure the times of one program, their ratio, and the outcome of its check."""
    last: dict[str, Artifact] = {}

    def compiled(candidate: str) -> None:
        options = make_options(check=candidate == CHECKED)
        last[candidate] = build(source, inputs, options)

    calls = {c: partial(compiled, c) for c in (CHECKED, UNCHECKED)}
    timings = interleave(calls, rounds, warmup=0, clock=time.process_time)
    checks = last[CHECKED].checks
    check = None if checks is None else checks.check
    assert check is not None, "the options ask for it"
    of = ratio(timings, of=CHECKED, to=UNCHECKED)
    note(f"{name}: {of.median:.3f} of the time without; {check}")
    spread = {"p10": of.p10, "p90": of.p90, "min": of.min, "n": of.n}
    times = timing_records(name, timings)
    for row in times:
        row["metric"] = "compile, CPU seconds"
    return [
        *times,
        record(name, CHECKED, "checked / unchecked", "times", of.median, **spread),
        record(name, CHECKED, "compared", "samples", check.done, **_details(check)),
    ]


def _details(check: SelfCheck) -> Mapping[str, Any]:
    return {"outcome": check.outcome, "reason": check.reason, "work": check.work}


def summary(records: Sequence[Record]) -> Sequence[Record]:
    """Return the geometric mean of the ratios, and the percentage of the programs checked."""
    ratios = [r["value"] for r in records if r["unit"] == "times"]
    done = [bool(r["value"]) for r in records if r["metric"] == "compared"]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    share = 100 * sum(done) / len(done)
    return [
        record(ALL, CHECKED, "checked / unchecked, geometric mean", "times", mean, n=len(ratios)),
        record(ALL, CHECKED, "programs that were checked", "%", share, n=len(done)),
    ]
