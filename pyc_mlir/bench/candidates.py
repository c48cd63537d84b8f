"""Who computes a workload: PyC as it comes, plain IREE and onnxruntime at their best setting.

A candidate is prepared under one or several settings; `choose` finds the quickest by measuring,
so that the other side of a comparison is never held back by a setting that does not suit it.
Each is called the way that costs it least: IREE with arrays on its device and a prebuilt argument
list, onnxruntime by `run` or with bound inputs and outputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from pyc_mlir.bench.measure import interleave
from pyc_mlir.bench.suite import note
from pyc_mlir.bench.workloads import Workload
from pyc_mlir.compilation import build, make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.array import to_device
from pyc_mlir.iree.attempts import SETTINGS as FUSION
from pyc_mlir.iree.device import Device
from pyc_mlir.iree.executable import Executable, ResultType
from pyc_mlir.iree.session import Session
from pyc_mlir.lowering import Lowered, Options, lower
from pyc_mlir.program import Program

# What IREE can be told; all with the target CPU set to the host, which it needs most.
_TILING = {
    "no data tiling": (),
    "data tiling at dispatch creation": ("--iree-dispatch-creation-data-tiling",),
    "data tiling at global optimization": ("--iree-global-opt-data-tiling",),
}
IREE_COMPILES: Mapping[str, tuple[str, ...]] = {
    f"O3, {fusion} fusion, {tiling}": (*fusion_flags, *tiling_flags)
    for fusion, fusion_flags in FUSION.items()
    for tiling, tiling_flags in _TILING.items()
}
ALLOCATORS = {"": None, ", caching allocator": "caching"}
# onnxruntime's workers spin for 50 ms after a call, unless told to stop or not to spin at all.
_SPINNING = {
    "spinning": {},
    "spinning in calls": {"session.force_spinning_stop": "1"},
    "no spinning": {"session.intra_op.allow_spinning": "0"},
}
# Longer than whatever a candidate leaves running.
REST_SECONDS = 0.1


@dataclass(frozen=True)
class Prepared:
    """A workload ready to be called by one candidate: `call` is timed, `results` are checked."""

    call: Callable[[], object]
    results: Callable[[], Sequence[np.ndarray]]


Settings = Mapping[str, Prepared]


@dataclass(frozen=True)
class Choice:
    """The quickest setting, and the median seconds of all that were tried."""

    setting: str
    prepared: Prepared
    tried: Mapping[str, float]


def choose(settings: Settings, rounds: int, min_seconds: float, rest: float) -> Choice:
    """Time the settings, interleaved, and take the one with the least median."""
    if len(settings) == 1:
        ((name, prepared),) = settings.items()
        return Choice(name, prepared, {})
    calls = {name: prepared.call for name, prepared in settings.items()}
    timings = interleave(calls, rounds, min_seconds=min_seconds, rest_seconds=rest)
    tried = {name: timing.median for name, timing in timings.items()}
    best = min(tried, key=tried.__getitem__)
    return Choice(best, settings[best], tried)


def pyc(workload: Workload, options: Options, device: Device) -> Prepared:
    """PyC's program with arrays on the device."""
    program = Program(build(workload.source, workload.inputs, options), device)
    arrays = [to_device(a, device) for a in workload.inputs]

    def results() -> list[np.ndarray]:
        out = program(*arrays)
        return [r.numpy() for r in (out if isinstance(out, tuple) else (out,))]

    return Prepared(lambda: program(*arrays), results)


def default_device(threads: int) -> Device:
    """What a PyC program runs on by default on a machine of that many cores."""
    return Device("local-sync") if threads == 1 else Device("local-task", threads=threads)


def plain_iree(workload: Workload, threads: int) -> Settings:
    """The linalg that PyC emits, compiled and called by IREE alone, under all settings.

    A setting under which IREE fails is left out and noted.
    """
    options = make_options()
    lowered = lower(workload.source, workload.inputs, options)
    devices = {
        f"{kind}{suffix}": Device(kind, threads if kind == "local-task" else None, allocator)
        for kind, (suffix, allocator) in product(("local-sync", "local-task"), ALLOCATORS.items())
    }
    found = {}
    for name, flags in IREE_COMPILES.items():
        try:
            vmfb = compile_plain(lowered.code, plain_flags(options, *flags))
        except PycError as error:
            note(f"{workload.name}: iree alone fails under {name}: {error.message[:200]}")
            continue
        for kind, device in devices.items():
            found[f"{name}; {kind}"] = _plain_program(workload, lowered, vmfb, device)
    return found


def plain_flags(options: Options, *flags: str) -> tuple[str, ...]:
    """IREE's own highest level for the target, and `flags`."""
    return ("--iree-opt-level=O3", *options.target.flags, *flags)


def compile_plain(code: bytes, flags: Sequence[str]) -> bytes:
    """IREE's compiler and nothing of ours: MLIR text or bytecode to a vmfb. Raises PycError."""
    with Session(flags) as session:
        session.parse(code)
        session.run()
        return session.vmfb()


def _plain_program(workload: Workload, lowered: Lowered, vmfb: bytes, device: Device) -> Prepared:
    types = [ResultType(o.dtype, o.static_shape) for o in lowered.signature.outputs]
    entry = Executable(vmfb, device).entry(lowered.entry, types)
    arrays = [to_device(a, device) for a in workload.inputs]
    return Prepared(entry.bare_call(arrays), lambda: [r.numpy() for r in entry(arrays)])


def onnxruntime(workload: Workload, threads: int) -> Settings:
    """The workload's ONNX model under onnxruntime's CPU provider.

    Raises PycError (MISSING_DEPENDENCY) where it is not installed.
    """
    try:
        import onnxruntime as ort  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            "benchmarks: expected onnxruntime; install it with `pip install pyc-mlir[bench]`",
        ) from error
    model = workload.onnx() if workload.onnx is not None else b""
    # One thread has no worker that could spin.
    spinning = _SPINNING if threads > 1 else {"one thread": {}}
    return {
        f"{how}, {name}": prepared
        for name, entries in spinning.items()
        for how, prepared in _sessions(ort, model, workload.inputs, threads, entries)
    }


def _sessions(
    ort: Any,
    model: bytes,
    inputs: Sequence[np.ndarray],
    threads: int,
    entries: Mapping[str, str],
) -> Iterator[tuple[str, Prepared]]:
    """One session, called in both ways that its API has."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = dict(zip((i.name for i in session.get_inputs()), inputs, strict=True))
    yield "run", Prepared(partial(session.run, None, feeds), partial(session.run, None, feeds))
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)

    def results() -> list[np.ndarray]:
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    yield "io binding", Prepared(partial(session.run_with_iobinding, binding), results)
