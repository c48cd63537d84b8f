"""The command `pyc-bench model`: one's own model under PyC and its peers, on this machine.

    pyc-bench model.onnx                                   every peer that is installed
    pyc-bench model.onnx --against onnxruntime,iree --dim batch=1,8 --threads 1,2
    pyc-bench model.onnx --dim batch=4 --input tokens=ids.npy --html report.html

MODEL is an .onnx or .mlir file or file.py:function. Inputs are random by the model's signature, the
same for every system. Each system runs in a process of its own; all of them are warm while they are
timed, in interleaved rounds, one call at a time. Every system computes in f32 with its own quickest
setting of those that are tried; PyC has its default alone. The model is compiled for the sizes that
are measured.

latency      median seconds of a call, with the 10th to the 90th percentile over the rounds
/ pyc        the system's median over PyC's: above 1, PyC is quicker
per second   calls by that median; with a batch, rows
call         memory of a call beside inputs and weights, results included, by the system's own
             account; in brackets, for systems without one, by how much the first call raised the
             resident memory
resident     what loading and the first call added to the resident memory, weights included. PyC
             compiles in another process, as for a deployment; plain IREE compiles in this one
error        max |got - expected| / max |expected|, the largest over results and settings
compile      from the model to what can be called
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from pyc_mlir.calibrate import Peaks
from pyc_mlir.dialects.errors import PycError, ReasonCode, install
from pyc_mlir.dialects.util.files import require_writable, write_file
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Record, Report
from pyc_mlir.pipelines.target.target import available_cores
from pyc_mlir.tools.bench.model import reference
from pyc_mlir.tools.bench.model.case import ModelCase, read_signature, store
from pyc_mlir.tools.bench.model.report import page, text
from pyc_mlir.tools.bench.model.systems import NEEDS
from pyc_mlir.tools.bench.peers.rounds import (
    FAILURE,
    RoundSettings,
    SystemRounds,
    compare,
    counts,
    fma_and_copies,
    records_of,
)
from pyc_mlir.tools.bench.peers.systems import PYC
from pyc_mlir.tools.bench.report.suite import QUICK_ROUNDS, SuiteRun, note
from pyc_mlir.tools.cli.common import Parser
from pyc_mlir.tools.cli.model_source import read_model, with_shapes

SUITE = "model"
ROUNDS = 15
_SYSTEMS = "pyc_mlir.tools.bench.model.systems"
_ANY_ERROR = float("inf")


def run(arguments: Sequence[str]) -> int:
    """Measure one's own model under PyC and its peers: latency, memory, error, compile time."""
    known = _parser().parse_args(arguments)
    for path in (known.json, known.html):
        if path is not None:
            require_writable(path)
    rounds = known.rounds or (QUICK_ROUNDS if known.quick else ROUNDS)
    bench = SuiteRun(SUITE, rounds, known.quick, known.json or Path())
    systems, missing = chosen(known.against)
    source, specs = with_shapes(read_model(known.model, sys.stdin.buffer), ())
    signature = read_signature(source, specs)
    records, references = [], []
    for sizes in _sizes(known.dim):
        case = ModelCase.of(known.model, source, signature, sizes, known.input, known.seed)
        expected = case.reference(known.reference)
        references.append(expected.how)
        for threads in _threads(known.threads):
            note(f"{case.workload}, {threads} threads")
            records += _measured(case, expected, threads, (PYC, *systems), bench)
    settings = {
        "model": known.model,
        "inputs": [f"{a.name}: {a}" for a in signature.inputs],
        "reference": ", ".join(dict.fromkeys(references)),
        "rounds": rounds,
        "quick": known.quick,
        "seed": known.seed,
        "missing": missing,
    }
    report = Report(SUITE, probe(), settings, records)
    if known.json is not None:
        report.save(known.json)
    if known.html is not None:
        write_file(known.html, page(report).encode())
    print(text(report), end="")
    return 1 if any(r["metric"] == FAILURE and r["system"] == PYC for r in records) else 0


