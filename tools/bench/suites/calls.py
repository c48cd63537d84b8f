"""The suites `overhead` and `start`: the cost of a call, and the time to the first answer.

`overhead`: a call through `Program` above IREE's bare invoke.

`start`: without a compile, in fresh processes. Each sample is a process of its own that has
imported what it needs, and then times, to the end of the first call:

    saved artifact      `pyc_mlir.load` of a file; `iree` beside it is what plain IREE at O3 made of
                        the same model, loaded without guards and plans
    cache hit           `pyc_mlir.compile` of the ONNX file with a cache that holds its program;
                        `key` and `find` are what its record tells: of the key, and of the program
                        once the key is known

Files are in the system's memory, as those are that were used before. Every answer is compared.
"""

import tempfile
from collections.abc import Callable, Iterator
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
from pyc_mlir.iree.foreign import compile_plain, plain_flags
from pyc_mlir.measure.interleave import Timing, interleave
from pyc_mlir.measure.records import Record, record
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable, ResultType
from pyc_mlir.runtime.load import load
from pyc_mlir.runtime.program import Program, serving
from pyc_mlir.tools.bench.peers.candidates import IREE_COMPILES, plain_options
from pyc_mlir.tools.bench.report.suite import SuiteRun, in_child, note, suite, timing_records
from pyc_mlir.tools.bench.workloads.cpu import digits
from pyc_mlir.tools.bench.workloads.parts import BASE, TINY, encoder_model

_ELEMENTS = 4


def time_calls(
    program: Program, *args: Array, rounds: int = 31, min_seconds: float = 0.005
) -> dict[str, Timing]:
    """Interleave `program(*args)` with a bare ``VmContext.invoke`` of a prebuilt argument list.

    `args` are arrays on the program's device; a sample lasts at least `min_seconds`.
    """
    calls = {"pyc": lambda: program(*args), "iree": serving(program).bare_call(*args)}
    return interleave(calls, rounds=rounds, min_seconds=min_seconds)


@suite("overhead", 51)
def overhead(bench: SuiteRun) -> Iterator[Record]:
    """Measure a call's cost through Program above IREE's bare invoke: two arguments, local-sync."""
    device = Device("local-sync")
    bench.settings["device"] = device.kind
    numbers = np.arange(_ELEMENTS, dtype=np.float32)
    program = pyc_mlir.compile(lambda a, b: a + b, [numbers, numbers], device=device)
    a, b = to_device(numbers, device), to_device(numbers, device)
    timings = time_calls(program, a, b, rounds=bench.rounds, min_seconds=bench.min_seconds / 10)
    title, bare = f"add of {_ELEMENTS} elements", timings["iree"].median
    # The cost of guards, statistics and arrays.
    above = timings["pyc"].median - bare
    note(f"{title}: {above * 1e6:.2f} us above {bare * 1e6:.2f} us")
    yield from timing_records(title, timings)
    yield record(title, "pyc", "above bare invoke", "s", above)


ARTIFACT, CACHE, IREE = "saved artifact", "cache hit", "iree"
WAYS = (ARTIFACT, CACHE, IREE)
# The files of one workload; `entry` is the name of plain IREE's function.
_MODEL, _SAVED, _PLAIN = "model.onnx", "saved.vmfb", "plain.vmfb"
_INPUT, _EXPECTED, _ENTRY, _CACHE = "input.npy", "expected.npy", "entry", "cache"
_TOLERANCE = 1e-4
_TINY = "tiny encoder"


@suite("start", 15)
def start(bench: SuiteRun) -> Iterator[Record]:
    """Measure the first answer from a saved artifact and from the cache, in fresh processes."""
    for name in (_TINY,) if bench.quick else ("encoder block, seq 128", "digits mlp, batch 1"):
        with tempfile.TemporaryDirectory() as folder:
            prepare(name, Path(folder))
            yield from _starts(name, folder, bench.rounds)


def prepare(name: str, folder: Path) -> None:
    """Write the files of a workload, and let the cache have its program."""
    if name.startswith("digits"):
        workload = digits("mlp", 1)
        model, x = workload.source.read_bytes(), workload.inputs[0]
    else:
        shape = TINY if name == _TINY else BASE
        x = np.random.default_rng(1).normal(size=(shape.seq, shape.width)).astype(np.float32)
        model = encoder_model(shape)
    source = folder / _MODEL
    source.write_bytes(model)
    np.save(folder / _INPUT, x, allow_pickle=False)
    write(build(source, [x], make_options()), folder / _SAVED)
    program = pyc_mlir.compile(source, [x], cache=folder / _CACHE)
    np.save(folder / _EXPECTED, program(x), allow_pickle=False)
    lowered = lower(Job.of(source, [x], plain_options()))
    (folder / _PLAIN).write_bytes(_plain_code(lowered.code))
    (folder / _ENTRY).write_text(lowered.entry)


def _plain_code(code: bytes) -> bytes:
    """Compile by the first of IREE's settings that can. Raises PycError if none can."""
    *first, last = (plain_flags(make_options().target, *f) for f in IREE_COMPILES.values())
    for flags in first:
        with suppress(PycError):
            return compile_plain(code, flags)
    return compile_plain(code, last)


def _starts(name: str, folder: str, rounds: int) -> Iterator[Record]:
    """Measure every way in turn, each time in a process of its own."""
    samples: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, found in samples.items():
            found.append(in_child(answer, way, folder))
    for way, found in samples.items():
        shown, who = (ARTIFACT, "iree") if way == IREE else (way, "pyc")
        for part in found[0]:
            timing = Timing(tuple(seconds[part] for seconds in found), calls=1)
            note(f"{name}: {way}: {part}: {timing.median * 1e3:.1f} ms")
            rows = timing_records(name, {who: timing})
            yield from (row | {"metric": f"{shown}: {part}"} for row in rows)


def answer(way: str, name: str) -> dict[str, float]:
    """Load, call and compare in this process; return seconds by part."""
    folder = Path(name)
    x = np.load(folder / _INPUT, allow_pickle=False)
    expected = np.load(folder / _EXPECTED, allow_pickle=False)
    parts: dict[str, float] = {}
    began = perf_counter()
    if way == IREE:
        call = _plain(folder, expected)
    elif way == CACHE:
        program = call = pyc_mlir.compile(folder / _MODEL, [x], cache=folder / _CACHE)
        found = program.stats().cache
        if found is None or found.outcome != "hit":
            raise PycError(ReasonCode.CACHE_MISS, f"expected a hit, got {found}")
        parts |= {"key": found.key_seconds, "find": found.find_seconds}
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
    device = Device("local")
    loaded = Executable((folder / _PLAIN).read_bytes(), device)
    entry = loaded.entry((folder / _ENTRY).read_text(), [ResultType(result.dtype, result.shape)])
    return lambda x: entry([to_device(x, device)])[0].numpy()
