"""The suite `gpu`: errors against numpy and latency on a CUDA GPU.

Compiles every case of `OPS`, the demo models and the encoder block for the machine's GPU (a target
of that very GPU where PyC has one, else sm_80, whose PTX newer GPUs run), compares the results with
float64 and times calls with arrays on the device. Each case of `OPS` is one op on seeded arguments;
sizes are odd here and there, so that tiles have remainders. A case that fails is recorded with its
reason and the rest still runs; the suite then ends in status 1, as it does without a GPU.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from pyc_mlir import nn
from pyc_mlir.compilation.options import Options, make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.interleave import interleave
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.target.target import TARGETS
from pyc_mlir.runtime.device import Device
from pyc_mlir.tools.bench.peers import candidates
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.report.suite import SuiteRun, failure, note, suite, timing_records
from pyc_mlir.tools.bench.workloads.cpu import MODELS
from pyc_mlir.tools.bench.workloads.parts import made

FALLBACK = "cuda-sm_80"
# CUDA's driver API: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_MAJOR, _MINOR = 75, 76
Build = Callable[[], Workload]


# Errors of one op relative to its largest result. Tensor cores may round f32 operands to 10 bits.
TOLERANCES = {"f32": 2e-3, "f16": 5e-3, "bf16": 4e-2, "i64": 0.0}
_DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i64": np.int64}


@dataclass(frozen=True)
class OpCase:
    """A function and the shapes of its arguments, all of one element type.

    `positive` arguments are variances and the like, at least 1/2.
    """

    function: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    dtype: str = "f32"
    positive: bool = False

    def workload(self, name: str) -> Workload:
        """Return the case on seeded arguments."""
        rng = np.random.default_rng(0)
        arrays = [rng.normal(0, 1, shape) for shape in self.shapes]
        if self.positive:
            arrays = [np.abs(a) + 0.5 for a in arrays]
        if self.dtype == "i64":
            arrays = [a * 100 for a in arrays]
        inputs = tuple(a.astype(_DTYPES[self.dtype]) for a in arrays)
        title, tolerance = f"op {name}, {self.dtype}", TOLERANCES[self.dtype]
        return Workload(title, self.function, inputs, tolerance=tolerance)


_INDICES = np.array([5, 0, 0, 16, 3])

OPS: Mapping[str, OpCase] = {
    "add": OpCase(lambda a, b: a + b, [(33, 65), (65,)]),
    "integer arithmetic": OpCase(lambda a, b: a * b - a, [(33, 65), (65,)], "i64"),
    "divide and power": OpCase(lambda a, b: a / b + a**b, [(17, 31), (17, 31)], positive=True),
    "exponentials": OpCase(lambda x: np.tanh(x) + np.exp(-x) + nn.erf(x), [(129, 33)]),
    "gelu": OpCase(nn.gelu, [(64, 130)]),
    "select": OpCase(lambda a, b: np.where(a > b, a, b * 2), [(19, 23), (19, 23)]),
    "matmul": OpCase(lambda a, b: a @ b, [(128, 256), (256, 192)]),
    "matmul with remainders": OpCase(lambda a, b: a @ b, [(67, 129), (129, 35)]),
    "matmul, half": OpCase(lambda a, b: a @ b, [(128, 128), (128, 128)], "f16"),
    "matmul, bfloat": OpCase(lambda a, b: a @ b, [(128, 128), (128, 128)], "bf16"),
    "matmul, vector": OpCase(lambda a, b: a @ b, [(1, 512), (512, 384)]),
    "matmul, batched": OpCase(lambda a, b: a @ b, [(6, 32, 48), (6, 48, 40)]),
    "matmul, bias, relu": OpCase(
        lambda x, w, b: nn.relu(x @ w + b), [(64, 128), (128, 256), (256,)]
    ),
    "conv2d, NCHW": OpCase(lambda x, w: nn.conv2d(x, w, pads=1), [(2, 8, 14, 14), (16, 8, 3, 3)]),
    "conv2d, NHWC": OpCase(
        lambda x, w: nn.conv2d(x, w, strides=2, layout="NHWC"), [(2, 15, 15, 8), (3, 3, 8, 16)]
    ),
    "conv2d, depthwise": OpCase(
        lambda x, w: nn.conv2d(x, w, groups=8, pads=1), [(1, 8, 14, 14), (8, 1, 3, 3)]
    ),
    "max_pool2d": OpCase(lambda x: nn.max_pool2d(x, 2), [(2, 8, 14, 14)]),
    "avg_pool2d": OpCase(lambda x: nn.avg_pool2d(x, 3, 2), [(2, 8, 15, 15)]),
    "sum of rows": OpCase(lambda x: np.sum(x, axis=1), [(65, 1023)]),
    "sum of columns": OpCase(lambda x: np.sum(x, axis=0), [(1023, 65)]),
    "mean of all": OpCase(np.mean, [(63, 65)], positive=True),
    "argmax": OpCase(lambda x: np.argmax(x, axis=-1), [(33, 100)]),
    "softmax": OpCase(nn.softmax, [(33, 257)]),
    "layernorm": OpCase(nn.layernorm, [(32, 96), (96,), (96,)]),
    "rmsnorm": OpCase(nn.rmsnorm, [(32, 96), (96,)]),
    "batchnorm": OpCase(nn.batchnorm, [(2, 8, 7, 7), *[(8,)] * 4], positive=True),
    "attention": OpCase(nn.attention, [(4, 32, 16)] * 3),
    "attention, causal": OpCase(
        lambda q, k, v: nn.attention(q, k, v, is_causal=True), [(4, 32, 16)] * 3
    ),
    "transpose, reshape": OpCase(lambda x: x.transpose(2, 0, 1).reshape(-1, 6), [(6, 5, 4)]),
    "concatenate": OpCase(lambda a, b: np.concatenate([a, b], 1), [(9, 5), (9, 7)]),
    "slice": OpCase(lambda x: x[1:, ::2], [(9, 16)]),
    "pad": OpCase(lambda x: np.pad(x, ((1, 2), (0, 3))), [(9, 5)]),
    "take": OpCase(lambda x: nn.take(x, _INDICES), [(17, 9)]),
}
SMALLEST = "add"


def op_workload(name: str) -> Workload:
    """Return the workload of a row of OPS."""
    return OPS[name].workload(name)


@suite("gpu", 15)
def run(bench: SuiteRun) -> Iterator[Record]:
    """Run the models and op cases on this machine's CUDA GPU: errors against numpy, latency."""
    device = Device("cuda")
    target = target_for(compute_capability())
    builds = list(cases(bench.quick))
    records = measure(builds, make_options(target=target), device, bench)
    failed = sum(r["metric"] == "failure" for r in records)
    bench.settings |= {"target": target, "cases": len(builds), "failed": failed}
    yield from records


def cases(quick: bool) -> Iterator[Build]:
    """Yield builders of the measured cases; one op in a quick run."""
    yield from (partial(op_workload, name) for name in ((SMALLEST,) if quick else OPS))
    yield from () if quick else (partial(made, MODELS, name) for name in MODELS)


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
            rows = [failure(workload.name, error)]
        note(f"{i} of {len(builds)}: {workload.name}: {rows[0]['metric']} {rows[0]['value']:.3g}")
        records += rows
    return records


def _measure_one(
    workload: Workload, options: Options, device: Device, bench: SuiteRun
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
