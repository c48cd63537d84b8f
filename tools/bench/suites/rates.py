"""The suites `gemm` and `layers`: programs beside what the machine does at its best.

A run of a program takes turns with a run of nothing but FMAs on one core, or with copies of as many
bytes as it reads and writes, so that both meet the same clock frequency, the same neighbours, and
the level of memory that holds the tensors. The peak of FMAs is that rate times the threads: what
threads reach together falls behind it, and even behind products, since they wake each other. Rates
are medians over the runs; a share of the peak is the median of the shares within each pair.

`gemm` has products with constant weights, a bias and gelu behind it, at 2 m k n operations a call,
the epilogue not counted. A run lasts a second or more; the variation is the standard deviation of
the rates over their mean.

`layers` has the distinct layers of ResNet-50 and MobileNet-V2, each a network of its own with a
bias and relu, NHWC, batch 1, with constant weights. Convolutions that add over channels are beside
FMAs, depthwise ones and poolings beside copies. Operations are those of the direct algorithm, so
that minimal filtering may pass 100 %.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import numpy as np

from pyc_mlir import nn
from pyc_mlir.calibrate import PeakProbe, copy_probe, fma_probes
from pyc_mlir.compilation.options import make_options
from pyc_mlir.measure.interleave import Spread, interleave
from pyc_mlir.measure.records import Record, record
from pyc_mlir.runtime.device import DEFAULT_ALLOCATOR, Device
from pyc_mlir.tools.bench.peers.candidates import pyc
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.report.suite import (
    SuiteRun,
    note,
    on_cores,
    spread_record,
    suite,
    threads_of,
)
from pyc_mlir.tools.bench.workloads.cpu import gemm_gelu
from pyc_mlir.tools.bench.workloads.parts import SeededWeights, case

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
_QUICK_ITERATIONS = 20_000
_GIGA, _MILLION = 1e9, 1e6
CONV, DEPTHWISE, POOL = "conv", "depthwise", "max pool"


@dataclass(frozen=True)
class Rate:
    """A rate: of a unit so much a call, as a share of `of`; the metric of its records.

    `copied`: bytes that copies beside it move; 0 for FMAs, in loops of so many `iterations`.
    """

    amount: int
    unit: str = "GFLOP/s"
    metric: str = "rate"
    of: str = "the FMA peak"
    copied: int = 0
    iterations: int = 1_000_000


def measured(
    workload: Workload, rate: Rate, threads: int, bench: SuiteRun, min_seconds: float
) -> Iterator[Record]:
    """Yield the records of one program. Raises PycError (WRONG_RESULT)."""
    name = f"{workload.name}; {threads_of(threads)}"
    prepared = pyc(workload, make_options(), Device("local", threads, DEFAULT_ALLOCATOR))
    error = workload.check(prepared.results(), "pyc")
    with _peak(rate, threads, bench.quick) as probe:
        calls = {"pyc": prepared.call, "peak": probe.call}
        timings = interleave(calls, bench.rounds, min_seconds=min_seconds)
    amounts = {"pyc": rate.amount, "peak": probe.amount}
    rates = {n: [amounts[n] / s / _GIGA for s in t.samples] for n, t in timings.items()}
    shares = [100 * a / b for a, b in zip(rates["pyc"], rates["peak"], strict=True)]
    share = Spread.of(shares).median
    note(f"{name}: {Spread.of(rates['pyc']).median:.1f} {rate.unit}, {share:.0f} % of {rate.of}")
    more = {"threads": threads}
    for who, spread in ((w, Spread.of(r)) for w, r in rates.items()):
        calls = timings[who].calls
        yield spread_record(name, who, rate.metric, rate.unit, spread, calls=calls, **more)
    shown = "the peak" if rate.metric == "sustained" else rate.of
    yield record(name, "pyc", f"of {shown}", "%", share, **more)
    if rate.metric == "sustained":
        variation = float(100 * np.std(rates["pyc"]) / np.mean(rates["pyc"]))
        yield record(name, "pyc", "variation", "%", variation, **more)
    yield record(name, "pyc", "max relative error", "ppm", error * _MILLION, **more)


@contextmanager
def _peak(rate: Rate, threads: int, quick: bool) -> Iterator[PeakProbe]:
    """Yield what the program is measured against; its amount is of all threads."""
    if not rate.copied:
        iterations = _QUICK_ITERATIONS if quick else rate.iterations
        (probe,) = fma_probes([Device("local", 1, DEFAULT_ALLOCATOR)], 1, iterations)
        yield PeakProbe(probe.call, threads * probe.amount)
        return
    # Copies read and write: half of the bytes each.
    with copy_probe(threads, rate.copied // 2) as probe:
        yield probe


@suite("gemm", ROUNDS)
def gemm(bench: SuiteRun) -> Iterator[Record]:
    """Measure FLOP/s of products with bias and gelu, as a share of the same run's peak."""
    bench.settings["threads"] = threads = on_cores((1, 2))
    for size in QUICK_SIZES if bench.quick else SIZES:
        name = f"gemm + bias + gelu {'x'.join(map(str, size))}"
        rate = Rate(2 * prod(size), metric="sustained", iterations=2_000_000)
        for t in threads:
            workload = gemm_gelu(*size, name=name)
            seconds = 0.0 if bench.quick else _SUSTAINED_SECONDS
            yield from measured(workload, rate, t, bench, seconds)


