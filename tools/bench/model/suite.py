"""The command `pyc-bench model`: one's own model under PyC and its peers, on this machine.

    pyc-bench model.onnx                                   every peer that is installed
    pyc-bench model.onnx --against onnxruntime,iree --dim batch=1,8 --threads 1,2
    pyc-bench model.onnx --dim batch=4 --input tokens=ids.npy --html report.html

MODEL is an .onnx or .mlir file or file.py:function. Inputs are random by the model's signature, the
same for every system. Each system runs in a process of its own; all of them are warm while they are
timed, in interleaved rounds, one call at a time. Every system computes in f32 with its own quickest
setting of those that are tried; PyC has its default alone. Dynamic dimensions stay dynamic: PyC is
told the least and the largest size that `--dim` gives, and the program that serves all of them is
called at each; with --static the model is compiled for each size alone.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from textwrap import fill

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode, install
from pyc_mlir.dialects.util.files import require_writable, write_file
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Record, Report
from pyc_mlir.tools.bench.model.case import AUTO, REFERENCES, ModelCase, read_signature, store
from pyc_mlir.tools.bench.peers.rounds import account_of, compared
from pyc_mlir.tools.bench.peers.systems import NEEDS
from pyc_mlir.tools.bench.report.page import bars
from pyc_mlir.tools.bench.report.suite import (
    QUICK_ROUNDS,
    SuiteRun,
    counts,
    note,
    on_cores,
    some_of,
    threads_of,
)
from pyc_mlir.tools.bench.report.tables import (
    FAILURE,
    PYC,
    WorkloadFacts,
    environment_line,
    exceptions,
    results,
    seconds_cell,
    systems_of,
    times,
)
from pyc_mlir.tools.cli.common import Parser
from pyc_mlir.tools.cli.model_source import read_model, with_shapes
from pyc_mlir.tools.page.document import document, facts, section, wide
from pyc_mlir.util.html import Html, table, tag
from pyc_mlir.util.units import quantity

SUITE = "model"
ROUNDS = 15
# Another order of the same arithmetic stays below it; quantized models and half types may not.
USUAL_ERROR = 1e-3
COLUMNS = {
    "latency": "median of a call, with the 10th to the 90th percentile over interleaved rounds",
    "/ pyc": "the system's median over PyC's: above 1, PyC is quicker",
    "per second": "calls, or with a batch rows, by the median, one call at a time",
    "call": "memory of a call beside inputs and weights, results included, by the system's own "
    "account; in brackets, for systems without one, the growth of resident memory in the first "
    "call",
    "resident": "what loading and the first call added to the resident memory of the process, "
    "weights included; PyC compiles in another process, as for a deployment, plain IREE in it",
    "error": "the largest difference from the reference, relative to the largest result",
    "compile": "seconds from the model to what can be called",
}


def run(arguments: Sequence[str]) -> int:
    """Measure one's own model under PyC and its peers: latency, memory, error, compile time."""
    known = _parser().parse_args(arguments)
    for path in (known.json, known.html):
        if path is not None:
            require_writable(path)
    rounds = known.rounds or (QUICK_ROUNDS if known.quick else ROUNDS)
    bench = SuiteRun(SUITE, rounds, known.quick, known.json or Path(), options=known)
    systems, missing = chosen(known.against)
    source, specs = with_shapes(read_model(known.model, sys.stdin.buffer), ())
    signature = read_signature(source, specs)
    records, references = [], []
    ranges = None if known.static else {n: (min(s), max(s)) for n, s in known.dim if len(s) > 1}
    for sizes in _sizes(known.dim):
        given = (sizes, known.input, known.seed, specs, ranges)
        case = ModelCase.of(known.model, source, signature, *given)
        expected = case.reference(known.reference)
        references.append(expected.how)
        for threads in on_cores(known.threads):
            note(f"{case.workload}, {threads} threads")
            records += _measured(case, expected.results, threads, (PYC, *systems), bench)
    settings = {
        "model": known.model,
        "inputs": [f"{a.name}: {a}" for a in signature.inputs],
        "reference": ", ".join(dict.fromkeys(references)),
        "rounds": rounds,
        "quick": known.quick,
        "seed": known.seed,
        "static": known.static,
        "missing": missing,
    }
    report = Report(SUITE, probe(), settings, records)
    if known.json is not None:
        report.save(known.json)
    if known.html is not None:
        write_file(known.html, page(report).encode())
    print(text(report), end="")
    return int(any((r["metric"], r["system"]) == (FAILURE, PYC) for r in records))


