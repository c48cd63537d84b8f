"""Calibration: measure the figures of this CPU that predictions rest on.

The peak: one workgroup a thread, each with enough independent accumulators to hide the latency of
an FMA, in registers only. The bandwidth: each thread copies an array far larger than caches;
bytes read and written, without those that a write may fetch first. Costs of a dispatch and of a
wake-up are differences of programs that do nothing else.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields

import numpy as np

from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.foreign import compile_plain, plain_flags
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
from pyc_mlir.runtime.executable import Executable, ResultType
from pyc_mlir.util.logs import Stage, logged
from pyc_mlir.util.units import quantity

# Two FMA units of four or five cycles need ten; AVX2 has sixteen registers.
ACCUMULATORS = 12
_F32 = 4


def fma_program(lanes: int, groups: int, iterations: int, dispatches: int = 1) -> str:
    """Write a program of `groups` workgroups that do nothing but FMAs on vectors of f32.

    lanes: of the vectors. Several `dispatches` run one after another, each on the one before it.
    """
    vector, every = f"vector<{lanes}xf32>", range(ACCUMULATORS)
    names = ", ".join(f"%a{i} = %init" for i in every)
    kinds = ", ".join([vector] * ACCUMULATORS)
    fmas = "\n".join(f"%b{i} = vector.fma %a{i}, %scale, %shift : {vector}" for i in every)
    sums = "\n".join(
        f"%s{i} = arith.addf {f'%s{i - 1}' if i else '%init'}, %r#{i} : {vector}" for i in every
    )
    size = lanes * groups
    kind = f"(tensor<{size}xf32>) -> tensor<{size}xf32>"
    calls = "\n".join(
        f"  %y{n + 1} = flow.dispatch @fma_exe::@fma(%y{n}) : {kind}" for n in range(dispatches)
    )
    return f"""
stream.executable private @fma_exe {{
  stream.executable.export public @fma workgroups() -> (index, index, index) {{
    %one = arith.constant 1 : index
    %groups = arith.constant {groups} : index
    stream.return %groups, %one, %one : index, index, index
  }}
  builtin.module {{
    func.func @fma(%in: !stream.binding, %out: !stream.binding) attributes {{
        translation_info = #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline>}} {{
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %lanes = arith.constant {lanes} : index
      %count = arith.constant {iterations} : index
      %from = stream.binding.subspan %in[%zero] : !stream.binding -> memref<{size}xf32>
      %to = stream.binding.subspan %out[%zero] : !stream.binding -> memref<{size}xf32>
      %group = stream.dispatch.workgroup.id[0] : index
      %at = arith.muli %group, %lanes : index
      %init = vector.load %from[%at] : memref<{size}xf32>, {vector}
      %scale = arith.constant dense<0.5> : {vector}
      %shift = arith.constant dense<0.25> : {vector}
      %r:{ACCUMULATORS} = scf.for %i = %zero to %count step %one
          iter_args({names}) -> ({kinds}) {{
        {fmas}
        scf.yield {", ".join(f"%b{i}" for i in every)} : {kinds}
      }}
      {sums}
      vector.store %s{ACCUMULATORS - 1}, %to[%at] : memref<{size}xf32>, {vector}
      return
    }}
  }}
}}
func.func public @main(%y0: tensor<{size}xf32>) -> tensor<{size}xf32> {{
{calls}
  return %y{dispatches} : tensor<{size}xf32>
}}
"""


@dataclass(frozen=True)
class PeakProbe:
    """A call to be timed, and how much it does: operations of f32, or bytes read and written."""

    call: Callable[[], object]
    amount: float


def fma_probes(
    devices: Iterable[Device], groups: int, iterations: int, dispatches: int = 1
) -> list[PeakProbe]:
    """Compile the FMA program once for each device; its amount is in operations."""
    from pyc_mlir.runtime.array import to_device

    options = make_options()
    lanes = options.target.vector_bytes // _F32
    text = fma_program(lanes, groups, iterations, dispatches)
    vmfb = compile_plain(text.encode(), plain_flags(options.target))
    shape, amount = (lanes * groups,), 2 * ACCUMULATORS * lanes * groups * iterations * dispatches
    result = ResultType(np.dtype(np.float32), shape)
    probes = []
    for device in devices:
        entry = Executable(vmfb, device).entry("main", [result])
        array = to_device(np.zeros(shape, np.float32), device)
        probes.append(PeakProbe(entry.bare_call([array]), amount))
    return probes


@contextmanager
def copy_probe(threads: int, total_bytes: int) -> Iterator[PeakProbe]:
    """Yield copies of `total_bytes` in all by `threads` threads; its amount is the bytes moved."""
    shape = total_bytes // threads // 8
    pairs = [(np.ones(shape), np.zeros(shape)) for _ in range(threads)]
    amount = 2 * 8 * shape * threads
    if threads == 1:
        yield PeakProbe(lambda: np.copyto(pairs[0][1], pairs[0][0]), amount)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield PeakProbe(lambda: list(pool.map(lambda p: np.copyto(p[1], p[0]), pairs)), amount)


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
            unit = _unit(key)
            value = f"{figure.value / 1e9:.4g} {unit}" if unit else quantity(figure.value, "s")
            lines.append(f"  {title:28} {value:>16}  ({aside})")
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


def require_cpu(cpu: CpuInfo | None) -> CpuInfo:
    """Return the CPU. Raises PycError (DEVICE_UNAVAILABLE) if the system does not describe it."""
    if cpu is not None:
        return cpu
    raise PycError(
        ReasonCode.DEVICE_UNAVAILABLE,
        "calibration: expected a CPU that /proc/cpuinfo describes, got a system without that "
        "file; calibrate on Linux",
    )