@dataclass(frozen=True)
class Layer:
    """A window of `kernel` by `kernel` on images [1, size, size, channels].

    Half of the window is padding on each side, as in both networks.
    """

    kind: str
    size: int
    channels: int
    filters: int
    kernel: int
    stride: int = 1

    @property
    def name(self) -> str:
        """``conv 3x3 stride 2, 128->128 @56``."""
        stride = f" stride {self.stride}" if self.stride > 1 else ""
        return (
            f"{self.kind} {self.kernel}x{self.kernel}{stride}, "
            f"{self.channels}->{self.filters} @{self.size}"
        )

    @property
    def outputs(self) -> int:
        """Rows of the result, and columns."""
        return (self.size + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def flops(self) -> int:
        """Operations of the direct algorithm."""
        depth = self.channels if self.kind == CONV else 1
        each = 1 if self.kind == POOL else 2
        return each * self.outputs**2 * self.filters * depth * self.kernel**2

    @property
    def traffic_bytes(self) -> int:
        """Bytes of x and of the result."""
        return 4 * (self.size**2 * self.channels + self.outputs**2 * self.filters)

    @property
    def rate(self) -> Rate:
        """The rate that is measured of the layer."""
        if self.kind == CONV:
            return Rate(self.flops)
        return Rate(self.traffic_bytes, "GB/s", of="copies", copied=self.traffic_bytes)

    def workload(self) -> Workload:
        """Return the layer as a program, with its bias and relu; poolings have none."""
        shape = (1, self.size, self.size, self.channels)
        window = {"strides": (self.stride,) * 2, "pads": (self.kernel // 2,) * 4, "layout": "NHWC"}
        if self.kind == POOL:
            kernel = (self.kernel,) * 2
            pool = lambda x: nn.max_pool2d(x, kernel=kernel, **window)  # noqa: E731
            return case(pool, shape, name=self.name)
        groups = self.channels if self.kind == DEPTHWISE else 1
        draw = SeededWeights()
        weight = draw.window(self.kernel, self.channels // groups, self.filters)
        bias = draw.vector(self.filters)
        conv = lambda x: nn.conv2d(x, weight, groups=groups, **window)  # noqa: E731
        return case(lambda x: nn.relu(conv(x) + bias), shape, name=self.name)


def _points(*layers: tuple[int, int, int]) -> tuple[Layer, ...]:
    """1x1 convolutions (size, channels, filters)."""
    return tuple(Layer(CONV, *layer, 1) for layer in layers)


RESNET50 = (
    Layer(CONV, 224, 3, 64, 7, 2),
    Layer(POOL, 112, 64, 64, 3, 2),
    *_points((56, 64, 64), (56, 64, 256), (56, 256, 64), (56, 256, 128), (28, 128, 512)),
    *_points((28, 512, 128), (28, 512, 256), (14, 256, 1024), (14, 1024, 256), (14, 1024, 512)),
    *_points((7, 512, 2048), (7, 2048, 512)),
    *(Layer(CONV, size, c, 2 * c, 1, 2) for size, c in ((56, 256), (28, 512), (14, 1024))),
    *(Layer(CONV, size, c, c, 3) for size, c in ((56, 64), (28, 128), (14, 256), (7, 512))),
    *(Layer(CONV, size, c, c, 3, 2) for size, c in ((56, 128), (28, 256), (14, 512))),
)
_STEPS = ((112, 96), (56, 144), (28, 192), (14, 576))
_ALIKE = ((112, 32), (56, 144), (28, 192), (14, 384), (14, 576), (7, 960))
MOBILENET_V2 = (
    Layer(CONV, 224, 3, 32, 3, 2),
    *(Layer(DEPTHWISE, size, c, c, 3) for size, c in _ALIKE),
    *(Layer(DEPTHWISE, size, c, c, 3, 2) for size, c in _STEPS),
    *_points((112, 32, 16), (112, 16, 96), (56, 96, 24), (56, 24, 144), (56, 144, 24)),
    *_points((28, 144, 32), (28, 32, 192), (28, 192, 32), (14, 192, 64), (14, 64, 384)),
    *_points((14, 384, 64), (14, 384, 96), (14, 96, 576), (14, 576, 96), (7, 576, 160)),
    *_points((7, 160, 960), (7, 960, 160), (7, 960, 320), (7, 320, 1280)),
)
LAYERS = {"ResNet-50": RESNET50, "MobileNet-V2": MOBILENET_V2}
QUICK_LAYERS = {"ResNet-50": (Layer(CONV, 8, 8, 16, 3), Layer(POOL, 8, 16, 16, 3, 2))}


@suite("layers", ROUNDS)
def layers(bench: SuiteRun) -> Iterator[Record]:
    """Measure layers of ResNet-50 and MobileNet-V2: shares of the FMA peak or memory's speed."""
    bench.settings["threads"] = threads = on_cores((1, 2))
    for network, of_network in (QUICK_LAYERS if bench.quick else LAYERS).items():
        for layer in of_network:
            for t in threads:
                rows = measured(layer.workload(), layer.rate, t, bench, bench.min_seconds)
                yield from (row | {"network": network} for row in rows)
