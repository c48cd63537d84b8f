"""The suite `gemm`: sustained share of the FMA peak of products with an epilogue.

Each product has weights that are constants, a bias and gelu behind it. A run lasts a second or
more, in turn with a run of nothing but FMAs on one core, so that both meet the same clock frequency
and the same neighbours. The peak is that rate times the threads: what threads reach together falls
behind it, and even behind products, since they wake each other. The rate is 2 m k n a call, the
epilogue not counted, its median over the runs; the share of the peak is the median of the shares
within each pair of runs, and the variation the standard deviation of the rates over their mean.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from pyc_mlir.calibrate import fma_probes
from pyc_mlir.compilation.options import make_options
from pyc_mlir.measure.interleave import Spread, interleave
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.target.target import available_cores
from pyc_mlir.runtime.device import default_device
from pyc_mlir.tools.bench.peers.candidates import pyc
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, parse
from pyc_mlir.tools.bench.workloads.cpu import gemm_gelu

SUITE = "gemm"
ROUNDS = 5
# Rows, depth, columns.
SIZES = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (128, 768, 3072),
    (1400, 1400, 1400),
    (2048, 2048, 2048),
    (3072, 3072, 3072),
)
QUICK_SIZES = ((64, 32, 48),)
_SUSTAINED_SECONDS = 1.0
_ITERATIONS, _QUICK_ITERATIONS = 2_000_000, 20_000
_GIGA, MILLION = 1e9, 1e6


def run(arguments: Sequence[str]) -> int:
    """Measure FLOP/s of products with bias and gelu, as a share of the same run's peak."""
    bench, _ = parse(SUITE, run.__doc__ or "", ROUNDS, arguments)
    sizes = QUICK_SIZES if bench.quick else SIZES
    threads = [t for t in (1, 2) if t <= available_cores()]
    records = [row for size in sizes for t in threads for row in sustained(size, t, bench)]
    bench.store(records, threads=threads)
    return 0


def sustained(size: tuple[int, int, int], threads: int, bench: SuiteRun) -> list[Record]:
    """Measure the records of one product. Raises PycError (WRONG_RESULT)."""
    name = f"gemm + bias + gelu {'x'.join(map(str, size))}; {threads} thread{'s' * (threads > 1)}"
    workload, device = gemm_gelu(name, *size), default_device(threads)
    prepared = pyc(workload, make_options(), device)
    error = workload.check(prepared.results(), "pyc")
    iterations = _QUICK_ITERATIONS if bench.quick else _ITERATIONS
    (probe,) = fma_probes([default_device(1)], 1, iterations)
    calls = {"pyc": prepared.call, "peak": probe.call}
    amounts = {"pyc": 2 * prod(size), "peak": threads * probe.amount}
    seconds = 0.0 if bench.quick else _SUSTAINED_SECONDS
    timings = interleave(calls, bench.rounds, min_seconds=seconds)
    rates = {n: [amounts[n] / s / _GIGA for s in t.samples] for n, t in timings.items()}
    shares = [100 * a / b for a, b in zip(rates["pyc"], rates["peak"], strict=True)]
    variation = 100 * np.std(rates["pyc"]) / np.mean(rates["pyc"])
    share = Spread.of(shares).median
    note(f"{name}: {Spread.of(rates['pyc']).median:.0f} GFLOP/s, {share:.0f} % of the peak")
    found = [
        record(name, who, "sustained", "GFLOP/s", spread.median, p10=spread.p10, p90=spread.p90,
               min=spread.min, n=spread.n, calls=timings[who].calls)
        for who, spread in ((w, Spread.of(r)) for w, r in rates.items())
    ]  # fmt: skip
    found.append(record(name, "pyc", "of the peak", "%", share))
    found.append(record(name, "pyc", "variation", "%", float(variation)))
    found.append(record(name, "pyc", "max relative error", "ppm", error * MILLION))
    return [row | {"threads": threads} for row in found]
