"""Targets as data, and the facts that the host's CPU adds to them.

A `Target` says which IREE flags select it, which element types it has, and the few machine
numbers that passes and cost models ask for. Vector widths, registers and memory alignment are
architectural; caches, cores and peaks of the table are published figures of one typical part
(they rank alternatives, they promise nothing). `Target.on` replaces them by the host's own,
`Target.calibrated` by what was measured.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.cpu_features import used_in_code

# Buffers that IREE's runtime binds to a dispatch (`IREE_HAL_MODULE_MAX_DESCRIPTOR_BINDING_COUNT`).
MOST_BINDINGS = 32
ALL_DTYPES = frozenset(DTYPES)
# The x86-64 micro-architecture levels (System V psABI) in Linux's names of features.
V3_FEATURES = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
V4_FEATURES = V3_FEATURES | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
# What tells one CPU from another in /proc/cpuinfo; virtual machines shorten the name.
_MODEL_KEYS = ("model name", "cpu family", "model")
_VECTOR_BYTES = {"avx512f": 64, "avx2": 32, "avx": 32}
# 16 operations a lane and cycle: two fused multiply-adds of 8 f32 lanes, at a nominal 3 GHz.
_NOMINAL_HERTZ = 3e9


@dataclass(frozen=True)
class CpuInfo:
    """The facts of a CPU. Sizes are bytes of one core's (L3: one shared) cache.

    `model` is its name, family and number, empty where that is not known.
    """

    features: frozenset[str]
    cores: int
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    l3_bytes: int = 8 << 20
    model: str = ""

    @property
    def vector_bytes(self) -> int:
        """Width of the widest vector register."""
        return next((w for f, w in _VECTOR_BYTES.items() if f in self.features), 16)

    @property
    def vector_registers(self) -> int:
        """The number of vector registers: AVX-512 and 64-bit Arm ("asimd") have 32."""
        return 32 if self.features & {"avx512f", "asimd"} else 16


@dataclass(frozen=True)
class Target:
    """A kind of machine that PyC compiles for.

    `device` is the runtime's kind (``local``, ``cuda``, ``vulkan``); `features` are the CPU
    features that choices go by, `host_features` those that LLVM may use besides; `peak_flops` is
    FLOP/s of f32, `peak_bandwidth` bytes/s of main memory; `alignment` is the bytes that buffers
    start at a multiple of.
    `in_place` are the forms of stream_alias.py in which a result may take over an operand's
    storage: those that tests have shown to hold for what IREE generates there. `cpu_model` is the
    CPU that it was put on, if any; `dispatch_seconds` is what a dispatch costs besides its work, 0
    where that was not measured; `calibrated_by` names the calibration whose figures it has.
    """

    name: str
    device: str
    flags: tuple[str, ...]
    vector_bytes: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int
    peak_flops: float
    peak_bandwidth: float
    alignment: int = 64
    dtypes: frozenset[str] = ALL_DTYPES
    features: frozenset[str] = field(default_factory=frozenset)
    host_features: frozenset[str] = field(default_factory=frozenset)
    in_place: frozenset[str] = field(default_factory=frozenset)
    cpu_model: str = ""
    dispatch_seconds: float = 0.0
    calibrated_by: str = ""

    @staticmethod
    def named(name: str) -> "Target":
        """Return the target of that name. Raises PycError (UNKNOWN_TARGET) listing all names."""
        if name not in TARGETS:
            raise PycError(
                ReasonCode.UNKNOWN_TARGET,
                f"target: expected one of {', '.join(sorted(TARGETS))}, got {name!r}"
                f"{did_you_mean(name, TARGETS)}",
            )
        return TARGETS[name]

    def on(self, cpu: CpuInfo) -> "Target":
        """Return this CPU target with the figures of `cpu`; other targets are returned unchanged.

        Only the target ``cpu`` ("the host") takes features and vector width: the named levels
        fix theirs.
        """
        if self.device != "local":
            return self
        measured = replace(
            self,
            cores=cpu.cores,
            l1_bytes=cpu.l1_bytes,
            l2_bytes=cpu.l2_bytes,
            l3_bytes=cpu.l3_bytes,
            cpu_model=cpu.model,
        )
        if self.features:
            vector_bytes = self.vector_bytes
        else:
            vector_bytes = cpu.vector_bytes
            measured = replace(
                measured,
                features=cpu.features & V4_FEATURES,
                host_features=used_in_code(cpu.features),
                vector_bytes=vector_bytes,
                vector_registers=cpu.vector_registers,
            )
        return replace(measured, peak_flops=_cpu_peak(cpu.cores, vector_bytes))

    def calibrated(self, calibration: Calibration) -> "Target":
        """Return this CPU target with what was measured: cores, peaks and the cost of a dispatch.

        Raises PycError (BAD_ARGUMENT) for figures of another CPU or of other features.
        """
        if unfit := self._unfit(calibration):
            expected, got = unfit
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"calibration `{calibration.name}`: expected {expected} for target "
                f"`{self.name}`, got {got}; measure on the machine that the program is for with "
                "`pyc-doctor --calibrate FILE`, or compile without a calibration",
            )
        figures = calibration.figures
        return replace(
            self,
            cores=calibration.machine.cores,
            peak_flops=figures.flops.value,
            peak_bandwidth=figures.bandwidth.value,
            dispatch_seconds=figures.dispatch_seconds.value,
            calibrated_by=calibration.label,
        )

    def _unfit(self, calibration: Calibration) -> tuple[str, str] | None:
        """Return what was expected of a calibration for this target and what it has; None: it fits.

        A target without a CPU model takes figures of any CPU with its features.
        """
        machine = calibration.machine
        if self.device != "local":
            return "no calibration (it measures CPUs)", "one"
        if self.cpu_model not in ("", machine.cpu):
            return f"the CPU {self.cpu_model!r}", repr(machine.cpu)
        if frozenset(machine.features) != self.features:
            features = " ".join(sorted(self.features)) or "none"
            return f"the features {features}", " ".join(machine.features) or "none"
        return None

    @property
    def needs(self) -> frozenset[str]:
        """The CPU features that a compiled program may use."""
        return self.features | self.host_features

    def lacks(self) -> frozenset[str]:
        """Return the element types of PyC that this target does not have."""
        return ALL_DTYPES - self.dtypes


def available_cores() -> int:
    """Return the logical cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def read_host_cpu(
    cpuinfo: Path = Path("/proc/cpuinfo"), system: Path = Path("/sys/devices/system/cpu")
) -> CpuInfo | None:
    """Read this machine's CPU from Linux's files; None where they do not exist."""
    if not cpuinfo.is_file():
        return None
    lines = [line.partition(":") for line in cpuinfo.read_text().splitlines()]
    features: frozenset[str] = frozenset()
    for key, _, value in lines:
        if key.strip() in ("flags", "Features"):
            features = frozenset(value.split())
            break
    cores = max(1, sum(key.strip() == "processor" for key, _, _ in lines))
    # All processors are taken to be of one kind; the last one's rows stand for them.
    rows = {key.strip(): value.strip() for key, _, value in lines}
    model = " ".join(rows[key] for key in _MODEL_KEYS if key in rows)
    return CpuInfo(features, cores, **_read_caches(system / "cpu0" / "cache"), model=model)


