"""Calibrations for tests: of a made-up CPU, or of this machine's with made-up figures."""

from collections.abc import Iterable

from pyc_mlir.pipelines.target.calibration import Calibration, Figure, Figures, MeasuredMachine
from pyc_mlir.pipelines.target.target import V4_FEATURES, CpuInfo
from pyc_mlir.runtime.device import host_cpu

AVX512_CPU = CpuInfo(V4_FEATURES | {"sse2"}, cores=2, model="Test CPU 25 17")


def calibration(
    name: str = "lab",
    cpu: str = AVX512_CPU.model,
    features: Iterable[str] = V4_FEATURES,
    cores: int = 2,
    flops: float = 2e11,
    bandwidth: float = 2e10,
    dispatch: float = 1e-6,
) -> Calibration:
    machine = MeasuredMachine(
        cpu, tuple(sorted(features)), cores, "0123456789abcdef", (("numpy", "2"),)
    )
    rates = (flops / cores, flops, bandwidth)
    core, all_cores, memory = (Figure(rate, 7, 0.05) for rate in rates)
    waking, cache = Figure(8e-6, 7, 0.3), Figure(1e11, 7, 0.02)
    figures = Figures(core, all_cores, memory, Figure(dispatch, 7, 0.1), waking, cache, cache)
    return Calibration(name, machine, figures)


def host_calibration(
    name: str = "lab", flops: float = 2e11, bandwidth: float = 2e10, dispatch: float = 1e-6
) -> Calibration:
    """Figures that fit the target `cpu` on this machine."""
    cpu = host_cpu() or CpuInfo(frozenset(), 1)
    features = cpu.features & V4_FEATURES
    return calibration(name, cpu.model, features, 2, flops, bandwidth, dispatch)
