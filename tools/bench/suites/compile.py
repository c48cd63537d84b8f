"""The suites `compile`, `self-check` and `tooling`: what the compiler itself costs.

`compile`: compile time against IREE alone on the same linalg. PyC goes the whole way (front end,
passes, IREE, artifact), attempts that fail included. IREE gets the linalg that PyC made, with the
flags that PyC ended with: as text in this process, as bytecode in this process (what PyC itself
hands over: the strictest comparison), and as a file through the command line `iree-compile`.

`self-check`: each program is compiled with and without the check of a compile by itself, in turn,
and the seconds of all CPUs that this process took are compared. A record says how many samples were
compared, or why none were, and the work that the references did. The summary holds the geometric
mean of the times with the check over those without, and the share of programs that were checked.

`tooling`: `pyc-opt` as a process, timed from its start to its end on a small file; beside it stands
a Python that does nothing, which no tool in Python can be quicker than. A large module goes through
the default pipeline to linalg in this process; parsing and every pass are shown apart.
"""

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.build import FUSION_SITE as SITE
from pyc_mlir.compilation.build import SETTINGS
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import TO_LINALG, emit, lower
from pyc_mlir.compilation.options import HIGH_LEVEL, make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.mlir_text import parse_mlir
from pyc_mlir.iree.compiler import DEFAULT_FLAGS
from pyc_mlir.iree.foreign import compile_plain
from pyc_mlir.measure.interleave import Timing, interleave, ratio
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.tools.bench.peers.candidates import plain_options
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.report.suite import (
    SuiteRun,
    note,
    option,
    spread_record,
    suite,
    timing_records,
)
from pyc_mlir.tools.bench.report.tables import geometric_mean
from pyc_mlir.tools.bench.workloads.cpu import ENCODER, MODELS, make
from pyc_mlir.tools.bench.workloads.parts import made
from pyc_mlir.util.children import run as run_child

MEASURED = ("digits mlp, batch 64", "digits cnn, batch 64", ENCODER)
TEXT, BYTECODE, COMMAND = "iree, text", "iree, bytecode", "iree-compile"


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


def _timed(name: str, timings: Mapping[str, Timing], metric: str, **details: Any) -> list[Record]:
    return [row | {"metric": metric} for row in timing_records(name, timings, **details)]


@suite("compile", 9)
def compile_time(bench: SuiteRun) -> Iterator[Record]:
    """Compile time of an encoder block and the demo models against plain IREE."""
    with tempfile.TemporaryDirectory() as folder:
        for name in (ENCODER,) if bench.quick else MEASURED:
            workload = make(name, bench.quick)
            flags = iree_flags(workload)
            calls = compiles(workload, flags, Path(folder))
            timings = interleave(calls, bench.rounds, warmup=0 if bench.quick else 1)
            note(f"{name}: " + ", ".join(f"{n} {t.median:.2f} s" for n, t in timings.items()))
            yield from _timed(name, timings, "compile", flags=list(flags))
            for other in (TEXT, BYTECODE, COMMAND):
                yield spread_record(
                    name, other, "pyc / this", "times", ratio(timings, of="pyc", to=other)
                )


def iree_flags(workload: Workload) -> tuple[str, ...]:
    """Return IREE's flags of a PyC compile, with the fusion setting that the workload ends with."""
    options = make_options()
    decisions = build(workload.source, workload.specs, options).decisions
    fusion = next((SETTINGS[d.chosen] for d in decisions if d.site.pass_name == SITE), ())
    return (*DEFAULT_FLAGS, *options.target.flags, *fusion)


def compiles(
    workload: Workload, flags: Sequence[str], folder: Path
) -> Mapping[str, Callable[[], object]]:
    """Return the candidates: each call is one whole compile. `folder` takes the tools' files."""
    options, job = make_options(), Job.of(workload.source, workload.specs, plain_options())
    text, code = emit(job, "linalg")[0], lower(job).code
    source, out = folder / "in.mlir", folder / "out.vmfb"
    source.write_text(text)
    return {
        "pyc": lambda: build(workload.source, workload.specs, options),
        TEXT: partial(compile_plain, text.encode(), flags),
        BYTECODE: partial(compile_plain, code, flags),
        COMMAND: partial(run_command, [str(command()), *flags, str(source), "-o", str(out)]),
    }


CHECKED, UNCHECKED = "checked", "unchecked"


@suite(
    "self-check",
    5,
    option(
        "--models", nargs="*", type=Path, default=[], metavar="FILE.onnx", help="further programs"
    ),
)
def self_check(bench: SuiteRun) -> Iterator[Record]:
    """Compile time with and without the check of a compile by itself, and how many are checked."""
    tiny = make(ENCODER, tiny=True)
    workloads = [tiny] if bench.quick else [made(MODELS, name) for name in MODELS]
    programs: dict[str, tuple[Any, Sequence[Any] | None]] = {
        **{w.name: (w.source, w.specs) for w in workloads},
        **{path.stem: (path, None) for path in bench.options.models},
    }
    _checked(ENCODER, tiny.source, tiny.specs, 1)  # loads what compiles need
    records: list[Record] = []
    for name, (source, specs) in programs.items():
        records += _checked(name, source, specs, bench.rounds)
    yield from records
    ratios = [r["value"] for r in records if r["unit"] == "times"]
    done = [bool(r["value"]) for r in records if r["metric"] == "compared"]
    average, share = geometric_mean(ratios) or 0.0, 100 * sum(done) / len(done)
    metric = "checked / unchecked, geometric mean"
    yield record("all programs", CHECKED, metric, "times", average, n=len(ratios))
    yield record("all programs", CHECKED, "programs that were checked", "%", share, n=len(done))


