"""The measurements behind `pyc-doctor --calibrate`: figures of this machine's CPU.

Comes in: the CPU, the environment and how much effort to spend. Goes out: a `Calibration`. All
probes are interleaved (interleave.py), so that a slow moment falls on each alike. Every figure is
of the quickest rounds, since nothing but disturbance makes one slower than the machine allows; the
spread of all rounds stands beside it, and tells a disturbed calibration from a good one. Programs
are the FMA loops of peaks.py through plain IREE, copies are numpy's.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields

from pyc_mlir.calibrate.peaks import PeakProbe, copy_probe, fma_probes
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.environment import Environment
from pyc_mlir.measure.interleave import interleave
from pyc_mlir.pipelines.target.calibration import (
    Calibration,
    Figure,
    Figures,
    MeasuredMachine,
    check_name,
)
from pyc_mlir.pipelines.target.target import V4_FEATURES, CpuInfo
from pyc_mlir.runtime.device import Device
from pyc_mlir.util.logs import Stage, logged
from pyc_mlir.util.units import quantity

_DIGITS = 4  # that measuring again agrees on, and more
_MEMORY_BYTES = 64 << 20
_MOST_MEMORY_BYTES = 512 << 20
_UNITS = {"flops": "GFLOP/s", "bandwidth": "GB/s"}
# Rounds of a rate that differ by more were disturbed.
_CALM_SPREAD = 0.5
_ROUNDS_AT_ONCE = 3
_SHARES = 4
_TITLES = {
    "core_flops": "f32, one core",
    "flops": "f32, all cores",
    "bandwidth": "main memory, all cores",
    "l2_bandwidth": "L2 cache, one core",
    "l3_bandwidth": "L3 cache, one core",
    "dispatch_seconds": "a dispatch, local-sync",
    "wake_seconds": "more for a call, local-task",
}


@dataclass(frozen=True)
class CalibrationEffort:
    """How much is measured: the default takes some seconds, and about 20 on a busy machine.

    At most `rounds`, fewer where they take more than `limit_seconds`: samples of each probe of at
    least `sample_seconds`; `iterations` of the FMA loop; chains of `dispatches`; copies of
    `copied_bytes` (None: far more than the caches hold).
    """

    rounds: int = 15
    limit_seconds: float = 14.0
    sample_seconds: float = 0.02
    iterations: int = 1 << 20
    dispatches: int = 64
    copied_bytes: int | None = None


def calibrate(
    name: str,
    cpu: CpuInfo,
    environment: Environment,
    effort: CalibrationEffort = CalibrationEffort(),
    stage: Stage = logged,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Measure `cpu`, which is this machine's, with the cores that the process may run on.

    stage: a context manager around each step, called with what the step does. Raises PycError:
    BAD_ARGUMENT for a name that no log can hold, and what compiling and running raise.
    """
    check_name(name)
    cores = environment.cores
    with ExitStack() as opened:
        with stage("compiling what is measured"):
            probes = _probes(cpu, cores, effort, opened)
        samples = _samples(probes, effort, stage, clock)
    measured = MeasuredMachine(
        cpu.model,
        tuple(sorted(cpu.features & V4_FEATURES)),
        cores,
        environment.fingerprint,
        tuple(sorted(environment.packages.items())),
    )
    return Calibration(name, measured, _figures(probes, samples, effort.dispatches))


