"""The suite `start`: time to the first answer without a compile, in fresh processes.

Each sample is a process of its own that has imported what it needs, and then times, to the end of
the first call:

    saved artifact      `pyc_mlir.load` of a file; `iree` beside it is what plain IREE at O3 made of
                        the same model, loaded without guards and plans
    cache hit           `pyc_mlir.compile` of the ONNX file with a cache that holds its program;
                        `key` and `find` are what its record tells: of the key, and of the program
                        once the key is known

Files are in the system's memory, as those are that were used before. Every answer is compared.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import numpy as np

import pyc_mlir
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import write
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.plain import compile_plain, plain_flags
from pyc_mlir.measure.interleave import Timing, timing_records
from pyc_mlir.measure.records import Record
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable, ResultType
from pyc_mlir.runtime.load import load
from pyc_mlir.tools.bench.peers.candidates import IREE_COMPILES, plain_options
from pyc_mlir.tools.bench.report.suite import note, parse
from pyc_mlir.tools.bench.workloads.cpu import digits
from pyc_mlir.tools.bench.workloads.encoder import (
    BASE,
    TINY,
    EncoderShape,
    encoder_model,
)
from pyc_mlir.util.children import run as run_child

SUITE = "start"
ROUNDS = 15
ARTIFACT, CACHE, IREE = "saved artifact", "cache hit", "iree"
WAYS = (ARTIFACT, CACHE, IREE)
# The files of one workload; `entry` is the name of plain IREE's function.
_MODEL, _SAVED, _PLAIN = "model.onnx", "saved.vmfb", "plain.vmfb"
_INPUT, _EXPECTED, _ENTRY, _CACHE = "input.npy", "expected.npy", "entry", "cache"
_TOLERANCE = 1e-4
_TINY = "tiny encoder"

Seconds = Mapping[str, float]


def run(arguments: Sequence[str]) -> int:
    """Measure the first answer from a saved artifact and from the cache, in fresh processes."""
    bench, _ = parse(SUITE, run.__doc__ or "", ROUNDS, arguments)
    records: list[Record] = []
    for name in (_TINY,) if bench.quick else ("encoder block, seq 128", "digits mlp, batch 1"):
        with tempfile.TemporaryDirectory() as folder:
            prepare(name, Path(folder))
            records += measured(name, Path(folder), bench.rounds)
    bench.store(records)
    return 0


def prepare(name: str, folder: Path) -> None:
    """Write the files of a workload, and let the cache have its program."""
    if name.startswith("digits"):
        workload = digits("mlp", 1)
        model, x = Path(str(workload.source)).read_bytes(), workload.inputs[0]
    else:
        model, x = _encoder(TINY if name == _TINY else BASE)
    source = folder / _MODEL
    source.write_bytes(model)
    np.save(folder / _INPUT, x, allow_pickle=False)
    artifact = build(source, [x], make_options())
    write(artifact, folder / _SAVED)
    program = pyc_mlir.compile(source, [x], cache=folder / _CACHE)
    np.save(folder / _EXPECTED, program(x), allow_pickle=False)
    lowered = lower(Job.of(source, [x], plain_options()))
    (folder / _PLAIN).write_bytes(_plain_code(lowered.code))
    (folder / _ENTRY).write_text(lowered.entry)


def _plain_code(code: bytes) -> bytes:
    """Compile by the first of IREE's settings that can. Raises PycError if none can."""
    for flags in list(IREE_COMPILES.values())[:-1]:
        with suppress(PycError):
            return compile_plain(code, plain_flags(make_options().target, *flags))
    return compile_plain(
        code, plain_flags(make_options().target, *list(IREE_COMPILES.values())[-1])
    )


def _encoder(shape: EncoderShape) -> tuple[bytes, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(shape.seq, shape.width)).astype(np.float32)
    return encoder_model(shape), x


def measured(name: str, folder: Path, rounds: int) -> list[Record]:
    """Measure every way in turn, each time in a process of its own."""
    samples: dict[str, list[Seconds]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, found in samples.items():
            found.append(in_own_process(way, folder))
    records = []
    for way, found in samples.items():
        shown = ARTIFACT if way == IREE else way
        for part in found[0]:
            timing = Timing(tuple(seconds[part] for seconds in found), calls=1)
            note(f"{name}: {way}: {part}: {timing.median * 1e3:.1f} ms")
            rows = timing_records(name, {"iree" if way == IREE else "pyc": timing})
            records += [row | {"metric": f"{shown}: {part}"} for row in rows]
    return records


def in_own_process(way: str, folder: Path) -> Seconds:
    """Return seconds by part. Raises PycError (RUNTIME_FAILED) with the process's message."""
    line = [sys.executable, "-m", "pyc_mlir.tools.bench.latency.start", way, str(folder)]
    done = run_child(line)
    if done.returncode != 0:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"{way}: expected status 0, got {done.returncode}: {done.stderr.strip()[-300:]}",
        )
    return json.loads(done.stdout)


def answer(way: str, folder: Path) -> Seconds:
    """Load, call and compare in this process; return seconds by part."""
    x = np.load(folder / _INPUT, allow_pickle=False)
    expected = np.load(folder / _EXPECTED, allow_pickle=False)
    parts: dict[str, float] = {}
    began = perf_counter()
    if way == IREE:
        call = _plain(folder, expected)
    elif way == CACHE:
        program = call = pyc_mlir.compile(folder / _MODEL, [x], cache=folder / _CACHE)
        record = program.stats().cache
        if record is None or record.outcome != "hit":
            raise PycError(ReasonCode.CACHE_MISS, f"expected a hit, got {record}")
        parts |= {"key": record.key_seconds, "find": record.find_seconds}
    else:
        call = load(folder / _SAVED)
    loaded = perf_counter()
    got = np.asarray(call(x))
    parts |= {"load": loaded - began, "first call": perf_counter() - loaded}
    parts["first answer"] = parts["load"] + parts["first call"]
    np.testing.assert_allclose(got, expected, rtol=_TOLERANCE, atol=_TOLERANCE)
    return parts


def _plain(folder: Path, result: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Load IREE's function as PyC loads its own, without guards and plans."""
    device = Device("local-task")
    loaded = Executable((folder / _PLAIN).read_bytes(), device)
    entry = loaded.entry((folder / _ENTRY).read_text(), [ResultType(result.dtype, result.shape)])
    return lambda x: entry([to_device(x, device)])[0].numpy()


def main(arguments: Sequence[str]) -> int:
    """Print one sample, as JSON on standard output."""
    print(json.dumps(answer(arguments[0], Path(arguments[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