def _checked(name: str, source: Any, specs: Sequence[Any] | None, rounds: int) -> Sequence[Record]:
    """Measure the times of one program, their ratio, and the outcome of its check."""
    last: dict[str, Artifact] = {}

    def compiled(candidate: str) -> None:
        last[candidate] = build(source, specs, make_options(check=candidate == CHECKED))

    calls = {c: partial(compiled, c) for c in (CHECKED, UNCHECKED)}
    timings = interleave(calls, rounds, warmup=0, clock=time.process_time)
    checks = last[CHECKED].checks
    check = None if checks is None else checks.check
    assert check is not None, "the options ask for it"
    of = ratio(timings, of=CHECKED, to=UNCHECKED)
    note(f"{name}: {of.median:.3f} of the time without; {check}")
    details = {"outcome": check.outcome, "reason": check.reason, "work": check.work}
    return [
        *_timed(name, timings, "compile, CPU seconds"),
        spread_record(name, CHECKED, "checked / unchecked", "times", of),
        record(name, CHECKED, "compared", "samples", check.done, **details),
    ]


OPS, QUICK_OPS = 10_000, 100
PIPELINE = f"{HIGH_LEVEL},{TO_LINALG}"
# Five ops a layer: matmul, bias, activation, softmax, residual.
_LAYER = """\
  %m{i} = "pyc.matmul"(%x{i}, %w) : (T, T) -> T
  %b{i} = "pyc.add"(%m{i}, %bias) : (T, tensor<16xf32>) -> T
  %g{i} = "pyc.gelu"(%b{i}) : (T) -> T
  %s{i} = "pyc.softmax"(%g{i}) : (T) -> T
  %x{next} = "pyc.add"(%x{i}, %s{i}) : (T, T) -> T
"""
_OPS_A_LAYER = _LAYER.count("pyc.")


@suite("tooling", 15)
def tooling(bench: SuiteRun) -> Iterator[Record]:
    """pyc-opt as a process on a small file; a 10,000-op module to linalg, pass by pass."""
    ops = QUICK_OPS if bench.quick else OPS
    bench.settings |= {"pipeline": PIPELINE, "ops": ops}
    yield from _processes(bench.rounds)
    text, runs = layers(ops), []
    for i in range(bench.rounds):
        runs.append(run_once(text))
        gc.collect()
        note(f"{ops} ops, round {i + 1} of {bench.rounds}: {sum(runs[-1].values()):.2f} s")
    steps = {name: tuple(r[name] for r in runs) for name in runs[0]}
    for name, samples in {
        "parse and all passes": tuple(sum(r.values()) for r in runs),
        **steps,
    }.items():
        yield from _timed(f"{ops} ops: {name}", {"pyc": Timing(samples, calls=1)}, "to linalg")


def layers(ops: int) -> str:
    """Make a module of that many ops: a chain of layers on 16x16 matrices."""
    body = "".join(_LAYER.format(i=i, next=i + 1) for i in range(ops // _OPS_A_LAYER))
    head = "func.func @main(%x0: T, %w: T, %bias: tensor<16xf32>) -> T {\n"
    text = f"{head}{body}  return %x{ops // _OPS_A_LAYER} : T\n}}\n"
    return text.replace("T", "tensor<16x16xf32>")


def _processes(rounds: int) -> Iterator[Record]:
    """Measure the wall seconds of whole processes."""
    with tempfile.TemporaryDirectory() as folder:
        source, tool = Path(folder) / "small.mlir", str(command("pyc-opt"))
        source.write_text(layers(_OPS_A_LAYER))
        line = [tool, str(source)]
        lines = {
            "python": [sys.executable, "-c", "pass"],
            "pyc-opt, no pass": line,
            "pyc-opt, to linalg": [*line, f"--pass-pipeline=builtin.module({PIPELINE})"],
        }
        calls = {name: partial(run_command, line) for name, line in lines.items()}
        timings = interleave(calls, rounds, warmup=1)
    note(", ".join(f"{name}: {timing.median:.3f} s" for name, timing in timings.items()))
    for name, timing in timings.items():
        yield from _timed(f"small file: {name}", {"pyc": timing}, "process")


def run_once(text: str) -> dict[str, float]:
    """Parse and lower to linalg once; return seconds of parsing and of each pass ("2 pyc-fuse")."""
    with new_context() as context, ir.Location.unknown():
        start = time.perf_counter()
        module = parse_mlir(text, context)
        parsed = time.perf_counter() - start
        report = run_pipeline(module, PIPELINE, one_by_one=True)
        blocks = (f.regions[0].blocks[0] for f in functions_of(module))
        assert all("pyc." not in op.operation.name for block in blocks for op in block.operations)
    return {"parse": parsed, **{f"{i} {s.name}": s.seconds for i, s in enumerate(report.steps, 1)}}