def _read_caches(folder: Path) -> dict[str, int]:
    """Cache sizes by level, without the instruction cache; empty where Linux does not tell."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = {}
    for index in sorted(folder.glob("index*")):
        kind, level, size = (
            (index / part).read_text().strip() if (index / part).is_file() else ""
            for part in ("type", "level", "size")
        )
        if kind in ("Data", "Unified") and level in ("1", "2", "3") and size[-1:] in units:
            sizes[f"l{level}_bytes"] = int(size[:-1]) * units[size[-1]]
    return sizes


def _cpu_peak(cores: int, vector_bytes: int) -> float:
    """FLOP/s of f32 with two fused multiply-adds a cycle at the nominal clock."""
    return cores * (vector_bytes / 4) * 4 * _NOMINAL_HERTZ


def _cpu(
    name: str,
    cpu: str,
    vector_bytes: int,
    features: frozenset[str],
    vector_registers: int,
    more: tuple[str, ...] = (),
) -> Target:
    return Target(
        name=name,
        device="local",
        flags=(
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            f"--iree-llvmcpu-target-cpu={cpu}",
            *more,
        ),
        vector_bytes=vector_bytes,
        vector_registers=vector_registers,
        l1_bytes=32 << 10,
        l2_bytes=512 << 10,
        l3_bytes=8 << 20,
        cores=4,
        peak_flops=_cpu_peak(4, vector_bytes),
        peak_bandwidth=40e9,
        features=features,
        in_place=frozenset({"points", "rows"}),
    )


def _cuda(name: str, cores: int, l2_bytes: int, flops: float, bandwidth: float) -> Target:
    """Make a CUDA target: `cores` are multiprocessors, `l1_bytes` their shared memory."""
    return Target(
        name=name,
        device="cuda",
        flags=(
            "--iree-hal-target-device=cuda",
            f"--iree-cuda-target={name.removeprefix('cuda-')}",
        ),
        vector_bytes=16,
        vector_registers=255,
        l1_bytes=(164 << 10) if name == "cuda-sm_80" else (100 << 10),
        l2_bytes=l2_bytes,
        l3_bytes=0,
        cores=cores,
        peak_flops=flops,
        peak_bandwidth=bandwidth,
    )


# NVIDIA's data sheets of the A100 (40 GB), the GeForce RTX 3090 and the L4.
_SM_80 = _cuda("cuda-sm_80", 108, 40 << 20, 19.5e12, 1555e9)
_SM_86 = _cuda("cuda-sm_86", 82, 6 << 20, 35.6e12, 936e9)
_SM_89 = _cuda("cuda-sm_89", 58, 48 << 20, 30.3e12, 300e9)
# Desktop-class Vulkan 1.1 without 64-bit floats. The features are spelt out because IREE's default
# profile (32-bit storage only) reads f16 as if it were f32, and drops the elements of 8- and
# 16-bit buffers that do not fill a word at the end.
_VULKAN_FEATURES = (
    "spirv:v1.3",
    "cap:Shader",
    *(f"cap:{name}" for name in ("Float16", "Int8", "Int16", "Int64")),
    *("cap:StorageBuffer8BitAccess", "cap:StorageBuffer16BitAccess"),
    *("ext:SPV_KHR_8bit_storage", "ext:SPV_KHR_16bit_storage"),
)
_VULKAN = Target(
    name="vulkan",
    device="vulkan",
    flags=(
        "--iree-hal-target-device=vulkan",
        f"--iree-vulkan-target-features={','.join(_VULKAN_FEATURES)}",
    ),
    vector_bytes=16,
    vector_registers=64,
    l1_bytes=16 << 10,
    l2_bytes=1 << 20,
    l3_bytes=0,
    cores=8,
    peak_flops=1e12,
    peak_bandwidth=50e9,
    dtypes=ALL_DTYPES - {"f64"},
    in_place=frozenset({"points", "rows"}),
)

TARGETS: Mapping[str, Target] = {
    "cpu": _cpu("cpu", "host", 32, frozenset(), 16),
    "cpu-avx2": _cpu("cpu-avx2", "x86-64-v3", 32, V3_FEATURES, 16),
    "cpu-avx512": _cpu("cpu-avx512", "x86-64-v4", 64, V4_FEATURES, 32),
    # 64-bit Arm with what every such CPU has (Linux calls NEON "asimd").
    "cpu-neon": _cpu(
        "cpu-neon",
        "generic",
        16,
        frozenset({"asimd"}),
        32,
        (
            "--iree-llvmcpu-target-triple=aarch64-unknown-linux-gnu",
            "--iree-llvmcpu-target-cpu-features=+neon",
        ),
    ),
    "cuda": _SM_80,
    "cuda-sm_80": _SM_80,
    "cuda-sm_86": _SM_86,
    "cuda-sm_89": _SM_89,
    "vulkan": _VULKAN,
}
