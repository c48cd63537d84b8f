"""The suite `tooling`: time of `pyc-opt` as a process, and of 10,000 ops in process.

The process is timed from its start to its end on a small file; beside it stands a Python that
does nothing, which no tool in Python can be quicker than. The large module goes through the
default pipeline to linalg; parsing and every pass are shown apart.
"""

import functools
import gc
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyc_mlir.compilation.lower import TO_LINALG
from pyc_mlir.compilation.options import HIGH_LEVEL
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.mlir_text import parse_mlir
from pyc_mlir.measure.interleave import Timing, interleave, timing_records
from pyc_mlir.measure.records import Record
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.tools.bench.compile.compile_time import command, run_command
from pyc_mlir.tools.bench.report.suite import note, parse

SUITE = "tooling"
ROUNDS = 15
OPS = 10_000
QUICK_OPS = 100
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


def run(arguments: Sequence[str]) -> int:
    """pyc-opt as a process on a small file; a 10,000-op module to linalg, pass by pass."""
    bench, _ = parse(SUITE, run.__doc__ or "", ROUNDS, arguments)
    records = process_records(bench.rounds)
    ops = QUICK_OPS if bench.quick else OPS
    records += module_records(ops, bench.rounds)
    bench.store(records, pipeline=PIPELINE, ops=ops)
    return 0


def layers(ops: int) -> str:
    """Make a module of that many ops: a chain of layers on 16x16 matrices."""
    body = "".join(_LAYER.format(i=i, next=i + 1) for i in range(ops // _OPS_A_LAYER))
    head = "func.func @main(%x0: T, %w: T, %bias: tensor<16xf32>) -> T {\n"
    text = f"{head}{body}  return %x{ops // _OPS_A_LAYER} : T\n}}\n"
    return text.replace("T", "tensor<16x16xf32>")


def process_records(rounds: int) -> list[Record]:
    """Measure the wall seconds of whole processes."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "small.mlir"
        source.write_text(layers(_OPS_A_LAYER))
        tool = str(command("pyc-opt"))
        lines = {
            "python": [sys.executable, "-c", "pass"],
            "pyc-opt, no pass": [tool, str(source)],
            "pyc-opt, to linalg": [
                tool,
                str(source),
                f"--pass-pipeline=builtin.module({PIPELINE})",
            ],
        }
        calls = {name: functools.partial(run_command, line) for name, line in lines.items()}
        timings = interleave(calls, rounds, warmup=1)
    note(", ".join(f"{name}: {timing.median:.3f} s" for name, timing in timings.items()))
    records = []
    for name, timing in timings.items():
        records += timing_records(f"small file: {name}", {"pyc": timing})
    return [r | {"metric": "process"} for r in records]


@dataclass(frozen=True)
class Steps:
    """Seconds of one run: parsing, then each pass in order ("2 pyc-fuse")."""

    parse: float
    passes: Mapping[str, float]

    @property
    def total(self) -> float:
        """Parsing and all passes."""
        return self.parse + sum(self.passes.values())


def run_once(text: str) -> Steps:
    """Parse and lower to linalg once; every native pass is a step of its own."""
    with new_context() as context, ir.Location.unknown():
        start = time.perf_counter()
        module = parse_mlir(text, context)
        parsed = time.perf_counter() - start
        report = run_pipeline(module, PIPELINE, one_by_one=True)
        assert all("pyc." not in op.name for f in functions_of(module) for op in _ops(f))
    return Steps(parsed, {f"{i} {s.name}": s.seconds for i, s in enumerate(report.steps, 1)})


def _ops(function: ir.Operation) -> list[ir.Operation]:
    return [op.operation for op in function.regions[0].blocks[0].operations]


def module_records(ops: int, rounds: int) -> list[Record]:
    """Measure the median seconds of the whole path, of parsing, and of each pass."""
    text = layers(ops)
    runs = []
    for i in range(rounds):
        runs.append(run_once(text))
        gc.collect()
        note(f"{ops} ops, round {i + 1} of {rounds}: {runs[-1].total:.2f} s")
    shown: dict[str, Sequence[float]] = {
        "parse and all passes": [r.total for r in runs],
        "parse": [r.parse for r in runs],
    }
    shown |= {name: [r.passes[name] for r in runs] for name in runs[0].passes}
    records = []
    for name, samples in shown.items():
        timing = Timing(tuple(samples), calls=1)
        records += timing_records(f"{ops} ops: {name}", {"pyc": timing})
    return [r | {"metric": "to linalg"} for r in records]
