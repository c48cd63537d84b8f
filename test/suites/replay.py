"""The suite `replay`: replays in fresh processes with random hash seeds make the same bytes.

Each program is compiled once by `pyc-compile --log`, and then again and again by `pyc-compile
--replay`, every time in a new process with a hash seed of its own, in turn from the log and from
the program. What is counted are replays whose bytes are the same.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.choices.log import decisions_of, read_log
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, suite
from pyc_mlir.tools.bench.suites.compile import command, layers
from pyc_mlir.tools.bench.workloads.cpu import digits
from pyc_mlir.tools.bench.workloads.parts import TINY, encoder_model
from pyc_mlir.util.children import run as run_child

_OPS = 100
# The program's bytes are compared with those of the first compile.
_FIRST, _LOG, _AGAIN = "first.vmfb", "first.jsonl", "again.vmfb"


@suite("replay", 100)
def run(bench: SuiteRun) -> Iterator[Record]:
    """Count replays in fresh processes whose bytes are those of the first compile."""
    with tempfile.TemporaryDirectory() as folder:
        models = models_in(Path(folder))
        for name in list(models)[:1] if bench.quick else models:
            yield counted(name, models[name], bench.rounds, Path(folder))


def models_in(folder: Path) -> Mapping[str, Sequence[str]]:
    """Return by name the arguments of `pyc-compile`: the model and its options."""
    chain, encoder = folder / "chain.mlir", folder / "encoder.onnx"
    chain.write_text(layers(_OPS))
    encoder.write_bytes(encoder_model(TINY))
    mlp, cnn = (str(digits(kind, 1).source) for kind in ("mlp", "cnn"))
    return {
        "digits mlp": (mlp,),
        "digits cnn, checked": (cnn, "--max-error", "rounding"),
        "tiny encoder, two plans": (str(encoder), "--also-mode", "memory_first"),
        f"chain of {_OPS} ops, strict": (str(chain), "--determinism", "strict"),
    }


def counted(name: str, line: Sequence[str], rounds: int, folder: Path) -> Record:
    """Compile once, replay `rounds` times, count what is the same."""
    seeds = Random(0)
    first, log = folder / _FIRST, folder / _LOG
    compiled([*line, "-o", str(first), "--log", str(log)], seeds.getrandbits(32))
    same = 0
    for number in range(rounds):
        again = folder / _AGAIN
        source = str((log, first)[number % 2])
        compiled([line[0], "-o", str(again), "--replay", source], seeds.getrandbits(32))
        same += again.read_bytes() == first.read_bytes()
        again.unlink()
    decisions = len(decisions_of(read_log(log)))
    note(f"{name}: {same} of {rounds} replays are the same, {decisions} decisions")
    return record(
        name, "pyc", "same bytes", "replays", same, of=rounds, decisions=decisions, n=rounds
    )


def compiled(line: Sequence[str], seed: int) -> None:
    """Run `pyc-compile` in a process with a hash seed. Raises PycError (RUNTIME_FAILED)."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    tool = [str(command("pyc-compile")), *line]
    done = run_child(tool, env=environment)
    if done.returncode != 0:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"pyc-compile: expected status 0, got {done.returncode}: {done.stderr.strip()[:300]}",
        )