def _parser() -> argparse.ArgumentParser:
    description, _, columns = (__doc__ or "").partition("\nlatency  ")
    parser = Parser("pyc-bench model", description, f"columns:\n\nlatency  {columns}")
    parser.usage = "pyc-bench [model] MODEL [--against NAME,...] [--dim NAME=N,...] [options]"
    parser.add_argument("model", metavar="MODEL", help="the model; see above")
    parser.add_argument("--against", type=_names, metavar="NAME,...",
                        help=f"some of {', '.join(NEEDS)}; default: those installed")  # fmt: skip
    parser.add_argument("--dim", action="append", default=[], type=_dim, metavar="NAME=N,...",
                        help="sizes of a dynamic dimension, such as batch=1,8; each is measured; "
                        "may be repeated")  # fmt: skip
    parser.add_argument("--threads", type=counts, default=(1,), metavar="N,...",
                        help="numbers of threads; default: 1")  # fmt: skip
    parser.add_argument("--input", action="append", default=[], metavar="[NAME=]VALUE",
                        help="an array, as `pyc-run --input` takes it")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of random inputs; default: 0")
    parser.add_argument("--reference", choices=reference.KINDS, default=reference.AUTO,
                        help="what errors are against; default: onnx for .onnx files, else numpy, "
                        "both in float64; onnxruntime computes in the model's types")  # fmt: skip
    parser.add_argument("--rounds", type=int, help=f"rounds of timing; default: {ROUNDS}")
    parser.add_argument("--quick", action="store_true",
                        help="two rounds of one call: only to see that it works")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="OUT", help="store the records in this file")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write the report as a page")
    return parser


def _names(text: str) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(part for part in text.split(",") if part))
    unknown = [name for name in named if name not in NEEDS]
    if unknown or not named:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(NEEDS)}, got {text!r}")
    return named


def _dim(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition("=")
    try:
        found = counts(sizes)
    except ValueError:
        found = ()
    if not name or not found:
        raise argparse.ArgumentTypeError(f"expected NAME=N,... such as batch=1,8, got {text!r}")
    return name, found


def chosen(against: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
    """Return the peers to measure, and those that are not installed with what installs them.

    Raises PycError (MISSING_DEPENDENCY) for one that was asked for by name.
    """
    wanted = list(NEEDS if against is None else against)
    missing = {}
    for name in wanted:
        module, extra = NEEDS[name]
        if not _installed(module):
            remedy = install(extra)
            missing[name] = f"no package `{module}`; {remedy}"
            if against is not None:
                raise PycError(
                    ReasonCode.MISSING_DEPENDENCY,
                    where=f"--against {name}",
                    expected=f"the package `{module}`",
                    got="none",
                    remedy=f"{remedy}, or leave it out",
                )
    return [name for name in wanted if name not in missing], missing


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it lies in
        return False


def _sizes(dims: Sequence[tuple[str, tuple[int, ...]]]) -> Iterator[Mapping[str, int]]:
    """Yield every combination of sizes; of a name that is given twice the last."""
    named = dict(dims)
    for sizes in product(*named.values()):
        yield dict(zip(named, sizes, strict=True))


def _threads(wanted: Sequence[int]) -> list[int]:
    cores = available_cores()
    for threads in wanted:
        if threads > cores:
            note(f"left out: {threads} threads on {cores} cores")
    return [threads for threads in wanted if threads <= cores]


def _measured(
    case: ModelCase,
    expected: reference.Reference,
    threads: int,
    systems: Sequence[str],
    bench: SuiteRun,
) -> list[Record]:
    """Return the records of one set of sizes on so many threads."""
    how = RoundSettings(
        bench.rounds,
        bench.min_seconds,
        threads,
        bench.quick,
        dict(os.environ),
        systems=_SYSTEMS,
    )
    before = fma_and_copies(threads, bench)
    with tempfile.TemporaryDirectory(prefix="pyc-bench-") as name:
        folder = Path(name)
        unread = store(case, expected.results, folder, systems)
        able = [system for system in systems if system not in unread]
        found = compare(case.model, folder, able, how, _ANY_ERROR)
    failed = {**found.failed, **{s: reason for s, reason in unread.items() if s in systems}}
    found = SystemRounds(found.ready, found.timings, found.missing, failed)
    after = fma_and_copies(threads, bench)
    peaks = Peaks(max(before.flops, after.flops), max(before.bandwidth, after.bandwidth))
    records = records_of(case.workload, SUITE, threads, case.work, found, peaks)
    return [
        {**row, "rows": case.rows, "account": ready.account, "prediction": ready.prediction}
        if (ready := found.ready.get(row["system"])) is not None
        else row
        for row in records
    ]