def _parser() -> argparse.ArgumentParser:
    columns = "\n".join(
        fill(f"{n:11}{t}", 100, subsequent_indent=" " * 11) for n, t in COLUMNS.items()
    )
    parser = Parser("pyc-bench model", __doc__ or "", f"columns:\n\n{columns}")
    parser.usage = "pyc-bench [model] MODEL [--against NAME,...] [--dim NAME=N,...] [options]"
    parser.add_argument("model", metavar="MODEL", help="the model; see above")
    parser.add_argument("--against", type=some_of(NEEDS), metavar="NAME,...",
                        help=f"some of {', '.join(NEEDS)}; default: those installed")  # fmt: skip
    parser.add_argument("--dim", action="append", default=[], type=_dim, metavar="NAME=N,...",
                        help="sizes of a dynamic dimension, such as batch=1,8; each is measured; "
                        "may be repeated")  # fmt: skip
    parser.add_argument("--static", action="store_true", help="compile for each of the sizes alone")
    parser.add_argument("--threads", type=counts, default=(1,), metavar="N,...",
                        help="numbers of threads; default: 1")  # fmt: skip
    parser.add_argument("--input", action="append", default=[], metavar="[NAME=]VALUE",
                        help="an array, as `pyc-run --input` takes it")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of random inputs; default: 0")
    parser.add_argument("--reference", choices=REFERENCES, default=AUTO,
                        help="what errors are against; default: onnx for .onnx files, else numpy, "
                        "both in float64; onnxruntime computes in the model's types")  # fmt: skip
    parser.add_argument("--rounds", type=int, help=f"rounds of timing; default: {ROUNDS}")
    parser.add_argument("--quick", action="store_true",
                        help="two rounds of one call: only to see that it works")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="OUT", help="store the records in this file")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write the report as a page")
    return parser


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


def _measured(
    case: ModelCase,
    expected: Sequence[np.ndarray],
    threads: int,
    systems: Sequence[str],
    bench: SuiteRun,
) -> list[Record]:
    """Return the records of one set of sizes on so many threads."""
    return compared(
        bench,
        case.workload,
        SUITE,
        threads,
        systems,
        lambda folder: store(case, expected, folder, systems),
        key=case.model,
        details=partial(account_of, case.rows),
    )


def text(report: Report) -> str:
    """Return the tables for a terminal. Ends in a newline."""
    settings = report.settings
    parts = [
        f"{settings['model']} ({'; '.join(settings['inputs']) or 'no inputs'})",
        environment_line(report),
        f"errors are against {settings['reference']}",
    ]
    for result in results(report.records):
        rows = [("system", *COLUMNS), *((s, *_cells(result, s)) for s in _ordered(result))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        parts += ["", _title(result)]
        for name, *cells in rows:
            padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            parts.append("  ".join((name.ljust(widths[0]), *padded)))
        parts += _lines(result)
    left = list(_absent(report))
    return "\n".join([*parts, *([""] if left else []), *left]) + "\n"


def page(report: Report) -> str:
    """Write the same as a page with a chart. Ends in a newline."""
    found, settings = results(report.records), report.settings
    titled = [replace(r, workload=_title(r)) for r in found]
    title = f"{Path(settings['model']).name}: PyC and its peers"
    inputs = "; ".join(settings["inputs"]) or "none"
    return document(
        title,
        tag("h1", title),
        tag("p", environment_line(report), class_="note"),
        tag("p", f"Inputs: {inputs}. Errors are against {settings['reference']}."),
        section("Time over that of the quickest peer", *bars(titled, systems_of(found))),
        *map(_section, found),
        *(tag("p", line) for line in _absent(report)),
        section("Columns", facts(list(COLUMNS.items()))),
    )


def _section(result: WorkloadFacts) -> Html:
    rows = [
        (system, *_cells(result, system), result.systems[system]["setting"])
        for system in _ordered(result)
    ]
    return section(
        _title(result),
        wide(table(("system", *COLUMNS, "setting"), rows)),
        *(tag("p", line) for line in _lines(result)),
    )


def _absent(report: Report) -> Iterator[str]:
    """Yield a line for each system that failed or is not installed."""
    yield from (line.removeprefix("- ") for line in exceptions(report.records))
    yield from (f"left out: {name}: {why}" for name, why in report.settings["missing"].items())


def _title(result: WorkloadFacts) -> str:
    return f"{result.workload}, {threads_of(result.threads)}"


def _ordered(result: WorkloadFacts) -> list[str]:
    """Order PyC first, then its peers from the quickest on."""
    seconds = {name: row["median_seconds"] for name, row in result.systems.items()}
    return sorted(seconds, key=lambda name: (name != PYC, seconds[name]))


def _cells(result: WorkloadFacts, system: str) -> tuple[str, ...]:
    row = result.systems[system]
    grown, account = row["first_call_bytes"], row["call_peak_bytes"]
    called = "" if grown is None else f"[{quantity(grown, 'B')}]"
    rate = row["rows"] / row["median_seconds"]
    return (
        seconds_cell(row),
        times(result.ratio(system, PYC)),
        f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}",
        called if account is None else quantity(account, "B"),
        quantity(max(row["resident_bytes"] - row["resident_before_bytes"], 0), "B"),
        f"{row['max_error']:.2g}",
        quantity(row["compile_seconds"], "s"),
    )


def _lines(result: WorkloadFacts) -> Iterator[str]:
    """Yield what the table lacks: PyC's account and prediction, and errors above rounding."""
    mine = result.systems.get(PYC)
    if mine is not None and mine["account"]:
        known = {name: n for name, n in mine["account"].items() if n is not None}
        parts = ", ".join(f"{name} {quantity(n, 'B')}" for name, n in known.items())
        total = f" = {quantity(sum(known.values()), 'B')}" * (len(known) == len(mine["account"]))
        yield f"PyC's account: {parts}{total}"
    if mine is not None and mine["prediction"]:
        yield f"PyC's prediction: {mine['prediction']}"
    wrong = [name for name, row in result.systems.items() if not row["max_error"] <= USUAL_ERROR]
    if wrong:
        yield (
            f"error above {USUAL_ERROR:g} by {', '.join(wrong)}: not the reference's results, "
            "unless the model is quantized or in half precision"
        )
