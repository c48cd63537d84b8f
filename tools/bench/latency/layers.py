"""The suite `layers`: distinct layers of ResNet-50 and MobileNet-V2, each alone, against the CPU.

Every layer is a network of its own with a bias and relu, NHWC, batch 1, with constant weights. A
run of it takes turns with a run of nothing but FMAs on one core (convolutions that add over
channels) or with copies of as many bytes as the layer reads and writes (depthwise convolutions and
pooling), so that both meet the same clock frequency, the same neighbours, and the level of memory
that holds the tensors. Peaks of FMAs are the one core's rate times the threads. Operations are
those of the direct algorithm, so that minimal filtering may pass 100 %.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyc_mlir import nn
from pyc_mlir.calibrate import PeakProbe, copy_probe, fma_probes
from pyc_mlir.compilation.options import make_options
from pyc_mlir.measure.interleave import Spread, interleave
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.target.target import available_cores
from pyc_mlir.runtime.device import default_device
from pyc_mlir.tools.bench.peers.candidates import pyc
from pyc_mlir.tools.bench.peers.workload import BenchWorkload
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, parse
from pyc_mlir.tools.bench.workloads.case import SeededWeights
from pyc_mlir.tools.bench.workloads.cpu import case

SUITE = "layers"
ROUNDS = 5
_ITERATIONS, _QUICK_ITERATIONS = 1_000_000, 20_000
_GIGA = 1e9
CONV, DEPTHWISE, POOL = "conv", "depthwise", "max pool"


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

    def workload(self) -> BenchWorkload:
        """Return the layer as a program, with its bias and relu; poolings have none."""
        shape = (1, self.size, self.size, self.channels)
        window = {"strides": (self.stride,) * 2, "pads": (self.kernel // 2,) * 4, "layout": "NHWC"}
        if self.kind == POOL:
            kernel = (self.kernel,) * 2
            return case(self.name, lambda x: nn.max_pool2d(x, kernel=kernel, **window), shape)
        groups = self.channels if self.kind == DEPTHWISE else 1
        draw = SeededWeights()
        weight = draw.window(self.kernel, self.channels // groups, self.filters)
        bias = draw.vector(self.filters)
        return case(
            self.name,
            lambda x: nn.relu(nn.conv2d(x, weight, groups=groups, **window) + bias),
            shape,
        )


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


def run(arguments: Sequence[str]) -> int:
    """Measure layers of ResNet-50 and MobileNet-V2: shares of the FMA peak or memory's speed."""
    requested, _ = parse(SUITE, run.__doc__ or "", ROUNDS, arguments)
    threads = [t for t in (1, 2) if t <= available_cores()]
    records = [
        row | {"network": network}
        for network, layers in (QUICK_LAYERS if requested.quick else LAYERS).items()
        for layer in layers
        for t in threads
        for row in measured(layer, t, requested)
    ]
    requested.store(records, threads=threads)
    return 0


def measured(layer: Layer, threads: int, requested: SuiteRun) -> list[Record]:
    """Measure the records of one layer. Raises PycError (WRONG_RESULT)."""
    name = f"{layer.name}; {threads} thread{'s' * (threads > 1)}"
    workload = layer.workload()
    prepared = pyc(workload, make_options(), default_device(threads))
    error = workload.check(prepared.results(), "pyc")
    amount = layer.flops if layer.kind == CONV else layer.traffic_bytes
    unit, of = ("GFLOP/s", "the FMA peak") if layer.kind == CONV else ("GB/s", "copies")
    with _peak(layer, threads, requested) as probe:
        timings = interleave(
            {"pyc": prepared.call, "peak": probe.call},
            requested.rounds,
            min_seconds=requested.min_seconds,
        )
    amounts = {"pyc": amount, "peak": probe.amount}
    rates = {n: [amounts[n] / s / _GIGA for s in t.samples] for n, t in timings.items()}
    shares = [100 * a / b for a, b in zip(rates["pyc"], rates["peak"], strict=True)]
    share = Spread.of(shares).median
    note(f"{name}: {Spread.of(rates['pyc']).median:.1f} {unit}, {share:.0f} % of {of}")
    found = [
        record(name, who, "rate", unit, spread.median, p10=spread.p10, p90=spread.p90,
               min=spread.min, n=spread.n, calls=timings[who].calls)
        for who, spread in ((w, Spread.of(r)) for w, r in rates.items())
    ]  # fmt: skip
    found.append(record(name, "pyc", f"of {of}", "%", share))
    found.append(record(name, "pyc", "max relative error", "ppm", error * 1e6))
    return [row | {"threads": threads} for row in found]


@contextmanager
def _peak(layer: Layer, threads: int, requested: SuiteRun) -> Iterator[PeakProbe]:
    """Yield the peak that the layer is measured against; its amount is of all threads."""
    if layer.kind == CONV:
        iterations = _QUICK_ITERATIONS if requested.quick else _ITERATIONS
        (probe,) = fma_probes([default_device(1)], 1, iterations)
        yield PeakProbe(probe.call, threads * probe.amount)
        return
    # Copies read and write: half of the bytes each.
    with copy_probe(threads, layer.traffic_bytes // 2) as probe:
        yield probe