def _samples(
    probes: Mapping[str, PeakProbe],
    effort: CalibrationEffort,
    stage: Stage,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Return seconds of each probe, of as many rounds as there is time for."""
    calls = {key: probe.call for key, probe in probes.items()}
    samples: dict[str, list[float]] = {key: [] for key in probes}
    began, done = clock(), 0
    while done < effort.rounds and (not done or clock() - began < effort.limit_seconds):
        rounds = min(_ROUNDS_AT_ONCE, effort.rounds - done)
        with stage(f"measuring rounds {done + 1} to {done + rounds} of {effort.rounds}"):
            timings = interleave(
                calls, rounds, min_seconds=effort.sample_seconds, clock=clock, seed=done
            )
        for key, timing in timings.items():
            samples[key] += timing.samples
        done += rounds
    return samples


def _probes(
    cpu: CpuInfo, cores: int, effort: CalibrationEffort, opened: ExitStack
) -> dict[str, PeakProbe]:
    """Make the programs to time, by name; `opened` closes the threads that copy."""
    sync, tasks = Device("local-sync"), Device("local-task", threads=cores)
    (core,) = fma_probes([sync], 1, effort.iterations)
    # Shares of a core's work, so that no core waits for one that is slow or was interrupted.
    shares = 1 if cores == 1 else _SHARES
    (every,) = fma_probes(
        [tasks if cores > 1 else sync], shares * cores, max(1, effort.iterations // shares)
    )
    small, waking = fma_probes([sync, tasks], cores, 1)
    (one,) = fma_probes([sync], 1, 1)
    (chain,) = fma_probes([sync], 1, 1, 1 + effort.dispatches)
    beyond = min(max(_MEMORY_BYTES, 2 * cpu.l3_bytes), _MOST_MEMORY_BYTES)
    copied = {"bandwidth": (cores, beyond if effort.copied_bytes is None else effort.copied_bytes)}
    # Source and destination together fill half of the cache.
    copied["l2_bandwidth"] = (1, cpu.l2_bytes // 4)
    if cpu.l3_bytes >= 4 * cpu.l2_bytes:
        copied["l3_bandwidth"] = (1, cpu.l3_bytes // 4)
    copies = {k: opened.enter_context(copy_probe(*sizes)) for k, sizes in copied.items()}
    rates = {"core_flops": core, "flops": every, **copies}
    return {**rates, "small": small, "waking": waking, "one": one, "chain": chain}


def _figures(
    probes: Mapping[str, PeakProbe], samples: Mapping[str, Sequence[float]], dispatches: int
) -> Figures:
    """Compute rates from amounts, costs from differences."""
    names = [f.name for f in fields(Figures) if f.name in probes]
    rates = {key: _rate(probes[key].amount, samples[key]) for key in names}
    return Figures(
        **rates,
        dispatch_seconds=_cost(samples["chain"], samples["one"], dispatches),
        wake_seconds=_cost(samples["waking"], samples["small"]),
    )


def _rate(amount: float, seconds: Sequence[float]) -> Figure:
    return _figure(amount / min(seconds), [amount / s for s in seconds])


def _cost(more: Sequence[float], less: Sequence[float], times: int = 1) -> Figure:
    """Return the time that `more` takes longer, each of `times`; a negative difference is 0."""
    differences = [(m - n) / times for m, n in zip(more, less, strict=True)]
    return _figure(max(0.0, (min(more) - min(less)) / times), differences)


def _figure(value: float, samples: Sequence[float]) -> Figure:
    middle = abs(statistics.median(samples))
    spread = (max(samples) - min(samples)) / middle if middle else 0.0
    return Figure(float(f"{value:.{_DIGITS}g}"), len(samples), float(f"{spread:.2g}"))


def table(calibration: Calibration) -> str:
    """Write the figures, a line each, and a note if they were disturbed; ends in a newline."""
    machine = calibration.machine
    found: dict[str, Figure | None] = vars(calibration.figures)
    lines = [f"{calibration.label}: {machine.cpu or 'unknown CPU'}, {machine.cores} cores"]
    for key, title in _TITLES.items():
        if (figure := found[key]) is not None:
            aside = f"{figure.rounds} rounds, spread {figure.spread:.0%}"
            lines.append(f"  {title:28} {_value(key, figure.value):>16}  ({aside})")
    rates = (f.spread for key, f in found.items() if f is not None and _unit(key))
    if (worst := max(rates)) > _CALM_SPREAD:
        lines.append(
            f"note: rounds differ by up to {worst:.0%}: something else ran; measure again on an "
            "idle machine"
        )
    return "".join(f"{line}\n" for line in lines)


def _unit(key: str) -> str:
    """Return the unit of a rate; empty for a cost."""
    return _UNITS.get(key.rpartition("_")[2], "")


def _value(key: str, value: float) -> str:
    unit = _unit(key)
    return f"{value / 1e9:.4g} {unit}" if unit else quantity(value, "s")


def require_cpu(cpu: CpuInfo | None) -> CpuInfo:
    """Return the CPU. Raises PycError (DEVICE_UNAVAILABLE) if the system does not describe it."""
    if cpu is not None:
        return cpu
    raise PycError(
        ReasonCode.DEVICE_UNAVAILABLE,
        "calibration: expected a CPU that /proc/cpuinfo describes, got a system without that "
        "file; calibrate on Linux",
    )
