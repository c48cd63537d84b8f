"""The suite `gpu`: errors against numpy and latency on a CUDA GPU.

Compiles every case of `workloads.ops`, the demo models and the encoder block for the machine's GPU
(a target of that very GPU where PyC has one, else sm_80, whose PTX newer GPUs run), compares the
results with float64 and times calls with arrays on the device. A case that fails is recorded with
its reason and the rest still runs; the suite then ends in status 1, as it does without a GPU.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from pyc_mlir.compilation.options import Options, make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.interleave import interleave, timing_records
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.target.target import TARGETS
from pyc_mlir.runtime.device import Device
from pyc_mlir.tools.bench.peers import candidates
from pyc_mlir.tools.bench.peers.workload import BenchWorkload
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, parse
from pyc_mlir.tools.bench.workloads.cpu import MODELS
from pyc_mlir.tools.bench.workloads.ops import OPS, SMALLEST, op_workload

SUITE = "gpu"
ROUNDS = 15
FALLBACK = "cuda-sm_80"
# CUDA's driver API: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_MAJOR, _MINOR = 75, 76
Build = Callable[[], BenchWorkload]


def run(arguments: Sequence[str]) -> int:
    """Run the models and op cases on this machine's CUDA GPU: errors against numpy, latency."""
    bench, _ = parse(SUITE, run.__doc__ or "", ROUNDS, arguments)
    device = Device("cuda")
    target = target_for(compute_capability())
    builds = list(cases(bench.quick))
    records = measure(builds, make_options(target=target), device, bench)
    failed = [r for r in records if r["metric"] == "failure"]
    bench.store(records, target=target, cases=len(builds), failed=len(failed))
    for row in failed:
        note(f"failed: {row['workload']}: {row['reason']}")
    return 1 if failed else 0


def cases(quick: bool) -> Iterator[Build]:
    """Yield builders of the measured cases; one op in a quick run."""
    yield from (partial(op_workload, name) for name in ((SMALLEST,) if quick else OPS))
    yield from () if quick else MODELS.values()


def measure(
    builds: Sequence[Build], options: Options, device: Device, bench: SuiteRun
) -> list[Record]:
    """Measure all cases: latency and error, or the reason of a failure."""
    records = []
    for i, build in enumerate(builds, 1):
        workload = build()
        try:
            rows = _measure_one(workload, options, device, bench)
        except PycError as error:
            reason = f"{error.code.name}: {error.message}"[:300]
            rows = [record(workload.name, "pyc", "failure", "failures", 1, reason=reason)]
        note(f"{i} of {len(builds)}: {workload.name}: {rows[0]['metric']} {rows[0]['value']:.3g}")
        records += rows
    return records


def _measure_one(
    workload: BenchWorkload, options: Options, device: Device, bench: SuiteRun
) -> list[Record]:
    prepared = candidates.pyc(workload, options, device)
    error = workload.check(prepared.results(), f"pyc on {device.kind}")
    timings = interleave({"pyc": prepared.call}, bench.rounds, min_seconds=bench.min_seconds)
    shown = record(workload.name, "pyc", "max relative error", "ppm", error * 1e6)
    return [*timing_records(workload.name, timings), shown]


def target_for(capability: tuple[int, int]) -> str:
    """Return the target of a GPU: its own, or sm_80's for newer ones.

    Raises PycError (UNKNOWN_TARGET) for a GPU that is older than all targets.
    """
    own = f"cuda-sm_{capability[0]}{capability[1]}"
    if own in TARGETS:
        return own
    if capability < (8, 0):
        known = ", ".join(name for name in sorted(TARGETS) if name.startswith("cuda-"))
        raise PycError(
            ReasonCode.UNKNOWN_TARGET,
            f"gpu: expected a GPU of compute capability 8.0 or newer ({known}), "
            f"got {capability[0]}.{capability[1]}",
        )
    return FALLBACK


def compute_capability() -> tuple[int, int]:
    """Return major and minor number of the first GPU, from NVIDIA's driver library.

    Raises PycError (DEVICE_UNAVAILABLE) if the driver does not answer.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise _no_gpu(str(error)) from None
    device, values = ctypes.c_int(), [ctypes.c_int(), ctypes.c_int()]
    status = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
    for value, attribute in zip(values, (_MAJOR, _MINOR), strict=True):
        status = status or driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    if status:
        raise _no_gpu(f"CUDA error {status}")
    return values[0].value, values[1].value


def _no_gpu(reason: str) -> PycError:
    return PycError(
        ReasonCode.DEVICE_UNAVAILABLE,
        f"gpu: expected a CUDA GPU and NVIDIA's driver, got: {reason}; run on a machine that has "
        "them (`pyc-doctor` says what this one can run on)",
    )
