"""The suite `compile`: compile time against IREE alone on the same linalg.

PyC goes the whole way (front end, passes, IREE, artifact), attempts that fail included. IREE gets
the linalg that PyC made, with the flags that PyC ended with: as text in this process, as bytecode
in this process (what PyC itself hands over: the strictest comparison), and as a file through the
command line `iree-compile`.
"""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from pyc_mlir.api import build
from pyc_mlir.compilation.build import FUSION_SITE, SETTINGS
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import emit, lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.compiler import DEFAULT_FLAGS
from pyc_mlir.iree.plain import compile_plain
from pyc_mlir.measure.interleave import Timing, interleave, ratio, timing_records
from pyc_mlir.measure.records import Record, record
from pyc_mlir.tools.bench.peers.candidates import plain_options
from pyc_mlir.tools.bench.peers.workload import BenchWorkload
from pyc_mlir.tools.bench.report.suite import note, parse
from pyc_mlir.tools.bench.workloads.cpu import ENCODER, make
from pyc_mlir.util.children import run as run_child

SUITE = "compile"
ROUNDS = 9
MEASURED = ("digits mlp, batch 64", "digits cnn, batch 64", ENCODER)
TEXT, BYTECODE, COMMAND = "iree, text", "iree, bytecode", "iree-compile"


def run(arguments: Sequence[str]) -> int:
    """Compile time of an encoder block and the demo models against plain IREE."""
    bench, _ = parse(SUITE, run.__doc__ or "", ROUNDS, arguments)
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in (ENCODER,) if bench.quick else MEASURED:
            workload = make(name, bench.quick)
            flags = iree_flags(workload)
            calls = compiles(workload, flags, Path(folder))
            timings = interleave(calls, bench.rounds, warmup=0 if bench.quick else 1)
            records += compile_records(name, timings, flags)
            note(f"{name}: " + ", ".join(f"{n} {t.median:.2f} s" for n, t in timings.items()))
    bench.store(records)
    return 0


def iree_flags(workload: BenchWorkload) -> tuple[str, ...]:
    """Return IREE's flags of a PyC compile, with the fusion setting that the workload ends with."""
    options = make_options()
    decisions = build(workload.source, workload.inputs, options).decisions
    fusion = next((SETTINGS[d.chosen] for d in decisions if d.site.pass_name == FUSION_SITE), ())
    return (*DEFAULT_FLAGS, *options.target.flags, *fusion)


def compiles(
    workload: BenchWorkload, flags: Sequence[str], folder: Path
) -> Mapping[str, Callable[[], object]]:
    """Return the candidates: each call is one whole compile. `folder` takes the tools' files."""
    options, plain = make_options(), plain_options()
    text = emit(Job.of(workload.source, workload.inputs, plain), "linalg")[0]
    source, out = folder / "in.mlir", folder / "out.vmfb"
    source.write_text(text)
    code = lower(Job.of(workload.source, workload.inputs, plain)).code
    return {
        "pyc": lambda: build(workload.source, workload.inputs, options),
        TEXT: partial(compile_plain, text.encode(), flags),
        BYTECODE: partial(compile_plain, code, flags),
        COMMAND: partial(run_command, [str(command()), *flags, str(source), "-o", str(out)]),
    }


def compile_records(name: str, timings: Mapping[str, Timing], flags: Sequence[str]) -> list[Record]:
    """Return the times, and PyC's time over each other's, round by round."""
    times = timing_records(name, timings, flags=list(flags))
    for row in times:
        row["metric"] = "compile"
    ratios = []
    for other in timings:
        if other != "pyc":
            of = ratio(timings, of="pyc", to=other)
            spread = {"p10": of.p10, "p90": of.p90, "min": of.min, "n": of.n}
            ratios.append(record(name, other, "pyc / this", "times", of.median, **spread))
    return times + ratios


def command(name: str = "iree-compile") -> Path:
    """Return a command that is installed beside this Python. Raises PycError if there is none."""
    found = Path(sys.executable).with_name(name)
    if not found.is_file():
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            f"benchmarks: expected the command `{name}` beside {Path(sys.executable).name}, found "
            "none; run with the Python of a virtual environment that PyC is installed in",
        )
    return found


def run_command(line: Sequence[str]) -> None:
    """Run a command to its end. Raises PycError (RUNTIME_FAILED) with what it said."""
    done = run_child(line)
    if done.returncode != 0:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"{Path(line[0]).name}: expected status 0, got {done.returncode}: "
            f"{done.stderr.strip()[:300]}",
        )
